"""Draws depend on base seed, test and salt, and on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from claims.harness.seeds import Draws, parse_base_seeds
from conftest import Project, output


@given(rows=st.integers(1, 40), more=st.integers(0, 40), width=st.integers(1, 40))
def test_a_larger_batch_keeps_the_earlier_rows(rows: int, more: int, width: int) -> None:
    draws = Draws(0, "t")
    for dtype in (torch.float32, torch.float64):
        small = draws.normal(rows, width, dtype=dtype)
        assert torch.equal(draws.normal(rows + more, width, dtype=dtype)[:rows], small)


def test_base_seed_test_and_salt_each_change_the_stream() -> None:
    seeds = {
        Draws(base, test).seed(salt) for base in range(5) for test in "ab" for salt in ("", "x")
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


def test_the_base_seed_alone_selects_the_draw(project: Project) -> None:
    """A draw is the same alone and in a range, and another for another base seed."""
    project.entry("a").test("""
from pathlib import Path

@claim("a")
def test_a(check, rng):
    value = repr(float(rng.normal(1)))
    with Path("drawn").open("a") as file:
        file.write(f"{rng.base_seed} {value}\\n")
    check(1, exact(1))
""")
    for seeds in ("17", "16..18", "17"):
        project.run("--base-seed", seeds).assert_outcomes(passed=3 if ".." in seeds else 1)
    lines = (project.folder / "drawn").read_text().splitlines()
    assert len(lines) == 5
    assert len(set(lines)) == 3  # one value per base seed
