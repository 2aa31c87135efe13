"""Some of a run's texts, from all over its input."""

from collections.abc import Sequence

from pipeline.errors import RowKeptOut
from pipeline.rows import strings
from pipeline.source import Layout, Unit, read_unit


def sampled_texts(units: Sequence[Unit], layout: Layout, most_units: int, most_rows: int) -> list[str | None]:
    """Returns texts at equal distances in each of some units at equal distances; None for what is no text.

    A unit that cannot be read has none.
    """
    readable = [unit for unit in units if unit.rows]
    return [text for i in _spread(len(readable), most_units) for text in _texts(readable[i], layout, most_rows)]


def _texts(unit: Unit, layout: Layout, most: int) -> list[str | None]:
    try:
        column = read_unit(unit, layout).column(layout.text_column)
        found = strings(column.take(_spread(len(column), most)), layout.text_column)
    except RowKeptOut:
        return []
    return [text if isinstance(text, str) else None for text in found]


def _spread(count: int, most: int) -> list[int]:
    chosen = min(count, most)
    return [i * count // chosen for i in range(chosen)]
