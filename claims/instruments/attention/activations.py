"""What goes into and comes out of a part of a model while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from claims.harness.layout import USUAL, Layout
from claims.instruments.attention.interventions import watched


def passing_through(module: nn.Module, run: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """(input, output) of `module` while `run()` runs, without gradients.

    Raises ValueError unless `run` uses the module exactly once.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    hook = module.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    with watched(hook), torch.no_grad():
        run()
    if len(seen) != 1:
        raise ValueError(f"the module was used {len(seen)} times, not once")
    return seen[0]


def mixer_of(model: nn.Module, block: int, layout: Layout = USUAL) -> Any:
    """What mixes positions in one block of a language model, counted from 0."""
    return layout.part(layout.part(model, "blocks")[block], "mixer")


def attention_weights(
    model: nn.Module, tokens: Tensor, block: int, layout: Layout = USUAL
) -> Tensor:
    """(B, h, T, T): the weights of every head of one block (counted from 0), for tokens (B, T).

    The block's mixer is called with return_weights=True.
    """
    mixer = mixer_of(model, block, layout)
    x, _ = passing_through(mixer, lambda: model(tokens))
    with torch.no_grad():
        weights: Tensor = mixer(x, return_weights=True)[1]
    return weights
