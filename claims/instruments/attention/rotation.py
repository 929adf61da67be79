"""Rotary positions by their formula, in both pairings of features.

Su et al. 2021: features 2j and 2j+1 are one complex number, and position t multiplies it by
e^(i t theta_j), where theta_j = 10,000^(-2j/d).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def angles(t: Tensor, d: int) -> Tensor:
    """(...,) -> (..., d/2): t theta_j, float64."""
    return t[..., None] * 10_000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)


def pairs(x: Tensor) -> Tensor:
    """(..., d) -> (..., d/2): features 2j and 2j+1 as real and imaginary part."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def pair_lengths(x: Tensor) -> Tensor:
    """(..., d) -> (..., d): for every feature the length of its pair."""
    return pairs(x).abs().repeat_interleave(2, dim=-1)


def rotated(x: Tensor, turned_by: Tensor) -> Tensor:
    """x (T, d) with its pairs turned by angles (T, d/2)."""
    turned = pairs(x) * torch.polar(torch.ones_like(turned_by), turned_by)
    return torch.view_as_real(turned).flatten(-2)


def rotated_in_halves(x: Tensor, t: Tensor) -> Tensor:
    """x (T, d) turned to positions t (T,) in the other pairing: feature j with feature j + d/2."""
    first, second = x.chunk(2, dim=-1)
    turned_by = angles(t, x.shape[-1])
    cos, sin = turned_by.cos(), turned_by.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


def relative_weights(q: Tensor, k: Tensor) -> Tensor:
    """Causal weights of q and k (B, T, h, d), by a formula in t - i: (B, h, T, T).

    The score is Re sum_j q_j conj(k_j) e^(i (t - i) theta_j) over sqrt(d), in q's precision.
    """
    T, d = q.shape[1], q.shape[-1]
    difference = torch.arange(T)[:, None] - torch.arange(T)
    turned_by = angles(difference, d)
    turns = torch.polar(torch.ones_like(turned_by), turned_by).to(pairs(q).dtype)
    products = torch.einsum("bthj,bihj,tij->bhti", pairs(q), pairs(k).conj(), turns)
    scores = products.real / math.sqrt(d)
    return scores.masked_fill(difference < 0, -math.inf).softmax(dim=-1)
