"""What a model gives for a parallel corpus, in a folder: the texts, and an encode run that reads their states."""

import math
from typing import Any

import pyarrow as pa

from extractors.method import ResolvedMethod
from pipeline.config import EncodeConfig, FitConfig, ModelConfig
from pipeline.encode import Work, prepare, refuse_other_run
from pipeline.errors import UsageError
from pipeline.parallel import GROUP, LANG, TEXT, ParallelCorpus
from pipeline.parquet import from_bytes, to_bytes
from pipeline.storage import Folder
from pipeline.store import VectorStore

_UNIT_ROWS = 1024
_TEXTS = "texts.parquet"
_VECTORS = "vectors"


class States:
    """One folder of states.

    Attributes:
        were_kept: whether a finished fit had left its states here when this one began.
    """

    def __init__(self, url: str) -> None:
        self.folder = Folder(url)
        self.store = VectorStore(f"{self.folder.url}/{_VECTORS}")
        self.were_kept = self.store.report() is not None

    @property
    def url(self) -> str:
        """The folder of the states themselves."""
        return self.store.url

    def first_block(self, default: int) -> int:
        """Returns the first block whose states are here, or ``default`` when none are."""
        run = self.store.run()
        layers = run["identity"]["method"]["layers"] if run is not None else []
        return min(layers, default=default)

    def prepare(
        self, config: FitConfig, corpus: ParallelCorpus, method: ResolvedMethod | None, columns: tuple[str, ...]
    ) -> Work:
        """Writes the texts, unless they are there, and prepares the run that reads the states.

        Args:
            method: what is read; None for the config's.

        Raises:
            UsageError: the folder holds the states of another model, method or corpus; nothing was changed.
        """
        options = {key: getattr(config, key) for key in ModelConfig.model_fields}
        run_config = EncodeConfig(
            **options,
            input=[f"{self.folder.url}/{_TEXTS}"],
            output=self.url,
            keep=[GROUP, LANG],
            max_quarantined=1,
        )
        refuse_other_run(run_config, method)
        held = self._texts()
        if held is None:
            held = corpus.table()
            # A unit is a row group of whole groups of translations, so that none of these is in two units.
            self.folder.publish(_TEXTS, to_bytes(held, row_group_size=_rows_a_unit(held)))
        elif not _rows(corpus.table()) <= _rows(held):
            raise UsageError(
                f"{self.folder.url} holds the states of another corpus, or of fewer languages or groups; give another "
                "--states folder, or delete this one; nothing was changed"
            )
        return prepare(run_config.model_copy(update={"unit_rows": _rows_a_unit(held)}), method, columns)

    def _texts(self) -> pa.Table | None:
        if not self.folder.exists(_TEXTS):
            return None
        return from_bytes(self.folder.read(_TEXTS), f"{self.folder.url}/{_TEXTS} (delete the folder)")

    def delete(self) -> None:
        """Deletes what :meth:`prepare` and its run wrote, and the folder if nothing else is in it."""
        self.store.delete()
        self.folder.remove(_TEXTS)
        self.folder.delete_if_empty()


def _rows_a_unit(texts: pa.Table) -> int:
    languages = len(set(texts.column(LANG).to_pylist()))
    return languages * math.ceil(_UNIT_ROWS / languages)


def _rows(texts: pa.Table) -> set[Any]:
    return set(zip(*(texts.column(name).to_pylist() for name in (GROUP, LANG, TEXT)), strict=True))
