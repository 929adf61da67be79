"""Edits of a model while it runs: cut an edge of attention, or replace an output.

Weights show where a head looks; what such an edit breaks shows what the model needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def watched(handle: RemovableHandle) -> Iterator[None]:
    """While a hook of a module is there; it is called also where the module has been compiled.

    What torch.compile has compiled takes no notice of hooks that came later, and is run as it is
    written meanwhile.
    """
    try:
        if "torch._dynamo" in sys.modules:  # importing it takes seconds
            with torch.compiler.set_stance("force_eager"):
                yield
        else:
            yield
    finally:
        handle.remove()


@contextmanager
def knocked_out(mixer: nn.Module, edges: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Forbid every head of `mixer` some edges, (query, key).

    The softmax gives their weight to the remaining keys (attention knockout, Geva et al. 2023). The
    mixer is called with a sequence alone and takes `mask=`.
    """

    def forbid(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Any]) -> Any:
        n = args[0].shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool, device=args[0].device)
        for query, key in edges:
            allowed[query, key] = False
        return args, {**named, "mask": allowed}

    with watched(mixer.register_forward_pre_hook(forbid, with_kwargs=True)):
        yield


@contextmanager
def replaced(module: nn.Module, position: int, values: Tensor) -> Iterator[None]:
    """Replace the output of `module` at one position by `values` (B, d), those of another run."""

    def exchange(_: nn.Module, __: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, position] = values
        return output

    with watched(module.register_forward_hook(exchange)):
        yield
