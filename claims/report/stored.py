"""What `--claims-json` wrote, read for the report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from claims.harness.report import SCHEMA, VERSION

# No page may hold these: control characters other than tab and newline, and halves of surrogates.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class NoResults(ValueError):
    """A file that `--claims-json` did not write, or wrote in another version."""


@dataclass(frozen=True)
class Stored:
    """One file. fixtures/results.schema.json says what each of its values is.

    name    how the report calls it
    """

    name: str
    made: str
    command: str
    implementation: str
    base_seed: str
    commit: str
    machine: Mapping[str, str]
    corpus: str
    verdicts: Mapping[str, str]
    looks_like: Sequence[Mapping[str, Any]]
    runs: Sequence[Mapping[str, Any]]

    @property
    def day(self) -> str:
        """When it was made, in UTC: 2026-01-31 23:59."""
        return self.made[:16].replace("T", " ")

    @property
    def where(self) -> str:
        """The machine in a few words."""
        device = self.machine.get("gpu", self.machine.get("device", ""))
        return f"torch {self.machine.get('torch', 'unknown')}; {device}"


def read(path: Path) -> Stored:
    """Read a file. Raises NoResults, which names it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoResults(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise NoResults(f"{path} is no file that --claims-json wrote ({error})") from error
    return of_data(data, path.name)


def of_data(data: Any, name: str) -> Stored:
    """What a run of the claims has at hand. Raises NoResults where it breaks the schema."""
    version = data.get("version", 1) if isinstance(data, dict) and "runs" in data else None
    if version not in (None, VERSION):
        raise NoResults(
            f"{name} is of version {version} of the file that --claims-json writes; "
            f"this project reads version {VERSION}: run the claims again"
        )
    schema = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    if fault := best_match(schema.iter_errors(data)):
        where = ", ".join(map(str, fault.absolute_path)) or "the file"
        raise NoResults(
            f"{name} is no file that --claims-json wrote ({where}: {fault.message[:200]})"
        )
    known = Stored.__dataclass_fields__.keys() - {"name"}
    return Stored(name=name, **clean({key: data[key] for key in known}))


def clean(value: Any) -> Any:
    """`value` with what no page may hold shown by a sign of its own."""
    if isinstance(value, str):
        return FORBIDDEN.sub(_sign, value)
    if isinstance(value, Mapping):
        return {clean(key): clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean(item) for item in value]
    return value


def _sign(match: re.Match[str]) -> str:
    """Unicode has a picture for each control character of ASCII."""
    code = ord(match.group())
    return chr(0x2400 + code) if code < 0x20 else "\ufffd"
