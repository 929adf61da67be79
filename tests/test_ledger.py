"""A malformed ledger is refused before anything runs, with the claim and the fault named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from claims.harness.ledger import Expected, LedgerError, load_ledger
from claims.harness.paths import CLAIMS, LEDGER
from conftest import Project, output

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


# ---- values by budget ----------------------------------------------------------------------------

BY_BUDGET = Expected(
    "gap",
    {
        "band": {"ci": [0.0, 1.0], "document": [0.4, 0.6]},
        "late": {"document": 9},
        "parts": {"head": 1, "block": 2},
        "value": 7,
    },
)


@pytest.mark.parametrize(("budget", "band"), [("ci", [0.0, 1.0]), ("document", [0.4, 0.6])])
def test_a_value_given_by_budget_is_that_of_the_budget(budget: str, band: list[float]) -> None:
    expected = BY_BUDGET.at(budget)
    assert expected["band"] == band
    # A mapping of other keys is a value like any other.
    assert (expected["value"], expected["parts"]) == (7, {"head": 1, "block": 2})
    assert list(expected) == list(BY_BUDGET)


def test_a_value_that_the_budget_lacks_stays_as_it_is() -> None:
    assert BY_BUDGET.at("ci")["late"] == {"document": 9}
    assert BY_BUDGET.at("document")["late"] == 9


def test_without_a_budget_every_value_is_given() -> None:
    assert dict(BY_BUDGET.at(None)) == dict(BY_BUDGET)


def test_at_a_budget_too_a_value_that_the_entry_lacks_is_named() -> None:
    with pytest.raises(LedgerError, match="'gap' expects band, late, parts, value; the test asks"):
        BY_BUDGET.at("ci")["bnad"]


# ---- subjects ------------------------------------------------------------------------------------

BEYOND = ENTRY | {"beyond": "a reported fault"}


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        (ENTRY, "test_02_average"),
        (BEYOND, "test_02_average"),
        (BEYOND | {"subject": "fully-masked"}, "test_fully_masked"),
        (BEYOND | {"subject": "gpt2-counts"}, "test_gpt2_counts"),
    ],
    ids=["of the document", "companion", "subject", "subject with a digit"],
)
def test_the_module_is_that_of_the_subject_or_of_the_section(
    tmp_path: Path, entry: dict[str, Any], module: str
) -> None:
    ledger = load_ledger(write(tmp_path, entry, own=int("beyond" not in entry)))
    assert ledger["token-count"].module == module
    assert [each.id for each in ledger.of_module(module)] == ["token-count"]


def test_a_claim_of_the_document_has_no_subject(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"claim token-count: .* only what goes beyond it has a"):
        load_ledger(write(tmp_path, ENTRY | {"subject": "tokens"}))


@pytest.mark.parametrize("subject", ["", "Tokens", "fully masked", "fully_masked", "2-average"])
def test_a_subject_that_names_no_module_is_refused(tmp_path: Path, subject: str) -> None:
    with pytest.raises(LedgerError, match=r"claim token-count, subject: '.*' does not match"):
        load_ledger(write(tmp_path, BEYOND | {"subject": subject}, own=0))


# ---- what rests on what --------------------------------------------------------------------------

OTHERS = [ENTRY | {"id": name, "requires": needed} for name, needed in (
    ("b", ["token-count"]), ("c", ["b"]), ("d", ["c", "token-count"]),
)]


def test_a_claim_names_the_claims_that_it_rests_on(tmp_path: Path) -> None:
    ledger = load_ledger(write(tmp_path, ENTRY, *OTHERS))
    assert [entry.requires for entry in ledger.entries.values()] == [
        (), ("token-count",), ("b",), ("c", "token-count"),
    ]


@pytest.mark.parametrize(
    ("needed", "sentence"),
    [
        (["nothing"], "claim token-count: it requires 'nothing', which is no claim"),
        (["token-count"], "require each other in a circle: token-count -> token-count"),
        (["d"], "claims that require each other in a circle: "),
        (["b", "b"], "claim token-count, requires: ['b', 'b'] has non-unique elements"),
    ],
    ids=["an unknown claim", "itself", "a circle", "twice"],
)
def test_what_a_claim_rests_on_exists_and_does_not_rest_on_it(
    tmp_path: Path, needed: list[str], sentence: str
) -> None:
    path = write(tmp_path, ENTRY | {"requires": needed}, *OTHERS)
    with pytest.raises(LedgerError, match=re.escape(sentence)):
        load_ledger(path)


# ---- the ledger of this project ------------------------------------------------------------------


def test_every_claim_has_its_module_and_every_module_its_claims() -> None:
    """Claims with a subject in `claims/beyond/`, all others in `claims/`."""
    ledger = load_ledger(LEDGER)
    entries = ledger.entries.values()
    assert all(entry.line for entry in entries if not entry.beyond)
    for folder, claims in (
        (CLAIMS, [entry for entry in entries if not entry.subject]),
        (CLAIMS / "beyond", [entry for entry in entries if entry.subject]),
    ):
        modules = {path.stem for path in folder.glob("test_*.py")}
        assert {entry.module for entry in claims if entry.has_test} == modules


def test_what_rests_on_a_choice_of_the_chapter_binds_nobody_else() -> None:
    """But for GPT-2's counts: `gpt2_small` says by its name whose model it is."""
    entries = load_ledger(LEDGER).entries
    bound = {
        (entry.id, below)
        for entry in entries.values()
        for below in entry.requires
        if entry.bound == "anyone" and entries[below].bound != "anyone"
    }
    assert not [pair for pair in bound if not pair[0].startswith("gpt2-")]


def test_whatever_a_query_without_keys_comes_to_binds_nobody_else() -> None:
    """Its output and the gradients behind it: the formula gives NaN for all of them."""
    entries = load_ledger(LEDGER).entries.values()
    assert {e.bound for e in entries if e.subject == "fully-masked"} == {"chapter"}
