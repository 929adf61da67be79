"""Byte-pair encoding: ties, the order of the lines, round trips, and splits that are not shortest.

Faults that users of such tokenizers reported, or took for faults. The chapter's 459,760 tokens
depend on the first of them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from claims.harness import Check, claim, exact
from claims.harness.implementation import Implementation

FEW = settings(max_examples=30)  # an example may train two tokenizers

# Three words that share no pair, once, twice and four times.
WORDS = ["ab", *["cd"] * 2, *["efg"] * 4]


@claim("bpe-tie-rule")
def test_of_equally_frequent_pairs_the_one_met_first_is_merged(
    implementation: Implementation, check: Check
) -> None:
    """Of equally frequent pairs the one met first is merged.

    One merge, and two pairs that occur once each: the first line becomes one token, the second
    stays two, in either order of the lines.
    """
    forwards = implementation.Tokenizer.train("yz\nab", vocabulary=257)
    backwards = implementation.Tokenizer.train("ab\nyz", vocabulary=257)
    counts = [[len(t.encode(text)) for text in ("yz", "ab")] for t in (forwards, backwards)]
    check(counts, exact([[1, 2], [2, 1]]), unit="tokens")


@claim("bpe-ties-depend-on-line-order")
def test_where_pairs_tie_the_order_of_the_lines_changes_the_merges(
    implementation: Implementation, check: Check
) -> None:
    """Where pairs tie, the order of a corpus's lines changes the merges.

    Two lines that tie, in their two orders.
    """
    forwards = implementation.Tokenizer.train("yz\nab", vocabulary=257)
    backwards = implementation.Tokenizer.train("ab\nyz", vocabulary=257)
    check(backwards.merges == forwards.merges, exact(False))


@claim("bpe-ignores-line-order-without-ties")
@FEW
@given(order=st.permutations(WORDS))
def test_permuting_lines_changes_no_merge_where_no_frequencies_tie(
    implementation: Implementation, check: Check, order: list[str]
) -> None:
    """Permuting the lines gives the same merges where the pairs of different lines do not tie.

    One word a line, in every order. The two pairs of `efg` tie, but their order is the word's own.
    """
    plain = implementation.Tokenizer.train("\n".join(WORDS), vocabulary=260)
    permuted = implementation.Tokenizer.train("\n".join(order), vocabulary=260)
    check(permuted.merges, exact(plain.merges))


@claim("bpe-round-trip")
@FEW
@example("e\u0301, and \u00e9: two spellings of a letter")
@example("\ufb01ne \u2126 \uff21: what a normalisation to compatible forms replaces")
@example("a line\r\nand a line\rand\n\n")
@example(" two  blanks,\ta tab, and no end of line ")
@example("\ufeffa mark\u200bno width\x00nothing")
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_the_ids_of_a_text_gives_the_text(
    tokenizer: Any, check: Check, text: str
) -> None:
    """Decoding the ids of a text gives the text, for every text.

    With the tokenizer of the corpus: drawn texts, and texts that people change without wanting to
    (letters composed or decomposed, line ends, blanks, marks). Lone surrogates are no characters
    and cannot be encoded.
    """
    check(tokenizer.decode(tokenizer.encode(text)), exact(text))


@claim("bpe-repeated-symbols")
def test_a_merge_of_a_symbol_with_itself_drops_none(
    implementation: Implementation, check: Check
) -> None:
    """A merge of a symbol with itself loses no symbol of a run, however long the run is.

    Trained on runs of one letter, so that `ll` and then `llll` are merged; in runs of odd length
    pairs overlap.
    """
    runs = ["l" * n for n in range(1, 12)]
    once = implementation.Tokenizer.train("llll " * 8, vocabulary=257)
    check([once.decode(once.encode(run)) for run in runs], exact(runs))
    coder = implementation.Tokenizer.train("llll " * 8, vocabulary=259)
    check([coder.decode(coder.encode(run)) for run in runs], exact(runs))
    check([len(coder.encode(run)) for run in runs[:4]], exact([1, 1, 2, 1]), unit="tokens")


@claim("bpe-not-the-shortest-split")
def test_bpe_does_not_find_the_fewest_tokens(implementation: Implementation, check: Check) -> None:
    """Byte-pair encoding does not find the shortest split of a text into its tokens.

    It learns bc, the most frequent pair, then ab and cd. It splits abcd into a, bc, d, although ab,
    cd would be shorter.
    """
    coder = implementation.Tokenizer.train("\n".join(["bc"] * 4 + ["ab", "cd"] * 2), vocabulary=259)
    shorter = [*coder.encode("ab"), *coder.encode("cd")]
    measured = [coder.decode(shorter), len(shorter), len(coder.encode("abcd"))]
    check(measured, exact(["abcd", 2, 3]))
