"""isogloss encode: Parquet shards -> Parquet vectors."""

import sys
from collections.abc import Sequence
from typing import Any

from jobs.cli import OK, TOO_MANY_QUARANTINED, run_command, run_process
from pipeline.config import EncodeConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("encode", EncodeConfig, argv, _work)


def _work(config: EncodeConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.encode import prepare, run
    from pipeline.output_dim import with_output_dim
    from pipeline.plan import describe

    work = prepare(config if config.plan else with_output_dim(config))
    plan, text = describe(work, config.num_actors, config.price_per_hour, config.output_dim)
    if config.plan:
        return plan, f"{text}\nnothing was started or written", OK
    print(text, file=sys.stderr, flush=True)
    report = run(work, config.num_actors, config.stalled_after)
    allowed = config.max_quarantined * report["rows_in"]
    status = TOO_MANY_QUARANTINED if report["rows_quarantined"] > allowed else OK
    summary = (
        f"{config.output}: {report['status']}, {report['rows_out']:,} vectors of {report['rows_in']:,} rows, "
        f"{report['rows_quarantined']:,} quarantined{_listed(report['reasons'])}, {report['truncated']:,} truncated"
    )
    if report["duplicates"]:
        summary += f"; {len(report['duplicates'])} id(s) stand in more than one unit, see report.json"
    return {"output": config.output, **report}, summary, status


def _listed(reasons: dict[str, int]) -> str:
    return f" ({', '.join(f'{code}: {count}' for code, count in sorted(reasons.items()))})" if reasons else ""


if __name__ == "__main__":
    run_process(main)
