"""Token prepending (arXiv 2412.11556)."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.hooks import writing
from extractors.pooling import Extents
from extractors.steering import TokenPrepending


@contextlib.contextmanager
def prepended(backbone: Anatomy, kind: TokenPrepending, extents: Extents) -> Iterator[None]:
    """Gives the placeholder an embedding of its own, and before each of the blocks the last token's state."""
    embeddings = backbone.embeddings()
    # Gemma multiplies what it looks up in the table.
    scale = float(getattr(embeddings.module, "embed_scale", 1.0))
    own_D = torch.from_numpy(np.random.RandomState(kind.seed).standard_normal(embeddings.width)) * scale

    def embed(state_BND: Tensor) -> Tensor:
        rows = torch.arange(state_BND.shape[0], device=state_BND.device)
        return state_BND.index_put((rows, extents.placeholder), own_D.to(state_BND))

    def copy_back(state_BND: Tensor) -> Tensor:
        rows = torch.arange(state_BND.shape[0], device=state_BND.device)
        return state_BND.index_put((rows, extents.placeholder), state_BND[rows, extents.length - 1])

    with contextlib.ExitStack() as stack:
        stack.enter_context(writing(embeddings, embed))
        for block in kind.blocks:
            stack.enter_context(writing(backbone.block_input(block), copy_back))
        yield
