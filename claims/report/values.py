"""Values as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MOST = 120  # numbers of a list that are shown


def shown(value: Any) -> str:
    """A measured or expected value, as JSON has it, in a line of text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return _mapping(value)
    if isinstance(value, list | tuple):
        return _sequence(value)
    return str(value)


def _mapping(value: Mapping[str, Any]) -> str:
    mean, sd, n = (value.get(key) for key in ("mean", "sd", "n"))
    if isinstance(n, int) and isinstance(mean, float | int) and isinstance(sd, float | int):
        return f"{spread(mean, sd)} (n = {n})"
    return "; ".join(f"{key}: {shown(item)}" for key, item in value.items())


def _sequence(value: Sequence[Any]) -> str:
    between = "; " if any(isinstance(item, list | tuple | Mapping) for item in value) else ", "
    parts = [shown(item) for item in value[:MOST]]
    if len(value) > MOST:
        parts.append(f"and {len(value) - MOST} more")
    return between.join(parts) or "nothing"


def spread(mean: float, sd: float) -> str:
    """18.70 ± 0.25: the standard deviation to two digits, the mean to the same decimals."""
    if not (math.isfinite(mean) and math.isfinite(sd)) or sd == 0:
        return f"{mean:.6g} ± {sd:.2g}"
    decimals = max(0, 1 - math.floor(math.log10(abs(sd))))
    return f"{mean:.{decimals}f} ± {sd:.{decimals}f}" if decimals < 9 else f"{mean:.6g} ± {sd:.2g}"


def single(value: Any) -> bool:
    """Whether a value is one number, or the mean of several, and stands well in a headline."""
    if isinstance(value, Mapping):
        return {"mean", "sd", "n"} <= value.keys()
    return isinstance(value, int | float) and not isinstance(value, bool)
