"""What a layer of attention takes in time on this machine, as ratios (`--benchmark-enable`).

The setting is the document's (line 167) but for the device: width 512, 8 heads, one sequence,
float32. Explicit and fused attention and the four projections alone, their control, are timed
against each other in one process. pytest-benchmark's own columns show how long the whole
measurement took; what was measured is the benchmark's `extra_info` (`--benchmark-json FILE`) and is
printed. No number here is judged: a claim about time is decided on a GPU (`pytest -m gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from claims.harness.implementation import Implementation
from claims.harness.seeds import Draws
from claims.instruments.cost.timing import (
    Summary,
    Timing,
    crossover,
    exponents,
    measure,
    ratios,
    summary,
)
from claims.test_10_quadratic_cost import projections

pytestmark = pytest.mark.benchmark(group="cost")

LENGTHS = (128, 256, 512, 1024, 2048)
LAST_FOUR = LENGTHS[-4:]
# Below those: where the lead of one kind of attention over the other may change.
SHORT = (8, 32, 128)
ROUNDS = 9

Row = dict[int, Timing]


@pytest.fixture
def draws() -> Draws:
    return Draws(0, "bench_10_quadratic_cost")


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print past pytest's capture."""

    def past_capture(line: str) -> None:
        with capsys.disabled():
            print(line)

    return past_capture


@pytest.fixture(autouse=True)
def _asked_for(benchmark: Any) -> None:
    if benchmark.disabled:
        pytest.skip("a benchmark: run with --benchmark-enable")


def once(benchmark: Any, target: Callable[[], Any]) -> Any:
    """`target`, which repeats what it measures itself."""
    return benchmark.pedantic(target, rounds=1, iterations=1)


def line(name: str, values: list[Summary]) -> str:
    cells = [f"{s.median:6.2f} ({s.quartiles[0]:.2f} to {s.quartiles[1]:.2f})" for s in values]
    return f"{name:<24}" + "".join(f"{cell:>24}" for cell in cells)


@torch.no_grad()
def test_doubling_the_length(
    implementation: Implementation,
    benchmark: Any,
    draws: Draws,
    show: Callable[[str], None],
) -> None:
    """Time per doubling of n, exponents over the last four rows, explicit against fused."""
    explicit = draws.build(lambda: implementation.MultiHeadAttention(512, 8))
    fused = draws.build(lambda: implementation.MultiHeadAttention(512, 8, fused=True))
    calls = {
        "explicit": explicit,
        "fused": fused,
        "projections": partial(projections, explicit),
    }
    inputs = {n: draws.normal(1, n, 512, salt=f"{n}") for n in LENGTHS}
    variants = {(name, n): partial(call, inputs[n]) for name, call in calls.items() for n in inputs}
    measured = once(benchmark, lambda: measure(variants, rounds=ROUNDS))
    rows: dict[str, Row] = {name: {n: measured[name, n] for n in LENGTHS} for name in calls}

    show(
        f"\nmedian (quartiles) of {ROUNDS} rounds, {torch.get_num_threads()} thread, n = {LENGTHS}"
    )
    for name, row in rows.items():
        doubling = [summary(ratios(row[b], row[a])) for a, b in pairwise(LENGTHS)]
        slope = summary(exponents({n: row[n] for n in LAST_FOUR}))
        show(line(f"{name}, per doubling", doubling))
        show(line(f"{name}, exponent", [slope]))
        benchmark.extra_info[name] = {
            "ms": {n: 1e3 * timing.median for n, timing in row.items()},
            "ratio per doubling": [asdict(s) for s in doubling],
            "exponent, last four rows": asdict(slope),
        }
    against = [summary(ratios(rows["explicit"][n], rows["fused"][n])) for n in LENGTHS]
    show(line("explicit / fused", against))
    benchmark.extra_info["explicit / fused"] = [asdict(s) for s in against]


@torch.no_grad()
def test_where_fused_attention_takes_the_lead(
    implementation: Implementation,
    benchmark: Any,
    draws: Draws,
    show: Callable[[str], None],
) -> None:
    """The length from which on fused attention takes less time than explicit, from 8 tokens up."""
    explicit = draws.build(lambda: implementation.MultiHeadAttention(512, 8))
    fused = draws.build(lambda: implementation.MultiHeadAttention(512, 8, fused=True))
    inputs = {n: draws.normal(1, n, 512, salt=f"{n}") for n in SHORT}
    layers = {"explicit": explicit, "fused": fused}
    variants = {(name, n): partial(layers[name], inputs[n]) for name in layers for n in SHORT}
    measured = once(benchmark, lambda: measure(variants, rounds=ROUNDS))
    rows = {name: {n: measured[name, n] for n in SHORT} for name in layers}
    against = [summary(ratios(rows["explicit"][n], rows["fused"][n])) for n in SHORT]
    leads = crossover(rows["explicit"], rows["fused"])
    show(f"\nn = {SHORT}")
    show(line("explicit / fused", against))
    show(f"fused takes less time from n = {leads and round(leads)} on")
    benchmark.extra_info["explicit / fused"] = {
        n: asdict(s) for n, s in zip(SHORT, against, strict=True)
    }
    benchmark.extra_info["fused leads from"] = leads


def test_doubling_the_work_of_a_product(
    benchmark: Any, draws: Draws, show: Callable[[str], None]
) -> None:
    """Twice the inner dimension of a matrix product, to see that work is what is timed: about 2."""
    a, b = draws.normal(512, 1024, salt="a"), draws.normal(1024, 512, salt="b")
    # Contiguous halves, so that both products read their operands alike.
    half_a, half_b = a[:, :512].contiguous(), b[:512]
    variants = {"half": lambda: half_a @ half_b, "whole": lambda: a @ b}
    measured = once(benchmark, lambda: measure(variants, rounds=ROUNDS))
    ratio = summary(ratios(measured["whole"], measured["half"]))
    show("\n" + line("twice the work", [ratio]))
    benchmark.extra_info["ratio"] = asdict(ratio)
