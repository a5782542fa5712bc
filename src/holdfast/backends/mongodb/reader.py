"""Reads from MongoDB: many requests in one round trip, on one snapshot.

The requests are one pipeline of unions. Those that do not fit into one are sent in the same session, and so read the
same snapshot, of what the majority of the replica set has.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bson import Int64, MaxKey
from pymongo import DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.interface import Get, Query, Row, Scan, WordMatch, WordMatches
from holdfast.backends.mongodb.line_document import LINE_WIDTH, answer, field_of, line_of, row_stages, streamed_stages
from holdfast.backends.mongodb.row_mapping import (
    PARTS,
    Document,
    build_id,
    build_pipeline,
    id_range,
    read_key,
    sort_key,
    to_row,
)
from holdfast.backends.mongodb.schema import Collection, Collections
from holdfast.backends.tables import LINES, TIME, WORDS, Key
from holdfast.errors import CorruptError

_KEYS_PER_REQUEST = 1_000
"""The most keys in one pipeline. The longest take 5 KB each, and a command may have 16 MB."""

_UNIONS = 100
_BATCH = 5_000
_TAG = "_question"
_STREAMED = 100
"""The least number of rows that are fetched at once from documents of lines."""


class FindRequest(NamedTuple):
    """The stages of a search in a collection, and the number of keys that they name."""

    collection: Collection
    stages: list[Document]
    keys: int = 1


async def run_queries(
    collections: Collections, session: AsyncClientSession, queries: Sequence[Query]
) -> list[list[Row]]:
    """Return the rows of each query."""
    in_lines = [query for query in queries if query.space.embedded]
    line = _only_line(in_lines)
    numbered = [
        (number, request)
        for number, query in enumerate(queries)
        for part in _split(query)
        for request in _requests(collections, part, in_lines=line is None)
    ]
    requests = [request for _, request in numbered]
    if line is not None:
        # It takes the server less to send the document than to select rows in it, query by query.
        fields = dict.fromkeys([field_of(query.space) for query in in_lines], 1)
        stages: list[Document] = [{"$match": {"_id": build_id(LINES, line)}}, {"$project": fields}]
        requests.append(FindRequest(collections.lines, stages))
    found = await find(session, requests)
    results: list[list[Row]] = [[] for _ in queries]
    if line is not None:
        for document in found.pop():
            for number, query in enumerate(queries):
                if query.space.embedded:
                    results[number] += answer(query, line, document)
    for (number, _), documents in zip(numbered, found, strict=True):
        results[number] += await _to_rows(collections, session, queries[number], documents)
    for number, query in enumerate(queries):
        if isinstance(query, Scan) and _is_streamed(query):
            results[number][:0] = await _stream(collections, session, query)
        if isinstance(query, Scan):
            # The manual does not promise that a union keeps the order.
            results[number].sort(key=sort_key(query), reverse=query.reverse)
            if query.limit is not None:
                del results[number][query.limit :]
    return results


def _only_line(queries: Sequence[Query]) -> Key | None:
    """Return the line that queries are about, if it is one."""
    lines: set[Key] = set()
    for query in queries:
        if isinstance(query, Get):
            lines.update([line_of(key) for key in query.keys])
        else:
            lines.add(() if query.by == TIME else line_of(query.prefix))
        if len(lines) > 1:
            return None
    (line,) = lines or [()]
    return line if len(line) == LINE_WIDTH else None


def _requests(collections: Collections, query: Query, in_lines: bool = True) -> Iterator[FindRequest]:
    """Yield the requests for rows in the documents of lines, unless these are read as they are, and in their own
    collection."""
    keys = 1 if isinstance(query, Scan) else len(query.keys)
    if in_lines and query.space.embedded and not (isinstance(query, Scan) and _is_streamed(query)):
        yield FindRequest(collections.lines, row_stages(query), keys)
    if query.space is not LINES:
        yield FindRequest(collections.table(query.space), build_pipeline(query), keys)


async def _to_rows(
    collections: Collections, session: AsyncClientSession, query: Query, documents: Sequence[Document]
) -> list[Row]:
    bodies = await _read_large_bodies(collections, session, documents)
    return [to_row(query.space, document, bodies.get(at)) for at, document in enumerate(documents)]


def _is_streamed(scan: Scan) -> bool:
    """Whether the documents of lines are read one after another, since only the rows of some are asked for."""
    across = scan.by == TIME or len(scan.prefix) < LINE_WIDTH
    return scan.space.embedded and scan.space is not LINES and scan.limit is not None and across


async def _stream(collections: Collections, session: AsyncClientSession, scan: Scan) -> list[Row]:
    """Return the first rows of a scan that are in documents of lines, and perhaps more."""
    found: list[Row] = []
    limit = scan.limit or 0
    if not limit:
        return found
    cursor = await collections.lines.aggregate(
        streamed_stages(scan), session=session, batchSize=max(limit, _STREAMED), allowDiskUse=True
    )
    order = sort_key(scan)
    async with cursor:
        bound: Any = None
        async for document in cursor:
            if document["bound"] != bound:
                bound = document["bound"]
                if len(found) >= limit:
                    found.sort(key=order, reverse=scan.reverse)
                    del found[limit:]
                    if scan.by != TIME or _is_past(scan, found[-1], bound):
                        break
            found.append(to_row(scan.space, document))
    return found


def _is_past(scan: Scan, last: Row, bound: int) -> bool:
    """Whether no row of lines with a bound comes before the last one that is asked for."""
    time = last.columns[list(scan.space.columns).index(TIME)]
    return bound < time if scan.reverse else bound > time  # type: ignore[operator] # both are numbers


async def count_rows(collections: Collections, session: AsyncClientSession, scans: Sequence[Scan]) -> list[int]:
    """Return how many rows each scan has."""
    counted: list[int] = [0] * len(scans)
    numbered = [(number, each) for number, scan in enumerate(scans) for each in _requests(collections, scan)]
    requests = [each._replace(stages=[*each.stages, {"$count": "rows"}]) for _, each in numbered]
    for (number, _), documents in zip(numbered, await find(session, requests), strict=True):
        counted[number] += sum(int(document["rows"]) for document in documents)
    return counted


async def find(session: AsyncClientSession, requests: Sequence[FindRequest]) -> list[list[Document]]:
    """Return the documents of each request."""
    found: list[list[Document]] = [[] for _ in requests]
    for numbers in _group_requests(requests):
        first, *others = (_tag(requests[number], number) for number in numbers)
        unions = [{"$unionWith": {"coll": other.collection.name, "pipeline": other.stages}} for other in others]
        cursor = await first.collection.aggregate(
            [*first.stages, *unions], session=session, batchSize=_BATCH, allowDiskUse=True
        )
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


_COMMON = 500
"""Words that are in more rows than this count as equally common."""


async def find_matches(collections: Collections, session: AsyncClientSession, match: WordMatch) -> WordMatches:
    """Return a page of matches, the latest first.

    A row's words are an array, with an index entry for each. MongoDB uses the entries of one word only, and reads all
    documents that these name. It caches which of several words it used, however rare they are now; so the rarest is
    determined first, and only that is left to the index.
    """
    words = await _sort_by_rarity(collections, session, match) if match.line is None else match.words
    cursor = collections.table(WORDS).find(
        _filter(match, words), {"_id": 1, "time": 1}, session=session, allow_disk_use=True
    )
    if match.line is not None:
        cursor.hint("_id_")
    cursor.sort([("time", DESCENDING), ("_id", DESCENDING)]).limit(match.limit + 1)
    found = [(int(document["time"]), read_key(WORDS, document)) async for document in cursor]
    page = found[: match.limit]
    last = json.dumps([page[-1][0], *page[-1][1]]) if len(found) > match.limit else None
    return WordMatches([key for _, key in page], last)


async def _sort_by_rarity(collections: Collections, session: AsyncClientSession, match: WordMatch) -> Sequence[str]:
    if len(match.words) < 2:
        return match.words
    counts: dict[str, int] = {}
    for word in match.words:
        condition = {"_id.tenant": match.tenant, "words": word}
        counts[word] = await collections.table(WORDS).count_documents(condition, session=session, limit=_COMMON)
    return sorted(counts, key=counts.__getitem__)


def _filter(match: WordMatch, words: Sequence[str]) -> Document:
    """Build the filter for rows with these words, after the page before. Only the first word uses the index."""
    if match.line is None:
        conditions: list[Document] = [{"_id.tenant": match.tenant}, *({"words": word} for word in words[:1])]
    else:
        conditions = [{"_id": id_range(WORDS, (match.tenant, match.line))}, *({"words": word} for word in words[:1])]
    conditions += ({"$expr": {"$in": [{"$literal": word}, "$words"]}} for word in words[1:])
    for prefix in filter(None, match.prefixes):
        starting: Document = {"$elemMatch": _prefix_range(prefix)}
        # The double negation keeps it from using the index.
        conditions.append({"$nor": [{"words": {"$not": starting}}]} if words else {"words": starting})
    if match.after is not None:
        time, *key = json.loads(match.after)
        earlier = {"time": {"$lt": Int64(time)}}
        conditions.append({"$or": [earlier, {"time": Int64(time), "_id": {"$lt": build_id(WORDS, tuple(key))}}]})
    return {"$and": conditions}


def _prefix_range(prefix: str) -> Document:
    """The range from a prefix to the first text after all that start with it."""
    bounds: Document = {"$gte": prefix}
    rest = prefix.rstrip(chr(sys.maxunicode))
    if rest:
        following = ord(rest[-1]) + 1
        bounds["$lt"] = rest[:-1] + chr(0xE000 if following == 0xD800 else following)
    return bounds
