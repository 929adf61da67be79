"""The picture of memory and time against length."""

from __future__ import annotations

from typing import Any

from claims.harness.ledger import Ledger
from claims.report.pictures.attention import OPEN
from claims.report.pictures.picture import (
    LINES,
    SERIES,
    Picture,
    canvas,
    drawn,
    legend,
    ticks,
)
from claims.report.sources import Record, provenance_of_table, rows, table_path


def cost(ledger: Ledger, record: Record) -> Picture:
    """Peak memory and time of one layer, with the slopes of the last four rows that ran."""
    path = table_path("table-l169-cost")
    table = rows(path)
    fitted = rows(table_path("table-l179-exponents"))
    slopes = {row["exponent of"]: float(row["fitted"]) for row in fitted}
    figure, [left, right] = canvas(6.8, 3.5, 2)
    curves = (
        (left, "peak", "peak, printed", "memory", "peak memory"),
        (left, "matrix", "matrix, printed", "score matrix", "score matrix"),
        (right, "", "ms, printed", "printed time", "all of it"),
        (right, "", "ms of the projections, printed", "printed time of the projections",
         "projections alone"),
    )  # fmt: skip
    for i, (axes, measured, printed, slope, name) in enumerate(curves):
        given = {int(r["tokens"]): float(r[printed]) for r in table if _number(r[printed])}
        style: dict[str, Any] = {**OPEN, "marker": "Ds^v"[i], "label": f"{name}, printed"}
        axes.scatter([*given], [*given.values()], **style)
        if measured:
            style = {"color": SERIES[i], "label": f"{name}, counted"}
            counted = {int(r["tokens"]): float(r[measured]) for r in table}
            axes.plot([*counted], [*counted.values()], ".", **style)
        # The line of the slope goes through the last row that ran.
        ends = [1024, 8192]
        line = [given[8192] * (n / 8192) ** slopes[slope] for n in ends]
        label = f"slope {slopes[slope]:.2f}"
        axes.plot(ends, line, color=SERIES[i], linestyle=LINES[i % 2], label=label)
    for axes, title, y in (
        (left, "MiB", (1, 10, 100, 1000, 10000)), (right, "milliseconds", (1, 10, 100, 1000))
    ):  # fmt: skip
        ticks(axes, x=(128, 512, 2048, 8192), y=y)
        axes.set_title(title)
        axes.set_xlabel("tokens")
        legend(axes, fontsize=7)
    return Picture(
        "cost", "Memory and time of one layer against its length",
        alt=f"Logarithmic axes from 128 to 16,384 tokens. The counted memory lies on the printed "
        f"one; over the last four rows it grows with an exponent of {slopes['memory']:.2f}, the "
        f"score matrix with {slopes['score matrix']:.2f}. The printed time grows with "
        f"{slopes['printed time']:.2f}, that of the projections with "
        f"{slopes['printed time of the projections']:.2f}. Times are the chapter's own.",
        header=["tokens", "peak MiB, printed", "counted", "matrix MiB, printed", "counted",
                "ms, printed", "ms of the projections, printed"],
        rows=[
            [r["tokens"], r["peak, printed"], r["peak"], r["matrix, printed"], r["matrix"],
             r["ms, printed"], r["ms of the projections, printed"]]
            for r in table
        ],
        source=provenance_of_table(path), svg=drawn(figure, "cost"),
    )  # fmt: skip


def _number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
