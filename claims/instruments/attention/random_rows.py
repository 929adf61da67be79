"""Rows of random scores of a chosen width: how to draw them, and what softmax makes of them.

A row is one query with its scores for `n_keys` keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.linalg import hadamard
from torch import Tensor

from claims.harness.seeds import recipe
from claims.instruments.attention.scores import Attention, scores_of, weights_of

ROWS, KEYS = 2048, 64


class Rows(NamedTuple):
    """The weights (n_rows, KEYS) that the same queries and keys give, unscaled and scaled."""

    unscaled: Tensor
    scaled: Tensor


class Softmax(NamedTuple):
    """The expected trace of the Jacobian, and the expected entropy in nats."""

    trace: float
    entropy: float


def draw_rows(
    attention: Attention, d_k: int, generator: torch.Generator, n_rows: int = ROWS
) -> Rows:
    """Independent rows of KEYS scores, as `attention` weights them with scale 1 and 1/sqrt(d_k)."""
    q, k = independent_rows(d_k, n_rows, KEYS, generator)
    return Rows(*(weights_of(attention, q, k, scale).flatten(0, 1) for scale in (1.0, None)))


def rows_of_seed_0(attention: Attention, d_k: int) -> Rows:
    """The rows behind printed digits and stored tables: each width starts from seed 0."""
    return draw_rows(attention, d_k, torch.Generator().manual_seed(0))


def rows_by_width(attention: Attention, widths: Sequence[int]) -> Rows:
    """Those of several widths, stacked: (widths, n_rows, KEYS)."""
    rows = [rows_of_seed_0(attention, d) for d in widths]
    return Rows(*(torch.stack(weights) for weights in zip(*rows, strict=True)))


def spread_of_pairs(
    attention: Attention, widths: Sequence[int], pairs: int
) -> dict[int, tuple[float, float]]:
    """Width -> variance and standard deviation of q.k over that many normal pairs.

    By the recipe of the chapter's table: seed 0, q and k in turn for each width.
    """
    found = {}
    with recipe(0):
        for d in widths:
            scores = _scores_of_pairs(attention, torch.randn(pairs, d), torch.randn(pairs, d))
            found[d] = float(scores.var()), float(scores.std())
    return found


def _scores_of_pairs(attention: Attention, q: Tensor, k: Tensor) -> Tensor:
    """q.k of n pairs, (n, d) and (n, d) -> (n,): the diagonals of blocks of 20 queries and keys.

    Ten blocks at a time fit into the processor's cache.
    """
    blocks = (-1, 10, 20, q.shape[-1])
    scores = [
        scores_of(attention, a.double(), b.double(), scale=1.0)
        for a, b in zip(q.view(blocks), k.view(blocks), strict=True)
    ]
    return torch.cat(scores).diagonal(dim1=-2, dim2=-1).flatten()


def independent_rows(
    d_k: int, n_rows: int, n_keys: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Queries (g, d_k, d_k) and keys (g, n_keys, d_k) in float64, g = n_rows / d_k.

    Queries are sign vectors, keys standard normal: entries of mean zero and variance one. The
    scores of a query are then independent N(0, d_k), exactly. Orthogonal queries can share their
    keys and still have independent scores. So each group of d_k queries, the rows of a Hadamard
    matrix, shares n_keys keys, and all n_rows * n_keys scores are independent.

    Raises:
        ValueError: d_k is no power of two, or n_rows no multiple of it.
    """
    if n_rows % d_k:
        raise ValueError(f"{n_rows} rows cannot be divided into groups of d_k = {d_k}")
    groups = n_rows // d_k
    signs = torch.from_numpy(hadamard(d_k)).double()
    keys = torch.randn(groups, n_keys, d_k, generator=generator, dtype=torch.float64)
    return signs.expand(groups, d_k, d_k), keys


def softmax_of_normal_scores(std: float, n: int = KEYS) -> Softmax:
    """What softmax over n independent N(0, std^2) scores has on average, by quadrature.

    Let S = sum_j e^s_j. Since 1/S^2 = int t e^-tS dt, 1/S = int e^-tS dt and
    ln S = int (e^-t - e^-tS)/t dt over t > 0, and e^-tS is a product over independent scores,
    E sum w^2 and the entropy E ln S - E sum w s are integrals over t = e^u of means over one score.
    All integrands are analytic and decay at both ends, where equal steps converge exponentially.
    """
    step = 0.25
    z = torch.arange(-9, 9, min(0.1, 0.3 / std), dtype=torch.float64)
    u = torch.arange(-9 * std - 30, 10, step, dtype=torch.float64)
    normal = (-z * z / 2).exp() / (-z * z / 2).exp().sum()
    t, s = u.exp(), std * z
    one = (-(u[:, None] + s).exp()).exp()  # e^(-t e^s), (t, s)
    others = (one @ normal) ** (n - 1)
    squares = n * t * t * (one @ (normal * (2 * s).exp())) * others
    scores = n * t * (one @ (normal * s * s.exp())) * others
    logarithm = (-t).exp() - (one @ normal) ** n
    return Softmax(1 - step * float(squares.sum()), step * float((logarithm - scores).sum()))


def share(happened: Tensor) -> float:
    """The share of rows for which something happened, from bool (n_rows,)."""
    return float(happened.double().mean())


def successes(happened: Tensor) -> tuple[int, int]:
    """(k, n): it happened for k of n rows."""
    return int(happened.sum()), happened.numel()
