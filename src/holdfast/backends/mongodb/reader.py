"""Reads from MongoDB: many requests in one round trip, on one snapshot.

The requests are one pipeline of unions. Those that do not fit into one are sent in the same session, and so read the
same snapshot, of what the majority of the replica set has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bson import MaxKey
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.mongodb.row_mapping import PARTS, Document, build_pipeline, sort_key, to_row
from holdfast.backends.mongodb.schema import Collection, Collections
from holdfast.errors import CorruptError

_KEYS_PER_REQUEST = 1_000
"""The most keys in one pipeline. The longest take 5 KB each, and a command may have 16 MB."""

_UNIONS = 100
_BATCH = 5_000
_TAG = "_question"


class FindRequest(NamedTuple):
    """The stages of a search in a collection, and the number of keys that they name."""

    collection: Collection
    stages: list[Document]
    keys: int = 1


async def run_queries(
    collections: Collections, session: AsyncClientSession, queries: Sequence[Query]
) -> list[list[Row]]:
    """Return the rows of each query."""
    numbered = [
        (number, FindRequest(collections.table(part.space), build_pipeline(part), _keys(part)))
        for number, query in enumerate(queries)
        for part in _split(query)
    ]
    found = await find(session, [request for _, request in numbered])
    results: list[list[Row]] = [[] for _ in queries]
    for (number, _), documents in zip(numbered, found, strict=True):
        space = queries[number].space
        bodies = await _read_large_bodies(collections, session, documents)
        results[number] += [to_row(space, document, bodies.get(at)) for at, document in enumerate(documents)]
    for query, rows in zip(queries, results, strict=True):
        if isinstance(query, Scan):
            # The manual does not promise that a union keeps the order.
            rows.sort(key=sort_key(query), reverse=query.reverse)
    return results


async def count_rows(collections: Collections, session: AsyncClientSession, scans: Sequence[Scan]) -> list[int]:
    """Return how many rows each scan has."""
    requests = [
        FindRequest(collections.table(scan.space), [build_pipeline(scan)[0], {"$count": "rows"}], 1) for scan in scans
    ]
    return [sum(int(document["rows"]) for document in found) for found in await find(session, requests)]


async def find(session: AsyncClientSession, requests: Sequence[FindRequest]) -> list[list[Document]]:
    """Return the documents of each request."""
    found: list[list[Document]] = [[] for _ in requests]
    for numbers in _group_requests(requests):
        first, *others = (_tag(requests[number], number) for number in numbers)
        unions = [{"$unionWith": {"coll": other.collection.name, "pipeline": other.stages}} for other in others]
        cursor = await first.collection.aggregate([*first.stages, *unions], session=session, batchSize=_BATCH)
        async for document in cursor:
            found[document.pop(_TAG)].append(document)
    return found


def part_range(upload: str, first: int, count: int) -> Document:
    """The range of the `_id`s of some parts of an upload."""
    return {"$gte": {"upload": upload, "part": first}, "$lt": {"upload": upload, "part": first + count}}


def all_parts(upload: str) -> Document:
    """The range of the `_id`s of all parts of an upload."""
    return {"$gte": {"upload": upload}, "$lt": {"upload": upload, "part": MaxKey()}}


async def _read_large_bodies(
    collections: Collections, session: AsyncClientSession, documents: Sequence[Document]
) -> dict[int, bytes]:
    """Read the bodies that are stored in parts, by the position of their documents."""
    bodies: dict[int, bytes] = {}
    for at, document in enumerate(documents):
        location: dict[str, Any] | None = document.get(PARTS)
        if location is not None:
            ids = part_range(location["upload"], location["first"], location["count"])
            cursor = collections.parts.find({"_id": ids}, {"data": 1}, session=session).sort("_id")
            data = [bytes(part["data"]) async for part in cursor]
            if len(data) != location["count"]:
                raise CorruptError(
                    f"a body has {len(data)} of its {location['count']} parts", where=str(document["_id"])
                )
            bodies[at] = b"".join(data)
    return bodies


def _split(query: Query) -> Iterator[Query]:
    """Split a query into parts of limited size; none if nothing can be found."""
    if isinstance(query, Scan):
        if query.limit is None or query.limit > 0:
            yield query
        return
    keys = list(dict.fromkeys(query.keys))
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        yield Get(query.space, keys[start : start + _KEYS_PER_REQUEST])


def _keys(query: Query) -> int:
    return 1 if isinstance(query, Scan) else len(query.keys)


def _group_requests(requests: Sequence[FindRequest]) -> Iterator[list[int]]:
    """Yield the numbers of requests that are sent together."""
    group: list[int] = []
    keys = 0
    for number, request in enumerate(requests):
        if group and (keys + request.keys > _KEYS_PER_REQUEST or len(group) == _UNIONS):
            yield group
            group, keys = [], 0
        group.append(number)
        keys += request.keys
    if group:
        yield group


def _tag(request: FindRequest, number: int) -> FindRequest:
    return request._replace(stages=[*request.stages, {"$set": {_TAG: number}}])
