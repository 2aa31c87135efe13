"""What an encode run would do, before it does it."""

from typing import Any

import numpy as np

from pipeline.cluster import threads
from pipeline.encode import Work
from pipeline.forecast import model_bytes, sample, tokens_per_second, warnings
from pipeline.progress import clock

_VECTOR_BYTES = {"float32": 4, "float16": 2}


def describe(
    work: Work, num_actors: int, price_per_hour: float | None = None, output_dim: int | None = None
) -> tuple[dict[str, Any], str]:
    """Returns the plan as values and as text; starts nothing and writes nothing.

    Args:
        price_per_hour: of everything the run occupies, in any currency.
        output_dim: values of a vector, if they are to be fewer than the method's.
    """
    plan = _values(work, min(num_actors, max(1, len(work.todo))), price_per_hour, output_dim or work.job.plan.width)
    return plan, "\n".join(_lines(plan, work))


def _values(work: Work, actors: int, price_per_hour: float | None, width: int) -> dict[str, Any]:
    job = work.job
    rows = sum(unit.rows or 0 for unit in work.todo)
    sampled = sample(work)
    share = len(sampled.tokens) / max(1, sampled.rows)
    tokens = round(rows * share * float(sampled.tokens.mean())) if sampled.tokens.size else 0
    speed, known_from = tokens_per_second(work) if tokens else (None, "nothing to encode")
    # Encoders on one machine's CPU share its cores.
    encoders = actors if job.device == "cuda" else 1
    seconds = tokens / (speed * encoders) if speed else None
    return {
        "inputs": len(work.shards),
        "unreadable_inputs": [shard.source for shard in work.shards if shard.row_groups is None],
        "units_to_do": len(work.todo),
        "units_done": len(work.commits),
        "rows_to_do": rows,
        "rows_sampled": sampled.rows,
        "tokens": tokens,
        "token_histogram": sampled.histogram,
        "token_percentiles": _percentiles(sampled.tokens),
        "share_truncated": round(sampled.truncated / max(1, len(sampled.tokens)), 4),
        "share_kept_out": round(1 - share, 4) if sampled.rows else 0.0,
        "width": width,
        "parameters": job.plan.parameters,
        "parameters_used": job.plan.parameters_used,
        "model_bytes": model_bytes(job.plan, job.identity["dtype"]),
        "actors": actors,
        "device": job.device,
        "output_bytes": rows * width * _VECTOR_BYTES[job.identity["vector_dtype"]],
        "seconds": None if seconds is None else round(seconds, 1),
        "seconds_known_from": known_from,
        "cost": None if seconds is None or price_per_hour is None else round(seconds / 3600 * price_per_hour, 2),
        "warnings": warnings(work),
        "identity": job.identity,
        "fingerprint": job.fingerprint,
    }


def _percentiles(tokens: np.ndarray) -> dict[str, int]:
    return {str(p): int(np.percentile(tokens, p)) for p in (5, 50, 95, 100)} if tokens.size else {}


def _lines(plan: dict[str, Any], work: Work) -> list[str]:
    own = "1 GPU" if plan["device"] == "cuda" else f"{threads(plan['actors'])} CPU thread(s)"
    lines = [
        f"{plan['inputs']} file(s), {len(plan['unreadable_inputs'])} of them unreadable; {plan['units_to_do']} unit(s) "
        f"with {plan['rows_to_do']:,} rows to do, {plan['units_done']} unit(s) done",
        f"model of {plan['parameters']:,} parameters, {plan['parameters_used']:,} of them loaded, in "
        f"{plan['identity']['dtype']}: {_size(plan['model_bytes'])} for each of {plan['actors']} actor(s) with {own}",
    ]
    if plan["tokens"]:
        at = plan["token_percentiles"]
        lines.append(
            f"about {plan['tokens']:,} tokens by a sample of {plan['rows_sampled']:,} rows: {at['50']} a row in the "
            f"middle, {at['95']} at 95 %, {at['100']} at most; {plan['share_truncated']:.1%} of the rows are cut, "
            f"{plan['share_kept_out']:.1%} kept out"
        )
    lines.append(f"vectors of {plan['width']} values, about {_size(plan['output_bytes'])}")
    if plan["seconds"] is not None:
        cost = f", cost about {plan['cost']:,.2f}" if plan["cost"] is not None else ""
        lines.append(f"about {clock(plan['seconds'])} for encoding ({plan['seconds_known_from']}){cost}")
    elif plan["tokens"]:
        lines.append(f"time {plan['seconds_known_from']}")
    return [*lines, *(f"warning: {warning}" for warning in plan["warnings"])]


def _size(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"
