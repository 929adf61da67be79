"""How far two computations of one attention may be apart, for the claims about such pairs."""

from __future__ import annotations

import math

from torch import Tensor

from claims.harness import ulps


def same_attention(reference: Tensor, q: Tensor, k: Tensor, v: Tensor, depth: int = 0) -> ulps:
    """How far two computations of one attention may be apart, in u x the largest value.

    To first order, with A the largest sum of magnitudes in a score, divided by sqrt(d_k): the error
    of a score is at most (d_k + 2) u A, and subtracting the row's maximum adds 2 u A. A weight has
    the errors of its own score and of the others', m u from the sum of the row and 5 u from
    exponential and division; the mixture adds m u, and 3 u are left for a sum around it. If q, k
    and v are themselves products of `depth` terms, given here as sums of magnitudes, each adds
    `depth` u.
    """
    d_k, m = q.shape[-1], k.shape[-2]
    largest = float((q.abs() @ k.abs().transpose(-2, -1)).max()) / math.sqrt(d_k)
    one = 2 * (2 * depth + d_k + 4) * largest + 2 * m + depth + 8
    because = f"two roundings of one attention over {m} keys of width {d_k}"
    return ulps(reference, 2 * one, because, scale=v.abs().max())
