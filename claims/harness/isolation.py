"""What a test must leave as it found it: random generators, default dtype, flags, threads."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class GlobalState:
    """A snapshot of the process-wide state that a test could leak into the next."""

    torch_generator: bytes
    numpy_generator: tuple[Any, ...]
    python_generator: tuple[Any, ...]
    default_dtype: torch.dtype
    gradient_mode: bool
    deterministic_algorithms: bool
    cudnn_deterministic: bool
    cudnn_benchmark: bool
    matmul_precision: str
    cuda_matmul_tf32: bool
    cudnn_tf32: bool
    threads: int

    @classmethod
    def take(cls) -> GlobalState:
        return cls(
            torch_generator=torch.get_rng_state().numpy().tobytes(),
            # The generator that a library may still use, not one that this project draws from.
            numpy_generator=_legacy_numpy_state(),
            python_generator=random.getstate(),
            default_dtype=torch.get_default_dtype(),
            gradient_mode=torch.is_grad_enabled(),
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            matmul_precision=torch.get_float32_matmul_precision(),
            cuda_matmul_tf32=torch.backends.cuda.matmul.allow_tf32,
            cudnn_tf32=torch.backends.cudnn.allow_tf32,
            threads=torch.get_num_threads(),
        )

    def changes(self, later: GlobalState) -> list[str]:
        """What `later` has otherwise, in words."""
        found = []
        for item in fields(self):
            before, after = getattr(self, item.name), getattr(later, item.name)
            if before != after:
                name = item.name.replace("_", " ")
                known = not name.endswith("generator")
                found.append(f"{name} ({before} -> {after})" if known else f"{name} (drawn from)")
        return found

    def restore(self) -> None:
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch_generator), dtype=torch.uint8))
        random.setstate(self.python_generator)
        name, keys, *rest = self.numpy_generator
        np.random.set_state((name, np.frombuffer(keys, dtype=np.uint32), *rest))  # noqa: NPY002
        torch.set_default_dtype(self.default_dtype)
        torch.set_grad_enabled(self.gradient_mode)
        torch.use_deterministic_algorithms(self.deterministic_algorithms)
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cuda.matmul.allow_tf32 = self.cuda_matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.set_num_threads(self.threads)


def _legacy_numpy_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return (name, np.asarray(keys).tobytes(), *rest)
