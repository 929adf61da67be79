"""The verdicts in Markdown: how many by section, and the sentences of one verdict.

    pytest claims -m "not gpu" --claims-json claims.json
    python -m claims.studies.verdicts claims.json

writes the verdicts of that run down, for the table of README.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from claims.harness import paths
from claims.harness.files import write_whole
from claims.harness.ledger import Entry, Ledger, load_ledger
from claims.harness.report import VERDICTS
from claims.studies.markdown import table

COLUMNS = (*(verdict for verdict in VERDICTS if verdict != "failed"), "background")
STORED = paths.FIXTURES / "studies" / "verdicts.json"
BUDGETS = {"ci": "the small budget", "document": "the chapter's budget"}


def stored() -> dict[str, str]:
    """The verdicts of the run that was written down, by claim."""
    found: dict[str, str] = json.loads(STORED.read_text(encoding="utf-8"))["verdicts"]
    return found


def by_section(ledger: Ledger, found: Mapping[str, str]) -> str:
    """How many claims have each verdict, by section."""
    count = Counter((ledger[name].section, verdict) for name, verdict in found.items())
    total = Counter(found.values())
    rows = [[s, *(str(count[s, v] or "") for v in COLUMNS)] for s in ledger.sections]
    return table(["section", *COLUMNS], [*rows, ["all", *(str(total[v] or "") for v in COLUMNS)]])


def summary(ledger: Ledger, found: Mapping[str, str]) -> str:
    """What the entries of the table are, and why some are not run, in two sentences."""
    beyond = sum(bool(entry.beyond) for entry in ledger.entries.values())
    left = [ledger[name] for name, verdict in found.items() if verdict == "not run"]
    gpu = sum("gpu" in entry.needs for entry in left)
    long = sum(entry.needs_document for entry in left)
    return (
        f"{len(found) - beyond} entries are sentences and numbers of the chapter; {beyond} go "
        f"beyond it.\nOf the {len(left)} that are not run, {gpu} need a GPU, and {long} need runs "
        "at the chapter's own budget of training\nthat the record lacks.\n"
    )


def sentences(ledger: Ledger, verdict: str, run: Mapping[str, str]) -> str:
    """Every sentence with this verdict at one of its budgets, by section, with the reason.

    Those that the run did not decide are left out.
    """
    found = [
        entry for entry in ledger.entries.values()
        if verdict in _verdicts(entry).values() and run[entry.id] != "not run"
    ]
    beyond = sum(bool(entry.beyond) for entry in found)
    parts = [f"{len(found) - beyond} sentences of the chapter, and {beyond} beyond it.\n"]
    for section in ledger.sections:
        if items := [_item(entry, verdict) for entry in found if entry.section == section]:
            parts.append(f"### {section}\n\n" + "".join(items))
    return "\n".join(parts)


def _verdicts(entry: Entry) -> dict[str, str]:
    """By budget; a claim that trains nothing, and one that the small budget cannot decide, have
    the other budget alone.
    """
    if entry.at_document is None:
        return {"ci": entry.verdict}
    small = {} if entry.needs_document else {"ci": entry.verdict}
    return small | {"document": entry.at_document["verdict"]}


def _item(entry: Entry, verdict: str) -> str:
    """The line, the sentence, why it has the verdict, and the test."""
    verdicts = _verdicts(entry)
    budget = [budget for budget, found in verdicts.items() if found == verdict][-1]
    others = "".join(
        f" At {BUDGETS[other]} the verdict is `{found}`."
        for other, found in verdicts.items()
        if found != verdict
    )
    folder = "claims/beyond" if entry.subject else "claims"
    reason = entry.turns_on if verdict == "open" else entry.reason_at(budget)
    text = f"**{entry.statement}** {reason}{others}"
    link = f"[`{entry.id}`](../{folder}/{entry.module}.py)"
    return f"- {entry.place}: {text}\n  {link}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.studies.verdicts", description="Write down the verdicts of a run."
    )
    parser.add_argument("file", type=Path, help="a file that --claims-json wrote")
    file: Path = parser.parse_args(arguments).file
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        facts = {key: data[key] for key in ("made", "command", "base_seed", "machine", "verdicts")}
    except (OSError, KeyError, ValueError) as error:
        parser.error(f"{file} is no file that --claims-json wrote ({error})")
    missing = set(load_ledger(paths.LEDGER).entries) ^ set(facts["verdicts"])
    if missing or "failed" in facts["verdicts"].values():
        parser.error(f"{file} is of no whole and green run: {', '.join(sorted(missing)) or 'red'}")
    # The path of the file says nothing about what was measured.
    facts["command"] = re.sub(r"(--claims-json[ =])\S+", r"\1FILE", facts["command"])
    write_whole(STORED, json.dumps(facts, indent=1) + "\n")
    print(f"wrote {STORED.relative_to(paths.ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
