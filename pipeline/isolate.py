"""Rows that end the process which encodes them: found by what each process said it was about to do, and kept out.

Ray starts a dead worker again and gives it the same unit, without end. So an encoder notes each attempt at a unit in
the run's folder; a note that is still there tells the next attempt that the last one died, and of what.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.store import VectorStore

# Deaths that are taken for the machine's (a node that was reclaimed, say) before the unit's rows are suspected.
_DEATHS_OF_A_UNIT = 2
# How often a row must end the process while it is encoded alone.
_DEATHS_OF_A_ROW = 2
_ROWS_A_STEP = 32

Encode = Callable[[list[int]], np.ndarray]


@dataclasses.dataclass
class Attempt:
    """The note on one unit.

    Attributes:
        number: which attempt this is, from 1.
        step: the rows that are being encoded, once rows are suspected.
        alone: rows that are encoded one by one, since a process died on the step they were in.
        deaths: how often the process died on a row that was encoded alone.
    """

    number: int = 0
    step: list[int] = dataclasses.field(default_factory=list)
    alone: list[int] = dataclasses.field(default_factory=list)
    deaths: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def killers(self) -> list[int]:
        """The rows that are not tried again."""
        return [int(row) for row, deaths in self.deaths.items() if deaths >= _DEATHS_OF_A_ROW]

    def learn(self) -> None:
        """Takes what the last attempt was at when it died into account."""
        self.number += 1
        if len(self.step) == 1:
            self.deaths[str(self.step[0])] = self.deaths.get(str(self.step[0]), 0) + 1
        self.alone += [row for row in self.step if row not in self.alone]
        self.step = []


def encode_with_care(store: VectorStore, unit: str, rows: list[int], encode: Encode) -> tuple[np.ndarray, list[int]]:
    """Encodes a unit's rows; from the third attempt on in small steps, each noted before it is taken.

    Args:
        rows: which rows to encode.
        encode: rows -> float32 [len(rows), D]; always called, if only with no rows.

    Returns:
        The vectors of the rows that were encoded, in order, and the rows that end the process.
    """
    attempt = Attempt(**(store.attempt(unit) or {}))
    attempt.learn()
    store.note_attempt(unit, dataclasses.asdict(attempt))
    if attempt.number <= _DEATHS_OF_A_UNIT:
        return encode(rows), []
    killers = [row for row in attempt.killers if row in rows]
    vectors = [encode([])]
    for step in _steps([row for row in rows if row not in killers], set(attempt.alone)):
        attempt.step = step
        store.note_attempt(unit, dataclasses.asdict(attempt))
        vectors.append(encode(step))
    return np.concatenate(vectors), killers


def _steps(rows: list[int], alone: set[int]) -> list[list[int]]:
    steps: list[list[int]] = []
    for row in rows:
        last: Any = steps[-1] if steps else []
        if not last or row in alone or last[0] in alone or len(last) == _ROWS_A_STEP:
            steps.append([row])
        else:
            last.append(row)
    return steps
