"""Evaluate: tasks -> result files. The texts of a task are encoded by the same pipeline as a corpus."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bitext import score_bitext
from pipeline.config import EncodeConfig, EvaluateConfig, ModelConfig
from pipeline.encode import encode
from pipeline.errors import RunError, UsageError
from pipeline.examples import Examples, dataset_fingerprint, read_examples
from pipeline.label_scores import score_classification, score_clustering
from pipeline.parquet import to_bytes
from pipeline.scored import Scored, Vectors
from pipeline.similarity_scores import score_pair_classification, score_reranking, score_sts
from pipeline.storage import Folder
from pipeline.store import VectorStore
from pipeline.tasks import Task, TaskType, load_task
from pipeline.vectors import matrix

SCORERS: dict[TaskType, Callable[[Examples, Vectors], Scored]] = {
    "bitext": score_bitext,
    "sts": score_sts,
    "classification": score_classification,
    "clustering": score_clustering,
    "pair-classification": score_pair_classification,
    "reranking": score_reranking,
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
    tasks = [(task, read_examples(task, data)) for task, data in loaded]
    return [_score_task(task, parts, config) for task, parts in tasks]


def _score_task(task: Task, parts: list[Examples], config: EvaluateConfig) -> dict[str, Any]:
    folder = Folder(config.output)
    vectors, run, faults = _encode_texts(task.name, parts, config, folder)
    subsets, items = {}, []
    left_out: dict[str, int] = {}
    for part in parts:
        encoded = part.encoded(vectors)
        for reason, count in encoded.left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
        if not encoded.rows:
            continue
        scored = SCORERS[task.type](encoded, vectors)
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
        "fingerprint": run["fingerprint"],
        "identity": run["identity"],
        "items": f"items/{task.name}.parquet",
    }
    folder.publish(result["items"], to_bytes(pa.concat_tables(items)))
    folder.publish(f"{task.name}.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    return result


def _averages(subsets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in next(iter(subsets.values())) if name not in ("main_score", "n_items")]
    mean = {name: float(np.mean([scores[name] for scores in subsets.values()])) for name in ("main_score", *names)}
    return {"main_score": mean.pop("main_score"), "metrics": mean}


def _encode_texts(
    name: str, parts: list[Examples], config: EvaluateConfig, folder: Folder
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, int]]:
    """Encodes each distinct text of a task once.

    Returns:
        The vectors by text, run.json, and how many texts were quarantined by reason.
    """
    texts = sorted({text for part in parts for text in part.all_texts()})
    table = pa.table({"id": pa.array(range(len(texts)), pa.int64()), "text": pa.array(texts)})
    folder.publish_if_changed(f"encoded/{name}/texts.parquet", to_bytes(table))
    options = {key: getattr(config, key) for key in ModelConfig.model_fields}
    output = f"{folder.url}/encoded/{name}/vectors"
    report = encode(EncodeConfig(**options, input=[f"{folder.url}/encoded/{name}/texts.parquet"], output=output))
    store = VectorStore(output)
    vectors = {}
    for _, table in store.iter_vectors(["id", "vector"]):
        for identifier, vector in zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True):
            vectors[texts[identifier]] = vector
    run = store.run()
    assert run is not None
    return vectors, run, report["reasons"]
