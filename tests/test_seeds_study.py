"""How far a table of one seed can be trusted: what the study reads, and what it computes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from claims.experiments.ladder import LADDER_RUNS
from claims.harness import paths
from claims.studies import seeds
from claims.studies.seeds import ORDERS, probability, shown, trust
from claims.training.spec import Score

BETTER, WORSE = "no context", "uniform average, replacing"


def found(label: str, seed: int, perplexity: float, facts: str = "2.0"):  # type: ignore[no-untyped-def]
    spec = replace(LADDER_RUNS["ci"].runs[label], seed=seed).on("a text")
    scores = {spec.evaluations[0]: Score(math.log(perplexity) * 10, 10)}
    return {"torch": facts, "device": "cpu"}, spec, scores


def test_one_seed_is_judged_by_the_predictive_distribution() -> None:
    t = trust([10.0, 10.0, 10.0, 10.0], [11.0, 12.0, 13.0, 14.0])
    sd = math.sqrt(5 / 3)
    assert (t.n, t.mean, t.seen) == (4, 2.5, 0)
    assert t.sd == pytest.approx(sd)
    assert t.interval[0] == pytest.approx(2.5 - 3.1824 * sd / 2, abs=1e-3)
    assert t.opposite == pytest.approx(stats.t.cdf(-2.5 / (sd * math.sqrt(1.25)), 3))
    assert t.apart == pytest.approx(t.opposite)  # the better row does not vary
    assert t.needed is None


def test_rows_that_vary_together_are_safer_with_one_seed_for_both() -> None:
    t = trust([10.0, 12.0, 14.0, 16.0], [11.0, 13.1, 14.9, 17.0])
    assert t.opposite < 1e-3 < 0.2 < t.apart
    assert t.needed == 1


def test_more_seeds_are_needed_where_the_spread_is_greater() -> None:
    better = [0.0] * 10
    close = trust(better, [0.4, 1.6] * 5)
    far = trust(better, [0.2, 1.8] * 5)
    assert close.needed is not None
    assert far.needed is not None
    assert 1 < close.needed < far.needed


def test_the_opposite_order_is_told() -> None:
    t = trust([5.0, 5.0, 5.0], [4.0, 4.1, 3.9])
    assert t.seen == 3
    assert t.opposite > 0.99
    assert t.needed is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "below 0.01 %"), (0.052, "5.2 %"), (0.5, "50 %"), (0.9987, "99.87 %"),
     (1.0, "above 99.99 %")],
)  # fmt: skip
def test_probabilities_in_percent(value: float, text: str) -> None:
    assert probability(value) == text


def test_seeds_of_both_rows_are_paired_and_doubtful_ones_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "EVIDENCE", tmp_path / "evidence")
    with pytest.raises(SystemExit):
        seeds.main([str(tmp_path)])
    assert "neither the record nor the run store has a run" in capsys.readouterr().err
    runs = [found(BETTER, seed, 60.0 + seed) for seed in (1, 2, 3, 4, 5)]
    runs += [found(WORSE, seed, 240.0 + seed) for seed in (2, 3, 4, 5, 6)]
    # The same run of two implementations: neither is used. The same twice: it is used.
    runs += [found(WORSE, 5, 300.0), found(WORSE, 4, 244.0)]
    monkeypatch.setattr(seeds, "_stored", lambda folder: runs)
    assert seeds.main([str(tmp_path)]) == 0
    (row,) = pd.read_csv(tmp_path / "orders.csv").to_dict("records")
    assert (row["budget"], row["better"], row["worse"]) == ("ci", BETTER, WORSE)
    assert (row["seeds"], row["of the better"], row["of the worse"]) == (
        "2 3 4", "62 63 64", "242 243 244"
    )  # fmt: skip
    assert json.loads((tmp_path / "provenance.json").read_text())["torch"] == ["2.0"]
    with pytest.raises(SystemExit):
        seeds.main([str(tmp_path / "missing")])
    assert "is no folder; give one that exists" in capsys.readouterr().err


def test_the_least_certain_order_stands_first_and_few_seeds_below() -> None:
    rows = [
        {"budget": "ci", "better": "a", "worse": "b", "of the better": "1 1 1",
         "of the worse": "5 5.1 4.9"},
        {"budget": "ci", "better": "c", "worse": "d", "of the better": "1 1 1",
         "of the worse": "2 1.5 0.5"},
        {"budget": "ci", "better": "e", "worse": "f", "of the better": "1 1",
         "of the worse": "2 2"},
        {"budget": "document", "better": "g", "worse": "h", "of the better": "1 1 1",
         "of the worse": "2 1.5 0.5"},
    ]  # fmt: skip
    text = shown(rows, "ci")
    assert text.index("| c | d |") < text.index("| a | b |")
    assert "Fewer than 3 seeds are there of: e against f." in text
    assert "| g |" not in text


def test_each_order_is_of_a_claim_and_of_runs_that_exist() -> None:
    ledger = paths.LEDGER.read_text(encoding="utf-8")
    for order in ORDERS:
        assert f"- id: {order.claim}\n" in ledger
        labels = {label for experiment in order.runs.values() for label in experiment.runs}
        assert {order.better, order.worse} <= labels
