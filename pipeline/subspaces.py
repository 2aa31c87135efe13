"""Subspace files wherever they lie."""

import os
import tempfile

from extractors.subspace import Subspace, load_subspace
from pipeline.errors import UsageError
from pipeline.storage import STORAGE_ERRORS, is_local, open_path


def read_subspace(path: str) -> Subspace:
    """Reads a subspace file from a path or URL.

    Raises:
        UsageError, MethodError: no such file, or not a subspace file.
    """
    fs, place = open_path(path)
    if is_local(fs):
        return load_subspace(place)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "subspace.safetensors")
        try:
            fs.get_file(place, copy)
        except STORAGE_ERRORS as problem:
            raise UsageError(f"subspace {path}: {problem}") from None
        return load_subspace(copy)
