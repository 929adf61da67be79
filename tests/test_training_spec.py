"""Specifications and results are plain data; a digest has all that the weights depend on."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claims.training.experiment import Experiment
from claims.training.pool import merged, name_of
from claims.training.spec import (
    Data,
    Evaluation,
    HeadScores,
    ModelSettings,
    Repeats,
    RunResult,
    RunSpec,
    Schemas,
    Score,
    Snapshot,
    Text,
)
from small_runs import MODEL, SCORED, SPEC

whole = st.integers(1, 10**6)
positive = st.floats(1e-9, 1e9)
any_float = st.floats(allow_nan=False)
lengths = st.integers(1, 512)
data: st.SearchStrategy[Data] = st.one_of(
    st.builds(Text, lengths, st.text("0123456789abcdef", max_size=8), st.booleans()),
    st.builds(Schemas, st.sampled_from(["pool", "category"]), whole, whole),
    st.builds(Repeats, whole, whole, whole, whole),
)


@st.composite
def evaluations(draw: st.DrawFn) -> Evaluation:
    length = draw(lengths)
    stride = draw(st.none() | st.integers(1, length))
    return Evaluation(length, draw(st.sampled_from(["held out", "training"])), stride)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    trained_on = draw(data)
    text = isinstance(trained_on, Text)
    return RunSpec(
        draw(st.builds(ModelSettings, d_model=whole, d_head=st.none() | whole)),
        trained_on,
        steps=draw(whole), batch=draw(whole), seed=draw(st.integers(0, 2**40)),
        learning_rate=draw(positive), warmup=draw(st.integers(0, 99)), weight_decay=draw(positive),
        causal=draw(st.booleans()), fixed=tuple(draw(st.lists(st.text(max_size=3), max_size=2))),
        precision=draw(st.sampled_from(["float32", "bfloat16", "fastest"])),
        record=tuple(draw(st.lists(st.sampled_from(["scores", "gradients"]), unique=True))),
        record_every=draw(whole),
        evaluations=tuple(draw(st.lists(evaluations(), max_size=3))) if text else (),
    )  # fmt: skip


@settings(max_examples=50)
@given(spec=specs())
def test_a_specification_survives_json(spec: RunSpec) -> None:
    back = RunSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert back == spec
    assert back.digest() == spec.digest()


snapshots = st.builds(
    Snapshot,
    whole,
    st.none() | any_float,
    st.lists(st.builds(HeadScores, any_float, any_float, any_float), max_size=2).map(tuple),
    st.none() | st.dictionaries(st.text(max_size=3), any_float, max_size=2),
)
results = st.builds(
    RunResult,
    whole,
    st.none() | whole,
    st.lists(snapshots, max_size=3).map(tuple),
    positive,
    st.lists(st.builds(Score, any_float, whole), max_size=2).map(tuple),
)


@settings(max_examples=50)
@given(result=results)
def test_a_result_survives_json(result: RunResult) -> None:
    """Infinite values too. NaN is not equal to itself and has its own test."""
    assert RunResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_nan_survives_json() -> None:
    result = RunResult(3, 3, (Snapshot(3, math.nan),), 1.0, (Score(math.nan, 2),))
    back = RunResult.from_json(json.loads(json.dumps(result.to_json())))
    assert math.isnan(back.snapshots[0].loss or 0.0)
    assert back.scores[0].perplexity == math.inf


CHANGES: dict[str, Any] = {
    "data": Text(9), "steps": 8, "batch": 4, "seed": 1, "learning_rate": 2e-3, "warmup": 1,
    "weight_decay": 0.0, "causal": False, "precision": "bfloat16", "record": ("scores",),
    "record_every": 4, "model": replace(MODEL, d_head=3), "fixed": ("head.weight",),
}  # fmt: skip
MODEL_CHANGES: dict[str, Any] = {
    "vocabulary": 12, "context": 9, "d_model": 10, "n_blocks": 2, "mixer": "head", "n_heads": 4,
    "d_head": 3, "residual": False, "feed_forward": False, "norm": "post", "positions": "none",
    "tied": True, "qkv_bias": True, "scaled": False,
}  # fmt: skip


def test_every_field_that_weights_depend_on_changes_the_digest() -> None:
    assert CHANGES.keys() == {field.name for field in fields(RunSpec)} - {"evaluations"}
    assert MODEL_CHANGES.keys() == {field.name for field in fields(ModelSettings)}
    changed = [replace(SPEC, **{name: value}) for name, value in CHANGES.items()]
    changed += [
        replace(SPEC, model=replace(MODEL, **{name: value}))
        for name, value in MODEL_CHANGES.items()
        if name != "d_head"  # changed above
    ]
    changed += [SPEC.on("a corpus"), replace(SPEC, data=Repeats(8, 8, 4, 4))]
    changed += [replace(SPEC, data=Text(8, once=True))]
    changed += [replace(SPEC, data=Schemas("pool", 1, 0)), replace(SPEC, data=Repeats(4, 8, 4, 4))]
    digests = {spec.digest() for spec in (SPEC, *changed)}
    assert len(digests) == len(changed) + 1


def test_evaluations_do_not_change_the_digest() -> None:
    assert SCORED.digest() == SPEC.digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    """Stored runs are found by it: a change of the digest loses them all."""
    assert SPEC.digest() == "9fe01b89151588671d768340d98369bc5aefb62a00df769d5baaa71db6013372"


def test_on_names_the_corpus_of_a_text_and_of_nothing_else() -> None:
    assert SPEC.on("abc").data == Text(8, "abc")
    assert SPEC.on("abc").on("abc") == SPEC.on("abc")
    repeats = replace(SPEC, data=Repeats(8, 8, 4, 4))
    assert repeats.on("abc") is repeats


BAD: list[tuple[dict[str, Any], str]] = [
    ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
    ({"batch": 2.5}, "batch must be a whole number of at least 1, got 2.5"),
    ({"warmup": -1}, "warmup must be a whole number of at least 0, got -1"),
    ({"record_every": 0}, "record_every must be a whole number of at least 1, got 0"),
    ({"learning_rate": 0.0}, "the learning rate must be above 0"),
    ({"learning_rate": math.nan}, "the learning rate must be above 0"),
    ({"weight_decay": -0.1}, "the weight decay at least 0"),
    ({"precision": "float16"}, "precision 'float16' is none of float32, bfloat16"),
    ({"record": ("loss",)}, "record 'loss' is none of scores, gradients"),
    ({"data": Text(0)}, "length must be a whole number of at least 1, got 0"),
    ({"data": Schemas("latin", 1, 0)}, "language 'latin' is none of pool, category"),
    ({"data": Repeats(0, 8, 4, 4)}, "vocabulary must be a whole number of at least 1, got 0"),
    (
        {"data": Repeats(8, 8, 4, 4), "evaluations": (Evaluation(8),)},
        "only runs on text have evaluations",
    ),
    (
        {"model": replace(MODEL, mixer="head"), "record": ("scores",)},
        'recording scores needs mixer "heads", got "head"',
    ),
    (
        {"model": replace(MODEL, mixer="average"), "causal": False},
        'causal=False needs mixer "heads", got "average"',
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_impossible_specifications_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SPEC, **changes)


def test_impossible_evaluations_are_refused() -> None:
    with pytest.raises(ValueError, match="split 'test' is none of training, held out"):
        Evaluation(8, "test")
    with pytest.raises(ValueError, match="length must be a whole number of at least 1, got 0"):
        Evaluation(0)


def test_an_experiment_is_a_run_per_label_and_seed() -> None:
    experiment = Experiment({"a": SPEC}, seeds=2)
    assert [spec.seed for spec in experiment.of("a", first=300)] == [300, 301]
    assert [replace(spec, seed=0) for spec in experiment.of("a")] == [SPEC, SPEC]
    for runs, seeds in (({}, 2), ({"a": SPEC}, 0)):
        with pytest.raises(ValueError, match="an experiment has runs and seeds, got"):
            Experiment(runs, seeds)


def test_merged_runs_are_trained_once_with_every_evaluation() -> None:
    long = replace(SPEC, steps=70)
    second = replace(SPEC, evaluations=(Evaluation(4), Evaluation(8)))
    specs = merged([SCORED, second, long, SPEC, long])
    assert [spec.steps for spec in specs] == [70, 7]
    assert specs[1].evaluations == (Evaluation(8), Evaluation(8, "training"), Evaluation(4))
    assert merged([]) == []


def test_names_tell_runs_apart() -> None:
    """The runs of one experiment have different names while they train."""
    changes = [
        {}, {"warmup": 5}, {"causal": False}, {"seed": 3},
        *({"model": replace(MODEL, **change)} for change in (
            {"d_head": 3}, {"scaled": False}, {"norm": "post"}, {"positions": "alibi"},
            {"n_blocks": 2}, {"n_blocks": 0}, {"mixer": "average"}, {"residual": False},
        )),
        {"fixed": ("head.weight",)},
    ]  # fmt: skip
    names = {name_of(replace(SPEC, **change)) for change in changes}
    assert len(names) == len(changes)


def test_results_are_plain_data() -> None:
    assert asdict(SPEC)["steps"] == 7
    assert json.dumps(SCORED.to_json())
