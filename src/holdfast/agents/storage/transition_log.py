"""Read the recorded transitions of an agent from the events of its steps, count them, and check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast._fields import Hidden, Local
from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.backends.interface import Row, Scan
from holdfast.backends.tables import EVENTS
from holdfast.engine import validation
from holdfast.engine.row_format import StepRef, open_body
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError

ROLLBACK = "rollback"
"""The trigger of a rollback, in the events of transitions."""

Kind: TypeAlias = Literal["transition", "lifecycle", "recovery"]

_PAGE = 256


class TransitionRecord(msgspec.Struct, frozen=True):
    """A change of an agent, successful or not: a transition, a change of its status, or a recovery."""

    kind: Kind
    trigger: str
    """The trigger; of a recovery, its kind."""
    source: str
    target: str
    outcome: str
    """`ok` or `error`; of a recovery, how it was resolved."""
    time: datetime
    duration: float
    """In seconds."""
    error: str
    data: Hidden[Any]
    actor: str
    correlation: Hidden[str]
    cause: Hidden[str]
    checkpoint: Hidden[str]
    """The id of the step that completed it."""
    begin_step: Local[Hidden[str]]
    """The id of the step that began it; empty if it took a single step."""
    cursor: Local[Hidden[str]]
    """The position of the record, as the `cursor` of what follows it in a listing."""

    @property
    def ok(self) -> bool:
        """Whether the change succeeded."""
        return self.outcome == "ok"


async def read_transitions(
    line: AgentLine,
    *,
    limit: int = 100,
    cursor: str | None = None,
    trigger: str | None = None,
    outcome: str | None = None,
    oldest_first: bool = False,
    kind: Kind = "transition",
) -> list[TransitionRecord]:
    """Return the transitions of an agent, the newest first, or the oldest, after the one with a cursor. Nothing beyond
    the limit is read."""
    await line.allow("read")
    if cursor is None and await line.latest_step() is None:
        raise line.not_found_error()
    records: list[TransitionRecord] = []
    pages = EventPages(line, cursor, oldest_first=oldest_first, size=min(_PAGE, 2 * limit))
    while len(records) < limit and (rows := await pages.next()):
        matches = (row for row in rows if row.columns[1] == kind)
        matches = (row for row in matches if trigger in (None, row.columns[3]) and outcome in (None, row.columns[5]))
        records += [read_row(line, row) for row in islice(matches, limit - len(records))]
    return records


async def read_step_transition(line: AgentLine, point: StepRef) -> TransitionRecord:
    """Return the transition that a step recorded."""
    (rows,) = await line.handle.engine.context.backend.read([Scan(EVENTS, (*line.line, point.id))])
    return next(read_row(line, row) for row in rows if row.columns[1] == "transition")


class EventPages:
    """Reads the rows of an agent's events, a page at a time."""

    def __init__(
        self,
        line: AgentLine,
        cursor: str | None = None,
        *,
        oldest_first: bool = False,
        size: int | None = None,
    ) -> None:
        self._line = line
        self._last = None if cursor is None else parse_cursor(cursor)
        self._oldest_first = oldest_first
        self._size = size or _PAGE
        self._more = True

    async def next(self) -> list[Row]:
        """Return the next page; an empty one after the last."""
        if not self._more:
            return []
        start, stop, size = tuple[Any, ...](), tuple[Any, ...](), self._size
        if self._last is not None and self._oldest_first:
            start = (self._last[0], self._last[1] + 1)
        elif self._last is not None:
            stop = self._last
        prefix = tuple(self._line.line)
        query = Scan(EVENTS, prefix, start=start, stop=stop, reverse=not self._oldest_first, limit=size)
        (rows,) = await self._line.handle.engine.context.backend.read([query])
        self._more, self._size = len(rows) == size, _PAGE
        if rows:
            self._last = event_key(rows[-1])
        return rows


def parse_cursor(cursor: str) -> tuple[str, int]:
    """Return the id of the step and the number of the event that a cursor points to."""
    id, separator, number = validation.cursor_text(cursor).rpartition(" ")
    if not separator:
        raise validation.cursor_error(cursor)
    return id, validation.cursor_number(number)


def event_key(row: Row) -> tuple[str, int]:
    """Return the id of the step and the number of the event of a row."""
    return str(row.key[2]), int(row.key[3])


def read_detail(line: AgentLine, row: Row) -> Mapping[str, Any]:
    """Return the details of the event of a row."""
    if not row.body:
        return {}
    detail: Mapping[str, Any] = line.handle.codec.unpack(open_body(row, line.handle.engine.context.max_bytes))
    return detail


def read_row(line: AgentLine, row: Row) -> TransitionRecord:
    """Build the record of a row."""
    id, number = str(row.key[2]), int(row.key[3])
    time, kind, actor, action, _, outcome, correlation, cause, duration = row.columns
    detail = read_detail(line, row)
    record_kind: Kind = "lifecycle" if kind == "lifecycle" else "recovery" if kind == "recovery" else "transition"
    return TransitionRecord(
        record_kind,
        str(action),
        str(detail.get("from", "")),
        str(detail.get("to", "")),
        str(outcome),
        to_datetime(int(time)),
        int(duration) / 1e9,
        str(detail.get("error", "")),
        detail.get("data"),
        str(actor),
        str(correlation),
        str(cause),
        id,
        str(detail.get("begun", "")),
        f"{id} {number}",
    )


class TransitionKey(msgspec.Struct, frozen=True):
    """The source, the trigger and the target of a transition."""

    source: str
    trigger: str
    target: str


class TransitionCounts(msgspec.Struct, frozen=True):
    """How often an agent took each transition, failed to take it, and entered each state."""

    successes: Counter[TransitionKey]
    failures: Counter[TransitionKey]
    entries: Counter[str]


def count_transitions(changes: Iterable[TransitionRecord]) -> TransitionCounts:
    """Count recorded transitions."""
    total = TransitionCounts(Counter(), Counter(), Counter())
    for each in changes:
        key = TransitionKey(each.source, each.trigger, each.target)
        if each.ok:
            total.successes[key] += 1
            total.entries[each.target] += 1
        else:
            total.failures[key] += 1
    return total


class TransitionCheck(msgspec.Struct, frozen=True):
    """The result of recorded triggers on a machine as it is declared now."""

    path: tuple[str, ...]
    """The states, from the first on."""
    state: str
    """The last state."""
    matches: bool
    """Whether all transitions lead where they were recorded to lead."""
    divergence: TransitionRecord | None = None
    """The first transition that does not."""
    reason: str = ""


def check_transitions(changes: Iterable[TransitionRecord], machine: Machine) -> TransitionCheck:
    """Apply recorded triggers to a machine, and check that they lead to the recorded states. Nothing is called: where
    guards decide between several transitions, any of them matches.

    The check ends with the first transition that leads elsewhere, as it may after the machine was changed. Failed
    transitions are skipped; rollbacks are followed.
    """
    path: list[str] = []
    for each in sorted(changes, key=lambda each: parse_cursor(each.cursor)):
        if not each.ok:
            continue
        path = path or [each.source]
        reason = _difference(each, machine, path[-1])
        if reason:
            return TransitionCheck(tuple(path), path[-1], False, each, reason)
        path.append(each.target)
    path = path or [machine.initial]
    return TransitionCheck(tuple(path), path[-1], True)


def _difference(change: TransitionRecord, machine: Machine, state: str) -> str:
    """Return how a transition differs from its record; empty if it does not."""
    if change.source != state:
        return f"it is recorded from the state {change.source!r}, and the one before led to {state!r}"
    if change.target not in machine.states or state not in machine.states:
        return f"the machine has no state {(state if state not in machine.states else change.target)!r}"
    if change.trigger == ROLLBACK:
        return ""
    try:
        targets = dict.fromkeys(each.target for each in machine.transitions_for(change.trigger, state))
    except InvalidError as error:
        return error.what
    if change.target not in targets:
        return f"{change.trigger!r} leads from {state!r} to {' or '.join(map(repr, targets))}, not {change.target!r}"
    return ""
