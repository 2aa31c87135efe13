"""Frozen LLMs as text encoders: methods, prompts, backbones and the encoder.

Knows nothing of Ray, nor of files of vectors.
"""

from extractors.encoder import Encoder
from extractors.errors import ExtractorError, MethodError, ModelError, TextError
from extractors.method import Method
from extractors.methods import METHODS, load_method

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
