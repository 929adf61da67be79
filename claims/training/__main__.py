"""Look into the run store, and clear it: `python -m claims.training list`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from claims.harness.files import cache_dir
from claims.training.pool import name_of
from claims.training.spec import RunSpec
from claims.training.store import Busy, Listed, listed, remove, remove_stray_locks

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
    options = parser.parse_args(arguments)

    folder = cache_dir() / "runs"
    entries = listed(folder) if folder.is_dir() else []
    if options.command == "list":
        _show(folder, entries)
    else:
        _prune(folder, [entry for entry in entries if _chosen(entry, options)])
    return 0


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
