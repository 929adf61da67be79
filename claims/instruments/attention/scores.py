"""What rows of scores and weights look like: spread, entropy, effective tokens, saturated rows.

A row is the last dimension: one query, m keys. Scores are what goes into a softmax, weights are
what comes out. Everything is a function of plain tensors, so that rows drawn for the purpose, a
fresh head and a trained one are measured alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

HARD = 0.99

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
    """w_i (1 - w_i), the derivative of each weight by its own score; shaped as the weights."""
    return weights * (1 - weights)


def jacobian_trace(weights: Tensor) -> Tensor:
    """sum_i w_i (1 - w_i) = 1 - sum_i w_i^2, (..., n, m) -> (..., n), from 0 to 1 - 1/m."""
    return jacobian_diagonal(weights).sum(-1)


def saturated(weights: Tensor, threshold: float = HARD) -> Tensor:
    """Whether one key has more than `threshold` of the weight, (..., n, m) -> bool (..., n)."""
    return weights.amax(-1) > threshold


def variance_within_rows(weights: Tensor) -> float:
    """The variance of the scores behind weights (..., n, m), within rows and pooled over them.

    ln w is the score up to a constant of its row, so this much can be told from weights alone. Keys
    of weight zero are taken for masked ones: in float64 no score within 700 of its row's largest
    has that weight; a spread larger than that needs the scores themselves (`causal_std`).
    """
    weights = weights.detach()
    allowed = weights > 0
    count = allowed.sum(-1, keepdim=True)
    logs = torch.where(allowed, weights, 1.0).log()
    deviations = torch.where(allowed, logs - logs.sum(-1, keepdim=True) / count, 0.0)
    return float(deviations.square().sum() / (count - 1).sum())


# ---- what an attention function makes of given queries, keys, scores ---------------------------


def weights_of(attention: Attention, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """The weights of queries (..., n, d_k) over keys (..., m, d_k): (..., n, m)."""
    weights: Tensor = attention(q, k, k[..., :1], scale=scale, return_weights=True)[1]
    return weights


def softmax_of(attention: Attention, scores: Tensor) -> Tensor:
    """The weights that `attention` gives to rows of scores, (..., m) -> (..., m).

    At d_k = 1, with a query of 1 and the scores for keys, the products are the scores, to the bit.
    """
    query = torch.ones_like(scores[..., :1, None])
    return weights_of(attention, query, scores[..., None], scale=1.0)[..., 0, :]


def scores_of(attention: Attention, q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """The scores that `attention` gives to keys (..., m, d_k), (..., n, m), read off its weights.

    A key of zeros is put beside the others. Its score is 0 whatever the scale, so the log-odds of
    a key against it are that key's score. Pass float64, which holds scores within 700 of another.
    """
    beside = torch.cat([k, torch.zeros_like(k[..., :1, :])], dim=-2)
    logs = weights_of(attention, q, beside, scale).log()
    return logs[..., :-1] - logs[..., -1:]


def score_gradients(
    attention: Attention, q: Tensor, k: Tensor, arriving: Tensor, scale: float | None = None
) -> Tensor:
    """dL/ds where `arriving` is dL/dw: both (..., n, m), for q (..., n, d_k), k (..., m, d_k).

    Taken by autograd, of a floating mask of zeros that is added to the scores.
    """
    mask = torch.zeros_like(arriving, requires_grad=True)
    weights = attention(q, k, k[..., :1], mask, scale=scale, return_weights=True)[1]
    [gradient] = torch.autograd.grad((weights * arriving).sum(), mask)
    return gradient


# ---- a head inside a model ---------------------------------------------------------------------


def attention_input(model: nn.Module, tokens: Tensor, block: int = 0) -> Tensor:
    """What the mixer of one block of a LanguageModel is given for tokens (B, T): (B, T, d)."""
    blocks: Any = model.blocks
    seen: list[Tensor] = []
    handle = blocks[block].mixer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        model(tokens)
    finally:
        handle.remove()
    return seen[0]


def raw_scores(mixer: nn.Module, x: Tensor, n_heads: int) -> Tensor:
    """q.k for every query and key of x (B, T, d), unscaled and unmasked: (B, n_heads, T, T).

    From the mixer's submodules `q` and `k`, before any rotary turn or ALiBi distance.
    """
    q, k = (
        mixer.get_submodule(name)(x).unflatten(-1, (n_heads, -1)).transpose(1, 2) for name in "qk"
    )
    scores: Tensor = q @ k.transpose(-2, -1)
    return scores


def causal_std(scores: Tensor) -> float:
    """The standard deviation of those scores (..., T, T) that a causal head uses."""
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return float(scores.detach()[..., allowed].std())


# ---- rows to measure on ------------------------------------------------------------------------


def independent_rows(
    d_k: int, n_rows: int, n_keys: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Queries (g, d_k, d_k) and keys (g, n_keys, d_k) in float64, g = n_rows / d_k.

    Queries are sign vectors, keys standard normal: entries of mean zero and variance one. The
    scores of a query are then independent N(0, d_k), exactly. Queries that are orthogonal may share
    their keys and still have independent scores, so each group of d_k queries, the rows of a
    Hadamard matrix, shares n_keys keys: all n_rows * n_keys scores are independent.

    Raises:
        ValueError: d_k is no power of two, or n_rows no multiple of it.
    """
    if n_rows % d_k:
        raise ValueError(f"{n_rows} rows cannot be shared out in groups of d_k = {d_k}")
    groups = n_rows // d_k
    signs = torch.from_numpy(hadamard(d_k)).double()
    keys = torch.randn(groups, n_keys, d_k, generator=generator, dtype=torch.float64)
    return signs.expand(groups, d_k, d_k), keys
