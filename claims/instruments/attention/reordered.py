"""The chapter's sums in two orders each, and by how much rounding alone lets them differ."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from claims.harness.implementation import Implementation
from claims.harness.seeds import recipe

U = 2.0**-24


class Reordered(NamedTuple):
    """One vector or matrix, computed in two ways.

    roundings    of each term, in both ways together
    magnitude    the same sum, of magnitudes, in float64
    """

    one: Tensor
    other: Tensor
    roundings: int
    magnitude: Tensor

    @property
    def bound(self) -> float:
        """What no difference exceeds."""
        return self.roundings * U * float(self.magnitude.max())


def averages(implementation: Implementation, T: int = 8) -> dict[str, Reordered]:
    """The averages of l.20 to l.41, of T tokens of width T, seed 0.

    A mean rounds a term T + 1 times, the loop over prefixes T times.
    """
    with recipe(0):
        x, order = torch.randn(T, T), torch.randperm(T)
    last, loop = implementation.averaging_matrix(T)[-1], implementation.average_loop(x)
    product, softmax = implementation.average_by_matrix(x), implementation.average_by_softmax(x)
    m = x.double().abs().cumsum(0) / torch.arange(1, T + 1)[:, None]
    return {
        "mean and shuffled mean": Reordered(last @ x, last @ x[order], 2 * (T + 1), m[-1]),
        "loop and product": Reordered(loop, product, 2 * T + 1, m),
        "loop and softmax": Reordered(loop, softmax, 2 * T + 1, m),
    }
