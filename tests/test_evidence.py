"""The record: what it holds, what it refuses, and how runs travel between machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transformer
from claims.experiments.registry import runs_at
from claims.harness import paths
from claims.harness.implementation import Implementation, Missing
from claims.training.__main__ import main as command
from claims.training.evidence import Evidence, EvidenceError, Record, merge, probe, read
from claims.training.experiment import Experiment
from claims.training.loop import build
from claims.training.measurement import Measurement
from claims.training.measurements import INDUCTION
from claims.training.pool import name_of
from claims.training.results import Gathered, Recorded, Runs
from claims.training.run import run
from claims.training.spec import FASTEST, Evaluation, RunResult, RunSpec, Score
from claims.training.travel import bring_in, export
from small_runs import MODEL, SCORED, SPEC, ids, store

TEXT = ids()
REFERENCE = Implementation("transformer")
STEPS = Measurement("steps", lambda spec, model: spec.steps)
FACTS = {"date": "2026-01-31", "device": "cpu"}


def evidence(spec: RunSpec = SCORED, nll: float = 400.0) -> Evidence:
    scores = tuple(Score(nll, 200) for _ in spec.evaluations)
    result = RunResult(spec.steps, None, (), 1.0, scores)
    return Evidence(spec, result, {"steps": spec.steps}, probe(transformer, spec), FACTS)


def record(folder: Path, implementation: Any = transformer) -> Record:
    return Record([folder], implementation)


# ---- what a claim is judged from -----------------------------------------------------------------


def test_a_run_of_the_record_is_found_whatever_the_text_of_the_session(tmp_path: Path) -> None:
    merge([("a", evidence(SCORED.on("tiny shakespeare")))], tmp_path)
    source = Recorded(record(tmp_path))
    assert source.result(SCORED.on("another text")).scores == (Score(400.0, 200),) * 2
    assert source.measured(SCORED, STEPS) == 7
    assert source.words(SCORED) == "the record of 2026-01-31, cpu, float32 products"


def test_scores_come_in_the_order_that_is_asked(tmp_path: Path) -> None:
    scored = evidence()
    result = replace(scored.result, scores=(Score(1.0, 1), Score(2.0, 1)))
    merge([("a", replace(scored, result=result))], tmp_path)
    turned = replace(SCORED, evaluations=SCORED.evaluations[::-1])
    assert Recorded(record(tmp_path)).result(turned).scores == (Score(2.0, 1), Score(1.0, 1))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (replace(SCORED, seed=1), "the record has no such run"),
        (replace(SCORED, evaluations=(Evaluation(4),)), "without all of its evaluations"),
    ],
)
def test_what_the_record_lacks_is_not_run(tmp_path: Path, spec: RunSpec, sentence: str) -> None:
    merge([("a", evidence())], tmp_path)
    with pytest.raises(Missing, match=sentence):
        Recorded(record(tmp_path)).result(spec)


def test_a_measurement_that_the_record_lacks_is_not_run(tmp_path: Path) -> None:
    merge([("a", evidence())], tmp_path)
    with pytest.raises(Missing, match="has not measured depth"):
        Recorded(record(tmp_path)).measured(SCORED, Measurement("depth", lambda spec, model: 1))


def runs_of(record_: Record) -> Runs:
    experiment = Experiment({"a": SCORED, "b": replace(SCORED, steps=9)}, seeds=3)
    return Runs(experiment, ("a", "b"), 0, "", Recorded(record_))


def test_a_label_has_the_seeds_whose_runs_were_made(tmp_path: Path) -> None:
    merge(((f"{s}", evidence(replace(SCORED, seed=s))) for s in (0, 2)), tmp_path)
    runs = runs_of(record(tmp_path))
    made = runs.made()
    assert made.perplexities("a").seeds == made.measured("a", STEPS).seeds == [0, 2]
    assert made.results("a").source == "the record of 2026-01-31, cpu, float32 products"
    assert list(made.perplexities("b")) == []
    with pytest.raises(Missing, match="the record has no such run"):
        runs.perplexities("a")


def test_runs_that_another_implementation_made_are_refused(tmp_path: Path) -> None:
    merge([("a", evidence())], tmp_path)
    with pytest.raises(Missing, match="the record is of another implementation"):
        runs_of(record(tmp_path, Doubled)).made().results("a")


class Doubled:
    """An implementation whose models start with weights twice as large."""

    @staticmethod
    def LanguageModel(**settings: Any) -> Any:
        model = transformer.LanguageModel(**settings)
        for parameter in model.parameters():
            parameter.data *= 2
        return model


def test_the_record_of_another_implementation_is_refused_in_words(tmp_path: Path) -> None:
    merge([("a", evidence())], tmp_path)
    said = record(tmp_path, Doubled).find(SCORED)
    assert isinstance(said, str)
    assert "the record is of another implementation: the weights of a run" in said


def test_the_probe_sees_weights_loss_and_gradient(tmp_path: Path) -> None:
    values = probe(transformer, SPEC)
    model = build(transformer, SPEC)
    magnitude = sum(float(p.detach().abs().sum()) for p in model.parameters())
    assert values["weights"] == pytest.approx(magnitude)
    assert values["loss"] > 0
    assert values["gradient"] > 0
    assert probe(transformer, replace(SPEC, seed=1)) != values


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no file of the record"),
        ("{}", "is no file of the record"),
        ('{"formats": [0, 0, 0]}', r"is of the formats \[0, 0, 0\]"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_name(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EvidenceError, match=sentence):
        read(tmp_path / "run.json")
    assert len(record(tmp_path).faults) == 1


def test_a_file_of_the_record_reads_as_it_was_written(tmp_path: Path) -> None:
    merge([("One block, seed 0", evidence())], tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("one-block-seed-0-")
    assert read(path) == evidence()


# ---- runs that travel ----------------------------------------------------------------------------


def test_merging_adds_what_is_new_and_never_overwrites(tmp_path: Path) -> None:
    assert merge([("a", evidence())], tmp_path).new == 1
    (path,) = tmp_path.iterdir()
    before = path.read_text()
    later = replace(evidence(), facts={**FACTS, "date": "2027-01-31"})
    slower = replace(later, result=replace(later.result, seconds=99.0))
    assert merge([("a", slower)], tmp_path).known == 1
    merged = merge([("a", evidence(nll=401.0))], tmp_path)
    assert merged.new == merged.known == 0
    assert merged.conflicts == [f"a: {path.name} has another result, and is kept"]
    assert path.read_text() == before


def test_measurements_that_are_missing_are_added(tmp_path: Path) -> None:
    merge([("a", replace(evidence(), measured={"steps": 7}))], tmp_path)
    assert merge([("a", replace(evidence(), measured={"steps": 8, "depth": 1}))], tmp_path).known
    (path,) = tmp_path.iterdir()
    assert read(path).measured == {"steps": 7, "depth": 1}


def test_a_run_is_exported_with_its_scores_and_measurements_and_brought_in(tmp_path: Path) -> None:
    kept = store(tmp_path / "runs")
    result = run(transformer, SCORED, kept, TEXT)
    gathered = Gathered(kept, REFERENCE, {SCORED.digest(): (SCORED, result)})
    assert gathered.measured(SCORED, STEPS) == 7
    run(transformer, replace(SCORED, seed=1), kept, TEXT)
    (tmp_path / "out").mkdir()
    assert export(kept, transformer, tmp_path / "out", [SCORED]).new == 1
    assert bring_in(tmp_path / "out", tmp_path / "in").new == 1
    source = Recorded(record(tmp_path / "in"))
    assert source.result(SCORED).scores == result.scores
    assert source.measured(SCORED, STEPS) == 7
    assert export(kept, transformer, tmp_path / "out", None).new == 1  # the other seed


def test_a_damaged_file_stops_an_import_before_anything_is_merged(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    merge([("a", evidence())], tmp_path / "out")
    (tmp_path / "out" / "z.json").write_text("{")
    with pytest.raises(EvidenceError, match=r"z\.json is no file of the record"):
        bring_in(tmp_path / "out", tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_the_commands_export_and_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLAIMS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "out").mkdir()
    merge([("a", evidence())], tmp_path / "out")
    assert command(["import", str(tmp_path / "out")]) == 0
    assert "1 runs added" in capsys.readouterr().out
    assert command(["export", str(tmp_path / "out")]) == 0
    for arguments, sentence in (
        (["export", str(tmp_path / "nowhere")], "is no folder; give one that exists"),
        (["import", str(tmp_path / "cache")], "holds no file of the record"),
    ):
        with pytest.raises(SystemExit):
            command(arguments)
        assert sentence in capsys.readouterr().err


# ---- the project's own record --------------------------------------------------------------------


def test_every_file_of_the_record_is_of_a_run_that_an_experiment_has() -> None:
    wanted = {spec.on("").digest() for spec in runs_at("document")}
    files = sorted(paths.EVIDENCE.glob("*.json"))
    assert files
    strangers = [p.name for p in files if read(p).spec.on("").digest() not in wanted]
    assert not strangers


def test_the_record_is_of_the_reference_as_it_is_today() -> None:
    kept = Record([paths.EVIDENCE], transformer)
    assert not kept.faults
    refused = {
        said
        for path in sorted(paths.EVIDENCE.glob("*.json"))
        if isinstance(said := kept.find(read(path).spec), str)
    }
    assert not refused


def test_two_runs_of_the_record_are_made_again(tmp_path: Path) -> None:
    """The shortest two that are not on text, within what machines differ by."""
    found = sorted(
        (read(path) for path in paths.EVIDENCE.glob("*.json")),
        key=lambda each: (bool(each.spec.evaluations), each.spec.steps, name_of(each.spec)),
    )[:2]
    for kept in found:
        again = store(tmp_path)
        result = run(transformer, kept.spec, again)
        gathered = Gathered(again, REFERENCE, {kept.spec.digest(): (kept.spec, result)})
        now = gathered.measured(kept.spec, INDUCTION)
        then = INDUCTION.from_json(kept.measured[INDUCTION.name])
        assert now.repeated == pytest.approx(then.repeated, rel=1e-3)
        assert now.induction == pytest.approx(then.induction, rel=1e-2)


# ---- precision -----------------------------------------------------------------------------------


def test_the_fastest_precision_is_chosen_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, precision=FASTEST, model=MODEL)
    monkeypatch.setattr("claims.training.loop.fastest", lambda device: "bfloat16")
    assert run(transformer, spec, store(tmp_path / "a"), TEXT).precision == "bfloat16"
    monkeypatch.setattr("claims.training.loop.fastest", lambda device: "float32")
    assert run(transformer, spec, store(tmp_path / "b"), TEXT).precision == "float32"


def test_a_result_of_before_says_float32() -> None:
    values = json.loads(json.dumps(evidence().result.to_json()))
    del values["precision"]
    assert RunResult.from_json(values).precision == "float32"
