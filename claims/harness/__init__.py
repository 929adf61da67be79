"""What judges: the ledger, `check` and its kinds of tolerance, tables, seeds, the seam, the report.

A claim imports from here; it never imports the package under test.
"""

from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.ledger import Expected
from claims.harness.mark import claim, trains
from claims.harness.per_seed import PerSeed
from claims.harness.seeds import Draws, recipe
from claims.harness.tables import Table
from claims.harness.tolerance import (
    counts,
    digits,
    every_seed_within,
    exact,
    mean_within,
    printed_run,
    rounding,
    seed_mean_within,
    share_within,
    ulps,
    uniformly_distributed,
    variance_near,
    within,
)

__all__ = [
    "BrokenClaim",
    "Check",
    "Draws",
    "Expected",
    "PerSeed",
    "Refuted",
    "Table",
    "Undecided",
    "claim",
    "counts",
    "digits",
    "every_seed_within",
    "exact",
    "mean_within",
    "printed_run",
    "recipe",
    "rounding",
    "seed_mean_within",
    "share_within",
    "trains",
    "ulps",
    "uniformly_distributed",
    "variance_near",
    "within",
]
