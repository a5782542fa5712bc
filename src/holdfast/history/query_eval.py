"""What a query means: whether a checkpoint, or a thread, matches it.

A text matches a checkpoint that brought it. Where `channel:` or `role:` stand beside a text, it is looked for in those
channels and messages only; negated, in the others. What is not known of a checkpoint yet leaves the answer open, so
that the cheap part of a query can be tried before anything is read.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine.lines import LineSummary
from holdfast.engine.row_format import HINT, StepRef
from holdfast.engine.text_index.extract import ExtractedText, role_of
from holdfast.engine.text_index.tokenize import FoldedText, fold
from holdfast.errors import CorruptError
from holdfast.history.query import And, Field, MatchAll, Not, Or, Query, TextTerm, every, walk

Spans: TypeAlias = list[tuple[int, int]]

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class ThreadContext(NamedTuple):
    """What is known of the thread that checkpoints belong to: names of its branches, and of its checkpoints by id."""

    summary: LineSummary | None = None
    branches: Mapping[int, str] | None = None
    tags: Mapping[str, Sequence[str]] | None = None
    labels: Mapping[str, Sequence[str]] | None = None


@dataclass(slots=True)
class StepContent:
    """What a checkpoint stores: the channels that it changed, the text it brought, and how many bytes it takes."""

    channels: Sequence[str]
    texts: Sequence[ExtractedText]
    size: int | None = None
    folded: dict[int, FoldedText] = field(default_factory=dict)

    def fold(self, number: int) -> FoldedText:
        """One of the texts, folded."""
        if number not in self.folded:
            self.folded[number] = fold(self.texts[number].text)
        return self.folded[number]


@dataclass
class QuerySubject:
    """A checkpoint, or a whole thread if there is no point, as far as it is known."""

    thread: str
    context: ThreadContext = field(default_factory=ThreadContext)
    point: StepRef | None = None
    brought: StepContent | None = None

    @cached_property
    def metadata(self) -> Any:
        """The checkpoint's metadata, as JSON values."""
        if self.point is None or not self.point.metadata:
            return {}
        try:
            return json.loads(self.point.metadata)
        except ValueError:
            raise CorruptError(
                "the metadata in a checkpoint's row is no JSON", where=self.point.id, hint=HINT
            ) from None


class _Scope(NamedTuple):
    field: Field
    wanted: bool


def matches(query: Query, subject: QuerySubject, scope: tuple[_Scope, ...] = ()) -> bool | None:
    """Whether something matches a query; None if it is not known enough of it."""
    if isinstance(query, MatchAll):
        return True
    if isinstance(query, Not):
        found = matches(query.query, subject, scope)
        return None if found is None else not found
    if isinstance(query, Or):
        return _any(matches(each, subject, scope) for each in query.queries)
    if isinstance(query, And):
        inner = (*scope, *_scopes(query))
        found = _any(_negated(matches(each, subject, inner)) for each in _conditions(query))
        return _negated(found)
    if isinstance(query, TextTerm):
        return None if subject.brought is None else any(_found(query, subject.brought, scope))
    return _compare(query, subject)


def hits(query: Query, subject: QuerySubject, scope: tuple[_Scope, ...] = ()) -> dict[int, Spans]:
    """Where the texts that a query asks for are, in those that a checkpoint brought, by their numbers."""
    found: dict[int, Spans] = {}
    if isinstance(query, TextTerm) and subject.brought is not None:
        for number, span in _found(query, subject.brought, scope):
            found.setdefault(number, []).append(span)
    elif isinstance(query, And | Or):
        inner = (*scope, *_scopes(query)) if isinstance(query, And) else scope
        for each in query.queries:
            for number, spans in hits(each, subject, inner).items():
                found.setdefault(number, []).extend(spans)
    return found


def reduced(query: Query, subject: QuerySubject) -> Query | bool:
    """What is left to be known of a query."""
    if isinstance(query, Not):
        left = reduced(query.query, subject)
        return not left if isinstance(left, bool) else Not(left)
    if isinstance(query, And | Or):
        parts = [reduced(each, subject) for each in query.queries]
        decides = isinstance(query, Or)
        if decides in parts:
            return decides
        left_over = [each for each in parts if not isinstance(each, bool)]
        if not left_over:
            return not decides
        return every(left_over) if not decides else left_over[0] if len(left_over) == 1 else Or(tuple(left_over))
    known = matches(query, subject)
    return query if known is None else known


def _any(answers: Any) -> bool | None:
    unknown = False
    for answer in answers:
        if answer:
            return True
        unknown = unknown or answer is None
    return None if unknown else False


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


# Text -------------------------------------------------------------------------------------------------------------


def _scope_of(query: Query) -> _Scope | None:
    if isinstance(query, Not):
        inner = _scope_of(query.query)
        return None if inner is None else _Scope(inner.field, not inner.wanted)
    return _Scope(query, True) if isinstance(query, Field) and query.name in ("channel", "role") else None


def _scopes(query: And) -> list[_Scope]:
    """Where the texts of a query are looked for."""
    return [scope for each in query.queries if (scope := _scope_of(each)) is not None]


def _conditions(query: And) -> Sequence[Query]:
    """What has to be so. Beside a text, that something is not to be in some channel only says where to look."""
    if not any(isinstance(each, TextTerm) for each in walk(query)):
        return query.queries
    return [each for each in query.queries if (scope := _scope_of(each)) is None or scope.wanted]


def _found(query: TextTerm, brought: StepContent, scope: tuple[_Scope, ...]) -> Any:
    for number, text in enumerate(brought.texts):
        if not all(_in_scope(each, text) for each in scope):
            continue
        folded = brought.fold(number)
        for span in query.finder.spans(folded.text):
            start, end = folded.span(*span)
            if _brings(text, folded, start, end):
                yield number, (start, end)


def _brings(text: ExtractedText, folded: FoldedText, start: int, end: int) -> bool:
    # In another form of its characters, a text is as long as it is by chance: then all of it is taken for new.
    return len(folded.shown) != len(text.text) or text.brings(start, end)


def _in_scope(scope: _Scope, text: ExtractedText) -> bool:
    asked = scope.field
    value = str(text.path[0]) if asked.name == "channel" else text.role
    return bool(_is_text(asked, value)) is scope.wanted


# Fields -----------------------------------------------------------------------------------------------------------


def _is_text(asked: Field, value: str) -> bool:
    if asked.name == "role":
        same = role_of(asked.value) == value if asked.exact is not None else bool(asked.pattern.fullmatch(value))
    elif asked.name == "id" and asked.operator == ":":
        same = bool(asked.pattern.match(value))
    else:
        same = bool(asked.pattern.fullmatch(value))
    return same is not (asked.operator == "!=")


def _compare(asked: Field, subject: QuerySubject) -> bool | None:
    point, context = subject.point, subject.context
    match asked.name:
        case "thread":
            return _is_text(asked, subject.thread)
        case "steps" | "branches" | "created" | "updated":
            return None if context.summary is None else _in_range(asked, getattr(context.summary, asked.name))
        case "channel" | "role":
            return _brought(asked, subject.brought)
        case "size":
            return _size(asked, subject)
    if point is None:
        return _before_all(asked, context)
    match asked.name:
        case "id" | "kind":
            return _is_text(asked, getattr(point, asked.name))
        case "step":
            return _in_range(asked, point.depth)
        case "time" | "before" | "after":
            return _in_range(asked, point.time)
        case "branch":
            return None if context.branches is None else _is_text(asked, context.branches.get(point.branch, ""))
        case "tag" | "label":
            given = context.tags if asked.name == "tag" else context.labels
            return None if given is None else _one_is(asked, given.get(point.id, ()))
    return _meta(asked, subject.metadata)


def _before_all(asked: Field, context: ThreadContext) -> bool | None:
    """A thread that was last changed before the time that is asked for has no such checkpoint."""
    low = asked.range[0]
    if asked.name in ("time", "after") and asked.operator != "!=" and low is not None and context.summary is not None:
        return False if context.summary.updated < low else None
    return None


def _brought(asked: Field, brought: StepContent | None) -> bool | None:
    if brought is None:
        return None
    values = brought.channels if asked.name == "channel" else [text.role for text in brought.texts if text.role]
    return _one_is(asked, values)


def _one_is(asked: Field, values: Sequence[str]) -> bool:
    """Whether one of several is the text that is asked for; with `!=`, whether none is."""
    test = all if asked.operator == "!=" else any
    return test(_is_text(asked, value) for value in values)


def _size(asked: Field, subject: QuerySubject) -> bool | None:
    if subject.point is None:
        return None if subject.context.summary is None else _in_range(asked, subject.context.summary.size)
    size = None if subject.brought is None else subject.brought.size
    return None if size is None else _in_range(asked, size)


def _in_range(asked: Field, value: int) -> bool:
    low, high = asked.range
    inside = (low is None or value >= low) and (high is None or value < high)
    return inside is not (asked.operator == "!=")


# Metadata ---------------------------------------------------------------------------------------------------------


def _meta(asked: Field, metadata: Any) -> bool:
    values = _below(metadata, asked.keys)
    if asked.operator == "!=":
        return not any(_equal(asked, value) for value in values)
    return any(_holds(asked, value) for value in values)


def _below(value: Any, keys: Sequence[str]) -> list[Any]:
    """The values under keys, one below the other; each item of a list is one."""
    if isinstance(value, list):
        return [found for item in value for found in _below(item, keys)]
    if not keys:
        return [value]
    return _below(value[keys[0]], keys[1:]) if isinstance(value, dict) and keys[0] in value else []


def _holds(asked: Field, value: Any) -> bool:
    if asked.operator in _TESTS:
        ours, theirs = _number(asked.value), value if _is_number(value) else _number(value)
        test = _TESTS[asked.operator]
        if ours is not None and theirs is not None:
            return test(theirs, ours)
        return isinstance(value, str) and ours is None and test(value, asked.value)
    if asked.operator == ":" and not _is_number(value):
        return bool(asked.pattern.fullmatch(_plain(value)))
    return _equal(asked, value)


def _equal(asked: Field, value: Any) -> bool:
    number = _number(asked.value)
    if _is_number(value):
        return (asked.value, asked.operator) == ("*", ":") if number is None else bool(value == number)
    return _plain(value) == asked.value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: Any) -> int | float | None:
    if not isinstance(text, str):
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None
