"""What a run will cost, from a sample of its rows: tokens, memory, time and money."""

import dataclasses

import numpy as np
import torch

from extractors.inputs import TokenIds
from extractors.plan import Plan
from pipeline.encode import Work
from pipeline.peak import matmul_flops
from pipeline.sampling import sampled_texts

_UNITS_SAMPLED = 8
_ROWS_OF_A_UNIT = 64
# Of the device's largest matrix product; what docs/speed.md has for texts of a sentence.
_SHARE_OF_PEAK = 0.6
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# From this many weights on, a CPU is hardly what was meant.
_LARGE_MODEL = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Sample:
    """Some rows of the units to do, tokenized.

    Attributes:
        rows: how many were looked at.
        tokens: of each that can be encoded, over all prompts: int64 [n].
        truncated: how many of these are cut.
    """

    rows: int
    tokens: np.ndarray
    truncated: int

    @property
    def histogram(self) -> dict[str, int]:
        """How many rows have at most 8, 16, 32 … tokens, and more than half of that."""
        if not self.tokens.size:
            return {}
        bounds = [2**i for i in range(3, int(self.tokens.max() - 1).bit_length() + 1)] or [8]
        counts, _ = np.histogram(self.tokens, [0.5, *(bound + 0.5 for bound in bounds)])
        return {f"<= {bound}": int(count) for bound, count in zip(bounds, counts, strict=True)}


def sample(work: Work) -> Sample:
    """Reads and tokenizes rows at equal distances from units at equal distances."""
    texts = sampled_texts(work.todo, work.job.layout, _UNITS_SAMPLED, _ROWS_OF_A_UNIT)
    tokens, truncated = [], 0
    for row in work.job.plan.tokenizer.tokenize([text or "" for text in texts]):
        ids = [one for one in row if isinstance(one, TokenIds)]
        if len(ids) == len(row):
            tokens.append(sum(len(one.ids) for one in ids))
            truncated += any(one.truncated for one in ids)
    return Sample(len(texts), np.array(tokens, dtype=np.int64), truncated)


def model_bytes(plan: Plan, dtype: str) -> int:
    """Returns what the weights that are loaded take."""
    return plan.parameters_used * _BYTES[dtype]


def tokens_per_second(work: Work) -> tuple[float | None, str]:
    """Returns what one encoder is expected to do, and how that is known.

    From the units that are done already, if there are any; else from a matrix product on this machine's device. None
    where that device is another machine's.
    """
    seconds = sum(commit["seconds"] for commit in work.commits)
    if seconds:
        return sum(commit["tokens"] for commit in work.commits) / seconds, f"as in the {len(work.commits)} unit(s) done"
    device, dtype = work.job.device, work.job.identity["dtype"]
    if device == "cuda" and not torch.cuda.is_available():
        return None, "unknown: there is no GPU on this machine to judge by; a first unit will tell"
    speed = _SHARE_OF_PEAK * matmul_flops(device, dtype) / work.job.plan.flops_per_token
    return speed, f"from {_SHARE_OF_PEAK:.0%} of a matrix product's speed on this machine"


def warnings(work: Work) -> list[str]:
    """Returns what a user is likely not to have meant."""
    used = work.job.plan.parameters_used
    if work.job.device == "cpu" and used > _LARGE_MODEL:
        return [f"a model of {used:,} weights would run on a CPU, since no GPU was found; is one missing?"]
    return []
