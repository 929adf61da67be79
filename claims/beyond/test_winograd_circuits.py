"""What training finds in place of the circuit that the chapter describes (l.239).

Section 12 shows that the answers depend on one block's view of the adjective. Which block that is
differs from seed to seed; what it gives decides the answer; and no network is needed.
"""

from __future__ import annotations

from claims.experiments.winograd import TEN_SEEDS, WINOGRAD
from claims.experiments.winograd_map import WINOGRAD_VARIANTS
from claims.harness import Check, claim, digits, exact, seed_mean_within, trains
from claims.training.measurements import CIRCUIT, right, solved
from claims.training.results import Runs


@claim("which-block-reads-it-is-chance")
@trains(TEN_SEEDS, "two blocks")
def test_either_block_may_be_the_one_that_reads(runs: Runs, check: Check) -> None:
    """In some seeds block 1 alone reads the adjective, in others block 2 alone does."""
    readers = {c.adjective_read_by for c in runs.measured("two blocks", CIRCUIT)}
    check({"block 1", "block 2"} <= readers, exact(True))


@claim("exchanged-attention-turns-the-answer")
@trains(WINOGRAD, "two blocks")
def test_the_sister_sentences_attention_turns_the_answer(runs: Runs, check: Check) -> None:
    """What that block gives at position 14, taken from the sister sentence, turns the answer.

    The sister sentence has an adjective of the other role. Nothing else is exchanged, so this is a
    cause, where a map of weights shows a correlation. Of the two blocks the one that turns more.
    """
    turned = solved(runs).map(lambda c: max(c.role_1, c.role_2))
    check(turned, seed_mean_within((0.25, 1.75), "at least a quarter of the answers turns"))


@claim("two-blocks-of-attention-are-enough")
@trains(WINOGRAD_VARIANTS, "two blocks, no network")
def test_two_blocks_of_attention_alone_can_solve_it(runs: Runs, check: Check) -> None:
    """Two blocks without their feed-forward networks can name the right noun in 100 %.

    The best of the seeds; not all of them get there.
    """
    best = max(right(runs, "two blocks, no network"))
    check(best, digits(1.0, 3))
