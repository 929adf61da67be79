"""What goes into and comes out of a part of a model while it runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def passing_through(module: nn.Module, run: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """(input, output) of `module` while `run()` runs, without gradients.

    Raises ValueError unless `run` uses the module exactly once.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    handle = module.register_forward_hook(lambda _, args, output: seen.append((args[0], output)))
    try:
        with torch.no_grad():
            run()
    finally:
        handle.remove()
    if len(seen) != 1:
        raise ValueError(f"the module was used {len(seen)} times, not once")
    return seen[0]


def attention_weights(model: nn.Module, tokens: Tensor, block: int) -> Tensor:
    """(B, h, T, T): the weights of every head of one block (counted from 0), for tokens (B, T).

    The model has `blocks`, each with a `mixer` that is called with return_weights=True.
    """
    mixer = model.get_submodule(f"blocks.{block}.mixer")
    x, _ = passing_through(mixer, lambda: model(tokens))
    with torch.no_grad():
        weights: Tensor = mixer(x, return_weights=True)[1]
    return weights
