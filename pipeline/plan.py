"""What an encode run would do, before it does it."""

from typing import Any

from pipeline.encode import Work


def describe(work: Work) -> tuple[dict[str, Any], str]:
    """Returns the plan as values and as text."""
    rows = sum(unit.rows or 0 for unit in work.todo)
    bytes_each = 2 if work.job.identity["vector_dtype"] == "float16" else 4
    unreadable = [shard.source for shard in work.shards if shard.row_groups is None]
    plan: dict[str, Any] = {
        "inputs": len(work.shards),
        "unreadable_inputs": unreadable,
        "units_to_do": len(work.todo),
        "units_done": work.done,
        "rows_to_do": rows,
        "width": work.job.plan.width,
        "parameters": work.job.plan.parameters,
        "parameters_used": work.job.plan.parameters_used,
        "output_bytes": rows * work.job.plan.width * bytes_each,
        "identity": work.job.identity,
        "fingerprint": work.job.fingerprint,
    }
    text = (
        f"{plan['inputs']} file(s), {len(unreadable)} of them unreadable; {plan['units_to_do']} unit(s) with "
        f"{rows:,} rows to do, {work.done} unit(s) done\n"
        f"model of {work.job.plan.parameters:,} parameters, {work.job.plan.parameters_used:,} of them loaded, in "
        f"{work.job.identity['dtype']} on {work.job.device}; "
        f"vectors of {work.job.plan.width} values, about {plan['output_bytes'] / 2**20:,.1f} MiB\n"
        "nothing was started or written"
    )
    return plan, text
