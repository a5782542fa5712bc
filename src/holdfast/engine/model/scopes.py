"""Scopes of state, and the keys in them: their names, which are unique.

A scope is a path of parts, such as `workflow:w1/step:fetch`; the state without a part is the global one. Parts are in
one order, whatever the order of arguments: `state(step="fetch", workflow="w1")` is the same scope. A key is text in
segments, `plan/today`. Names are compared and stored in Unicode's normal form C.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Self

from holdfast._fields import sent_as_text
from holdfast._named_tuple import NamedTuple
from holdfast.errors import InvalidError

KINDS = ("user", "session", "workflow", "agent", "step", "tool", "hook", "custom", "items")
"""The kinds of parts of a scope, in their order."""

CUSTOM = "custom"
ITEMS = "items"
"""The kind of part of scopes whose keys are items: they are found by the fields of their values, too."""

MARK = "␞"
"""The start of the names of lines that contain state and not a thread."""

MAX_KEY = 256
"""The largest number of characters of a key, or of the name in a part of a scope."""

MAX_LINE = 1024
"""The largest number of bytes of a line's name, in every store."""

GLOBAL = "global"

THREAD = "thread"
"""The kind of part that stands for a thread, in records that are about scopes and threads. No scope has it."""

_RANK = {kind: rank for rank, kind in enumerate(KINDS)}
_HALVES = "\ud800-\udfff"
_CONTROL = f"\0-\x1f\x7f-\x9f{_HALVES}\u2028\u2029"
"""Characters that no name has: controls, halves of surrogate pairs, ends of lines and paragraphs."""


@cache  # built on first use: it takes long, and plain names do without
def _any_of(characters: str) -> re.Pattern[str]:
    return re.compile(f"[{characters}]")


class ScopePart(NamedTuple):
    """A kind and a name: `agent:researcher`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{quoted(self.name)}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a part of any kind."""
        kind, _, name = text.partition(":")
        return cls(kind, unquoted(name))


@sent_as_text
class Scope(NamedTuple):
    """The location of state. `str(scope)` and `Scope.parse` are inverse to each other."""

    parts: tuple[ScopePart, ...] = ()

    @classmethod
    def of(cls, **parts: str | None) -> Self:
        """Return the scope of these parts; those that are None are left out."""
        return cls(_made_of(parts))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a scope, such as `workflow:w1/step:fetch`, or `global`.

        In a name of the kind `custom`, slashes may be plain if no colon follows: `custom:document/plan`.
        """
        if not isinstance(text, str):
            raise InvalidError(
                f"a scope must be a string such as 'agent:researcher', not {type(text).__name__}", where=_shown(text)
            )
        text = _plain(text)
        if text == GLOBAL:
            return cls()
        parts: list[tuple[str, str]] = []
        for part in text.split("/"):
            kind, colon, name = part.partition(":")
            if not colon and parts and parts[-1][0] == CUSTOM:
                parts[-1] = (CUSTOM, f"{parts[-1][1]}/{unquoted(part)}")
                continue
            if not colon:
                raise InvalidError(
                    "a part of a scope must be a kind and a name",
                    where=_shown(text),
                    hint="Such as agent:researcher; in a name, write a slash as %2F",
                )
            parts.append((kind, unquoted(name)))
        return cls(_ordered(tuple(parts)))

    def within(self, **parts: str | None) -> Self:
        """Return the scope with further parts."""
        return type(self)(_made_of(parts, self.parts))

    def __str__(self) -> str:
        return _text(self.parts)

    @property
    def line(self) -> str:
        """Return the name of the line with the scope's state."""
        return MARK + str(self)

    @classmethod
    def of_line(cls, name: str) -> Self | None:
        """Return the scope whose state is in a line of this name; None if it is another kind of line."""
        if not name.startswith(MARK):
            return None
        try:
            scope = cls.parse(name[len(MARK) :])
        except InvalidError:
            return None
        return scope if scope.line == name else None

    @classmethod
    def of_thread(cls, name: str) -> Self:
        """Return the place of a thread, in records that are about scopes and threads. No scope has this path."""
        return cls((ScopePart(THREAD, name),))

    @property
    def thread(self) -> str:
        """Return the name of the thread whose place this is; empty for a scope."""
        return self.parts[0].name if self.parts and self.parts[0].kind == THREAD else ""

    def contains(self, other: Scope) -> bool:
        """Return whether the other scope is this one, or lies in it."""
        return other.parts[: len(self.parts)] == self.parts


def readable_place(text: str) -> str:
    """Return the text of a scope, or of a thread's place, with plain slashes where `Scope.parse` takes them."""
    before, custom, name = text.partition(f"{CUSTOM}:")
    if "%2F" not in name or "%25" in name or (before and not before.endswith("/")):
        return text
    own, items, rest = name.partition("/")
    first, *others = own.split("%2F")
    return text if ":" in "".join(others) else f"{before}{custom}{'/'.join((first, *others))}{items}{rest}"


def place_of_line(name: str) -> str:
    """Return the scope or the thread of a line as text: `agent:researcher`, `thread:chat-1`."""
    return name[len(MARK) :] if name.startswith(MARK) else str(Scope.of_thread(name))


def parse_place(text: str) -> Scope:
    """Parse a scope, or the place of a thread."""
    kind, _, name = text.partition(":")
    return Scope.of_thread(unquoted(name)) if kind == THREAD else Scope.parse(text)


def _made_of(given: Mapping[str, str | None], before: tuple[ScopePart, ...] = ()) -> tuple[ScopePart, ...]:
    """Return parts in their order, together with existing ones."""
    named = []
    for kind, name in given.items():
        if name is not None:
            plain = _plain(kind)
            named.append((plain, check_key(name, f"name of the {plain if plain in _RANK else 'part'}")))
    return _ordered((*before, *named))


def _plain(text: str) -> str:
    """Return the text as a plain string: a subclass may claim to equal another name in the cache."""
    return text if type(text) is str else str.__str__(text)


@lru_cache(4096)
def _text(parts: tuple[ScopePart, ...]) -> str:
    return "/".join(map(str, parts)) or GLOBAL


@lru_cache(4096)
def _ordered(given: tuple[tuple[str, str], ...]) -> tuple[ScopePart, ...]:
    kinds = [kind for kind, _ in given]
    for kind in kinds:
        if kind not in _RANK:
            raise InvalidError(
                f"there is no kind of scope {ascii(kind)[:80]}",
                where=ascii("/".join(f"{each}:{name}" for each, name in given))[:80],
                hint=f"The kinds are {', '.join(KINDS)}",
            )
    if len(set(kinds)) < len(kinds):
        raise InvalidError("a scope can have only one part of each kind", where=_shown(given))
    parts = tuple(
        ScopePart(kind, check_key(name, f"name of the {kind}"))
        for kind, name in sorted(given, key=lambda part: _RANK[part[0]])
    )
    if (size := len(Scope(parts).line.encode())) > MAX_LINE:
        raise InvalidError(
            f"the names of a scope may take {MAX_LINE} bytes of UTF-8 in total, and these take {size}",
            where=_shown(given),
            hint="Use shorter names, or digests of these",
        )
    return parts


@lru_cache(65536)
def _checked(text: str, what: str) -> str:
    text = unicodedata.normalize("NFC", text) if not text.isascii() else text
    if not text:
        raise InvalidError(f"the {what} must not be empty")
    if len(text) > MAX_KEY:
        raise InvalidError(
            f"the {what} may have at most {MAX_KEY} characters, and this one has {len(text)}", where=f"{text[:40]}…"
        )
    control = None if text.isascii() and text.isprintable() else _any_of(_CONTROL).search(text)
    if control is not None:
        raise InvalidError(
            f"the {what} has a control character, U+{ord(control[0]):04X}, at {control.start()}",
            where=_shown(text),
        )
    for segment in text.replace("\\", "/").split("/"):
        if segment in ("", ".", ".."):
            raise InvalidError(
                f"the {what} has a segment {segment!r}" if segment else f"the {what} has an empty segment",
                where=_shown(text),
                hint="Put a name before, between and after the slashes",
            )
    return text


def check_key(text: object, what: str = "key") -> str:
    """Return a key, or a name in a scope, in its normal form. `InvalidError` if it is not valid."""
    if not isinstance(text, str):
        raise InvalidError(f"the {what} must be a string, not {type(text).__name__}", where=_shown(text))
    text = _plain(text)
    if len(text) > 4 * MAX_KEY:  # the normal form is shorter, but not by that much
        raise InvalidError(
            f"the {what} may have at most {MAX_KEY} characters, and this one has {len(text)}", where=f"{text[:40]}…"
        )
    return _checked(text, what)


def normal(text: object, what: str) -> str:
    """Return a text to compare names with, such as a prefix or a pattern, in its normal form."""
    if not isinstance(text, str):
        raise InvalidError(f"the {what} must be a string, not {type(text).__name__}", where=_shown(text))
    text = _plain(text)
    if text.isascii():
        return text
    if _any_of(_HALVES).search(text):
        raise InvalidError(f"the {what} is not text: it has lone surrogates", where=_shown(text))
    return unicodedata.normalize("NFC", text)


def _shown(value: object) -> str:
    return ascii(value)[:80]


def quoted(name: str) -> str:
    """Return a name with slashes escaped, which no other name shares."""
    return name.replace("%", "%25").replace("/", "%2F") if "%" in name or "/" in name else name


def unquoted(name: str) -> str:
    """Return the name that was quoted."""
    return name.replace("%2F", "/").replace("%25", "%") if "%" in name else name
