"""Differences of two states as the caller gets them: a summary, the changes, a patch, a text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from msgspec.json import encode

from holdfast.codec import Codec
from holdfast.codec.json_codec import from_json
from holdfast.engine.model.json_diff import NOTHING, Edit, Kind, decoded, has_large, plain_of
from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import RenderedMessage, messages
from holdfast.engine.projection.rows import is_hidden
from holdfast.errors import ConflictError, InvalidError
from holdfast.history import diff_text
from holdfast.history.change import Change
from holdfast.history.json_patch import apply_patch


class DiffSide(NamedTuple):
    """One side of a comparison: a checkpoint, or, without thread and id, a state that was given."""

    thread: str
    id: str
    branch: int
    step: int
    time: datetime | None


class ChannelChanges(NamedTuple):
    """What changed in a channel, in numbers: items of a list, entries of a dict, or the channel itself."""

    channel: str
    kind: Kind
    """`add` or `remove` if the channel itself is new or gone, else `change` (or `move`, if only an order changed)."""
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
    """What differs between two states. True if anything does."""

    def __init__(self, codec: Codec, old: DiffSide, new: DiffSide, edits: Sequence[Edit]) -> None:
        self._codec = codec
        self._edits = edits
        self.old = old
        """What was compared: the side that `old` values are from."""
        self.new = new
        """The other side."""

    def __bool__(self) -> bool:
        return bool(self._edits)

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __repr__(self) -> str:
        return f"<Diff {'; '.join(map(str, self.summary)) or 'nothing'}>"

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Every place that differs, channel by channel. What was taken out of a list and put in again is a `move`."""
        return as_changes(self._codec, self._edits)

    @cached_property
    def summary(self) -> tuple[ChannelChanges, ...]:
        """What changed in each channel, in numbers."""
        found: dict[Any, dict[Any, Kind]] = {}
        for number, change in enumerate(self.changes):
            known = found.setdefault(change.path[0] if change.path else "", {})
            if len(change.path) < 2:
                known[number] = change.kind
            elif change.kind == "add" and len(change.path) == 2:
                known["new", change.path[1]] = change.kind
            else:
                # Several changes in one item are one changed item.
                known["old", change.was[1]] = change.kind if len(change.path) == 2 else "change"
        return tuple(self._counted(channel, kinds) for channel, kinds in found.items())

    def _counted(self, channel: Any, kinds: Mapping[Any, Kind]) -> ChannelChanges:
        if len(kinds) == 1 and type(next(iter(kinds))) is int:
            (kind,) = kinds.values()
            return ChannelChanges(str(channel), kind)
        listed = list(kinds.values())
        counts = (listed.count("add"), listed.count("change"), listed.count("remove"), listed.count("move"))
        return ChannelChanges(str(channel), "move" if not any(counts[:3]) else "change", *counts)

    def without_internal(self) -> Diff:
        """The same without channels that a framework keeps for itself, which are of no use to people."""
        shown = [edit for edit in self._edits if not edit.path or not is_hidden(str(edit.path[0]))]
        return Diff(self._codec, self.old, self.new, shown)

    def patch(self, *, test: bool = False) -> list[dict[str, Any]]:
        """The differences as JSON Patch (RFC 6902), over the JSON form of the states: `Codec.to_json`, with type marks.

        Applied to the old state in that form it gives the new one, of which nothing is lost but the order of dicts,
        which JSON objects do not have. With `test`, it first checks that each value it changes is the expected one.
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
        """The state with these differences made in it. Raises `ConflictError` if it has not the values that are to
        change.

        Of the old state it makes the new one.
        """
        tree = apply_patch(self._codec.to_json(dict(state)), self.patch(test=True))
        new = self._codec.from_json(tree)
        if type(new) is not dict:
            raise ConflictError("what the differences make of the state is no state")
        return new

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON for people and programs: values without type marks. `patch` has them exactly."""
        return {
            "old": _side(self.old),
            "new": _side(self.new),
            "summary": [counts._asdict() for counts in self.summary],
            "changes": [_shown(edit) for edit in _with_moves([edit for edit in self._edits if not edit.quiet])],
        }

    def stat(self) -> str:
        """The summary as text, a line for each channel."""
        return "\n".join(map(str, self.summary))

    def lines(self, *, by_word: bool = False) -> Iterator[diff_text.Line]:
        """The changes for people, line by line: each a list of styles and texts."""
        return diff_text.lines(self.changes, by_word=by_word)

    def text(self, *, by_word: bool = False) -> str:
        """The summary, and then the changes, as text. With `by_word`, changed texts as `[-old-]{+new+}` words."""
        detail = ("".join(text for _, text in line) for line in self.lines(by_word=by_word))
        return "\n".join([self.stat(), "", *detail]) if self else ""


def as_changes(codec: Codec, edits: Sequence[Edit]) -> tuple[Change, ...]:
    """Edits as the caller gets them, with fresh values."""
    changes = []
    for edit in _with_moves([edit for edit in edits if not edit.quiet]):
        old, new = decoded(codec, edit.old), decoded(codec, edit.new)
        changes.append(Change(edit.kind, edit.path, edit.was, old, new, _message(edit), (edit.old, edit.new)))
    return tuple(changes)


def _with_moves(edits: Sequence[Edit]) -> list[Edit]:
    """The same edits; an item that went from a list and came into it elsewhere is moved."""
    gone: dict[tuple[bytes, bytes], list[int]] = {}
    for number, edit in enumerate(edits):
        if edit.kind == "remove" and type(edit.path[-1]) is int:
            gone.setdefault((_list_of(edit), encode(edit.old)), []).append(number)
    if not gone:
        return list(edits)
    found: list[Edit | None] = list(edits)
    for number, edit in enumerate(edits):
        if edit.kind == "add" and edit.path and type(edit.path[-1]) is int:
            before = gone.get((_list_of(edit), encode(edit.new)))
            if before:
                taken = before.pop(0)
                found[taken] = None
                found[number] = edit._replace(kind="move", was=edits[taken].was, old=edit.new)
    return [edit for edit in found if edit is not None]


def _list_of(edit: Edit) -> bytes:
    """Names the list in which an item is."""
    return repr(edit.was[:-1]).encode(errors="surrogatepass")


def _message(edit: Edit) -> RenderedMessage | None:
    """Who says what, if the edit is of a message in a list."""
    tree = edit.old if edit.new is NOTHING else edit.new
    if len(edit.path) != 2 or type(edit.path[1]) is not int or tree is NOTHING or has_large(tree):
        return None
    found = messages(str(edit.path[0]), [from_json(tree)])
    return None if found is None else found[0]


def _side(side: DiffSide) -> dict[str, Any] | None:
    if not side.id:
        return None
    time = None if side.time is None else side.time.isoformat()
    return {"thread": side.thread, "id": side.id, "branch": side.branch, "step": side.step, "time": time}


def _shown(edit: Edit) -> dict[str, Any]:
    shown: dict[str, Any] = {"kind": edit.kind, "path": path_text(edit.path)}
    if edit.was != edit.path:
        shown["was"] = path_text(edit.was)
    for name, tree in (("old", edit.old), ("new", edit.new)):
        if tree is not NOTHING:
            shown[name] = plain_of(tree)
    return shown
