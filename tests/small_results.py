"""What `--claims-json` writes, made up: for the tests of the report."""

from __future__ import annotations

from typing import Any

from claims.harness.ledger import Entry, Expected, Ledger

SECTIONS = ("1-recurrence", "2-average")


def entry(name: str, verdict: str = "exact", **more: Any) -> Entry:
    facts = {
        "section": "2-average", "statement": f"The sentence of {name}.", "kind": "exact", "line": 11
    }
    facts["expected"] = Expected(name, more.pop("expected", {}))
    return Entry(id=name, verdict=verdict, **(facts | more))


def ledger(*entries: Entry) -> Ledger:
    return Ledger(SECTIONS, {each.id: each for each in entries})


def record(measured: Any = 2.5, expected: Any = 2.5, **more: Any) -> dict[str, Any]:
    facts = {
        "kind": "exact", "ok": True, "measured": measured, "expected": expected,
        "allowed": "equality", "reading": "", "unit": "", "detail": "", "facts": {}, "seeds": [],
        "source": "", "device": "cpu", "cases": 1,
    }
    return facts | more


def run(claim: str, verdict: str = "exact", **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "claim": claim, "test": f"claims/test_02_average.py::test_{claim}",
        "source": "claims/test_02_average.py:7", "verdict": verdict, "reason": "", "message": "",
        "expected_verdict": verdict, "budget": "", "read_as": "", "seconds": 0.1,
        "records": [record()], "section": "2-average", "line": 11,
        "statement": f"The sentence of {claim}.",
    }
    return facts | more


def results(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    facts = {
        "version": 2, "made": "2026-01-31T23:59:00+00:00", "command": "pytest claims",
        "implementation": "transformer", "base_seed": "17", "commit": "abc123",
        "machine": {"torch": "2.13.0", "device": "cpu"}, "corpus": "Tiny Shakespeare",
        "verdicts": {each["claim"]: each["verdict"] for each in runs}, "looks_like": [],
        "runs": [*runs],
    }
    return facts | more
