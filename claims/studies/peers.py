"""Verdicts on the adapters of fixtures/implementations/peers, and the contract, in Markdown.

    pytest claims -m "not gpu and not trains" --implementation peer_gpt2 --fill-from-reference \
        --claims-json peer_gpt2.json
    python -m claims.studies.peers peer_gpt2.json ...

writes what those runs found to fixtures/studies/peers.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from claims.harness import paths
from claims.harness.contract import CONTRACT, DECLARATIONS, HOOKS
from claims.harness.files import write_whole
from claims.harness.ledger import Ledger
from claims.studies.markdown import table

FOLDER = paths.FIXTURES / "studies" / "peers"
SAYS_SOMETHING = ("exact", "holds", "open", "refuted", "departs", "failed", "error")
FACTS = ("command", "implementation", "base_seed", "machine", "made")
COUNTS = ("memory", "arithmetic")
Row = Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.peers", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.json")
    rows, facts = [], []
    for file in parser.parse_args(arguments).files:
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            parser.error(f"{file} is not what --claims-json writes: {error}")
        rows += rows_of(data)
        # The paths of the files say nothing about what was measured.
        command = re.sub(r"(--claims-json[ =])\S+", r"\1FILE", data["command"])
        facts.append({key: data[key] for key in FACTS} | {"command": command})
    text = io.StringIO()
    writer = csv.DictWriter(text, ["package", "claim", "verdict", "reason"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(FOLDER / "verdicts.csv", text.getvalue())
    write_whole(FOLDER / "provenance.json", json.dumps(facts, indent=2) + "\n")
    return 0


def rows_of(data: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per claim that was asked of the package; a reason where it is not run or breaks."""
    reasons = {run["claim"]: run["reason"] for run in data["runs"]}
    return [
        {
            "package": data["implementation"], "claim": claim, "verdict": verdict,
            "reason": reasons.get(claim, "") if verdict in ("not run", "error") else "",
        }
        for claim, verdict in data["verdicts"].items()
    ]


# ---- in Markdown -------------------------------------------------------------------------------


def counted(rows: Sequence[Row]) -> str:
    """How many claims say something about each peer, and what."""
    packages = list(dict.fromkeys(row["package"] for row in rows))
    counts = Counter((row["package"], row["verdict"]) for row in rows)
    columns = ("exact", "holds", "open", "refuted", "departs", "failed", "error", "not run")
    return table(
        ["adapter", "lines", "says something", *columns],
        [
            [
                f"`{package}`", str(_lines(package)),
                str(sum(counts[package, verdict] for verdict in SAYS_SOMETHING)),
                *(str(counts[package, verdict] or "") for verdict in columns),
            ]
            for package in packages
        ],
    )


def found(rows: Sequence[Row], ledger: Ledger) -> str:
    """What failed or broke, and what departs beyond memory and counts, by peer."""
    shown = [
        row for row in rows
        if row["verdict"] in ("failed", "error")
        or (row["verdict"] == "departs" and ledger[row["claim"]].kind not in COUNTS)
    ]
    return table(
        ["adapter", "verdict", "claim", ""],
        [
            [f"`{row['package']}`", row["verdict"], f"`{row['claim']}`",
             _in_a_cell(row["reason"] or ledger[row["claim"]].statement)]
            for row in shown
        ],
    )


def _in_a_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _lines(package: str) -> int:
    source = paths.IMPLEMENTATIONS / "peers" / f"{package}.py"
    return len(source.read_text(encoding="utf-8").splitlines())


def contract() -> str:
    """Every name with its parameters, its weights and its sub-modules."""
    rows = []
    for name, each in CONTRACT.items():
        call = f"{name}({each.takes})" + (f", called with ({each.forward})" if each.forward else "")
        says = [each.says, *(f"`.{method}`" for method in each.methods)]
        roles = [f"{role} {shape}" for role, shape in each.weights.items()]
        parts = [f"{role}: {what}" for role, what in each.parts.items()]
        rows.append([each.group, f"`{call}`", "; ".join(says), "<br>".join((*roles, *parts))])
    hooks = [["", f"`{name}({takes})`", says, ""] for name, (takes, says) in HOOKS.items()]
    declared = [
        ["", f"`DECLARES['{name}']`", " or ".join(f"`{each!r}`" for each in allowed), ""]
        for name, allowed in DECLARATIONS.items()
    ]
    return table(["group", "name", "gives", "weights and sub-modules"], [*rows, *hooks, *declared])


if __name__ == "__main__":
    raise SystemExit(main())
