"""THE on-disk format of a vectors folder; the only file that names a file in it.

A unit of work is done when its commit is there, and the commit is written last. What no commit names does not count.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.parquet import from_bytes, to_bytes
from pipeline.storage import Folder

FORMAT_VERSION = 1

VECTOR = "vector"
RUN = "run.json"
REPORT = "report.json"
_VECTORS, _QUARANTINE, _COMMITS, _ATTEMPTS = "vectors", "quarantine", "commits", "attempts"

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        # Position in the file; null when the file as a whole could not be read.
        pa.field("row", pa.int64()),
        pa.field("id", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
    ]
)


def vector_schema(
    id_type: pa.DataType, kept: list[pa.Field], widths: Mapping[str, int], vector_dtype: str
) -> pa.Schema:
    """Returns the schema of vectors/*.parquet.

    Args:
        widths: of the vector columns, by name.
    """
    element = {"float32": pa.float32(), "float16": pa.float16()}[vector_dtype]
    return pa.schema(
        [
            pa.field("id", id_type, nullable=pa.types.is_null(id_type)),
            *kept,
            *(pa.field(name, pa.list_(element, width), nullable=False) for name, width in widths.items()),
            pa.field("n_tokens", pa.int32(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ]
    )


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of an identity (canonical JSON: sorted keys, no spaces)."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class VectorStore:
    """One vectors folder."""

    def __init__(self, root: str) -> None:
        self.folder = Folder(root)

    @property
    def url(self) -> str:
        """The folder's path or URL."""
        return self.folder.url

    def run(self) -> dict[str, Any] | None:
        """Returns run.json, or None when no run was started here."""
        return self._json(RUN)

    def check_identity(self, identity: Mapping[str, Any]) -> bool:
        """Returns whether this run was started here before; False for a folder without a run.

        Raises:
            UsageError: the folder holds another run; names what differs.
        """
        if self.folder.is_file:
            raise UsageError(f"output {self.url} is a file; give a folder")
        run = self.run()
        if run is None:
            if self.folder.names(_COMMITS) or self.folder.names(_VECTORS):
                raise UsageError(f"output {self.url} holds vectors but no {RUN}; give an empty folder")
            return False
        if run["fingerprint"] != fingerprint(identity):
            raise UsageError(
                f"output {self.url} belongs to another run: {differences(run['identity'], identity)}. "
                "Give another --output, or the options of that run; nothing was changed"
            )
        return True

    def start(self, identity: Mapping[str, Any], how: Mapping[str, Any]) -> None:
        """Writes run.json: the identity, its fingerprint, and ``how`` to load the encoder again."""
        content = {"fingerprint": fingerprint(identity), "identity": identity, **how}
        self.folder.publish(RUN, _json(content))

    def commits(self) -> dict[str, dict[str, Any]]:
        """Returns the commits by unit, without those that are damaged, or whose files are gone or of another size.

        Raises:
            UsageError: a commit of another run.
        """
        contents = self.folder.read_all(f"{_COMMITS}/{unit}.json" for unit in self.committed())
        sizes = {
            f"{folder}/{name}": size
            for folder in (_VECTORS, _QUARANTINE)
            for name, size in self.folder.names(folder).items()
        }
        commits = [commit for commit in map(_parsed, contents) if commit is not None]
        run = self.run()
        strangers = [commit["unit"] for commit in commits if run and commit["fingerprint"] != run["fingerprint"]]
        if strangers:
            raise UsageError(f"{self.url} holds units of another run, such as {strangers[0]}; encode to another folder")
        return {
            commit["unit"]: commit
            for commit in commits
            if all(sizes.get(file["path"]) == file["bytes"] for file in commit["files"])
        }

    def committed(self) -> list[str]:
        """Returns the units that have a commit, whatever it is worth."""
        return [name.removesuffix(".json") for name in self.folder.names(_COMMITS) if name.endswith(".json")]

    def commit(self, unit: str) -> dict[str, Any] | None:
        """Returns a unit's commit, or None when there is none, or a damaged one."""
        name = f"{_COMMITS}/{unit}.json"
        return _parsed(self.folder.read(name)) if self.folder.exists(name) else None

    def abandon(self) -> None:
        """Removes run.json if no unit was begun, so that a run that could not begin does not hold the folder."""
        if not any(self.folder.names(part) for part in (_COMMITS, _VECTORS, _ATTEMPTS)):
            self.folder.remove(RUN)

    def publish_unit(self, commit: dict[str, Any], vectors: pa.Table, quarantine: pa.Table) -> None:
        """Writes a unit's files and then its commit, to which the files' names and hashes are added."""
        unit = commit["unit"]
        files = []
        for folder, table in ((_VECTORS, vectors), (_QUARANTINE, quarantine)):
            if folder == _QUARANTINE and not table.num_rows:
                continue
            path, content = f"{folder}/{unit}.parquet", _parquet(table)
            self.folder.publish(path, content)
            digest = hashlib.sha256(content).hexdigest()
            files.append({"path": path, "rows": table.num_rows, "bytes": len(content), "sha256": digest})
        self.folder.publish(f"{_COMMITS}/{unit}.json", _json({**commit, "files": files}))

    def attempt(self, unit: str) -> dict[str, Any] | None:
        """Returns the note of an attempt at a unit that did not end; None when there is none, or a damaged one."""
        name = f"{_ATTEMPTS}/{unit}.json"
        return _parsed(self.folder.read(name)) if self.folder.exists(name) else None

    def attempts(self) -> dict[str, dict[str, Any]]:
        """Returns the notes of all attempts that did not end, by unit."""
        names = [name for name in self.folder.names(_ATTEMPTS) if name.endswith(".json")]
        notes = ((name.removesuffix(".json"), self.attempt(name.removesuffix(".json"))) for name in names)
        return {unit: note for unit, note in notes if note is not None}

    def note_attempt(self, unit: str, note: Mapping[str, Any]) -> None:
        """Writes the note of the attempt that is being made at a unit."""
        self.folder.publish(f"{_ATTEMPTS}/{unit}.json", _json(note))

    def end_attempt(self, unit: str) -> None:
        """Removes the note."""
        self.folder.remove(f"{_ATTEMPTS}/{unit}.json")

    def delete(self) -> None:
        """Deletes everything that a run wrote here; run.json last, so that a deletion cut short leaves a run."""
        self.folder.remove(REPORT)
        for folder in (_COMMITS, _VECTORS, _QUARANTINE, _ATTEMPTS):
            for name in self.folder.names(folder):
                self.folder.remove(f"{folder}/{name}")
            Folder(f"{self.folder.url}/{folder}").delete_if_empty()
        self.folder.remove(RUN)
        self.folder.delete_if_empty()

    def withdraw(self, unit: str) -> None:
        """Removes a unit's commit, then its files."""
        self.folder.remove(f"{_COMMITS}/{unit}.json")
        for folder in (_VECTORS, _QUARANTINE):
            self.folder.remove(f"{folder}/{unit}.parquet")

    def iter_vectors(self, columns: list[str] | None = None) -> Iterator[tuple[dict[str, Any], pa.Table]]:
        """Yields (commit, table) for every committed unit with vectors, in the order of source and row."""
        for commit in sorted(self.commits().values(), key=lambda c: (c["source"], c["row_start"])):
            for file in commit["files"]:
                if file["path"].startswith(f"{_VECTORS}/"):
                    yield commit, self._table(file["path"], columns)

    def _table(self, path: str, columns: list[str] | None) -> pa.Table:
        return from_bytes(self.folder.read(path), f"{self.url}/{path} (delete it and encode again)", columns)

    def report(self) -> dict[str, Any] | None:
        """Returns report.json, or None when no run ended here."""
        return self._json(REPORT)

    def _json(self, name: str) -> dict[str, Any] | None:
        if not self.folder.exists(name):
            return None
        try:
            return json.loads(self.folder.read(name))
        except ValueError:
            raise UsageError(f"{self.url}/{name} is damaged; restore it, or encode to another folder") from None

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Writes report.json."""
        self.folder.publish(REPORT, _json(report))


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> str:
    """Returns what differs between two identities, as "key: there → here" with dotted keys."""
    found = []
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found.append(differences(a, b, f"{prefix}{key}."))
        elif a != b:
            found.append(f"{prefix}{key} {a!r} there, {b!r} here")
    return "; ".join(part for part in found if part)


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        commit = json.loads(content)
    except ValueError:
        return None
    return commit if isinstance(commit, dict) else None


def _parquet(table: pa.Table) -> bytes:
    # Vectors do not compress. Parquet names the leaf of a list column by its path.
    plain = {f"{field.name}.list.element" for field in table.schema if pa.types.is_fixed_size_list(field.type)}
    names = [leaf if (leaf := f"{name}.list.element") in plain else name for name in table.column_names]
    return to_bytes(
        table,
        compression={name: "none" if name in plain else "zstd" for name in names},
        use_dictionary=[name for name in names if name not in plain],
    )
