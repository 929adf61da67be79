"""The seam: the only way by which claims and instruments reach the code under test.

`--implementation some.package` names an importable package. It provides, at its top level, some or
all of the names of the contract (`contract.py`); a claim that needs a name that the package lacks
is reported as `not run`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from claims.harness import loading, source
from claims.harness.contract import CONTRACT, GROUPS, declared
from claims.harness.layout import Layout, Missing

__all__ = ["Implementation", "Missing"]


class NotInTheContract(AttributeError):
    """A claim asks for a name that no package is asked to have: a defect of the claim."""


class Implementation(Layout):
    """The package under test through the seam: `implementation.Head` is the package's `Head`.

    Weights and sub-modules are reached by their role (`contract.py` lists the roles), whatever the
    package calls them.
    """

    def __init__(self, package: str, groups: Collection[str] = GROUPS, fill: str = "") -> None:
        """Import `package`.

        Args:
            groups: the groups of names that are asked of it.
            fill: the package from which names are taken that it lacks; empty for none.

        Raises:
            ValueError: it cannot be imported, provides none of the names, or declares what the
                contract does not know.
        """
        self.package = package
        self._module, self.remarks = loading.load(package)
        super().__init__(self._module)
        # Name -> why its form does not fit, found by `probe.py`.
        self.unfit: Mapping[str, str] = {}
        # Name -> why it returns no weights though it is asked for them, found by `probe.py`.
        self.weightless: Mapping[str, str] = {}
        self.used: set[str] = set()  # names that claims have asked for
        self.declares = declared(getattr(self._module, "DECLARES", {}), package)
        self._groups = groups
        self._filler = loading.load(fill)[0] if fill else None
        if not self.provided():
            raise ValueError(
                f"--implementation {package}: the package provides none of the names of the "
                f"contract{'' if groups is GROUPS else ' that --only asks for'}: "
                f"{', '.join(n for n, each in CONTRACT.items() if each.group in groups)}"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in CONTRACT:
            raise NotInTheContract(
                f"'{name}' is no name of the contract (claims/harness/contract.py)"
            )
        if name in self.provided():
            if name in self.unfit:
                raise Missing(self.unfit[name])
            self.used.add(name)
            if name == "rotate" and self.declares["rotary_pairs"] == "halves":
                return self._rotate_neighbours
            found = getattr(self._module, name)
            return self._without_weights(name, found) if name in self.weightless else found
        if self._filler is not None:
            return getattr(self._filler, name)
        if CONTRACT[name].group not in self._groups:
            raise Missing("--only leaves out what needs names of other groups")
        raise Missing(f"{self.package} does not provide {name}")

    def _without_weights(self, name: str, found: Callable[..., Any]) -> Callable[..., Any]:
        """The package's function or module, where asking for weights raises Missing."""

        def refuse(_: Any, arguments: Any, settings: Mapping[str, Any]) -> None:
            if settings.get("return_weights"):
                raise Missing(self.weightless[name])

        def call(*arguments: Any, **settings: Any) -> Any:
            refuse(None, arguments, settings)
            made = found(*arguments, **settings)
            if isinstance(made, nn.Module):
                made.register_forward_pre_hook(refuse, with_kwargs=True)
            return made

        return call

    def as_neighbours(self, x: Tensor) -> Tensor:
        """Features (..., d) of the package's own pairing in the contract's: pairs side by side."""
        if self.declares["rotary_pairs"] != "halves":
            return x
        return x.reshape(*x.shape[:-1], 2, -1).transpose(-1, -2).flatten(-2)

    def _rotate_neighbours(self, x: Tensor, *arguments: Any, **settings: Any) -> Tensor:
        """The package's `rotate`, which pairs halves, for features whose pairs are neighbours."""
        halves = x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)
        turned: Tensor = self._module.rotate(halves, *arguments, **settings)
        return self.as_neighbours(turned)

    def provided(self) -> list[str]:
        """The names of the contract that the package has, in the groups that are asked of it."""
        return [
            name for name, each in CONTRACT.items()
            if each.group in self._groups and hasattr(self._module, name)
        ]

    @property
    def fills(self) -> bool:
        """Whether names that the package lacks are taken from the reference."""
        return self._filler is not None

    @property
    def file(self) -> Path:
        """The file that is judged: the module, or the `__init__.py` of the package."""
        assert self._module.__file__ is not None
        return Path(self._module.__file__)

    def source_digest(self) -> str:
        """sha256 over the code that a result computed with the package depends on."""
        own = source.digest(self._module)
        if self._filler is None:
            return own
        facts = json.dumps([own, self.provided(), source.digest(self._filler)])
        return hashlib.sha256(facts.encode()).hexdigest()

