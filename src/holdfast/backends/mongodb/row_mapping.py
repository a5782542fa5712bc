"""Rows as MongoDB documents, and the filters that find them.

`_id` is a document of the key's columns, in order. MongoDB compares such documents column by column, so that the index
on `_id` has the order of keys, and serves every range under a prefix. The other columns are fields. In readable rows,
which people query, the columns of the key are fields too, and there is no body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, TypeAlias

from bson import Binary, Int64, MaxKey, encode
from bson.errors import BSONError

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.tables import READABLE, STEPS, TIME, JsonText, Key, Scalar, Table, WordList
from holdfast.errors import CorruptError

Document: TypeAlias = dict[str, Any]

BODY = "body"
PARTS = "parts"
"""The field of a body that is stored in parts: the upload, the first part and the count."""

THREAD_STEP: Document = {"id": {"$gt": ""}}
"""The condition of steps that a scan by time has."""

_JSON_TEXT = 128
"""The subtype of binary values that are JSON which MongoDB cannot store as a document."""

_MAX_DEPTH = 64
"""The deepest JSON that is stored as a document. MongoDB's own limit is 100, columns included."""

_MAX_JSON_BYTES = 1 << 20
"""The largest JSON that is stored as a document: a list of small numbers takes several times the size of its text."""


# Rows ---------------------------------------------------------------------------------------------------------------


def to_document(space: Table, row: Row, parts: Document | None = None) -> Document:
    """Convert a row to a document. With `parts`, its body is stored elsewhere."""
    to_key, to_fields, _ = _converters(space)
    key = {name: convert(value) for (name, convert), value in zip(to_key, row.key, strict=True)}
    document: Document = {"_id": key, **key} if space in READABLE else {"_id": key}
    for (name, convert), value in zip(to_fields, row.columns, strict=True):
        document[name] = convert(value)
    if parts is not None:
        document[PARTS] = parts
    elif row.body or space not in READABLE:
        document[BODY] = Binary(row.body)
    return document


def to_row(space: Table, document: Mapping[str, Any], body: bytes | None = None) -> Row:
    """Convert a document to a row. `body` is one that is stored in parts."""
    _, _, back = _converters(space)
    try:
        found = document["_id"]
        key = tuple([back[name](found[name]) for name in space.key])
        columns = tuple([back[name](document[name]) for name in space.columns])
        data = document.get(BODY, b"") if body is None else body
        return Row(key, columns, bytes(data))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"a document in {space.name} is not a row: {document.get('_id')!r}: {error!r}") from error


def read_key(space: Table, document: Mapping[str, Any]) -> Key:
    """Return the key of a document, which needs no other fields."""
    _, _, back = _converters(space)
    return tuple([back[name](document["_id"][name]) for name in space.key])


def build_id(space: Table, key: Key) -> Document:
    """Build the `_id` of a row, or the first columns of one."""
    to_key, _, _ = _converters(space)
    return {name: convert(value) for (name, convert), value in zip(to_key, key, strict=False)}


def column_values(space: Table, columns: Sequence[Scalar]) -> Iterator[tuple[str, Any]]:
    """Yield the names and the stored values of the columns of a row."""
    for (name, convert), value in zip(_converters(space)[1], columns, strict=True):
        yield name, convert(value)


# Filters ------------------------------------------------------------------------------------------------------------


def id_range(space: Table, prefix: Key, start: Key = (), stop: Key = ()) -> Document:
    """Build the range of the `_id`s that start with a prefix, and then are within bounds."""
    if len(prefix) == len(space.key):
        return build_id(space, prefix)
    # A shorter document comes before those that continue it.
    bounds: Document = {"$gte": build_id(space, prefix + start)}
    if stop:
        bounds["$lt"] = build_id(space, prefix + stop)
    else:
        bounds["$lt"] = {**build_id(space, prefix), list(space.key)[len(prefix)]: MaxKey()}
    return bounds


def build_pipeline(query: Query) -> list[Document]:
    """Build the stages of a query, in its order."""
    if isinstance(query, Get):
        return [{"$match": {"_id": {"$in": [build_id(query.space, key) for key in dict.fromkeys(query.keys)]}}}]
    direction = -1 if query.reverse else 1
    stages: list[Document]
    if query.by:
        order = index_fields(query.space, query.by)
        stages = [{"$match": _index_condition(query)}, {"$sort": dict.fromkeys(order, direction)}]
    else:
        condition = {"_id": id_range(query.space, query.prefix, query.start, query.stop)}
        stages = [
            {"$match": {"$and": [condition, *_hint_conditions(query)]} if query.hints else condition},
            {"$sort": {"_id": direction}},
        ]
    if query.limit is not None:
        stages.append({"$limit": query.limit})
    if not query.bodies:
        stages.append({"$project": {BODY: 0, PARTS: 0}})
    return stages


def index_fields(space: Table, index: str) -> list[str]:
    """The fields of an index, and `_id` to break ties."""
    return [*(_field(space, name) for name in space.index_columns(index)), "_id"]


def sort_key(query: Scan) -> Callable[[Row], tuple[Any, ...]]:
    """Return the sort key of rows. Text compares in Python as its UTF-8 bytes do."""
    if not query.by:
        return lambda row: row.key
    names = list(query.space.all_columns)
    positions = [names.index(name) for name in query.space.index_columns(query.by)]

    def order(row: Row) -> tuple[Any, ...]:
        values = row.key + row.columns
        return tuple([values[position] for position in positions]), row.key

    return order


def select(scan: Scan, documents: Iterable[Document]) -> list[Document]:
    """Return those of some documents that a scan asks for, in its order, as the server would."""
    names = scan.space.order(scan.by)
    converted = [
        tuple([_convert(scan.space, name, value) for name, value in zip(names, scan.prefix + bound, strict=False)])
        for bound in ((), scan.start, scan.stop)
    ]
    prefix, start, stop = converted
    found: list[tuple[tuple[Any, ...], Document]] = []
    try:
        for document in documents:
            key = document["_id"]
            at = tuple([key[name] if name in key else document[name] for name in names])
            if at[: len(prefix)] == prefix and at >= start and (not scan.stop or at < stop):
                found.append((at, document))
        found.sort(key=itemgetter(0), reverse=scan.reverse)
    except (KeyError, TypeError) as error:
        raise CorruptError(f"a document of a line has a row of {scan.space.name} that is none: {error!r}") from error
    return [document for _, document in found[: scan.limit]]


def _index_condition(scan: Scan) -> Document:
    """Build the filter of a scan by an index."""
    space = scan.space
    names = space.order(scan.by)
    conditions = [
        {_field(space, name): _convert(space, name, value)} for name, value in zip(names, scan.prefix, strict=False)
    ]
    if scan.start:
        conditions += _bound_conditions(scan, scan.start, "$gt", "$gte")
    if scan.stop:
        conditions += _bound_conditions(scan, scan.stop, "$lt", "$lt")
    conditions += _hint_conditions(scan)
    if scan.by == TIME and space is STEPS:
        conditions.append(THREAD_STEP)
    return {"$and": conditions} if conditions else {}


def _hint_conditions(scan: Scan) -> Iterator[Document]:
    """Yield the conditions of rows that fit hints."""
    for name, values, excluded, contains in scan.hints:
        if name not in scan.space.all_columns or not values:
            continue
        column = _field(scan.space, name)
        if contains:
            yield from ({column: {"$regex": re.escape(each)}} for each in values)
        else:
            yield {column: {"$nin" if excluded else "$in": [_convert(scan.space, name, each) for each in values]}}
        if column in ("cause", "correlation") and not (excluded or contains or "" in values):
            yield {column: {"$gt": ""}}  # as its index has it


def _bound_conditions(scan: Scan, bound: Key, strictly: str, at_last: str) -> list[Document]:
    """Build the conditions that the columns, in order, are on one side of a bound."""
    space, width = scan.space, len(scan.space.index_columns(scan.by))
    values_by_name = dict(zip(space.order(scan.by), scan.prefix + bound, strict=False))
    names = list(values_by_name)[len(scan.prefix) :]
    values = [(_field(space, name), _convert(space, name, values_by_name[name])) for name in names]
    if len(values_by_name) > width >= len(scan.prefix):
        # The index ends with whole keys, which are compared as one: a shorter one comes before those that continue it.
        key = tuple(values_by_name[name] for name in space.key if name in values_by_name)
        values[width - len(scan.prefix) :] = [("_id", build_id(space, key))]
    last = len(values) - 1
    field, value = values[0]
    return [
        {field: {at_last if not last else f"{strictly}e": value}},  # follows from the rest, and bounds the index
        {
            "$or": [
                {**dict(values[:position]), field: {at_last if position == last else strictly: value}}
                for position, (field, value) in enumerate(values)
            ]
        },
    ]


def _field(space: Table, name: str) -> str:
    return f"_id.{name}" if name in space.key else name


def _convert(space: Table, name: str, value: Scalar) -> Any:
    return _encoder(space.all_columns[name], ordered=True)(value)


# Values -------------------------------------------------------------------------------------------------------------

_NamedConverter: TypeAlias = "tuple[str, Callable[[Any], Any]]"


@cache
def _converters(space: Table) -> tuple[list[_NamedConverter], list[_NamedConverter], dict[str, Callable[[Any], Any]]]:
    """Return the encoders of the key's columns and of the others, and the decoders by column."""
    ordered = {*space.key, *(name for names in space.indexes.values() for name in names)}
    kinds = space.all_columns
    return (
        [(name, _encoder(kind, ordered=True)) for name, kind in space.key.items()],
        [(name, _encoder(kind, ordered=name in ordered)) for name, kind in space.columns.items()],
        {name: _decoder(kind, ordered=name in ordered) for name, kind in kinds.items()},
    )


def _encoder(kind: type, ordered: bool) -> Callable[[Any], Any]:
    if kind is int:
        return Int64
    if kind is bytes:
        return bytes.hex if ordered else Binary  # MongoDB orders bytes by their number first
    if issubclass(kind, WordList):
        return _word_list
    return json_value if issubclass(kind, JsonText) else str


def _decoder(kind: type, ordered: bool) -> Callable[[Any], Any]:
    if kind is bytes and ordered:
        return bytes.fromhex
    if issubclass(kind, WordList):
        return " ".join
    return json_text if issubclass(kind, JsonText) else kind


def _word_list(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]


def json_value(text: str) -> Any:
    """Convert JSON to a value that people can query, or to binary text if MongoDB cannot store that."""
    if len(text) > _MAX_JSON_BYTES:
        return _text_binary(text)
    try:
        value = json.loads(text)
        if _is_storable(value, _MAX_DEPTH) and len(encode({"": value})) <= _MAX_JSON_BYTES:
            return value
    except (ValueError, OverflowError, RecursionError, BSONError):
        pass  # a large number, a lone surrogate, no JSON: the text is right in any case
    return _text_binary(text)


def _text_binary(text: str) -> Binary:
    return Binary(text.encode("utf-8", "surrogatepass"), _JSON_TEXT)


def json_text(value: Any) -> str:
    """Convert a stored value back to JSON."""
    if isinstance(value, Binary):
        return bytes(value).decode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_storable(value: Any, depth: int) -> bool:
    """Whether all names in a value may be names of fields, and it is not nested too deeply."""
    if not isinstance(value, dict | list):
        return True
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(_is_storable(each, depth - 1) for each in value)
    return all(not name.startswith("$") and "\0" not in name for name in value) and all(
        _is_storable(each, depth - 1) for each in value.values()
    )
