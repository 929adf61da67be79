"""The Winograd sections over ten seeds: `python -m claims.studies.attention_maps FOLDER`.

Trains what the run store lacks, about an hour on one core, and writes into FOLDER

accuracy.csv        what one block and two answer right: steps, width, heads, network, positions
circuits.csv        each model of two blocks: what its answers hang on
cuts.csv            each edge cut: the accuracy that is left and the logit difference that it costs
adjectives.csv      block 2's row for each of the eight adjectives
induction.csv       losses and heads' scores while an induction head forms
maps.npz, maps.svg  the attention of the two printed sentences, by seed, block and head
provenance.json     of all of them

`python -m claims.studies.docs` shows the tables in docs/winograd.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from claims.experiments.induction import FORMING
from claims.experiments.winograd import WINOGRAD
from claims.experiments.winograd_map import WINOGRAD_STEPS, WINOGRAD_VARIANTS
from claims.harness import paths
from claims.harness.files import cache_dir, write_whole
from claims.harness.implementation import Implementation
from claims.harness.ledger import load_ledger
from claims.harness.provenance import provenance
from claims.instruments.languages.answers import mean_row, rows, shares
from claims.instruments.languages.circuits import BROKEN, Cut, circuit, cut
from claims.instruments.languages.repeated_rows import (
    induction_scores,
    losses,
    previous_token_scores,
    repeated,
)
from claims.instruments.languages.schemas import (
    ADJECTIVE,
    CROSSED,
    CROSSER,
    FIRST,
    SCORED,
    SECOND,
    Sentence,
)
from claims.studies.heat_map import heat_maps
from claims.training.batches import held_out
from claims.training.pool import Failure, Place, cores, do_all, merged
from claims.training.progress_bar import shown
from claims.training.run import trained_model
from claims.training.spec import Repeats, RunSpec

SOLVED = 0.99
PRINTED = (Sentence("animal", "street", "tired"), Sentence("animal", "street", "wet"))
EDGES = {"first noun": FIRST, "second noun": SECOND, "adjective": ADJECTIVE}
# Settings -> the experiment and the label of their models of two blocks.
TWO_BLOCKS = {
    "full": (WINOGRAD["document"], "two blocks"),
    "small": (WINOGRAD_STEPS["document"], "two blocks, 500"),
}
ACCURACIES = {
    "full": WINOGRAD["document"],
    "small": WINOGRAD_STEPS["document"],
    "small, changed": WINOGRAD_VARIANTS["document"],
}
Row = dict[str, Any]
Models = Callable[[RunSpec], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m claims.studies.attention_maps")
    parser.add_argument("folder", type=Path, help="where to write")
    parser.add_argument("--implementation", default="transformer", metavar="PACKAGE")
    options = parser.parse_args(arguments)
    folder: Path = options.folder
    if not folder.is_dir():
        parser.error(f"{folder} is no folder; give one that exists")
    torch.set_num_threads(1)

    place = Place(cache_dir() / "runs", options.implementation)
    _train(place)
    models = partial(trained_model, Implementation(place.package), store=place.store())
    load = cache(lambda spec: models(spec))
    # All of it is computed before any of it is written.
    tables = {name: _shown(measure(load)) for name, measure in TABLES.items()}
    arrays, drawn = _maps(load)
    for name, table in tables.items():
        write_whole(folder / f"{name}.csv", _csv(table))
    write_whole(folder / "maps.svg", drawn)
    part = folder / "maps.npz.part"
    with part.open("wb") as file:
        np.savez_compressed(file, full=arrays["full"], small=arrays["small"])
    part.replace(folder / "maps.npz")
    facts = provenance(list(range(10)), "python -m claims.studies.attention_maps FOLDER")
    write_whole(folder / "provenance.json", json.dumps(facts, indent=2) + "\n")
    return 0


def _train(place: Place) -> None:
    experiments = [*ACCURACIES.values(), FORMING["document"]]
    wanted = merged(
        spec for each in experiments for label in each.runs for spec in each.of(label)
    )
    store = place.store()
    missing = [spec for spec in wanted if store.result(spec) is None]
    if not missing:
        return
    workers = min(cores(), len(missing))
    with shown(missing, len(wanted) - len(missing), []) as report:
        done = do_all(missing, place, None, workers, report)
    failed = [each.sentence for each in done.outcomes.values() if isinstance(each, Failure)]
    if failed or done.faults:
        raise SystemExit("\n".join([*failed, *done.faults]))


# ---- tables --------------------------------------------------------------------------------------


def _accuracy(models: Models) -> Iterable[Row]:
    for settings, experiment in ACCURACIES.items():
        for label, spec in experiment.runs.items():
            found = [shares(models(s), *held_out(s)) for s in experiment.of(label)]
            right = [s.right for s in found]
            yield {
                "settings": settings, "model": label, "steps": spec.steps, "seeds": len(right),
                **_spread("right", right), "least": min(right), "most": max(right),
                "solved": sum(r >= SOLVED for r in right),
                "wrong noun": statistics.mean(s.wrong_noun for s in found),
                "neither": statistics.mean(s.neither for s in found),
            }


def _circuits(models: Models) -> Iterable[Row]:
    for settings, seed, model, spec in _two_blocks(models):
        found = circuit(model, *held_out(spec))
        yield {
            "settings": settings, "seed": seed, **asdict(found),
            "adjective read by": found.adjective_read_by, "two hops": int(found.two_hops),
        }


def _cuts(models: Models) -> Iterable[Row]:
    for settings, (experiment, label) in TWO_BLOCKS.items():
        specs = experiment.of(label)
        for block in (0, 1):
            for name, key in EDGES.items():
                row: Row = {"settings": settings, "block": block + 1, "cut": name}
                for role, adjectives in (("crosser", CROSSER), ("crossed", CROSSED)):
                    left, cost = zip(
                        *(_one_cut(models(s), s, Cut(block, (key,)), adjectives) for s in specs),
                        strict=True,
                    )
                    row |= _spread(f"{role} accuracy left", left)
                    row |= _spread(f"{role} logit cost", cost)
                    row[f"{role} broken"] = sum(value < BROKEN for value in left)
                yield row


def _one_cut(
    model: Any, spec: RunSpec, edge: Cut, adjectives: Sequence[str]
) -> tuple[float, float]:
    """Accuracy over the pair without the edge; the mean margin with it minus that without, nats."""
    language, sentences = held_out(spec)
    some = [s for s in sentences if s.adjective in adjectives]
    without = cut(model, language, some, edge)
    return without.over_pair, shares(model, language, some).margin - without.margin


def _adjectives(models: Models) -> Iterable[Row]:
    for settings, seed, model, spec in _two_blocks(models):
        language, sentences = held_out(spec)
        for adjective in CROSSER + CROSSED:
            some = [s for s in sentences if s.adjective == adjective]
            row = rows(model, language, some, 1).mean((0, 1)).tolist()
            on = {name: row[key] for name, key in EDGES.items()}
            rest = 1 - sum(on.values())
            yield {"settings": settings, "seed": seed, "of": adjective, **on, "rest": rest}


def _induction(models: Models) -> Iterable[Row]:
    experiment = FORMING["document"]
    for label, run in experiment.runs.items():
        trained = [models(s) for s in experiment.of(label)]
        assert isinstance(run.data, Repeats)
        d = run.data
        generator = torch.Generator().manual_seed(0)
        data = repeated(d.vocabulary, d.length, d.shortest, d.longest, 256, generator)
        found = [losses(m, data) for m in trained]
        row: Row = {"steps": run.steps, "seeds": len(trained)}
        row |= _spread("loss, new", [x.new for x in found])
        row |= _spread("loss, repeated", [x.repeated for x in found])
        for name, score in (
            ("previous token", previous_token_scores), ("induction", induction_scores)
        ):
            for block in (0, 1):
                best = [float(score(m, data, block).max()) for m in trained]
                row |= _spread(f"{name}, block {block + 1}", best)
        yield row


TABLES: Mapping[str, Callable[[Models], Iterable[Row]]] = {
    "accuracy": _accuracy,
    "circuits": _circuits,
    "cuts": _cuts,
    "adjectives": _adjectives,
    "induction": _induction,
}


# ---- maps ----------------------------------------------------------------------------------------


def _maps(models: Models) -> tuple[dict[str, np.ndarray[Any, Any]], str]:
    """The arrays by settings, and the picture."""
    words = PRINTED[0].words[: SCORED + 1]
    printed = load_ledger(paths.LEDGER)["map-rows-sum-to-one"].expected["rows"]
    panels = {
        "the document": {name.removeprefix("blk "): printed[name] for name in sorted(printed)}
    }
    arrays: dict[str, list[np.ndarray[Any, Any]]] = {settings: [] for settings in TWO_BLOCKS}
    for settings, seed, model, spec in _two_blocks(models):
        language = held_out(spec)[0]
        arrays[settings].append(_of_printed(model, spec))
        panels[f"{settings}, seed {seed}"] = {
            f"{block + 1} {sentence.adjective}": mean_row(model, language, sentence, block).tolist()
            for block in (0, 1)
            for sentence in PRINTED
        }
    words[ADJECTIVE] = "(adjective)"
    stacked = {settings: np.stack(each) for settings, each in arrays.items()}
    return stacked, heat_maps(panels, words, columns=4)


def _of_printed(model: Any, spec: RunSpec) -> np.ndarray[Any, Any]:
    """(2, 2, h, 15): printed sentence, block, head, token."""
    language = held_out(spec)[0]
    by_block = [rows(model, language, PRINTED, block) for block in (0, 1)]
    return torch.stack(by_block, dim=1).numpy()


# ---- shared --------------------------------------------------------------------------------------


def _two_blocks(models: Models) -> Iterable[tuple[str, int, Any, RunSpec]]:
    """(settings, seed, model, specification) of every model of two blocks."""
    for settings, (experiment, label) in TWO_BLOCKS.items():
        for spec in experiment.of(label):
            yield settings, spec.seed, models(spec), spec


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: statistics.mean(values), f"{name}, sd": statistics.stdev(values)}


def _shown(table: Iterable[Row]) -> list[dict[str, str]]:
    """Numbers with three decimals."""
    return [
        {key: f"{v:.3f}" if isinstance(v, float) else str(v) for key, v in row.items()}
        for row in table
    ]


def _csv(rows: Sequence[Mapping[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
