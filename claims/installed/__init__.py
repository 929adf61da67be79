"""Installed as `transformer_claims`: the plugin by which pytest finds the claims in any folder.

pytest loads it in every project where the distribution is installed, so that it does nothing until
somebody asks for the claims:

    pytest --pyargs claims --implementation my_package
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest

DISTRIBUTION = "transformer-claims"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Load the harness before the options are read, where the claims are asked for."""
    if not asks_for_claims(args):
        return
    _demand_our_claims()
    try:
        names: tuple[str, ...] = importlib.import_module("claims.plugins").ALL
        for name in names:
            early_config.pluginmanager.import_plugin(name)
    except ModuleNotFoundError as error:
        raise pytest.UsageError(
            f"the claims need {error.name}, which is not installed: "
            f'pip install "{DISTRIBUTION}[claims]"'
        ) from error


def asks_for_claims(args: list[str]) -> bool:
    """Whether a command line names the installed claims, as a whole or a part of them."""
    return "--pyargs" in args and any(re.match(r"claims($|[.:/])", arg) for arg in args)


def _demand_our_claims() -> None:
    """A folder of the user's called `claims` would be collected in place of this project's."""
    spec = importlib.util.find_spec("claims")
    found = Path(spec.origin).resolve() if spec is not None and spec.origin else None
    wanted = [
        Path(str(file.locate())).resolve()
        for file in metadata.files(DISTRIBUTION) or ()
        if str(file) == "claims/__init__.py"
    ]
    if wanted and found != wanted[0]:
        raise pytest.UsageError(
            f"`claims` is {found or 'a folder'} here, and not that of {DISTRIBUTION}: rename "
            "yours, or run from another folder, with `pytest` in place of `python -m pytest`"
        )
