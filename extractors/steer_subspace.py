"""PRSR: language-subspace removal in the blocks (arXiv 2610.23807)."""

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents, flat
from extractors.steering import SubspaceRemoval


def remove(states_ND: Tensor, basis_Dq: Tensor, strength: float = 1.0) -> Tensor:
    """Returns h - c (h B) B^T, worked out in float32 in the states' own dtype."""
    states = states_ND.float()
    return (states - strength * (states @ basis_Dq) @ basis_Dq.T).to(states_ND.dtype)


@contextlib.contextmanager
def removing(backbone: Anatomy, kind: SubspaceRemoval, extents: Extents, bases: Mapping[int, Tensor]) -> Iterator[None]:
    """Removes from the steered tokens' block outputs what lies in the bases [d, q], in the forward pass in the body."""
    steered_M = extents.last if kind.position == "last" else extents.span(text_only=True)[0]
    with contextlib.ExitStack() as stack:
        for block in kind.blocks:

            def change(states: Tensor, basis_Dq: Tensor = bases[block]) -> Tensor:
                state_TD = flat(states)
                removed_MD = remove(state_TD[steered_M], basis_Dq, kind.strength)
                return state_TD.index_put((steered_M,), removed_MD).view_as(states)

            stack.enter_context(writing(backbone.site("block-output", block), change))
        yield
