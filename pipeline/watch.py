"""Nothing waits for ever unseen: units in work are named when none is finished for long."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from pipeline.progress import clock
from pipeline.source import Unit
from pipeline.storage import STORAGE_ERRORS
from pipeline.store import VectorStore

_MOST_NAMED = 8


@contextlib.contextmanager
def watching(store: VectorStore, units: Sequence[Unit], seconds: float) -> Iterator[Callable[[], None]]:
    """Prints, whenever no unit was finished for so long, which are in work; yields what to call when one is."""
    ended = threading.Event()
    last = time.monotonic()

    def finished() -> None:
        nonlocal last
        last = time.monotonic()

    def watch() -> None:
        named_at = last
        while not ended.wait(min(1.0, seconds / 4)):
            quiet_since = max(last, named_at)
            if time.monotonic() - quiet_since >= seconds:
                print(
                    f"no unit was finished for {clock(time.monotonic() - last)}: {_in_work(store, units)}",
                    file=sys.stderr,
                )
                named_at = time.monotonic()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield finished
    finally:
        ended.set()
        thread.join()


def _in_work(store: VectorStore, units: Sequence[Unit]) -> str:
    try:
        attempts = store.attempts()
    except STORAGE_ERRORS as problem:
        return f"what is in work cannot be told ({problem})"
    known = {unit.name: unit for unit in units}
    named = [
        f"{name} ({known[name].source}, from row {known[name].row_start}; attempt {note.get('number', 1)})"
        for name, note in attempts.items()
        if name in known
    ]
    if not named:
        return (
            "none has begun; the encoders are still starting, or wait for CPUs or GPUs that the cluster does not have"
        )
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"in work are {', '.join(named[:_MOST_NAMED])}{more}"
