"""`check`, the only way to compare: it judges, writes the record and explains a failure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import hypothesis
import torch
from torch import Tensor

from claims.harness.layout import Missing
from claims.harness.ledger import Entry
from claims.harness.per_seed import PerSeed
from claims.harness.tolerance.judgement import Judgement, Tolerance, has_nan, plain
from claims.harness.tolerance.rounding import rounding, ulps


class Refuted(AssertionError):
    """A measured value lies outside what the claim allows; how a `refuted` claim fails."""


class Undecided(Exception):
    """What was measured tells neither that a claim holds nor that it fails."""


class BrokenClaim(Exception):
    """A defect of the test: no check, a verdict other than the ledger's, state left behind."""


@dataclass
class Record:
    """One comparison, as the summary, the JSON file and the JUnit report show it. Plain data."""

    kind: str
    ok: bool
    measured: Any
    expected: Any
    allowed: str
    reading: str = ""
    unit: str = ""
    detail: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    source: str = ""
    device: str = "cpu"
    cases: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


class Check:
    """The `check` fixture of one claim: `check(measured, tolerance)`.

    Under Hypothesis every example is judged, and the examples of one comparison share one record:
    its `cases` says how many there were, its values are those of the last one.
    """

    def __init__(
        self, entry: Entry, rerun: str, package: str = "", precision: torch.dtype | None = None
    ) -> None:
        """
        Args:
            package: the one under test, where it is not the reference.
            precision: in which it declares to compute, where that is not its input's.
        """
        self.entry = entry
        self._package, self._precision = package, precision
        self._rerun = rerun
        self.forget()

    def forget(self) -> None:
        """Start again: the body of the claim is about to run on more seeds."""
        self.records: list[Record] = []
        self.settled = True  # more seeds are not needed, or would change nothing
        self.verdict = ""  # what the comparisons come to, once `conclude` has been called
        self.reading = ""  # under which it holds; empty for the most natural one
        # What tells comparisons of an example apart -> their place in `records`.
        self._of_examples: dict[tuple[str, str, str], int] = {}
        # Reading or setting -> the comparisons that failed under it.
        self._failures: dict[str, list[str]] = {}

    def __call__(
        self,
        measured: Any,
        tolerance: Tolerance,
        *,
        unit: str = "",
        device: str = "cpu",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Compare and record.

        Args:
            measured: what was measured; its type depends on the tolerance. Values of runs are
                `PerSeed`, whose seeds are recorded.
            tolerance: one of the kinds, holding the document's or the derived value.
            unit: of the measured value, where it has one ("MiB", "tokens").
            device: where it was measured.
            facts: what else belongs beside the value, such as which of many like comparisons it is.

        Raises:
            Refuted: the value lies outside what is allowed, or is NaN.
            Undecided: a mean over seeds lies too near an end of its band to tell.
        """
        __tracebackhide__ = True
        record = self._judge(measured, tolerance, unit, device, facts, reading="")
        if not record.ok:
            raise Refuted(self._explain(record))

    def under(self, name: str) -> Callable[..., None]:
        """`check.under(name)(measured, tolerance)`: compare under one reading of the sentence.

        Or, for an open claim, under one of the settings that its answer turns on. Takes what
        `check` takes and records the same, but raises nothing for a value that is not allowed: what
        that means for the claim is decided when every reading has been judged.

        Raises:
            BrokenClaim: the ledger's entry has no such reading or setting.
        """
        if name not in self.entry.alternatives:
            known = ", ".join(self.entry.alternatives) or "none"
            raise BrokenClaim(
                f"claim {self.entry.id}: the ledger has no reading or setting '{name}'; "
                f"it has {known}"
            )

        def judge(
            measured: Any,
            tolerance: Tolerance,
            *,
            unit: str = "",
            device: str = "cpu",
            facts: Mapping[str, Any] | None = None,
        ) -> None:
            record = self._judge(measured, tolerance, unit, device, facts, reading=name)
            failures = self._failures.setdefault(name, [])
            if not record.ok:
                failures.append(self._explain(record))

        return judge

    def conclude(self) -> None:
        """Decide what all comparisons come to: `verdict` and `reading`.

        Raises:
            Refuted: the sentence fails under each of its readings.
            BrokenClaim: nothing was compared, a reading was left out, or an open claim has one
                answer under all of its settings.
        """
        __tracebackhide__ = True
        name, alternatives = self.entry.id, self.entry.alternatives
        if not self.records:
            raise BrokenClaim(
                f"claim {name} recorded no check: a claim that compared nothing is not verified"
            )
        if left_out := [each for each in alternatives if each not in self._failures]:
            raise BrokenClaim(f"claim {name} was not judged under {', '.join(left_out)}")
        holding = [each for each in alternatives if not self._failures[each]]
        if self.entry.turns_on:
            if len(holding) in (0, len(alternatives)):
                answer = "holds" if holding else "fails"
                raise BrokenClaim(
                    f"claim {name} is open in the ledger, yet it {answer} under every setting: "
                    f"{', '.join(alternatives)}. If that is right, change the ledger"
                )
            self.verdict = "open"
            return
        if alternatives and not holding:
            failures = [text for each in alternatives for text in self._failures[each]]
            raise Refuted("\n\n".join(failures))
        taken = holding[0] if alternatives else ""
        self.reading = "" if taken in alternatives[:1] else taken
        kinds = {record.kind for record in self.records if record.reading in ("", taken)}
        self.verdict = "exact" if kinds == {"exact"} else "holds"

    def _judge(
        self,
        measured: Any,
        tolerance: Tolerance,
        unit: str,
        device: str,
        facts: Mapping[str, Any] | None,
        reading: str,
    ) -> Record:
        __tracebackhide__ = True
        if isinstance(measured, Tensor):
            measured = measured.detach()
            self._demand_the_shape_of(tolerance, measured)
        if self._precision is not None and isinstance(tolerance, rounding | ulps):
            tolerance = replace(tolerance, precision=self._precision)
        if has_nan(measured):
            judgement = Judgement(False, plain(measured), None, "no NaN", detail="NaN was measured")
        else:
            judgement = tolerance.judge(measured)
        record = Record(
            kind=tolerance.kind,
            ok=judgement.ok,
            measured=judgement.measured,
            expected=judgement.expected,
            allowed=judgement.allowed,
            reading=reading,
            unit=unit,
            detail=judgement.detail,
            facts={**plain(facts or {}), **judgement.facts},
            seeds=measured.seeds if isinstance(measured, PerSeed) else [],
            source=measured.source if isinstance(measured, PerSeed) else "",
            device=device,
        )
        self._keep(record)
        self.settled = self.settled and judgement.settled
        if not judgement.decided:
            raise Undecided("undecided: more seeds would tell\n" + self._explain(record))
        return record

    def _demand_the_shape_of(self, tolerance: Tolerance, measured: Tensor) -> None:
        """Of another package than the reference a tensor of another shape is no disagreement.

        Raises Missing.
        """
        wanted = getattr(tolerance, "reference", getattr(tolerance, "expected", None))
        if not self._package or not isinstance(wanted, Tensor) or not wanted.dim():
            return
        if measured.shape != wanted.shape:
            raise Missing(
                f"{self._package} gives the shape {tuple(measured.shape)} "
                f"where {tuple(wanted.shape)} is wanted"
            )

    def _keep(self, record: Record) -> None:
        """Under Hypothesis, in place of the same comparison of the last example."""
        if not hypothesis.currently_in_test_context():
            self.records.append(record)
            return
        same = (record.kind, record.unit, record.reading)
        index = self._of_examples.setdefault(same, len(self.records))
        if index < len(self.records):
            record.cases = self.records[index].cases + 1
            self.records[index] = record
        else:
            self.records.append(record)

    def _explain(self, record: Record) -> str:
        entry, unit = self.entry, f" {record.unit}" if record.unit else ""
        error = record.kind == "rounding"  # what was measured is the greatest; 0 is the best
        lines: Mapping[str, Any] = {
            "claim": f"{entry.id} ({entry.section}, {entry.place})",
            "says": entry.statement,
            "read as": record.reading,
            "taken from": record.source,
            "measured": f"{'an error of ' if error else ''}{record.measured}{unit}",
            "expected": "" if error else f"{record.expected}{unit}",
            "allowed": f"{record.allowed} [{record.kind}]",
            "difference": record.detail,
            "facts": "; ".join(f"{name}: {fact}" for name, fact in record.facts.items()),
            "run again": self._rerun,
        }
        return "\n".join(f"{key:>10}: {text}" for key, text in lines.items() if text)
