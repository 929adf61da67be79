"""What has been trained at the document's budget: `python -m claims.studies.document FOLDER`.

Trains nothing, and writes into FOLDER what the record (fixtures/evidence) has:

runs.csv            one row per run and quantity, with its value by seed; seeds that the record
                    lacks are missing, and `n` says how many there are
provenance.json     where the values come from

`python -m claims.studies.docs` shows them in docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from claims.experiments.division import BY_WIDTH_AND_RATE
from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.leak import LEAK_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.positions import POSITION_RUNS
from claims.experiments.precision import PRECISION_RUNS
from claims.harness import paths
from claims.harness.files import write_whole
from claims.harness.provenance import commit
from claims.training.evidence import Evidence, EvidenceError, read
from claims.training.experiment import Experiment
from claims.training.spec import RunSpec

EXPERIMENTS = {
    "ladder": LADDER_RUNS,
    "overfitting": CLOSE_RUNS,
    "division": BY_WIDTH_AND_RATE,
    "norms": NORM_RUNS,
    "positions": POSITION_RUNS,
    "leak": LEAK_RUNS,
    "precision": PRECISION_RUNS,
}
Facts = Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.studies.document",
        description="Write down what the record holds at the document's budget.",
    )
    parser.add_argument("folder", type=Path, help="where to, e.g. fixtures/studies/document")
    folder: Path = parser.parse_args(arguments).folder
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")

    try:
        record = {run.spec.on("").digest(): run for run in map(read, _files())}
    except EvidenceError as error:
        parser.error(str(error))
    rows = [
        {"experiment": name, **row}
        for name, budgets in EXPERIMENTS.items()
        for row in _rows(budgets["document"], record)
    ]
    if not rows:
        parser.error(f"the record, {paths.EVIDENCE}, holds no run of these experiments")
    write_whole(folder / "runs.csv", pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    facts = _provenance([run.facts for run in record.values()])
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    print(f"wrote {len(rows)} rows to {folder / 'runs.csv'}, and its provenance beside it")
    return 0


def _files() -> list[Path]:
    return sorted(paths.EVIDENCE.glob("*.json"))


def _rows(
    experiment: Experiment, record: Mapping[str, Evidence]
) -> Iterator[dict[str, object]]:
    for label in experiment.runs:
        every = [
            (spec.seed, _quantities(spec, record[spec.digest()]))
            for spec in experiment.of(label)
            if spec.digest() in record
        ]
        for quantity in dict.fromkeys(name for _, quantities in every for name in quantities):
            # Of an evaluation that was declared later, only some seeds have the score.
            of_seeds = [(s, quantities) for s, quantities in every if quantity in quantities]
            values = [quantities[quantity] for _, quantities in of_seeds]
            yield {
                "run": label,
                "quantity": quantity,
                "n": len(values),
                "mean": f"{statistics.fmean(values):.4g}",
                "sd": f"{statistics.stdev(values):.2g}" if len(values) > 1 else "",
                "seeds": " ".join(str(seed) for seed, _ in of_seeds),
                "values": " ".join(f"{value:.5g}" for value in values),
            }


def _quantities(spec: RunSpec, run: Evidence) -> dict[str, float]:
    """Everything that a table shows of one run, by name."""
    result = run.result
    scores = dict(zip(run.spec.evaluations, result.scores, strict=True))
    found = {
        f"perplexity, {e.split}, windows of {e.length}"
        + (f", last {e.stride}" if e.stride else ""): scores[e].perplexity
        for e in spec.evaluations
        if e in scores
    }
    for when, snapshot in (("first", result.snapshots[0]), ("last", result.snapshots[-1])):
        for block, of_head in enumerate(snapshot.scores, 1):
            found[f"score std, block {block}, {when}"] = of_head.std
            found[f"entropy, block {block}, {when}"] = of_head.entropy
            found[f"saturated rows, block {block}, {when}"] = of_head.saturated
    return found


def _provenance(facts: Sequence[Facts]) -> dict[str, object]:
    def all_of(key: str) -> list[str]:
        return sorted({str(each[key]) for each in facts})

    dates = all_of("date")
    return {
        "torch": all_of("torch"),
        "device": all_of("device"),
        "machine": all_of("machine"),
        "threads": all_of("threads"),
        "made": [dates[0], dates[-1]],
        "commit": commit(),
        "command": "pytest claims --budget document --device cpu",
    }


if __name__ == "__main__":
    raise SystemExit(main())
