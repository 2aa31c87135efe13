"""Everything that a run's workers are built from; plain data."""

import dataclasses
from typing import Any

from extractors.backbone import Attention
from extractors.encoder import Plan
from pipeline.source import Layout
from pipeline.store import fingerprint


@dataclasses.dataclass(frozen=True)
class EncodeJob:
    """One encode run.

    Attributes:
        identity: what shapes the vectors, as run.json holds it.
        threads: CPU threads of an encoder; None for all cores.
        token_budget: tokens a batch; None for the device's default.
    """

    plan: Plan
    layout: Layout
    identity: dict[str, Any]
    output: str
    device: str
    attention: Attention
    threads: int | None
    token_budget: int | None

    @property
    def fingerprint(self) -> str:
        """The identity's hash."""
        return fingerprint(self.identity)
