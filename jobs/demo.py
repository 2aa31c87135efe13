"""isogloss demo: the whole chain on real text."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import DemoConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("demo", DemoConfig, argv, _work, lists=True)


def _work(config: DemoConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.demo import demo

    results, summary = demo(config)
    return results, summary, OK


if __name__ == "__main__":
    run_process(main)
