"""Fit: a parallel corpus -> a subspace file.

read_parallel -> texts.parquet -> (encode: states, resumable) -> a Ray task a block: moments -> directions -> file
"""

import dataclasses
from typing import Any

import ray

from extractors.backbone import choose_dtype
from extractors.layers import PAPER_START_LAYERS
from extractors.method import ResolvedMethod
from extractors.plan import Plan, plan, steered_position
from extractors.subspace import Subspace
from pipeline import cluster
from pipeline.config import FitConfig
from pipeline.encode import run
from pipeline.errors import RunError, UsageError
from pipeline.identity import make_identity
from pipeline.moments import Fit, Fitted, fit_block, fit_embedding
from pipeline.parallel import ParallelCorpus, read_parallel
from pipeline.states import States
from pipeline.storage import Folder, split_url
from pipeline.store import VECTOR
from pipeline.subspaces import read_subspace

_ON_EMBEDDINGS = ("lir", "lsar")


@dataclasses.dataclass(frozen=True)
class FitWork:
    """A fit that was checked and can start.

    Attributes:
        rank: None where no directions are chosen.
        states_method: what the model is read for; None for the method itself.
        stored: the columns that hold the states, one a block.
        columns: those of them that are fitted.
    """

    planned: Plan
    corpus: ParallelCorpus
    config: FitConfig
    place: str
    rank: int | None
    states_method: ResolvedMethod | None
    stored: tuple[str, ...]
    columns: tuple[str, ...]
    states: States

    @property
    def states_bytes(self) -> int:
        """Of the states, which are float32."""
        width = self.planned.shape.hidden_size * len(self.stored) if self.states_method else self.planned.width
        return 4 * width * len(self.corpus.groups) * len(self.corpus.languages)


def prepare_fit(config: FitConfig, corpus: ParallelCorpus | None = None) -> FitWork:
    """Reads the corpus and checks that method, place and construction go together; changes nothing.

    Args:
        corpus: in place of the config's.

    Raises:
        UsageError, ExtractorError: wrong use.
    """
    split_url(config.output)
    states = States(config.states or f"{config.output}.states")
    corpus = corpus or read_parallel(config.input, config.languages, config.groups, states.folder.url)
    subspaces = [read_subspace(path) for path in config.subspace]
    strength, allow = config.subspace_strength, config.allow_subspace_mismatch
    planned = plan(config.model, config.method, config.revision, config.max_length, subspaces, strength, allow)
    place = config.place or ("embedding" if config.construction in _ON_EMBEDDINGS else "blocks")
    _refuse_what_does_not_go_together(config, place)
    states_method: ResolvedMethod | None = None
    stored: tuple[str, ...] = (VECTOR,)
    columns = stored
    if place == "blocks":
        start = _start_layer(config, planned)
        # States that begin at an earlier block serve this start too.
        first = min(start, states.first_block(default=start))
        states_method = _block_states(planned.method, first, planned.shape.blocks)
        stored = tuple(f"layer.{block}" for block in states_method.layers)
        columns = stored[start - first :]
    width = planned.width if place == "embedding" else planned.shape.hidden_size
    rank = _rank(config, len(corpus.languages), width)
    return FitWork(planned, corpus, config, place, rank, states_method, stored, columns, states)


def _rank(config: FitConfig, languages: int, width: int) -> int | None:
    if config.removal == "soft":
        if config.rank is not None:
            raise UsageError("--rank goes with hard removal; soft removal scales every direction")
        return None
    rank = config.rank or (1 if config.construction == "lir" else languages - 1)
    if rank >= width:
        raise UsageError(f"--rank {rank} would leave nothing of {width} values; give less")
    return rank


def _refuse_what_does_not_go_together(config: FitConfig, place: str) -> None:
    if place == "blocks" and config.construction in _ON_EMBEDDINGS:
        raise UsageError(f"--construction {config.construction} works on finished vectors: --place embedding")
    if place == "blocks" and config.removal != "hard":
        raise UsageError(f"--removal {config.removal} works on finished vectors: --place embedding")
    if config.removal == "soft" and config.construction != "prsr":
        raise UsageError(f"--removal soft whitens residuals: it goes with prsr, not with {config.construction}")
    if place == "blocks" and config.subspace:
        raise UsageError("--subspace is removed before a fit on the finished vectors: it goes with --place embedding")
    if place == "embedding" and config.start_layer is not None:
        raise UsageError("--start-layer goes with --place blocks; a finished vector has none")


def _start_layer(config: FitConfig, planned: Plan) -> int:
    blocks = planned.shape.blocks
    start = PAPER_START_LAYERS.get(planned.shape) if config.start_layer is None else config.start_layer
    if start is None:
        raise UsageError(
            f"no start layer is known for this model of {blocks} blocks; give --start-layer (the last blocks are a "
            "first guess), or find it with `isogloss sweep --over start-layer`"
        )
    if start >= blocks:
        raise UsageError(f"--start-layer {start} is outside the model, whose blocks are 0-{blocks - 1}")
    return start


def _block_states(method: ResolvedMethod, start: int, blocks: int) -> ResolvedMethod:
    """The method that reads, for the same prompt and token, the output of every block that may be steered."""
    if len(method.prompts) > 1:
        raise UsageError(
            f"method {method.name} has {len(method.prompts)} prompts, and a subspace in the blocks belongs to one; fit "
            "on the finished embedding instead: --place embedding"
        )
    return dataclasses.replace(
        method.without_subspaces(),
        name="block-states",
        read="block-output",
        layers=tuple(range(start, blocks)),
        combine="concat",
        pooling=steered_position(method),
        heads="apart",
    )


def fit(config: FitConfig, corpus: ParallelCorpus | None = None) -> dict[str, Any]:
    """Fits a subspace, writes it, and returns what it is.

    Args:
        corpus: in place of the config's.

    Raises:
        UsageError, ExtractorError: wrong use, or a corpus in which nothing differs.
        RunError: a worker failed; states that were committed stay.
    """
    work = prepare_fit(config, corpus)
    report = run(work.states.prepare(config, work.corpus, work.states_method, work.stored), config.num_actors)
    cluster.connect()
    how = Fit(
        states=work.states.url,
        groups=list(work.corpus.groups),
        languages=work.corpus.languages,
        construction=config.construction,
        rank=work.rank or 0,
        removal=config.removal,
        shrinkage=config.shrinkage,
    )
    function = fit_block if work.place == "blocks" else fit_embedding
    shared, task = ray.put(how), ray.remote(num_cpus=1)(function)
    try:
        parts: list[Fitted | str] = ray.get([task.remote(shared, column) for column in work.columns])
    except ray.exceptions.RayError as problem:
        raise cluster.worker_failure(problem) from problem
    for column, part in zip(work.columns, parts, strict=True):
        if isinstance(part, str):
            raise UsageError(f"no subspace can be fitted ({column}): {part}")
    fitted = [part for part in parts if isinstance(part, Fitted)]
    if len({part.groups for part in fitted}) > 1:
        raise RunError(f"the states in {work.states.folder.url} are not whole; delete that folder and run again")
    subspace = Subspace(_about(work, fitted), {k: v for part in fitted for k, v in part.tensors.items()})
    parent, name = split_url(config.output)
    Folder(parent).publish(name, subspace.to_bytes())
    # A folder that the user named, or asked to keep before, is theirs.
    if not (config.keep_states or config.states or work.states.were_kept):
        work.states.delete()
    result = {**subspace.about, "output": config.output, "sha256": subspace.sha256}
    return {**result, "states_quarantined": report["reasons"]}


def _about(work: FitWork, fitted: list[Fitted]) -> dict[str, Any]:
    shares = dict(zip(work.columns, (part.explained for part in fitted), strict=True))
    used = fitted[0].groups
    left_out = {**work.corpus.left_out}
    if used < len(work.corpus.groups):
        left_out["not-encoded"] = len(work.corpus.groups) - used
    steers = work.place == "blocks"
    config = work.config
    dtype = choose_dtype(config.dtype, cluster.device_type(config.device, config.num_actors))
    return {
        **make_identity(work.planned, dtype, "float32"),
        "languages": list(work.corpus.languages),
        "groups": used,
        "left_out": left_out,
        "construction": work.config.construction,
        "place": work.place,
        "rank": work.rank,
        "start_layer": int(work.columns[0].removeprefix("layer.")) if steers else None,
        "removal": None if steers else work.config.removal,
        "shrinkage": work.config.shrinkage if work.config.removal == "soft" else None,
        "explained_variance": shares if steers else shares[VECTOR],
    }


def describe_fit(work: FitWork) -> tuple[dict[str, Any], str]:
    """Returns the plan as values and as text."""
    rows = len(work.corpus.groups) * len(work.corpus.languages)
    plan: dict[str, Any] = {
        "languages": list(work.corpus.languages),
        "groups": len(work.corpus.groups),
        "left_out": work.corpus.left_out,
        "texts": rows,
        "place": work.place,
        "construction": work.config.construction,
        "rank": work.rank,
        "blocks": [int(name.removeprefix("layer.")) for name in work.columns if name != VECTOR],
        "states": work.states.folder.url,
        "states_bytes": work.states_bytes,
        "identity": work.planned.identity(),
    }
    rank = "" if work.rank is None else f" of rank {work.rank}"
    where = f"blocks {plan['blocks'][0]}-{plan['blocks'][-1]}" if plan["blocks"] else "the finished embedding"
    text = (
        f"{plan['groups']} groups in {len(plan['languages'])} languages, left out: {work.corpus.left_out or 'none'}; "
        f"{rows:,} texts to run\n{plan['construction']}{rank} on {where}\n"
        f"states of {work.states_bytes / 2**20:,.1f} MiB in {work.states.folder.url}\nnothing was started or written"
    )
    return plan, text
