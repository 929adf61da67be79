"""The table of margins over base seeds, from what `--claims-json` writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claims.studies.repetitions import main, margins, shown


def run(claim: str, verdict: str, expected: str, *facts: dict[str, float]) -> dict[str, Any]:
    records = [
        {
            "facts": f, "measured": 1.0, "seeds": [0, 1, 2, 3], "reading": "",
            "ok": verdict == "holds",
        }
        for f in facts
    ]  # fmt: skip
    return {
        "claim": claim, "budget": "ci", "verdict": verdict, "expected_verdict": expected,
        "records": records,
    }  # fmt: skip


def by(margin: float) -> dict[str, float]:
    return {"margin": margin}


RUNS = [
    run("a", "holds", "holds", by(9.0), by(7.0)),
    run("a", "holds", "holds", by(6.0), by(30.0)),
    run("a", "failed", "holds", by(-2.0)),
    run("far", "refuted", "refuted", by(-17.0)),
    run("some", "refuted", "refuted", {"seeds outside": 3}),
    run("some", "refuted", "refuted", {"seeds outside": 2}),
    {"claim": "later", "budget": "document", "verdict": "holds"},
    {"claim": "without", "budget": "ci", "verdict": "not run"},
]


def test_a_row_has_the_nearest_comparison_of_each_base_seed() -> None:
    assert margins(RUNS) == [
        {
            "claim": "a", "verdict": "holds", "base seeds": "3", "otherwise": "1", "seeds": "4",
            "least": "-2.0", "median": "6.0", "fewest outside": "",
        },
        {
            "claim": "far", "verdict": "refuted", "base seeds": "1", "otherwise": "0",
            "seeds": "4", "least": "17.0", "median": "17.0", "fewest outside": "",
        },
        {
            "claim": "some", "verdict": "refuted", "base seeds": "2", "otherwise": "0",
            "seeds": "4", "least": "", "median": "", "fewest outside": "2",
        },
    ]  # fmt: skip


def test_what_is_shown_is_what_is_expected_to_hold() -> None:
    rows = margins([*RUNS, run("b", "holds", "holds", by(40.0))])
    first, _, *lines = shown(rows).splitlines()
    assert first == "7 verdicts, 1 of them other than the ledger says."
    assert lines[2:] == ["| a | 4 | -2.0 | 6.0 | 1 | b | 4 | 40.0 | 40.0 | 0 |"]
    assert {line.count("|") for line in lines} == {11}
    assert {line.count("|") for line in shown(rows[:1]).splitlines()[2:]} == {11}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "is no file that --claims-json wrote"),
        ("{", "is no file that --claims-json wrote"),
        ('{"runs": [{}]}', "is no file that --claims-json wrote"),
        ('{"runs": []}', "has no claim that was trained at the small budget"),
    ],
)
def test_a_file_of_another_kind_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, fault: str
) -> None:
    file, folder = tmp_path / "claims.json", tmp_path / "folder"
    folder.mkdir()
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit):
        main([str(file), str(folder)])
    assert fault in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(file), str(folder / "missing")])
    assert "is no folder; give one that exists" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_what_is_written_says_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "claims.json"
    facts = dict.fromkeys(("made", "implementation", "base_seed", "machine"), "said")
    paths = {"command": "pytest claims --claims-json a/b.json", "corpus": "A text, from c/d.txt"}
    file.write_text(json.dumps({**facts, **paths, "verdicts": {}, "runs": RUNS}))
    assert main([str(file), str(tmp_path)]) == 0
    written = json.loads((tmp_path / "provenance.json").read_text())
    assert written == facts | {"command": "pytest claims --claims-json FILE", "corpus": "A text"}
    assert (tmp_path / "margins.csv").read_text().splitlines()[1] == "a,holds,3,1,4,-2.0,6.0,"


def test_a_reading_under_which_the_sentence_fails_has_no_margin() -> None:
    both = run("a", "holds", "holds", by(9.0), by(-7.0))
    both["records"][1] |= {"ok": False, "reading": "another"}
    [row] = margins([both])
    assert row["least"] == "9.0"
