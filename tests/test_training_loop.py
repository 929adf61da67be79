"""The training loop: the loss, what each step depends on, stopping and continuing."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import transformer
from claims.instruments.attention.activations import attention_weights
from claims.training import loop
from claims.training.batches import batches
from claims.training.loop import build, optimiser_of, train
from claims.training.loss import ROWS, loss_and_gradient
from claims.training.spec import Repeats, RunResult, RunSpec, Schemas, Text
from small_runs import MODEL, SPEC, ids, same

TEXT = ids()
# Rounding to bfloat16 errs by up to half of 2**-7 of the value.
HALF_STEP = 2**-8


def draw(*shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def targets(*shape: int, below: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(2))


def by_autograd(logits: Tensor, wanted: Tensor, dtype: torch.dtype) -> tuple[float, Tensor]:
    leaf = logits.detach().to(dtype).requires_grad_()
    loss = F.cross_entropy(leaf.flatten(0, -2), wanted.flatten())
    [gradient] = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), gradient


# ---- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, ROWS, 2 * ROWS + 7], ids=["one", "one chunk", "uneven last"])
def test_the_loss_and_its_gradient_err_no_more_than_autograd(rows: int) -> None:
    """Against float64; at most twice the error of PyTorch's own float32 loss and gradient."""
    logits, wanted = draw(rows, 1, 19), targets(rows, 1, below=19)
    exact, exact_gradient = by_autograd(logits, wanted, torch.float64)
    theirs, their_gradient = by_autograd(logits, wanted, torch.float32)
    ours, our_gradient = loss_and_gradient(logits, wanted)
    # The sums of chunks are exact to float64; what is left is half a step of float32.
    assert abs(ours - exact) <= max(2 * abs(theirs - exact), 2**-23 * exact)
    error = (our_gradient - exact_gradient).abs().max()
    assert error <= 2 * (their_gradient - exact_gradient).abs().max()
    assert our_gradient.shape == logits.shape


def test_bfloat16_logits_lose_only_the_rounding_of_the_gradient() -> None:
    logits, wanted = draw(2, ROWS + 3, 19).bfloat16(), targets(2, ROWS + 3, below=19)
    exact, exact_gradient = by_autograd(logits, wanted, torch.float64)
    loss, gradient = loss_and_gradient(logits, wanted)
    assert gradient.dtype == torch.bfloat16
    # In float32: 19 exponentials and their sum.
    assert loss == pytest.approx(exact, rel=32 * 2**-24)
    error = (gradient.double() - exact_gradient).abs()
    rounding = HALF_STEP * exact_gradient.abs() + 32 * 2**-24 / wanted.numel()
    assert bool((error <= rounding).all())


def test_every_row_of_the_gradient_sums_to_zero() -> None:
    """The softmax sums to one: 19 numbers below 1/n, each rounded to float32."""
    gradient = loss_and_gradient(draw(50, 19), targets(50, below=19))[1]
    assert gradient.double().sum(-1).abs().max() <= 19 * 2**-23 / 50
    assert float(gradient.abs().sum()) > 1.0


def test_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    """Linearity: a third of each third's gradient, accumulated, is that of all 12 windows.

    To float32: six layers sum 96 positions in another order.
    """
    spec = replace(SPEC, batch=12)
    window = batches(spec, TEXT)(0)
    whole, parts = build(transformer, spec), build(transformer, spec)
    loss = loop.gradients(whole, window, spec, "cpu")
    losses = []
    for part in window.chunk(3):
        logits = parts(part[:, :-1])
        of_part, gradient = loss_and_gradient(logits, part[:, 1:])
        logits.backward(gradient / 3)
        losses.append(of_part)
    assert sum(losses) / 3 == pytest.approx(loss, rel=1e-6)
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        scale = float(one.grad.abs().max())
        assert (one.grad - other.grad).abs().max() <= 96 * 2**-24 * max(scale, 1.0)


# ---- the optimiser -------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_every_parameter_is_in_one_group_once(tied: bool) -> None:
    spec = replace(SPEC, model=replace(MODEL, tied=tied))
    model = build(transformer, spec)
    listed = [p for group in optimiser_of(model, spec).param_groups for p in group["params"]]
    assert len(listed) == len({id(parameter) for parameter in listed})
    assert {id(p) for p in listed} == {id(p) for p in model.parameters()}
    assert sum(p.numel() for p in listed) == transformer.count_parameters(model)
    assert (model.head.weight is model.token.weight) is tied


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_step_without_gradients_moves_weights_by_their_decay_alone(decay: float) -> None:
    """w -> w - lr * decay * w, biases and norms too; without decay not a bit changes."""
    spec = replace(SPEC, weight_decay=decay, learning_rate=0.5)
    model = build(transformer, spec)
    before = copy.deepcopy(model.state_dict())
    optimiser = optimiser_of(model, spec)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    wanted = {name: value * (1 - 0.5 * decay) for name, value in before.items()}
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=2**-22 if decay else 0.0, atol=0.0)


def rates(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each step of a run."""
    seen: list[float] = []

    class Watched(torch.optim.AdamW):
        def step(self, *args: Any, **more: Any) -> Any:
            seen.extend(group["lr"] for group in self.param_groups)
            return super().step(*args, **more)

    monkeypatch.setattr(torch.optim, "AdamW", Watched)
    train(transformer, spec, TEXT)
    return seen


def test_the_learning_rate_rises_linearly_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = rates(replace(SPEC, learning_rate=0.5, warmup=4), monkeypatch)
    assert warm == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5]
    assert rates(replace(SPEC, learning_rate=0.5), monkeypatch) == [0.5] * 7


# ---- what a run depends on -----------------------------------------------------------------------


def test_the_same_run_twice_is_the_same_to_the_bit() -> None:
    first, second = train(transformer, SPEC, TEXT), train(transformer, SPEC, TEXT)
    assert same(first[1], second[1])
    assert first[0].snapshots == second[0].snapshots
    assert not same(first[1], train(transformer, replace(SPEC, seed=1), TEXT)[1])


def test_a_model_starts_from_its_seed() -> None:
    first, again = build(transformer, SPEC), build(transformer, replace(SPEC, steps=2))
    other = build(transformer, replace(SPEC, seed=1))
    assert same(first.state_dict(), again.state_dict())
    assert not torch.equal(first.token.weight, other.token.weight)


def test_no_global_generator_is_drawn_from() -> None:
    before = torch.get_rng_state()
    train(transformer, SPEC, TEXT)
    build(transformer, replace(SPEC, causal=False))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_does_not_depend_on_what_was_drawn_before() -> None:
    weights = train(transformer, SPEC, TEXT)[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        assert same(train(transformer, SPEC, TEXT)[1], weights)


def test_subnormal_weights_of_a_saturated_head_change_no_bit() -> None:
    """So processes that flush them to zero may share a store with processes that do not."""
    saturated = replace(MODEL, n_heads=1, d_head=512, scaled=False)
    spec = replace(SPEC, model=saturated, steps=30, learning_rate=0.01)
    result, weights = train(transformer, spec, TEXT)
    model = build(transformer, spec)
    model.load_state_dict(weights)
    attention = attention_weights(model, TEXT[: 49 * 8].view(49, 8), block=0)
    smallest_normal = torch.finfo(torch.float32).tiny
    assert int(((attention > 0) & (attention < smallest_normal)).sum()) > 50
    torch.set_flush_denormal(True)
    try:
        flushed, same_weights = train(transformer, spec, TEXT)
    finally:
        torch.set_flush_denormal(False)
    assert same(weights, same_weights)
    assert [s.loss for s in flushed.snapshots] == [s.loss for s in result.snapshots]


STOPPED = replace(
    SPEC, steps=12, warmup=5, record=("scores", "gradients"), learning_rate=0.01, weight_decay=0.1
)


class Stop(Exception):
    """As a kill would, between two steps."""


def stopped_at(step: int, spec: RunSpec = STOPPED) -> dict[str, Any]:
    """The state that was saved after `step` steps of a run that ended there."""
    states: list[dict[str, Any]] = []

    def save(state: dict[str, Any]) -> None:
        states.append(copy.deepcopy(state))
        if state["step"] == step:
            raise Stop

    with pytest.raises(Stop):
        train(transformer, spec, TEXT, save=save, save_every=0.0)
    assert [state["step"] for state in states] == list(range(1, step + 1))
    return states[-1]


@pytest.fixture(scope="module")
def undisturbed() -> tuple[RunResult, dict[str, Tensor]]:
    return train(transformer, STOPPED, TEXT)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 6, 11, 12])
def test_a_stopped_run_continues_to_the_bit(
    undisturbed: tuple[RunResult, dict[str, Tensor]], step: int
) -> None:
    """Within the warmup, at a snapshot (3, 6), before the last step and after it."""
    result, weights = train(transformer, STOPPED, TEXT, resume=stopped_at(step))
    assert same(weights, undisturbed[1])
    assert result.snapshots == undisturbed[0].snapshots
    assert [snapshot.step for snapshot in result.snapshots] == [0, 3, 6, 9, 12]


def test_a_tied_model_in_bfloat16_continues_to_the_bit() -> None:
    spec = replace(STOPPED, model=replace(MODEL, tied=True), precision="bfloat16")
    assert same(
        train(transformer, spec, TEXT, resume=stopped_at(5, spec))[1],
        train(transformer, spec, TEXT)[1],
    )


def test_the_loss_of_a_snapshot_is_the_mean_since_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[float] = []

    def watched(*args: Any) -> float:
        losses.append(gradients(*args))
        return losses[-1]

    gradients = loop.gradients
    monkeypatch.setattr(loop, "gradients", watched)
    result = train(transformer, SPEC, TEXT)[0]
    means = [math.fsum(losses[a:b]) / (b - a) for a, b in ((0, 3), (3, 6), (6, 7))]
    assert [snapshot.loss for snapshot in result.snapshots] == [None, *map(pytest.approx, means)]


def test_snapshots_hold_what_was_asked_for() -> None:
    """Every parameter's gradient, and scores of the attention that are those of its weights."""
    first = train(transformer, STOPPED, TEXT)[0].snapshots[0]
    model = build(transformer, STOPPED)
    loop.gradients(model, batches(STOPPED, TEXT)(0), STOPPED, "cpu")
    assert first.gradients == {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    [scores] = first.scores
    assert 0.0 <= scores.saturated <= 1.0
    assert 0.0 < scores.entropy < math.log(8)
    plain = train(transformer, SPEC, TEXT)[0].snapshots[0]
    assert (plain.gradients, plain.scores) == (None, ())


def test_bfloat16_computes_in_bfloat16_and_keeps_float32() -> None:
    result, weights = train(transformer, replace(SPEC, precision="bfloat16"), TEXT)
    exact, other = train(transformer, SPEC, TEXT)
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert not same(weights, other)
    # Products of two numbers of 8 bits each; the loss averages over them.
    assert result.snapshots[-1].loss == pytest.approx(exact.snapshots[-1].loss, rel=2**-6)


def test_training_learns() -> None:
    """Each token leaves three for the next: a loss of ln 3, from at least ln 11."""
    spec = replace(SPEC, steps=150, batch=16, learning_rate=0.03, record_every=50)
    losses = [s.loss for s in train(transformer, spec, TEXT)[0].snapshots]
    assert losses[-1] is not None
    assert losses[-1] < math.log(5) < math.log(11)


# ---- parameters that are held fixed --------------------------------------------------------------

FIXED = ("mixer.q.weight", "mixer.k.weight")


def test_what_is_held_fixed_keeps_every_bit_and_the_rest_is_trained() -> None:
    spec = replace(SPEC, fixed=FIXED, record=("gradients",), weight_decay=0.1)
    before = build(transformer, spec).state_dict()
    result, weights = train(transformer, spec, TEXT)
    changed = {name for name, value in weights.items() if not torch.equal(value, before[name])}
    trained = {name for name, _ in build(transformer, spec).named_parameters()}
    held = {name for name in trained if name.endswith(FIXED)}
    assert len(held) == 2
    assert changed == trained - held
    assert result.snapshots[0].gradients is not None
    assert set(result.snapshots[0].gradients) == trained - held


def test_the_optimiser_has_no_parameter_that_is_held_fixed() -> None:
    spec = replace(SPEC, fixed=FIXED)
    model = build(transformer, spec)
    listed = [p for group in optimiser_of(model, spec).param_groups for p in group["params"]]
    assert {id(p) for p in listed} == {id(p) for p in model.parameters() if p.requires_grad}
    assert len(listed) == len(list(model.parameters())) - 2


def test_a_run_that_holds_nothing_fixed_is_another_run() -> None:
    """From the same start; and stopped half-way it goes on to the bit."""
    spec = replace(SPEC, fixed=FIXED)
    assert same(build(transformer, spec).state_dict(), build(transformer, SPEC).state_dict())
    assert not same(train(transformer, spec, TEXT)[1], train(transformer, SPEC, TEXT)[1])
    states: list[loop.State] = []
    _, whole = train(
        transformer, spec, TEXT, save=lambda s: states.append(copy.deepcopy(s)), save_every=0.0
    )
    assert same(train(transformer, spec, TEXT, resume=states[3])[1], whole)


def test_a_parameter_that_the_model_lacks_cannot_be_held_fixed() -> None:
    with pytest.raises(ValueError, match=r"no parameter 'mixer\.r\.weight' to hold fixed"):
        build(transformer, replace(SPEC, fixed=("mixer.r.weight",)))


# ---- the mask ------------------------------------------------------------------------------------


def sees_the_next_token(spec: RunSpec) -> bool:
    model = build(transformer, spec).eval()
    tokens = TEXT[None, :8]
    other = tokens.clone()
    other[0, 4] = (other[0, 4] + 1) % 11
    with torch.no_grad():
        return not torch.equal(model(tokens)[0, 3], model(other)[0, 3])


@pytest.mark.parametrize("blocks", [1, 2])
def test_without_the_mask_every_query_sees_the_next_token(blocks: int) -> None:
    spec = replace(SPEC, model=replace(MODEL, n_blocks=blocks))
    assert not sees_the_next_token(spec)
    assert sees_the_next_token(replace(spec, causal=False))


@pytest.mark.parametrize(
    "changes",
    [{"d_head": 6}, {"qkv_bias": True}, {"scaled": False}, {"positions": "alibi"}],
    ids=["d_head", "bias", "unscaled", "alibi"],
)
def test_taking_the_mask_away_keeps_every_other_setting(changes: dict[str, Any]) -> None:
    """The same parameters; and with one token, where there is no future, the same function."""
    spec = replace(SPEC, model=replace(MODEL, **changes))
    masked, open_ = build(transformer, spec), build(transformer, replace(spec, causal=False))
    names = {name: value.shape for name, value in masked.state_dict().items()}
    assert {name: value.shape for name, value in open_.state_dict().items()} == names
    open_.load_state_dict(masked.state_dict())
    # The last query of a causal model sees all keys, as every query of an open one does.
    x = draw(2, 8, 8)
    causal, all_ = masked.blocks[0].mixer(x), open_.blocks[0].mixer(x)
    torch.testing.assert_close(causal[:, -1], all_[:, -1])
    assert not torch.equal(causal[:, 0], all_[:, 0])


# ---- runs that fail, and runs that cannot start --------------------------------------------------


class Exploding(nn.Module):
    """A language model whose logits overflow float32 in its third step."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        self.scale = nn.Parameter(torch.ones(1))
        self.steps = 0

    def forward(self, tokens: Tensor) -> Tensor:
        self.steps += 1
        huge = math.inf if self.steps > 2 else 1.0
        return F.one_hot(tokens, 11).float() * self.scale * huge


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    """The step is recorded; the weights are those before it."""

    class Package:
        LanguageModel = Exploding

    calls: list[int] = []

    def save(state: dict[str, Any]) -> None:
        calls.append(state["step"])

    result, weights = train(Package, SPEC, TEXT, save=save, save_every=0.0)
    assert (result.failed_at, result.steps) == (2, 2)
    assert [snapshot.step for snapshot in result.snapshots] == [0, 2]
    assert calls == [1, 2]
    assert bool(weights["scale"].isfinite())
    assert RunResult.from_json(result.to_json()) == result


def test_a_huge_learning_rate_ends_a_real_run() -> None:
    result, _ = train(transformer, replace(SPEC, steps=60, learning_rate=1e38), TEXT)
    assert result.failed_at is not None
    assert result.steps == result.failed_at < 60


@pytest.mark.parametrize(
    ("spec", "text", "sentence"),
    [
        (SPEC, None, "needs the tokens of a corpus"),
        (replace(SPEC, data=Text(9)), TEXT[:10], "9 training tokens hold no window of 9"),
        (replace(SPEC, record=("scores",)), TEXT[:40], "4 held-out tokens hold no window of 8"),
        (
            replace(SPEC, data=Repeats(11, 8, 4, 4), record=("scores",)), TEXT,
            "scores are recorded on held-out text",
        ),
        (replace(SPEC, data=Schemas("pool", 10**6, 0)), None, "1000000 pairs cannot be held out"),
    ],
    ids=["no text", "short text", "short held-out text", "scores without text", "held out"],
)
def test_a_run_that_cannot_be_trained_is_named(
    spec: RunSpec, text: Tensor | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        train(transformer, spec, text)


# ---- batches -------------------------------------------------------------------------------------


def test_tokens_per_step_are_batch_times_length() -> None:
    window = batches(SPEC, TEXT)(0)
    assert window[:, 1:].numel() == SPEC.batch * 8
    assert window.dtype == torch.int64


def test_batches_follow_seed_and_step_and_stay_in_the_training_split() -> None:
    """The tokens are numbered, so that the first token of a window tells where it starts."""
    numbers = torch.arange(100)
    of = batches(replace(SPEC, batch=500), numbers)
    first = of(0)
    assert torch.equal(first, of(0))
    assert not torch.equal(first, of(1))
    assert not torch.equal(first, batches(replace(SPEC, batch=500, seed=1), numbers)(0))
    assert torch.equal(first - first[:, :1], torch.arange(9).expand(500, 9))
    # 90 tokens are training: the windows start at 0 to 81, and all of them are drawn.
    assert (int(first.min()), int(first.max())) == (0, 89)


def test_no_token_is_predicted_twice_where_each_is_seen_once() -> None:
    spec = replace(SPEC, data=Text(8, once=True), steps=3)
    of = batches(spec, torch.arange(100))
    predicted = torch.cat([of(step)[:, 1:].flatten() for step in range(3)])
    assert len(set(predicted.tolist())) == len(predicted) == 3 * 3 * 8
    assert int(predicted.max()) < 90
    assert not torch.equal(of(0), batches(replace(spec, seed=1), torch.arange(100))(0))
    with pytest.raises(ValueError, match="90 training tokens hold 11 windows of 8; 4 steps of 3"):
        batches(replace(spec, steps=4), torch.arange(100))


def test_rows_are_repeated() -> None:
    rows = batches(replace(SPEC, data=Repeats(11, 10, 5, 5)), None)(3)
    assert rows.shape == (3, 10)
    assert torch.equal(rows[:, :5], rows[:, 5:])


@pytest.mark.parametrize("language", ["pool", "category"])
def test_sentences_that_are_held_out_are_in_no_batch(language: str) -> None:
    from claims.training.batches import schemas

    data = Schemas(language, 5, draw=1)
    spoken, split = schemas(data)
    held_out = {tuple(row) for row in spoken.encode(split.held_out).tolist()}
    rows = batches(replace(SPEC, data=data, batch=4000), None)(0)
    seen = {tuple(row) for row in rows.tolist()}
    assert held_out
    assert not seen & held_out
    assert schemas(Schemas(language, 5, draw=2))[1] != split


def test_a_length_of_one_token_is_enough_text_for_a_window() -> None:
    assert batches(replace(SPEC, data=Text(1)), TEXT)(0).shape == (3, 2)
