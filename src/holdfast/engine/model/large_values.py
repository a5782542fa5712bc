"""Replacing large values in a step's changes by pointers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from holdfast.engine.model.large_pointers import LARGE, is_pointer, pointer_to
from holdfast.engine.model.operations import ChangeItem, EditList, EditMap, KeepRun, Operation, Set
from holdfast.engine.model.packed_state import is_container

_Shorten: TypeAlias = Callable[[bytes], bytes]
"""Returns a value, or the pointer to it if it is large."""


def set_aside(edit: EditMap, salt: bytes) -> tuple[EditMap, dict[bytes, bytes]]:
    """Return the edit with pointers for the large values that it sets, in a line with this salt, and those values by
    pointer.

    A large list or dict stays as it is: its items are replaced by pointers when it is folded.
    """
    objects: dict[bytes, bytes] = {}

    def shorten(value: bytes) -> bytes:
        if len(value) <= LARGE:
            return value
        pointer = pointer_to(value, salt).encode()
        objects[pointer] = value
        return pointer

    return _map(edit, shorten), objects


def pointers(edit: EditMap) -> Iterator[bytes]:
    """Yield the pointers that an edit puts into the state."""
    for _, operation in edit.put:
        if isinstance(operation, EditMap):
            yield from pointers(operation)
        elif isinstance(operation, Set):
            if isinstance(operation.packed, bytes) and is_pointer(operation.packed):
                yield operation.packed
        elif isinstance(operation, EditList):
            for part in operation.parts:
                if not isinstance(part, KeepRun | ChangeItem):
                    yield from filter(is_pointer, part)


def _operation(operation: Operation, shorten: _Shorten) -> Operation:
    if isinstance(operation, Set):
        packed = operation.packed
        return operation if not isinstance(packed, bytes) or is_container(packed) else Set(shorten(packed))
    if isinstance(operation, EditMap):
        return _map(operation, shorten)
    if isinstance(operation, EditList):
        return EditList(tuple(_part(part, shorten) for part in operation.parts))
    return operation


def _map(edit: EditMap, shorten: _Shorten) -> EditMap:
    return EditMap(edit.removed, tuple((key, _operation(change, shorten)) for key, change in edit.put), edit.moved)


def _part(
    part: KeepRun | ChangeItem | tuple[bytes, ...], shorten: _Shorten
) -> KeepRun | ChangeItem | tuple[bytes, ...]:
    # A changed item is a whole value again, and its parts have no pointers.
    if isinstance(part, KeepRun | ChangeItem):
        return part
    return tuple(map(shorten, part))
