"""Evaluation of queries: whether a checkpoint or a thread matches.

A text matches a checkpoint that added it. `channel:` and `role:` beside a text restrict it to those channels and
messages; negated, to the others. The answer is None while it depends on parts of a checkpoint that were not read yet,
so that the cheap part of a query is evaluated before anything is read.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine.metadata_filter import MetadataFilter, plain_text, values_below
from holdfast.engine.row_format import HINT, LineSummary, StepRef
from holdfast.engine.text_index.extract import ExtractedText, role_of
from holdfast.engine.text_index.tokenize import FoldedText, fold
from holdfast.errors import CorruptError
from holdfast.history.query import And, Field, MatchAll, Not, Or, Query, Range, TextTerm, either, every, walk

Spans: TypeAlias = list[tuple[int, int]]

_TESTS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class ThreadContext(NamedTuple):
    """The thread of a checkpoint, as far as it was read: names of branches, tags and labels by checkpoint id."""

    summary: LineSummary | None = None
    branches: Mapping[int, str] | None = None
    tags: Mapping[str, Sequence[str]] | None = None
    labels: Mapping[str, Sequence[str]] | None = None


@dataclass(slots=True)
class StepContent:
    """The content of a checkpoint: the channels it changed, the texts it added, and its size in bytes."""

    channels: Sequence[str]
    texts: Sequence[ExtractedText]
    size: int | None = None
    folded: dict[int, FoldedText] = field(default_factory=dict)

    def fold(self, number: int) -> FoldedText:
        """Return one of the texts, case-folded and normalized."""
        if number not in self.folded:
            self.folded[number] = fold(self.texts[number].text)
        return self.folded[number]


@dataclass
class QuerySubject:
    """A checkpoint, or a thread if `point` is None, as far as it was read."""

    thread: str
    context: ThreadContext = field(default_factory=ThreadContext)
    point: StepRef | None = None
    content: StepContent | None = None

    @cached_property
    def metadata(self) -> Any:
        """The checkpoint's metadata as JSON values."""
        if self.point is None or not self.point.metadata:
            return {}
        try:
            return json.loads(self.point.metadata)
        except ValueError:
            raise CorruptError(
                "the metadata in a checkpoint's row is not JSON", where=self.point.id, hint=HINT
            ) from None


class _Scope(NamedTuple):
    field: Field
    included: bool


def matches(query: Query, subject: QuerySubject, scope: tuple[_Scope, ...] = ()) -> bool | None:
    """Whether a subject matches a query; None if more of it must be read first."""
    if isinstance(query, MatchAll):
        return True
    if isinstance(query, Not):
        return _negate(matches(query.query, subject, scope))
    if isinstance(query, Or):
        return _any(matches(each, subject, scope) for each in query.queries)
    if isinstance(query, And):
        inner = (*scope, *_scopes(query))
        return _negate(_any(_negate(matches(each, subject, inner)) for each in _conditions(query)))
    if isinstance(query, TextTerm):
        return None if subject.content is None else any(_find_text(query, subject.content, scope))
    return _compare(query, subject)


def hits(query: Query, subject: QuerySubject, scope: tuple[_Scope, ...] = ()) -> dict[int, Spans]:
    """Find the texts of a query in those that a checkpoint added. Returns spans by the number of the text."""
    result: dict[int, Spans] = {}
    if isinstance(query, TextTerm) and subject.content is not None:
        for number, span in _find_text(query, subject.content, scope):
            result.setdefault(number, []).append(span)
    elif isinstance(query, And | Or):
        inner = (*scope, *_scopes(query)) if isinstance(query, And) else scope
        for each in query.queries:
            for number, spans in hits(each, subject, inner).items():
                result.setdefault(number, []).extend(spans)
    return result


def simplify(query: Query, subject: QuerySubject) -> Query | bool:
    """Return the part of a query that is still unanswered, or the answer."""
    if isinstance(query, Not):
        left = simplify(query.query, subject)
        return not left if isinstance(left, bool) else Not(left)
    if isinstance(query, And | Or):
        parts = [simplify(each, subject) for each in query.queries]
        decides = isinstance(query, Or)
        if decides in parts:
            return decides
        rest = [part for part in parts if not isinstance(part, bool)]
        if not rest:
            return not decides
        return either(rest) if decides else every(rest)
    answer = matches(query, subject)
    return query if answer is None else answer


def _any(answers: Any) -> bool | None:
    unknown = False
    for answer in answers:
        if answer:
            return True
        unknown = unknown or answer is None
    return None if unknown else False


def _negate(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


# Text -------------------------------------------------------------------------------------------------------------


def _scope_of(query: Query) -> _Scope | None:
    if isinstance(query, Not):
        inner = _scope_of(query.query)
        return None if inner is None else _Scope(inner.field, not inner.included)
    return _Scope(query, True) if isinstance(query, Field) and query.name in ("channel", "role") else None


def _scopes(query: And) -> list[_Scope]:
    return [scope for each in query.queries if (scope := _scope_of(each)) is not None]


def _conditions(query: And) -> Sequence[Query]:
    """Return the conditions of a query. Beside a text, a negated scope only restricts where to search."""
    if not any(isinstance(each, TextTerm) for each in walk(query)):
        return query.queries
    return [each for each in query.queries if (scope := _scope_of(each)) is None or scope.included]


def _find_text(query: TextTerm, content: StepContent, scope: tuple[_Scope, ...]) -> Any:
    for number, text in enumerate(content.texts):
        if not all(_in_scope(each, text) for each in scope):
            continue
        folded = content.fold(number)
        for span in query.finder.spans(folded.text):
            start, end = folded.span(*span)
            if _is_new(text, folded, start, end):
                yield number, (start, end)


def _is_new(text: ExtractedText, folded: FoldedText, start: int, end: int) -> bool:
    # If normalization changed the length, positions do not correspond: all of the text counts as new.
    return len(folded.shown) != len(text.text) or text.brings(start, end)


def _in_scope(scope: _Scope, text: ExtractedText) -> bool:
    term = scope.field
    value = str(text.path[0]) if term.name == "channel" else text.role
    return bool(_matches_text(term, value)) is scope.included


# Fields -----------------------------------------------------------------------------------------------------------


def _matches_text(term: Field, value: str) -> bool:
    if term.name == "role":
        same = role_of(term.value) == value if term.exact is not None else bool(term.pattern.fullmatch(value))
    elif term.name == "id" and term.operator == ":":
        same = bool(term.pattern.match(value))
    else:
        same = bool(term.pattern.fullmatch(value))
    return same is not (term.operator == "!=")


def _compare(term: Field, subject: QuerySubject) -> bool | None:
    point, context = subject.point, subject.context
    match term.name:
        case "thread":
            return _matches_text(term, subject.thread)
        case "steps" | "branches" | "created" | "updated":
            return None if context.summary is None else _in_range(term, getattr(context.summary, term.name))
        case "channel" | "role":
            return _match_content(term, subject.content)
        case "size":
            return _match_size(term, subject)
    if point is None:
        return _is_too_old(term, context)
    match term.name:
        case "id" | "kind":
            return _matches_text(term, getattr(point, term.name))
        case "step":
            return _in_range(term, point.depth)
        case "time" | "before" | "after":
            return _in_range(term, point.time)
        case "branch":
            return None if context.branches is None else _matches_text(term, context.branches.get(point.branch, ""))
        case "tag" | "label":
            names = context.tags if term.name == "tag" else context.labels
            return None if names is None else _any_text(term, names.get(point.id, ()))
    return _match_metadata(term, subject.metadata)


def _is_too_old(term: Field, context: ThreadContext) -> bool | None:
    """Return False if the thread was last changed before the requested time, else None."""
    low = term.range[0]
    if term.name in ("time", "after") and term.operator != "!=" and low is not None and context.summary is not None:
        return False if context.summary.updated < low else None
    return None


def _match_content(term: Field, content: StepContent | None) -> bool | None:
    if content is None:
        return None
    values = content.channels if term.name == "channel" else [text.role for text in content.texts if text.role]
    return _any_text(term, values)


def _any_text(term: Field, values: Sequence[str]) -> bool:
    """Whether one of several texts matches; with `!=`, whether all differ."""
    test = all if term.operator == "!=" else any
    return test(_matches_text(term, value) for value in values)


def _match_size(term: Field, subject: QuerySubject) -> bool | None:
    if subject.point is None:
        return None if subject.context.summary is None else _in_range(term, subject.context.summary.size)
    size = None if subject.content is None else subject.content.size
    return None if size is None else _in_range(term, size)


def _in_range(term: Field, value: int) -> bool:
    return _is_inside(term.range, value) is not (term.operator == "!=")


def _is_inside(bounds: Range, value: float) -> bool:
    low, high = bounds
    return (low is None or value >= low) and (high is None or value < high)


# Metadata ---------------------------------------------------------------------------------------------------------


def _match_metadata(term: Field, metadata: Any) -> bool:
    values = values_below(metadata, term.keys)
    if term.operator == "!=":
        return not any(_equal(term, value) for value in values)
    return any(_compare_value(term, value) for value in values)


def _compare_value(term: Field, value: Any) -> bool:
    if term.operator in _TESTS:
        expected, actual = _number(term.value), _number(value)
        test = _TESTS[term.operator]
        if expected is not None and actual is not None:
            return test(actual, expected)
        return isinstance(value, str) and expected is None and test(value, term.value)
    if term.operator == ":" and not _is_number(value) and term.pattern.fullmatch(plain_text(value)):
        return True
    return _equal(term, value)


def _equal(term: Field, value: Any) -> bool:
    if term.range != (None, None):
        actual = _number(value)
        return (actual is not None and _is_inside(term.range, actual)) or plain_text(value) == term.value
    if _is_number(value):
        number = _number(term.value)
        return (term.value, term.operator) == ("*", ":") if number is None else bool(value == number)
    return plain_text(value) == term.value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> int | float | None:
    """Return a number, or that in a text."""
    if not isinstance(value, str):
        return value if _is_number(value) else None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return None


# Plans ------------------------------------------------------------------------------------------------------------

_MAX_FILTERS = 16
"""How many lookups in the word index one query may take."""


class WordFilter(NamedTuple):
    """A necessary condition on the words of a checkpoint: all of these, and some with each prefix."""

    words: frozenset[str]
    prefixes: frozenset[str] = frozenset()

    def matches(self, words: set[str]) -> bool:
        return self.words <= words and all(any(word.startswith(prefix) for word in words) for prefix in self.prefixes)


def word_filters(query: Query) -> list[WordFilter] | None:
    """Return filters for the word index, of which every match satisfies one. None if the index cannot help."""
    if isinstance(query, TextTerm):
        words, prefixes = query.words
        return [WordFilter(frozenset(words), frozenset(prefixes))] if words or prefixes else None
    if isinstance(query, Or):
        parts = [word_filters(each) for each in query.queries]
        filters = [each for part in parts if part is not None for each in part]
        return None if None in parts or len(filters) > _MAX_FILTERS else list(dict.fromkeys(filters))
    if not isinstance(query, And):
        return None
    result: list[WordFilter] | None = None
    for each in query.queries:
        part = word_filters(each)
        if part is None or (result is not None and len(result) * len(part) > _MAX_FILTERS):
            continue
        pairs = product(result or [WordFilter(frozenset())], part)
        result = [WordFilter(one.words | other.words, one.prefixes | other.prefixes) for one, other in pairs]
    return result


def one_thread(query: Query) -> str | None:
    """Return the only thread whose checkpoints may match, or None."""
    for each in query.queries if isinstance(query, And) else (query,):
        if isinstance(each, Field) and each.name == "thread" and each.exact is not None:
            return each.exact
    return None


def metadata_filters(query: Query) -> list[MetadataFilter]:
    """Return the entries of metadata that every matching checkpoint has."""
    return [
        MetadataFilter.of_text(each.keys, each.value, _number(each.value))
        for each in (query.queries if isinstance(query, And) else (query,))
        if isinstance(each, Field) and each.name == "meta" and each.operator == "=" and each.range == (None, None)
    ]


def thread_prefix(query: Query) -> str:
    """Return the prefix of the names of all threads whose checkpoints may match."""
    for each in query.queries if isinstance(query, And) else (query,):
        if isinstance(each, Field) and each.name == "thread" and each.operator == ":":
            return each.value.partition("*")[0]
    return ""


def join_spans(spans: Spans) -> Spans:
    """Return spans in order, without overlaps."""
    merged: Spans = []
    for low, high in spans:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
