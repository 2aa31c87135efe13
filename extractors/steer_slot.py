"""KV-Embedding (arXiv 2601.01046), as its abstract describes it."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.heads import attention_calls, seen_by
from extractors.pooling import Extents
from extractors.steering import KeyValueSlot


@contextlib.contextmanager
def with_slot(backbone: Anatomy, kind: KeyValueSlot, extents: Extents) -> Iterator[None]:
    """Lets every token attend to its row's last token as well, in the kind's blocks."""
    modules = {backbone.attention(block) for block in kind.blocks}

    def attend(
        _module: Any, _original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Mapping[str, Any]
    ) -> Any:
        return _attention_with_slot(query, key, value, mask, extents.length, kind.bias, options), None

    with attention_calls(modules, backbone.config._attn_implementation, attend):
        yield


def _attention_with_slot(
    query_BHNd: Tensor,
    key_BGNd: Tensor,
    value_BGNd: Tensor,
    mask: Tensor | None,
    length_B: Tensor,
    bias: float,
    options: Mapping[str, Any],
) -> Tensor:
    """Causal attention of H query heads on G key/value heads with the last token's key and value before all others.

    The key keeps the position it was rotated for. Returns [B, N, H, d], as transformers' attention functions do.
    """
    rows = torch.arange(len(length_B), device=length_B.device)
    keys_BGMd, values_BGMd = (
        torch.cat([heads_BGNd[rows, :, length_B - 1][:, :, None], heads_BGNd], dim=2)
        for heads_BGNd in (key_BGNd, value_BGNd)
    )
    scale = options.get("scaling") or query_BHNd.shape[-1] ** -0.5
    query_BGgNd = query_BHNd.unflatten(1, (key_BGNd.shape[1], -1))
    scores_BGgNM = torch.einsum("bghnd,bgmd->bghnm", query_BGgNd, keys_BGMd).float() * scale
    if (cap := options.get("softcap")) is not None:
        scores_BGgNM = cap * torch.tanh(scores_BGgNM / cap)
    seen_XNN = seen_by(mask, query_BHNd.shape[2], options.get("sliding_window"), length_B.device)
    scores_BGgNM[..., 1:].masked_fill_(~seen_XNN[:, None, None], float("-inf"))
    scores_BGgNM[..., 0] += bias
    weights_BGgNM = scores_BGgNM.softmax(dim=-1).to(value_BGNd.dtype)
    return torch.einsum("bghnm,bgmd->bghnd", weights_BGgNM, values_BGMd).flatten(1, 2).transpose(1, 2).contiguous()
