"""Values of runs keep their seeds, and only values of the same seeds are paired."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import Any

import pytest

from claims.harness import PerSeed
from conftest import Project

LEFT, RIGHT = PerSeed([3, 4, 5], [6.0, 8.0, 9.0]), PerSeed([3, 4, 5], [2.0, 4.0, 3.0])
PAIRINGS = pytest.mark.parametrize("pair", [operator.sub, operator.truediv], ids=["-", "/"])


def test_differences_and_ratios_are_taken_seed_by_seed() -> None:
    assert ((LEFT - RIGHT).seeds, list(LEFT - RIGHT)) == ([3, 4, 5], [4.0, 4.0, 6.0])
    assert ((LEFT / RIGHT).seeds, list(LEFT / RIGHT)) == ([3, 4, 5], [3.0, 2.0, 3.0])


def test_values_at_the_seeds_that_both_have_can_be_paired() -> None:
    other = PerSeed([4, 5, 6], [1.0, 2.0, 3.0])
    difference = LEFT.at(other.seeds) - other.at(LEFT.seeds)
    assert (difference.seeds, list(difference)) == ([4, 5], [7.0, 7.0])


@PAIRINGS
@pytest.mark.parametrize("seeds", [[4, 5, 6], [3, 5, 4], [3, 4]], ids=["other", "order", "fewer"])
def test_values_of_other_seeds_are_not_paired(pair: Callable[..., Any], seeds: list[int]) -> None:
    other = PerSeed(seeds, [1.0] * len(seeds))
    with pytest.raises(ValueError, match=r"of the seeds \[3, 4, 5\] and of .* cannot be paired"):
        pair(LEFT, other)


@PAIRINGS
def test_values_without_seeds_are_not_paired(pair: Callable[..., Any]) -> None:
    for left, right in ((LEFT, [6.0, 8.0, 9.0]), ([6.0, 8.0, 9.0], LEFT)):
        with pytest.raises((TypeError, AttributeError)):
            pair(left, right)


def test_map_and_where_keep_the_seeds() -> None:
    halves = LEFT.map(lambda value: value / 2)
    assert (halves.seeds, list(halves)) == ([3, 4, 5], [3.0, 4.0, 4.5])
    large = LEFT.where(lambda value: value > 7)
    assert (large.seeds, list(large)) == ([4, 5], [8.0, 9.0])
    none = LEFT.where(lambda value: value > 99)
    assert (none.seeds, list(none)) == ([], [])


def test_what_is_kept_of_some_seeds_is_not_paired_with_the_others() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        LEFT.where(lambda value: value > 7) - RIGHT


def test_values_keep_the_record_that_they_come_from() -> None:
    stored, other = PerSeed([0], [4.0], "runs.json"), PerSeed([0], [2.0], "more.json")
    here = PerSeed([0], [2.0])
    assert stored.map(abs).source == stored.where(bool).source == "runs.json"
    assert (stored - here).source == (here / stored).source == "runs.json"
    assert (stored - other).source == "runs.json; more.json"
    assert ((stored - stored).source, (here - here).source) == ("runs.json", "")


def test_the_spread_is_told_from_three_seeds_on() -> None:
    assert LEFT.spread == pytest.approx((23 / 3, 1.5275252, 3))
    assert LEFT.where(lambda value: value > 7).spread == (None, None, 2)


def test_there_is_one_value_for_each_seed() -> None:
    with pytest.raises(ValueError, match="2 seeds have 3 values"):
        PerSeed([0, 1], [1.0, 2.0, 3.0])


def test_it_is_a_sequence_of_its_values() -> None:
    assert (len(LEFT), LEFT[0], LEFT[-1], LEFT[:2], max(LEFT)) == (3, 6.0, 9.0, [6.0, 8.0], 9.0)
    assert repr(LEFT) == "PerSeed({3: 6.0, 4: 8.0, 5: 9.0})"


def test_check_records_the_seeds_of_what_it_is_given(project: Project) -> None:
    project.entry("a", "holds").test("""
@claim("a")
def test_a(check):
    values = PerSeed([7, 8, 9], [0.5, 0.51, 0.52])
    check(values.map(lambda value: value * 2), seed_mean_within((0, 2), "the test"))
    check([1, 2], exact([1, 2]))
""")
    project.run("--claims-json", "out.json").assert_outcomes(passed=1)
    [run] = json.loads((project.folder / "out.json").read_text())["runs"]
    assert [record["seeds"] for record in run["records"]] == [[7, 8, 9], []]
