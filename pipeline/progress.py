"""One line on the terminal that says how far a run is."""

import sys
import time

_EVERY_SECONDS_TTY = 0.5
_EVERY_SECONDS_LOG = 10.0


class Progress:
    """Counts finished units and prints units, rows, tokens a second and the time left."""

    def __init__(self, units: int, rows: int) -> None:
        self.units, self.rows = units, rows
        self.done_units = self.done_rows = self.done_tokens = self.tokens_run = self.padding_run = 0
        self._began = time.monotonic()
        self._printed = 0.0
        self._tty = sys.stderr.isatty()

    def add(self, rows: int, tokens: int, tokens_run: int, padding_run: int) -> None:
        """Counts one more finished unit; of the tokens of its forward passes, ``padding_run`` were padding."""
        self.tokens_run += tokens_run
        self.padding_run += padding_run
        self.done_units += 1
        self.done_rows += rows
        self.done_tokens += tokens
        pause = _EVERY_SECONDS_TTY if self._tty else _EVERY_SECONDS_LOG
        if time.monotonic() - self._printed >= pause or self.done_units == self.units:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._began
        left = elapsed * (self.rows - self.done_rows) / max(1, self.done_rows)
        line = (
            f"units {self.done_units}/{self.units} · rows {self.done_rows:,}/{self.rows:,} · "
            f"{self.done_tokens / max(elapsed, 1e-9):,.0f} tokens/s · {self.padding_run / max(1, self.tokens_run):.0%} "
            f"padding · ETA {clock(left)}"
        )
        end = "\n" if not self._tty or self.done_units == self.units else ""
        print(f"\r{line}" if self._tty else line, end=end, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Returns minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
