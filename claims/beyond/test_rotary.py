"""Rotary positions: what makes them a rotation, and what goes wrong between two conventions.

Section 8 says that RoPE turns two-dimensional slices and that the score then depends only on t - i.
These claims check the same in the whole layer, the properties that every rotation has, and the
faults that users reported: features paired as neighbours in one place and as halves in another.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.harness import Check, Draws, claim, rounding, ulps
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.projections import projected
from claims.instruments.attention.rotation import (
    angles,
    pair_lengths,
    relative_weights,
    rotated,
    rotated_in_halves,
)

POSITIONS = st.integers(0, 1000)
VECTORS = tensors(lengths(4), 8, dtype=torch.float64)

# The bounds are derived in claims/test_08_positions.py, above its rotary claims.


@claim("rope-keeps-norms")
@settings(max_examples=30)
@given(x=VECTORS, start=POSITIONS)
def test_rotary_positions_keep_the_norm(
    implementation: Implementation, check: Check, x: Tensor, start: int
) -> None:
    """A rotation keeps the length of a vector, at any position."""
    turned = implementation.rotate(x, start + torch.arange(len(x)))
    because = "cos^2 + sin^2 is 4 u off, a pair 6 u; two norms of 8 numbers, 8 u each"
    check(turned.norm(dim=-1), ulps(x.norm(dim=-1), 32, because))


@claim("rope-rotations-compose")
@settings(max_examples=30)
@given(x=tensors(1, 8, dtype=torch.float64), a=POSITIONS, b=POSITIONS)
def test_rotations_compose(
    implementation: Implementation, check: Check, x: Tensor, a: int, b: int
) -> None:
    """Turned to position a and then by b more is turned to a + b: the angle is proportional."""
    at_a, at_b = torch.tensor([a]), torch.tensor([b])
    twice = implementation.rotate(implementation.rotate(x, at_a), at_b)
    once = implementation.rotate(x, at_a + at_b)
    scale = (1 + a + b) * pair_lengths(x)
    check(twice, ulps(once, 20, "angles 2 (a + b) u, three rotations 6 u each", scale=scale))


@claim("rope-relative-in-the-layer")
def test_the_layers_scores_name_only_the_difference(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In a layer with RoPE, t and i enter the scores only as t - i.

    The weights of two heads against the formula in t - i, with the layer's own queries and keys.
    The plain computation is the formula in float32.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 2, positions="rotary"))
    x = rng.normal(16, 24, 16, salt="x")

    def by_formula(x: Tensor) -> Tensor:
        q, k = (projected(implementation, layer, r, x).view(16, 24, 2, 8) for r in "qk")
        return relative_weights(*map(implementation.as_neighbours, (q, k)))

    _, weights = layer(x, return_weights=True)
    plain = by_formula(x)
    layer.double()
    because = "k = 4: twice for another order, twice because it turns both sides, the formula once"
    check(weights, rounding(by_formula(x.double()), plain, 4, because))


@claim("rope-leaves-values-alone")
def test_the_layer_mixes_values_that_are_not_turned(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """In a layer with RoPE the values that are mixed are those of a layer without positions.

    The output against W_o of the values, mixed by the weights that the layer returns. The plain
    computation is the same in float32.
    """
    layer = rng.build(lambda: implementation.MultiHeadAttention(16, 2, positions="rotary"))
    x = rng.normal(4, 24, 16, salt="x")

    def mixed(weights: Tensor, x: Tensor) -> Tensor:
        v = projected(implementation, layer, "v", x).view(4, 24, 2, 8)
        heads = torch.einsum("bhti,bihd->bthd", weights.detach(), v)
        return projected(implementation, layer, "o", heads.flatten(2))

    output, weights = layer(x, return_weights=True)
    plain = mixed(weights, x)
    layer.double()
    reference = mixed(layer(x.double(), return_weights=True)[1], x.double())
    check(output, rounding(reference, plain, 2, "k = 2: the same sums in another order"))


@claim("rope-far-positions")
def test_a_vector_far_along_is_turned_by_the_right_angle(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """At position 100,000 a float32 vector is turned by the right angle, to float32 precision.

    An angle that is computed in float32 is off by 3e-3 there. The features are float32, so that
    cosine, sine, two products and a sum are rounded.
    """
    t, x = 100_000 + torch.arange(16), rng.normal(16, 8)
    turned = implementation.rotate(x, t)
    derived = rotated(x.double(), angles(t, 8))
    scale = 2 * pair_lengths(x.double())
    check(turned, ulps(derived, 4, "cosine or sine, product and sum of both", scale=scale))


@claim("rope-pairings-agree")
@settings(max_examples=30)
@given(x=VECTORS)
def test_the_two_pairings_agree_under_one_permutation(
    implementation: Implementation, check: Check, x: Tensor
) -> None:
    """Pairs (2j, 2j+1) and pairs (j, j + d/2) are the same rotation of reordered features."""
    halves = torch.cat([torch.arange(0, 8, 2), torch.arange(1, 8, 2)])
    t = torch.arange(len(x))
    scale = ((1 + t[:, None]) * pair_lengths(x))[:, halves]
    reordered = implementation.rotate(x)[:, halves]
    other = rotated_in_halves(x[:, halves], t)
    check(reordered, ulps(other, 40, "2 * (14 t + 6) u", scale=scale))


@claim("rope-mixed-pairings-show")
def test_mixed_pairings_break_the_relative_score(
    implementation: Implementation, check: Check
) -> None:
    """A query turned in one pairing and a key in the other: the score is not relative any more.

    Two equal unit vectors at the same position t should score 1. Mixed, they share only cos(t) of
    the first feature, the rest is in different features: cos(t)^2, so 0.29 at t = 1.
    """
    unit, t = torch.eye(4, dtype=torch.float64)[:1], torch.tensor([1])
    mixed = implementation.rotate(unit, t)[0] @ rotated_in_halves(unit, t)[0]
    check(mixed, ulps(math.cos(1) ** 2, 24, "two cosines 2 u each, four products and sums"))
