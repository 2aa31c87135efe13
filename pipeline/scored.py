"""What a scorer takes and gives."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

# float32 [D] by text.
Vectors = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scored:
    """One subset's figures.

    Attributes:
        scores: ``main_score`` first.
        n_items: how many examples were scored.
        items: one row an item, with ``item``, its row in the subset; for paired tests.
    """

    scores: dict[str, float]
    n_items: int
    items: pa.Table
