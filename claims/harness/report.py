"""What became of every claim: in the terminal, in a JSON file, as properties in JUnit."""

from __future__ import annotations

import json
import platform
import shutil
import textwrap
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from claims.harness import machine, paths
from claims.harness.check import Check
from claims.harness.diagnosis import Likeness, looks_like
from claims.harness.files import write_whole
from claims.harness.foreign import DEPARTS, PackageError
from claims.harness.ledger import Entry, Ledger
from claims.harness.options import asks_for_everything, asks_for_gpu, command
from claims.harness.provenance import commit
from claims.harness.root_causes import root_causes
from claims.harness.stash import CORPUS_LINE, FOREIGN
from claims.harness.tolerance.judgement import plain

VERDICTS = ("exact", "holds", "open", "refuted", "not run", "failed")
# Of a package that is not the reference: `departs` is a disagreement with what the chapter chose.
OF_OTHERS = ("departs", "error")
# Of the JSON file. Raise it when a key is renamed or comes to mean something else.
VERSION = 2
SCHEMA = paths.FIXTURES / "results.schema.json"
LONGEST_MESSAGE = 20_000  # characters of a failure that are kept


def properties(
    entry: Entry, budget: str | None, outcome: pytest.TestReport, check: Check | None,
    raised: BaseException | None,
) -> list[tuple[str, str]]:
    """One claim's result as (name, text), which travels with the test report."""
    if isinstance(raised, PackageError):
        verdict, reason = "error", str(raised)
    elif outcome.failed:
        verdict, reason = "failed", ""
    elif getattr(outcome, "wasxfail", "") == DEPARTS:
        verdict, reason = "departs", entry.statement
    elif outcome.skipped and hasattr(outcome, "wasxfail"):
        verdict, reason = (
            "refuted",
            str(outcome.wasxfail).removeprefix("reason: ").removeprefix("refuted: "),
        )
    elif outcome.skipped:
        verdict = "not run"
        where = outcome.longrepr
        reason = (where[2] if isinstance(where, tuple) else str(where)).removeprefix("Skipped: ")
    else:
        assert check is not None  # a claim that passed has compared
        verdict, reason = check.verdict, entry.turns_on
    texts = {
        "claim": entry.id, "section": entry.section, "verdict": verdict, "reason": reason,
        "expected verdict": entry.verdict_at(budget), "budget": budget or "",
        "read as": check.reading if check else "",
    }
    records = check.records if check else []
    return [
        *texts.items(),
        *((f"check {i + 1}", record.to_json()) for i, record in enumerate(records)),
    ]


@dataclass(frozen=True)
class Outcome:
    """One run of one claim.

    source     file and line of the test
    reason     why it is not run, refuted or open
    message    what pytest says of a failure
    """

    claim: str
    test: str
    source: str
    verdict: str
    reason: str
    message: str
    expected_verdict: str
    budget: str
    read_as: str
    seconds: float
    records: list[dict[str, Any]]


class Report:
    """Collects the outcomes of a session; lives on xdist's controller, or in the only process."""

    def __init__(self, config: pytest.Config, ledger: Ledger) -> None:
        self._config = config
        self._ledger = ledger
        self._outcomes: dict[str, Outcome] = {}
        self._facts = {
            **machine.description(),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.machine()}",
            # Read now: after a claim has crashed the GPU, it cannot be asked any more.
            **(machine.gpu() if asks_for_gpu(config) else {}),
        }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        texts = {str(name): str(value) for name, value in report.user_properties}
        if "claim" not in texts or (report.when != "call" and report.passed):
            return
        self._outcomes[report.nodeid] = Outcome(
            claim=texts["claim"],
            test=report.nodeid,
            source=_place(report),
            verdict=texts["verdict"] if texts["verdict"] == "error" or not report.failed
            else "failed",
            reason=texts["reason"],
            message=_shortened(report.longreprtext) if report.failed else "",
            expected_verdict=texts["expected verdict"],
            budget=texts["budget"],
            read_as=texts["read as"],
            seconds=report.duration,
            records=[
                plain(json.loads(text))  # JSON has no infinity
                for name, text in texts.items() if name.startswith("check ")
            ],
        )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        in_vain = self._missing() or self._says_nothing()
        if in_vain and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        target = self._config.getoption("claims_json")
        if target and self._outcomes:
            write_whole(Path(target), to_text(self.as_data()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._outcomes:
            return
        write, package = terminalreporter.write_line, self._config.stash[FOREIGN]
        terminalreporter.section("claims")
        for line in self._section_table():
            write(line)
        for title, lines in (
            ("refuted: false under every reading", self._with_reason("refuted")),
            ("open: it turns on a setting that is not given", self._with_reason("open")),
            ("holds under another reading than the first", self._read_otherwise()),
            ("not run", self._not_run()),
            (f"true of {package}, though refuted on the reference", self._true_here()),
            ("departs from the chapter in", self._with_reason("departs")),
            (f"errors of {package}", self._errors()),
            ("failed, and beneath a claim what rests on it", self._failed()),
            ("what failed looks like a known mistake", [str(each) for each in self.likenesses()]),
        ):
            if lines:
                write(f"{title}:")
                for line in lines:
                    for part in _wrap(line):
                        write(part)
        if self._says_nothing():
            write(f"No claim says anything about {package}.", red=True)
        if missing := self._missing():
            write(
                f"{len(missing)} claims were never collected, though nothing deselected them: "
                f"{', '.join(missing)}",
                red=True,
            )
        for source, claims in self._from_record().items():
            write(f"{len(claims)} claims were judged from {source}.")
        checks = sum(len(outcome.records) for outcome in self._outcomes.values())
        run, wanted = self.gpu_claims()
        write(f"{checks} checks were recorded; gpu claims run: {run} of {wanted}.")
        write(f"Run as: {command(self._config)}")

    # ---- what the summary is made of -----------------------------------------------------------

    def verdicts(self) -> dict[str, str]:
        """claim id -> verdict; a claim that ran several times, over seeds or budgets, has its
        worst. Where one of them decided it, it is not called not run.
        """
        worst = ("error", "failed", "departs", "refuted", "open", "holds", "exact", "not run")
        result: dict[str, str] = {}
        for outcome in self._outcomes.values():
            other = result.get(outcome.claim, outcome.verdict)
            result[outcome.claim] = min(outcome.verdict, other, key=worst.index)
        for entry in self._ledger.entries.values():
            if self._config.stash[FOREIGN]:
                break  # only what was asked of the package
            if not entry.has_test:
                result[entry.id] = entry.verdict
            elif self._left_out(entry):
                result.setdefault(entry.id, "not run")
        return {name: result[name] for name in self._ledger.entries if name in result}

    def _left_out(self, entry: Entry) -> bool:
        """Whether the run was not asked for it: -m "not gpu", or the small budget alone."""
        if "gpu" in entry.needs:
            return self._gpu_deselected()
        return entry.needs_document and (
            self._gpu_deselected() or self._config.getoption("budget") == "ci"
        )

    def _gpu_deselected(self) -> bool:
        return "not gpu" in self._config.getoption("markexpr", "")

    def gpu_claims(self) -> tuple[int, int]:
        """How many claims that need a GPU have run, and how many there are."""
        wanted = {entry.id for entry in self._ledger.entries.values() if "gpu" in entry.needs}
        run = {o.claim for o in self._outcomes.values() if o.verdict != "not run"} & wanted
        return len(run), len(wanted)

    def gpu_outcomes(self) -> list[Outcome]:
        """Those of claims that need a GPU, in the ledger's order."""
        order = [entry.id for entry in self._ledger.entries.values() if "gpu" in entry.needs]
        found = [outcome for outcome in self._outcomes.values() if outcome.claim in order]
        return sorted(found, key=lambda outcome: (order.index(outcome.claim), outcome.test))

    def _section_table(self) -> list[str]:
        verdicts = self.verdicts()
        others = OF_OTHERS if self._config.stash[FOREIGN] else ()
        columns = (*VERDICTS, *others, "background")
        lines = [f"{'section':<26}" + "".join(f"{name:>11}" for name in columns)]
        total: Counter[str] = Counter()
        for section in self._ledger.sections:
            count = Counter(
                verdicts[entry.id]
                for entry in self._ledger.entries.values()
                if entry.section == section and entry.id in verdicts
            )
            total += count
            lines.append(
                f"{section:<26}" + "".join(f"{count[name] or '.':>11}" for name in columns)
            )
        lines.append(f"{'all':<26}" + "".join(f"{total[name] or '.':>11}" for name in columns))
        return lines

    def _with_reason(self, verdict: str) -> list[str]:
        lines = {}
        for outcome in self._outcomes.values():
            if outcome.verdict == verdict:
                lines[outcome.claim] = (
                    f"{outcome.claim} ({self._ledger[outcome.claim].place}): {outcome.reason}"
                )
        return list(lines.values())

    def _from_record(self) -> dict[str, set[str]]:
        """Where stored runs were made -> the claims that were judged from them."""
        found: dict[str, set[str]] = {}
        for outcome in self._outcomes.values():
            for record in outcome.records:
                if source := record["source"]:
                    found.setdefault(source, set()).add(outcome.claim)
        return dict(sorted(found.items()))

    def _read_otherwise(self) -> list[str]:
        lines = {}
        for outcome in self._outcomes.values():
            if outcome.read_as:
                entry = self._ledger[outcome.claim]
                lines[entry.id] = f"{entry.id} ({entry.place}): {entry.readings[outcome.read_as]}"
        return list(lines.values())

    def _not_run(self) -> list[str]:
        reasons: dict[str, set[str]] = {}
        for outcome in self._outcomes.values():
            if outcome.verdict == "not run":
                reasons.setdefault(outcome.reason, set()).add(outcome.claim)
        verdicts = self.verdicts()
        said = {outcome.claim for outcome in self._outcomes.values()}
        for entry in self._ledger.entries.values():
            if entry.id in said or self._config.stash[FOREIGN]:
                continue
            if entry.awaits and verdicts.get(entry.id) == "not run":
                reasons.setdefault(f"awaits {entry.awaits}", set()).add(entry.id)
            elif self._left_out(entry):
                reasons.setdefault("needs a CUDA GPU: run pytest -m gpu", set()).add(entry.id)
        return [f"{len(ids)} x {reason}" for reason, ids in sorted(reasons.items())]

    def _failed(self) -> list[str]:
        """What failed, and beneath each claim, one step in, what rests on it."""
        tests: dict[str, list[str]] = {}
        for outcome in self._outcomes.values():
            if outcome.verdict == "failed":
                tests.setdefault(outcome.claim, []).append(outcome.test)
        return [
            f"{'  ' * depth}{claim}: {test}"
            for depth, claim in root_causes(tests, self._ledger)
            for test in tests[claim]
        ]

    def _true_here(self) -> list[str]:
        """What the reference refutes and another package bears out."""
        lines = [
            f"{o.claim} ({self._ledger[o.claim].place}): {self._ledger[o.claim].statement}"
            for o in self._outcomes.values()
            if o.expected_verdict == "refuted" and o.verdict in ("exact", "holds")
        ]
        return list(dict.fromkeys(lines))

    def _errors(self) -> list[str]:
        """Where the package breaks, each place once, by the call and the line that raised."""
        causes: dict[str, list[Outcome]] = {}
        for outcome in self._outcomes.values():
            if outcome.verdict == "error":
                causes.setdefault(outcome.reason.partition(": ")[0], []).append(outcome)
        return [f"{len({o.claim for o in of})} x {of[0].reason}" for of in causes.values()]

    def _says_nothing(self) -> bool:
        """Whether a run on another package ended without a result."""
        verdicts = {outcome.verdict for outcome in self._outcomes.values()}
        return bool(self._config.stash[FOREIGN]) and verdicts == {"not run"}

    def likenesses(self) -> list[Likeness]:
        """The known mistakes that break much the same claims as failed here.

        What another package chose otherwise than the chapter is no mistake, and its claims say
        nothing for one or against it.
        """
        foreign = bool(self._config.stash[FOREIGN])
        judged = []
        for outcome in self._outcomes.values():
            entry = self._ledger[outcome.claim]
            a_choice = foreign and entry.bound == "chapter"
            if not outcome.budget and "gpu" not in entry.needs and not a_choice:
                judged.append(outcome)
        return looks_like(
            failed={o.claim for o in judged if o.verdict == "failed"},
            ran={o.claim for o in judged if o.verdict not in ("not run", "error")},
        )

    def _missing(self) -> list[str]:
        """Claims that a run of everything should have collected, and some plugin lost.

        Of another package the run leaves out what says nothing about it.
        """
        if self._config.stash[FOREIGN] or not asks_for_everything(self._config):
            return []
        seen = {outcome.claim for outcome in self._outcomes.values()}
        return [
            entry.id
            for entry in self._ledger.entries.values()
            if entry.has_test and entry.id not in seen and not self._left_out(entry)
        ]

    def as_data(self) -> dict[str, Any]:
        """What `--claims-json` writes; its schema is fixtures/results.schema.json."""
        config = self._config
        return {
            "version": VERSION,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command(config),
            "implementation": config.getoption("implementation"),
            "base_seed": config.getoption("base_seed"),
            "commit": commit(),
            "machine": self._facts,
            "corpus": config.stash.get(CORPUS_LINE, "not looked up"),
            "verdicts": self.verdicts(),
            "looks_like": [asdict(each) for each in self.likenesses()],
            "runs": [
                asdict(outcome)
                | {
                    "section": self._ledger[outcome.claim].section,
                    "line": self._ledger[outcome.claim].line,
                    "statement": self._ledger[outcome.claim].statement,
                }
                for outcome in self._outcomes.values()
            ],
        }


def to_text(data: dict[str, Any]) -> str:
    """As JSON with a line for each run, which is short and shows what differs between two files."""
    head = json.dumps({key: value for key, value in data.items() if key != "runs"}, indent=1)
    runs = ",\n".join(f"  {json.dumps(run)}" for run in data["runs"])
    return f'{head.removesuffix("}").rstrip()},\n "runs": [\n{runs}\n ]\n}}\n'


def _place(report: pytest.TestReport) -> str:
    """claims/test_02_average.py:31, the first line of the test."""
    file, line, _ = report.location
    return Path(file).as_posix() + ("" if line is None else f":{line + 1}")


def _shortened(message: str) -> str:
    """A message that is not too long for a report; its end says most."""
    left_out = len(message) - LONGEST_MESSAGE
    if left_out <= 0:
        return message
    first = LONGEST_MESSAGE // 4
    last = message[first + left_out :]
    return f"{message[:first]}\n[{left_out} characters left out]\n{last}"


def _wrap(text: str) -> list[str]:
    """`text` as an item of a list, within the terminal's width and a readable one."""
    width = max(40, min(shutil.get_terminal_size().columns, 120))
    return textwrap.wrap(
        text,
        width,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,  # test ids are to be copied
        break_on_hyphens=False,
    )
