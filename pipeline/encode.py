"""Encode: Parquet shards -> Parquet vectors, a unit at a time, resumable at every unit.

find_shards -> cut_units -> (tokenize_one on CPUs) -> (EncodeUnit actors: encode, publish, commit) -> report
"""

import dataclasses
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import ray
import torch
import transformers

from extractors.backbone import choose_dtype
from extractors.method import ResolvedMethod
from extractors.plan import Plan, plan
from extractors.subspace import Subspace
from pipeline import cluster
from pipeline.config import STALLED_AFTER, EncodeConfig
from pipeline.errors import RunError, UsageError
from pipeline.identity import make_identity
from pipeline.job import EncodeJob
from pipeline.progress import Progress
from pipeline.report import make_report
from pipeline.source import UNKNOWN, Layout, Shard, Unit, choose_layout, cut_units, find_shards
from pipeline.storage import Folder
from pipeline.store import REPORT, VECTOR, VectorStore, differences
from pipeline.subspaces import read_subspace
from pipeline.tokenizing import tokenize_one
from pipeline.watch import watching
from pipeline.workers import EncodeUnit, language_column


@dataclasses.dataclass(frozen=True)
class Work:
    """A run that was checked and can start: what is to be done, and what was done before.

    Attributes:
        commits: of the units that were done before.
        how: what run.json holds besides the identity.
        describes_anew: whether run.json is to be written.
    """

    job: EncodeJob
    store: VectorStore
    shards: list[Shard]
    todo: list[Unit]
    commits: list[dict[str, Any]]
    how: dict[str, Any]
    subspaces: list[Subspace]
    describes_anew: bool


def encode(config: EncodeConfig) -> dict[str, Any]:
    """Encodes what is not encoded yet and returns the report.

    Raises:
        UsageError, ExtractorError: wrong use; nothing was changed.
        RunError: a worker failed; units that were committed stay.
    """
    if config.output_dim is not None:
        raise UsageError("output_dim: call pipeline.output_dim.with_output_dim on the config first")
    work = prepare(config)
    return run(work, config.num_actors, config.stalled_after)


def prepare(
    config: EncodeConfig, method: ResolvedMethod | None = None, vector_columns: tuple[str, ...] = (VECTOR,)
) -> Work:
    """Checks inputs, model and output and works out what is left to do; changes nothing.

    Args:
        method: in place of the config's.
        vector_columns: the columns that a vector is stored in, each an equal part of it.

    Raises:
        UsageError, ExtractorError: wrong use.
    """
    store = VectorStore(config.output)
    shards = find_shards(config.input, store.url)
    layout = choose_layout(shards, config.text_column, config.id_column, config.keep)
    subspaces, planned, device, identity = _identified(config, store, method)
    if any(one.language_bases for one in subspaces) and language_column(config.keep) is None:
        raise UsageError(
            "a subspace with a basis for each language needs the rows' languages: --keep lang, or --keep language"
        )
    how: dict[str, Any] = {
        "model": planned.source.given,
        "revision": planned.source.revision,
        "layout": _layout_record(layout, config.unit_rows),
        "subspace": [Folder(path).url for path in config.subspace],
        "subspace_strength": config.subspace_strength,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    run_there = store.run()
    if run_there is not None:
        how["layout"] = _agreed_layout(run_there["layout"], how["layout"], store.url)
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
        vector_columns=vector_columns,
    )
    return Work(
        job=job,
        store=store,
        shards=shards,
        todo=[unit for unit in units if unit.name not in done],
        commits=list(done.values()),
        how=how,
        subspaces=subspaces,
        describes_anew=run_there is None or _is_news(how, run_there),
    )


def _is_news(how: dict[str, Any], run_there: dict[str, Any]) -> bool:
    """Whether run.json is to say something else: a type that became known, or a subspace file that was moved."""
    return any(run_there.get(key) != how[key] for key in ("layout", "subspace"))


def refuse_other_run(config: EncodeConfig, method: ResolvedMethod | None = None) -> None:
    """Refuses an output that holds another run, before anything is prepared for this one.

    Raises:
        UsageError, ExtractorError: wrong use.
    """
    _identified(config, VectorStore(config.output), method)


def _identified(
    config: EncodeConfig, store: VectorStore, method: ResolvedMethod | None
) -> tuple[list[Subspace], Plan, str, dict[str, Any]]:
    """Returns subspaces, plan, device and identity of a run that the output is free for."""
    subspaces = [read_subspace(path) for path in config.subspace]
    planned = plan(
        config.model,
        method or config.method,
        config.revision,
        config.max_length,
        subspaces,
        config.subspace_strength,
        config.allow_subspace_mismatch,
    )
    device = cluster.device_type(config.device, config.num_actors)
    identity = make_identity(planned, choose_dtype(config.dtype, device), config.vector_dtype)
    store.check_identity(identity)
    return subspaces, planned, device, identity


def _layout_record(layout: Layout, unit_rows: int) -> dict[str, Any]:
    return {
        "id_column": layout.id_column or "file#row",
        "text_column": layout.text_column,
        "unit_rows": unit_rows,
        "types": {"id": str(layout.id_type), **{field.name: str(field.type) for field in layout.kept}},
    }


def _agreed_layout(there: dict[str, Any], here: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the layout of a run that is continued; a type that no file told so far may become known.

    Raises:
        UsageError: other columns, types or units than the run was begun with.
    """
    unknown = str(UNKNOWN)
    same_columns = list(there["types"]) == list(here["types"])
    same_options = all(there[key] == here[key] for key in there if key != "types")
    pairs = {name: (kind, here["types"].get(name)) for name, kind in there["types"].items()}
    if not (same_columns and same_options and all(a == b or unknown in (a, b) for a, b in pairs.values())):
        raise UsageError(
            f"output {where} was begun with other columns or units: {differences(there, here)}. "
            "Give the same options, or another --output; nothing was changed"
        )
    return {**there, "types": {name: b if a == unknown else a for name, (a, b) in pairs.items()}}


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


def run(work: Work, num_actors: int, stalled_after: float = STALLED_AFTER) -> dict[str, Any]:
    """Does the work on Ray and returns the report, which is also written.

    Args:
        stalled_after: seconds without a finished unit until those in work are named on the terminal.
    """
    if work.describes_anew:
        work.store.start(work.job.identity, work.how)
    if work.todo:
        _withdraw_outdated(work)
        try:
            _run_units(work, min(num_actors, len(work.todo)), stalled_after)
        except RunError:
            work.store.abandon()
            raise
    # A worker that died between its commit and this has left its note.
    for unit in work.store.attempts():
        work.store.end_attempt(unit)
    report = make_report(work.store)
    work.store.write_report(report)
    return report


def _withdraw_outdated(work: Work) -> None:
    """Removes the report and the commits of files that changed or could not be read, so that no old row stays."""
    work.store.folder.remove(REPORT)
    todo = {unit.name for unit in work.todo}
    sources = {unit.source: unit.tag for unit in work.todo}
    commits = work.store.commits()
    for name in work.store.committed():
        commit = commits.get(name)
        changed = commit and commit["source"] in sources and commit["source_tag"] != sources[commit["source"]]
        if commit and (name in todo or changed):
            print(f"doing {commit['source']} again: it changed or could not be read before", file=sys.stderr)
        # A worker takes a commit that it finds for its own, so that none may stay, not even a damaged one.
        if name in todo or changed:
            work.store.withdraw(name)


def _run_units(work: Work, num_actors: int, stalled_after: float) -> None:
    cluster.connect()
    given = cluster.resources(work.job.device, num_actors)
    shared = ray.put(work.subspaces) if work.subspaces else None
    job = dataclasses.replace(work.job, threads=given.threads, subspaces=shared)
    progress = Progress(len(work.todo), sum(unit.rows or 1 for unit in work.todo))
    watch = watching(work.store, work.todo, stalled_after)
    items = [{"unit": pickle.dumps(unit)} for unit in work.todo]
    finished = (
        ray.data.from_items(items, override_num_blocks=len(items))
        .map_batches(
            tokenize_one,
            fn_kwargs={"layout": job.layout, "tokenizer": job.plan.tokenizer},
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
    try:
        with watch as one_is_finished:
            for batch in finished.iter_batches(batch_size=None, batch_format="pyarrow"):
                for row in batch.to_pylist():
                    progress.add(row)
                    one_is_finished()
    except ray.exceptions.RayError as problem:
        raise cluster.worker_failure(problem) from problem
