"""Perplexity against sums written out by hand, for every batch size, order and window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from claims.training import evaluation as instrument
from claims.training.evaluation import demand_fit, evaluate, score
from claims.training.spec import Evaluation, Score
from small_runs import ids

TEXT = ids(103)


def bigrams(tokens: Tensor) -> Tensor:
    """A model that is a table: logits (B, T, 11) for what follows each token."""
    table = 2 * torch.randn(11, 11, generator=torch.Generator().manual_seed(3))
    return table[tokens]


def by_hand(text: Tensor, targets: list[int]) -> float:
    """The sum of -ln p over those positions of the text, in float64, one by one."""
    table = bigrams(torch.arange(11)).double()
    return math.fsum(
        math.log(sum(math.exp(z) for z in table[text[t - 1]].tolist()))
        - float(table[text[t - 1], text[t]])
        for t in targets
    )


@pytest.mark.parametrize("length", [1, 7, 8, 51, 102])
def test_every_token_but_the_first_is_scored_once(length: int) -> None:
    """With the uneven last window: 102 is 7 * 14 + 4."""
    measured = score(bigrams, TEXT, length)
    assert measured.tokens == 102
    # 11 exponentials in float32 for each token.
    assert measured.nll == pytest.approx(by_hand(TEXT, list(range(1, 103))), rel=16 * 2**-24)


def test_the_perplexity_is_the_exponential_of_the_mean() -> None:
    assert Score(nll=6 * math.log(5), tokens=6).perplexity == pytest.approx(5.0, rel=1e-15)


@pytest.mark.parametrize(("nll", "tokens"), [(math.inf, 1), (math.nan, 3), (1e9, 10)])
def test_a_loss_that_is_not_finite_is_infinite_perplexity(nll: float, tokens: int) -> None:
    assert Score(nll, tokens).perplexity == math.inf


def test_a_model_of_nan_is_scored_infinite() -> None:
    nan = score(lambda tokens: bigrams(tokens) * math.nan, TEXT, 8)
    assert (nan.perplexity, nan.tokens) == (math.inf, 102)


def within_batches(model: Callable[[Tensor], Tensor], sizes: list[int]) -> Callable[..., Tensor]:
    def watched(tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        return model(tokens)

    return watched


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_the_batch_size_changes_nothing(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """14 windows of 7 and a last one of 4; float64 sums of 102 terms, in another order."""
    before = score(bigrams, TEXT, 7)
    monkeypatch.setattr(instrument, "TOKENS_AT_ONCE", 7 * batch)
    sizes: list[int] = []
    measured = score(within_batches(bigrams, sizes), TEXT, 7)
    assert sizes == {1: [1] * 14 + [1], 7: [7, 7, 1], 64: [14, 1]}[batch]
    assert measured.nll == pytest.approx(before.nll, rel=102 * 2**-53)
    assert measured.tokens == 102


def test_the_order_of_windows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = score(bigrams, TEXT, 7)

    def reversed_(*args: object) -> Iterator[tuple[Tensor, Tensor]]:
        yield from reversed(list(batches(*args)))

    batches: Callable[..., Iterator[tuple[Tensor, Tensor]]] = instrument._batches
    monkeypatch.setattr(instrument, "_batches", reversed_)
    assert score(bigrams, TEXT, 7).nll == pytest.approx(before.nll, rel=102 * 2**-53)


def test_a_stride_scores_the_last_of_each_window() -> None:
    """Windows of 8 at 0, 3, 6, ..., 93: of each its last three targets, 6 to 8 and so on."""
    measured = score(bigrams, TEXT, 8, stride=3)
    wanted = [t for start in range(0, 95, 3) for t in (start + 6, start + 7, start + 8)]
    assert measured.tokens == len(wanted) == len(set(wanted)) == 96
    assert measured.nll == pytest.approx(by_hand(TEXT, wanted), rel=16 * 2**-24)


def test_windows_do_not_see_earlier_tokens() -> None:
    """With a model that knows its position alone: position t of a window expects token t."""

    def place(tokens: Tensor) -> Tensor:
        return torch.eye(11)[: tokens.shape[1]].expand(len(tokens), -1, -1) * 40.0

    # Targets 0, 1, 2, ... in each window of 8 are certain: the loss is e^-40 times 10.
    text = torch.cat([torch.tensor([5]), torch.arange(8).repeat(6)])
    assert score(place, text, 8).nll < 1e-6
    assert score(place, text, 6).nll > 40.0


def test_each_split_is_scored_whole() -> None:
    """103 tokens: 92 to train on, 11 held out."""
    assert evaluate(bigrams, TEXT, Evaluation(8)) == score(bigrams, TEXT[92:], 8)
    assert evaluate(bigrams, TEXT, Evaluation(8)).tokens == 10
    assert evaluate(bigrams, TEXT, Evaluation(8, "training")) == score(bigrams, TEXT[:92], 8)
    assert evaluate(bigrams, TEXT, Evaluation(8, stride=1)).tokens == 3


def test_no_gradient_is_kept() -> None:
    table = torch.zeros(11, 11, requires_grad=True)
    seen: list[bool] = []

    def model(tokens: Tensor) -> Tensor:
        logits = table[tokens]
        seen.append(logits.requires_grad)
        return logits

    assert score(model, TEXT, 8).perplexity == pytest.approx(11.0)
    assert seen == [False] * 2


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_a_stride_outside_the_window_is_refused(stride: int) -> None:
    sentence = f"stride must lie between 1 and the length 8, got {stride}"
    with pytest.raises(ValueError, match=sentence):
        score(bigrams, TEXT, 8, stride)
    with pytest.raises(ValueError, match=sentence):
        Evaluation(8, stride=stride)


def test_a_text_without_one_window_is_refused() -> None:
    assert score(bigrams, TEXT[:9], 8).tokens == 8
    with pytest.raises(ValueError, match="8 tokens hold no window of 8 and the next one"):
        score(bigrams, TEXT[:8], 8)
    demand_fit(TEXT, Evaluation(10))
    demand_fit(TEXT, Evaluation(11, "training"))
    with pytest.raises(ValueError, match="11 tokens hold no window of 11"):
        demand_fit(TEXT, Evaluation(11))
