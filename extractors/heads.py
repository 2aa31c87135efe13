"""Weighted values of grouped queries: what several query heads make of one key/value head, in one vector.

With one key/value head for each query head both readings are the heads' outputs themselves.
"""

import contextlib
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from extractors.anatomy import Anatomy


def group_mean(pooled_BD: Tensor, query_heads: int, value_heads: int) -> Tensor:
    """Averages head outputs [B, H d_h] over the query heads of each group: [B, H_kv d_h].

    Attention is linear in its weights, so this is the value sum under each group's mean weights.
    """
    by_group = pooled_BD.unflatten(-1, (value_heads, query_heads // value_heads, -1))
    return by_group.mean(dim=-2).flatten(start_dim=-2)


@contextlib.contextmanager
def attention_calls(modules: Container[nn.Module], implementation: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Calls ``instead(module, original, query, key, value, mask, options)`` for each attention among the modules in the
    forward pass in the body, in place of ``original``, which takes the same but for itself.

    Queries and keys come rotated, [B, heads, N, d_h]; options are those of transformers' attention interface. Its table
    is one for the process: only one body may run at a time. Other models' passes are not touched.

    Args:
        implementation: the model's attention implementation.
    """
    # Every implementation is looked up here; for "eager", each family has one of its own beside its attention module.
    registered = ALL_ATTENTION_FUNCTIONS.get(implementation)

    def watched(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        original = registered or sys.modules[type(module).__module__].eager_attention_forward
        if module in modules:
            return instead(module, original, query, key, value, mask, options)
        return original(module, query, key, value, mask, **options)

    ALL_ATTENTION_FUNCTIONS[implementation] = watched
    try:
        yield
    finally:
        if registered is None:
            del ALL_ATTENTION_FUNCTIONS[implementation]
        else:
            ALL_ATTENTION_FUNCTIONS[implementation] = registered


@torch.inference_mode()
def unwatchable(backbone: Anatomy) -> dict[int, str]:
    """Returns the blocks whose attention :func:`attention_calls` cannot stand in for, and why; runs one token."""
    reasons = dict.fromkeys(range(len(backbone.blocks)), "its attention does not go through transformers' interface")
    blocks = {backbone.attention(block): block for block in reasons}

    def look(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any
    ) -> Any:
        if options.get("s_aux") is None:
            del reasons[blocks[module]]
        else:
            reasons[blocks[module]] = "its attention has sinks"
        return original(module, query, key, value, mask, **options)

    with attention_calls(blocks, backbone.config._attn_implementation, look):
        backbone.model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=backbone.device), use_cache=False)
    return reasons


def seen_by(mask: Tensor | None, length: int, window: int | None, device: torch.device) -> Tensor:
    """Returns which tokens (last dimension) each token sees, bool [1 or B, N, N].

    Args:
        mask: what attention is given, [1 or B, 1, N, N], bool or to be added to the scores; None is causal.
        window: how many tokens each sees, itself included, where the mask is None.
    """
    if mask is not None:
        return mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
    position_N = torch.arange(length, device=device)
    distance_NN = position_N[:, None] - position_N[None, :]
    seen_NN = distance_NN >= 0
    return (seen_NN if window is None else seen_NN & (distance_NN < window))[None]


@contextlib.contextmanager
def last_token_attention(
    layers: Mapping[nn.Module, int], implementation: str, length_B: Tensor, take: Callable[[int, Tensor], None]
) -> Iterator[None]:
    """Calls ``take(layer, vector [B, H_kv d_h])`` with the values under the last token's mean attention weights.

    The weights are averaged over all query heads before they meet the values (value aggregation, arXiv 2602.01572).
    Only the last token's row of the attention matrix is computed, while one forward pass runs in the body.

    Args:
        layers: attention modules, with the number each is reported under.
        implementation: the model's attention implementation.
    """

    def attend(
        module: nn.Module, original: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, options: Any
    ) -> Any:
        take(layers[module], _weighted_values(query, key, value, mask, length_B, options))
        return original(module, query, key, value, mask, **options)

    with attention_calls(layers, implementation, attend):
        yield


def _weighted_values(
    query_BHNd: Tensor,
    key_BGNd: Tensor,
    value_BGNd: Tensor,
    mask: Tensor | None,
    length_B: Tensor,
    options: Mapping[str, Any],
) -> Tensor:
    """H query heads on G key/value heads; options are those of the attention interface."""
    rows = torch.arange(len(length_B), device=length_B.device)
    last_BHd = query_BHNd[rows, :, length_B - 1]
    last_BGgd = last_BHd.unflatten(1, (key_BGNd.shape[1], -1)).float()
    scale = options.get("scaling") or query_BHNd.shape[-1] ** -0.5
    scores_BGgN = torch.einsum("bghd,bgnd->bghn", last_BGgd, key_BGNd.float()) * scale
    if (cap := options.get("softcap")) is not None:
        scores_BGgN = cap * torch.tanh(scores_BGgN / cap)
    seen_XNN = seen_by(mask, key_BGNd.shape[2], options.get("sliding_window"), length_B.device)
    seen_BN = seen_XNN.expand(len(length_B), -1, -1)[rows, length_B - 1]
    weights_BGgN = scores_BGgN.masked_fill(~seen_BN[:, None, None, :], float("-inf")).softmax(dim=-1)
    mean_BN = weights_BGgN.mean(dim=(1, 2))
    kept_BGNd = torch.where(seen_BN[:, None, :, None], value_BGNd.float(), 0.0)
    return torch.einsum("bn,bgnd->bgd", mean_BN, kept_BGNd).flatten(start_dim=1)
