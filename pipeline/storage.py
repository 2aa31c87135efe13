"""Folders on any file system fsspec knows, with one guarantee: a name appears whole or not at all."""

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
from botocore.exceptions import BotoCoreError
from fsspec.core import url_to_fs

from pipeline.errors import UsageError

_PARALLEL_READS = 32

# What a file system, local or remote, reports as its own failure.
STORAGE_ERRORS = (OSError, BotoCoreError)


class Folder:
    """A folder at a local path or URL."""

    def __init__(self, root: str) -> None:
        self.fs, path = open_path(root)
        self.path = path.rstrip("/")
        self.url = self.fs.unstrip_protocol(self.path) if not self.is_local else self.path

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's own file system."""
        return is_local(self.fs)

    @property
    def is_file(self) -> bool:
        """Whether a file, and no folder, has this path."""
        return self.fs.isfile(self.path)

    def at(self, name: str) -> str:
        """Returns the path of a name within the folder."""
        return f"{self.path}/{name}"

    def names(self, folder: str) -> dict[str, int]:
        """Returns the names in a subfolder with their sizes in bytes; {} when there is none. Never from a cache."""
        self.fs.invalidate_cache()
        try:
            with naming(self.at(folder)):
                found = self.fs.ls(self.at(folder), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        files = ((entry["name"].rsplit("/", 1)[-1], entry) for entry in found if entry["type"] == "file")
        # In object stores an empty object, whose name ends in a slash, may stand for the folder itself.
        return {name: entry["size"] for name, entry in files if name and not name.startswith(".")}

    def exists(self, name: str) -> bool:
        """Whether the name is there now."""
        self.fs.invalidate_cache()
        with naming(self.at(name)):
            return self.fs.exists(self.at(name))

    def read(self, name: str) -> bytes:
        """Returns a file's bytes. Raises FileNotFoundError."""
        with naming(self.at(name)):
            return self.fs.cat_file(self.at(name))

    def read_all(self, names: Iterable[str]) -> list[bytes]:
        """Returns the bytes of many small files, in order."""
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return list(pool.map(self.read, names))

    def publish(self, name: str, content: bytes) -> None:
        """Writes a file so that readers see all of it or none, replacing an older one."""
        path = self.at(name)
        if not self.is_local:
            # An object store shows an object only when its upload is complete.
            with naming(path):
                self.fs.pipe_file(path, content)
            return
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UsageError(f"cannot write {path}: {self.path} is, or lies below, a file; give a folder") from None
        temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{uuid.uuid4().hex}")
        try:
            with naming(path), open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise

    def publish_if_changed(self, name: str, content: bytes) -> None:
        """Publishes a file unless it holds just this already, so that its time of change tells something."""
        if not self.exists(name) or self.read(name) != content:
            self.publish(name, content)

    def remove(self, name: str) -> None:
        """Deletes a file if it is there."""
        self.fs.invalidate_cache()
        if self.fs.exists(self.at(name)):
            self.fs.rm_file(self.at(name))

    def delete_if_empty(self) -> None:
        """Deletes the folder if there is nothing in it; object stores have none to delete."""
        if self.is_local and os.path.isdir(self.path) and not os.listdir(self.path):
            os.rmdir(self.path)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Adds the path to what a file system says of its failures, which is often only that a disk is full or slow.

    Raises:
        OSError: of the same class where that matters to callers (not found, no folder).
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except STORAGE_ERRORS as problem:
        raise OSError(f"{path}: {problem or type(problem).__name__}") from problem


def split_url(path: str) -> tuple[str, str]:
    """Returns the folder and the name of a file's path or URL.

    Raises:
        UsageError: the path of a folder, or of no file.
    """
    fs, place = open_path(path)
    folder, _, name = path.rpartition("/")
    if not name or fs.isdir(place):
        raise UsageError(f"output {path!r} is a folder; give a file")
    if folder and fs.isfile(open_path(folder)[1]):
        raise UsageError(f"output {path}: {folder} is a file; give a file in a folder")
    return folder or ("/" if path.startswith("/") else "."), name


def open_path(path: str) -> tuple[Any, str]:
    """Returns the file system and the path within it; local paths become absolute.

    Raises:
        UsageError: a URL scheme that no installed file system serves.
    """
    try:
        return url_to_fs(path if "://" in path else os.path.abspath(os.path.expanduser(path)))
    except (ValueError, ImportError) as problem:
        raise UsageError(f"{path}: {problem}") from None


def is_local(fs: Any) -> bool:
    """Whether a file system is this machine's own."""
    return isinstance(fs, fsspec.implementations.local.LocalFileSystem)
