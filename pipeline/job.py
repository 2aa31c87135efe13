"""Everything that a run's workers are built from; plain data."""

import dataclasses
from typing import Any

import ray

from extractors.backbone import Attention
from extractors.plan import Plan
from pipeline.source import Layout
from pipeline.store import VECTOR, fingerprint


@dataclasses.dataclass(frozen=True)
class EncodeJob:
    """One encode run.

    Attributes:
        identity: what shapes the vectors, as run.json holds it.
        threads: CPU threads of an encoder; None for all cores.
        token_budget: tokens a batch; None for the device's default.
        vector_columns: the columns that a vector is stored in, each an equal part of it.
        subspaces: the plan's, in Ray's object store, where all actors of a node share them.
    """

    plan: Plan
    layout: Layout
    identity: dict[str, Any]
    output: str
    device: str
    attention: Attention
    threads: int | None
    token_budget: int | None
    vector_columns: tuple[str, ...] = (VECTOR,)
    subspaces: ray.ObjectRef | None = None

    @property
    def fingerprint(self) -> str:
        """The identity's hash."""
        return fingerprint(self.identity)
