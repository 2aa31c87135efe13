"""From a tensor of tokens [B, N, D] to one vector a text [B, D], in float32.

Tokens are selected, never multiplied by a mask: 0 x NaN is NaN, and what a model computes for padding is
anyone's guess.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from extractors.method import Pooling


class Extents(NamedTuple):
    """Where the tokens of a right-padded batch are; int64 tensors [B]; ``placeholder`` is -1 where there is none."""

    length: Tensor
    text_begin: Tensor
    text_end: Tensor
    placeholder: Tensor


def pool(tokens_BND: Tensor, extents: Extents, pooling: Pooling) -> Tensor:
    """Pools a right-padded batch.

    Args:
        pooling: ``mean`` over all tokens of the prompt; ``mean-text`` and ``second-copy`` over those that hold the
            user's text (no start token, no template), in the last slot; ``weighted-mean`` over all tokens with weights
            1, 2, … n (SGPT, arXiv 2202.08904); ``last`` for the last token of the prompt; ``mean-and-last`` for
            the mean of ``mean`` and ``last``.

    Returns:
        float32 [B, D].
    """
    if pooling == "mean-and-last":
        return (pool(tokens_BND, extents, "mean") + pool(tokens_BND, extents, "last")) / 2
    if pooling == "last":
        rows = torch.arange(tokens_BND.shape[0], device=tokens_BND.device)
        return tokens_BND[rows, extents.length - 1].float()
    position_1N = torch.arange(tokens_BND.shape[1], device=tokens_BND.device)[None, :]
    inside_BN = position_1N < extents.length[:, None]
    weight_BN = torch.ones_like(inside_BN, dtype=torch.float32)
    if pooling == "weighted-mean":
        weight_BN = (position_1N + 1).float().expand_as(inside_BN)
    elif pooling != "mean":
        inside_BN = (position_1N >= extents.text_begin[:, None]) & (position_1N < extents.text_end[:, None])
    weight_BN = torch.where(inside_BN, weight_BN, 0.0)
    kept_BND = torch.where(inside_BN[:, :, None], tokens_BND.float(), 0.0)
    return torch.einsum("bn,bnd->bd", weight_BN, kept_BND) / weight_BN.sum(dim=1, keepdim=True)
