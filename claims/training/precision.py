"""In which precision this machine multiplies matrices fastest."""

from __future__ import annotations

import functools
import time

import torch

SIZE = 256


@functools.cache
def rates(device: str = "cpu") -> dict[str, float]:
    """GFLOP/s of a square matrix product, by precision; the best of several.

    A CPU with matrix units multiplies bfloat16 several times faster than float32; one without them
    many times slower. It is measured in a fraction of a second, once per process.
    """
    return {name: _rate(getattr(torch, name), device) for name in ("float32", "bfloat16")}


def fastest(device: str = "cpu") -> str:
    """The precision with the greatest rate."""
    measured = rates(device)
    return max(measured, key=measured.__getitem__)


def _rate(dtype: torch.dtype, device: str) -> float:
    matrix = torch.ones(SIZE, SIZE, dtype=dtype, device=device)
    seconds: list[float] = []
    while len(seconds) < 3 or sum(seconds) < 0.1:
        began = time.perf_counter()
        product = matrix @ matrix
        float(product[0, 0])  # on a GPU this waits for the product
        seconds.append(time.perf_counter() - began)
    return 2 * SIZE**3 / min(seconds) / 1e9
