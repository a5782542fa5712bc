"""Places in a state, as people write them: `messages[3].content`, `memory["last name"]`, `messages[-10:]`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from holdfast.errors import InvalidError

_PLAIN = re.compile(r"[^\s.\[\]\"'$][^\s.\[\]\"']*")
_PART = re.compile(
    r"""
    \[\s*(?P<start>-?\d+)?\s*:\s*(?P<stop>-?\d+)?\s*\]
    | \[\s*(?P<index>-?\d+)\s*\]
    | \[\s*(?P<text>"(?:[^"\\]|\\.)*")\s*\]
    | \[\s*'(?P<quoted>[^']*)'\s*\]
    | (?P<dot>\.?)(?P<name>[^\s.\[\]"'][^.\[\]"']*)
    """,
    re.VERBOSE,
)


def path_text(path: Sequence[Any]) -> str:
    """A path for people, as `parse_path` reads it where its keys are text."""
    text = ""
    for part in path:
        if type(part) is int:
            text += f"[{part}]"
        elif type(part) is slice:
            text += f"[{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}]"
        elif type(part) is not str:
            text += f"[{part!r}]"
        else:
            text += f".{part}" if _PLAIN.fullmatch(part) else f"[{json.dumps(part, ensure_ascii=False)}]"
    return text.removeprefix(".")


def place(path: object) -> tuple[Any, ...]:
    """A path as callers give it: text, or its parts."""
    if isinstance(path, str):
        return parse_path(path)
    if not isinstance(path, tuple | list) or not path or type(path[0]) is not str:
        raise InvalidError(
            "a place in a state is named by text, or by a tuple that starts with the name of a channel",
            where=repr(path)[:80],
            hint='For example "messages[3]", or ("messages", 3)',
        )
    if any(type(part) is slice for part in path[:-1]):
        raise InvalidError("only the last part of a path can be several items of a list", where=path_text(path))
    return tuple(path)


def parse_path(text: str) -> tuple[Any, ...]:
    """The parts of a path: names as text, places in a list as numbers, stretches of one as slices."""
    parts: list[Any] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None or (found["name"] is not None and bool(found["dot"]) is not bool(parts)):
            raise InvalidError(
                'a path is written as messages[3].content or memory["last name"]',
                where=f"column {at + 1} of {text!r}",
            )
        parts.append(_part(found))
        at = found.end()
    return place(parts)


def _part(found: re.Match[str]) -> Any:
    if found["index"] is not None:
        return int(found["index"])
    if found["text"] is not None:
        try:
            return json.loads(found["text"])
        except ValueError:
            raise InvalidError("a name in quotes is not JSON text", where=found["text"]) from None
    if found["quoted"] is not None:
        return found["quoted"]
    if found["name"] is not None:
        return found["name"]
    return slice(*(None if found[end] is None else int(found[end]) for end in ("start", "stop")))
