"""What attention does not depend on, for every input: a shift of the scores, the order of the keys.

Properties of the formula of section 4 alone, without mask and positions, and the sense in which
line 122 calls the layer linear.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from torch import Tensor

from claims.beyond.bounds import same_attention
from claims.harness import Check, claim, exact
from claims.harness.implementation import Implementation
from claims.harness.strategies import permutations, tensors

FEW = settings(max_examples=30)  # each example is a whole matrix of cases

whole_numbers = numpy_strategies.arrays(np.int16, (5, 6), elements=st.integers(-1000, 1000)).map(
    lambda array: torch.from_numpy(array).float()
)
powers_of_two = st.sampled_from([-2.0, 0.5, 1.0, 4.0])  # scaling by them rounds nothing


@claim("softmax-shift-invariant")
@FEW
@given(drawn=whole_numbers)
def test_a_number_added_to_all_scores_changes_no_weight(
    implementation: Implementation, check: Check, drawn: Tensor
) -> None:
    """A number added to all the scores of a row changes no weight.

    Five rows of five scores, each with a number of its own. All are whole, so that sums are exact
    and the bits equal. Queries and values are unit vectors, so the outputs are the weights.
    """
    scores, shift, unit = drawn[:, :5], drawn[:, 5:], torch.eye(5)
    plain = implementation.attention(unit, scores.T, unit, scale=1.0)
    shifted = implementation.attention(unit, (scores + shift).T, unit, scale=1.0)
    check(shifted, exact(plain, because="score less maximum is the same whole number"))


@claim("attention-linear-in-values")
@FEW
@given(x=tensors(4, 6, 3, dtype=torch.float64), a=powers_of_two, b=powers_of_two)
def test_attention_is_linear_in_its_values(
    implementation: Implementation, check: Check, x: Tensor, a: float, b: float
) -> None:
    """With queries and keys held, attention is linear in its values.

    Attention to the values a v + b w, against a times attention to v plus b times attention to w.
    """
    q, k, v, w = x
    apart = a * implementation.attention(q, k, v) + b * implementation.attention(q, k, w)
    size = abs(a) * v.abs().max() + abs(b) * w.abs().max()
    check(implementation.attention(q, k, a * v + b * w), same_attention(apart, q, k, size))


@claim("unmasked-attention-equivariant")
@FEW
@given(
    x=tensors(3, 6, 3, dtype=torch.float64), order=permutations(6), of_keys=permutations(6)
)
def test_unmasked_attention_ignores_the_order_of_the_keys(
    implementation: Implementation, check: Check, x: Tensor, order: Tensor, of_keys: Tensor
) -> None:
    """Without a mask, outputs follow the order of the queries and ignore that of the keys.

    Queries in one new order and keys, with their values, in another, against the reordered output.
    """
    q, k, v = x
    reordered = implementation.attention(q[order], k[of_keys], v[of_keys])
    check(reordered, same_attention(implementation.attention(q, k, v)[order], q, k, v))
