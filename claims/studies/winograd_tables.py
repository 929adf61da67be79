"""The tables of fixtures/studies/winograd in Markdown, from the rows of its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from claims.instruments.languages.circuits import BROKEN
from claims.studies.markdown import table

Rows = Sequence[Mapping[str, str]]


def accuracy(rows: Rows) -> str:
    """What one block and two answer right, in percent."""
    return table(
        ["", "steps", "n", "right", "least to most", "99 %"],
        [
            [
                f"{row['settings'].removesuffix(', changed')}, "
                + row["model"].removesuffix(f", {row['steps']}"),
                row["steps"],
                row["seeds"],
                _percent(row, "right"),
                " to ".join(f"{100 * float(row[name]):.1f}" for name in ("least", "most")),
                row["solved"],
            ]
            for row in rows
        ],
    )


def circuits(rows: Rows) -> str:
    """In how many models each edge is needed: full settings, and small ones in brackets."""
    questions: Mapping[str, Callable[[Mapping[str, str]], bool]] = {
        "block 1 alone reads the adjective": lambda row: row["adjective read by"] == "block 1",
        "block 2 alone reads it": lambda row: row["adjective read by"] == "block 2",
        "both are needed": lambda row: row["adjective read by"] == "both",
        "crosser answers need block 1's view of the first noun":
            lambda row: _needed(row, "first_noun_1"),
        "crossed answers need block 1's view of the second noun":
            lambda row: _needed(row, "second_noun_1"),
        "crossed answers need block 2's view of the second noun":
            lambda row: _needed(row, "second_noun_2"),
        "the chapter's two hops: the first noun through block 1, then the adjective in block 2 "
        "alone": lambda row: row["two hops"] == "1",
        "the other order: the adjective in block 1 alone, then the second noun in block 2":
            lambda row: row["adjective read by"] == "block 1" and _needed(row, "second_noun_2"),
    }  # fmt: skip
    shown = []
    for question, holds in questions.items():
        count = Counter(row["settings"] for row in rows if holds(row))
        shown.append([question, f"{count['full']} ({count['small']})"])
    return table(["", "seeds"], shown)


def _needed(row: Mapping[str, str], edge: str) -> bool:
    return float(row[edge]) < BROKEN


def cuts(rows: Rows) -> str:
    """What an edge carries, at the full settings."""
    roles = ("crosser", "crossed")
    costs = [heading for role in roles for heading in (f"{role}, right", "logit cost")]
    shown = []
    for row in rows:
        if row["settings"] == "full":
            line = [row["block"], row["cut"]]
            for role in roles:
                line.append(_percent(row, f"{role} accuracy left"))
                line.append(_spread(row, f"{role} logit cost", 1))
            shown.append(line)
    return table(["block", "without its view of", *costs], shown)


def induction(rows: Rows) -> str:
    """Losses and heads' scores while the two heads form."""
    columns = {
        "loss, new": "loss, new",
        "loss, repeated": "loss, repeated",
        "previous token, block 1": "previous-token score, block 1",
        "induction, block 2": "induction score, block 2",
    }
    return table(
        ["steps", *columns.values()],
        [[row["steps"], *(_spread(row, name, 2) for name in columns)] for row in rows],
    )


def _percent(row: Mapping[str, str], name: str) -> str:
    return f"{100 * float(row[name]):.1f} ± {100 * float(row[f'{name}, sd']):.1f}"


def _spread(row: Mapping[str, str], name: str, decimals: int) -> str:
    return f"{float(row[name]):.{decimals}f} ± {float(row[f'{name}, sd']):.{decimals}f}"
