"""Replacing large values in a step's changes by pointers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.codec import msgpack
from holdfast.engine.model.large_pointers import LARGE, is_pointer, pointer_to
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Operation, Set


def set_aside(edit: EditMap, salt: bytes) -> tuple[EditMap, dict[bytes, bytes]]:
    """Return the edit with pointers for the large values that it sets, in a line with this salt, and those values by
    pointer.

    A large list or dict stays as it is: its items are replaced by pointers when it is folded.
    """
    objects = LargeObjects(salt)
    return _map(edit, objects), objects.values


class LargeObjects:
    """Large values of a line by pointer."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.values: dict[bytes, bytes] = {}

    def add(self, value: bytes) -> bytes:
        """Add a value, and return the pointer to it."""
        pointer = pointer_to(value, self._salt).encode()
        self.values[pointer] = value
        return pointer


def pointers(edit: EditMap) -> Iterator[bytes]:
    """Yield the pointers that an edit puts into the state."""
    for _, operation in edit.put:
        if isinstance(operation, EditMap):
            yield from pointers(operation)
        elif isinstance(operation, Set):
            yield from filter(is_pointer, (operation.value,))
        elif isinstance(operation, EditList):
            for part in operation.parts:
                if not isinstance(part, KeepRun | ChangeItem):
                    yield from filter(is_pointer, part)


def _operation(operation: Operation, objects: LargeObjects) -> Operation:
    if isinstance(operation, Set):
        return operation if _is_container(operation.value) else Set(_value(operation.value, objects))
    if isinstance(operation, EditMap):
        return _map(operation, objects)
    if isinstance(operation, EditList):
        return EditList(tuple(_part(part, objects) for part in operation.parts))
    return operation


def _map(edit: EditMap, objects: LargeObjects) -> EditMap:
    return EditMap(edit.removed, tuple((key, _operation(change, objects)) for key, change in edit.put), edit.moved)


def _part(
    part: KeepRun | ChangeItem | tuple[bytes, ...], objects: LargeObjects
) -> KeepRun | ChangeItem | tuple[bytes, ...]:
    if isinstance(part, KeepRun):
        return part
    if isinstance(part, ChangeItem):
        # A changed item is a whole value again, and its parts have no pointers.
        return part
    return tuple(_value(item, objects) for item in part)


def _is_container(value: bytes) -> bool:
    bare = value.removeprefix(msgpack.ESCAPE)
    return not value.startswith(msgpack.SHAPED_MARK) and (msgpack.is_array(bare) or msgpack.is_map(bare))


def _value(value: bytes, objects: LargeObjects) -> bytes:
    return value if len(value) <= LARGE else objects.add(value)
