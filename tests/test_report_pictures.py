"""The pictures of the report: drawn from the record and the stored tables, or said not to be."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from claims.experiments.ladder import CLOSE_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.harness import paths
from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation
from claims.harness.ledger import Ledger, load_ledger
from claims.instruments.text.corpus import Corpus
from claims.instruments.text.tokens import split, token_ids
from claims.instruments.text.unigram import unigram_perplexity
from claims.report.pictures import MAKERS, all_pictures, training
from claims.report.pictures.picture import (
    DARK,
    LIGHT,
    LINES,
    MARKERS,
    SERIES,
    VARIABLES,
    Picture,
)
from claims.report.sources import Record, SourceMissing, listed, rows
from claims.training.evidence import Evidence, merge
from claims.training.experiment import Experiment
from claims.training.spec import RunResult, Score, Snapshot


@pytest.fixture(scope="module")
def whole_ledger() -> Ledger:
    return load_ledger(paths.LEDGER)


@pytest.fixture(scope="module")
def pictures(whole_ledger: Ledger) -> dict[str, Picture]:
    return {picture.name: picture for picture in all_pictures(whole_ledger)}


@pytest.mark.parametrize("name", MAKERS)
def test_each_picture_is_drawn_with_its_numbers_or_says_why_not(
    name: str, pictures: dict[str, Picture]
) -> None:
    picture = pictures[name]
    assert picture.title
    if picture.missing:
        assert picture.svg == ""
        assert picture.missing.endswith(".")
        return
    assert len(picture.alt) > 60
    assert "torch" in picture.source
    assert picture.rows
    assert {len(row) for row in picture.rows} == {len(picture.header)}
    ElementTree.fromstring(picture.file)
    addresses = re.findall(r'(?:href="|url\()([^")]+)', picture.svg)
    assert all(address.startswith(f"#{name}-") for address in addresses)
    assert all(each.startswith(f"{name}-") for each in re.findall(r'\bid="([^"]+)"', picture.svg))
    assert not any(colour in picture.svg for colour in VARIABLES)
    # Matplotlib's own colours know no dark page.
    assert set(re.findall(r"(?:fill|stroke): (#\w+)", picture.svg)) <= {"#000000", "#ffffff"}


def test_a_picture_is_the_same_bytes_each_time(
    whole_ledger: Ledger, pictures: dict[str, Picture]
) -> None:
    again = MAKERS["variance"](whole_ledger, Record())
    assert again.file == pictures["variance"].file
    assert again.digest != replace(again, alt="other").digest


def test_without_a_record_and_tables_every_picture_says_so(
    whole_ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("EVIDENCE", "EXPECTED", "FIXTURES"):
        monkeypatch.setattr(paths, name, tmp_path)
    found = all_pictures(whole_ledger)
    assert [picture.name for picture in found] == [*MAKERS]
    assert all(picture.missing and not picture.svg for picture in found)
    with pytest.raises(SourceMissing, match="no stored table"):
        rows(tmp_path / "none.csv")


def test_the_ladder_has_every_seed_of_the_record(pictures: dict[str, Picture]) -> None:
    made = {row[0]: row for row in pictures["ladder"].rows}
    row = made["+ LayerNorm = one block"]
    of = Record().of(CLOSE_RUNS["document"], row[0])
    assert row[3] == str(len(of))
    assert row[4].split() == [f"{run.result.scores[0].perplexity:.2f}" for run in of.values()]


class Made:
    """A record in which some seeds of each run came to the same."""

    def __init__(self, result: RunResult, seeds: tuple[int, ...] = (0, 1)) -> None:
        self._result, self._seeds = result, seeds

    def of(self, experiment: Experiment, label: str) -> dict[int, Evidence]:
        facts = {"date": "2026-01-31", "device": "cpu", "torch": "2.13.0"}
        return {
            seed: Evidence(replace(experiment.runs[label], seed=seed), self._result, {}, {}, facts)
            for seed in self._seeds
        }


def test_losses_are_drawn_where_the_record_has_them(whole_ledger: Ledger) -> None:
    snapshots = (Snapshot(0, None), Snapshot(100, 6.5), Snapshot(1000, 5.75))
    result = RunResult(1000, None, snapshots, 1.0, (Score(1000.0, 500),))
    picture = training.losses(whole_ledger, Made(result, (0, 1, 7)))  # type: ignore[arg-type]
    assert picture.svg
    assert len(picture.rows) == 4 * 3 * 2  # runs, seeds, steps with a loss
    assert [*picture.rows[0]] == ["pre-norm", "0", "100", "6.500"]
    assert "post-norm, warmup 5.75 (n = 3)" in picture.alt
    assert "5.76" in picture.alt
    assert "seeds 0, 1, 7" in picture.source
    lines = re.findall(r"stroke: var\(--series-\d\)", picture.svg)
    assert {*lines} == {f"stroke: var(--series-{i})" for i in range(1, 6)}


def test_without_losses_the_picture_says_so(whole_ledger: Ledger) -> None:
    result = RunResult(1000, None, (Snapshot(0, None),), 1.0, (Score(1000.0, 500),))
    with pytest.raises(SourceMissing, match="kept no losses"):
        training.losses(whole_ledger, Made(result))  # type: ignore[arg-type]


def test_the_level_of_the_frequencies_is_that_of_the_text(tiny_shakespeare: Corpus) -> None:
    reference = Implementation(paths.REFERENCE)
    _, ids = token_ids(
        tiny_shakespeare, reference.Tokenizer, cache_dir(),
        source_digest=reference.source_digest(),
    )  # fmt: skip
    assert round(unigram_perplexity(ids), 1) == training.FREQUENCIES
    drawn_from, _ = split(ids)
    counts = torch.bincount(drawn_from, minlength=1024).double() + 1
    loss = -(counts / counts.sum()).log()[drawn_from].mean()
    assert round(math.exp(loss), 1) == training.TRAINING_FREQUENCIES


def test_the_record_has_every_seed_that_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = NORM_RUNS["document"]
    beyond = replace(experiment.runs["post-norm"], seed=experiment.seeds + 4)
    result = RunResult(1000, None, (Snapshot(0, None),), 1.0, (Score(1000.0, 500),))
    runs = [Evidence(spec, result, {}, {}, {}) for spec in (beyond, replace(beyond, seed=1))]
    merge(((f"run {run.spec.seed}", run) for run in runs), tmp_path)
    monkeypatch.setattr(paths, "EVIDENCE", tmp_path)
    assert [*Record().of(experiment, "post-norm")] == [1, experiment.seeds + 4]
    assert Record().of(experiment, "pre-norm") == {}


def test_colours_stand_out_from_the_page_and_series_differ_in_more_than_colour() -> None:
    for ink, faint, paper, *series in (LIGHT, DARK):
        assert contrast(ink, paper) >= 7
        assert contrast(faint, paper) < 3  # behind what is drawn
        assert all(contrast(colour, paper) >= 3 for colour in series)
        assert len(series) == len(set(series)) == len(SERIES)
        for kind in COLOUR_BLIND:
            seen = [as_seen(colour, kind) for colour in series]
            assert min(distance(a, b) for a, b in combinations(seen, 2)) > 0.1, kind
    assert len(set(MARKERS)) == len(set(LINES)) == len(SERIES)


# Linear RGB as it is seen without long or without middle cones (Viénot, Brettel, Mollon 1999).
COLOUR_BLIND = {
    "protanopia": ((0.112, 0.888, 0.0), (0.112, 0.888, 0.0), (0.004, -0.004, 1.0)),
    "deuteranopia": ((0.293, 0.707, 0.0), (0.293, 0.707, 0.0), (-0.022, 0.022, 1.0)),
}


def linear(colour: str) -> list[float]:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2."""
    bright, dark = sorted(
        (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True))
         for x in (one, other)), reverse=True,
    )  # fmt: skip
    return (bright + 0.05) / (dark + 0.05)


def as_seen(colour: str, kind: str) -> list[float]:
    rgb = linear(colour)
    return [sum(w * c for w, c in zip(row, rgb, strict=True)) for row in COLOUR_BLIND[kind]]


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("seeds", "text"), [([0, 1, 2], "0 to 2"), ([0, 2], "0, 2"), ([5], "5"), ([], "none")]
)
def test_seeds_are_listed(seeds: list[int], text: str) -> None:
    assert listed(seeds) == text
