"""The difference between two states: as a summary, changes, JSON Patch, text or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from msgspec.json import encode
from msgspec.structs import asdict

from holdfast._views import MAX_ROWS, html_table
from holdfast.codec import Codec
from holdfast.codec.json_codec import from_json
from holdfast.engine.model.json_diff import NOTHING, Edit, Kind, decoded, has_large, plain_of
from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import RenderedMessage, is_hidden, messages
from holdfast.errors import ConflictError, InvalidError
from holdfast.history import diff_text
from holdfast.history.diff_text import Change


class DiffSide(NamedTuple):
    """One side of a comparison: a checkpoint, or, without an id, a state that is not stored."""

    thread: str
    id: str
    branch: int
    step: int
    time: datetime | None


class ChannelChanges(msgspec.Struct, frozen=True):
    """Numbers of changes in a channel: items of a list, entries of a dict, or the channel itself."""

    channel: str
    kind: Kind
    """`add` or `remove` if the channel itself was, `move` if only an order changed, else `change`."""
    added: int = 0
    changed: int = 0
    removed: int = 0
    moved: int = 0

    def __str__(self) -> str:
        if self.kind in ("add", "remove"):
            return f"{self.channel}: {'added' if self.kind == 'add' else 'removed'}"
        counts = [("+", self.added), ("~", self.changed), ("-", self.removed), ("moved ", self.moved)]
        return f"{self.channel}: {' '.join(f'{sign}{count}' for sign, count in counts if count) or 'changed'}"


class Diff:
    """The difference between two states. False if they are equal."""

    def __init__(self, codec: Codec, old: DiffSide, new: DiffSide, edits: Sequence[Edit]) -> None:
        self._codec = codec
        self._edits = edits
        self.old = old
        """The side that `old` values are from."""
        self.new = new
        """The side that `new` values are from."""

    def __bool__(self) -> bool:
        return bool(self._edits)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __repr__(self) -> str:
        return f"<Diff {'; '.join(map(str, self.summary)) or 'no changes'}>"

    def _repr_html_(self) -> str:
        rows = [
            (change.where or "the state", change.kind, _html_value(change.trees[0]), _html_value(change.trees[1]))
            for change in self.changes[:MAX_ROWS]
        ]
        return html_table(("path", "change", "old", "new"), rows, total=len(self), caption=repr(self)[1:-1])

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """The changes, channel by channel. An item removed from a list and added elsewhere in it is a `move`."""
        return as_changes(self._codec, self._edits)

    @cached_property
    def summary(self) -> tuple[ChannelChanges, ...]:
        """The numbers of changes in each channel."""
        channels: dict[Any, dict[Any, Kind]] = {}
        for number, change in enumerate(self.changes):
            kinds = channels.setdefault(change.path[0] if change.path else "", {})
            if len(change.path) < 2:
                kinds[number] = change.kind
            elif change.kind == "add" and len(change.path) == 2:
                kinds["new", change.path[1]] = change.kind
            else:
                # Several changes in one item are one changed item.
                kinds["old", change.was[1]] = change.kind if len(change.path) == 2 else "change"
        return tuple(_count(channel, kinds) for channel, kinds in channels.items())

    def without_internal(self) -> Diff:
        """Return the difference without the internal channels of a framework."""
        edits = [edit for edit in self._edits if not edit.path or not is_hidden(str(edit.path[0]))]
        return Diff(self._codec, self.old, self.new, edits)

    def patch(self, *, test: bool = False) -> list[dict[str, Any]]:
        """Return the difference as JSON Patch (RFC 6902) for states in the form of `Codec.to_json`.

        Applied to the old state it gives the new one, except for the order of dicts, which JSON objects do not have.
        With `test`, the patch first checks that each value to change is the expected one.
        """
        operations: list[dict[str, Any]] = []
        for edit in self._edits:
            if edit.pointer is None:
                continue
            if has_large(edit.old if test else None) or has_large(edit.new):
                raise InvalidError(
                    "a patch needs the large values that differ",
                    where=path_text(edit.path),
                    hint="Compare with large=True",
                )
            if test and edit.old is not NOTHING:
                operations.append({"op": "test", "path": edit.pointer, "value": edit.old})
            if edit.new is NOTHING:
                operations.append({"op": "remove", "path": edit.pointer})
            else:
                op = "add" if edit.old is NOTHING else "replace"
                operations.append({"op": op, "path": edit.pointer, "value": edit.new})
        return operations

    def apply(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with these changes applied: of the old state, the new one.

        Raises `ConflictError` if the values to change are others.
        """
        tree = apply_patch(self._codec.to_json(dict(state)), self.patch(test=True))
        new = self._codec.from_json(tree)
        if type(new) is not dict:
            raise ConflictError("the result of the changes is not a state")
        return new

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON with values for people, without type marks; `patch` has them exactly."""
        return {
            "old": _side_json(self.old),
            "new": _side_json(self.new),
            "summary": [asdict(counts) for counts in self.summary],
            "changes": [_edit_json(edit) for edit in _with_moves([edit for edit in self._edits if not edit.quiet])],
        }

    def stat(self) -> str:
        """Return the summary as text, with a line for each channel."""
        return "\n".join(map(str, self.summary))

    def lines(self, *, by_word: bool = False) -> Iterator[diff_text.Line]:
        """Format the changes as lines of styles and texts."""
        return diff_text.lines(self.changes, by_word=by_word)

    def text(self, *, by_word: bool = False) -> str:
        """Format the summary and the changes as text. With `by_word`, changed words are `[-old-]{+new+}`."""
        detail = ("".join(text for _, text in line) for line in self.lines(by_word=by_word))
        return "\n".join([self.stat(), "", *detail]) if self else ""


def _count(channel: Any, kinds: Mapping[Any, Kind]) -> ChannelChanges:
    if len(kinds) == 1 and type(next(iter(kinds))) is int:
        (kind,) = kinds.values()
        return ChannelChanges(str(channel), kind)
    values = list(kinds.values())
    counts = (values.count("add"), values.count("change"), values.count("remove"), values.count("move"))
    return ChannelChanges(str(channel), "move" if not any(counts[:3]) else "change", *counts)


def as_changes(codec: Codec, edits: Sequence[Edit]) -> tuple[Change, ...]:
    """Convert edits to changes with decoded values."""
    changes = []
    for edit in _with_moves([edit for edit in edits if not edit.quiet]):
        old, new = decoded(codec, edit.old), decoded(codec, edit.new)
        changes.append(Change(edit.kind, edit.path, edit.was, old, new, _message(edit), (edit.old, edit.new)))
    return tuple(changes)


def _with_moves(edits: Sequence[Edit]) -> list[Edit]:
    """Replace the removal of an item and its addition elsewhere in the same list by a move."""
    removed: dict[tuple[bytes, bytes], list[int]] = {}
    for number, edit in enumerate(edits):
        if edit.kind == "remove" and type(edit.path[-1]) is int:
            removed.setdefault((_list_of(edit), encode(edit.old)), []).append(number)
    if not removed:
        return list(edits)
    result: list[Edit | None] = list(edits)
    for number, edit in enumerate(edits):
        if edit.kind == "add" and edit.path and type(edit.path[-1]) is int:
            sources = removed.get((_list_of(edit), encode(edit.new)))
            if sources:
                source = sources.pop(0)
                result[source] = None
                result[number] = edit._replace(kind="move", was=edits[source].was, old=edit.new)
    return [edit for edit in result if edit is not None]


def _list_of(edit: Edit) -> bytes:
    return repr(edit.was[:-1]).encode(errors="surrogatepass")


def _message(edit: Edit) -> RenderedMessage | None:
    """Return the message that an edit adds, changes or removes, if it is one in a list."""
    tree = edit.old if edit.new is NOTHING else edit.new
    if len(edit.path) != 2 or type(edit.path[1]) is not int or tree is NOTHING or has_large(tree):
        return None
    rendered = messages(str(edit.path[0]), [from_json(tree)])
    return None if rendered is None else rendered[0]


def _side_json(side: DiffSide) -> dict[str, Any] | None:
    if not side.id:
        return None
    time = None if side.time is None else side.time.isoformat()
    return {"thread": side.thread, "id": side.id, "branch": side.branch, "step": side.step, "time": time}


def _edit_json(edit: Edit) -> dict[str, Any]:
    result: dict[str, Any] = {"kind": edit.kind, "path": path_text(edit.path)}
    if edit.was != edit.path:
        result["was"] = path_text(edit.was)
    for name, tree in (("old", edit.old), ("new", edit.new)):
        if tree is not NOTHING:
            result[name] = plain_of(tree)
    return result


def _html_value(tree: Any) -> str:
    return "" if tree is NOTHING else diff_text.format_value(tree)


# JSON Patch ---------------------------------------------------------------------------------------------------


def apply_patch(tree: Any, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Apply a JSON Patch in place. Raises `ConflictError` if it does not fit.

    `test` is strict: `1`, `1.0` and `true` differ.
    """
    root = {"": tree}
    for operation in operations:
        op, path = operation["op"], operation["path"]
        *stem, last = ["", *map(_token, path.split("/")[1:])]
        node: Any = root
        for token in stem:
            node = _child(node, token, path)
        if op == "add":
            _add(node, last, operation["value"], path)
            continue
        now = _child(node, last, path)
        if op == "test":
            if encode(now) != encode(operation["value"]):
                raise _misfit("the value to change is another", path)
        elif op == "remove":
            del node[_key(node, last, path)]
        else:
            node[_key(node, last, path)] = operation["value"]
    return root[""]


_INDEX = re.compile("0|[1-9][0-9]*")


def _token(text: str) -> str:
    return text.replace("~1", "/").replace("~0", "~")


def _key(node: Any, token: str, path: str) -> Any:
    if type(node) is dict and token in node:
        return token
    if type(node) is list and _INDEX.fullmatch(token) and int(token) < len(node):
        return int(token)
    raise _misfit("the value to change does not exist", path)


def _child(node: Any, token: str, path: str) -> Any:
    return node[_key(node, token, path)]


def _add(node: Any, token: str, value: Any, path: str) -> None:
    if type(node) is dict:
        if token in node:
            raise _misfit("the value to add exists already", path)
        node[token] = value
    elif type(node) is list and token in ("-", str(len(node))):
        node.append(value)
    elif type(node) is list and _INDEX.fullmatch(token) and int(token) < len(node):
        node.insert(int(token), value)
    else:
        raise _misfit("a value cannot be added there", path)


def _misfit(what: str, path: str) -> ConflictError:
    return ConflictError(f"the patch does not fit this state: {what}", where=path or "the state itself")
