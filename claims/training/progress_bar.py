"""The progress of training: bars on a terminal, a line at the end elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from claims.training.pool import Report, name_of
from claims.training.spec import RunSpec


@contextmanager
def shown(runs: int, stored: int, resumed: list[str]) -> Iterator[Report]:
    """`with shown(...) as report:` around the runs."""
    console = Console(file=sys.stderr)
    began = time.perf_counter()
    for sentence in resumed:
        console.print(sentence, highlight=False)
    if not console.is_terminal or os.environ.get("CI"):
        yield lambda spec, step, loss: None
        seconds = time.perf_counter() - began
        console.print(
            f"training: {runs} runs done in {seconds:.0f} s, {stored} were in the store",
            highlight=False,
        )
        return
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
