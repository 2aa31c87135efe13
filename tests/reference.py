"""A second way to compute every vector: one text at a time, no padding, eager attention, the sums written out.

A plain hook notes what goes into a block's attention and MLP; queries, keys, values, head outputs and activations are
then worked out from the raw weights and from the attention weights that transformers returns.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer


def plain_vectors(
    model: str, texts: list[str], read: str, layers: list[int], pooling: str, template: str = "{text}"
) -> np.ndarray:
    """Returns float32 [N, D]; ``read`` may also be "shared-weights" or "group-mean" (both for the last token)."""
    network = AutoModel.from_pretrained(model, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    vectors = []
    for text in texts:
        ids = torch.tensor([tokenizer(template.replace("{text}", text))["input_ids"]])
        tokens = [_read(network, ids, read, layer) for layer in layers]
        vectors.append((sum(_pool(t, pooling) for t in tokens) / len(tokens)).numpy())
    return np.stack(vectors)


def _pool(tokens: Tensor, pooling: str) -> Tensor:
    if pooling == "last":
        return tokens[-1]
    weights = [float(i + 1) if pooling == "weighted-mean" else 1.0 for i in range(len(tokens))]
    total = torch.zeros(tokens.shape[1])
    for weight, token in zip(weights, tokens, strict=True):
        total = total + weight * token
    return total / sum(weights)


@torch.no_grad()
def _read(network: Any, ids: Tensor, read: str, layer: int) -> Tensor:
    """Returns [N, width]."""
    if read == "hidden":
        return network(ids, output_hidden_states=True).hidden_states[layer + 1][0]
    block = (network.layers if hasattr(network, "layers") else network.h)[layer]
    attention = next(getattr(block, name) for name in ("self_attn", "attn", "attention") if hasattr(block, name))
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    handles = [
        attention.register_forward_pre_hook(note("attention"), with_kwargs=True),
        block.mlp.register_forward_pre_hook(note("mlp"), with_kwargs=True),
    ]
    weights = network(ids, output_attentions=True).attentions[layer][0]
    for handle in handles:
        handle.remove()
    if read == "activation":
        return _activation(network.config.model_type, block.mlp, seen["mlp"][0])
    query, key, value = _projections(network.config, attention, seen["attention"][0])
    if read in ("query", "key", "value"):
        return {"query": query, "key": key, "value": value}[read]
    return _from_heads(read, weights, value, attention)


def _from_heads(read: str, weights: Tensor, value: Tensor, attention: Any) -> Tensor:
    heads = len(weights)
    width = getattr(attention, "head_dim", getattr(attention, "head_size", None))
    groups = value.shape[1] // width
    share = heads // groups
    values = [value[:, g * width : (g + 1) * width] for g in range(groups)]
    outputs = [weights[h] @ values[h // share] for h in range(heads)]
    if read == "shared-weights" and groups < heads:
        mean = sum(weights[h] for h in range(heads)) / heads
        return torch.cat([mean @ v for v in values], dim=1)
    if read == "group-mean":
        return torch.cat([sum(outputs[g * share : (g + 1) * share]) / share for g in range(groups)], dim=1)
    together = torch.cat(outputs, dim=1)
    if read in ("head-output", "shared-weights"):
        return together
    for name in ("o_proj", "dense"):
        if hasattr(attention, name):
            projection = getattr(attention, name)
            bias = 0 if projection.bias is None else projection.bias
            return together @ projection.weight.T + bias
    return together @ attention.c_proj.weight + attention.c_proj.bias


def _projections(config: Any, attention: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if config.model_type == "gpt2":
        q, k, v = (x @ attention.c_attn.weight + attention.c_attn.bias).split(config.hidden_size, dim=1)
        return q, k, v
    if config.model_type == "gpt_neox":
        fused, width = x @ attention.query_key_value.weight.T + attention.query_key_value.bias, attention.head_size
        heads = range(config.num_attention_heads)
        parts = [[fused[:, (3 * h + i) * width : (3 * h + i + 1) * width] for h in heads] for i in range(3)]
        return torch.cat(parts[0], 1), torch.cat(parts[1], 1), torch.cat(parts[2], 1)
    if config.model_type == "phi3":
        width = attention.head_dim
        sizes = [config.num_attention_heads * width, *[config.num_key_value_heads * width] * 2]
        q, k, v = (x @ attention.qkv_proj.weight.T).split(sizes, dim=1)
        return q, k, v
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    q, k, v = (x @ p.weight.T + (0 if p.bias is None else p.bias) for p in projections)
    return q, k, v


def _activation(family: str, mlp: Any, x: Tensor) -> Tensor:
    if family == "gpt2":
        return mlp.act(x @ mlp.c_fc.weight + mlp.c_fc.bias)
    if family == "gpt_neox":
        return mlp.act(x @ mlp.dense_h_to_4h.weight.T + mlp.dense_h_to_4h.bias)
    if family == "phi3":
        gate, up = (x @ mlp.gate_up_proj.weight.T).chunk(2, dim=1)
        return up * mlp.activation_fn(gate)
    return mlp.act_fn(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)


def assert_same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    """float32: cosine at least 0.99999, and no component further off than 1e-4 of the vector's length."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    assert found.shape == expected.shape
    lengths = np.linalg.norm(expected, axis=1)
    cosine = (found * expected).sum(axis=1) / (np.linalg.norm(found, axis=1) * lengths)
    assert cosine.min() >= 0.99999, cosine.min()
    assert (np.abs(found - expected).max(axis=1) <= 1e-4 * lengths).all()
