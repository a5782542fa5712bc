"""Paths into a state: as text, `messages[3].content` or `memory["last name"]`, or as an exact tuple of keys."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast.errors import InvalidError

Path: TypeAlias = str | Sequence[Any]
"""A path into a state: `"plan.done"`, `"messages[-1]"`, or the keys as they are: `("plan", "done")`."""

_PLAIN = re.compile(r"[^\s.\[\]\"'$][^\s.\[\]\"']*")
_PART = re.compile(
    r"""
    \[\s*(?P<start>-?\d+)?\s*:\s*(?P<stop>-?\d+)?\s*\]
    | \[\s*(?P<index>-?\d+)\s*\]
    | \[\s*(?P<text>"(?:[^"\\]|\\.)*")\s*\]
    | \[\s*'(?P<quoted>[^']*)'\s*\]
    | (?P<dot>\.?)(?P<name>[^\s.\[\]"'](?:[^.\[\]"']*[^\s.\[\]"'])?)
    """,
    re.VERBOSE,
)
_HINT = 'For example "messages[3]", "plan.done", or ("plan", "done")'


def path_text(path: Sequence[Any]) -> str:
    """Format a path. `parse_path` reads it back if its keys are text and indexes."""
    text = ""
    for part in path:
        if type(part) is int:
            text += f"[{part}]"
        elif type(part) is slice:
            text += f"[{'' if part.start is None else part.start}:{'' if part.stop is None else part.stop}]"
        elif type(part) is not str:
            text += f"[{part!r}]"
        else:
            text += f".{part}" if _PLAIN.fullmatch(part) else f"[{_quote(part)}]"
    return text.removeprefix(".")


def _quote(key: str) -> str:
    import json  # only odd keys need it

    return json.dumps(key, ensure_ascii=False)


def require_path(path: object) -> tuple[Any, ...]:
    """Require a path to one value, as text or as a tuple."""
    keys = require_range(path)
    if type(keys[-1]) is slice:
        raise InvalidError("a path to one value cannot end in a range of items", where=path_text(keys), hint=_HINT)
    return keys


def require_range(path: object) -> tuple[Any, ...]:
    """Require a path to one value, or to a range of the items of a list."""
    if isinstance(path, str):
        return (path,) if path.isidentifier() else parse_path(path)
    if not isinstance(path, tuple | list) or not path or type(path[0]) is not str:
        raise InvalidError(
            "a path must be a string, or a tuple that starts with the name of a channel",
            where=repr(path)[:80],
            hint=_HINT,
        )
    if any(type(part) is slice for part in path[:-1]):
        raise InvalidError("only the last part of a path can be a range of items", where=path_text(path))
    for key in path:
        if type(key) is not slice and not _hashable(key):
            raise InvalidError(f"a key of a dict cannot be {type(key).__name__}", where=repr(path)[:80])
    return tuple(path)


def parse_path(text: str) -> tuple[Any, ...]:
    """Parse a path into its keys: names as text, indexes as numbers, ranges as slices."""
    if not text:
        raise InvalidError("a path cannot be empty", hint=f'{_HINT}; a channel without a name is ("",)')
    keys: list[Any] = []
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or (match["name"] is not None and bool(match["dot"]) is not bool(keys)):
            raise InvalidError(
                'a path must have a form such as messages[3].content or memory["last name"]',
                where=f"column {at + 1} of {text!r}",
                hint='Quote a key that has dots, brackets or quotes: files["a.txt"]',
            )
        keys.append(_parse_key(match))
        at = match.end()
    return require_range(keys)


def _parse_key(match: re.Match[str]) -> Any:
    if match["index"] is not None:
        return int(match["index"])
    if match["text"] is not None:
        import json

        try:
            return json.loads(match["text"])
        except ValueError:
            raise InvalidError("a quoted name is not a JSON string", where=match["text"]) from None
    if match["quoted"] is not None:
        return match["quoted"]
    if match["name"] is not None:
        return match["name"]
    return slice(*(None if match[end] is None else int(match[end]) for end in ("start", "stop")))


def _hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
