"""Fields of threads: the entries of metadata that lists find threads by, and the rows of the index.

A value of a thread is two rows of `FIELDS`: one among those of its thread, and one in the line `FIELD_LINE`, where the
threads of a value are in order of their names. Names of fields that start with a dot are entries of metadata, of which
a thread has the values of all its checkpoints. Others are the store's own, and have one value at a time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeAlias

from msgspec import MsgspecError
from msgspec.json import decode as decode_json

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Delete, Ensure, Row
from holdfast.backends.tables import FIELDS, Key
from holdfast.engine.metadata_filter import MetadataFilter, value_texts
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line, StepRef

FIELD_LINE = f"{MARK}fields"
"""Stands for the line with the threads of each value. There is no row of such a line."""

Entry: TypeAlias = tuple[tuple[str, ...], str]
"""The keys of an entry of metadata, and the text of its value: see `value_texts`."""

NameEntry: TypeAlias = Callable[[Sequence[str], str], "FieldValue | None"]
"""Returns how an entry is named in the index; None if it is not in it."""

_LONGEST = 200
"""The longest name or value that is stored as it is, in bytes of UTF-8. A digest stands for others."""

_MAX_ENTRIES = 32
"""How many entries of one checkpoint are indexed. A thread with more is a candidate for every filter."""

_MAX_VALUES = 8
"""How many values of one field a thread has in the index. With more it is a candidate for each value."""

_MAX_CACHED = 4096
"""The longest metadata whose entries are cached."""

_UNINDEXED = frozenset(
    {"source", "step", "writes", "parents", "run_id", "run_attempt", "thread_id", "thread_ts"}
    | {"checkpoint_id", "checkpoint_ns", "checkpoint_map"}
)
_UNINDEXED_STARTS = ("langgraph_", "__", MARK)
"""Entries that LangGraph or the store adds to checkpoints, and that differ from one step or run to the next."""


class FieldValue(NamedTuple):
    """A field and a value of it, as they are in the index."""

    field: str
    value: str


class FieldChange(NamedTuple):
    """Values that a thread gets, and values that it has no more."""

    added: set[FieldValue]
    removed: set[FieldValue]

    def rows(self, line: Line) -> list[Change]:
        """Return the changes of the rows of a thread."""
        return removed_rows(line, self.removed) + added_rows(line, self.added)


EVERY = FieldValue("*", "*")
"""The value of a thread that is a candidate for every filter by metadata."""

_MANY = "*"
"""The value of a field of which a thread has too many values: no other value starts like this."""

_Entries: TypeAlias = "frozenset[Entry]"

_NONE: _Entries = frozenset()

TOO_MANY: _Entries = frozenset({((), "")})
"""Stands for the entries of metadata that has too many."""


def metadata_entries(metadata: str) -> _Entries:
    """Return the entries of metadata, as JSON, that are indexed."""
    if not metadata:
        return _NONE
    return _cached_entries(metadata) if len(metadata) <= _MAX_CACHED else _parse_entries(metadata)


def _parse_entries(metadata: str) -> _Entries:
    try:
        entries: Any = _decode(metadata)
    except ValueError:
        return _NONE  # it is damaged, and no query finds it
    if not isinstance(entries, dict):
        return _NONE
    found: set[Entry] = set()
    for key in entries.keys() - _UNINDEXED:
        if not key.startswith(_UNINDEXED_STARTS):
            _add_entries(found, (key,), entries[key])
    return frozenset(found) if len(found) <= _MAX_ENTRIES else TOO_MANY


_cached_entries = lru_cache(512)(_parse_entries)  # of the parent of the next step, mostly


def _decode(metadata: str) -> Any:
    try:
        return decode_json(metadata)
    except MsgspecError:
        return json.loads(metadata)  # as queries read it: a number may be too large for a float


def _add_entries(found: set[Entry], path: tuple[str, ...], value: Any) -> None:
    """Add the texts under a key, as `values_below` finds them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _add_entries(found, (*path, key), inner)
    elif isinstance(value, list):
        for item in value:
            _add_entries(found, path, item)
    else:
        found.add((path, value_texts(value)[0]))


def new_entries(line: Line, point: StepRef, parent: StepRef | None) -> _Entries:
    """Return the entries of a step of a thread that its parent does not have: those of the parent are in the index."""
    if not point.metadata or line.name.startswith(MARK):
        return _NONE
    entries = metadata_entries(point.metadata)
    if not entries or parent is None or parent.pruned:
        return entries
    return entries - metadata_entries(parent.metadata)


# Names ------------------------------------------------------------------------------------------------------------


def name_entry(path: Sequence[str], text: str) -> FieldValue:
    """Return the name of an entry in the index of a store that is not encrypted."""
    field = "".join(f".{key.replace('~', '~0').replace('.', '~1')}" for key in path)
    return FieldValue(field if _is_short(field) else f".~{_digest(field)}", text if _is_short(text) else _digest(text))


def _is_short(text: str) -> bool:
    return text.isprintable() and len(text.encode()) <= _LONGEST


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def named_values(name: NameEntry, entries: Iterable[Entry], known: Set[FieldValue] = frozenset()) -> FieldChange:
    """Return how the values of a thread change by entries, given those that it has."""
    new = set[FieldValue]()
    for path, text in entries:
        value = name(path, text) if path else EVERY
        if value is not None and value not in known and FieldValue(value.field, _MANY) not in known:
            new.add(value)
    counts = Counter(value.field for value in {*known, *new})
    crowded = {value.field for value in new if counts[value.field] > _MAX_VALUES}
    if not crowded:
        return FieldChange(new, set())
    added = {FieldValue(each.field, _MANY) if each.field in crowded else each for each in new}
    return FieldChange(added, {each for each in known if each.field in crowded})


def is_covered(value: FieldValue, values: Set[FieldValue]) -> bool:
    """Return whether a thread with some values is a candidate for one, without having it."""
    return FieldValue(value.field, _MANY) in values


def candidate_values(name: NameEntry, wanted: MetadataFilter) -> tuple[FieldValue, ...]:
    """Return the values of which every thread with an entry that passes a filter has one, those that are certain first,
    and `EVERY` last; none if the index cannot tell."""
    first = wanted.path[0] if wanted.path else ""
    if first in _UNINDEXED or first.startswith(_UNINDEXED_STARTS):
        return ()
    # A dict is not indexed as a whole, and its text could be the value of another entry.
    if not wanted.path or any(text.startswith("s{") for text in wanted.texts):
        return ()
    named = [value for text in wanted.texts if (value := name(wanted.path, text)) is not None]
    return (*named, FieldValue(named[0].field, _MANY), EVERY) if named else ()


def is_certain(value: FieldValue) -> bool:
    """Return whether a thread under a value has that value, and not one of many."""
    return value.value != _MANY


def is_metadata(value: FieldValue) -> bool:
    """Return whether a value is one of metadata, and not of a field of the store's own."""
    return value.field.startswith(".") or value == EVERY


# Rows -------------------------------------------------------------------------------------------------------------


def own_key(line: Line, value: FieldValue) -> Key:
    """Return the key of a value among those of a thread."""
    return (*line, *value, "")


def thread_key(line: Line, value: FieldValue) -> Key:
    """Return the key of a thread among those of a value."""
    return (line.tenant, FIELD_LINE, *value, line.name)


def value_of(row: Row) -> FieldValue:
    """Return the value that a row is about."""
    return FieldValue(str(row.key[2]), str(row.key[3]))


def added_rows(line: Line, values: Iterable[FieldValue]) -> list[Change]:
    """Return the changes that add values to a thread."""
    return [Ensure(FIELDS, Row(key(line, value))) for value in sorted(values) for key in (own_key, thread_key)]


def removed_rows(line: Line, values: Iterable[FieldValue]) -> list[Change]:
    """Return the changes that remove values from a thread."""
    return [Delete(FIELDS, key(line, value)) for value in sorted(values) for key in (own_key, thread_key)]
