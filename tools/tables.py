"""Writes `docs/tables.md`: all kinds of jobs with their settings, points of hooks, rights and exit codes.

`python -m tools.tables`; `tests/docs/test_tables.py` fails while the page says something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.hooks.points import POINTS
from holdfast.interfaces.cli.exit_codes import EXIT_CODES
from holdfast.maintenance.jobs.builtin import JobTypes
from holdfast.security.access.policy import OWNER_RIGHTS, RIGHTS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tables.md"

_INTRODUCTION = """\
# Tables

What the program declares, complete: this page is made by `python -m tools.tables`. The codes of errors and findings \
are in [Troubleshooting](guides/troubleshooting.md), metrics in [Metrics, health and alerts](guides/metrics.md), \
operations with the rights that they need in [Operations](operations.md).
"""


def page() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION, *_jobs(), *_points(), *_rights(), *_codes()])


def _table(title: str, heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield from (f"## {title}", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}")
    for row in rows:
        yield f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |"
    yield ""


def _jobs() -> Iterator[str]:
    types = JobTypes()
    rows = (
        (f"`{each.name}`", each.about, "<br>".join(f"`{key}`: {about}" for key, about in each.settings.items()))
        for each in map(types.get, types.names())
    )
    yield from _table("Kinds of jobs", ("kind", "what it does", "settings"), rows)
    yield "`replay` and `replay-hooks` are added by programs, since they need code; see [jobs](guides/jobs.md)."
    yield ""


def _points() -> Iterator[str]:
    yield from _table(
        "Points of hooks", ("point", "called when"), ((f"`{name}`", about) for name, about in POINTS.items())
    )


def _rights() -> Iterator[str]:
    rows = ((f"`{right}`", "yes" if right in OWNER_RIGHTS else "no") for right in RIGHTS)
    yield from _table("Rights", ("right", "the owner of a thread has it, and may grant it"), rows)


def _codes() -> Iterator[str]:
    rows = ((str(code), meaning) for code, meaning in EXIT_CODES.items())
    yield from _table("Exit codes of commands", ("code", "meaning"), rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
