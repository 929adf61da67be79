"""`--executor dask://HOST:PORT` under pytest: a session whose runs are trained on a worker."""

from __future__ import annotations

from collections.abc import Iterator

import distributed  # noqa: F401  pytester forgets what a run imports
import pytest
import torch._dynamo  # noqa: F401

from claims.harness import machine, paths
from claims.instruments.text.corpus import Corpus
from claims.training import dask_executor
from conftest import Project, output
from dask_machines import Machines, kill, until
from test_trained_claims import CLAIMS, EXPERIMENT, PACKAGE
from test_trained_claims import PLUGINS as OTHERS

PLUGINS = [*OTHERS, "-p", "claims.plugins.executor"]


class OnWorkers(Project):
    """A project with a corpus, whose runs are trained on one worker."""

    def __init__(
        self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, machines: Machines
    ) -> None:
        super().__init__(pytester, monkeypatch)
        self.package("learning", PACKAGE)
        (self.folder / "corpus.txt").write_text("The cat sat on the mat, and slept.\n" * 300)
        self.log = self.folder / "trained"
        monkeypatch.setenv("CLAIMS_CACHE", str(self.folder / "cache"))
        monkeypatch.setenv("CLAIMS_CORPUS", str(self.folder / "corpus.txt"))
        monkeypatch.setenv("TRAINED", str(self.log))
        monkeypatch.setattr(machine, "gpu_fault", lambda: "no GPU in this test")
        monkeypatch.setattr(Corpus, "shakespeare", True)  # what is trained here holds on any text
        monkeypatch.setattr(paths, "REFERENCE", "learning")
        self.machines = machines
        self.executor, self.scheduler = machines.scheduler()
        self.test(EXPERIMENT + CLAIMS)
        self.entry("both", kind="training").entry("second", kind="training")
        self.entry(
            "later", "not run", kind="training", awaits="the document's budget",
            at_document={"verdict": "exact"},
        )  # fmt: skip
        self.entry("plain")

    def worker(self) -> int:
        process = self.machines.worker(self.executor, "a", TRAINED=str(self.log))
        with dask_executor.connected(self.executor) as client:
            until(lambda: dask_executor._workers(client))
        return process

    def run(self, *options: str) -> pytest.RunResult:
        if not any(option.startswith("--executor") for option in options):
            options = (*options, "--executor", self.executor)
        return super().run(*PLUGINS, "--implementation", "learning", *options)


@pytest.fixture
def session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, machines: Machines
) -> Iterator[OnWorkers]:
    yield OnWorkers(pytester, monkeypatch, machines)
    machines.end_all()


def test_claims_are_judged_by_what_workers_trained(session: OnWorkers) -> None:
    """Warnings are errors, and no test finds a flag or a generator changed."""
    session.worker()
    result = session.run("-m", "not gpu")
    result.assert_outcomes(passed=3, skipped=2)
    assert "training: 4 runs to train, 0 in the store" in output(result)
    assert len(session.log.read_text().split()) == 4
    again = session.run("-m", "not gpu")
    again.assert_outcomes(passed=3, skipped=2)
    assert len(session.log.read_text().split()) == 4


def test_a_session_ends_in_a_sentence_when_its_scheduler_goes_away(
    session: OnWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = session.worker()
    submit = dask_executor._Sweep._submit

    def then_kill(self: object, *arguments: object) -> object:
        future = submit(self, *arguments)  # type: ignore[arg-type]
        kill(session.scheduler)
        kill(worker)
        return future

    monkeypatch.setattr(dask_executor._Sweep, "_submit", then_kill)
    result = session.run("-m", "not gpu")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "went away, or was restarted; 0 runs had ended and are kept" in output(result)


def test_the_chapters_budget_needs_no_gpu_here(session: OnWorkers) -> None:
    """The workers have it."""
    session.worker()
    result = session.run("--budget", "document")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "none of the 1 workers of tcp://127.0.0.1:" in output(result)
    assert 'offers a GPU: start those that have one with --resources "GPU=1"' in output(result)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--executor", "dask"], "--executor takes dask://HOST:PORT, the address of a Dask sched"),
        (["-n", "2"], "--executor with xdist: one process hands out the runs of all claims"),
        ([], " has no workers; start some, and run again"),
    ],
)
def test_what_can_be_known_before_is_refused_in_a_sentence(
    session: OnWorkers, options: list[str], said: str
) -> None:
    result = session.run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in output(result)
    assert "Traceback" not in output(result)


def test_a_package_that_cannot_travel_is_refused(session: OnWorkers) -> None:
    (session.folder / "learning" / "fast.so").write_bytes(b"")
    result = session.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "learning cannot travel to other machines: learning/fast.so is compiled" in (
        output(result)
    )


def test_tests_are_listed_without_a_cluster(session: OnWorkers) -> None:
    result = session.run("--collect-only", "-q", "--executor", "dask://127.0.0.1:9")
    assert result.ret == pytest.ExitCode.OK
