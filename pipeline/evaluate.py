"""Evaluate: tasks -> result files. The texts of a task are encoded by the same pipeline as a corpus."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bitext import score_direction, subset_scores
from pipeline.config import EncodeConfig, EvaluateConfig, ModelConfig
from pipeline.encode import encode
from pipeline.errors import RunError, UsageError
from pipeline.parquet import to_bytes
from pipeline.storage import Folder
from pipeline.store import VectorStore
from pipeline.tasks import Bitext, Task, dataset_fingerprint, load_task, read_bitext
from pipeline.vectors import matrix

_DIRECTIONS = ("forward", "backward")


def evaluate(config: EvaluateConfig) -> list[dict[str, Any]]:
    """Scores every task, writes <task>.json and items/<task>.parquet, and returns the results.

    Raises:
        UsageError, ExtractorError: wrong use; all tasks are checked before the first is encoded.
    """
    loaded = [load_task(path) for path in config.task]
    names = [task.name for task, _ in loaded]
    if len(set(names)) < len(names):
        raise UsageError(f"two tasks have the same name, under which results are written: {', '.join(names)}")
    tasks = [(task, read_bitext(task, data)) for task, data in loaded]
    return [_score_task(task, pairs, config) for task, pairs in tasks]


def _score_task(task: Task, pairs: list[Bitext], config: EvaluateConfig) -> dict[str, Any]:
    folder = Folder(config.output)
    vectors, run, faults = _encode_texts(task.name, pairs, config, folder)
    subsets, items = {}, []
    left_out: dict[str, int] = {}
    for part in pairs:
        kept = [
            i for i, pair in enumerate(zip(part.sources, part.targets, strict=True)) if all(t in vectors for t in pair)
        ]
        sources, targets = ([side[i] for i in kept] for side in (part.sources, part.targets))
        for reason, count in (*part.left_out.items(), ("not-encoded", len(part.sources) - len(kept))):
            left_out[reason] = left_out.get(reason, 0) + count
        if not kept:
            continue
        source_ND, target_ND = (np.stack([vectors[text] for text in side]) for side in (sources, targets))
        directions = score_direction(source_ND, target_ND, targets), score_direction(target_ND, source_ND, sources)
        subsets[part.subset] = {**subset_scores(*directions), "n_items": len(kept)}
        for direction, result in zip(_DIRECTIONS, directions, strict=True):
            items.append(_items(part.subset, direction, kept, result.found, result.right))
    if not subsets:
        raise RunError(f"task {task.name}: no pair could be encoded: {left_out}, quarantined {faults}")
    scored = {
        "task": task.name,
        "type": task.type,
        **_averages(subsets),
        "subsets": subsets,
        "n_items": sum(scores["n_items"] for scores in subsets.values()),
        "n_left_out": {reason: count for reason, count in left_out.items() if count},
        "faults": faults,
        "dataset_fingerprint": dataset_fingerprint(pairs),
        "fingerprint": run["fingerprint"],
        "identity": run["identity"],
        "items": f"items/{task.name}.parquet",
    }
    folder.publish(scored["items"], to_bytes(pa.concat_tables(items)))
    folder.publish(f"{task.name}.json", json.dumps(scored, indent=1, ensure_ascii=False).encode())
    return scored


def _averages(subsets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in next(iter(subsets.values())) if name not in ("main_score", "n_items")]
    mean = {name: float(np.mean([scores[name] for scores in subsets.values()])) for name in ("main_score", *names)}
    return {"main_score": mean.pop("main_score"), "metrics": mean}


def _items(subset: str, direction: str, rows: list[int], found: np.ndarray, right: np.ndarray) -> pa.Table:
    return pa.table(
        {
            "subset": pa.array([subset] * len(rows)),
            "direction": pa.array([direction] * len(rows)),
            "item": pa.array(rows, pa.int64()),
            "found": pa.array([rows[i] for i in found], pa.int64()),
            "score": pa.array(right.astype(np.float64)),
        }
    )


def _encode_texts(
    name: str, pairs: list[Bitext], config: EvaluateConfig, folder: Folder
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, int]]:
    """Encodes each distinct text of a task once.

    Returns:
        The vectors by text, run.json, and how many texts were quarantined by reason.
    """
    texts = sorted({text for part in pairs for text in (*part.sources, *part.targets)})
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
