"""Which names of the package a claim can ask for, as its code shows before it runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from claims.harness import reach
from claims.instruments.attention.dropout import EmbeddingSum, Weights
from conftest import Project, output


class Fake:
    """An item, whose fixtures are functions."""

    def __init__(self, test: Any, **fixtures: Any) -> None:
        self.obj = test
        definitions = {name: [self._definition(each)] for name, each in fixtures.items()}
        self._fixtureinfo = type("Info", (), {"name2fixturedefs": definitions})

    @staticmethod
    def _definition(function: Any) -> Any:
        return type("Definition", (), {"func": staticmethod(function)})


@pytest.fixture(autouse=True)
def these_tests_are_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach.paths, "CLAIMS", __file__)


def reached(test: Any, **fixtures: Any) -> set[str]:
    return reach.names_in_reach(Fake(test, **fixtures))  # type: ignore[arg-type]


def directly(implementation: Any) -> None:
    implementation.Head(1, 1, 1)


def inside(implementation: Any) -> Any:
    return [lambda: implementation.rotate(1)]


def by_a_function(implementation: Any) -> None:
    directly(implementation)


BY_NAME = {"block": [partial(directly, None)], "rotation": inside}


def by_a_table(implementation: Any) -> None:
    BY_NAME["block"](implementation)


def by_a_class(implementation: Any) -> None:
    Weights(implementation)


def by_a_default(implementation: Any, function: Any = directly) -> None: ...


def none(implementation: Any) -> None:
    print(implementation.package)


@pytest.mark.parametrize(("test", "names"), [
    (directly, {"Head"}), (inside, {"rotate"}), (by_a_function, {"Head"}),
    (by_a_table, {"Head", "rotate"}), (by_a_class, {"MultiHeadAttention"}),
    (by_a_default, {"Head"}), (none, set()),
])  # fmt: skip
def test_a_name_is_reached_wherever_it_is_mentioned(test: Any, names: set[str]) -> None:
    assert reached(test) == names


def test_what_a_fixture_makes_is_reached() -> None:
    assert reached(none, made=lambda: EmbeddingSum) == {"LanguageModel"}


HIDDEN = """
@claim("a")
def test_a(implementation, check):
    check(getattr(implementation, "causal_" + "mask")(2).sum().item(), exact(3))
"""


def test_a_name_that_the_code_does_not_show_is_refused_on_the_reference(project: Project) -> None:
    (project.folder / "package" / "__init__.py").write_text("from transformer import causal_mask\n")
    result = project.entry("a").test(HIDDEN).run()
    result.assert_outcomes(failed=1)
    assert "claim a asks for causal_mask where its code does not show it" in output(result)


SLOW = """
@claim("{name}")
def test_{name}(implementation, check):
    open("{name}", "w").close()
    check(implementation.{asks}(2).sum().item(), exact({value}))
"""


def test_a_claim_on_what_is_filled_in_alone_does_not_run(project: Project) -> None:
    source = "from transformer import alibi_slopes, causal_mask\n"
    (project.folder / "package" / "__init__.py").write_text(source)
    project.package("theirs", "from transformer import causal_mask\n")
    for name, asks, value in (("a", "causal_mask", 3), ("b", "alibi_slopes", 0)):
        project.entry(name).test(SLOW.format(name=name, asks=asks, value=value))
    result = project.run("--implementation", "theirs", "--fill-from-reference")
    result.assert_outcomes(passed=1, skipped=1)
    assert "1 x it asks nothing of theirs" in output(result)
    assert (project.folder / "a").exists()
    assert not (project.folder / "b").exists()
