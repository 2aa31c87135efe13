"""Rows that end the process which encodes them: found by what each process said it was about to do, and kept out.

Ray starts a dead worker again and gives it the same unit, without end. So an encoder notes each attempt at a unit in
the run's folder; a note that is still there tells the next attempt that the last one died, and of what. The batches
stay the encoder's own as long as no row is suspected, so that a unit whose workers were killed from outside gets the
very vectors that it would have got undisturbed.
"""

import dataclasses
import logging
from collections.abc import Callable

import numpy as np

from pipeline.log import log
from pipeline.store import VectorStore

# Deaths that are taken for the machine's (a node that was reclaimed, say) before the unit's rows are suspected.
_DEATHS_OF_A_UNIT = 2
# How often a row must end the process while it is encoded alone.
_DEATHS_OF_A_ROW = 2

AboutTo = Callable[[list[int]], None]
Encode = Callable[[list[int], AboutTo | None], np.ndarray]


@dataclasses.dataclass
class Attempt:
    """The note on one unit.

    Attributes:
        number: which attempt this is, from 1.
        step: the rows of the batch that is being encoded, from the third attempt on.
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
    """Encodes a unit's rows; from the third attempt on each batch is noted before it is begun.

    Args:
        rows: which rows to encode, in ascending order.
        encode: (rows, about_to) -> float32 [len(rows), D]; calls ``about_to``, where there is one, with the rows of
            each batch before it. It is always called, if only with no rows.

    Returns:
        The vectors of the rows that were encoded, in order, and the rows that end the process.
    """
    attempt = Attempt(**(store.attempt(unit) or {}))
    attempt.learn()
    if attempt.number > 1:
        log("begun again", logging.WARNING, unit=unit, **dataclasses.asdict(attempt))

    def note(step: list[int]) -> None:
        attempt.step = step
        store.note_attempt(unit, dataclasses.asdict(attempt))

    note([])
    if attempt.number <= _DEATHS_OF_A_UNIT:
        return encode(rows, None), []
    killers = [row for row in attempt.killers if row in rows]
    alone = [row for row in attempt.alone if row in rows and row not in killers]
    together = [row for row in rows if row not in killers and row not in alone]
    # The suspects first: an attempt that ends with one of them has then cost nothing else.
    vectors = [encode([row], note) for row in alone]
    vectors.append(encode(together, note))
    note([])
    order = np.argsort([*alone, *together], kind="stable")
    return np.concatenate(vectors)[order], killers
