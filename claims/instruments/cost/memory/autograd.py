"""Where autograd adds up gradients in place, which it does not do while a dispatch mode is on.

A tensor that is used twice gets two gradients, and autograd adds the second to the first in place
if nothing else refers to the first (can_accumulate_inplace in PyTorch's sources,
torch/csrc/autograd/input_buffer.cpp). With a dispatch mode on it makes a third tensor instead. So
the mode has to see which additions these are, and add in place itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

ADD = torch.ops.aten.add.Tensor


def in_backward() -> bool:
    """Whether autograd runs, which on a CUDA device it does in a thread of its own."""
    return torch._C._current_graph_task_id() != -1


class Accumulation:
    """Tells autograd's additions of gradients from others. It must be asked of every operation."""

    def __init__(self) -> None:
        self._node = -1  # the node of the graph that runs,
        self._since = 0  # and the moment of its first operation
        self._counts = _counts_of_a_sole_owner()

    def is_in_place(
        self, func: Any, args: tuple[Any, ...], moment: int, made: Callable[[Tensor], int]
    ) -> bool:
        """Whether `func` is to add args[1] to args[0] in place.

        `moment` is that of `func`, and `made` tells at which moment a tensor was made.

        A sum that a node of the graph computes for itself is no addition of gradients. Those begin
        with a gradient from an earlier node, or from this one where two of its outputs go to one
        place (there a sum of its own would be taken for one).
        """
        node = torch._C._current_autograd_node()
        if node is None:
            return False
        if node._sequence_nr() != self._node:
            self._node, self._since = node._sequence_nr(), moment
        if func is not ADD or torch.is_grad_enabled() or not _engine_called():
            return False
        own_outputs = len(set(node.next_functions)) < len(node.next_functions)
        return (
            (made(args[0]) < self._since or own_outputs)
            and _reference_counts(args[0]) == self._counts
            and torch.ops.aten.is_non_overlapping_and_dense(args[0])
        )


def _engine_called() -> bool:
    """Whether the dispatch mode was called by autograd's engine, with no Python code in between."""
    # PyTorch wraps every __torch_dispatch__ in functions of the last two modules.
    on_the_way = (__package__, "torch._compile", "torch._dynamo")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals["__name__"].startswith(on_the_way):
        frame = frame.f_back
    return frame is not None and frame.f_code is _engine_run_backward.__code__


def _reference_counts(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    references: int = tensor._use_count()  # type: ignore[attr-defined]
    return references, torch._C._storage_Use_Count(storage._cdata)


@cache
def _counts_of_a_sole_owner() -> tuple[int, int]:
    """The reference counts, seen from a dispatch mode, of a gradient that only autograd holds.

    Measured on one, because they depend on how this version of PyTorch passes tensors to Python.
    """
    counts: list[tuple[int, int]] = []

    class Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            if func is ADD and in_backward():
                counts.append(_reference_counts(args[0]))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(False), torch.enable_grad():
        used_twice = torch.empty(1, device="meta", requires_grad=True).sin()
        with Probe():  # type: ignore[no-untyped-call]
            (used_twice.cos() + used_twice.exp()).backward()  # type: ignore[no-untyped-call]
    return counts[0]
