"""The order of rows by time, in stores that speak SQL: the conditions of its indexes, and those that let a scan use
them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.backends.interface import ColumnHint
from holdfast.backends.tables import REFS, Table

THREAD_STEP = "id <> '' AND substr(line, 1, 1) <> '␞'"
"""The condition of steps that a scan by time has: those of threads that were not pruned. What happened in other lines
is in their events."""

FAILED = "outcome NOT IN ('changed', 'ok', 'skipped')"
"""The condition of events that failed, as their index has it: a bound value would not be recognised."""

RARE = "kind NOT IN ('change', 'hook')"
"""The condition of events of kinds that are rare among many others."""

_STOPPED = ("failed ", "waiting ")
"""The statuses of threads that are few and looked for. That a thread runs or is done changes with every run, and has no
index to be kept."""

ORIGIN = "'\"␞origin\":'"
"""The text in the metadata of a step of a thread that says who saved it and why."""

_SUCCESSES = ("changed", "ok", "skipped")
_FREQUENT = {"change", "hook"}
_OF_STATUS = ColumnHint("kind", ("status",))


def stopped(contains: str) -> str:
    """Return the condition of references that say that a thread waits or failed, as their index has it."""
    either = " OR ".join(contains.format("target", f"'{status}'") for status in _STOPPED)
    return f"kind = 'status' AND ({either})"


def hint_conditions(space: Table, hints: Sequence[ColumnHint], contains: str) -> tuple[list[str], list[str]]:
    """Return the conditions of rows that fit hints, with a question mark for each text to be bound, and these texts.
    `contains` is how the dialect says that a column has a text in it: `instr({}, {})`."""
    conditions, texts = list[str](), list[str]()
    for column, values, excluded, is_part in hints:
        if column not in space.all_columns or not values:
            continue
        texts += values
        if is_part:
            conditions += [contains.format(column, ORIGIN)] if column == "metadata" else []
            conditions += [contains.format(column, "?")] * len(values)
        else:
            places = ", ".join("?" * len(values))
            conditions.append(f"{column} {'NOT IN' if excluded else 'IN'} ({places})")
            # As the indexes have it.
            if column in ("actor", "cause", "correlation") and not excluded and "" not in values:
                conditions.append(f"{column} <> ''")
            if column == "outcome" and (values == _SUCCESSES if excluded else not {*values} & {*_SUCCESSES}):
                conditions.append(FAILED)
        if column == "kind" and not excluded and space is not REFS and not _FREQUENT & {*values}:
            conditions.append(RARE)
        if column == "target" and space is REFS and _OF_STATUS in hints and {*values} <= {*_STOPPED}:
            conditions.append(stopped(contains))
    return conditions, texts
