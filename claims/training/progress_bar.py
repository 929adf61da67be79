"""The progress of training: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from claims.training.pool import Report, cost, name_of
from claims.training.spec import RunSpec

# Some CI systems end a job that prints nothing for ten minutes.
LINE_EVERY = 30.0  # seconds


@contextmanager
def shown(specs: Sequence[RunSpec], stored: int, resumed: list[str]) -> Iterator[Report]:
    """`with shown(runs that are trained, how many were stored, ...) as report:`."""
    console = Console(file=sys.stderr, highlight=False)
    for sentence in resumed:
        console.print(sentence)
    if console.is_terminal and not os.environ.get("CI"):
        with _bars(console, len(specs), stored) as report:
            yield report
        return
    began = time.perf_counter()
    console.print(f"training: {len(specs)} runs to train, {stored} in the store")
    yield _lines(console, specs)
    seconds = time.perf_counter() - began
    console.print(f"training: {len(specs)} runs done in {seconds:.0f} s")


def _lines(console: Console, specs: Sequence[RunSpec]) -> Report:
    """A line every LINE_EVERY seconds: runs done, and the time left by the work that is done."""
    total = sum(map(cost, specs))
    share: dict[RunSpec, float] = {}  # of each run that has begun
    ended: set[RunSpec] = set()
    done = 0.0  # the share of all work: summed up here, and not anew for each line
    last = time.perf_counter()
    began: float | None = None  # when the processes had started, and the first step was done

    def report(spec: RunSpec, step: int, loss: float | None) -> None:
        nonlocal began, done, last
        if loss is None:
            ended.add(spec)
        before = share.get(spec, 0.0)
        share[spec] = 1.0 if spec in ended else step / spec.steps
        done += cost(spec) * (share[spec] - before) / total
        now = time.perf_counter()
        began = now if began is None else began
        if now - last < LINE_EVERY or len(ended) == len(specs):
            return
        last = now
        left = (now - began) * (1 - done) / done if done else 0.0
        console.print(
            f"training: {len(ended)} of {len(specs)} runs done"
            + (f", about {left / 60:.0f} min left" if done else "")
        )

    return report


@contextmanager
def _bars(console: Console, runs: int, stored: int) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = progress.add_task(f"runs ({stored} in the store)", total=runs, loss="")
        tasks: dict[RunSpec, TaskID] = {}
        ended: set[RunSpec] = set()

        def report(spec: RunSpec, step: int, loss: float | None) -> None:
            if loss is None:
                ended.add(spec)
                if spec in tasks:
                    progress.remove_task(tasks.pop(spec))
                progress.update(total, completed=len(ended))
            elif spec not in ended:  # messages may arrive after the end
                if spec not in tasks:
                    tasks[spec] = progress.add_task(name_of(spec), total=spec.steps, loss="")
                progress.update(tasks[spec], completed=step, loss=f"loss {loss:.3f}")

        yield report
