"""From a tensor of tokens [B, N, D] to one vector a text [B, D], in float32.

Tokens are selected, never multiplied by a mask: 0 x NaN is NaN, and what a model computes for padding is
anyone's guess.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from extractors.methods import Pooling


class Extents(NamedTuple):
    """Where the tokens of a right-padded batch are; int64 tensors [B]."""

    length: Tensor
    text_begin: Tensor
    text_end: Tensor


def pool(tokens_BND: Tensor, extents: Extents, pooling: Pooling) -> Tensor:
    """Pools a right-padded batch.

    Args:
        pooling: ``mean`` over all tokens of the prompt, ``mean-text`` over those that hold the user's text (no start
            token, no template), ``last`` for the last token of the prompt.

    Returns:
        float32 [B, D].
    """
    if pooling == "last":
        rows = torch.arange(tokens_BND.shape[0], device=tokens_BND.device)
        return tokens_BND[rows, extents.length - 1].float()
    begin, end = (extents.text_begin, extents.text_end) if pooling == "mean-text" else (0, extents.length)
    return _mean(tokens_BND, begin, end)


def _mean(tokens_BND: Tensor, begin_B: Tensor | int, end_B: Tensor) -> Tensor:
    position_1N = torch.arange(tokens_BND.shape[1], device=tokens_BND.device)[None, :]
    first_B1 = begin_B[:, None] if isinstance(begin_B, Tensor) else begin_B
    inside_BN = (position_1N >= first_B1) & (position_1N < end_B[:, None])
    kept_BND = torch.where(inside_BN[:, :, None], tokens_BND.float(), 0.0)
    return kept_BND.sum(dim=1) / inside_BN.sum(dim=1, keepdim=True)
