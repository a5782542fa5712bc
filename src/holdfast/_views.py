"""Views of records: their fields with types, labels and meanings, their JSON, and tables for people.

The command line, the HTTP API, the web pages and notebooks are made from these. `holdfast._fields` says how a field is
declared; a field that a record gets is in all of them, without another line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from holdfast._fields import Label, Mark
from holdfast._named_tuple import NamedTuple

MAX_ROWS = 50
"""Longer listings are cut off in notebooks."""

_MAX_TEXT = 200
_UNITS = {"bytes": Mark.BYTES, "size": Mark.BYTES, "seconds": Mark.SECONDS, "duration": Mark.SECONDS}
_CONTROLS = re.compile("[\x7f-\x9f\u2028\u2029]")
"""Control characters that JSON does not escape."""


class Field(NamedTuple):
    """A field of a record, or a property that is shown like one."""

    name: str
    type: Any
    label: str
    marks: frozenset[Mark]

    @property
    def shown(self) -> bool:
        """Whether tables show it by default."""
        return Mark.HIDDEN not in self.marks

    @property
    def sent(self) -> bool:
        """Whether a server sends it."""
        return Mark.LOCAL not in self.marks

    def has(self, *kinds: type) -> bool:
        """Return whether its values are of some types, or None."""
        found = get_args(self.type) if get_origin(self.type) in (Union, UnionType) else (self.type,)
        return not set(kinds).isdisjoint(found)


def is_record(kind: Any) -> bool:
    """Return whether a type is a record: a class with declared or computed fields."""
    return isinstance(kind, type) and not is_text(kind) and bool(_names(kind) or _computed(kind))


def is_text(kind: Any) -> bool:
    """Return whether objects of a type are shown and sent as their text, such as scopes."""
    return getattr(kind, "__sent_as_text__", False)


@cache
def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the fields of a record, as they are declared, and then its computed ones; not those that are internal."""
    hints = get_type_hints(kind, include_extras=True)
    found = [_field(name, hints[name]) for name in _names(kind) if not name.startswith("_")]
    for name, each in _computed(kind).items():
        found.append(_field(name, get_type_hints(each.fget, include_extras=True)["return"]))
    return tuple(each for each in found if Mark.INTERNAL not in each.marks)


@cache
def _computed(kind: type) -> dict[str, property]:
    own = {name: each for base in reversed(kind.__mro__) for name, each in vars(base).items()}
    return {
        name: each
        for name, each in own.items()
        if isinstance(each, property) and getattr(each.fget, "__computed__", False)
    }


def _field(name: str, hint: Any) -> Field:
    marks: Sequence[Any] = ()
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
    label = next((str(each) for each in marks if isinstance(each, Label)), name.replace("_", " "))
    said = {each for each in marks if isinstance(each, Mark)}
    return Field(name, hint, label, frozenset(said | ({_UNITS[name]} if name in _UNITS else set())))


def _names(kind: type) -> Sequence[str]:
    if is_dataclass(kind):
        return [each.name for each in fields(kind)]
    names: Sequence[str] = getattr(kind, "_fields" if issubclass(kind, tuple) else "__struct_fields__", ())
    return names


# JSON -------------------------------------------------------------------------------------------------------------


def encode(record: object) -> str:
    """Encode a record as a line of JSON: times in ISO 8601 and UTC, and any value of a state."""
    from msgspec.json import encode

    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", encode(plain(record)).decode())


def plain(value: Any) -> Any:
    """Convert a value to a tree of JSON values. A record is an object of its fields."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value if value.isascii() else _text(value)
    if type(value) in (int, float):
        return value if _fits(value) else str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    kind: Any = type(value)
    if kind.__module__.startswith("holdfast.") and is_record(kind):
        return {each.name: plain(getattr(value, each.name)) for each in fields_of(kind)}
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if is_text(kind):
        return str(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if kind is dict or (isinstance(value, Mapping) and not hasattr(value, "__dict__")):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if kind in (list, tuple) or (isinstance(value, list) and kind.__module__.startswith("holdfast.")):
        return [plain(item) for item in value]
    from holdfast.codec import default_codec

    return default_codec.to_plain(value)


def _fits(number: float) -> bool:
    return -(1 << 63) <= number < 1 << 64 if type(number) is int else number - number == 0


def _text(text: str) -> str:
    """Replace halves of surrogate pairs, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# Text -------------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of a table of records: a field, or what an interface adds to the fields."""

    name: str
    label: str
    is_number: bool
    is_time: bool
    text: Callable[[Any], Any]
    """Returns the text for a record."""


def columns_of(
    record: Any,
    time: Callable[[datetime], Any],
    extra: Mapping[str, Callable[[Any], Any]] | None = None,
    *,
    first: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> list[Column]:
    """Return the columns of a table of records like one: the fields that are shown by default, or the keys of a dict.

    Times are shown as the interface has them. `extra` has what it says itself: the text of a field, by its name, or
    that of a further column. `first` names the fields that lead, and `hidden` those that say nothing here, such as the
    kind in a list of threads.
    """
    said = dict(extra or {})
    found = [
        Column(
            each.name, each.label, each.has(int, float), each.has(datetime), said.pop(each.name, _reader(each, time))
        )
        for each in _fields_in(record)
        if (each.shown or each.name in said) and each.name not in hidden
    ]
    found += [Column(name, name.replace("_", " "), False, False, text) for name, text in said.items()]
    return sorted(found, key=lambda each: first.index(each.name) if each.name in first else len(first))


def pairs_of(
    record: Any, time: Callable[[datetime], Any], texts: Mapping[str, Any] | None = None, hidden: Sequence[str] = ()
) -> list[tuple[str, Any]]:
    """Return the labels and texts of all fields of a record that are not empty. `texts` has what an interface says of
    a field, by its name, or adds to them."""
    said = dict(texts or {})
    found = {
        each.label: said.pop(each.name) if each.name in said else cell(each, getattr(record, each.name), time)
        for each in _fields_in(record)
        if each.name not in hidden
    }
    found |= {name.replace("_", " "): text for name, text in said.items()}
    return [(label, text) for label, text in found.items() if text]


def _fields_in(record: Any) -> Iterable[Field]:
    if isinstance(record, Mapping):
        return [_field(name, type(value)) for name, value in record.items()]
    kind: Any = type(record)
    return fields_of(kind)


def _reader(field: Field, time: Callable[[datetime], Any]) -> Callable[[Any], Any]:
    read = attrgetter(field.name)
    return lambda record: cell(field, record[field.name] if isinstance(record, dict) else read(record), time)


def cell(field: Field, value: Any, time: Callable[[datetime], Any]) -> Any:
    """Format the value of a field for a table: numbers with commas, bytes and durations with units, lists in a row."""
    if value is None or value == "" or value is False:
        return ""
    if isinstance(value, datetime):
        return time(value)
    if value is True:
        return "yes"
    if Mark.BYTES in field.marks:
        return size(value)
    if Mark.SECONDS in field.marks:
        return seconds(value)
    if isinstance(value, int | float):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    if isinstance(value, Mapping | tuple | list) and not value:
        return ""
    found = plain(value)
    return found if isinstance(found, str) else encode(value)


def size(count: int) -> str:
    """Format a number of bytes: `1.2 MB`, with powers of 1000."""
    if count < 1000:
        return f"{count} B"
    amount = float(count)
    for unit in ("kB", "MB", "GB"):
        amount /= 1000
        if amount < 999.5:
            return f"{amount:.1f} {unit}" if amount < 99.95 else f"{amount:.0f} {unit}"
    return f"{amount / 1000:.1f} TB"


def seconds(duration: float) -> str:
    """Format a duration: `20 µs`, `0.4 ms`, `120 ms`, `2.5 s`."""
    if duration >= 1:
        return f"{duration:,.1f} s"
    if 0 < duration < 0.0001:
        return f"{max(1, round(duration * 1e6))} µs"
    return f"{duration * 1000:.0f} ms" if duration >= 0.01 else f"{duration * 1000:.1f} ms"


def format_time(time: datetime) -> str:
    """Format a time to the second."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


# Notebooks --------------------------------------------------------------------------------------------------------


def html_table(
    header: Sequence[str], rows: Iterable[Sequence[object]], *, total: int | None = None, caption: str = ""
) -> str:
    """Format rows as an HTML table, with all text escaped. `total` is their number if only some are passed."""
    shown = list(rows)
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{_escaped(caption)}</caption>")
    parts.append(f"<thead><tr>{''.join(f'<th>{_escaped(name)}</th>' for name in header)}</tr></thead><tbody>")
    parts += (f"<tr>{''.join(f'<td>{_escaped(value)}</td>' for value in row)}</tr>" for row in shown)
    if total is not None and total > len(shown):
        parts.append(f'<tr><td colspan="{len(header)}">… and {total - len(shown)} more</td></tr>')
    return "".join([*parts, "</tbody></table>"])


def html_listing(items: Sequence[Any], caption: str = "") -> str:
    """Format a listing of records as a table of their fields, without those that are empty in all."""
    rows = items[:MAX_ROWS]
    kind: Any = type(rows[0]) if rows else None
    if not is_record(kind):
        return html_table(("item",), [(row,) for row in rows], total=len(items), caption=caption)
    columns = [each for each in fields_of(kind) if not all(_is_empty(getattr(row, each.name)) for row in rows)]
    cells = [[cell(each, getattr(row, each.name), format_time) for each in columns] for row in rows]
    return html_table([each.label for each in columns], cells, total=len(items), caption=caption)


def html_record(record: Any, **texts: object) -> str:
    """Format a record as a table of its fields that are not empty. `texts` are further rows."""
    return html_table((type(record).__name__.lower(), ""), pairs_of(record, format_time, texts))


def _is_empty(value: object) -> bool:
    return type(value) in (NoneType, str, tuple, list, dict) and not value


def _escaped(value: object) -> str:
    from html import escape

    text = str(value)
    return escape(text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…")
