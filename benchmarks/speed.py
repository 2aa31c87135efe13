"""Tokens a second on a CPU, against sentence-transformers and plain transformers, as the table docs/speed.md:

    python -m benchmarks.speed --data DATA

DATA holds bitext/tatoeba.parquet (tgt, in English), parallel/sib200_test_dev.parquet (lang, text) and
retrieval/scifact/corpus.parquet (title, text). All figures of a line come from runs in turn; ours with the default
batches, the rivals with their best batch size, found on the same texts.
"""

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.alternate import alternated, ratio
from benchmarks.rivals import BATCH_SIZES, PlainTransformers, library_encodes, sentence_transformer
from extractors import Encoder
from extractors.backbone import Dtype, find_model
from extractors.encoder import DEFAULT_TOKEN_BUDGET
from extractors.inputs import TokenIds
from extractors.prompts import fill_in, template_of
from pipeline.demo import find_demo_model
from pipeline.peak import matmul_flops

# The rivals' pooling; of values they know nothing, and so they get the mean of the last hidden state.
METHODS = {"va-half": "mean", "prompteol": "lasttoken"}
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")
# Whose memory is measured.
ENCODED = ("va-half", "prompteol", "aligned-wva-futureeol")
# Of an encoder's memory: what a batch of SmolLM2's sizes may take.
ACTIVATIONS_A_TOKEN = 64 * 2**10
DOCUMENT = Path(__file__).parent.parent / "docs" / "speed.md"


def main() -> None:
    """Measures and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default=find_demo_model(), help="default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--sets", nargs="+", metavar="SET", help="default: all four")
    given = parser.parse_args()
    sets = {name: texts for name, texts in text_sets(given.data).items() if name in (given.sets or [name])}
    peaks = {dtype: matmul_flops("cpu", dtype) for dtype in DTYPES}
    lines = [
        against_rivals(given.model, dtype, method, name, texts, peaks[dtype], given.rounds)
        for dtype in DTYPES
        for method in METHODS
        for name, texts in sets.items()
    ]
    own = against_itself(given.model, text_sets(given.data)["Tatoeba"], given.rounds)
    memory = [memory_line(given.model, dtype, method) for dtype in DTYPES for method in ENCODED]
    DOCUMENT.write_text(document(lines, own, memory, peaks, sets), encoding="utf-8")


def text_sets(data: Path, seed: int = 0) -> dict[str, list[str]]:
    """Returns the four sets of texts, each in random order."""
    draw = random.Random(seed)
    tatoeba = pq.read_table(data / "bitext" / "tatoeba.parquet").column("tgt").to_pylist()
    sib = pq.read_table(data / "parallel" / "sib200_test_dev.parquet")
    english = [row["text"] for row in sib.to_pylist() if row["lang"] == "eng_Latn"]
    abstracts = pq.read_table(data / "retrieval" / "scifact" / "corpus.parquet").to_pylist()
    return {
        "Tatoeba": draw.sample(tatoeba, 160),
        "SIB-200": draw.sample(english, 48),
        "SciFact": [f"{row['title']} {row['text']}" for row in draw.sample(abstracts, 4)],
        "log-normal mix": [_of_length(draw, english, draw.lognormvariate(4.6, 0.9)) for _ in range(64)],
    }


def _of_length(draw: random.Random, sentences: list[str], characters: float) -> str:
    """Joins sentences up to a length, which is at least one word's."""
    text = draw.choice(sentences)
    while len(text) < characters:
        text = f"{text} {draw.choice(sentences)}"
    return text[: max(8, int(characters))]


def against_rivals(
    model: str, dtype: Dtype, method: str, name: str, texts: list[str], peak: float, rounds: int
) -> list[str]:
    """Returns one line of the table."""
    device, location = torch.device("cpu"), find_model(model).location
    encoder = Encoder(model, method, dtype=dtype, device="cpu")
    library = sentence_transformer(location, dtype, METHODS[method], device)
    plain = PlainTransformers(location, dtype, METHODS[method], device)
    template = template_of("prompteol") if method == "prompteol" else "{text}"
    filled = [template.replace("{text}", fill_in(template, text)) for text in texts]
    size = fastest(BATCH_SIZES, functools.partial(library_encodes, library, filled))
    plain_size = fastest(BATCH_SIZES, functools.partial(plain.encode, filled))
    if method == "prompteol":
        refuse_difference(encoder.encode(texts), library_encodes(library, filled, size))
    runs: dict[str, Callable[[], object]] = {
        "ours": lambda: encoder.encode(texts),
        "sentence-transformers": lambda: library_encodes(library, filled, size),
        "transformers": lambda: plain.encode(filled, plain_size),
    }
    seconds = alternated(runs, rounds)
    rows = [row for (row, *_) in encoder.tokenizer.tokenize(texts) if isinstance(row, TokenIds)]
    own_tokens = sum(row.text_end - row.text_begin for row in rows)
    lengths = [len(row.ids) for row in rows]
    speeds = {run: own_tokens / statistics.median(times) for run, times in seconds.items()}
    cells = [
        *(dtype, f"`{method}`", name),
        *(f"{speed:,.0f}" for speed in speeds.values()),
        f"**{ratio(seconds, 'sentence-transformers', 'ours'):.2f}**",
        f"{ratio(seconds, 'transformers', 'ours'):.2f}",
        f"{100 * flops(encoder, lengths) / statistics.median(seconds['ours']) / peak:.0f} %",
        f"{size} / {plain_size}",
    ]
    print(" | ".join(cells), flush=True)
    return cells


def fastest(sizes: tuple[int, ...], run: Callable[[int], object]) -> int:
    """Returns the size that runs in the least time, after one run for warming up."""
    run(sizes[0])
    seconds = {}
    for size in sizes:
        began = time.perf_counter()
        run(size)
        seconds[size] = time.perf_counter() - began
    return min(seconds, key=lambda size: seconds[size])


def refuse_difference(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Stops the benchmark when the vectors compared are not the same."""
    cosine = (ours * theirs).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)
    if cosine.min() < 0.999:
        raise SystemExit(f"the two do not compute the same: cosine {cosine.min()}")


def flops(encoder: Encoder, lengths: list[int]) -> float:
    """Returns the multiplications and additions of the texts' tokens: 2 for each weight and token, causal attention.

    Padding, the prompt's shared beginning, and the last block, of which only a part is run, are not in it.
    """
    config, blocks = encoder.backbone.config, encoder.backbone.blocks[: encoder.method.blocks_run - 1]
    weights = sum(weight.numel() for block in blocks for weight in block.parameters())
    attention = 2 * len(blocks) * config.hidden_size
    prefix = 0 if encoder._prefix_ids[0] is None else len(encoder._prefix_ids[0])
    return sum(2 * weights * (n - prefix) + attention * (n**2 - prefix**2) for n in lengths)


def against_itself(model: str, texts: list[str], rounds: int) -> list[list[str]]:
    """Returns the lines on what a prompt's beginning, run once, and bfloat16 save."""
    lines = []
    for dtype in DTYPES:
        encoders = {m: Encoder(model, m, dtype=dtype) for m in ("prompteol", "aligned-wva-prompteol", "metaeol")}
        whole = {m: Encoder(model, m, dtype=dtype) for m in ("prompteol", "aligned-wva-prompteol")}
        for encoder in whole.values():
            encoder._prefix_ids = [None]
        runs: dict[str, Callable[[], object]] = {m: functools.partial(e.encode, texts) for m, e in encoders.items()}
        runs |= {f"{m}, whole": functools.partial(e.encode, texts) for m, e in whole.items()}
        seconds = alternated(runs, rounds)
        for m in whole:
            lines.append([dtype, f"`{m}` without reuse / with", f"{ratio(seconds, f'{m}, whole', m):.2f}"])
        lines.append([dtype, "`metaeol` / `prompteol`", f"{ratio(seconds, 'metaeol', 'prompteol'):.2f}"])
        lines.append(
            [dtype, "sentence-transformers as it comes / `va-half`", f"{as_it_comes(model, dtype, texts, rounds):.2f}"]
        )
    formats = {dtype: Encoder(model, "va-half", dtype=dtype) for dtype in DTYPES}
    runs = {dtype: functools.partial(e.encode, texts) for dtype, e in formats.items()}
    lines.append(["–", "`va-half` float32 / bfloat16", f"{ratio(alternated(runs, rounds), *DTYPES):.2f}"])
    return lines


def as_it_comes(model: str, dtype: Dtype, texts: list[str], rounds: int) -> float:
    """Returns sentence-transformers' time over ours when it may use the model's chat template."""
    chat = sentence_transformer(find_model(model).location, dtype, "mean", torch.device("cpu"), chat=True)
    size = fastest(BATCH_SIZES, functools.partial(library_encodes, chat, texts))
    ours = Encoder(model, "va-half", dtype=dtype)
    pair = {"ours": lambda: ours.encode(texts), "theirs": lambda: library_encodes(chat, texts, size)}
    return ratio(alternated(pair, rounds), "theirs", "ours")


def memory_line(model: str, dtype: Dtype, method: str) -> list[str]:
    """Returns one line of the table of memory, measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.memory", "--model", model, "--method", method, "--dtype", dtype]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    figures = json.loads(done.stdout)
    allowed = 1.15 * figures["weights"] + figures["token_budget"] * ACTIVATIONS_A_TOKEN
    sizes = (figures["weights"], figures["encoding"], allowed, figures["loading"])
    return [dtype, f"`{method}`", *(f"{size / 2**20:,.0f}" for size in sizes)]


def document(
    lines: list[list[str]],
    own: list[list[str]],
    memory: list[list[str]],
    peaks: Mapping[Dtype, float],
    sets: dict[str, list[str]],
) -> str:
    """Returns the Markdown page."""
    texts = "; ".join(
        f"{name}: {len(given)} of {statistics.median(map(len, given)):.0f} characters in the middle"
        for name, given in sets.items()
    )
    peak = ", ".join(f"{dtype} {value / 1e9:,.0f} GFLOP/s" for dtype, value in peaks.items())
    head = (
        "| dtype | method | texts | ours, tokens/s | sentence-transformers | transformers | ratio to "
        "sentence-transformers | to transformers | share of matmul peak | their batch sizes |"
    )
    return "\n".join(
        [
            "# Speed on a CPU",
            "",
            "`python -m benchmarks.speed --data DATA` writes this page.",
            "",
            f"SmolLM2-135M-Instruct, {os.cpu_count()} cores, torch {torch.__version__}. Tokens of the texts themselves "
            f"(no template) a second; medians, and ratios within rounds run in turn. {texts}. Largest matrix product "
            f"measured: {peak}. sentence-transformers gets plain texts, so that it computes the same; as it comes, it "
            "puts each text into the model's chat template.",
            "",
            head,
            "|" + "---|" * 10,
            *(f"| {' | '.join(cells)} |" for cells in lines),
            "",
            "Time against time, Tatoeba:",
            "",
            "| dtype | what | ratio |",
            "|---|---|---|",
            *(f"| {' | '.join(cells)} |" for cells in own),
            "",
            "Memory of an encoder beyond Python and its libraries, MiB. Allowed: the weights that are used, 15 % more, "
            f"and {ACTIVATIONS_A_TOKEN // 1024} KiB for each token of a batch ({DEFAULT_TOKEN_BUDGET['cpu']}). While "
            "it loads, pages of the model's float32 file count too, which the system takes back when it needs them.",
            "",
            "| dtype | method | weights used | encoding, at most | allowed | loading, at most |",
            "|---|---|---|---|---|---|",
            *(f"| {' | '.join(cells)} |" for cells in memory),
            "",
        ]
    )


if __name__ == "__main__":
    main()
