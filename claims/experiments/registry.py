"""Every experiment by its name."""

from claims.experiments.division import DIVISION_RUNS, FROZEN_RUNS, LASTING_RUNS, STEEPER_RUNS
from claims.experiments.induction import FORMING, INDUCTION
from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.leak import LEAK_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.once import ONCE_RUNS
from claims.experiments.positions import POSITION_RUNS, PRINTED_RUNS
from claims.experiments.precision import PRECISION_RUNS
from claims.experiments.winograd import (
    BOTH_LANGUAGES,
    CATEGORIES,
    LONGER,
    MAPS,
    ORDER_BLIND,
    TEN_SEEDS,
    WINOGRAD,
)
from claims.experiments.winograd_map import WINOGRAD_STEPS, WINOGRAD_VARIANTS
from claims.training.experiment import Budgets
from claims.training.spec import RunSpec

EXPERIMENTS: dict[str, Budgets] = {
    "ladder": LADDER_RUNS,
    "close rows": CLOSE_RUNS,
    "division": DIVISION_RUNS,
    "division, lasting": LASTING_RUNS,
    "division, steeper": STEEPER_RUNS,
    "division, fixed": FROZEN_RUNS,
    "norms": NORM_RUNS,
    "positions": POSITION_RUNS,
    "positions, printed": PRINTED_RUNS,
    "leak": LEAK_RUNS,
    "each token once": ONCE_RUNS,
    "precision": PRECISION_RUNS,
    "categories": CATEGORIES,
    "order-blind": ORDER_BLIND,
    "winograd": WINOGRAD,
    "winograd, ten seeds": TEN_SEEDS,
    "winograd, both languages": BOTH_LANGUAGES,
    "winograd, longer": LONGER,
    "winograd, maps": MAPS,
    "winograd, steps": WINOGRAD_STEPS,
    "winograd, variants": WINOGRAD_VARIANTS,
    "induction": INDUCTION,
    "induction, forming": FORMING,
}


def runs_at(budget: str) -> list[RunSpec]:
    """The runs of all experiments at a budget, each once."""
    found = {
        spec.digest(): spec
        for budgets in EXPERIMENTS.values()
        if budget in budgets
        for label in budgets[budget].runs
        for spec in budgets[budget].of(label)
    }
    return list(found.values())
