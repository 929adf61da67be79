"""Follows storages on the meta device from the operation that makes them until they are freed.

A moment is the number of the operation that runs, 0 before the first. A storage exists from the
operation that makes it to the last one before it is dropped.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from functools import partial
from traceback import extract_stack
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from claims.instruments.cost.memory import naming
from claims.instruments.cost.memory.autograd import Accumulation, in_backward
from claims.instruments.cost.memory.cuda_paths import MATRIX_PRODUCTS, composite, hidden
from claims.instruments.cost.memory.naming import Named


@dataclass(eq=False)
class Followed:
    """A storage, described by the tensor that it was made for. `made` and `last` are moments."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    made: int
    last: int = sys.maxsize
    named: bool = False  # by the caller, not by an operation
    workspace: bool = False


class Follower(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, follows all storages that operations read or make."""

    def __init__(self, named: Named, workspace: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        naming.check(named)
        self.operations = ["start"]
        self.storages: list[Followed] = []
        self.used = False  # the meta device, by an operation
        self._alive: dict[int, tuple[Followed, weakref.ref[torch.UntypedStorage]]] = {}
        self._named, self._names = named, naming.by_id(named)
        self._workspace = workspace
        self._threads_with_workspace: set[bool] = set()  # the caller's: False, autograd's: True
        self._accumulation = Accumulation()
        self._name_all()

    def close(self) -> None:
        """Stop following. What still exists has lasted to the end."""
        self._name_all()
        self._alive.clear()
        for storage in self.storages:
            storage.last = min(storage.last, self._moment)

    @property
    def _moment(self) -> int:
        return len(self.operations) - 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled() and (parts := composite(func)) is not None:
            with self:
                return parts(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        given = _on_meta(name, (args, kwargs))
        for tensor in given:
            self._follow(tensor, f"read by {name}", made=0)
        self.operations.append(name)
        result = self._run(name, func, args, kwargs)
        results = _on_meta(name, result)
        for tensor in (*given, *results):
            self._follow(tensor, name, self._moment)
            self.used = True
        self._name_gradient(results)
        if given:
            self._allocate_hidden(name, args)
        return result

    def _run(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if self._accumulation.is_in_place(func, args, self._moment, self._made):
                return args[0].add_(args[1])
            return func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            raise naming.cannot_run(name, error, extract_stack()) or error from None

    def _follow(self, tensor: Tensor, name: str, made: int) -> Followed:
        """The storage of a tensor, which `name` made at `made` if it is not followed yet."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            followed, _ = self._alive[key]
            if followed.bytes == size:
                return followed
            # Resized: the old block is freed once the new one exists.
            followed.last = made = self._moment
        followed = Followed(name, tuple(tensor.shape), tensor.dtype, size, made)
        self.storages.append(followed)
        # A storage keeps its Python object as long as it lives itself, with or without references
        # from Python: the weak reference dies with the storage, not with that object.
        self._alive[key] = followed, weakref.ref(storage, partial(self._drop, key, followed))
        return followed

    def _drop(self, key: int, followed: Followed, _: object) -> None:
        followed.last = self._moment
        del self._alive[key]

    def _made(self, tensor: Tensor) -> int:
        return self._alive[tensor.untyped_storage()._cdata][0].made

    def _allocate_hidden(self, name: str, args: tuple[Any, ...]) -> None:
        """What CUDA allocates for an operation beside its outputs."""
        if name in MATRIX_PRODUCTS and in_backward() not in self._threads_with_workspace:
            self._threads_with_workspace.add(in_backward())
            whose = " of autograd's thread" if in_backward() else ""
            size = self._workspace
            followed = Followed(
                f"cuBLAS workspace{whose}", (size,), torch.uint8, size, self._moment, workspace=True
            )
            self.storages.append(followed)
        for like, dtype in hidden(name, args):
            shape, size = tuple(like.shape), like.numel() * dtype.itemsize
            self.storages.append(
                Followed(f"within {name}", shape, dtype, size, self._moment, self._moment)
            )

    def _name_gradient(self, tensors: list[Tensor]) -> None:
        node = torch._C._current_autograd_node()
        if node is not None and node.name() == "torch::autograd::AccumulateGrad":
            name = self._names.get(id(node.variable))  # type: ignore[attr-defined]
            for tensor in tensors if name is not None else ():
                self._name(f"{name}.grad", tensor)

    def _name_all(self) -> None:
        for name, tensor in naming.tensors(self._named):
            self._name(name, tensor)

    def _name(self, name: str, tensor: Tensor) -> None:
        followed = self._follow(tensor, name, self._moment)
        if not followed.named:
            followed.name, followed.named = name, True


def _on_meta(operation: str, arguments: Any) -> list[Tensor]:
    """The tensors on the meta device among an operation's arguments or results.

    Raises ValueError if others are mixed with them, but for numbers and where one is copied to
    another. (CUDA also takes indices from the host, and copies them to the device.)
    """
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    on_meta = [tensor for tensor in tensors if tensor.device.type == "meta"]
    if on_meta and len(on_meta) < len(tensors) and operation != "copy_":
        for tensor in tensors:
            if tensor.device.type != "meta" and tensor.dim() > 0:
                raise ValueError(
                    f"{operation} mixes tensors on the meta device with one on {tensor.device} "
                    f"of shape {tuple(tensor.shape)}"
                )
    for tensor in on_meta:
        naming.check_layout(operation, tensor)
    return on_meta
