"""What judges: the ledger, `check` and its four kinds of tolerance, tables, seeds, the seam, the
report.

A claim imports from here; it never imports the package under test.
"""

from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.ledger import Expected
from claims.harness.mark import claim, trains
from claims.harness.seeds import Draws, recipe
from claims.harness.tables import Table
from claims.harness.tolerance import digits, every_seed, exact, rounding, trained, ulps, within
from claims.harness.tolerance.statistical import counts, mean, proportion, uniform, variance

__all__ = [
    "BrokenClaim",
    "Check",
    "Draws",
    "Expected",
    "Refuted",
    "Table",
    "Undecided",
    "claim",
    "counts",
    "digits",
    "every_seed",
    "exact",
    "mean",
    "proportion",
    "recipe",
    "rounding",
    "trained",
    "trains",
    "ulps",
    "uniform",
    "variance",
    "within",
]
