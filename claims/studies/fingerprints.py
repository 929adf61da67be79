"""Which claims each known mistake breaks.

    python -m claims.studies.fingerprints fixtures/implementations

makes every mistake of FOLDER/mistakes.yaml in a copy of `transformer/`, runs the claims that need
neither training nor a GPU against it, and writes into FOLDER

fingerprints.csv    a row for each mistake and claim that it breaks
provenance.json     with what it was measured

A mistake that no claim notices is named, and the command then ends with status 1.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase
from rich.progress import track

from claims.harness.diagnosis import Mistake, mistakes
from claims.harness.files import CACHE_VARIABLE, cache_dir, write_whole
from claims.instruments.text.corpus import CorpusError, find_corpus
from claims.plugins.session import CORPUS_VARIABLE
from claims.training.pool import cores

CHOICE = "not gpu and not trains"
KEPT = ("made", "base_seed", "machine", "corpus")
CORPUS = "corpus.txt"
ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.fingerprints")
    parser.add_argument("folder", type=Path, help="has mistakes.yaml; where to write")
    folder = parser.parse_args(arguments).folder
    if not (folder / "mistakes.yaml").is_file():
        parser.error(f"{folder} has no mistakes.yaml; give fixtures/implementations")
    given = os.environ.get(CORPUS_VARIABLE)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(cores()) as pool:
        work = Path(name)
        try:
            corpus = find_corpus(Path(given) if given else None, cache_dir())
            found = mistakes(folder)
            copies = [copy(mistake, work) for mistake in found]
        except (ValueError, CorpusError) as error:
            parser.error(str(error))
        (work / CORPUS).write_text(corpus.text, encoding="utf-8")
        everything = pool.map(partial(claims_on, folder=work), copies)
        results = list(track(everything, "mistakes", total=len(found)))
    broken = [(m.name, c) for m, data in zip(found, results, strict=True) for c in failed(data)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([("mistake", "claim"), *broken])
    write_whole(folder / "fingerprints.csv", text.getvalue())
    facts = {"command": f'pytest claims -m "{CHOICE}" --implementation <copy with the mistake>'}
    facts |= {key: results[0][key] for key in KEPT}
    # The path of the file says nothing about what was measured.
    facts["corpus"] = facts["corpus"].partition(", from ")[0]
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    unnoticed = [mistake.name for mistake in found if mistake.name not in dict(broken)]
    for name in unnoticed:
        print(f"no claim notices {name}", file=sys.stderr)
    return 1 if unnoticed else 0


def copy(mistake: Mistake, folder: Path) -> str:
    """The name of a package in `folder`: `transformer` with the mistake.

    Raises ValueError when the line to change is not there.
    """
    name = "with_" + mistake.name.replace("-", "_")
    shutil.copytree(
        ROOT / "transformer", folder / name, ignore=shutil.ignore_patterns("__pycache__")
    )
    mistake.make(folder / name)
    return name


def claims_on(package: str, folder: Path, tests: Sequence[str] = ("claims",)) -> dict[str, Any]:
    """What `--claims-json` says of the claims on a package in `folder`, where the corpus is too."""
    target = folder / f"{package}.json"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    here = {
        "PYTHONPATH": str(folder), CORPUS_VARIABLE: str(folder / CORPUS),
        # A cache of its own: a mistaken tokenizer makes other tokens.
        CACHE_VARIABLE: str(folder / "cache"),
    }
    options = ["-m", CHOICE, "-q", "-p", "no:cacheprovider", "--implementation", package]
    options += ["-p", "claims.studies.fingerprints"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *tests, *options, "--claims-json", str(target)],
        cwd=ROOT, env=inherited | here, capture_output=True, text=True,
    )
    if not target.exists():
        raise RuntimeError(f"{package}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    data: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return data


@pytest.hookimpl(trylast=True)  # after the harness has set up Hypothesis
def pytest_configure() -> None:
    """As a plugin of those runs: one failing example is enough, Hypothesis need not simplify it."""
    phases = [phase for phase in hypothesis.settings().phases if phase != Phase.shrink]
    hypothesis.settings.register_profile("unshrunk", hypothesis.settings(phases=phases))
    hypothesis.settings.load_profile("unshrunk")


def failed(data: dict[str, Any]) -> list[str]:
    """The claims that turned out otherwise than the ledger says, in the ledger's order."""
    return [claim for claim, verdict in data["verdicts"].items() if verdict == "failed"]


if __name__ == "__main__":
    raise SystemExit(main())
