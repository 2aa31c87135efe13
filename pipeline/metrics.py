"""What an encoder reports to Prometheus, through Ray's own endpoint; docs/operations.md explains each."""

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Histogram

_TAGS = ("model", "method")
_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]


class EncoderMetrics:
    """Counts what one encoder actor commits."""

    def __init__(self, model: str, method: str) -> None:
        tags = {"model": model, "method": method}
        self._rows = Counter("isogloss_rows", "rows with a vector", _TAGS)
        self._quarantined = Counter("isogloss_rows_quarantined", "rows kept out, by reason", (*_TAGS, "reason"))
        self._tokens = Counter("isogloss_tokens", "tokens encoded, prompts included", _TAGS)
        self._tokens_run = Counter("isogloss_tokens_run", "tokens of forward passes, padding included", _TAGS)
        self._padding_run = Counter("isogloss_padding_run", "padding among them", _TAGS)
        self._truncated = Counter("isogloss_rows_truncated", "rows whose text was cut", _TAGS)
        self._seconds = Histogram("isogloss_unit_seconds", "from a unit's tokens to its commit", _SECONDS, _TAGS)
        for metric in vars(self).values():
            metric.set_default_tags(tags)

    def record(self, commit: Mapping[str, Any], tokens_run: int, padding_run: int) -> None:
        """Adds one unit; of the tokens of its forward passes, ``padding_run`` were padding."""
        for counter, count in (
            (self._rows, commit["rows_out"]),
            (self._tokens, commit["tokens"]),
            (self._tokens_run, tokens_run),
            (self._padding_run, padding_run),
            (self._truncated, commit["truncated"]),
        ):
            if count:
                counter.inc(count)
        for reason, count in commit["reasons"].items():
            self._quarantined.inc(count, {"reason": reason})
        self._seconds.observe(max(commit["seconds"], 1e-3))
