"""Whether the small budget decides the same over fresh seeds: from a `--claims-json` file.

    pytest claims -m "trains and not gpu" --base-seed 0..19 --claims-json FILE
    python -m claims.studies.repetitions FILE FOLDER

writes into FOLDER

margins.csv         for each trained claim its expected verdict, how many base seeds there were, at
                    how many of them it came out otherwise, the most seeds behind a decision, and
                    the margin, 1 where it is just enough to decide: least and median over base
                    seeds, of the comparison that is nearest to an end of its band; for a claim that
                    is judged seed by seed, the fewest seeds that were counterexamples
provenance.json     where the file came from

`python -m claims.studies.docs` shows the claims that hold in docs/how-verdicts-are-made.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims.harness.files import write_whole
from claims.harness.provenance import without_files, without_origin
from claims.studies.markdown import table

MARGIN = "margin"
OUTSIDE = "seeds outside"
COLUMNS = (
    "claim", "verdict", "base seeds", "otherwise", "seeds", "least", "median", "fewest outside",
)
KEPT = ("made", "command", "implementation", "base_seed", "machine", "corpus")
Row = dict[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.repetitions")
    parser.add_argument("file", type=Path, help="written by --claims-json")
    parser.add_argument("folder", type=Path, help="where to, e.g. fixtures/studies/repetitions")
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder; give one that exists")
    try:
        data = json.loads(options.file.read_text(encoding="utf-8"))
        rows = margins(data["runs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{options.file} is no file that --claims-json wrote: {error!r}")
    if not rows:
        parser.error(f"{options.file} has no claim that was trained at the small budget")
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(options.folder / "margins.csv", text.getvalue())
    facts = {key: data[key] for key in KEPT}
    facts["corpus"] = without_origin(data["corpus"])
    facts["command"] = without_files(data["command"])
    write_whole(options.folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    return 0


def margins(runs: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row per trained claim, the narrowest first; below zero is on the wrong side."""
    by_claim: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["budget"] == "ci" and run["verdict"] != "not run":
            by_claim.setdefault(run["claim"], []).append(run)
    rows = []
    for claim, repeated in by_claim.items():
        verdict = repeated[0]["expected_verdict"]
        inside = -1.0 if verdict == "refuted" else 1.0
        narrowest = [
            min(inside * margin for margin in found)
            for run in repeated
            # Of a reading under which the sentence fails, the margin says nothing of the verdict.
            if (found := [
                r["facts"][MARGIN] for r in run["records"]
                if MARGIN in r["facts"] and (r["ok"] or not r["reading"])
            ])
        ]
        outside = [r["facts"][OUTSIDE] for run in repeated for r in run["records"]
                   if OUTSIDE in r["facts"]]
        rows.append({
            "claim": claim,
            "verdict": verdict,
            "base seeds": str(len(repeated)),
            "otherwise": str(sum(r["verdict"] != r["expected_verdict"] for r in repeated)),
            "seeds": str(max(len(r["seeds"]) for run in repeated for r in run["records"])),
            "least": f"{min(narrowest):.1f}" if narrowest else "",
            "median": f"{statistics.median(narrowest):.1f}" if narrowest else "",
            "fewest outside": str(min(outside)) if outside else "",
        })  # fmt: skip
    return sorted(rows, key=lambda row: (float(row["least"] or "inf"), row["claim"]))


def shown(rows: Sequence[Row]) -> str:
    """In Markdown: the claims that are expected to hold, two beside each other."""
    cells = [
        [row[name] for name in ("claim", "seeds", "least", "median", "otherwise")]
        for row in rows
        if row["verdict"] == "holds"
    ]
    half = (len(cells) + 1) // 2
    pairs = zip(cells[:half], [*cells[half:], [""] * 5][:half], strict=True)
    verdicts, otherwise = (
        sum(int(row[name]) for row in rows) for name in ("base seeds", "otherwise")
    )
    return (
        f"{verdicts} verdicts, {otherwise} of them other than the ledger says.\n\n"
        + table(["claim", "n", "least", "median", "otherwise"] * 2, [a + b for a, b in pairs])
    )


if __name__ == "__main__":
    raise SystemExit(main())
