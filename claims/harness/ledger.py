"""The ledger: what the document says, one entry per claim, validated before anything runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from claims.harness import paths

SCHEMA = paths.FIXTURES / "ledger.schema.json"


# Kinds of claims that an implementation may fail without being wrong.
OF_THE_CHAPTER = ("training", "memory", "timing", "qualitative")


class LedgerError(ValueError):
    """The ledger is malformed; the message names every entry at fault."""


class Expected(Mapping[str, Any]):
    """The document's values for one claim. A key that the entry lacks is named with the claim."""

    def __init__(self, claim_id: str, values: Mapping[str, Any]) -> None:
        self._claim_id = claim_id
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            known = ", ".join(self._values) or "nothing"
            raise LedgerError(
                f"ledger entry '{self._claim_id}' expects {known}; the test asks for '{key}'"
            )
        return self._values[key]

    def at(self, budget: str | None) -> Expected:
        """The values at a budget: where the ledger lists a value by budget, this budget's."""
        if budget is None:
            return self
        chosen = {
            key: value[budget] if isinstance(value, Mapping) and budget in value else value
            for key, value in self._values.items()
        }
        return Expected(self._claim_id, chosen)

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True)
class Entry:
    """One claim as the ledger has it."""

    id: str
    section: str
    statement: str
    kind: str
    verdict: str
    line: int | None = None
    expected: Expected = field(default_factory=lambda: Expected("", {}))
    reading: str = ""
    readings: Mapping[str, str] = field(default_factory=dict)
    holds_under: str = ""
    turns_on: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    awaits: str = ""
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    beyond: str = ""
    subject: str = ""
    at_document: Mapping[str, str] | None = None
    binds: str = ""

    @property
    def bound(self) -> str:
        """Whom it binds: `anyone` who implements the field's notions, or the `chapter` alone, which
        chose among several; `nobody` where it tests no implementation at all.

        Where the ledger does not say, what depends on the chapter's settings binds the chapter.
        """
        if self.binds:
            return self.binds
        chosen = self.kind in OF_THE_CHAPTER or self.turns_on
        return "chapter" if chosen else "anyone"

    @property
    def has_test(self) -> bool:
        """Whether a test decides it: history has none, nor has a claim that awaits something."""
        return self.verdict not in ("background", "not run") or self.at_document is not None

    @property
    def needs_document(self) -> bool:
        """Whether the document's budget alone can decide it."""
        return self.verdict == "not run" and self.at_document is not None

    @property
    def alternatives(self) -> list[str]:
        """The readings that a careful reader could take, the most natural first; of an open claim
        the settings, not given by the document, that its answer turns on.
        """
        return [*self.readings, *self.settings]

    def holds_under_at(self, budget: str | None) -> str:
        """The reading under which it holds, where that is not the most natural one."""
        if budget == "document" and self.at_document is not None:
            return self.at_document.get("holds_under", "")
        return self.holds_under

    def verdict_at(self, budget: str | None) -> str:
        """The verdict expected at a budget; None for a claim that trains nothing."""
        if budget == "document" and self.at_document is not None:
            return self.at_document["verdict"]
        return self.verdict

    def reason_at(self, budget: str | None) -> str:
        """Why it is refuted at a budget: the reading, else the sentence itself."""
        reading = (self.at_document or {}).get("reading") if budget == "document" else None
        return reading or self.reading or self.statement

    @property
    def module(self) -> str:
        """The test module: that of its section (2-average -> test_02_average), or of its subject,
        in `beyond/`, where it has one.
        """
        if self.subject:
            return f"test_{self.subject.replace('-', '_')}"
        number, _, name = self.section.partition("-")
        return f"test_{int(number):02d}_{name.replace('-', '_')}"

    @property
    def place(self) -> str:
        return f"l.{self.line}" if self.line else "beyond the document"


@dataclass(frozen=True)
class Ledger:
    sections: tuple[str, ...]
    entries: Mapping[str, Entry]

    def __getitem__(self, claim_id: str) -> Entry:
        return self.entries[claim_id]

    def __contains__(self, claim_id: object) -> bool:
        return claim_id in self.entries

    def of_module(self, module: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.module == module]


# libyaml, where PyYAML has it, reads the ledger ten times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeyLoader(_SafeLoader):  # type: ignore[misc]
    """Two equal keys are an error, where YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key, count in Counter(keys).items():
            if count > 1:
                raise LedgerError(
                    f"line {node.start_mark.line + 1}: key '{key}' stands {count} times"
                )
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def load_ledger(path: Path) -> Ledger:
    """Read and validate a ledger.

    Raises:
        LedgerError: the file is missing, is no YAML, or breaks the schema beside it
            (``ledger.schema.json``): an unknown key, a duplicate id, a missing verdict, an unknown
            section. Every fault is named with its claim.
    """
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except OSError as error:
        raise LedgerError(f"the ledger {path.name} cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise LedgerError(f"the ledger {path.name} is not valid YAML: {error}") from error
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    faults = [_sentence(fault, raw) for fault in Draft202012Validator(schema).iter_errors(raw)]
    if not faults:
        faults = _cross_faults(raw)
    if faults:
        raise LedgerError(
            f"the ledger {path.name} is malformed:\n" + "\n".join(f"  {f}" for f in faults)
        )
    entries = {claim["id"]: _entry(claim) for claim in raw["claims"]}
    return Ledger(sections=tuple(raw["sections"]), entries=entries)


def _entry(claim: Mapping[str, Any]) -> Entry:
    values = dict(claim)
    values["expected"] = Expected(claim["id"], claim.get("expected", {}))
    values["needs"] = tuple(claim.get("needs", ()))
    values["requires"] = tuple(claim.get("requires", ()))
    return Entry(**values)


def _sentence(fault: ValidationError, raw: Any) -> str:
    """'claim token-count: 'verdict' is a required property', not a path of indices."""
    path = list(fault.absolute_path)
    if len(path) >= 2 and path[0] == "claims":
        claim = raw["claims"][path[1]]
        name = claim.get("id", f"number {int(path[1]) + 1}") if isinstance(claim, dict) else path[1]
        where = f"claim {name}" + "".join(f", {part}" for part in path[2:])
    else:
        where = ", ".join(str(part) for part in path) or "the file"
    return f"{where}: {fault.message}"


def _cross_faults(raw: Mapping[str, Any]) -> list[str]:
    counts = Counter(claim["id"] for claim in raw["claims"])
    faults = [f"claim {name}: the id stands {n} times" for name, n in counts.items() if n > 1]
    of_the_document = sum("beyond" not in claim for claim in raw["claims"])
    if of_the_document != raw["document"]["claims"]:
        faults.append(
            f"document: it says that {raw['document']['claims']} claims are the document's own, "
            f"but {of_the_document} entries are"
        )
    known = ", ".join(raw["sections"])
    for claim in raw["claims"]:
        if claim["section"] not in raw["sections"]:
            faults.append(f"claim {claim['id']}: section '{claim['section']}' is none of {known}")
        faults += _faults_of_alternatives(claim)
        if "subject" in claim and "beyond" not in claim:
            faults.append(
                f"claim {claim['id']}: a claim of the document stands in its section's module; "
                "only what goes beyond it has a subject"
            )
        if "at_document" in claim and claim["kind"] != "training":
            faults.append(f"claim {claim['id']}: only claims of kind 'training' have a budget")
        if "awaits" in claim and claim["verdict"] != "not run":
            faults.append(
                f"claim {claim['id']}: it awaits something, yet its verdict is '{claim['verdict']}'"
            )
    return [*faults, *_faults_of_requirements(raw["claims"])]


def _faults_of_requirements(claims: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Claims that rest on one that does not exist, or in the end on themselves."""
    requires = {claim["id"]: claim.get("requires", []) for claim in claims}
    for name, needed in requires.items():
        for other in needed:
            if other not in requires:
                yield f"claim {name}: it requires '{other}', which is no claim"
    try:
        TopologicalSorter(requires).prepare()
    except CycleError as error:
        yield f"claims that require each other in a circle: {' -> '.join(error.args[1])}"


def _faults_of_alternatives(claim: Mapping[str, Any]) -> Iterator[str]:
    """Readings and settings that do not fit the verdict."""
    at_document = claim.get("at_document", {})
    verdicts = {claim["verdict"], at_document.get("verdict")}
    if ("open" in verdicts) != ("turns_on" in claim):
        yield (
            f"claim {claim['id']}: an open claim says what its answer `turns_on`, and under which "
            "`settings` it was judged; no other claim does"
        )
    for values in (claim, at_document):
        name = values.get("holds_under")
        if name is not None and name not in [*claim.get("readings", {})][1:]:
            yield (
                f"claim {claim['id']}: it holds under '{name}', which is none of its readings "
                "after the first"
            )
