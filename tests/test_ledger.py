"""A malformed ledger is refused before anything runs, with the claim and the fault named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from claims.harness.ledger import LedgerError, load_ledger
from conftest import ROOT, Project, output

ENTRY: dict[str, Any] = {
    "id": "token-count",
    "section": "2-average",
    "line": 13,
    "statement": "There are 459,760 tokens.",
    "kind": "exact",
    "expected": {"value": 459760},
    "verdict": "exact",
}


def write(folder: Path, *claims: dict[str, Any], own: int | None = None) -> Path:
    path = folder / "ledger.yaml"
    count = len(claims) if own is None else own
    document = {
        "document": {"claims": count},
        "sections": ["2-average"],
        "claims": list(claims),
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_well_formed_ledger(tmp_path: Path) -> None:
    entry = load_ledger(write(tmp_path, ENTRY))["token-count"]
    assert entry.expected["value"] == 459760
    assert (entry.module, entry.place, entry.has_test) == ("test_02_average", "l.13", True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"expcted": {}}, "claim token-count: Additional properties are not allowed ('expcted'"),
        ({"verdict": None}, "claim token-count: 'verdict' is a required property"),
        ({"statement": None}, "claim token-count: 'statement' is a required property"),
        ({"verdict": "true"}, "claim token-count, verdict: 'true' is not one of"),
        ({"kind": "vague"}, "claim token-count, kind: 'vague' is not one of"),
        ({"line": 257}, "claim token-count, line: 257 is greater than the maximum of 256"),
        ({"line": None}, "claim token-count: 'line' is a required property"),
        ({"section": "3-none"}, "claim token-count: section '3-none' is none of 2-average"),
        ({"verdict": "not run"}, "claim token-count: 'awaits' is a required property"),
        ({"awaits": "x"}, "claim token-count: it awaits something, yet its verdict is 'exact'"),
        ({"needs": ["a friend"]}, "claim token-count, needs, 0: 'a friend' is not one of"),
        ({"id": "Token Count"}, "claim Token Count, id: 'Token Count' does not match"),
        ({"id": None}, "claim number 1: 'id' is a required property"),
    ],
)
def test_faults_are_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    claim = {key: value for key, value in (ENTRY | change).items() if value is not None}
    with pytest.raises(LedgerError) as caught:
        load_ledger(write(tmp_path, claim))
    assert sentence in str(caught.value)


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    other = ENTRY | {"id": "other", "verdict": "maybe"}
    with pytest.raises(LedgerError) as caught:
        load_ledger(write(tmp_path, ENTRY | {"kind": "vague"}, other))
    assert "token-count" in str(caught.value)
    assert "other" in str(caught.value)


def test_duplicates(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="claim token-count: the id stands 2 times"):
        load_ledger(write(tmp_path, ENTRY, ENTRY))
    path = tmp_path / "ledger.yaml"
    path.write_text(path.read_text() + "claims: []\n")
    with pytest.raises(LedgerError, match="key 'claims' stands 2 times"):
        load_ledger(path)


def test_a_claim_that_vanishes_from_the_ledger_is_missed(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="2 claims are the document's own, but 1 entries are"):
        load_ledger(write(tmp_path, ENTRY, own=2))
    beyond = ENTRY | {"id": "more", "beyond": "a companion"}
    assert len(load_ledger(write(tmp_path, ENTRY, beyond, own=1)).entries) == 2


def test_no_file_and_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="cannot be read: No such file"):
        load_ledger(tmp_path / "ledger.yaml")
    (tmp_path / "ledger.yaml").write_text("claims: [")
    with pytest.raises(LedgerError, match="not valid YAML"):
        load_ledger(tmp_path / "ledger.yaml")
    (tmp_path / "ledger.yaml").write_text("- 1\n")
    with pytest.raises(LedgerError, match="is not of type 'object'"):
        load_ledger(tmp_path / "ledger.yaml")


def test_an_expected_value_that_the_entry_lacks_is_named(tmp_path: Path) -> None:
    expected = load_ledger(write(tmp_path, ENTRY))["token-count"].expected
    assert (list(expected), len(expected)) == (["value"], 1)
    with pytest.raises(LedgerError, match="'token-count' expects value; the test asks for 'valeu'"):
        expected["valeu"]


def test_pytest_refuses_a_malformed_ledger_in_one_sentence(project: Project) -> None:
    result = project.entry("a", "perhaps").test("").run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = output(result)
    assert "claim a, verdict: 'perhaps' is not one of" in text
    assert "Traceback" not in text


def test_the_project_s_own_ledger_holds_every_claim_of_the_document() -> None:
    ledger = load_ledger(ROOT / "fixtures" / "ledger.yaml")
    assert all(entry.line for entry in ledger.entries.values() if not entry.beyond)
    files = {path.stem for path in (ROOT / "claims").glob("test_*.py")}
    assert {entry.module for entry in ledger.entries.values() if entry.has_test} <= files
