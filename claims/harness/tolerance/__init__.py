"""The kinds of tolerance, a module for each: exact, rounding, statistical, trained, printed run.

A tolerance is built with what the claim allows and then judges one measurement. It says what it
allowed in words, so that the report never needs the code. NaN is never equal to anything.
"""

from claims.harness.tolerance.exact import digits, exact, within
from claims.harness.tolerance.judgement import Judgement, MisusedTolerance, Tolerance
from claims.harness.tolerance.printed_run import printed_run
from claims.harness.tolerance.rounding import rounding, ulps
from claims.harness.tolerance.statistical import (
    counts,
    mean_within,
    share_within,
    uniformly_distributed,
    variance_near,
)
from claims.harness.tolerance.trained import every_seed_within, seed_mean_within

__all__ = [
    "Judgement",
    "MisusedTolerance",
    "Tolerance",
    "counts",
    "digits",
    "every_seed_within",
    "exact",
    "mean_within",
    "printed_run",
    "rounding",
    "seed_mean_within",
    "share_within",
    "ulps",
    "uniformly_distributed",
    "variance_near",
    "within",
]
