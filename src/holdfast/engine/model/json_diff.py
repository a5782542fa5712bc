"""Differences value by value, over the JSON form of a state (`Codec.to_json`), which loses nothing.

A delta of packed values says roughly where two states differ. Here it is followed into lists, dicts and the fields of
objects, down to the single value that differs; classes are not needed.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.json import encode

from holdfast.codec import Codec, msgpack
from holdfast.codec.json_codec import from_json, is_mark, to_json
from holdfast.codec.plain_json import to_plain
from holdfast.engine.model.alignment import gaps, pairs
from holdfast.engine.model.large_pointers import LargePointer, is_pointer, parse_pointer
from holdfast.engine.model.line_salt import NO_SALT
from holdfast.engine.model.packed_state import Packed, unpack_name
from holdfast.engine.model.tree_diff import Delta, ListDelta, MapDelta

Path: TypeAlias = tuple[Any, ...]
"""Names of channels, keys of dicts, names of fields, indexes of lists."""

Kind: TypeAlias = Literal["add", "remove", "change", "move"]


class Absent:
    """The value of a side that has none."""

    def __repr__(self) -> str:
        return "NOTHING"


NOTHING = Absent()


@dataclass(frozen=True, slots=True)
class UnloadedValue:
    """A large value that was not loaded: how many bytes it has, and their digest under the salt of the line. Within a
    line, values with the same digest are equal."""

    bytes: int
    digest: str
    salt: builtins.bytes = field(default=NO_SALT, repr=False)


class Edit(NamedTuple):
    """One path that differs, with its values in JSON form.

    `path` is the path in the new state, or in the old one if it was removed; `was` is the path in the old state.
    `pointer` is the JSON Pointer for this edit after all edits before it were applied; None if JSON does not show the
    difference. A quiet one is for the patch alone.
    """

    kind: Kind
    path: Path
    was: Path
    pointer: str | None
    old: Any = NOTHING
    new: Any = NOTHING
    quiet: bool = False


class _Place(NamedTuple):
    """The paths of two values that are compared."""

    path: Path
    was: Path
    pointer: str

    def inside(self, *tokens: str | int) -> _Place:
        """Return the place further down in JSON, with the same path for people."""
        return self._replace(pointer=self.pointer + "".join(f"/{token}" for token in tokens))

    def at(self, key: Any, token: str) -> _Place:
        return _Place((*self.path, key), (*self.was, key), f"{self.pointer}/{_escaped(token)}")


def edits(codec: Codec, delta: Delta, large: Mapping[bytes, bytes]) -> list[Edit]:
    """Return a delta of two states, value by value. `large` are the values of pointers that were loaded."""
    digger = _DeltaWalker(codec, large)
    digger.delta(_Place((), (), ""), delta)
    return digger.edits


def tree_of(packed: Packed, large: Mapping[bytes, bytes]) -> Any:
    """Return a packed value in JSON form."""
    if isinstance(packed, bytes):
        if not is_pointer(packed):
            return to_json(packed)
        value = large.get(packed)
        if value is not None:
            return to_json(value)
        pointer = parse_pointer(packed)
        return UnloadedValue(pointer.size, pointer.digest.hex(), pointer.salt)
    if isinstance(packed, list):
        return [tree_of(item, large) for item in packed]
    if all(map(msgpack.is_str, packed)):
        shown = {unpack_name(key): tree_of(value, large) for key, value in packed.items()}
        return {"$object": shown} if is_mark(shown) else shown
    return {"$dict": [[to_json(key), tree_of(value, large)] for key, value in packed.items()]}


def decoded(codec: Codec, tree: Any) -> Any:
    """Return the value of a JSON form, as new objects; a large one that was not loaded stays as it is."""
    if tree is NOTHING:
        return None
    if has_large(tree):
        return tree
    return codec.unpack(from_json(tree))


def plain_of(tree: Any) -> Any:
    """Return a JSON form without type marks, for people."""
    if isinstance(tree, UnloadedValue):
        return f"<{tree.bytes} bytes, digest {tree.digest[:16]}>"
    if has_large(tree):
        return [*map(plain_of, tree)] if type(tree) is list else {name: plain_of(part) for name, part in tree.items()}
    return to_plain(from_json(tree))


def has_large(tree: Any) -> bool:
    """Return whether large values in a JSON form were not loaded."""
    return any(True for _ in pointers_in(tree))


def pointers_in(tree: Any) -> Iterator[bytes]:
    """Yield the pointers to large values in a JSON form that were not loaded."""
    if isinstance(tree, UnloadedValue):
        yield LargePointer(tree.bytes, tree.salt, bytes.fromhex(tree.digest)).encode()
    elif type(tree) is dict or type(tree) is list:
        for part in tree.values() if type(tree) is dict else tree:
            yield from pointers_in(part)


class _DeltaWalker:
    """Follows differences, and collects the edits."""

    def __init__(self, codec: Codec, large: Mapping[bytes, bytes]) -> None:
        self._codec = codec
        self._large = large
        self.edits: list[Edit] = []

    # Packed values ----------------------------------------------------------------------------------------------

    def delta(self, place: _Place, delta: Delta) -> None:
        if isinstance(delta, MapDelta):
            for key, change in delta.entries:
                name = unpack_name(key)
                self.delta(place.at(name, name), change)
            if delta.reordered:
                self.edits.append(Edit("move", place.path, place.was, None))
        elif isinstance(delta, ListDelta):
            for hunk in delta.hunks:
                self._items(place, self._trees(hunk.old), self._trees(hunk.new), hunk.start, hunk.at)
        else:
            old = NOTHING if delta.old is None else tree_of(delta.old, self._large)
            new = NOTHING if delta.new is None else tree_of(delta.new, self._large)
            self._value(place, old, new)

    def _trees(self, items: Sequence[bytes]) -> list[Any]:
        return [tree_of(item, self._large) for item in items]

    # JSON -------------------------------------------------------------------------------------------------------

    def _changed(self, place: _Place, old: Any, new: Any) -> None:
        kind: Kind = "add" if old is NOTHING else "remove" if new is NOTHING else "change"
        path = place.was if kind == "remove" else place.path
        self.edits.append(Edit(kind, path, place.was, place.pointer, old, new))

    def _value(self, place: _Place, old: Any, new: Any) -> None:
        """Compare two values, or one value and nothing."""
        if type(old) is dict and type(new) is dict:
            if is_mark(old) or is_mark(new):
                self._marked(place, old, new)
            else:
                self._fields(place, old, new)
        elif type(old) is list and type(new) is list:
            self._items(place, old, new)
        elif _unlike(old, new):
            self._changed(place, old, new)

    def _fields(self, place: _Place, old: dict[str, Any], new: dict[str, Any]) -> None:
        for name in (*new, *(name for name in old if name not in new)):
            if name not in old or name not in new or _unlike(old[name], new[name]):
                self._value(place.at(name, name), old.get(name, NOTHING), new.get(name, NOTHING))
        if [name for name in old if name in new] != [name for name in new if name in old]:
            self.edits.append(Edit("move", place.path, place.was, None))

    def _items(self, place: _Place, old: Sequence[Any], new: Sequence[Any], start: int = 0, at: int = 0) -> None:
        """Compare two lists, or runs of two lists. What is to the left of an index is already as in the new one."""
        for gap in gaps([*map(encode, old)], [*map(encode, new)]):
            went, came = old[gap.start : gap.stop], new[gap.at : gap.until]
            here = at + gap.at
            for i, j in pairs(went, came):
                before = start + gap.start + (0 if i is None else i)
                item = _Place((*place.path, here), (*place.was, before), f"{place.pointer}/{here}")
                if i is not None and j is not None:
                    self._value(item, went[i], came[j])
                else:
                    self._changed(item, NOTHING if i is None else went[i], NOTHING if j is None else came[j])
                here += j is not None

    def _pairs(self, place: _Place, old: list[Any], new: list[Any]) -> None:
        """Compare the keys and values of two dicts that are not objects in JSON, each pair by its key."""
        start = at = 0
        for gap in [*gaps([encode(key) for key, _ in old], [encode(key) for key, _ in new]), None]:
            stop = len(old) if gap is None else gap.start
            for i in range(stop - start):
                (key, one), (_, other) = old[start + i], new[at + i]
                if _unlike(one, other):
                    name = self._name(key)
                    where = _Place((*place.path, name), (*place.was, name), f"{place.pointer}/{at + i}/1")
                    self._value(where, one, other)
            if gap is None:
                return
            for key, value in old[gap.start : gap.stop]:
                self._pair(place, gap.at, "remove", key, value)
            for j, (key, value) in enumerate(new[gap.at : gap.until]):
                self._pair(place, gap.at + j, "add", key, value)
            start, at = gap.stop, gap.until

    def _pair(self, place: _Place, at: int, kind: Kind, key: Any, value: Any) -> None:
        """Add a pair that was removed or added. The patch has the whole pair, people see the value under its key."""
        path, was = (*place.path, self._name(key)), (*place.was, self._name(key))
        old, new = (value, NOTHING) if kind == "remove" else (NOTHING, value)
        self.edits.append(Edit(kind, path, was, None, old, new))
        pair = [key, value]
        old, new = (pair, NOTHING) if kind == "remove" else (NOTHING, pair)
        self.edits.append(Edit(kind, path, was, f"{place.pointer}/{at}", old, new, quiet=True))

    def _name(self, key: Any) -> Any:
        return decoded(self._codec, key)

    # Typed values -----------------------------------------------------------------------------------------------

    def _marked(self, place: _Place, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Compare two values of which at least one is of a type that JSON does not have."""
        if is_mark(old) and old.keys() == new.keys():
            ((mark, one),) = old.items()
            ((_, other),) = new.items()
            follow = _FOLLOWERS.get(mark) or (_DeltaWalker._content if mark[1:2].isupper() else None)
            first_edit = len(self.edits)
            if follow is not None and follow(self, place.inside(_escaped(mark)), one, other):
                if any(not edit.quiet for edit in self.edits[first_edit:]) or not _unlike(old, new):
                    return
                del self.edits[first_edit:]  # no difference has a path of its own
        if _unlike(old, new):
            self._changed(place, old, new)

    def _content(self, place: _Place, old: Any, new: Any) -> bool:
        """Compare marks around lists, objects or pairs."""
        if type(old) is dict and type(new) is dict:
            self._fields(place, old, new)
        elif type(old) is list and type(new) is list:
            self._items(place, old, new)
        else:
            return False
        return True

    def _mapping(self, place: _Place, old: Any, new: Any) -> bool:
        """Compare marks around objects, or around pairs of key and value."""
        if type(old) is list and type(new) is list:
            self._pairs(place, old, new)
            return True
        return type(old) is dict and type(new) is dict and self._content(place, old, new)

    def _second(self, place: _Place, old: Any, new: Any) -> bool:
        """Compare marks around two parts, of which the first is the type of the second."""
        if len(old) != 2 or len(new) != 2 or _unlike(old[0], new[0]):
            return False
        self._value(place.inside(1), old[1], new[1])
        return True

    def _model(self, place: _Place, old: Any, new: Any) -> bool:
        """Compare the class, the fields, and perhaps options: which fields were set, and extra fields."""
        if old[0] != new[0]:
            return False
        self._value(place.inside(1), old[1], new[1])
        one, other = (dict(side[2]) if len(side) > 2 else {} for side in (old, new))
        if one and other:
            extra, more = one.pop("extra", NOTHING), other.pop("extra", NOTHING)
            if type(extra) is dict and type(more) is dict:
                self._fields(place.inside(2, "extra"), extra, more)
            elif _unlike(extra, more):
                one, other = {**one, "extra": extra}, {**other, "extra": more}
            for name in dict.fromkeys((*one, *other)):
                self._quiet(place.inside(2, name), one.get(name, NOTHING), other.get(name, NOTHING))
        else:
            self._quiet(place.inside(2), one or NOTHING, other or NOTHING)
        return True

    def _quiet(self, place: _Place, old: Any, new: Any) -> None:
        if _unlike(old, new):
            self._changed(place, old, new)
            self.edits[-1] = self.edits[-1]._replace(quiet=True)


_Follow: TypeAlias = Callable[[_DeltaWalker, _Place, Any, Any], bool]
"""Compares the contents of a mark; False if it is to be compared as a whole."""

_FOLLOWERS: dict[str, _Follow] = {
    "$object": _DeltaWalker._content,
    "$tuple": _DeltaWalker._content,
    "$set": _DeltaWalker._content,
    "$frozenset": _DeltaWalker._content,
    "$dict": _DeltaWalker._mapping,
    "$ordereddict": _DeltaWalker._mapping,
    "$counter": _DeltaWalker._mapping,
    "$deque": _DeltaWalker._second,
    "$defaultdict": _DeltaWalker._second,
    "$dataclass": _DeltaWalker._second,
    "$attrs": _DeltaWalker._second,
    "$namedtuple": _DeltaWalker._second,
    "$registered": _DeltaWalker._second,
    "$pydantic": _DeltaWalker._model,
    "$pydantic_v1": _DeltaWalker._model,
}
"""The types whose parts have paths of their own. All others are compared as a whole."""


def _unlike(one: Any, other: Any) -> bool:
    """Return whether two JSON forms differ. In Python 1, True and 1.0 are equal; in JSON they are not."""
    if one is NOTHING or other is NOTHING:
        return one is not other
    return encode(one) != encode(other)


def _escaped(token: str) -> str:
    return token.replace("~", "~0").replace("/", "~1")
