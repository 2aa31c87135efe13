"""Attention of rows that stand end to end: each row sees itself alone, and what was run before it once for all."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from extractors.anatomy import Anatomy
from extractors.heads import attention_calls

# Tokens of a row up to which plain products are the faster attention on CPUs.
_LONGEST_PLAIN = 64
# Rows share a call of the attention kernel, padded, if the shortest has this part of the longest's tokens, less some.
_SHORTEST_PART, _SHORTER_BY = 0.75, 4


@dataclasses.dataclass(frozen=True)
class Prefix:
    """The first P tokens of a prompt, and what each attention made of them: keys and values [1, H_kv, P, d_h].

    Exact: with causal attention nothing before a text can depend on it.
    """

    length: int
    heads: Mapping[nn.Module, tuple[Tensor, Tensor]]


@torch.inference_mode()
def run_prefix(backbone: Anatomy, ids: Tensor) -> Prefix:
    """Runs the ids [P] alone and keeps all keys and values."""
    heads: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any
    ) -> Any:
        heads[module] = key.clone(), value.clone()
        return original(module, query, key, value, mask, **options)

    with attention_calls(backbone.attentions, backbone.config._attn_implementation, keep):
        backbone.model(input_ids=ids[None], use_cache=False)
    return Prefix(len(ids), heads)


def run_packed(
    backbone: Anatomy, ids_1T: Tensor, positions_1T: Tensor, lengths: Sequence[int], prefix: Prefix | None = None
) -> None:
    """Runs rows that stand end to end.

    Args:
        positions_1T: of each token in its row; they begin at the prefix's length.
        lengths: of the rows, longest first.
    """
    kind = backbone.config._attn_implementation
    on_cpu = kind == "sdpa" and ids_1T.device.type == "cpu"
    groups = list(_groups(lengths, ids_1T.device))
    seen_before = prefix.length if prefix is not None else 0

    @functools.cache
    def mask_of(length: int, window: int | None, dtype: torch.dtype) -> Tensor:
        return _causal_mask(seen_before, length, window, dtype, ids_1T.device)

    def attend(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, options: Any
    ) -> Any:
        before = prefix.heads[module] if prefix is not None else None
        window = options.get("sliding_window")
        heads = []
        for group in groups:
            query_BHNd, key_BGMd, value_BGMd = (group.side_by_side(one) for one in (query, key, value))
            if before is not None:
                key_BGMd, value_BGMd = (
                    torch.cat([part.expand(len(own), -1, -1, -1), own], dim=2)
                    for part, own in zip(before, (key_BGMd, value_BGMd), strict=True)
                )
            # What the kernels of sdpa do by themselves, faster than with a mask.
            is_plain = kind == "sdpa" and before is None and (window is None or window >= group.longest)
            needs_mask = not is_plain or (on_cpu and group.longest <= _LONGEST_PLAIN)
            mask = mask_of(group.longest, window, query.dtype) if needs_mask else None
            if on_cpu:
                found = _attention_on_cpu(query_BHNd, key_BGMd, value_BGMd, mask, options.get("scaling"))
            else:
                found, _ = original(module, query_BHNd, key_BGMd, value_BGMd, mask, **options)
            heads.append(group.end_to_end(found))
        return torch.cat(heads)[None], None

    # A mask of four dimensions is handed on as it is; without one, transformers makes one of T times T.
    handed_on = torch.empty((1, 1, 1, 1), dtype=torch.bool, device=ids_1T.device)
    with attention_calls(backbone.attentions, kind, attend):
        backbone.model(input_ids=ids_1T, position_ids=positions_1T, attention_mask=handed_on, use_cache=False)


@dataclasses.dataclass(frozen=True)
class _Group:
    """Rows of like length, one behind the other from ``begin`` to ``end``.

    Attributes:
        spread: where in there each token of the padded rows is, [B * N], a row's last beyond its end; None without
            padding.
        real: which of the padded rows' tokens are none, [end - begin]; None without.
    """

    begin: int
    end: int
    longest: int
    spread: Tensor | None
    real: Tensor | None

    def side_by_side(self, heads_1HTd: Tensor) -> Tensor:
        """Returns [B, H, N, d]."""
        own_THd = heads_1HTd[0].transpose(0, 1)[self.begin : self.end]
        if self.spread is not None:
            own_THd = own_THd.index_select(0, self.spread)
        return own_THd.unflatten(0, (-1, self.longest)).transpose(1, 2)

    def end_to_end(self, heads_BNHd: Tensor) -> Tensor:
        """Returns [end - begin, H, d]."""
        padded = heads_BNHd.flatten(0, 1)
        return padded if self.real is None else padded.index_select(0, self.real)


def _groups(lengths: Sequence[int], device: torch.device) -> Iterator[_Group]:
    first = begin = 0
    while first < len(lengths):
        longest, last = lengths[first], first
        while last < len(lengths) and lengths[last] >= longest * _SHORTEST_PART - _SHORTER_BY:
            last += 1
        own = torch.tensor(lengths[first:last])
        end = begin + int(own.sum())
        if int(own.min()) == longest:
            yield _Group(begin, end, longest, None, None)
        else:
            place_BN = torch.arange(longest)[None, :]
            start_B1 = (own.cumsum(0) - own)[:, None]
            spread = (start_B1 + place_BN.clamp(max=own[:, None] - 1)).flatten()
            real = (place_BN < own[:, None]).flatten().nonzero()[:, 0]
            yield _Group(begin, end, longest, spread.to(device), real.to(device))
        first, begin = last, end


def _causal_mask(before: int, length: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns [1, 1, N, P + N], to be added to the scores: 0 where a token sees another, -inf elsewhere."""
    position_N = torch.arange(before, before + length, device=device)
    distance_NM = position_N[:, None] - torch.arange(before + length, device=device)[None, :]
    seen_NM = distance_NM >= 0
    if window is not None:
        seen_NM &= distance_NM < window
    mask_NM = torch.zeros(seen_NM.shape, dtype=dtype, device=device)
    return mask_NM.masked_fill_(~seen_NM, float("-inf"))[None, None]


def _attention_on_cpu(
    query_BHNd: Tensor, key_BGMd: Tensor, value_BGMd: Tensor, mask_11NM: Tensor | None, scale: float | None
) -> Tensor:
    """Returns [B, N, H, d]: H query heads on G key/value heads, which are not written out for every query head.

    Without a mask attention is causal. torch's kernel is made for long rows; for short ones plain products take half of
    its time, and are exacter, since they are float32 throughout.
    """
    if mask_11NM is None or query_BHNd.shape[2] > _LONGEST_PLAIN:
        heads_BHNd = scaled_dot_product_attention(
            query_BHNd, key_BGMd, value_BGMd, mask_11NM, is_causal=mask_11NM is None, scale=scale, enable_gqa=True
        )
        return heads_BHNd.transpose(1, 2)
    query, key, value = query_BHNd.float(), key_BGMd.float(), value_BGMd.float()
    groups, (length, width) = key.shape[1], query.shape[2:]
    # The heads of a group one below the other: one product for all of them.
    query_BGnd = query.reshape(len(query), groups, -1, width) * (width**-0.5 if scale is None else scale)
    scores_BGgNM = (query_BGnd @ key.transpose(2, 3)).unflatten(2, (-1, length)).add_(mask_11NM)
    heads_BGnd = scores_BGgNM.softmax(dim=-1).flatten(2, 3) @ value
    return heads_BGnd.view_as(query).to(query_BHNd.dtype).transpose(1, 2)
