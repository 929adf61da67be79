"""Pictures of scores and attention: variance, saturation, and where two blocks look."""

from __future__ import annotations

from typing import Any

from matplotlib.collections import PolyCollection

from claims.experiments.winograd import TEN_SEEDS
from claims.harness.ledger import Ledger
from claims.report.pictures.picture import (
    INK,
    LINES,
    MARKERS,
    PAPER,
    SERIES,
    Picture,
    canvas,
    drawn,
    legend,
    ticks,
)
from claims.report.sources import (
    Record,
    SourceMissing,
    provenance_of_runs,
    provenance_of_table,
    rows,
    table_path,
)

OPEN: dict[str, Any] = {
    "marker": "D", "facecolors": "none", "edgecolors": INK, "zorder": 3, "s": 45,
}  # fmt: skip


def variance(ledger: Ledger, record: Record) -> Picture:
    """The variance of q.k against the width of the head."""
    path = table_path("table-l095-variance")
    table = rows(path)
    d = [int(row["d"]) for row in table]
    figure, [axes] = canvas(5.2, 3.4)
    axes.plot(d, d, color=SERIES[4], linestyle=LINES[1], label="variance = d")
    measured = [float(row["Var(q.k)"]) for row in table]
    axes.scatter(d, measured, color=SERIES[0], label="measured", zorder=2)
    printed = [float(row["Var(q.k), printed"]) for row in table]
    axes.scatter(d, printed, label="printed", **OPEN)
    ticks(axes, x=d, y=d)
    axes.set_xlabel("d")
    axes.set_ylabel("variance of q.k")
    legend(axes)
    return Picture(
        "variance", "The variance of a score grows with the width d",
        alt="On logarithmic axes the measured and the printed variances lie on the line "
        f"variance = d, from {measured[0]:.2f} at d = {d[0]} to {measured[-1]:.0f} at d = {d[-1]}.",
        header=["d", "printed", "measured"],
        rows=[[row["d"], row["Var(q.k), printed"], row["Var(q.k)"]] for row in table],
        source=provenance_of_table(path), svg=drawn(figure, "variance"),
    )  # fmt: skip


def saturation(ledger: Ledger, record: Record) -> Picture:
    """Frozen rows, and over how many tokens a row averages, against the width of the head."""
    frozen_path = table_path("table-l107-jacobian")
    frozen, effective = rows(frozen_path), rows(table_path("table-l103-effective-tokens"))
    d = [int(row["d_k"]) for row in frozen]
    figure, [left, right] = canvas(6.6, 3.2, 2)
    for i, name in enumerate(("unscaled", "scaled")):
        shares = [float(row[f"{name}, frozen"]) for row in frozen]
        tokens = [float(row[f"{name}, mean"]) for row in effective]
        style: dict[str, Any] = {
            "color": SERIES[i], "marker": MARKERS[i], "linestyle": LINES[i], "label": name,
        }  # fmt: skip
        left.plot(d, shares, **style)
        right.plot(d, tokens, **style)
    for axes, table, column in (
        (left, frozen, "unscaled, frozen, printed"), (right, effective, "unscaled, printed")
    ):  # fmt: skip
        given = [(int(row["d_k"]), float(row[column])) for row in table if row[column] != "-"]
        axes.scatter(*zip(*given, strict=True), label="printed", **OPEN)
        ticks(axes, x=d)
        axes.set_xlabel("d_k")
    left.set_title("share of frozen rows")
    right.set_title("effective tokens of 64, mean")
    legend(left)
    last = frozen[-1]
    return Picture(
        "saturation", "Without the division wide heads saturate",
        alt=f"Two panels over d_k from {d[0]} to {d[-1]}. Unscaled, the share of frozen rows rises "
        f"to {last['unscaled, frozen']} and a row averages over {effective[-1]['unscaled, mean']} "
        f"tokens; scaled, the share stays at {last['scaled, frozen']} and a row averages over "
        f"{effective[-1]['scaled, mean']} tokens.",
        header=["d_k", "frozen, printed", "frozen, unscaled", "frozen, scaled",
                "tokens, printed", "tokens, unscaled", "tokens, scaled"],
        rows=[
            [a["d_k"], a["unscaled, frozen, printed"], a["unscaled, frozen"], a["scaled, frozen"],
             b["unscaled, printed"], b["unscaled, mean"], b["scaled, mean"]]
            for a, b in zip(frozen, effective, strict=True)
        ],
        source=provenance_of_table(frozen_path), svg=drawn(figure, "saturation"),
    )  # fmt: skip


def maps(ledger: Ledger, record: Record) -> Picture:
    """The attention of the two printed sentences: the chapter's, and that of ten models."""
    if "table-l223-maps" not in ledger:
        raise SourceMissing("The ledger has no entry table-l223-maps.")
    expected = ledger["table-l223-maps"].expected
    runs = record.of(TEN_SEEDS["document"], "two blocks")
    seen = {s: run.measured["attention"] for s, run in runs.items() if "attention" in run.measured}
    if not seen:
        raise SourceMissing("The record has no attention of models of two blocks.")
    names = ["printed", *(f"seed {seed}" for seed in seen)]
    figure, panels = canvas(6.4, 6.2, columns=2, rows=2)
    table, on_adjective = [], {}
    for axes, (panel, given) in zip(panels, expected["rows"].items(), strict=True):
        sentence, block = panel.split(", block ")
        words = expected["prompts"][sentence].split()
        weights = [given, *(of_seed[sentence][int(block) - 1] for of_seed in seen.values())]
        on_adjective[panel] = [row[words.index(sentence)] for row in weights]
        # Squares of ink, the larger the more weight: no scale of colours is needed.
        for y, row in enumerate(weights):
            squares = [_square(x, y, weight) for x, weight in enumerate(row) if weight >= 0.005]
            colour = INK if y == 0 else SERIES[0]
            axes.add_collection(PolyCollection(squares, facecolors=colour, linewidths=0))
            table.append([panel, names[y], *(f"{weight:.2f}" for weight in row)])
        axes.set_xlim(-0.6, len(words) - 0.4)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xticks(range(len(words)), words, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
        axes.axhline(0.5, color=INK, linewidth=0.8)
        axes.set_aspect("equal")
        axes.grid(visible=False)
        axes.set_title(f"“{sentence}”, block {block}")
        axes.set_facecolor(PAPER)
    tired = on_adjective["tired, block 2"]
    return Picture(
        "maps", "Where two blocks look in the two printed sentences",
        alt="Four panels, one for each sentence and block. The first row is the printed map, the "
        f"{len(seen)} below it are models of as many seeds. A larger square is more weight. In "
        f"the sentence with “tired” the printed second block has {tired[0]:.2f} of its weight on "
        f"the adjective; ours have {min(tired[1:]):.2f} to {max(tired[1:]):.2f}.",
        header=["sentence and block", "map", *(f"{i}" for i in range(len(words)))], rows=table,
        source=provenance_of_runs(runs.values()), svg=drawn(figure, "maps"),
    )  # fmt: skip


def _square(x: float, y: float, area: float) -> list[tuple[float, float]]:
    """The corners of a square around a point."""
    half = 0.95 * area**0.5 / 2
    return [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
