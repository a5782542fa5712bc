"""Run the benchmarks: print tables, write `build/bench.json` and `build/bench.png`; with `--check`, fail where a bound
does not hold. A run of all of them also writes `docs/figures.md` and `docs/promises.md`; `--promises` measures what the
second one has."""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import platform
import sys
import traceback
from collections.abc import Callable, Sequence

from benchmarks import (
    agents,
    artifacts,
    backup,
    call_costs,
    cases,
    chat_turns,
    cores,
    encryption,
    feature_costs,
    framework_turns,
    history,
    items,
    langgraph_calls,
    langgraph_chat,
    langgraph_long,
    langgraph_plot,
    langgraph_shapes,
    langgraph_tasks,
    large_states,
    migrations,
    promises,
    promises_page,
    prune,
    replay,
    runs,
    schema_checks,
    scripts,
    search,
    sensitive,
    server_chat,
    server_tasks,
    start,
    state,
    state_checks,
    steps,
    store_cases,
    store_counts,
    store_latency,
    streams,
    thread_lists,
    timeline,
)
from benchmarks.figures_page import bound, write_page
from benchmarks.measure import Curve, Figure, Result, Row, Table
from tools.quality import FIGURES

OUTPUT = pathlib.Path("build/bench.json")
PLOT = OUTPUT.with_suffix(".png")

Case = Callable[[], list[Figure] | Result]

CASES: tuple[Case, ...] = (
    *cases.CASES,
    *call_costs.CASES,
    *cores.CASES,
    *store_cases.CASES,
    *langgraph_calls.CASES,
    *langgraph_chat.CASES,
    *langgraph_long.CASES,
    *langgraph_tasks.CASES,
    *langgraph_shapes.CASES,
    *server_chat.CASES,
    *server_tasks.CASES,
    *store_latency.CASES,
    *store_counts.CASES,
    *prune.CASES,
    *history.CASES,
    *search.CASES,
    *thread_lists.CASES,
    *start.CASES,
    *state.CASES,
    *state_checks.CASES,
    *chat_turns.CASES,
    *framework_turns.CASES,
    *items.CASES,
    *artifacts.CASES,
    *agents.CASES,
    *steps.CASES,
    *runs.CASES,
    *streams.CASES,
    *migrations.CASES,
    *schema_checks.CASES,
    *encryption.CASES,
    *feature_costs.CASES,
    *replay.CASES,
    *backup.CASES,
    *promises.CASES,
    *large_states.CASES,
    *scripts.CASES,
    *sensitive.CASES,
    *timeline.CASES,
)


def measure(selected: Sequence[Case], check: bool) -> Result:
    figures: list[Figure] = []
    rows: list[Row] = []
    curves: list[Curve] = []
    tables: list[Table] = []
    for case in selected:
        print(f"… {(case.__doc__ or case.__name__).splitlines()[0]}", file=sys.stderr)
        try:
            result = _result(case)
        except Exception:
            if not check:
                raise
            traceback.print_exc()
            figures.append(Figure(f"{case.__name__} failed", math.nan, "", floor=0))
            continue
        if check and not all(figure.holds for figure in result.figures):
            print("  a bound does not hold; measuring once more, in case the machine was busy", file=sys.stderr)
            result = _result(case)
        figures += result.figures
        rows += result.rows
        curves += result.curves
        tables += result.tables
    return Result(figures, rows, curves, tables)


def _result(case: Case) -> Result:
    result = case()
    return result if isinstance(result, Result) else Result(result)


def verdict(figure: Figure) -> str:
    if figure.missing:
        return "MISSING"
    if not figure.holds:
        return "MISSED"
    if not figure.reached:
        return f"goal {figure.goal:g}"
    return "ok" if bound(figure) else ""


def print_figures(figures: Sequence[Figure]) -> None:
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        value = "" if figure.missing else f"{figure.value:8.2f} {figure.unit}"
        print(f"{figure.name:<{width}}  {value:<18} {bound(figure):<14} {verdict(figure):<9} {figure.note}".rstrip())


def print_rows(rows: Sequence[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"\n{'':<{width}}  {'':<17} {'wall':>10} {'CPU':>10} {'written':>11} {'commits':>9} {'disk':>11}")
    what = ""
    for row in rows:
        written = "" if row.written is None else f"{row.written / 1000:,.1f} KB"
        commits = "" if row.commits is None else f"{row.commits:,.1f}"
        disk = "" if row.disk is None else f"{row.disk / 1e6:,.2f} MB"
        name, what = "" if row.what == what else row.what, row.what
        print(
            f"{name:<{width}}  {row.who:<17} {row.wall:7,.2f} ms {row.cpu:7,.2f} ms"
            f" {written:>11} {commits:>9} {disk:>11}".rstrip()
        )


def print_table(table: Table) -> None:
    print(f"\n{table.title}")
    width = max(len(name) for name, _ in table.rows)
    widths = [
        max(len(each) for each in (column, *(cells[n] for _, cells in table.rows)))
        for n, column in enumerate(table.columns)
    ]
    for name, cells in (("", table.columns), *table.rows):
        print(f"{name:<{width}}  " + "  ".join(f"{cell:>{room}}" for cell, room in zip(cells, widths, strict=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a figure is outside its bound")
    parser.add_argument("--promises", action="store_true", help="only what was promised; writes docs/promises.md")
    parser.add_argument("select", nargs="?", default="", help="only cases with this in their function's name")
    arguments = parser.parse_args()
    among = promises_page.CASES if arguments.promises else CASES
    selected = [case for case in among if arguments.select in case.__name__]
    if not selected:
        parser.error(f"no such case; there are {', '.join(case.__name__ for case in CASES)}")
    load = os.getloadavg()[0]
    result = measure(selected, arguments.check)
    figures, rows, curves, tables = result
    if figures:
        print_figures(figures)
    if rows:
        print_rows(rows)
    for table in tables:
        print_table(table)
    OUTPUT.parent.mkdir(exist_ok=True)
    content = {
        "machine": {"python": platform.python_version(), "machine": platform.machine()},
        "figures": [each._asdict() for each in figures],
        "rows": [each._asdict() for each in rows],
        "curves": [each._asdict() for each in curves],
        "tables": [each._asdict() for each in tables],
    }
    OUTPUT.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written to {OUTPUT}", file=sys.stderr)
    if curves:
        langgraph_plot.draw(curves, PLOT)
        print(f"drawn to {PLOT}", file=sys.stderr)
    if selected == [*CASES]:
        write_page(result, load)
        print(f"written to {FIGURES}", file=sys.stderr)
    if selected in ([*CASES], [*promises_page.CASES]):
        promises_page.write_page(figures, load)
    return int(arguments.check and not all(figure.holds for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
