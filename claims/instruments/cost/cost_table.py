"""The layer of the chapter's cost table (l.167): width 512, 8 heads, one sequence, float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from statistics import linear_regression
from typing import Any

from torch import Tensor, nn

from claims.harness.implementation import Implementation
from claims.harness.layout import USUAL
from claims.instruments.attention.projections import projected
from claims.instruments.cost.attention_layer import layer_footprint
from claims.instruments.cost.memory import Footprint
from claims.instruments.cost.memory.allocator import WORKSPACE, block_bytes

MIB = 2**20
D, HEADS = 512, 8
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
LAST_ROWS = LENGTHS[3:]  # the last four that ran; at none of them is n the width
NEXT = 16_384  # the row that ran out of memory


def table_footprint(
    implementation: Implementation, n: int, *, mode: str = "no_grad", workspace: int = WORKSPACE
) -> Footprint:
    """What the layer takes for n tokens, predicted on the meta device."""

    def make() -> nn.Module:
        layer: nn.Module = implementation.MultiHeadAttention(D, HEADS)
        return layer

    return layer_footprint(make, n, D, mode=mode, workspace=workspace)


def parts(n: int, d: int, h: int) -> tuple[int, int, int]:
    """Bytes of (n, d) numbers, of (h, n, n) scores and of an (n, n) mask, in whole blocks."""
    return block_bytes(4 * n * d), block_bytes(4 * h * n * n), block_bytes(n * n)


def derived_peak(n: int, d: int = D, h: int = HEADS, *, activations: int = 6) -> int:
    """The layer's peak in bytes: its matrices, a workspace, and the larger of two moments.

    Two n x n tensors of numbers are alive throughout. At the end, so are six n x d activations (x,
    q, k, v, the mixed values and a copy of them) and the mask; while the mask is applied, four
    activations, the mask and its negation.
    """
    activation, scores, mask = parts(n, d, h)
    at_the_end = activations * activation + mask
    return (
        4 * block_bytes(4 * d * d)
        + WORKSPACE
        + 2 * scores
        + max(at_the_end, 4 * activation + 2 * mask)
    )


def in_mib(peaks: dict[int, int]) -> dict[int, Fraction]:
    return {n: Fraction(peak, MIB) for n, peak in peaks.items()}


def row_ratios(column: Sequence[Any]) -> list[float]:
    """Each row over the row above, as the table's x4 columns have it."""
    return [float(after / before) for before, after in pairwise(column)]


def fitted_exponent(tokens: Sequence[int], column: Sequence[float]) -> float:
    """The least-squares slope of log(column) against log(tokens)."""
    return linear_regression(list(map(math.log, tokens)), list(map(math.log, column))).slope


def projections(layer: nn.Module, x: Tensor) -> None:
    """The four matrices of attention, and nothing else, each applied to (..., n, d)."""
    for name in ("q", "k", "v", "o"):
        projected(USUAL, layer, name, x)
