"""The query language for threads and checkpoints.

::

    refund                     added this word; ref* a word with this prefix; "exact phrase" a phrase
    a b, a OR b, -a, (a b)     both; one of them; not this one (or NOT a)
    thread:support-*           the thread's name; * matches anything
    id:1f0c, tag:v1, label:release, branch:main, kind:save
    step>=10, step:10..20      the number of the checkpoint in its thread
    time>2h, time:2026-11-01..2026-11-03, before:monday, after:2026-11-01T10:00
    meta.source=loop, meta.user.plan:pro, meta.score>0.5, meta.n:2..3
    channel:messages, role:human
    size>1mb                   the stored size of the checkpoint, or of the thread if threads are listed
    steps>100, branches>1, created<30d, updated>7d        of the thread

`:` matches a pattern; for numbers and times it is `=`. An age means that long ago: `time>2h` is within the last two
hours. A date means the whole day.

This module parses and formats queries; `holdfast.history.query` evaluates them.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from math import inf, nextafter
from typing import Any, NamedTuple, TypeAlias

from holdfast.engine.metadata_filter import MetadataFilter, plain_text, values_below
from holdfast.engine.row_format import HINT, LineSummary, StepRef
from holdfast.engine.text_index.extract import ExtractedText, role_of
from holdfast.engine.text_index.tokenize import FoldedText, TextFinder, fold, needed
from holdfast.engine.types import to_time
from holdfast.errors import CorruptError, InvalidError
from holdfast.time_parser import parse_time

TEXT, NUMBER, SIZE, TIME, META = "text", "number", "size", "time", "meta"

FIELDS = {
    **dict.fromkeys(("thread", "id", "tag", "label", "branch", "kind", "channel", "role"), TEXT),
    **dict.fromkeys(("step", "steps", "branches"), NUMBER),
    "size": SIZE,
    **dict.fromkeys(("time", "before", "after", "created", "updated"), TIME),
    "meta": META,
}
"""The fields and their types."""

_ANY = ("=", "!=", ">", ">=", "<", "<=", ":")
OPERATORS = {
    TEXT: (":", "=", "!="),
    NUMBER: _ANY,
    SIZE: _ANY,
    TIME: _ANY,
    META: _ANY,
}

Range: TypeAlias = tuple[float | None, float | None]
"""From a number, inclusive, to another, exclusive. None means unlimited."""


@dataclass(frozen=True)
class MatchAll:
    """The empty query, which matches everything."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class TextTerm:
    """A text that a checkpoint added."""

    text: str
    prefix: bool = False

    def __str__(self) -> str:
        return (self.text if _is_bare(self.text) else _quote(self.text)) + "*" * self.prefix

    @cached_property
    def finder(self) -> TextFinder:
        return TextFinder(self.text, prefix=self.prefix)

    @property
    def words(self) -> tuple[list[str], list[str]]:
        """The words, and prefixes of words, of every text that contains it."""
        return needed(self.text, prefix=self.prefix)


@dataclass(frozen=True)
class Field:
    """A comparison with a field. `keys` are those below `meta`; numbers and times are parsed into `range`."""

    name: str
    operator: str
    value: str
    keys: tuple[str, ...] = ()
    range: Range = field(default=(None, None), compare=False)

    def __str__(self) -> str:
        keys = "".join(f".{key if _KEY.fullmatch(key) else _quote(key)}" for key in self.keys)
        bare = _VALUE.fullmatch(self.value) and not self.value.startswith(("<", ">", "="))
        return f"{self.name}{keys}{self.operator}{self.value if bare else _quote(self.value)}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern that the whole text must match; with the operator `:`, `*` matches anything.

        It does not backtrack into what was found: of a part between stars, the first occurrence is as good as any later
        one. Otherwise a query of a dozen stars could take years.
        """
        if self.operator != ":":
            return re.compile(re.escape(self.value))
        first, *more = map(re.escape, self.value.split("*"))
        last = f".*{more.pop()}" if more else ""
        flags = re.DOTALL | (re.IGNORECASE if self.name == "meta" else 0)
        return re.compile(f"{first}{''.join(f'(?>.*?{part})' for part in more)}{last}", flags)

    @property
    def exact(self) -> str | None:
        """The only text that matches; None if there may be several."""
        return self.value if self.operator == "=" or (self.operator == ":" and "*" not in self.value) else None


@dataclass(frozen=True)
class Not:
    """Negation."""

    query: Query

    def __str__(self) -> str:
        return f"-{_in_parentheses(self.query)}"


@dataclass(frozen=True)
class And:
    """Conjunction."""

    queries: tuple[Query, ...]

    def __str__(self) -> str:
        return " ".join(map(_in_parentheses, self.queries))


@dataclass(frozen=True)
class Or:
    """Disjunction."""

    queries: tuple[Query, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({each})" if isinstance(each, Or) else str(each) for each in self.queries)


Query: TypeAlias = MatchAll | TextTerm | Field | Not | And | Or


def walk(query: Query) -> Iterator[Query]:
    """Iterate over a query and all its parts."""
    yield query
    if isinstance(query, Not):
        yield from walk(query.query)
    elif isinstance(query, And | Or):
        for each in query.queries:
            yield from walk(each)


def every(queries: Iterable[Query]) -> Query:
    """Combine queries with AND."""
    flat = [part for each in queries for part in (each.queries if isinstance(each, And) else (each,))]
    flat = [each for each in flat if not isinstance(each, MatchAll)]
    return MatchAll() if not flat else flat[0] if len(flat) == 1 else And(tuple(flat))


def either(queries: Iterable[Query]) -> Query:
    """Combine queries with OR."""
    flat = [part for each in queries for part in (each.queries if isinstance(each, Or) else (each,))]
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def _in_parentheses(query: Query) -> str:
    return f"({query})" if isinstance(query, And | Or) else str(query)


_KEYWORDS = ("AND", "OR", "NOT")
_BARE = re.compile(r"""(?!-)[^\s()":=<>!*]+""")
_VALUE = re.compile(r"""[^\s()"]+""")
_KEY = re.compile(r"""[^\s()".:=<>!]+""")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_FIELD = re.compile(r"[A-Za-z_]\w*")
_OPERATOR = re.compile(r"!=|[<>]=?|=|:[<>]=?|:")


def _is_bare(text: str) -> bool:
    return text not in _KEYWORDS and not text.startswith("meta.") and _BARE.fullmatch(text) is not None


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Parse ------------------------------------------------------------------------------------------------------------


def has_text(query: str) -> bool:
    """Return whether a query asks for text, which an index finds."""
    return any(isinstance(each, TextTerm) for each in walk(parse(query)))


def parse(text: str, now: datetime | None = None, fields: Mapping[str, str] = FIELDS) -> Query:
    """Parse a query, with these fields by their types. Ages are relative to `now`. Raises `InvalidError` with the
    column of the error."""
    if not isinstance(text, str):
        raise InvalidError(f"a query must be a string, not {type(text).__name__}", where=repr(text)[:80])
    return _Parser(text, now or datetime.now(UTC), fields).parse()


class _Parser:
    def __init__(self, text: str, now: datetime, fields: Mapping[str, str]) -> None:
        self._text = text
        self._now = now
        self._fields = fields
        self._at = 0
        self._open: list[int] = []

    def parse(self) -> Query:
        self._skip()
        if self._at == len(self._text):
            return MatchAll()
        query = self._either()
        if self._at < len(self._text):
            raise self._error("unmatched )", self._at)
        return query

    def _either(self) -> Query:
        parts = [self._every()]
        while self._keyword("OR"):
            parts.append(self._every())
        return either(parts)

    def _every(self) -> Query:
        parts = [self._one()]
        while self._at < len(self._text) and self._text[self._at] != ")" and not self._is_keyword("OR"):
            self._keyword("AND")
            parts.append(self._one())
        return every(parts)

    def _one(self) -> Query:
        if len(self._open) > _MAX_DEPTH:
            raise self._error(f"the query is nested more than {_MAX_DEPTH} deep", self._at)
        start = self._at
        if self._keyword("NOT") or self._accept("-"):
            self._open.append(start)
            query: Query = Not(self._one())
            self._open.pop()
            return query
        if self._accept("("):
            self._open.append(start)
            self._skip()
            query = self._either()
            self._open.pop()
            if not self._accept(")"):
                raise self._error("this ( is not closed", start, "Add a )")
            self._skip()
            return query
        query = self._term()
        self._skip()
        return query

    def _term(self) -> Query:
        start = self._at
        if start == len(self._text) or self._text[start] == ")" or any(map(self._is_keyword, _KEYWORDS)):
            actual = f", not {self._next()!r}" if start < len(self._text) else ""
            raise self._error(f"expected a word or a field here{actual}", start, "Quote it to search for the word")
        if self._text[start] == '"':
            return self._text_term(self._quoted(), start)
        named = _FIELD.match(self._text, start)
        if named is not None:
            end = named.end()
            rest = self._text[end : end + 1]
            if rest == "." and named[0] == "meta" and "meta" in self._fields:
                return self._meta(start, end)
            if _OPERATOR.match(self._text, end):
                return self._field(start, named[0])
        bare = _WORD.match(self._text, start)
        if bare is None:
            raise self._error(f"{self._text[start]!r} is not allowed here", start, 'Put text in quotes: "…"')
        self._at = bare.end()
        return self._text_term(bare[0], start)

    def _text_term(self, text: str, start: int) -> TextTerm:
        prefix = self._accept("*")
        end = self._at
        if end < len(self._text) and not self._text[end].isspace() and self._text[end] not in "()":
            if self._text[end] == "*" or prefix:
                raise self._error(
                    "a * must be at the end of a word", end - prefix, "Quote it to search for the character"
                )
            raise self._error(f"{self._text[end]!r} is not allowed here", end, "Put a space before it, or quote all")
        if not text.strip():
            raise self._error("the text to search for is empty", start)
        if prefix and text[-1:].isspace():
            raise self._error("a * must follow a word directly", end - 1)
        return TextTerm(text, prefix)

    def _meta(self, start: int, at: int) -> Field:
        keys = []
        self._at = at
        while self._accept("."):
            if self._text[self._at : self._at + 1] == '"':
                keys.append(self._quoted())
                continue
            key = _KEY.match(self._text, self._at)
            if key is None:
                raise self._error("expected the name of an entry after the dot", self._at)
            self._at = key.end()
            keys.append(key[0])
        return self._comparison(start, "meta", tuple(keys))

    def _field(self, start: int, name: str) -> Field:
        if name not in self._fields:
            near = get_close_matches(name.lower(), self._fields, 1)
            hint = f"Did you mean {near[0]}?" if near else f"Fields are {', '.join(self._fields)}."
            raise self._error(f"there is no field {name!r}", start, f"{hint} Quote it to search for the text")
        if name == "meta":
            raise self._error("meta needs the name of an entry", start + len(name), "Such as meta.source=loop")
        self._at = start + len(name)
        return self._comparison(start, name, ())

    def _comparison(self, start: int, name: str, keys: tuple[str, ...]) -> Field:
        kind = self._fields[name]
        match = _OPERATOR.match(self._text, self._at)
        if match is None:
            raise self._error(f"expected an operator after {self._text[start : self._at]}", self._at, _ops(kind))
        operator = match[0].removeprefix(":") or ":"
        if operator not in OPERATORS[kind] or (name in ("before", "after") and operator != ":"):
            expected = ":" if name in ("before", "after") else " ".join(OPERATORS[kind])
            raise self._error(f"{name} does not support {match[0]}", self._at, f"Use {expected}")
        at = self._at = match.end()
        value = self._quoted() if self._text[at : at + 1] == '"' else self._bare_value(start)
        after = self._text[self._at : self._at + 1]
        if after and not after.isspace() and after not in "()":
            raise self._error(f"{after!r} is not allowed here", self._at, "Put a space before it, or quote all")
        term = Field(name, operator, value, keys)
        if kind == TEXT or (kind == META and not _is_number_range(term)):
            return term
        try:
            bounds = _READERS[kind](term, self._now)
        except InvalidError as error:
            raise self._error(error.what, at, error.hint) from None
        return Field(name, operator, value, keys, bounds)

    def _bare_value(self, start: int) -> str:
        value = _VALUE.match(self._text, self._at)
        if value is None:
            raise self._error(f"expected a value after {self._text[start : self._at]}", self._at)
        self._at = value.end()
        return value[0]

    def _quoted(self) -> str:
        match = _QUOTED.match(self._text, self._at)
        if match is None:
            raise self._error("this quote is not closed", self._at, 'Add a "')
        self._at = match.end()
        return _ESCAPED.sub(r"\1", match[1])

    def _is_keyword(self, word: str) -> bool:
        end = self._at + len(word)
        after = self._text[end : end + 1]
        return self._text.startswith(word, self._at) and (not after or after.isspace() or after in '()"')

    def _keyword(self, word: str) -> bool:
        if not self._is_keyword(word):
            return False
        self._at += len(word)
        self._skip()
        return True

    def _accept(self, sign: str) -> bool:
        accepted = self._text.startswith(sign, self._at)
        self._at += len(sign) * accepted
        return accepted

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space is not None else self._at

    def _next(self) -> str:
        match = _VALUE.match(self._text, self._at)
        return match[0] if match is not None else self._text[self._at : self._at + 1]

    def _error(self, what: str, at: int, hint: str = "") -> InvalidError:
        text = re.sub(r"\s", " ", self._text)
        width = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text[:at])
        start = f"{hint}\n" if hint else "\n"
        return InvalidError(what, where=f"column {at + 1}", hint=f"{start}  {text}\n  {' ' * width}^")


_MAX_DEPTH = 100
_WORD = re.compile(r"""[^\s()":=<>!*]+(?:[:=<>!]+(?=[\s()]|\Z))?""")
"""A word without quotes."""


def _ops(kind: str) -> str:
    return f"One of {' '.join(OPERATORS[kind])}"


# Numbers and times ------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_SIZES |= {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")

Span: TypeAlias = tuple[float, float]
"""The numbers that a value covers, from inclusive to exclusive: a date covers a whole day."""


def _to_range(term: Field, read: Callable[[str], Span]) -> Range:
    """Return the range of an operator and a value. `!=` is evaluated as the negation of `=`."""
    if term.operator in (":", "=", "!=") and ".." in term.value:
        low, _, high = term.value.partition("..")
        if not low and not high:
            raise InvalidError("a range needs a start or an end", hint="Such as 10..20, 10.. or ..20")
        first, last = read(low) if low else None, read(high) if high else None
        if first is not None and last is not None and last[1] < first[0]:
            raise InvalidError("the range ends before it starts")
        return None if first is None else first[0], None if last is None else last[1]
    start, end = read(term.value)
    match term.operator:
        case ">":
            return end, None
        case ">=":
            return start, None
        case "<":
            return None, start
        case "<=":
            return None, end
    return start, end


def _number(text: str) -> Span:
    if not _NUMBER.fullmatch(text):
        raise InvalidError(f"{text!r} is not a number")
    number = float(text)
    return number, number + 1 if number.is_integer() else number


def _size(text: str) -> Span:
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise InvalidError(f"{text!r} is not a size", hint="Such as 500, 64kb or 1.5mb")
    number = float(match[1]) * _SIZES[match[2]]
    return number, number + 1


_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|today|(?:last )?(?:mon|tues|wednes|thurs|fri|satur|sun)day", re.IGNORECASE)
_MINUTE = re.compile(r".*[t ]?\d\d:\d\d(?:z|[+-]\d\d:?\d\d)?", re.IGNORECASE)
_SECOND = re.compile(r".*:\d\d:\d\d(?:z|[+-]\d\d:?\d\d)?", re.IGNORECASE)


def _time_range(term: Field, now: datetime) -> Range:
    def read(text: str) -> Span:
        start = parse_time(text, now)
        plain = text.strip()
        if _DAY.fullmatch(plain):
            # In local time: some days have 23 hours.
            local = start.astimezone().replace(tzinfo=None)
            return _ns(start), _ns((local + timedelta(days=1)).astimezone())
        if _SECOND.fullmatch(plain):
            return _ns(start), _ns(start + timedelta(seconds=1))
        if _MINUTE.fullmatch(plain):
            return _ns(start), _ns(start + timedelta(minutes=1))
        return _ns(start), _ns(start)

    if term.name == "before":
        return None, read(term.value)[0]
    if term.name == "after":
        return read(term.value)[0], None
    low, high = _to_range(term, read)
    if low is not None and low == high:  # an age, not a date: since then
        return low, None
    return low, high


def _ns(moment: datetime) -> float:
    return to_time(moment) - 999


def _exact(text: str) -> Span:
    number = float(text)
    return number, nextafter(number, inf)


def _is_number_range(term: Field) -> bool:
    """Return whether the value is a range of numbers. Other texts with two dots are texts."""
    low, dots, high = term.value.partition("..")
    ends = [end for end in (low, high) if end]
    return term.operator in (":", "=", "!=") and bool(dots and ends) and all(map(_NUMBER.fullmatch, ends))


_READERS: dict[str, Callable[[Field, datetime], Range]] = {
    NUMBER: lambda term, _: _to_range(term, _number),
    SIZE: lambda term, _: _to_range(term, _size),
    TIME: _time_range,
    META: lambda term, _: _to_range(term, _exact),
}


# Query eval -----------------------------------------------------------------------------------------------------------
#
# Evaluation of queries: whether a checkpoint or a thread matches.
#
# A text matches a checkpoint that added it. `channel:` and `role:` beside a text restrict it to those channels and
# messages; negated, to the others. The answer is None while it depends on parts of a checkpoint that were not read
# yet, so that the cheap part of a query is evaluated before anything is read.

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
        expected, actual = _to_number(term.value), _to_number(value)
        test = _TESTS[term.operator]
        if expected is not None and actual is not None:
            return test(actual, expected)
        return isinstance(value, str) and expected is None and test(value, term.value)
    if term.operator == ":" and not _is_number(value) and term.pattern.fullmatch(plain_text(value)):
        return True
    return _equal(term, value)


def _equal(term: Field, value: Any) -> bool:
    if term.range != (None, None):
        actual = _to_number(value)
        return (actual is not None and _is_inside(term.range, actual)) or plain_text(value) == term.value
    if _is_number(value):
        number = _to_number(term.value)
        return (term.value, term.operator) == ("*", ":") if number is None else bool(value == number)
    return plain_text(value) == term.value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_number(value: Any) -> int | float | None:
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
        MetadataFilter.of_text(each.keys, each.value, _to_number(each.value))
        for each in (query.queries if isinstance(query, And) else (query,))
        if isinstance(each, Field) and each.name == "meta" and each.operator == "=" and each.range == (None, None)
    ]


def field_filters(query: Query) -> list[list[MetadataFilter]]:
    """Return groups of entries of metadata: every matching thread has a checkpoint with one of each group."""
    groups: list[list[MetadataFilter]] = []
    for each in query.queries if isinstance(query, And) else (query,):
        parts = each.queries if isinstance(each, Or) else (each,)
        filters = [metadata_filters(part)[:1] for part in parts]
        if all(filters):
            groups.append([only for several in filters for only in several])
    return groups


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
