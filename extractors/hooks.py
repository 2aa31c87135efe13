"""Reading and changing tensors in a forward pass with hooks that always come off."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from extractors.anatomy import Site


class _EverythingRead(Exception):
    """Ends a forward pass whose remaining blocks nobody reads."""


@contextlib.contextmanager
def reading(sites: Mapping[int, Site], take: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Calls ``take(key, tensor [B, N, width])`` for each site while one forward pass runs in the body.

    The pass is ended as soon as every site was read; the hooks are gone afterwards, also after an exception.

    Raises:
        RuntimeError: a site did not come up in the pass, or came up twice.
    """
    unread = set(sites)

    def seen(key: int, tensor: Tensor) -> None:
        if key not in unread:
            raise RuntimeError(f"site {key} came up twice in one forward pass")
        unread.discard(key)
        take(key, tensor)
        if not unread:
            raise _EverythingRead

    handles = [_attach(site, key, seen) for key, site in sites.items()]
    try:
        yield
    except _EverythingRead:
        pass
    finally:
        for handle in handles:
            handle.remove()
    if unread:
        raise RuntimeError(f"sites {sorted(unread)} did not come up in the forward pass")


@contextlib.contextmanager
def writing(site: Site, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replaces the site's tensor by ``change(tensor)`` in the one forward pass that runs in the body.

    The hook is gone afterwards, also after an exception.

    Raises:
        RuntimeError: the site did not come up in the pass.
    """
    came_up = False

    def before(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal came_up
        came_up = True
        return (change(inputs[0]), *inputs[1:])

    def after(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
        nonlocal came_up
        came_up = True
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    is_input = site.side == "input"
    handle = site.module.register_forward_pre_hook(before) if is_input else site.module.register_forward_hook(after)
    try:
        yield
    finally:
        handle.remove()
    if not came_up:
        raise RuntimeError(
            f"what was to be changed, the {site.side} of a {type(site.module).__name__}, did not come up"
        )


def _part(site: Site, tensor: Tensor) -> Tensor:
    return tensor if site.part is None else site.part(tensor)


def _attach(site: Site, key: int, seen: Callable[[int, Tensor], None]) -> Any:
    if site.side == "input":

        def before(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen(key, _part(site, inputs[0]))

        return site.module.register_forward_pre_hook(before)

    def after(_module: nn.Module, _inputs: tuple[Any, ...], output: Any) -> None:
        # Blocks return a tensor or a tuple that begins with it, by transformers version.
        seen(key, _part(site, output[0] if isinstance(output, tuple) else output))

    return site.module.register_forward_hook(after)
