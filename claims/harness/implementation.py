"""The seam: the only way by which claims and instruments reach the code under test.

`--implementation some.package` names an importable package. It provides, at its top level, some or
all of the names of the contract (`contract.py`); a claim that needs a name that the package lacks
is reported as `not run`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from claims.harness import loading, source
from claims.harness.contract import CONTRACT, declared
from claims.harness.layout import Layout, Missing

__all__ = ["Implementation", "Missing"]


class NotInTheContract(AttributeError):
    """A claim asks for a name that no package is asked to have: a defect of the claim."""


class Implementation(Layout):
    """The package under test through the seam: `implementation.Head` is the package's `Head`.

    Weights and sub-modules are reached by their role (`contract.py` lists the roles), whatever the
    package calls them.
    """

    def __init__(self, package: str) -> None:
        """Import `package`.

        Raises:
            ValueError: it cannot be imported, provides none of the names, or declares what the
                contract does not know.
        """
        self.package = package
        self._module, self.remarks = loading.load(package)
        super().__init__(self._module)
        self.used: set[str] = set()  # names that claims have asked for
        self.declares = declared(getattr(self._module, "DECLARES", {}), package)
        if not self.provided():
            raise ValueError(
                f"--implementation {package}: the package provides none of the names of the "
                f"contract (docs/own-implementation.md lists them, e.g. "
                f"{', '.join(list(CONTRACT)[:4])})"
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in CONTRACT:
            raise NotInTheContract(
                f"'{name}' is no name of the contract (claims/harness/contract.py)"
            )
        if not hasattr(self._module, name):
            raise Missing(f"{self.package} does not provide {name}")
        self.used.add(name)
        return getattr(self._module, name)

    def provided(self) -> list[str]:
        """The names of the contract that the package has."""
        return [name for name in CONTRACT if hasattr(self._module, name)]

    @property
    def file(self) -> Path:
        """The file that is judged: the module, or the `__init__.py` of the package."""
        assert self._module.__file__ is not None
        return Path(self._module.__file__)

    def source_digest(self) -> str:
        """sha256 over the code that a result computed with the package depends on."""
        return source.digest(self._module)
