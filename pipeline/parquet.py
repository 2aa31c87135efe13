"""Parquet in memory: tables to bytes and back, with damage reported as the user's file and not as a traceback."""

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.storage import open_path

# What reading a damaged Parquet file raises; ArrowInvalid is a ValueError.
DAMAGE = (OSError, ValueError, pa.ArrowException)


def to_bytes(table: pa.Table, **options: Any) -> bytes:
    """Returns the table as a Parquet file with page checksums."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, **options)
    return buffer.getvalue()


def from_bytes(content: bytes, what: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the table in a Parquet file's bytes.

    Raises:
        UsageError: ``what`` (where the bytes come from) is damaged.
    """
    try:
        return pq.read_table(io.BytesIO(content), columns=columns, page_checksum_verification=True)
    except DAMAGE as problem:
        raise UsageError(f"{what} is no readable Parquet file: {str(problem).splitlines()[0]}") from None


def read_file(path: str) -> pa.Table:
    """Returns the table in a local or remote Parquet file.

    Raises:
        UsageError: it is not there, or is damaged.
    """
    fs, place = open_path(path)
    if not fs.isfile(place):
        raise UsageError(f"{path}: no such file")
    return from_bytes(fs.cat_file(place), path)
