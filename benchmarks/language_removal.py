"""Language removal in all its forms, as the table docs/language-removal.md:

    python -m benchmarks.language_removal --data DATA --work WORK

For DATA see benchmarks/tasks.py. Fitted on NTREX-128 rows 1000-1399 in 15 languages, chosen on rows 600-799, reported
on rows 0-199. What WORK already holds is not computed again, so a run that was stopped goes on.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.tasks import (
    TEST_ROWS,
    TRAIN_ROWS,
    banking77,
    bitext,
    long,
    ntrex,
    options,
    sib200,
    sib200_groups,
    tatoeba,
    tico19,
    xquad_questions,
)
from extractors.subspace import Subspace, load_subspace
from pipeline.config import EvaluateConfig, FitConfig, SweepConfig
from pipeline.evaluate import SCORERS, evaluate
from pipeline.examples import Examples, read_examples
from pipeline.fit import fit
from pipeline.geometry import score_geometry
from pipeline.store import VectorStore
from pipeline.sweep import sweep
from pipeline.tasks import COLUMNS, load_task
from pipeline.vectors import matrix

FITTED = ("fra", "deu", "spa", "ita", "rus")
NEW = ("cat", "dan", "ces", "ind", "swa", "vie")
LANGUAGES = (
    *("eng", "fra", "deu", "spa", "ita", "por", "nld", "pol"),
    *("rus", "tur", "arb", "zho-CN", "ron", "swe", "ell"),
)
TATOEBA = ("fra", "deu", "cat", "nob")
IN_BLOCKS = ("prsr", "random", "language-mean", "shuffled-pair")
METHODS = ("futureeol", "aligned-wva-futureeol", "prompteol", "va-concat")
# The values of five blocks side by side instead of their mean.
VA_CONCAT = {"read": "value", "layers": "20-24", "pooling": "mean", "combine": "concat"}
# Steered in the blocks too; the others from their finished vectors only.
STEERED = ("prompteol", "aligned-wva-futureeol")
# AlignedWVA reads attention outputs up to block 26: what is steered later, it does not see.
STARTS = {"prompteol": (16, 20, 24, 26, 27, 28, 29), "aligned-wva-futureeol": (8, 14, 18, 20, 22, 24)}
SHRINKAGES = (0.1, 0.3, 0.6)
# The method whose subspaces are fitted on other corpora of as many groups too.
ON_CORPORA = "aligned-wva-futureeol"
# What all four parallel sets hold, each under its own names.
COMMON = ("eng", "spa", "rus", "arb", "zho-CN")
TASKS = ("fitted", "new", "tatoeba", "banking77", "sib200")
DOCUMENT = Path(__file__).parent.parent / "docs" / "language-removal.md"

Scores = dict[str, dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: scores by task; of bitext tasks accuracy into English and out of it."""

    method: str
    removal: str
    scores: Scores


def main() -> None:
    """Parses options, runs what is missing and writes the document."""
    parser = options(__doc__)
    parser.add_argument("--groups", type=int, default=400, help="default: 400")
    given = parser.parse_args()
    study = Study(given.work, given.model, given.dtype, given.groups)
    study.write_tasks(given.data)
    rows = [row for method in METHODS for row in study.rows(method)]
    geometry = [line for method in METHODS for line in study.geometry(method)]
    DOCUMENT.write_text(document(rows, geometry, study), encoding="utf-8")


class Study:
    """The runs, each with a folder of its own in ``work``."""

    def __init__(self, work: Path, model: str, dtype: str, groups: int) -> None:
        self.work, self.groups = work, groups
        self.options: dict[str, Any] = {"model": model, "dtype": dtype}
        self.starts: dict[str, dict[str, Any]] = {}

    def write_tasks(self, data: Path) -> None:
        """Cuts the corpus to fit on and the tasks out of the data."""
        self.work.mkdir(parents=True, exist_ok=True)
        pq.write_table(ntrex(data, LANGUAGES, 1000, 1000 + self.groups), self.work / "fit.parquet")
        half, quarter = self.groups // 2, self.groups // 4
        two = [long(ntrex(data, LANGUAGES, 1000, 1000 + half), "ntrex"), sib200_groups(data, LANGUAGES, half)]
        four = [
            long(ntrex(data, COMMON, 1000, 1000 + quarter), "ntrex"),
            sib200_groups(data, COMMON, quarter),
            tico19(data, COMMON, quarter),
            xquad_questions(data, COMMON, quarter),
        ]
        for name, parts in (("two", two), ("four", four)):
            pq.write_table(pa.concat_tables(parts), self.work / f"fit-{name}.parquet")
        (self.work / "va-concat.yaml").write_text(yaml.safe_dump(VA_CONCAT), encoding="utf-8")
        bitext(self.work, "dev", ntrex(data, ("eng", *FITTED), 600, 800), FITTED)
        bitext(self.work, "fitted", ntrex(data, ("eng", *FITTED), 0, 200), FITTED)
        bitext(self.work, "new", ntrex(data, ("eng", *NEW), 0, 200), NEW)
        tatoeba(data, self.work, TATOEBA, 200)
        banking77(data, self.work)
        sib200(data, self.work)

    def argument(self, method: str) -> str:
        """Returns what --method takes for a method of the table."""
        return str(self.work / f"{method}.yaml") if method == "va-concat" else method

    def task_files(self, *names: str) -> list[str]:
        """Returns the task files of these names."""
        return [str(self.work / f"{name}.yaml") for name in names]

    def rows(self, method: str) -> Iterator[Row]:
        """Yields the baseline, then removal from the finished vectors, then removal in the blocks."""
        yield Row(method, "none", self.evaluated(method, "none", ("dev", *TASKS)))
        for name, changes in EMBEDDING.items():
            subspace = load_subspace(self.fitted(method, name, place="embedding", **changes))
            yield Row(method, name, self.applied(method, subspace))
        if method == ON_CORPORA:
            for name, (corpus, languages) in CORPORA.items():
                for removal in ("hard", "soft"):
                    label = f"{removal} {corpus} {len(languages)}"
                    path = self.fitted(method, label, corpus, languages, place="embedding", removal=removal)
                    subspace = load_subspace(path)
                    yield Row(method, f"{LABELS[removal]}, {name}", self.applied(method, subspace))
        chosen = self.best_shrinkage(method)
        yield Row(method, f"soft {chosen} (chosen)", self.applied(method, self.soft(method, chosen)))
        if method in STEERED:
            start = self.best_start(method)
            for construction in IN_BLOCKS:
                run = f"{construction} in blocks"
                path = self.fitted(method, run, start_layer=start, construction=construction)
                yield Row(method, f"{run} ≥ {start}", self.evaluated(method, run, TASKS, subspace=[path]))

    def evaluated(self, method: str, name: str, tasks: Sequence[str], **changes: Any) -> Scores:
        """Scores a method on tasks, or finds that it was done."""
        output = self.work / "results" / method / name
        print(f"— {method}, {name}", file=sys.stderr, flush=True)
        if not all((output / f"{task}.json").exists() for task in tasks):
            config = {**self.options, **changes, "method": self.argument(method), "output": str(output)}
            evaluate(EvaluateConfig.model_validate({**config, "task": self.task_files(*tasks)}))
        found = {task: json.loads((output / f"{task}.json").read_text(encoding="utf-8")) for task in tasks}
        return {task: {"main_score": result["main_score"], **result["metrics"]} for task, result in found.items()}

    def fitted(
        self, method: str, name: str, corpus: str = "fit", languages: Sequence[str] = LANGUAGES, **changes: Any
    ) -> str:
        """Fits a subspace, or finds that it was done; returns its file."""
        place = changes.get("place", "blocks")
        output = self.work / "subspaces" / method / f"{name}.safetensors"
        if not output.exists():
            folder = f"{method}-{place}" if corpus == "fit" else f"{method}-{place}-{corpus}"
            states = {"states": str(self.work / "states" / folder), "keep_states": True}
            config = {**self.options, **states, **changes, "method": self.argument(method), "output": str(output)}
            texts = {"input": str(self.work / f"{corpus}.parquet"), "languages": list(languages)}
            fit(FitConfig.model_validate({**config, **texts}))
        return str(output)

    def best_start(self, method: str) -> int:
        """Returns the start layer that scores best on the development rows."""
        output = self.work / "sweeps" / method
        if not (output / "sweep.json").exists():
            config = {
                **self.options,
                "method": self.argument(method),
                "over": "start-layer",
                "values": list(map(str, STARTS[method])),
            }
            corpus = {"input": str(self.work / "fit.parquet"), "languages": list(LANGUAGES)}
            states = {"states": str(self.work / "states" / f"{method}-blocks"), "output": str(output)}
            sweep(SweepConfig.model_validate({**config, **corpus, **states, "task": self.task_files("dev")}))
        self.starts[method] = json.loads((output / "sweep.json").read_text(encoding="utf-8"))
        return int(self.starts[method]["best"])

    def soft(self, method: str, shrinkage: float) -> Subspace:
        """Returns soft removal of a strength."""
        changes: dict[str, Any] = {"place": "embedding", "removal": "soft", "shrinkage": shrinkage}
        return load_subspace(self.fitted(method, f"soft {shrinkage}", **changes))

    def best_shrinkage(self, method: str) -> float:
        """Returns the shrinkage that scores best on the development rows."""
        return max(SHRINKAGES, key=lambda s: _both(self.applied(method, self.soft(method, s), ("dev",))["dev"]))

    def applied(self, method: str, subspace: Subspace, tasks: Sequence[str] = TASKS) -> Scores:
        """Scores the vectors of the baseline with a subspace removed; no text is encoded again."""
        by_id = self._plain(method)
        return {task: self._applied_to(task, by_id, subspace) for task in tasks}

    def _plain(self, method: str) -> dict[str, np.ndarray]:
        store = VectorStore(str(self.work / "results" / method / "none" / "encoded" / "vectors"))
        by_id: dict[str, np.ndarray] = {}
        for _, table in store.iter_vectors(["id", "vector"]):
            by_id.update(zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True))
        return by_id

    def geometry(self, method: str) -> Iterator[str]:
        """Yields lines of the table of geometry: the reported rows of NTREX, plain and after soft removal."""
        task, data = load_task(*self.task_files("fitted"))
        texts = sorted({text for part in read_examples(task, data) for text in part.all_texts()})
        by_id = self._plain(method)
        plain = {text: by_id[f"fitted#{i}"] for i, text in enumerate(texts)}
        table = pq.read_table(self.work / "fitted.parquet", columns=["eng", *FITTED])
        rows = [(i, name, text) for name in table.column_names for i, text in enumerate(table.column(name).to_pylist())]
        columns = dict(zip(("group", "lang", "text"), map(list, zip(*rows, strict=True)), strict=True))
        part = Examples("default", COLUMNS["geometry"], list(range(len(rows))), columns, {})
        removed = self.soft(method, self.best_shrinkage(method)).apply(np.stack([plain[text] for text in texts]), None)
        for name, vectors in (("none", plain), ("soft", dict(zip(texts, removed, strict=True)))):
            scores = score_geometry(part, vectors).scores
            measures = ("nmi", "ari", "ordering_violations", "distance_ratio")
            yield f"| `{method}` | {name} | {' | '.join(f'{scores[key]:.3f}' for key in measures)} |"

    def _applied_to(self, name: str, by_id: dict[str, np.ndarray], subspace: Subspace) -> dict[str, float]:
        task, data = load_task(*self.task_files(name))
        parts = read_examples(task, data)
        texts = sorted({text for part in parts for text in part.all_texts()})
        plain = {text: by_id[f"{name}#{i}"] for i, text in enumerate(texts)}
        scores = []
        for part in parts:
            sides = {"source": part.subset.removesuffix("-eng")} if task.type == "bitext" else {}
            vectors: dict[str, np.ndarray] = {}
            for column in part.kind.texts:
                own = list(dict.fromkeys(part.columns[column]))
                languages = [sides.get(column, "eng")] * len(own)
                if not subspace.language_bases or languages[0] in subspace.language_bases:
                    changed = subspace.apply(np.stack([plain[text] for text in own]), languages)
                else:
                    # A language without a basis stays as it is.
                    changed = np.stack([plain[text] for text in own])
                vectors.update(zip(own, changed, strict=True))
            scores.append(SCORERS[task.type](part, vectors).scores)
        return {key: float(np.mean([score[key] for score in scores])) for key in scores[0]}


EMBEDDING: dict[str, dict[str, Any]] = {
    "hard": {"removal": "hard-uncentred"},
    "centred hard": {"removal": "hard"},
    **{f"soft {shrinkage}": {"removal": "soft", "shrinkage": shrinkage} for shrinkage in SHRINKAGES},
    "lir": {"construction": "lir"},
    "lsar": {"construction": "lsar"},
    "random": {"construction": "random"},
    "language-mean": {"construction": "language-mean"},
    "shuffled-pair": {"construction": "shuffled-pair"},
}

LABELS = {"hard": "centred hard", "soft": "soft 0.3"}
# Corpora by what the table calls them: the file, and the languages that are fitted.
CORPORA: dict[str, tuple[str, tuple[str, ...]]] = {
    "NTREX + SIB-200": ("fit-two", LANGUAGES),
    "NTREX, 5 languages": ("fit", COMMON),
    "NTREX + SIB-200 + TICO-19 + XQuAD, 5 languages": ("fit-four", COMMON),
}


def _both(scores: dict[str, float]) -> float:
    return (scores["accuracy"] + scores["accuracy_reverse"]) / 2


def document(rows: list[Row], geometry: list[str], study: Study) -> str:
    """Returns the Markdown page."""
    lines = [
        "# Language removal, measured",
        "",
        "`python -m benchmarks.language_removal --data DATA --work WORK` writes this page.",
        "",
        f"Model: SmolLM2-135M-Instruct, {study.options['dtype']}. All figures in percent. Fitted on {study.groups} "
        f"groups of NTREX-128 (rows from 1000 on) in {len(LANGUAGES)} languages ({', '.join(LANGUAGES)}); start layer "
        "and shrinkage chosen on rows 600-799; reported on rows 0-199.",
        "",
        f"- **fitted**: accuracy for {', '.join(FITTED)} to English, back, and the mean of both; **new**: the same for "
        f"{', '.join(NEW)}, which were not fitted; **Tatoeba**: the first 200 pairs of {', '.join(TATOEBA)}, mean of "
        "both directions.",
        f"- **Banking77**: {TRAIN_ROWS} / {TEST_ROWS} rows, logistic regression; **SIB-200**: V-measure of the English "
        "test sentences.",
        "- In the blocks: from the start layer on, on the last token. The rest: on the finished vector. LIR removes a "
        "basis for each language and leaves languages without one as they are; random, language-mean and shuffled-pair "
        "subtract the mean too, as centred hard and soft do. `va-concat`: values of blocks 20-24 side by side.",
        f"- Other corpora: as many groups in all, equal parts of each set (SIB-200: training split; XQuAD: questions); "
        f"the 5 languages are {', '.join(COMMON)}.",
        "",
        "| method | removed | X→eng | eng→X | fitted | new | Tatoeba | Banking77 | SIB-200 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fitted = row.scores["fitted"]
        cells = [fitted["accuracy"], fitted["accuracy_reverse"], *(_both(row.scores[t]) for t in TASKS[:3])]
        cells += [row.scores[task]["main_score"] for task in TASKS[3:]]
        lines.append(f"| `{row.method}` | {row.removal} | {' | '.join(f'{100 * value:.1f}' for value in cells)} |")
    lines += ["", "## Where steering in the blocks should start", "", "Accuracy X→eng on the development rows."]
    for method, result in study.starts.items():
        lines += ["", f"| `{method}` from block | {' | '.join(point['value'] for point in result['points'])} |"]
        lines.append("|---|" + "---|" * len(result["points"]))
        scores = [f"{100 * point['mean']:.1f}" for point in result["points"]]
        lines.append(f"| X→eng | {' | '.join(scores)} |")
    lines += [
        "",
        "## How much of the geometry is language",
        "",
        f"The reported rows in English and the five fitted languages, {study.groups} groups fitted (definitions: PRSR "
        "paper, §3 and B.1): clusters against language, how often a sentence of the same language and like length is "
        "closer than a translation, and the distance to translations over that to such sentences.",
        "",
        "| method | removed | NMI | ARI | ordering violations | distance ratio |",
        "|---|---|---|---|---|---|",
        *geometry,
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
