"""Validation of arguments: an `InvalidError` for each that does not fit its signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine.row_format import check_name
from holdfast.errors import InvalidError


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


def require_number(value: object, what: str) -> int:
    """Require the decimal digits of a whole number."""
    if not isinstance(value, str) or not value.isdecimal():
        raise InvalidError(f"the {what} is not one of this listing", where=repr(value)[:80], hint="Pass a page's next")
    return int(value)


def optional_count(value: object, what: str) -> int | None:
    """Require a whole number from 0 up, or None."""
    return None if value is None else require_count(value, what)
