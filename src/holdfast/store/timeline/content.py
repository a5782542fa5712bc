"""The content of events: what a checkpoint changed, and the details of the others.

Queries of the timeline, in the language of searches, with fields of its own.

::

    refund, ref*, "exact phrase"     a text that a checkpoint added, or that is in an event
    a b, a OR b, -a, (a b)           both; one of them; not this one (or NOT a)
    kind:hook, action:set, outcome:error, actor:agent:writer, key:plan/*
    thread:support-*, scope:agent:*, agent:writer, hook:audit-log
    correlation:req-1, cause:1f0c…, id:1f0c, trace:4bf9…
    time>2h, before:monday, after:2026-11-01, duration>100   in milliseconds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from msgspec.json import encode

from holdfast.agents.steps.records import RecordedStep
from holdfast.backends.interface import ColumnHint, Get, Row, Scan
from holdfast.backends.tables import EVENTS, STEPS, Table
from holdfast.codec.envelope import DAMAGED
from holdfast.codec.value_text import shorten
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN
from holdfast.engine.ids import time_of
from holdfast.engine.model.operations import EditMap
from holdfast.engine.model.packed_state import pack_name, unpack
from holdfast.engine.model.scopes import THREAD, Scope, parse_place
from holdfast.engine.model.steps import Step
from holdfast.engine.row_format import ORIGIN, Line, StepRef, open_body, open_step
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import read_at
from holdfast.engine.text_index.tokenize import fold
from holdfast.errors import CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.query import NUMBER, TEXT, TIME, And, Field, MatchAll, Not, Or, Query, TextTerm, walk
from holdfast.history.step_summary import has_failed_tool, last_message, nodes_of, summarize
from holdfast.security.audit.retain import STEP as RETAINED
from holdfast.store.timeline.event import CHECKPOINT, STEP, SUCCESSES, EventFields, TimelineEvent, span_of
from holdfast.store.timeline.rows import SKEW, TimedRow, TimeInterval

_MAX_SUMMARY = 200

_ERRORS = ("error", "reason", "damaged")
"""The details that say what went wrong."""


class TimelineContent(NamedTuple):
    """An event, and what a query is evaluated on."""

    event: TimelineEvent
    subject: EventSubject


class _ReadStep(NamedTuple):
    """A step that was read."""

    point: StepRef
    step: Step


class ContentReader:
    """Reads the content of rows of the timeline."""

    def __init__(self, engine: Engine, *, texts: bool) -> None:
        self._engine = engine
        self._texts = texts
        """Whether texts are to be searched."""

    async def read(self, rows: Sequence[TimedRow]) -> list[TimelineContent | None]:
        """Return the events of rows; None for those that are gone meanwhile."""
        queries = [Get(table, [each.row.key for each in rows if each.table is table]) for table in (STEPS, EVENTS)]
        found = await read_despite_damage(self._engine.context.backend, queries)
        bodies = {
            (table.name, row.key): row for table, rows in zip((STEPS, EVENTS), found, strict=True) for row in rows
        }
        steps = await self._read_steps([each for each in rows if each.table is EVENTS])
        contents: list[TimelineContent | None] = []
        for each in rows:
            row = bodies.get((each.table.name, each.row.key))
            if row is None:
                contents.append(None)
            elif each.table is STEPS:
                contents.append(await self._checkpoint(each, row))
            else:
                contents.append(await self._event(each, row, steps.get((each.line, str(row.key[2])))))
        return contents

    async def _read_steps(self, rows: Sequence[TimedRow]) -> dict[tuple[Line, str], _ReadStep]:
        """Return the steps of changes of keys, by line and id: they have the values."""
        names = {(each.line, str(each.row.key[2])) for each in rows if _is_change(each)}
        scans = [Scan(STEPS, (*line, id), limit=1, by="id") for line, id in names]
        found: dict[tuple[Line, str], _ReadStep] = {}
        for (line, id), some in zip(
            names, await read_despite_damage(self._engine.context.backend, scans) if scans else [], strict=True
        ):
            with suppress(HoldfastError):  # it is pruned or damaged: the event says the rest
                if some and some[0].body and not StepRef.of(some[0]).pruned:
                    step = open_step(line, some[0], self._engine.context.max_bytes)
                    found[line, id] = _ReadStep(StepRef.of(some[0]), step)
        return found

    async def _checkpoint(self, each: TimedRow, row: Row) -> TimelineContent | None:
        fields, texts = EventFields.of(each), list[str]()
        if row.body == DAMAGED:
            return self._content(fields, "damaged", {"damaged": "the checkpoint cannot be read"}, texts)
        point = StepRef.of(row)
        if point.pruned or point.id != fields.id:
            return None
        try:
            step = open_step(each.line, row, self._engine.context.max_bytes)
            if self._texts:
                brought = await self._engine.indexer.brought(each.line, point, step, pruned=True)
                texts = [self._redact(text.text) for text in brought]
        except NotFoundError:
            return None
        except CorruptError as error:
            return self._content(fields, "damaged", {"damaged": error.what}, texts)
        changed = [self._redact(each) for each in summarize(step)]
        summary = " · ".join(filter(None, (", ".join(changed), self._redact(last_message(step)))))
        detail: dict[str, Any] = {"changed": changed, "step": point.depth, "branch": point.branch}
        if nodes := nodes_of(step):
            detail["nodes"] = nodes
        if has_failed_tool(step):
            detail["failed_tool"] = True
        return self._content(fields, summary, detail, texts)

    async def _event(self, each: TimedRow, row: Row, step: _ReadStep | None) -> TimelineContent:
        fields, detail = EventFields.of(each), dict[str, Any]()
        context, protection = self._engine.context, self._engine.protection
        try:
            if row.body == DAMAGED:
                detail = {"damaged": "the record cannot be read"}
            elif row.body:
                packed = open_body(row, context.max_bytes)
                detail = context.codec.unpack(packed if protection is None else protection.redact(packed))
        except HoldfastError as error:
            detail = {"damaged": error.what}
        if RETAINED in detail:  # its line was removed since
            fields = fields._replace(id=str(detail.pop(RETAINED)))
        summary = _summary(detail)
        if step is not None and not summary:
            summary = await self._changed(each.line, step, fields)
        summary = self._redact(summary)
        texts = [*fields[1:7], summary, *_texts(detail)] if self._texts else []
        return self._content(fields, summary, detail, texts)

    async def _changed(self, line: Line, read: _ReadStep, fields: EventFields) -> str:
        """Return how a step changed a key, in short; of a durable step, how far it was."""
        name, (point, step) = pack_name(fields.key), read
        if fields.kind == STEP:
            with suppress(HoldfastError):
                value = await read_at(self._engine, line, point, partial(self._find, line, name))
                recorded = RecordedStep.of(fields.key, value)
                return ": ".join(filter(None, (recorded.step.state, recorded.error)))
            return ""
        put = tuple(each for each in step.edit.put if each[0] == name)
        parts = summarize(Step(step.header, EditMap((), put)))
        return ", ".join(part.removeprefix(fields.key).strip().removeprefix("=") for part in parts)

    async def _find(self, line: Line, name: bytes, _: StepRef | None, loaded: LoadedState | None) -> Any:
        entry = None if loaded is None else await self._engine.entries.find(line, loaded, name)
        return None if entry is None else unpack(self._engine.context.codec, entry.value)

    def _redact(self, text: str) -> str:
        """Return a text without sensitive data. Before it is cut: half a credential is not recognised."""
        return text if self._engine.protection is None else self._engine.protection.redact_text(text)

    def _content(
        self, fields: EventFields, summary: str, detail: Mapping[str, Any], texts: Sequence[str]
    ) -> TimelineContent:
        return TimelineContent(fields.event(shorten(summary, _MAX_SUMMARY), detail), EventSubject(fields, texts))


def _is_change(row: TimedRow) -> bool:
    """Return whether an event is a change of a key by the step that it is stored with."""
    return row.row.columns[1] == "change" and BETWEEN not in str(row.row.columns[4])


def _summary(detail: Mapping[str, Any]) -> str:
    """Return what details say in short."""
    wrong = [str(detail[name]) for name in _ERRORS if detail.get(name)]
    if wrong:
        return ": ".join(wrong)
    if detail.get("from") and detail.get("to"):
        return f"{detail['from']} → {detail['to']}"
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in details."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bytes | bool | int | float):
        yield str(value)


FIELDS = {
    **dict.fromkeys(("kind", "action", "outcome", "actor", "scope", "thread", "agent", "key", "hook"), TEXT),
    **dict.fromkeys(("correlation", "cause", "id", "trace"), TEXT),
    **dict.fromkeys(("time", "before", "after"), TIME),
    "duration": NUMBER,
}
"""The fields and their types."""

_THREAD = f"{THREAD}:"
_AGENT = "agent:"
_HAS_ORIGIN = ColumnHint("metadata", (f'"{ORIGIN}":',), contains=True)


class EventSubject(NamedTuple):
    """An event, as far as it was read. `texts` are those in it; None if its content was not read yet."""

    fields: EventFields
    texts: Sequence[str] | None = None


def matches(query: Query, subject: EventSubject) -> bool | None:
    """Return whether an event matches a query; None if its content must be read first."""
    if isinstance(query, MatchAll):
        return True
    if isinstance(query, Not):
        answer = matches(query.query, subject)
        return None if answer is None else not answer
    if isinstance(query, And | Or):
        decides = isinstance(query, Or)
        answers = [matches(each, subject) for each in query.queries]
        return decides if decides in answers else None if None in answers else not decides
    if isinstance(query, TextTerm):
        if subject.texts is None:
            return None
        return any(_contains(query, text) for text in subject.texts)
    if query.name == "id" and subject.texts is None and subject.fields.retained:
        return None
    return _compare(query, subject.fields)


def _contains(term: TextTerm, text: str) -> bool:
    return next(term.finder.spans(fold(text).text), None) is not None


def _compare(term: Field, fields: EventFields) -> bool:
    if FIELDS[term.name] != TEXT:
        value = fields.duration / 1e6 if term.name == "duration" else fields.time
        low, high = term.range
        inside = (low is None or value >= low) and (high is None or value < high)
        return inside is not (term.operator == "!=")
    text = _text(term.name, fields)
    if not text and term.operator == ":" and term.value:
        return False  # `thread:*` does not mean what is about no thread
    found = term.pattern.match if term.name == "id" and term.operator == ":" else term.pattern.fullmatch
    return bool(found(text)) is not (term.operator == "!=")


def _text(name: str, fields: EventFields) -> str:
    match name:
        case "thread":
            return parse_place(fields.scope).thread if fields.scope.startswith(_THREAD) else ""
        case "agent":
            return fields.scope.removeprefix(_AGENT).partition("/")[0] if fields.scope.startswith(_AGENT) else ""
        case "hook":
            return fields.action if fields.kind == "hook" else ""
        case "trace":
            return span_of(fields.cause)[0]
    return str(getattr(fields, name))


# What a query says about where to look --------------------------------------------------------------------------


def has_text(query: Query) -> bool:
    """Return whether a query asks for text."""
    return any(isinstance(each, TextTerm) for each in walk(query))


def _terms(query: Query) -> list[Field]:
    """Return the comparisons that every match satisfies."""
    return [each for each in (query.queries if isinstance(query, And) else (query,)) if isinstance(each, Field)]


def exact_value(query: Query, name: str) -> str | None:
    """Return the only value that a field may have; None if there may be several."""
    return next((each.exact for each in _terms(query) if each.name == name and each.exact is not None), None)


def named_scope(query: Query) -> Scope | None:
    """Return the scope or thread that all matches are about; None if they may be about others."""
    thread, scope, agent = (exact_value(query, name) for name in ("thread", "scope", "agent"))
    try:
        if thread:
            return Scope.of_thread(thread)
        if agent:
            return Scope.of(agent=agent)
        return parse_place(scope) if scope else None
    except InvalidError:
        return None  # a place that is no scope, such as `sessions`


def narrow(query: Query, interval: TimeInterval) -> TimeInterval:
    """Return the part of an interval that matches can be in."""
    since, until = interval
    for each in _terms(query):
        if FIELDS[each.name] == TIME and each.operator != "!=":
            low, high = each.range
            since = since if low is None else max(since, int(low))
            until = until if high is None else min(until, int(high) + 1)
        elif each.name == "correlation" and each.exact and (made := time_of(each.exact)):
            since = max(since, made - SKEW)  # what belongs to a step does not come before it
    return TimeInterval(since, until)


def tables_of(query: Query, *, errors: bool = False) -> tuple[Table, ...]:
    """Return the tables that matches can be in."""
    kind, outcome = exact_value(query, "kind"), exact_value(query, "outcome")
    if kind == CHECKPOINT:
        return (STEPS,)
    only_events = any(each.name in ("hook", "key") and each.operator != "!=" for each in _terms(query))
    return (EVENTS,) if kind or errors or only_events or outcome not in (None, "ok") else (STEPS, EVENTS)


def hints_of(query: Query, table: Table, *, errors: bool = False) -> tuple[ColumnHint, ...]:
    """Return what the columns of matching rows have, for stores that can select by it."""
    hints = [ColumnHint("outcome", tuple(sorted(SUCCESSES)), excluded=True)] if errors else []
    if isinstance(query, Or) and all(isinstance(each, Field) and each.name == "cause" for each in query.queries):
        causes = tuple(each.exact or "" for each in query.queries if isinstance(each, Field))
        if all(causes):
            # Of steps, all that have an origin: it is not known which of the causes they have.
            hints.append(ColumnHint("cause", causes) if table is EVENTS else _HAS_ORIGIN)
    for each in _terms(query):
        value = each.exact
        if not value:
            continue
        if table is STEPS:
            if each.name in ("correlation", "cause", "actor"):
                hints.append(ColumnHint("metadata", (encode(value).decode(),), contains=True))
            elif each.name == "trace":
                hints.append(ColumnHint("metadata", (value,), contains=True))
            elif each.name == "action":
                hints.append(ColumnHint("kind", (value,)))
        elif each.name == "hook":
            hints += [ColumnHint("kind", ("hook",)), ColumnHint("action", (value,))]
        elif each.name == "kind":
            hints.append(ColumnHint("kind", ("change" if value == STEP else value,)))
        elif each.name == "trace":
            hints.append(ColumnHint("cause", (value,), contains=True))
        elif each.name in ("action", "outcome", "actor", "correlation", "cause"):
            if each.name != "correlation" or not time_of(value):  # the id of a step: its own row does not have it
                hints.append(ColumnHint(each.name, (value,)))
    return tuple(hints)
