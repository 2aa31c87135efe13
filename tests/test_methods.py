"""The table of methods, layer rules against values worked out by hand, and method files that are wrong."""

import hashlib
from pathlib import Path

import pytest

from extractors.errors import MethodError
from extractors.layers import BackboneShape, resolve_layers
from extractors.listing import as_text, list_methods
from extractors.method import Method, ResolvedMethod
from extractors.methods import METHODS, load_method
from extractors.prompts import PROMPTS, normalized

SMOLLM2 = BackboneShape("llama", 30, 576, 1536)
LLAMA_2_7B = BackboneShape("llama", 32, 4096, 11008)
LLAMA_3_8B = BackboneShape("llama", 32, 4096, 14336)
QWEN3_8B = BackboneShape("qwen3", 36, 4096, 12288)


@pytest.mark.parametrize(
    ("layers", "shape", "expected"),
    [
        ("all", SMOLLM2, list(range(30))),
        ("half", SMOLLM2, list(range(15, 30))),
        ("half", BackboneShape("llama", 5, 8, 8), [2, 3, 4]),
        ("last", SMOLLM2, [29]),
        ("paper", LLAMA_2_7B, [20, 21, 22, 23, 24, 25, 26, 27]),
        ("paper", QWEN3_8B, [26, 27, 29, 30, 31]),
        ("paper", SMOLLM2, list(range(18, 27))),
        ("paper", LLAMA_3_8B, list(range(16, 32))),
        ("18-26", SMOLLM2, list(range(18, 27))),
        ("0.6-0.9", SMOLLM2, list(range(18, 27))),
        ("0.5-1.0", BackboneShape("llama", 4, 8, 8), [2, 3]),
        ((3, 1), SMOLLM2, [1, 3]),
    ],
)
def test_layers(layers: str | tuple[int, ...], shape: BackboneShape, expected: list[int]) -> None:
    assert list(resolve_layers(layers, shape)) == expected


def test_papers_prompts_byte_for_byte() -> None:
    assert METHODS["prompteol"].templates == ('This sentence : "{text}" means in one word:"',)
    assert METHODS["aligned-wva-futureeol"].templates == ('Forecasting the subsequent tokens : "{text}" in one word:"',)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("prompteol", "75afdff95c32"),
        ("pretended-cot", "99d02355ed98"),
        ("knowledge", "ea42ec4a1e5d"),
        ("metaeol-1", "07cfbbe644a3"),
        ("metaeol-2", "3f61e490196c"),
        ("metaeol-3", "8d1fe7612b4f"),
        ("metaeol-4", "96797cb66895"),
        ("metaeol-5", "04e8a04e9068"),
        ("metaeol-6", "a82728e7ad5a"),
        ("metaeol-7", "88d51aaef89c"),
        ("metaeol-8", "777cf5bbab00"),
    ],
)
def test_prompts_are_the_published_bytes(name: str, digest: str) -> None:
    # The authors' files write the slot as "*sent 0*".
    published = PROMPTS[name].replace("{text}", "*sent 0*")
    assert hashlib.sha256(published.encode()).hexdigest().startswith(digest)


def test_sentence_normalization_of_the_prompt_papers() -> None:
    pairs = {
        "A cat": "A cat.",
        "A cat.": "A cat.",
        "Is it?": "Is it.",
        "'Yes'": "'Yes'",
        'a "b" c?': "a 'b' c.",
        "": "",
    }
    assert {text: normalized(text) for text in pairs} == pairs


def test_identity_round_trip() -> None:
    resolved = METHODS["aligned-wva-prompteol"].resolve(QWEN3_8B)
    assert ResolvedMethod.from_identity(resolved.identity()) == resolved
    assert resolved.width(4096) == 4096
    assert (
        Method(name="x", read="value", layers=(1, 2), pooling="mean", combine="concat").resolve(QWEN3_8B).width(8) == 16
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("read: hidden\nlayers: last\npoolin: mean", "did you mean 'pooling'"),
        ("read: vlaue\nlayers: last\npooling: mean", "'value'"),
        ("read: value\nlayers: lasst\npooling: mean", "did you mean 'last'"),
        ("read: value\nlayers: last\npooling: mean\nprompt: promteol", "did you mean 'prompteol'"),
        ("read: value\nlayers: last\npooling: mean\nprompt: '{text} {text} {text}'", "at most 2"),
        ("read: value\nlayers: last\npooling: second-copy", "two slots"),
        ("read: value\nlayers: last\npooling: last\nheads: group-mean", "goes with read = 'head-output'"),
        ("read: head-output\nlayers: last\npooling: mean\nheads: shared-weights", "pooling = 'last'"),
        ("read: value\nlayers: [1, 1]\npooling: mean", "each once"),
        ("read: value\nlayers: 0.5-.9x\npooling: mean", "fractions of depth"),
        ("read: value\nlayers: last\npooling: mean\nprompt: '{reversed} {text}'", "a list of two prompts"),
        ("read: value\nlayers: last\npooling: mean\nprompt: '<PST> {text}'", "token-prepending"),
        ("read: value\nlayers: last\npooling: mean\nsteering: {kind: x}", "list of mappings"),
        ("read: value\nlayers: last\npooling: mean\nsteering: [x]", "steering 'x' needs a kind: contrastive-prompting"),
        ("read: value\nlayers: [true]\npooling: mean", "fractions of depth"),
        ("read: value\nlayers:\npooling: mean", "a number, or a list"),
        ("read: value\nlayers: last\npooling: avg", "'mean-text'"),
        ("read: values\nlayers: last\npooling: mean", "did you mean 'value'"),
        ("read: value\nlayers: last\npooling: mean\nprompt: 5", "a text with {text}"),
        ("read: value\nlayers: last\npooling: mean\nsteering: [{kind: subspace-removal}]", "with --subspace"),
        ("read: value\nlayers: last\npooling: mean\nsteering: [{kind: key-value-slot, bias: .nan}]", "finite"),
        (
            "read: value\nlayers: last\npooling: mean\nsteering: [{kind: token-prependin}]",
            "did you mean 'token-prepending'",
        ),
        (
            "read: value\nlayers: last\npooling: mean\nsteering: [{kind: contrastive-prompting, alpa: 2}]",
            "unknown 'alpa' .did you mean 'alpha'",
        ),
        (
            "read: value\nlayers: last\npooling: mean\nsteering: [{kind: token-prepending, layers: lst}]",
            "did you mean 'last'",
        ),
        ("read: value\nlayers: last\npooling: mean\nsteering: [{kind: token-prepending}]", "one place before the text"),
        ("- a list", "must hold a mapping"),
        ("read: [", "is not YAML"),
    ],
)
def test_wrong_method_files_are_refused_with_a_cure(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(MethodError, match=message):
        load_method(str(path))


def test_method_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("prompt: [prompteol, futureeol]\nread: value\nlayers: '0.5-1.0'\npooling: last\ncombine: concat")
    method = load_method(str(path))
    assert method.name == "own"
    assert method.templates == METHODS["prompteol"].templates + METHODS["futureeol"].templates


def test_numbers_for_layers_are_what_they_look_like(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    for layers, expected in (("2", (2,)), ("0.8", "0.8"), ("[1, 2]", (1, 2))):
        path.write_text(f"read: value\npooling: mean\nlayers: {layers}")
        assert load_method(str(path)).layers == expected


def test_unknown_names_and_layers_outside() -> None:
    with pytest.raises(MethodError, match="did you mean 'prompteol'"):
        load_method("promteol")
    with pytest.raises(MethodError, match="does not exist"):
        load_method("nowhere.yaml")
    with pytest.raises(MethodError, match=r"\[30\] are outside the model, whose 30 blocks are 0-29"):
        Method(name="x", read="value", layers=(3, 30), pooling="mean").resolve(SMOLLM2)
    with pytest.raises(MethodError, match="empty"):
        Method(name="x", read="value", layers="9-3", pooling="mean").resolve(SMOLLM2)


def test_listing(tiny: dict[str, str]) -> None:
    rows = {row["name"]: row for row in list_methods(tiny["qwen3"])}
    assert rows["va-half"] | {"layers": [2, 3], "width": 32, "forward_passes": 1} == rows["va-half"]
    assert rows["aligned-wva-futureeol"]["width"] == 64
    assert "blocks 2-3" in as_text(list(rows.values()))
    on_gpt2 = {row["name"]: row for row in list_methods(tiny["gpt2"])}
    assert on_gpt2["lt"]["width"] == 64
    assert on_gpt2["va"]["width"] == 64
    on_mixture = {row["name"]: row for row in list_methods(tiny["qwen3-moe"])}
    assert on_mixture["activation"]["width"] is None and "down_proj" in on_mixture["activation"]["notes"]
    assert [row["layers"] for row in list_methods() if row["name"] == "va"] == ["paper"]
