"""Steering against a second implementation in every family, its laws, and what it leaves behind."""

from typing import Any

import numpy as np
import pytest
import torch

from extractors import Encoder, Method, MethodError, TextError
from extractors.batch import side_by_side
from extractors.inputs import _MARK
from extractors.layers import BackboneShape
from extractors.listing import list_methods
from extractors.method import ResolvedMethod
from extractors.methods import METHODS, load_method
from extractors.plan import plan
from extractors.prompts import PROMPTS
from extractors.steer import steered
from extractors.steer_contrast import contrast
from extractors.steering import ContrastivePrompting, KeyValueSlot, TokenPrepending
from tests.conftest import CONFIGS, SENTENCES, byte_level, llama, save_model
from tests.reference import assert_same_vectors
from tests.steering_reference import Network, contrastive, prepended, with_slot

FAMILIES = sorted(CONFIGS)
EOL = PROMPTS["prompteol"]
# It ends as no other prompt does: blocks that see 8 tokens back only would find no difference between equal ends.
AUXILIARY = 'What "{text}" is not about:'
TEXTS = [SENTENCES[0], SENTENCES[7], SENTENCES[4]]


def last(**options: Any) -> Method:
    return Method(
        **{"name": "test", "prompt": "prompteol", "read": "hidden", "layers": (2,), "pooling": "last", **options}
    )


@pytest.fixture(scope="module")
def networks(tiny: dict[str, str]) -> dict[str, Network]:
    return {family: Network(tiny[family]) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaling", ["scaled", "norm-restored"])
def test_contrastive_prompting(tiny: dict[str, str], networks: Any, family: str, scaling: Any) -> None:
    kind = ContrastivePrompting(layers=(1,), auxiliary=AUXILIARY, scaling=scaling, alpha=1.5)
    found = Encoder(tiny[family], last(steering=(kind,)), token_budget=128, max_length=120).encode(TEXTS)
    expected = [contrastive(networks[family], t, EOL, AUXILIARY, 1, 2, scaling, 1.5) for t in TEXTS]
    assert_same_vectors(found, np.stack(expected))
    assert not np.allclose(found, Encoder(tiny[family], last(), max_length=120).encode(TEXTS), rtol=0.01)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("blocks", [(1, 2), ()])
def test_token_prepending(tiny: dict[str, str], networks: Any, family: str, blocks: tuple[int, ...]) -> None:
    found = Encoder(
        tiny[family], last(steering=(TokenPrepending(layers=blocks),)), token_budget=128, max_length=120
    ).encode(TEXTS)
    # Gemma multiplies embeddings by the square root of their width.
    scale = 8.0 if family.startswith("gemma") else 1.0
    before, after = "This sentence : ", ' "{text}" means in one word:"'
    expected = [prepended(networks[family], t, before, after, list(blocks), 2, scale) for t in TEXTS]
    assert_same_vectors(found, np.stack(expected))


@pytest.mark.parametrize("family", FAMILIES)
def test_key_value_slot(tiny: dict[str, str], networks: Any, family: str) -> None:
    prompt = "Context: {text}\nCompress the Context in one word:"
    method = Method(
        name="test",
        prompt=prompt,
        read="hidden",
        layers=(2,),
        pooling="mean-and-last",
        steering=(KeyValueSlot(layers=(0, 1), bias=0.5),),
    )
    found = Encoder(tiny[family], method, token_budget=128, max_length=120).encode(TEXTS[:2])
    expected = [with_slot(networks[family], t, prompt, [0, 1], 2, 0.5) for t in TEXTS[:2]]
    assert_same_vectors(found, np.stack(expected))


def test_reverse_eol_is_the_mean_of_both_directions(tiny: dict[str, str]) -> None:
    found = Encoder(tiny["llama"], "reverse-eol").encode(["The old  market is new", "駅は古い"])
    alone = Encoder(tiny["llama"], "prompteol").encode(["The old  market is new", "駅は古い"])
    reverse = Encoder(
        tiny["llama"], last(prompt='This sentence in reverse order : "{text}" means in one word:"', layers="last")
    )
    assert_same_vectors(found, (alone + reverse.encode(["new is market old The", "駅は古い"])) / 2)


@pytest.mark.parametrize(
    "kind",
    [
        ContrastivePrompting(layers=(1,), auxiliary=AUXILIARY),
        ContrastivePrompting(layers=(1,), auxiliary=AUXILIARY, scaling="norm-restored"),
        TokenPrepending(layers=(1, 2)),
        KeyValueSlot(layers=(1,)),
    ],
    ids=["cp-ns", "cp-nr", "tp", "kv"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_steered_vector_does_not_depend_on_its_batch(tiny: dict[str, str], family: str, kind: Any) -> None:
    encoder = Encoder(tiny[family], last(steering=(kind,)), max_length=120)
    together = encoder.encode(SENTENCES)
    encoder.token_budget = 1
    assert_same_vectors(together, encoder.encode(SENTENCES))


def test_an_empty_auxiliary_vector_and_alpha_one_change_nothing(tiny: dict[str, str]) -> None:
    z = torch.randn(3, 8)
    torch.testing.assert_close(contrast(z, torch.zeros_like(z), "scaled", 1.0), z, rtol=0, atol=0)
    torch.testing.assert_close(contrast(z, torch.zeros_like(z), "norm-restored", 5.0), z)

    plain = Encoder(tiny["llama"], last())
    batch = side_by_side([row[0] for row in plain.tokenizer.tokenize(TEXTS)], plain.device)  # type: ignore[misc]
    kind = ContrastivePrompting(layers=(1,), alpha=1.0)
    with torch.no_grad():
        expected = plain.backbone.model(batch.ids).last_hidden_state
        with steered(plain.backbone, (kind,), batch.extents, [torch.zeros(3, 64)]):
            found = plain.backbone.model(batch.ids).last_hidden_state
    assert torch.equal(found, expected)


def test_norm_restored_keeps_the_length() -> None:
    z, auxiliary = torch.randn(4, 16), torch.randn(4, 16)
    torch.testing.assert_close(contrast(z, auxiliary, "norm-restored", 1.0).norm(dim=1), z.norm(dim=1))


@pytest.mark.parametrize("name", ["cp-ns", "tp", "kv-embedding"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_is_as_it_was_also_after_an_exception(tiny: dict[str, str], name: str, attention: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    functions = dict(ALL_ATTENTION_FUNCTIONS)
    encoder = Encoder(tiny["qwen3"], name, attention=attention)
    ids = torch.tensor([byte_level()("The old market")["input_ids"]])
    with torch.no_grad():
        before = encoder.backbone.model(ids).last_hidden_state
        encoder.encode(SENTENCES)
        batch = side_by_side([row[0] for row in encoder.tokenizer.tokenize(TEXTS)], encoder.device)  # type: ignore[misc]
        with (
            pytest.raises(ZeroDivisionError),
            steered(encoder.backbone, encoder.method.steering, batch.extents, [torch.zeros(3, 128)]),
        ):
            raise ZeroDivisionError
        after = encoder.backbone.model(ids).last_hidden_state
    assert torch.equal(before, after) and dict(ALL_ATTENTION_FUNCTIONS) == functions
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in encoder.backbone.model.modules())


def test_steering_composes_with_reads_prompts_and_itself(tiny: dict[str, str]) -> None:
    cp, tp = ContrastivePrompting(layers=(1,)), TokenPrepending(layers=(1,))
    aligned: dict[str, Any] = {"read": "attention-output", "layers": (1, 3)}
    both = Encoder(tiny["llama"], last(prompt=("prompteol", "futureeol"), steering=(cp,), **aligned)).encode(TEXTS)
    each = [
        Encoder(tiny["llama"], last(prompt=p, steering=(cp,), **aligned)).encode(TEXTS)
        for p in ("prompteol", "futureeol")
    ]
    assert_same_vectors(both, (each[0] + each[1]) / 2)
    # The block that is contrasted is read as contrasted: its z, times the output projection.
    one = Encoder(tiny["llama"], last(read="head-output", layers=(1,), steering=(cp,)))
    weight = one.backbone.blocks[1].self_attn.o_proj.weight.numpy()  # type: ignore[union-attr]
    steered_output = Encoder(tiny["llama"], last(read="attention-output", layers=(1,), steering=(cp,))).encode(TEXTS)
    assert_same_vectors(one.encode(TEXTS) @ weight.T, steered_output)
    vectors = [Encoder(tiny["llama"], last(steering=s)).encode(TEXTS) for s in ((), (cp,), (tp,), (cp, tp), (tp, cp))]
    for i, j in [(0, 1), (0, 2), (1, 3), (2, 3)]:
        assert np.abs(vectors[i] - vectors[j]).max() > 1e-3
    assert_same_vectors(vectors[3], vectors[4])


def test_a_placeholder_is_one_token_and_no_text_is_one(tiny: dict[str, str]) -> None:
    encoder = Encoder(tiny["llama"], last(steering=(TokenPrepending(layers=(1,)),)))
    (row,) = encoder.tokenizer.tokenize(["<PST> is plain text"])[0]
    pieces = [
        byte_level()(part)["input_ids"] for part in ("This sentence : ", ' "<PST> is plain text" means in one word:"')
    ]
    assert row.placeholder == len(pieces[0])  # type: ignore[union-attr]
    ids = row.ids.tolist()  # type: ignore[union-attr]
    assert [*ids[: row.placeholder], *ids[row.placeholder + 1 :]] == [*pieces[0], *pieces[1]]  # type: ignore[union-attr]
    with pytest.raises(TextError, match="text 1"):
        encoder.encode(["fine", f"a {_MARK} b"])
    assert Encoder(tiny["llama"], "prompteol").encode([f"a {_MARK} b"]).shape == (1, 64)


def test_of_a_reversed_text_the_end_is_cut_too(tiny: dict[str, str]) -> None:
    long = " ".join(f"w{i}" for i in range(200))
    tokenizer = plan(tiny["llama"], "reverse-eol", max_length=80).tokenizer
    forward, backward = tokenizer.tokenize([long])[0]
    spelled = [byte_level().decode(row.ids[row.text_begin : row.text_end]) for row in (forward, backward)]  # type: ignore[union-attr]
    assert forward.truncated and backward.truncated and len(backward.ids) <= 80  # type: ignore[union-attr]
    assert spelled[0].strip(' "').startswith("w0 w1") and spelled[1].strip(' "').endswith("w1 w0")


def test_identity_holds_every_value_of_the_steering(tiny: dict[str, str]) -> None:
    resolved = plan(tiny["llama"], "cp-ns").method
    assert resolved.identity()["steering"] == [
        {
            "kind": "contrastive-prompting",
            "layers": [0],
            "auxiliary": PROMPTS["irrelevant-information"],
            "scaling": "scaled",
            "alpha": 2.0,
        }
    ]
    for name in METHODS:
        method = plan(tiny["llama"], name).method
        assert ResolvedMethod.from_identity(method.identity()) == method


@pytest.mark.parametrize(
    ("steering", "message"),
    [
        (ContrastivePrompting(layers=(3,)), "in block 3 comes after the last thing read, hidden in block 2"),
        (ContrastivePrompting(layers="0-1"), "works in one block"),
        (TokenPrepending(layers=(9,)), r"\[9\] are outside the model"),
    ],
)
def test_steering_that_cannot_work_is_refused(tiny: dict[str, str], steering: Any, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        Encoder(tiny["llama"], last(steering=(steering,)))
    with pytest.raises(MethodError, match="comes after"):
        Encoder(tiny["llama"], last(read="value", steering=(ContrastivePrompting(layers=(2,)),)))


def test_what_does_not_depend_on_the_steering_is_refused(tiny: dict[str, str]) -> None:
    cp, slot = ContrastivePrompting(layers=(2,)), KeyValueSlot(layers=(2,))
    # Shared weights meet the values before head outputs are steered; a parallel MLP does not see its block's attention.
    for wrong, options in (
        (cp, {"read": "head-output", "heads": "shared-weights"}),
        (slot, {"read": "head-output", "heads": "shared-weights"}),
        (cp, {"read": "activation"}),
        (slot, {"read": "activation"}),
    ):
        for family in ("llama", "gpt-neox"):
            with pytest.raises(MethodError, match="in block 2 comes after the last thing read"):
                Encoder(tiny[family], last(steering=(wrong,), **options))
            assert Encoder(tiny[family], last(steering=(wrong,), **{**options, "layers": (3,)})).width


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        (("llama", 32, 4096, 11008), (1, 2, 3, 4, 5, 6)),
        (("llama", 32, 4096, 14336), (1, 2)),
        (("gemma2", 42, 3584, 14336), (1, 2, 3, 4, 5)),
        (("llama", 30, 576, 1536), (1, 2, 3, 4, 5, 6)),
        (("qwen2", 24, 896, 4864), (1, 2, 3, 4)),
        (("llama", 4, 64, 96), (1,)),
    ],
)
def test_token_prepending_begins_at_the_second_block(shape: Any, blocks: tuple[int, ...]) -> None:
    assert TokenPrepending().resolve(BackboneShape(*shape)).blocks == blocks


def test_an_auxiliary_prompt_has_no_placeholder() -> None:
    with pytest.raises(ValueError, match="no place in an auxiliary prompt"):
        ContrastivePrompting(auxiliary='A <PST> "{text}" b')


def test_steering_in_a_file(tmp_path: Any, tiny: dict[str, str]) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "prompt: futureeol\nread: attention-output\nlayers: [2, 3]\npooling: last\n"
        "steering: [{kind: contrastive-prompting, layers: [1], alpha: 0.5}, {kind: token-prepending, layers: 1-2}]"
    )
    method = load_method(str(path))
    assert method.steering == (ContrastivePrompting(layers=(1,), alpha=0.5), TokenPrepending(layers="1-2"))
    assert Encoder(tiny["llama"], method).encode(TEXTS).shape == (3, 64)
    rows = {row["name"]: row for row in list_methods(tiny["llama"])}
    assert [rows[name]["forward_passes"] for name in ("cp-ns", "tp", "reverse-eol", "metaeol")] == [2, 1, 2, 8]
    assert rows["tp"]["prompts"] == ['This sentence : <PST> "{text}" means in one word:"']


def test_a_start_token_stands_before_the_placeholder(tmp_path: Any) -> None:
    model = save_model(tmp_path, llama(), byte_level(start=True))
    (row,) = plan(model, last(prompt='<PST> "{text}"', steering=(TokenPrepending(layers=(1,)),))).tokenizer.tokenize(
        ["a"]
    )[0]
    assert row.placeholder == 1 and row.ids[0] == 0  # type: ignore[union-attr]
