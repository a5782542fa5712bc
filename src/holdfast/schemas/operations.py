"""Operations of migrations. Each has an inverse, so that what is upgraded can be downgraded again.

An operation changes a `PackedDocument` in place. What would be lost is kept aside, in the `notes` of the operation: a
downgrade restores it, and so does the next upgrade. `declaration` has the functions with which
operations are written.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

from holdfast.codec import default_codec
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import (
    Packed,
    PackedMap,
    as_items,
    as_map,
    flatten,
    pack_name,
    pack_state,
    unpack_state,
)
from holdfast.engine.paths import path_text
from holdfast.errors import HoldfastError, InvalidError, UnsupportedError
from holdfast.schemas.functions import function_failed, function_source
from holdfast.schemas.packed_document import (
    Items,
    Keys,
    PackedDocument,
    read_fields,
    read_items,
    read_kind,
    write_fields,
    write_kind,
)

Notes: TypeAlias = PackedMap
"""The values that an operation keeps aside, by packed name. Empty notes are not stored."""

_VALUE, _SKIP, _REST, _AFTER, _OTHERS, _KIND = map(pack_name, ("value", "skip", "rest", "after", "others", "kind"))
_TRUE, _NONE = b"\xc3", b"\xc0"


@dataclass(frozen=True)
class Operation:
    """One change of the form of a state."""

    kind: ClassVar[str] = ""
    places: ClassVar[tuple[str, ...]] = ("path",)
    """The fields that have paths, or tuples of paths."""
    lossy: bool = field(default=False, kw_only=True)
    """Whether a downgrade may not restore everything."""

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the operation."""
        raise NotImplementedError

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the inverse of the operation."""
        raise NotImplementedError

    def paths(self) -> tuple[Keys, ...]:
        """Return the paths that it reads or writes; none, if that is the whole state."""
        return self._paths

    @cached_property
    def _paths(self) -> tuple[Keys, ...]:
        named = [getattr(self, name) for name in self.places]
        return tuple(keys for each in named for keys in (each if isinstance(each[0], tuple) else (each,)))

    def arguments(self) -> dict[str, Any]:
        """Return what it was declared with, as plain values, for its fingerprint and for documentation. Functions are
        given by their source, which is empty for one that is left out."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "lossy"}
        return {
            name: function_source(value) if callable(value) else "" if value is None else value
            for name, value in given.items()
        }

    @property
    def reversible(self) -> bool:
        """Whether there is a way down at all."""
        return getattr(self, "down", True) is not None or getattr(self, "keep", False)

    @property
    def calls_code(self) -> bool:
        """Whether it calls functions of the application, which may take long."""
        return any(callable(getattr(self, each.name)) for each in fields(self))

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(path_text(keys) or 'item' for keys in self.paths()) or 'state'}"


def _exists(keys: Keys) -> InvalidError:
    return InvalidError(f"there is a field {path_text(keys)!r} already", where=path_text(keys))


@dataclass(frozen=True)
class Add(Operation):
    """Adds a field."""

    kind: ClassVar[str] = "add"
    path: Keys
    default: Any = MISSING
    factory: Callable[[], Any] | None = None

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Add the field: the value of before a downgrade, or the default. One that is there is left alone, and where
        there is no dict to add it to, none is created."""
        if document.get(self.path) is not None:
            notes[_SKIP] = _TRUE
            return
        if not document.has_parent(self.path):
            return
        value = notes.pop(_VALUE, None)
        document.set(self.path, self._packed_default if value is None else value)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Remove the field, and keep a value aside that is not the default."""
        if notes.pop(_SKIP, None) is not None:
            return
        value = document.pop(self.path)
        if value is not None and flatten(value) != self._packed_default:
            notes[_VALUE] = value

    @cached_property
    def _packed_default(self) -> bytes:
        return default_codec.pack(self.default if self.factory is None else self.factory())

    def arguments(self) -> dict[str, Any]:
        """Return path and default."""
        left_out = "factory" if self.factory is None else "default"
        given = {**super().arguments(), "default": self.default}
        return {name: value for name, value in given.items() if name != left_out}


@dataclass(frozen=True)
class Remove(Operation):
    """Removes a field."""

    kind: ClassVar[str] = "remove"
    path: Keys
    keep: bool = True

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Remove the field, and keep its value aside."""
        value = document.pop(self.path)
        if value is not None and self.keep:
            notes[_VALUE] = value

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Restore the value, if one was kept aside."""
        value = notes.pop(_VALUE, None)
        if value is None:
            return
        if document.is_taken(self.path):
            raise _exists(self.path)
        document.set(self.path, value)


@dataclass(frozen=True)
class Move(Operation):
    """Moves a field: to another name, or to another place."""

    kind: ClassVar[str] = "move"
    places: ClassVar[tuple[str, ...]] = ("source", "target")
    source: Keys
    target: Keys

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the field."""
        _move(document, self.source, self.target, notes)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the field back."""
        _move(document, self.target, self.source, notes)


@dataclass(frozen=True)
class Rename(Move):
    """Renames a field."""

    kind: ClassVar[str] = "rename"


def _move(document: PackedDocument, source: Keys, target: Keys, notes: Notes) -> None:
    if notes.pop(_SKIP, None) is not None and document.get(source) is not None:
        return  # what has this name now is not what the operation moved
    there = document.get(target)
    if document.get(source) is None:
        if there is not None:
            notes[_SKIP] = _TRUE
        return
    if document.is_taken(target):
        raise _exists(target)
    document.pop(target)
    if source[:-1] == target[:-1]:
        document.rename(source, target[-1])
        return
    created = _missing_parents(document, target)
    value = document.pop(source)
    if value is not None:
        document.set(target, value)
    _restore_parents(document, source, notes)
    if created:
        notes[_REST] = [pack_name(key) for key in created]


def _missing_parents(document: PackedDocument, keys: Keys) -> Keys:
    """Return the outermost dict on the way to a field that is missing."""
    for length in range(1, len(keys)):
        if document.get(keys[:length]) is None:
            return keys[:length]
    return ()


def _restore_parents(document: PackedDocument, source: Keys, notes: Notes) -> None:
    """Remove the dicts that the way here created, where they are empty."""
    created = notes.pop(_REST, None)
    names = None if created is None else as_items(created)
    if names is None:
        return
    outermost = len(names)
    for length in range(len(source) - 1, outermost - 1, -1):
        inside = document.get(source[:length])
        if inside is None or read_fields(inside):
            return
        document.pop(source[:length])


@dataclass(frozen=True)
class Convert(Operation):
    """Converts the value of a field."""

    kind: ClassVar[str] = "convert"
    path: Keys
    keep: bool
    up: Callable[[Any], Any]
    down: Callable[[Any], Any] | None

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Convert the value."""
        value = document.get(self.path)
        if value is None:
            return
        new = document.pack(self.up(document.value(value)))
        document.set(self.path, new)
        if self.keep:
            notes[_VALUE], notes[_AFTER] = value, digest(new)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Convert the value back; the value of before, if it was kept aside and is unchanged since."""
        before, after = notes.pop(_VALUE, None), notes.pop(_AFTER, None)
        value = document.get(self.path)
        if value is None:
            return
        if before is not None and digest(value) == after:
            document.set(self.path, before)
        elif self.down is not None:
            document.set(self.path, document.pack(self.down(document.value(value))))
        else:
            raise UnsupportedError(
                f"the value of {path_text(self.path)!r} was changed since, and there is no function to convert it back",
                where=path_text(self.path),
                hint="Give the operation a function for the way down",
                code="migration-irreversible",
            )


def digest(packed: Packed) -> bytes:
    """Return a short hash of a value, packed itself."""
    return b"\xc4\x10" + hashlib.sha256(flatten(packed)).digest()[:16]


@dataclass(frozen=True)
class Split(Operation):
    """Splits a field into several."""

    kind: ClassVar[str] = "split"
    places: ClassVar[tuple[str, ...]] = ("path", "into")
    path: Keys
    into: tuple[Keys, ...]
    up: Callable[[Any], Sequence[Any]]
    down: Callable[..., Any] | None
    separator: str = ""

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Split the field. None has no parts to split a text into: it is kept aside."""
        if self.separator and document.get(self.path) == _NONE:
            document.pop(self.path)
            notes[_VALUE] = _NONE
        else:
            _split(document, self.path, self.into, self.up, notes)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Merge the fields."""
        before = notes.pop(_VALUE, None)
        _join(document, self.path, self.into, self.down, notes, partial=bool(self.separator))
        if before is not None and document.get(self.path) is None:
            document.set(self.path, before)

    @property
    def calls_code(self) -> bool:
        """Whether it calls functions of the application."""
        return not self.separator

    def arguments(self) -> dict[str, Any]:
        """Return the paths, and the separator or the functions as source."""
        left_out = ("up", "down") if self.separator else ("separator",)
        return {name: value for name, value in super().arguments().items() if name not in left_out}


@dataclass(frozen=True)
class Merge(Operation):
    """Merges several fields into one."""

    kind: ClassVar[str] = "merge"
    places: ClassVar[tuple[str, ...]] = ("sources", "into")
    sources: tuple[Keys, ...]
    into: Keys
    up: Callable[..., Any]
    down: Callable[[Any], Sequence[Any]] | None

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Merge the fields."""
        _join(document, self.into, self.sources, self.up, notes, partial=False)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Split the field."""
        if self.down is None:
            raise irreversible(self)
        _split(document, self.into, self.sources, self.down, notes)

    def arguments(self) -> dict[str, Any]:
        """Return the paths, and the functions as source."""
        return {"paths" if name == "sources" else name: value for name, value in super().arguments().items()}


def irreversible(operation: Operation) -> UnsupportedError:
    """Return the error for an operation that has no way back."""
    return UnsupportedError(
        f"there is no way back from {operation}",
        hint="Give the operation a function for the way down",
        code="migration-irreversible",
    )


def _split(
    document: PackedDocument, keys: Keys, into: tuple[Keys, ...], apart: Callable[[Any], Sequence[Any]], notes: Notes
) -> None:
    if notes.pop(_SKIP, None) is not None:
        return
    value = document.get(keys)
    if value is None:
        _restore_parts(document, into, notes)
        return
    result: object = apart(document.value(value))
    parts: Sequence[object] = result if isinstance(result, Sequence) else ""
    if isinstance(parts, str | bytes) or len(parts) > len(into):
        raise InvalidError(
            f"the function that splits {path_text(keys)!r} returns at most {len(into)} values, as a list or tuple",
            where=path_text(keys),
        )
    document.pop(keys)
    for target, part in zip(into, parts, strict=False):
        if document.is_taken(target):
            raise _exists(target)
        document.set(target, document.pack(part))


def _restore_parts(document: PackedDocument, into: tuple[Keys, ...], notes: Notes) -> None:
    """Restore fields that could not be merged, because some of them were missing. Note fields of other origin."""
    rest = notes.pop(_REST, None)
    if rest is None:
        if any(document.get(target) is not None for target in into):
            notes[_SKIP] = _TRUE
        return
    inside = as_map(rest) or {}
    for target in into:
        value = inside.get(pack_name(path_text(target)))
        if value is not None:
            document.set(target, value)


def _join(
    document: PackedDocument,
    keys: Keys,
    parts: tuple[Keys, ...],
    together: Callable[..., Any] | None,
    notes: Notes,
    *,
    partial: bool,
) -> None:
    if notes.pop(_SKIP, None) is not None:
        return
    found = {part: value for part in parts if (value := document.get(part)) is not None}
    if document.get(keys) is not None:
        if found and document.is_taken(keys):
            raise _exists(keys)
        if not found:
            notes[_SKIP] = _TRUE
    if not found:
        return
    if together is None:
        raise UnsupportedError(
            f"there is no function that merges the fields into {path_text(keys)!r}", code="migration-irreversible"
        )
    for part in found:
        document.pop(part)
    if len(found) < len(parts) and not partial:
        notes[_REST] = write_fields(None, {pack_name(path_text(part)): value for part, value in found.items()})
        return
    document.set(keys, document.pack(together(*(document.value(value) for value in found.values()))))


@dataclass(frozen=True)
class Nest(Operation):
    """Moves fields into a dict."""

    kind: ClassVar[str] = "nest"
    into: Keys
    names: tuple[str, ...]

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the fields into the dict, which is created if it is missing."""
        _gather(document, self.into, self.names, notes)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the fields out of the dict again."""
        _scatter(document, self.into, self.names, notes)

    def paths(self) -> tuple[Keys, ...]:
        """Return the paths of the dict and of the fields."""
        return (self.into, *((*self.into[:-1], name) for name in self.names))


@dataclass(frozen=True)
class Unnest(Nest):
    """Moves fields out of a dict."""

    kind: ClassVar[str] = "unnest"

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the fields out of the dict."""
        _scatter(document, self.into, self.names, notes)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Move the fields into the dict again."""
        _gather(document, self.into, self.names, notes)


def _gather(document: PackedDocument, into: Keys, names: tuple[str, ...], notes: Notes) -> None:
    """Move fields into a dict. Noted are those that are in it already, and that the dict itself is."""
    parent = into[:-1]
    if not document.has_parent(into):
        return
    others, rest, kind = _pop_names(notes), notes.pop(_REST, None), notes.pop(_KIND, None)
    found = {
        name: value
        for name in names
        if pack_name(name) not in others
        and (value := document.get((*parent, name))) is not None
        and (name != into[-1] or document.is_taken(into))
    }
    if notes.pop(_SKIP, None) is not None and not found and rest is None:
        return
    here = document.get(into) if into[-1] not in found and document.is_taken(into) else None
    inside = {} if here is None else read_fields(here)
    if inside is None:
        raise InvalidError(f"{path_text(into)!r} is not a dict", where=path_text(into))
    if here is not None:
        notes[_SKIP] = _TRUE
    _note_names(notes, [name for name in names if pack_name(name) in inside and name not in found])
    for name in found:
        document.pop((*parent, name))
    fields = {**((None if rest is None else read_fields(rest)) or {}), **inside}
    for name, value in found.items():
        if pack_name(name) in fields and document.is_taken((*into, name)):
            raise _exists((*into, name))
        fields[pack_name(name)] = value
    document.set(into, write_kind(kind, fields) if here is None else write_fields(here, fields))


def _scatter(document: PackedDocument, into: Keys, names: tuple[str, ...], notes: Notes) -> None:
    """Move fields out of a dict. Noted are those that are outside already, and if there is no dict."""
    parent = into[:-1]
    if not document.has_parent(into):
        return
    others, stays = _pop_names(notes), notes.pop(_SKIP, None) is not None
    here = document.get(into)
    inside = {} if here is None else read_fields(here)
    if inside is None:
        raise InvalidError(f"{path_text(into)!r} is not a dict", where=path_text(into))
    moved = {key for key in map(pack_name, names) if key in inside and key not in others}
    outside = [name for name in names if pack_name(name) not in moved and (*parent, name) != into]
    _note_names(notes, [name for name in outside if document.get((*parent, name)) is not None])
    if here is None:
        notes[_SKIP] = _TRUE
        return
    rest = {key: value for key, value in inside.items() if key not in moved}
    document.pop(into)
    for name in names:
        if pack_name(name) in moved:
            target = (*parent, name)
            if document.is_taken(target) or (stays and target == into):
                raise _exists(target)
            document.set(target, inside[pack_name(name)])
    if stays:
        document.set(into, write_fields(here, rest))
        return
    if rest:
        notes[_REST] = write_fields(None, rest)
    kind = read_kind(here)
    if kind is not None:
        notes[_KIND] = kind


def _note_names(notes: Notes, names: list[str]) -> None:
    if names:
        notes[_OTHERS] = [pack_name(name) for name in names]


def _pop_names(notes: Notes) -> list[bytes]:
    noted = notes.pop(_OTHERS, None)
    return [] if noted is None else as_items(noted) or []


# Item notes -----------------------------------------------------------------------------------------------------------
#
# Notes of operations on the items of a list, and how each item finds its part again later.
#
# Until then items may have been added, changed, moved and removed. A value of a dict is found by its key; an item of a
# list by its `id`, if it has one that is its own, or by its content; and one without an id that changed by its
# position between others.

_ORDER, _ITEMS, _OWN, _ID = map(pack_name, ("order", "items", "own", "id"))
_SIZE = 8
"""The bytes that an item is recognized by."""


class _Mark(NamedTuple):
    """The mark by which an item is recognized, and whether that is an id of its own."""

    hash: bytes
    is_id: bool


def pop_item_notes(notes: PackedMap, items: Items, *, lossy: bool) -> dict[int, PackedMap]:
    """Return what was kept aside for items, by their position now."""
    order, own, kept = notes.pop(_ORDER, None), notes.pop(_OWN, None), notes.pop(_ITEMS, None)
    if order is None or kept is None:
        return {}
    found = {default_codec.unpack(key): dict(as_map(each) or {}) for key, each in (as_map(kept) or {}).items()}
    stored = default_codec.unpack(flatten(order))
    hashes = [stored[start : start + _SIZE] for start in range(0, len(stored), _SIZE)]
    flags = bytes(len(hashes)) if own is None else default_codec.unpack(flatten(own))
    before, now = [_Mark(each, bool(flag)) for each, flag in zip(hashes, flags, strict=True)], _recognize(items)
    matches = _match(before, now)
    if items.names is None:
        matches |= _match_between(before, now, matches, found.keys(), lossy=lossy)
    return {position: found[then] for position, then in matches.items() if then in found}


def store_item_notes(notes: PackedMap, items: Items, kept: dict[int, PackedMap]) -> None:
    """Keep aside what belongs to items, by their position."""
    if kept:
        marks = _recognize(items)
        notes[_ORDER] = default_codec.pack(b"".join(each.hash for each in marks))
        if any(each.is_id for each in marks):
            notes[_OWN] = default_codec.pack(bytes(each.is_id for each in marks))
        notes[_ITEMS] = {default_codec.pack(position): each for position, each in kept.items()}


def _recognize(items: Items) -> list[_Mark]:
    """Return what each item is recognized by."""
    if items.names is not None:
        return [_Mark(_hash(name), False) for name in items.names]
    ids = [_read_id(each) for each in items.values]
    counts = Counter(ids)
    return [
        _Mark(_hash(each), False) if own is None or counts[own] > 1 else _Mark(_hash(_ID + own), True)
        for each, own in zip(items.values, ids, strict=True)
    ]


def _read_id(item: bytes) -> bytes | None:
    value = (read_fields(item) or {}).get(_ID)
    return value if isinstance(value, bytes) and type(default_codec.unpack(value)) in (str, int) else None


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_SIZE]


def _match(before: Sequence[_Mark], now: Sequence[_Mark]) -> dict[int, int]:
    """Return the former positions of items that are the same, by their position now. Equal ones stay in order."""
    waiting = defaultdict[bytes, deque[int]](deque)
    for position, each in enumerate(before):
        waiting[each.hash].append(position)
    return {position: waiting[each.hash].popleft() for position, each in enumerate(now) if waiting.get(each.hash)}


def _match_between(
    before: Sequence[_Mark], now: Sequence[_Mark], matches: dict[int, int], kept: Container[object], *, lossy: bool
) -> dict[int, int]:
    """Return the former positions of items that changed. Where there was one between two others, and is one between
    the same, it is that, unless both have an id. Where there are more, nobody knows which is which, and that is
    refused rather than guessed."""
    same = set(matches.values())
    gaps = _gaps([position if position in same else None for position in range(len(before))])
    new_gaps = _gaps([matches.get(position) for position in range(len(now))])
    found: dict[int, int] = {}
    for start, (positions, end) in gaps.items():
        changed, new_end = new_gaps.get(start, ([], end))
        takes_any = not all(now[position].is_id for position in changed)
        candidates = [position for position in positions if changed and (takes_any or not before[position].is_id)]
        if candidates and len(positions) == len(changed) == 1 and end == new_end:
            found[changed[0]] = positions[0]
        elif not lossy and any(position in kept for position in candidates):
            raise InvalidError(
                "items of a list were changed, added or removed next to each other: "
                "it is unknown to which of them the values belong that were kept aside",
                where=f"[{changed[0]}]",
                hint="Give the items an id, or declare the operation lossy",
            )
    return found


def _gaps(known: Sequence[int | None]) -> dict[int, tuple[list[int], int]]:
    """Return the positions of items that are not known, and the known one after them, by the known one before them."""
    found: dict[int, tuple[list[int], int]] = {}
    start, gap = -1, list[int]()
    for position, each in enumerate([*known, -1]):
        if each is None:
            gap.append(position)
            continue
        if gap:
            found[start] = gap, each
        start, gap = each, []
    return found


# Wide operations ------------------------------------------------------------------------------------------------------
#
# Operations on the items of a list, and on a whole state.

_ITEM = pack_name("")


@dataclass(frozen=True)
class Each(Operation):
    """Applies operations to each item of a list, or to each value of a dict."""

    kind: ClassVar[str] = "each"
    path: Keys
    operations: tuple[Operation, ...]

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the operations to each item, in order."""
        self._map(document, notes, lambda item, inner: _run(self.operations, item, inner, up=True))

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:
        """Apply the inverse operations to each item, the last one first."""
        self._map(document, notes, lambda item, inner: _run(self.operations, item, inner, up=False))

    def _map(self, document: PackedDocument, notes: Notes, change: Callable[[PackedDocument, Notes], None]) -> None:
        packed = document.get(self.path)
        if packed is None or packed == _NONE:
            return
        items = read_items(packed)
        if items is None:
            raise InvalidError(
                f"{path_text(self.path)!r} is not a list, tuple or deque, and not a dict", where=path_text(self.path)
            )
        found = pop_item_notes(notes, items, lossy=self.lossy) if notes else {}
        kept: dict[int, Notes] = {}
        changed = []
        for place, item in enumerate(items.values):
            inner_notes = found.get(place, {})
            holder = PackedDocument({_ITEM: item}, document.codec)
            try:
                change(holder, inner_notes)
            except HoldfastError as error:
                error.where = f"{path_text((*self.path, place))}{'.' if error.where else ''}{error.where}"
                raise
            except Exception as error:
                raise function_failed(error, path_text((*self.path, place))) from error
            changed.append(flatten(holder.fields[_ITEM]))
            if inner_notes:
                kept[place] = inner_notes
        document.set(self.path, items.join(changed))
        store_item_notes(notes, items._replace(values=changed), kept)

    @property
    def reversible(self) -> bool:
        """Whether all operations have a way back."""
        return all(each.reversible for each in self.operations)

    @property
    def calls_code(self) -> bool:
        """Whether it calls functions of the application."""
        return any(operation.calls_code for operation in self.operations)

    def arguments(self) -> dict[str, Any]:
        """Return the path, and the operations."""
        return {"path": self.path, "operations": [[each.kind, each.arguments()] for each in self.operations]}


def _run(operations: tuple[Operation, ...], holder: PackedDocument, notes: Notes, *, up: bool) -> None:
    """Apply operations to an item. Those on fields of it get it as a document of its own."""
    for place in range(len(operations)) if up else reversed(range(len(operations))):
        operation, name = operations[place], pack_name(str(place))
        own: Notes = dict(as_map(notes.pop(name, b"\x80")) or {})
        target = holder
        item = holder.fields[_ITEM]
        whole = operation.paths() == (("",),)
        if not whole:
            fields = read_fields(item)
            if fields is None:
                raise InvalidError(
                    "an item has no fields: it is not a dict, and not an instance of a known kind of class"
                )
            target = PackedDocument(fields, holder.codec, item)
        (operation.upgrade if up else operation.downgrade)(target, own)
        if not whole:
            holder.fields[_ITEM] = write_fields(item, target.fields)
        if own:
            notes[name] = own


@dataclass(frozen=True)
class Custom(Operation):
    """Converts a whole state by functions."""

    kind: ClassVar[str] = "custom"
    places: ClassVar[tuple[str, ...]] = ()
    up: Callable[[dict[str, Any]], Mapping[str, Any]]
    down: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None

    def upgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Convert the state."""
        _apply(document, self.up)

    def downgrade(self, document: PackedDocument, notes: Notes) -> None:  # noqa: ARG002
        """Convert the state back."""
        if self.down is None:
            raise irreversible(self)
        _apply(document, self.down)


def _apply(document: PackedDocument, function: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    result: object = function(unpack_state(document.codec, document.fields))
    if not isinstance(result, Mapping):
        raise InvalidError(
            f"a custom migration must return the state as a dict, not {type(result).__name__}", code="migration-shape"
        )
    document.fields = pack_state(document.codec, result)
