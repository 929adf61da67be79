"""Induction heads, which the chapter leaves to two papers (l.241), on rows of tokens that repeat.

A head of block 1 looks at the token before, a head of block 2 at what followed the same token last
time: together they complete [A][B] ... [A] with [B] (Elhage et al. 2021, Olsson et al. 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from claims.experiments.induction import FORMING, INDUCTION
from claims.harness import Check, PerSeed, claim, seed_mean_within, trains
from claims.training.measurements import INDUCTION as HEADS
from claims.training.measurements import Induction
from claims.training.results import Runs


@claim("induction-two-blocks-learn-it")
@trains(INDUCTION, "two blocks")
def test_two_blocks_of_attention_complete_what_repeats(runs: Runs, check: Check) -> None:
    """Two blocks of attention alone complete [A][B] ... [A] with [B], in rows never seen.

    Random tokens that repeat after 8 to 16: the loss on what is new minus that on what repeats. The
    most it can be is log 32, a guess among all 32 tokens against certainty.
    """
    gained = runs.measured("two blocks", HEADS).map(lambda x: x.new - x.repeated)
    check(gained, seed_mean_within((2.5, math.log(32)), "most of log 32 = 3.47 nats"))


@claim("induction-one-block-cannot")
@trains(INDUCTION, "one block")
def test_one_block_of_attention_cannot(runs: Runs, check: Check) -> None:
    """One block of attention alone learns which tokens are in the row, not which comes next.

    Rows have 8 to 16 tokens: a model that knows them, and no more, has a loss of at least log 8.
    """
    loss = runs.measured("one block", HEADS).map(lambda x: x.repeated)
    check(loss, seed_mean_within((math.log(8), math.log(32)), "log 8 to log 32"))


@claim("induction-one-period-needs-no-induction")
@trains(INDUCTION, "one block, one period")
def test_with_one_period_one_block_is_enough(runs: Runs, check: Check) -> None:
    """If every row repeats after 16 tokens, one block learns it too: positions tell where to look.

    So a test of induction must vary the distance.
    """
    gained = runs.measured("one block, one period", HEADS).map(lambda x: x.new - x.repeated)
    check(gained, seed_mean_within((2.5, 4.0), "as much as two blocks gain"))


@claim("induction-previous-token-head")
@trains(INDUCTION, "two blocks")
def test_block_1_has_a_previous_token_head_and_block_2_has_none(runs: Runs, check: Check) -> None:
    """A head of block 1 looks at the token before; none of block 2 does.

    The weight on it, of the head that has most; uniform heads would have 0.10.
    """
    first, second = _largest(runs, lambda heads: heads.previous)
    check(first, seed_mean_within((0.3, 1.0), "three times a uniform head's"))
    check(second, seed_mean_within((0.0, 0.1), "below a uniform head's"))


@claim("induction-head-in-block-2")
@trains(INDUCTION, "two blocks")
def test_block_2_has_an_induction_head_and_block_1_has_none(runs: Runs, check: Check) -> None:
    """A head of block 2 looks at what followed the same token before; none of block 1 does."""
    first, second = _largest(runs, lambda heads: heads.induction)
    check(first, seed_mean_within((0.0, 0.15), "as a uniform head's"))
    check(second, seed_mean_within((0.3, 1.0), "many times a uniform head's"))


@claim("induction-needs-the-previous-token-head")
@trains(INDUCTION, "two blocks")
def test_without_the_token_before_induction_is_lost(runs: Runs, check: Check) -> None:
    """The second head reads what the first one wrote: without the first, induction is lost.

    The loss on what repeats when no token of block 1 can see the token before it, minus that with
    nothing cut.
    """
    lost = runs.measured("two blocks", HEADS).map(lambda x: x.without_previous - x.repeated)
    check(lost, seed_mean_within((1.0, 10.0), "at least a nat"))


@claim("induction-forms-at-a-moment")
@trains(FORMING, *FORMING["document"].runs)
def test_the_head_forms_when_the_loss_falls(runs: Runs, check: Check) -> None:
    """Induction heads form at an identifiable moment, and that is when the loss falls.

    Ten seeds, measured after 25, 50, ... 300 steps. How many measurements lie between the first at
    which the induction score is half-way up and the first at which the loss is half-way down.
    """
    labels = list(FORMING["document"].runs)
    scores, falls = [], []
    for label in labels:
        heads = runs.measured(label, HEADS)
        scores.append([each.induction[1] for each in heads])
        falls.append([-each.repeated for each in heads])
    apart = [
        float(_half_way(score) - _half_way(fall))
        for score, fall in zip(zip(*scores, strict=True), zip(*falls, strict=True), strict=True)
    ]
    check(PerSeed(runs.seeds, apart), seed_mean_within((-1.0, 1.0), "less than one measurement"))


def _largest(
    runs: Runs, scores: Callable[[Induction], list[float]]
) -> tuple[PerSeed[float], PerSeed[float]]:
    """Of the heads of block 1, and of block 2, the largest score, by seed."""
    of_blocks = runs.measured("two blocks", HEADS).map(scores)
    return of_blocks.map(lambda blocks: blocks[0]), of_blocks.map(lambda blocks: blocks[1])


def _half_way(values: Sequence[float]) -> int:
    """The first index at which rising values are half-way from their first to their last."""
    middle = (values[0] + values[-1]) / 2
    return next(i for i, value in enumerate(values) if value >= middle)
