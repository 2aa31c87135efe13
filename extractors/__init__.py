"""Frozen LLMs as text encoders: methods, prompts, backbones and the encoder.

Knows nothing of Ray, nor of files of vectors.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from extractors.encoder import Encoder
    from extractors.errors import ExtractorError, MethodError, ModelError, TextError
    from extractors.method import Method
    from extractors.methods import METHODS, load_method

# Imported when first used: a process that only tokenizes needs no torch, which takes seconds and 300 MB.
_PLACES = {
    "METHODS": "methods",
    "Encoder": "encoder",
    "ExtractorError": "errors",
    "Method": "method",
    "MethodError": "errors",
    "ModelError": "errors",
    "TextError": "errors",
    "load_method": "methods",
}

__all__ = [
    "METHODS",
    "Encoder",
    "ExtractorError",
    "Method",
    "MethodError",
    "ModelError",
    "TextError",
    "load_method",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
