"""Where a module keeps its weights and sub-modules, by the names and layouts that people use.

Separate matrices or one packed W_qkv, as nn.Linear (outputs, inputs), as GPT-2's Conv1D (inputs,
outputs), or as nn.MultiheadAttention's parameters. A module that wraps another is looked through.
"""

from __future__ import annotations

import unittest
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn

# Role -> names of the sub-module, compared in lower case and without underscores.
NAMES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query", "queries"),
    "k": ("k", "key", "keys"),
    "v": ("v", "value", "values"),
    "o": ("o", "out", "output", "c", "proj", "projection", "dense"),
    "expand": ("expand", "cfc", "fc1", "linear1", "up", "upproj", "w1", "fcin", "densehto4h"),
    "contract": ("contract", "cproj", "fc2", "linear2", "down", "downproj", "w2", "fcout"),
    "table": ("table", "embedding", "emb", "weight"),
    "token": ("token", "wte", "tokemb", "tokenembedding", "tokenemb", "tokembeddings", "embedding",
              "embed", "embedtokens", "tokenembeddingtable"),
    "position": ("position", "wpe", "posemb", "positionembedding", "posembedding", "positions",
                 "positionembeddingtable"),
    "head": ("head", "lmhead", "tologits", "unembed", "output"),
    "blocks": ("blocks", "h", "layers"),
    "norm": ("norm", "lnf", "finalnorm", "normf", "lnfinal"),
    "mixer": ("mixer", "attn", "attention", "selfattn", "selfattention", "sa"),
    "ff": ("ff", "mlp", "ffn", "feedforward", "ffwd", "feedforwardnetwork"),
    "ln1": ("ln1", "norm1", "attnnorm", "attentionnorm", "inputlayernorm"),
    "ln2": ("ln2", "norm2", "ffnnorm", "mlpnorm", "postattentionlayernorm"),
    "encoder": ("encoder", "encoderlayers"),
    "decoder": ("decoder", "decoderlayers"),
    "attention": ("attention", "selfattn", "selfattention", "attn"),
    "cross": ("cross", "crossattn", "crossattention", "multiheadattn", "encoderattn",
              "encdecattention", "srcattn"),
    "ln3": ("ln3", "norm3", "finallayernorm"),
}
# Around the names of matrices: W_query, q_proj, to_q, linear_q, key_layer.
BEFORE, AFTER = ("w", "to", "linear", "lin", "fc"), ("proj", "projection", "linear", "layer", "net")
PACKED = ("qkv", "wqkv", "cattn", "inproj", "qkvproj", "toqkv", "querykeyvalue")


MATRICES = tuple(NAMES[role] for role in ("q", "k", "v", "o"))


class Missing(unittest.SkipTest):
    """The package under test lacks what a claim needs.

    pytest and Hypothesis take a `SkipTest` for a skip: the claim is not run, with this as reason.
    """


class Broken(Exception):
    """The package under test broke where it was run for a claim; the first line says how."""


class Layout:
    """Weights and sub-modules of modules, by role; `contract.py` lists the roles.

    By the functions `weights_of`, `set_weights` and `parts_of` of the package where it has them,
    otherwise by the usual names. What is not found raises Missing.
    """

    def __init__(self, package: ModuleType | None = None) -> None:
        self._own = package

    def part(self, module: nn.Module, role: str) -> Any:
        """The sub-module of that role; None where the module's settings leave it out."""
        if (own := self._hook("parts_of")) is not None:
            return _entry(own(module), role, "parts_of")
        try:
            return _part(module, role)
        except LookupError as error:
            raise Missing(_unknown(error, "parts_of")) from None

    def weight(self, module: nn.Module, role: str) -> Tensor:
        """The matrix of that role, (outputs, inputs), without gradient; it shares memory."""
        if (own := self._hook("weights_of")) is not None:
            found: Tensor = _entry(own(module), role, "weights_of")
            return found.detach()
        try:
            return _weight(module, role).read()
        except LookupError as error:
            raise Missing(_unknown(error, "weights_of")) from None

    def bias(self, module: nn.Module, role: str) -> Tensor | None:
        """The bias of that role, (outputs,), without gradient; None where it has none."""
        if (own := self._hook("weights_of")) is not None:
            found: Tensor | None = own(module).get(f"{role}_bias")
            return None if found is None else found.detach()
        try:
            slot = _bias(module, role)
        except LookupError as error:
            raise Missing(_unknown(error, "weights_of")) from None
        return None if slot is None else slot.read()

    def set_weights(self, module: nn.Module, **weights: Tensor) -> None:
        """Set matrices by role, and biases as `q_bias`; a bias that is left out becomes zero.

        Raises Missing where the module has no such weight, or one of another shape.
        """
        if (own := self._hook("set_weights")) is not None:
            own(module, **weights)
            return
        for role in [name for name in weights if not name.endswith("_bias")]:
            offset = self.bias(module, role)
            given = weights.get(f"{role}_bias")
            if offset is None and given is not None:
                raise Missing(f"{type(module).__name__} has no bias for '{role}'")
            _copy(self.weight(module, role), weights[role], module, role)
            if offset is not None:
                _copy(offset, offset.new_zeros(()) if given is None else given, module, role)

    def gradient(
        self, module: nn.Module, role: str, of: Mapping[nn.Parameter, Tensor | None]
    ) -> Tensor:
        """The gradient of a matrix, given those of the parameters: parameter -> its gradient."""
        held = [(parameter, parameter.data) for parameter in module.parameters()]
        try:
            for parameter, values in held:
                gradient = of.get(parameter)
                parameter.data = values.new_zeros(values.shape) if gradient is None else gradient
            return self.weight(module, role).clone()
        finally:
            for parameter, values in held:
                parameter.data = values

    def _hook(self, name: str) -> Any:
        return getattr(self._own, name, None)


# For what is handed a trained model and no package: the usual names alone.
USUAL = Layout()


class Slot(NamedTuple):
    """A matrix or a bias inside a parameter."""

    parameter: nn.Parameter
    third: int | None = None  # of a packed W_qkv
    transposed: bool = False

    def read(self) -> Tensor:
        """The values, (outputs, inputs) or (outputs,), sharing memory with the parameter."""
        values = self.parameter.detach()
        values = values.T if self.transposed else values
        return values if self.third is None else values.chunk(3)[self.third]


def _part(module: nn.Module, role: str) -> Any:
    """The sub-module of a role; None where the module has the place but leaves it empty.

    Raises LookupError where no name is known for it.
    """
    for each in _through_wrappers(module):
        empty = [n for n, child in {**vars(each), **each._modules}.items() if child is None]
        if any(_plain(name) in NAMES[role] for name in empty):
            return None
    if (found := _named(module, NAMES[role])) is None:
        raise LookupError(_sentence(module, role, "sub-module"))
    return found


def _through_wrappers(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and while it only wraps another, as torch.compile's does, that one."""
    yield module
    children = list(module.children())
    if len(children) == 1 and not any(True for _ in module.parameters(recurse=False)):
        yield from _through_wrappers(children[0])


def _weight(module: nn.Module, role: str) -> Slot:
    """The matrix of a role. Raises LookupError where no layout that is known has it."""
    if (found := _slots(module, role)) is None:
        raise LookupError(_sentence(module, role, "weight"))
    return found[0]


def _bias(module: nn.Module, role: str) -> Slot | None:
    """The bias of a role; None where it has none. Raises LookupError where the role is unknown."""
    if (found := _slots(module, role)) is None:
        raise LookupError(_sentence(module, role, "weight"))
    return found[1]


def _sentence(module: nn.Module, role: str, kind: str) -> str:
    return f"{type(module).__name__} has no {kind} that is recognised as '{role}'"


def _slots(module: nn.Module, role: str) -> tuple[Slot, Slot | None] | None:
    if (layer := _matrix(_named(module, NAMES[role]))) is not None:
        return _of_layer(layer, None)
    if role in ("q", "k", "v"):
        return _packed(module, "qkv".index(role))
    if role in ("expand", "contract"):  # the only two matrices of a network
        matrices = [m for m in module.modules() if _is_matrix(m)]
        return _of_layer(matrices[role == "contract"], None) if len(matrices) == 2 else None
    kind = nn.Embedding if role in ("table", "token", "position") else None
    tables = [m for m in module.modules() if kind and isinstance(m, kind)]
    return _of_layer(tables[0], None) if role != "position" and len(tables) == 1 else None


def _packed(module: nn.Module, third: int) -> tuple[Slot, Slot | None] | None:
    if (layer := _matrix(_named(module, PACKED))) is not None:
        return _of_layer(layer, third)
    for inner in module.modules():
        if isinstance(inner, nn.MultiheadAttention) and inner.in_proj_weight is not None:
            offset = None if inner.in_proj_bias is None else Slot(inner.in_proj_bias, third)
            return Slot(inner.in_proj_weight, third), offset
    return None


def _of_layer(layer: Any, third: int | None) -> tuple[Slot, Slot | None]:
    transposed = type(layer).__name__ == "Conv1D"
    offset = getattr(layer, "bias", None)
    return Slot(layer.weight, third, transposed), None if offset is None else Slot(offset, third)


def _matrix(found: nn.Module | None) -> nn.Module | None:
    """The layer that holds the matrix: the module itself, or the only one inside it."""
    if found is None or _is_matrix(found) or isinstance(found, nn.Embedding):
        return found
    inside = [m for m in found.modules() if _is_matrix(m) or isinstance(m, nn.Embedding)]
    return inside[0] if len(inside) == 1 else None


def _is_matrix(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
    return linear and isinstance(weight, Tensor) and weight.dim() == 2


def _named(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    """The one with such a name that lies least deep; None where there is none, or two."""
    found = [
        (path.count("."), child) for path, child in module.named_modules()
        if path and _is_called(path.rpartition(".")[2], names)
    ]
    least = min((depth for depth, _ in found), default=0)
    nearest = [child for depth, child in found if depth == least]
    return nearest[0] if len(nearest) == 1 else None


def _is_called(name: str, names: tuple[str, ...]) -> bool:
    """Whether a sub-module has one of the names, also with what people write around them."""
    plain = _plain(name)
    around = (
        *(plain.removeprefix(each) for each in BEFORE if plain.startswith(each)),
        *(plain.removesuffix(each) for each in AFTER if plain.endswith(each)),
    )
    return plain in names or (names in MATRICES and not {*around}.isdisjoint(names))


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _entry(found: Mapping[str, Any], role: str, hook: str) -> Any:
    if role not in found:
        raise Missing(f"{hook}(module) gives no '{role}'")
    return found[role]


def _unknown(error: LookupError, hook: str) -> str:
    return f"{error.args[0]}; the package may say where, by {hook}(module)"


def _copy(into: Tensor, values: Tensor, module: nn.Module, role: str) -> None:
    """Over the old values. Raises Missing where the shapes differ; a scalar fits every shape."""
    if values.dim() and values.shape != into.shape:
        raise Missing(
            f"'{role}' of {type(module).__name__} has the shape {tuple(into.shape)}, "
            f"where {tuple(values.shape)} was wanted"
        )
    into.copy_(values.detach())
