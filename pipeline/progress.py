"""One line on the terminal that says how far a run is."""

import collections
import sys
import time
from collections.abc import Mapping
from typing import Any

_EVERY_SECONDS_TTY = 0.5
_EVERY_SECONDS_LOG = 10.0
# What is added up over units.
_COUNTED = ("rows_in", "tokens", "tokens_run", "padding_run", "flops", "flops_at_peak")


class Progress:
    """Counts finished units and prints units, rows, tokens a second and the time left."""

    def __init__(self, units: int, rows: int) -> None:
        self.units, self.rows = units, rows
        self.done_units = 0
        self.total: dict[str, float] = collections.defaultdict(int)
        self._began = time.monotonic()
        self._printed = 0.0
        self._tty = sys.stderr.isatty()

    def add(self, unit: Mapping[str, Any]) -> None:
        """Counts one more finished unit.

        Args:
            unit: ``rows_in``; ``tokens``; of its forward passes ``tokens_run``, ``padding_run`` among these, and
                ``flops`` for the others; ``flops_at_peak``, what the device could have done meanwhile.
        """
        self.done_units += 1
        for name in _COUNTED:
            self.total[name] += unit[name]
        pause = _EVERY_SECONDS_TTY if self._tty else _EVERY_SECONDS_LOG
        if time.monotonic() - self._printed >= pause or self.done_units == self.units:
            self._print()

    def _print(self) -> None:
        self._printed = time.monotonic()
        elapsed = self._printed - self._began
        rows = int(self.total["rows_in"])
        left = elapsed * (self.rows - rows) / max(1, rows)
        line = (
            f"units {self.done_units}/{self.units} · rows {rows:,}/{self.rows:,} · "
            f"{self.total['tokens'] / max(elapsed, 1e-9):,.0f} tokens/s · "
            f"{self.total['padding_run'] / max(1, self.total['tokens_run']):.0%} padding · "
            f"{self.total['flops'] / max(1, self.total['flops_at_peak']):.0%} of peak · ETA {clock(left)}"
        )
        end = "\n" if not self._tty or self.done_units == self.units else ""
        print(f"\r{line}" if self._tty else line, end=end, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Returns minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
