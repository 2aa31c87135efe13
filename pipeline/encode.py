"""Encode: Parquet shards -> Parquet vectors, a unit at a time, resumable at every unit.

find_shards -> cut_units -> (tokenize_one on CPUs) -> (EncodeUnit actors: encode, publish, commit) -> report
"""

import dataclasses
import hashlib
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import ray
import torch
import transformers

from extractors.backbone import choose_dtype
from extractors.encoder import Plan, plan
from pipeline import cluster
from pipeline.config import EncodeConfig
from pipeline.errors import UsageError
from pipeline.job import EncodeJob
from pipeline.progress import Progress
from pipeline.report import make_report
from pipeline.source import Layout, Shard, Unit, choose_layout, cut_units, find_shards
from pipeline.store import FORMAT_VERSION, REPORT, VectorStore, differences
from pipeline.workers import EncodeUnit, tokenize_one


@dataclasses.dataclass(frozen=True)
class Work:
    """A run that was checked and can start: what is to be done, and what was done before."""

    job: EncodeJob
    store: VectorStore
    shards: list[Shard]
    todo: list[Unit]
    done: int
    is_new: bool
    how: dict[str, Any]


def encode(config: EncodeConfig) -> dict[str, Any]:
    """Encodes what is not encoded yet and returns the report.

    Raises:
        UsageError, ExtractorError: wrong use; nothing was changed.
        RunError: a worker failed; units that were committed stay.
    """
    work = prepare(config)
    return run(work, config.num_actors)


def prepare(config: EncodeConfig) -> Work:
    """Checks inputs, model and output and works out what is left to do; changes nothing.

    Raises:
        UsageError, ExtractorError: wrong use.
    """
    shards = find_shards(config.input)
    layout = choose_layout(shards, config.text_column, config.id_column, config.keep)
    planned = plan(config.model, config.method, config.revision, config.max_length)
    device = cluster.device_type(config.device)
    identity = make_identity(planned, choose_dtype(config.dtype, device), config.vector_dtype)
    store = VectorStore(config.output)
    how: dict[str, Any] = {
        "model": planned.source.given,
        "revision": planned.source.revision,
        "layout": _layout_record(layout, config.unit_rows),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    is_new = not store.check_identity(identity)
    if not is_new:
        _check_layout(store, how["layout"])
    units = list(cut_units(shards, config.unit_rows))
    done = _still_valid(store, shards, units)
    job = EncodeJob(
        plan=planned,
        layout=layout,
        identity=identity,
        output=store.url,
        device=device,
        attention=config.attention,
        threads=None,
        token_budget=config.token_budget,
    )
    todo = [unit for unit in units if unit.name not in done]
    return Work(job, store, shards, todo, len(done), is_new, how)


def make_identity(planned: Plan, dtype: str, vector_dtype: str) -> dict[str, Any]:
    """Returns what shapes a run's vectors; its hash is the run's fingerprint."""
    tokenizer = planned.tokenizer
    vocabulary = f"{tokenizer.spec}{tokenizer.start_ids}"
    return {
        "format_version": FORMAT_VERSION,
        **planned.source.identity,
        "tokenizer": f"sha256:{hashlib.sha256(vocabulary.encode()).hexdigest()}",
        "method": planned.method.identity(),
        "width": planned.width,
        "max_length": tokenizer.max_length,
        "dtype": dtype,
        "vector_dtype": vector_dtype,
    }


def _layout_record(layout: Layout, unit_rows: int) -> dict[str, Any]:
    return {
        "id_column": layout.id_column or "file#row",
        "id_type": str(layout.id_type),
        "text_column": layout.text_column,
        "keep": {field.name: str(field.type) for field in layout.kept},
        "unit_rows": unit_rows,
    }


def _check_layout(store: VectorStore, layout: dict[str, Any]) -> None:
    there = (store.run() or {})["layout"]
    if there != layout:
        raise UsageError(
            f"output {store.url} was begun with other columns or units: {differences(there, layout)}. "
            "Give the same options, or another --output; nothing was changed"
        )


def _still_valid(store: VectorStore, shards: Sequence[Shard], units: Sequence[Unit]) -> dict[str, dict[str, Any]]:
    """Returns the commits that stand: their file is as it was when they were made, and could be read."""
    commits = store.commits()
    tags = {shard.source: shard.tag for shard in shards}
    foreign = sorted({commit["source"] for commit in commits.values() if commit["source"] not in tags})
    if foreign:
        raise UsageError(
            f"output {store.url} holds rows of {len(foreign)} file(s) that are not among this run's inputs, such as "
            f"{foreign[0]}. Give these too, or another --output; nothing was changed"
        )
    names = {unit.name for unit in units}
    return {
        name: commit
        for name, commit in commits.items()
        if name in names and commit["intact"] and commit["source_tag"] == tags[commit["source"]]
    }


def run(work: Work, num_actors: int) -> dict[str, Any]:
    """Does the work on Ray and returns the report, which is also written."""
    if work.is_new:
        work.store.start(work.job.identity, work.how)
    if work.todo:
        _withdraw_outdated(work)
        _run_units(work, num_actors)
    report = make_report(work.store)
    work.store.write_report(report)
    return report


def _withdraw_outdated(work: Work) -> None:
    """Removes the report and the commits of files that changed or could not be read, so that no old row stays."""
    work.store.folder.remove(REPORT)
    todo = {unit.name for unit in work.todo}
    sources = {unit.source: unit.tag for unit in work.todo}
    for name, commit in work.store.commits().items():
        changed = commit["source"] in sources and commit["source_tag"] != sources[commit["source"]]
        if name in todo or changed:
            print(f"doing {commit['source']} again: it changed or could not be read before", file=sys.stderr)
            work.store.withdraw(name)


def _run_units(work: Work, num_actors: int) -> None:
    cluster.connect()
    given = cluster.resources(work.job.device, num_actors)
    job = dataclasses.replace(work.job, threads=given.threads)
    progress = Progress(len(work.todo), sum(unit.rows or 1 for unit in work.todo))
    items = [{"unit": pickle.dumps(unit)} for unit in work.todo]
    finished = (
        ray.data.from_items(items, override_num_blocks=len(items))
        .map_batches(
            tokenize_one,
            fn_kwargs={"job": job},
            batch_size=1,
            num_cpus=1,
            compute=ray.data.TaskPoolStrategy(size=given.tokenizers),
        )
        .map_batches(
            EncodeUnit,
            fn_constructor_args=(job,),
            batch_size=1,
            # No CPU is reserved: encoders that held them all would leave none to tokenize with.
            num_cpus=0,
            num_gpus=given.gpus or None,
            compute=ray.data.ActorPoolStrategy(size=num_actors),
        )
    )
    for batch in finished.iter_batches(batch_size=None, batch_format="pyarrow"):
        for row in batch.to_pylist():
            progress.add(row["rows_in"], row["tokens"])
