"""The page of measured figures: a whole run of the benchmarks writes `docs/figures.md`."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from benchmarks.measure import Figure, Result, Row, Table
from tools.quality import FIGURES, commit

_PAGE = """\
# Measured figures

`make bench` wrote this page: all that one run of the [benchmarks](guides/benchmarks.md) measured, on {date}, commit \
{commit}, with {cores} processors ({machine}), Python {python}, beside {load} other runnable processes on average. \
Candidates of a ratio took turns in this run; compare ratios, not times. A bound is what must not get worse; a goal is \
what is wanted.

| what | measured | bound | goal | |
|---|---|---|---|---|
{figures}

## Time, processor time and bytes of a call

| | | wall | CPU | written | commits | on disk |
|---|---|---|---|---|---|---|
{rows}
{tables}"""


def write_page(result: Result, load: float) -> None:
    """Write what a run has measured, and how many processes were runnable when it began."""
    page = _PAGE.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        cores=os.cpu_count(),
        machine=f"{platform.system()}, {platform.machine()}",
        python=platform.python_version(),
        load=f"{load:.0f}",
        figures="\n".join(map(_figure, result.figures)),
        rows="\n".join(map(_row, result.rows)),
        tables="".join(map(_table, result.tables)),
    )
    FIGURES.write_text(page, encoding="utf-8")


def bound(figure: Figure) -> str:
    """Say what a figure must not cross."""
    if figure.floor is not None:
        return f"at least {figure.floor:g}"
    return "" if figure.ceiling is None else f"at most {figure.ceiling:g}"


def _figure(figure: Figure) -> str:
    value = "not measured" if figure.missing else f"{figure.value:,.2f} {figure.unit}"
    if not figure.holds:
        value = f"**{value}**"
    goal = "" if figure.goal is None else f"{figure.goal:g}"
    return _cells(figure.name, value, bound(figure), goal, figure.note)


def _row(row: Row) -> str:
    return _cells(
        row.what,
        row.who,
        f"{row.wall:,.2f} ms",
        f"{row.cpu:,.2f} ms",
        "" if row.written is None else f"{row.written / 1000:,.1f} KB",
        "" if row.commits is None else f"{row.commits:,.1f}",
        "" if row.disk is None else f"{row.disk / 1e6:,.2f} MB",
    )


def _table(table: Table) -> str:
    lines = [_cells("", *table.columns), _cells(*["---"] * (len(table.columns) + 1))]
    lines += [_cells(name, *cells) for name, cells in table.rows]
    return f"\n## {table.title[:1].upper()}{table.title[1:]}\n\n" + "\n".join(lines) + "\n"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"
