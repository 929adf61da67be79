"""Sequences that repeat themselves, and what the heads of a model do with them.

A row of random tokens is repeated: the first time nothing tells what follows, afterwards everything
does. An induction head, [A][B] ... [A] -> [B], looks at the token that followed the last
time (Elhage et al. 2021; Olsson et al. 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from claims.instruments.attention.activations import attention_weights, mixer_of
from claims.instruments.attention.interventions import knocked_out


@dataclass(frozen=True)
class Repeated:
    """tokens (B, T) int64; periods (B,): after so many tokens each sequence repeats itself."""

    tokens: Tensor
    periods: Tensor


def repeated(
    vocabulary: int, length: int, shortest: int, longest: int, rows: int,
    generator: torch.Generator,
) -> Repeated:
    """Rows of `shortest` to `longest` random tokens, each repeated up to `length`.

    With one period for all, the token to copy would be at a fixed distance, and a head that knows
    positions alone would find it.
    """
    if not 1 <= shortest <= longest < length:
        raise ValueError(
            f"a row of {shortest} to {longest} tokens does not repeat within {length}: "
            "1 <= shortest <= longest < length"
        )
    periods = torch.randint(shortest, longest + 1, (rows,), generator=generator)
    row = torch.randint(vocabulary, (rows, longest), generator=generator)
    return Repeated(row.gather(1, torch.arange(length) % periods[:, None]), periods)


@dataclass(frozen=True)
class Losses:
    """Mean negative log-likelihood in nats, of what is new and of what repeats itself."""

    new: float
    repeated: float


@torch.no_grad()
def losses(model: Any, data: Repeated) -> Losses:
    """The losses of a model, tokens (B, T) -> logits (B, T, V)."""
    logs = model(data.tokens[:, :-1]).log_softmax(-1)
    nll = -logs.gather(-1, data.tokens[:, 1:, None])[..., 0]             # (B, T - 1)
    again = _repeats(data)
    return Losses(float(nll[~again].mean()), float(nll[again].mean()))


def loss_without_the_token_before(model: Any, data: Repeated, block: int) -> Losses:
    """The losses if no token of one block can see the token before it."""
    edges = [(t, t - 1) for t in range(1, data.tokens.shape[1] - 1)]
    with knocked_out(mixer_of(model, block), edges):
        return losses(model, data)


def previous_token_scores(model: Any, data: Repeated, block: int) -> Tensor:
    """(h,): the weight that the heads of a block put on the token before, averaged."""
    weights = attention_weights(model, data.tokens[:, :-1], block)       # (B, h, T - 1, T - 1)
    return weights.diagonal(-1, -2, -1).mean((0, 2))


def induction_scores(model: Any, data: Repeated, block: int) -> Tensor:
    """(h,): the weight on the token that followed the last time, averaged over what repeats."""
    weights = attention_weights(model, data.tokens[:, :-1], block)       # (B, h, T - 1, T - 1)
    again = _repeats(data)
    queries = torch.arange(again.shape[1])
    followed = (queries + 1 - data.periods[:, None]).clamp(min=0)        # (B, T - 1)
    index = followed[:, None, :, None].expand(-1, weights.shape[1], -1, 1)
    on_it = weights.gather(-1, index)[..., 0]                            # (B, h, T - 1)
    return (on_it * again[:, None]).sum((0, 2)) / again.sum()


def _repeats(data: Repeated) -> Tensor:
    """(B, T - 1) bool: where token and next token have come before, side by side."""
    return torch.arange(data.tokens.shape[1] - 1) >= data.periods[:, None]
