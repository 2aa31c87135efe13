"""isogloss sweep: scores over one parameter."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import SweepConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("sweep", SweepConfig, argv, _work)


def _work(config: SweepConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.sweep import sweep

    result = sweep(config)
    lines = [f"{config.over} {point['value']:>6}: {point['mean']:.4f}" for point in result["points"]]
    return result, "\n".join([*lines, f"best: {result['best']}; see {config.output}/recipe.yaml"]), OK


if __name__ == "__main__":
    run_process(main)
