"""Contrastive prompting (arXiv 2505.12831)."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents, flat
from extractors.steering import ContrastivePrompting

_TINY = 1e-7


def contrast(z_BD: Tensor, auxiliary_BD: Tensor, scaling: Literal["scaled", "norm-restored"], alpha: float) -> Tensor:
    """Returns alpha (z - u) for ``scaled``, and (z - u) |z| / |z - u| for ``norm-restored``; norms over all heads."""
    difference_BD = z_BD - auxiliary_BD
    if scaling == "scaled":
        return alpha * difference_BD
    length_B1, old_B1 = (vectors_BD.norm(dim=-1, keepdim=True) for vectors_BD in (difference_BD, z_BD))
    return difference_BD * old_B1 / (length_B1 + _TINY)


@contextlib.contextmanager
def contrasted(backbone: Anatomy, kind: ContrastivePrompting, extents: Extents, auxiliary_BD: Tensor) -> Iterator[None]:
    """Contrasts the last token's head outputs with ``auxiliary_BD`` in the forward pass in the body."""

    def change(heads: Tensor) -> Tensor:
        z_TD = flat(heads)
        contrasted_BD = contrast(z_TD[extents.last].float(), auxiliary_BD, kind.scaling, kind.alpha)
        return z_TD.index_put((extents.last,), contrasted_BD.to(z_TD.dtype)).view_as(heads)

    (block,) = kind.blocks
    with writing(backbone.site("head-output", block), change):
        yield
