"""What `--claims-json` or `claims.compare` wrote, read for the report."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from claims.harness import paths
from claims.harness.report import SCHEMA, VERSION

COMPARISON = paths.FIXTURES / "comparison.schema.json"
COMPARISON_VERSION = 1

# No page may hold these: control characters other than tab and newline, and halves of surrogates.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class NoResults(ValueError):
    """A file that neither of the two wrote, or that is of another version."""


@dataclass(frozen=True)
class Comparison:
    """Implementations that were timed in turn, in one process.

    packages    in the order of the command line
    times       (package, what was timed) -> seconds, one value for each round
    machine     on which
    """

    packages: Sequence[str]
    times: Mapping[tuple[str, str], Sequence[float]]
    machine: Mapping[str, str]

    @property
    def whats(self) -> list[str]:
        return list(dict.fromkeys(what for _, what in self.times))

    @property
    def note(self) -> str:
        rounds = max(map(len, self.times.values()), default=0)
        facts = ", ".join(f"{key} {value}" for key, value in self.machine.items())
        return (
            f"Times are medians of {rounds} rounds, all implementations in turn in one process, "
            f"with the ratio to {self.packages[0]} and its quartiles; {facts}."
        )

    def shown(self, package: str, what: str) -> str:
        """12.3, 0.98 (0.97 to 1.01): milliseconds, and the ratio to the first package."""
        if (own := self.times.get((package, what))) is None:
            return "not provided" if package in self.packages else "not timed"
        text = f"{1000 * median(own):.2f}"
        first = self.times.get((self.packages[0], what))
        if package == self.packages[0] or first is None:
            return text
        ratios = [ours / theirs for ours, theirs in zip(own, first, strict=True)]
        low, middle, high = quantiles(ratios, method="inclusive")
        return f"{text}, {middle:.2f} ({low:.2f} to {high:.2f})"


@dataclass(frozen=True)
class Stored:
    """One file. fixtures/results.schema.json says what each of its values is.

    name          how the report calls it
    comparison    of which it is a part, where implementations were compared
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
    comparison: Comparison | None = None

    @property
    def day(self) -> str:
        """When it was made, in UTC: 2026-01-31 23:59."""
        return self.made[:16].replace("T", " ")

    @property
    def where(self) -> str:
        """The machine in a few words."""
        device = self.machine.get("gpu", self.machine.get("device", ""))
        return f"torch {self.machine.get('torch', 'unknown')}; {device}"


def read(path: Path) -> list[Stored]:
    """Read a file: one run of the claims, or one for each implementation of a comparison.

    Raises NoResults, which names the file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NoResults(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise NoResults(f"{path} is no file that --claims-json wrote ({error})") from error
    if isinstance(data, dict) and "comparison" in data:
        return of_comparison(data, path.name)
    return [of_data(data, path.name)]


def of_comparison(data: Any, name: str) -> list[Stored]:
    """The runs of a file that `claims.compare` wrote. Raises NoResults where it breaks the schema.
    """
    _demand_version(data["comparison"], COMPARISON_VERSION, name, "claims.compare")
    _demand_schema(data, COMPARISON, name, "claims.compare")
    runs = [of_data(each, name) for each in data["results"]]
    times = {
        (clean(each["implementation"]), clean(each["what"])): each["seconds"]
        for each in data["times"]
    }
    if len({len(seconds) for seconds in times.values()}) > 1:
        raise NoResults(f"{name}: what was timed in turn has the same number of rounds")
    compared = Comparison([run.implementation for run in runs], times, clean(data["machine"]))
    return [replace(run, comparison=compared) for run in runs]


def of_data(data: Any, name: str) -> Stored:
    """What a run of the claims has at hand. Raises NoResults where it breaks the schema."""
    if isinstance(data, dict) and "runs" in data:
        _demand_version(data.get("version", 1), VERSION, name, "--claims-json")
    _demand_schema(data, SCHEMA, name, "--claims-json")
    known = Stored.__dataclass_fields__.keys() - {"name", "comparison"}
    return Stored(name=name, **clean({key: data[key] for key in known}))


def _demand_version(version: object, ours: int, name: str, writer: str) -> None:
    if version != ours:
        raise NoResults(
            f"{name} is of version {version} of the file that {writer} writes; "
            f"this project reads version {ours}: run it again"
        )


def _demand_schema(data: Any, path: Path, name: str, writer: str) -> None:
    schema = Draft202012Validator(json.loads(path.read_text(encoding="utf-8")))
    if fault := best_match(schema.iter_errors(data)):
        where = ", ".join(map(str, fault.absolute_path)) or "the file"
        raise NoResults(f"{name} is no file that {writer} wrote ({where}: {fault.message[:200]})")


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
