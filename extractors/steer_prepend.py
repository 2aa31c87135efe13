"""Token prepending (arXiv 2412.11556)."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents, flat
from extractors.steering import TokenPrepending


@contextlib.contextmanager
def prepended(backbone: Anatomy, kind: TokenPrepending, extents: Extents) -> Iterator[None]:
    """Gives the placeholder an embedding of its own, and before each of the blocks the last token's state."""
    embeddings = backbone.embeddings()
    # Gemma multiplies what it looks up in the table.
    scale = float(getattr(embeddings.module, "embed_scale", 1.0))
    own_D = torch.from_numpy(np.random.RandomState(kind.seed).standard_normal(embeddings.width)) * scale

    placeholder_B = extents.start + extents.placeholder

    def embed(states: Tensor) -> Tensor:
        return flat(states).index_put((placeholder_B,), own_D.to(states)).view_as(states)

    def copy_back(states: Tensor) -> Tensor:
        state_TD = flat(states)
        return state_TD.index_put((placeholder_B,), state_TD[extents.last]).view_as(states)

    with contextlib.ExitStack() as stack:
        stack.enter_context(writing(embeddings, embed))
        for block in kind.blocks:
            stack.enter_context(writing(backbone.block_input(block), copy_back))
        yield
