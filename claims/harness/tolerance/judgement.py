"""What every kind of tolerance shares: the judgement, plain data for the report, and NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from torch import Tensor

from claims.harness.per_seed import PerSeed


@dataclass(frozen=True)
class Judgement:
    """What became of one comparison. `measured` and `expected` are plain data, fit for JSON.

    decided    False where the measurement tells neither that the claim holds nor that it fails
    settled    True where more seeds are not needed, or would not change it
    """

    ok: bool
    measured: Any
    expected: Any
    allowed: str
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    decided: bool = True
    settled: bool = False


class Tolerance(Protocol):
    """One of the four kinds."""

    kind: ClassVar[str]

    def judge(self, measured: Any) -> Judgement: ...


class MisusedTolerance(Exception):
    """A defect of the claim, not of what it measures: never an expected failure."""


def plain(value: Any) -> Any:
    """`value` as data that JSON can hold; a large tensor as its shape and dtype."""
    if isinstance(value, Tensor):
        if value.numel() > 64:
            return f"{value.dtype} tensor of shape {tuple(value.shape)}".replace("torch.", "")
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | PerSeed):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def has_nan(value: Any) -> bool:
    """Whether a NaN stands anywhere in a number, tensor, list or dictionary."""
    if isinstance(value, Tensor):
        return bool(value.isnan().any())
    if isinstance(value, Mapping):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, list | tuple | PerSeed):
        return any(has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)
