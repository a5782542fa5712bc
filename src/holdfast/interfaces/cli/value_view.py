"""Values for people: trees by indentation, lists of messages as conversations, long ones shortened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.codec import default_codec
from holdfast.engine.projection.rendering import RenderedMessage, messages
from holdfast.interfaces.cli.formatting import plural, safe
from holdfast.interfaces.cli.json_output import encode, plain
from holdfast.interfaces.cli.output import Output


class DisplayLimits(NamedTuple):
    """How much of a value is shown: characters of a text, items of a list or dict, messages of a conversation."""

    characters: int = 300
    items: int = 20
    messages: int = 12


ROOM = DisplayLimits()
ALL = DisplayLimits(1 << 62, 1 << 62, 1 << 62)

_COLORS = {"user": "green", "assistant": "cyan", "system": "magenta", "tool": "yellow"}
_INDENT = "  "


class ValueWriter:
    """Writes values as lines of text."""

    def __init__(self, out: Output, room: DisplayLimits) -> None:
        self._out = out
        self._room = room

    def channel(self, name: str, value: Any) -> Iterator[str]:
        """A channel, under its name."""
        if isinstance(value, list) and value:
            yield from self.stretch(name, value, 0, len(value))
        else:
            yield from self._entry(self._out.style(safe(name), "bold"), plain(value), "")

    def stretch(self, name: str, items: Sequence[Any], start: int, length: int) -> Iterator[str]:
        """A list under its name, of which these items are at hand, from `start` on."""
        said = messages(name, default_codec.pack_items(items))
        title = self._out.style(safe(name), "bold")
        if said is None:
            yield from self._entry(title, plain(list(items)), "", length)
            return
        yield f"{title} ({plural(length, 'message')})"
        skipped = start + max(0, len(said) - self._room.messages)
        if skipped:
            yield self._out.style(f"{_INDENT}… {plural(skipped, 'message')} before (--full shows all)", "dim")
        for message in said[skipped - start :]:
            yield from self._message(message)

    def value(self, value: Any) -> Iterator[str]:
        """A value alone."""
        tree = plain(value)
        if isinstance(tree, str):
            yield from safe(tree, lines=True).split("\n")
        else:
            yield from self._tree(tree, "")

    def _message(self, message: RenderedMessage) -> Iterator[str]:
        who = message.role or "text"
        name = f" {safe(message.name)}" if message.name else ""
        color = _COLORS.get(message.role, "blue")
        first, *rest = self._shortened(message.content, _INDENT * 2) or [""]
        yield f"{_INDENT}{self._out.style(f'{safe(who)}{name}:', color)} {first}".rstrip()
        yield from rest
        yield from self._calls(message)

    def _calls(self, message: RenderedMessage) -> Iterator[str]:
        """The tools that a message calls."""
        for call in tool_calls(message):
            yield f"{_INDENT * 2}{self._out.style('calls', 'yellow')} {safe(self._cut(call))}"

    def _entry(self, title: str, tree: Any, indent: str, length: int | None = None) -> Iterator[str]:
        if isinstance(tree, dict | list) and tree:
            noun = "item" if isinstance(tree, list) else "entry"
            count = len(tree) if length is None else length
            many = f" ({count:,} {noun if count == 1 else {'item': 'items', 'entry': 'entries'}[noun]})"
            yield f"{indent}{title}:{many if count > self._room.items else ''}"
            yield from self._tree(tree, indent + _INDENT)
            return
        first, *rest = self._scalar(tree, indent + _INDENT)
        yield f"{indent}{title}: {first}"
        yield from rest

    def _tree(self, tree: Any, indent: str) -> Iterator[str]:
        room = self._room.items
        if isinstance(tree, dict) and tree:
            for key, item in list(tree.items())[:room]:
                yield from self._entry(safe(key), item, indent)
            if len(tree) > room:
                yield self._out.style(f"{indent}… {len(tree) - room:,} more (--full shows all)", "dim")
        elif isinstance(tree, list) and tree:
            for item in tree[:room]:
                lines = list(self._tree(item, ""))
                yield f"{indent}- {lines[0]}"
                yield from (f"{indent}  {line}" for line in lines[1:])
            if len(tree) > room:
                yield self._out.style(f"{indent}… {len(tree) - room:,} more (--full shows all)", "dim")
        else:
            first, *rest = self._scalar(tree, indent)
            yield f"{indent}{first}"
            yield from rest

    def _scalar(self, tree: Any, indent: str) -> list[str]:
        return self._shortened(tree, indent) if isinstance(tree, str) and tree else [safe(encode(tree))]

    def _shortened(self, text: str, indent: str) -> list[str]:
        """A text as lines, of which all but the first are indented."""
        first, *rest = safe(self._cut(text), lines=True).rstrip("\n").split("\n")
        return [first, *(f"{indent}{line}" for line in rest)]

    def _cut(self, text: str) -> str:
        room = self._room.characters
        if len(text) <= room:
            return text
        return f"{text[:room]}… ({len(text):,} characters)"


def tool_calls(message: RenderedMessage) -> Iterator[str]:
    """The tools that a message calls, as in `search({"q":"cats"})`."""
    from msgspec.json import decode

    tree = decode(message.json)
    calls = tree.get("tool_calls") if isinstance(tree, dict) else None
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, dict):
            function = call.get("function")
            called = function if isinstance(function, dict) else call
            arguments = called.get("args", called.get("arguments", {}))
            yield f"{called.get('name', '')}({arguments if isinstance(arguments, str) else encode(arguments)})"
