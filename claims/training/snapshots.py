"""What is recorded of a model while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from claims.harness.layout import USUAL
from claims.instruments.attention.activations import mixer_of, passing_through
from claims.instruments.attention.scores import causal_std, entropy, raw_scores, saturated
from claims.training.spec import HeadScores, RunSpec

PROBE_WINDOWS = 8


def head_scores(model: Any, spec: RunSpec, probe: Tensor) -> tuple[HeadScores, ...]:
    """The attention of every block on `probe` (B, T)."""
    return tuple(_block_scores(model, block, spec, probe) for block in range(spec.model.n_blocks))


@torch.no_grad()
def _block_scores(model: Any, block: int, spec: RunSpec, probe: Tensor) -> HeadScores:
    mixer = mixer_of(model, block)
    x, _ = passing_through(mixer, lambda: model(probe))
    weights = mixer(x, return_weights=True)[1]
    scores = raw_scores(USUAL, mixer, x, spec.model.n_heads)
    if spec.model.scaled:
        d_head = spec.model.d_head or spec.model.d_model // spec.model.n_heads
        scores = scores / d_head**0.5
    return HeadScores(
        std=causal_std(scores),
        entropy=float(entropy(weights).mean()),
        saturated=float(saturated(weights).float().mean()),
    )


def gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    """The L2 norm of each parameter's gradient, by name; a tied parameter stands there once."""
    return {
        name: float(parameter.grad.norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
