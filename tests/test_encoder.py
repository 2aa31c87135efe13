"""Vectors against a second implementation, and the law that a vector does not depend on its batch."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    BloomConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    GptOssConfig,
    Phi3Config,
    PhimoeConfig,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from extractors import Encoder, Method, MethodError, ModelError, TextError
from extractors.errors import RowTooLarge
from extractors.hooks import reading
from extractors.listing import list_methods
from extractors.method import Pooling, Read
from extractors.packed import _causal_mask
from extractors.plan import plan
from extractors.pooling import Extents, pool
from extractors.steering import KeyValueSlot
from tests.conftest import CONFIGS, SENTENCES, byte_level, llama, save_model
from tests.reference import assert_same_vectors, plain_vectors

EOL = 'This sentence : "{text}" means in one word:"'
# What the template's quotes make of the texts' own.
QUOTED = [text.replace('"', "'") for text in SENTENCES]


def method(read: Read, layers: Any, pooling: Pooling, prompt: Any = "none", **options: Any) -> Method:
    return Method(name="test", read=read, layers=layers, pooling=pooling, prompt=prompt, **options)


READS = ["hidden", "value", "query", "key", "head-output", "attention-output", "activation"]
# Of each length, and few: the reference is slow.
SOME = [QUOTED[0], QUOTED[7], QUOTED[8]]


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("read", READS)
def test_every_read_of_every_family_equals_the_reference(tiny: dict[str, str], family: str, read: Read) -> None:
    for layers, pooling in (((0,), "mean"), ((3,), "last")):
        wanted = method(read, layers, pooling, EOL)  # type: ignore[arg-type]
        if family == "qwen3-moe" and read == "activation":
            # Its experts have an activation each, and no token has all of them.
            with pytest.raises(MethodError, match=r"attention-output$"):
                Encoder(tiny[family], wanted)
            return
        found = Encoder(tiny[family], wanted, token_budget=128, max_length=120).encode(SOME)
        assert_same_vectors(found, plain_vectors(tiny[family], SOME, read, list(layers), pooling, EOL))


@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"llama-mha", "gpt2", "gpt-neox"}))
@pytest.mark.parametrize("heads", ["shared-weights", "group-mean"])
def test_weighted_values_of_grouped_queries(tiny: dict[str, str], family: str, heads: Any) -> None:
    wanted = method("head-output", (1, 2), "last", EOL, heads=heads)
    encoder = Encoder(tiny[family], wanted, token_budget=128, max_length=120)
    found = encoder.encode(SOME)
    assert found.shape[1] == encoder.width
    assert_same_vectors(found, plain_vectors(tiny[family], SOME, heads, [1, 2], "last", EOL))


def test_without_grouped_queries_both_readings_are_the_heads_outputs(tiny: dict[str, str]) -> None:
    for family in ("llama-mha", "gpt2"):
        plain, shared, grouped = (
            Encoder(tiny[family], method("head-output", (2,), "last", heads=heads)).encode(SOME)
            for heads in ("apart", "shared-weights", "group-mean")
        )
        assert np.array_equal(plain, shared) and np.array_equal(plain, grouped)


def test_aligned_is_weighted_times_the_output_projection(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama-mha"], method("head-output", (2,), "last"))
    weight = encoder.backbone.blocks[2].self_attn.o_proj.weight.numpy()  # type: ignore[union-attr]
    aligned = Encoder(tiny["llama-mha"], method("attention-output", (2,), "last")).encode(SOME)
    assert_same_vectors(encoder.encode(SOME) @ weight.T, aligned)


def test_weighted_mean_counts_tokens_from_one(tiny: dict[str, str]) -> None:
    found = Encoder(tiny["llama"], "wmp", token_budget=100).encode(SENTENCES)
    assert_same_vectors(found, plain_vectors(tiny["llama"], SENTENCES, "hidden", [3], "weighted-mean"))


def test_echo_reads_the_second_copy(tiny: dict[str, str]) -> None:
    texts = ["abc def", "The old market", "駅は古い"]
    encoder = Encoder(tiny["llama"], "echo")
    template = encoder.method.prompts[0]
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        whole = template.replace("{text}", text)
        encoding = byte_level()(whole, return_offsets_mapping=True)
        second = whole.rindex(text)
        inside = [stop > second and start < second + len(text) for start, stop in encoding["offset_mapping"]]
        with torch.no_grad():
            states = encoder.backbone.model(torch.tensor([encoding["input_ids"]])).last_hidden_state[0]
        assert_same_vectors(vector[None], states[torch.tensor(inside)].mean(0, keepdim=True).numpy())


def test_all_methods_run(tiny: dict[str, str]) -> None:
    for family in ("qwen3-moe", "gpt2", "gemma2"):
        model = tiny[family]
        for row in list_methods(model):
            if "cannot be read" in row["notes"]:
                assert family == "qwen3-moe" and row["name"] == "activation"
            elif family != "gpt2" or row["name"] not in ("knowledge", "metaeol"):  # longer than its 128 positions
                assert Encoder(model, row["name"]).encode(["One text.", "Another, longer one."]).shape == (
                    2,
                    row["width"],
                )


def test_shared_weights_leave_the_attention_interface_as_it_was(tiny: dict[str, str]) -> None:
    before = dict(ALL_ATTENTION_FUNCTIONS)
    vectors = {kind: Encoder(tiny["qwen3"], "wva-lt", attention=kind).encode(SOME) for kind in ("eager", "sdpa")}  # type: ignore[arg-type]
    assert_same_vectors(vectors["eager"], vectors["sdpa"])
    assert dict(ALL_ATTENTION_FUNCTIONS) == before


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


def test_hs_full_is_the_mean_of_transformers_hidden_states(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["qwen2"], "hs-full")
    for text, vector in zip(SOME, encoder.encode(SOME), strict=True):
        ids = torch.tensor([byte_level()(text)["input_ids"]])
        with torch.no_grad():
            # The embeddings are left out; the last is the one after the final norm.
            states = encoder.backbone.model(ids, output_hidden_states=True).hidden_states[1:]
        assert_same_vectors(vector[None], torch.stack(states).mean(dim=(0, 2)).numpy())


def test_concatenation_keeps_the_blocks_apart(tiny: dict[str, str]) -> None:
    both = Encoder(tiny["llama"], method("value", (1, 3), "mean", combine="concat")).encode(SENTENCES)
    single = [Encoder(tiny["llama"], method("value", (layer,), "mean")).encode(SENTENCES) for layer in (1, 3)]
    assert_same_vectors(both, np.concatenate(single, axis=1))


def test_an_ensemble_is_the_mean_over_its_prompts(tiny: dict[str, str]) -> None:
    prompts = ("prompteol", "futureeol")
    together = Encoder(tiny["llama"], method("hidden", "last", "last", prompts)).encode(SENTENCES)
    alone = [Encoder(tiny["llama"], method("hidden", "last", "last", prompt)).encode(SENTENCES) for prompt in prompts]
    assert_same_vectors(together, (alone[0] + alone[1]) / 2)


@pytest.mark.parametrize(
    ("family", "attention"), [*((family, "auto") for family in sorted(CONFIGS)), ("llama", "eager"), ("gpt2", "eager")]
)
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


def test_bfloat16_is_transformers_own_and_the_same_in_any_batch(tiny: dict[str, str]) -> None:
    whole = AutoModel.from_pretrained(tiny["llama"], dtype=torch.bfloat16)
    with torch.no_grad():
        states = [whole(torch.tensor([byte_level()(text)["input_ids"]])).last_hidden_state[0, -1] for text in SENTENCES]
    plain = torch.stack(states).float().numpy()
    for name in ("va", "lt"):
        encoder = Encoder(tiny["llama"], name, dtype="bfloat16")
        together = encoder.encode(SENTENCES)
        alone = np.concatenate([encoder.encode([text]) for text in SENTENCES])
        assert np.isfinite(together).all() and together.dtype == np.float32
        assert _cosines(together, alone).min() >= 0.999
        if name == "lt":
            assert _cosines(together, plain).min() >= 0.999


def _cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)


def test_what_the_model_makes_of_padding_does_not_matter() -> None:
    tokens = torch.randn(2, 5, 3)
    starts, placeholders = torch.tensor([0, 5]), torch.tensor([-1, -1])
    extents = Extents(starts, torch.tensor([5, 2]), torch.tensor([1, 0]), torch.tensor([4, 1]), placeholders)
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
    whole = AutoModel.from_pretrained(model)
    for text, vector in zip(SENTENCES, without, strict=True):
        ids = torch.tensor([byte_level(start=True)(text)["input_ids"]])
        with torch.no_grad():
            state = whole(ids, output_hidden_states=True).hidden_states[1][0, 1:]
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


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_blocks_that_nobody_reads_are_not_loaded(tiny: dict[str, str], family: str) -> None:
    wanted = method("value", (1,), "mean")
    encoder, planned = Encoder(tiny[family], wanted), plan(tiny[family], wanted)
    assert len(encoder.backbone.blocks) == 2
    assert sum(weight.numel() for weight in encoder.backbone.model.parameters()) == planned.parameters_used
    assert planned.parameters_used < planned.parameters == plan(tiny[family], "lt").parameters_used
    # The last of them is not taken for the model's last block, whose state is read after the final norm.
    found = Encoder(tiny[family], method("hidden", (1,), "last")).encode(SOME)
    assert_same_vectors(found, plain_vectors(tiny[family], SOME, "hidden", [1], "last"))


def test_a_family_whose_depth_matters_is_loaded_whole(tmp_path: Path) -> None:
    config = BloomConfig(hidden_size=32, n_layer=3, n_head=2, vocab_size=512)
    encoder = Encoder(save_model(tmp_path, config, byte_level()), method("hidden", (1,), "mean"))
    assert len(encoder.backbone.blocks) == 3


@pytest.mark.parametrize("family", sorted(CONFIGS))
def test_the_last_mlp_works_on_the_last_tokens_alone(tiny: dict[str, str], family: str) -> None:
    encoder = Encoder(tiny[family], "prompteol", max_length=120)
    shapes = []
    encoder.backbone.blocks[-1].mlp.register_forward_hook(lambda _m, _args, out: shapes.append(out.shape))
    found = encoder.encode(SOME)
    # After the prompt's beginning, which is run once.
    assert shapes[1:] == [(1, len(SOME), 64)]
    encoder._last_mlp = None
    assert_same_vectors(found, encoder.encode(SOME))


def test_equal_texts_are_run_once(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], "cp-ns")
    encoder.encode(SENTENCES)
    tokens = encoder.tokens_run
    found = encoder.encode([*SENTENCES, SENTENCES[3], *SENTENCES])
    assert encoder.tokens_run == 2 * tokens
    assert np.array_equal(found[: len(SENTENCES)], found[len(SENTENCES) + 1 :])
    assert np.array_equal(found[len(SENTENCES)], found[3])


def test_threads_with_encoders_of_their_own_or_one_between_them(tiny: dict[str, str]) -> None:
    encoders = [Encoder(tiny[family], "lt", token_budget=64) for family in ("llama", "qwen2")]
    encoders.append(encoders[0])
    # Another's model, which is not ours to stand in for.
    plain, ids = AutoModel.from_pretrained(tiny["llama"]).eval(), torch.arange(5, 25)[None]
    with torch.inference_mode():
        alone, state = [encoder.encode(SENTENCES) for encoder in encoders], plain(ids).last_hidden_state

    def same(number: int) -> bool:
        if number % 4 == 3:
            with torch.inference_mode():
                return torch.equal(plain(ids).last_hidden_state, state)
        return np.array_equal(encoders[number % 4].encode(SENTENCES), alone[number % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(80)))


def test_attention_that_is_not_told_where_rows_end_runs_them_side_by_side(tmp_path: Path) -> None:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "n_positions": 128}
    # Its eager attention is a function of its own.
    config = GPT2Config(**sizes, reorder_and_upcast_attn=True, bos_token_id=0, eos_token_id=1)  # type: ignore[arg-type]
    model = save_model(tmp_path, config, byte_level())
    found = Encoder(model, method("hidden", (1,), "last"), attention="eager").encode(SOME)
    assert_same_vectors(found, plain_vectors(model, SOME, "hidden", [1], "last"))


_SMALL: dict[str, Any] = {"hidden_size": 64, "vocab_size": 512, "max_position_embeddings": 256}
_MOE: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 96}
_HEADS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2}
SLOT_OFF = KeyValueSlot(layers=(0, 1), bias=-1e9)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            GPTNeoConfig(num_layers=2, num_heads=4, attention_types=[[["global"], 2]], **_SMALL),
            "transformers' interface",
        ),
        (GptOssConfig(head_dim=16, **_SMALL, **_HEADS, **_MOE), "has sinks"),
    ],
    ids=["gpt-neo", "gpt-oss"],
)
def test_attention_that_cannot_be_stood_in_for_is_refused(tmp_path: Path, config: Any, reason: str) -> None:
    model = save_model(tmp_path, config, byte_level())
    with pytest.raises(MethodError, match=f"attention of block 0, and cannot .*{config.model_type}.*{reason}"):
        Encoder(model, method("hidden", (1,), "last", steering=(SLOT_OFF,)))


def test_what_a_family_says_in_its_mask_alone_holds_for_the_slot_and_shared_weights(tmp_path: Path) -> None:
    # Its window is in no option of attention.
    model = save_model(tmp_path, PhimoeConfig(sliding_window=9, **_SMALL, **_HEADS, **_MOE), byte_level())
    without, off = (
        Encoder(model, method("hidden", (1,), "mean", steering=steering), max_length=120).encode(SOME)
        for steering in ((), (SLOT_OFF,))
    )
    assert_same_vectors(off, without)
    shared = Encoder(model, method("head-output", (0, 1), "last", EOL, heads="shared-weights"), max_length=120)
    assert_same_vectors(shared.encode(SOME), plain_vectors(model, SOME, "shared-weights", [0, 1], "last", EOL))


def test_no_causal_mask_lets_a_large_score_through() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        mask = _causal_mask(1, 3, 2, dtype, torch.device("cpu"))
        assert mask[0, 0].isneginf().tolist() == [
            [False, False, True, True],
            [True, False, False, True],
            [True, True, False, False],
        ]


def _limited(encoder: Encoder, tokens: int) -> list[int]:
    """Lets the device's memory suffice for so many tokens at once; returns the sizes that were tried."""
    tried: list[int] = []

    def allocate(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
        tried.append(args[0].shape[0] * args[0].shape[1])
        if tried[-1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    encoder.backbone.blocks[0].register_forward_pre_hook(allocate)
    return tried


@pytest.mark.parametrize("name", ["va", "cp-ns"])
def test_batches_too_large_for_memory_are_halved(tiny: dict[str, str], name: str) -> None:
    expected = Encoder(tiny["llama"], name).encode(SENTENCES)
    encoder = Encoder(tiny["llama"], name)
    tried = _limited(encoder, 150)
    assert_same_vectors(encoder.encode(SENTENCES), expected)
    assert max(tried) > 150 and encoder.token_budget <= 150
    tried.clear()
    encoder.encode(SENTENCES)
    assert max(tried) <= 150


def test_a_text_too_large_for_memory_is_named(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], "va")
    _limited(encoder, 100)
    with pytest.raises(RowTooLarge, match="text of 160 tokens alone") as caught:
        encoder.encode([SENTENCES[0], SENTENCES[0], "x " * 80, *SENTENCES[1:3]])
    assert caught.value.row == 2
    # Where not even the prompt's beginning can be run, each text that needs it is named.
    encoder = Encoder(tiny["llama"], "metaeol")
    _limited(encoder, 10)
    with pytest.raises(RowTooLarge) as caught:
        encoder.encode(SENTENCES[:3])
    assert caught.value.row == 0


def test_other_failures_are_not_taken_for_a_lack_of_memory(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], "va")

    def fail(*_: Any) -> None:
        raise RuntimeError("device-side assert")

    encoder.backbone.blocks[0].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="device-side"):
        encoder.encode(SENTENCES)


def test_faulty_texts_are_named_by_position(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"])
    assert encoder.encode([]).shape == (0, 16)
    for text in ("", " \u200b", "\ud800"):
        with pytest.raises(TextError, match="text 1: "):
            encoder.encode(["fine", text])


def test_what_a_family_cannot_give_is_refused_by_name(tmp_path: Path) -> None:
    model = save_model(tmp_path, BloomConfig(hidden_size=32, n_layer=2, n_head=2, vocab_size=512), byte_level())
    with pytest.raises(MethodError, match=r"attention cannot be read from model type 'bloom'.*: hidden"):
        Encoder(model, "va")


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


@pytest.mark.parametrize("family", sorted(CONFIGS))
@pytest.mark.parametrize("pooling", ["last", "mean-text"])
def test_running_a_prompts_beginning_once_changes_no_vector(
    tiny: dict[str, str], family: str, pooling: Pooling
) -> None:
    prompt = 'First a few words that no text changes, then "{text}" in one word:"'
    encoder = Encoder(tiny[family], method("attention-output", (1, 3), pooling, prompt), max_length=128)
    assert len(encoder._prefix_ids[0]) > 8  # type: ignore[arg-type]
    reused = encoder.encode([*SENTENCES, '", merges with the quote'])
    encoder._prefix_ids = [None]
    assert_same_vectors(reused, encoder.encode([*SENTENCES, '", merges with the quote']))
    # A row that begins otherwise is run whole.
    encoder._prefix_ids = [np.array([5, 6, 7], dtype=np.int32)]
    assert_same_vectors(reused, encoder.encode([*SENTENCES, '", merges with the quote']))


def test_a_family_with_an_attention_of_its_own_is_run_whole(tmp_path: Path) -> None:
    config = BloomConfig(hidden_size=32, n_layer=2, n_head=2, vocab_size=512)
    model = save_model(tmp_path, config, byte_level())
    encoder = Encoder(model, "prompteol")
    assert encoder._prefix_ids == [None]
    for text, vector in zip(SOME, encoder.encode(SOME), strict=True):
        ids = torch.tensor([byte_level()(EOL.replace("{text}", text))["input_ids"]])
        with torch.no_grad():
            expected = encoder.backbone.model(ids).last_hidden_state[0, -1]
        assert_same_vectors(vector[None], expected[None].numpy())


def test_a_prompts_beginning_is_run_whole_where_it_is_read_or_changed(tiny: dict[str, str]) -> None:
    for name in ("va-prompteol", "kv-embedding", "wva-prompteol", "lt"):
        assert Encoder(tiny["llama"], name)._prefix_ids == [None]


def test_longrope_turns_no_short_text_to_long_positions(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 64}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    changes = {"original_max_position_embeddings": 64, "rope_parameters": rope}
    config = Phi3Config.from_dict({**CONFIGS["phi3"]().to_dict(), **changes})
    model = save_model(tmp_path, config, byte_level())
    long = "so many words " * 20
    for name in ("prompteol", "cp-ns"):
        encoder = Encoder(model, name)
        together = encoder.encode([*SENTENCES, long])
        encoder.token_budget = 1
        encoder._prefix_ids = [None] * len(encoder._prefix_ids)
        assert_same_vectors(together, encoder.encode([*SENTENCES, long]))


def test_a_text_without_a_token_of_its_own_is_refused_in_a_prompt_too(tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    model = save_model(tmp_path, llama(), tokenizer)
    for name in ("prompteol", "lt"):
        with pytest.raises(TextError, match="text 1: the tokenizer makes no token"):
            Encoder(model, name).encode(["fine", "\u0301\u0301"])
