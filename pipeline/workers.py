"""What Ray runs: a function that tokenizes units, and the one class it instantiates, which encodes them.

Both are built from plain arguments; no model and no vector passes through the driver.
"""

import collections
import dataclasses
import hashlib
import os
import pickle
import time
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from extractors.encoder import Encoder
from pipeline.errors import RunError
from pipeline.job import EncodeJob
from pipeline.rows import Quarantine, TokenizedUnit, tokenize_unit
from pipeline.source import Unit
from pipeline.store import VectorStore, vector_schema

LANGUAGE_COLUMNS = ("lang", "language")


def tokenize_one(batch: dict[str, Any], job: EncodeJob) -> dict[str, Any]:
    """Reads and tokenizes one unit; its token ids travel to an encoder as one blob."""
    unit: Unit = pickle.loads(batch["unit"][0])
    return {"unit": batch["unit"], "tokenized": [pickle.dumps(tokenize_unit(unit, job.layout, job.plan.tokenizer))]}


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
            dtype=job.identity["dtype"],
            device=job.device,
            attention=job.attention,
            token_budget=job.token_budget,
        )
        self.store = VectorStore(job.output)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Encodes the one unit in ``batch``."""
        began = time.monotonic()
        unit: Unit = pickle.loads(batch["unit"][0])
        tokenized: TokenizedUnit = pickle.loads(batch["tokenized"][0])
        table = self._vectors(tokenized)
        commit = self._commit(unit, tokenized, table, seconds=time.monotonic() - began)
        self.store.publish_unit(commit, table, tokenized.quarantine.table())
        counted = ("rows_in", "rows_out", "rows_quarantined", "tokens")
        return {"unit": [unit.name], **{key: [commit[key]] for key in counted}}

    def _vectors(self, tokenized: TokenizedUnit) -> pa.Table:
        job = self.job
        computed_ND = self.encoder.encode_ids(tokenized.tokens)
        with np.errstate(over="ignore"):
            vectors_ND = computed_ND.astype(job.identity["vector_dtype"])
        faults = _vector_faults(computed_ND, vectors_ND, job.identity["dtype"])
        usable = [i for i, fault in enumerate(faults) if not _keep_out(fault, i, tokenized)]
        schema = vector_schema(
            job.layout.id_type, list(job.layout.kept), self.encoder.width, job.identity["vector_dtype"]
        )
        carried = tokenized.carried.take(pa.array(usable, pa.int64()))
        return pa.Table.from_arrays(
            [
                *carried.columns,
                pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND[usable].ravel()), self.encoder.width),
                pa.array([sum(len(row.ids) for row in tokenized.tokens[i]) for i in usable], pa.int32()),
                pa.array([any(row.truncated for row in tokenized.tokens[i]) for i in usable], pa.bool_()),
            ],
            schema=schema,
        )

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


def _vector_faults(computed_ND: np.ndarray, stored_ND: np.ndarray, dtype: str) -> list[tuple[str, str] | None]:
    """Returns for each row the code and the detail of what is wrong with its vector, or None."""
    zero = ("zero-vector", "the vector is zero in every component")
    in_model = ("non-finite", f"the model gave NaN or infinite values in {dtype}; try --dtype float32")
    in_file = ("non-finite", f"values too large for {stored_ND.dtype}; give --vector-dtype float32")
    kinds: list[tuple[str, str] | None] = [None] * len(stored_ND)
    for fault, rows in (
        (zero, ~stored_ND.any(axis=1)),
        (in_file, ~np.isfinite(stored_ND).all(axis=1)),
        (in_model, ~np.isfinite(computed_ND).all(axis=1)),
    ):
        for i in np.flatnonzero(rows):
            kinds[i] = fault
    return kinds


def _keep_out(fault: tuple[str, str] | None, i: int, tokenized: TokenizedUnit) -> bool:
    if fault is not None:
        identifier = tokenized.carried.column("id")[i].as_py()
        tokenized.quarantine.add(tokenized.positions[i], identifier, *fault)
    return fault is not None


def _by_language(table: pa.Table) -> dict[str, dict[str, int]]:
    column = next((name for name in LANGUAGE_COLUMNS if name in table.column_names), None)
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
    column = table.column("vector").combine_chunks()
    values = column.flatten().to_numpy(zero_copy_only=False).reshape(table.num_rows, column.type.list_size)
    total = 0
    for identifier, vector in zip(table.column("id").to_pylist(), values, strict=True):
        row = f"{type(identifier).__name__}:{identifier}\n".encode() + vector.tobytes()
        total += int.from_bytes(hashlib.sha256(row).digest(), "big")
    return f"{total % 2**256:064x}"
