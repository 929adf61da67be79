"""Values compared seed by seed: runs of one seed share their batches, and much of chance."""

from __future__ import annotations

from collections.abc import Sequence


def differences(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a - b for each seed."""
    return [x - y for x, y in zip(a, b, strict=True)]


def ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a / b for each seed."""
    return [x / y for x, y in zip(a, b, strict=True)]
