"""The document of a line, in the collection `lines`, which contains the small rows of the line.

- `info`: the row of the table `lines`; none if the line was deleted, or never had one.
- a field for each other table whose rows are embedded: its rows by name, which is the rest of their key as text.
- `moved`: for each of these tables, up to which key rows may be in the table's own collection instead. A row is in one
  place only.
- `last`: the token of the group that changed the line last. `wrote`: how many changes were made without it.
- `stamps`: the last group of each client and slot, and what was refused in it.
- `since` and `until`: bounds of the times of the embedded steps.
- `quiet`, `emptied`, `parts`: marks for the feed, for tidying, and for bodies that are stored in parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from bson import MaxKey, encode
from pymongo import InsertOne

from holdfast.backends.batch_eval import Columns
from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.mongodb.row_mapping import (
    Document,
    build_id,
    build_pipeline,
    column_values,
    id_range,
    read_key,
    select,
    to_document,
    to_row,
)
from holdfast.backends.tables import BEHIND, LINES, TABLES, TIME, Key, Scalar, Table
from holdfast.errors import CorruptError

LINE_WIDTH = 2
"""The number of columns of a key that name the line."""

LAST = "last"
WROTE = "wrote"
MOVED = "moved"
STAMPS = "stamps"
QUIET = "quiet"
"""A group that sets it changed nothing of the line that is reported."""
EMPTIED = "emptied"
PARTS_USED = "parts"
SINCE, UNTIL = "since", "until"

FEW_HAVE = (BEHIND,)
"""The tables of which few lines have rows at a time: an index finds these lines."""

ANY: Document = {"$gt": {}}
"""The condition that there are rows in a field."""

_ALL = "all"
"""A mark that rows of any key may be in the table's own collection."""
_MAX_MARKS = 200
"""The most marks of a table, before they are replaced by one for all."""

_STAMP_AGE = timedelta(days=1)
"""How long the number of a client's last group is stored."""

_EMBEDDED = tuple(table for table in TABLES if table.embedded and table is not LINES)

_ROW_BYTES = 300
"""The bytes of a row besides its body and the text of its columns."""


def line_of(key: Key) -> Key:
    """Return the line of a key."""
    return key[:LINE_WIDTH]


def field_of(space: Table) -> str:
    """Return the field of the rows of a table."""
    return "info" if space is LINES else space.name


def path_of(space: Table, key: Key) -> str:
    """Return the path of a row in the document of its line."""
    rest = key[LINE_WIDTH:]
    return f"{field_of(space)}.{','.join(map(_escape, rest))}" if rest else field_of(space)


def _escape(value: Scalar) -> str:
    """Return a value as a part of the name of a field. No two have the same."""
    if isinstance(value, str):
        return _SPECIAL.sub(_quote, value) or "%"
    return str(value) if isinstance(value, int) else value.hex()


_SPECIAL = re.compile("[%.$,\0]")


def _quote(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def row_weight(row: Row) -> int:
    """Estimate the bytes of an embedded row."""
    weight = _ROW_BYTES + len(row.body)
    for value in row.columns:
        if not isinstance(value, int):
            weight += len(value)
    return weight


def embedded_row(space: Table, key: Key, document: Mapping[str, Any]) -> Document | None:
    """Return a row in the document of its line, as in the table's own collection; None if it is not there."""
    found: Any = document
    for name in path_of(space, key).split("."):
        found = found.get(name)
        if found is None:
            return None
        if not isinstance(found, dict):
            raise CorruptError(f"the field {name!r} of a line is no document", where=str(document.get("_id")))
    return {**found, "_id": build_id(space, key)}


def embedded_rows(space: Table, line: Key, document: Mapping[str, Any]) -> Iterator[Document]:
    """Yield the rows of a table in the document of a line, as documents of the table's own collection."""
    tenant, name = list(space.key)[:LINE_WIDTH]
    found = document.get(field_of(space))
    if found is None:
        return
    for row in found.values() if len(space.key) > LINE_WIDTH else [found]:
        yield {**row, "_id": {tenant: line[0], name: line[1], **row.get("_id", {})}}


# Conditions ---------------------------------------------------------------------------------------------------------


def _mark_of(space: Table, key: Key) -> tuple[str, Document]:
    """Return the name and the value of the mark of a key.

    Where all columns but the last one are numbers, such as those of branches, there is a mark for each of them.
    """
    names, rest = list(space.key)[LINE_WIDTH:], key[LINE_WIDTH:]
    values = build_id(space, key)
    if len(rest) > 1 and all(isinstance(value, int) for value in rest[:-1]):
        return ",".join(map(str, rest[:-1])), {names[-1]: values[names[-1]]}
    return "last", {name: values[name] for name in names}


def not_moved(space: Table, key: Key) -> Document:
    """The condition that a row is not in the table's own collection."""
    if len(key) == LINE_WIDTH:
        return {}
    name, value = _mark_of(space, key)
    moved = f"{MOVED}.{space.name}"
    return {f"{moved}.{name}": {"$not": {"$gte": value}}, f"{moved}.{_ALL}": None}


def absent(space: Table, key: Key) -> Document:
    """The condition that there is no such row."""
    return {path_of(space, key): None, **not_moved(space, key)}


def embedded(space: Table, key: Key) -> Document:
    """The condition that a row is embedded."""
    return {path_of(space, key): {"$exists": True}}


def not_elsewhere(space: Table, key: Key) -> Document:
    """The condition that a row is embedded, or does not exist."""
    return {"$or": [embedded(space, key), not_moved(space, key)]} if len(key) > LINE_WIDTH else {}


def with_columns(space: Table, key: Key, columns: Columns) -> Document:
    """The condition that a row is embedded and has these columns."""
    path = path_of(space, key)
    return {f"{path}.{name}": value for name, value in column_values(space, columns)}


# Changes ------------------------------------------------------------------------------------------------------------


class LineUpdate:
    """A change of the document of a line."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Table, str], Document] = {}
        self._removed: set[tuple[Table, str]] = set()
        self._emptied: set[Table] = set()
        self._unmarked: set[Table] = set()
        self._marks: dict[Table, dict[str, Document]] = {}
        self._times: dict[Table, list[int]] = {}
        self.set: Document = {}
        self.unset: Document = {}
        self.weight: int = 0
        """How many bytes more they take, at most."""

    def put(self, space: Table, row: Row) -> None:
        """Embed a row, or replace it."""
        document = to_document(space, row)
        rest = list(document.pop("_id").items())[LINE_WIDTH:]
        if rest:
            document["_id"] = dict(rest)
        self._rows[space, path_of(space, row.key)] = document
        if space.timed:
            self._times.setdefault(space, []).append(document[TIME])
        self.weight += row_weight(row)

    def remove(self, space: Table, key: Key) -> None:
        """Remove a row that is embedded."""
        self._removed.add((space, path_of(space, key)))

    def removed_paths(self, space: Table) -> Iterator[str]:
        """Yield the paths of rows that are removed or replaced."""
        yield from (path for table, path in self._removed | self._rows.keys() if table is space)

    def empties(self, space: Table) -> bool:
        """Return whether all rows of a table are removed."""
        return space in self._emptied

    def empty(self, space: Table) -> None:
        """Remove all rows of a table that are embedded, before new ones are put."""
        self._emptied.add(space)

    def unmark(self, space: Table) -> None:
        """Forget that rows are in the table's own collection, before others are put there."""
        self._unmarked.add(space)

    def mark(self, space: Table, key: Key, document: Mapping[str, Any]) -> None:
        """Record that a row is in the table's own collection."""
        before = {} if space in self._unmarked else document.get(MOVED, {}).get(space.name, {})
        marks = self._marks.setdefault(space, {})
        name, value = _mark_of(space, key)
        if _ALL in before or _ALL in marks:
            return
        if len({*before, *marks, name}) > _MAX_MARKS:
            self._unmarked.add(space)
            self._marks[space] = {_ALL: {}}
            return
        known = marks.get(name)
        if known is None or tuple(known.values()) < tuple(value.values()):
            marks[name] = value

    def operators(self) -> Document:
        """Return the update. It has no two operators for one path."""
        sets, unset, highest, lowest = {**self.set}, {**self.unset}, Document(), Document()
        emptied: dict[Table, Document] = {space: {} for space in self._emptied}
        for (space, path), document in self._rows.items():
            _, _, name = path.partition(".")
            if space in emptied and name:
                emptied[space][name] = document
            else:
                sets[path] = document
        for space, rows in emptied.items():
            if rows:
                sets[field_of(space)] = rows
            elif field_of(space) not in sets:
                unset[field_of(space)] = ""
        for space, path in self._removed - self._rows.keys():
            if space not in emptied:
                unset[path] = ""
        for space in self._unmarked | self._marks.keys():
            marks = self._marks.get(space, {})
            if space not in self._unmarked:
                highest |= {f"{MOVED}.{space.name}.{name}": value for name, value in marks.items()}
            elif marks:
                sets[f"{MOVED}.{space.name}"] = marks
            else:
                unset[f"{MOVED}.{space.name}"] = ""
        for space in self._times.keys() | {each for each in emptied if each.timed}:
            times = self._times.get(space)
            if not times:
                unset |= {SINCE: "", UNTIL: ""}
            elif space in emptied:
                sets |= {SINCE: min(times), UNTIL: max(times)}
            else:
                lowest[SINCE], highest[UNTIL] = min(times), max(times)
        found = {"$set": sets, "$unset": unset, "$max": highest, "$min": lowest}
        return {operator: fields for operator, fields in found.items() if fields}


class Moves(NamedTuple):
    """Rows that move to their own collections, and the number and bytes of those that stay."""

    documents: dict[Table, list[Document]]
    rows: int
    weight: int


def plan_moves(update: LineUpdate, line: Key, document: Mapping[str, Any], most_rows: int, most_bytes: int) -> Moves:
    """Add to an update that rows move, if there are more than so many, besides those that it puts or removes.

    Whole tables move, the largest first.
    """
    tables: dict[Table, list[Document]] = {}
    for space in _EMBEDDED:
        if not update.empties(space):
            gone = set(update.removed_paths(space))
            rows = embedded_rows(space, line, document)
            tables[space] = [each for each in rows if path_of(space, read_key(space, each)) not in gone]
    sizes = {space: sum(len(encode(each)) for each in rows) for space, rows in tables.items()}
    count = sum(map(len, tables.values()))
    size = sum(sizes.values())
    chosen: dict[Table, list[Document]] = {}
    if count > most_rows or size > most_bytes:
        least = count if count <= most_rows else most_rows // 2
        for space in sorted(filter(sizes.__getitem__, sizes), key=sizes.__getitem__, reverse=True):
            if count > least or size > most_bytes:
                update.empty(space)
                for each in tables[space]:
                    update.mark(space, read_key(space, each), document)
                chosen[space] = tables[space]
                count -= len(tables[space])
                size -= sizes[space]
        stamps = document.get(STAMPS, {})
        for name, stamp in stamps.items():
            if stamp["at"] < max(each["at"] for each in stamps.values()) - _STAMP_AGE:
                update.unset[f"{STAMPS}.{name}"] = ""
    return Moves(chosen, count, size)


def moved_rows(documents: Iterable[Document]) -> list[InsertOne[Document]]:
    """Return the writes of rows that move to the collection of their table."""
    return [InsertOne(document) for document in documents]


# Reading ------------------------------------------------------------------------------------------------------------


def answer(query: Query, line: Key, document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a query about a line that are in the document of the line."""
    if isinstance(query, Get):
        rows = (embedded_row(query.space, key, document) for key in dict.fromkeys(query.keys))
        return [to_row(query.space, each) for each in rows if each is not None]
    return [to_row(query.space, each) for each in select(query, embedded_rows(query.space, line, document))]


def row_stages(query: Query) -> list[Document]:
    """Build the stages that find the embedded rows of a query, in its order."""
    if query.space is LINES:
        # Rows and lines have the same order, so that no more lines are read than are asked for.
        plain = query._replace(hints=()) if isinstance(query, Scan) else query
        return [{"$match": {"info": {"$exists": True}}}, *build_pipeline(plain), *_as_rows(LINES)]
    return [{"$match": _line_condition(query)}, *_as_rows(query.space), *build_pipeline(query)]


def streamed_stages(scan: Scan) -> list[Document]:
    """Build the stages that find the rows of a scan over several lines, in the order of their lines. Each has the field
    `bound`: rows that follow are not before it. Among rows of one bound there is no order."""
    order: Document
    condition: Document = _line_condition(scan)
    direction = -1 if scan.reverse else 1
    if scan.by == TIME:
        bound = UNTIL if scan.reverse else SINCE
        order = {bound: direction}
        tenant = {"_id.tenant": scan.prefix[0]} if scan.prefix else {}
        condition = {**tenant, UNTIL: {"$gte": scan.start[0] if scan.start else 0}}
        if scan.stop:
            condition[SINCE] = {"$lte": scan.stop[0]}
    else:
        bound, order = "_id", {"_id": direction}
    stages = build_pipeline(scan._replace(limit=None))
    return [
        {"$match": condition},
        {"$sort": order},
        *_as_rows(scan.space, bound),
        *(stage for stage in stages if "$sort" not in stage),
    ]


def _line_condition(query: Query) -> Document:
    field: Document = {field_of(query.space): {"$exists": True}}
    if isinstance(query, Get):
        lines = dict.fromkeys(line_of(key) for key in query.keys)
        return {"_id": {"$in": [build_id(LINES, line) for line in lines]}, **field}
    prefix = query.prefix[: 1 if query.by == TIME else LINE_WIDTH]
    if query.by or len(prefix) == LINE_WIDTH:
        return {"_id": id_range(LINES, prefix), **field}
    rest = LINE_WIDTH - len(prefix)
    if query.space in FEW_HAVE and prefix:
        field = {"_id.tenant": prefix[0], field_of(query.space): ANY}
    bounds: Document = id_range(LINES, prefix, query.start[:rest])
    if query.stop:
        last = build_id(LINES, prefix + query.stop[:rest])
        bounds["$lt"] = {**last, list(LINES.key)[len(last)] if len(last) < LINE_WIDTH else "more": MaxKey()}
    return {"_id": bounds, **field}


def _as_rows(space: Table, bound: str = "") -> list[Document]:
    """Build the stages that make documents of rows from those of lines."""
    tenant, line = list(space.key)[:LINE_WIDTH]
    key: Document = {tenant: "$_id.tenant", line: "$_id.line"}
    field = f"${field_of(space)}"
    copied: Document = {"bound": f"${bound}"} if bound else {}
    if len(space.key) == LINE_WIDTH:
        return [{"$replaceRoot": {"newRoot": {"$mergeObjects": [field, {"_id": key, **copied}]}}}]
    whole: Document = {"_id": {"$mergeObjects": [key, "$row.v._id"]}, **dict.fromkeys(copied, "$bound")}
    return [
        {"$project": {"row": {"$objectToArray": field}, **copied}},
        {"$unwind": "$row"},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$row.v", whole]}}},
    ]
