"""The causal mask: no output depends on later tokens, and the last query sees every key.

The chapter warns of a leak from the future; here it is looked for in outputs, values and gradients.
Generation has fewer queries than keys; users reported masks that were then aligned to the first
key, and chunks that saw the wrong keys.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from claims.beyond.bounds import same_attention
from claims.harness import Check, Draws, claim, exact
from claims.harness.implementation import Implementation
from claims.harness.strategies import lengths, tensors
from claims.instruments.attention.influence import influence, with_other_rows

FEW = settings(max_examples=20)  # each example is a whole matrix of cases
DOUBLE = torch.float64


@claim("head-prefix-consistent")
@FEW
@given(x=tensors(2, 9, 6, dtype=DOUBLE), t=lengths(9))
def test_a_prefix_gives_the_same_rows_as_the_whole(
    implementation: Implementation, check: Check, rng: Draws, x: Tensor, t: int
) -> None:
    """A head's rows for a prefix are the same whether or not more tokens follow.

    The head on the first t of 9 tokens, against the first t rows of the head on all of them.
    """
    head = rng.build(lambda: implementation.Head(6, 4, 9)).double().requires_grad_(False)
    q, k, v = (x.abs() @ implementation.weight(head, role).abs().T for role in "qkv")
    check(head(x[:, :t]), same_attention(head(x)[:, :t], q, k, v, depth=6))


@claim("future-values-change-nothing")
@FEW
@given(
    x=tensors(3, 7, 3, dtype=DOUBLE), other=tensors(2, 7, 3, dtype=DOUBLE), start=lengths(7)
)
def test_other_tokens_in_the_future_change_nothing_in_the_past(
    implementation: Implementation, check: Check, x: Tensor, other: Tensor, start: int
) -> None:
    """Under the causal mask, later keys and values change no earlier output by a bit.

    The first `start` outputs before and after all later keys and values are replaced.
    """
    q, k, v = x
    mask = implementation.causal_mask(7)
    changed = (with_other_rows(k, start, other[0]), with_other_rows(v, start, other[1]))
    before = implementation.attention(q, k, v, mask)[:start]
    after = implementation.attention(q, *changed, mask)[:start]
    check(after, exact(before, because="a masked weight is 0, and adds 0 times a finite number"))


@claim("future-sends-no-gradient")
def test_an_output_has_gradients_from_its_past_alone(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Output t of a head has a gradient from each token i <= t, and from no other.

    Where d output_t / d x_i is not exactly zero.
    """
    head = rng.build(lambda: implementation.Head(4, 3, 7)).double()
    reached = influence(head, rng.normal(1, 7, 4, dtype=DOUBLE)) != 0
    check(reached, exact(torch.ones(7, 7, dtype=torch.bool).tril()))


@claim("last-query-sees-every-key")
@FEW
@given(sizes=st.tuples(lengths(), lengths()).map(sorted))
def test_the_last_query_sees_every_key(
    implementation: Implementation, check: Check, sizes: list[int]
) -> None:
    """With fewer queries than keys the causal mask lets the last query see every key.

    The mask of n queries and m keys, against the last n rows of the square mask. Aligned to the
    first key, one query with a cache of keys would see that key alone.
    """
    n, m = sizes
    whole = [[i <= t for i in range(m)] for t in range(m)]
    check(implementation.causal_mask(n, m).tolist(), exact(whole[m - n :]))


@claim("chunked-prefill-equals-full-pass")
@FEW
@given(x=tensors(3, 9, 3, dtype=DOUBLE), start=st.integers(0, 8), fused=st.booleans())
def test_reading_in_two_chunks_equals_reading_at_once(
    implementation: Implementation, check: Check, x: Tensor, start: int, fused: bool
) -> None:
    """Reading a sequence in two chunks equals reading it at once.

    The later queries against all keys so far, explicit or fused, and the same rows of a full pass.
    """
    q, k, v = x
    mask = implementation.causal_mask(9 - start, 9)
    chunk = implementation.attention(q[start:], k, v, mask, fused=fused)
    whole = implementation.attention(q, k, v, implementation.causal_mask(9))
    check(chunk, same_attention(whole[start:], q, k, v))
