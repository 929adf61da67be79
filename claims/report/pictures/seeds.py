"""How far the order of two rows is from the opposite one, seed by seed."""

from __future__ import annotations

import json

from claims.harness import paths
from claims.harness.ledger import Ledger
from claims.report.pictures.picture import (
    INK,
    SERIES,
    Picture,
    canvas,
    drawn,
    each,
    mean,
)
from claims.report.sources import Record, rows

FEWEST = 3  # seeds


def seeds(ledger: Ledger, record: Record) -> Picture:
    """The orders of the chapter's rows, seed by seed."""
    folder = paths.FIXTURES / "studies" / "seeds"
    differences = {}
    for row in rows(folder / "orders.csv"):
        better, worse = (
            [float(text) for text in row[f"of the {name}"].split()] for name in ("better", "worse")
        )
        if row["budget"] == "document" and len(better) >= FEWEST:
            name = f"{row['better']} < {row['worse']}"
            differences[name] = [w - b for b, w in zip(better, worse, strict=True)]
    made = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    figure, [axes] = canvas(6.4, 3.4)
    for y, of_seeds in enumerate(differences.values()):
        middle = mean(of_seeds)
        axes.plot([d / middle for d in of_seeds], [y] * len(of_seeds), "o", color=SERIES[0])
    axes.axvline(0, color=INK)
    axes.set_yticks(range(len(differences)), [*differences])
    axes.invert_yaxis()
    axes.set_xlabel("difference of a seed / mean difference\n(left of 0: the opposite order)")
    opposite = sum(d < 0 for of_seeds in differences.values() for d in of_seeds)
    total = sum(map(len, differences.values()))
    return Picture(
        "seeds", "How far each seed is from the opposite order",
        alt=f"{len(differences)} pairs of rows at the chapter's budget, each seed a point at its "
        f"difference divided by the mean difference. {opposite} of {total} points lie left of 0.",
        header=["order", "n", "mean difference", "by seed"],
        rows=[[name, str(len(d)), f"{mean(d):.2f}", each(d)] for name, d in differences.items()],
        source=f"fixtures/studies/seeds; {', '.join(made['device'])}, "
        f"torch {', '.join(made['torch'])}; {made['command']}.",
        svg=drawn(figure, "seeds"),
    )  # fmt: skip
