"""The page of promised figures: `python -m benchmarks.run --promises`, or a whole run, writes `docs/promises.md`."""

from __future__ import annotations

import ast
import os
import platform
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from benchmarks import backup, cases, promises, schema_checks, scripts, state, state_checks, store_latency
from benchmarks.measure import Figure
from tools.quality import PAGE as QUALITY
from tools.quality import ROOT, commit

_PAGE = ROOT / "docs" / "promises.md"

CASES = (
    *promises.CASES,
    state.state_set_and_get,
    state_checks.isolation_check,
    cases.typical_agent,
    schema_checks.schema_checks,
    scripts.script_calls,
    backup.backup,
    store_latency.latency_on_every_store,
)
"""The cases that measure them."""


class Promise(NamedTuple):
    """What users were promised, and the figures that say whether it holds."""

    text: str
    figures: str
    """A pattern of their names; the worst counts."""
    limit: float
    unit: str
    scale: float = 1
    """What a figure is multiplied by to have the unit."""


PROMISES = (
    Promise("a cached read", r"state: cached get$", 1, "ms", 1e-3),
    *(
        Promise(f"a durable write, on {name}", rf"{kind}: p50 of an append$", 10, "ms")
        for kind, name in (
            ("sqlite", "SQLite"),
            ("file", "files"),
            ("postgresql", "PostgreSQL"),
            ("mongodb", "MongoDB"),
            ("redis", "Valkey"),
            ("s3", "S3"),
        )
    ),
    Promise("handling of a key", r"promise: handling of a key$", 100, "µs"),
    Promise("hooks, of an agent's run", r"promise: hooks, more", 2, "%"),
    Promise("an isolation check", r"isolation check: ", 1, "ms", 1e-3),
    Promise("a schema check", r"attach of a schema again$", 1, "ms", 1e-3),
    Promise("a call of a script", r"scripts: what \w+ adds", 5, "ms"),
    Promise("to serialize a typical agent", r"serialize a typical agent$", 100, "ms"),
    Promise("all persistence, of an agent's run, on SQLite", r"promise: all persistence, more", 5, "%"),
    Promise("all persistence, of an agent's run, on PostgreSQL", r"promise: all persistence on PostgreSQL", 5, "%"),
    Promise("a backup, of the JSON of all states", r"backup, size of the JSON", 30, "%", 100),
    Promise("memory of a save or a read, of the state", r"promise: memory while", 4, "×"),
)

_TEXT = """\
# The promised figures

`python -m benchmarks.run --promises` measures these figures and writes this page, and so does a whole run of the \
[benchmarks](guides/benchmarks.md): on {date}, commit {commit}, with {cores} processors ({machine}), Python {python}, \
beside {load} other runnable processes on average. What misses its promise is bold. Times are medians; beside others \
they are longer, and those of stores include the flush of the disk.

| | promised | measured | |
|---|---|---|---|
{rows}

That no data is lost or corrupted is no figure: [what holds it](maintaining.md#what-must-not-break) are the tests.
"""


def write_page(figures: Sequence[Figure], load: float) -> None:
    """Write what a run has measured, and how many processes were runnable when it began."""
    rows = [*(_row(each, figures) for each in PROMISES), *_quality_rows()]
    text = _TEXT.format(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        commit=commit(),
        cores=os.cpu_count(),
        machine=f"{platform.system()}, {platform.machine()}",
        python=platform.python_version(),
        load=f"{load:.0f}",
        rows="\n".join(rows),
    )
    _PAGE.write_text(text, encoding="utf-8")


def _row(promise: Promise, figures: Iterable[Figure]) -> str:
    found = [each for each in figures if re.match(promise.figures, each.name)]
    measured = [each for each in found if not each.missing]
    if not measured:
        note = found[0].note if found else ""
        return f"| {promise.text} | under {promise.limit:g} {promise.unit} | not measured | {note} |"
    worst = max(measured, key=lambda each: each.value)
    value = worst.value * promise.scale
    shown = f"{value:.2g}" if abs(value) < 1 else f"{value:,.1f}"
    promised, unit = f"under {promise.limit:g} {promise.unit}", promise.unit
    return _cells(promise.text, promised, f"{shown} {unit}", value < promise.limit, worst.note)


def _cells(text: str, promised: str, measured: str, holds: bool, note: str = "") -> str:
    return f"| {text} | {promised} | {measured if holds else f'**{measured}**'} | {note} |"


def _quality_rows() -> list[str]:
    """Coverage, as the last night measured it; and documentation, counted now."""
    page = QUALITY.read_text(encoding="utf-8") if QUALITY.exists() else ""
    covered = re.search(r"([\d.]+) % of lines and branches covered", page)
    documented, public = documentation()
    share = 100 * documented / public
    return [
        _cells("coverage by tests", "over 95 %", f"{covered[1]} %", float(covered[1]) > 95)
        if covered
        else "| coverage by tests | over 95 % | not measured | `make nightly` measures it |",
        _cells("documentation coverage", "over 95 %", f"{share:.1f} %", share > 95, f"of {public:,} public names"),
        "| known vulnerabilities | none | `make audit` fails if there is one | in CI, and before a release |",
    ]


def documentation() -> tuple[int, int]:
    """How many public modules, classes and functions of the source have a docstring, and how many there are."""
    documented = public = 0
    for path in (ROOT / "src").rglob("*.py"):
        waiting: list[ast.Module | ast.ClassDef] = [ast.parse(path.read_text(encoding="utf-8"))]
        found: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [*waiting]
        while waiting:
            for node in waiting.pop().body:
                if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if node.name[0] != "_" and not any(ast.unparse(each) == "overload" for each in node.decorator_list):
                    found.append(node)
                    if isinstance(node, ast.ClassDef):
                        waiting.append(node)
        documented += sum(ast.get_docstring(node) is not None for node in found)
        public += len(found)
    return documented, public
