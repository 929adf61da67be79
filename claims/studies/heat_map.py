"""Attention rows as a picture: one small square per token, the darker the more weight. SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

CELL, LABELS, TITLE, GAP = 17, 66, 18, 14  # pixels
FONT = "font-family='monospace' font-size='9'"


def heat_maps(
    panels: Mapping[str, Mapping[str, Sequence[float]]], words: Sequence[str], columns: int
) -> str:
    """An SVG file of panels, title -> name of a row -> weights in [0, 1], `columns` abreast.

    `words` stand below the panels of the last line, one per weight.
    """
    rows = max(len(panel) for panel in panels.values())
    wide = LABELS + CELL * len(words) + GAP
    high = TITLE + CELL * rows + GAP
    lines = -(-len(panels) // columns)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide * columns}' "
        f"height='{high * lines + LABELS}'>",
        "<rect width='100%' height='100%' fill='white'/>",
    ]
    for i, (title, panel) in enumerate(panels.items()):
        x, y = i % columns * wide, i // columns * high
        parts.append(_text(x + LABELS, y + TITLE - 5, title))
        for j, (name, weights) in enumerate(panel.items()):
            top = y + TITLE + j * CELL
            parts.append(_text(x + LABELS - 4, top + CELL - 5, name, anchor="end"))
            parts += [_cell(x + LABELS + k * CELL, top, w) for k, w in enumerate(weights)]
        if i + columns >= len(panels):
            below = y + TITLE + rows * CELL + 4
            parts += [
                f"<text transform='translate({x + LABELS + k * CELL + 5},{below}) rotate(90)' "
                f"{FONT}>{escape(word)}</text>"
                for k, word in enumerate(words)
            ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(x: int, y: int, weight: float) -> str:
    """Weights from 0.05 up are printed too, without the zero."""
    shade = round(255 * (1 - weight))
    square = (
        f"<rect x='{x}' y='{y}' width='{CELL - 1}' height='{CELL - 1}' "
        f"fill='rgb({shade},{shade},255)' stroke='#ccc' stroke-width='0.5'/>"
    )
    if weight < 0.05:
        return square
    ink = "white" if weight > 0.5 else "black"
    number = "1.0" if weight >= 0.995 else f"{weight:.2f}"[1:]
    return square + _text(x + 1, y + CELL - 6, number, ink=ink, size=8)


def _text(
    x: int, y: int, text: str, anchor: str = "start", ink: str = "black", size: int = 9
) -> str:
    return (
        f"<text x='{x}' y='{y}' font-family='monospace' font-size='{size}' fill='{ink}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )
