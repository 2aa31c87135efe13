"""The one class that Ray instantiates: it encodes units.

It is built from plain arguments; no model and no vector passes through the driver.
"""

import collections
import dataclasses
import functools
import hashlib
import os
import pickle
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch

from extractors.encoder import Encoder
from extractors.errors import RowTooLarge
from pipeline.errors import RunError
from pipeline.isolate import AboutTo, encode_with_care
from pipeline.job import EncodeJob
from pipeline.log import log, start_log
from pipeline.metrics import EncoderMetrics
from pipeline.peak import matmul_flops
from pipeline.rows import Quarantine, TokenizedUnit
from pipeline.source import Unit
from pipeline.store import VectorStore, vector_schema

LANGUAGE_COLUMNS = ("lang", "language")
# What the log has of a commit.
_LOGGED = (
    *("unit", "source", "row_start", "rows_in", "rows_out", "rows_quarantined", "reasons"),
    *("tokens", "truncated", "seconds"),
)
# The code and the detail of what keeps a row out.
Fault = tuple[str, str]


class EncodeUnit:
    """Holds a frozen model; encodes a unit, writes its files, commits it, and returns the commit's counts."""

    def __init__(self, job: EncodeJob) -> None:
        self.job = job
        torch.set_num_threads(job.threads or os.cpu_count() or 1)
        # A copy knows nothing of what the driver hashed, and so hashes this node's own files.
        source = dataclasses.replace(job.plan.source)
        if source.identity["revision"] != job.identity["revision"]:
            # Another node's folder of the same name may hold other weights; their vectors must not mix.
            here, there = source.identity["revision"], job.identity["revision"]
            raise RunError(f"model {source.given} is {here} on this node, and {there} where the run was started")
        self.encoder = Encoder.from_plan(
            job.plan,
            ray.get(job.subspaces) if job.subspaces else (),
            dtype=job.identity["dtype"],
            device=job.device,
            attention=job.attention,
            token_budget=job.token_budget,
        )
        self.store = VectorStore(job.output)
        self.metrics = EncoderMetrics(job.plan.source.given, job.plan.method.name)
        self.peak_flops = matmul_flops(job.device, job.identity["dtype"])
        start_log()
        log("ready", model=job.plan.source.given, method=job.plan.method.name, device=job.device)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encodes the one unit in ``batch``."""
        began = time.monotonic()
        run_before, padding_before = self.encoder.tokens_run, self.encoder.padding_run
        unit: Unit = pickle.loads(batch["unit"][0])
        # A worker that died after its commit, before it could say so, leaves nothing to be done again.
        there = self.store.commit(unit.name)
        if there is not None:
            self.store.end_attempt(unit.name)
            log("found committed", unit=unit.name)
            return self._finished(there, 0, 0)
        tokenized: TokenizedUnit = pickle.loads(batch["tokenized"][0])
        table = self._vectors(unit, tokenized)
        commit = self._commit(unit, tokenized, table, seconds=time.monotonic() - began)
        self.store.publish_unit(commit, table, tokenized.quarantine.table())
        self.store.end_attempt(unit.name)
        run, padding = self.encoder.tokens_run - run_before, self.encoder.padding_run - padding_before
        self.metrics.record(commit, run, padding)
        log("committed", **{key: commit[key] for key in _LOGGED}, tokens_run=run, padding_run=padding)
        return self._finished(commit, run, padding)

    def _finished(self, commit: dict[str, Any], tokens_run: int, padding_run: int) -> dict[str, Any]:
        """Returns what the driver is told of a unit: a batch of one row."""
        row = {key: commit[key] for key in ("unit", "rows_in", "tokens")}
        flops = (tokens_run - padding_run) * self.job.plan.flops_per_token
        at_peak = commit["seconds"] * self.peak_flops if tokens_run else 0.0
        more = {"tokens_run": tokens_run, "padding_run": padding_run, "flops": float(flops), "flops_at_peak": at_peak}
        return {key: [value] for key, value in {**row, **more}.items()}

    def _vectors(self, unit: Unit, tokenized: TokenizedUnit) -> pa.Table:
        job = self.job
        languages, faults = self._languages(tokenized)

        def encode(rows: list[int], about_to: AboutTo | None) -> np.ndarray:
            vectors_ND = np.full((len(rows), self.encoder.width), np.nan, dtype=np.float32)
            left = list(range(len(rows)))
            while True:
                chosen = [rows[i] for i in left]
                tokens = [tokenized.tokens[i] for i in chosen]
                own_languages = languages and [languages[i] for i in chosen]
                told = about_to and functools.partial(_tell, about_to, chosen)
                try:
                    vectors_ND[left] = self.encoder.encode_ids(tokens, own_languages, told)
                except RowTooLarge as problem:
                    faults[chosen[problem.row]] = ("out-of-memory", str(problem))
                    del left[problem.row]
                else:
                    return vectors_ND

        known = [i for i, fault in enumerate(faults) if fault is None]
        encoded_ND, killers = encode_with_care(self.store, unit.name, known, encode)
        for row in killers:
            faults[row] = ("kills-worker", "the process that encodes this row dies, every time")
        computed_ND = np.full((len(tokenized.tokens), self.encoder.width), np.nan, dtype=np.float32)
        computed_ND[[i for i in known if i not in killers]] = encoded_ND
        with np.errstate(over="ignore"):
            vectors_ND = computed_ND.astype(job.identity["vector_dtype"])
        for i, fault in enumerate(_vector_faults(computed_ND, vectors_ND, job.identity["dtype"])):
            faults[i] = faults[i] or fault
        usable = [i for i, fault in enumerate(faults) if not _keep_out(fault, i, tokenized)]
        parts = np.split(vectors_ND[usable], len(job.vector_columns), axis=1)
        widths = {name: part.shape[1] for name, part in zip(job.vector_columns, parts, strict=True)}
        schema = vector_schema(job.layout.id_type, list(job.layout.kept), widths, job.identity["vector_dtype"])
        carried = tokenized.carried.take(pa.array(usable, pa.int64()))
        return pa.Table.from_arrays(
            [
                *carried.columns,
                *(pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), part.shape[1]) for part in parts),
                pa.array([sum(len(row.ids) for row in tokenized.tokens[i]) for i in usable], pa.int32()),
                pa.array([any(row.truncated for row in tokenized.tokens[i]) for i in usable], pa.bool_()),
            ],
            schema=schema,
        )

    def _languages(self, tokenized: TokenizedUnit) -> tuple[list[str] | None, list[Fault | None]]:
        """Returns the rows' languages, where a subspace has a basis for each, and what is wrong with them."""
        faults: list[Fault | None] = [None] * len(tokenized.tokens)
        fitted = [set(one.language_bases) for one in self.encoder.removals if one.language_bases]
        if not fitted:
            return None, faults
        name = language_column(tokenized.carried.column_names)
        assert name is not None
        languages = [str(value) for value in tokenized.carried.column(name).to_pylist()]
        for i, language in enumerate(languages):
            if any(language not in bases for bases in fitted):
                faults[i] = ("language-not-fitted", f"the subspace has no basis for language {language!r}")
        return languages, faults

    def _commit(self, unit: Unit, tokenized: TokenizedUnit, table: pa.Table, seconds: float) -> dict[str, Any]:
        rejected: Quarantine = tokenized.quarantine
        return {
            "unit": unit.name,
            "source": unit.source,
            "source_tag": unit.tag,
            "row_start": unit.row_start,
            "intact": tokenized.intact,
            "rows_in": tokenized.rows_in,
            "rows_out": table.num_rows,
            "rows_quarantined": len(rejected.rows),
            "reasons": dict(collections.Counter(row["reason"] for row in rejected.rows)),
            "tokens": sum(table.column("n_tokens").to_pylist()),
            "truncated": sum(table.column("truncated").to_pylist()),
            "by_language": _by_language(table),
            "content_hash": content_hash(table),
            "seconds": round(seconds, 3),
            "fingerprint": self.job.fingerprint,
        }


def _tell(about_to: AboutTo, rows: list[int], places: list[int]) -> None:
    about_to([rows[i] for i in places])


def _vector_faults(computed_ND: np.ndarray, stored_ND: np.ndarray, dtype: str) -> list[Fault | None]:
    """Returns for each row the code and the detail of what is wrong with its vector, or None."""
    zero = ("zero-vector", "the vector is zero in every component")
    in_model = ("non-finite", f"the model gave NaN or infinite values in {dtype}; try --dtype float32")
    in_file = ("non-finite", f"values too large for {stored_ND.dtype}; give --vector-dtype float32")
    kinds: list[Fault | None] = [None] * len(stored_ND)
    for fault, rows in (
        (zero, ~stored_ND.any(axis=1)),
        (in_file, ~np.isfinite(stored_ND).all(axis=1)),
        (in_model, ~np.isfinite(computed_ND).all(axis=1)),
    ):
        for i in np.flatnonzero(rows):
            kinds[i] = fault
    return kinds


def _keep_out(fault: Fault | None, i: int, tokenized: TokenizedUnit) -> bool:
    if fault is not None:
        identifier = tokenized.carried.column("id")[i].as_py()
        tokenized.quarantine.add(tokenized.positions[i], identifier, *fault)
    return fault is not None


def language_column(names: Sequence[str]) -> str | None:
    """Returns the column that holds the rows' language, if there is one."""
    return next((name for name in LANGUAGE_COLUMNS if name in names), None)


def _by_language(table: pa.Table) -> dict[str, dict[str, int]]:
    column = language_column(table.column_names)
    if column is None:
        return {}
    counts: dict[str, dict[str, int]] = {}
    columns = (table.column(name).to_pylist() for name in (column, "n_tokens", "truncated"))
    for language, tokens, truncated in zip(*columns, strict=True):
        entry = counts.setdefault("" if language is None else str(language), {"rows": 0, "tokens": 0, "truncated": 0})
        for key, value in (("rows", 1), ("tokens", tokens), ("truncated", int(truncated))):
            entry[key] += value
    return counts


def content_hash(table: pa.Table) -> str:
    """Returns a hash of ids and vectors in which the rows' order does not matter.

    It is the sum of the rows' SHA-256 modulo 2^256, so the hashes of units add up to the hash of the run.
    """
    columns = [table.column(field.name) for field in table.schema if pa.types.is_fixed_size_list(field.type)]
    values = np.concatenate([_rows(column) for column in columns], axis=1)
    total = 0
    for identifier, vector in zip(table.column("id").to_pylist(), values, strict=True):
        row = f"{type(identifier).__name__}:{identifier}\n".encode() + vector.tobytes()
        total += int.from_bytes(hashlib.sha256(row).digest(), "big")
    return f"{total % 2**256:064x}"


def _rows(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a vector column as [N, D]."""
    whole = column.combine_chunks()
    return whole.flatten().to_numpy(zero_copy_only=False).reshape(len(whole), whole.type.list_size)
