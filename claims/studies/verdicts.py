"""The ledger's verdicts in Markdown: how many by section, and the sentences of one verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from claims.harness.ledger import Entry, Ledger
from claims.harness.report import VERDICTS
from claims.studies.markdown import table

COLUMNS = (*(verdict for verdict in VERDICTS if verdict != "failed"), "background")
BUDGETS = {"ci": "the small budget", "document": "the chapter's budget"}


def on_cpu(ledger: Ledger, budget: str) -> dict[str, str]:
    """The verdicts that a run without a GPU is expected to give, trained claims at this budget."""
    return {
        name: "not run" if "gpu" in entry.needs else entry.verdict_at(budget)
        for name, entry in ledger.entries.items()
    }


def by_section(ledger: Ledger, found: Mapping[str, str]) -> str:
    """How many claims have each verdict, by section."""
    count = Counter((ledger[name].section, verdict) for name, verdict in found.items())
    total = Counter(found.values())
    rows = [[s, *(str(count[s, v] or "") for v in COLUMNS)] for s in ledger.sections]
    return table(["section", *COLUMNS], [*rows, ["all", *(str(total[v] or "") for v in COLUMNS)]])


def summary(ledger: Ledger) -> str:
    """What the entries of the table are, and why some are not run, in two sentences."""
    entries = ledger.entries.values()
    beyond = [entry for entry in entries if entry.beyond]
    gpu = sum("gpu" in entry.needs for entry in entries)
    long = sum(entry.needs_document for entry in entries)
    return (
        f"{len(entries) - len(beyond)} entries are sentences and numbers of the chapter; "
        f"{len(beyond)} go beyond it.\n"
        f"Of the {gpu + long} that are not run, {gpu} need a GPU, and {long} need the chapter's "
        "own budget of training.\n"
    )


def sentences(ledger: Ledger, verdict: str) -> str:
    """Every sentence with this verdict at one of its budgets, by section, with the reason."""
    found = [e for e in ledger.entries.values() if verdict in _verdicts(e).values()]
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
