"""Adapters to libraries: short, and their stored verdicts are about claims that exist."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import pytest

from claims.harness import paths
from claims.harness.contract import CONTRACT, HOOKS
from claims.harness.implementation import Implementation
from claims.harness.ledger import load_ledger
from claims.studies import peers

ADAPTERS = sorted((paths.IMPLEMENTATIONS / "peers").glob("peer_*.py"))
NEEDS = {"peer_torch_nn": "torch", "peer_x_transformers": "x_transformers"}
LONGEST = 60  # lines: the measure of how much the contract asks for


@pytest.mark.parametrize("path", ADAPTERS, ids=lambda path: path.stem)
def test_an_adapter_is_short_and_offers_names_of_the_contract(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST
    if importlib.util.find_spec(NEEDS.get(path.stem, "transformers")) is None:
        pytest.skip(f"needs {NEEDS.get(path.stem, 'transformers')}: pip install -e .[peers]")
    monkeypatch.syspath_prepend(path.parent)
    assert Implementation(path.stem).provided()


def rows() -> list[dict[str, str]]:
    with (peers.FOLDER / "verdicts.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_the_stored_verdicts_are_of_the_adapters_and_of_claims_that_bind_somebody() -> None:
    ledger = load_ledger(paths.LEDGER)
    assert {row["package"] for row in rows()} == {path.stem for path in ADAPTERS}
    assert all(ledger[row["claim"]].bound != "nobody" for row in rows())
    facts = json.loads((peers.FOLDER / "provenance.json").read_text(encoding="utf-8"))
    assert {each["implementation"] for each in facts} == {path.stem for path in ADAPTERS}


def test_a_result_of_a_run_becomes_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    data = {
        "implementation": "mine", "command": "pytest --claims-json /home/me/out.json -q",
        "base_seed": "17", "machine": {}, "made": "today",
        "verdicts": {"a": "not run", "b": "exact"},
        "runs": [{"claim": "a", "reason": "mine lacks it"}, {"claim": "b", "reason": "none"}],
    }
    (tmp_path / "out.json").write_text(json.dumps(data))
    assert peers.main([str(tmp_path / "out.json")]) == 0
    assert [(row["claim"], row["verdict"], row["reason"]) for row in rows()] == [
        ("a", "not run", "mine lacks it"), ("b", "exact", "")
    ]
    assert "/home" not in (tmp_path / "provenance.json").read_text()


def test_the_table_of_the_contract_has_every_name() -> None:
    table = peers.contract()
    assert all(f"`{name}(" in table for name in (*CONTRACT, *HOOKS))
