"""Where, when and from what measured values were made."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from claims.harness import paths


def provenance(seeds: Sequence[int], command: str) -> dict[str, Any]:
    """The facts that a table of measured values depends on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": "cpu",
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "seeds": list(seeds),
        "commit": commit(),
        "date": today(),
        "command": command,
    }


def without_files(command: str) -> str:
    """A command of pytest without the names of the files that it wrote."""
    return re.sub(r"(--claims-(?:json|report)[ =])\S+", r"\1FILE", command)


def without_origin(corpus: str) -> str:
    """Which text it was, as results files say it, without the place on their machine."""
    return corpus.partition(", from ")[0]


def provenance_path(table: Path) -> Path:
    """The file beside a table that holds its provenance."""
    return table.with_suffix(".provenance.json")


def today() -> str:
    """The date in UTC, as 2026-01-31."""
    return datetime.now(UTC).date().isoformat()


def commit() -> str:
    """The commit that is checked out, marked "-dirty" when the tree differs from it."""
    command = ["git", "-C", str(paths.ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        print("provenance: no git commit to record", file=sys.stderr)
        return "unknown"
