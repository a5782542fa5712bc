"""Values of a state as parts: kinds, sizes and previews, so that no more is read and sent than is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from holdfast._views import plain
from holdfast.codec.value_text import json_text, text_of
from holdfast.engine.paths import parse_path, path_text
from holdfast.engine.projection.rendering import is_hidden
from holdfast.engine.state_reader import ValueOutline
from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.http.models import ValueNodeModel, ValuePartModel
from holdfast.store.lazy_state import LazyState

PREVIEW = 200
"""How many characters of a value are in its preview."""

SMALL = 64 << 10
"""A value whose JSON is longer than this is not sent whole, but page by page, or as a file."""

_MAX_PAGE = 1000
_USUAL = {str, int, float, bool, type(None), dict, list}
_Kind = Literal["object", "array", "string", "number", "boolean", "null", "large"]


class StateParts:
    """A state of which parts are read: a lazy one, or one that was read whole, as an identity does."""

    def __init__(self, state: LazyState | Mapping[str, Any]) -> None:
        self._lazy = state if isinstance(state, LazyState) else None
        self._whole = state

    def names(self, *, internal: bool = True) -> list[str]:
        """Return the names of the channels, in order."""
        names = self._lazy.names() if self._lazy is not None else list(self._whole)
        return [name for name in names if internal or not is_hidden(name)]

    def value(self, path: Sequence[Any]) -> Any:
        """Return the value at a path. Raises `NotFoundError`."""
        if self._lazy is not None:
            for end in range(len(path), 0, -1):
                try:
                    found = self._lazy.value(tuple(path[:end]))
                except NotFoundError:
                    continue
                return _walk(found, path, end)
            raise _absent(path)
        return _walk(self._whole, path, 0)

    def slice(self, name: str, start: int, stop: int) -> list[Any]:
        """Return items of the list in a channel."""
        return self._lazy.slice((name,), start, stop) if self._lazy is not None else self._whole[name][start:stop]

    def part(self, text: str, start: int, limit: int, *, internal: bool) -> ValuePartModel:
        """Return the value at a path, and a page of what it contains; without a path, the channels."""
        if start < 0 or not 0 < limit <= _MAX_PAGE:
            raise InvalidError(f"a page starts at 0 or later, and has 1 to {_MAX_PAGE} items")
        if not text:
            names = self.names(internal=internal)
            items = [self.node((name,)) for name in names[start : start + limit]]
            node = _node((), "object", "", len(names), None, "", complete=False)
            return ValuePartModel(node=node, value=None, items=items, start=start, total=len(names))
        path = parse_path(text)
        lazy = self._lazy_page(path, start, limit)
        return _page(path, self.value(path), start, limit) if lazy is None else lazy

    def node(self, path: tuple[Any, ...]) -> ValueNodeModel:
        """Describe the value at a path, without reading it if it is large."""
        if self._lazy is not None:
            outline = self._lazy.outline(path)
            if outline.kind == "large":
                return _node(path, "large", "", None, outline.bytes, "", complete=False)
            if _is_long(outline):
                kind: _Kind = "array" if outline.kind == "list" else "object"
                return _node(path, kind, "", outline.length, outline.bytes, "", complete=False)
        return describe(path, self.value(path))

    def _lazy_page(self, path: tuple[Any, ...], start: int, limit: int) -> ValuePartModel | None:
        """Return a page of a long list or dict, of which only that is read; None for another value."""
        if self._lazy is None:
            return None
        try:
            outline = self._lazy.outline(path)
        except NotFoundError:
            return None  # it may be in an object of a class
        if not _is_long(outline):
            return None
        if outline.kind == "list":
            found = self._lazy.slice(path, start, start + limit)
            items = [describe((*path, start + number), item) for number, item in enumerate(found)]
            total = outline.length or 0
        else:
            keys = self._lazy.keys_at(path)
            items = [self.node((*path, key)) for key in keys[start : start + limit]]
            total = len(keys)
        kind: _Kind = "array" if outline.kind == "list" else "object"
        node = _node(path, kind, "", total, None, "", complete=False)
        return ValuePartModel(node=node, value=None, items=items, start=start, total=total)


def _is_long(outline: ValueOutline) -> bool:
    """Whether a list or dict is read part by part: it has nodes of its own, or many bytes."""
    return outline.kind in ("list", "dict") and (outline.bytes is None or outline.bytes > SMALL)


def _walk(value: Any, path: Sequence[Any], start: int) -> Any:
    """Return what is at the rest of a path in a value."""
    for part in path[start:]:
        try:
            value = value[part] if isinstance(value, dict | list | tuple) else plain(value)[part]
        except (LookupError, TypeError):
            raise _absent(path) from None
    return value


def _absent(path: Sequence[Any]) -> NotFoundError:
    return NotFoundError(f"the state has nothing at {path_text(path)}", hint="List its channels, without a path")


def _page(path: tuple[Any, ...], value: Any, start: int, limit: int) -> ValuePartModel:
    tree = plain(value)
    node = describe(path, value)
    text = json_text(tree)
    if isinstance(tree, dict):
        keys: list[Any] = list(value if isinstance(value, dict) else tree)
        of = value if isinstance(value, dict) else tree
        items = [describe((*path, key), of[key]) for key in keys[start : start + limit]]
        total = len(keys)
    elif isinstance(tree, list):
        rows = list(value) if isinstance(value, list | tuple) else tree
        items = [describe((*path, start + number), item) for number, item in enumerate(rows[start : start + limit])]
        total = len(rows)
    else:
        items, total = [], 0
    whole = len(text) <= SMALL
    if not whole and isinstance(tree, str):
        tree = tree[start : start + SMALL]  # a page of a long text
        return ValuePartModel(node=node, value=tree, items=[], start=start, total=node.length or 0)
    return ValuePartModel(node=node, value=tree if whole else None, items=items, start=start, total=total)


def describe(path: tuple[Any, ...], value: Any) -> ValueNodeModel:
    """Describe a value that was read."""
    name = "" if type(value) in _USUAL else type(value).__name__
    length = len(value) if type(value) in (dict, list, tuple) else None
    tree = plain(value if length is None else _shortened(value))
    if isinstance(tree, str):
        return _node(path, "string", name, len(tree), None, tree[:PREVIEW], complete=len(tree) <= PREVIEW)
    if isinstance(tree, dict | list):
        kind: _Kind = "object" if isinstance(tree, dict) else "array"
        text = json_text(tree if length is not None else _shortened(tree))
        complete = len(text) <= PREVIEW and "…" not in text
        length = len(tree) if length is None else length
        return _node(path, kind, name, length, None, text[:PREVIEW], complete=complete)
    kind = "null" if tree is None else "boolean" if isinstance(tree, bool) else "number"
    return _node(path, kind, name, None, None, json_text(tree), complete=True)


def _shortened(tree: Any, depth: int = 3) -> Any:
    """Return the start of a tree, with an ellipsis for the rest: enough for a preview."""
    if isinstance(tree, str):
        return tree if len(tree) <= PREVIEW else f"{tree[:PREVIEW]}…"
    if type(tree) not in (dict, list, tuple):
        return tree
    if not depth:
        return "…" if tree else tree
    if isinstance(tree, list | tuple):
        rest = ["…"] if len(tree) > 20 else []
        return [*(_shortened(item, depth - 1) for item in tree[:20]), *rest]
    return {
        **{key: _shortened(item, depth - 1) for key, item in islice(tree.items(), 20)},
        **({"…": "…"} if len(tree) > 20 else {}),
    }


def _node(
    path: tuple[Any, ...],
    kind: _Kind,
    type_name: str,
    length: int | None,
    size: int | None,
    preview: str,
    *,
    complete: bool,
) -> ValueNodeModel:
    return ValueNodeModel(
        path=path_text(path),
        key=str(path[-1]) if path else "",
        kind=kind,
        type=type_name,
        length=length,
        bytes=size,
        preview=preview,
        complete=complete,
    )


def preview_of(value: Any) -> str:
    """Return the start of a value, as text or as JSON."""
    tree = plain(value)
    return text_of(tree if isinstance(tree, str) else _shortened(tree))[:PREVIEW]


def small_json(value: Any) -> Any:
    """Return a value as plain JSON; None if it is large."""
    tree = plain(value)
    return tree if len(json_text(tree)) <= SMALL else None


def long_text(value: Any, limit: int) -> tuple[str, bool]:
    """Return a value as text, or as JSON on several lines, up to a number of characters, and whether that is all."""
    tree = plain(value)
    text = text_of(tree, indent=2)
    return text[:limit], len(text) <= limit


def file_of(value: Any) -> tuple[bytes, str]:
    """Return a value as the content of a file, and its media type, which no browser renders."""
    if isinstance(value, bytes | bytearray):
        return bytes(value), "application/octet-stream"
    if isinstance(value, str):
        return value.encode(errors="replace"), "text/plain; charset=utf-8"
    return json_text(plain(value), indent=2).encode(), "application/json"
