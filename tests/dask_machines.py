"""Schedulers, workers and clients in processes of their own, forked from one that has imported all.

As a script it forks: a line of JSON on its input is a process, whose number it prints; an empty
line ends those that there are. They end with it, too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
# Dask looks a hundred times a second at what a worker does, by default.
FRUGAL = {"OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}


class Machines:
    """Starts processes; each is a machine with a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
        self._launcher = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **FRUGAL, "PYTHONPATH": path}, cwd=folder,
        )  # fmt: skip
        self._count = 0

    def close(self) -> None:
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.close()
        self._launcher.wait(60)
        self._launcher.stdout.close()

    def start(self, code: str, **environment: str) -> int:
        """A process that runs `code`, with more in its environment; returns its number."""
        return int(self._ask(json.dumps({"code": code, "env": environment})))

    def end_all(self) -> None:
        """End every process that was started; returns when they are gone."""
        self._ask("")

    def _ask(self, line: str) -> str:
        assert self._launcher.stdin is not None
        assert self._launcher.stdout is not None
        self._launcher.stdin.write(line + "\n")
        self._launcher.stdin.flush()
        return self._launcher.stdout.readline()

    def scheduler(self, allowed_failures: int = 3) -> tuple[str, int]:
        """(its address as --executor has it, its process)."""
        self._count += 1
        told = self.folder / f"scheduler-{self._count}"
        code = f"scheduler({str(told)!r}, {allowed_failures})"
        process = self.start(code)
        until(lambda: told.exists() and told.read_text().endswith("\n"))
        return told.read_text().strip(), process

    def worker(
        self, executor: str, name: str, *, cache: Path | None = None, before: str = "",
        gpus: int = 0, threads: int = 1, **environment: str,
    ) -> int:
        """A worker, by default with a cache of its own; `before` is run before it is one."""
        folder = cache or self.folder / f"cache-of-{name}-{self._count}"
        resources = {"GPU": gpus} if gpus else {}
        code = f"{before}\nworker({executor!r}, {name!r}, {resources}, {threads})"
        return self.start(code, CLAIMS_CACHE=str(folder), **environment)


def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


# ---- in the launcher and what it forks -----------------------------------------------------------


def launch() -> None:
    import logging

    import distributed  # noqa: F401
    import torch

    import transformer
    from claims.training.dask_executor import versions
    from claims.training.loop import train
    from small_runs import SPEC, ids

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    versions()  # of the files as they are now, which somebody may be editing
    train(transformer, SPEC, ids())  # torch imports more of itself for a first step
    started: list[int] = []
    for line in sys.stdin:
        if not line.strip():
            # Nobody has waited for them, so that their numbers are still theirs.
            while started:
                kill(started[-1])
                os.waitpid(started.pop(), 0)
            print("", flush=True)
            continue
        if (process := os.fork()) == 0:
            _end_with_parent()
            _run(json.loads(line))
        started.append(process)
        print(process, flush=True)


def _end_with_parent() -> None:
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _run(order: dict[str, Any]) -> None:
    os.environ.update(order["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    try:
        exec(order["code"], {"scheduler": scheduler, "worker": worker})
    finally:
        os._exit(0)


def scheduler(told: str, allowed_failures: int) -> None:
    import asyncio

    from distributed import Scheduler

    async def serve() -> None:
        options = {"dashboard": False, "allowed_failures": allowed_failures}
        async with Scheduler(host="127.0.0.1", port=0, **options) as served:
            address = served.address.replace("tcp://", "dask://")
            Path(told).write_text(f"{address}\n")
            await served.finished()

    asyncio.run(serve())


def worker(executor: str, name: str, resources: dict[str, float], threads: int) -> None:
    import asyncio

    from distributed import Worker

    async def work() -> None:
        address = executor.replace("dask://", "tcp://")
        options = {"resources": resources, "dashboard": False, "local_directory": f"local-{name}"}
        async with Worker(address, nthreads=threads, name=name, **options) as working:
            await working.finished()

    asyncio.run(work())


if __name__ == "__main__":
    launch()
