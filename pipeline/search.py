"""Search: queries -> hits, encoded by the model and method that the index was made with."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from extractors.encoder import Encoder
from extractors.errors import MethodError, TextError
from extractors.method import ResolvedMethod
from extractors.plan import plan
from index.ann import VectorIndex
from index.errors import VectorError
from pipeline.build_index import ABOUT, IDS, INDEX
from pipeline.config import SearchConfig
from pipeline.errors import UsageError
from pipeline.identity import make_identity
from pipeline.parquet import from_bytes, to_bytes
from pipeline.queries import Queries, read_queries
from pipeline.storage import Folder
from pipeline.store import differences
from pipeline.subspaces import read_subspace
from pipeline.workers import LANGUAGE_COLUMNS


class Searcher:
    """An opened index; loads its encoder when the first text is searched for."""

    def __init__(self, path: str, device: str = "auto") -> None:
        """Raises UsageError when there is no index."""
        folder = Folder(path)
        if not folder.exists(ABOUT):
            raise UsageError(f"index {path}: there is no {ABOUT}; give a folder that `isogloss index` wrote")
        try:
            self.about = json.loads(folder.read(ABOUT))
            self.ids = from_bytes(folder.read(IDS), f"{path}/{IDS}")
            self.index = VectorIndex.from_bytes(folder.read(INDEX), self.about["metric"])
        except (ValueError, RuntimeError, FileNotFoundError) as problem:
            raise UsageError(f"index {path} is damaged ({str(problem).splitlines()[0]}); build it again") from None
        if len(self.index) != self.ids.num_rows:
            raise UsageError(f"index {path}: {len(self.index)} vectors but {self.ids.num_rows} ids; build it again")
        self.device = device
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """The encoder that the index's identity names.

        Raises:
            UsageError: the index records none, or the model has other weights now.
        """
        if self._encoder is None:
            self._encoder = self._load_encoder()
        return self._encoder

    def _load_encoder(self) -> Encoder:
        identity = self.about["identity"]
        if identity is None:
            raise UsageError(
                "this index was made of vectors without an encoder on record; give queries with a vector column"
            )
        try:
            subspaces = [read_subspace(path) for path in self.about.get("subspace") or []]
        except MethodError as problem:
            raise UsageError(
                f"the index was made with a subspace that cannot be read: {problem}. Bring the file back, or run "
                "encode with its new place and index again"
            ) from None
        if any(one.language_bases for one in subspaces):
            raise UsageError("the index was made with a basis for each language; give queries with a vector column")
        planned = plan(
            self.about["model"],
            ResolvedMethod.from_identity(identity["method"]).without_subspaces(),
            self.about["revision"],
            identity["max_length"],
            subspaces,
            self.about.get("subspace_strength") or 1.0,
            # Whatever they were fitted for: the vectors were made with them.
            allow_mismatch=True,
        )
        now = make_identity(planned, identity["dtype"], identity["vector_dtype"])
        if now != identity:
            raise UsageError(
                f"model {self.about['model']} is not what the index was made with: {differences(identity, now)}; bring "
                "the old files back, or encode and index again"
            )
        return Encoder.from_plan(planned, subspaces, dtype=identity["dtype"], device=self.device)

    def rows_of_language(self, language: str | None) -> np.ndarray | None:
        """Returns the index rows of one language; None for no restriction.

        Raises:
            UsageError: no language column was kept, or none of its rows has that language.
        """
        if language is None:
            return None
        column = next((name for name in LANGUAGE_COLUMNS if name in self.ids.column_names), None)
        if column is None:
            raise UsageError(
                f"--language {language}: no column {' or '.join(LANGUAGE_COLUMNS)} was kept; encode with --keep lang"
            )
        languages = self.ids.column(column).cast(pa.string())
        rows = np.flatnonzero(pc.fill_null(pc.equal(languages, language), False).to_numpy())
        if not rows.size:
            known = ", ".join(sorted(value for value in languages.unique().to_pylist() if value is not None))
            raise UsageError(f"--language {language}: no such language in the index; it has {known}")
        return rows

    def search(self, query_ids: list[str], vectors_QD: np.ndarray, k: int, language: str | None = None) -> pa.Table:
        """Returns query_id, rank (from 1), id, score and the kept columns; nothing where there is no hit."""
        try:
            found = self.index.search(vectors_QD, k, self.rows_of_language(language))
        except VectorError as problem:
            raise UsageError(f"queries: {problem}") from None
        rows = np.concatenate([rows for _, rows in found]) if found else np.empty(0, np.int64)
        hits = self.ids.take(pa.array(rows, pa.int64())).drop_columns(["row"])
        counts = [len(rows) for _, rows in found]
        scores = np.concatenate([scores for scores, _ in found]) if found else np.empty(0, np.float32)
        ranks = [rank for count in counts for rank in range(1, count + 1)]
        asked = [query for query, count in zip(query_ids, counts, strict=True) for _ in range(count)]
        kept = [(name, hits.column(name)) for name in hits.column_names if name != "id"]
        head = {"query_id": pa.array(asked, pa.string()), "rank": pa.array(ranks, pa.int32()), "id": hits.column("id")}
        return pa.table({**head, "score": pa.array(scores, pa.float32()), **dict(kept)})


def search(config: SearchConfig) -> tuple[pa.Table, Queries, dict[str, str]]:
    """Answers the queries.

    Returns:
        The hits, the queries, and for each query that could not be answered its error by query id.

    Raises:
        UsageError: no index, no queries, or an index that cannot serve them.
    """
    queries = read_queries(config.query, config.queries)
    searcher = Searcher(config.index, config.device)
    vectors, refused = _vectors_of(queries, searcher)
    sound = [query for query in queries.ids if query not in refused]
    return searcher.search(sound, vectors, config.k, config.language), queries, refused


def _vectors_of(queries: Queries, searcher: Searcher) -> tuple[np.ndarray, dict[str, str]]:
    """Returns the vectors of the queries that have one, and what is wrong with the others."""
    refused: dict[str, str] = {}
    if queries.vectors is not None:
        for query, vector in zip(queries.ids, queries.vectors, strict=True):
            if not (np.isfinite(vector).all() and vector.any()):
                refused[query] = "the vector is zero, or has values that are not finite"
        return queries.vectors[[query not in refused for query in queries.ids]], refused
    tokenized = searcher.encoder.tokenizer.tokenize(queries.texts)
    sound = []
    for query, row in zip(queries.ids, tokenized, strict=True):
        problem = next((ids for ids in row if isinstance(ids, TextError)), None)
        if problem is None:
            sound.append(row)
        else:
            refused[query] = str(problem)
    return searcher.encoder.encode_ids(sound), refused  # type: ignore[arg-type]


def write_hits(hits: pa.Table, path: str) -> None:
    """Writes the hits as one Parquet file."""
    head, _, name = path.rpartition("/")
    if not name:
        raise UsageError(f"--output {path}: give a file")
    Folder(head or ".").publish(name, to_bytes(hits))
