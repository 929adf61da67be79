"""How long tests and trainings take, for `--shard`: `python -m claims.studies.durations RESULTS`.

RESULTS is a file of `--claims-json`. The seconds of trainings are those of the run store.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from claims.experiments.registry import EXPERIMENTS
from claims.harness.files import cache_dir, write_whole
from claims.plugins.shards import DURATIONS, LEAST
from claims.training.experiment import whatever_the_seed
from claims.training.spec import RunSpec
from claims.training.store import listed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.studies.durations", description="Store durations for --shard."
    )
    parser.add_argument("results", type=Path, help="a file that --claims-json has written")
    path: Path = parser.parse_args(arguments).results
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        seconds = {run["test"]: round(run["seconds"], 1) for run in results["runs"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{path} is no file of --claims-json: {error}")
    folder = cache_dir() / "runs"
    trained = _trained(folder) if folder.is_dir() else {}
    if not trained:
        parser.error(f"the run store {folder} holds no finished run to take the seconds from")
    # The least of each run: the others waited for other work on the machine.
    stored = {
        "machine": results["machine"],
        "made": results["made"],
        "runs": {run: round(min(taken), 1) for run, taken in sorted(trained.items())},
        "tests": {test: taken for test, taken in sorted(seconds.items()) if taken >= LEAST},
    }
    write_whole(DURATIONS, json.dumps(stored, indent=1) + "\n")
    print(f"wrote the seconds of {len(seconds)} tests and {len(trained)} runs to {DURATIONS.name}")
    return 0


def _trained(folder: Path) -> dict[str, list[float]]:
    """The seconds of every finished run of the small budget, by `whatever_the_seed`."""
    small = {
        whatever_the_seed(run)
        for budgets in EXPERIMENTS.values()
        if "ci" in budgets
        for run in budgets["ci"].runs.values()
    }
    found: dict[str, list[float]] = {}
    for entry in listed(folder):
        if entry.done and entry.spec is not None:
            try:
                run = whatever_the_seed(RunSpec.from_json(entry.spec))
            except (KeyError, TypeError, ValueError):
                continue  # a run of another version of this project
            if run in small:
                found.setdefault(run, []).append(entry.seconds)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
