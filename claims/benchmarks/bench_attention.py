"""What a layer of attention takes in time on this machine, as ratios (`--benchmark-enable`).

The setting is the document's (l.167) but for the device: width 512, 8 heads, one sequence, float32.
Explicit attention, fused attention and the four projections alone are timed against each other in
one process. The ratios are printed and are the benchmark's `extra_info` (`--benchmark-json FILE`);
pytest-benchmark's own columns show how long the whole measurement took. No number here is judged: a
claim about time is decided on a GPU (`pytest -m gpu`).
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
from claims.instruments.cost.cost_table import projections
from claims.instruments.cost.timing import (
    Timing,
    crossover,
    exponents,
    measure,
    ratios,
    summary,
)

pytestmark = pytest.mark.benchmark(group="cost")

LENGTHS = (128, 256, 512, 1024, 2048)
LAST_FOUR = LENGTHS[-4:]
# Shorter ones, where fused attention may lose its lead.
SHORT = (8, 32, 128)
ROUNDS = 9

Row = dict[int, Timing]
Show = Callable[..., None]


@torch.no_grad()
def test_doubling_the_length(
    implementation: Implementation, benchmark: Any, once: Any, draws: Draws, show: Show
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
    measured = once(lambda: measure(variants, rounds=ROUNDS))
    rows: dict[str, Row] = {name: {n: measured[name, n] for n in LENGTHS} for name in calls}

    show(
        f"\nmedian (quartiles) of {ROUNDS} rounds, {torch.get_num_threads()} thread, n = {LENGTHS}"
    )
    for name, row in rows.items():
        doubling = [summary(ratios(row[b], row[a])) for a, b in pairwise(LENGTHS)]
        slope = summary(exponents({n: row[n] for n in LAST_FOUR}))
        show(f"{name}, per doubling", doubling)
        show(f"{name}, exponent", [slope])
        benchmark.extra_info[name] = {
            "ms": {n: 1e3 * timing.median for n, timing in row.items()},
            "ratio per doubling": [asdict(s) for s in doubling],
            "exponent, last four rows": asdict(slope),
        }
    against = [summary(ratios(rows["explicit"][n], rows["fused"][n])) for n in LENGTHS]
    show("explicit / fused", against)
    benchmark.extra_info["explicit / fused"] = [asdict(s) for s in against]


@torch.no_grad()
def test_where_fused_attention_takes_the_lead(
    implementation: Implementation, benchmark: Any, once: Any, draws: Draws, show: Show
) -> None:
    """The length from which on fused attention takes less time than explicit, from 8 tokens up."""
    explicit = draws.build(lambda: implementation.MultiHeadAttention(512, 8))
    fused = draws.build(lambda: implementation.MultiHeadAttention(512, 8, fused=True))
    inputs = {n: draws.normal(1, n, 512, salt=f"{n}") for n in SHORT}
    layers = {"explicit": explicit, "fused": fused}
    variants = {(name, n): partial(layers[name], inputs[n]) for name in layers for n in SHORT}
    measured = once(lambda: measure(variants, rounds=ROUNDS))
    rows = {name: {n: measured[name, n] for n in SHORT} for name in layers}
    against = [summary(ratios(rows["explicit"][n], rows["fused"][n])) for n in SHORT]
    leads = crossover(rows["explicit"], rows["fused"])
    show(f"\nn = {SHORT}")
    show("explicit / fused", against)
    show(f"fused takes less time from n = {leads and round(leads)} on")
    benchmark.extra_info["explicit / fused"] = {
        n: asdict(s) for n, s in zip(SHORT, against, strict=True)
    }
    benchmark.extra_info["fused leads from"] = leads


def test_doubling_the_work_of_a_product(
    benchmark: Any, once: Any, draws: Draws, show: Show
) -> None:
    """A matrix product with twice the inner dimension takes about twice as long."""
    a, b = draws.normal(512, 1024, salt="a"), draws.normal(1024, 512, salt="b")
    # Contiguous, so that both products read their operands alike.
    half_a, half_b = a[:, :512].contiguous(), b[:512]
    variants = {"half": lambda: half_a @ half_b, "whole": lambda: a @ b}
    measured = once(lambda: measure(variants, rounds=ROUNDS))
    ratio = summary(ratios(measured["whole"], measured["half"]))
    show("\ntwice the work", [ratio])
    benchmark.extra_info["ratio"] = asdict(ratio)
