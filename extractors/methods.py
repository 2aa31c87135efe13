"""THE table of methods, each row with its paper: prompt x what is read x layers x pooling x steering.

A row says nothing about a particular model. The table is data: a new method is a row here, or a YAML file with the
same fields.
"""

from pathlib import Path
from typing import Any

import yaml

from extractors.errors import MethodError, nearest
from extractors.method import Method
from extractors.prompts import METAEOL
from extractors.steering import ContrastivePrompting, KeyValueSlot, TokenPrepending
from extractors.validated import parse

VA = "Value aggregation, arXiv 2602.01572"


def _table(*rows: Method) -> dict[str, Method]:
    return {row.name: row for row in rows}


_BASELINE = f"{VA}, §2 (baseline)"
_DEEP_HALF = "blocks are counted from 0; deep half where no set is known for the backbone"
_QUOTED = "the text in quotes, as in PromptEOL; the paper prints its prompts without the opening one"
# The prompt papers' SentEval code ends each sentence with a full stop; their MTEB runs do not say.
_SENTENCES = "for the paper's SentEval figures set sentence_normalization"
_TWO_READINGS = (
    "grouped queries: attention weights averaged over all heads, the paper's words; for the mean within each group set "
    f"heads to group-mean; {_DEEP_HALF}"
)
_WVA: dict[str, Any] = {
    "read": "head-output",
    "layers": "paper",
    "pooling": "last",
    "heads": "shared-weights",
    "paper": f"{VA}, §6.1",
    "notes": _TWO_READINGS,
}
_ALIGNED: dict[str, Any] = {
    "read": "attention-output",
    "layers": "paper",
    "pooling": "last",
    "paper": f"{VA}, §6.2",
    "notes": f"{_QUOTED}; {_DEEP_HALF}",
}
_LAST_TOKEN: dict[str, Any] = {"read": "hidden", "pooling": "last"}
_AGGREGATED: dict[str, Any] = {"layers": "half", "pooling": "mean", "paper": f"{VA}, Table 8"}
_PENULTIMATE: dict[str, Any] = {
    "layers": "penultimate",
    "paper": "Zhang et al. 2024, arXiv 2404.03921",
    "notes": _SENTENCES,
    **_LAST_TOKEN,
}
_ECHO = "Springer et al. 2024, arXiv 2402.15449"

# The 27th of 32 layers, in the prompt papers' words: block 26 of Llama-2-7B, and as deep elsewhere.
_PAPERS_27TH = "0.83"
_PAPERS_DEPTH = "read as deep as block 26 of Llama-2-7B's 32"
_CP: dict[str, Any] = {
    "prompt": "prompteol",
    "layers": _PAPERS_27TH,
    "paper": "Cheng et al. 2025, arXiv 2505.12831",
    **_LAST_TOKEN,
}
_CP_NOTES = f"{_PAPERS_DEPTH}; contrasted as deep as its block 4; {_SENTENCES}"

METHODS: dict[str, Method] = _table(
    Method(name="mean-last", read="hidden", layers="last", pooling="mean", paper=_BASELINE),
    Method(name="hs-full", read="hidden", layers="all", pooling="mean", paper=_BASELINE),
    Method(name="hs-half", read="hidden", layers="half", pooling="mean", paper=_BASELINE),
    Method(name="hs", read="hidden", layers="paper", pooling="mean", paper=_BASELINE, notes=_DEEP_HALF),
    Method(name="lt", layers="last", paper=_BASELINE, **_LAST_TOKEN),
    Method(
        name="wmp",
        read="hidden",
        layers="last",
        pooling="weighted-mean",
        paper="SGPT, Muennighoff 2022, arXiv 2202.08904",
    ),
    Method(name="va-full", read="value", layers="all", pooling="mean", paper=f"{VA}, §4.1"),
    Method(name="va-half", read="value", layers="half", pooling="mean", paper=f"{VA}, §4.1"),
    Method(name="va", read="value", layers="paper", pooling="mean", paper=f"{VA}, §4.1", notes=_DEEP_HALF),
    Method(
        name="va-prompteol",
        prompt="prompteol",
        read="value",
        layers="paper",
        pooling="mean",
        paper=f"{VA}, §6.1",
        notes=f"pools the template's tokens too; {_DEEP_HALF}",
    ),
    Method(name="wva-lt", **_WVA),
    Method(name="wva-prompteol", prompt="prompteol", **_WVA),
    Method(name="wva-futureeol", prompt="futureeol", **_WVA),
    Method(name="aligned-wva-prompteol", prompt="prompteol", **_ALIGNED),
    Method(name="aligned-wva-futureeol", prompt="futureeol", **_ALIGNED),
    Method(name="query", read="query", **_AGGREGATED),
    Method(name="key", read="key", **_AGGREGATED),
    Method(name="activation", read="activation", **_AGGREGATED),
    Method(
        name="prompteol",
        prompt="prompteol",
        layers="last",
        paper="Jiang et al. 2023, arXiv 2307.16645, §3",
        notes=_SENTENCES,
        **_LAST_TOKEN,
    ),
    Method(name="futureeol", prompt="futureeol", layers="last", paper=f"{VA}, §6", notes=_QUOTED, **_LAST_TOKEN),
    Method(name="pretended-cot", prompt="pretended-cot", **_PENULTIMATE),
    Method(name="knowledge", prompt="knowledge", **_PENULTIMATE),
    Method(name="echo", prompt="echo", read="hidden", layers="last", pooling="second-copy", paper=_ECHO),
    Method(
        name="echo-last",
        prompt="echo-last",
        layers="last",
        paper=f"{_ECHO}, in the form of arXiv 2610.23807",
        **_LAST_TOKEN,
    ),
    Method(
        name="metaeol",
        prompt=METAEOL,
        layers="last",
        paper="Lei et al. 2024, arXiv 2402.18458",
        notes=f"mean of the eight raw vectors; {_SENTENCES}",
        **_LAST_TOKEN,
    ),
    Method(
        name="cp-ns",
        steering=(ContrastivePrompting(),),
        notes=f"{_CP_NOTES}; alpha 2 as the paper says, its code 0.5",
        **_CP,
    ),
    Method(
        name="cp-nr",
        steering=(ContrastivePrompting(scaling="norm-restored"),),
        notes=f"{_CP_NOTES}; the difference gets the length of what it replaces",
        **_CP,
    ),
    Method(
        name="tp",
        prompt="prompteol",
        layers=_PAPERS_27TH,
        steering=(TokenPrepending(),),
        paper="Fu et al. 2025, arXiv 2412.11556",
        notes=f"{_PAPERS_DEPTH}; copied before the blocks that the paper's code has for its backbones (its formula has "
        f"one more), elsewhere before blocks 1 to a fifth of the depth; {_SENTENCES}",
        **_LAST_TOKEN,
    ),
    Method(
        name="reverse-eol",
        prompt=("prompteol", "reverse-eol"),
        layers="last",
        paper="Lin et al. 2026, arXiv 2606.05858",
        notes="a reading: prompt and unit of reversal are not published; words, cut at white space, are reversed here",
        **_LAST_TOKEN,
    ),
    Method(
        name="kv-embedding",
        prompt="compress",
        read="hidden",
        layers="last",
        pooling="mean-and-last",
        steering=(KeyValueSlot(),),
        paper="Tang & Yang 2026, arXiv 2601.01046",
        notes="a reading: prompt and blocks are not published; the vector is not normalised, which no cosine sees",
    ),
)


def load_method(method: str) -> Method:
    """Returns the table's row of that name, or the method in a YAML file.

    Raises:
        MethodError: no such name (the nearest is named), no such file, or a file that is not a valid method.
    """
    if method in METHODS:
        return METHODS[method]
    if not method.endswith((".yaml", ".yml")):
        raise MethodError(
            f"method {method!r} is not known{nearest(method, METHODS)}. Known: {', '.join(METHODS)}; "
            "or give a YAML file that composes one"
        )
    path = Path(method)
    if not path.is_file():
        raise MethodError(f"method file {method} does not exist")
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise MethodError(f"method file {method} is not YAML: {problem}") from None
    if not isinstance(fields, dict):
        raise MethodError(f"method file {method} must hold a mapping with {', '.join(Method.model_fields)}")
    return parse(Method, {"name": path.stem, **fields}, f"method file {method}", MethodError)
