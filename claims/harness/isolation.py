"""What a test must leave as it found it: random generators, default dtype, flags, threads."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch


def _numpy_state() -> tuple[Any, ...]:
    # The generator that a library may still draw from; this project does not.
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return (name, np.asarray(keys).tobytes(), *rest)


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    name, keys, *rest = state
    np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002


def _torch_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_torch_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


Access = tuple[Callable[[], Any], Callable[[Any], object]]


def _attribute(owner: object, name: str) -> Access:
    return partial(getattr, owner, name), partial(setattr, owner, name)


GENERATORS: dict[str, Access] = {
    "torch's generator": (_torch_state, _set_torch_state),
    "numpy's generator": (_numpy_state, _set_numpy_state),
    "Python's generator": (random.getstate, random.setstate),
}
SETTINGS: dict[str, Access] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "float32 matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "TF32 in matmul": _attribute(torch.backends.cuda.matmul, "allow_tf32"),
    "TF32 in cuDNN": _attribute(torch.backends.cudnn, "allow_tf32"),
    "cuDNN determinism": _attribute(torch.backends.cudnn, "deterministic"),
    "cuDNN benchmarking": _attribute(torch.backends.cudnn, "benchmark"),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


class GlobalState:
    """A snapshot of the process-wide state that one test could leak into the next."""

    def __init__(self) -> None:
        self._values = {name: get() for name, (get, _) in (GENERATORS | SETTINGS).items()}

    def restore(self) -> list[str]:
        """Set back what differs by now; returns what that was, in words.

        Only what differs is set: some setters import much of torch.
        """
        changes = []
        for name, (get, set_back) in (GENERATORS | SETTINGS).items():
            before, now = self._values[name], get()
            if now != before:
                set_back(before)
                changes.append(
                    f"{name} (drawn from)" if name in GENERATORS else f"{name} ({before} -> {now})"
                )
        return changes
