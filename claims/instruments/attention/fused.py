"""Causal attention of an implementation, explicit and fused, and inputs to compare the two on."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from claims.harness.implementation import Implementation
from claims.harness.seeds import Draws
from claims.instruments.attention.tiled import Attention


def draw_attention(
    rng: Draws, sequences: int, n: int = 32, d: int = 16, *, largest_score: float | None = None
) -> list[Tensor]:
    """q, k, v and a gradient for the output, each (sequences, 1, n, d) standard normal.

    With `largest_score`, the queries of each sequence are scaled until its largest |score| is that.
    """
    q, k, v, upstream = (
        rng.normal(sequences, 1, n, d, salt=s) for s in ("q", "k", "v", "upstream")
    )
    if largest_score is not None:
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)
        q = q * (largest_score / scores.abs().amax((-3, -2, -1), keepdim=True))
    return [q, k, v, upstream]


def with_a_mask(implementation: Implementation, fused: bool) -> Attention:
    """The implementation's attention, explicit or fused, causal by a mask."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = implementation.causal_mask(q.shape[-2], device=q.device)
        output: Tensor = implementation.attention(q, k, v, mask, fused=fused)
        return output

    return attend


def by_kernel(implementation: Implementation, kernel: SDPBackend) -> Attention:
    """The implementation's fused attention, causal by a mask, by one of PyTorch's kernels."""
    attend = with_a_mask(implementation, fused=True)

    def forced(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(kernel):
            return attend(q, k, v)

    return forced


def over_the_rule(share: Tensor) -> tuple[int, int]:
    """How many sequences use up more than their allowed error, NaN included, and of how many."""
    return int((~(share <= 1)).sum()), share.numel()
