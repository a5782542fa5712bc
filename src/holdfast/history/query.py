"""The query language: one small syntax for threads and checkpoints.

::

    refund                     brought this word; ref* one that starts so; "exact phrase" just this
    a b, a OR b, -a, (a b)     both; one of them; not this one (or NOT a)
    thread:support-*           the thread's name; * stands for anything
    id:1f0c, tag:v1, label:release, branch:main, kind:save
    step>=10, step:10..20      the number of the checkpoint in its thread
    time>2h, time:2026-11-01..2026-11-03, before:monday, after:2026-11-01T10:00
    meta.source=loop, meta.user.plan:pro, meta.score>0.5
    channel:messages, role:human
    size>1mb                   of what the checkpoint stores; of a thread, where threads are listed
    steps>100, branches>1, created<30d, updated>7d        of the thread

`:` compares with a pattern, and with a number or a time as `=` does. An age stands for the moment that long ago:
`time>2h` is in the last two hours. A date stands for the whole day.

This module reads queries and prints them; what they mean is in `holdfast.history.query_eval`. No I/O.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import cached_property
from typing import TypeAlias

from holdfast.engine.text_index.tokenize import TextFinder, needed
from holdfast.engine.time_parsing import parse_moment
from holdfast.engine.types import to_time
from holdfast.errors import InvalidError

TEXT, NUMBER, SIZE, TIME, META = "text", "number", "size", "time", "meta"

FIELDS = {
    **dict.fromkeys(("thread", "id", "tag", "label", "branch", "kind", "channel", "role"), TEXT),
    **dict.fromkeys(("step", "steps", "branches"), NUMBER),
    "size": SIZE,
    **dict.fromkeys(("time", "before", "after", "created", "updated"), TIME),
    "meta": META,
}
"""The fields, and what each is compared with."""

_ANY = ("=", "!=", ">", ">=", "<", "<=", ":")
OPERATORS = {
    TEXT: (":", "=", "!="),
    NUMBER: _ANY,
    SIZE: _ANY,
    TIME: _ANY,
    META: _ANY,
}

Range: TypeAlias = tuple[float | None, float | None]
"""From a number on, and up to another one, which no longer belongs to it. None is without end."""


@dataclass(frozen=True)
class MatchAll:
    """A query that says nothing: all match."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class TextTerm:
    """Text that a checkpoint brought."""

    text: str
    prefix: bool = False

    def __str__(self) -> str:
        return (self.text if _is_bare(self.text) else _quoted(self.text)) + "*" * self.prefix

    @cached_property
    def finder(self) -> TextFinder:
        """Finds it in folded text."""
        return TextFinder(self.text, prefix=self.prefix)

    @property
    def words(self) -> tuple[list[str], list[str]]:
        """The words that a text has which it is found in, and the starts of words."""
        return needed(self.text, prefix=self.prefix)


@dataclass(frozen=True)
class Field:
    """A comparison of a field. `keys` are those below `meta`. Of numbers and times, `ranges` are what is meant."""

    name: str
    operator: str
    value: str
    keys: tuple[str, ...] = ()
    range: Range = field(default=(None, None), compare=False)

    def __str__(self) -> str:
        keys = "".join(f".{key if _KEY.fullmatch(key) else _quoted(key)}" for key in self.keys)
        bare = _VALUE.fullmatch(self.value) and not self.value.startswith(("<", ">", "="))
        return f"{self.name}{keys}{self.operator}{self.value if bare else _quoted(self.value)}"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What a text is compared with: all of it, where `*` stands for anything if the operator is `:`."""
        if self.operator != ":":
            return re.compile(re.escape(self.value))
        flags = re.DOTALL | (re.IGNORECASE if self.name == "meta" else 0)
        return re.compile(".*".join(map(re.escape, self.value.split("*"))), flags)

    @property
    def exact(self) -> str | None:
        """The one text that it asks for; None if there may be several."""
        return self.value if self.operator == "=" or (self.operator == ":" and "*" not in self.value) else None


@dataclass(frozen=True)
class Not:
    """What must not be so."""

    query: Query

    def __str__(self) -> str:
        return f"-{_inside(self.query)}"


@dataclass(frozen=True)
class And:
    """All of several."""

    queries: tuple[Query, ...]

    def __str__(self) -> str:
        return " ".join(map(_inside, self.queries))


@dataclass(frozen=True)
class Or:
    """At least one of several."""

    queries: tuple[Query, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({each})" if isinstance(each, Or) else str(each) for each in self.queries)


Query: TypeAlias = MatchAll | TextTerm | Field | Not | And | Or


def walk(query: Query) -> Iterator[Query]:
    """A query and all that is in it."""
    yield query
    if isinstance(query, Not):
        yield from walk(query.query)
    elif isinstance(query, And | Or):
        for each in query.queries:
            yield from walk(each)


def every(queries: Iterable[Query]) -> Query:
    """The query that asks for all of these."""
    flat = [part for each in queries for part in (each.queries if isinstance(each, And) else (each,))]
    flat = [each for each in flat if not isinstance(each, MatchAll)]
    return MatchAll() if not flat else flat[0] if len(flat) == 1 else And(tuple(flat))


def either(queries: Iterable[Query]) -> Query:
    """The query that asks for one of these."""
    flat = [part for each in queries for part in (each.queries if isinstance(each, Or) else (each,))]
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def _inside(query: Query) -> str:
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


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# Reading ----------------------------------------------------------------------------------------------------------


def has_text(query: str) -> bool:
    """Return whether a query asks for text, which an index finds."""
    return any(isinstance(each, TextTerm) for each in walk(parse(query)))


def parse(text: str, now: datetime | None = None) -> Query:
    """The query that a text is. Raises `InvalidError`, with the column where it goes wrong. Ages are counted from
    `now`."""
    if not isinstance(text, str):
        raise InvalidError(f"a query is a string, not {type(text).__name__}", where=repr(text)[:80])
    return _Parser(text, now or datetime.now(UTC)).parse()


class _Parser:
    def __init__(self, text: str, now: datetime) -> None:
        self._text = text
        self._now = now
        self._at = 0
        self._open: list[int] = []

    def parse(self) -> Query:
        self._skip()
        if self._at == len(self._text):
            return MatchAll()
        query = self._either()
        if self._at < len(self._text):
            raise self._wrong("there is no ( for this )", self._at)
        return query

    def _either(self) -> Query:
        found = [self._every()]
        while self._keyword("OR"):
            found.append(self._every())
        return either(found)

    def _every(self) -> Query:
        found = [self._one()]
        while self._at < len(self._text) and self._text[self._at] != ")" and not self._is_keyword("OR"):
            self._keyword("AND")
            found.append(self._one())
        return every(found)

    def _one(self) -> Query:
        if len(self._open) > _DEEPEST:
            raise self._wrong(f"a query nests at most {_DEEPEST} deep", self._at)
        start = self._at
        if self._keyword("NOT") or self._take("-"):
            self._open.append(start)
            query: Query = Not(self._one())
            self._open.pop()
            return query
        if self._take("("):
            self._open.append(start)
            self._skip()
            query = self._either()
            self._open.pop()
            if not self._take(")"):
                raise self._wrong("this ( is not closed", start, "Add a )")
            self._skip()
            return query
        query = self._term()
        self._skip()
        return query

    def _term(self) -> Query:
        start = self._at
        if start == len(self._text) or self._text[start] == ")" or any(map(self._is_keyword, _KEYWORDS)):
            found = f", not {self._next()!r}" if start < len(self._text) else ""
            raise self._wrong(f"a word or a field is expected here{found}", start, "To look for such a word, quote it")
        if self._text[start] == '"':
            return self._said(self._quote(), start)
        named = _FIELD.match(self._text, start)
        if named is not None:
            end = named.end()
            rest = self._text[end : end + 1]
            if rest == "." and named[0] == "meta":
                return self._meta(start, end)
            if _OPERATOR.match(self._text, end):
                return self._field(start, named[0])
        bare = _WORD.match(self._text, start)
        if bare is None:
            raise self._wrong(f"{self._text[start]!r} cannot stand here", start, 'Put text in quotes: "…"')
        self._at = bare.end()
        return self._said(bare[0], start)

    def _said(self, text: str, start: int) -> TextTerm:
        """Text that was read from a place on; a * may follow."""
        prefix = self._take("*")
        end = self._at
        if end < len(self._text) and not self._text[end].isspace() and self._text[end] not in "()":
            if self._text[end] == "*" or prefix:
                raise self._wrong("a * stands at the end of a word", end - prefix, "Quote it to look for the character")
            raise self._wrong(f"{self._text[end]!r} cannot stand here", end, "Put a space before, or all in quotes")
        if not text.strip():
            raise self._wrong("there is nothing to look for here", start)
        if prefix and text[-1:].isspace():
            raise self._wrong("a * stands right after a word", end - 1)
        return TextTerm(text, prefix)

    def _meta(self, start: int, at: int) -> Field:
        keys = []
        self._at = at
        while self._take("."):
            if self._text[self._at : self._at + 1] == '"':
                keys.append(self._quote())
                continue
            key = _KEY.match(self._text, self._at)
            if key is None:
                raise self._wrong("the name of an entry is expected after the dot", self._at)
            self._at = key.end()
            keys.append(key[0])
        return self._compared(start, "meta", tuple(keys))

    def _field(self, start: int, name: str) -> Field:
        if name not in FIELDS:
            near = get_close_matches(name.lower(), FIELDS, 1)
            hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(FIELDS)}."
            raise self._wrong(f"there is no field {name!r}", start, f"{hint} To look for the text, quote it")
        if name == "meta":
            raise self._wrong("meta is followed by the name of an entry", start + len(name), "Such as meta.source=loop")
        self._at = start + len(name)
        return self._compared(start, name, ())

    def _compared(self, start: int, name: str, keys: tuple[str, ...]) -> Field:
        kind = FIELDS[name]
        found = _OPERATOR.match(self._text, self._at)
        if found is None:
            raise self._wrong(f"an operator is expected after {self._text[start : self._at]}", self._at, _ops(kind))
        operator = found[0].removeprefix(":") or ":"
        if operator not in OPERATORS[kind] or (name in ("before", "after") and operator != ":"):
            expected = ":" if name in ("before", "after") else " ".join(OPERATORS[kind])
            raise self._wrong(f"{name} is not compared with {found[0]}", self._at, f"Use {expected}")
        at = self._at = found.end()
        value = self._quote() if self._text[at : at + 1] == '"' else self._bare_value(start)
        after = self._text[self._at : self._at + 1]
        if after and not after.isspace() and after not in "()":
            raise self._wrong(f"{after!r} cannot stand here", self._at, "Put a space before, or all in quotes")
        made = Field(name, operator, value, keys)
        if kind in (TEXT, META):
            return made
        try:
            meant = _READERS[kind](made, self._now)
        except InvalidError as error:
            raise self._wrong(error.what, at, error.hint) from None
        return Field(name, operator, value, keys, meant)

    def _bare_value(self, start: int) -> str:
        value = _VALUE.match(self._text, self._at)
        if value is None:
            raise self._wrong(f"a value is expected after {self._text[start : self._at]}", self._at)
        self._at = value.end()
        return value[0]

    def _quote(self) -> str:
        found = _QUOTED.match(self._text, self._at)
        if found is None:
            raise self._wrong("this quote is not closed", self._at, 'Add a "')
        self._at = found.end()
        return _ESCAPED.sub(r"\1", found[1])

    # Words of the language

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

    def _take(self, sign: str) -> bool:
        there = self._text.startswith(sign, self._at)
        self._at += len(sign) * there
        return there

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space is not None else self._at

    def _next(self) -> str:
        found = _VALUE.match(self._text, self._at)
        return found[0] if found is not None else self._text[self._at : self._at + 1]

    def _wrong(self, what: str, at: int, hint: str = "") -> InvalidError:
        shown = re.sub(r"\s", " ", self._text)
        width = sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in shown[:at])
        start = f"{hint}\n" if hint else "\n"
        return InvalidError(what, where=f"column {at + 1}", hint=f"{start}  {shown}\n  {' ' * width}^")


_DEEPEST = 100
_WORD = re.compile(r"""[^\s()":=<>!*]+(?:[:=<>!]+(?=[\s()]|\Z))?""")
"""A word as it may stand without quotes."""


def _ops(kind: str) -> str:
    return f"One of {' '.join(OPERATORS[kind])}"


# Numbers and times ------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SIZES = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4}
_SIZES |= {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")

Span: TypeAlias = tuple[float, float]
"""What a value stands for: from a number on, up to another. A date stands for a whole day."""


def _compared(made: Field, read: Callable[[str], Span]) -> Range:
    """What lies in the range that an operator and a value stand for. `!=` is left to who compares."""
    if made.operator in (":", "=", "!=") and ".." in made.value:
        low, _, high = made.value.partition("..")
        if not low and not high:
            raise InvalidError("a range has a start or an end", hint="Such as 10..20, 10.. or ..20")
        first, last = read(low) if low else None, read(high) if high else None
        if first is not None and last is not None and last[1] < first[0]:
            raise InvalidError("the range ends before it starts")
        return None if first is None else first[0], None if last is None else last[1]
    start, end = read(made.value)
    match made.operator:
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
        raise InvalidError(f"{text!r} is no number")
    number = float(text)
    return number, number + 1 if number.is_integer() else number


def _size(text: str) -> Span:
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SIZES:
        raise InvalidError(f"{text!r} is no size", hint="Such as 500, 64kb or 1.5mb")
    number = float(found[1]) * _SIZES[found[2]]
    return number, number + 1


_DAY = re.compile(r"\d{4}-?\d\d-?\d\d|today|(?:last )?(?:mon|tues|wednes|thurs|fri|satur|sun)day", re.IGNORECASE)
_MINUTE = re.compile(r".*[t ]?\d\d:\d\d(?:z|[+-]\d\d:?\d\d)?", re.IGNORECASE)
_SECOND = re.compile(r".*:\d\d:\d\d(?:z|[+-]\d\d:?\d\d)?", re.IGNORECASE)


def _time(made: Field, now: datetime) -> Range:
    def read(text: str) -> Span:
        start = parse_moment(text, now)
        plain = text.strip()
        if _DAY.fullmatch(plain):
            # By the clocks on the wall: some days have 23 hours.
            local = start.astimezone().replace(tzinfo=None)
            return _ns(start), _ns((local + timedelta(days=1)).astimezone())
        if _SECOND.fullmatch(plain):
            return _ns(start), _ns(start + timedelta(seconds=1))
        if _MINUTE.fullmatch(plain):
            return _ns(start), _ns(start + timedelta(minutes=1))
        return _ns(start), _ns(start)

    if made.name == "before":
        return None, read(made.value)[0]
    if made.name == "after":
        return read(made.value)[0], None
    low, high = _compared(made, read)
    if low is not None and low == high:  # an age, and no date: from that long ago on
        return low, None
    return low, high


def _ns(moment: datetime) -> float:
    return to_time(moment) - 999


_READERS: dict[str, Callable[[Field, datetime], Range]] = {
    NUMBER: lambda made, _: _compared(made, _number),
    SIZE: lambda made, _: _compared(made, _size),
    TIME: _time,
}
