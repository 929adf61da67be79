"""Memory as a GPU's allocator counts it, and a fake GPU for machines that have none.

Bytes are counted twice: as asked for, which can be predicted to the byte, and as allocated, in
blocks that the allocator may leave larger than asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from claims.instruments.cost.memory.allocator import block_bytes
from claims.instruments.cost.memory.cuda_paths import MATRIX_PRODUCTS, as_on_cuda

META = torch.device("meta")


@dataclass(frozen=True)
class Bytes:
    """Memory in bytes, as asked for and as allocated."""

    asked: int
    allocated: int

    def __sub__(self, other: Bytes) -> Bytes:
        return Bytes(self.asked - other.asked, self.allocated - other.allocated)


class Gpu(Protocol):
    """A device and its memory."""

    device: torch.device

    def now(self) -> Bytes:
        """What is in use."""

    def most(self) -> Bytes:
        """The most that was in use since `forget`."""

    def forget(self) -> None:
        """Start to look for the most again."""

    def capped(self, cap: int) -> AbstractContextManager[None]:
        """Within the block, at most `cap` bytes may be in use."""


@dataclass(frozen=True)
class Counted:
    """What a step takes on a GPU.

    workspace  bytes that cuBLAS took for its own; 0 if it had them before
    peaks      of each repeat, above what was in use before; what the step reads is part of them
    """

    workspace: int
    peaks: tuple[Bytes, ...]


def count(place: Callable[[], Callable[[], object]], gpu: Gpu, repeats: int = 3) -> Counted:
    """Count the memory of a step. `place()` puts what it reads on the GPU and returns the step."""
    before = gpu.now()
    step = place()
    placed = gpu.now()
    step()
    workspace = (gpu.now() - placed).asked

    def peak() -> Bytes:
        gpu.forget()
        step()
        return gpu.most() - before

    return Counted(workspace, tuple(peak() for _ in range(repeats)))


def runs_out(step: Callable[[], object]) -> bool:
    """Whether the step asks for more memory than there is. What it held is then free again."""
    try:
        step()
    except torch.OutOfMemoryError:
        return True
    return False


class CudaGpu:
    """A CUDA device, by the counters of PyTorch's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> Bytes:
        return self._counters("current")

    def most(self) -> Bytes:
        return self._counters("peak")

    def forget(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    @contextmanager
    def capped(self, cap: int) -> Iterator[None]:
        """By a share of the GPU's memory; a GPU that has less than `cap` is not limited."""
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
            torch.cuda.empty_cache()

    def _counters(self, which: str) -> Bytes:
        torch.cuda.synchronize(self.device)
        counters = torch.cuda.memory_stats(self.device)
        return Bytes(
            counters.get(f"requested_bytes.all.{which}", 0),
            counters.get(f"allocated_bytes.all.{which}", 0),
        )


@contextmanager
def fake_gpu(workspace: int, device: torch.device = META) -> Iterator[Gpu]:
    """The meta device, or the CPU, as a GPU: cuBLAS takes `workspace` bytes at its first product.

    It does not use the instrument `memory`, with which it is compared: its count grows when a
    storage is made and falls when it is freed. Its blocks are as small as they can be.
    """
    with as_on_cuda(), _FakeGpu(workspace, device) as gpu:
        yield gpu


class _FakeGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, workspace: int, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self._workspace, self._multiplied = workspace, False
        self._cap: float = float("inf")
        self._in_use = self._most = Bytes(0, 0)
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def now(self) -> Bytes:
        return self._in_use

    def most(self) -> Bytes:
        return self._most

    def forget(self) -> None:
        self._most = self._in_use

    @contextmanager
    def capped(self, cap: int) -> Iterator[None]:
        self._cap = cap
        try:
            yield
        finally:
            self._cap = float("inf")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in MATRIX_PRODUCTS and not self._multiplied:
            self._multiplied = True
            self._take(self._workspace)
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage()._cdata not in self._alive:
                self._hold(made.untyped_storage())
        return result

    def _hold(self, storage: torch.UntypedStorage) -> None:
        self._take(storage.nbytes())
        key = storage._cdata
        self._alive[key] = weakref.ref(storage, partial(self._free, key, storage.nbytes()))

    def _take(self, asked: int) -> None:
        now = Bytes(self._in_use.asked + asked, self._in_use.allocated + block_bytes(asked))
        if now.allocated > self._cap:
            raise torch.OutOfMemoryError(f"{asked} bytes do not fit below {self._cap:.0f}")
        self._in_use = now
        self._most = Bytes(
            max(self._most.asked, now.asked), max(self._most.allocated, now.allocated)
        )

    def _free(self, key: int, asked: int, _: object) -> None:
        self._in_use -= Bytes(asked, block_bytes(asked))
        del self._alive[key]
