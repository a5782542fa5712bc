"""Read the recorded transitions of an agent from the events of its steps, count them, and check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeAlias

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


def mermaid(machine: Machine | None, counts: TransitionCounts | None = None, current: str = "") -> str:
    """Draw a state diagram for Mermaid. Without a machine, it shows the recorded transitions."""
    drawing = _build_drawing(machine, counts, current)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_escape_mermaid(label)}" as {id}' for id, label in drawing.labels()]
    lines += [f"    [*] --> {drawing.id(drawing.initial)}"] if drawing.initial else []
    for edge in drawing.edges:
        label = f": {_escape_mermaid(edge.label)}" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} --> {drawing.id(edge.target)}{label}")
    lines += [f"    {drawing.id(state)} --> [*]" for state in drawing.final]
    if drawing.current:
        lines += ["    classDef current font-weight:bold,stroke-width:3px", f"    class {drawing.current} current"]
    return "\n".join(lines) + "\n"


def dot(machine: Machine | None, counts: TransitionCounts | None = None, current: str = "") -> str:
    """Draw a graph for Graphviz. Without a machine, it shows the recorded transitions."""
    drawing = _build_drawing(machine, counts, current)
    lines = ["digraph machine {", "    rankdir=LR;", "    node [shape=box, style=rounded];"]
    for (id, label), state in zip(drawing.labels(), drawing.states, strict=True):
        style = ", peripheries=2" if state in drawing.final else ""
        style += ", penwidth=3, fontname=bold" if id == drawing.current else ""
        lines.append(f"    {id} [label={_quote_dot(label)}{style}];")
    if drawing.initial:
        lines += ["    begin [shape=point, label=begin];", f"    begin -> {drawing.id(drawing.initial)};"]
    for edge in drawing.edges:
        label = f" [label={_quote_dot(edge.label)}]" if edge.label else ""
        lines.append(f"    {drawing.id(edge.source)} -> {drawing.id(edge.target)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


class _Edge(NamedTuple):
    source: str
    target: str
    label: str


class _Drawing:
    def __init__(
        self, states: list[str], initial: str, final: list[str], edges: list[_Edge], current: str, entered: Counter[str]
    ) -> None:
        self.states = states
        self.initial = initial
        self.final = final
        self.edges = edges
        self._ids = {state: f"s{number}" for number, state in enumerate(states)}
        self._entered = entered
        self.current = self._ids.get(current, "")

    def id(self, state: str) -> str:
        return self._ids[state]

    def labels(self) -> list[tuple[str, str]]:
        """Return the ids of the states in the diagram, with their names and how often they were entered."""
        times = self._entered
        return [(id, f"{name} ({times[name]})" if times.get(name) else name) for name, id in self._ids.items()]


def _build_drawing(machine: Machine | None, counts: TransitionCounts | None, current: str) -> _Drawing:
    recorded = count_transitions(()) if counts is None else counts
    declared = {} if machine is None else dict.fromkeys(_declared_transitions(machine))
    # One that is not declared was refused, and led nowhere.
    recorded_keys = [key for key in (*recorded.successes, *recorded.failures) if key.target]
    names = [state for key in recorded_keys for state in (key.source, key.target)]
    states = [*(() if machine is None else machine.states), *names, *([current] if current else [])]
    declared_keys = {key for key, _ in declared}
    edges: list[_Edge] = []
    for key, via in {**declared, **{(key, ""): None for key in recorded_keys if key not in declared_keys}}:
        label = _edge_label(key, recorded)
        edges += (
            [_Edge(key.source, via, label), _Edge(via, key.target, "")]
            if via
            else [_Edge(key.source, key.target, label)]
        )
    return _Drawing(
        list(dict.fromkeys(states)),
        "" if machine is None else machine.initial,
        [] if machine is None else [state for state in machine.states if state in machine.final],
        list(dict.fromkeys(edges)),
        current,
        recorded.entries,
    )


def _declared_transitions(machine: Machine) -> Iterator[tuple[TransitionKey, str]]:
    for each in machine.expand():
        yield TransitionKey(each.source, each.trigger, each.target), each.via


def _edge_label(key: TransitionKey, recorded: TransitionCounts) -> str:
    times = [f"{recorded.successes[key]}×"] if recorded.successes[key] else []
    times += [f"{recorded.failures[key]} failed"] if recorded.failures[key] else []
    return f"{key.trigger} ({', '.join(times)})" if times else key.trigger


def _escape_mermaid(text: str) -> str:
    """Replace every character that could have a meaning in Mermaid by its number."""
    return "".join(each if each.isalnum() or each in " _-.,()×" else f"#{ord(each)};" for each in text)


def _quote_dot(text: str) -> str:
    """Quote a label for Graphviz, which accepts characters by their numbers, as HTML does."""
    return (
        '"' + "".join(each if each.isprintable() and each not in '&"\\' else f"&#{ord(each)};" for each in text) + '"'
    )
