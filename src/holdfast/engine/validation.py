"""Validation of arguments: an `InvalidError` for each that does not fit its signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.engine.row_format import check_name
from holdfast.errors import InvalidError

_LARGEST = 2**63 - 2
"""The largest number in a cursor: stores have no larger ones than the next."""


def require_mapping(value: object, what: str) -> Mapping[Any, Any]:
    """Require a dict, or another mapping."""
    if not isinstance(value, Mapping):
        from holdfast._hints import as_dict  # for mistakes alone

        hint = as_dict(value) if what == "state" else ""
        raise InvalidError(f"the {what} must be a dict, not {type(value).__name__}", where=repr(value)[:80], hint=hint)
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
        raise InvalidError(f"the {what} must be in a list, not {type(values).__name__}", where=repr(values)[:80])
    return values


def require_count(value: object, what: str, least: int = 0) -> int:
    """Require a whole number from 0 up, or from another one."""
    if type(value) is not int or value < least:
        raise InvalidError(f"the {what} must be a whole number of at least {least}, not {value!r}")
    return value


def cursor_text(cursor: object) -> str:
    """Require the cursor of a listing, or None, which is the empty text."""
    if cursor is None:
        return ""
    if not isinstance(cursor, str):
        raise cursor_error(cursor)
    try:
        cursor.encode()
    except UnicodeEncodeError:
        raise cursor_error(cursor) from None
    return cursor


def cursor_number(cursor: object) -> int:
    """Require a cursor that is a whole number, or None, which is 0."""
    text = "0" if cursor is None else cursor_text(cursor)
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(_LARGEST)) and int(text) <= _LARGEST):
        raise cursor_error(cursor)
    return int(text)


def cursor_error(cursor: object) -> InvalidError:
    """Return the error of a cursor that the listing cannot have returned."""
    return InvalidError(
        "the cursor does not belong to this listing", where=ascii(cursor)[:80], hint="Pass the `next` of a page"
    )


def optional_count(value: object, what: str) -> int | None:
    """Require a whole number from 0 up, or None."""
    return None if value is None else require_count(value, what)
