"""Rows of scores and weights: spread, entropy, effective tokens, saturated rows, gradients.

A row is the last dimension: one query, m keys. Scores go into a softmax, weights come out. All
functions take plain tensors, so random rows, a fresh head and a trained head are measured alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from claims.harness.layout import Layout
from claims.instruments.attention.projections import projected

# A row is saturated where one key has more than this share of the weight (l.116).
SATURATED = 0.99

# The seam's `attention`: (q, k, v, mask, *, scale, return_weights=True) -> (output, weights).
Attention = Callable[..., Any]

# ---- rows of weights ---------------------------------------------------------------------------


def entropy(weights: Tensor) -> Tensor:
    """-sum_i w_i ln w_i in nats, (..., n, m) -> (..., n). A weight of zero adds nothing."""
    nats: Tensor = torch.special.entr(weights).sum(-1)
    return nats


def effective_tokens(weights: Tensor) -> Tensor:
    """exp(entropy), (..., n, m) -> (..., n): over how many keys a row averages, from 1 to m."""
    return entropy(weights).exp()


def jacobian_diagonal(weights: Tensor) -> Tensor:
    """w_i (1 - w_i), the derivative of each weight by its own score; of the weights' shape."""
    return weights * (1 - weights)


def jacobian_trace(weights: Tensor) -> Tensor:
    """sum_i w_i (1 - w_i) = 1 - sum_i w_i^2, (..., n, m) -> (..., n), from 0 to 1 - 1/m."""
    return jacobian_diagonal(weights).sum(-1)


def saturated(weights: Tensor, threshold: float = SATURATED) -> Tensor:
    """Whether one key has more than `threshold` of the weight, (..., n, m) -> bool (..., n)."""
    return weights.amax(-1) > threshold


def variance_within_rows(weights: Tensor) -> float:
    """The variance of the scores behind weights (..., n, m), within rows and pooled over them.

    ln w is the score up to a constant of its row, so the weights determine this variance. Keys of
    weight zero count as masked: in float64 a score within 700 of its row's largest has a weight
    above zero. A larger spread needs the scores themselves (`causal_std`).
    """
    weights = weights.detach()
    allowed = weights > 0
    count = allowed.sum(-1, keepdim=True)
    logs = torch.where(allowed, weights, 1.0).log()
    deviations = torch.where(allowed, logs - logs.sum(-1, keepdim=True) / count, 0.0)
    return float(deviations.square().sum() / (count - 1).sum())


# ---- an attention function at given queries, keys and scores -----------------------------------


def weights_of(attention: Attention, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """The weights of queries (..., n, d_k) over keys (..., m, d_k): (..., n, m)."""
    weights: Tensor = attention(q, k, k[..., :1], scale=scale, return_weights=True)[1]
    return weights


def softmax_of(attention: Attention, scores: Tensor) -> Tensor:
    """The weights that `attention` gives to rows of scores, (..., m) -> (..., m).

    At d_k = 1, with a query of 1 and the scores as keys, the products are the scores, to the bit.
    """
    query = torch.ones_like(scores[..., :1, None])
    return weights_of(attention, query, scores[..., None], scale=1.0)[..., 0, :]


def scores_of(attention: Attention, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """The scores that `attention` gives to keys (..., m, d_k), (..., n, m), from its weights.

    A key of zeros is added. Its score is 0 at any scale, so the log-odds of a key against it are
    that key's score. Pass float64, in which the scores of a row may differ by up to 700.
    """
    beside = torch.cat([k, torch.zeros_like(k[..., :1, :])], dim=-2)
    logs = weights_of(attention, q, beside, scale).log()
    return logs[..., :-1] - logs[..., -1:]


def score_gradients(
    attention: Attention, q: Tensor, k: Tensor, upstream: Tensor, scale: float | None = None
) -> Tensor:
    """dL/ds, where `upstream` is dL/dw: both (..., n, m), for q (..., n, d_k), k (..., m, d_k).

    It is the gradient of a floating-point mask of zeros, which attention adds to the scores.
    """
    mask = torch.zeros_like(upstream, requires_grad=True)
    weights = attention(q, k, k[..., :1], mask, scale=scale, return_weights=True)[1]
    [gradient] = torch.autograd.grad((weights * upstream).sum(), mask)
    return gradient


def jacobian_diagonal_by_autograd(attention: Attention, scores: Tensor) -> Tensor:
    """dw_i/ds_i of a row of scores (m,), by the backward pass of `attention`: (m,)."""
    scores = scores.clone().requires_grad_()
    weights = softmax_of(attention, scores)
    gradients = (torch.autograd.grad(w, scores, retain_graph=True)[0] for w in weights)
    return torch.stack(list(gradients)).diagonal()


# ---- a head inside a model ---------------------------------------------------------------------


def raw_scores(layout: Layout, mixer: nn.Module, x: Tensor, n_heads: int) -> Tensor:
    """q.k for every query and key of x (B, T, d), unscaled and unmasked: (B, n_heads, T, T).

    Before any rotation (rotary) or bias (ALiBi).
    """
    q, k = (
        projected(layout, mixer, role, x).view(*x.shape[:2], n_heads, -1).transpose(1, 2)
        for role in "qk"
    )
    scores: Tensor = q @ k.transpose(-2, -1)
    return scores


def causal_std(scores: Tensor) -> float:
    """The standard deviation of the scores (..., T, T) that the causal mask allows."""
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return float(scores.detach()[..., allowed].std())
