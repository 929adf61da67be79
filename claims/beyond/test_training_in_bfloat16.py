"""Training with matrix products in bfloat16, as the runs at the document's budget have it."""

from __future__ import annotations

from claims.experiments.precision import PRECISION_RUNS
from claims.harness import Check, Expected, claim, seed_mean_within, trains
from claims.training.results import Runs


@claim("bfloat16-trains-as-float32")
@trains(PRECISION_RUNS, "float32", "bfloat16")
def test_products_in_bfloat16_train_as_well_as_in_float32(
    runs: Runs, check: Check, expected: Expected
) -> None:
    """Matrix products in bfloat16 train to the perplexity of float32 ones.

    The same seeds and batches; the ratio of the held-out perplexities.
    """
    low, full = (runs.perplexities(precision) for precision in ("bfloat16", "float32"))
    band = seed_mean_within(expected["band"], "1 %, less than two seeds differ by")
    check(low / full, band)
