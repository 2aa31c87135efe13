"""A model is loaded whole or not at all."""

import re
from typing import Any

from extractors.errors import ModelError

# Weights of heads that an embedding model has no use for.
_HEADS = re.compile(r"^(lm_head|output|embed_out)\.|(^|\.)(rotary_emb\.inv_freq|attn\.(masked_)?bias)$")
_IN_BLOCK = re.compile(r"(^|\.)(layers|h)\.(\d+)\.")


def refuse_partial(info: dict[str, Any], source: str, left_out: range = range(0)) -> None:
    """Stops a load that would have left weights random or unused.

    Args:
        info: what ``from_pretrained(..., output_loading_info=True)`` reports.
        left_out: blocks that were not to be loaded.

    Raises:
        ModelError: naming the weights that are missing, not understood, or of another shape.
    """
    unexpected = sorted(
        key for key in info["unexpected_keys"] if not (_HEADS.search(key) or _block_of(key) in left_out)
    )
    problems = [
        f"{kind} {_some([str(key) for key in keys])}"
        for kind, keys in (
            ("missing", sorted(info["missing_keys"])),
            ("not part of the model", unexpected),
            ("of another shape", sorted(str(key) for key in info["mismatched_keys"])),
            ("unreadable", info["error_msgs"]),
        )
        if keys
    ]
    if problems:
        raise ModelError(
            f"the weights in {source} are not those of its config: {'; '.join(problems)}. "
            "Fetch the model again or correct its config.json; nothing is filled with random numbers"
        )


def _block_of(key: str) -> int | None:
    """Returns the number of the block that a weight belongs to."""
    found = _IN_BLOCK.search(key)
    return int(found.group(3)) if found else None


def _some(names: list[str], limit: int = 8) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
