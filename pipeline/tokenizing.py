"""The function that Ray runs to read and tokenize units; its processes import no torch."""

import pickle
from typing import Any

from extractors.inputs import PromptTokenizer
from pipeline.rows import tokenize_unit
from pipeline.source import Layout


def tokenize_one(batch: dict[str, Any], layout: Layout, tokenizer: PromptTokenizer) -> dict[str, Any]:
    """Reads and tokenizes the one unit in ``batch``; its token ids travel to an encoder as one blob."""
    unit = pickle.loads(batch["unit"][0])
    return {"unit": batch["unit"], "tokenized": [pickle.dumps(tokenize_unit(unit, layout, tokenizer))]}
