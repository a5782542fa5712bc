"""Validation of arguments: an `InvalidError` for each that does not fit its signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.engine.row_format import check_name
from holdfast.errors import InvalidError

Path = str | Sequence[Any]
"""A channel's name, or the name and keys of dicts below it: `"plan"`, `("memory", "user", "name")`."""


def require_mapping(value: object, what: str) -> Mapping[Any, Any]:
    """Require a dict, or another mapping."""
    if not isinstance(value, Mapping):
        raise InvalidError(f"the {what} is a dict, not {type(value).__name__}", where=repr(value)[:80])
    return value


def optional_name(value: object, what: str) -> str | None:
    """Require a name, or None."""
    return None if value is None else check_name(value, what)


def require_names(values: object, what: str) -> list[str]:
    """Require several names; a single string is refused as a mistake."""
    return [check_name(value, what) for value in require_several(values, what)]


def require_several(values: object, what: str) -> Iterable[Any]:
    """Require a list or another iterable; not a string, whose letters would be taken one by one."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidError(f"of a {what} there may be several: give a list", where=repr(values)[:80])
    return values


def require_count(value: object, what: str) -> int:
    """Require a whole number from 0 up."""
    if type(value) is not int or value < 0:
        raise InvalidError(f"the {what} is a whole number from 0 up, not {value!r}")
    return value


def optional_count(value: object, what: str) -> int | None:
    """Require a whole number from 0 up, or None."""
    return None if value is None else require_count(value, what)


def require_path(value: object) -> tuple[Any, ...]:
    """Require a path into a state."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, tuple | list):
        raise InvalidError(
            "a place in a state is named by a channel, or by a tuple of the channel and keys below it",
            where=repr(value)[:80],
        )
    for key in value:
        if not _hashable(key):
            raise InvalidError(f"a key of a dict cannot be {type(key).__name__}", where=repr(value)[:80])
    return tuple(value)


def _hashable(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
