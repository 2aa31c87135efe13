"""isogloss evaluate: scores a method on tasks."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import EvaluateConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("evaluate", EvaluateConfig, argv, _work)


def _work(config: EvaluateConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.evaluate import evaluate

    results = evaluate(config)
    lines = []
    for result in results:
        left_out = sum(result["n_left_out"].values())
        lines.append(f"{result['task']}: {result['main_score']:.4f} ({result['n_items']} items, {left_out} left out)")
        lines += [f"  {name}: {scores['main_score']:.4f}" for name, scores in result["subsets"].items()]
    return {"output": config.output, "results": results}, "\n".join(lines), OK


if __name__ == "__main__":
    run_process(main)
