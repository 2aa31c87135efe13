"""A second way to compute every vector: one text at a time, no padding, eager attention, transformers' own outputs."""

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer


def plain_vectors(
    model: str, texts: list[str], read: str, layers: list[int], pooling: str, template: str = "{text}"
) -> np.ndarray:
    """Returns float32 [N, D] for models with Llama's module names (hidden states: any model)."""
    network = AutoModel.from_pretrained(model, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    vectors = []
    for text in texts:
        ids = torch.tensor([tokenizer(template.replace("{text}", text))["input_ids"]])
        tokens = [_read(network, ids, read, layer) for layer in layers]
        pooled = [t[-1] if pooling == "last" else sum(t) / len(t) for t in tokens]
        vectors.append((sum(pooled) / len(pooled)).numpy())
    return np.stack(vectors)


@torch.no_grad()
def _read(network: torch.nn.Module, ids: torch.Tensor, read: str, layer: int) -> torch.Tensor:
    if read == "hidden":
        return network(ids, output_hidden_states=True).hidden_states[layer + 1][0]
    if read in ("value", "query", "key"):
        block = network.layers[layer]
        hidden = network(ids, output_hidden_states=True).hidden_states[layer]
        return getattr(block.self_attn, f"{read[0]}_proj")(block.input_layernorm(hidden))[0]
    if read == "activation":
        block = network.layers[layer]
        after_attention = _hidden_after_attention(network, ids, layer)
        mlp, normed = block.mlp, block.post_attention_layernorm(after_attention)
        return (mlp.act_fn(mlp.gate_proj(normed)) * mlp.up_proj(normed))[0]
    heads = _head_outputs(network, ids, layer)
    return heads if read == "head-output" else network.layers[layer].self_attn.o_proj(heads)


def _hidden_after_attention(network: torch.nn.Module, ids: torch.Tensor, layer: int) -> torch.Tensor:
    hidden = network(ids, output_hidden_states=True).hidden_states[layer]
    return hidden + network.layers[layer].self_attn.o_proj(_head_outputs(network, ids, layer))


def _head_outputs(network: torch.nn.Module, ids: torch.Tensor, layer: int) -> torch.Tensor:
    """z = softmax(q k / sqrt(d)) v with explicit loops over heads, from the weights transformers returns."""
    outputs = network(ids, output_hidden_states=True, output_attentions=True)
    block = network.layers[layer]
    weights = outputs.attentions[layer][0]
    values = block.self_attn.v_proj(block.input_layernorm(outputs.hidden_states[layer]))[0]
    width = block.self_attn.head_dim
    group = weights.shape[0] // (values.shape[1] // width)
    return torch.cat(
        [weights[h] @ values[:, (h // group) * width : (h // group + 1) * width] for h in range(len(weights))], dim=1
    )


def assert_same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    """float32: cosine at least 0.99999, and no component further off than 1e-4 of the vector's length."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    assert found.shape == expected.shape
    lengths = np.linalg.norm(expected, axis=1)
    cosine = (found * expected).sum(axis=1) / (np.linalg.norm(found, axis=1) * lengths)
    assert cosine.min() >= 0.99999, cosine.min()
    assert (np.abs(found - expected).max(axis=1) <= 1e-4 * lengths).all()
