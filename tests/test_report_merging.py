"""Stored runs of the claims, read and merged: the newest counts, and conflicts are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claims.report.merging import Merged, merge
from claims.report.stored import NoResults, of_data, read
from small_results import entry, ledger, record, results, run

OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def merged(*files: dict[str, Any], names: tuple[str, ...] = ("a", "b")) -> Merged:
    stored = [of_data(data, f"{i}.json") for i, data in enumerate(files)]
    return merge(stored, ledger(*(entry(name) for name in names)))


def verdicts(found: Merged) -> dict[str, dict[str, str]]:
    return {claim.entry.id: dict(claim.verdicts) for claim in found.claims}


def test_the_newest_file_that_decided_a_claim_counts_and_a_conflict_is_told() -> None:
    old = results(run("a", "failed"), run("b"), made=OLD)
    new = results(run("a", "exact"), run("b", "not run", records=[]), made=NEW)
    for files in ((old, new), (new, old)):
        found = merged(*files)
        assert verdicts(found) == {
            "a": {"transformer": "exact"}, "b": {"transformer": "exact"}
        }
        a, b = found.claims
        [conflict] = a.conflicts
        assert "exact in" in conflict
        assert "failed in" in conflict
        assert [each.file.made for each in a.runs] == [NEW, OLD]
        assert b.conflicts == []  # a file that did not run a claim contradicts nobody
        assert found.files[0].made == NEW


def test_budgets_do_not_contradict_each_other_and_the_worst_counts() -> None:
    small = run("a", "holds", budget="ci")
    large = run("a", "refuted", budget="document")
    for files in ([results(small, large)], [results(small, made=OLD), results(large, made=NEW)]):
        found = merged(*files)
        assert verdicts(found) == {"a": {"transformer": "refuted"}}
        assert found.claims[0].conflicts == []


def test_seeds_of_one_file_have_the_worst_verdict_and_are_no_conflict() -> None:
    found = merged(results(run("a"), run("a", "failed"), run("a", "holds")))
    assert verdicts(found) == {"a": {"transformer": "failed"}}
    assert found.claims[0].conflicts == []


def test_shards_of_one_run_complete_each_other() -> None:
    found = merged(results(run("a")), results(run("b", "holds")))
    assert verdicts(found) == {"a": {"transformer": "exact"}, "b": {"transformer": "holds"}}
    assert found.count("transformer") == {"exact": 1, "holds": 1}
    assert found.count("transformer", "1-recurrence") == {}


def test_two_implementations_stand_beside_each_other_the_reference_first() -> None:
    found = merged(
        results(run("a", "failed"), run("b", "not run"), implementation="mine", made=NEW),
        results(run("a"), run("b"), made=OLD),
    )
    assert list(found.implementations) == ["transformer", "mine"]
    assert found.main == "transformer"
    assert verdicts(found)["a"] == {"transformer": "exact", "mine": "failed"}
    assert all(claim.conflicts == [] for claim in found.claims)
    alone = merged(results(run("a", "failed", expected_verdict="holds"), implementation="mine"))
    assert alone.main == "mine"
    assert alone.reference(alone.claims[0]) == "holds"


def test_claims_stand_in_the_order_of_the_ledger_and_unknown_ones_at_its_end() -> None:
    data = results(run("b"), run("gone"), run("a"))
    data["verdicts"]["history"] = "background"
    found = merged(data, names=("a", "b", "never asked"))
    assert [claim.entry.id for claim in found.claims] == ["a", "b", "gone", "history"]
    assert [claim.known for claim in found.claims] == [True, True, False, False]
    assert found.claims[2].entry.statement == "The sentence of gone."
    assert found.claims[3].verdicts == {"transformer": "background"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read"),
        ("{", "is no file that --claims-json wrote"),
        ("[]", "is no file that --claims-json wrote"),
        ("{}", "is no file that --claims-json wrote"),
        ('{"runs": []}', "is of version 1"),
        ('{"runs": [], "version": 3}', "is of version 3"),
        (json.dumps(results(run("a", "splendid"))), "verdicts, a: 'splendid' is not one of"),
        (json.dumps(results(run("a") | {"records": "x" * 10**6})), "runs, 0, records: "),
    ],
)
def test_a_file_of_another_kind_is_refused_in_a_sentence(
    text: str | None, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(NoResults, match=r"file\.json") as refused:
        read(path)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 500


def test_what_no_page_may_hold_is_shown_by_a_sign() -> None:
    message = "a\x00b\x1b[31mred\x9b\ttab\nline \ud800 end\x7f"
    data = results(run("a", "failed", message=message, records=[record(["\x07"], {"\x08": 1})]))
    [only] = of_data(json.loads(json.dumps(data)), "file").runs
    assert only["message"] == "a␀b␛[31mred�\ttab\nline � end�"
    assert only["records"][0]["measured"] == ["␇"]
    assert only["records"][0]["expected"] == {"␈": 1}
