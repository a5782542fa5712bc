"""Update operators: changes of a value that several writers can make in any order, and that no merge drops.

A three-way merge compares values. If two sides both turn 1 into 2, it cannot know that each meant to add 1. An operator
says so: it is stored as an operation of its own kind (`operations.Combine`), and a merge applies it to the merged
value. Operators of one kind can be applied in any order; appended items are then in the order in which they were
applied.
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import IntEnum
from typing import Any, ClassVar

from holdfast.codec import default_codec, msgpack
from holdfast.codec.tags import Tag
from holdfast.engine.model.packed_state import Packed, as_items, flatten
from holdfast.errors import HoldfastError, InvalidError


class Rule(IntEnum):
    """How an operator combines a value with its operand. The numbers are those of the stored operations."""

    INCREMENT = 4
    APPEND = 5
    ADD_TO_SET = 6
    MAX = 7


class UpdateOperator:
    """A change of a value that depends on the current one: `state.patch("plan", {"done": Increment(1)})`."""

    __slots__ = ("operand",)

    rule: ClassVar[Rule]
    operand: Any
    """The other operand of the combination; also the new value, if there is none yet."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operand!r})"

    def then(self, other: UpdateOperator) -> UpdateOperator | None:
        """Return the operator that does what this one and then another does; None if there is none."""
        if self.rule is not other.rule:
            return None
        result = object.__new__(type(self))
        if self.rule is Rule.MAX:
            result.operand = max(self.operand, other.operand)
        else:
            result.operand = (
                self.operand | other.operand if self.rule is Rule.ADD_TO_SET else self.operand + other.operand
            )
        return result


class Increment(UpdateOperator):
    """Add a number. A value that does not exist starts at 0."""

    __slots__ = ()

    rule = Rule.INCREMENT

    def __init__(self, by: float = 1) -> None:
        if not _is_number(by) or not math.isfinite(by):
            raise InvalidError(f"a value can only be incremented by a finite number, not {by!r}")
        self.operand = by


class Append(UpdateOperator):
    """Add items at the end of a list. A value that does not exist starts as an empty list."""

    __slots__ = ()

    rule = Rule.APPEND

    def __init__(self, *items: Any) -> None:
        if not items:
            raise InvalidError("at least one item must be appended")
        self.operand: list[Any] = list(items)


class AddToSet(UpdateOperator):
    """Add items to a set. A value that does not exist starts as an empty set."""

    __slots__ = ()

    rule = Rule.ADD_TO_SET

    def __init__(self, *items: Any) -> None:
        if not items:
            raise InvalidError("at least one item must be added to a set")
        try:
            self.operand: set[Any] = set(items)
        except TypeError as error:
            raise InvalidError(
                f"an item cannot be in a set: {error}", hint="Add tuples instead of lists, or append to a list"
            ) from None


class Max(UpdateOperator):
    """Set a value unless the current one is greater: a number, a text or a time."""

    __slots__ = ()

    rule = Rule.MAX

    def __init__(self, value: Any) -> None:
        if not _is_comparable(value):
            raise InvalidError(f"Max needs a number, a string or a time, not {value!r}")
        self.operand = value


def combine(rule: Rule, operand: bytes, packed: Packed | None) -> Packed:
    """Return a value combined with a packed operand. `InvalidError` if they do not go together."""
    if packed is None:
        return operand
    if rule is Rule.APPEND:
        items, more = as_items(packed), as_items(operand)
        if items is None or more is None:
            raise InvalidError("items can be appended only to a list")
        return [*items, *more]
    if rule is Rule.ADD_TO_SET:
        return _add_to_set(flatten(packed), operand)
    old, new = _scalar(packed), _scalar(operand)
    return _sum(old, new) if rule is Rule.INCREMENT else _greater((old, flatten(packed)), (new, operand))


def _scalar(packed: Packed) -> Any:
    """Return a value that contains no others; None for any other, which is not read."""
    if not isinstance(packed, bytes) or as_items(packed) is not None or msgpack.is_map(packed):
        return None
    return default_codec.unpack(packed)


def _sum(old: Any, by: Any) -> bytes:
    if not _is_number(old) or not _is_number(by):
        raise InvalidError("only a number can be incremented")
    try:
        return default_codec.pack(old + by)
    except (OverflowError, HoldfastError) as error:
        raise InvalidError(f"the sum is too large: {error}") from None


def _greater(old: tuple[Any, bytes], new: tuple[Any, bytes]) -> bytes:
    """Return the greater of two values, each with its packed form; of equal ones always the same."""
    try:
        if not _is_comparable(old[0]) or not _is_comparable(new[0]):
            raise TypeError
        return max(old, new)[1]
    except TypeError:
        raise InvalidError(
            "only numbers, strings and times can be compared, and only with values of the same kind"
        ) from None


def _add_to_set(packed: bytes, operand: bytes) -> bytes:
    tag, items = _set_items(packed)
    return msgpack.ext(tag, msgpack.join_array(sorted({*items, *_set_items(operand)[1]})))


def _set_items(packed: bytes) -> tuple[int, list[bytes]]:
    """Return the tag and the packed items of a set."""
    typed = msgpack.split_ext(packed) if packed else None
    if typed is None or typed[0] not in (Tag.SET, Tag.FROZENSET) or not typed[1]:
        raise InvalidError("items can be added only to a set")
    return typed[0], msgpack.split_array(typed[1])


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_comparable(value: Any) -> bool:
    return type(value) in (int, str, datetime) or (type(value) is float and not math.isnan(value))
