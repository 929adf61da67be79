"""How far a table of one seed can be trusted: `python -m claims.studies.seeds FOLDER`.

Trains nothing. For each order of two rows that the chapter prints, it takes the difference of the
two by seed, from the record (fixtures/evidence) for the chapter's budget and from the run store for
the small one, and writes into FOLDER

orders.csv         one row per order and budget, with the perplexities of both rows by seed
provenance.json    where the values come from

`python -m claims.studies.docs` shows them in docs/seeds.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from claims.experiments.division import DIVISION_RUNS
from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.positions import POSITION_RUNS
from claims.harness import paths
from claims.harness.files import cache_dir, write_whole
from claims.harness.provenance import commit
from claims.studies.markdown import table
from claims.training import sealed
from claims.training.evidence import EvidenceError, read
from claims.training.experiment import Budgets, whatever_the_seed
from claims.training.spec import Evaluation, RunResult, RunSpec, Score
from claims.training.store import RESULT, SCORES, listed

RISK = 0.01  # of the opposite order, for which seeds are counted
FEWEST = 3  # seeds, below which no spread is estimated
MOST = 1000  # seeds that are worth counting


@dataclass(frozen=True)
class Order:
    """A row that the chapter prints as better than another, in held-out perplexity."""

    claim: str
    runs: Budgets
    better: str
    worse: str


ORDERS = (
    Order("averaging-is-worse-than-ignoring", LADDER_RUNS, "no context",
          "uniform average, replacing"),
    Order("baseline-perplexity", LADDER_RUNS, "no context", "uniform average, added"),
    Order("average-plus-positions-2.14", LADDER_RUNS, "+ learned positions",
          "uniform average, replacing"),
    Order("residual-repairs-the-average", LADDER_RUNS, "uniform average, added",
          "uniform average, replacing"),
    Order("added-beats-replacing", LADDER_RUNS, "one head, added", "one head, replacing"),
    Order("learned-beats-uniform", LADDER_RUNS, "one head, added", "uniform average, added"),
    Order("four-heads-3-points", LADDER_RUNS, "four heads", "one head, added"),
    Order("layernorm-buys-points", LADDER_RUNS, "+ LayerNorm = one block", "+ MLP"),
    Order("two-blocks-overfit", LADDER_RUNS, "+ LayerNorm = one block", "two blocks"),
    Order("division-pays-at-256-and-1024", DIVISION_RUNS, "256, scaled", "256, unscaled"),
    Order("division-pays-at-256-and-1024", DIVISION_RUNS, "1024, scaled", "1024, unscaled"),
    Order("postnorm-nowarmup-eight-times", NORM_RUNS, "pre-norm", "post-norm"),
    Order("learned-wins-at-64", POSITION_RUNS, "learned", "sinusoidal"),
    Order("learned-wins-at-64", POSITION_RUNS, "learned", "rotary"),
    Order("learned-wins-at-64", POSITION_RUNS, "learned", "alibi"),
)  # fmt: skip
# Perplexity by run, whatever its seed, and by seed.
Values = dict[str, dict[int, float]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.seeds")
    parser.add_argument("folder", type=Path, help="where to, e.g. fixtures/studies/seeds")
    folder: Path = parser.parse_args(arguments).folder
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")
    record, store = list(_recorded(paths.EVIDENCE)), list(_stored(cache_dir() / "runs"))
    values = {"document": _by_run(record), "ci": _by_run(store)}
    rows = [
        row
        for budget in ("document", "ci")
        for order in ORDERS
        if (row := _row(order, budget, values[budget])) is not None
    ]
    if not rows:
        parser.error("neither the record nor the run store has a run of these orders")
    write_whole(folder / "orders.csv", pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
    facts = {
        "measured": "held-out perplexity after training, by seed",
        "torch": sorted({made["torch"] for made, _, _ in (*record, *store)}),
        "device": sorted({made["device"] for made, _, _ in (*record, *store)}),
        "commit": commit(),
        "command": "python -m claims.studies.seeds",
    }
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    print(f"wrote {len(rows)} rows to {folder / 'orders.csv'}, and its provenance beside it")
    return 0


# ---- what has been trained -----------------------------------------------------------------------

Found = tuple[Mapping[str, str], RunSpec, Mapping[Evaluation, Score]]


def _recorded(folder: Path) -> Iterator[Found]:
    for path in sorted(folder.glob("*.json")):
        try:
            run = read(path)
        except EvidenceError:
            continue  # the run of the claims tells
        scores = zip(run.spec.evaluations, run.result.scores, strict=True)
        yield run.facts, run.spec, dict(scores)


def _stored(folder: Path) -> Iterator[Found]:
    for entry in listed(folder) if folder.is_dir() else []:
        body = sealed.read(folder / entry.key / RESULT) if entry.done else None
        if body is None:
            continue
        facts = json.loads(body)
        try:
            spec, _ = RunSpec.from_json(facts["spec"]), RunResult.from_json(facts["result"])
        except (KeyError, TypeError, ValueError):
            continue  # a run of another version of this project
        kept = json.loads(sealed.read(folder / entry.key / SCORES) or b"[]")
        yield facts, spec, {Evaluation(**e["evaluation"]): Score(**e["score"]) for e in kept}


def _by_run(found: Iterable[Found]) -> Values:
    """The first held-out perplexity of each run; a run that is there with two values is left out,
    as one of them is of another implementation.
    """
    values: Values = {}
    doubtful = set()
    for _, spec, scores in found:
        asked = [e for e in spec.evaluations if e.split == "held out" and e in scores]
        if not asked:
            continue
        run, perplexity = whatever_the_seed(spec), scores[asked[0]].perplexity
        known = values.setdefault(run, {}).setdefault(spec.seed, perplexity)
        if not math.isclose(known, perplexity, rel_tol=1e-6):
            doubtful.add((run, spec.seed))
    for run, seed in doubtful:
        del values[run][seed]
    return values


def _row(order: Order, budget: str, values: Values) -> dict[str, object] | None:
    runs = order.runs[budget].runs if budget in order.runs else {}
    if order.better not in runs or order.worse not in runs:
        return None
    better, worse = (
        values.get(whatever_the_seed(runs[label]), {}) for label in (order.better, order.worse)
    )
    seeds = sorted(set(better) & set(worse))
    if not seeds:
        return None
    return {
        "claim": order.claim, "budget": budget, "better": order.better, "worse": order.worse,
        "seeds": " ".join(map(str, seeds)),
        "of the better": " ".join(f"{better[seed]:.6g}" for seed in seeds),
        "of the worse": " ".join(f"{worse[seed]:.6g}" for seed in seeds),
    }


# ---- what follows --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trust:
    """What the seeds say of a single one; values are normal with unknown mean and spread.

    sd          of the differences by seed
    interval    of the mean difference, 95 %
    seen        seeds with the opposite order
    opposite    the probability that one further seed, the same for both rows, has that order
    apart       the same, where each row has a seed of its own
    needed      the fewest further seeds whose mean has it with a probability of at most RISK; None
                where no number is enough, as the order itself is not known so firmly
    """

    n: int
    mean: float
    sd: float
    interval: tuple[float, float]
    seen: int
    opposite: float
    apart: float
    needed: int | None


def trust(better: Sequence[float], worse: Sequence[float]) -> Trust:
    """Of at least FEWEST seeds, the perplexities of both rows by seed."""
    values = np.array(worse) - np.array(better)
    n, mean, sd = len(values), float(values.mean()), float(values.std(ddof=1))
    half = float(stats.t.isf(0.025, n - 1)) * sd / math.sqrt(n)

    def risk(sd: float, further: int) -> float:
        """Of the mean of so many further seeds: the predictive distribution is Student's t."""
        return float(stats.t.sf(mean / (sd * math.sqrt(1 / further + 1 / n)), n - 1))

    # The two rows add their variances; n - 1 degrees of freedom are the fewest that they can have.
    sd_apart = math.hypot(np.std(better, ddof=1), np.std(worse, ddof=1))
    return Trust(
        n, mean, sd, (mean - half, mean + half),
        seen=int((values < 0).sum()),
        opposite=risk(sd, 1),
        apart=risk(sd_apart, 1),
        needed=next((k for k in range(1, MOST + 1) if risk(sd, k) <= RISK), None),
    )


def shown(rows: Iterable[Mapping[str, str]], budget: str) -> str:
    """In Markdown, the least certain order first; orders of fewer seeds are named below."""
    of_budget = [row for row in rows if row["budget"] == budget]
    known = [
        (row, trust(*both)) for row in of_budget if len((both := values_of(row))[0]) >= FEWEST
    ]
    known.sort(key=lambda each: -each[1].opposite)
    cells = [
        [
            row["better"], row["worse"], str(t.n), f"{t.mean:.2f}", f"{t.sd:.2g}",
            f"{t.interval[0]:.2f} to {t.interval[1]:.2f}", f"{t.seen}", probability(t.opposite),
            probability(t.apart), str(t.needed) if t.needed else "not known",
        ]
        for row, t in known
    ]
    header = ["better", "worse", "n", "mean", "sd", "95 % interval", "opposite"]
    header += ["one seed", "a seed each", "needed"]
    few = [
        f"{row['better']} against {row['worse']}"
        for row in of_budget
        if len(values_of(row)[0]) < FEWEST
    ]
    left = f"\nFewer than {FEWEST} seeds are there of: {'; '.join(few)}.\n"
    return table(header, cells) + (left if few else "")


def values_of(row: Mapping[str, str]) -> tuple[list[float], list[float]]:
    """The perplexities of the better and of the worse row, by seed."""
    better, worse = (
        [float(text) for text in row[f"of the {name}"].split()] for name in ("better", "worse")
    )
    return better, worse


def probability(value: float) -> str:
    """In percent, to two digits; beyond a hundredth of a percent from either end only that."""
    if value < 1e-4:
        return "below 0.01 %"
    if value > 1 - 1e-4:
        return "above 99.99 %"
    return f"{100 * value:.2g} %" if value < 0.99 else f"{100 * value:.2f} %"


if __name__ == "__main__":
    raise SystemExit(main())
