"""The four kinds of tolerance, and no others: exact, rounding, statistical, trained.

A tolerance is built with what the claim allows and then judges one measurement. It says what it
allowed in words, so that the report never needs the code. NaN is never equal to anything.
The statistical kind has its own module, `statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Judgement:
    """What became of one comparison. `measured` and `document` are plain data, fit for JSON.

    `decided` is False where the measurement tells neither that the claim holds nor that it fails.
    """

    ok: bool
    measured: Any
    document: Any
    allowed: str
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    decided: bool = True


class Tolerance(Protocol):
    """One of the four kinds."""

    kind: ClassVar[str]

    def judge(self, measured: Any) -> Judgement: ...


class MisusedTolerance(Exception):
    """A defect of the claim, not of what it measures: never an expected failure."""


# ---- 1. exact ----------------------------------------------------------------------------------


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
        if isinstance(value, list | tuple):
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


# ---- 2. rounding -------------------------------------------------------------------------------


@dataclass(frozen=True)
class rounding:
    """Error against a float64 reference, at most k times that of the plainest computation.

    max|measured - reference| <= k * max|simplest - reference| + floor. `simplest` is the plainest
    computation in the precision of `measured`; the floor is one unit in the last place of the
    largest reference value, so that an error of zero in the plain computation does not forbid one
    rounding. k comes with its reason. Infinities must stand in the same places. The rule is that
    of the FlashAttention tests: the fused error is at most twice the plain one's.
    """

    reference: Tensor
    simplest: Tensor
    k: float
    because: str
    kind: ClassVar[str] = "rounding"

    def judge(self, measured: Tensor) -> Judgement:
        _demand_float64(self.reference)
        if self.simplest.dtype != measured.dtype:
            raise MisusedTolerance(
                f"the plain computation is {self.simplest.dtype}, the measured one {measured.dtype}"
            )
        finite = self.reference.isfinite()
        largest = float(self.reference[finite].abs().max()) if finite.any() else 0.0
        floor = torch.finfo(measured.dtype).eps * largest
        allowed = self.k * _largest_error(self.simplest, self.reference) + floor
        error = _largest_error(measured, self.reference)
        return Judgement(
            error <= allowed,
            error,
            0.0,
            f"error <= {allowed:.3g} = {self.k:g} x the plain computation's + one ulp "
            f"({self.because})",
            detail=_shape_fault(measured, self.reference),
            facts={"error / allowed": error / allowed if allowed else math.inf},
        )


@dataclass(frozen=True)
class ulps:
    """A derived bound: |measured - reference| <= n * u * scale, element by element.

    u is half the machine epsilon of `measured` (the unit roundoff: 2^-24 in float32, 2^-53 in
    float64). `scale` is the sum of magnitudes that the derivation multiplies u with, a number or a
    tensor broadcast against `measured`; by default |reference|. `because` is the derivation.
    """

    reference: Tensor | float
    n: float
    because: str
    scale: Tensor | float | None = None
    kind: ClassVar[str] = "rounding"

    def judge(self, measured: Tensor | float) -> Judgement:
        # A Python float is a float64.
        value = torch.as_tensor(
            measured, dtype=torch.float64 if isinstance(measured, float) else None
        )
        reference = torch.as_tensor(self.reference, dtype=torch.float64)
        unit = torch.finfo(value.dtype).eps / 2
        scale = (
            reference.abs() if self.scale is None else torch.as_tensor(self.scale).double().abs()
        )
        fault = _shape_fault(value, reference)
        same_infinities = fault == "" and _infinities_agree(value, reference)
        if not same_infinities:
            return Judgement(
                False,
                math.inf,
                0.0,
                f"<= {self.n:g} u x scale",
                detail=fault or "infinities differ",
            )
        error = torch.where(reference.isfinite(), (value.double() - reference).abs(), 0.0)
        allowed = self.n * unit * scale
        ok = bool((error <= allowed).all())
        units = torch.where(error > 0, error / (unit * scale), 0.0)
        worst = float(units.max()) if units.numel() else 0.0
        return Judgement(
            ok,
            float(error.max()) if error.numel() else 0.0,
            0.0,
            f"<= {self.n:g} u x scale, u = {unit:.3g} ({self.because})",
            facts={"worst in u x scale": worst},
        )


# ---- 4. trained --------------------------------------------------------------------------------


@dataclass(frozen=True)
class trained:
    """A difference or ratio of runs over listed seeds, one value per seed.

    Holds when the mean lies inside the band (low, high) by at least `standard_errors` standard
    errors, and is refuted when it lies outside by as many. In between the seeds do not decide, and
    the claim is neither. The band has two sides, for too good is a bug as well.
    """

    low: float
    high: float
    because: str
    standard_errors: float = 4.0
    kind: ClassVar[str] = "trained"

    @classmethod
    def inside(cls, band: Sequence[float], because: str) -> trained:
        """The band as the ledger has it, [low, high]."""
        low, high = band
        return cls(low, high, because)

    def judge(self, measured: Sequence[float]) -> Judgement:
        values = _seeds(measured, self.low, self.high)
        mean, sd, n = float(values.mean()), float(values.std()), values.numel()
        error = sd / math.sqrt(n)
        # Above zero inside of the band, below outside.
        margin = min(mean - self.low, self.high - mean)
        return Judgement(
            margin > self.standard_errors * error,
            {"mean": mean, "sd": sd, "n": n},
            [self.low, self.high],
            f"mean inside ({self.low:g}, {self.high:g}) by {self.standard_errors:g} standard "
            f"errors of {error:.3g}, n = {n} ({self.because})",
            facts={"margin in standard errors": round(margin / error, 1)} if error > 0 else {},
            # A run that diverged has a perplexity of infinity, and no band holds that.
            decided=math.isinf(mean) or abs(margin) > self.standard_errors * error,
        )


@dataclass(frozen=True)
class every_seed:
    """A sentence without a condition: each of the listed seeds has its value inside the band.

    One seed outside is a counterexample, however the others spread.
    """

    low: float
    high: float
    because: str
    kind: ClassVar[str] = "trained"

    @classmethod
    def inside(cls, band: Sequence[float], because: str) -> every_seed:
        """The band as the ledger has it, [low, high]."""
        low, high = band
        return cls(low, high, because)

    def judge(self, measured: Sequence[float]) -> Judgement:
        values = _seeds(measured, self.low, self.high)
        outside = int(((values < self.low) | (values > self.high)).sum())
        return Judgement(
            not outside,
            {"mean": float(values.mean()), "sd": float(values.std()), "n": values.numel()},
            [self.low, self.high],
            f"every seed inside [{self.low:g}, {self.high:g}] ({self.because})",
            facts={"seeds outside": outside, "values": [float(f"{v:.4g}") for v in values]},
        )


def _seeds(measured: Sequence[float], low: float, high: float) -> Tensor:
    values = torch.as_tensor(measured, dtype=torch.float64).flatten()
    if values.numel() < 3:
        raise MisusedTolerance(
            f"a trained claim needs at least 3 seeds; it was given {values.numel()}"
        )
    if not (math.isfinite(low) and math.isfinite(high)):
        raise MisusedTolerance(f"the band ({low}, {high}) must have two finite sides")
    return values


# ---- shared by the kinds -----------------------------------------------------------------------


def plain(value: Any) -> Any:
    """`value` as data that JSON can hold; a large tensor as its shape and dtype."""
    if isinstance(value, Tensor):
        if value.numel() > 64:
            return f"{value.dtype} tensor of shape {tuple(value.shape)}".replace("torch.", "")
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | torch.Size):
        return [plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def _has_float(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() or value.is_complex()
    if isinstance(value, Mapping):
        return any(_has_float(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_float(item) for item in value)
    return isinstance(value, float)


def has_nan(value: Any) -> bool:
    """Whether a NaN stands anywhere in a number, tensor, list or dictionary."""
    if isinstance(value, Tensor):
        return bool(value.isnan().any())
    if isinstance(value, Mapping):
        return any(has_nan(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_nan(item) for item in value)
    return isinstance(value, float) and math.isnan(value)


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
    elif isinstance(expected, list | tuple) and isinstance(measured, list | tuple):
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


def _demand_float64(reference: Tensor) -> None:
    if reference.dtype != torch.float64:
        raise MisusedTolerance(f"the reference must be float64; it is {reference.dtype}")


def _shape_fault(value: Tensor, reference: Tensor) -> str:
    if value.shape == reference.shape or reference.dim() == 0:
        return ""
    return f"shape {tuple(value.shape)} against {tuple(reference.shape)}"


def _infinities_agree(value: Tensor, reference: Tensor) -> bool:
    infinite = reference.isinf()
    return bool((value.isinf() == infinite).all()) and bool(
        (value.double()[infinite] == reference.expand(value.shape)[infinite]).all()
        if reference.dim()
        else True
    )


def _largest_error(value: Tensor, reference: Tensor) -> float:
    """max|value - reference|; infinite when shapes or infinities differ, or at a NaN."""
    if _shape_fault(value, reference) or not _infinities_agree(value, reference):
        return math.inf
    error = torch.where(reference.isfinite(), (value.double() - reference).abs(), 0.0)
    return math.inf if bool(error.isnan().any()) else float(error.max()) if error.numel() else 0.0
