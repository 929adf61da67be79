"""Draws depend on the base seed, the claim and the salt, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from claims.harness.seeds import Draws, parse_base_seeds
from conftest import Project, output

NOTING = """
from pathlib import Path

def note(rng):
    with Path("drawn").open("a") as file:
        file.write(f"{rng.base_seed} {float(rng.normal(1))!r}\\n")
"""


def drawn(project: Project) -> list[str]:
    """The lines 'base seed, value' that claims have noted."""
    return (project.folder / "drawn").read_text().splitlines()


@given(rows=st.integers(1, 40), more=st.integers(0, 40), width=st.integers(1, 40))
def test_a_larger_batch_keeps_the_earlier_rows(rows: int, more: int, width: int) -> None:
    draws = Draws(0, "t")
    for dtype in (torch.float32, torch.float64):
        small = draws.normal(rows, width, dtype=dtype)
        assert torch.equal(draws.normal(rows + more, width, dtype=dtype)[:rows], small)


def test_base_seed_claim_and_salt_each_change_the_stream() -> None:
    seeds = {
        Draws(base, claim).seed(salt) for base in range(5) for claim in "ab" for salt in ("", "x")
    }
    assert len(seeds) == 20
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_draws_in_half_precision_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="float32 or float64, cast afterwards; torch"):
        Draws(0, "t").normal(2, dtype=dtype)


@pytest.mark.parametrize(("text", "seeds"), [("7", [7]), ("0..2", [0, 1, 2]), ("5..5", [5])])
def test_base_seeds(text: str, seeds: list[int]) -> None:
    assert parse_base_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "3..1", "1..", "..2", "1...3", "1..2..3"])
def test_bad_base_seeds_are_named(text: str, project: Project) -> None:
    result = project.entry("a").test("").run(f"--base-seed={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"0..99, not '{text}'" in output(result)


def test_a_range_of_base_seeds_runs_only_the_claims_that_draw(project: Project) -> None:
    project.entry("a").entry("b").test("""
@claim("a")
def test_a(check, rng):
    check(rng.base_seed, within(3, 5, "the range"))

@claim("b")
def test_b(check):
    check(1, exact(1))
""")
    project.run("--base-seed", "3..5").assert_outcomes(passed=4)
    project.run("--base-seed", "3..5", "-m", "statistical").assert_outcomes(passed=3, deselected=1)


def test_a_range_of_base_seeds_draws_what_each_of_them_draws_alone(project: Project) -> None:
    project.entry("a").test(NOTING).test("""
@claim("a")
def test_a(check, rng):
    note(rng)
    check(1, exact(1))
""")
    for seeds in ("17", "16..18", "17"):
        project.run("--base-seed", seeds).assert_outcomes(passed=3 if ".." in seeds else 1)
    assert len(drawn(project)) == 5
    assert len(set(drawn(project))) == 3  # one value per base seed


def test_draws_follow_the_claim_wherever_its_test_is(project: Project) -> None:
    """Another test name and another module change nothing."""
    source = '@claim("a")\ndef {}(check, rng):\n    note(rng)\n    check(1, exact(1))\n'
    project.entry("a").test(NOTING + source.format("test_a")).run().assert_outcomes(passed=1)
    (project.claims / "test_02_average.py").unlink()
    project.entries[0] |= {"beyond": "a fault", "subject": "odd-ends"}
    project.test(NOTING + source.format("test_renamed"), module="test_odd_ends")
    project.run().assert_outcomes(passed=1)
    assert len(drawn(project)) == 2
    assert len(set(drawn(project))) == 1


def test_claims_and_the_parameters_of_a_test_each_have_their_own_draws(project: Project) -> None:
    project.entry("a").entry("b").test(NOTING).test("""
@claim("a")
@pytest.mark.parametrize("width", [1, 2])
def test_a(check, rng, width):
    note(rng)
    check(1, exact(1))

@claim("b")
def test_b(check, rng):
    note(rng)
    check(1, exact(1))
""")
    project.run("--base-seed", "3..4").assert_outcomes(passed=6)
    assert len(set(drawn(project))) == 6
    project.run("--base-seed", "3").assert_outcomes(passed=3)
    assert len(set(drawn(project))) == 6


def test_building_a_module_through_rng_leaves_the_global_generator_alone(project: Project) -> None:
    project.entry("a").test("""
@claim("a")
def test_a(check, rng):
    one, two = (rng.build(lambda: torch.nn.Linear(3, 3)).weight for _ in range(2))
    other = rng.build(lambda: torch.nn.Linear(3, 3), salt="other").weight
    check([torch.equal(one, two), torch.equal(one, other)], exact([True, False]))
    with recipe(0):
        first = torch.randn(2)
    check(first, exact(torch.randn(2, generator=torch.Generator().manual_seed(0)), "the same seed"))
""")
    project.run().assert_outcomes(passed=1)

