"""Queries of the timeline, in the language of searches, with fields of its own.

::

    refund, ref*, "exact phrase"     a text that a checkpoint added, or that is in an event
    a b, a OR b, -a, (a b)           both; one of them; not this one (or NOT a)
    kind:hook, action:set, outcome:error, actor:agent:writer, key:plan/*
    thread:support-*, scope:agent:*, agent:writer, hook:audit-log
    correlation:req-1, cause:1f0c…, id:1f0c, trace:4bf9…
    time>2h, before:monday, after:2026-11-01, duration>100   in milliseconds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.json import encode

from holdfast.backends.interface import ColumnHint
from holdfast.backends.tables import EVENTS, STEPS, Table
from holdfast.engine.ids import time_of
from holdfast.engine.model.scopes import THREAD, Scope, parse_place
from holdfast.engine.row_format import ORIGIN
from holdfast.engine.text_index.tokenize import fold
from holdfast.errors import InvalidError
from holdfast.history.query import NUMBER, TEXT, TIME, And, Field, MatchAll, Not, Or, Query, TextTerm, walk
from holdfast.store.timeline.event import CHECKPOINT, STEP, SUCCESSES, EventFields, span_of
from holdfast.store.timeline.rows import SKEW, TimeInterval

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
