"""Section 9: dropout, in three places.

It falls on the attention weights after the softmax, on the output of each sub-layer before the
residual addition, and on the sum of embeddings. With p = 1/2 a number that is kept is doubled and a
dropped one is 0, exactly, so that an output shows where dropout was applied.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from claims.experiments.once import ONCE_RUNS
from claims.harness import Check, Draws, Expected, claim, exact, seed_mean_within, trains
from claims.harness.implementation import Implementation
from claims.instruments.attention.dropout import EmbeddingSum, Weights
from claims.training.results import Runs
from claims.training.spec import RunResult


def in_training(rng: Draws, module: nn.Module, x: Tensor) -> Tensor:
    """module(x) in training, its dropout drawn from the claim's own stream."""
    output: Tensor = rng.build(lambda: module.train()(x)).detach()
    return output


def either(y: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether every entry of y is that of a or that of b, and both occur.

    Up to the rounding of a network of widths 16 and 64, which no theorem rounds the same way twice:
    18 and 66 roundings of a product, 4 of the rest, relative to the largest entry.
    """
    largest = max(float(each.detach().abs().max()) for each in (y, a, b))
    allowed = (18 + 66 + 4) * torch.finfo(y.dtype).eps / 2 * largest
    of_a, of_b = ((y - each).abs() <= allowed for each in (a, b))
    return bool((of_a | of_b).all() and (of_a & ~of_b).any() and (of_b & ~of_a).any())


def on_weights(implementation: Implementation, rng: Draws) -> bool:
    """A weight becomes 0 or is doubled: after the softmax, without normalising the row again."""
    module, x = rng.build(lambda: Weights(implementation)), Weights.tokens
    return either(in_training(rng, module, x), torch.zeros(()), 2 * module.eval()(x))


def on_sub_layers(implementation: Implementation, rng: Draws) -> bool:
    """A token x becomes x or x plus twice a sub-layer's output: before the addition, for both."""
    block, x = partial(implementation.Block, 16, norm="none", dropout=0.5), rng.normal(2, 8, 16)
    mixing = rng.build(lambda: block(nn.Identity(), feed_forward=False))
    network = rng.build(lambda: block(None))
    mixed = either(in_training(rng, mixing, x), x, x + 2 * x)
    passed = implementation.part(network, "ff").eval()(x).detach()
    return mixed and either(in_training(rng, network.train(), x), x, x + 2 * passed)


def on_embedding_sum(implementation: Implementation, rng: Draws) -> bool:
    """An entry of token plus position becomes 0 or is doubled."""
    module, tokens = rng.build(lambda: EmbeddingSum(implementation)), rng.integers(0, 32, 2, 16)
    return either(in_training(rng, module, tokens), torch.zeros(()), 2 * module.eval()(tokens))


@claim("dropout-three-places")
def test_dropout_appears_in_three_places(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Dropout appears on attention weights, on each sub-layer's output and on the embedding sum.

    In each place every number is 0 or doubled, and what it is added to is unchanged.
    """
    found = {
        "weights": on_weights(implementation, rng),
        "sub-layers": on_sub_layers(implementation, rng),
        "embedding sum": on_embedding_sum(implementation, rng),
    }
    check(found, exact(dict.fromkeys(expected["places"], True)))


@claim("seen-once-cannot-overfit")
@trains(ONCE_RUNS, "one block")
def test_a_model_that_sees_each_token_once_does_not_overfit(runs: Runs, check: Check) -> None:
    """A model that sees each token once is in no position to overfit.

    It does not become worse on what it has not seen: the loss of batches before they are learnt,
    on average over the steps 200 to 300, minus that over the last hundred, in nats.
    """

    def gained(result: RunResult) -> float:
        losses = [snapshot.loss or 0.0 for snapshot in result.snapshots[-2:]]
        return losses[0] - losses[1]

    gains = runs.results("one block").map(gained)
    check(gains, seed_mean_within((0.0, 0.5), "nats: better to the end"))
