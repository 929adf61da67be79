"""How many bytes a computation takes on a CUDA device, found without one.

`measure` runs the computation on the meta device, where tensors have shapes, strides and storages
but no data. It follows every storage from the operation that makes it to the moment when Python or
autograd drops it, and reports the largest sum and what that was made of. What it predicts is
`torch.cuda.max_memory_allocated`, as the caching allocator counts: every storage rounded up to 512
bytes, and a workspace of cuBLAS for each thread that has multiplied matrices, once it has (the
caller's thread and, in a backward pass, autograd's).

Predicted: parameters, buffers, gradients, optimizer state, activations; views and operations in
place or with out=, which allocate nothing; tensors saved for the backward pass, until it frees
them; recomputation under torch.utils.checkpoint; autocast, with the casts of weights that it keeps;
gradients that autograd adds up in place (`autograd`); what CUDA does in another way than the meta
device (`cuda_paths`): the mask of dropout, fused attention, optimizers that work on all tensors at
once, copies of operands that a kernel cannot read where they lie.

Not predicted: temporaries inside one operation, which the meta device does not make. Those of
softmax, layer norm, GELU, cross entropy and matrix products are none. Others have some: reductions
to few outputs, the backward pass of embeddings (it sorts), fused attention (linear in the number of
tokens), logsumexp, sorting, convolutions and linear algebra; mse_loss and its like, whose result
moreover keeps a block as large as their input. The backward pass of a few functions (atan2) writes
in place on a device where it makes a tensor here. Numbers and random state of Python are on the
host. Tensors in reference cycles count to the end, because nobody knows when the garbage collector
will find them. `Footprint.ceiling` bounds what the allocator adds by not splitting blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from traceback import extract_tb

import torch

from claims.instruments.cost.memory.allocator import (
    GRANULE,
    WORKSPACE,
    block_bytes,
    largest_block_bytes,
    workspace_bytes,
)
from claims.instruments.cost.memory.cuda_paths import as_on_cuda
from claims.instruments.cost.memory.naming import Named, cannot_run
from claims.instruments.cost.memory.storages import Followed, Follower

__all__ = [
    "Allocation", "Footprint", "Named", "Trace", "following", "measure", "workspace_bytes",
]  # fmt: skip


@dataclass(frozen=True)
class Allocation:
    """A block of memory, described by the tensor that it was made for.

    `name` is that of the tensor where it has one ("model.head.weight", "model.head.weight.grad",
    "optimizer.state[model.head.weight].exp_avg", "x"), otherwise that of the operation that made it
    ("bmm"). `bytes` are those of the block, rounded up.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


@dataclass(frozen=True)
class Footprint:
    """The memory of a computation, in bytes.

    peak       the most that is allocated at once
    at         the operation that then runs, "start" where nothing comes on top of the baseline
    alive      what the peak is made of, in the order in which it was made; `bytes` sum to the peak
    baseline   what was allocated before: what was named, and what else the computation reads
    workspace  cuBLAS's part in the peak
    ceiling    the most that the allocator may report for the peak; more by blocks it did not split
    """

    peak: int
    at: str
    alive: tuple[Allocation, ...]
    baseline: int
    workspace: int
    ceiling: int


@dataclass
class Trace:
    """What `following` has followed, complete when its block has ended.

    `operations` are the names of those that ran, the first being "start"; a storage exists from the
    operation with the number `made` to the one with the number `last`.
    """

    granule: int
    operations: list[str] = field(default_factory=list)
    storages: list[Followed] = field(default_factory=list)

    def footprint(self) -> Footprint:
        """The footprint of the block. Raises ValueError before the block has ended."""
        if not self.operations:
            raise ValueError("the footprint is known when the block of `following` has ended")
        totals = self._totals(self._block)
        moment = totals.index(max(totals))
        alive = [s for s in self.storages if s.made <= moment <= s.last and s.bytes > 0]
        return Footprint(
            peak=totals[moment],
            at=self.operations[moment],
            alive=tuple(Allocation(s.name, s.shape, s.dtype, self._block(s.bytes)) for s in alive),
            baseline=totals[0],
            workspace=sum(self._block(s.bytes) for s in alive if s.workspace),
            ceiling=max(self._totals(largest_block_bytes)),
        )

    def _block(self, requested: int) -> int:
        return block_bytes(requested, self.granule)

    def _totals(self, block: Callable[[int], int]) -> list[int]:
        """The bytes allocated during each operation, its results included."""
        changes = [0] * (len(self.operations) + 1)
        for storage in self.storages:
            changes[storage.made] += block(storage.bytes)
            changes[storage.last + 1] -= block(storage.bytes)
        return list(accumulate(changes[:-1]))


@contextmanager
def following(
    named: Named, *, workspace: int = WORKSPACE, granule: int = GRANULE
) -> Iterator[Trace]:
    """Follow the memory of the block: `with following({"model": model, "x": x}) as trace:`.

    Args:
        named: the tensors, modules and optimizers that exist before, by the names to report, all on
            the meta device. What the block reads and is not named counts as well, by the name of
            the operation that reads it first.
        workspace: bytes of cuBLAS's workspace (see `workspace_bytes`; the default is PyTorch's for
            GPUs before Hopper).
        granule: bytes to round storages up to; 1 counts the bytes asked for.

    Raises:
        ValueError: a named tensor is empty or on a real device; an operation in the block needs
            data, has no kernel for the meta device or mixes tensors of several devices. The message
            names the operation, or the line of code where PyTorch does not say which it was.
    """
    if workspace < 0 or granule < 1:
        raise ValueError(
            "workspace must be at least 0 bytes and granule at least 1, "
            f"got {workspace} and {granule}"
        )
    trace = Trace(granule)
    follower = Follower(named, workspace)
    collecting = gc.isenabled()
    gc.disable()
    try:
        with as_on_cuda(), follower:
            yield trace
        if not follower.used:
            raise ValueError("nothing ran on the meta device: its tensors must be made there")
    except (NotImplementedError, RuntimeError, TypeError) as error:
        raise cannot_run(None, error, extract_tb(error.__traceback__)) or error from None
    finally:
        follower.close()
        if collecting:
            gc.enable()
    trace.operations, trace.storages = follower.operations, follower.storages


def measure(
    step: Callable[[], object], *, named: Named, workspace: int = WORKSPACE, granule: int = GRANULE
) -> Footprint:
    """The footprint of `step()`; arguments and errors are those of `following`."""
    with following(named, workspace=workspace, granule=granule) as trace:
        step()
    return trace.footprint()
