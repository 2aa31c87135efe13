"""isogloss fit: fits a language subspace from a parallel corpus."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import FitConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("fit", FitConfig, argv, _work)


def _work(config: FitConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.fit import describe_fit, fit, prepare_fit

    if config.plan:
        return *describe_fit(prepare_fit(config)), OK
    result = fit(config)
    left_out = sum(result["left_out"].values())
    summary = (
        f"{result['construction']} ({result['place']}) from {result['groups']} groups in "
        f"{len(result['languages'])} languages ({left_out} left out) is in {config.output}"
    )
    return result, summary, OK


if __name__ == "__main__":
    run_process(main)
