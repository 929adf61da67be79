"""The report as one HTML file and as Markdown, from what `merge` made of stored runs."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from claims.harness import paths
from claims.harness.ledger import Entry
from claims.harness.paths import REFERENCE
from claims.report.merging import Claim, Merged, Run
from claims.report.pictures.picture import DARK, LIGHT, VARIABLES, Picture
from claims.report.side_by_side import side_by_side
from claims.report.values import shown, single

TEMPLATES = Path(__file__).parent / "templates"
# Of the reference, and of other packages alone.
VERDICTS = ("exact", "holds", "open", "refuted", "not run", "failed", "background")
OF_OTHERS = ("departs", "error")
MEANINGS = {
    "exact": "comes out without a tolerance",
    "holds": "comes out within a tolerance",
    "open": "turns on a setting that the chapter does not give",
    "refuted": "measured, and false under every reading of a careful reader",
    "not run": "needs what this run did not have",
    "failed": "came out otherwise than the ledger says",
    "departs": "another package chose otherwise than the chapter",
    "error": "the package broke",
    "background": "history, or a reference: nothing to measure",
}
# As the ledger's schema has the ids of claims, with one hyphen at least.
NAME = re.compile(r"(\b[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*-[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*)")
LONGEST_HEADLINE = 120  # characters
LONGEST_EXCERPT = 600  # of a failure's message, in Markdown
# In a pull request's comment, which may have 65,536 characters.
LONGEST_MARKDOWN = 60_000


@dataclass(frozen=True)
class Links:
    """Where the report's links to files of the project lead.

    base    what stands before a path of the project: an address that ends in a commit, or a
            relative path
    web     whether an address may end in a line's number
    """

    base: str
    web: bool = False

    def to(self, place: str) -> str:
        """claims/test_02_average.py:31 as an address."""
        file, _, line = place.partition(":")
        return f"{self.base}/{file}" + (f"#L{line}" if line and self.web else "")


def html(merged: Merged, pictures: Sequence[Picture], links: Links) -> str:
    """The whole report. Text from runs is escaped; only the pictures are put in as they are."""
    environment = _environment(autoescape=True)
    context = _context(merged, links)
    environment.filters["linked"] = lambda text: linked(text, context["cards"])
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        **context,
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        light=Markup(_variables(LIGHT)), dark=Markup(_variables(DARK)),
        script=Markup(script), script_digest=digest,
    )  # fmt: skip


def markdown(merged: Merged, links: Links) -> str:
    """For a pull request's comment, or the summary of a CI job."""
    environment = _environment(autoescape=False)
    environment.filters |= {"md": in_markdown, "in_short": in_short}
    text = environment.get_template("report.md.j2").render(**_context(merged, links))
    if len(text) > LONGEST_MARKDOWN:
        text = text[:LONGEST_MARKDOWN].rsplit("\n", 1)[0]
        text += "\n\nThe rest is left out; the HTML report has all of it.\n"
    return text


def counted(number: int, noun: str) -> str:
    """1 sentence, 2 sentences."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def linked(text: str, ids: Container[str]) -> Markup:
    """The text, escaped, with a link from each name of a claim in it to that claim."""
    parts = NAME.split(text)  # every second part is what may be a name
    return Markup("").join(
        Markup('<a href="#{0}">{0}</a>').format(part) if i % 2 and part in ids else part
        for i, part in enumerate(parts)
    )


def in_markdown(text: object) -> str:
    """Text that Markdown and HTML leave alone, on one line that other text begins."""
    escaped = re.sub(r"([\\`*_\[\]|~>])", r"\\\1", " ".join(str(text).split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def in_short(message: str) -> str:
    """What pytest says of a failure, without the source: the lines that it marks, or the end."""
    marked = re.findall(r"^E\s+(.+)$", message, re.MULTILINE)
    text = "\n".join(marked) or message[-LONGEST_EXCERPT:]
    return text if len(text) <= LONGEST_EXCERPT else f"{text[:LONGEST_EXCERPT]} ..."


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=autoescape, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"shown": shown, "of": counted}
    return environment


def _variables(colours: Sequence[str]) -> str:
    return "".join(f"--{n}:{c};" for n, c in zip(VARIABLES.values(), colours, strict=True))


def _context(merged: Merged, links: Links) -> dict[str, Any]:
    cards = {claim.entry.id: card(claim, merged, links) for claim in merged.claims}
    sections = {s: [c for c in cards.values() if c["section"] == s] for s in _sections(merged)}
    found = {verdict for claim in merged.claims for verdict in claim.verdicts.values()}
    verdicts = [*VERDICTS, *(verdict for verdict in OF_OTHERS if verdict in found)]
    return {
        "merged": merged, "verdicts": verdicts, "cards": cards,
        "meanings": {verdict: MEANINGS[verdict] for verdict in verdicts},
        "sections": {name: own for name, own in sections.items() if own},
        "kinds": sorted({c["kind"] for c in cards.values() if c["kind"]}),
        "devices": sorted({d for c in cards.values() for d in c["devices"]}),
        "left_out": len(merged.ledger.entries) - sum(claim.known for claim in merged.claims),
        "conflicts": [(claim.entry, text) for claim in merged.claims for text in claim.conflicts],
        "otherwise": [cards[c.entry.id] for c in merged.claims if _otherwise(c, merged)],
        "likenesses": [
            (file, likeness) for file in merged.files for likeness in file.looks_like
        ],
        "author": author(merged, cards),
        "beside": side_by_side(merged) if len(merged.implementations) > 1 else None,
        "not_run": _not_run(merged),
    }  # fmt: skip


def _sections(merged: Merged) -> list[str]:
    others = {claim.entry.section for claim in merged.claims}
    return [*merged.ledger.sections, *sorted(others - {*merged.ledger.sections})]


def _otherwise(claim: Claim, merged: Merged) -> bool:
    """Whether a package other than the reference came to another verdict than it."""
    same = ("not run", merged.reference(claim))
    others = (verdict for package, verdict in claim.verdicts.items() if package != REFERENCE)
    return any(other not in same for other in others)


def _not_run(merged: Merged) -> list[tuple[str, list[str]]]:
    """Why claims were not run -> their ids."""
    reasons: dict[str, list[str]] = {}
    for claim in merged.with_verdict("not run"):
        said = [run.data["reason"] for run in claim.runs if run.verdict == "not run"]
        reasons.setdefault(said[0] if said else _left_out(claim.entry), []).append(claim.entry.id)
    return sorted(reasons.items())


def _left_out(entry: Entry) -> str:
    if "gpu" in entry.needs:
        return "needs a CUDA GPU: run pytest -m gpu"
    return f"awaits {entry.awaits}" if entry.awaits else "the run was not asked for it"


# ---- one claim -----------------------------------------------------------------------------------


def card(claim: Claim, merged: Merged, links: Links) -> dict[str, Any]:
    """Everything that the report says of one claim."""
    entry, main = claim.entry, merged.main
    records = [record for run in claim.runs for record in run.data["records"]]
    own = [run for run in claim.runs if run.file.implementation == main]
    run = next((run for run in own if run.verdict != "not run"), None)
    table = f"{entry.module}/{entry.id}.csv" if entry.section else ""
    return {
        "id": entry.id, "section": entry.section, "place": entry.place, "kind": entry.kind,
        "statement": entry.statement, "beyond": entry.beyond, "known": claim.known,
        "verdict": claim.verdicts.get(main, "not run"),
        "reference": merged.reference(claim),
        "others": {
            package: claim.verdicts.get(package, "not run")
            for package in merged.implementations if package != REFERENCE
        },
        "reason": _reason(claim, own),
        "printed": {key: shown(value) for key, value in entry.expected.items()},
        "reading": entry.reading,
        "alternatives": _alternatives(entry, run),
        "headline": _headline(run),
        "devices": sorted({str(record["device"]) for record in records}) or ["none"],
        "conflicts": claim.conflicts,
        "stored": links.to(f"fixtures/expected/{table}")
        if table and (paths.EXPECTED / table).is_file() else "",
        "runs": [_run(each, links) for each in claim.runs],
    }  # fmt: skip


def _reason(claim: Claim, own: Sequence[Run]) -> str:
    """Of the runs that gave the verdict: at another budget it may not have been run."""
    given = [run for run in own if run.verdict == claim.verdicts.get(run.file.implementation)]
    said = [run.data["reason"] for run in given if run.data["reason"]]
    if said:
        return str(said[0])
    return _left_out(claim.entry) if not claim.runs and claim.entry.verdict != "background" else ""


def _run(run: Run, links: Links) -> dict[str, Any]:
    sources = {str(record["source"]) for record in run.data["records"]} - {""}
    return {
        "file": run.file, **{key: run.data[key] for key in (
            "test", "source", "verdict", "expected_verdict", "budget", "message", "seconds",
        )},
        "link": links.to(run.data["source"]) if run.data["source"] else "",
        "origin": run.data["reason"] if run.verdict == "not run"
        else "; ".join(sorted(sources)) or "measured in this run",
        "records": [_record(record) for record in run.data["records"]],
    }  # fmt: skip


def _record(record: Mapping[str, Any]) -> dict[str, Any]:
    unit = f" {record['unit']}" if record["unit"] else ""
    expected, band = record["expected"], record["kind"] in ("trained", "statistical")
    if band and isinstance(expected, list) and len(expected) == 2:
        expected = f"{shown(expected[0])} to {shown(expected[1])}"
    texts = {"measured": shown(record["measured"]) + unit, "expected": shown(expected) + unit}
    facts = [f"{name}: {shown(fact)}" for name, fact in record["facts"].items()]
    more = [f"seeds {shown(record['seeds'])}"] if record["seeds"] else []
    more += [f"{record['cases']} examples, the last is shown"] if record["cases"] > 1 else []
    more += [record["detail"]] if record["detail"] else []
    return {**record, **texts, "more": "; ".join([*more, *facts])}


def _alternatives(entry: Entry, run: Run | None) -> list[dict[str, str]]:
    """The readings, or the settings of an open claim, and how the newest run judged each."""
    found = []
    records = run.data["records"] if run else []
    taken = run.data["read_as"] or entry.alternatives[0] if run and entry.alternatives else ""
    for name, text in {**entry.readings, **entry.settings}.items():
        own = [record["ok"] for record in records if record["reading"] == name]
        judged = ("holds" if all(own) else "fails") if own else "not judged"
        if not entry.settings and run and run.verdict in ("exact", "holds") and name == taken:
            judged += ", taken"
        found.append({"name": name, "text": text, "judged": judged})
    return found


def _headline(run: Run | None) -> str:
    """A comparison in a few words, best one of single numbers, that speaks for the verdict.

    Empty where all of them are long.
    """
    records = [*run.data["records"]] if run else []
    if run and run.verdict != "open":
        sound = run.verdict in ("exact", "holds")
        records = [record for record in records if record["ok"] == sound]
    for record in sorted(records, key=lambda record: not single(record["measured"])):
        text = "measured {measured}, expected {expected}".format(**_record(record))
        if len(text) <= LONGEST_HEADLINE and "tensor of shape" not in text:
            return text
    return ""


# ---- what the author of the chapter would want ---------------------------------------------------


def author(merged: Merged, cards: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the chapter gets wrong, leaves open, and leaves out, as claims with their evidence."""
    own = [claim for claim in merged.claims if not claim.entry.beyond and claim.known]

    def of(*verdicts: str) -> list[dict[str, Any]]:
        return [cards[c.entry.id] for c in own if c.verdicts.get(merged.main) in verdicts]

    return {
        "wrong": of("refuted"),
        "open": of("open"),
        "read otherwise": [cards[c.entry.id] for c in own if _read_otherwise(c, merged.main)],
        "silent": [
            cards[c.entry.id] for c in own
            if c.entry.reading and c.verdicts.get(merged.main) in ("exact", "holds")
        ],
        "beyond": [cards[c.entry.id] for c in merged.claims if c.entry.beyond and c.known],
    }  # fmt: skip


def _read_otherwise(claim: Claim, package: str) -> bool:
    """Whether it holds under another reading than the most natural one."""
    own = [run for run in claim.runs if run.file.implementation == package]
    decided = [run for run in own if run.verdict in ("exact", "holds")]
    return bool(decided and decided[0].data["read_as"])
