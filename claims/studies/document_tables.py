"""What was measured at the document's budget, beside what the document prints, in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from claims.studies.markdown import table

HELD_OUT = "perplexity, held out, windows of 128"
TRAINING = "perplexity, training, windows of 128"

# By the run's label; what is printed as a sum of other numbers is given as their interval.
LADDER = {
    "no context": "59.71",
    "uniform average, replacing": "247.9 to 249.0",
    "+ learned positions": "245.8 to 246.8",
    "uniform average, added": "60.45",
    "one head, replacing": "54.4 to 56.5",
    "one head, added": "45.9 to 47.0",
    "four heads": "42.4 to 44.5",
    "+ MLP": "39.82 to 39.93",
    "+ LayerNorm = one block": "38.07",
    "two blocks": "40.57",
}
LADDER_IN_TRAINING = {"+ LayerNorm = one block": "18.77", "two blocks": "14.49"}
TWELVE_BLOCKS = {
    "pre-norm": "37.82",
    "pre-norm, 64 windows": "",
    "pre-norm, warmup": "37.62",
    "post-norm": "308.05",
    "post-norm, warmup": "37.88",
    "post-norm, two blocks": "",
}
WIDTHS = ("32 of four heads", "128, long", "128", "256", "1024", "1024 at 0.003", "1024 at 0.01")
# Quantity, and how many decimals it is shown with.
OF_UNSCALED = {
    "score std, block 1, first": 1, "score std, block 1, last": 0, "entropy, block 1, last": 4,
    "saturated rows, block 1, last": 4,
}
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "none")
WINDOWS = ("64", "128", "256", "64, last 16", "128, last 64", "256, last 64")

# (experiment, run, quantity) -> value by seed.
Values = Mapping[tuple[str, str, str], Sequence[float]]


def values_of(rows: Iterable[Mapping[str, object]]) -> Values:
    """The values by seed of every row of runs.csv."""
    return {
        (str(row["experiment"]), str(row["run"]), str(row["quantity"])): [
            float(value) for value in str(row["values"]).split()
        ]
        for row in rows
    }


def shown(values: Sequence[float], decimals: int = 2) -> str:
    """Mean, spread and number of seeds."""
    if not values:
        return "—"
    spread = f" ± {statistics.stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{decimals}f}{spread} (n = {len(values)})"


def tables(values: Values) -> dict[str, str]:
    """Each table in Markdown, by name; a run that has not been made is a dash."""

    def cell(experiment: str, run: str, quantity: str = HELD_OUT, decimals: int = 2) -> str:
        return shown(values.get((experiment, run, quantity), ()), decimals)

    def division(label: str) -> list[str]:
        unscaled, scaled = f"{label}, unscaled", f"{label}, scaled"
        row = [label, *(cell("division", run) for run in (scaled, unscaled))]
        for quantity, decimals in OF_UNSCALED.items():
            row.append(cell("division", unscaled, quantity, decimals))
        return [*row, cell("division", scaled, "score std, block 1, last")]

    return {
        "ladder": table(
            ["the ladder (l.14, l.124)", "printed", "measured, held out",
             "training, printed", "measured, training"],
            [
                [label, printed, cell("ladder", label),
                 LADDER_IN_TRAINING.get(label, ""), cell("ladder", label, TRAINING)]
                for label, printed in LADDER.items()
            ],
        ),
        "one block and two": table(
            ["the last two rows, with two seeds more (l.252)", "held out", "training"],
            [
                [run, cell("overfitting", run), cell("overfitting", run, TRAINING)]
                for run in LADDER_IN_TRAINING
            ],
        ),
        "division": table(
            ["the division (l.110 to l.118)", "scaled", "unscaled", "score std, unscaled, first",
             "last", "entropy, last", "saturated rows, last", "score std, scaled, last"],
            [division(label) for label in WIDTHS],
        ),
        "twelve blocks": table(
            ["twelve blocks (l.142 to l.153)", "printed", "measured"],
            [[run, printed, cell("norms", run)] for run, printed in TWELVE_BLOCKS.items()],
        ),
        "positions": table(
            ["positions (l.157 to l.159)", *(w.replace("last", "the last") for w in WINDOWS)],
            [
                [run, *(cell("positions", run, f"perplexity, held out, windows of {w}")
                        for w in WINDOWS)]
                for run in POSITIONS
            ],
        ),
        "mask": table(
            ["the mask (l.54)", "held out"],
            [[run, cell("leak", run)] for run in ("with the mask", "without the mask")],
        ),
        "bfloat16": table(
            ["one block, 1,000 steps of 16 windows, products in", "held out"],
            [[run, cell("precision", run)] for run in ("float32", "bfloat16")],
        ),
    }  # fmt: skip
