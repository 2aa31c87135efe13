"""Evaluate: tasks -> result files. The texts of a task are encoded by the same pipeline as a corpus."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bitext import score_bitext
from pipeline.config import EncodeConfig, EvaluateConfig, ModelConfig
from pipeline.encode import encode, refuse_other_run
from pipeline.errors import RunError, UsageError
from pipeline.examples import Examples, check_labels, dataset_fingerprint, read_examples
from pipeline.geometry import geometry_page, score_geometry
from pipeline.label_scores import score_classification, score_clustering
from pipeline.parquet import to_bytes
from pipeline.scored import Scored, Vectors
from pipeline.similarity_scores import score_pair_classification, score_reranking, score_sts
from pipeline.storage import Folder
from pipeline.store import VectorStore
from pipeline.subspaces import read_subspace
from pipeline.tasks import Task, TaskType, load_task
from pipeline.vectors import matrix

_TEXTS = "encoded/texts"
# Small, so that a long evaluation that was stopped goes on close to where it was.
_UNIT_ROWS = 512

SCORERS: dict[TaskType, Callable[[Examples, Vectors], Scored]] = {
    "bitext": score_bitext,
    "sts": score_sts,
    "classification": score_classification,
    "clustering": score_clustering,
    "pair-classification": score_pair_classification,
    "reranking": score_reranking,
    "geometry": score_geometry,
}


def evaluate(config: EvaluateConfig) -> list[dict[str, Any]]:
    """Scores every task, writes <task>.json and items/<task>.parquet, and returns the results.

    Raises:
        UsageError, ExtractorError: wrong use; all tasks are checked before the first is encoded.
    """
    loaded = [load_task(path) for path in config.task]
    names = [task.name for task, _ in loaded]
    if len(set(names)) < len(names):
        raise UsageError(f"two tasks have the same name, under which results are written: {', '.join(names)}")
    if any(read_subspace(path).language_bases for path in config.subspace):
        raise UsageError(
            "a subspace with a basis for each language needs each text's language, which tasks do not have"
        )
    parts = {task.name: read_examples(task, data) for task, data in loaded}
    encoded = _encode_texts(parts, config, Folder(config.output))
    return [_score_task(task, parts[task.name], encoded, config) for task, _ in loaded]


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Vectors by task and text, how many texts of each were quarantined by reason, and the run's run.json."""

    vectors: dict[str, dict[str, np.ndarray]]
    faults: dict[str, dict[str, int]]
    run: dict[str, Any]


def _score_task(task: Task, parts: list[Examples], encoded: Encoded, config: EvaluateConfig) -> dict[str, Any]:
    folder = Folder(config.output)
    vectors, faults = encoded.vectors[task.name], encoded.faults[task.name]
    subsets, items = {}, []
    left_out: dict[str, int] = {}
    for part in parts:
        whole = part.encoded(vectors)
        for reason, count in whole.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
        if not whole.rows:
            continue
        if len(whole.rows) < len(part.rows):
            _check_again(whole, task, faults)
        scored = SCORERS[task.type](whole, vectors)
        subsets[part.subset] = {**scored.scores, "n_items": scored.n_items}
        items.append(scored.items.add_column(0, "subset", pa.array([part.subset] * scored.items.num_rows)))
    if not subsets:
        raise RunError(f"task {task.name}: nothing could be encoded: {left_out}, quarantined {faults}")
    result = {
        "task": task.name,
        "type": task.type,
        **_averages(subsets),
        "subsets": subsets,
        "n_items": sum(scores["n_items"] for scores in subsets.values()),
        "n_left_out": left_out,
        "faults": faults,
        "dataset_fingerprint": dataset_fingerprint(parts),
        "fingerprint": encoded.run["fingerprint"],
        "identity": encoded.run["identity"],
        "items": f"items/{task.name}.parquet",
    }
    folder.publish(result["items"], to_bytes(pa.concat_tables(items)))
    if task.type == "geometry":
        _publish_geometry(task, [part for part in parts if part.subset in subsets], vectors, config, folder)
    folder.publish(f"{task.name}.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    return result


def _check_again(part: Examples, task: Task, faults: dict[str, int]) -> None:
    try:
        check_labels(part, task)
    except UsageError as problem:
        raise RunError(f"{problem}, and so many were left once {faults} could not be encoded") from None


def _publish_geometry(
    task: Task, parts: list[Examples], vectors: Vectors, config: EvaluateConfig, folder: Folder
) -> None:
    """Writes a page a subset; with a subspace, it also shows the embeddings before the removal."""
    stages = {"after" if config.subspace else config.method: vectors}
    if config.subspace:
        plain = config.model_copy(update={"subspace": []})
        before = _encode_texts({task.name: parts}, plain, Folder(f"{folder.url}/before"))
        stages = {"before": before.vectors[task.name], **stages}
    for part in parts:
        shown = part.encoded(set.intersection(*(set(stage) for stage in stages.values())))
        scored = {name: (stage, score_geometry(shown, stage).scores) for name, stage in stages.items()}
        name = task.name if part.subset == "default" else f"{task.name}-{part.subset}"
        folder.publish(f"{name}.html", geometry_page(f"{name}: {config.method}", shown, scored))


def _averages(subsets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in next(iter(subsets.values())) if name not in ("main_score", "n_items")]
    mean = {name: float(np.mean([scores[name] for scores in subsets.values()])) for name in ("main_score", *names)}
    return {"main_score": mean.pop("main_score"), "metrics": mean}


def _encode_texts(parts: dict[str, list[Examples]], config: EvaluateConfig, folder: Folder) -> Encoded:
    """Encodes each distinct text of each task once, in one run with those of tasks that were scored here before."""
    texts = {name: sorted({text for part in examples for text in part.all_texts()}) for name, examples in parts.items()}
    options = {key: getattr(config, key) for key in ModelConfig.model_fields}
    output, place = f"{folder.url}/encoded/vectors", f"{folder.url}/{_TEXTS}"
    run_config = EncodeConfig(**options, input=[place], output=output, unit_rows=_UNIT_ROWS)
    refuse_other_run(run_config)
    for name, own in texts.items():
        table = pa.table({"id": [f"{name}#{i}" for i in range(len(own))], "text": pa.array(own)})
        folder.publish_if_changed(f"{_TEXTS}/{name}.parquet", to_bytes(table))
    encode(run_config)
    store = VectorStore(output)
    vectors: dict[str, dict[str, np.ndarray]] = {name: {} for name in parts}
    for _, table in store.iter_vectors(["id", "vector"]):
        for identifier, vector in zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True):
            name, _, number = identifier.rpartition("#")
            if name in vectors:
                vectors[name][texts[name][int(number)]] = vector
    faults: dict[str, dict[str, int]] = {name: {} for name in parts}
    for commit in store.commits().values():
        name = commit["source"].rpartition("/")[2].removesuffix(".parquet")
        for reason, count in commit["reasons"].items() if name in faults else ():
            faults[name][reason] = faults[name].get(reason, 0) + count
    run = store.run()
    assert run is not None
    return Encoded(vectors, faults, run)
