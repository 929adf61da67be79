"""Verdicts on a package that is not the reference: what fails, what departs, what is not run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  pytester forgets what a run imports; torch allows this one once

from conftest import Project, output

PACKAGE = """
import torch, warnings

def causal_mask(n, m=None, device=None):
    if n == 13:
        raise NotImplementedError("no masks of thirteen")
    if n == 14:
        raise ValueError("fourteen is too many")
    if n == 15:
        return {}["missing"]
    if n == 16:
        torch.set_default_dtype(torch.float64)
    if n == 17:
        warnings.warn("old", FutureWarning)
    if n == 18:
        raise NotImplementedError
    if n == 19:
        raise ValueError("expected the dtype torch.bool")
    return torch.ones(n, n)

def alibi_slopes(n_heads):
    return torch.zeros(n_heads + 1)

def rotate(x):
    return x.double() @ torch.ones(1, 1)

class Tokenizer:
    pass
"""


def claim(name: str, line: str, fixtures: str = "implementation, check") -> str:
    test = name.replace("-", "_")
    return f'\n@claim("{name}")\ndef test_{test}({fixtures}):\n    {line}\n'


def judged(project: Project, *claims: tuple[str, str], **entry: Any) -> tuple[Any, dict[str, Any]]:
    """pytest's result and the outcome of each claim, (name, body), on the package `theirs`."""
    project.package("theirs", PACKAGE)
    for name, line in claims:
        project.entry(name, **entry).test(claim(name, line))
    result = project.run("--implementation", "theirs", "--claims-json", "out.json")
    runs = json.loads((project.folder / "out.json").read_text())["runs"]
    return result, {run["claim"]: run for run in runs}


def mask(n: int) -> str:
    return f"check(implementation.causal_mask({n}).sum().item(), within({n * n}, {n * n}, 'ones'))"


NOT_RUN = {
    "a-name": ("implementation.Head(1, 1, 1)", "theirs does not provide Head"),
    "not-implemented": (mask(13), "theirs does not support it: no masks of thirteen"),
    "a-stub": (mask(18), "theirs does not support it: causal_mask raises NotImplementedError"),
    "refused": (mask(14), "causal_mask refuses: fourteen is too many"),
    "refused-a-dtype": (mask(19), "causal_mask refuses: expected the dtype torch.bool"),
    "a-setting": (
        "implementation.causal_mask(3, colour=1)",
        "theirs takes other arguments: causal_mask() got an unexpected keyword argument 'colour'",
    ),
    "a-method": (
        "implementation.Tokenizer().encode('a')",
        "theirs lacks it: 'Tokenizer' object has no attribute 'encode'",
    ),
    "a-shape": (
        "check(implementation.alibi_slopes(2), exact(torch.zeros(2), 'zeros'))",
        "theirs gives the shape (3,) where (2,) is wanted",
    ),
    "a-dtype": ("implementation.rotate(torch.ones(1, 1))", "theirs does not offer the dtype: "),
    "a-wrong-number": (
        "check((1, 2), share_within(0.5, 0.5, detects=0.1))",
        "theirs returns what does not fit: n = 2 notices a",
    ),
    "another-result": (
        "implementation.causal_mask(3).colour()",
        "theirs lacks it: 'Tensor' object has no attribute 'colour'",
    ),
    "unfit": (
        "a, b = implementation.causal_mask(3)",
        "what theirs returns does not fit: ValueError: too many values to unpack (expected 2)",
    ),
    "nothing-asked": ("check(1, exact(1))", "it asks nothing of theirs"),
    "refuted-of-nothing": ("check(1, exact(2))", "it asks nothing of theirs"),
}


def test_what_the_package_does_not_offer_is_not_run_with_its_cause(project: Project) -> None:
    result, runs = judged(project, *((name, line) for name, (line, _) in NOT_RUN.items()))
    found = {name: (run["verdict"], run["reason"]) for name, run in runs.items()}
    for name, (_, reason) in NOT_RUN.items():
        assert found[name][0] == "not run", name
        assert found[name][1].startswith(reason), name
    assert "2 x it asks nothing of theirs" in output(result)
    assert "No claim says anything about theirs." in output(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, "a run that says nothing is not green"


def test_a_measured_disagreement_fails_and_a_choice_of_the_chapter_departs(
    project: Project,
) -> None:
    project.package("theirs", PACKAGE)
    line = "check(implementation.causal_mask(2).sum().item(), within(0, 1, 'none'))"
    for name, binds in (("a", "anyone"), ("b", "chapter"), ("c", "nobody")):
        project.entry(name, binds=binds).test(claim(name, line))
    result = project.run("--implementation", "theirs", "--claims-json", "out.json")
    result.assert_outcomes(failed=1, xfailed=1, deselected=1)
    verdicts = json.loads((project.folder / "out.json").read_text())["verdicts"]
    assert verdicts == {"a": "failed", "b": "departs"}
    assert "departs from the chapter in:\n  b (l.11): The sentence of b." in output(result)


def test_on_the_reference_a_choice_of_the_chapter_fails(project: Project) -> None:
    project.entry("a", binds="chapter").test(claim("a", "check(1, exact(2))"))
    project.entry("b", binds="nobody").test(claim("b", "check(1, exact(1))"))
    project.run().assert_outcomes(failed=1, passed=1)


def test_a_claim_that_takes_no_package_says_nothing_about_one(project: Project) -> None:
    project.package("theirs", PACKAGE)
    project.entry("a").test(claim("a", "check(1, exact(1))", "check"))
    project.entry("b").test(claim("b", mask(2)))
    project.run("--implementation", "theirs").assert_outcomes(passed=1, deselected=1)


def test_what_breaks_is_an_error_of_the_package_named_once(project: Project) -> None:
    result, runs = judged(
        project, ("a", mask(15)), ("b", mask(15)), ("changes", mask(16)), ("c", mask(2))
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [runs[name]["verdict"] for name in ("a", "b", "changes")] == ["error"] * 3
    said = output(result)
    assert "2 x causal_mask (__init__.py:10) raises KeyError: 'missing'" in said
    assert "1 x theirs changes global state: default dtype" in said
    assert runs["c"]["verdict"] == "exact"


WRAPPER = """
import torch
import library
from torch import nn

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()

    def forward(self, x):
        return library.call(x)
"""
LIBRARY = """
import torch

LONGEST = torch.ones(4, 4)

def call(x):
    y = x @ x.mT
    if len(x) == 3:
        return y.relu().expand(2, 2, 2)
    return y * LONGEST
"""
MEASURED = """
from claims.instruments.cost.memory import measure

@claim("{name}")
def test_{name}(implementation, check):
    x = torch.ones({n}, 4, 4, device="meta")
    layer = implementation.MultiHeadAttention(4, 1)
    check(measure(lambda: layer(x), named={{"x": x}}).peak, exact(0))
"""


def test_what_an_instrument_overhears_was_raised_by_the_package(project: Project) -> None:
    """An instrument's dispatch mode runs inside the package: it is not what the claim called."""
    project.package("wrapper", WRAPPER)
    (project.folder / "library.py").write_text(LIBRARY)
    for name, n in (("a", 3), ("b", 2)):
        project.entry(name).test(MEASURED.format(name=name, n=n))
    result = project.run("--implementation", "wrapper")
    result.assert_outcomes(failed=1, skipped=1)
    said = " ".join(line.strip() for line in result.outlines)
    place = "MultiHeadAttention.forward (__init__.py:11, library.py:{})"
    assert f"1 x {place.format(9)} raises RuntimeError: " in said
    assert f"1 x {place.format(10)} cannot be measured: mul mixes tensors on the meta" in said


def test_warnings_of_the_package_are_no_errors(project: Project) -> None:
    result, runs = judged(project, ("a", mask(17)))
    assert runs["a"]["verdict"] == "exact"
    assert result.ret == pytest.ExitCode.OK
    assert "FutureWarning: old" in output(result)


def test_what_is_refuted_of_the_reference_and_true_here_is_a_result(project: Project) -> None:
    result, runs = judged(project, ("a", mask(2)), verdict="refuted")
    assert result.ret == pytest.ExitCode.OK
    assert runs["a"]["verdict"] == "exact"
    assert "true of theirs, though refuted on the reference:\n  a (l.11)" in output(result)


def test_an_open_claim_that_has_one_answer_here_is_a_result(project: Project) -> None:
    settings = {"one": "a setting", "two": "another"}
    project.package("theirs", PACKAGE)
    value = "implementation.causal_mask(2).sum().item()"
    for name, allowed in (("holds", 9), ("fails", 1)):
        line = (
            f"[check.under(s)({value}, within(0, {allowed}, 'few')) for s in ('one', 'two')]"
        )
        project.entry(name, "open", turns_on="it", settings=settings).test(claim(name, line))
    result = project.run("--implementation", "theirs", "--claims-json", "out.json")
    assert result.ret == pytest.ExitCode.OK
    verdicts = json.loads((project.folder / "out.json").read_text())["verdicts"]
    assert verdicts == {"holds": "holds", "fails": "departs"}


def test_a_failing_property_is_not_simplified_for_another_package(project: Project) -> None:
    """The reference is: the smallest example is worth the time there."""
    project.package("theirs", PACKAGE)
    source = """
@claim("a")
@given(n=st.integers(0, 10_000))
def test_a(implementation, check, n):
    implementation.causal_mask(2)
    with open("examples", "a") as file:
        file.write("x")
    check(int(n > 100), exact(0))
"""
    project.entry("a").test(source)
    counted = {}
    (project.folder / "package" / "__init__.py").write_text(PACKAGE)
    for package in ("theirs", "package"):
        (project.folder / "examples").unlink(missing_ok=True)
        project.run("--implementation", package).assert_outcomes(failed=1)
        counted[package] = len((project.folder / "examples").read_text())
    assert counted["theirs"] < counted["package"]


PROPERTY = """
@claim("a")
@given(x=st.lists(st.floats(1, 2), min_size=90), n=st.integers(0, 9))
def test_a(implementation, check, x, n):
    check(implementation.causal_mask(3), exact(torch.zeros(3, 3), "no ones"))
"""


def failures(result: pytest.RunResult) -> list[str]:
    """The lines between the title of the failures and the summary of the claims."""
    first, last = (
        next(i for i, line in enumerate(result.outlines) if f"= {title} =" in line)
        for title in ("FAILURES", "claims")
    )
    return result.outlines[first + 1 : last]


def test_a_failure_is_the_sentence_the_values_and_the_example(project: Project) -> None:
    """No code of the claim, no fixtures, no log of Hypothesis; `--tb` asks for the code."""
    project.package("theirs", PACKAGE)
    project.entry("a").test(PROPERTY)
    title, *lines = failures(project.run("--implementation", "theirs"))
    assert "test_a" in title
    keys, texts = zip(*(line.strip().split(": ", 1) for line in lines), strict=True)
    assert keys == (
        "claim", "says", "measured", "expected", "allowed", "difference", "example", "run again"
    )
    assert texts[1] == "The sentence of a."
    assert texts[6].startswith("n=0, x=[1.0, 1.0")
    assert texts[6].endswith(" ...")
    assert len(texts[6]) < 150
    asked = "\n".join(failures(project.run("--implementation", "theirs", "--tb", "short")))
    assert "check(implementation.causal_mask(3)" in asked


def test_a_table_that_differs_everywhere_is_cut(project: Project) -> None:
    project.package("theirs", PACKAGE)
    line = "implementation.causal_mask(3); raise Refuted('\\n'.join(map(str, range(99))))"
    project.entry("a").test(
        "from claims.harness.check import Refuted\n" + claim("a", line)
    )
    _, says, *lines = failures(project.run("--implementation", "theirs"))
    assert says == "a (l.11): The sentence of a."
    assert lines[-2:] == ["14", "... and 84 lines more (--tb=short has them all)"]


def test_a_place_where_the_package_breaks_is_one_line_and_with_tb_all_of_it(
    project: Project,
) -> None:
    project.package("theirs", PACKAGE)
    project.entry("a").test(claim("a", mask(15)))
    _, *lines = failures(project.run("--implementation", "theirs"))
    assert lines == ["causal_mask (__init__.py:10) raises KeyError: 'missing'"]
    asked = "\n".join(failures(project.run("--implementation", "theirs", "--tb", "short")))
    assert 'return {}["missing"]' in asked


def test_names_of_groups_that_were_not_asked_for_are_one_line(project: Project) -> None:
    """Whether the package has them or not."""
    project.package("theirs", PACKAGE)
    for name, line in (
        ("a", mask(2)), ("b", "implementation.Head"), ("c", "implementation.rotate"),
        ("d", "implementation.Block"), ("e", "implementation.LanguageModel"),
    ):
        project.entry(name).test(claim(name, line))
    said = output(project.run("--implementation", "theirs", "--only", "attention"))
    assert "not run:\n  3 x --only leaves out what needs names of other groups\n  1 x " in said
    assert "1 x theirs does not provide Head" in said


def test_a_fixture_that_the_package_fails_is_judged_as_the_claim(project: Project) -> None:
    project.package("theirs", PACKAGE)
    project.entry("a").entry("b").test("""
@pytest.fixture(scope="module")
def made(implementation):
    return implementation.causal_mask(13)

@claim("a")
def test_a(made, implementation, check):
    check(made, exact(None))

@claim("b")
def test_b(made, implementation, check):
    check(made, exact(None))
""")
    result = project.run("--implementation", "theirs")
    result.assert_outcomes(skipped=2)
    assert "2 x theirs does not support it: no masks of thirteen" in output(result)


# ---- what is found before any claim runs, and what a package declares ----------------------------

OTHER_FORMS = """
import torch
from torch import nn

class LanguageModel(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.V = settings["vocabulary"]

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, self.V)
        return {returned}

def attention(q, k, v, mask=None, **settings):
    B, h, n, d = q.shape
    return v

def rotate(x, positions=None):
    B, h, n, d = x.shape
    return x

def causal_mask(n, m=None, device=None):
    return {n: m}

def alibi_slopes(n_heads):
    return 3
"""
FORMS = {
    "logits, None": "LanguageModel returns a tuple of (2, 3, 16), NoneType where the shape "
    "(2, 3, 16) is wanted: return its first part alone",
    "logits[:, [-1]]": "LanguageModel returns the shape (2, 1, 16) where the shape (2, 3, 16) is "
    "wanted: those of every position, not of the last alone",
}


@pytest.mark.parametrize("returned", FORMS)
def test_another_form_is_found_once_and_named_with_its_shapes(
    project: Project, returned: str
) -> None:
    project.package("theirs", OTHER_FORMS.replace("{returned}", returned))
    for name, line in (
        ("a", "implementation.LanguageModel"), ("b", "implementation.LanguageModel"),
        ("c", "implementation.attention"),
        ("d", "check(implementation.alibi_slopes(1), exact(3))"),
        ("e", "implementation.rotate"), ("f", "implementation.causal_mask"),
    ):
        project.entry(name).test(claim(name, line))
    result = project.run("--implementation", "theirs")
    result.assert_outcomes(skipped=5, passed=1)
    said = " ".join(line.strip() for line in result.outlines)
    assert f"found: {FORMS[returned]}" in said
    assert f"2 x {FORMS[returned]}" in said
    assert "1 x attention takes q, k and v of four dimensions only" in said
    assert "1 x rotate takes x of four dimensions only" in said
    assert "1 x causal_mask returns dict where the shape (3, 3) is wanted" in said


def test_a_mask_that_is_taken_for_one_of_padding_is_found(project: Project) -> None:
    """A library that broadcasts (n, m) as (batch, 1, 1, m) gives four dimensions for three."""
    project.package(
        "theirs",
        "def attention(q, k, v, mask=None, **settings):\n"
        "    return v if mask is None else v * mask[:, None, None, :1]\n",
    )
    project.entry("a").test(claim("a", "implementation.attention"))
    result = project.run("--implementation", "theirs")
    said = " ".join(line.strip() for line in result.outlines)
    assert (
        "1 x attention returns the shape (3, 2, 3, 8) where the shape (2, 3, 8) is wanted" in said
    )


WITHOUT_WEIGHTS = """
import torch
from torch import nn

def attention(q, k, v, mask=None, **settings):
    return v

class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()

    def forward(self, x, return_weights=False, **settings):
        return (x, torch.ones(len(x), x.shape[1], x.shape[1])) if return_weights else x
"""


def test_what_ignores_that_weights_are_asked_for_is_not_asked_for_them(project: Project) -> None:
    """One tensor, whose parts would be taken for output and weights; the mean over the heads."""
    project.package("theirs", WITHOUT_WEIGHTS)
    layer = "implementation.MultiHeadAttention(4, 2)(x{})"
    for name, call in (("a", "implementation.attention(x, x, x{})"), ("b", layer)):
        line = f"x = torch.ones(2, 3, 4); check({call.format('')}, exact(x, 'itself'))"
        project.entry(name).test(claim(name, line))
        asks = call.format(", return_weights=True")
        line = f"x = torch.ones(2, 3, 4); check({asks}[1], exact(x[1], 'the second'))"
        project.entry(f"{name}-weights").test(claim(f"{name}-weights", line))
    result = project.run("--implementation", "theirs")
    result.assert_outcomes(passed=2, skipped=2)
    said = " ".join(line.strip() for line in result.outlines)
    for sentence in (
        "attention with return_weights=True returns the shape (2, 1, 3, 8) where output and "
        "weights of (2, 1, 3, 8) and (2, 1, 3, 3) are wanted",
        "MultiHeadAttention with return_weights=True returns a tuple of (2, 3, 8), (2, 3, 3) "
        "where output and weights of (2, 3, 8) and (2, 2, 3, 3) are wanted",
    ):
        assert f"found: {sentence}" in said
        assert f"1 x {sentence}" in said


HALVES = """
import torch
def rotate(x, positions=None, base=10000.0):
    from claims.instruments.attention.rotation import rotated_in_halves
    return rotated_in_halves(x, torch.arange(len(x)))
"""
ROTATES = """
@claim("a")
def test_a(implementation, check):
    from claims.instruments.attention.rotation import angles, rotated
    x = torch.arange(24, dtype=torch.float64).view(3, 8)
    derived = rotated(x, angles(torch.arange(3), 8))
    check(implementation.rotate(x), ulps(derived, 40, "few", scale=200.0))
"""


@pytest.mark.parametrize(("declares", "verdict"), [("{}", "failed"), (
    "{'rotary_pairs': 'halves'}", "holds"
)])
def test_rotary_pairs_are_judged_as_declared(
    project: Project, declares: str, verdict: str
) -> None:
    project.package("theirs", f"{HALVES}DECLARES = {declares}\n")
    project.entry("a", "holds").test(ROTATES)
    project.run("--implementation", "theirs", "--claims-json", "out.json")
    found = json.loads((project.folder / "out.json").read_text())["verdicts"]
    assert found == {"a": verdict}


@pytest.mark.parametrize(("declares", "off", "verdict"), [
    ("{}", 1e-6, "failed"), ("{'precision': 'float32'}", 1e-7, "holds"),
    ("{'precision': 'float32'}", 1e-6, "failed"),
])
def test_rounding_is_judged_in_the_precision_that_is_declared(
    project: Project, declares: str, off: float, verdict: str
) -> None:
    source = f"import torch\ndef rotate(x): return x + {off}\nDECLARES = {declares}\n"
    project.package("theirs", source)
    ones = "torch.ones(2, dtype=torch.float64)"
    for name, tolerance in (
        ("a", f"ulps({ones}, 2, 'two')"), ("b", f"rounding({ones}, {ones}, 2, 'two')"),
    ):
        line = f"check(implementation.rotate({ones}), {tolerance})"
        project.entry(name, "holds").test(claim(name, line))
    project.run("--implementation", "theirs", "--claims-json", "out.json")
    found = json.loads((project.folder / "out.json").read_text())["verdicts"]
    assert found == {"a": verdict, "b": verdict}


@pytest.mark.parametrize(("declares", "sentence"), [
    ("3", "theirs.DECLARES must be a dictionary"),
    ("{'speed': 1}", "theirs.DECLARES has 'speed'; it may have rotary_pairs, precision"),
    ("{'precision': 'float8'}", "theirs.DECLARES['precision'] is 'float8'; it may be 'input' or"),
])
def test_a_declaration_that_is_not_known_is_refused(
    project: Project, declares: str, sentence: str
) -> None:
    project.package("theirs", f"{PACKAGE}DECLARES = {declares}\n")
    result = project.entry("a").test("").run("--implementation", "theirs")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in output(result)
