"""Every table of the chapter as a stored table, those too that the translations lost.

A table is named by its line, and lies in fixtures/expected/test_chapter_tables. Beside what is
measured it has what the chapter prints, or a dash. What is exact is measured in every run. What is
trained comes from the record; with fewer than three seeds its cells are empty. docs/results.md
shows all tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, cast

from torch import Tensor

from claims.experiments.division import BY_WIDTH_AND_RATE
from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.positions import POSITION_RUNS, SCHEMES
from claims.experiments.rungs import LADDER, ONE_BLOCK, TWO_BLOCKS
from claims.experiments.winograd import BOTH_LANGUAGES, TEN_SEEDS
from claims.harness import (
    Check,
    Expected,
    PerSeed,
    Table,
    claim,
    digits,
    exact,
    seed_mean_within,
    trains,
    ulps,
)
from claims.harness.implementation import Implementation
from claims.instruments.attention.block_gradients import Ends
from claims.instruments.attention.random_rows import Rows, rows_by_width, spread_of_pairs
from claims.instruments.attention.reordered import averages
from claims.instruments.attention.scores import effective_tokens, jacobian_trace, saturated
from claims.instruments.cost.cost_table import (
    HEADS,
    LAST_ROWS,
    MIB,
    fitted_exponent,
    row_ratios,
    table_footprint,
)
from claims.instruments.cost.parameters import parameters_of, parts_of_block, parts_of_gpt2
from claims.instruments.languages.schemas import ADJECTIVE, CROSSED, CROSSER, FIRST, SECOND
from claims.instruments.text.corpus import Corpus
from claims.instruments.text.tokens import split
from claims.training.batches import held_out
from claims.training.measurements import ATTENTION, SHARES, TIRED, WET
from claims.training.results import Runs
from claims.training.spec import Evaluation, Text

ByRow = dict[str, PerSeed[float]]


def printed(expected: Expected, rows: Iterable[object]) -> list[str]:
    """What the chapter prints for each row, or a dash."""
    return [str(expected["printed"].get(row, "-")) for row in rows]


def show(table: Table, expected: Expected, name: str, values: ByRow, decimals: int) -> None:
    """A row for each of the values: what is printed, and mean, sd and number of seeds."""
    rows = {name: list(values), "printed": printed(expected, values)}
    table.over_seeds(rows, values.values(), decimals)


@claim("table-l013-corpus")
def test_the_corpus_and_its_tokens(
    exact_corpus: Corpus, tokenizer: Any, tokens: Tensor,
    check: Check, expected: Expected, table: Table,
) -> None:
    """l.13: the characters of the corpus, its tokens, and how they are split."""
    train, last_tenth = split(tokens)
    counted = {
        "characters": len(exact_corpus.text), "vocabulary": tokenizer.vocabulary,
        "tokens": len(tokens), "training tokens": len(train), "held-out tokens": len(last_tenth),
    }
    per_token, given = len(exact_corpus.text) / len(tokens), dict(expected["printed"])
    check(per_token, digits(given.pop("characters per token"), 2))
    check({name: counted[name] for name in given}, exact(given))
    rows = [*counted, "characters per token"]
    measured = [*map(str, counted.values()), f"{per_token:.2f}"]
    columns = {"quantity": rows, "printed": printed(expected, rows), "measured": measured}
    table(columns, {}, seeds=[])


@claim("table-l024-differences")
def test_differences_of_reordered_sums(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.24, l.43, l.44: the mean of a shuffled window; loop, product and softmax."""
    found = averages(implementation)
    # Compared with its bound and not stored: it depends on the machine's kernels.
    for one, other, roundings, magnitude in found.values():
        check(one, ulps(other.double(), roundings, "roundings of a term", scale=magnitude))
    columns: dict[str, list[Any]] = {
        "difference between": list(found), "printed": printed(expected, found),
        "bound, 1e-7": [each.bound * 1e7 for each in found.values()],
    }
    table(columns, {"bound, 1e-7": 1}, seeds=[0])


@claim("table-l047-averaging-matrix")
def test_the_averaging_matrix_of_six_tokens(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.47 to l.52: row t has 1/t in its first t cells, and zero after them."""
    matrix = implementation.averaging_matrix(6)
    check(matrix, digits(expected["printed"], 3))
    cells = {f"token {i}": column.tolist() for i, column in enumerate(matrix.T, 1)}
    rows = [" ".join(f"{cell:.3f}" for cell in row) for row in expected["printed"]]
    table({"t": [*range(1, 7)], "printed": rows, **cells}, dict.fromkeys(cells, 3), seeds=[])


@claim("table-l095-variance")
def test_the_variance_of_a_score_by_width(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.95 to l.100: variance and standard deviation of q.k over twenty thousand pairs, seed 0."""
    given = expected["printed"]
    spread = spread_of_pairs(implementation.attention, list(given), expected["pairs"])
    rows = {d: [*spread[d], math.sqrt(d)] for d in given}
    check(rows, digits(given, 3))
    columns: dict[str, list[Any]] = {"d": list(given)}
    names = ("Var(q.k)", "std", "sqrt(d)")
    for i, name in enumerate(names):
        columns[f"{name}, printed"] = [f"{row[i]:.3f}" for row in given.values()]
        columns[name] = [row[i] for row in rows.values()]
    table(columns, dict.fromkeys(names, 3), seeds=[0])


@claim("table-l103-effective-tokens")
def test_effective_tokens_by_width(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.103: over how many of 64 tokens a row averages; 2,048 rows of seed 0 at each width."""
    widths, measured = expected["widths"], {}
    rows = rows_by_width(implementation.attention, widths)
    for name, of_tokens in zip(Rows._fields, map(effective_tokens, rows), strict=True):
        measured[f"{name}, mean"] = of_tokens.mean(1).tolist()
        measured[f"{name}, median"] = of_tokens.median(1).values.tolist()
    about = digits([float(expected["scaled"])] * len(widths), 0)
    check(measured["scaled, mean"], about, unit="tokens")
    columns = {"d_k": widths, "unscaled, printed": printed(expected, widths)}
    table({**columns, **measured}, dict.fromkeys(measured, 2), seeds=[0])


@claim("table-l107-jacobian")
def test_jacobian_traces_and_frozen_rows_by_width(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.107: the mean trace of the softmax Jacobian, and the share of frozen rows."""
    trace, frozen, measured = expected["trace"], expected["frozen"], {}
    rows = rows_by_width(implementation.attention, list(trace))
    for name, weights in zip(Rows._fields, rows, strict=True):
        measured[f"{name}, trace"] = jacobian_trace(weights).mean(1).tolist()
        measured[f"{name}, frozen"] = saturated(weights).double().mean(1).tolist()
    check(measured["scaled, trace"], digits(list(trace.values()), 2))
    check(measured["unscaled, frozen"][-1], digits(frozen[1024], 1))
    columns: dict[str, list[Any]] = {
        "d_k": list(trace),
        "unscaled, frozen, printed": [str(frozen.get(d, "-")) for d in trace],
        "scaled, trace, printed": list(map(str, trace.values())),
    }
    table({**columns, **measured}, dict.fromkeys(measured, 3), seeds=[0])


@claim("table-l111-division")
@trains(BY_WIDTH_AND_RATE, *BY_WIDTH_AND_RATE["document"].runs)
def test_what_the_division_is_worth_by_width(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.111: perplexity with the division and without it, and the gain, seed by seed."""
    steps = expected["steps"]
    check({width: runs.specs(f"{width}, scaled")[0].steps for width in steps}, exact(steps))
    values: ByRow = {}
    for width in steps:
        names = f"{width}, scaled", f"{width}, unscaled"
        scaled, unscaled = map(runs.made().perplexities, names)
        values |= zip(names, (scaled, unscaled), strict=True)
        values[f"{width}, gain"] = unscaled.at(scaled.seeds) - scaled.at(unscaled.seeds)
    show(table, expected, "head width", values, 2)


@claim("table-l115-scores")
@trains(BY_WIDTH_AND_RATE, *BY_WIDTH_AND_RATE["document"].runs)
def test_scores_before_training_and_after_it(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.115: the scores of the head of d_k = 1024, at the ladder's learning rate and above it."""
    rates = expected["learning_rates"]
    used = {label: runs.specs(label)[0].learning_rate for label in rates}
    check(used, exact(rates, because="settings are compared as they are"))
    values: ByRow = {}
    for label in rates:
        results = runs.made().results(label)
        values[f"{label}, std at first"] = results.map(lambda r: r.snapshots[0].scores[0].std)
        last = results.map(lambda r: r.snapshots[-1].scores[0])
        of_last = {name: last.map(attrgetter(name)) for name in ("std", "entropy", "saturated")}
        values |= {f"{label}, {name}": each for name, each in of_last.items()}
    show(table, expected, "scores of", values, 3)


@claim("table-l125-ladder")
@trains(LADDER_RUNS, *(rung.label for rung in LADDER))
def test_the_ladder(
    implementation: Implementation, runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.14, l.125: each row of the ladder, its parameters and its held-out perplexity."""
    parameters = [parameters_of(implementation, **asdict(rung.model)) for rung in LADDER]
    check(parameters, exact(expected["parameters"]))
    labels = [rung.label for rung in LADDER]
    rows: dict[str, list[Any]] = {"row": labels, "parameters": parameters}
    rows["printed"] = printed(expected, labels)
    table.over_seeds(rows, map(runs.made().perplexities, labels), 2)


@claim("table-l129-parameters")
def test_where_the_parameters_are(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.129: the parts of a block, and the LayerNorms of the chapter's model of one block."""
    parts = {d: parts_of_block(implementation, d) for d in (128, 768)}
    counts = {name: expected["printed"][name] for name in ("W_o", "three LayerNorms")}
    check({name: parts[128][name] for name in counts}, exact(counts))
    columns: dict[str, list[Any]] = {"part": list(parts[128])}
    columns["d = 128, printed"] = printed(expected, parts[128])
    for d, own in parts.items():
        columns[f"d = {d}"] = list(own.values())
        columns[f"d = {d}, share"] = [n / own["block"] for n in own.values()]
    table(columns, {name: 4 for name in columns if name.endswith("share")}, seeds=[])


@claim("table-l145-gradient-norms")
def test_gradient_norms_before_training(
    exact_corpus: Corpus, ends: dict[str, PerSeed[Ends]],
    check: Check, expected: Expected, table: Table,
) -> None:
    """l.145, l.146: the norm of W_o's gradient in block 1 and in block 12, over 16 seeds."""
    values: ByRow = {}
    for norm, of_seeds in ends.items():
        first = values[f"{norm}-norm, block 1"] = of_seeds.map(lambda e: e[0].attention_output)
        last = values[f"{norm}-norm, block 12"] = of_seeds.map(lambda e: e[1].attention_output)
        values[f"{norm}-norm, ratio"] = last / first
    for name in ("block 1", "block 12", "ratio"):
        more = values[f"post-norm, {name}"] - values[f"pre-norm, {name}"]
        check(more, seed_mean_within((0.0, 1.0), "larger in post-norm"), unit=name)
    show(table, expected, "gradient of W_o", values, 4)


@claim("table-l148-warmup")
@trains(NORM_RUNS, "pre-norm", "pre-norm, warmup", "post-norm", "post-norm, warmup")
def test_warmup_for_pre_norm_and_post_norm(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.148 to l.151: held-out perplexity of twelve blocks after 1,000 steps."""
    warmup = expected["warmup"]
    check({label: runs.specs(label)[0].warmup for label in warmup}, exact(warmup))
    values = {label: runs.made().perplexities(label) for label in warmup}
    show(table, expected, "twelve blocks", values, 2)


@claim("table-l158-positions")
@trains(POSITION_RUNS, *SCHEMES, "none")
def test_positions_at_three_lengths(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.158: held-out perplexity in windows of 64, 128 and 256 tokens, after training on 64."""
    schemes = (*SCHEMES, "none")
    windows = {scheme: cast(Text, runs.specs(scheme)[0].data).length for scheme in schemes}
    check(windows, exact(dict.fromkeys(schemes, expected["trained"])), unit="tokens")
    values = {
        f"{scheme}, {length}": runs.made().perplexities(scheme, Evaluation(length))
        for scheme, length in product(schemes, expected["lengths"])
    }
    show(table, expected, "positions, window", values, 2)


@claim("table-l169-cost")
def test_memory_and_time_of_one_layer(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.169 to l.177: bytes of the score matrix and at the peak, and how they grow.

    Bytes are counted on the meta device. Times are the chapter's; their ratios are taken here.
    """
    given = dict(zip(expected["columns"], zip(*expected["printed"], strict=True), strict=True))
    lengths = given["tokens"]
    matrix = [implementation.attention_matrix_bytes(n, HEADS) / MIB for n in lengths]
    peaks = [table_footprint(implementation, n).peak / MIB for n in lengths]
    memory, time = row_ratios(peaks), row_ratios(given["ms"][:-1])
    check(matrix, digits(given["matrix"], 1), unit="MiB")
    check(peaks[:-1], digits(given["peak"][:-1], 1), unit="MiB")
    check(memory[:-1], digits(given["peak x4"][1:-1], 2))
    check(time, digits(given["ms x4"][1:-1], 2))
    ratios = {"peak x4": [None, *memory], "ms x4": [None, *time, None]}
    measured: dict[str, list[Any]] = {"matrix": matrix, "peak": peaks, **ratios}
    columns: dict[str, list[Any]] = {"tokens": list(lengths)}
    for name in expected["columns"][1:]:
        columns[f"{name}, printed"] = list(map(str, given[name]))
        columns |= {name: measured[name]} if name in measured else {}
    table(columns, {"matrix": 1, "peak": 1, "peak x4": 2, "ms x4": 2}, seeds=[])


@claim("table-l179-exponents")
def test_exponents_of_time_and_memory(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.179: slopes of logarithms over the last four rows that ran, by least squares."""
    grow = {
        "printed time": expected["ms"],
        "printed time of the projections": expected["ms of the projections"],
        "memory": [table_footprint(implementation, n).peak for n in LAST_ROWS],
        "score matrix": [implementation.attention_matrix_bytes(n, HEADS) for n in LAST_ROWS],
    }
    slopes = {name: fitted_exponent(LAST_ROWS, column) for name, column in grow.items()}
    check({name: slopes[name] for name in expected["printed"]}, digits(expected["printed"], 2))
    rows = {"exponent of": list(slopes), "printed": printed(expected, slopes)}
    table({**rows, "fitted": list(slopes.values())}, {"fitted": 2}, seeds=[])


@claim("table-l193-gpt2")
def test_gpt2_small_part_by_part(
    implementation: Implementation, check: Check, expected: Expected, table: Table
) -> None:
    """l.193 to l.198: the parameters of GPT-2 small, counted on the model."""
    parts = parts_of_gpt2(implementation)
    check(parts, exact(expected["printed"]))
    columns = {"part": list(parts), "printed": printed(expected, parts)}
    table({**columns, "counted": list(parts.values())}, {}, seeds=[])


@claim("table-l208-winograd")
@trains(BOTH_LANGUAGES, *BOTH_LANGUAGES["document"].runs)
def test_answers_in_both_winograd_languages(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.208, l.209, l.219, l.239: what is answered right, in percent of held-out sentences."""
    sentences = {label: len(held_out(runs.specs(label)[0])[1]) for label in expected["sentences"]}
    check(sentences, exact(expected["sentences"]))
    values: ByRow = {}
    for label, name in product(sentences, ("right", "wrong_noun")):
        shares = runs.made().measured(label, SHARES).map(attrgetter(name))
        values[f"{label}, {name.replace('_', ' ')}"] = shares.map(lambda share: 100 * share)
    show(table, expected, "answers of", values, 1)


@claim("table-l223-maps")
@trains(TEN_SEEDS, "two blocks")
def test_where_two_blocks_look_in_the_two_printed_sentences(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.223 to l.233: attention at the position that names the referent, averaged over heads."""
    prompts = {"tired": TIRED.prompt, "wet": WET.prompt}
    check({name: " ".join(words) for name, words in prompts.items()}, exact(expected["prompts"]))
    seen, cells = runs.made().measured("two blocks", ATTENTION), []
    values: ByRow = {}
    for (name, words), block, i in product(prompts.items(), (0, 1), range(15)):
        weights = seen.map(attrgetter(name)).map(itemgetter(block)).map(itemgetter(i))
        values[f"{name}, block {block + 1}, {words[i]} at {i}"] = weights
        cells.append(f"{expected['rows'][f'{name}, block {block + 1}'][i]:.2f}")
    table.over_seeds({"weight": list(values), "printed": cells}, values.values(), 2)


@claim("table-l238-adjectives")
@trains(TEN_SEEDS, "two blocks")
def test_where_block_2_looks_by_adjective(
    runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.238: the second block's weight on three words, by adjective, over held-out sentences."""
    check([*CROSSER, *CROSSED], exact(expected["adjectives"]))
    seen, values = runs.made().measured("two blocks", ATTENTION), {}
    words = {"first noun": FIRST, "second noun": SECOND, "adjective": ADJECTIVE}
    for adjective, word in product(expected["adjectives"], words):
        weights = seen.map(attrgetter("mean")).map(itemgetter(adjective))
        values[f"{adjective}, {word}"] = weights.map(itemgetter(words[word]))
    show(table, expected, "weight", values, 2)


@claim("table-l252-blocks")
@trains(CLOSE_RUNS, ONE_BLOCK.label, TWO_BLOCKS.label)
def test_one_block_against_two(
    implementation: Implementation, runs: Runs, check: Check, expected: Expected, table: Table
) -> None:
    """l.252: perplexity of one block and of two, on the training text and on the held-out text."""
    blocks = {rung.label: asdict(rung.model) for rung in (ONE_BLOCK, TWO_BLOCKS)}
    counted = {label: parameters_of(implementation, **model) for label, model in blocks.items()}
    check(counted, exact(expected["parameters"]))
    values = {
        f"{label}, {text}": runs.made().perplexities(label, Evaluation(128, text))
        for label, text in product(blocks, ("training", "held out"))
    }
    show(table, expected, "perplexity of", values, 2)
