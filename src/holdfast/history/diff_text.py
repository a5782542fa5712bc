"""Changes between two states, and their text: lines of styled spans, which the caller may colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from holdfast.codec.value_text import json_text
from holdfast.engine.model.alignment import gaps
from holdfast.engine.model.json_diff import NOTHING, Kind, Path, plain_of
from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import RenderedMessage

_WORD = re.compile(r"\w+|\n|[^\S\n]+|[^\w\s]")

SAME, OLD, NEW = "=", "-", "+"


class TextSpan(msgspec.Struct, frozen=True):
    """A part of a text: `=` in both, `-` only in the old, `+` only in the new."""

    kind: str
    text: str


def word_spans(old: str, new: str) -> list[TextSpan]:
    """Compare two texts word by word."""
    return _spans(_WORD.findall(old), _WORD.findall(new))


def line_spans(old: str, new: str) -> list[TextSpan]:
    """Compare two texts line by line. Each span is a line with its end."""
    parts = _spans(old.splitlines(keepends=True), new.splitlines(keepends=True))
    return [TextSpan(part.kind, line) for part in parts for line in part.text.splitlines(keepends=True)]


def _spans(old: Sequence[str], new: Sequence[str]) -> list[TextSpan]:
    spans: list[tuple[str, Sequence[str]]] = []
    done = 0
    for gap in gaps(_encode(old), _encode(new)):
        spans += [
            (SAME, old[done : gap.start]),
            (OLD, old[gap.start : gap.stop]),
            (NEW, new[gap.at : gap.until]),
        ]
        done = gap.stop
    spans.append((SAME, old[done:]))
    return [TextSpan(kind, "".join(parts)) for kind, parts in spans if parts]


def _encode(parts: Sequence[str]) -> list[bytes]:
    return [part.encode(errors="surrogatepass") for part in parts]


class Change(msgspec.Struct, frozen=True):
    """One difference between two states.

    `path` is where the value is in the new state, or was in the old one if it was removed; `was` is its path in the old
    state, which differs if items of a list moved. `old` and `new` are the values, None where there is none; a value of
    a class that is not loaded is an `OpaqueValue`, a large one that was not fetched an `UnloadedValue`. A `move`
    without values means that only the order of a dict changed. `message` is set if the value is a message.
    """

    kind: Kind
    path: Path
    was: Path
    old: Any = None
    new: Any = None
    message: RenderedMessage | None = None
    trees: tuple[Any, Any] = (NOTHING, NOTHING)
    """Both values as JSON."""

    @property
    def where(self) -> str:
        """The path as text: `messages[3].content`."""
        return path_text(self.path)

    @property
    def words(self) -> list[TextSpan]:
        """The words that changed, if both values are texts; else empty."""
        return word_spans(self.old, self.new) if type(self.old) is str and type(self.new) is str else []


# Text -------------------------------------------------------------------------------------------------------

Line: TypeAlias = list[tuple[str, str]]
"""Spans of style and text; styles are `path`, `old`, `new`, `old word`, `new word`, or empty."""

_CONTEXT = 2
"""Unchanged lines of a text around a changed one."""

_MAX_WIDTH = 100
"""Longer values are formatted on several lines."""

_STYLES = {SAME: "", OLD: "old", NEW: "new"}
_SIGNS = {SAME: "  ", OLD: "- ", NEW: "+ "}
_TITLES = {"add": "added", "remove": "removed", "move": "moved", "change": ""}


def lines(changes: Iterable[Change], *, by_word: bool = False) -> Iterator[Line]:
    """Format changes, each below a line with its path."""
    first = True
    for change in changes:
        if not first:
            yield []
        first = False
        yield [("path", _title(change))]
        yield from _detail(change, by_word)


def _title(change: Change) -> str:
    path = change.where or "the state"
    if change.kind == "move" and change.trees[1] is NOTHING:
        return f"{path} (in another order)"
    if change.kind == "move":
        return f"{path} (moved from {path_text(change.was)})"
    title = _TITLES[change.kind]
    if change.kind == "change" and change.was != change.path:
        title = f"was {path_text(change.was)}"
    return f"{path} ({title})" if title else path


def _detail(change: Change, by_word: bool) -> Iterator[Line]:
    old, new = change.trees
    if change.message is not None and change.kind != "change":
        yield from _signed({"add": NEW, "remove": OLD}.get(change.kind, SAME), _message_text(change, change.message))
    elif change.kind == "move":
        if new is not NOTHING:
            yield from _signed(SAME, format_value(new))
    elif type(old) is str and type(new) is str:
        yield from _texts(change, by_word)
    else:
        if change.kind != "add":
            yield from _signed(OLD, format_value(old))
        if change.kind != "remove":
            yield from _signed(NEW, format_value(new))


def _message_text(change: Change, message: RenderedMessage) -> str:
    speaker = f"{message.role} {message.name}".strip()
    content = message.content or format_value(change.trees[change.kind != "remove"])
    return f"{speaker}: {content}" if speaker else content


def _signed(sign: str, text: str) -> Iterator[Line]:
    for line in text.splitlines() or [""]:
        yield [(_STYLES[sign], _SIGNS[sign] + line)]


def _texts(change: Change, by_word: bool) -> Iterator[Line]:
    if by_word:
        yield from _by_word(change.words)
        return
    spans = line_spans(change.old, change.new)
    visible = {
        nearby
        for number, span in enumerate(spans)
        if span.kind != SAME
        for nearby in range(number - _CONTEXT, number + _CONTEXT + 1)
    }
    skipped = False
    for number, span in enumerate(spans):
        if number not in visible:
            skipped = True
            continue
        if skipped:
            yield [("", "  …")]
        skipped = False
        yield [(_STYLES[span.kind], _SIGNS[span.kind] + span.text.rstrip("\r\n"))]


def _by_word(spans: Iterable[TextSpan]) -> Iterator[Line]:
    """Format words as git does: `[-old-]{+new+}`."""
    line: Line = [("", "  ")]
    for span in spans:
        style = {SAME: "", OLD: "old word", NEW: "new word"}[span.kind]
        before, after = {SAME: ("", ""), OLD: ("[-", "-]"), NEW: ("{+", "+}")}[span.kind]
        first, *rest = span.text.split("\n")
        line.append((style, f"{before}{first}{after}" if first or span.kind == SAME else ""))
        for part in rest:
            if span.kind == OLD:
                line.append((style, "[-↵-]"))
                line.append((style, f"{before}{part}{after}" if part else ""))
                continue
            yield line
            line = [("", "  "), (style, f"{before}{part}{after}" if part else "")]
    yield line


def format_value(tree: Any) -> str:
    """Format a JSON value on one line, or indented if that is too long."""
    plain = plain_of(tree)
    text = json_text(plain)
    return text if len(text) <= _MAX_WIDTH else json_text(plain, indent=2)
