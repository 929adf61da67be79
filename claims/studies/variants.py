"""Runs the claims against many changed copies of `transformer/`, all from one process.

Starting Python, torch and pytest takes longer than most claims. So the claims are collected once,
and each copy is judged in a fork of that process. A copy that differs from `transformer/` in some
functions is judged by the claims that call these, as a traced run of the unchanged package tells.
Claims that need training or a GPU are left out.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import Phase

from claims.harness.check import Refuted
from claims.harness.files import CACHE_VARIABLE, cache_dir, write_whole
from claims.harness.implementation import Implementation
from claims.harness.mark import claim_id
from claims.harness.paths import ROOT
from claims.harness.stash import IMPLEMENTATION, LEDGER
from claims.plugins.session import TOKENS, tokens_of

CHOICE = "not gpu and not trains"
REFERENCE = ROOT / "transformer"
EXAMPLES = 10  # of a property, where the claim itself does not ask for another number
LIMIT = 300  # seconds of the processor for one copy; a changed loop may never end
TRACED = 3600  # the same for all claims with every call noted
PATIENCE = 20  # times as long by the clock, on a machine that does other things as well
NOT_IN_A_FUNCTION = ""
# Worst first. `failed` is a measured disagreement; a test that ended otherwise has crashed.
OUTCOMES = ("failed", "crashed", "agreed", "not run")
MEASURED = (Refuted, pytest.fail.Exception)


@dataclass(frozen=True)
class Variant:
    """`transformer/` with another text in one of its files.

    name    the package's name; importable
    """

    name: str
    file: str
    source: str

    def write(self, folder: Path) -> None:
        """Make the package in `folder`."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REFERENCE, folder / self.name, ignore=ignored)
        (folder / self.name / self.file).write_text(self.source, encoding="utf-8")

    def digest(self) -> str:
        """sha256 of the package."""
        return sha256([reference_digest(), self.file, _code(self.source)])

    def changed(self) -> set[str]:
        """The functions that differ, as `attention.py:Head.forward`; those that contain others
        stand for them. A change outside of every function has an empty name: `size.py:`.
        """
        before = _functions((REFERENCE / self.file).read_text(encoding="utf-8"))
        after = _functions(self.source)
        names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        return {f"{self.file}:{name}" for name in names}


@dataclass(frozen=True)
class Judged:
    """What the claims said of a variant.

    outcomes    claim -> one of OUTCOMES, of those that were run
    fault       the end of a traceback, where the copy could not be judged
    """

    outcomes: Mapping[str, str]
    fault: str = ""


class Session:
    """The collected claims, in the process that forks. Use `collected`."""

    def __init__(self, session: pytest.Session, work: Path) -> None:
        self.config = session.config
        self.items: list[pytest.Item] = session.items
        self._session, self._work = session, work
        sys.path.insert(0, str(work))
        # Made once, here: a copy with another tokenizer makes its own.
        tokens_of(self.config)
        self._calls: dict[str, set[str]] = {}

    def calls(self, item: pytest.Item) -> set[str]:
        """The functions of `transformer/` that a test calls, with those of its fixtures."""
        self._calls = self._calls or self._traced()
        return self._calls[item.nodeid]

    def items_for(self, variant: Variant) -> list[pytest.Item]:
        """The claims that call a function that the variant changes."""
        changed = variant.changed()
        whole = {name for name in changed if name.endswith(f":{NOT_IN_A_FUNCTION}")}
        return [
            item for item in self.items
            if (called := self.calls(item)) & changed
            or any(name.startswith(file) for name in called for file in whole)
        ]

    def judge(
        self, variant: Variant, items: Sequence[pytest.Item], *, first: bool = False
    ) -> Judged:
        """The verdicts on a variant, or with `first` up to the first failure."""
        if not items:
            return Judged({})
        target = self._work / f"{variant.name}.json"
        variant.write(self._work)
        child = partial(self._judge_here, variant, items, first, target)
        fault = _forked(child, self._work / f"{variant.name}.err")
        shutil.rmtree(self._work / variant.name)
        return Judged({} if fault else json.loads(target.read_text(encoding="utf-8")), fault)

    def _judge_here(
        self, variant: Variant, items: Sequence[pytest.Item], first: bool, target: Path
    ) -> None:
        config = self.config
        config.option.implementation = variant.name
        config.stash[IMPLEMENTATION] = Implementation(variant.name)
        if variant.file == "tokenizer.py":
            self._forget_tokens()
        outcomes = _Outcomes()
        config.pluginmanager.register(outcomes)
        self._run(items, first=first)
        write_whole(target, json.dumps(outcomes.of))

    def _forget_tokens(self) -> None:
        """So that the package's own tokenizer makes them, in a fork."""
        os.environ[CACHE_VARIABLE] = str(self._work / "cache")
        del self.config.stash[TOKENS]

    def _run(self, items: Sequence[pytest.Item], *, first: bool = False) -> None:
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if first and self._session.testsfailed:
                return

    def _traced(self) -> dict[str, set[str]]:
        """Test -> what `calls` gives."""
        facts = [reference_digest(), *sorted({evidence_digest(item) for item in self.items})]
        target = cache_dir() / "mistakes" / f"calls-{sha256(facts)}.json"

        def trace() -> None:
            self._forget_tokens()
            calls = _Calls()
            self.config.pluginmanager.register(calls)
            self._run(self.items)
            write_whole(target, json.dumps({n: sorted(c) for n, c in calls.of.items()}))

        errors = self._work / "calls.err"
        if not target.exists() and (fault := _forked(trace, errors, TRACED)):
            raise RuntimeError(f"the unchanged package could not be traced: {fault}")
        found: dict[str, list[str]] = json.loads(target.read_text(encoding="utf-8"))
        return {
            item.nodeid: {
                call
                for name in (item.nodeid, *getattr(item, "fixturenames", ()))
                for call in found.get(name, ())
            }
            for item in self.items
        }


class _Outcomes:
    """A plugin that notes what became of each claim: the worst of its tests."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after expected failures became outcomes
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        claim = claim_id(item)
        if claim and (report.when == "call" or not report.passed):
            if report.failed and call.excinfo:
                outcome = "failed" if isinstance(call.excinfo.value, MEASURED) else "crashed"
            elif report.skipped and not hasattr(report, "wasxfail"):
                outcome = "not run"
            else:  # also where a sentence that the reference refutes is true of the copy
                outcome = "agreed"
            self.of[claim] = min(outcome, self.of.get(claim, outcome), key=OUTCOMES.index)
        return report


class _Calls:
    """A plugin that notes which functions of `transformer/` each test and each fixture calls."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        with self._noted(item.nodeid):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, Any, Any]:
        with self._noted(fixturedef.argname):
            return (yield)

    @contextmanager
    def _noted(self, name: str) -> Generator[None, None, None]:
        calls = self.of.setdefault(name, set())
        folder = f"{REFERENCE}{os.sep}"

        def note(frame: Any, *_: object) -> None:
            code = frame.f_code
            if code.co_filename.startswith(folder):
                function = code.co_qualname.partition(".<locals>")[0]
                calls.add(f"{code.co_filename.removeprefix(folder)}:{function}")

        before = sys.gettrace()
        sys.settrace(note)  # note returns None: calls are traced, lines are not
        try:
            yield
        finally:
            sys.settrace(before)


def collected(
    work: Path, do: Callable[[Session], None], tests: Sequence[str] = ("claims",)
) -> None:
    """Collect the untrained claims, and `do` what is to be done in place of running them.

    `tests` are files or folders of this project; `work` is a folder for what is in between.

    Raises RuntimeError where they cannot be collected.
    """
    done = []

    class Instead:
        @pytest.hookimpl(trylast=True)  # after the harness has set up Hypothesis
        def pytest_configure(self) -> None:
            # One failing example is enough: Hypothesis need not simplify it. Most mistakes show in
            # the first examples of a property, or in none.
            phases = (Phase.explicit, Phase.generate)
            quick = hypothesis.settings(phases=phases, max_examples=EXAMPLES)
            hypothesis.settings.register_profile("quick", quick)
            hypothesis.settings.load_profile("quick")

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtestloop(self, session: pytest.Session) -> bool:
            do(Session(session, work))
            done.append(session)
            return True

    options = ["-m", CHOICE, "-q", "-s", "--no-header", "--no-summary", "-p", "no:cacheprovider"]
    options += ["-p", "no:randomly", "--rootdir", str(ROOT)]
    # This module has imported the harness already, with what it uses.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    code = pytest.main([*(str(ROOT / name) for name in tests), *options], plugins=[Instead()])
    if not done:
        raise RuntimeError(f"the claims could not be collected: pytest ended with {code!r}")


def sha256(facts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def reference_digest() -> str:
    """sha256 of the code of `transformer/`, whatever its comments and docstrings say."""
    return sha256([_code(path.read_text("utf-8")) for path in sorted(REFERENCE.glob("*.py"))])


def _code(source: str) -> str:
    return json.dumps(_functions(source))


def evidence_digest(item: pytest.Item) -> str:
    """sha256 of what decides the outcomes of the item's module on a given package: the module, what
    it imports of this project beside the harness, and the ledger's values.
    """
    digest = hashlib.sha256(f"{EXAMPLES}".encode())
    for path in sorted(_imports(item.path, frozenset())):
        digest.update(path.read_bytes())
    for entry in item.config.stash[LEDGER].of_module(item.path.stem):
        values = entry.verdict, dict(entry.expected), entry.readings, entry.settings
        digest.update(repr((entry.id, *values)).encode())
    return digest.hexdigest()


@cache
def _imports(module: Path, above: frozenset[Path]) -> frozenset[Path]:
    """A file, and those of this project that it imports, and so on."""
    found = {module}
    for node in ast.walk(ast.parse(module.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("claims."):
            stem = ROOT / (node.module or "").replace(".", "/")
            for name in (stem, *(stem / alias.name for alias in node.names)):
                path = name.with_suffix(".py")
                if path.is_file() and "harness" not in path.parts and path not in above:
                    found |= _imports(path, above | {module})
    return frozenset(found)


def _forked(do: Callable[[], None], errors: Path, limit: int = LIMIT) -> str:
    """Run `do` in a fork of this process; empty, or what it died of.

    `limit` is in seconds of the processor, so that other work on the machine ends nothing.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _end_with(do, errors, limit)
    until = time.monotonic() + PATIENCE * limit
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return f"not done after {limit} s of the processor"
        if ended:
            said = errors.read_text(encoding="utf-8") if errors.exists() else ""
            return "" if status == 0 else said[-2000:] or f"status {status}"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return f"not done after {PATIENCE * limit} s"


def _end_with(do: Callable[[], None], errors: Path, limit: int) -> None:
    """The whole life of a fork: it says nothing, and never returns to what its parent does."""
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            sys.stdout = sys.stderr = nowhere
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            do()
    except BaseException:
        errors.write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)
    os._exit(0)


def _functions(source: str) -> dict[str, str]:
    """Outermost functions and methods -> their code, without docstrings; what is outside of all has
    the empty name.
    """
    found: dict[str, str] = {}
    outside: list[str] = []

    def walk(body: Iterable[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                found[prefix + node.name] = ast.dump(node)
            elif isinstance(node, ast.ClassDef):
                outside.append(f"{node.name} {[ast.dump(base) for base in node.bases]}")
                walk(node.body, f"{prefix}{node.name}.")
            else:
                outside.append(ast.dump(node))

    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            words = ast.get_docstring(node) is not None
            node.body = (node.body[1:] or [ast.Pass()]) if words else node.body
    walk(tree.body, "")
    return found | {NOT_IN_A_FUNCTION: "\n".join(outside)}
