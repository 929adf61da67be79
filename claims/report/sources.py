"""Where the pictures' numbers are from: the record of trained runs, and stored tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from claims.harness import paths
from claims.harness.ledger import Ledger
from claims.harness.provenance import provenance_path
from claims.training.evidence import Evidence, EvidenceError, read
from claims.training.experiment import Experiment, whatever_the_seed
from claims.training.spec import Evaluation


class SourceMissing(Exception):
    """Why a picture cannot be drawn, in a sentence."""


class Record:
    """The runs of fixtures/evidence."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[int, Evidence]] = {}
        for path in sorted(paths.EVIDENCE.glob("*.json")):
            try:
                evidence = read(path)
            except EvidenceError:
                continue  # the run of the claims tells
            run = self._runs.setdefault(whatever_the_seed(evidence.spec), {})
            run.setdefault(evidence.spec.seed, evidence)

    def of(self, experiment: Experiment, label: str) -> dict[int, Evidence]:
        """The runs of one label, by seed: every seed that has been trained, whether or not the
        experiment asks for it.
        """
        return dict(sorted(self._runs.get(whatever_the_seed(experiment.runs[label]), {}).items()))


def perplexities(runs: dict[int, Evidence], evaluation: Evaluation) -> dict[int, float]:
    """The perplexity of those runs that have this evaluation, by seed."""
    found = {}
    for seed, run in runs.items():
        scores = dict(zip(run.spec.evaluations, run.result.scores, strict=True))
        if evaluation in scores:
            found[seed] = scores[evaluation].perplexity
    return found


def provenance_of_runs(runs: Iterable[Evidence]) -> str:
    """Where runs of the record are from, in a sentence."""
    all_runs = list(runs)
    days = sorted({run.facts["date"] for run in all_runs})
    seeds = sorted({run.spec.seed for run in all_runs})
    said = {
        key: ", ".join(sorted({str(run.facts[key]) for run in all_runs}))
        for key in ("device", "torch")
    }
    products = ", ".join(sorted({run.result.precision for run in all_runs}))
    span = " to ".join(dict.fromkeys((days[0], days[-1])))
    return (
        f"The record (fixtures/evidence), {len(all_runs)} runs of {span}; "
        f"seeds {listed(seeds)}; {said['device']}, torch {said['torch']}, products in {products}; "
        "pytest claims --budget document --device cpu."
    )


def listed(seeds: Sequence[int]) -> str:
    """0 to 9, or 0, 2, 5."""
    if len(seeds) > 2 and list(seeds) == [*range(seeds[0], seeds[-1] + 1)]:
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds)) or "none"


def table_path(name: str) -> Path:
    """The stored table of a claim of the chapter's tables."""
    return paths.EXPECTED / "test_chapter_tables" / f"{name}.csv"


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a stored table. Raises SourceMissing."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise SourceMissing(f"There is no stored table {path.name}.") from error


def provenance_of_table(path: Path) -> str:
    """Where a stored table is from, in a sentence."""
    try:
        facts = json.loads(provenance_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SourceMissing(f"The stored table {path.name} has no provenance.") from error
    seeds = f"; seeds {listed(facts['seeds'])}" if facts["seeds"] else ""
    return (
        f"{path.relative_to(paths.FIXTURES.parent).as_posix()} of {facts['date']}{seeds}; "
        f"{facts['device']}, torch {facts['torch']}; {facts['command']}."
    )


def printed(ledger: Ledger, claim: str) -> dict[str, object]:
    """What the chapter prints, by row of a stored table. Raises SourceMissing."""
    if claim not in ledger:
        raise SourceMissing(f"The ledger has no entry {claim}.")
    return dict(ledger[claim].expected["printed"])
