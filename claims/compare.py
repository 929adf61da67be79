"""Implementations side by side: `python -m claims.compare PACKAGE PACKAGE ...`.

Verdicts and known mistakes by the claims that need neither training nor a GPU, and times of a
training step and of attention, all packages in turn in one process. With `-o FILE.json` it writes
what it found, for `python -m claims.report`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from claims.experiments.rungs import ONE_BLOCK
from claims.harness import machine, paths
from claims.harness.files import demand_writable, write_whole
from claims.harness.implementation import Implementation
from claims.harness.ledger import load_ledger
from claims.instruments.cost.timing import Timing, measure
from claims.report.merging import merge
from claims.report.side_by_side import SideBySide, side_by_side
from claims.report.stored import COMPARISON_VERSION, NoResults, of_comparison
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
    parser.add_argument("-o", "--output", metavar="FILE.json", help="for python -m claims.report")
    options = parser.parse_args(arguments)
    packages = list(dict.fromkeys(options.packages))
    if len(packages) < 2:
        parser.error(f"a comparison takes two packages or more, got {packages[0]}")
    try:
        if options.output is not None:
            demand_writable("--output", options.output)
        implementations = {name: Implementation(name) for name in packages}
        results = [results_of(name) for name in packages]
    except (NoResults, ValueError) as error:
        # The sentences are those of pytest's option, which this command does not have.
        parser.error(str(error).replace("--implementation ", ""))
    data = as_data(results, timed(implementations))
    merged = merge(of_comparison(data, "this comparison"), load_ledger(paths.LEDGER))
    console = Console(highlight=False)
    found = side_by_side(merged)
    console.print(table(found))
    console.print(found.note, soft_wrap=True)
    console.print(f'The claims: pytest claims -m "{WITHOUT_TRAINING}".', soft_wrap=True)
    if options.output is not None:
        write_whole(Path(options.output), json.dumps(data) + "\n")
    return 0


def results_of(package: str) -> dict[str, Any]:
    """What the claims say of a package, as `--claims-json` writes it.

    They run in a process of their own. Raises NoResults where they could not be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", str(paths.CLAIMS), "-q", "-m", WITHOUT_TRAINING,
             "--implementation", package, "--claims-json", str(results), "-p", "no:cacheprovider"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not results.exists():
            raise NoResults(f"the claims of {package} did not run: {done.stdout}{done.stderr}")
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return found


def as_data(results: Sequence[Mapping[str, Any]], times: Times) -> dict[str, Any]:
    """What `-o` writes; its schema is fixtures/comparison.schema.json."""
    packages = " ".join(str(each["implementation"]) for each in results)
    command = f"python -m claims.compare {packages}"
    return {
        "comparison": COMPARISON_VERSION,
        "machine": machine.description(),
        # Of the results, the file that was written to is gone.
        "results": [{**each, "command": command} for each in results],
        "times": [
            {"implementation": package, "what": what, "seconds": [*timing.seconds],
             "calls": timing.calls}
            for (package, what), timing in times.items()
        ],
    }  # fmt: skip


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


def table(found: SideBySide) -> Table:
    """With a column for each implementation, which a terminal has more room for."""
    names, *rows = zip(found.header, *found.rows, strict=True)
    shown = Table("", box=None)
    for name in names[1:]:
        shown.add_column(name, overflow="fold")  # a long name is shown whole
    for row in rows:
        shown.add_row(*row)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
