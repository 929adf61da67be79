"""The commands that run the claims on changed copies of `transformer/`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claims.harness.diagnosis import FOLDER, known
from claims.harness.ledger import Entry, Ledger
from claims.harness.stash import CORPUS_LINE, LEDGER
from claims.studies import fingerprints as study
from claims.studies import variants
from claims.studies.variants import REFERENCE, Variant
from conftest import ROOT

# ---- a copy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "old", "new", "changed"),
    [
        ("block.py", "F.gelu(", "F.relu(", {"block.py:FeedForward.forward"}),
        ("block.py", "dropout: float = 0.0) -> None", "dropout: float = 0.1) -> None",
         {"block.py:FeedForward.__init__"}),
        ("size.py", 'NORMS = ("pre", ', 'NORMS = (', {"size.py:"}),
        ("size.py", "context: int = 128", "context: int = 64", {"size.py:"}),
        ("model.py", "class DecoderLayer(nn.Module)", "class DecoderLayer(Module)", {"model.py:"}),
        ("average.py", "# (T, T) @", "# @", set()),
        ("average.py", "The average as a layer", "An average", set()),
    ],
    ids=[
        "a body", "a signature", "a constant", "a field", "a base class", "a comment",
        "a docstring",
    ],
)
def test_what_a_copy_changes_is_named_by_function(
    file: str, old: str, new: str, changed: set[str]
) -> None:
    source = (REFERENCE / file).read_text(encoding="utf-8")
    assert old in source
    assert Variant("copy", file, source.replace(old, new)).changed() == changed


def test_another_text_of_a_file_is_another_package() -> None:
    digests = {Variant("copy", file, text).digest() for file in "ab" for text in ("x", "y")}
    assert len(digests) == 4
    assert Variant("other_name", "a", "x").digest() in digests


# ---- a fork --------------------------------------------------------------------------------------


def end(code: Callable[[], None], folder: Path, limit: int = 60) -> str:
    return variants._forked(code, folder / "errors", limit)


def test_a_fork_that_ends_well_says_nothing(tmp_path: Path, capfd: Any) -> None:
    def write() -> None:
        print("unheard")
        (tmp_path / "done").touch()

    assert end(write, tmp_path) == ""
    assert (tmp_path / "done").exists()
    assert capfd.readouterr().out == ""


def test_a_fork_that_raises_says_what(tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("no such package")

    assert end(fail, tmp_path).endswith("RuntimeError: no such package\n")


def test_a_fork_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it computes or waits; by its own time, not by that of a busy machine."""

    def compute() -> None:
        while True:
            pass

    assert end(compute, tmp_path, limit=1) == "not done after 1 s of the processor"
    monkeypatch.setattr(variants, "PATIENCE", 0.2)
    assert end(lambda: time.sleep(60), tmp_path, limit=1) == "not done after 0.2 s"


# ---- the claims on a copy ------------------------------------------------------------------------

ON_COPIES = """
import json, sys
from pathlib import Path
from claims.harness.diagnosis import FOLDER, known
from claims.studies.fingerprints import made_in_a_copy
from claims.studies.variants import collected

work, module, *names = sys.argv[1:]
found = {}

def do(session):
    for mistake in known(FOLDER).mistakes:
        if mistake.name in names:
            variant = made_in_a_copy(mistake)
            items = session.items_for(variant)
            found[mistake.name] = dict(session.judge(variant, items).outcomes)
            first = session.judge(variant, items, first=True).outcomes
            found[f"first of {mistake.name}"] = dict(first)

collected(Path(work), do, tests=[f"claims/{module}.py"])
Path(work, "found.json").write_text(json.dumps(found))
"""


def test_a_mistake_breaks_what_its_fingerprint_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one module; the command runs all modules."""
    names = ["alibi-rewards-distance", "rotary-by-halves"]
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    text = "".join(f"The {n}th line, with {n * n} in it.\n" for n in range(4000))
    (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    monkeypatch.setenv("CLAIMS_CORPUS", str(tmp_path / "corpus.txt"))
    script = [sys.executable, "-c", ON_COPIES, str(tmp_path), "test_08_positions", *names]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    prints = known(FOLDER).fingerprints
    for name in names:
        failed = {claim for claim, outcome in found[name].items() if outcome == "failed"}
        ran = {claim for claim, outcome in found[name].items() if outcome != "not run"}
        assert failed
        assert failed == prints[name] & ran
        *before, last = found[f"first of {name}"].values()
        assert (set(before) <= {"agreed", "not run"}, last) == (True, "failed")


# ---- the command that measures -------------------------------------------------------------------

FOUR = """\
- {name: left, says: the left one is wrong, file: block.py, old: F.gelu, new: F.relu}
- {name: right, says: the right one is wrong, file: block.py, old: F.gelu, new: F.silu}
- {name: both, says: both are wrong, file: block.py, old: F.gelu, new: F.tanh}
- {name: also, says: another is wrong, file: block.py, old: bool = True, new: bool = False}
"""
BREAKS = {"left": ["one", "two"], "right": ["two"], "both": [], "also": ["one"]}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with four mistakes; which claims each breaks is given here."""
    text = FOUR.replace("old: bool = True", "old: 'feed_forward: bool = True'").replace(
        "new: bool = False", "new: 'feed_forward: bool = False'"
    )
    (tmp_path / "mistakes.yaml").write_text(text)
    modules = {"one": "test_09_dropout", "two": "test_10_quadratic_cost"}
    ledger = Ledger((), {name: Entry(name, "", "", "", "", subject=modules[name][5:])
                         for name in modules})
    config = SimpleNamespace(
        getoption=lambda name: "17",
        stash={CORPUS_LINE: "Tiny Shakespeare, from /a/place", LEDGER: ledger},
    )

    def broken(variant: Variant, *_: object) -> list[str]:
        return BREAKS[variant.name.removeprefix("with_")]

    monkeypatch.setattr(study, "_broken", broken)
    session = SimpleNamespace(config=config, items_for=lambda variant: variant.name)
    monkeypatch.setattr(study, "collected", lambda work, do, tests: do(session))
    return tmp_path


def rows(path: Path) -> list[tuple[str, ...]]:
    with path.open() as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def test_the_command_writes_what_broke_and_names_what_no_claim_notices(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main([str(measured)]) == 1
    assert "no claim notices both" in capsys.readouterr().err
    assert rows(measured / "fingerprints.csv") == [
        ("left", "one"), ("left", "two"), ("right", "two"), ("also", "one"),
    ]
    facts = json.loads((measured / "provenance.json").read_text())
    assert facts["corpus"] == "Tiny Shakespeare"
    assert facts["base_seed"] == "17"


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--mistakes", "right"], [("right", "one")]),
        (["--tests", "claims/test_09_dropout.py"], [("right", "one"), ("right", "two")]),
    ],
    ids=["mistakes", "tests"],
)
def test_what_is_not_measured_anew_stays(
    options: list[str], left: list[tuple[str, str]], measured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.main([str(measured)])
    (measured / "outside.csv").write_text("mistake,claim\n")
    monkeypatch.setitem(BREAKS, "right", ["one"])
    monkeypatch.setitem(BREAKS, "left", [])
    study.main([str(measured), *options])
    of_right = [row for row in rows(measured / "fingerprints.csv") if row[0] == "right"]
    assert of_right == left
    again = json.loads((measured / "provenance.json").read_text())["measured anew"]
    assert [set(each) >= {"mistakes", "tests", "made", "machine"} for each in again] == [True]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--mistakes", "middle"], "--mistakes middle: "),
        (["--tests", "claims/test_14.py"], "--tests claims/test_14.py: no such file"),
        (["--mistakes", "left"], "no fingerprints.csv to keep rows of; measure all of it first"),
    ],
    ids=["no such mistake", "no such test", "nothing to keep"],
)
def test_a_part_that_cannot_be_measured_is_one_sentence(
    options: list[str], sentence: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        study.main([str(measured), *options])
    assert sentence in capsys.readouterr().err


def test_a_claim_that_takes_seconds_is_tried_where_the_mistake_names_it() -> None:
    def item(name: str) -> Any:
        return SimpleNamespace(
            nodeid=name, iter_markers=lambda _: [SimpleNamespace(args=(name,), kwargs={})]
        )

    quick, slow, slower = item("quick"), item("gradnorm-pre"), item("gradnorm-post")
    session = SimpleNamespace(items_for=lambda _: [quick, slow, slower])
    tried = study.items_of(Variant("copy", "block.py", ""), ["gradnorm-pre"], session)
    assert tried == [quick, slow]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (FOUR.replace("block.py", "a.py"), "mistake left: a.py does not exist"),
        ("- {name: left}\n", "must be a list, with name, says, file, old, new, also in each entry"),
        (FOUR.replace("file:", "also: [one], file:"), "`also` has one; it may have divided-init"),
        ("left: {\n", "must be a list, with name, says, file, old, new, also in each entry"),
    ],
    ids=["a missing file", "half an entry", "a quick claim", "no YAML"],
)
def test_a_mistake_that_cannot_be_made_is_one_sentence_and_keeps_the_old_table(
    text: str, sentence: str, measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (measured / "fingerprints.csv").write_text("the old table")
    (measured / "mistakes.yaml").write_text(text)
    with pytest.raises(SystemExit):
        study.main([str(measured)])
    assert sentence in capsys.readouterr().err
    assert (measured / "fingerprints.csv").read_text() == "the old table"


def test_a_folder_without_mistakes_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        study.main([str(tmp_path)])
    assert "has no mistakes.yaml; give fixtures/implementations" in capsys.readouterr().err
