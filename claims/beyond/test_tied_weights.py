"""Embedding and output head are one tensor: what the tie saves, how it is counted, what keeps it.

Users counted tied weights twice in a state dictionary, and lost the tie unnoticed, to
initialisation on the meta device or to a wrapper.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from claims.harness import Check, Draws, Expected, claim, exact
from claims.harness.implementation import Implementation


@claim("gpt2-count-untied")
def test_gpt2_untied(implementation: Implementation, check: Check, expected: Expected) -> None:
    """With an output head of its own GPT-2 small has 163,037,184 parameters.

    Counted on the untied model, in the package's arithmetic, and as the tied model with a second
    table of 50,257 x 768.
    """
    with torch.device("meta"):
        tied, untied = implementation.gpt2_small(), implementation.gpt2_small(tied=False)
    computed = implementation.model_parameters(
        vocabulary=50_257, context=1_024, d_model=768, n_blocks=12, n_heads=12,
        qkv_bias=True, tied=False,
    )
    check(implementation.count_parameters(untied), exact(expected["value"]))
    check(computed["total"], exact(expected["value"]))
    check(implementation.count_parameters(tied) + 50_257 * 768, exact(expected["value"]))


@claim("tied-tensor-counted-once")
def test_a_tied_tensor_is_counted_once(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """A tied tensor is counted once, though the state dictionary names it twice.

    The state dictionary's numbers, with the tied table once (by memory address) and twice, against
    the package's count and its arithmetic.
    """
    V, d = 64, 16
    model = rng.build(lambda: implementation.LanguageModel(vocabulary=V, d_model=d, tied=True))
    state: dict[str, Tensor] = model.state_dict()
    numbers = [(tensor.data_ptr(), tensor.numel()) for tensor in state.values()]
    counted = implementation.count_parameters(model)
    computed = implementation.model_parameters(vocabulary=V, d_model=d, tied=True)["total"]
    check(sum(n for _, n in set(numbers)), exact(counted))
    check(sum(n for _, n in numbers), exact(counted + V * d))
    check(computed, exact(counted))


@claim("tie-survives")
def test_the_tie_survives_what_is_done_to_a_model(
    implementation: Implementation, check: Check, rng: Draws
) -> None:
    """Embedding and output head stay one tensor through copies, moves, casts, loading and meta.

    The last is a model that is made on the meta device and gets its memory later.
    """

    def build() -> Any:
        return implementation.LanguageModel(vocabulary=64, d_model=16, tied=True)

    saved = rng.build(build).state_dict()
    with torch.device("meta"):
        empty = build()
    loaded, assigned = rng.build(build, "loaded"), rng.build(build, "assigned")
    loaded.load_state_dict(saved)
    assigned.load_state_dict({name: x.clone() for name, x in saved.items()}, assign=True)
    done = {
        "deepcopy": copy.deepcopy(rng.build(build)),
        "to another device": rng.build(build).to("meta"),
        "to another type": rng.build(build).to(torch.float64),
        "half": rng.build(build).half(),
        "load_state_dict": loaded,
        "load_state_dict with assign": assigned,
        "meta device, then to_empty": empty.to_empty(device="cpu"),
    }
    tied = {name: tied_in(implementation, model) for name, model in done.items()}
    check(tied, exact(dict.fromkeys(done, True)))


def tied_in(implementation: Implementation, model: Any) -> bool:
    """Whether the output head uses the numbers of the table, and not a copy."""
    table, head = (implementation.part(model, role).weight for role in ("token", "head"))
    return table is head
