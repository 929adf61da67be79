"""Trained claims under pytest: which runs are trained, at which budget, what is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  pytester forgets what a run imports; torch allows this one once

from claims.harness import machine, paths
from claims.harness.implementation import Implementation
from claims.instruments.text.corpus import Corpus
from claims.training.pool import Done, Pool, do_here
from claims.training.spec import RunSpec
from claims.training.store import RunStore
from claims.training.travel import export
from conftest import ROOT, Project, output

# Each training is noted in a file. The tokenizer takes no time.
PACKAGE = """
import json, os
import torch, transformer
from transformer import MultiHeadAttention

class LanguageModel(transformer.LanguageModel):
    trained = False

    def forward(self, tokens):
        if torch.is_grad_enabled() and not self.trained:
            self.trained = True
            with open(os.environ["TRAINED"], "a") as file:
                file.write("once\\n")
        return super().forward(tokens)

class Tokenizer:
    @classmethod
    def train(cls, text, vocabulary):
        return cls()

    @classmethod
    def load(cls, path):
        return cls()

    def encode(self, text):
        return [ord(c) % 11 for c in text]

    def save(self, path):
        path.write_text("{}")
"""
EXPERIMENT = """
from dataclasses import replace
from claims.training.evaluation import evaluate
from claims.training.experiment import Experiment
from claims.training.measurement import Measurement
from claims.training.spec import Evaluation
from small_runs import MODEL, SCORED, SPEC

CI = Experiment({"a": SCORED, "b": replace(SCORED, steps=5)}, seeds=2)
BOTH = {
    "ci": CI, "document": Experiment({"a": replace(SCORED, steps=9), "b": SPEC}, seeds=3),
}
DOCUMENT = {"document": Experiment({"a": replace(SCORED, steps=8)}, seeds=1)}
"""
CLAIMS = """
@claim("both")
@trains(BOTH, "a")
def test_both(runs, check):
    check(len(runs.perplexities("a")), exact(len(runs.seeds)))

@claim("second")
@trains({"ci": CI}, "b", "a")
def test_second(runs, check):
    check([r.steps for label in "ab" for r in runs.results(label)], exact([7, 7, 5, 5]))

@claim("later")
@trains(DOCUMENT, "a")
def test_later(runs, check):
    check(runs.results("a").map(lambda result: result.steps), exact([8]))

@claim("plain")
def test_plain(check):
    check(1, exact(1))
"""
PLUGINS = [
    option
    for name in ("claims.plugins.corpus", "claims.plugins.training")
    for option in ("-p", name)
]


class Trained(Project):
    """A project with a corpus, an empty run store, and a note of what was asked of the pool."""

    def __init__(self, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(pytester, monkeypatch)
        self.asked: list[tuple[RunSpec, ...]] = []
        self.cache = self.folder / "cache"
        self.log = self.folder / "trained"
        self.package("learning", PACKAGE)
        (self.folder / "corpus.txt").write_text("The cat sat on the mat, and slept.\n" * 300)
        monkeypatch.setenv("CLAIMS_CACHE", str(self.cache))
        monkeypatch.setenv("CLAIMS_CORPUS", str(self.folder / "corpus.txt"))
        monkeypatch.setenv("TRAINED", str(self.log))
        monkeypatch.setattr(machine, "gpu_fault", lambda: "no GPU in this test")
        monkeypatch.setattr(Pool, "do_all", self._do_all())
        monkeypatch.setattr(Corpus, "shakespeare", True)  # what is trained here holds on any text
        self.test(EXPERIMENT)

    def _do_all(self) -> Any:
        """Without processes, which need seconds to start."""

        def do_all(pool: Pool, specs: Sequence[RunSpec], report: Any) -> Done:
            self.asked.append(tuple(specs))
            return do_here(specs, pool.place, pool.ids)

        return do_all

    def of_claims(self) -> Trained:
        """The four claims above."""
        self.entry("both", kind="training").entry("second", kind="training")
        self.entry(
            "later", "not run", kind="training", awaits="the document's budget",
            at_document={"verdict": "exact"},
        )  # fmt: skip
        self.entry("plain").test(CLAIMS)
        return self

    def run(self, *options: str) -> pytest.RunResult:
        if "--implementation" not in options:
            options = (*options, "--implementation", "learning")
        # Judged by the rules for the chapter's own package, whichever it is.
        package = options[options.index("--implementation") + 1]
        self._patch.setattr(paths, "REFERENCE", package)
        return super().run(*PLUGINS, *options)

    @property
    def trainings(self) -> int:
        """How many models were trained, in whatever process."""
        return len(self.log.read_text().split()) if self.log.exists() else 0

    def record_what_is_stored(self) -> None:
        """Export the runs of the store into the project's own record."""
        paths.EVIDENCE.mkdir(parents=True)
        package = Implementation("learning")
        store = RunStore(self.cache / "runs", package.source_digest())
        assert export(store, package, paths.EVIDENCE, None).new > 0

    def steps(self) -> Counter[int]:
        """How many runs of so many steps were asked for."""
        return Counter(spec.steps for specs in self.asked for spec in specs)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Trained:
    return Trained(pytester, monkeypatch)


# ---- what is trained -----------------------------------------------------------------------------


def test_the_small_budget_is_trained_once_for_all_claims(project: Trained) -> None:
    """Two claims share the runs of "a"; each is trained once, two seeds, and never again."""
    project.of_claims()
    result = project.run("-m", "not gpu")
    result.assert_outcomes(passed=3, skipped=2)
    assert project.steps() == {7: 2, 5: 2}
    assert project.trainings == 4
    project.run("-m", "not gpu").assert_outcomes(passed=3, skipped=2)
    assert (project.trainings, len(project.asked)) == (4, 1)


@pytest.mark.parametrize("options", [("--budget", "ci"), ("--budget", "ci", "-m", "not gpu")])
def test_budget_ci_deselects_the_other_budget(project: Trained, options: tuple[str, ...]) -> None:
    project.of_claims()
    result = project.run(*options)
    result.assert_outcomes(passed=3, deselected=2)
    assert result.ret == 0
    assert project.steps() == {7: 2, 5: 2}
    assert "never collected" not in output(result)


def test_budget_document_on_the_cpu_trains_that_budget_alone(project: Trained) -> None:
    result = project.of_claims().run("--budget", "document", "--device", "cpu")
    result.assert_outcomes(passed=3, deselected=2)
    assert project.steps() == {9: 3, 8: 1}


@pytest.mark.parametrize("options", [(), ("-m", "not gpu")], ids=["plain", "not gpu"])
def test_without_a_record_the_document_budget_is_not_run(
    project: Trained, options: tuple[str, ...]
) -> None:
    """The reason is shown; a claim that the small budget decided keeps its verdict."""
    result = project.of_claims().run("--claims-json", "out.json", *options)
    result.assert_outcomes(passed=3, skipped=2)
    assert result.ret == 0
    assert project.steps() == {7: 2, 5: 2}
    data = json.loads((project.folder / "out.json").read_text())
    assert data["verdicts"] == {
        "both": "exact", "second": "exact", "later": "not run", "plain": "exact",
    }  # fmt: skip
    assert "2 x the record has no such run" in output(result)
    assert "1 x awaits" not in output(result)


def test_the_document_budget_is_judged_from_the_record(project: Trained) -> None:
    """Nothing is trained for it, and the report says where the values come from."""
    project.of_claims().run("--budget", "document", "--device", "cpu")
    project.record_what_is_stored()
    before = len(project.asked)
    result = project.run("-k", "later", "--claims-json", "out.json")
    result.assert_outcomes(passed=1, deselected=4)
    assert len(project.asked) == before
    assert "1 claims were judged from the record of " in output(result)
    [run] = json.loads((project.folder / "out.json").read_text())["runs"]
    assert run["records"][0]["source"].startswith("the record of ")


def test_a_table_at_the_document_budget_is_compared_with_the_record_alone(
    project: Trained,
) -> None:
    """Runs made anew differ from it in digits: nothing is compared, and nothing is written."""
    folder = project.expected / "test_02_average"
    folder.mkdir()
    (folder / "t.csv").write_text("steps\n9\n")
    project.entry("t", "not run", kind="training", awaits="x", at_document={"verdict": "exact"})
    project.test("""
@claim("t")
@trains(DOCUMENT, "a")
def test_t(runs, check, table):
    steps = runs.results("a").map(lambda result: result.steps)
    check(steps, exact([8]))
    table({"steps": list(steps)}, {})
""")
    anew = ("--budget", "document", "--device", "cpu")
    for options in (anew, (*anew, "--regen-all")):
        project.run(*options).assert_outcomes(passed=1)
    assert (folder / "t.csv").read_text() == "steps\n9\n"
    project.record_what_is_stored()
    project.run().assert_outcomes(failed=1)
    (folder / "t.csv").write_text("steps\n8\n")
    project.run().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "options",
    [("--budget", "document", "--device", "cpu"), ("-m", "gpu")],
    ids=["--budget document", "-m gpu"],
)
def test_who_asks_for_the_document_budget_gets_runs_of_this_session(
    project: Trained, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.of_claims().run("--budget", "document", "--device", "cpu")
    project.record_what_is_stored()
    project.cache.rename(project.folder / "elsewhere")
    before = len(project.asked)
    monkeypatch.setattr(machine, "gpu_fault", lambda: "")
    monkeypatch.setattr(machine, "gpu", dict)
    project.run(*options, "-k", "later")
    assert [spec.steps for specs in project.asked[before:] for spec in specs] == [8]


def test_a_stored_table_is_of_the_record_and_not_of_runs_made_anew(project: Trained) -> None:
    """Which is neither compared with the latter nor written from them."""
    project.entry("a", kind="training").test(
        '@claim("a")\n@trains({"document": CI}, "a")\ndef test_a(runs, check, table):\n'
        "    check(1, exact(1))\n"
        '    table.over_seeds({"run": ["a"]}, [runs.perplexities("a")], 2)\n'
    )
    anew = ("--budget", "document", "--device", "cpu")
    for options in (anew, (*anew, "--regen-all")):
        project.run(*options).assert_outcomes(passed=1)
    assert not list(project.expected.rglob("*"))
    project.record_what_is_stored()
    project.run("--regen-all").assert_outcomes(failed=1)
    assert (project.expected / "test_02_average" / "a.csv").read_text() == "run,mean,sd,n\na,,,2\n"
    project.run().assert_outcomes(passed=1)


# A claim of at most five seeds that is looked at with three: values by seed, and the comparison.
LOOKS = """
LOOKS = {{"ci": Experiment({{"a": SPEC}}, seeds=5, earlier=(3,))}}

@claim("looked")
@trains(LOOKS, "a")
def test_looked(runs, check):
    values = iter([{values}])
    check(runs.results("a").map(lambda _: next(values)), {tolerance})
"""
BAND = 'seed_mean_within((0, 1), "the test")'


@pytest.mark.parametrize(
    ("values", "tolerance", "verdict", "seeds"),
    [
        ("0.5, 0.51, 0.49", BAND, "holds", 3),
        ("2.0, 2.01, 1.99", BAND, "refuted", 3),
        ("0.3, 0.5, 0.7, 0.5, 0.5", BAND, "holds", 5),
        ("0.98, 0.8, 2.0, 2.0, 2.01", 'every_seed_within((0, 1), "the test")', "refuted", 3),
        ("0.5, 0.5, 0.5, 0.5, 0.5", 'every_seed_within((0, 1), "the test")', "holds", 5),
    ],
    ids=["inside", "outside", "undecided", "a counterexample", "no counterexample yet"],
)
def test_seeds_that_decide_nothing_call_for_the_others(
    project: Trained, values: str, tolerance: str, verdict: str, seeds: int
) -> None:
    project.entry("looked", verdict, kind="training")
    project.test(LOOKS.format(values=values, tolerance=tolerance))
    result = project.run("--claims-json", "out.json")
    result.assert_outcomes(**{"xfailed" if verdict == "refuted" else "passed": 1})
    assert project.trainings == seeds
    [run] = json.loads((project.folder / "out.json").read_text())["runs"]
    [record] = run["records"]
    assert record["seeds"] == [1700 + i for i in range(seeds)]


def test_what_no_rule_of_looking_covers_gets_all_seeds(project: Trained) -> None:
    """The greatest of three values is not that of five: the body runs again, from the start."""
    project.entry("looked", "exact", kind="training").test("""
@claim("looked")
@trains({"ci": Experiment({"a": SPEC}, seeds=5, earlier=(3,))}, "a")
def test_looked(runs, check, rng):
    rng.normal(3)
    check(len(runs.results("a")), exact(len(runs.seeds)))
""")
    project.run("--claims-json", "out.json").assert_outcomes(passed=1)
    assert project.trainings == 5
    [run] = json.loads((project.folder / "out.json").read_text())["runs"]
    assert [record["measured"] for record in run["records"]] == [5]


def test_collecting_trains_nothing(project: Trained) -> None:
    result = project.of_claims().run("--collect-only", "-q")
    assert result.ret == 0
    for item in ("test_both[ci]", "test_both[document]", "test_second[ci]", "test_later[document]"):
        assert item in output(result)
    assert (project.asked, project.trainings) == ([], 0)
    assert not project.cache.exists()


def test_a_collection_that_failed_trains_nothing(project: Trained) -> None:
    project.of_claims().test("1 / 0\n", module="test_03_average_as_softmax")
    result = project.run("-m", "not gpu")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.trainings == 0


def test_k_trains_for_the_claims_that_it_selects(project: Trained) -> None:
    result = project.of_claims().run("-m", "not gpu", "-k", "both")
    result.assert_outcomes(passed=1, skipped=1, deselected=3)
    assert project.steps() == {7: 2}
    project.run("-k", "plain").assert_outcomes(passed=1, deselected=4)
    assert len(project.asked) == 1


def test_the_base_seed_changes_the_seeds_of_the_small_budget_alone(project: Trained) -> None:
    project.entry("a", kind="training").test(
        '@claim("a")\n@trains(BOTH, "a")\ndef test_a(runs, check):\n'
        "    check(runs.seeds, exact([s.seed for s in runs.specs('a')]))\n"
    )
    project.run("--budget", "ci", "--base-seed", "3")
    project.run("--budget", "document", "--device", "cpu", "--base-seed", "3")
    assert [sorted(spec.seed for spec in specs) for specs in project.asked] == [
        [300, 301], [0, 1, 2],
    ]  # fmt: skip
    assert all(spec.data.corpus for specs in project.asked for spec in specs)  # type: ignore[union-attr]


def test_each_claim_gets_its_own_evaluations(project: Trained) -> None:
    """One training serves both, also where the store cannot be written."""
    project.cache.mkdir()
    (project.cache / "runs").write_text("a file where the folder should be")
    project.entry("long", kind="training").entry("short", kind="training").test("""
LONG = {"ci": Experiment({"a": replace(SPEC, evaluations=(Evaluation(8),))}, seeds=1)}
SHORT = {"ci": Experiment({"a": replace(SPEC, evaluations=(Evaluation(4), Evaluation(1)))}, 1)}

@claim("long")
@trains(LONG, "a")
def test_long(runs, check):
    [result] = runs.results("a")
    check(len(result.scores), exact(1))
    check(runs.perplexities("a"), exact([result.scores[0].perplexity], because="the same score"))

@claim("short")
@trains(SHORT, "a")
def test_short(runs, check):
    [result] = runs.results("a")
    check(len(result.scores), exact(2))
    second = result.scores[1].perplexity
    check(runs.perplexities("a", Evaluation(1)), exact([second], because="the same score"))
    ids = torch.tensor([ord(c) % 11 for c in "The cat sat on the mat, and slept.\\n" * 300])
    again = Measurement("again", lambda spec, model: evaluate(model, ids, Evaluation(4)).perplexity)
    [measured] = runs.measured("a", again)
    check(runs.perplexities("a"), exact([measured], because="the same windows"))
""")
    result = project.run("-W", "default::claims.training.store.RunStoreWarning")
    result.assert_outcomes(passed=2, warnings=2)
    text = output(result)
    assert "runs cannot be written" in text
    assert "runs are not kept" in text
    assert project.trainings == 1


def test_what_is_measured_is_the_model_that_was_trained(project: Trained) -> None:
    """In evaluation mode, with its weights, the same from the store. No generator is drawn from."""
    project.entry("a", kind="training").test("""
def facts(spec, model):
    return [model.training, float(model.head.weight.detach().abs().sum())]

@claim("a")
@trains({"ci": CI}, "a")
def test_a(runs, check):
    first, second = runs.measured("a", Measurement("facts", facts))
    check([first[0], second[0]], exact([False, False]))
    check(first[1] == second[1], exact(False))
    with open("weights", "a") as file:
        file.write(f"{first} {second}\\n")
""")
    for _ in range(2):
        project.run().assert_outcomes(passed=1)
    for path in (project.cache / "runs").glob("*/measured.json"):
        path.unlink()
    project.run().assert_outcomes(passed=1)
    assert project.trainings == 2
    assert len(set((project.folder / "weights").read_text().splitlines())) == 1


def test_a_range_of_base_seeds_trains_for_each(project: Trained) -> None:
    """At the small budget. The seeds of the document's budget are fixed, so it runs once."""
    project.entry("a", kind="training", at_document={"verdict": "exact"}).test(
        '@claim("a")\n@trains(BOTH, "a")\ndef test_a(runs, budget, base_seed, check):\n'
        '    first = 100 * base_seed if budget == "ci" else 0\n'
        "    own = [first + i for i in range(2 if budget == 'ci' else 3)]\n"
        '    check([runs.seeds, [s.seed for s in runs.specs("a")]], exact([own, own]))\n'
        '    check(len(runs.perplexities("a")), exact(len(own)))\n'
    )
    result = project.run("--base-seed", "3..4", "-m", "not gpu")
    result.assert_outcomes(passed=2, skipped=1, deselected=1)
    assert [spec.seed for spec in project.asked[0]] == [300, 301, 400, 401]
    result = project.run("--base-seed", "3..4", "--budget", "document", "--device", "cpu")
    result.assert_outcomes(passed=1, deselected=3)
    assert [spec.seed for spec in project.asked[1]] == [0, 1, 2]


def test_a_model_is_measured_once_for_all_claims_and_sessions(project: Trained) -> None:
    """Measurements are kept by label and seed: those of "a" and of "b" are two."""
    project.entry("one", kind="training").entry("two", kind="training").test("""
measured = []

def seed_and_steps(spec, model):
    measured.append(spec.steps)
    return [spec.seed, spec.steps]

STEPS = Measurement("steps", seed_and_steps)

@claim("one")
@trains({"ci": CI}, "a")
def test_one(runs, check):
    check(runs.measured("a", STEPS), exact([[s, 7] for s in runs.seeds]))

@claim("two")
@trains({"ci": CI}, "a", "b")
def test_two(runs, check):
    check(runs.measured("a", STEPS), exact([[s, 7] for s in runs.seeds]))
    check(runs.measured("b", STEPS), exact([[s, 5] for s in runs.seeds]))
    with open("measured", "a") as file:
        file.write(f"{measured}\\n")
""")
    for _ in range(2):
        project.run().assert_outcomes(passed=2)
    assert (project.folder / "measured").read_text().splitlines() == ["[7, 7, 5, 5]", "[]"]


def test_a_damaged_entry_is_reported_and_trained_again(project: Trained) -> None:
    project.of_claims().run("-m", "not gpu", "-k", "both")
    for path in (project.cache / "runs").glob("*/weights"):
        path.write_bytes(path.read_bytes()[:-1])
    result = project.run("-m", "not gpu", "-k", "both")
    result.assert_outcomes(passed=1, skipped=1, deselected=3, warnings=2)
    assert "weights is damaged; what it held is made again" in output(result)
    assert project.trainings == 4


def test_a_resumed_run_is_reported(project: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    """As after a kill that left the state of the fourth step."""
    project.of_claims().run("-m", "not gpu", "-k", "both")
    [specs] = project.asked
    for path in (project.cache / "runs").glob("*/result.json"):
        path.unlink()
    store = RunStore(project.cache / "runs", source(project))
    store.keep_checkpoint(specs[0], {"step": 4})
    capsys.readouterr()
    project.run("-m", "not gpu", "-k", "both")
    said = capsys.readouterr().err
    assert "1 x heads, width 8, pre-norm, learned, seed 1700 goes on from step 4 of 7" in said


def source(project: Trained) -> str:
    return Implementation("learning").source_digest()


# ---- packages that cannot be trained -------------------------------------------------------------


def test_a_package_that_raises_fails_its_claims_alone(project: Trained) -> None:
    project.package("failing", PACKAGE + """
class LanguageModel(LanguageModel):
    def __init__(self, **settings):
        if settings["tied"]:
            raise ZeroDivisionError("no tied model")
        super().__init__(**settings)
""")
    project.of_claims().entry("tied", kind="training").test("""
TIED = {"ci": Experiment({"t": replace(SPEC, model=replace(MODEL, tied=True))}, seeds=2)}

@claim("tied")
@trains(TIED, "t")
def test_tied(runs, check):
    check(len(runs.results("t")), exact(2))
""")
    result = project.run("-m", "not gpu", "--implementation", "failing")
    result.assert_outcomes(passed=3, failed=1, skipped=2)
    text = output(result)
    assert (
        "RunFailed: 1 x heads, width 8, pre-norm, learned, seed 1700 cannot be trained: "
        "ZeroDivisionError: no tied model"
    ) in text
    assert "concurrent" not in text


@pytest.mark.parametrize(
    ("source_", "reason"),
    [
        (PACKAGE + "del Tokenizer\n", "package_ does not provide Tokenizer"),
        (PACKAGE + "del LanguageModel\n", "package_ does not provide LanguageModel"),
        (PACKAGE + "del MultiHeadAttention\n", "package_ does not provide MultiHeadAttention"),
    ],
    ids=["no tokenizer", "no model", "no attention"],
)
def test_what_a_package_lacks_is_the_reason(project: Trained, source_: str, reason: str) -> None:
    project.package("package_", source_)
    project.entry("a", kind="training").test(
        'OPEN = {"ci": Experiment({"a": replace(SCORED, causal=False)}, seeds=1)}\n'
        '@claim("a")\n@trains(OPEN, "a")\ndef test_a(runs, check):\n'
        '    check(len(runs.results("a")), exact(1))\n'
    )
    result = project.run("--implementation", "package_")
    result.assert_outcomes(skipped=1)
    assert f"1 x {reason}" in output(result)


# ---- somebody else's package ---------------------------------------------------------------------

OF_ANOTHER = """
@claim("a")
@trains({"ci": Experiment({"a": SCORED, "b": replace(SCORED, steps=5)}, seeds=1)}, "a", "b")
def test_a(runs, check):
    check([r.steps for label in "ab" for r in runs.results(label)], exact([7, 5]))
"""
TRAPS = {
    "none": ("", "exact", ""),
    "breaks": (
        "def forward(self, tokens): raise KeyError('mine')", "error",
        "LanguageModel.forward (__init__.py:{}) raises KeyError: 'mine' (training 1 x heads, ",
    ),
    "diverges": (
        "def forward(self, tokens): return super().forward(tokens) * float('nan')", "not run",
        "the loss of theirs is not finite at step 0 of training",
    ),
    "a tuple": (
        "def forward(self, tokens): return super().forward(tokens), None", "not run",
        "LanguageModel returns a tuple of (2, 3, 16), NoneType where the shape (2, 3, 16) is",
    ),
    "does not support it": (
        "def __init__(self, **settings):\n        assert settings.get('norm') != 'pre', 'mine'\n"
        "        super().__init__(**settings)", "not run", "LanguageModel.__init__ refuses: mine",
    ),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_what_training_meets_in_somebody_elses_package_is_said_once(
    project: Trained, trap: str
) -> None:
    method, verdict, reason = TRAPS[trap]
    source_ = f"{PACKAGE}\nclass LanguageModel(LanguageModel):\n    pass\n    {method}\n"
    project.package("theirs", source_)
    project.entry("a", kind="training").test(OF_ANOTHER)
    result = Project.run(
        project, *PLUGINS, "--implementation", "theirs", "--claims-json", "out.json"
    )
    [run] = json.loads((project.folder / "out.json").read_text())["runs"]
    line = source_.count("\n", 0, source_.find("raise KeyError")) + 1
    assert (run["verdict"], run["reason"][: len(reason.format(line))]) == (
        verdict, reason.format(line)
    )
    assert ("1 x" in output(result)) == (trap != "none")
    if trap in ("a tuple", "does not support it"):
        assert project.asked == [], "what a claim cannot use is not trained"


def test_blocks_whose_mixer_has_another_name_are_not_trained_without_a_mask(
    project: Trained,
) -> None:
    """A `mixer` that is set beside their own would leave the mask where it is."""
    project.package("theirs", PACKAGE + """
class Wrapped(torch.nn.Module):
    def __init__(self, block):
        super().__init__()
        self.attn = block

    def forward(self, x):
        return self.attn(x)

class LanguageModel(LanguageModel):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.blocks = torch.nn.ModuleList(map(Wrapped, self.blocks))
""")
    project.entry("a", kind="training").test(
        OF_ANOTHER.replace("SCORED,", "replace(SCORED, causal=False),", 1)
    )
    said = output(Project.run(project, *PLUGINS, "--implementation", "theirs"))
    assert "1 x the blocks of theirs have no `mixer` to be replaced" in said
    assert project.asked == []


def test_a_tokenizer_that_is_still_to_be_written_leaves_the_models_their_tokens(
    project: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a template; those are the reference's, and say nothing about the package."""
    monkeypatch.setattr(paths, "REFERENCE", "learning")
    stub = "class Tokenizer:\n    @classmethod\n    def train(cls, text, vocabulary): {}\n"
    for name, body in (("theirs", "raise NotImplementedError"), ("wrong", "raise KeyError")):
        project.package(name, PACKAGE + stub.format(body))
    project.entry("a", kind="training").test(OF_ANOTHER).entry("b").test(
        '\n@claim("b")\ndef test_b(tokens, check):\n    check(int(tokens.max()), exact(10))\n'
    )
    said = output(Project.run(project, *PLUGINS, "--implementation", "theirs"))
    assert "not run:\n  1 x it asks nothing of theirs\n" in said
    assert project.steps() == {7: 1, 5: 1}
    said = output(Project.run(project, *PLUGINS, "--implementation", "wrong"))
    assert "2 x the Tokenizer of wrong cannot make tokens: KeyError" in said


def test_on_another_text_trained_claims_are_not_run(
    project: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are about Tiny Shakespeare, and would fail on most other texts."""
    monkeypatch.setattr(Corpus, "shakespeare", False)
    result = project.of_claims().run("-m", "not gpu")
    result.assert_outcomes(passed=1, skipped=4)
    assert "2 x needs Tiny Shakespeare or its stand-in" in output(result)
    assert project.trainings == 0


def test_without_a_corpus_claims_on_text_are_not_run(
    project: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims on repeated random tokens need no corpus and are run."""
    from claims.instruments.text.corpus import CorpusError
    from claims.plugins import session

    monkeypatch.delenv("CLAIMS_CORPUS")

    def nowhere(*_: Any, **__: Any) -> None:
        raise CorpusError("no corpus in this test")

    monkeypatch.setattr(session, "find_corpus", nowhere)
    project.entry("r", kind="training").of_claims().test("""
from claims.training.spec import Repeats
REPEATS = {"ci": Experiment({"r": replace(SPEC, data=Repeats(11, 8, 4, 4)), "a": SCORED}, seeds=1)}

@claim("r")
@trains(REPEATS, "r")
def test_r(runs, check):
    check(runs.results("r")[0].steps, exact(7))
""")
    result = project.run("-m", "not gpu")
    result.assert_outcomes(passed=2, skipped=4)
    assert "2 x needs a corpus: no corpus in this test" in output(result)
    assert project.trainings == 1


# ---- options and marks ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--budget", "small"), "--budget takes ci or document, not 'small'"),
        (("--budget", "document", "--device", "gpu"), "--device takes cpu, not 'gpu'"),
        (("--device", "cpu"), "--device cpu belongs to --budget document"),
        (("--device", "cpu", "--budget", "ci"), "--device cpu belongs to --budget document"),
        (("--budget", "document"), "--budget document needs a CUDA GPU: no GPU in this test"),
    ],
)
def test_bad_options_are_one_sentence(
    project: Trained, options: tuple[str, ...], sentence: str
) -> None:
    result = project.of_claims().run(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in output(result).splitlines() if line.strip()]
    assert sentence in line
    assert project.trainings == 0


@pytest.mark.parametrize(
    ("mark", "sentence"),
    [
        ('@trains({"ci": CI}, "c")', "no budget of the experiment has the runs c; ci: a, b"),
        ('@trains({"ci": CI})', "write @trains(EXPERIMENT, label, ...)"),
        ("@trains()", "write @trains(EXPERIMENT, label, ...)"),
        ('@trains(CI, "a")', "write @trains(EXPERIMENT, label, ...)"),
        ('@trains({}, "a")', "an experiment has budgets ci or document"),
        ('@trains({"huge": CI}, "a")', "an experiment has budgets ci or document"),
    ],
)
def test_a_mark_that_names_no_runs_is_named(project: Trained, mark: str, sentence: str) -> None:
    project.entry("a", kind="training").test(
        f'@claim("a")\n{mark}\ndef test_a(runs, check):\n    check(1, exact(1))\n'
    )
    result = project.run()
    assert result.ret != 0
    assert f"test_02_average.py::test_a: {sentence}" in output(result).replace(
        "write @trains(EXPERIMENT, label, ...); an", "an"
    ) or f"test_02_average.py::test_a: {sentence}" in output(result)
    assert project.trainings == 0


def test_runs_without_the_mark_are_named(project: Trained) -> None:
    project.entry("a").test(
        '@claim("a")\ndef test_a(runs, check):\n    check(1, exact(1))\n'
    )
    result = project.run()
    result.assert_outcomes(errors=1)
    assert "test_a: `runs` belongs to a test marked @trains(...)" in output(result)


def test_the_mark_without_runs_is_named(project: Trained) -> None:
    project.entry("a", kind="training").test(
        '@claim("a")\n@trains({"ci": CI}, "a")\ndef test_a(check):\n    check(1, exact(1))\n'
    )
    result = project.run()
    assert result.ret != 0
    assert "test_a: a test marked @trains(...) takes `runs`" in output(result)


@pytest.mark.parametrize("asked", ["Evaluation(5)", "None"])
def test_an_evaluation_that_a_run_does_not_have_is_named(project: Trained, asked: str) -> None:
    experiment = "SCORED" if asked != "None" else "SPEC"
    project.entry("a", kind="training").test(
        f'@claim("a")\n@trains({{"ci": Experiment({{"a": {experiment}}}, 1)}}, "a")\n'
        "def test_a(runs, check):\n"
        f'    check(runs.perplexities("a", {asked}), exact(1))\n'
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "ValueError: the run 'a' has the evaluations [" in output(result)
    assert f"], not {asked.removesuffix(')')}" in output(result).replace("length=", "")


def test_runs_that_the_mark_does_not_name_are_refused(project: Trained) -> None:
    project.entry("a", kind="training").test(
        '@claim("a")\n@trains({"ci": CI}, "a")\ndef test_a(runs, check):\n'
        '    check(runs.perplexities("b"), exact(1))\n'
    )
    result = project.run()
    result.assert_outcomes(failed=1)
    assert "the claim declares a; it asks for 'b'" in output(result)


# ---- verdicts by budget --------------------------------------------------------------------------

AT_BOTH = """
@claim("a")
@trains(BOTH, "a")
def test_a(runs, check):
    check(len(runs.seeds), exact({wanted}))
"""


@pytest.mark.parametrize(
    ("wanted", "at_ci", "at_document"),
    [(2, "exact", "refuted"), (3, "refuted", "exact")],
)
def test_verdicts_are_demanded_by_budget(
    project: Trained, wanted: int, at_ci: str, at_document: str
) -> None:
    """Two seeds at the small budget, three at the document's: one sentence, two verdicts."""
    project.entry(
        "a", at_ci, kind="training", reading="At ci.",
        at_document={"verdict": at_document, "reading": "At three seeds."},
    ).test(AT_BOTH.format(wanted=wanted))  # fmt: skip
    small = project.run("--budget", "ci", "--claims-json", "small.json")
    large = project.run("--budget", "document", "--device", "cpu", "--claims-json", "large.json")
    for result, verdict in ((small, at_ci), (large, at_document)):
        kind = {"exact": "passed", "refuted": "xfailed"}[verdict]
        result.assert_outcomes(**{kind: 1, "deselected": 1})
    assert ("At three seeds." in output(large)) is (at_document == "refuted")
    for name, budget, verdict in (("small", "ci", at_ci), ("large", "document", at_document)):
        [run] = json.loads((project.folder / f"{name}.json").read_text())["runs"]
        assert (run["budget"], run["expected_verdict"], run["verdict"]) == (
            budget, verdict, verdict,
        )  # fmt: skip


def test_values_that_the_ledger_gives_by_budget_are_those_of_the_budget(project: Trained) -> None:
    project.entry(
        "a", kind="training", at_document={"verdict": "exact"},
        expected={"seeds": {"ci": 2, "document": 3}, "name": "a"},
    ).test("""
@claim("a")
@trains(BOTH, "a")
def test_a(runs, check, expected):
    check([len(runs.seeds), "a"], exact([expected["seeds"], expected["name"]]))
""")  # fmt: skip
    for options in (("--budget", "ci"), ("--budget", "document", "--device", "cpu")):
        project.run(*options).assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(
    ("wanted", "options"),
    [(3, ("--budget", "ci")), (2, ("--budget", "document", "--device", "cpu"))],
)
def test_the_verdict_of_the_other_budget_is_not_accepted(
    project: Trained, wanted: int, options: tuple[str, ...]
) -> None:
    project.entry(
        "a", "exact", kind="training", at_document={"verdict": "exact"}
    ).test(AT_BOTH.format(wanted=wanted))  # fmt: skip
    project.run(*options).assert_outcomes(failed=1, deselected=1)


def test_a_claim_of_the_document_budget_counts_as_not_run(project: Trained) -> None:
    result = project.of_claims().run("--budget", "ci")
    assert result.ret == 0
    text = output(result)
    assert "never collected" not in text
    assert "1 x awaits the document's budget" in text
    assert re.search(r"2-average +3 +\. +\. +\. +1 ", text)


def test_a_verdict_at_a_budget_that_no_run_has_is_named(project: Trained) -> None:
    project.entry("a", kind="training", at_document={"verdict": "exact"}).test(
        '@claim("a")\n@trains({"ci": CI}, "a")\ndef test_a(runs, check):\n    check(1, exact(1))\n'
    )
    result = project.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "claim a: the ledger has a verdict at the document's budget, but its test trains" in (
        output(result)
    )
    assert project.trainings == 0


def test_a_claim_that_the_small_budget_cannot_decide_is_not_run_at_it(project: Trained) -> None:
    """Although the experiment has runs at that budget."""
    project.entry(
        "b", "not run", kind="training", awaits="hours", at_document={"verdict": "exact"}
    ).entry("plain").test(
        '@claim("b")\n@trains(BOTH, "a")\ndef test_b(runs, check):\n'
        '    check(len(runs.results("a")), exact(3))\n'
        '@claim("plain")\ndef test_plain(check):\n    check(1, exact(1))\n'
    )  # fmt: skip
    result = project.run("-m", "not gpu")
    result.assert_outcomes(passed=1, skipped=1, deselected=1)
    assert "1 x the record has no such run" in output(result)
    result = project.run("--budget", "ci")
    result.assert_outcomes(passed=1, deselected=2)
    assert result.ret == 0
    assert "1 x awaits hours" in output(result)
    assert project.trainings == 0
    result = project.run("--budget", "document", "--device", "cpu")
    result.assert_outcomes(passed=2, deselected=1)


def test_only_a_trained_claim_has_a_verdict_at_the_document_budget(project: Trained) -> None:
    result = project.entry("a", at_document={"verdict": "exact"}).test("").run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "claim a: only claims of kind 'training' have a budget" in output(result)


# ---- processes -----------------------------------------------------------------------------------

CONFTEST = """
from pathlib import Path
from claims.harness import paths
from claims.instruments.text.corpus import Corpus

HERE = Path(__file__).parent
paths.LEDGER = HERE / "fixtures" / "ledger.yaml"
paths.EXPECTED = HERE / "fixtures" / "expected"
paths.EVIDENCE = HERE / "fixtures" / "evidence"
paths.CLAIMS = HERE / "claims"
paths.REFERENCE = "learning"
Corpus.shakespeare = True
"""


def in_processes(project: Trained, *options: str) -> dict[str, Any]:
    """Run pytest as users start it; returns what it recorded, without times."""
    project.write_ledger()
    (project.folder / "conftest.py").write_text(CONFTEST)
    arguments = [sys.executable, "-m", "pytest", "-p", "claims.harness.plugin", *PLUGINS]
    arguments += ["-p", "no:cacheprovider", "-p", "no:randomly", "--implementation", "learning"]
    path = [str(project.folder), str(ROOT / "tests"), str(ROOT)]
    done = subprocess.run(
        [*arguments, "claims", "-m", "not gpu", "--claims-json", "out.json", *options],
        cwd=project.folder, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((project.folder / "out.json").read_text())
    return {run["test"]: (run["verdict"], run["records"]) for run in data["runs"]}


def test_two_workers_train_each_run_once_and_measure_the_same(project: Trained) -> None:
    """Under xdist each worker trains what no other one trains; without xdist a pool does."""
    project.entry("p", "holds", kind="training").of_claims().test("""
@claim("p")
@trains({"ci": CI}, "a", "b")
def test_p(runs, check):
    values = [*runs.perplexities("a"), *runs.perplexities("b")]
    check(sum(values), ulps(sum(values), 1, "itself"))
""")
    pooled = in_processes(project)
    assert project.trainings == 4
    project.cache.rename(project.folder / "elsewhere")
    assert in_processes(project, "-n", "2") == pooled
    assert project.trainings == 8
    assert len(pooled) == 6  # two of them from the record, which is empty
    assert isinstance(pooled["claims/test_02_average.py::test_p[ci]"][1][0]["measured"], float)
