"""One JSON line for whatever happens to a unit, in the log that Ray keeps of each encoder's process."""

import json
import logging
import sys
import time
from typing import Any

_logger = logging.getLogger("isogloss")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname, "event": record.getMessage()}
        return json.dumps({**line, **getattr(record, "fields", {})}, ensure_ascii=False)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))


def start_log() -> None:
    """Begins to write this process's events to its standard error, which Ray keeps as worker-*.err."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json())
    _logger.handlers = [handler]
    _logger.setLevel(logging.INFO)
    _logger.propagate = False


def log(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Writes an event."""
    _logger.log(level, event, extra={"fields": fields})
