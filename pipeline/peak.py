"""How fast a device is at best: the speed of a large matrix product, measured."""

import time

import torch

# A side of the matrices: large enough for full speed, and done in milliseconds.
_SIDE = {"cpu": 1536, "cuda": 8192}
_TRIES = 6


def matmul_flops(device: str, dtype: str) -> float:
    """Returns the multiplications and additions a second of this process in a square matrix product, best of five."""
    side = _SIDE[device]
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        # The copy of one value waits until the device is done.
        (left @ right)[0, 0].item()
        seconds.append(time.perf_counter() - began)
    return 2 * side**3 / min(seconds[1:])
