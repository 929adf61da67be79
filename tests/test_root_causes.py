"""What failed stands beneath what it rests on; the first line is the root cause."""

from __future__ import annotations

import pytest

from claims.harness.ledger import Entry, Ledger
from claims.harness.root_causes import root_causes
from claims.studies import requires as study
from conftest import Project, output

RESTS_ON = {
    "alone": (),
    "mask": (),
    "weights": ("mask",),
    "output": ("weights",),
    "layer": ("output", "mask"),
    "other": (),
    "model": ("other",),
}


def ledger() -> Ledger:
    entries = [
        Entry(name, "2-average", f"The sentence of {name}.", "exact", "exact", requires=needed)
        for name, needed in RESTS_ON.items()
    ]
    return Ledger(("2-average",), {entry.id: entry for entry in entries})


@pytest.mark.parametrize(
    ("failed", "places"),
    [
        ("", []),
        ("alone", [(0, "alone")]),
        ("layer output weights mask", [
            (0, "mask"), (1, "weights"), (2, "output"), (3, "layer"),
        ]),
        # The one on which most rests comes first, whatever the order of the ledger.
        ("alone other mask weights output", [
            (0, "mask"), (1, "weights"), (2, "output"), (0, "alone"), (0, "other"),
        ]),
        # Through `weights`, which did not fail.
        ("output mask", [(0, "mask"), (1, "output")]),
        ("model layer", [(0, "layer"), (0, "model")]),
    ],
)  # fmt: skip
def test_what_rests_on_a_failed_claim_stands_beneath_it(
    failed: str, places: list[tuple[int, str]]
) -> None:
    assert root_causes(failed.split(), ledger()) == places


RED = """
@claim("mask")
def test_mask(check):
    check(1, exact(2))

@claim("output")
def test_output(check):
    check(1, exact(2))

@claim("alone")
def test_alone(check):
    check(1, exact(2))
"""


def test_the_summary_names_the_root_cause_first(project: Project) -> None:
    project.entry("alone").entry("output", requires=["mask"]).entry("mask")
    result = project.test(RED).run()
    said = output(result)
    places = [said.index(f"\n{line}: claims") for line in ("  mask", "    output", "  alone")]
    assert places == sorted(places)


@pytest.mark.usefixtures("drawn")
def test_the_command_draws_what_rests_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split()[-1] for line in lines] == [
        "mask", "weights", "output", "layer", "layer", "other", "model",
    ]
    assert study.main(["output"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "output: The sentence of output.", "└── layer: The sentence of layer.",
    ]


@pytest.mark.usefixtures("drawn")
def test_a_claim_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        study.main(["nothing"])
    assert "the ledger has no claim 'nothing'" in capsys.readouterr().err


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "load_ledger", lambda _: ledger())
