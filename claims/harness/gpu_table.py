"""`--gpu-table FILE.csv`: what the GPU claims measured, as a table to carry back and commit.

A GPU is often available for minutes only, on a machine that is given back. The table has one row
per comparison; a file beside it holds the facts that the values depend on.
"""

from __future__ import annotations

import csv
import io
import json
import platform
from pathlib import Path
from typing import Any

import pytest
import torch

from claims.harness import machine
from claims.harness.files import write_whole
from claims.harness.options import command
from claims.harness.provenance import commit, provenance_path, today
from claims.harness.report import Outcome, Report

COLUMNS = ("claim", "verdict", "ok", "measured", "expected", "allowed", "unit", "facts", "seconds")


class GpuTable:
    """Writes the table when the session ends; lives where the report does."""

    def __init__(self, path: Path, config: pytest.Config, results: Report, source: str) -> None:
        """`source` is the digest of the implementation, for where no commit is known."""
        self._path = path.absolute()
        self._results = results
        # Read now: after a claim has crashed the GPU, it cannot be asked any more.
        self._facts = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            **machine.gpu(),
            "implementation": config.getoption("implementation"),
            "source_sha256": source,
            "base_seed": config.getoption("base_seed"),
            "commit": commit(),
            "date": today(),
            "command": command(config),
        }

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        outcomes = self._results.gpu_outcomes()
        if not outcomes:
            return
        run, wanted = self._results.gpu_claims()
        facts = self._facts | {
            "gpu_claims_run": f"{run} of {wanted}",
            "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        }
        # The facts first: a table must never exist without them.
        write_whole(provenance_path(self._path), json.dumps(facts, indent=2) + "\n")
        write_whole(self._path, as_csv(outcomes))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._results.gpu_outcomes():
            names = f"{self._path} and {provenance_path(self._path).name}"
            terminalreporter.write_line(f"GPU table: {names} are written; commit both.")
        else:
            terminalreporter.write_line("GPU table: not written, no GPU claim was selected.")


def as_csv(outcomes: list[Outcome]) -> str:
    """A row for each comparison; a claim that was not run, or broke before one, has a row too."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for outcome in outcomes:
        nothing = {"facts": {"reason": outcome.reason} if outcome.reason else {}}
        for record in outcome.records or [nothing]:
            whole = {"claim": outcome.claim, "verdict": outcome.verdict}
            values = {name: record[name] for name in COLUMNS if name in record}
            row = whole | values | {"seconds": f"{outcome.seconds:.1f}"}
            table.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def _cell(value: Any) -> str:
    """Text as it is, anything else as JSON; empty where there is nothing to say."""
    if value is None or value == {}:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
