"""The changes of a step: operations on packed values, and applying them.

An operation turns one packed value into another. It is computed by comparing the two (`diff`) and contains only what is
new; what the application did is not replayed, except for update operators (`Combine`). Operations nest: a dict's entry
may be changed by an operation of its own, and so may an item of a list.

The stored form is msgpack, `[kind, …]`; `docs/format.md` lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.msgpack import encode

from holdfast._named_tuple import NamedTuple
from holdfast.codec import msgpack
from holdfast.engine.model.operators import Rule, combine
from holdfast.engine.model.packed_state import (
    POINTER,
    Packed,
    PackedMap,
    as_items,
    as_map,
    flat_parts,
    flatten,
    packed_size,
)
from holdfast.errors import CorruptError, InvalidError, TooLargeError

LoadLarge: TypeAlias = Callable[[bytes], bytes]
"""Returns the packed value of a pointer."""


class KeepRun(NamedTuple):
    """`length` items (or bytes) of the old value, from `start` on."""

    start: int
    length: int


class ChangeItem(NamedTuple):
    """One item of the old list, itself changed."""

    place: int
    operation: Operation


class Set(Struct, frozen=True):
    """Replace the whole value."""

    packed: Packed
    """The value. A large one may be in parts, which it has in common with the state."""

    @property
    def value(self) -> bytes:
        """Return the packed bytes of the value."""
        return self.packed if isinstance(self.packed, bytes) else flatten(self.packed)


class EditList(Struct, frozen=True):
    """Compose a list of runs of the old one, new items and changed ones: appends, inserts, removals, moves."""

    parts: tuple[KeepRun | ChangeItem | tuple[bytes, ...], ...]


class EditMap(Struct, frozen=True):
    """Remove keys, then put or change some; `moved` lists, in order, the keys that go to the end.

    Without `moved`, a new key comes after all others and a changed one keeps its place, as in a Python dict.
    """

    removed: tuple[bytes, ...] = ()
    put: tuple[tuple[bytes, Operation], ...] = ()
    moved: tuple[bytes, ...] = ()


class EditText(Struct, frozen=True):
    """Compose a string's UTF-8 bytes, or bytes, of runs of the old ones and new ones."""

    parts: tuple[KeepRun | bytes, ...]


class Combine(Struct, frozen=True):
    """Combine the value with a packed operand, as an update operator does; without a value, take the operand."""

    rule: Rule
    operand: bytes

    @property
    def items(self) -> list[bytes] | None:
        """The items that it appends to a list; None if it is another operator."""
        return as_items(self.operand) if self.rule is Rule.APPEND else None


Operation: TypeAlias = Set | EditList | EditMap | EditText | Combine

HEAVY = 1 << 20
"""A change of more bytes is not copied, and folded at once."""


def set_to(packed: Packed) -> Set:
    """Return the operation that replaces a value by this one. A large one is not copied."""
    is_whole = isinstance(packed, bytes) or packed_size(packed) > HEAVY
    return Set(packed if is_whole else flatten(packed))


# Applying -----------------------------------------------------------------------------------------------------


def _nothing_large(pointer: bytes) -> bytes:
    raise CorruptError("an operation changes part of a large value that was not loaded", where=pointer.hex())


def apply(operation: Operation, packed: Packed | None, load: LoadLarge = _nothing_large) -> Packed:
    """Return the value after an operation. `load` is called for large values that it changes in part."""
    if isinstance(operation, Set):
        return operation.packed
    if isinstance(packed, bytes) and packed.startswith(POINTER):
        packed = load(packed)
    if isinstance(operation, EditText):
        return _apply_text(operation, packed)
    if isinstance(operation, Combine):
        return _apply_operator(operation, packed)
    if isinstance(operation, EditList):
        return _apply_list(operation, None if packed is None else as_items(packed), load)
    return apply_map(operation, None if packed is None else as_map(packed), load)


def compose(before: Operation | None, operator: Combine) -> Operation | None:
    """Return the operation that does what an operation and then an operator does; None if it takes both to tell."""
    try:
        if isinstance(before, Combine) and before.rule is operator.rule:
            return Combine(operator.rule, flatten(combine(operator.rule, operator.operand, before.operand)))
        if isinstance(before, Set) and operator.items is None and not before.value.startswith(POINTER):
            return Set(flatten(combine(operator.rule, operator.operand, before.value)))
    except InvalidError:
        pass  # reported where it is applied
    return None


def _apply_operator(operation: Combine, packed: Packed | None) -> Packed:
    try:
        return combine(operation.rule, operation.operand, packed)
    except InvalidError as error:
        raise CorruptError(f"an operator is applied to a value of another type: {error}") from None


def _apply_text(edit: EditText, packed: Packed | None) -> bytes:
    if not isinstance(packed, bytes) or not packed or not (msgpack.is_str(packed) or msgpack.is_bin(packed)):
        raise CorruptError("an operation changes part of a string, but the value is not a string")
    old = msgpack.content(packed)
    _check_total(sum(len(part) if isinstance(part, bytes) else part.length for part in edit.parts))
    new = b"".join(part if isinstance(part, bytes) else old[slice(*_bounds(part, len(old)))] for part in edit.parts)
    return msgpack.text(new) if msgpack.is_str(packed) else msgpack.binary(new)


def _apply_list(edit: EditList, old: list[bytes] | None, load: LoadLarge) -> list[bytes]:
    if old is None:
        raise CorruptError("an operation changes items of a list, but the value is not a list")
    _check_total(sum(part.length for part in edit.parts if isinstance(part, KeepRun)))
    new: list[bytes] = []
    for part in edit.parts:
        if isinstance(part, KeepRun):
            new += old[slice(*_bounds(part, len(old)))]
        elif isinstance(part, ChangeItem):
            start, _ = _bounds(KeepRun(part.place, 1), len(old))
            new.append(flatten(apply(part.operation, old[start], load)))
        else:
            new += part
    return new


def apply_map(edit: EditMap, old: PackedMap | None, load: LoadLarge = _nothing_large) -> PackedMap:
    """Return the dict, or the whole state, after an edit."""
    if old is None:
        raise CorruptError("an operation changes entries of a dict, but the value is not a dict")
    new = dict(old)
    for key in edit.removed:
        if new.pop(key, None) is None:
            raise CorruptError("an operation removes an entry that does not exist", where=key.hex())
    for key, operation in edit.put:
        new[key] = apply(operation, new.get(key), load)
    for key in edit.moved:
        if key not in new:
            raise CorruptError("an operation moves an entry that does not exist", where=key.hex())
        new[key] = new.pop(key)
    return new


MAX_TOTAL = 1 << 28
"""The largest number of bytes or items of an edit's result, since it may use runs many times."""


def _check_total(total: int) -> None:
    if total > MAX_TOTAL:
        raise TooLargeError(f"an operation makes {total} bytes or items, over the limit of {MAX_TOTAL}")


def _bounds(keep: KeepRun, size: int) -> tuple[int, int]:
    start, length = keep
    if start + length > size:
        raise CorruptError(f"an operation keeps {length} from index {start}, but there are only {size}")
    return start, start + length


# Stored form --------------------------------------------------------------------------------------------------

_SET, _LIST, _MAP, _TEXT = range(4)
_KEEP, _NEW, _CHANGE = range(3)
_SET_BYTES = b"\x92\x00"
"""How the stored form of an operation starts that sets a value: a list of two, `_SET` first."""


def encode_operation(operation: Operation) -> bytes:
    """Return the stored form of an operation."""
    return b"".join(encode_parts(operation))


def encode_parts(operation: Operation) -> tuple[bytes, ...]:
    """Return the stored form of an operation in parts. A large value is one or more of them: it is not copied."""
    if not isinstance(operation, Set):
        return (encode(_to_parts(operation)),)
    value = operation.packed
    if not isinstance(value, bytes):
        parts = flat_parts(value)
        return (_SET_BYTES + msgpack.binary_header(sum(map(len, parts))), *parts)
    if len(value) < msgpack.LONG:
        return (encode((_SET, value)),)
    return (_SET_BYTES + msgpack.binary_header(len(value)), value)


def decode_operation(data: bytes) -> Operation:
    """Decode an operation from its stored form."""
    if data.startswith(_SET_BYTES):
        value = msgpack.last_bin(data, len(_SET_BYTES))
        if value is not None:
            return Set(value)  # most operations, and all large ones
    try:
        return _from_parts(msgpack.parse(data))
    except (TypeError, ValueError) as error:
        raise CorruptError(f"not the stored form of an operation: {error}") from None


def _to_parts(operation: Operation) -> list[Any]:
    if isinstance(operation, Set):
        return [_SET, operation.value]
    if isinstance(operation, EditList):
        return [_LIST, [_list_part(part) for part in operation.parts]]
    if isinstance(operation, EditMap):
        put = [[key, _to_parts(change)] for key, change in operation.put]
        return [_MAP, list(operation.removed), put, list(operation.moved)]
    if isinstance(operation, Combine):
        return [int(operation.rule), operation.operand]
    return [_TEXT, [part if isinstance(part, bytes) else list(part) for part in operation.parts]]


def _list_part(part: KeepRun | ChangeItem | tuple[bytes, ...]) -> list[Any]:
    if isinstance(part, KeepRun):
        return [_KEEP, *part]
    if isinstance(part, ChangeItem):
        return [_CHANGE, part.place, _to_parts(part.operation)]
    return [_NEW, *part]


def _from_parts(parts: Any) -> Operation:
    kind, *rest = parts
    if kind == _SET:
        (value,) = rest
        return Set(_bytes(value))
    if kind == _LIST:
        (pieces,) = rest
        return EditList(tuple(map(_parse_list_part, pieces)))
    if kind == _MAP:
        removed, put, moved = rest
        changes = tuple((_bytes(key), _from_parts(change)) for key, change in put)
        return EditMap(_all_bytes(removed), changes, _all_bytes(moved))
    if kind == _TEXT:
        (pieces,) = rest
        return EditText(tuple(part if type(part) is bytes else _keep(part) for part in pieces))
    (operand,) = rest
    return Combine(Rule(kind), _bytes(operand))


def _parse_list_part(part: Any) -> KeepRun | ChangeItem | tuple[bytes, ...]:
    kind, *rest = part
    if kind == _KEEP:
        return _keep(rest)
    if kind == _CHANGE:
        place, operation = rest
        return ChangeItem(_count(place), _from_parts(operation))
    if kind == _NEW:
        return _all_bytes(rest)
    raise ValueError(f"part {kind!r}")


def _keep(parts: Any) -> KeepRun:
    start, length = parts
    return KeepRun(_count(start), _count(length))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a count is not a whole number")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise ValueError("a packed value is not bytes")
    return value


def _all_bytes(values: Iterable[Any]) -> tuple[bytes, ...]:
    return tuple(map(_bytes, values))
