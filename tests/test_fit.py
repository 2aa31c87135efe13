"""Fitting subspaces as a job, and encoding with them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save

from extractors import Encoder, MethodError
from extractors.plan import plan
from extractors.residuals import residuals, top_directions
from extractors.subspace import Subspace, load_subspace
from pipeline.build_index import build_index
from pipeline.config import EncodeConfig, FitConfig, IndexConfig, SearchConfig
from pipeline.encode import encode
from pipeline.errors import UsageError
from pipeline.fit import fit, prepare_fit
from pipeline.parallel import read_parallel
from pipeline.search import search
from pipeline.states import States
from pipeline.store import VectorStore
from pipeline.vectors import matrix
from tests.conftest import SENTENCES, write_shard
from tests.reference import assert_same_vectors, plain_vectors

EOL = 'This sentence : "{text}" means in one word:"'
LANGUAGES = ("eng", "fra", "deu")


def corpus(groups: int = 12) -> dict[str, list[Any]]:
    """A wide corpus of made-up translations; each language has its own flavour of letters."""
    texts = [f"{SENTENCES[i % 9]} {i}".replace('"', "'") for i in range(groups)]
    return {
        "id": list(range(groups)),
        "eng": texts,
        "fra": [f"le {text.replace('e', 'é')}" for text in texts],
        "deu": [f"das {text.replace('s', 'ß')}" for text in texts],
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, and states that were read once and serve every test."""
    folder = tmp_path_factory.mktemp("fit")
    pq.write_table(pa.table(corpus()), folder / "wide.parquet")
    return folder


def options(tiny: dict[str, str], wide: Path, output: Path, **more: Any) -> FitConfig:
    """PromptEOL, steered from block 2 on."""
    given = {
        "model": tiny["llama"],
        "method": "prompteol",
        "input": str(wide),
        "languages": ",".join(LANGUAGES),
        "output": str(output),
        "start_layer": 2,
    }
    return FitConfig.model_validate({**given, **more})


def in_blocks(tiny: dict[str, str], shared: Path, output: Path, **more: Any) -> FitConfig:
    kept = {"states": str(shared / "blocks"), "keep_states": True}
    return options(tiny, shared / "wide.parquet", output, **{**kept, **more})


def on_embedding(tiny: dict[str, str], shared: Path, output: Path, **more: Any) -> FitConfig:
    """VA's finished vectors."""
    kept = {"states": str(shared / "embedding"), "keep_states": True, "method": "va"}
    return options(tiny, shared / "wide.parquet", output, **{"start_layer": None, "place": "embedding", **kept, **more})


def states_of(model: str, layer: int, read: str = "block-output") -> np.ndarray:
    """[G, K, d] by the plain reference: hidden states are block outputs for all blocks but the last."""
    table = corpus()
    by_language = [plain_vectors(model, table[language], "hidden", [layer], "last", EOL) for language in LANGUAGES]
    return np.stack(by_language, axis=1)


def test_the_file_holds_what_a_plain_script_finds(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    about = fit(in_blocks(tiny, shared, tmp_path / "s.safetensors"))
    tensors = load_file(tmp_path / "s.safetensors")
    assert sorted(tensors) == [f"layer.{i}.{kind}" for i in (2, 3) for kind in ("basis", "singular_values")]
    flat = residuals(states_of(tiny["llama"], 2).astype(np.float64)).reshape(-1, 64)
    _, values, rows = np.linalg.svd(flat, full_matrices=False)
    np.testing.assert_allclose(tensors["layer.2.singular_values"], values[:2], rtol=1e-4)
    basis = tensors["layer.2.basis"]
    np.testing.assert_allclose(basis @ basis.T, rows[:2].T @ rows[:2], atol=1e-4)
    assert about["groups"] == 12 and about["rank"] == 2 and about["languages"] == list(LANGUAGES)
    with safe_open(tmp_path / "s.safetensors", "numpy") as opened:
        assert set(opened.metadata()) >= {"format_version", "dtype", "width"}
        assert set(opened.metadata()) >= {
            "model",
            "revision",
            "tokenizer",
            "method",
            "construction",
            "explained_variance",
        }


def test_steering_is_what_a_plain_loop_makes_of_it(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    path = str(tmp_path / "s.safetensors")
    fit(in_blocks(tiny, shared, tmp_path / "s.safetensors"))
    bases = {block: torch.from_numpy(basis) for block, basis in load_subspace(path).bases.items()}
    encoder = Encoder(tiny["llama"], "prompteol", subspaces=[path])
    found = encoder.encode(SENTENCES[:6])
    model = encoder.backbone.model
    from tests.conftest import byte_level

    for text, vector in zip(SENTENCES[:6], found, strict=True):
        ids = torch.tensor([byte_level()(EOL.replace("{text}", text))["input_ids"]])
        originals = [block.forward for block in model.layers]  # type: ignore[union-attr]
        for i, block in enumerate(model.layers):  # type: ignore[union-attr, arg-type]

            def forward(*args: Any, i: int = i, **kwargs: Any) -> Any:
                state = originals[i](*args, **kwargs).clone()  # noqa: B023
                if i in bases:
                    for q in range(bases[i].shape[1]):
                        direction = bases[i][:, q]
                        state[0, -1] -= (state[0, -1] @ direction) * direction
                return state

            block.forward = forward
        with torch.no_grad():
            expected = model(ids).last_hidden_state[0, -1]
        for block, original in zip(model.layers, originals, strict=True):  # type: ignore[union-attr, arg-type]
            block.forward = original
        assert_same_vectors(vector[None], expected[None].numpy())
    plain = Encoder(tiny["llama"], "prompteol").encode(SENTENCES[:6])
    assert np.abs(plain - found).max() > 1e-2
    encoder.token_budget = 1
    assert_same_vectors(encoder.encode(SENTENCES[:6]), found)


def test_blocks_that_are_not_read_are_not_steered_and_too_late_is_refused(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    method = "aligned-wva-prompteol"
    fit(in_blocks(tiny, shared, tmp_path / "s.safetensors"))
    fitted = load_subspace(str(tmp_path / "s.safetensors"))
    # Attention outputs of blocks 2 and 3 are read: block 3's own output comes too late.
    planned = plan(tiny["llama"], method, subspaces=[fitted], allow_mismatch=True)
    assert planned.method.steering[0].layers == (2,)
    late = Subspace(fitted.about, {name: tensor for name, tensor in fitted.tensors.items() if "layer.3" in name})
    with pytest.raises(MethodError, match=r"begins at block 3, after the last thing read.*earlier --start-layer"):
        Encoder(tiny["llama"], method, subspaces=[late], allow_subspace_mismatch=True)


def test_echo_is_fitted_and_steered_on_its_second_copy(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    fit(options(tiny, shared / "wide.parquet", tmp_path / "e.safetensors", method="echo", start_layer=3))
    assert not (tmp_path / "e.safetensors.states").exists()
    encoder = Encoder(tiny["llama"], "echo", subspaces=[str(tmp_path / "e.safetensors")])
    assert encoder.method.steering[0].position == "second-copy"  # type: ignore[union-attr]
    basis = encoder._bases[encoder.method.steering[0].sha256][3]  # type: ignore[union-attr]
    # The last block's output, before the norm, is orthogonal to the basis in the second copy, and only there.
    seen = []
    hook = encoder.backbone.final_norm.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    (row,) = encoder.tokenizer.tokenize(["The old market"])[0]
    encoder.encode(["The old market"])
    hook.remove()
    shift = len(encoder._prefix_ids[0])  # type: ignore[arg-type]
    inside = seen[-1][0, row.text_begin - shift : row.text_end - shift]  # type: ignore[union-attr]
    torch.testing.assert_close(inside @ basis, torch.zeros(len(inside), basis.shape[1]), atol=1e-3, rtol=0)
    assert (seen[-1][0, : row.text_begin - shift] @ basis).abs().max() > 0.05  # type: ignore[union-attr]


@pytest.mark.parametrize("removal", ["hard", "hard-uncentred", "soft"])
def test_removal_on_the_finished_embedding(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path, removal: str
) -> None:
    fit(on_embedding(tiny, shared, tmp_path / "m.safetensors", removal=removal))
    encoder = Encoder(tiny["llama"], "va")
    table = corpus()
    states = np.stack([encoder.encode(table[language]) for language in LANGUAGES], axis=1).astype(np.float64)
    flat, mean = residuals(states).reshape(-1, 16), states.mean(axis=(0, 1))
    vectors = encoder.encode(SENTENCES[:5])
    found = Encoder(tiny["llama"], "va", subspaces=[str(tmp_path / "m.safetensors")]).encode(SENTENCES[:5])
    if removal == "soft":
        from scipy.linalg import inv, sqrtm

        covariance = flat.T @ flat / len(flat)
        shrunk = 0.7 * covariance + 0.3 * np.trace(covariance) / 16 * np.eye(16)
        expected = (vectors - mean) @ inv(sqrtm(shrunk)).real
    else:
        basis, _ = top_directions(flat.T @ flat, 2)
        centred = vectors - (mean if removal == "hard" else 0)
        expected = centred - centred @ basis @ basis.T
    assert_same_vectors(found, expected)


def test_constructions_come_from_states_that_are_kept(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    def files() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (shared / "blocks").rglob("*") if path.name != "report.json"}

    fit(in_blocks(tiny, shared, tmp_path / "prsr.safetensors"))
    before, prsr = files(), load_subspace(str(tmp_path / "prsr.safetensors"))
    for construction in ("random", "language-mean", "shuffled-pair"):
        about = fit(in_blocks(tiny, shared, tmp_path / "c.safetensors", construction=construction))
        assert about["construction"] == construction
        for block, basis in load_subspace(str(tmp_path / "c.safetensors")).bases.items():
            np.testing.assert_allclose(basis.T @ basis, np.eye(2), atol=1e-5)
            assert np.abs(basis @ basis.T - prsr.bases[block] @ prsr.bases[block].T).max() > 1e-3
    # A later start needs no states of its own.
    later = fit(in_blocks(tiny, shared, tmp_path / "l.safetensors", start_layer=3))
    bases = load_subspace(str(tmp_path / "l.safetensors")).bases
    assert later["start_layer"] == 3 and list(bases) == [3] and np.array_equal(bases[3], prsr.bases[3])
    few = fit(in_blocks(tiny, shared, tmp_path / "f.safetensors", languages="eng,deu", groups=5))
    assert (few["groups"], few["rank"]) == (5, 1)
    assert {k: v for k, v in files().items() if k.is_file()} == {k: v for k, v in before.items() if k.is_file()}


def test_states_of_another_run_are_left_as_they_are(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    fit(in_blocks(tiny, shared, tmp_path / "s.safetensors"))
    before = {path: path.read_bytes() for path in (shared / "blocks").rglob("*.parquet")}
    for changes in ({"method": "futureeol"}, {"start_layer": 1}):
        with pytest.raises(UsageError, match="belongs to another run"):
            fit(in_blocks(tiny, shared, tmp_path / "o.safetensors", groups=3, **changes))
    assert {path: path.read_bytes() for path in (shared / "blocks").rglob("*.parquet")} == before


def test_states_are_deleted_only_where_they_are_the_fits_own(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    wide, output = shared / "wide.parquet", tmp_path / "s.safetensors"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    fit(options(tiny, wide, output, start_layer=3, states=str(tmp_path / "mine")))
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["texts.parquet", "thesis.txt", "vectors"]
    # Another corpus, or more languages of this one, is not put in its place.
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*.*")}
    pq.write_table(pa.table(corpus(5)), tmp_path / "five.parquet")
    fewer = {"start_layer": 3, "states": str(tmp_path / "mine"), "languages": "eng,deu"}
    fit(options(tiny, tmp_path / "five.parquet", output, **fewer))
    pq.write_table(pa.table({**corpus(5), "eng": ["other"] * 4 + ["more"]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match=r"states of another corpus.*nothing was changed"):
        fit(options(tiny, tmp_path / "other.parquet", output, **fewer))
    after = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*.*")}
    assert {k: v for k, v in after.items() if k.name != "report.json"} == {
        k: v for k, v in before.items() if k.name != "report.json"
    }
    States(str(tmp_path / "mine")).delete()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_lir_needs_the_rows_languages(ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path) -> None:
    fit(on_embedding(tiny, shared, tmp_path / "lir.safetensors", construction="lir"))
    subspace = load_subspace(str(tmp_path / "lir.safetensors"))
    assert sorted(subspace.language_bases) == ["deu", "eng", "fra"]
    write_shard(tmp_path / "in" / "a.parquet", range(4), SENTENCES[:4], lang=["eng", "fra", "jpn", None])
    run = {
        "model": tiny["llama"],
        "method": "va",
        "input": [str(tmp_path / "in")],
        "subspace": [str(tmp_path / "lir.safetensors")],
    }
    with pytest.raises(UsageError, match="--keep lang"):
        encode(EncodeConfig.model_validate({**run, "output": str(tmp_path / "out")}))
    report = encode(EncodeConfig.model_validate({**run, "output": str(tmp_path / "out"), "keep": ["lang"]}))
    assert report["rows_out"] == 2 and report["reasons"] == {"language-not-fitted": 2}
    plain = Encoder(tiny["llama"], "va").encode(SENTENCES[:2])
    ((_, table),) = VectorStore(str(tmp_path / "out")).iter_vectors()
    expected = [
        v - v @ (b := subspace.language_bases[name]) @ b.T for v, name in zip(plain, ("eng", "fra"), strict=True)
    ]
    assert_same_vectors(matrix(table.column("vector")), np.stack(expected))


def test_encode_index_and_search_with_a_subspace(
    ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path
) -> None:
    blocks, whole = str(tmp_path / "b.safetensors"), str(tmp_path / "w.safetensors")
    fit(in_blocks(tiny, shared, Path(blocks)))
    # On the finished vectors of the steered model.
    steered = {"method": "prompteol", "subspace": [blocks], "states": str(tmp_path / "states")}
    fit(on_embedding(tiny, shared, Path(whole), removal="soft", num_actors=2, **steered))
    write_shard(tmp_path / "in" / "a.parquet", range(6), SENTENCES[:6])
    run = {"model": tiny["llama"], "method": "prompteol", "input": [str(tmp_path / "in")], "subspace": [blocks, whole]}
    encode(EncodeConfig.model_validate({**run, "output": str(tmp_path / "out"), "num_actors": 2}))
    ((_, table),) = VectorStore(str(tmp_path / "out")).iter_vectors()
    expected = Encoder(tiny["llama"], "prompteol", subspaces=[blocks, whole]).encode(SENTENCES[:6])
    assert_same_vectors(matrix(table.column("vector")), expected)
    identity = VectorStore(str(tmp_path / "out")).run()["identity"]  # type: ignore[index]
    assert identity["method"]["steering"][0]["sha256"] == load_subspace(blocks).sha256
    assert identity["removals"] == [load_subspace(whole).sha256]
    # Another subspace is another run.
    with pytest.raises(UsageError, match="belongs to another run"):
        encode(EncodeConfig.model_validate({**run, "output": str(tmp_path / "out"), "subspace": [blocks]}))
    # The same subspace in another place is the same run, which is told where it lies now.
    moved = str(Path(whole).rename(tmp_path / "moved.safetensors"))
    encode(EncodeConfig.model_validate({**run, "output": str(tmp_path / "out"), "subspace": [blocks, moved]}))
    assert VectorStore(str(tmp_path / "out")).run()["subspace"] == [blocks, moved]  # type: ignore[index]
    build_index(IndexConfig(vectors=str(tmp_path / "out"), output=str(tmp_path / "index")))
    hits, _, _ = search(SearchConfig(index=str(tmp_path / "index"), query=[SENTENCES[3]], k=1))
    assert hits.to_pylist()[0]["id"] == 3 and hits.to_pylist()[0]["score"] == pytest.approx(1, abs=1e-5)


def test_bases_are_shared_without_a_copy(ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path) -> None:
    fit(in_blocks(tiny, shared, tmp_path / "s.safetensors"))
    reference = ray.put([load_subspace(str(tmp_path / "s.safetensors"))])
    (one,), (other,) = ray.get(reference), ray.get(reference)
    basis = one.bases[2]
    # Shared memory, which nobody may write to, all the way into the tensor that steers.
    assert not basis.flags.writeable and basis.ctypes.data == other.bases[2].ctypes.data
    encoder = Encoder(tiny["llama"], "prompteol", subspaces=[one])
    assert encoder._bases[one.sha256][2].data_ptr() == basis.ctypes.data
    assert encoder.encode(["x"]).shape == (1, 64)


def test_a_subspace_is_refused_elsewhere(ray_session: None, tiny: dict[str, str], shared: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "s.safetensors")
    fit(in_blocks(tiny, shared, Path(path)))
    for model, method, message in (
        (tiny["mistral"], "prompteol", "revision"),
        (tiny["llama"], "futureeol", "prompts"),
        (tiny["llama"], "aligned-wva-prompteol", "read"),
    ):
        with pytest.raises(MethodError, match=rf"fitted for.*{message}.*--allow-subspace-mismatch"):
            Encoder(model, method, subspaces=[path])
    allowed = Encoder(tiny["llama"], "aligned-wva-prompteol", subspaces=[path], allow_subspace_mismatch=True)
    assert allowed.encode(["x"]).shape == (1, 64)
    with pytest.raises(MethodError, match="last token or from a text's second copy"):
        Encoder(tiny["llama"], "va", subspaces=[path], allow_subspace_mismatch=True)
    with pytest.raises(MethodError, match="No such file"):
        load_subspace(str(tmp_path / "nowhere.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(MethodError, match="written by `isogloss fit`"):
        load_subspace(str(tmp_path / "bad.safetensors"))
    (tmp_path / "foreign.safetensors").write_bytes(save({"layer.0.attention.weight": np.ones(2)}))
    with pytest.raises(MethodError, match="holds no subspace"):
        load_subspace(str(tmp_path / "foreign.safetensors"))
    assert Subspace({"a": 1}, {"x": np.ones(2)}).sha256 != Subspace({"a": 2}, {"x": np.ones(2)}).sha256


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        (corpus(), {"languages": "eng"}, "at least two"),
        (corpus(), {"languages": "eng,frq"}, "did you mean 'fra'"),
        (corpus(), {"languages": []}, "needs --languages; its columns are deu"),
        ({**corpus(), "id": [0] * 12}, {}, "group 0 stands in two rows"),
        ({"group": [1, 1], "lang": ["a", "a"], "text": ["x", "y"]}, {"languages": []}, "has language 'a' twice"),
        (
            {"group": [1, 2], "lang": ["a", "b"], "text": ["x", "y"]},
            {"languages": []},
            "no group has a text in each of a, b",
        ),
        (corpus(), {"construction": "lsar", "place": "blocks"}, "--place embedding"),
        (corpus(), {"removal": "soft"}, "--place embedding"),
        (corpus(), {"start_layer": 4}, "blocks are 0-3"),
        (corpus(), {"start_layer": None}, "no start layer is known"),
        (corpus(), {"rank": 64}, "would leave nothing of 64"),
        (corpus(), {"place": "embedding", "start_layer": None, "removal": "soft", "rank": 2}, "scales every direction"),
        ({"id": [[1]], "eng": ["a"], "fra": ["b"]}, {"languages": "eng,fra"}, "column id has type list"),
        ({"lang": ["a"], "text": ["x"]}, {"languages": []}, "needs a column group"),
        (corpus(), {"method": "metaeol"}, "8 prompts"),
        (corpus(), {"method": "va"}, "--place embedding"),
    ],
)
def test_what_cannot_be_fitted_is_refused_before_anything_runs(
    tiny: dict[str, str], tmp_path: Path, table: Any, changes: dict[str, Any], message: str
) -> None:
    pq.write_table(pa.table(table), tmp_path / "c.parquet")
    with pytest.raises((UsageError, MethodError), match=message):
        prepare_fit(options(tiny, tmp_path / "c.parquet", tmp_path / "s.safetensors", **changes))
    assert [path.name for path in tmp_path.iterdir()] == ["c.parquet"]


def test_wide_files_are_joined_by_group_and_never_by_chance(tiny: dict[str, str], tmp_path: Path) -> None:
    def read(*tables: dict[str, list[Any]], languages: str = "eng,fra") -> Any:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for i, table in enumerate(tables):
            pq.write_table(pa.table(table), folder / f"{i}.parquet")
        return read_parallel([str(folder)], languages.split(","), None)

    parts = read({"id": [1, 2], "eng": ["a", "b"]}, {"id": [2, 1], "fra": ["B", "A"]})
    assert parts.groups == {"1": ["a", "A"], "2": ["b", "B"]}
    floats = read({"id": [1.0, 2.0], "eng": ["a", "b"]}, {"id": [1, 2], "fra": ["A", "B"]})
    assert floats.groups == parts.groups
    assert read({"eng": ["a", "b"]}, {"fra": ["A", "B"]}).groups == {"0": ["a", "A"], "1": ["b", "B"]}
    with pytest.raises(UsageError, match="another eng text in another file"):
        read({"eng": ["a", "b"], "fra": ["A", "B"]}, {"eng": ["c", "d"], "fra": ["C", "D"]})
    with pytest.raises(UsageError, match="different length"):
        read({"eng": ["a", "b"]}, {"fra": ["A"]})
    # A column id may be Indonesian.
    assert read({"en": ["a", "b"], "id": ["x", "y"]}, languages="en,id").groups == {"0": ["a", "x"], "1": ["b", "y"]}
    assert read({"en": ["a", "b"], "fr": ["A", "B"], "id": ["ya", "ya"]}, languages="en,fr").left_out == {}
    with pytest.raises(UsageError, match="others a column a language"):
        read({"group": [1], "lang": ["a"], "text": ["b"]}, {"eng": ["a"]})


def test_languages_of_a_yaml_file(tmp_path: Path) -> None:
    given = {"model": "m", "input": "i", "output": "o", "languages": ["en", False]}
    with pytest.raises(ValueError, match="write them in quotes"):
        FitConfig.model_validate(given)


def test_an_output_that_is_a_folder_is_refused_first(tiny: dict[str, str], shared: Path, tmp_path: Path) -> None:
    for output in (str(tmp_path), f"{tmp_path}/x/", ""):
        with pytest.raises(UsageError, match="is a folder; give a file"):
            config = options(tiny, shared / "wide.parquet", Path("x"))
            prepare_fit(config.model_copy(update={"output": output}))


def test_incomplete_and_repeated_groups_are_left_out_and_counted(tiny: dict[str, str], tmp_path: Path) -> None:
    table = corpus()
    table["fra"][3] = None
    table["deu"][4] = "  "
    for language in LANGUAGES:
        table[language][6] = table[language][5]
    pq.write_table(pa.table(table), tmp_path / "c.parquet")
    work = prepare_fit(options(tiny, tmp_path / "c.parquet", tmp_path / "s.safetensors", groups=7))
    assert work.corpus.left_out == {"incomplete": 2, "duplicate": 1, "beyond --groups": 2}
    assert list(work.corpus.groups) == ["0", "1", "2", "5", "7", "8", "9"]
    assert work.states_bytes == 7 * 3 * 2 * 64 * 4
    long = {
        "group": [name for name in work.corpus.groups for _ in LANGUAGES],
        "lang": [*LANGUAGES] * 7,
        "text": [text for texts in work.corpus.groups.values() for text in texts],
    }
    pq.write_table(pa.table(long), tmp_path / "long.parquet")
    again = prepare_fit(options(tiny, tmp_path / "long.parquet", tmp_path / "s.safetensors", languages=[]))
    assert again.corpus.groups == work.corpus.groups and again.corpus.languages == LANGUAGES


def test_sentences_that_are_all_equal_give_a_clear_message(
    ray_session: None, tiny: dict[str, str], tmp_path: Path
) -> None:
    same = {language: corpus()["eng"] for language in LANGUAGES}
    pq.write_table(pa.table(same), tmp_path / "c.parquet")
    with pytest.raises(UsageError, match="all states of each group are equal"):
        fit(options(tiny, tmp_path / "c.parquet", tmp_path / "s.safetensors"))
    assert not (tmp_path / "s.safetensors").exists()


def test_a_fit_that_was_killed_goes_on_to_the_same_subspace(
    ray_session: None, tiny: dict[str, str], tmp_path: Path
) -> None:
    table = corpus(400)
    pq.write_table(pa.table(table), tmp_path / "c.parquet")
    arguments = ["--model", tiny["llama"], "--method", "prompteol", "--input", str(tmp_path / "c.parquet")]
    arguments += ["--languages", ",".join(LANGUAGES), "--start-layer", "3", "--output", str(tmp_path / "k.safetensors")]
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.fit", *arguments], start_new_session=True, stderr=subprocess.DEVNULL
    )
    commits = tmp_path / "k.safetensors.states" / "vectors" / "commits"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (commits.is_dir() and any(commits.iterdir())):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in commits.iterdir()}
    assert kept and not (tmp_path / "k.safetensors").exists()
    states = str(tmp_path / "k.safetensors.states")
    config = options(tiny, tmp_path / "c.parquet", tmp_path / "k.safetensors", start_layer=3, keep_states=True)
    fit(config)
    assert {
        path: path.stat().st_mtime_ns for path in Path(states, "vectors", "commits").iterdir() if path in kept
    } == kept
    assert fit(config.model_copy(update={"groups": 343, "output": str(tmp_path / "f.safetensors")}))["groups"] == 343
    undisturbed = config.model_copy(update={"output": str(tmp_path / "u.safetensors"), "num_actors": 3})
    fit(undisturbed)
    one, other = (load_subspace(str(tmp_path / f"{name}.safetensors")).bases[3] for name in "ku")
    np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-5)
