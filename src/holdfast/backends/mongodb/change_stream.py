"""Answers `Backend.changes` from a change stream of the collection `lines`.

Every group that changes a line updates its document there, so that nothing more need be written. A token is a
time of the server's log, which orders all transactions, the id of the collection, and the id of the server's process.
After a restore one of them is another one: the process, if its files are from a copy. What the log does not have any
more is a gap.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator

from bson import Timestamp
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import OperationFailure

from holdfast.backends.feed import Line, build_token, foreign_token, parse_number, parse_token
from holdfast.backends.interface import Changes
from holdfast.backends.mongodb.line_document import QUIET
from holdfast.backends.mongodb.row_mapping import Document
from holdfast.backends.mongodb.schema import Collections
from holdfast.errors import UnsupportedError

_KIND = "mongodb"
_RESUME_TOKEN = re.compile(r"82([0-9A-F]{8})([0-9A-F]{8})")
"""A resume token of MongoDB starts with the time of the log up to which it stands for."""

_HISTORY_LOST = frozenset({280, 286})

_LOST = ["drop", "rename", "dropDatabase", "invalidate"]
_PIPELINE: list[Document] = [
    {
        "$match": {
            "$or": [
                {"operationType": {"$in": _LOST}},
                {
                    "operationType": {"$in": ["insert", "update", "replace"]},
                    "documentKey._id.line": {"$exists": True},
                    f"updateDescription.updatedFields.{QUIET}": {"$exists": False},
                    f"fullDocument.{QUIET}": {"$exists": False},
                },
            ]
        }
    },
    {"$project": {"operationType": 1, "documentKey": 1, "clusterTime": 1}},
]

_BATCH = 2_000
_WAIT_MS = 5
"""How long the server waits for further entries of its log, once it has read all."""

_LISTEN_MS = 10_000
"""How long the server waits for an announcement before it says that there is none yet."""

LogTime = tuple[int, int]
"""A time of the log: seconds, and a counter."""


def parse_since(since: str | None, where: str) -> tuple[str, LogTime | None]:
    """Return the place that a token is from, and its time."""
    if since is None:
        return "", None
    place, seconds, increment = parse_token(since, _KIND, 3, where)
    time = parse_number(seconds, since, where), parse_number(increment, since, where)
    if max(time) >= 1 << 32:
        raise foreign_token(since, where)
    return place, time


async def find_changes(collections: Collections, place: str, since: LogTime | None) -> Changes:
    """Return the lines whose documents changed from a time on."""
    async with collections.database.client.start_session() as session:
        here = await _find_place(collections, session)
        if since is not None and place == here:
            try:
                return await _read_stream(collections, session, here, since)
            except OperationFailure as error:
                if error.code not in _HISTORY_LOST:
                    raise
        return (await _read_stream(collections, session, here, None))._replace(complete=since is None)


async def _read_stream(
    collections: Collections, session: AsyncClientSession, here: str, since: LogTime | None
) -> Changes:
    """Read a stream up to the time at which it was opened."""
    database, name = collections.database, collections.lines.name
    opened = await database.command(
        "aggregate",
        name,
        pipeline=[{"$changeStream": {"startAtOperationTime": Timestamp(*since)} if since else {}}, *_PIPELINE],
        cursor={"batchSize": _BATCH},
        readConcern={"level": "majority"},
        session=session,
    )
    cursor, end = opened["cursor"], _time(opened["operationTime"])
    events: list[Document] = cursor["firstBatch"]
    batch, position = events, _position(cursor)
    try:
        # All up to a time was read when the position is after it, or at it and there was no more.
        while position < end or (batch and position == end):
            more = await database.command(
                "getMore", cursor["id"], collection=name, batchSize=_BATCH, maxTimeMS=_WAIT_MS, session=session
            )
            batch, position = more["cursor"]["nextBatch"], _position(more["cursor"])
            events += batch
    finally:
        await asyncio.shield(database.command("killCursors", name, cursors=[cursor["id"]], session=session))
    if events and not batch and position == _time(events[-1]["clusterTime"]):
        position = position[0], position[1] + 1  # there is no more of that time
    lost = any(event["operationType"] in _LOST for event in events)
    # The stream of a store at rest may start with the entry that is yet to come.
    future = since is not None and since > (end[0], end[1] + 1)
    lines: dict[Line, None] = {}
    for event in events:
        if "documentKey" in event:
            tenant, line = event["documentKey"]["_id"].values()
            lines[tenant, line] = None
    return Changes(list(lines), build_token(_KIND, here, *position), complete=not lost and not future)


async def _find_place(collections: Collections, session: AsyncClientSession) -> str:
    """Return the id of the collection, and that of the process of the server. A router is not the server."""
    listed = await collections.database.list_collections(session=session, filter={"name": collections.lines.name})
    found = await listed.to_list()
    collection = bytes(found[0]["info"]["uuid"]).hex() if found else "none"
    server = await collections.database.command("hello", session=session)
    return f"{collection}-{server['topologyVersion']['processId']}" if "setName" in server else collection


async def announce(collections: Collections, topic: str) -> None:
    """Change the document of a topic, for those who listen to it."""
    await collections.about.update_one({"_id": f"topic {topic}"}, {"$inc": {"announced": 1}}, upsert=True)


async def announcements(collections: Collections, topic: str) -> AsyncGenerator[None]:
    """Yield when the changes of the document of a topic are listened to, and at each."""
    pipeline: list[Document] = [{"$match": {"documentKey._id": f"topic {topic}"}}, {"$project": {"_id": 1}}]
    async with await collections.about.watch(pipeline, max_await_time_ms=_LISTEN_MS) as stream:
        yield
        async for _ in stream:
            yield


def _time(stamp: Timestamp) -> LogTime:
    return stamp.time, stamp.inc


def _position(cursor: Document) -> LogTime:
    """Return the time up to which a stream was read."""
    resume = cursor["postBatchResumeToken"]["_data"]
    found = _RESUME_TOKEN.match(resume)
    if found is None:
        raise UnsupportedError(f"the server's resume token has an unknown form: {resume[:40]}")
    return int(found[1], 16), int(found[2], 16)
