"""Everything that a run's workers are built from; plain data."""

import dataclasses
from typing import Any

from extractors.backbone import Attention, Source
from extractors.inputs import PromptTokenizer
from extractors.methods import ResolvedMethod
from pipeline.source import Layout
from pipeline.store import fingerprint


@dataclasses.dataclass(frozen=True)
class EncodeJob:
    """One encode run.

    Attributes:
        identity: what shapes the vectors; see CONTRACT of run.json in the README.
        threads: CPU threads of an encoder; None for all cores.
        token_budget: tokens a batch; None for the device's default.
    """

    source: Source
    method: ResolvedMethod
    tokenizer: PromptTokenizer
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
