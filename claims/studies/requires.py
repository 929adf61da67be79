"""Draws what rests on what: each claim, and beneath it the claims that require it.

    python -m claims.studies.requires
    python -m claims.studies.requires attention-formula

The second draws what rests on one claim. Each line has the claim and its sentence.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from claims.harness import paths
from claims.harness.ledger import Ledger, load_ledger


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.requires")
    parser.add_argument("claim", nargs="?", help="draw what rests on this claim alone")
    chosen = parser.parse_args(arguments).claim
    ledger = load_ledger(paths.LEDGER)
    if chosen is not None and chosen not in ledger:
        parser.error(f"the ledger has no claim '{chosen}'; its ids stand in fixtures/ledger.yaml")
    connected = {
        name for entry in ledger.entries.values() for name in (entry.id, *entry.requires)
        if entry.requires
    }
    roots = [chosen] if chosen else [
        name for name in ledger.entries if name in connected and not ledger[name].requires
    ]
    console = Console()
    for root in roots:
        console.print(tree(root, ledger))
    return 0


def tree(claim: str, ledger: Ledger) -> Tree:
    """The claim, and beneath it the trees of those that require it."""
    drawn = Tree(Text(f"{claim}: {ledger[claim].statement}"))
    for entry in ledger.entries.values():
        if claim in entry.requires:
            drawn.children.append(tree(entry.id, ledger))
    return drawn


if __name__ == "__main__":
    raise SystemExit(main())
