"""Rules that claims keep, read off their source, so that no reviewer has to look for them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT

CLAIMS = ROOT / "claims"
EVERYTHING = sorted(CLAIMS.rglob("*.py"))
TESTS = sorted(CLAIMS.glob("test_*.py"))
INSTRUMENTS = sorted((CLAIMS / "instruments").rglob("*.py"))
HARNESS = sorted((CLAIMS / "harness").glob("*.py"))


def faults(source: str, *rules: str) -> list[str]:
    """The lines of `source` that break one of the rules, as 'rule, line n'."""
    tree = ast.parse(source)
    return [f"{rule}, line {line}" for rule in rules for line in RULES[rule](tree)]


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imports_of(*packages: str):  # type: ignore[no-untyped-def]
    def rule(tree: ast.AST) -> Iterator[int]:
        for name, line in imported(tree):
            if any(name == package or name.startswith(package + ".") for package in packages):
                yield line

    return rule


def calls_of(*names: str):  # type: ignore[no-untyped-def]
    def rule(tree: ast.AST) -> Iterator[int]:
        for name, call in calls(tree):
            if any(name == wanted or name.endswith("." + wanted) for wanted in names):
                yield call.lineno

    return rule


def assertions(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno


def branches(tree: ast.AST) -> Iterator[int]:
    """`if`, `try` and `return` in the body of a claim: a way to pass without comparing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            nested = {
                inner
                for f in ast.walk(node)
                if isinstance(f, ast.FunctionDef | ast.Lambda) and f is not node
                for inner in ast.walk(f)
            }
            for inner in ast.walk(node):
                if isinstance(inner, ast.If | ast.Try | ast.Return) and inner not in nested:
                    yield inner.lineno


def skips_without_reason(tree: ast.AST) -> Iterator[int]:
    for name, call in calls(tree):
        if name.endswith("skip") and not call.args and not call.keywords:
            yield call.lineno


RULES = {
    # R-numbers of the reports that a rule answers are given where there is one.
    "imports the package under test": imports_of("transformer"),
    "an instrument knows no expected value": imports_of(
        "claims.harness.tolerance", "claims.harness.check"
    ),
    "the harness imports no instrument": imports_of("claims.instruments"),
    "asserts": assertions,
    "compares outside of check": calls_of("allclose", "isclose", "assert_close", "approx"),
    # A draw from the global generator is caught when it happens.
    "seeds the global generator": calls_of("torch.manual_seed", "random.seed", "cuda.manual_seed"),
    "draws on a device or in half precision": lambda tree: (
        call.lineno
        for name, call in calls(tree)
        if name.endswith((".normal", ".randn")) and any(k.arg == "device" for k in call.keywords)
    ),
    "floats in data_regression": calls_of("data_regression.check", "num_regression.check"),
    "a branch in a claim": branches,
    "skips without a reason": skips_without_reason,
}

BROKEN = {
    "imports the package under test": "from transformer.attention import Head",
    "an instrument knows no expected value": "from claims.harness.tolerance import exact",
    "the harness imports no instrument": "from claims.instruments import corpus",
    "asserts": "assert 1",
    "compares outside of check": "torch.allclose(a, b)",
    "seeds the global generator": "torch.manual_seed(0)",
    "draws on a device or in half precision": "rng.normal(3, device='cuda')",
    "floats in data_regression": "data_regression.check({})",
    "a branch in a claim": "def test_a(check):\n    if gpu:\n        check(1, exact(1))",
    "skips without a reason": "pytest.skip()",
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_its_fault(rule: str) -> None:
    assert faults(BROKEN[rule], rule) == [f"{rule}, line {1 + BROKEN[rule].count('check):')}"]
    assert faults("x = 1\n", rule) == []


def check_files(paths: list[Path], *rules: str) -> None:
    assert paths
    found = [
        f"{path.name}: {fault}" for path in paths for fault in faults(path.read_text(), *rules)
    ]
    assert not found, "\n".join(found)


def test_nothing_below_claims_imports_the_package_under_test() -> None:
    check_files(EVERYTHING, "imports the package under test", "skips without a reason")


def test_claims_compare_with_check_alone_and_draw_from_rng() -> None:
    check_files(
        TESTS,
        "asserts",
        "compares outside of check",
        "seeds the global generator",
        "draws on a device or in half precision",
        "floats in data_regression",
        "a branch in a claim",
    )


def test_instruments_measure_and_do_not_judge() -> None:
    measuring = [path for path in INSTRUMENTS if path.name != "plugin.py"]
    check_files(
        measuring, "asserts", "an instrument knows no expected value", "compares outside of check"
    )


def test_the_harness_imports_no_instrument() -> None:
    check_files(HARNESS, "the harness imports no instrument")


def test_transformer_imports_nothing_of_the_rest() -> None:
    for path in sorted((ROOT / "transformer").glob("*.py")):
        names = {name.partition(".")[0] for name, _ in imported(ast.parse(path.read_text()))}
        assert names.isdisjoint({"claims", "tests", "fixtures", "pytest", "numpy"}), path.name
