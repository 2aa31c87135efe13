"""Contrastive prompting (arXiv 2505.12831)."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents
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

    def change(z_BND: Tensor) -> Tensor:
        rows = torch.arange(z_BND.shape[0], device=z_BND.device)
        last = extents.length - 1
        contrasted_BD = contrast(z_BND[rows, last].float(), auxiliary_BD, kind.scaling, kind.alpha)
        return z_BND.index_put((rows, last), contrasted_BD.to(z_BND.dtype))

    (block,) = kind.blocks
    with writing(backbone.site("head-output", block), change):
        yield
