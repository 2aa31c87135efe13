"""All methods on three small tasks, as the table docs/methods.md:

    python -m benchmarks.methods_table --data DATA --work WORK

For DATA see benchmarks/tasks.py. What WORK already holds is not computed again, so a run that was stopped goes on.
"""

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.tasks import TEST_ROWS, TRAIN_ROWS, banking77, bitext, ntrex, options, sib200
from extractors.listing import list_methods
from extractors.methods import METHODS
from pipeline.config import EvaluateConfig
from pipeline.evaluate import evaluate

LANGUAGES = ("fra", "deu", "ita", "por", "spa")
SENTENCES = 200
TASKS = ("ntrex", "banking77", "sib200")
DOCUMENT = Path(__file__).parent.parent / "docs" / "methods.md"


def main() -> None:
    """Parses options, runs what is missing and writes the document."""
    parser = options(__doc__)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="METHOD")
    given = parser.parse_args()
    sentences = ntrex(given.data, ("eng", *LANGUAGES), 0, SENTENCES)
    files = [
        bitext(given.work, "ntrex", sentences, LANGUAGES),
        banking77(given.data, given.work),
        sib200(given.data, given.work),
    ]
    results = {name: measured(name, given.model, given.dtype, files, given.work) for name in given.methods}
    if set(results) == set(METHODS):
        DOCUMENT.parent.mkdir(exist_ok=True)
        page = document(results, list_methods(given.model), Path(given.model).name)
        DOCUMENT.write_text(page, encoding="utf-8")


def measured(name: str, model: str, dtype: str, files: list[str], work: Path) -> dict[str, dict[str, Any]]:
    """Returns a method's results by task, from ``work`` where they are there already."""
    output = work / "results" / name
    print(f"— {name}", file=sys.stderr, flush=True)
    if not all((output / f"{task}.json").exists() for task in TASKS):
        config = {"model": model, "dtype": dtype, "method": name, "output": str(output)}
        evaluate(EvaluateConfig.model_validate({**config, "task": files}))
    return {task: json.loads((output / f"{task}.json").read_text(encoding="utf-8")) for task in TASKS}


def document(results: dict[str, dict[str, dict[str, Any]]], methods: list[dict[str, Any]], model: str) -> str:
    """Returns the Markdown page."""
    identity = next(iter(results.values()))["ntrex"]["identity"]
    lines = [
        "# All methods, measured",
        "",
        "`python -m benchmarks.methods_table --data DATA --work WORK` writes this page.",
        "",
        f"Model: {model} ({identity['revision'][:15]}…), {identity['dtype']}. All figures in percent. What each method "
        "is, with its prompt and blocks, `isogloss methods` prints.",
        "",
        f"- **NTREX**: rows 0–{SENTENCES - 1} of NTREX-128, accuracy of the nearest English sentence by cosine, "
        f"for {', '.join(LANGUAGES)} and their mean; chance is {100 / SENTENCES:.1f}.",
        f"- **Banking77**: {TRAIN_ROWS} training and {TEST_ROWS} test rows at equal distances, 77 intents; accuracy of "
        "mteb's logistic regression on the vectors as they are.",
        "- **SIB-200**: the 204 English test sentences, 7 topics; V-measure of mteb's mini-batch k-means, mean over 10 "
        "starts and its standard deviation.",
        "",
        f"| method | width | passes | {' | '.join(LANGUAGES)} | NTREX | Banking77 | SIB-200 |",
        "|---|---|---|" + "---|" * (len(LANGUAGES) + 3),
    ]
    about = {row["name"]: row for row in methods}
    for name, tasks in results.items():
        row, topics = about[name], tasks["sib200"]
        subsets = tasks["ntrex"]["subsets"]
        by_language = [f"{100 * subsets[f'{language}-eng']['main_score']:.1f}" for language in LANGUAGES]
        cells = [
            f"`{name}`",
            str(row["width"]),
            str(row["forward_passes"]),
            *by_language,
            f"**{100 * tasks['ntrex']['main_score']:.1f}**",
            f"{100 * tasks['banking77']['main_score']:.1f}",
            f"{100 * topics['main_score']:.1f} ± {100 * topics['metrics']['v_measure_std']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
