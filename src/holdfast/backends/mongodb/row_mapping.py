"""Rows as MongoDB documents, and what finds them again.

`_id` is a document of the key's columns, in order. MongoDB compares such documents column by column, so that the one
index on `_id` gives the order of keys, and every range under a prefix. The other columns are fields of their names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

from bson import Binary, Int64, MaxKey, encode
from bson.errors import BSONError

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.tables import JsonText, Key, Scalar, Table, WordList
from holdfast.errors import CorruptError

Document: TypeAlias = dict[str, Any]

BODY = "body"
PARTS = "parts"
"""In place of a body that is kept in parts: under which name, and in how many."""

_JSON_TEXT = 128
"""The kind of binary value that stands for JSON which MongoDB cannot hold."""

_DEEPEST = 64
"""How deeply JSON may be nested to be kept as it is. MongoDB's own limit is 100, columns and all."""

_LARGEST = 1 << 20
"""How many bytes JSON may take to be kept as it is: a list of small numbers takes several times those of its text."""


# Rows ---------------------------------------------------------------------------------------------------------------


def document_of(space: Table, row: Row, parts: Document | None = None) -> Document:
    """The document for a row; with `parts`, its body is kept elsewhere."""
    to_key, to_fields, _ = _converters(space)
    document: Document = {"_id": {name: convert(value) for (name, convert), value in zip(to_key, row.key, strict=True)}}
    for (name, convert), value in zip(to_fields, row.columns, strict=True):
        document[name] = convert(value)
    if parts is not None:
        document[PARTS] = parts
    else:
        document[BODY] = Binary(row.body)
    return document


def row_of(space: Table, document: Mapping[str, Any], body: bytes | None = None) -> Row:
    """The row of a document. A body that is kept elsewhere has to be given."""
    _, _, back = _converters(space)
    try:
        found = document["_id"]
        key = tuple([back[name](found[name]) for name in space.key])
        columns = tuple([back[name](document[name]) for name in space.columns])
        data = document.get(BODY, b"") if body is None else body
        return Row(key, columns, bytes(data))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"a document in {space.name} is none of ours: {document.get('_id')!r}: {error!r}") from error


def key_of(space: Table, document: Mapping[str, Any]) -> Key:
    """The key of a document, of which nothing else need be known."""
    _, _, back = _converters(space)
    return tuple([back[name](document["_id"][name]) for name in space.key])


def id_of(space: Table, key: Key) -> Document:
    """The `_id` of a row, or the first columns of one."""
    to_key, _, _ = _converters(space)
    return {name: convert(value) for (name, convert), value in zip(to_key, key, strict=False)}


# What finds them ----------------------------------------------------------------------------------------------------


def under(space: Table, prefix: Key, start: Key = (), stop: Key = ()) -> Document:
    """A range of `_id`s: those that start with a prefix, and what follows it within bounds."""
    if len(prefix) == len(space.key):
        return id_of(space, prefix)
    # A document that ends earlier comes before all that go on.
    bounds: Document = {"$gte": id_of(space, prefix + start)}
    if stop:
        bounds["$lt"] = id_of(space, prefix + stop)
    else:
        bounds["$lt"] = {**id_of(space, prefix), list(space.key)[len(prefix)]: MaxKey()}
    return bounds


def pipeline(query: Query) -> list[Document]:
    """The stages that find what a query asks for, in its order."""
    if isinstance(query, Get):
        return [{"$match": {"_id": {"$in": [id_of(query.space, key) for key in dict.fromkeys(query.keys)]}}}]
    direction = -1 if query.reverse else 1
    stages: list[Document]
    if query.by:
        order = index_fields(query.space, query.by)
        stages = [{"$match": _within(query)}, {"$sort": dict.fromkeys(order, direction)}]
    else:
        stages = [
            {"$match": {"_id": under(query.space, query.prefix, query.start, query.stop)}},
            {"$sort": {"_id": direction}},
        ]
    if query.limit is not None:
        stages.append({"$limit": query.limit})
    if not query.bodies:
        stages.append({"$project": {BODY: 0, PARTS: 0}})
    return stages


def index_fields(space: Table, index: str) -> list[str]:
    """The fields of an index, and `_id` for where these are equal."""
    return [*(_field(space, name) for name in space.indexes[index]), "_id"]


def order_of(query: Scan) -> Callable[[Row], tuple[Any, ...]]:
    """What to compare rows by. Text compares in Python as its UTF-8 bytes do."""
    if not query.by:
        return lambda row: row.key
    names = list(query.space.all_columns)
    places = [names.index(name) for name in query.space.indexes[query.by]]

    def order(row: Row) -> tuple[Any, ...]:
        values = row.key + row.columns
        return tuple([values[place] for place in places]), row.key

    return order


def _within(scan: Scan) -> Document:
    """The condition of a scan by an index."""
    space = scan.space
    names = space.order(scan.by)
    conditions = [
        {_field(space, name): _plain(space, name, value)} for name, value in zip(names, scan.prefix, strict=False)
    ]
    if scan.start:
        conditions.append(_beyond(scan, scan.start, "$gt", "$gte"))
    if scan.stop:
        conditions.append(_beyond(scan, scan.stop, "$lt", "$lt"))
    return {"$and": conditions} if conditions else {}


def _beyond(scan: Scan, bound: Key, strictly: str, at_last: str) -> Document:
    """Columns that compare so to a bound, taken one after another."""
    space, width = scan.space, len(scan.space.indexes[scan.by])
    given = dict(zip(space.order(scan.by), scan.prefix + bound, strict=False))
    names = list(given)[len(scan.prefix) :]
    values = [(_field(space, name), _plain(space, name, given[name])) for name in names]
    if len(given) > width >= len(scan.prefix):
        # The index ends with whole keys, which are compared at once: one that ends earlier comes before all that go on.
        key = tuple(given[name] for name in space.key if name in given)
        values[width - len(scan.prefix) :] = [("_id", id_of(space, key))]
    last = len(values) - 1
    return {
        "$or": [
            {**dict(values[:place]), field: {at_last if place == last else strictly: value}}
            for place, (field, value) in enumerate(values)
        ]
    }


def _field(space: Table, name: str) -> str:
    return f"_id.{name}" if name in space.key else name


def _plain(space: Table, name: str, value: Scalar) -> Any:
    return _into(space.all_columns[name], ordered=True)(value)


# Values -------------------------------------------------------------------------------------------------------------

_Named: TypeAlias = "tuple[str, Callable[[Any], Any]]"


@cache
def _converters(space: Table) -> tuple[list[_Named], list[_Named], dict[str, Callable[[Any], Any]]]:
    """What makes the values of the key's columns, and of the others; and what turns them back, by column."""
    ordered = {*space.key, *(name for names in space.indexes.values() for name in names)}
    kinds = space.all_columns
    return (
        [(name, _into(kind, ordered=True)) for name, kind in space.key.items()],
        [(name, _into(kind, ordered=name in ordered)) for name, kind in space.columns.items()],
        {name: _out_of(kind, ordered=name in ordered) for name, kind in kinds.items()},
    )


def _into(kind: type, ordered: bool) -> Callable[[Any], Any]:
    if kind is int:
        return Int64
    if kind is bytes:
        return bytes.hex if ordered else Binary  # MongoDB orders bytes by their number first
    if issubclass(kind, WordList):
        return _word_list
    return json_value if issubclass(kind, JsonText) else str


def _out_of(kind: type, ordered: bool) -> Callable[[Any], Any]:
    if kind is bytes and ordered:
        return bytes.fromhex
    if issubclass(kind, WordList):
        return " ".join
    return json_text if issubclass(kind, JsonText) else kind


def _word_list(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]


def json_value(text: str) -> Any:
    """What MongoDB keeps for JSON: the value, for people to query; or the text, where it cannot hold that."""
    if len(text) > _LARGEST:
        return _as_text(text)
    try:
        value = json.loads(text)
        if _can_be_held(value, _DEEPEST) and len(encode({"": value})) <= _LARGEST:
            return value
    except (ValueError, OverflowError, RecursionError, BSONError):
        pass  # too large a number, half a character, no JSON at all: the text is right in any case
    return _as_text(text)


def _as_text(text: str) -> Binary:
    return Binary(text.encode("utf-8", "surrogatepass"), _JSON_TEXT)


def json_text(value: Any) -> str:
    """The JSON that a kept value means."""
    if isinstance(value, Binary):
        return bytes(value).decode("utf-8", "surrogatepass")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _can_be_held(value: Any, depth: int) -> bool:
    """Whether a value has only names that may be names of fields, and is not nested too deeply."""
    if not isinstance(value, dict | list):
        return True
    if depth == 0:
        return False
    if isinstance(value, list):
        return all(_can_be_held(each, depth - 1) for each in value)
    return all(not name.startswith("$") and "\0" not in name for name in value) and all(
        _can_be_held(each, depth - 1) for each in value.values()
    )
