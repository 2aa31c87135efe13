"""What a large run costs beside the encoding itself, as the table docs/scale.md:

    python -m benchmarks.scale --data DATA --work WORK

Three measurements: a million short rows with a tiny model (memory of the driver, use of the object store, throughput
from begin to end); the same encoder in a run and in a bare loop, in turn; and a run begun again that has ten thousand
units behind it. DATA holds parallel/sib200_test_dev.parquet (lang, text).
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.gpu import save_model
from extractors import Encoder
from pipeline.demo import find_demo_model

ROWS, ROWS_A_SHARD = 1_000_000, 50_000
UNITS, ROWS_A_UNIT = 10_000, 10
TEXTS, TEXTS_A_UNIT = 1024, 128
DOCUMENT = Path(__file__).parent.parent / "docs" / "scale.md"


@dataclasses.dataclass
class Run:
    """What was seen of one command from outside.

    Attributes:
        seconds: from its start to its end.
        began, commits: when it started, and when each unit was committed, in order.
        driver_bytes: how many commits there were, and the driver's own resident memory, twice a second.
        store_bytes: the most shared memory, which is Ray's object store, beyond what there was before.
    """

    seconds: float
    began: float
    commits: list[float]
    driver_bytes: list[tuple[int, int]]
    store_bytes: int


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--rounds", type=int, default=3, help="of the bare loop and the run in turn; default: 3")
    given = parser.parse_args()
    tiny = given.work / "tiny"
    save_model(tiny, 2, 128, "float32", torch.device("cpu"))
    lines = [*million(tiny, given.work / "million"), *overhead(given.data, given.work, given.rounds)]
    lines += resumed(tiny, given.work / "resumed")
    DOCUMENT.write_text(document(lines), encoding="utf-8")


def million(model: Path, folder: Path) -> list[str]:
    """A million rows of short text."""
    for shard in range(ROWS // ROWS_A_SHARD):
        write(folder / "in" / f"{shard:03d}.parquet", shard * ROWS_A_SHARD, ROWS_A_SHARD)
    run = command(folder, "--model", str(model), "--method", "va-half", "--unit-rows", "4096")
    tenth = len(run.commits) // 10
    first, last = run.commits[tenth] - run.commits[0], run.commits[-1] - run.commits[-1 - tenth]
    parts = [
        [size for count, size in run.driver_bytes if part <= count // (tenth + 1) < part + 1] for part in range(10)
    ]
    memory = ", ".join(f"{max(sizes) / 2**20:.0f}" for sizes in parts if sizes)
    return [
        f"| a million rows, tiny model | {len(run.commits)} units in {run.seconds:.0f} s, "
        f"{ROWS / (run.commits[-1] - run.commits[0]):,.0f} rows/s |",
        f"| … throughput of the last tenth over the first | **{first / last:.2f}** |",
        f"| … memory of the driver in each tenth, MiB | {memory} |",
        f"| … most in Ray's object store, MiB | {run.store_bytes / 2**20:.0f} |",
    ]


def overhead(data: Path, work: Path, rounds: int) -> list[str]:
    """Seconds a row of a run between its first and its last commit, over those of a loop around the same encoder."""
    rows = pq.read_table(data / "parallel" / "sib200_test_dev.parquet").to_pylist()
    texts = [row["text"] for row in rows if row["lang"] in ("eng_Latn", "fra_Latn")][:TEXTS]
    model, ratios = find_demo_model(), []
    encoder = Encoder(model, "va-half", device="cpu")
    for number in range(rounds):
        folder = work / f"overhead-{number}"
        write(folder / "in" / "a.parquet", 0, len(texts), texts)
        run = command(folder, "--model", model, "--method", "va-half", "--unit-rows", str(TEXTS_A_UNIT))
        in_run = (run.commits[-1] - run.commits[0]) / (len(texts) - TEXTS_A_UNIT)
        began = time.perf_counter()
        for begin in range(TEXTS_A_UNIT, len(texts), TEXTS_A_UNIT):
            encoder.encode(texts[begin : begin + TEXTS_A_UNIT])
        ratios.append(in_run / ((time.perf_counter() - began) / (len(texts) - TEXTS_A_UNIT)))
    return [
        f"| a run over a bare loop, SmolLM2-135M, {len(texts)} sentences, seconds a row | "
        f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |"
    ]


def resumed(model: Path, folder: Path) -> list[str]:
    """A run with many units done, to which a file is added."""
    options = ["--model", str(model), "--method", "va-half", "--unit-rows", str(ROWS_A_UNIT)]
    write(folder / "in" / "a.parquet", 0, UNITS * ROWS_A_UNIT)
    whole = command(folder, *options)
    write(folder / "in" / "b.parquet", UNITS * ROWS_A_UNIT, ROWS_A_UNIT)
    again = command(folder, *options)
    return [
        f"| {UNITS:,} units of {ROWS_A_UNIT} rows, from nothing | {whole.seconds:.0f} s |",
        f"| … one unit more: from the start to its commit | **{again.commits[-1] - again.began:.1f} s** |",
        f"| … to the end of the command, all ids checked | {again.seconds:.1f} s |",
    ]


def write(path: Path, first: int, rows: int, texts: list[str] | None = None) -> None:
    """Writes a shard with ids from ``first`` on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = range(first, first + rows)
    pq.write_table(pa.table({"id": ids, "text": texts or [f"the text of row {number}" for number in ids]}), path)


def command(folder: Path, *options: str) -> Run:
    """Runs encode from ``folder``/in to ``folder``/out and looks at it from outside."""
    began = time.time()
    there = committed(folder)
    process = psutil.Popen(
        [sys.executable, "-m", "jobs.encode", "--input", str(folder / "in"), "--output", str(folder / "out"), *options],
        env={**os.environ, "RAY_worker_niceness": "0"},
        stderr=subprocess.DEVNULL,
    )
    memory: list[tuple[int, int]] = []
    shared_before, store = psutil.virtual_memory().shared, 0
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
            memory.append((len(os.listdir(folder / "out" / "commits")), process.memory_info().rss))
        store = max(store, psutil.virtual_memory().shared - shared_before)
        time.sleep(0.5)
    seconds = time.time() - began
    if process.returncode != 0:
        raise SystemExit(f"the command failed with status {process.returncode}")
    commits = sorted(time for name, time in committed(folder).items() if name not in there)
    return Run(seconds, began, commits, memory, store)


def committed(folder: Path) -> dict[str, float]:
    """Returns when each unit was committed."""
    return {path.name: path.stat().st_mtime for path in (folder / "out" / "commits").glob("*.json")}


def document(lines: list[str]) -> str:
    """Returns the Markdown page."""
    return "\n".join(
        [
            "# Scale, measured",
            "",
            "`python -m benchmarks.scale --data DATA --work WORK` writes this page; 2 cores, float32.",
            "",
            "| what | measured |",
            "|---|---|",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    main()
