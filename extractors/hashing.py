"""Content hashes: what stands for a local model in a run's identity."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


def file_sha256(path: Path) -> str:
    """Returns the hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Iterable[Path]) -> str:
    """Returns one hex SHA-256 over the names and contents of files; their order and their folder do not matter."""
    lines = sorted(f"{path.name} {file_sha256(path)}" for path in paths)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
