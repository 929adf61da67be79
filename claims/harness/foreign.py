"""What happened when a claim ran on a package that is not this project's reference.

Only a measured disagreement fails. What the package does not offer is not run, with the cause; what
breaks inside it is an error of the package, with the call that raised it.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest
import torch

from claims.harness import paths
from claims.harness.check import BrokenClaim, Check, Refuted, Undecided
from claims.harness.implementation import NotInTheContract
from claims.harness.layout import Broken, Missing
from claims.harness.ledger import Entry
from claims.harness.tolerance.judgement import MisusedTolerance

# How a package says no, when it is not PyTorch that says so.
REFUSALS = (ValueError, AssertionError)
BINDING = re.compile(
    r"unexpected keyword argument|positional argument|takes no (keyword )?arguments|missing \d+"
)
DTYPE = re.compile(r"dtype|scalar type|not implemented for '(Double|Half|BFloat16|Float|Long)'")
STDLIB = sysconfig.get_paths()["stdlib"]


class PackageError(Exception):
    """The package under test breaks: neither a disagreement nor something that it lacks."""


def meaning(error: BaseException, package: str) -> BaseException:
    """What an exception that ended a claim means for the package.

    Refuted where it disagrees, Missing where it lacks something, PackageError where it breaks, and
    the exception itself where it is the claim's own or a skip.
    """
    if isinstance(error, Refuted | BrokenClaim | pytest.fail.Exception | PackageError):
        return error
    if isinstance(error, Broken):
        return PackageError(_first_line(error))
    if isinstance(error, Undecided):
        return Missing(f"undecided on {package}: more seeds would tell")
    if isinstance(error, MisusedTolerance):
        dtype = "torch." in str(error)
        what = "another dtype than it was given" if dtype else "what does not fit"
        return Missing(f"{package} returns {what}: {error}")
    of_the_claim = pytest.skip.Exception | Missing | NotInTheContract
    if not isinstance(error, Exception) or isinstance(error, of_the_claim):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = _since_the_claim(frames)
    own = [frame for frame in inside if _of_the_package(frame)]
    text = _first_line(error)
    if isinstance(error, NotImplementedError):
        said = text if str(error) or not own else f"{_name(own[-1])} raises NotImplementedError"
        return Missing(f"{package} does not support it: {said}")
    if isinstance(error, TypeError) and BINDING.search(text) and not own:
        return Missing(f"{package} takes other arguments: {text}")
    if isinstance(error, AttributeError) and not own:
        return Missing(f"{package} lacks it: {text}")
    if own and isinstance(error, REFUSALS) and inside[-1] is own[-1]:
        return Missing(f"{_name(own[-1])} refuses: {text}")
    if DTYPE.search(text) and isinstance(error, RuntimeError | TypeError | ValueError):
        return Missing(f"{package} does not offer the dtype: {text}")
    if own and _ours(inside[-1]):
        return Missing(f"{_name(own[0])} ({_where(error, own)}) cannot be measured: {text}")
    if own:
        called = f"{_name(own[0])} ({_where(error, own)})"
        return PackageError(f"{called} raises {type(error).__name__}: {text}")
    return Missing(f"what {package} returns does not fit: {type(error).__name__}: {text}")


def _since_the_claim(frames: Sequence[FrameType]) -> list[FrameType]:
    """What the claim, or an instrument, called last, but for what an instrument overhears.

    PyTorch calls a dispatch mode from within the package: what passes through one was raised by
    what the package called.
    """
    ours = [i for i, frame in enumerate(frames) if _ours(frame)]
    overheard = [i for i in ours if frames[i].f_code.co_name == "__torch_dispatch__"]
    called = [i for i in ours if not overheard or i < overheard[0]]
    return list(frames[called[-1] + 1 :]) if called else list(frames)


def _ours(frame: FrameType) -> bool:
    mine = (str(paths.CLAIMS), str(Path(__file__).parents[1]))
    return frame.f_code.co_filename.startswith(mine)


def _of_the_package(frame: FrameType) -> bool:
    """Of the package or of a library that it wraps, and not of Python or of torch."""
    if _ours(frame):
        return False
    file = frame.f_code.co_filename
    installed = re.search(r"(?:site|dist)-packages[/\\](\w+)", file)
    if installed:
        return installed[1] not in ("torch", "numpy", "scipy")
    return not file.startswith((STDLIB, str(Path(torch.__file__).parent), "<"))


def _name(frame: FrameType) -> str:
    """Head.forward: what was called, with its class where it has one."""
    return frame.f_code.co_qualname


def _where(error: BaseException, own: Sequence[FrameType]) -> str:
    """mine.py:12, or with the line of the library that it calls mine.py:12, library.py:85."""
    lines = {f: line for f, line in traceback.walk_tb(error.__traceback__)}
    last_by_file = {f.f_code.co_filename: f for f in own}
    at = dict.fromkeys([last_by_file[own[0].f_code.co_filename], own[-1]])
    return ", ".join(f"{Path(f.f_code.co_filename).name}:{lines[f]}" for f in at)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


# ---- what a claim that ended without an exception, or with a disagreement, comes to --------------

DEPARTS = "departs from the chapter"


DISAGREES = (Refuted, pytest.fail.Exception)
# Of a message: a table may differ in every row, and an example may be a tensor of many numbers.
MOST_LINES, LONGEST_LINE = 16, 300


def departs(entry: Entry, raised: BaseException | None) -> bool:
    """Whether a disagreement is with what the chapter chose, and not with the field's notions."""
    disagrees = isinstance(raised, DISAGREES)
    return disagrees and entry.bound == "chapter" and entry.verdict != "refuted"


def in_short(entry: Entry, raised: BaseException) -> str:
    """A disagreement as its author needs it: the sentence, the values, and the example found."""
    lines = str(raised).splitlines()
    if not any(line.lstrip().startswith("says:") for line in lines):
        lines = [f"{entry.id} ({entry.place}): {entry.statement}", *lines]
    if left_out := lines[MOST_LINES:]:
        lines[MOST_LINES:] = [f"... and {len(left_out)} lines more (--tb=short has them all)"]
    if example := _example(raised):
        again = lines[-1].lstrip().startswith("run again:")
        lines.insert(len(lines) - again, f"{'example':>10}: {example}")
    return "\n".join(_cut(line) for line in lines)


def _example(raised: BaseException) -> str:
    """What Hypothesis drew, on one line, without the fixtures; empty where it drew nothing."""
    for note in getattr(raised, "__notes__", ()):
        if drawn := re.fullmatch(r"[^\n]*: \w+\(\n(.*?),?\n\)\s*", note, re.DOTALL):
            arguments = [" ".join(a.split()) for a in re.split(r",\n    (?=\w+=)", drawn[1])]
            shown = [each for each in arguments if not re.match(r"\w+=<", each)]
            return ", ".join(_cut(each, LONGEST_LINE // 3) for each in sorted(shown, key=len))
    return ""


def _cut(text: str, longest: int = LONGEST_LINE) -> str:
    return text if len(text) <= longest else f"{text[:longest]} ..."


def conclude(entry: Entry, check: object) -> None:
    """Decide what the comparisons of a claim come to. Raises Refuted."""
    assert isinstance(check, Check)
    try:
        check.conclude()
    except BrokenClaim as error:
        if not entry.turns_on or not check.records:
            raise
        # One answer under all settings, where the reference has several.
        check.verdict = "holds"
        if not all(record.ok for record in check.records):
            raise Refuted(str(error)) from None
