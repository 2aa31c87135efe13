"""From the tokens of a forward pass to one vector a text [B, D], in float32.

Tokens are selected, never multiplied by a mask: 0 x NaN is NaN, and what a model computes for padding is
anyone's guess.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from extractors.method import Pooling


class Extents(NamedTuple):
    """Where a batch's tokens are; int64 tensors [B].

    ``start`` counts tokens from the batch's first, padding included, as in its states [1, T, D] or [B, N, D] with the
    first two dimensions made one; the others count from the row's start. ``placeholder`` is -1 where there is none.
    """

    start: Tensor
    length: Tensor
    text_begin: Tensor
    text_end: Tensor
    placeholder: Tensor

    @property
    def last(self) -> Tensor:
        """Where each row's last token is in the batch, [B]."""
        return self.start + self.length - 1

    def span(self, text_only: bool) -> tuple[Tensor, Tensor]:
        """Returns where the tokens of all rows (or those that hold the user's text) are in the batch, [M], and how
        many each row has, [B].
        """
        begin, end = (self.text_begin, self.text_end) if text_only else (torch.zeros_like(self.length), self.length)
        count_B = end - begin
        # What to add to a running number to get the row's tokens.
        shift_B = self.start + begin - (count_B.cumsum(0) - count_B)
        shift_M = shift_B.repeat_interleave(count_B)
        return shift_M + torch.arange(len(shift_M), device=shift_M.device), count_B


def flat(tokens: Tensor) -> Tensor:
    """Returns the states of a batch, [B, N, D] or [1, T, D], one below the other, as a view if they lie so."""
    return tokens.flatten(0, 1)


def pool(tokens: Tensor, extents: Extents, pooling: Pooling) -> Tensor:
    """Pools the states of a batch, [B, N, D] or [1, T, D].

    Args:
        pooling: ``mean`` over all tokens of the prompt; ``mean-text`` and ``second-copy`` over those that hold the
            user's text (no start token, no template), in the last slot; ``weighted-mean`` over all tokens with weights
            1, 2, … n (SGPT, arXiv 2202.08904); ``last`` for the last token of the prompt; ``mean-and-last`` for
            the mean of ``mean`` and ``last``.

    Returns:
        float32 [B, D].
    """
    if pooling == "mean-and-last":
        return (pool(tokens, extents, "mean") + pool(tokens, extents, "last")) / 2
    if pooling == "last":
        return flat(tokens)[extents.last].float()
    place_M, count_B = extents.span(text_only=pooling in ("mean-text", "second-copy"))
    first_B = count_B.cumsum(0) - count_B
    weight_M = torch.ones_like(place_M, dtype=torch.float32)
    if pooling == "weighted-mean":
        weight_M = (torch.arange(len(place_M), device=place_M.device) - first_B.repeat_interleave(count_B) + 1).float()
    # A sum of chosen rows by bag, in one order whatever the device.
    sum_BD = embedding_bag(place_M, flat(tokens).float(), first_B, mode="sum", per_sample_weights=weight_M)
    total_B = embedding_bag(torch.arange(len(place_M), device=place_M.device), weight_M[:, None], first_B, mode="sum")
    return sum_BD / total_B
