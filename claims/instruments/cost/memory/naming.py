"""What tensors and lines of code are called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from traceback import FrameSummary, StackSummary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Named = Mapping[str, Tensor | nn.Module | Optimizer]


def check(named: Named) -> None:
    """Raise ValueError for what cannot be followed on the meta device."""
    for name, thing in named.items():
        if not isinstance(thing, (Tensor, nn.Module, Optimizer)):
            raise ValueError(
                f"{name} must be a tensor, a module or an optimizer, got {type(thing).__name__}"
            )
        if isinstance(thing, Tensor) and thing.numel() == 0:
            raise ValueError(f"{name} has no elements: its shape is {tuple(thing.shape)}")
    for name, tensor in tensors(named):
        if tensor.device.type != "meta":
            raise ValueError(
                f"{name} is on the device {tensor.device}: what is measured must be made on the "
                "meta device, as under `with torch.device('meta'):`"
            )
        check_layout(name, tensor)


def check_layout(name: str, tensor: Tensor) -> None:
    """Raise ValueError for a tensor that has no storage of its own."""
    if tensor.layout != torch.strided:
        raise ValueError(f"{name}: tensors of layout {tensor.layout} cannot be followed")


def tensors(named: Named) -> Iterator[tuple[str, Tensor]]:
    """Each tensor with its name: those given, parameters, buffers, gradients, optimizer state.

    The step counts of an optimizer are left out: they are kept on the CPU.
    """
    for name, tensor in _given(named):
        yield name, tensor
        if tensor.is_leaf and tensor.grad is not None:
            yield f"{name}.grad", tensor.grad
    names = by_id(named)
    for name, thing in named.items():
        if isinstance(thing, Optimizer):
            for position, (parameter, state) in enumerate(thing.state.items()):
                of = names.get(id(parameter), str(position))
                for key, value in state.items():
                    if isinstance(value, Tensor) and (key, value.device.type) != ("step", "cpu"):
                        yield f"{name}.state[{of}].{key}", value


def by_id(named: Named) -> dict[int, str]:
    """The names of parameters, buffers and tensors by id(); a shared one has its first name."""
    names: dict[int, str] = {}
    for name, tensor in _given(named):
        names.setdefault(id(tensor), name)
    return names


def _given(named: Named) -> Iterator[tuple[str, Tensor]]:
    for name, thing in named.items():
        if isinstance(thing, Tensor):
            yield name, thing
        elif isinstance(thing, nn.Module):
            for part, tensor in (*thing.named_parameters(), *thing.named_buffers()):
                yield f"{name}.{part}", tensor


def cannot_run(operation: str | None, error: Exception, stack: StackSummary) -> ValueError | None:
    """The error for a user, if what PyTorch says is that the meta device cannot do something."""
    kernel_missing = operation is not None and isinstance(error, NotImplementedError)
    if not kernel_missing and not re.search(r"\bmeta\b", str(error)):
        return None
    ours = (torch.__path__[0], str(Path(__file__).parent))
    frame: FrameSummary = [f for f in stack if not f.filename.startswith(ours)][-1]
    line = f"`{frame.line}` ({frame.filename}, line {frame.lineno})"
    reason = str(error).splitlines()[0]
    what = line if operation is None else f"{operation} in {line}"
    return ValueError(f"{what} cannot run on the meta device, which has no data: {reason}")
