"""What a training run is, and what comes out of one, as plain data that JSON can hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

PRECISIONS = ("float32", "bfloat16")
FASTEST = "fastest"
RECORDS = ("scores", "gradients")
SPLITS = ("training", "held out")
LANGUAGES = ("pool", "category")
# What the result depends on beside the specification: raise it when the loop comes to compute
# something else for the same specification.
TRAINING_FORMAT = 1


@dataclass(frozen=True)
class ModelSettings:
    """Keyword settings of `LanguageModel` and `model_parameters`: pass `**asdict(settings)`."""

    vocabulary: int = 1024
    context: int = 128
    d_model: int = 128
    n_blocks: int = 1
    mixer: str = "heads"
    n_heads: int = 4
    d_head: int | None = None
    residual: bool = True
    feed_forward: bool = True
    norm: str = "pre"
    positions: str = "learned"
    tied: bool = False
    qkv_bias: bool = False
    scaled: bool = True


@dataclass(frozen=True)
class Text:
    """Windows of `length` tokens of the corpus, drawn uniformly from its training split.

    `corpus` is the sha256 of the token ids; `RunSpec.on` fills it in. With `once` the windows do
    not overlap and none comes again, so that every token is predicted at most once.
    """

    length: int
    corpus: str = ""
    once: bool = False


@dataclass(frozen=True)
class Schemas:
    """Sentences of a Winograd language, "pool" or "category", drawn uniformly from its training
    part; `held_out` pairs are kept out of it, chosen by `draw`.
    """

    language: str
    held_out: int
    draw: int


@dataclass(frozen=True)
class Repeats:
    """A row of random tokens out of `vocabulary`, repeated until there are `length` tokens.

    The length of the row is drawn for each sequence, from `shortest` to `longest`.
    """

    vocabulary: int
    length: int
    shortest: int
    longest: int


Data = Text | Schemas | Repeats
_DATA: dict[str, type[Data]] = {"text": Text, "schemas": Schemas, "repeats": Repeats}


@dataclass(frozen=True)
class Evaluation:
    """Windows of `length` tokens over a whole split of the text, one every `stride` tokens.

    The last `stride` tokens of each are scored. By default the windows do not overlap, and every
    position is scored.
    """

    length: int
    split: str = "held out"
    stride: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be scored, before hours of training."""
        _demand_whole(length=self.length)
        _demand_known("split", (self.split,), SPLITS)
        if self.stride is not None and not 1 <= self.stride <= self.length:
            raise ValueError(
                f"the stride must lie between 1 and the length {self.length}, got {self.stride}"
            )


@dataclass(frozen=True)
class RunSpec:
    """A training run. Equal specifications give equal results, on one kind of machine.

    steps, batch    AdamW steps, windows per step
    warmup          steps over which the learning rate rises linearly, constant afterwards
    weight_decay    AdamW's, on every parameter, as PyTorch has it by default
    causal          False lets every query see every key, in every block
    fixed           parameters that are not trained: every one whose name ends with one of these
    precision       "bfloat16" computes matrix products in bfloat16 (autocast); the weights, the
                    optimiser and every evaluation are float32. "fastest" leaves it to the machine,
                    for runs whose results agree in both; the result says which it was
    record          what a snapshot holds beside the loss: "scores" of the attention in each block,
                    "gradients" of each parameter; a snapshot is taken every `record_every` steps
    evaluations     of the text, after the last step
    """

    model: ModelSettings
    data: Data
    steps: int
    batch: int
    seed: int = 0
    learning_rate: float = 1e-3
    warmup: int = 0
    weight_decay: float = 0.01
    causal: bool = True
    fixed: tuple[str, ...] = ()
    precision: str = "float32"
    record: tuple[str, ...] = ()
    record_every: int = 100
    evaluations: tuple[Evaluation, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be run, before anything is."""
        _demand_whole(steps=self.steps, batch=self.batch, record_every=self.record_every)
        _demand_whole(0, warmup=self.warmup)
        match self.data:
            case Text(length=length):
                _demand_whole(length=length)
            case Schemas(language=language):
                _demand_known("language", (language,), LANGUAGES)
            case Repeats() as repeats:
                _demand_whole(**asdict(repeats))
        if not (0.0 < self.learning_rate < math.inf and 0.0 <= self.weight_decay < math.inf):
            raise ValueError(
                "the learning rate must be above 0 and the weight decay at least 0, "
                f"got {self.learning_rate} and {self.weight_decay}"
            )
        _demand_known("precision", (self.precision,), (*PRECISIONS, FASTEST))
        _demand_known("record", self.record, RECORDS)
        if self.evaluations and not isinstance(self.data, Text):
            raise ValueError("only runs on text have evaluations")
        if "scores" in self.record and self.model.mixer != "heads":
            raise ValueError(f'recording scores needs mixer "heads", got "{self.model.mixer}"')
        if not self.causal and self.model.mixer != "heads":
            raise ValueError(f'causal=False needs mixer "heads", got "{self.model.mixer}"')

    def on(self, corpus: str) -> RunSpec:
        """The same run on the corpus with that digest of its token ids."""
        if not isinstance(self.data, Text):
            return self
        return replace(self, data=replace(self.data, corpus=corpus))

    def training(self) -> dict[str, Any]:
        """What the weights depend on: everything but the evaluations."""
        data = {"kind": type(self.data).__name__.lower(), **asdict(self.data)}
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "evaluations"}
        values |= {"model": asdict(self.model), "data": data, "record": list(self.record)}
        # Left out where they are empty, so that runs stored before these fields are found.
        if not data.get("once", True):
            del data["once"]
        fixed = list(values.pop("fixed"))
        return {**values, "fixed": fixed} if fixed else values

    def digest(self) -> str:
        """sha256 of what the weights depend on."""
        text = json.dumps({"format": TRAINING_FORMAT, **self.training()}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {**self.training(), "evaluations": [asdict(e) for e in self.evaluations]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSpec:
        given = dict(values)
        data = dict(given.pop("data"))
        return cls(
            model=ModelSettings(**given.pop("model")),
            data=_DATA[data.pop("kind")](**data),
            record=tuple(given.pop("record")),
            fixed=tuple(given.pop("fixed", ())),
            evaluations=tuple(Evaluation(**e) for e in given.pop("evaluations")),
            **given,
        )


@dataclass(frozen=True)
class HeadScores:
    """The attention of one block on a fixed batch of held-out text, over all heads and rows.

    std        of the scores that enter the softmax, over causal entries
    entropy    mean over rows, in nats
    saturated  the share of rows with more than 0.99 of their weight on one key
    """

    std: float
    entropy: float
    saturated: float


@dataclass(frozen=True)
class Snapshot:
    """A record taken before step `step`. `loss` is the mean over the steps since the last snapshot;
    the first snapshot has none.
    """

    step: int
    loss: float | None
    scores: tuple[HeadScores, ...] = ()
    gradients: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Score:
    """The sum of negative log-likelihoods, in nats, over `tokens` tokens."""

    nll: float
    tokens: int

    @property
    def perplexity(self) -> float:
        """exp(nll / tokens); infinite for a model whose outputs are not finite."""
        mean = self.nll / self.tokens
        return math.exp(mean) if mean < 700 else math.inf


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    failed_at    the step whose loss was not finite, where there was one; the run ended there
    snapshots    in the order of the steps; the last one is taken after the last step
    seconds      spent in training, on whatever machine
    scores       one per evaluation of the specification, in its order
    precision    of the matrix products
    """

    steps: int
    failed_at: int | None
    snapshots: tuple[Snapshot, ...]
    seconds: float
    scores: tuple[Score, ...] = ()
    precision: str = "float32"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        given = dict(values)
        return cls(
            snapshots=tuple(snapshot_from_json(s) for s in given.pop("snapshots")),
            scores=tuple(Score(**s) for s in given.pop("scores")),
            **given,
        )


def snapshot_from_json(values: Mapping[str, Any]) -> Snapshot:
    given = dict(values)
    return Snapshot(scores=tuple(HeadScores(**s) for s in given.pop("scores")), **given)


def _demand_whole(least: int = 1, **values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")


def _demand_known(name: str, given: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    for value in given:
        if value not in allowed:
            raise ValueError(f"{name} '{value}' is none of {', '.join(allowed)}")
