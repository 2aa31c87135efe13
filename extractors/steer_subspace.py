"""PRSR: language-subspace removal in the blocks (arXiv 2610.23807)."""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents
from extractors.steering import SubspaceRemoval


def remove(states_ND: Tensor, basis_Dq: Tensor, strength: float = 1.0) -> Tensor:
    """Returns h - c (h B) B^T, worked out in float32 in the states' own dtype."""
    states = states_ND.float()
    return (states - strength * (states @ basis_Dq) @ basis_Dq.T).to(states_ND.dtype)


@contextlib.contextmanager
def removing(backbone: Anatomy, kind: SubspaceRemoval, extents: Extents, bases: Mapping[int, Tensor]) -> Iterator[None]:
    """Removes from the steered tokens' block outputs what lies in the bases [d, q], in the forward pass in the body."""
    with contextlib.ExitStack() as stack:
        for block in kind.blocks:

            def change(state_BND: Tensor, basis_Dq: Tensor = bases[block]) -> Tensor:
                chosen = _steered_tokens(state_BND.shape[1], kind.position, extents)
                return state_BND.index_put(chosen, remove(state_BND[chosen], basis_Dq, kind.strength))

            stack.enter_context(writing(backbone.site("block-output", block), change))
        yield


def _steered_tokens(tokens: int, position: str, extents: Extents) -> tuple[Tensor, Tensor]:
    if position == "last":
        return torch.arange(len(extents.length), device=extents.length.device), extents.length - 1
    position_1N = torch.arange(tokens, device=extents.length.device)[None, :]
    inside_BN = (position_1N >= extents.text_begin[:, None]) & (position_1N < extents.text_end[:, None])
    rows, columns = inside_BN.nonzero(as_tuple=True)
    return rows, columns
