"""What a sweep of runs will cost here, from timed steps; nothing is trained."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

import torch

from claims.harness.implementation import Implementation
from claims.training.loop import build, gradients, optimiser_of
from claims.training.pool import merged
from claims.training.precision import fastest
from claims.training.run import settle_process
from claims.training.spec import FASTEST, Evaluation, ModelSettings, RunSpec, Schemas, Text

# Tokens of the chapter's corpus in each split (l.13); a stand-in differs by a ten-thousandth.
TOKENS = {"training": 413_784, "held out": 45_976}
SENTENCE = 18  # tokens of a Winograd sentence
WARM, TIMED = 1, 3  # steps, at least
LONG_ENOUGH = 2.0  # seconds for each kind of step: other work on the machine comes in bursts


# ---- operations ----------------------------------------------------------------------------------


def operations(spec: RunSpec) -> float:
    """Multiplications and additions in the matrix products of a run, with its evaluations.

    The backward pass has two products for each of the forward pass.
    """
    return spec.steps * operations_of_a_step(spec) + sum(
        2.0 * tokens_of(e) * _multiplications(spec.model, e.length) for e in spec.evaluations
    )


def operations_of_a_step(spec: RunSpec) -> float:
    length = length_of(spec)
    return 2.0 * 3.0 * spec.batch * length * _multiplications(spec.model, length)


def tokens_of(evaluation: Evaluation) -> float:
    """The tokens that a model reads in an evaluation; windows that overlap read some twice."""
    stride = evaluation.stride or evaluation.length
    return TOKENS[evaluation.split] * evaluation.length / stride


def length_of(spec: RunSpec) -> int:
    return SENTENCE - 1 if isinstance(spec.data, Schemas) else spec.data.length


def _multiplications(model: ModelSettings, length: int) -> float:
    """Of one token in a forward pass: the projections, the products with all keys, the network,
    the output head.
    """
    d = model.d_model
    if model.mixer == "heads":
        inner = model.n_heads * model.d_head if model.d_head else d
        mixer = 4 * d * inner + 2 * length * inner
    elif model.mixer == "head":
        inner = model.d_head or d
        mixer = 3 * d * inner + 2 * length * inner
    else:
        mixer = length * d if model.mixer == "average" else 0
    network = 8 * d * d if model.feed_forward else 0
    return model.n_blocks * (mixer + network) + d * model.vocabulary


# ---- the rate of this machine --------------------------------------------------------------------


def seconds_of(specs: Iterable[RunSpec], package: str, workers: int) -> dict[str, float]:
    """About how long each run takes in one process, by its digest, while `workers` are at work.

    A step of each kind is timed on random tokens, with as many processes beside it as would train.
    What is left out: the start of the processes, snapshots, and checkpoints. An evaluation does as
    many operations a second as a step does.
    """
    kinds: dict[RunSpec, list[RunSpec]] = {}
    for spec in specs:
        kinds.setdefault(_kind(spec), []).append(spec)
    with ProcessPoolExecutor(
        workers, mp_context=get_context("spawn"), initializer=settle_process
    ) as pool:
        timed = pool.map(_seconds_of_a_step, kinds, [package] * len(kinds))
        found: dict[str, float] = {}
        for (kind, runs), seconds in zip(kinds.items(), timed, strict=True):
            rate = operations_of_a_step(kind) / seconds
            found |= {run.digest(): operations(run) / rate for run in runs}
    return found


def _kind(spec: RunSpec) -> RunSpec:
    """Runs whose steps take equally long have this in common."""
    return RunSpec(
        spec.model, Text(length_of(spec)), steps=1, batch=spec.batch, causal=spec.causal,
        fixed=spec.fixed, precision=spec.precision,
    )


def _seconds_of_a_step(kind: RunSpec, package: str) -> float:
    implementation = Implementation(package)
    spec = replace(kind, precision=fastest()) if kind.precision == FASTEST else kind
    model = build(implementation, spec)
    optimiser = optimiser_of(model, spec)
    shape = spec.batch, length_of(spec) + 1
    tokens = torch.randint(spec.model.vocabulary, shape, generator=torch.Generator())

    def step() -> None:
        gradients(model, tokens, spec, "cpu")
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    for _ in range(WARM):
        step()
    began, steps = time.perf_counter(), 0
    # The mean and not the median: a sweep also waits for other work.
    while steps < TIMED or time.perf_counter() - began < LONG_ENOUGH:
        step()
        steps += 1
    return (time.perf_counter() - began) / steps


# ---- the plan ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """An experiment's runs that no row above it has; seconds in one process."""

    name: str
    runs: int
    operations: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    rows: Sequence[Row]
    seconds: float  # on all workers together, from the start to the end of the last run

    @property
    def total(self) -> Row:
        return Row(
            "all",
            sum(row.runs for row in self.rows),
            sum(row.operations for row in self.rows),
            sum(row.seconds for row in self.rows),
        )


def plan(sweep: Mapping[str, Sequence[RunSpec]], package: str, workers: int, here: int) -> Plan:
    """What the runs of each experiment cost, each run counted once.

    `here` processes are timed at once, at most as many as there are cores; the other workers are
    taken to be like them.
    """
    every = merged(spec for specs in sweep.values() for spec in specs)
    seconds = seconds_of(every, package, here)
    by_digest = {spec.digest(): spec for spec in every}
    rows, seen = [], set[str]()
    for name, specs in sweep.items():
        new = {spec.digest() for spec in specs} - seen
        seen |= new
        total = sum(operations(by_digest[digest]) for digest in new)
        if new:
            rows.append(Row(name, len(new), total, sum(seconds[digest] for digest in new)))
    return Plan(rows, makespan([seconds[spec.digest()] for spec in every], workers))


def makespan(seconds: Iterable[float], workers: int) -> float:
    """When the last ends, each started in turn by the first worker that is free."""
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)
