"""Steering applied: each kind as a context manager around one forward pass."""

import contextlib
import types
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from extractors.anatomy import Anatomy
from extractors.pooling import Extents
from extractors.steer_contrast import contrasted
from extractors.steer_prepend import prepended
from extractors.steer_slot import with_slot
from extractors.steer_subspace import removing
from extractors.steering import ContrastivePrompting, KeyValueSlot, Steering, SubspaceRemoval, TokenPrepending


@contextlib.contextmanager
def steered(
    backbone: Anatomy,
    steering: Sequence[Steering],
    extents: Extents,
    auxiliary: Sequence[Tensor] = (),
    bases: Mapping[str, Mapping[int, Tensor]] = types.MappingProxyType({}),
) -> Iterator[None]:
    """Steers the forward pass in the body; the model is as before afterwards, also after an exception.

    Args:
        auxiliary: for each auxiliary prompt of the steering, in order, its read-out for the batch's rows [B, width].
        bases: of each fitted subspace by its hash: [d, q] by block.
    """
    left = iter(auxiliary)
    with contextlib.ExitStack() as stack:
        for one in steering:
            match one:
                case ContrastivePrompting():
                    stack.enter_context(contrasted(backbone, one, extents, next(left)))
                case TokenPrepending():
                    stack.enter_context(prepended(backbone, one, extents))
                case KeyValueSlot():
                    stack.enter_context(with_slot(backbone, one, extents))
                case SubspaceRemoval():
                    stack.enter_context(removing(backbone, one, extents, bases[one.sha256]))
        yield
