"""The tokenizer: every text comes back, the merges are those of a plain loop, errors are named.

The plain loop is written out here as the reference. It counts all pairs anew for each merge, and
shares no line and no pattern with the code under test.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from claims.instruments.text.corpus import Corpus
from transformer import tokenizer
from transformer.tokenizer import Tokenizer

# As printed in GPT-2's encoder.
GPT2_PATTERN = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""

any_text = st.text(st.characters(exclude_categories=["Cs"]))
# Few letters and words, so that chunks repeat and pairs repeat, overlap (aaa) and tie.
repetitive_text = st.one_of(
    st.text(alphabet="aab 'st\n1é", max_size=60),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=20).map(" ".join),
)
lines_of_words = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=12)


def joined(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    out, i = [], 0
    while i < len(ids):
        if tuple(ids[i : i + 2]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def plain_training(text: str, most_merges: int) -> tuple[list[tuple[int, int]], list[int]]:
    """At most so many merges, and the ids of the text after them."""
    chunks: list[str] = regex.findall(GPT2_PATTERN, text)
    state = {chunk: list(chunk.encode("utf-8")) for chunk in chunks}
    frequency = {chunk: 0 for chunk in state}
    for chunk in chunks:
        frequency[chunk] += 1
    merges: list[tuple[int, int]] = []
    while len(merges) < most_merges:
        counts: dict[tuple[int, int], int] = {}
        for chunk, ids in state.items():
            for pair in pairwise(ids):
                counts[pair] = counts.get(pair, 0) + frequency[chunk]
        if not counts:
            break
        # A dict keeps the order of insertion, and max returns the first of equals.
        best = max(counts, key=counts.__getitem__)
        for chunk, ids in state.items():
            if best[0] in ids:
                state[chunk] = joined(ids, best, 256 + len(merges))
        merges.append(best)
    return merges, [i for chunk in chunks for i in state[chunk]]


def merges_allowed(text: str) -> int:
    return len(plain_training(text, sys.maxsize)[0])


def trained_to_the_end(text: str) -> Tokenizer:
    return Tokenizer.train(text, 256 + merges_allowed(text))


@pytest.fixture(scope="module")
def corpus(tiny_shakespeare: Corpus) -> str:
    return tiny_shakespeare.text


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    return Tokenizer.train("the cat sat on the mat, the cat's hat", vocabulary=270)


# The merges


@given(repetitive_text, st.integers(0, 40))
def test_merges_and_ids_are_those_of_the_plain_loop(text: str, number: int) -> None:
    merges, ids = plain_training(text, number)
    trained = Tokenizer.train(text, 256 + len(merges))
    assert trained.merges == merges
    assert trained.encode(text) == ids


@given(any_text)
def test_merges_of_any_text_are_those_of_the_plain_loop(text: str) -> None:
    merges, ids = plain_training(text, 20)
    trained = Tokenizer.train(text, 256 + len(merges))
    assert trained.merges == merges
    assert trained.encode(text) == ids


def test_corpus_has_459_760_tokens_and_the_merges_of_the_plain_loop(corpus: str) -> None:
    trained = Tokenizer.train(corpus)
    ids = trained.encode(corpus)
    assert len(ids) == 459_760
    assert trained.vocabulary == 1024
    assert trained.decode(ids) == corpus
    assert (trained.merges, ids) == plain_training(corpus, 768)


def test_the_pair_met_first_wins_a_tie() -> None:
    # Each of yz, ab and bc is there once. yz has neither the lowest nor, in the second text, the
    # highest ids.
    assert Tokenizer.train("yz\nabc", 257).merges == [(ord("y"), ord("z"))]
    assert Tokenizer.train("abc\nyz", 257).merges == [(ord("a"), ord("b"))]


def test_a_tie_is_decided_by_the_chunks_as_merged_so_far() -> None:
    # ab is there three times. After it, X = ab: the chunks are Xc, dX and Xe, all pairs tie, and
    # (X, c) is met first, though (d, X) has the first letter that any pair of bytes had left.
    X = 256
    trained = Tokenizer.train("abc\ndab\nabe", 259)
    assert trained.merges == [(ord("a"), ord("b")), (X, ord("c")), (ord("d"), X)]


def test_overlapping_pairs_count_each_time_and_join_from_the_left() -> None:
    # aaaaa holds the pair aa four times, so it goes before bc, which is there three times.
    trained = Tokenizer.train("aaaaa\nbc\nbc\nbc", 257)
    assert trained.merges == [(ord("a"), ord("a"))]
    assert trained.encode("aaaaa") == [256, 256, ord("a")]


@given(lines_of_words, st.data())
def test_only_frequency_and_first_appearance_matter(lines: list[str], data: st.DataObject) -> None:
    again = data.draw(st.permutations(lines))
    text = "\n".join([*lines, *lines, ""])
    permuted = "\n".join([*lines, *again, ""])
    assert trained_to_the_end(permuted).merges == trained_to_the_end(text).merges


@given(st.permutations(["ab", *["cd"] * 2, *["efg"] * 4]))
def test_permuting_lines_changes_nothing_where_no_frequencies_tie(lines: list[str]) -> None:
    # ef and fg tie, but inside one chunk, whose own order no permutation changes.
    e, f, g = b"efg"
    expected = [(e, f), (256, g), (ord("c"), ord("d")), (ord("a"), ord("b"))]
    assert Tokenizer.train("\n".join([*lines, ""]), 260).merges == expected


def test_reversing_the_lines_of_the_corpus_changes_its_merges(corpus: str) -> None:
    backwards = "".join(reversed(corpus.splitlines(keepends=True)))
    chunks, chunks_backwards = (regex.findall(GPT2_PATTERN, t) for t in (corpus, backwards))
    assert sorted(chunks_backwards) == sorted(chunks)
    # Measured with the plain loop: ten tokens more than the lines in their own order take.
    assert len(Tokenizer.train(backwards).encode(backwards)) == 459_760 + 10


def test_training_does_not_depend_on_the_hash_seed(small: Tokenizer) -> None:
    text = "the cat sat on the mat, the cat's hat"
    program = (
        "import runpy, sys;"
        f"T = runpy.run_path({tokenizer.__file__!r})['Tokenizer'];"
        f"print(T.train({text!r}, 270).merges)"
    )
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert run.stdout.decode().strip() == repr(small.merges)


# Encoding and decoding


@given(any_text)
def test_every_text_comes_back(text: str) -> None:
    for coder in (Tokenizer([]), trained_to_the_end(text)):
        assert coder.decode(coder.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "one\r\ntwo\r\n\r\nthree\r",
        "nul \0 nul\0",
        "\U0001f469\u200d\U0001f52c \U0001f1e7\U0001f1f7 \U0001f44d\U0001f3fd",
        "e\u0301 a\u0308\u0323 \u0301",
        "\ufeffmark, \u00a0 no-break, \u2028 line, \x85 next line, \x1c separator",
        "  two before,\tand \n after  ",
        "don't 'S we'll they've _1_000 \u00bd \u0663",
        "\U0010ffff\uffff\ufffd",
        "a" * 5000,
    ],
    ids=["crlf", "nul", "emoji", "combining", "separators", "space", "quotes", "ends", "long"],
)
def test_special_characters_come_back(small: Tokenizer, text: str) -> None:
    ids = small.encode(text)
    assert small.decode(ids) == text
    assert small.decode_bytes(ids) == text.encode("utf-8")


def test_every_character_that_utf8_holds_comes_back() -> None:
    surrogates = range(0xD800, 0xE000)
    everything = "".join(chr(i) for i in range(sys.maxunicode + 1) if i not in surrogates)
    bytes_only = Tokenizer([])
    for text in (everything, " ".join(everything[:3000])):
        assert bytes_only.decode(bytes_only.encode(text)) == text


def test_a_merge_never_crosses_the_border_of_a_chunk() -> None:
    trained = Tokenizer.train("ab", 257)
    assert trained.encode("ab") == [256]
    assert trained.encode("a b") == [ord("a"), ord(" "), ord("b")]


@pytest.mark.parametrize("ending", ["s", "t", "re", "ve", "m", "ll", "d"])
def test_contractions_of_lower_case_are_chunks(ending: str) -> None:
    # The chunks are x, 's and y; but X, the apostrophe and SY.
    lower, upper = f"x'{ending}y", f"X'{ending.upper()}Y"
    assert Tokenizer.train(lower, 257).merges == [(ord("'"), ord(ending[0]))]
    assert Tokenizer.train(upper, 257).merges == [tuple(upper[2:4].encode())]


def test_the_earliest_merge_goes_first_wherever_it_stands() -> None:
    a, b, c = b"abc"
    # bc was learnt before ab, so abc is a + bc though ab stands further left; and with the two
    # merges after it, abcd is not the single id that another order would reach.
    coder = Tokenizer([(b, c), (a, b), (257, c), (258, ord("d"))])
    assert coder.encode("abc") == [a, 256]
    assert coder.encode("abcd") == [a, 256, ord("d")]


def test_empty_text() -> None:
    empty = Tokenizer.train("", vocabulary=256)
    assert (empty.merges, empty.vocabulary) == ([], 256)
    assert empty.encode("") == []
    assert empty.decode([]) == ""
    assert empty.decode_bytes([]) == b""


def test_bytes_that_are_no_utf8_are_kept_or_replaced(small: Tokenizer) -> None:
    cut = "é".encode()[:1]
    assert small.decode_bytes([ord("x"), *cut, ord("y")]) == b"x\xc3y"
    assert small.decode([ord("x"), *cut, ord("y")]) == "x\ufffdy"


def test_ids_may_come_from_any_iterable(small: Tokenizer) -> None:
    assert small.decode(iter(small.encode("the cat"))) == "the cat"


# Files


def test_a_loaded_tokenizer_is_the_saved_one(small: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    small.save(path)
    loaded = Tokenizer.load(str(path))
    assert loaded.merges == small.merges
    assert loaded.encode("the cat sat") == small.encode("the cat sat")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_json_with_its_format_version_pattern_and_merges(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    Tokenizer([(97, 98), (256, 99)]).save(path)
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "format": "byte-level byte-pair encoding",
        "version": 1,
        "pattern": tokenizer.PATTERN,
        "merges": [[97, 98], [256, 99]],
    }


def test_saving_replaces_the_old_file_and_never_writes_into_it(
    small: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "small.json"
    path.write_text("old " * 10_000)
    with path.open() as old:
        small.save(path)
        assert old.read() == "old " * 10_000
    assert Tokenizer.load(path).merges == small.merges


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    resource = pytest.importorskip("resource", reason="only Unix can limit the size of a file")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    Tokenizer([]).save(path)
    old = path.read_bytes()
    many = Tokenizer([(left, right) for left in range(256) for right in range(8)])
    with files_no_longer_than(len(old) + 100), pytest.raises(OSError, match="too large"):
        many.save(path)
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        Tokenizer.load(tmp_path / "absent.json")


def content_with(**changes: object) -> str:
    return json.dumps(
        {
            "format": "byte-level byte-pair encoding",
            "version": 1,
            "pattern": tokenizer.PATTERN,
            "merges": [[97, 98]],
            **changes,
        }
    )


FAULTY_FILES = [
    ("", "not JSON"),
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("\x80\ud800", "not JSON"),
    ("[]", "a JSON object is needed, not list"),
    ("{}", "format is None"),
    (content_with(format="other"), "format is 'other'"),
    (content_with(version=2), "version is 2, but only 1"),
    (content_with(pattern=r"\w+"), r"pattern is '\\w+'"),
    (content_with(merges=None), "merges is None"),
    (content_with(merges={"97": 98}), "merges is {'97': 98}"),
    (content_with(merges=[[97, 98], 99]), "merge 1 is 99"),
    (content_with(merges=[[97, 98, 99]]), "merge 0 is [97, 98, 99]"),
    (content_with(merges=[[97, "b"]]), "merge 0 is [97, 'b']"),
    (content_with(merges=[[97.0, 98]]), "merge 0 is [97.0, 98]"),
    (content_with(merges=[[True, 98]]), "merge 0 is [True, 98]"),
    (content_with(merges=[[7, 256]]), "merge 0 is (7, 256), but it may only use ids 0 to 255"),
    (content_with(merges=[[7, 8], [257, 1]]), "merge 1 is (257, 1), but it may only use ids 0 to"),
    (content_with(merges=[[-1, 98]]), "merge 0 is (-1, 98)"),
    (content_with(merges=[[7, 8], [1, 2], [7, 8]]), "merge 2 is (7, 8), and so is merge 0"),
]


@pytest.mark.parametrize(
    ("content", "fault"), FAULTY_FILES, ids=[fault for _, fault in FAULTY_FILES]
)
def test_a_faulty_file_is_named_with_its_fault(tmp_path: Path, content: str, fault: str) -> None:
    path = tmp_path / "faulty.json"
    path.write_bytes(content.encode("utf-8", errors="surrogatepass"))
    with pytest.raises(ValueError, match=regex.escape(f"{path}: {fault}")):
        Tokenizer.load(path)


# Bad input


@pytest.mark.parametrize("vocabulary", [255, 0, -1])
def test_a_vocabulary_smaller_than_the_bytes_is_refused(vocabulary: int) -> None:
    with pytest.raises(ValueError, match=f"vocabulary is {vocabulary}, .* 256"):
        Tokenizer.train("text", vocabulary)


@pytest.mark.parametrize(
    ("text", "allowed"), [("", 0), ("a b", 1), ("abc abc", 3), ("aaaa", 2)], ids=repr
)
def test_more_merges_than_the_text_allows_are_refused(text: str, allowed: int) -> None:
    assert len(Tokenizer.train(text, 256 + allowed).merges) == allowed
    message = f"asks for {allowed + 1} merges, but the text allows {allowed}:"
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(text, 257 + allowed)


@given(repetitive_text)
def test_the_plain_loop_ends_where_training_refuses(text: str) -> None:
    allowed = merges_allowed(text)
    with pytest.raises(ValueError, match=f"allows {allowed}:"):
        Tokenizer.train(text, 257 + allowed)


@given(any_text, st.characters(categories=["Cs"]), any_text)
def test_a_lone_surrogate_is_named_with_its_index(before: str, lone: str, after: str) -> None:
    message = regex.escape(f"character {lone!r} at index {len(before)} ")
    with pytest.raises(ValueError, match=message):
        Tokenizer([]).encode(before + lone + after)
    with pytest.raises(ValueError, match=message):
        Tokenizer.train(before + lone + after, vocabulary=256)


@pytest.mark.parametrize("outside", [270, -1, 10**30])
def test_an_id_outside_the_vocabulary_is_named_with_the_range(
    small: Tokenizer, outside: int
) -> None:
    for decode in (small.decode, small.decode_bytes):
        with pytest.raises(ValueError, match=f"id {outside} is outside the vocabulary: 0 to 269"):
            decode([97, outside])
