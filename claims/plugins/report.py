"""`--claims-report FILE.html`: what became of the claims, as one page, when the run ends."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from claims.harness.files import demand_writable, write_whole
from claims.harness.report import Report
from claims.harness.stash import LEDGER

NEEDED = ("jinja2", "matplotlib")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("claims").addoption(
        "--claims-report",
        metavar="FILE.html",
        help="write what held and what did not, with pictures, to FILE.html",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("claims_report")
    if target is None:
        return
    try:
        if Path(target).suffix != ".html":
            raise ValueError(f"--claims-report {target}: give a file that ends in .html")
        demand_writable("--claims-report", target)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise pytest.UsageError(
            f"--claims-report needs {' and '.join(missing)}: pip install -e \".[claims]\""
        )
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ReportFile(Path(target).absolute(), config), "claims-page")


class ReportFile:
    """Writes the page when the session ends; lives where the harness's report does."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path, self._config = path, config

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """After the harness has written its JSON file, whatever becomes of the page."""
        # Imported here: a run without a report does not wait for Matplotlib.
        from claims.report.__main__ import links_from
        from claims.report.merging import merge
        from claims.report.page import html
        from claims.report.pictures import all_pictures
        from claims.report.stored import of_data

        results = self._config.pluginmanager.get_plugin("claims-report")
        data = results.as_data() if isinstance(results, Report) else {"runs": []}
        if not data["runs"]:
            return
        ledger = self._config.stash[LEDGER]
        merged = merge([of_data(data, "this run")], ledger)
        write_whole(self._path, html(merged, all_pictures(ledger), links_from(self._path)))
        terminalreporter.write_line(f"The report is {self._path}.")
