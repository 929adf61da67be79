"""Autocast on the meta device, as on CUDA.

PyTorch's autocast casts tensors of the device that it is for, and none on the meta device. Here the
operations that it casts on CUDA (aten/src/ATen/autocast_mode.h) get kernels under the autocast key
of a device that does not exist, and that key is on whenever autocast is on for CUDA.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.library import Library, _scoped_library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

NO_DEVICE, KEY = "privateuseone", "AutocastPrivateUse1"

# What runs in half precision, and what in the widest type among its arguments. Of the others that
# autocast has kernels for, those with a `dtype` argument get float32 there, the rest get arguments
# cast to float32.
HALF = {
    "linear", "matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "addbmm", "addmv", "addr", "einsum",
    "chain_matmul", "linalg_multi_dot", "linalg_vecdot", "prelu", "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "_convolution",
    "cudnn_convolution", "cudnn_convolution_transpose", "lstm_cell", "gru_cell", "rnn_tanh_cell",
    "rnn_relu_cell", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
}  # fmt: skip
WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put",
    "tensordot", "scatter_add",
}  # fmt: skip


class _Casts:
    """Casts tensors, those of float32 parameters once for all of an autocast block."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        if not _is_cast(tensor) or tensor.dtype == dtype:
            return tensor
        is_weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype == torch.float32
        if not (is_weight and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        of, kept = self._kept.get(id(tensor), (None, tensor))
        if of is None or of() is not tensor:
            kept = tensor.to(dtype)
            self._kept[id(tensor)] = weakref.ref(tensor), kept
        return kept


def _is_cast(tensor: Tensor) -> bool:
    return (
        tensor.device.type == "meta"
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
    )


def _kernel(operation: Any, casts: _Casts) -> Callable[..., Any]:
    """`operation` after autocast has cast its arguments."""
    name = operation._schema.name.removeprefix("aten::")
    parameters = [argument.name for argument in operation._schema.arguments]
    off = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        floats = [x.dtype for x in tree_leaves(given) if isinstance(x, Tensor) and _is_cast(x)]
        dtype = torch.float32
        if name in HALF:
            dtype = torch.get_autocast_dtype("cuda")
        elif name in WIDEST and torch.float32 not in floats:
            dtype = floats[0] if floats else dtype
        if "dtype" in parameters and name not in HALF:
            if floats and given.get("dtype") is None:
                given["dtype"] = dtype
        else:
            given = tree_map_only(Tensor, partial(casts.cast, dtype=dtype), given)
        with torch._C._ExcludeDispatchKeyGuard(off):
            return operation(**given)

    return kernel


@cache
def _operations() -> dict[str, Any]:
    """The operations that autocast casts on CUDA, by name and overload."""
    operations = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        if torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "AutocastCUDA"):
            name = qualified.removeprefix("aten::")
            packet, _, overload = name.partition(".")
            operations[name] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return operations


@cache
def _pass_others() -> Library:
    """Let operations without a kernel ignore the key. Never undone: nothing else uses the key."""
    library = Library("_", "IMPL")  # type: ignore[no-untyped-call]
    library.fallback(fallthrough_kernel, KEY)  # type: ignore[no-untyped-call]
    return library


@contextmanager
def autocast_as_on_cuda() -> Iterator[None]:
    """Within the block, `torch.autocast("cuda")` casts on the meta device, with CUDA or without."""
    casts = _Casts()
    set_enabled, clear = torch.set_autocast_enabled, torch.clear_autocast_cache
    infer_device_type: Callable[..., str] = torch.utils.checkpoint._infer_device_type

    def set_enabled_for_both(*arguments: Any) -> None:
        set_enabled(*arguments)
        set_enabled(NO_DEVICE, torch.is_autocast_enabled("cuda"))

    def clear_both() -> None:
        clear()
        casts.clear()

    def meta_as_cuda(*args: Any) -> str:
        """So that recomputation runs under the autocast of the first computation."""
        device = infer_device_type(*args)
        return "cuda" if device == "meta" else device

    _pass_others()
    with ExitStack() as stack:
        library = stack.enter_context(_scoped_library("aten", "IMPL"))
        for name, operation in _operations().items():
            library.impl(name, _kernel(operation, casts), KEY)
        for owner, attribute, replacement in (
            (torch, "set_autocast_enabled", set_enabled_for_both),
            (torch, "clear_autocast_cache", clear_both),
            (torch.utils.checkpoint, "_infer_device_type", meta_as_cuda),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch.cuda, "is_bf16_supported", lambda: True),
        ):
            stack.enter_context(patch.object(owner, attribute, replacement))
        stack.enter_context(torch._C._IncludeDispatchKeyGuard(getattr(torch._C.DispatchKey, KEY)))
        set_enabled(NO_DEVICE, torch.is_autocast_enabled("cuda"))
        stack.callback(set_enabled, NO_DEVICE, False)
        yield
