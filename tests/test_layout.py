"""Weights and sub-modules are found by role, whatever layout and names a package has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from claims.harness.contract import CONTRACT
from claims.harness.implementation import Implementation
from claims.harness.layout import NAMES, USUAL, Layout, Missing

D = 8


class Conv1D(nn.Module):
    """As GPT-2's: the weight is (inputs, outputs)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.randn(outputs))


class Holder(nn.Module):
    def __init__(self, **children: nn.Module | None) -> None:
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def separate() -> nn.Module:
    return Holder(**{f"{n}_proj": nn.Linear(D, D, bias=False) for n in ("q", "k", "v", "out")})


def packed() -> nn.Module:
    return Holder(qkv=nn.Linear(D, 3 * D), out_proj=nn.Linear(D, D))


def of_gpt2() -> nn.Module:
    return Holder(c_attn=Conv1D(3 * D, D), c_proj=Conv1D(D, D))


def of_pytorch() -> nn.Module:
    return Holder(inner=nn.MultiheadAttention(D, 2))


@contextmanager
def nothing_missing() -> Iterator[None]:
    """Missing is a skip, which would not be red here."""
    try:
        yield
    except Missing as error:
        raise AssertionError(str(error)) from error


@pytest.mark.parametrize("make", [separate, packed, of_gpt2, of_pytorch])
@nothing_missing()
def test_what_is_set_is_read_back_in_every_layout(make: Any) -> None:
    layer = make()
    weights = {role: torch.randn(D, D) for role in ("q", "k", "v", "o")}
    USUAL.set_weights(layer, **weights)
    for role, weight in weights.items():
        assert torch.equal(USUAL.weight(layer, role), weight)
        bias = USUAL.bias(layer, role)
        assert bias is None or not bias.any(), "a bias that is left out is zero"


CALLED = {
    "q": ("q", "W_q", "Wq", "w_query", "W_query", "query", "q_proj", "to_q", "linear_q", "q_linear",
          "query_layer", "queries", "lin_q", "query_proj"),
    "o": ("o", "W_o", "out_proj", "o_proj", "c_proj", "proj", "to_out", "output", "dense", "fc_out",
          "out_linear", "projection"),
}


@pytest.mark.parametrize(
    ("role", "name"), [(role, name) for role, names in CALLED.items() for name in names]
)
@nothing_missing()
def test_matrices_are_found_by_the_names_that_people_use(role: str, name: str) -> None:
    others = {"k_proj": nn.Linear(D, D), "W_value": nn.Linear(D, D)}
    layer: Any = Holder(**{name: nn.Linear(D, D), **others})
    assert USUAL.weight(layer, role).data_ptr() == getattr(layer, name).weight.data_ptr()
    for other in {"q", "k", "v", "o"} - {role, "k", "v"}:
        with pytest.raises(Missing):
            USUAL.weight(layer, other)


def test_the_packed_matrix_is_q_then_k_then_v() -> None:
    layer: Any = of_gpt2()
    USUAL.set_weights(layer, k=torch.ones(D, D), k_bias=torch.ones(D))
    assert (layer.c_attn.weight[:, D : 2 * D] == 1).all()
    assert not (layer.c_attn.weight[:, :D] == 1).any()
    assert (layer.c_attn.bias[D : 2 * D] == 1).all()


def test_a_gradient_is_that_of_the_role_alone() -> None:
    layer: Any = packed()
    layer.qkv(torch.randn(3, D))[:, D : 2 * D].sum().backward()
    gradients = {parameter: parameter.grad for parameter in layer.parameters()}
    before = layer.qkv.weight.clone()
    assert torch.equal(USUAL.gradient(layer, "k", gradients), layer.qkv.weight.grad[D : 2 * D])
    assert not USUAL.gradient(layer, "o", gradients).any(), "a parameter without one counts as zero"
    assert torch.equal(layer.qkv.weight, before)


def test_a_package_may_say_itself_where_its_weights_and_parts_are() -> None:
    package = ModuleType("package")
    odd: Any = Holder(first=nn.Linear(D, D), second=nn.Linear(D, D))
    package.weights_of = lambda module: {"q": module.first.weight}  # type: ignore[attr-defined]
    package.parts_of = lambda module: {"mixer": module.second}  # type: ignore[attr-defined]
    layout = Layout(package)
    assert torch.equal(layout.weight(odd, "q"), odd.first.weight)
    assert layout.part(odd, "mixer") is odd.second
    with pytest.raises(Missing, match=r"weights_of\(module\) gives no 'k'"):
        layout.weight(odd, "k")


def test_what_is_not_recognised_is_missing_with_the_way_out() -> None:
    layer = Holder(one=nn.Linear(D, D), other=nn.Linear(D, D), third=nn.Linear(D, D))
    with pytest.raises(Missing, match=r"no weight that is recognised as 'q'.*weights_of"):
        USUAL.weight(layer, "q")
    with pytest.raises(Missing, match=r"no sub-module that is recognised as 'mixer'.*parts_of"):
        USUAL.part(layer, "mixer")
    with pytest.raises(Missing, match=r"the shape \(8, 8\), where \(4, 8\) was wanted"):
        USUAL.set_weights(separate(), q=torch.zeros(4, D))


@nothing_missing()
def test_a_place_that_is_left_empty_is_none() -> None:
    place = Holder(norm=None, blocks=nn.ModuleList())
    assert USUAL.part(place, "norm") is None
    assert USUAL.part(torch.compile(place, backend="eager"), "norm") is None
    with pytest.raises(Missing):
        USUAL.part(Holder(first=place, second=nn.Linear(2, 2)), "norm")


@nothing_missing()
def test_the_reference_has_every_weight_and_part_of_the_contract() -> None:
    reference = Implementation("transformer")
    layer = reference.MultiHeadAttention(D, 2)
    translator = {"source_vocabulary": 4, "target_vocabulary": 4, "context": 4, "d_model": D}
    built: dict[str, nn.Module] = {
        "Head": reference.Head(D, D, 4), "MultiHeadAttention": layer,
        "LearnedPositions": reference.LearnedPositions(4, D),
        "FeedForward": reference.FeedForward(D), "Block": reference.Block(D, layer),
        "LanguageModel": reference.LanguageModel(d_model=D),
        "EncoderDecoder": reference.EncoderDecoder(n_heads=2, n_blocks=1, **translator),
    }
    for name, each in CONTRACT.items():
        assert not (each.weights or each.parts) or name in built
        for role in each.weights:
            assert isinstance(reference.weight(built[name], role), Tensor)
        for role, says in each.parts.items():
            of_a_layer = says.startswith("of a decoder layer")
            whole = reference.part(built[name], "decoder")[0] if of_a_layer else built[name]
            assert reference.part(whole, role) is not None
    assert {role for each in CONTRACT.values() for role in (*each.weights, *each.parts)} == set(
        NAMES
    )
