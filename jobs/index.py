"""isogloss index: vectors -> FAISS index."""

from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, run_command, run_process
from pipeline.config import IndexConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("index", IndexConfig, argv, _work)


def _work(config: IndexConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.build_index import build_index

    about = build_index(config)
    summary = (
        f"{config.output}: {about['ntotal']:,} vectors of {about['dim']} values, {about['factory']}, "
        f"{about['metric']}, recall@10 {about['recall_at_10']:.3f}, {about['bytes'] / 2**20:,.1f} MiB"
    )
    return {"output": config.output, **about}, summary, OK


if __name__ == "__main__":
    run_process(main)
