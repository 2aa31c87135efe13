"""What identifies a run: everything that shapes its vectors."""

import hashlib
from typing import Any

from extractors.encoder import Plan
from pipeline.store import FORMAT_VERSION


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
