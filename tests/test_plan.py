"""What a run is expected to take, before it starts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import EncodeConfig
from pipeline.encode import Work, prepare
from pipeline.forecast import Sample, sample
from pipeline.plan import describe
from tests.conftest import byte_level, write_shard


def work(tiny: dict[str, str], folder: Path, **changes: Any) -> Work:
    options = {"model": tiny["llama"], "method": "lt", "input": str(folder / "in"), "output": str(folder / "out")}
    return prepare(EncodeConfig.model_validate({**options, **changes}))


def test_tokens_are_those_of_the_rows(tiny: dict[str, str], tmp_path: Path) -> None:
    long = "many words " * 40
    write_shard(tmp_path / "in" / "a.parquet", range(60), [long, None, "short text"] * 20)
    planned = work(tiny, tmp_path, unit_rows=20, max_length=32)
    plan, text = describe(planned, num_actors=2)
    tokens = 20 * 32 + 20 * len(byte_level()("short text")["input_ids"])
    assert (plan["rows_sampled"], plan["tokens"], plan["share_truncated"]) == (60, tokens, 0.5)
    assert plan["share_kept_out"] == pytest.approx(1 / 3, abs=1e-4)
    assert sum(plan["token_histogram"].values()) == 40 and plan["token_histogram"]["<= 32"] == 20
    assert "50.0% of the rows are cut, 33.3% kept out" in text
    assert not (tmp_path / "out").exists()


def test_a_sample_is_taken_from_all_over(tiny: dict[str, str], tmp_path: Path) -> None:
    for shard in range(20):
        write_shard(tmp_path / "in" / f"{shard:02d}.parquet", range(shard * 100, shard * 100 + 100), ["x"] * 100)
    assert sample(work(tiny, tmp_path)).rows == 8 * 64


def test_time_and_cost_go_by_the_work_and_the_price(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(100), ["a few words"] * 100)
    planned = work(tiny, tmp_path)
    plan, text = describe(planned, num_actors=1, price_per_hour=3600e6)
    assert plan["seconds"] >= 0 and plan["cost"] is not None and "matrix product" in text
    # What was done before tells more.
    planned.commits.append({"tokens": 100, "seconds": 50.0})
    plan, text = describe(planned, num_actors=1, price_per_hour=36.0)
    assert plan["seconds"] == plan["tokens"] / 2
    assert plan["cost"] == pytest.approx(plan["seconds"] / 100, abs=0.01)
    assert "as in the 1 unit(s) done" in text


def test_memory_counts_the_blocks_that_are_loaded(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(2), ["x"] * 2)
    whole, _ = describe(work(tiny, tmp_path, dtype="bfloat16"), num_actors=1)
    assert whole["model_bytes"] == 2 * whole["parameters"]
    part, _ = describe(work(tiny, tmp_path, method="key", dtype="bfloat16"), num_actors=1)
    assert part["model_bytes"] == 2 * part["parameters_used"] <= whole["model_bytes"]


def test_nothing_to_do_and_nothing_to_read(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", [], [])
    (tmp_path / "in" / "b.parquet").write_bytes(b"")
    plan, text = describe(work(tiny, tmp_path), num_actors=3)
    assert plan["tokens"] == 0 and plan["seconds"] is None and len(plan["unreadable_inputs"]) == 1
    assert "1 of them unreadable" in text


def test_histogram_of_known_lengths() -> None:
    lengths = np.array([1, 8, 9, 16, 17, 100])
    assert Sample(6, lengths, 0).histogram == {"<= 8": 2, "<= 16": 2, "<= 32": 1, "<= 64": 0, "<= 128": 1}
    assert Sample(2, np.array([3, 3]), 0).histogram == {"<= 8": 2}
