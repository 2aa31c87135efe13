"""A fitted subspace: what it holds, what it was fitted for, and how it is applied to finished vectors."""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from extractors.errors import MethodError

_BLOCK_BASIS = re.compile(r"^layer\.(\d+)\.basis$")
_LANGUAGE_BASIS = re.compile(r"^language\.(.+)\.basis$")


@dataclasses.dataclass(frozen=True)
class Subspace:
    """One subspace file.

    Attributes:
        about: what it was fitted for (an encoder's identity) and how, as JSON values.
        tensors: ``layer.<block>.basis`` [d, q] with ``layer.<block>.singular_values`` [q]; or ``embedding.mean`` [D]
            with ``embedding.matrix`` [D, D']; or ``language.<name>.basis`` [D, r]. All float32.
    """

    about: Mapping[str, Any]
    tensors: Mapping[str, np.ndarray]

    @property
    def bases(self) -> dict[int, np.ndarray]:
        """Bases [d, q] by 0-based block."""
        found = ((_BLOCK_BASIS.match(name), tensor) for name, tensor in self.tensors.items())
        return {int(match[1]): tensor for match, tensor in found if match}

    @property
    def language_bases(self) -> dict[str, np.ndarray]:
        """Bases [D, r] by language, of vectors whose language must be known."""
        found = ((_LANGUAGE_BASIS.match(name), tensor) for name, tensor in self.tensors.items())
        return {match[1]: tensor for match, tensor in found if match}

    @property
    def is_in_blocks(self) -> bool:
        """Whether it steers the forward pass; otherwise it changes finished vectors."""
        return bool(self.bases)

    @functools.cached_property
    def sha256(self) -> str:
        """The hash of everything in it, whatever the order it is kept in."""
        digest = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode())
        for name in sorted(self.tensors):
            tensor = np.ascontiguousarray(self.tensors[name], dtype=np.float32)
            digest.update(f"{name}{tensor.shape}".encode() + tensor.tobytes())
        return digest.hexdigest()

    def width_after(self, width: int) -> int:
        """Returns the length of a finished vector of ``width`` values once this was applied."""
        return self.tensors["embedding.matrix"].shape[1] if "embedding.matrix" in self.tensors else width

    def apply(self, vectors_ND: np.ndarray, languages: Sequence[str] | None = None) -> np.ndarray:
        """Returns finished vectors without what was fitted: float32 [N, D'].

        Args:
            languages: of the vectors; needed for bases by language.

        Raises:
            MethodError: a language without a basis, or languages that were not given.
        """
        if "embedding.matrix" in self.tensors:
            centred_ND = vectors_ND - self.tensors["embedding.mean"]
            return (centred_ND @ self.tensors["embedding.matrix"]).astype(np.float32)
        bases = self.language_bases
        if not bases:
            return vectors_ND
        if languages is None:
            raise MethodError("this subspace has a basis for each language, and the texts' languages are not known")
        unknown = sorted(set(languages) - set(bases))
        if unknown:
            raise MethodError(f"no basis was fitted for language {unknown[0]!r}; fitted: {', '.join(sorted(bases))}")
        result_ND = vectors_ND.astype(np.float32).copy()
        for language in set(languages):
            rows = [i for i, other in enumerate(languages) if other == language]
            result_ND[rows] -= result_ND[rows] @ bases[language] @ bases[language].T
        return result_ND

    def to_bytes(self) -> bytes:
        """Returns the safetensors file; ``about`` stands in its metadata as JSON."""
        metadata = {key: json.dumps(value, ensure_ascii=False, sort_keys=True) for key, value in self.about.items()}
        tensors = {name: np.ascontiguousarray(self.tensors[name], dtype=np.float32) for name in sorted(self.tensors)}
        return save(tensors, metadata)


def load_subspace(path: str) -> Subspace:
    """Reads a local subspace file.

    Raises:
        MethodError: no such file, or not a subspace file.
    """
    try:
        with open(path, "rb") as handle:
            content = handle.read()
        with safe_open(path, "numpy") as opened:
            metadata = opened.metadata() or {}
        subspace = Subspace({key: json.loads(value) for key, value in metadata.items()}, load(content))
    except (OSError, ValueError, KeyError, SafetensorError) as problem:
        raise MethodError(f"subspace {path}: {problem}; give a file written by `isogloss fit`") from None
    known = subspace.bases or subspace.language_bases or "embedding.matrix" in subspace.tensors
    if not known or "method" not in subspace.about:
        raise MethodError(f"subspace {path}: holds no subspace; give a file written by `isogloss fit`")
    return subspace
