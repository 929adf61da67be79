"""The store of runs, and what a sweep will cost: `python -m claims.training list`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from rich.console import Console
from rich.table import Table

from claims.harness.files import cache_dir
from claims.harness.implementation import Implementation
from claims.harness.mark import BUDGETS
from claims.training.evidence import EvidenceError
from claims.training.experiment import Budgets, Experiment
from claims.training.planning import plan
from claims.training.pool import Place, cores, name_of
from claims.training.spec import RunSpec
from claims.training.store import Busy, Listed, listed, remove, remove_stray_locks
from claims.training.travel import IMPORTED, bring_in, export

DAY = 86_400.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m claims.training", description="The store of training runs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what the store holds, oldest first")
    prune = commands.add_parser("prune", help="remove entries; a run in progress is left alone")
    which = prune.add_mutually_exclusive_group(required=True)
    which.add_argument("--all", action="store_true", help="every entry")
    which.add_argument("--unfinished", action="store_true", help="checkpoints and damaged entries")
    which.add_argument(
        "--older-than", type=_days, metavar="DAYS", help="last written so many days ago, or more"
    )
    send = commands.add_parser("export", help="write finished runs into files, without weights")
    send.add_argument("folder", type=Path, help="an existing folder; nothing in it is overwritten")
    send.add_argument("--implementation", default="transformer", metavar="PACKAGE")
    send.add_argument("--device", default="cpu", help="that of the runs: cpu (default) or cuda")
    receive = commands.add_parser("import", help="judge later runs of claims by files of export")
    receive.add_argument("folder", type=Path, help="a folder that export has written")
    sweep = commands.add_parser("plan", help="what the runs of all experiments cost; trains none")
    sweep.add_argument("--budget", choices=BUDGETS, required=True)
    sweep.add_argument("--seeds", type=_count, help="of every experiment (default: its own)")
    sweep.add_argument("--workers", type=_count, default=cores(), help="default: the cores here")
    sweep.add_argument("--implementation", default="transformer", metavar="PACKAGE")
    options = parser.parse_args(arguments)

    if options.command == "plan":
        try:
            _plan(options)
        except ValueError as error:
            parser.error(str(error))
        return 0
    folder = cache_dir() / "runs"
    if options.command in ("export", "import"):
        if not options.folder.is_dir():
            parser.error(f"{options.folder} is no folder; give one that exists")
        try:
            return _carry(options, folder)
        except (EvidenceError, ValueError) as error:
            parser.error(str(error))
    entries = listed(folder) if folder.is_dir() else []
    if options.command == "list":
        _show(folder, entries)
    else:
        _prune(folder, [entry for entry in entries if _chosen(entry, options)])
    return 0


def _carry(options: argparse.Namespace, runs: Path) -> int:
    """export or import. Returns 1 where a conflict was told, else 0."""
    if options.command == "export":
        place = Place(runs, options.implementation, options.device)
        merged = export(place.store(), Implementation(place.package), options.folder, None)
        where = options.folder
    else:
        where = cache_dir() / IMPORTED
        merged = bring_in(options.folder, where)
    print(f"{merged.new} runs added to {where}, {merged.known} were there")
    for conflict in merged.conflicts:
        print(f"conflict: {conflict}")
    return 1 if merged.conflicts else 0


def _plan(options: argparse.Namespace) -> None:
    """Print runs, operations and hours, by experiment and together."""
    package = options.implementation
    if "LanguageModel" not in Implementation(package).provided():
        raise ValueError(f"{package} does not provide LanguageModel, so that no run can be made")
    # This room knows no experiment; the command that stands before it asks for all.
    experiments: dict[str, Budgets] = resolve_name("claims.experiments.registry:EXPERIMENTS")
    sweep = {}
    for name, budgets in experiments.items():
        if (found := budgets.get(options.budget)) is not None:
            experiment = Experiment(found.runs, options.seeds or found.seeds)
            sweep[name] = [run for label in experiment.runs for run in experiment.of(label)]
    here = min(options.workers, cores())
    made = plan(sweep, package, options.workers, here)
    table = Table("experiment", "runs", "TFLOP", "hours", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in (*made.rows, made.total):
        hours = row.seconds / 3600
        table.add_row(row.name, f"{row.runs}", f"{row.operations / 1e12:,.1f}", f"{hours:.2f}")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"hours: of one process on this CPU, measured now while {here} were at work; a run that an "
        "experiment above has is not counted again",
        f"on {options.workers} workers like this one: {made.seconds / 3600:.2f} hours",
        "on a GPU: not known, as no training on one is on record",
        sep="\n", soft_wrap=True,
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, not '{text}'")
    return int(text)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not days >= 0.0:
        raise argparse.ArgumentTypeError(f"a number of days, at least 0, not '{text}'")
    return days


def _chosen(entry: Listed, options: argparse.Namespace) -> bool:
    if options.unfinished:
        return not entry.done
    return bool(options.all) or entry.age > options.older_than * DAY


def _show(folder: Path, entries: list[Listed]) -> None:
    table = Table("entry", "state", "run", "steps", "seconds", "finished", "MB", box=None)
    for each in entries:
        run, steps = ("", "") if each.spec is None else _described(each.spec)
        table.add_row(
            each.key[:12], each.state, run, steps, f"{each.seconds:.0f}", each.finished,
            f"{each.size / 1e6:.1f}",
        )
    console = Console(highlight=False)
    if entries:
        console.print(table)
    size = sum(entry.size for entry in entries)
    console.print(f"{len(entries)} entries, {size / 1e6:.1f} MB, in {folder}", soft_wrap=True)


def _described(values: dict[str, Any]) -> tuple[str, str]:
    try:
        spec = RunSpec.from_json(values)
    except (KeyError, TypeError, ValueError):
        return "a run of another version of this project", ""
    return name_of(spec), str(spec.steps)


def _prune(folder: Path, entries: list[Listed]) -> None:
    removed = 0
    for entry in entries:
        try:
            remove(folder, entry.key)
        except Busy:
            print(f"{entry.key[:12]} is being trained, and stays")
        except OSError as error:
            print(f"{entry.key[:12]} cannot be removed ({error.strerror}), and stays")
        else:
            removed += 1
    remove_stray_locks(folder)
    print(f"{removed} entries removed from {folder}")


if __name__ == "__main__":
    raise SystemExit(main())
