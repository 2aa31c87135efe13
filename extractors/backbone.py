"""A frozen model by hub id and revision, local folder or GGUF file."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from extractors.anatomy import Anatomy
from extractors.errors import ModelError
from extractors.gguf import converted
from extractors.hashing import files_sha256
from extractors.loading import refuse_partial

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Attention = Literal["auto", "sdpa", "eager", "flash_attention_2"]

_HUB_ID = re.compile(r"^[\w.-]+(/[\w.-]+)?$")

# Progress bars and load reports of every actor would end up in one terminal; what matters is raised as an error.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


@dataclasses.dataclass(frozen=True)
class Source:
    """A model that was found: where it is loaded from, and what identifies its weights.

    Attributes:
        given: what the user wrote, absolute if a path: enough to find the model again.
        location: the hub id or folder that transformers loads.
        revision: the commit on the hub; None for local weights.
    """

    given: str
    location: str
    revision: str | None

    @functools.cached_property
    def identity(self) -> dict[str, str]:
        """The hub id with its commit, or the content hash of local weights (wherever they lie)."""
        if self.revision is not None:
            return {"model": self.location, "revision": self.revision}
        return {"model": "local weights", "revision": f"sha256:{files_sha256(_weight_files(Path(self.location)))}"}


def find_model(model: str, revision: str | None = None) -> Source:
    """Finds a model without loading its weights; a GGUF file is converted if it was not before.

    Raises:
        ModelError: no such file, folder or hub model, or a revision for a local model.
    """
    path = Path(model).expanduser()
    is_gguf = model.endswith(".gguf")
    if not (is_gguf or path.is_dir()):
        if path.is_absolute() or model.startswith((".", "~")) or not _HUB_ID.match(model):
            raise ModelError(f"model {model!r}: no such folder. Give a hub id (org/name), a folder, or a .gguf file")
        return _find_on_hub(model, revision)
    if revision is not None:
        raise ModelError(f"revision {revision!r} goes with a hub id; {model} is local, and is known by its content")
    if is_gguf:
        if not path.is_file():
            raise ModelError(f"model {model!r}: no such file")
        return Source(str(path.absolute()), str(converted(path.resolve())), None)
    if not (path / "config.json").is_file():
        raise ModelError(f"model folder {model} has no config.json; give the folder that save_pretrained wrote")
    return Source(str(path.absolute()), str(path.absolute()), None)


def _find_on_hub(model: str, revision: str | None) -> Source:
    config = _load(AutoConfig, model, revision)
    commit = getattr(config, "_commit_hash", None)
    if commit is None:
        raise ModelError(f"model {model!r}: the hub gave no commit for it; give --revision with a full commit hash")
    return Source(model, model, commit)


def _load(kind: Any, location: str, revision: str | None, **options: Any) -> Any:
    try:
        return kind.from_pretrained(location, revision=revision or "main", trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as problem:
        reason = str(problem).strip().split("\n")[0]
        raise ModelError(
            f"model {location!r}{f' at revision {revision!r}' if revision else ''} cannot be loaded: {reason}. "
            "Check the name, the files and, for a hub id, the network and HF_TOKEN"
        ) from None


def _weight_files(folder: Path) -> list[Path]:
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not weights:
        raise ModelError(f"model folder {folder} has no *.safetensors and no *.bin file")
    return [folder / "config.json", *weights]


def skeleton(source: Source) -> Anatomy:
    """Returns the model's structure without weights (no memory, no download of weights)."""
    config = _load(AutoConfig, source.location, source.revision)
    with torch.device("meta"):
        try:
            model = AutoModel.from_config(config)
        except ValueError as problem:
            raise ModelError(f"model type {config.model_type!r} cannot be built: {problem}") from None
    return Anatomy(model)


def load_tokenizer(source: Source) -> PreTrainedTokenizerBase:
    """Returns the model's own tokenizer.

    Raises:
        ModelError: it has none in the fast format, which alone gives character offsets.
    """
    tokenizer = _load(AutoTokenizer, source.location, source.revision)
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"model {source.given!r} has no fast tokenizer (tokenizer.json); convert it first")
    return tokenizer


def choose_device(device: str) -> torch.device:
    """Returns the torch device for ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ModelError: not a device, or a CUDA device that is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ModelError(f"device {device!r} is not one of auto, cpu, cuda, cuda:N") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"device {device!r}: this machine has no usable CUDA device; use cpu or auto")
    return chosen


def choose_dtype(dtype: Dtype, device_type: str) -> str:
    """Returns the name of the dtype that ``auto`` means: bfloat16 on a GPU, float32 elsewhere."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if device_type == "cuda" else "float32"


def load_backbone(
    source: Source, dtype: str, device: torch.device, attention: Attention = "auto", blocks: int | None = None
) -> Anatomy:
    """Loads the model's decoder (no language-model head), frozen, in evaluation mode.

    Args:
        dtype: "float32", "bfloat16" or "float16".
        attention: "auto" is sdpa, or eager for a family that has no sdpa.
        blocks: how many blocks are used, from the first; where the family allows, the others are not loaded.

    Raises:
        ModelError: weights missing, not understood or of another shape; they are named.
    """
    whole = skeleton(source)
    if attention == "auto":
        attention = "sdpa" if getattr(whole.model, "_supports_sdpa", False) else "eager"
    config = _load(AutoConfig, source.location, source.revision)
    kept = whole.blocks_to_load(blocks)
    if kept < whole.depth:
        _cut(config.get_text_config(), kept)
    options = {
        "config": config,
        "dtype": getattr(torch, dtype),
        "attn_implementation": attention,
        "output_loading_info": True,
    }
    try:
        model, info = _load(AutoModel, source.location, source.revision, **options)
    except (RuntimeError, ImportError) as problem:
        raise ModelError(f"model {source.given!r} cannot be loaded: {problem}") from None
    refuse_partial(info, source.given, left_out=range(kept, whole.depth))
    model.requires_grad_(False)
    return Anatomy(model.eval().to(device), depth=whole.depth)


def _cut(config: Any, blocks: int) -> None:
    """Makes a model of only the first blocks out of a config."""
    config.num_hidden_layers = blocks
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:blocks]
