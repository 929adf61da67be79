"""A picture: SVG by Matplotlib, the numbers behind it, and a text in its place."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

# Drawn in colours that stand for variables of the page, which knows whether it is light or dark.
INK, FAINT, PAPER = "#010203", "#040506", "#070809"
SERIES = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005")
VARIABLES = {
    INK: "ink", FAINT: "faint", PAPER: "paper",
    **{colour: f"series-{i}" for i, colour in enumerate(SERIES, 1)},
}  # fmt: skip
# Blue, orange, green, purple and grey, told apart by the colour-blind; in the dark lighter.
LIGHT = ("#1b1b1b", "#c8c8c8", "#ffffff", "#1f6fd0", "#e06000", "#009e73", "#c050b0", "#333333")
DARK = ("#e8e8e8", "#555b63", "#16181d", "#4aa0ff", "#e69f00", "#6fe0a0", "#a85cc0", "#f0f0f0")
# Colour is never alone in telling series apart.
MARKERS = ("o", "s", "^", "D", "v")
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))

STYLE: Any = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "axes.titlesize": 9.5, "axes.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": FAINT, "grid.linewidth": 0.5, "xtick.color": INK, "ytick.color": INK,
    "legend.frameon": False, "legend.fontsize": 8.5, "figure.facecolor": "none",
    "lines.markersize": 5,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A picture, or the reason why there is none.

    alt        what it shows, for whoever does not see it
    header     of the table of its numbers, whose cells are text
    source     where the numbers are from
    svg        without width and height; empty where `missing` says why
    """

    name: str
    title: str
    alt: str = ""
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    source: str = ""
    svg: str = ""
    missing: str = ""

    @property
    def digest(self) -> str:
        """Of everything but the drawing: other versions of Matplotlib draw the same otherwise."""
        facts = [self.title, self.alt, self.header, self.rows, self.source, self.missing]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def file(self) -> str:
        """The picture as a file of its own, which brings its colours."""
        light, dark = (
            ";".join(f"--{name}:{c}" for name, c in zip(VARIABLES.values(), colours, strict=True))
            for colours in (LIGHT, DARK)
        )
        style = (
            f"<style>svg{{{light};background:var(--paper)}}"
            f"@media(prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
        )
        start, end = self.svg.split(">", 1)
        start = start.replace('style="max-width:', 'style="width:', 1)
        return f"{start}><!-- {self.digest} -->{style}{end}\n"


def canvas(
    width: float, height: float, columns: int = 1, rows: int = 1
) -> tuple[Figure, list[Axes]]:
    """A figure in inches, with axes row by row."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def drawn(figure: Figure, name: str) -> str:
    """The figure as an SVG element, the same bytes for the same figure."""
    text = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        # Figure.savefig draws twice, first to find sizes that no picture here depends on.
        backend = FigureCanvasSVG(figure)
        facts = {"Date": None, "Creator": None}
        backend.print_svg(text, metadata=facts)  # type: ignore[no-untyped-call]
    element = text.getvalue()
    element = re.sub(r"<metadata>.*?</metadata>", "", element[element.index("<svg"):], flags=re.S)
    # As wide as its text needs to be read, and narrower where the page is.
    wide = f'style="max-width:{figure.get_figwidth() * 6:.0f}rem"'
    element = re.sub(
        r"^<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf"<svg \1 {wide} {NAMESPACES}>", element
    )
    # A page holds several pictures, and an id only once.
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'(href="|url\()#', rf"\1#{name}-", element)
    for colour, variable in VARIABLES.items():
        element = element.replace(colour, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", element).strip()


NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def ticks(axes: Axes, x: Sequence[float] = (), y: Sequence[float] = ()) -> None:
    """Logarithmic axes with these ticks alone, written as they are."""
    for values, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if values:
            scale("log")
            axis.set_major_locator(FixedLocator(list(values)))
            axis.set_minor_locator(NullLocator())
            axis.set_ticklabels([f"{value:g}" for value in values])


def legend(axes: Axes, **where: Any) -> None:
    """Where there is something to tell apart."""
    with matplotlib.rc_context(STYLE):
        axes.legend(**where)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def each(values: Sequence[float], decimals: int = 2) -> str:
    """The values of the seeds, in a cell."""
    return " ".join(f"{value:.{decimals}f}" for value in values) or "-"
