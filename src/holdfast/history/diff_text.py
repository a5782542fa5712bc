"""Changes as lines for people. A line is a list of styled texts; whoever prints them knows about colours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.engine.model.json_diff import NOTHING, plain_of
from holdfast.engine.paths import path_text
from holdfast.history.text_diff import NEW, OLD, SAME, TextSpan
from holdfast.history.text_diff import lines as line_spans

if TYPE_CHECKING:
    from holdfast.history.change import Change

Line: TypeAlias = list[tuple[str, str]]
"""Texts with their styles: `place`, `old`, `new`, `old word`, `new word`, or none."""

_CONTEXT = 2
"""How many unchanged lines of a text are shown around a changed one."""

_WIDE = 100
"""How many characters of a value stand on one line."""

_STYLES = {SAME: "", OLD: "old", NEW: "new"}
_SIGNS = {SAME: "  ", OLD: "- ", NEW: "+ "}
_TITLES = {"add": "added", "remove": "removed", "move": "moved", "change": ""}


def lines(changes: Iterable[Change], *, by_word: bool = False) -> Iterator[Line]:
    """The changes, each under a line that names its place."""
    first = True
    for change in changes:
        if not first:
            yield []
        first = False
        yield [("place", _title(change))]
        yield from _detail(change, by_word)


def _title(change: Change) -> str:
    place = change.where or "the state"
    if change.kind == "move" and change.trees[1] is NOTHING:
        return f"{place} (in another order)"
    if change.kind == "move":
        return f"{place} (moved from {path_text(change.was)})"
    title = _TITLES[change.kind]
    if change.kind == "change" and change.was != change.path:
        title = f"was {path_text(change.was)}"
    return f"{place} ({title})" if title else place


def _detail(change: Change, by_word: bool) -> Iterator[Line]:
    old, new = change.trees
    if change.message is not None and change.kind != "change":
        yield from _said(change, {"add": NEW, "remove": OLD}.get(change.kind, SAME))
    elif change.kind == "move":
        if new is not NOTHING:
            yield from _signed(SAME, shown(new))
    elif type(old) is str and type(new) is str:
        yield from _texts(change, by_word)
    else:
        if change.kind != "add":
            yield from _signed(OLD, shown(old))
        if change.kind != "remove":
            yield from _signed(NEW, shown(new))


def _said(change: Change, sign: str) -> Iterator[Line]:
    """A message as in a conversation."""
    message = change.message
    assert message is not None  # noqa: S101 - the caller looked
    who = f"{message.role} {message.name}".strip()
    said = message.content or shown(change.trees[change.kind != "remove"])
    yield from _signed(sign, f"{who}: {said}" if who else said)


def _signed(sign: str, text: str) -> Iterator[Line]:
    for line in text.splitlines() or [""]:
        yield [(_STYLES[sign], _SIGNS[sign] + line)]


def _texts(change: Change, by_word: bool) -> Iterator[Line]:
    if by_word:
        yield from _by_word(change.words)
        return
    spans = line_spans(change.old, change.new)
    shown_at = {
        place
        for number, span in enumerate(spans)
        if span.kind != SAME
        for place in range(number - _CONTEXT, number + _CONTEXT + 1)
    }
    skipped = False
    for number, span in enumerate(spans):
        if number not in shown_at:
            skipped = True
            continue
        if skipped:
            yield [("", "  …")]
        skipped = False
        yield [(_STYLES[span.kind], _SIGNS[span.kind] + span.text.rstrip("\r\n"))]


def _by_word(spans: Iterable[TextSpan]) -> Iterator[Line]:
    """As git does it: `[-old-]{+new+}`, in lines."""
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


def shown(tree: Any) -> str:
    """A value in JSON form, for people: on a line, or if that is too long, on several."""
    plain = plain_of(tree)
    text = json.dumps(plain, ensure_ascii=False)
    return text if len(text) <= _WIDE else json.dumps(plain, ensure_ascii=False, indent=2)
