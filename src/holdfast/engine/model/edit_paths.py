"""The effect of a step, or of a difference, at one path of a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec.json import encode

from holdfast.codec.json_codec import fields_of
from holdfast.engine.model.json_diff import NOTHING, Absent, Edit, Path
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.operations import EditMap, Operation, Set
from holdfast.engine.model.packed_state import Packed, as_map


def operation_at(edit: EditMap, keys: Sequence[bytes]) -> Operation | None:
    """Return what an edit does at a path, or to a whole value above it; None if nothing."""
    result: Operation | None = edit
    for key in keys:
        if not isinstance(result, EditMap):
            return result
        result = dict(result.put).get(key)
    return result


Said: TypeAlias = "Operation | Packed | Absent | None"
"""The effect of a step at a path: an operation, or the new value; `NOTHING` if it has none, and None if there is
nothing afterwards, or the step alone does not tell."""


def below(effect: Said, key: bytes) -> Said:
    """Return the effect on an entry there."""
    if isinstance(effect, EditMap):
        effect = None if key in effect.removed else dict(effect.put).get(key, NOTHING)
    elif not isinstance(effect, Absent):
        entries = opened_map(effect) if isinstance(effect, bytes) else effect
        effect = entries.get(key) if isinstance(entries, dict) else None
    return effect.value if isinstance(effect, Set) else effect


def opened_map(packed: bytes) -> Packed | None:
    return None if is_pointer(packed) else as_map(packed)


def may_touch(operation: Operation, keys: Sequence[bytes]) -> bool:
    """Return whether an operation may have changed what is, or was, at a path."""
    if not isinstance(operation, EditMap) or not keys:
        return True
    if keys[0] in operation.removed:
        return True
    return any(key == keys[0] and may_touch(change, keys[1:]) for key, change in operation.put)


def inside(tree: Any, path: Path) -> Any:
    """Return the value at a path of a JSON form; `NOTHING` if there is none."""
    for part in path:
        tree = fields_of(tree)
        if type(tree) is list:
            tree = tree[part] if type(part) is int and -len(tree) <= part < len(tree) else NOTHING
        elif type(tree) is not dict:
            return NOTHING
        elif type(pairs := tree.get("$dict")) is list:
            tree = next((value for key, value in pairs if type(key) is type(part) and key == part), NOTHING)
        else:
            tree = tree.get(part, NOTHING) if type(part) is str else NOTHING
    return tree


def within(edit: Edit, path: Path, before: Path | None) -> list[Edit]:
    """Return what an edit does at a path: the edit itself if it lies below, or a part of it if it lies above."""
    if edit.quiet:
        return []
    mine = before if edit.kind == "remove" else path  # a removed value is named by its path in the old state
    if mine is None:
        return []
    if edit.path[: len(mine)] == mine:
        return [edit]
    if mine[: len(edit.path)] != edit.path or (edit.old is NOTHING and edit.new is NOTHING):
        return []
    rest = path[len(edit.path) :]
    old, new = (NOTHING if tree is NOTHING else inside(tree, rest) for tree in (edit.old, edit.new))
    if old is NOTHING or new is NOTHING:
        kind = edit.kind if old is new else "add" if old is NOTHING else "remove"
        return [] if old is new else [Edit(kind, path, path, None, old, new)]
    return [] if encode(old) == encode(new) else [Edit("change", path, path, None, old, new)]


def place_before(edits: Sequence[Edit], path: Path) -> Path | None:
    """Return the path of a value in the old state, where items before it may have moved it; None if it had none."""
    for edit in edits:
        if edit.kind == "add" and not edit.quiet and path[: len(edit.path)] == edit.path:
            return path if type(edit.path[-1]) is not int else None
        if edit.kind == "change" and edit.path[: len(path)] == path:
            return edit.was[: len(path)]
    before: list[Any] = []
    for depth, part in enumerate(path):
        if type(part) is int:
            stem = path[:depth]
            came = {e.path[depth] for e in edits if _is_item(e, "add", stem, path)}
            went = {e.was[depth] for e in edits if _is_item(e, "remove", tuple(before), path)}
            if came or went:
                part = _index_before(part, came, went)
        before.append(part)
    return tuple(before)


def _is_item(edit: Edit, kind: str, stem: Path, path: Path) -> bool:
    place = edit.was if kind == "remove" else edit.path
    return edit.kind == kind and len(place) == len(stem) + 1 <= len(path) and place[:-1] == stem


def _index_before(index: int, came: set[int], went: set[int]) -> int:
    """Return the index in the old list of an item that stayed."""
    rank = index - sum(1 for place in came if place < index)
    for place in sorted(went):
        if place <= rank:
            rank += 1
    return rank
