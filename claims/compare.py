"""Implementations side by side: `python -m claims.compare PACKAGE PACKAGE ...`.

Verdicts and known mistakes by the claims that need neither training nor a GPU, and times of a
training step and of attention, all packages in turn in one process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from claims.experiments.rungs import ONE_BLOCK
from claims.harness.implementation import Implementation
from claims.harness.paths import CLAIMS
from claims.harness.report import OF_OTHERS, VERDICTS
from claims.instruments.cost.timing import Timing, measure, ratios, summary
from claims.report.stored import NoResults, read
from claims.training.loop import build, gradients, optimiser_of
from claims.training.run import settle_process
from claims.training.spec import RunSpec, Text

WITHOUT_TRAINING = "not gpu and not trains"
STEP = RunSpec(ONE_BLOCK.model, Text(128), steps=1, batch=16)
QUERIES = (16, 4, 128, 32)  # windows, heads, tokens, width of a head
ROUNDS = 9

Times = Mapping[tuple[str, str], Timing]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.compare", description="Compare implementations side by side."
    )
    parser.add_argument("packages", nargs="+", metavar="PACKAGE", help="importable; two or more")
    packages = list(dict.fromkeys(parser.parse_args(arguments).packages))
    if len(packages) < 2:
        parser.error(f"a comparison takes two packages or more, got {packages[0]}")
    try:
        implementations = {name: Implementation(name) for name in packages}
        outcomes = {name: outcome_of(name) for name in packages}
    except (NoResults, ValueError) as error:
        parser.error(str(error))
    console = Console(highlight=False)
    console.print(side_by_side(outcomes, timed(implementations)))
    console.print(
        f'verdicts: pytest claims -m "{WITHOUT_TRAINING}"; times: milliseconds, median of {ROUNDS} '
        f"rounds, and the ratio to {packages[0]} (quartiles), one thread, torch "
        f"{torch.__version__}, CPU",
        soft_wrap=True,
    )
    return 0


@dataclass(frozen=True)
class Outcome:
    """What the claims say of a package."""

    verdicts: Mapping[str, int]
    mistakes: Sequence[str]


def outcome_of(package: str) -> Outcome:
    """Run the claims in a process of their own. Raises NoResults where they could not be run."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(CLAIMS), "-q", "-m", WITHOUT_TRAINING,
             "--implementation", package, "--claims-json", str(results), "-p", "no:cacheprovider"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not results.exists():
            raise NoResults(f"the claims of {package} did not run: {done.stdout}{done.stderr}")
        stored = read(results)
    return Outcome(
        Counter(str(run["verdict"]) for run in stored.runs),
        [str(each["mistake"]["says"]) for each in stored.looks_like],
    )


def timed(implementations: Mapping[str, Implementation]) -> Times:
    """Seconds by (package, what); what a package does not provide is not timed."""
    settle_process()
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for name, implementation in implementations.items():
        if "LanguageModel" in implementation.provided():
            calls[name, "training step"] = _step(implementation)
        if {"attention", "causal_mask"} <= set(implementation.provided()):
            forward, both = _attention(implementation)
            calls[name, "attention, forward"] = forward
            calls[name, "attention, forward and backward"] = both
    return measure(calls, rounds=ROUNDS) if calls else {}


def _step(implementation: Implementation) -> Callable[[], None]:
    model = build(implementation, STEP)
    optimiser = optimiser_of(model, STEP)
    shape = (STEP.batch, 129)
    tokens = torch.randint(STEP.model.vocabulary, shape, generator=torch.Generator())

    def step() -> None:
        gradients(model, tokens, STEP, "cpu")
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _attention(implementation: Implementation) -> tuple[Callable[[], object], Callable[[], object]]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(QUERIES, generator=generator, requires_grad=True) for _ in range(3))
    mask = implementation.causal_mask(QUERIES[2])

    def forward() -> object:
        with torch.no_grad():
            return implementation.attention(q, k, v, mask)

    def both() -> object:
        out = implementation.attention(q, k, v, mask)
        return torch.autograd.grad(out.sum(), (q, k, v))

    return forward, both


def side_by_side(outcomes: Mapping[str, Outcome], times: Times) -> Table:
    table = Table("", box=None)
    for name in outcomes:
        table.add_column(name, overflow="fold")  # a long name is shown whole
    for verdict in (*VERDICTS, *OF_OTHERS):
        counts = [outcome.verdicts.get(verdict, 0) for outcome in outcomes.values()]
        if any(counts):
            table.add_row(verdict, *map(str, counts))
    if any(outcome.mistakes for outcome in outcomes.values()):
        cells = ("\n".join(outcome.mistakes) or "-" for outcome in outcomes.values())
        table.add_row("looks like", *cells)
    first = next(iter(outcomes))
    for what in dict.fromkeys(what for _, what in times):
        table.add_row(what, *(_time(times, name, first, what) for name in outcomes))
    return table


def _time(times: Times, package: str, first: str, what: str) -> str:
    if (own := times.get((package, what))) is None:
        return "not provided"
    text = f"{1000 * own.median:.2f}"
    if package == first or (first, what) not in times:
        return text
    ratio = summary(ratios(own, times[first, what]))
    low, high = ratio.quartiles
    return f"{text}, {ratio.median:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
