"""Asking MongoDB many things at once, as of one moment.

All that is asked goes as one pipeline of unions, in one round trip; within a snapshot, which the server takes of what
most of the replica set has. What does not fit into one pipeline is asked in the same session, and so of the same
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bson import MaxKey
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.mongodb.row_mapping import PARTS, Document, order_of, pipeline, row_of
from holdfast.backends.mongodb.schema import Collection, Collections
from holdfast.errors import CorruptError

_KEYS = 1_000
"""How many keys are asked for in one pipeline. The longest take 5 KB each, and a command may have 16 MB."""

_UNIONS = 100
_BATCH = 5_000
_TAG = "_question"


class FindRequest(NamedTuple):
    """Something to find: stages in a collection, and how many keys they name."""

    collection: Collection
    stages: list[Document]
    keys: int = 1


async def answer(layout: Collections, session: AsyncClientSession, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows that each query finds."""
    numbered = [
        (number, FindRequest(layout.of(part.space), pipeline(part), _keys(part)))
        for number, query in enumerate(queries)
        for part in _split(query)
    ]
    found = await find(session, [question for _, question in numbered])
    answers: list[list[Row]] = [[] for _ in queries]
    for (number, _), documents in zip(numbered, found, strict=True):
        space = queries[number].space
        bodies = await _bodies(layout, session, documents)
        answers[number] += [row_of(space, document, bodies.get(at)) for at, document in enumerate(documents)]
    for query, rows in zip(queries, answers, strict=True):
        if isinstance(query, Scan):
            # They come in order, but the manual does not promise that of a union.
            rows.sort(key=order_of(query), reverse=query.reverse)
    return answers


async def find(session: AsyncClientSession, questions: Sequence[FindRequest]) -> list[list[Document]]:
    """The documents that each question finds."""
    found: list[list[Document]] = [[] for _ in questions]
    for numbers in _loads(questions):
        first, *others = (_tagged(questions[number], number) for number in numbers)
        unions = [{"$unionWith": {"coll": other.collection.name, "pipeline": other.stages}} for other in others]
        cursor = await first.collection.aggregate([*first.stages, *unions], session=session, batchSize=_BATCH)
        async for document in cursor:
            found[document.pop(_TAG)].append(document)
    return found


def parts_under(upload: str, first: int, count: int) -> Document:
    """A range of `_id`s: some parts of an upload."""
    return {"$gte": {"upload": upload, "part": first}, "$lt": {"upload": upload, "part": first + count}}


def parts_of(upload: str) -> Document:
    """A range of `_id`s: all parts of an upload."""
    return {"$gte": {"upload": upload}, "$lt": {"upload": upload, "part": MaxKey()}}


async def _bodies(layout: Collections, session: AsyncClientSession, documents: Sequence[Document]) -> dict[int, bytes]:
    """The bodies that are kept in parts, by the place of their documents."""
    bodies: dict[int, bytes] = {}
    for at, document in enumerate(documents):
        kept: dict[str, Any] | None = document.get(PARTS)
        if kept is not None:
            these = parts_under(kept["upload"], kept["first"], kept["count"])
            cursor = layout.parts.find({"_id": these}, {"data": 1}, session=session).sort("_id")
            data = [bytes(part["data"]) async for part in cursor]
            if len(data) != kept["count"]:
                raise CorruptError(f"a body has {len(data)} of its {kept['count']} parts", where=str(document["_id"]))
            bodies[at] = b"".join(data)
    return bodies


def _split(query: Query) -> Iterator[Query]:
    """The parts of a query that are asked; none where nothing can be found."""
    if isinstance(query, Scan):
        if query.limit is None or query.limit > 0:
            yield query
        return
    keys = list(dict.fromkeys(query.keys))
    for start in range(0, len(keys), _KEYS):
        yield Get(query.space, keys[start : start + _KEYS])


def _keys(query: Query) -> int:
    return 1 if isinstance(query, Scan) else len(query.keys)


def _loads(questions: Sequence[FindRequest]) -> Iterator[list[int]]:
    """The numbers of questions that are asked together."""
    load: list[int] = []
    keys = 0
    for number, question in enumerate(questions):
        if load and (keys + question.keys > _KEYS or len(load) == _UNIONS):
            yield load
            load, keys = [], 0
        load.append(number)
        keys += question.keys
    if load:
        yield load


def _tagged(question: FindRequest, number: int) -> FindRequest:
    return question._replace(stages=[*question.stages, {"$set": {_TAG: number}}])
