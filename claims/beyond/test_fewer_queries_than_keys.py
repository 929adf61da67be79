"""Fewer queries than keys: the queries are the newest tokens, and keep their places.

Generation has one new query for all keys so far. Users reported queries whose rotary positions then
start at 0 again, so that the same token scores differently with a cache than without.
"""

from __future__ import annotations

from functools import partial

import pytest

from claims.harness import Check, Draws, claim, rounding
from claims.harness.implementation import Implementation


@claim("last-queries-keep-their-places")
@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_the_last_queries_get_from_a_context_what_they_get_in_the_whole(
    positions: str, implementation: Implementation, check: Check, rng: Draws
) -> None:
    """The last tokens get from all tokens as context what they get in the whole sequence.

    With rotary positions and with ALiBi, in three heads. The last one, and the last five of 16
    tokens, as queries alone, against these rows of the layer on all 16.
    """
    make = partial(implementation.MultiHeadAttention, 24, 3, causal=False, positions=positions)
    layer, x = rng.build(make), rng.normal(4, 16, 24, salt="x")
    plain, last = layer(x), {n: layer(x[:, -n:], context=x) for n in (1, 5)}
    reference = layer.double()(x.double()).detach()
    for n, measured in last.items():
        same = rounding(reference[:, -n:], plain[:, -n:].detach(), 2, "k = 2: another order")
        check(measured, same)
