"""What has been trained at the document's budget: `python -m claims.studies.document FOLDER`.

Trains nothing, and writes into FOLDER

runs.csv            one row per run and quantity, with its value by seed; seeds that the run store
                    lacks are missing, and `n` says how many there are
provenance.json     where the values come from

`python -m claims.studies.docs` shows them in docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from claims.experiments.division import BY_WIDTH_AND_RATE
from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.leak import LEAK_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.positions import POSITION_RUNS
from claims.experiments.precision import PRECISION_RUNS
from claims.harness.files import cache_dir, write_whole
from claims.harness.provenance import commit
from claims.training import sealed
from claims.training.experiment import Experiment
from claims.training.spec import Evaluation, RunResult, RunSpec, Score
from claims.training.store import RESULT, SCORES, listed

EXPERIMENTS = {
    "ladder": LADDER_RUNS,
    "overfitting": CLOSE_RUNS,
    "division": BY_WIDTH_AND_RATE,
    "norms": NORM_RUNS,
    "positions": POSITION_RUNS,
    "leak": LEAK_RUNS,
    "precision": PRECISION_RUNS,
}
Facts = Mapping[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.studies.document",
        description="Write down what the run store holds at the document's budget.",
    )
    parser.add_argument("folder", type=Path, help="where to, e.g. fixtures/studies/document")
    folder: Path = parser.parse_args(arguments).folder
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")

    stored = _stored(cache_dir() / "runs")
    rows = [
        {"experiment": name, **row}
        for name, budgets in EXPERIMENTS.items()
        for row in _rows(budgets["document"], stored)
    ]
    if not rows:
        parser.error(f"the run store {cache_dir() / 'runs'} holds no run at the document's budget")
    used = [facts for facts, _ in stored.values()]
    write_whole(folder / "runs.csv", pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    write_whole(folder / "provenance.json", json.dumps(_provenance(used), indent=2) + "\n")
    print(f"wrote {len(rows)} rows to {folder / 'runs.csv'}, and its provenance beside it")
    return 0


def _stored(folder: Path) -> dict[str, tuple[Facts, RunResult]]:
    """What is finished, by the digest of its specification, whatever the corpus."""
    found = {}
    for entry in listed(folder) if folder.is_dir() else []:
        body = sealed.read(folder / entry.key / RESULT) if entry.done else None
        if body is None:
            continue
        facts = json.loads(body)
        result = replace(
            RunResult.from_json(facts["result"]), scores=tuple(_scores(folder / entry.key, facts))
        )
        found[RunSpec.from_json(facts["spec"]).on("").digest()] = (facts, result)
    return found


def _scores(entry: Path, facts: Facts) -> Iterator[Score]:
    asked = RunSpec.from_json(facts["spec"]).evaluations  # type: ignore[arg-type]
    rows = json.loads(sealed.read(entry / SCORES) or b"[]")
    known = {Evaluation(**row["evaluation"]): Score(**row["score"]) for row in rows}
    return (known[evaluation] for evaluation in asked if evaluation in known)


def _rows(
    experiment: Experiment, stored: Mapping[str, tuple[Facts, RunResult]]
) -> Iterator[dict[str, object]]:
    for label in experiment.runs:
        of_seeds = [
            (spec.seed, _quantities(spec, stored[spec.digest()][1]))
            for spec in experiment.of(label)
            if spec.digest() in stored
        ]
        for quantity in of_seeds[0][1] if of_seeds else ():
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


def _quantities(spec: RunSpec, result: RunResult) -> dict[str, float]:
    """Everything that a table shows of one run, by name."""
    found = {
        f"perplexity, {e.split}, windows of {e.length}"
        + (f", last {e.stride}" if e.stride else ""): score.perplexity
        for e, score in zip(spec.evaluations, result.scores, strict=False)
    }
    for when, snapshot in (("first", result.snapshots[0]), ("last", result.snapshots[-1])):
        for block, scores in enumerate(snapshot.scores, 1):
            found[f"score std, block {block}, {when}"] = scores.std
            found[f"entropy, block {block}, {when}"] = scores.entropy
            found[f"saturated rows, block {block}, {when}"] = scores.saturated
    return found


def _provenance(facts: Sequence[Facts]) -> dict[str, object]:
    def all_of(key: str) -> list[str]:
        return sorted({str(each[key]) for each in facts})

    finished = all_of("finished")
    return {
        "torch": all_of("torch"),
        "device": all_of("device"),
        "machine": all_of("machine"),
        "threads": all_of("threads"),
        "finished": [finished[0], finished[-1]],
        "commit": commit(),
        "command": "pytest claims --budget document --device cpu",
    }


if __name__ == "__main__":
    raise SystemExit(main())
