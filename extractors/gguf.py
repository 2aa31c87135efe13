"""GGUF files: converted once to a safetensors folder that any other code can load.

transformers reads the tensors (and undoes llama.cpp's reordering of the query and key rows); what it cannot tell from
the file, the pre-tokenizer of a few vocabularies, is set here.
"""

import os
import shutil
import tempfile
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoConfig, AutoModel, AutoTokenizer

from extractors.errors import ModelError
from extractors.hashing import file_sha256
from extractors.loading import refuse_partial

# Part of the folder's name, so that a change to the conversion does not meet folders of an older one.
CONVERSION = "v1"

# llama.cpp splits single digits off for these vocabularies ("tokenizer.ggml.pre"); transformers reads all of them as
# GPT-2, which differs where white space meets a digit.
_SINGLE_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


def cache_folder() -> Path:
    """Returns the folder for converted models: ``$XDG_CACHE_HOME/isogloss``, by default ``~/.cache/isogloss``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "isogloss"


def converted(gguf: Path) -> Path:
    """Returns the safetensors folder of a GGUF file, converting it first if that was not done yet.

    The folder's name is the file's hash, so a file that was moved is not converted again and one that was replaced is.

    Raises:
        ModelError: the file is not a GGUF file, or of an architecture transformers cannot read.
    """
    target = cache_folder() / "gguf" / f"{file_sha256(gguf)}-{CONVERSION}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        _convert(gguf, work)
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _publish(work: Path, target: Path) -> None:
    try:
        work.rename(target)
    except OSError:
        # Another process converted the same file meanwhile: its folder has the same content.
        if not target.is_dir():
            raise


def _convert(gguf: Path, folder: Path) -> None:
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf} is not a GGUF file: it does not begin with 'GGUF'")
    # transformers prefers tokenizer files that lie beside the GGUF, so it is shown a folder with nothing else in it.
    alone = folder / "source"
    alone.mkdir()
    (alone / "model.gguf").symlink_to(gguf.resolve())
    where, name = str(alone), "model.gguf"
    try:
        model, info = AutoModel.from_pretrained(where, gguf_file=name, dtype=torch.float32, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
        config = AutoConfig.from_pretrained(where, gguf_file=name)
    except (ValueError, KeyError, OSError, NotImplementedError) as problem:
        raise ModelError(f"cannot read {gguf}: {problem}") from None
    refuse_partial(info, str(gguf))
    # While its config is marked as quantised the model refuses to be saved, so it is built anew from its plain parts.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = torch.float32
    with torch.device("meta"):
        plain = AutoModel.from_config(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.save_pretrained(folder)
    _split_digits(tokenizer, gguf)
    tokenizer.save_pretrained(folder)
    shutil.rmtree(alone)


def _split_digits(tokenizer: object, gguf: Path) -> None:
    kind = GGUFReader(gguf).fields.get("tokenizer.ggml.pre")
    if kind is None or kind.contents() not in _SINGLE_DIGITS:
        return
    backend: Tokenizer = tokenizer.backend_tokenizer  # type: ignore[attr-defined]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
