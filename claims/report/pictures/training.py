"""Pictures of trained models: the ladder, scores and losses over training, positions, accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from claims.experiments.division import BY_WIDTH_AND_RATE
from claims.experiments.ladder import CLOSE_RUNS, LADDER_RUNS
from claims.experiments.norms import NORM_RUNS
from claims.experiments.positions import LENGTHS, POSITION_RUNS
from claims.experiments.winograd_map import STEPS, WINOGRAD_STEPS
from claims.harness import paths
from claims.harness.ledger import Ledger
from claims.report.pictures.picture import (
    INK,
    LINES,
    MARKERS,
    SERIES,
    Picture,
    canvas,
    drawn,
    each,
    legend,
    mean,
    ticks,
)
from claims.report.sources import (
    Record,
    SourceMissing,
    perplexities,
    printed,
    provenance_of_runs,
    provenance_of_table,
    rows,
    table_path,
)
from claims.training.evidence import Evidence
from claims.training.spec import Evaluation

HELD_OUT = Evaluation(128)
# The add-one estimate of the tokens' frequencies on the held-out split (the ledger's reading of
# postnorm-nowarmup-308).
FREQUENCIES, OF_FREQUENCIES = 306.6, "frequencies of the tokens"
# The same estimate on the training split itself.
TRAINING_FREQUENCIES = 316.6
PRINTED: dict[str, Any] = {
    "marker": "D", "markerfacecolor": "none", "markeredgecolor": INK, "markersize": 7,
    "linestyle": "none", "label": "printed",
}  # fmt: skip


def ladder(ledger: Ledger, record: Record) -> Picture:
    """The ten models, printed against measured, every seed a point."""
    given = printed(ledger, "table-l125-ladder")
    longer = CLOSE_RUNS["document"]
    runs = {
        label: record.of(longer if label in longer.runs else LADDER_RUNS["document"], label)
        for label in given
    }
    values = {label: perplexities(found, HELD_OUT) for label, found in runs.items()}
    if not any(values.values()):
        raise SourceMissing("The record has no runs of the ladder.")
    figure, [axes] = canvas(6.4, 3.8)
    for y, (label, text) in enumerate(given.items()):
        ends = [float(number) for number in str(text).split(" to ")]
        axes.plot(ends, [y] * len(ends), **{**PRINTED, "linestyle": "-", "color": INK})
        measured = [*values[label].values()]
        # Below the row's line, where the printed value does not hide them.
        below = [y + 0.3] * len(measured)
        axes.plot(measured, below, "o", color=SERIES[0], alpha=0.8, label="a seed")
    _legend_once(axes, loc="lower right")
    axes.set_yticks(range(len(given)), [*given])
    axes.invert_yaxis()
    ticks(axes, x=(40, 50, 60, 80, 100, 150, 200, 250))
    axes.set_xlabel("perplexity on held-out text")
    return Picture(
        "ladder", "The ladder, printed against measured",
        alt="Ten rows on a logarithmic axis of perplexity, from no context to two blocks. "
        f"The largest distance of a mean from what is printed is {_farthest(given, values):.1f} %.",
        header=["row", "printed", "mean", "n", "by seed"],
        rows=[
            [label, str(text), f"{mean([*of.values()]):.2f}" if of else "-", str(len(of)),
             each([*of.values()])]
            for (label, text), of in zip(given.items(), values.values(), strict=True)
        ],
        source=provenance_of_runs(run for found in runs.values() for run in found.values()),
        svg=drawn(figure, "ladder"),
    )  # fmt: skip


def _farthest(given: Mapping[str, object], values: Mapping[str, Mapping[int, float]]) -> float:
    """In percent; from the nearer end where an interval is printed."""
    found = []
    for label, text in given.items():
        if values[label]:
            measured = mean([*values[label].values()])
            low, *rest = (float(number) for number in str(text).split(" to "))
            high = rest[0] if rest else low
            found.append(100 * max(low - measured, measured - high, 0.0) / low)
    return max(found)


def scores(ledger: Ledger, record: Record) -> Picture:
    """Standard deviation of the scores, entropy and saturated rows over training, d_k = 1024."""
    labels = {
        "scaled": "1024, scaled", "unscaled": "1024, unscaled",
        "unscaled, 3e-3": "1024 at 0.003, unscaled", "unscaled, 1e-2": "1024 at 0.01, unscaled",
    }  # fmt: skip
    experiment = BY_WIDTH_AND_RATE["document"]
    runs = {name: record.of(experiment, label) for name, label in labels.items()}
    if not any(runs.values()):
        raise SourceMissing("The record has no runs of the division at d_k = 1024.")
    quantities = {
        "std": "standard deviation", "entropy": "entropy, nats", "saturated": "saturated rows",
    }  # fmt: skip
    figure, panels = canvas(8.4, 3.2, 3)
    table = []
    for i, (name, of) in enumerate(runs.items()):
        for seed, run in of.items():
            recorded = [s for s in run.result.snapshots if s.scores]
            steps = [s.step for s in recorded]
            for axes, quantity in zip(panels, quantities, strict=True):
                values = [getattr(s.scores[0], quantity) for s in recorded]
                # A line where there is something between the ends.
                known = len(steps) > 2
                axes.plot(
                    steps, values, color=SERIES[i], marker=MARKERS[i], label=name,
                    linestyle=LINES[i] if known else "none", markersize=0 if known else 4,
                )  # fmt: skip
            for s in (recorded[0], recorded[-1]):
                head = s.scores[0]
                table.append([name, str(seed), str(s.step), f"{head.std:.4g}",
                              f"{head.entropy:.4f}", f"{head.saturated:.4f}"])  # fmt: skip
    for axes, title in zip(panels, quantities.values(), strict=True):
        axes.set_title(title)
        axes.set_xlabel("step")
    last = max(run.spec.steps for of in runs.values() for run in of.values())
    panels[0].plot([0, last], [21, 5147], **PRINTED)
    ticks(panels[0], y=(1, 10, 100, 1000, 10000))
    _legend_once(panels[0], fontsize=7)
    fewest = min(len(run.result.snapshots) for of in runs.values() for run in of.values())
    between = " Runs whose first and last step alone were kept are points." if fewest <= 2 else ""
    return Picture(
        "scores", "The scores of a head of d_k = 1024 over training",
        alt="Three panels over steps, one line for each seed. Unscaled, the standard deviation of "
        "the scores grows with the learning rate, the entropy falls to nothing and nearly all rows "
        "saturate; scaled, it stays between 1 and 3. Printed are 21 before training and 5147 after "
        f"it.{between}",
        header=["run", "seed", "step", "standard deviation", "entropy", "saturated rows"],
        rows=table, source=provenance_of_runs(r for of in runs.values() for r in of.values()),
        svg=drawn(figure, "scores"),
    )  # fmt: skip


def gradients(ledger: Ledger, record: Record) -> Picture:
    """The gradient of W_o before training, in the first and in the last of twelve blocks."""
    path = table_path("table-l145-gradient-norms")
    table = [row for row in rows(path) if "ratio" not in row["gradient of W_o"]]
    figure, [axes] = canvas(4.8, 3.4)
    for i, norm in enumerate(("pre-norm", "post-norm")):
        own = [row for row in table if row["gradient of W_o"].startswith(norm)]
        blocks = [int(row["gradient of W_o"].rsplit(" ", 1)[1]) for row in own]
        axes.errorbar(
            blocks, [float(row["mean"]) for row in own], [float(row["sd"]) for row in own],
            color=SERIES[i], marker=MARKERS[i], linestyle=LINES[i], capsize=4,
            label=f"{norm}, mean and sd, n = {own[0]['n']}",
        )  # fmt: skip
        axes.plot(blocks, [float(row["printed"]) for row in own], **PRINTED)
    _legend_once(axes)
    axes.set_ylim(bottom=0)
    axes.set_xticks([1, 12])
    axes.set_xlabel("block")
    axes.set_ylabel("norm of the gradient of W_o")
    return Picture(
        "gradients", "Gradients before training, pre-norm and post-norm",
        alt="The norm of W_o's gradient in block 1 and in block 12 of twelve. It grows from the "
        "first to the last in both, and is larger in post-norm. The blocks between are neither "
        "printed nor measured.",
        header=[*table[0]], rows=[[*row.values()] for row in table],
        source=provenance_of_table(path), svg=drawn(figure, "gradients"),
    )  # fmt: skip


def warmup(ledger: Ledger, record: Record) -> Picture:
    """Where twelve blocks end, with and without warmup."""
    given = printed(ledger, "table-l148-warmup")
    runs = {label: record.of(NORM_RUNS["document"], label) for label in given}
    values = {label: [*perplexities(of, HELD_OUT).values()] for label, of in runs.items()}
    if not any(values.values()):
        raise SourceMissing("The record has no runs of twelve blocks.")
    figure, [axes] = canvas(5.6, 2.6)
    for y, (label, text) in enumerate(given.items()):
        axes.plot([float(str(text))], [y], **PRINTED)
        below = [y + 0.25] * len(values[label])
        axes.plot(values[label], below, "o", color=SERIES[0], label="a seed")
    axes.axvline(FREQUENCIES, color=SERIES[4], linestyle=LINES[1], label=OF_FREQUENCIES)
    _legend_once(axes, loc="center")
    axes.set_yticks(range(len(given)), [*given])
    axes.invert_yaxis()
    ticks(axes, x=(30, 40, 60, 100, 200, 300))
    axes.set_xlabel("perplexity on held-out text after 1,000 steps")
    stuck = mean(values["post-norm"]) if values["post-norm"] else math.nan
    return Picture(
        "warmup", "Twelve blocks with and without warmup",
        alt=f"Four rows on a logarithmic axis. Post-norm without warmup ends at {stuck:.1f}, where "
        f"the frequencies of the tokens alone give {FREQUENCIES}; the other three end near 38.",
        header=["run", "printed", "n", "by seed"],
        rows=[
            [label, str(text), str(len(values[label])), each(values[label])]
            for label, text in given.items()
        ],
        source=provenance_of_runs(run for of in runs.values() for run in of.values()),
        svg=drawn(figure, "warmup"),
    )  # fmt: skip


def losses(ledger: Ledger, record: Record) -> Picture:
    """Training losses of twelve blocks by step, with and without warmup."""
    labels = ("pre-norm", "pre-norm, warmup", "post-norm", "post-norm, warmup")
    runs = {label: record.of(NORM_RUNS["document"], label) for label in labels}
    curves = {
        (label, seed): curve for label, of in runs.items() for seed, run in of.items()
        if (curve := [(s.step, s.loss) for s in run.result.snapshots if s.loss is not None])
    }  # fmt: skip
    if not curves:
        raise SourceMissing(
            "The record has where the twelve blocks end, and not their losses by step: it kept no "
            "losses of these runs. Runs that are made from now on keep them."
        )
    figure, [axes] = canvas(6.4, 3.6)
    for (label, _), curve in curves.items():
        i = labels.index(label)
        axes.plot(
            *zip(*curve, strict=True), color=SERIES[i], linestyle=LINES[i], marker=MARKERS[i],
            markersize=3, label=label,
        )  # fmt: skip
    level = math.log(TRAINING_FREQUENCIES)
    axes.axhline(level, color=SERIES[4], linestyle=LINES[4], label=OF_FREQUENCIES)
    _legend_once(axes)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, nats")
    ends = {
        label: [curve[-1][1] for (of, _), curve in curves.items() if of == label]
        for label in dict.fromkeys(label for label, _ in curves)
    }
    said = "; ".join(f"{of} {mean(e):.2f} (n = {len(e)})" for of, e in ends.items())
    return Picture(
        "losses", "Losses of twelve blocks with and without warmup",
        alt="Training loss over steps, each value a mean over the steps before it, one line for "
        f"each seed. The last values: {said}. The frequencies of the training split's tokens "
        f"alone give {level:.2f}.",
        header=["run", "seed", "step", "loss"],
        rows=[
            [label, str(seed), str(step), f"{loss:.3f}"]
            for (label, seed), curve in curves.items() for step, loss in curve
        ],
        source=provenance_of_runs(runs[label][seed] for label, seed in curves),
        svg=drawn(figure, "losses"),
    )  # fmt: skip


def positions(ledger: Ledger, record: Record) -> Picture:
    """Held-out perplexity against the length of the window, for four kinds of positions."""
    experiment = POSITION_RUNS["document"]
    runs = {label: record.of(experiment, label) for label in experiment.runs}
    if not any(runs.values()):
        raise SourceMissing("The record has no runs of the positions.")
    given = printed(ledger, "table-l158-positions")
    figure, [axes] = canvas(5.4, 3.6)
    table = []
    for i, (label, of) in enumerate(runs.items()):
        by_length = [perplexities(of, Evaluation(length)) for length in LENGTHS]
        for seed in of:
            axes.plot(
                LENGTHS, [values[seed] for values in by_length], color=SERIES[i],
                marker=MARKERS[i], linestyle=LINES[i], label=label,
            )  # fmt: skip
        cells = [each([*values.values()]) for values in by_length]
        table.append([label, str(len(of)), *cells])
    for row, value in given.items():
        axes.plot([int(row.split(", ")[1])], [float(str(value))], **PRINTED)
    ticks(axes, x=LENGTHS, y=(40, 60, 80, 100, 150))
    _legend_once(axes)
    axes.set_xlabel("tokens in a window; trained on 64")
    axes.set_ylabel("perplexity on held-out text")
    return Picture(
        "positions", "Perplexity beyond the trained length",
        alt="On logarithmic axes learned positions and sinusoids rise steeply beyond 64 tokens and "
        "rotary ones later; ALiBi falls a little; without positions it rises a little. Printed are "
        "two values of ALiBi.",
        header=["positions", "n", *(f"{length} tokens, by seed" for length in LENGTHS)],
        rows=table, source=provenance_of_runs(r for of in runs.values() for r in of.values()),
        svg=drawn(figure, "positions"),
    )  # fmt: skip


def accuracy(ledger: Ledger, record: Record) -> Picture:
    """Right answers over steps, of one block and of two."""
    path = paths.FIXTURES / "studies" / "winograd" / "accuracy.csv"
    stored = {row["model"]: row for row in rows(path) if row["settings"] == "small"}
    experiment = WINOGRAD_STEPS["document"]
    figure, [axes] = canvas(5.8, 3.5)
    table, used, ends = [], list[Evidence](), {}
    for i, (model, steps) in enumerate(STEPS.items()):
        own = [(n, stored[f"{model}, {n}"]) for n in steps if f"{model}, {n}" in stored]
        at, rightly = [n for n, _ in own], [100 * float(row["right"]) for _, row in own]
        axes.plot(at, rightly, color=SERIES[i], linestyle=LINES[i], label=f"{model}, mean")
        ends[model] = rightly[0], rightly[-1]
        low, high = ([100 * float(row[end]) for _, row in own] for end in ("least", "most"))
        # The two models beside each other, not on top of each other.
        shift = 0.97 if i == 0 else 1.03
        axes.vlines(
            [n * shift for n in at], low, high, color=SERIES[i], linewidth=1,
            label=f"{model}, least to most",
        )  # fmt: skip
        for n, row in own:
            of = record.of(experiment, f"{model}, {n}").values()
            scored = [run for run in of if "shares" in run.measured]
            used += scored
            shares = [100 * float(run.measured["shares"]["right"]) for run in scored]
            axes.plot(
                [n * shift] * len(shares), shares, MARKERS[i], color=SERIES[i], alpha=0.7,
                label=f"{model}, a seed",
            )  # fmt: skip
            table.append([model, str(n), row["seeds"], f"{100 * float(row['right']):.1f}",
                          f"{100 * float(row['least']):.1f}", f"{100 * float(row['most']):.1f}",
                          each(shares, 1)])  # fmt: skip
    axes.axhline(92.7, color=INK, linewidth=0.8, linestyle=LINES[3], label="one block, printed")
    ticks(axes, x=(250, 500, 1000, 4000))
    _legend_once(axes, fontsize=7)
    axes.set_xlabel("steps of 32 sentences, width 64")
    axes.set_ylabel("right answers, %")
    stored_at = path.relative_to(paths.FIXTURES.parent).as_posix()
    return Picture(
        "accuracy", "Right answers of one block and of two over steps",
        alt=f"The mean of one block goes from {ends['one block'][0]:.0f} % after 250 steps to "
        f"{ends['one block'][1]:.0f} % after 4,000, with seeds that lie far apart; that of two "
        f"blocks from {ends['two blocks'][0]:.0f} % to {ends['two blocks'][1]:.0f} % after 1,000. "
        "Printed are 92.7 % for one block. Lines are of the study, from the least seed to the "
        "most; points are seeds of the record, which were trained at another time.",
        header=["model", "steps", "n", "mean, %", "least", "most", "by seed, of the record"],
        rows=table,
        source=f"{stored_at}, ten seeds, with its provenance beside it. "
        f"{provenance_of_runs(used) if used else ''}".strip(),
        svg=drawn(figure, "accuracy"),
    )  # fmt: skip


def _legend_once(axes: Axes, **where: Any) -> None:
    """A legend that names each series once, however many seeds it has."""
    handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    legend(axes, handles=[*handles.values()], labels=[*handles], **where)
