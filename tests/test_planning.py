"""What a sweep will cost: operations, timed steps, workers, and the command that prints it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from claims.experiments.ladder import LADDER_RUNS
from claims.experiments.rungs import FOUR_HEADS, HEAD_ADDED, NO_CONTEXT, ONE_BLOCK
from claims.training import planning
from claims.training.__main__ import main
from claims.training.planning import makespan, operations, plan, tokens_of
from claims.training.spec import Evaluation, ModelSettings, Repeats, RunSpec, Schemas, Text
from small_runs import SPEC

STEP = RunSpec(ONE_BLOCK.model, Text(128), steps=1, batch=64)


def of_a_token(spec: RunSpec, length: int) -> float:
    """Multiplications of one token in a forward pass."""
    return operations(spec) / (6 * spec.steps * spec.batch * length)


def test_operations_are_those_of_the_products() -> None:
    d, vocabulary, length = 128, 1024, 128
    block = 12 * d * d + 2 * length * d
    assert of_a_token(STEP, length) == block + d * vocabulary
    assert operations(replace(STEP, steps=10)) == 10 * operations(STEP)

    def of_a_rung(model: ModelSettings) -> float:
        return of_a_token(replace(STEP, model=model), length) - d * vocabulary

    assert of_a_rung(NO_CONTEXT.model) == 0
    assert of_a_rung(FOUR_HEADS.model) == 4 * d * d + 2 * length * d
    assert of_a_rung(HEAD_ADDED.model) == 3 * d * d + 2 * length * d
    wide = replace(FOUR_HEADS.model, n_heads=1, d_head=1024)
    assert of_a_rung(wide) == 4 * d * 1024 + 2 * length * 1024


def test_operations_are_those_of_the_matrix_products_that_run() -> None:
    """Counted by torch in a forward and a backward pass of the model itself."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import transformer
    from claims.training.loop import build, gradients

    spec = replace(STEP, batch=2)
    model = build(transformer, spec)
    tokens = torch.zeros(2, 129, dtype=torch.int64)
    with FlopCounterMode(display=False) as counted:
        gradients(model, tokens, spec, "cpu")
    assert operations(spec) == pytest.approx(counted.get_total_flops(), rel=0.01)


def test_an_evaluation_counts_a_third_of_training_and_each_window() -> None:
    held_out = Evaluation(128)
    more = operations(replace(STEP, evaluations=(held_out,))) - operations(STEP)
    assert more == pytest.approx(operations(STEP) / 3 * 45_976 / (64 * 128))
    assert tokens_of(Evaluation(128, stride=32)) == 4 * tokens_of(held_out)
    assert tokens_of(Evaluation(128, "training")) == 413_784


@pytest.mark.parametrize(
    ("data", "length"), [(Schemas("pool", 3, 0), 17), (Repeats(9, 40, 3, 5), 40), (Text(7), 7)]
)
def test_every_kind_of_data_has_a_length(data: Schemas | Repeats | Text, length: int) -> None:
    assert planning.length_of(replace(SPEC, data=data, evaluations=())) == length


def test_a_free_worker_takes_the_next_run() -> None:
    assert makespan([5, 4, 3, 3], 1) == 15
    assert makespan([5, 4, 3, 3], 2) == 8
    assert makespan([5, 4], 9) == 5


def test_a_run_of_two_experiments_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (replace(SPEC, seed=seed) for seed in (1, 2))
    monkeypatch.setattr(
        planning, "seconds_of", lambda specs, *_: {spec.digest(): 10.0 for spec in specs}
    )
    made = plan({"a": [first, second], "b": [second], "c": [first]}, "transformer", 2, 1)
    assert [(row.name, row.runs, row.seconds) for row in made.rows] == [("a", 2, 20.0)]
    assert (made.total.runs, made.total.seconds, made.seconds) == (2, 20.0, 10.0)
    assert made.total.operations == operations(first) + operations(second)


def test_runs_that_differ_in_seed_and_steps_share_a_timed_step(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {planning._kind(spec) for spec in LADDER_RUNS["ci"].of("no context")}
    assert len(kinds) == 1
    assert planning._kind(replace(SPEC, seed=3, steps=9)) == planning._kind(SPEC)
    assert planning._kind(replace(SPEC, batch=SPEC.batch + 1)) != planning._kind(SPEC)


def test_a_step_is_timed_in_processes_beside_each_other() -> None:
    twice = replace(SPEC, steps=2 * SPEC.steps, evaluations=())
    once = replace(SPEC, evaluations=())
    seconds = planning.seconds_of([once, twice], "transformer", 1)
    assert seconds[twice.digest()] == pytest.approx(2 * seconds[once.digest()])
    assert 0 < seconds[once.digest()] < 60


def test_the_command_prints_a_row_for_each_experiment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        planning, "seconds_of", lambda specs, *_: {spec.digest(): 3600.0 for spec in specs}
    )
    assert main(["plan", "--budget", "document", "--seeds", "2", "--workers", "4"]) == 0
    said = capsys.readouterr().out
    lines = {line.split("  ")[0].strip(): line.split() for line in said.splitlines() if line}
    runs = len(LADDER_RUNS["document"].runs) * 2
    assert lines["ladder"][1] == f"{runs}"
    assert lines["ladder"][3] == f"{runs:.2f}"
    assert "on 4 workers like this one" in said
    assert "on a GPU: not known" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--budget", "large"], "invalid choice: 'large'"),
        (["--budget", "ci", "--seeds", "0"], "a whole number, at least 1, not '0'"),
        (["--budget", "ci", "--workers", "few"], "a whole number, at least 1, not 'few'"),
        (["--budget", "ci", "--implementation", "lacking"], "lacking does not provide LanguageM"),
        ([], "--budget"),
    ],
)
def test_what_cannot_be_planned_is_said(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "lacking.py").write_text("def causal_mask(n, m=None, device=None): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["plan", *arguments])
    assert end.value.code == 2
    assert says in capsys.readouterr().err
