"""Add to the record what the run store holds at the document's budget.

    python -m claims.studies.record fixtures/evidence

Trains nothing; `pytest claims --budget document --device cpu` does. What the folder has is never
overwritten: to replace a run, remove its file first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from claims.experiments.registry import runs_at
from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation
from claims.training.pool import Place
from claims.training.travel import export


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.record", description=__doc__)
    parser.add_argument("folder", type=Path, help="an existing folder, e.g. fixtures/evidence")
    folder: Path = parser.parse_args(arguments).folder
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")
    place = Place(cache_dir() / "runs", "transformer")
    merged = export(place.store(), Implementation(place.package), folder, runs_at("document"))
    print(f"{merged.new} runs added to {folder}, {merged.known} were there")
    for conflict in merged.conflicts:
        print(f"conflict: {conflict}")
    return 1 if merged.conflicts else 0


if __name__ == "__main__":
    raise SystemExit(main())
