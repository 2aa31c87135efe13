"""A small real parallel corpus: the user-interface messages of Django, translated by its community (BSD licence).

The catalogs come with the PyPI package, so nothing is downloaded.
"""

import gettext
import importlib.util
import re
from pathlib import Path

import pyarrow as pa

from pipeline.errors import UsageError
from pipeline.parquet import to_bytes
from pipeline.storage import Folder

ENGLISH = "en"
# Latin, Cyrillic, Arabic, Han and Japanese scripts.
LANGUAGES = ("de", "fr", "es", "pt", "ru", "ar", "ja", "zh_Hans")

_FEWEST_WORDS = 3
# Placeholders and markup are the same in every language and would make a translation easy to find.
_NOT_PLAIN = re.compile(r"[%{<\n]")
_CONTEXT_END = "\x04"


def parallel_messages(count: int) -> list[dict[str, str]]:
    """Returns up to ``count`` messages with their translations, by language code, spread over the whole catalog.

    Raises:
        UsageError: Django is not installed.
    """
    catalogs = {language: _catalog(language) for language in LANGUAGES}
    shared = set.intersection(*(set(catalog) for catalog in catalogs.values()))
    chosen = sorted(text for text in shared if len(text.split()) >= _FEWEST_WORDS and not _NOT_PLAIN.search(text))
    step = max(1, len(chosen) // count)
    return [
        {ENGLISH: text, **{language: catalogs[language][text] for language in LANGUAGES}}
        for text in chosen[::step][:count]
    ]


def _catalog(language: str) -> dict[str, str]:
    found = importlib.util.find_spec("django")
    if found is None or found.origin is None:
        raise UsageError(
            "the demo reads its texts from Django's catalogs: pip install 'isogloss[demo]', or run `make demo`"
        )
    messages: dict[str, str] = {}
    for path in sorted(Path(found.origin).parent.rglob(f"locale/{language}/LC_MESSAGES/*.mo")):
        with path.open("rb") as file:
            entries = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
        for key, translation in entries.items():
            if isinstance(key, str) and key and translation:
                messages.setdefault(key.split(_CONTEXT_END)[-1], translation)
    return messages


def write_corpus(messages: list[dict[str, str]], folder: Folder) -> None:
    """Writes corpus/<language>.parquet with id, group (equal for translations of one message), lang and text."""
    for language in (ENGLISH, *LANGUAGES):
        table = pa.table(
            {
                "id": [f"{group}-{language}" for group in range(len(messages))],
                "group": pa.array(range(len(messages)), pa.int64()),
                "lang": [language] * len(messages),
                "text": [message[language] for message in messages],
            }
        )
        folder.publish_if_changed(f"corpus/{language}.parquet", to_bytes(table))
