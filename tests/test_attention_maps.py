"""`python -m claims.studies.attention_maps`, on models that have hardly been trained."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claims.studies import attention_maps
from claims.training.experiment import Experiment
from conftest import ROOT

FOLDER = ROOT / "fixtures" / "studies" / "winograd"
FILES = {
    *(f"{name}.csv" for name in attention_maps.TABLES), "maps.npz", "maps.svg", "provenance.json",
}  # fmt: skip


def hardly(experiment: Experiment) -> Experiment:
    """The same runs, with two seeds and two steps each, and narrow."""
    runs = {
        label: replace(run, steps=2, model=replace(run.model, d_model=16))
        for label, run in experiment.runs.items()
    }
    return Experiment(runs, seeds=2)


@pytest.fixture
def small_study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    kept = {name: hardly(attention_maps.ACCURACIES[name]) for name in ("full", "small")}
    monkeypatch.setattr(attention_maps, "ACCURACIES", kept)
    of = {"full": (kept["full"], "two blocks"), "small": (kept["small"], "two blocks, 500")}
    monkeypatch.setattr(attention_maps, "TWO_BLOCKS", of)
    forming = {"document": hardly(attention_maps.FORMING["document"])}
    monkeypatch.setattr(attention_maps, "FORMING", forming)


@pytest.mark.usefixtures("small_study")
def test_it_writes_every_table_and_the_maps(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert attention_maps.main([str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == FILES == {f.name for f in FOLDER.iterdir()}
    with np.load(folder / "maps.npz") as maps:
        # Seeds, printed sentences, blocks, heads, visible tokens; each row of weights sums to one.
        assert {maps[name].shape for name in ("full", "small")} == {(2, 2, 2, 4, 15)}
        assert np.allclose(maps["full"].sum(-1), 1.0)
    for name in attention_maps.TABLES:
        with (folder / f"{name}.csv").open() as ours, (FOLDER / f"{name}.csv").open() as stored:
            assert next(csv.reader(ours)) == next(csv.reader(stored))


def test_a_missing_folder_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(SystemExit):
        attention_maps.main([str(tmp_path / "missing")])
    assert "is no folder; give one that exists" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
