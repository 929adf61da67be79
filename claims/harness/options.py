"""The harness's options, and every fault of a command line that can be known before a run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from claims.harness import completeness, files, ledger, machine, paths, probe
from claims.harness.contract import GROUPS
from claims.harness.implementation import Implementation
from claims.harness.mark import BUDGETS
from claims.harness.provenance import provenance_path
from claims.harness.seeds import DEFAULT_BASE_SEED, parse_base_seeds
from claims.harness.stash import BASE_SEEDS, FOREIGN, IMPLEMENTATION, LEDGER


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("claims", "claims of the chapter")
    group.addoption(
        "--implementation",
        default="transformer",
        metavar="PACKAGE",
        help="importable package to run the claims against (default: transformer)",
    )
    group.addoption(
        "--only",
        metavar="GROUP[,GROUP]",
        help=f"of another package: only what needs these names alone ({', '.join(GROUPS)})",
    )
    group.addoption(
        "--fill-from-reference",
        action="store_true",
        help="of another package: take names that it lacks from this project's reference",
    )
    group.addoption(
        "--base-seed",
        default=str(DEFAULT_BASE_SEED),
        metavar="N|N..M",
        help=f"seed of every draw (default: {DEFAULT_BASE_SEED}); "
        "with a range, every claim that draws runs once per seed",
    )
    group.addoption(
        "--budget",
        metavar="|".join(BUDGETS),
        help="run trained claims at one budget alone: 'ci' takes minutes on a CPU, 'document' is "
        "the document's own and needs a GPU or hours (default: both, the document's marked gpu)",
    )
    group.addoption(
        "--device",
        metavar="cpu",
        help="with --budget document: train on the CPU, for whoever has the hours",
    )
    group.addoption(
        "--claims-json", metavar="FILE", help="write every claim's verdict and record to FILE"
    )
    group.addoption(
        "--gpu-table",
        metavar="FILE.csv",
        help="with -m gpu: write what the GPU claims measured to a new FILE.csv, "
        "and what it depends on to FILE.provenance.json",
    )


def refuse_bad_options(config: pytest.Config) -> None:
    """Every fault that can be known before anything runs, as one sentence."""
    try:
        config.stash[LEDGER] = ledger.load_ledger(paths.LEDGER)
        config.stash[BASE_SEEDS] = parse_base_seeds(config.getoption("base_seed"))
        _make_importable(config.invocation_params.dir)
        package = config.getoption("implementation")
        config.stash[FOREIGN] = "" if package == paths.REFERENCE else package
        config.stash[IMPLEMENTATION] = implementation = _implementation(config, package)
        if config.stash[FOREIGN]:
            implementation.unfit = probe.findings(implementation)
            implementation.weightless = probe.without_weights(implementation)
        if (target := config.getoption("claims_json")) is not None:
            files.demand_writable("--claims-json", target)
        if (target := config.getoption("gpu_table")) is not None:
            _demand_new_gpu_table(target, asked=asks_for_gpu(config))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    _refuse_bad_budget(config)
    _refuse_regeneration_in_ci(config)
    unknown = completeness.unknown_tables(config.stash[LEDGER], paths.EXPECTED)
    if unknown:
        raise pytest.UsageError("\n".join(unknown))
    # -m gpu asks for the GPU; a green run of skips would say that it answered.
    if asks_for_gpu(config) and (fault := machine.gpu_fault()):
        raise pytest.UsageError(f"-m '{config.option.markexpr}' needs a CUDA GPU: {fault}")
    # pytest-benchmark would switch itself off and leave a run that is green and timed nothing.
    asked = [o for o in ("enable", "only") if config.getoption(f"benchmark_{o}", False)]
    if asked and config.getoption("dist", "no") != "no":
        raise pytest.UsageError(
            f"--benchmark-{asked[0]} with xdist: workers that share the machine would time each "
            "other; run benchmarks without -n"
        )


def _implementation(config: pytest.Config, package: str) -> Implementation:
    """The package under test. Raises ValueError for a fault of it, or of --only."""
    only, fill = config.getoption("only"), config.getoption("fill_from_reference")
    groups = GROUPS if only is None else tuple(each.strip() for each in only.split(","))
    for group in groups:
        if group not in GROUPS:
            raise ValueError(f"--only takes {', '.join(GROUPS)}, not '{group}'")
    if not config.stash[FOREIGN] and (only or fill):
        raise ValueError("--only and --fill-from-reference belong to --implementation my_package")
    return Implementation(package, groups, paths.REFERENCE if fill else "")


def _make_importable(folder: Path) -> None:
    """The current folder, as with `python -m pytest`: somebody's own package lies there."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def asks_for_gpu(config: pytest.Config) -> bool:
    wanted = re.sub(r"\bnot\s*(\([^)]*\)|\w+)", "", config.getoption("markexpr", ""))
    return re.search(r"\bgpu\b", wanted) is not None


def _refuse_bad_budget(config: pytest.Config) -> None:
    budget, device = config.getoption("budget"), config.getoption("device")
    if budget not in (None, *BUDGETS):
        raise pytest.UsageError(f"--budget takes {' or '.join(BUDGETS)}, not '{budget}'")
    if device not in (None, "cpu"):
        raise pytest.UsageError(f"--device takes cpu, not '{device}'; without it a GPU is used")
    if device == "cpu" and budget != "document":
        raise pytest.UsageError("--device cpu belongs to --budget document; all else runs there")
    here = device is None and config.getoption("executor", None) is None
    if budget == "document" and here and (fault := machine.gpu_fault()):
        raise pytest.UsageError(
            f"--budget document needs a CUDA GPU: {fault}. Add --device cpu to train on this "
            "CPU, for hours"
        )


def _demand_new_gpu_table(target: str, *, asked: bool) -> None:
    """Refuse, before anything runs, what could not be written or would be overwritten.

    Args:
        asked: whether -m asks for the GPU claims.

    Raises:
        ValueError: with what is allowed.
    """
    table = Path(target)
    if table.suffix != ".csv":
        raise ValueError(f"--gpu-table {target}: give a file that ends in .csv")
    files.demand_writable("--gpu-table", target)
    for path in (table, provenance_path(table)):
        if path.exists():
            raise ValueError(
                f"--gpu-table {target}: {path} exists, and no run replaces what another measured; "
                "give a new file, or remove the old one"
            )
    if not asked:
        raise ValueError(f"--gpu-table {target}: it holds what a GPU measured; add -m gpu")


def _refuse_regeneration_in_ci(config: pytest.Config) -> None:
    """CI compares with what was committed; it never writes."""
    asked = config.getoption("regen_all") or config.getoption("force_regen")
    if asked and os.environ.get("CI"):
        raise pytest.UsageError(
            "CI is set: stored tables are not rewritten (--regen-all, --force-regen)"
        )
    if config.getoption("force_regen"):
        raise pytest.UsageError(
            "--force-regen rewrites only the tables that differ; use --regen-all, with -k to choose"
        )


def asks_for_everything(config: pytest.Config) -> bool:
    option = config.getoption
    narrowed = (
        option("keyword", "")
        or option("markexpr", "") not in ("", "not gpu")
        or option("budget", None) == "document"
        or option("shard", None)
        or option("collectonly", False)
        or option("deselect", None)
        or option("lf", False)
        or option("ignore", None)
        or option("ignore_glob", None)
        or option("maxfail", 0)
        or option("stepwise", False)
    )
    given = [
        (config.invocation_params.dir / arg.partition("::")[0]).resolve() for arg in config.args
    ]
    whole = any(path == paths.CLAIMS or path in paths.CLAIMS.parents for path in given)
    return whole and not narrowed


def command(config: pytest.Config) -> str:
    """The command line of this run, to run it again."""
    return " ".join(
        ["pytest", *(f"'{a}'" if " " in a else a for a in config.invocation_params.args)]
    )
