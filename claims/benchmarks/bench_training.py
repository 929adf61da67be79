"""What a training step takes in time on this machine, as ratios (`--benchmark-enable`).

The step is that of the ladder's block: width 128, 64 windows of 128 tokens, 1,024 logits each, on
one thread, as in the runs. It is timed beside a plain loop and beside matrix products alone, in one
process, and the ratios are the result. Plain means: the same model in float32, F.cross_entropy and
autograd from the logits on, AdamW with neither `fused` nor `foreach`, and the C library's default
handling of freed memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from claims.experiments.division import DIVISION_RUNS
from claims.experiments.rungs import ONE_BLOCK
from claims.harness.implementation import Implementation
from claims.harness.seeds import Draws
from claims.instruments.cost.timing import Timing, exponents, measure, ratios, summary
from claims.training.batches import batches
from claims.training.loop import build, gradients, optimiser_of, train
from claims.training.run import keep_freed_memory
from claims.training.spec import PRECISIONS, RunSpec, Text

pytestmark = pytest.mark.benchmark(group="training")

ROUNDS = 5
Show = Callable[..., None]
STEP = RunSpec(ONE_BLOCK.model, Text(128), steps=1, batch=64)
# Small ones, so that nine of them can be timed against each other.
SMALL = replace(STEP, batch=16, precision="bfloat16")
# The side of the square product that shows the machine's own rate: its operands stay in the cache.
SIDE = 1024


def window(draws: Draws, spec: RunSpec) -> Tensor:
    """(batch, length + 1): random tokens, as long as those of the run."""
    length = length_of(spec)
    return draws.integers(0, spec.model.vocabulary, spec.batch, length + 1, salt=f"{length}")


def length_of(spec: RunSpec) -> int:
    return spec.data.length if isinstance(spec.data, Text) else 0


def our_step(implementation: Implementation, spec: RunSpec, tokens: Tensor) -> Callable[[], None]:
    """One step as `train` takes it."""
    return step_of(build(implementation, spec), spec, tokens)


def step_of(model: Any, spec: RunSpec, tokens: Tensor) -> Callable[[], None]:
    optimiser = optimiser_of(model, spec)

    def step() -> None:
        gradients(model, tokens, spec, "cpu")
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def trained_step(implementation: Implementation, spec: RunSpec, ids: Tensor) -> Callable[[], None]:
    """One step as a run on the text `ids` (N,) takes it after its last."""
    model = build(implementation, spec)
    model.load_state_dict(train(implementation, spec, ids)[1])
    return step_of(model, spec, batches(spec, ids)(spec.steps))


def in_turn(steps: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """One call of each."""

    def all_of_them() -> None:
        for step in steps:
            step()

    return all_of_them


def plain_step(implementation: Implementation, spec: RunSpec, tokens: Tensor) -> Callable[[], None]:
    """One step as a short script takes it."""
    model = build(implementation, spec)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False, foreach=False)

    def step() -> None:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def operations(spec: RunSpec) -> float:
    """Multiplications and additions in the matrix products of one step, forward and backward.

    Per token d_model^2 for each of W_q, W_k, W_v and W_o and eight times for the network, the
    output head, and two products of attention with all keys. The backward pass has two products
    for each of the forward pass, an addition goes with each multiplication.
    """
    m, length = spec.model, length_of(spec)
    of_block = 12 * m.d_model**2 + 2 * length * m.d_model
    multiplications = m.n_blocks * of_block + m.d_model * m.vocabulary
    return 2.0 * 3.0 * spec.batch * length * multiplications


def square_products(draws: Draws) -> dict[str, Callable[[], object]]:
    """A square matrix product in each precision."""
    a, b = (draws.normal(SIDE, SIDE, salt=salt) for salt in "ab")
    low = a.bfloat16(), b.bfloat16()
    return {"float32": lambda: a @ b, "bfloat16": lambda: low[0] @ low[1]}


def test_a_step_beside_a_plain_one(
    implementation: Implementation, benchmark: Any, once: Any, draws: Draws, show: Show
) -> None:
    """Tokens per second, the fraction of the floor, and the ratio to the plain loop.

    Twice: with the memory as it comes, and with freed memory kept, as processes that train have it.
    The floor is the step's matrix products at the rate of a square one in the same precision, timed
    in the same rounds.
    """
    tokens = window(draws, STEP)
    steps = {"plain": plain_step(implementation, STEP, tokens)}
    for precision in PRECISIONS:
        steps[precision] = our_step(implementation, replace(STEP, precision=precision), tokens)
    alone = square_products(draws)
    variants: dict[tuple[str, str], Callable[[], object]] = {}
    variants |= {("step", name): step for name, step in steps.items()}
    variants |= {("product", name): product for name, product in alone.items()}

    def both() -> tuple[dict[tuple[str, str], Timing], dict[tuple[str, str], Timing]]:
        as_it_comes = measure(variants, rounds=ROUNDS)
        keep_freed_memory()
        return as_it_comes, measure(variants, rounds=ROUNDS)

    as_it_comes, kept = once(both)
    per_step, share = operations(STEP), operations(STEP) / (2.0 * SIDE**3)
    show(
        f"\n{per_step / 1e9:.1f} GFLOP in products, {tokens[:, 1:].numel()} tokens; "
        f"median (quartiles) of {ROUNDS} rounds, {torch.get_num_threads()} thread"
    )
    for memory, measured in (("memory as it comes", as_it_comes), ("memory kept", kept)):
        for name in steps:
            timing = measured["step", name]
            product = measured["product", "float32" if name == "plain" else name]
            rate = summary(tuple(tokens[:, 1:].numel() / s for s in timing.seconds))
            floor = summary(tuple(share * ratio for ratio in ratios(product, timing)))
            against = summary(ratios(timing, measured["step", "plain"]))
            show(f"{memory}, {name}: {1e3 * timing.median:.0f} ms")
            show("  tokens per second", [rate])
            show("  fraction of the floor", [floor])
            show("  time / plain", [against])
            benchmark.extra_info[f"{name}, {memory}"] = {
                "ms": 1e3 * timing.median,
                "tokens per second": asdict(rate),
                "fraction of the floor": asdict(floor),
                "time / plain": asdict(against),
            }
    gflops = {name: 2e-9 * SIDE**3 / kept["product", name].median for name in alone}
    show(f"products alone: {', '.join(f'{v:.0f} GFLOP/s {n}' for n, v in gflops.items())}")
    plain = as_it_comes["step", "plain"].median
    whole = {name: kept["step", name].median / plain for name in PRECISIONS}
    text = ", ".join(f"{ratio:.2f} {name}" for name, ratio in whole.items())
    show(f"ours with memory kept / plain with memory as it comes, medians: {text}")
    benchmark.extra_info["GFLOP/s of products alone"] = gflops
    benchmark.extra_info["memory kept / plain, memory as it comes"] = whole


def test_a_step_of_a_saturated_head(
    implementation: Implementation, benchmark: Any, once: Any, tokens: Tensor, show: Show
) -> None:
    """What it saves to take numbers below float32's normal range for zero, as training does.

    The division's head of width 256 at the small budget, unscaled against scaled, after training:
    with such numbers kept, and flushed.
    """
    variants = {
        name: trained_step(implementation, DIVISION_RUNS["ci"].runs[f"256, {name}"], tokens)
        for name in ("unscaled", "scaled")
    }

    def both() -> dict[str, dict[str, Timing]]:
        kept = measure(variants, rounds=ROUNDS)
        torch.set_flush_denormal(True)
        try:
            return {"kept": kept, "flushed": measure(variants, rounds=ROUNDS)}
        finally:
            torch.set_flush_denormal(False)

    measured = once(both)
    show(f"\nunscaled / scaled step, median (quartiles) of {ROUNDS} rounds, float32")
    for numbers, timings in measured.items():
        against = summary(ratios(timings["unscaled"], timings["scaled"]))
        show(f"numbers below the normal range {numbers}", [against])
        benchmark.extra_info[f"unscaled / scaled, {numbers}"] = asdict(against)


def test_how_a_step_grows(
    implementation: Implementation, benchmark: Any, once: Any, draws: Draws, show: Show
) -> None:
    """The power of the size that time grows with: width, context, batch, steps, seeds.

    In bfloat16. Seeds are models of their own, one step of each after the other on one thread: what
    several cores add to that is theirs.
    """
    sizes: dict[str, dict[int, RunSpec]] = {
        "width": {n: replace(SMALL, model=replace(SMALL.model, d_model=n)) for n in (64, 128, 256)},
        "context": {
            n: replace(SMALL, model=replace(SMALL.model, context=n), data=Text(n))
            for n in (64, 128, 256)
        },
        "batch": {n: replace(SMALL, batch=n) for n in (8, 16, 32)},
    }
    variants = {
        (name, n): our_step(implementation, spec, window(draws, spec))
        for name, specs in sizes.items()
        for n, spec in specs.items()
    }
    tokens = window(draws, SMALL)
    models = [our_step(implementation, replace(SMALL, seed=n), tokens) for n in range(4)]
    for n in (1, 2, 4):
        variants["steps", n] = in_turn([models[0]] * n)
        variants["seeds", n] = in_turn(models[:n])
    measured = once(partial(measure, variants, rounds=ROUNDS))
    show(f"\nmedian (quartiles) of {ROUNDS} rounds, bfloat16, from 16 windows of 128 at width 128")
    for name in dict.fromkeys(name for name, _ in variants):
        row = {n: timing for (of, n), timing in measured.items() if of == name}
        slope = summary(exponents(row))
        show(f"{name} {tuple(row)}", [slope])
        benchmark.extra_info[name] = {
            "ms": {n: 1e3 * timing.median for n, timing in row.items()},
            "exponent": asdict(slope),
        }
