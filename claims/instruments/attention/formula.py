"""Attention as the chapter's formula has it, step by step, in the precision that it is given."""

from __future__ import annotations

import math

from torch import Tensor


def formula(q: Tensor, k: Tensor, v: Tensor, M: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_k) + M) v for q (..., n, d_k), k (..., m, d_k), v (..., m, d_v).

    M is added to the scores (n, m); no row of it may be -inf throughout.
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + M
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True) @ v
