"""What happens when the device's memory does not suffice for a batch."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch


class BatchTooLarge(Exception):
    """Memory ran out.

    Attributes:
        places: of the batch's rows.
        tokens: of the batch, padding included.
    """

    def __init__(self, places: np.ndarray, tokens: int) -> None:
        super().__init__(f"not enough memory for {len(places)} row(s) with {tokens} tokens")
        self.places, self.tokens = places, tokens


@contextlib.contextmanager
def naming_batch(places: np.ndarray, tokens: int) -> Iterator[None]:
    """Says, when memory runs out in the body, with which batch it did.

    Raises:
        BatchTooLarge
    """
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        # On a CPU torch has no class of its own for this.
        if not isinstance(problem, MemoryError | torch.OutOfMemoryError) and "allocate memory" not in str(problem):
            raise
        raise BatchTooLarge(places, tokens) from problem
