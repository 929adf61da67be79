"""The scores of a freshly initialised head: smaller than those of unit-variance queries and keys.

Section 5 reasons from queries and keys of variance one, but a linear layer starts with weights of
variance 1/(3d). A score therefore starts with a third of the standard deviation per unit variance
of the head's input, which explains the 21 that the chapter prints.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from claims.harness import Check, Draws, Expected, claim, digits, mean_within, variance_near
from claims.harness.implementation import Implementation
from claims.instruments.attention.activations import mixer_of, passing_through
from claims.instruments.attention.projections import projected
from claims.instruments.attention.random_rows import KEYS, softmax_of_normal_scores
from claims.instruments.attention.scores import entropy, variance_within_rows

HEADS: dict[str, dict[str, Any]] = {
    "tokens-and-positions": {"d_head": 1024, "norm": "none"},
    "tokens-only": {"d_head": 1024, "norm": "none", "positions": "none"},
    "layer-norm": {"d_head": 1024, "norm": "pre"},
    "d_k-256": {"d_head": 256, "norm": "none"},
}
# A token's score with itself has 1 + 2/d times the variance of the others, at d = 64.
ABOUT_ONE = mean_within(1.0, 1.0 + 2 / 64, detects=0.15)


@claim("fresh-projections-variance-third")
def test_fresh_queries_and_keys_have_variance_one_third(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """Queries and keys that a fresh head makes of unit-variance input have variance 1/3.

    Entries of q and k of one sign vector. Each is a sum of 64 independent weights, uniform within
    1/8, of variance 1/192 each, and very nearly normal.
    """
    width, x = 20_480, torch.where(rng.normal(64) > 0, 1.0, -1.0)
    head = rng.build(lambda: implementation.MultiHeadAttention(64, 1, d_head=width), salt="head")
    entries = torch.cat([projected(implementation, head, role, x) for role in "qk"])
    check(entries, variance_near(expected["numerator"] / expected["denominator"], detects=0.06))


@claim("fresh-head-256-two-to-three-tokens")
def test_a_fresh_unscaled_head_of_256_averages_over_two_to_three_tokens(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """A freshly initialised, unscaled head of d_k = 256 averages over two to three tokens.

    60 heads, each on 64 tokens of unit variance. Scores of standard deviation sqrt(256)/3 give 2.5
    effective tokens by quadrature; measured are 2.56, because a head's queries differ in length.
    """
    d_k = expected["d_k"]
    switches = {"d_head": d_k, "causal": False, "scaled": False}
    build = partial(implementation.MultiHeadAttention, 128, 1, **switches)
    entropies = []
    for i in range(60):
        head = rng.build(build, salt=f"head {i}").double()
        x = rng.normal(1, KEYS, 128, salt=f"input {i}", dtype=torch.float64)
        entropies.append(entropy(head(x, return_weights=True)[1]).mean())
    derived = softmax_of_normal_scores(math.sqrt(d_k) / 3).entropy
    check(math.exp(derived), digits(expected["effective_tokens"], decimals=1), unit="tokens")
    few = mean_within(math.log(expected["low"]), math.log(expected["high"]), detects=0.15)
    check(torch.stack(entropies).detach(), few, unit="nats")


def variances_over_formula(
    implementation: Implementation, rng: Draws, std: float, **changes: Any
) -> Tensor:
    """Score variance over std^2, from the weights of 40 fresh one-head models on distinct tokens.

    d_model cancels, so it is 64, half the chapter's. One number per model, of 4,560 scores: the
    pairs of 96 tokens, whose vectors are independent.
    """
    shape = {"vocabulary": 96, "context": 96, "d_model": 64, "feed_forward": False}
    build = partial(implementation.LanguageModel, n_heads=1, **shape, **changes)
    ratios = []
    for i in range(40):
        model = rng.build(build, salt=f"model {i}").double()
        tokens = rng.permutation(96, salt=f"tokens {i}")[None]
        mixer = mixer_of(model, 0, implementation)
        x, _ = passing_through(mixer, partial(model, tokens))
        _, weights = mixer(x, return_weights=True)
        ratios.append(variance_within_rows(weights) / std**2)
    return torch.tensor(ratios)


@claim("init-score-std-formula")
@pytest.mark.parametrize("head", HEADS)
def test_unscaled_scores_start_with_a_std_of_a_third_of_sqrt_dk_per_unit_variance(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws, head: str
) -> None:
    """Unscaled scores start with standard deviation s^2 sqrt(d_k) / 3.

    Weights of a fresh linear layer have variance 1/(3d), so entries of q and k have s^2/3 each, and
    a score d_k times the product. s^2 is 2 for token plus position. Each other head halves the std.
    """
    variances = variances_over_formula(
        implementation, rng, expected["std"][head], scaled=False, **HEADS[head]
    )
    check(variances, ABOUT_ONE)


@claim("divided-init-score-std")
def test_the_scaled_head_starts_at_a_score_std_of_two_thirds(
    implementation: Implementation, check: Check, expected: Expected, rng: Draws
) -> None:
    """The scaled head starts at a score standard deviation of 0.667.

    By the formula, 2 sqrt(1024)/3 over sqrt(1024), and by the weights that fresh heads return.
    """
    check(2 * math.sqrt(1024) / 3 / math.sqrt(1024), digits(expected["std"], decimals=3))
    variances = variances_over_formula(
        implementation, rng, expected["std"], scaled=True, d_head=1024, norm="none"
    )
    check(variances, ABOUT_ONE)
