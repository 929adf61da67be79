"""Where CUDA takes another path than the meta device, and other tensors are made.

Some operations are made of others, and of different ones on CUDA. `as_on_cuda` lets the meta device
take CUDA's path, as PyTorch's sources have it:

dropout                       native_dropout, whose mask has a byte per element, not four
softmax                       float32 from float16 in one step, without a float32 copy of the input
linear                        adds its bias in place where it does not fuse the two; on the meta
                              device it never adds in place
scaled_dot_product_attention  see `attention`
optimizers, gradient clipping all tensors at once (foreach), with temporaries as large as all of
                              them, where the meta device takes one tensor after the other
autocast                      see `autocast`

`hidden` lists temporaries that the CUDA kernel of an operation allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.utils._foreach_utils
from torch import Tensor
from torch.library import _scoped_library

from claims.instruments.cost.memory.attention import attention
from claims.instruments.cost.memory.autocast import autocast_as_on_cuda

aten = torch.ops.aten

MATRIX_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}

# Which arguments a kernel copies unless it can read them: the two matrices of a product, for BLAS,
# and what has to be contiguous.
_MATRICES = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2)}
_CONTIGUOUS = {
    "_softmax": (0,), "_softmax_backward_data": (0, 1),
    "_log_softmax": (0,), "_log_softmax_backward_data": (0, 1),
    "native_layer_norm": (0,), "native_layer_norm_backward": (0, 1),
    "embedding": (1,), "embedding_dense_backward": (0,),
}  # fmt: skip


def hidden(name: str, args: tuple[Any, ...]) -> Iterator[tuple[Tensor, torch.dtype]]:
    """The temporaries in the CUDA kernel of operation `name`: each as large as an argument."""
    for position in _MATRICES.get(name, ()):
        if not _blas_reads(args[position]):
            yield args[position], args[position].dtype
    for position in _CONTIGUOUS.get(name, ()):
        if not args[position].is_contiguous():
            yield args[position], args[position].dtype
    if name == "_safe_softmax":  # where the scores are -inf, and in which rows all are
        yield args[0], torch.bool
        yield args[0][..., 0], torch.bool


def _blas_reads(matrix: Tensor) -> bool:
    """Whether rows or columns lie one after the other (aten/src/ATen/native/cuda/Blas.cpp)."""
    (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
    by_rows = across == 1 and down >= max(1, columns)
    by_columns = down == 1 and across >= max(1, rows)
    by_either = matrix.is_contiguous() and (matrix.dim() == 2 or (down != 0 and across != 0))
    return by_rows or by_columns or by_either


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if p == 0 or not train:
        return input
    if p == 1:
        return input * torch.zeros((), device=input.device)
    return torch.native_dropout(input, p, train)[0]


def _softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = aten._softmax(*_softmax_arguments(input, dim, dtype))
    return result


def _log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = aten._log_softmax(*_softmax_arguments(input, dim, dtype))
    return result


def _softmax_arguments(
    input: Tensor, dim: int, dtype: torch.dtype | None
) -> tuple[Tensor, int, bool]:
    if (input.dtype, dtype) == (torch.float16, torch.float32):
        return input, dim, True
    return input if dtype is None else input.to(dtype), dim, False


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None or input.dim() <= 2 or input.is_contiguous():
        result: Tensor = aten.linear.default.decompose(input, weight, bias)
        return result
    return (input @ weight.t()).add_(bias)


_KERNELS: dict[str, Callable[..., Tensor]] = {
    "dropout": _dropout,
    "softmax.int": _softmax,
    "log_softmax.int": _log_softmax,
    "linear": _linear,
    "scaled_dot_product_attention": attention,
}


def composite(operation: Any) -> Callable[..., Any] | None:
    """What an operation is made of on CUDA, or None if it has a kernel of its own."""
    name: str = operation.name().removeprefix("aten::")
    if name in _KERNELS:
        return _KERNELS[name]
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), "CompositeImplicitAutograd"
    )
    return operation.decompose if is_composite else None


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Within the block, operations on the meta device are made of what they are on CUDA."""
    foreach = "_get_foreach_kernels_supported_devices"
    devices = [*torch.utils._foreach_utils._get_foreach_kernels_supported_devices(), "meta"]
    with ExitStack() as stack:
        library = stack.enter_context(_scoped_library("aten", "IMPL"))
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, "AutogradMeta")
        for module in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
            stack.enter_context(patch.object(import_module(module), foreach, lambda: devices))
        stack.enter_context(autocast_as_on_cuda())
        yield
