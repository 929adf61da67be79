"""The first kind of tolerance, exact: equality, printed digits, an inequality that is derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import torch
from torch import Tensor

from claims.harness.per_seed import PerSeed
from claims.harness.tolerance.judgement import Judgement, MisusedTolerance, has_nan, plain


@dataclass(frozen=True)
class exact:
    """Equality of integers, text, truth values, fractions, shapes, or of tensors bit for bit.

    Floating-point values are equal bit for bit only where that is a theorem; `because` gives it.
    """

    expected: Any
    because: str = ""
    kind: ClassVar[str] = "exact"

    def judge(self, measured: Any) -> Judgement:
        if not self.because and (_has_float(measured) or _has_float(self.expected)):
            raise MisusedTolerance(
                "exact() compares floating-point values only with because='the theorem that makes "
                "them equal bit for bit'; printed digits are digits(), everything else is rounding"
            )
        difference = _difference(measured, self.expected, "")
        allowed = "equality" + (f", {self.because}" if self.because else "")
        return Judgement(
            not difference, plain(measured), plain(self.expected), allowed, detail=difference
        )


@dataclass(frozen=True)
class digits:
    """Every digit that the document prints: `measured` rounded to `decimals` reads the same.

    `expected` and `measured` are numbers, or equally shaped lists, tables or dictionaries of them.
    """

    expected: Any
    decimals: int
    kind: ClassVar[str] = "exact"

    def judge(self, measured: Any) -> Judgement:
        shown, printed = self._print(measured), self._print(self.expected)
        difference = _difference(shown, printed, "")
        if has_nan(measured):
            difference = difference or "NaN was measured"
        allowed = f"the digits printed, {self.decimals} decimals"
        return Judgement(not difference, plain(measured), printed, allowed, detail=difference)

    def _print(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            value = value.tolist()
        if isinstance(value, Mapping):
            return {str(key): self._print(item) for key, item in value.items()}
        if isinstance(value, list | tuple | PerSeed):
            return [self._print(item) for item in value]
        # Zero has no sign on paper.
        return f"{float(value):.{self.decimals}f}".replace(
            "-0." + "0" * self.decimals, "0." + "0" * self.decimals
        )


@dataclass(frozen=True)
class within:
    """An inequality that is a theorem or a derivation (`because`): low <= measured <= high.

    Either bound may be infinite. `strict` excludes the bounds themselves. The measured value is a
    number or a tensor, of which every element must lie within.
    """

    low: float
    high: float
    because: str
    strict: bool = False
    kind: ClassVar[str] = "exact"

    def judge(self, measured: Any) -> Judgement:
        values = torch.as_tensor(measured, dtype=torch.float64)
        if values.numel() == 0:
            raise MisusedTolerance("within() was given nothing to judge")
        lowest, highest = float(values.min()), float(values.max())
        if self.strict:
            ok = self.low < lowest and highest < self.high
        else:
            ok = self.low <= lowest and highest <= self.high
        sign = "<" if self.strict else "<="
        allowed = f"{self.low:g} {sign} measured {sign} {self.high:g}, {self.because}"
        shown = lowest if lowest == highest else [lowest, highest]
        return Judgement(ok, shown, [self.low, self.high], allowed)


def _has_float(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    if isinstance(value, Mapping):
        return any(_has_float(item) for item in value.values())
    if isinstance(value, list | tuple | PerSeed):
        return any(_has_float(item) for item in value)
    return isinstance(value, float)


def _difference(measured: Any, expected: Any, where: str) -> str:
    """The first difference in words; empty when equal. True is not 1, and 1 is not 1.0."""
    place = f" at {where}" if where else ""
    if isinstance(expected, Tensor) and isinstance(measured, Tensor):
        if measured.shape != expected.shape or measured.dtype != expected.dtype:
            return (
                f"{measured.dtype} of shape {tuple(measured.shape)} against "
                f"{expected.dtype} of shape {tuple(expected.shape)}{place}"
            )
        unequal = ~(measured == expected)  # NaN is unequal even to itself
        count = int(unequal.sum())
        return f"{count} of {unequal.numel()} elements differ{place}" if count else ""
    if isinstance(expected, Mapping) and isinstance(measured, Mapping):
        if set(map(str, measured)) != set(map(str, expected)):
            return f"keys {sorted(map(str, measured))} against {sorted(map(str, expected))}{place}"
        other = {str(key): item for key, item in measured.items()}
        pairs = [(other[str(key)], item, f"{where}[{key}]") for key, item in expected.items()]
    elif isinstance(expected, list | tuple) and isinstance(measured, list | tuple | PerSeed):
        if len(measured) != len(expected):
            return f"{len(measured)} values against {len(expected)}{place}"
        pairs = [
            (m, e, f"{where}[{i}]") for i, (m, e) in enumerate(zip(measured, expected, strict=True))
        ]
    else:
        same_type = type(measured) is type(expected) or {type(measured), type(expected)} <= {
            int,
            Fraction,
        }
        return (
            ""
            if same_type and measured == expected
            else f"{measured!r} against {expected!r}{place}"
        )
    return next((text for pair in pairs if (text := _difference(*pair))), "")
