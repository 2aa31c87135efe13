"""What identifies a run: everything that shapes its vectors."""

from typing import Any

from extractors.plan import Plan
from pipeline.store import FORMAT_VERSION


def make_identity(planned: Plan, dtype: str, vector_dtype: str) -> dict[str, Any]:
    """Returns what shapes a run's vectors; its hash is the run's fingerprint."""
    return {"format_version": FORMAT_VERSION, **planned.identity(), "dtype": dtype, "vector_dtype": vector_dtype}
