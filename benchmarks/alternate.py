"""Timings that a busy machine cannot bend one way: what is compared runs in turn, again and again."""

import statistics
import time
from collections.abc import Callable, Mapping


def alternated(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Runs each once for warming up, then all in turn ``rounds`` times; returns their seconds, round by round."""
    for run in runs.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: Mapping[str, list[float]], slow: str, fast: str) -> float:
    """Returns how many times as long ``slow`` took: the median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(seconds[slow], seconds[fast], strict=True))
