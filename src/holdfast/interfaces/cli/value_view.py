"""Values as text: indented trees, lists of messages as conversations, long values shortened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from holdfast._views import encode, plain
from holdfast.codec import default_codec
from holdfast.engine.projection.rendering import RenderedMessage, messages
from holdfast.history.step_summary import tool_calls
from holdfast.interfaces.cli.formatting import plural, safe
from holdfast.interfaces.cli.output import Output


class DisplayLimits(NamedTuple):
    """How much of a value is shown: characters of a text, items of a list or dict, messages."""

    characters: int = 300
    items: int = 20
    messages: int = 12


SHORT = DisplayLimits()
ALL = DisplayLimits(1 << 62, 1 << 62, 1 << 62)

_COLORS = {"user": "green", "assistant": "cyan", "system": "magenta", "tool": "yellow"}
_INDENT = "  "


class ValueWriter:
    """Writes values as lines of text."""

    def __init__(self, out: Output, limits: DisplayLimits) -> None:
        self._out = out
        self._limits = limits

    def channel(self, name: str, value: Any) -> Iterator[str]:
        """Format a channel, under its name."""
        if isinstance(value, list) and value:
            yield from self.items(name, value, 0, len(value))
        else:
            yield from self._entry(self._out.style(safe(name), "bold"), plain(value), "")

    def items(self, name: str, items: Sequence[Any], start: int, length: int) -> Iterator[str]:
        """Format a list under its name, given its items from `start` on."""
        rendered = messages(name, default_codec.pack_items(items))
        title = self._out.style(safe(name), "bold")
        if rendered is None:
            yield from self._entry(title, plain(list(items)), "", length)
            return
        yield f"{title} ({plural(length, 'message')})"
        skipped = start + max(0, len(rendered) - self._limits.messages)
        if skipped:
            yield self._out.style(f"{_INDENT}… {plural(skipped, 'message')} before (--full shows all)", "dim")
        for message in rendered[skipped - start :]:
            yield from self._message(message)

    def value(self, value: Any) -> Iterator[str]:
        """Format a value."""
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
        """Format the tool calls of a message."""
        for call in tool_calls(message):
            yield f"{_INDENT * 2}{self._out.style('calls', 'yellow')} {safe(self._cut(call))}"

    def _entry(self, title: str, tree: Any, indent: str, length: int | None = None) -> Iterator[str]:
        if isinstance(tree, dict | list) and tree:
            noun = "item" if isinstance(tree, list) else "entry"
            count = len(tree) if length is None else length
            many = f" ({count:,} {noun if count == 1 else {'item': 'items', 'entry': 'entries'}[noun]})"
            yield f"{indent}{title}:{many if count > self._limits.items else ''}"
            yield from self._tree(tree, indent + _INDENT)
            return
        first, *rest = self._scalar(tree, indent + _INDENT)
        yield f"{indent}{title}: {first}"
        yield from rest

    def _tree(self, tree: Any, indent: str) -> Iterator[str]:
        limit = self._limits.items
        if isinstance(tree, dict) and tree:
            for key, item in list(tree.items())[:limit]:
                yield from self._entry(safe(key), item, indent)
            if len(tree) > limit:
                yield self._out.style(f"{indent}… {len(tree) - limit:,} more (--full shows all)", "dim")
        elif isinstance(tree, list) and tree:
            for item in tree[:limit]:
                lines = list(self._tree(item, ""))
                yield f"{indent}- {lines[0]}"
                yield from (f"{indent}  {line}" for line in lines[1:])
            if len(tree) > limit:
                yield self._out.style(f"{indent}… {len(tree) - limit:,} more (--full shows all)", "dim")
        else:
            first, *rest = self._scalar(tree, indent)
            yield f"{indent}{first}"
            yield from rest

    def _scalar(self, tree: Any, indent: str) -> list[str]:
        return self._shortened(tree, indent) if isinstance(tree, str) and tree else [safe(encode(tree))]

    def _shortened(self, text: str, indent: str) -> list[str]:
        """Split a text into lines; all but the first are indented."""
        first, *rest = safe(self._cut(text), lines=True).rstrip("\n").split("\n")
        return [first, *(f"{indent}{line}" for line in rest)]

    def _cut(self, text: str) -> str:
        limit = self._limits.characters
        if len(text) <= limit:
            return text
        return f"{text[:limit]}… ({len(text):,} characters)"
