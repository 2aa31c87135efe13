"""Finding and loading models: whole or not at all, known by content, GGUF as good as safetensors."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, BertConfig, Gemma3nTextConfig, LlamaForCausalLM, T5Config

from extractors import Encoder, ModelError
from extractors.backbone import find_model, load_backbone, skeleton
from extractors.gguf import converted
from extractors.method import Method
from tests.conftest import SENTENCES, byte_level, llama, save_model


def load(model: str) -> Any:
    return load_backbone(find_model(model), "float32", torch.device("cpu")).model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save_model(tmp_path / "model", llama(), byte_level()))


def change_weights(folder: Path, change: Any) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, {"format": "pt"})


def test_missing_and_unknown_weights_stop_the_load_by_name(folder: Path) -> None:
    change_weights(folder, lambda w: w.pop("layers.2.self_attn.v_proj.weight"))
    with pytest.raises(ModelError, match=r"missing layers\.2\.self_attn\.v_proj\.weight"):
        load(str(folder))
    change_weights(folder, lambda w: w.update({"layers.2.self_attn.v_proj.weight": torch.zeros(16, 64)}))
    load(str(folder))
    change_weights(folder, lambda w: w.update({"layers.9.mlp.weight": torch.zeros(2)}))
    with pytest.raises(ModelError, match=r"not part of the model layers\.9\.mlp\.weight"):
        load(str(folder))


def test_weights_of_another_shape_stop_the_load(folder: Path) -> None:
    change_weights(folder, lambda w: w.update({"norm.weight": torch.ones(63)}))
    with pytest.raises(ModelError, match=r"norm\.weight|shape"):
        load(str(folder))


def test_the_language_model_head_is_not_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = LlamaForCausalLM(llama(tie_word_embeddings=False))
    whole.save_pretrained(tmp_path)
    byte_level().save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert not any("lm_head" in name for name, _ in loaded.named_parameters())
    assert torch.equal(loaded.norm.weight, whole.model.norm.weight)
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_local_models_are_known_by_content_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    first = find_model(str(folder)).identity
    moved = folder.rename(tmp_path / "elsewhere")
    assert find_model(str(moved)).identity == first
    change_weights(moved, lambda w: w["norm.weight"].add_(1))
    assert find_model(str(moved)).identity != first


def test_wrong_model_names(tmp_path: Path, folder: Path) -> None:
    for name, message in (
        (str(tmp_path / "nowhere"), "no such folder"),
        ("./nowhere", "no such folder"),
        (str(tmp_path / "no.gguf"), "no such file"),
        (str(tmp_path), "no config.json"),
        ("some-org/some-model-that-is-not-cached", "cannot be loaded"),
    ):
        with pytest.raises(ModelError, match=message):
            find_model(name)
    with pytest.raises(ModelError, match="known by its content"):
        find_model(str(folder), revision="main")
    (tmp_path / "text.gguf").write_text("not gguf")
    with pytest.raises(ModelError, match="does not begin with 'GGUF'"):
        find_model(str(tmp_path / "text.gguf"))


@pytest.mark.parametrize(
    "config",
    [
        BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=512),
        T5Config(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=512),
    ],
    ids=["bert", "t5"],
)
def test_models_that_are_not_decoders_are_refused(tmp_path: Path, config: Any) -> None:
    AutoModel.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="decoder-only"):
        skeleton(find_model(str(tmp_path)))


def test_a_model_with_several_states_a_token_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    shared = {"num_kv_shared_layers": 0, "layer_types": ["full_attention"], "activation_sparsity_pattern": [0.0]}
    Gemma3nTextConfig(**sizes, **shared, vocab_size=512).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="'gemma3n_text' keeps several states a token"):
        skeleton(find_model(str(tmp_path)))


# What llama.cpp calls the tensors of transformers' Llama.
_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, folder: Path, kind: gguf.GGMLQuantizationType, pre: str = "gpt-2") -> Path:
    """Writes a tiny Llama as llama.cpp's converter does, with its reordering of query and key rows."""
    model, config, tokenizer = AutoModel.from_pretrained(folder), llama(), byte_level()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)  # type: ignore[arg-type]
    fill = [f"[PAD{i}]" for i in range(len(tokens), config.vocab_size)]
    control, normal, unused = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL, gguf.TokenType.UNUSED
    writer.add_token_list([*tokens, *fill])
    writer.add_token_types([*(control if i < 3 else normal for i in range(len(tokens))), *[unused] * len(fill)])
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    for name, tensor in model.state_dict().items():
        _add_tensor(writer, name.removesuffix(".weight"), tensor.numpy(), kind, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, value: np.ndarray, kind: gguf.GGMLQuantizationType, config: Any
) -> None:
    prefix, _, rest = name.partition(".")
    block, part = rest.partition(".")[::2] if prefix == "layers" else ("", name)
    target = f"blk.{block}.{_GGUF_NAMES[part]}.weight" if block else f"{_GGUF_NAMES[part]}.weight"
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(part)
    if heads:
        value = (
            value.reshape(heads, 2, value.shape[0] // heads // 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        )
    if value.ndim == 1:
        writer.add_tensor(target, value)
    else:
        writer.add_tensor(target, gguf.quants.quantize(value, kind), raw_dtype=kind)


@pytest.mark.parametrize(("kind", "closest"), [("F32", 0.9999), ("F16", 0.999), ("Q8_0", 0.98)])
def test_gguf_gives_the_vectors_of_safetensors(
    folder: Path, tmp_path: Path, monkeypatch: Any, kind: str, closest: float
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "model.gguf", folder, gguf.GGMLQuantizationType[kind])
    texts = [f"{text}\n\n  {other} {text}" for text, other in zip(SENTENCES, SENTENCES[::-1], strict=True)]
    method = Method(name="t", read="value", layers=(1, 3), pooling="last")
    original, from_gguf = Encoder(str(folder), method), Encoder(str(path), method)
    lengths = [[len(row[0].ids) for row in e.tokenizer.tokenize(texts)] for e in (original, from_gguf)]  # type: ignore[union-attr]
    assert lengths[0] == lengths[1] and min(lengths[0]) >= 20
    a, b = original.encode(texts), from_gguf.encode(texts)
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.min() >= closest


def test_gguf_is_converted_once_and_its_digits_are_split_as_llama_cpp_does(
    folder: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "model.gguf", folder, gguf.GGMLQuantizationType.F32, pre="smollm")
    target = converted(path)
    made = (target / "model.safetensors").stat().st_mtime_ns
    assert converted(path.rename(tmp_path / "renamed.gguf")) == target
    assert (target / "model.safetensors").stat().st_mtime_ns == made
    assert [p.name for p in target.parent.iterdir()] == [target.name]
    row = Encoder(str(tmp_path / "renamed.gguf"), "lt").tokenizer.tokenize(["in  2024"])[0][0]
    pieces = [byte_level().convert_ids_to_tokens(int(i)) for i in row.ids]  # type: ignore[union-attr]
    assert pieces[-4:] == ["2", "0", "2", "4"] and "".join(pieces[:-4]) == "inĠĠ"


def test_gguf_is_read_alone_whatever_lies_beside_it(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "beside").mkdir()
    path = write_gguf(tmp_path / "beside" / "model.gguf", folder, gguf.GGMLQuantizationType.F32)
    byte_level(start=True).save_pretrained(tmp_path / "beside")
    encoder = Encoder(str(path), "lt")
    assert encoder.tokenizer.start_ids == ()
    assert sorted(p.name for p in converted(path).iterdir() if p.is_dir()) == []


def test_cut_weights_stop_the_load(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(str(folder))
