"""isogloss search: queries -> hits."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from jobs.cli import FAILED, OK, run_command, run_process
from pipeline.config import SearchConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    return run_command("search", SearchConfig, argv, _work, lists=True)


def _work(config: SearchConfig) -> tuple[dict[str, Any], str, int]:
    from pipeline.search import search, write_hits

    hits, queries, refused = search(config)
    if config.output:
        write_hits(hits, config.output)
    texts = dict(zip(queries.ids, queries.texts, strict=True))
    lines = [f"query {query}: {problem}" for query, problem in refused.items()]
    result = {"hits": hits.to_pylist(), "errors": refused}
    return result, "\n".join([*lines, as_text(hits, texts)]).strip(), FAILED if refused and not hits.num_rows else OK


def as_text(hits: pa.Table, texts: dict[str, str]) -> str:
    """Returns the hits, a line each, under their queries."""
    lines, asked = [], None
    for hit in hits.to_pylist():
        query, rank, identifier, score = (hit.pop(name) for name in ("query_id", "rank", "id", "score"))
        if query != asked:
            lines.append(f"query {query}: {texts[query]}")
            asked = query
        lines.append(f"  {rank:>3}  {score:.4f}  {identifier}  " + "  ".join(str(value) for value in hit.values()))
    return "\n".join(lines) or "no hits"


if __name__ == "__main__":
    run_process(main)
