"""What the chapter's author would want to know: `python -m claims.studies.author RESULTS [...]`.

RESULTS are files of `--claims-json`, such as the parts of one run. The evidence of the sentences
that are wrong, open, or true in another way than they read first is stored in
fixtures/studies/author.json, from which `python -m claims.studies.docs` makes
docs/for-the-author.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from claims.harness import paths
from claims.harness.files import write_whole
from claims.harness.ledger import Entry, Ledger, load_ledger
from claims.harness.provenance import without_files, without_origin
from claims.harness.report import VERSION, to_text
from claims.report.merging import Merged, merge
from claims.report.page import LONGEST_HEADLINE, NAME, Links, author, card
from claims.report.stored import NoResults, read
from claims.studies.verdicts import BUDGETS

STORED = paths.FIXTURES / "studies" / "author.json"
WITH_EVIDENCE = ("wrong", "open", "read otherwise")
MOST = 5  # comparisons that are shown of a sentence
Card = Mapping[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.studies.author", description="Store the evidence for the author."
    )
    parser.add_argument("files", nargs="+", type=Path, help="files that --claims-json wrote")
    files: list[Path] = parser.parse_args(arguments).files
    try:
        merged = merge((each for file in files for each in read(file)), load_ledger(paths.LEDGER))
        data = evidence(merged)
    except (NoResults, ValueError) as error:
        parser.error(str(error))
    write_whole(STORED, to_text(data))
    print(f"wrote {STORED.relative_to(paths.FIXTURES.parent)}")
    return 0


def evidence(merged: Merged) -> dict[str, Any]:
    """A results file with the verdicts of all claims, and the runs of those with evidence alone.

    Raises ValueError for runs of another package, and where a sentence of the chapter failed.
    """
    if [*merged.implementations] != [paths.REFERENCE]:
        raise ValueError(f"the author's page is about {paths.REFERENCE} alone")
    failed = [c.entry.id for c in merged.with_verdict("failed") if not c.entry.beyond]
    if failed:
        raise ValueError(f"the runs are red: {', '.join(failed)}")
    chosen = {card["id"] for kind in WITH_EVIDENCE for card in _cards(merged)[kind]}
    newest = merged.files[0]
    commands = dict.fromkeys(without_files(file.command) for file in merged.files)
    return {
        "version": VERSION, "made": newest.made, "command": "; ".join(commands),
        "implementation": newest.implementation, "base_seed": newest.base_seed,
        "commit": newest.commit, "machine": newest.machine,
        "corpus": without_origin(newest.corpus),
        "verdicts": {claim.entry.id: claim.verdicts[merged.main] for claim in merged.claims},
        "looks_like": [],
        "runs": [
            run.data for claim in merged.claims if claim.entry.id in chosen for run in claim.runs
            if run.verdict != "not run"
        ],
    }  # fmt: skip


def _cards(merged: Merged) -> dict[str, list[dict[str, Any]]]:
    return author(merged, {c.entry.id: card(c, merged, Links("..")) for c in merged.claims})


# ---- the page ------------------------------------------------------------------------------------


def parts(ledger: Ledger, stored: Path = STORED) -> dict[str, str]:
    """The generated parts of docs/for-the-author.md."""
    merged = merge(read(stored), ledger)
    [file] = merged.files
    of = _cards(merged)
    return {
        "wrong": _items(of["wrong"], merged, _why),
        "open": _items(of["open"], merged, _turns),
        "read otherwise": _items(of["read otherwise"], merged, _read_as),
        "asked": "".join(_asked(ledger)),
        "readings": "".join(
            f"- {each['place']}: {each['statement']} *{each['reading']}*\n" for each in of["silent"]
        ),
        "made": f"{file.day} UTC, commit {file.commit}, base seed {file.base_seed}, {file.where}: "
        f"`{file.command}`.\n",
    }  # fmt: skip


def _items(cards: Sequence[Card], merged: Merged, said: Callable[[Card], str]) -> str:
    return "\n".join(
        "".join([f"**{each['place']}: {each['statement']}** {said(each)}\n\n",
                 *_measured(each), *_named(each, merged), _test(merged.ledger[each["id"]])])
        for each in cards
    )  # fmt: skip


def _why(card: Card) -> str:
    return str(card["reason"])


def _turns(card: Card) -> str:
    settings = (f"*{a['name']}*, {a['text']} ({a['judged']})" for a in card["alternatives"])
    return f"It turns on {card['reason']}: {'; '.join(settings)}."


def _read_as(card: Card) -> str:
    first = card["alternatives"][0]
    taken = next(each for each in card["alternatives"] if "taken" in each["judged"])
    return f"False as it reads first: {first['text']}. True where it says: {taken['text']}."


def _measured(card: Card) -> Iterator[str]:
    """What speaks for the verdict: of each reading or setting, else what does not agree."""
    shown = 0
    for run in sorted(card["runs"], key=lambda run: str(run["budget"]), reverse=True):
        if run["verdict"] != card["verdict"]:
            continue
        for record in run["records"]:
            if shown < MOST and (record["reading"] or not record["ok"]):
                shown += 1
                yield f"- {_comparison(record, run['budget'])}\n"


def _comparison(record: Card, budget: str) -> str:
    under = f"*{record['reading']}*: " if record["reading"] else ""
    where = "; ".join(filter(None, (BUDGETS.get(budget, ""), record["source"])))
    return (
        f"{under}measured {_cut(record['measured'])}, expected {_cut(record['expected'])}"
        f"{f' ({where})' if where else ''}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_HEADLINE else f"{text[:LONGEST_HEADLINE]} ..."


def _named(card: Card, merged: Merged) -> Iterator[str]:
    """The claims that the reason names: often what is true instead."""
    for name in dict.fromkeys(NAME.findall(card["reason"] or card["reading"])):
        if name in merged.ledger and name != card["id"]:
            entry = merged.ledger[name]
            verdict = next(
                (c.verdicts[merged.main] for c in merged.claims if c.entry.id == name), "not run"
            )
            yield f"- `{name}` (`{verdict}`): {entry.statement}\n"


def _test(entry: Entry) -> str:
    folder = "claims/beyond" if entry.subject else "claims"
    return f"- the test: [`{entry.id}`](../{folder}/{entry.module}.py)\n"


def _asked(ledger: Ledger) -> Iterable[str]:
    """What only the author can give, and which sentences wait for it."""
    waiting: dict[str, list[Entry]] = {}
    for entry in ledger.entries.values():
        if entry.awaits and entry.at_document is None and not entry.beyond:
            waiting.setdefault(entry.awaits, []).append(entry)
    for awaits, entries in waiting.items():
        said = " ".join(f"{entry.place}: {entry.statement}" for entry in entries)
        yield f"- {awaits}, for {said}\n"


if __name__ == "__main__":
    raise SystemExit(main())
