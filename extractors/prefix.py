"""A prompt's beginning, run once: its keys and values are joined to those of every text.

Exact: with causal attention nothing before the text can depend on it.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from extractors.anatomy import Anatomy
from extractors.heads import attention_calls

# Tokens of a row up to which plain products are the faster attention on CPUs.
_LONGEST_PLAIN = 64


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first P tokens of a prompt, and what each attention made of them: keys and values [1, H_kv, P, d_h]."""

    length: int
    heads: Mapping[nn.Module, tuple[Tensor, Tensor]]


@torch.inference_mode()
def run_prefix(backbone: Anatomy, ids: Tensor) -> Prefix | None:
    """Runs the ids [P] alone and keeps all keys and values.

    Returns None for a family whose attention does not pass transformers' attention interface, or not in every block.
    """
    heads: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any
    ) -> Any:
        heads[module] = key.clone(), value.clone()
        return original(module, query, key, value, mask, **options)

    with attention_calls(backbone.config._attn_implementation, keep):
        backbone.model(input_ids=ids[None], use_cache=False)
    return Prefix(len(ids), heads) if len(heads) == len(backbone.blocks) else None


@contextlib.contextmanager
def after_prefix(backbone: Anatomy, prefix: Prefix) -> Iterator[None]:
    """Makes the tokens of the forward pass in the body see the prefix before them.

    Their ``position_ids`` must begin at the prefix's length.
    """
    masks: dict[tuple[int, int | None], Tensor] = {}
    kind = backbone.config._attn_implementation

    def attend(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any
    ) -> Any:
        before = prefix.heads[module]
        key, value = (
            torch.cat([part.expand(len(own), -1, -1, -1), own], dim=2)
            for part, own in zip(before, (key, value), strict=True)
        )
        shape = query.shape[2], options.get("sliding_window")
        if shape not in masks:
            masks[shape] = _causal_mask(prefix.length, *shape, query)
        if kind == "sdpa" and query.device.type == "cpu":
            return _attention_on_cpu(query, key, value, masks[shape], options.get("scaling")), None
        return original(module, query, key, value, masks[shape], **options)

    with attention_calls(kind, attend):
        yield


def _causal_mask(before: int, length: int, window: int | None, like: Tensor) -> Tensor:
    """Returns [1, 1, N, P + N], to be added to the scores: 0 where a token sees another, the lowest value elsewhere."""
    position_N = torch.arange(before, before + length, device=like.device)
    distance_NM = position_N[:, None] - torch.arange(before + length, device=like.device)[None, :]
    seen_NM = distance_NM >= 0
    if window is not None:
        seen_NM &= distance_NM < window
    mask_NM = torch.zeros(seen_NM.shape, dtype=like.dtype, device=like.device)
    return mask_NM.masked_fill_(~seen_NM, torch.finfo(like.dtype).min)[None, None]


def _attention_on_cpu(
    query_BHNd: Tensor, key_BGMd: Tensor, value_BGMd: Tensor, mask_11NM: Tensor, scale: float | None
) -> Tensor:
    """Returns [B, N, H, d]: H query heads on G key/value heads, which are not written out for every query head.

    torch's kernel is made for long rows; for short ones plain products take half of its time, and are exacter, since
    they are float32 throughout.
    """
    if query_BHNd.shape[2] > _LONGEST_PLAIN:
        heads_BHNd = scaled_dot_product_attention(
            query_BHNd, key_BGMd, value_BGMd, mask_11NM, scale=scale, enable_gqa=True
        )
        return heads_BHNd.transpose(1, 2)
    query, key, value = query_BHNd.float(), key_BGMd.float(), value_BGMd.float()
    groups, (length, width) = key.shape[1], query.shape[2:]
    # The heads of a group one below the other: one product for all of them.
    query_BGnd = query.reshape(len(query), groups, -1, width) * (width**-0.5 if scale is None else scale)
    scores_BGgNM = (query_BGnd @ key.transpose(2, 3)).unflatten(2, (-1, length)).add_(mask_11NM)
    heads_BGnd = scores_BGgNM.softmax(dim=-1).flatten(2, 3) @ value
    return heads_BGnd.view_as(query).to(query_BHNd.dtype).transpose(1, 2)
