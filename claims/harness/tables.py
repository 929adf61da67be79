"""`table`: stored expected tables, pytest-regressions with its holes closed.

The bare fixtures accept a vanished column, compare whole-number floats as integers, let NaN equal
NaN and write a missing file, so that the second run is green. Here columns are compared both ways,
floats stay floats, NaN is refused, and nothing is written unless `--regen-all` asks, which then
ends red.

A stored table guards against drift; it is no evidence for a claim, whose verdict comes from
`check`.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pytest_regressions.common import perform_regression_check

from claims.harness import paths
from claims.harness.check import BrokenClaim, Refuted
from claims.harness.files import write_whole
from claims.harness.mark import budget_of
from claims.harness.per_seed import PerSeed, Spread, sources
from claims.harness.provenance import provenance, provenance_path

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Sequence[Any]]


class Table:
    """The `table` fixture of one claim: `table(columns, decimals={...})`."""

    def __init__(self, path: Path, request: pytest.FixtureRequest, seeds: Sequence[int]) -> None:
        self.path = path
        self._request = request
        self._seeds = list(seeds)

    def __call__(
        self,
        columns: Columns,
        decimals: Mapping[str, int],
        seeds: Sequence[int] | None = None,
        source: str = "",
    ) -> None:
        """Compare `columns` with the stored table.

        At the document's budget the table is of the record. Of runs made anew, which differ from
        it in digits, nothing is compared or written.

        Args:
            columns: name -> equally long sequences of text, integers or floats. None in a column of
                floats is an empty cell.
            decimals: for every float column, the decimals that are stored. A value may be one unit
                of the last one off: half a unit is the stored rounding, half is for the rounding
                of other machines' kernels.
            seeds: those behind the values, where they are not the base seed.
            source: where the values are from, where they were not measured in this session.

        Raises:
            BrokenClaim: the table holds NaN, lacks a file or decimals.
            Refuted: a value, a column or a row differs.
        """
        __tracebackhide__ = True
        frame = _frame(columns, decimals)
        item = self._request.node
        if budget_of(item) == "document" and item.get_closest_marker("recorded") is None:
            return
        regenerate = bool(self._request.config.getoption("regen_all"))
        if not regenerate and not self.path.is_file():
            raise BrokenClaim(
                f"no stored table {_shown(self.path)}; write it with --regen-all, read it, "
                "commit it"
            )
        perform_regression_check(
            datadir=self._request.getfixturevalue("tmp_path"),
            original_datadir=self.path.parent,
            request=self._request,
            check_fn=functools.partial(_compare, decimals=decimals),
            dump_fn=functools.partial(_write, frame, decimals),
            extension=".csv",
            fullpath=self.path,
        )
        if regenerate:
            self._write_provenance(self._seeds if seeds is None else list(seeds), source)
            pytest.fail(
                f"wrote {_shown(self.path)}: read it, commit it, run again without --regen-all"
            )

    def over_seeds(
        self, columns: Columns, values: Iterable[PerSeed[float]], decimals: int
    ) -> None:
        """`columns`, and beside them the spread of each row's values over their seeds."""
        __tracebackhide__ = True
        rows = list(values)
        spreads = zip(*(each.spread for each in rows), strict=True)
        self(
            {**columns, **dict(zip(Spread._fields, spreads, strict=True))},
            dict.fromkeys(("mean", "sd"), decimals),
            seeds=sorted({seed for each in rows for seed in each.seeds}),
            source=sources(*rows),
        )

    def _write_provenance(self, seeds: list[int], source: str) -> None:
        facts = provenance(seeds, f"pytest {_test_id(self._request)} --regen-all")
        if source:
            facts["source"] = source
        write_whole(provenance_path(self.path), json.dumps(facts, indent=2) + "\n")


def _frame(columns: Columns, decimals: Mapping[str, int]) -> pd.DataFrame:
    floats = {
        name
        for name, values in columns.items()
        if any(isinstance(value, float) for value in values) or set(values) == {None}
    }
    if floats != set(decimals):
        raise BrokenClaim(
            f"decimals must name the float columns {sorted(floats)}; they name {sorted(decimals)}"
        )
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise BrokenClaim(f"the columns must be equally long and not empty: {lengths}")
    for name in floats:
        if not all(value is None or math.isfinite(value) for value in columns[name]):
            raise BrokenClaim(f"column '{name}' holds NaN or infinity: {list(columns[name])}")
    import pandas as pd  # slow to import, and few claims have tables

    # As objects: pandas would make NaN of an empty cell.
    return pd.DataFrame({name: list(values) for name, values in columns.items()}, dtype=object)


def _write(frame: pd.DataFrame, decimals: Mapping[str, int], path: Path) -> None:
    shown = frame.copy()
    for name, places in decimals.items():
        shown[name] = [_cell(value, places) for value in frame[name]]
    write_whole(path, shown.to_csv(index=False, lineterminator="\n"))


def _cell(value: Any, places: int) -> str:
    return "" if value is None else f"{value:.{places}f}"


def _compare(obtained_file: Path, stored_file: Path, decimals: Mapping[str, int]) -> None:
    import pandas as pd

    __tracebackhide__ = True
    obtained, stored = (
        pd.read_csv(f, dtype=str, keep_default_na=False) for f in (obtained_file, stored_file)
    )
    if list(obtained.columns) != list(stored.columns):
        raise Refuted(f"columns {list(obtained.columns)} against stored {list(stored.columns)}")
    if len(obtained) != len(stored):
        raise Refuted(f"{len(obtained)} rows against {len(stored)} stored in {_shown(stored_file)}")
    faults = []
    for name in obtained.columns:
        for row, (new, old) in enumerate(zip(obtained[name], stored[name], strict=True)):
            if name in decimals and new and old:
                # Both sides are rounded: in units of the last decimal they are whole numbers.
                unit = 10.0 ** -decimals[name]
                try:
                    apart = abs(round(float(new) / unit) - round(float(old) / unit))
                except (ValueError, OverflowError) as error:
                    raise BrokenClaim(
                        f"stored '{name}', row {row}: '{old}' is no finite number"
                    ) from error
                differs = apart > 1
            else:
                differs = new != old
            if differs:
                faults.append(
                    f"{name}, row {row} ({obtained.iloc[row, 0]!s}): "
                    f"{new or 'nothing'} against stored {old or 'nothing'}"
                )
    if faults:
        raise Refuted(f"{_shown(stored_file)} differs:\n" + "\n".join(f"  {f}" for f in faults))


def _shown(path: Path) -> str:
    return str(path.relative_to(paths.ROOT)) if path.is_relative_to(paths.ROOT) else path.name


def _test_id(request: pytest.FixtureRequest) -> str:
    return str(request.node.nodeid)
