"""Vectors against a second implementation, and the law that a vector does not depend on its batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Gemma3TextConfig

from extractors import Encoder, Method, MethodError, ModelError, TextError
from extractors.encoder import plan
from extractors.hooks import reading
from extractors.methods import Pooling, Read
from extractors.pooling import Extents, pool
from tests.conftest import SENTENCES, byte_level, llama, save_model
from tests.reference import assert_same_vectors, plain_vectors

EOL = 'This sentence : "{text}" means in one word:"'
# What the template's quotes make of the texts' own.
QUOTED = [text.replace('"', "'") for text in SENTENCES]


def method(read: Read, layers: Any, pooling: Pooling, prompt: Any = "none", **options: Any) -> Method:
    return Method(name="test", read=read, layers=layers, pooling=pooling, prompt=prompt, **options)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("read", ["hidden", "value", "query", "key", "head-output", "attention-output", "activation"])
@pytest.mark.parametrize("layers", [(0,), (1, 3)])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_every_read_equals_the_reference(
    tiny: dict[str, str], family: str, read: Read, layers: tuple[int, ...], pooling: Pooling
) -> None:
    found = Encoder(tiny[family], method(read, layers, pooling, EOL), token_budget=128).encode(SENTENCES)
    assert_same_vectors(found, plain_vectors(tiny[family], QUOTED, read, list(layers), pooling, EOL))


def test_widths_with_grouped_queries(tiny: dict[str, str]) -> None:
    # 8 query heads on 2 key/value heads: values are not repeated, and for Qwen3 heads x width is not the hidden size.
    expected = {
        "llama": {"value": 16, "key": 16, "query": 64, "head-output": 64, "attention-output": 64, "activation": 96},
        "qwen3": {"value": 32, "key": 32, "query": 128, "head-output": 128, "attention-output": 64, "activation": 96},
    }
    for family, widths in expected.items():
        assert {read: plan(tiny[family], method(read, (0,), "mean")).width for read in widths} == widths  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_hidden_states_are_transformers_own(tiny: dict[str, str], family: str, layer: int) -> None:
    # For the last block that is the state after the final norm.
    found = Encoder(tiny[family], method("hidden", (layer,), "mean")).encode(SENTENCES)
    assert_same_vectors(found, plain_vectors(tiny[family], SENTENCES, "hidden", [layer], "mean"))


def test_concatenation_keeps_the_blocks_apart(tiny: dict[str, str]) -> None:
    both = Encoder(tiny["llama"], method("value", (1, 3), "mean", combine="concat")).encode(SENTENCES)
    single = [Encoder(tiny["llama"], method("value", (layer,), "mean")).encode(SENTENCES) for layer in (1, 3)]
    assert_same_vectors(both, np.concatenate(single, axis=1))


def test_an_ensemble_is_the_mean_over_its_prompts(tiny: dict[str, str]) -> None:
    prompts = ("prompteol", "futureeol")
    together = Encoder(tiny["llama"], method("hidden", "last", "last", prompts)).encode(SENTENCES)
    alone = [Encoder(tiny["llama"], method("hidden", "last", "last", prompt)).encode(SENTENCES) for prompt in prompts]
    assert_same_vectors(together, (alone[0] + alone[1]) / 2)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_does_not_depend_on_its_batch(
    tiny: dict[str, str], family: str, pooling: Pooling, attention: Any
) -> None:
    encoder = Encoder(tiny[family], method("hidden", (1, 3), pooling), attention=attention)
    alone = np.concatenate([encoder.encode([text]) for text in SENTENCES])
    filler = " ".join(SENTENCES)[:300]
    generator = np.random.default_rng(0)
    for budget in (1, 100, 100_000):
        encoder.token_budget = budget
        order = generator.permutation(len(SENTENCES))
        found = encoder.encode([*(SENTENCES[i] for i in order), filler])[:-1]
        assert_same_vectors(found, alone[order])


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_the_tokenizers_padding_side_is_of_no_account(tmp_path: Path, tiny: dict[str, str], padding_side: str) -> None:
    tokenizer = byte_level()
    tokenizer.padding_side = padding_side
    model = save_model(tmp_path, llama(), tokenizer)
    found = Encoder(model, "lt").encode(SENTENCES)
    assert_same_vectors(found, Encoder(tiny["llama"], "lt").encode(SENTENCES))


def test_bfloat16_stays_close_and_finite(tiny: dict[str, str]) -> None:
    for name in ("va", "lt"):
        half = Encoder(tiny["llama"], name, dtype="bfloat16").encode(SENTENCES)
        full = Encoder(tiny["llama"], name).encode(SENTENCES)
        assert np.isfinite(half).all() and half.dtype == np.float32
        cosine = (half * full).sum(1) / np.linalg.norm(half, axis=1) / np.linalg.norm(full, axis=1)
        assert cosine.min() >= 0.999


def test_what_the_model_makes_of_padding_does_not_matter() -> None:
    tokens = torch.randn(2, 5, 3)
    extents = Extents(torch.tensor([5, 2]), torch.tensor([1, 0]), torch.tensor([4, 1]))
    spoiled = tokens.clone()
    spoiled[1, 2:] = float("nan")
    expected = {
        "mean": torch.stack([tokens[0].mean(0), tokens[1, :2].mean(0)]),
        "mean-text": torch.stack([tokens[0, 1:4].mean(0), tokens[1, 0]]),
        "last": torch.stack([tokens[0, 4], tokens[1, 1]]),
    }
    for pooling, value in expected.items():
        torch.testing.assert_close(pool(spoiled, extents, pooling), value)  # type: ignore[arg-type]


def test_start_tokens_that_swamp_the_mean_can_be_left_out(tmp_path: Path) -> None:
    def loud_start(model: Any) -> None:
        model.embed_tokens.weight[0] *= 1000

    model = save_model(tmp_path, llama(num_hidden_layers=2), byte_level(start=True), loud_start)
    with_start = Encoder(model, method("hidden", (0,), "mean")).encode(SENTENCES)
    without = Encoder(model, method("hidden", (0,), "mean-text")).encode(SENTENCES)
    # The reference: the same forward pass alone, the start token dropped by hand.
    encoder = Encoder(model, method("hidden", (0,), "mean"))
    for text, vector in zip(SENTENCES, without, strict=True):
        ids = torch.tensor([byte_level(start=True)(text)["input_ids"]])
        with torch.no_grad():
            state = encoder.backbone.model(ids, output_hidden_states=True).hidden_states[1][0, 1:]
        assert_same_vectors(vector[None], state.mean(0, keepdim=True).numpy())
    assert _mean_cosine(without) < _mean_cosine(with_start) - 0.05


def _mean_cosine(vectors: np.ndarray) -> float:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float((unit @ unit.T)[~np.eye(len(unit), dtype=bool)].mean())


def test_hooks_come_off_and_leave_the_model_as_it_was(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], "va-full")
    ids = torch.tensor([byte_level()("The old market")["input_ids"]])
    with torch.no_grad():
        before = encoder.backbone.model(ids).last_hidden_state
        encoder.encode(SENTENCES)

        def fails(_layer: int, _tokens: torch.Tensor) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError), reading(encoder._sites, fails):
            encoder.backbone.model(ids)
        after = encoder.backbone.model(ids).last_hidden_state
    assert torch.equal(before, after)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in encoder.backbone.model.modules())


def test_a_hook_that_never_fires_is_an_error(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], "va")
    with pytest.raises(RuntimeError, match="did not come up"), reading(encoder._sites, lambda *_: None):
        pass


def test_blocks_that_nobody_reads_are_not_run(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], method("value", (1,), "mean"))
    ran = []
    for i, block in enumerate(encoder.backbone.blocks):
        block.register_forward_pre_hook(lambda *_, i=i: ran.append(i))
    encoder.encode(["one batch"])
    assert ran == [0, 1]


def test_faulty_texts_are_named_by_position(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"])
    assert encoder.encode([]).shape == (0, 16)
    for text in ("", " \u200b", "\ud800"):
        with pytest.raises(TextError, match="text 1: "):
            encoder.encode(["fine", text])


def test_what_a_family_cannot_give_is_refused_by_name(tiny: dict[str, str]) -> None:
    with pytest.raises(MethodError, match=r"value cannot be read from model type 'gpt2'.*hidden"):
        Encoder(tiny["gpt2"], "va")


def test_length_is_limited_by_the_models_positions(tiny: dict[str, str]) -> None:
    assert plan(tiny["gpt2"], "lt").tokenizer.max_length == 128
    long = " ".join(SENTENCES * 3)
    found = Encoder(tiny["gpt2"], "lt").encode([long, "short"])
    assert np.isfinite(found).all()
    with pytest.raises(ModelError, match="at most 128"):
        Encoder(tiny["gpt2"], "lt", max_length=129)


def test_an_embedding_that_is_not_a_number_stays_with_its_own_texts(tmp_path: Path) -> None:
    def spoil(model: Any) -> None:
        model.embed_tokens.weight[:3] = float("nan")  # ids that padding might use and no text has

    model = save_model(tmp_path, llama(), byte_level(), spoil)
    for attention in ("sdpa", "eager"):
        encoder = Encoder(model, "hs-full", attention=attention)
        together = encoder.encode(SENTENCES)
        assert np.isfinite(together).all()
        assert_same_vectors(together, np.concatenate([encoder.encode([text]) for text in SENTENCES]))


@pytest.mark.parametrize(
    "config",
    [
        llama(is_causal=False),
        Gemma3TextConfig(
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            vocab_size=512,
            use_bidirectional_attention=True,
        ),
    ],
    ids=["llama", "gemma3"],
)
def test_models_that_attend_in_both_directions_are_refused(tmp_path: Path, config: Any) -> None:
    model = save_model(tmp_path, config, byte_level())
    with pytest.raises(ModelError, match="both directions"):
        Encoder(model, "lt")


@pytest.mark.parametrize("text", [None, 5, b"bytes"])
def test_what_is_no_string_is_refused_by_position(tiny: dict[str, str], text: Any) -> None:
    with pytest.raises(TextError, match="text 1: a text must be a string"):
        Encoder(tiny["llama"], "lt").encode(["fine", text])
