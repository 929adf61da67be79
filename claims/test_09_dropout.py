"""Section 9: dropout, in three places.

Shown by what it does. At p = 1/2 a kept number is doubled and a dropped one is 0, exactly, so that
what was dropped can be read off what comes out: the weights after the softmax, the output of a
sub-layer but not the token that it is added to, the sum of embeddings but not its two parts.
"""

from functools import partial

import torch
from torch import Tensor, nn

from claims.harness import Check, Draws, Expected, claim, exact, mean_within, share_within
from claims.harness.implementation import Implementation


class Weights(nn.Module):
    """The weights of a layer of two heads with dropout 1/2: (B, T, 16) -> (B, 2, T, T)."""

    def __init__(self, implementation: Implementation) -> None:
        super().__init__()
        self.layer = implementation.MultiHeadAttention(16, 2, causal=False, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.layer(x, return_weights=True)[1].detach()
        return weights


class EmbeddingSum(nn.Module):
    """A language model with dropout 1/2, its logits the embedding sum: (B, T) -> (B, T, 32)."""

    def __init__(self, implementation: Implementation) -> None:
        super().__init__()
        self.model = implementation.LanguageModel(
            vocabulary=32, d_model=32, mixer="none", feed_forward=False, norm="none", dropout=0.5
        )
        nn.init.eye_(self.model.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(tokens).detach()
        return logits


def drawn(rng: Draws, module: nn.Module, x: Tensor, salt: str = "") -> Tensor:
    """module(x) in training, its dropout drawn from the test's own stream."""
    output: Tensor = rng.build(lambda: module.train()(x), salt).detach()
    return output


def either(y: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether every entry of y is, bit for bit, that of a or that of b, and both occur."""
    of_a, of_b = y == a, y == b
    return bool((of_a | of_b).all() and (of_a & ~of_b).any() and (of_b & ~of_a).any())


def on_weights(implementation: Implementation, rng: Draws) -> bool:
    """A weight becomes 0 or twice itself: after the softmax, and no row is scaled to one again."""
    module, x = rng.build(lambda: Weights(implementation)), rng.normal(2, 16, 16)
    return either(drawn(rng, module, x), torch.zeros(()), 2 * module.eval()(x))


def on_sub_layers(implementation: Implementation, rng: Draws) -> bool:
    """A token x becomes x or x plus twice a sub-layer's output: before the addition, for both."""
    block, x = partial(implementation.Block, 16, norm="none", dropout=0.5), rng.normal(2, 8, 16)
    mixing = rng.build(lambda: block(nn.Identity(), feed_forward=False))
    network = rng.build(lambda: block(None))
    mixed = either(drawn(rng, mixing, x), x, x + 2 * x)
    return mixed and either(drawn(rng, network, x), x, x + 2 * network.eval().ff(x))


def on_embedding_sum(implementation: Implementation, rng: Draws) -> bool:
    """Of token plus position an entry becomes 0 or twice the sum."""
    module, tokens = rng.build(lambda: EmbeddingSum(implementation)), rng.integers(0, 32, 2, 16)
    return either(drawn(rng, module, tokens), torch.zeros(()), 2 * module.eval()(tokens))


@claim("dropout-three-places")
def test_dropout_appears_in_three_places(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """On the weights after the softmax, on each sub-layer's output before the addition, on the
    sum of embeddings: every number there is 0 or doubled, and nothing else is touched.
    """
    found = {
        "weights": on_weights(implementation, rng),
        "sub-layers": on_sub_layers(implementation, rng),
        "embedding sum": on_embedding_sum(implementation, rng),
    }
    check(found, exact(dict.fromkeys(expected["places"], True)))


@claim("dropout-keeps-expectation")
def test_dropout_on_the_weights_keeps_the_expected_output(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Dropped weights are made up for by the others, on average: the expected output is unchanged.

    One query over 16 keys, 10,000 times with p = 0.3; the first feature of its output.
    """
    q, k, v = rng.normal(1, 4, salt="q"), rng.normal(16, 4, salt="k"), rng.normal(16, 1, salt="v")
    many = [part.expand(10_000, *part.shape) for part in (q, k, v)]
    output = rng.build(lambda: implementation.attention(*many, dropout=0.3))
    without = implementation.attention(q, k, v)
    check((output - without).flatten(), mean_within(0, 0, detects=0.1))


@claim("dropout-off-is-absent")
def test_dropout_that_is_off_is_as_if_it_were_absent(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In evaluation, and in training at p = 0, a model does what it does without dropout.

    The same parameters with p = 1/2 in evaluation and with p = 0 in training, bit for bit; also
    with the fused kernel, which is told of dropout at each call.
    """
    tokens = rng.integers(0, 64, 2, 16)
    for fused in (False, True):
        model = partial(implementation.LanguageModel, vocabulary=64, d_model=32, fused=fused)
        dropping, without = (rng.build(partial(model, dropout=p)) for p in (0.5, 0.0))
        expected = without.train()(tokens).detach()
        because = "the same operations on the same numbers"
        check(dropping.eval()(tokens).detach(), exact(expected, because))


@claim("dropout-returns-after-evaluation")
def test_dropout_is_active_again_after_an_evaluation(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Training, evaluation, training: half is dropped, nothing, half again.

    Counted are zeros among the weights of two heads and in the sum of embeddings.
    """
    inputs = {Weights: rng.normal(4, 64, 16), EmbeddingSum: rng.integers(0, 32, 16, 64)}
    for kind, x in inputs.items():
        module = rng.build(partial(kind, implementation))
        before = drawn(rng, module, x, "before") == 0
        evaluated = module.eval()(x) == 0
        after = drawn(rng, module, x, "after") == 0
        check((int(before.sum()), before.numel()), share_within(0.5, 0.5, detects=0.05))
        check(int(evaluated.sum()), exact(0), unit="zeros")
        check((int(after.sum()), after.numel()), share_within(0.5, 0.5, detects=0.05))
