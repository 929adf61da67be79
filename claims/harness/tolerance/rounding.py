"""The second kind of tolerance, rounding: an error against a float64 reference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from claims.harness.tolerance.judgement import Judgement, MisusedTolerance


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
    precision: torch.dtype | None = None  # that a package declares, if not its input's
    kind: ClassVar[str] = "rounding"

    def judge(self, measured: Tensor) -> Judgement:
        _demand_float64(self.reference)
        if self.simplest.dtype != measured.dtype:
            raise MisusedTolerance(
                f"the plain computation is {self.simplest.dtype}, the measured one {measured.dtype}"
            )
        finite = self.reference.isfinite()
        largest = float(self.reference[finite].abs().max()) if finite.any() else 0.0
        floor = _epsilon(measured.dtype, self.precision) * largest
        plainest = _largest_error(self.simplest, self.reference)
        if self.precision is not None:  # what that precision costs the plain computation
            rounded = self.reference.to(self.precision).double()
            plainest = max(plainest, _largest_error(rounded, self.reference))
        allowed = self.k * plainest + floor
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
    precision: torch.dtype | None = None
    kind: ClassVar[str] = "rounding"

    def judge(self, measured: Tensor | float) -> Judgement:
        # A Python float is a float64.
        value = torch.as_tensor(
            measured, dtype=torch.float64 if isinstance(measured, float) else None
        )
        reference = torch.as_tensor(self.reference, dtype=torch.float64)
        unit = _epsilon(value.dtype, self.precision) / 2
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


def _epsilon(dtype: torch.dtype, declared: torch.dtype | None) -> float:
    """The machine epsilon of the coarser of the two."""
    return max(torch.finfo(each).eps for each in (dtype, declared or dtype))


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
