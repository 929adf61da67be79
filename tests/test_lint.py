"""Rules of the house, read off the source, so that no reviewer has to look for breaches."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from claims.harness.ledger import Ledger, load_ledger
from claims.harness.paths import CLAIMS, LEDGER
from conftest import ROOT

CHAPTER = sorted(CLAIMS.glob("test_*.py"))
BEYOND = sorted((CLAIMS / "beyond").rglob("*.py"))
BENCHMARKS = sorted((CLAIMS / "benchmarks").rglob("*.py"))
TESTS = [*CHAPTER, *(path for path in BEYOND if path.name.startswith("test_"))]
BELOW_CLAIMS = sorted(CLAIMS.rglob("*.py"))
TRANSFORMER = sorted((ROOT / "transformer").rglob("*.py"))
EVERYTHING = [*BELOW_CLAIMS, *TRANSFORMER, *sorted((ROOT / "tests").rglob("*.py"))]
LONGEST = 400  # lines of a module of claims/beyond

Rule = Callable[[ast.Module], Iterable[int]]


# ---- what a module imports, calls and binds ------------------------------------------------------


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(dotted name, line): `from a.b import c` is a.b.c; relative imports keep their dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def belongs_to(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def leaves(name: str) -> bool:
    """Whether an import may leave the folder of its module: one dot is the folder itself."""
    return not name.startswith(".") or name.startswith("..")


def imports_of(*packages: str) -> Rule:
    return lambda tree: (line for name, line in imported(tree) if belongs_to(name, packages))


def imports_of_claims_beside(*rooms: str) -> Rule:
    """What is imported of this project, where only some rooms are allowed."""

    def rule(tree: ast.Module) -> Iterator[int]:
        for name, line in imported(tree):
            if name.startswith(("..", "claims.")) and not belongs_to(name, rooms):
                yield line

    return rule


def imports_beside(*packages: str) -> Rule:
    """What is imported at all, beside Python's own library and some packages."""

    def rule(tree: ast.Module) -> Iterator[int]:
        for name, line in imported(tree):
            if leaves(name) and not belongs_to(name, (*packages, *sys.stdlib_module_names)):
                yield line

    return rule


def imports_of_test_modules(tree: ast.Module) -> Iterator[int]:
    for name, line in imported(tree):
        if any(part.startswith("test_") for part in name.split(".")):
            yield line


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def calls_of(*names: str) -> Rule:
    def rule(tree: ast.Module) -> Iterator[int]:
        for name, call in calls(tree):
            if any(name == wanted or name.endswith("." + wanted) for wanted in names):
                yield call.lineno

    return rule


def draws_on_a_device(tree: ast.Module) -> Iterator[int]:
    for name, call in calls(tree):
        if name.endswith((".normal", ".randn")) and any(k.arg == "device" for k in call.keywords):
            yield call.lineno


def assertions(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno


def branches(tree: ast.Module) -> Iterator[int]:
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


def skips_without_reason(tree: ast.Module) -> Iterator[int]:
    for name, call in calls(tree):
        if name.endswith("skip") and not call.args and not call.keywords:
            yield call.lineno


def is_constant(name: str) -> bool:
    return re.fullmatch(r"_?[A-Z][A-Z0-9_]*", name) is not None


def bindings(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    """(name, line) of every assignment and import that runs when the module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name, node.lineno) for alias in node.names)
        if isinstance(node, ast.AnnAssign) and node.value is None:
            continue
        for name in ast.walk(node) if not hasattr(node, "body") else ():
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                yield name.id, name.lineno
        for block in ("body", "handlers", "orelse", "finalbody"):
            yield from bindings(getattr(node, block, []))


def rebound_constants(tree: ast.Module) -> Iterator[int]:
    """A second binding in the module, a `global` statement, an assignment from another module."""
    seen: set[str] = set()
    for name, line in bindings(tree.body):
        if is_constant(name) and name in seen:
            yield line
        seen.add(name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Global) and any(map(is_constant, node.names)):
            yield node.lineno
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and is_constant(node.attr)
        ):
            yield node.lineno


# ---- the rules -----------------------------------------------------------------------------------

RULES: dict[str, Rule] = {
    "imports the package under test": imports_of("transformer"),
    "imports more than torch and regex": imports_beside(
        "torch", "regex", "transformer"
    ),
    "imports pytest": imports_of("pytest"),
    "an instrument imports a room or a judge": imports_of_claims_beside(
        "claims.instruments", "claims.harness.files", "claims.harness.seeds",
        "claims.harness.implementation", "claims.harness.layout",
    ),
    "training imports experiments or plugins": imports_of_claims_beside(
        "claims.training", "claims.instruments", "claims.harness"
    ),
    "an experiment imports more than training and languages": imports_beside(
        "claims.experiments", "claims.training", "claims.instruments.languages"
    ),
    "the harness imports another room": imports_of_claims_beside("claims.harness"),
    "the report imports more than records and experiments": imports_of_claims_beside(
        "claims.report", "claims.harness", "claims.training", "claims.experiments"
    ),
    "documents import more than the harness": imports_of_claims_beside(
        "claims.documents", "claims.harness"
    ),
    "imports a test module": imports_of_test_modules,
    "rebinds a constant": rebound_constants,
    "asserts": assertions,
    "compares outside of check": calls_of("allclose", "isclose", "assert_close", "approx"),
    # A draw from the global generator is caught when it happens.
    "seeds the global generator": calls_of("torch.manual_seed", "random.seed", "cuda.manual_seed"),
    "draws on a device": draws_on_a_device,
    "floats in data_regression": calls_of("data_regression.check", "num_regression.check"),
    "a branch in a claim": branches,
    "skips without a reason": skips_without_reason,
}  # fmt: skip

# Sources that break one rule, in their last line and nowhere else.
BROKEN: dict[str, list[str]] = {
    "imports the package under test": ["from transformer.attention import Head"],
    "imports more than torch and regex": ["import torch\nimport numpy.linalg"],
    "imports pytest": ["import pytest", "def skip():\n    from pytest import skip"],
    "an instrument imports a room or a judge": [
        "from claims.harness.tolerance import exact",
        "from claims.harness.files import write_whole\nfrom claims.harness import check",
        "import claims.training.loop",
        "from claims.plugins import session",
        "from claims.experiments import ladder",
        "from ..training import loop",
    ],
    "training imports experiments or plugins": [
        "from claims.harness.seeds import seed_of\nfrom claims.experiments.ladder import LADDER",
        "from claims.plugins.session import tokens_of",
    ],
    "an experiment imports more than training and languages": [
        "import dataclasses\nimport torch",
        "import pytest",
        "from claims.training.spec import RunSpec\nfrom claims.instruments.text import corpus",
        "from claims.harness import exact",
    ],
    "the harness imports another room": [
        "from claims.instruments.text import corpus",
        "from claims.harness import files\nfrom claims.training.spec import RunSpec",
        "from claims.experiments import ladder",
        "from claims.plugins.session import tokens_of",
    ],
    "documents import more than the harness": [
        "from claims.harness.ledger import Ledger\nfrom claims.training.spec import RunSpec",
        "from claims.plugins.session import tokens_of",
    ],
    "the report imports more than records and experiments": [
        "from claims.training.spec import RunSpec\nfrom claims.instruments.text import corpus",
        "from claims.studies.markdown import table",
        "from claims.plugins.session import tokens_of",
    ],
    "imports a test module": [
        "from claims.test_05_sqrt_dk import helper",
        "from claims import test_02_average",
        "import claims.beyond.test_leak",
    ],
    "rebinds a constant": [
        "A = 1\nA = 2",
        "_FEW = 1\n_FEW += 2",
        "A: int\nA = 1\nif A:\n    B, A = 1, 2",
        "from a import LIMIT\nLIMIT = 3",
        "LIMIT = 3\ndef f():\n    global LIMIT",
        "import a\na.LIMIT = 3",
    ],
    "asserts": ["assert 1"],
    "compares outside of check": ["torch.allclose(a, b)"],
    "seeds the global generator": ["torch.manual_seed(0)"],
    "draws on a device": ["rng.normal(3, device='cuda')"],
    "floats in data_regression": ["data_regression.check({})"],
    "a branch in a claim": [
        "def test_a(check):\n    check(1, exact(1))\n    if gpu: check(1, exact(1))",
        "def test_a(check):\n    return",
    ],
    "skips without a reason": ["pytest.skip()"],
}
SOUND = "import dataclasses\nA = 1\ndef f():\n    A = 2\n    return A\n"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def faults(tree: ast.Module, *rules: str) -> list[str]:
    """The lines that break one of the rules, as 'rule, line n'."""
    return [f"{rule}, line {line}" for rule in rules for line in sorted({*RULES[rule](tree)})]


@pytest.mark.parametrize(
    ("rule", "source"), [(rule, source) for rule in RULES for source in BROKEN[rule]]
)
def test_each_rule_finds_its_fault(rule: str, source: str) -> None:
    assert faults(ast.parse(source), rule) == [f"{rule}, line {1 + source.count(chr(10))}"]
    assert faults(ast.parse(SOUND), rule) == []


def demand(paths: list[Path], *rules: str) -> None:
    """Fail with every file and line that breaks one of the rules."""
    assert paths
    found = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in paths
        for fault in faults(parsed(path), *rules)
    ]
    assert not found, "\n".join(found)


def room(name: str) -> list[Path]:
    return sorted((CLAIMS / name).rglob("*.py"))


def test_nothing_below_claims_imports_the_package_under_test() -> None:
    demand(BELOW_CLAIMS, "imports the package under test", "skips without a reason")


def test_transformer_imports_torch_and_regex_alone() -> None:
    demand(TRANSFORMER, "imports more than torch and regex")


def test_claims_compare_with_check_alone_and_draw_from_rng() -> None:
    demand(
        TESTS,
        "asserts",
        "compares outside of check",
        "seeds the global generator",
        "draws on a device",
        "floats in data_regression",
        "a branch in a claim",
    )


def test_instruments_measure_and_do_not_judge() -> None:
    demand(
        room("instruments"),
        "asserts",
        "compares outside of check",
        "imports pytest",
        "an instrument imports a room or a judge",
    )


def test_training_knows_neither_tests_nor_experiments() -> None:
    demand(room("training"), "imports pytest", "training imports experiments or plugins")


def test_experiments_import_training_and_languages_alone() -> None:
    demand(room("experiments"), "an experiment imports more than training and languages")


def test_the_harness_imports_no_other_room() -> None:
    demand(room("harness"), "the harness imports another room")


def test_documents_import_the_harness_alone() -> None:
    demand(room("documents"), "documents import more than the harness")


def test_the_report_reads_records_and_experiments_and_measures_nothing() -> None:
    demand(room("report"), "the report imports more than records and experiments")


def test_no_test_module_is_imported() -> None:
    demand([*TESTS, *BEYOND, *BENCHMARKS], "imports a test module")


def test_no_constant_is_bound_twice() -> None:
    demand(EVERYTHING, "rebinds a constant")


# ---- imports between the rooms -------------------------------------------------------------------


def room_of(name: str) -> str:
    """The room of a dotted name: claims.harness of claims.harness.check.Check."""
    parts = name.split(".")
    if parts[0] != "claims":
        return parts[0]
    named = len(parts) > 1 and (CLAIMS / parts[1]).is_dir()
    return f"claims.{parts[1]}" if named else "claims"


def circle(imports: Mapping[str, Iterable[str]]) -> str:
    """The first circle of 'a imports b, b imports a' as 'a -> b -> a'; empty where none exists."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


def test_a_circle_of_rooms_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == ""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in ("b -> c -> b", "c -> b -> c")
    assert room_of("claims.harness.check.Check") == "claims.harness"
    assert room_of("claims.test_02_average.helper") == "claims"
    assert room_of("transformer.Head") == "transformer"


def test_no_rooms_import_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for path in EVERYTHING:
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        names = {name for name, _ in imported(parsed(path)) if leaves(name)}
        rooms.setdefault(own, set()).update(room_of(name) for name in names)
    # A room may import itself, and what the room `claims` holds is only its test modules.
    between = {own: others - {own} for own, others in rooms.items()}
    assert {"claims.harness", "claims.instruments", "claims.training"} <= between.keys()
    assert circle(between) == ""


# ---- how long the modules are, and in which order ------------------------------------------------


def too_long(lines: Mapping[str, int]) -> list[str]:
    return [f"{name} has {n} lines, above {LONGEST}" for name, n in lines.items() if n > LONGEST]


def test_a_module_that_is_too_long_is_found() -> None:
    assert too_long({"a.py": 400, "b.py": 401}) == ["b.py has 401 lines, above 400"]


def test_modules_beyond_the_document_are_short() -> None:
    assert BEYOND
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in BEYOND}
    assert too_long(lines) == []


def claim_ids(tree: ast.Module) -> list[str]:
    """The ids of a module's `@claim("id")`, in the order of the tests."""
    return [
        str(ast.literal_eval(decorator.args[0]))
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "claim"
    ]


def out_of_order(places: Iterable[tuple[str, int]]) -> list[str]:
    """Claims that stand after one of a later line of the document."""
    return [
        f"{later} (l.{its_line}) stands after {earlier} (l.{line})"
        for (earlier, line), (later, its_line) in pairwise(places)
        if its_line < line
    ]


def test_a_claim_out_of_order_is_found() -> None:
    source = '@claim("a")\n@given(x=y)\ndef test_a(x): ...\n\n@claim("b")\ndef test_b(): ...\n'
    assert claim_ids(ast.parse(source)) == ["a", "b"]
    assert out_of_order([("a", 2), ("b", 2), ("c", 3)]) == []
    assert out_of_order([("a", 2), ("b", 1), ("c", 3)]) == ["b (l.1) stands after a (l.2)"]


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return load_ledger(LEDGER)


@pytest.mark.parametrize("path", CHAPTER, ids=lambda path: path.stem)
def test_the_claims_of_the_document_stand_in_its_order(path: Path, ledger: Ledger) -> None:
    entries = ledger.entries
    ids = claim_ids(parsed(path))
    assert [name for name in ids if name not in entries] == []
    places = [(name, entries[name].line or 0) for name in ids if not entries[name].beyond]
    assert places
    assert out_of_order(places) == []


# ---- stored files --------------------------------------------------------------------------------

OF_A_MACHINE = re.compile(r"(?<![\w.:/~-])/(?:home|root|Users|tmp|var|opt|mnt|work)/\w")


def test_no_stored_file_names_a_place_on_somebodys_machine() -> None:
    """What was measured where is said by facts of the machine; a path says nothing to a reader."""
    files = [ROOT / "README.md"]
    for folder in ("docs", "fixtures"):
        files += [
            path for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in (".csv", ".json", ".md", ".svg", ".yaml") and ".hypothesis" not in
            path.parts
        ]
    named = {
        str(path.relative_to(ROOT)): found[0]
        for path in files if (found := OF_A_MACHINE.search(path.read_text(encoding="utf-8")))
    }
    assert named == {}


def test_a_place_on_a_machine_is_found() -> None:
    assert OF_A_MACHINE.search('"corpus": "A text, from /home/ann/text.txt"')
    assert OF_A_MACHINE.search("/root/x")
    assert not OF_A_MACHINE.search("https://example.org/home/x, ~/tmp/x, docs/home/x, source /usr")
