"""Measures, checks and cleans up a store in MongoDB, and ends orphaned transactions.

MongoDB does not notice that the process of a transaction died: for a minute by default, the transaction keeps its
locks. So a process that cannot write to a line looks for such transactions and ends them. One that was only slow fails,
and is retried.
"""

from __future__ import annotations

import logging

from pymongo.errors import OperationFailure, PyMongoError

from holdfast.backends.mongodb.large_bodies import remove_old_uploads
from holdfast.backends.mongodb.line_document import EMPTIED, LAST, WROTE, field_of
from holdfast.backends.mongodb.reader import FindRequest, find
from holdfast.backends.mongodb.row_mapping import Document, id_range
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.tables import LINES, READABLE, TABLES

_log = logging.getLogger("holdfast.mongodb")

_FORBIDDEN = frozenset({13, 59, 115, 303, 8000})
"""Not authorized, or unknown to a router or a service."""

_WORTHWHILE = 1 << 20
"""The least free bytes for which a collection is compacted."""

_NOT_ALLOWED = frozenset({13, 59, 72, 115, 117, 166, 291, 8000})
"""Not authorized, unknown to a router or a service, or not possible now. The free space is reused in any case."""


async def size(collections: Collections) -> int:
    """Return the bytes of the uncompressed documents and of the indexes."""
    total = 0
    for collection in collections.all:
        stats = await collections.database.command("collStats", collection.name)
        # Not the size of the files, which lags by up to a minute.
        total += int(stats.get("size", 0)) + int(stats.get("totalIndexSize", 0))
    return total


async def find_damage(collections: Collections) -> list[str]:
    """Run MongoDB's `validate` if this user may, and return its errors; and find readable rows whose key was changed by
    hand."""
    findings: list[str] = []
    for collection in collections.all:
        # In the background: otherwise it would block writers, and wait for every transaction.
        try:
            result = await collections.database.command("validate", collection.name, background=True)
        except OperationFailure as error:
            if error.code not in _FORBIDDEN:
                raise
            _log.info("collections are not validated: %s", error)
            break
        if not result.get("valid"):
            errors = result.get("errors") or ["it is not valid"]
            findings += [f"{collection.name}: {error}" for error in errors]
    for table in READABLE:
        copies = [{"$ne": [f"${name}", f"$_id.{name}"]} for name in table.key]
        wrong = await collections.table(table).count_documents({"$expr": {"$or": copies}})
        if wrong:
            findings.append(f"{table.name}: {wrong} documents have other values in the fields of their key than in _id")
    return findings


async def tidy(collections: Collections) -> None:
    """Remove unused uploads and the documents of deleted lines, and compact half-empty collections if allowed."""
    await remove_old_uploads(collections)
    async for lock in collections.lines.find({EMPTIED: True}):
        await _remove_if_empty(collections, lock)
    for collection in collections.all:
        stats = await collections.database.command("collStats", collection.name)
        free, total = int(stats.get("freeStorageSize", 0)), int(stats.get("storageSize", 0))
        if free >= _WORTHWHILE and 2 * free >= total and not await _compact(collections, collection.name):
            return


async def purge(collections: Collections) -> list[str]:
    """Compact all collections, as far as that is allowed. Returns where old documents may still be."""
    await tidy(collections)
    refused = [each.name for each in collections.all if not await _compact(collections, each.name)]
    left = [f"freed space of the collections {', '.join(refused)}, which this user may not compact"] if refused else []
    oplog = "the oplog and the journal of the server, until they are overwritten"
    try:
        stats = await collections.database.client["local"].command("collStats", "oplog.rs")
        oplog += f" (the oplog takes up to {int(stats['maxSize']) >> 20} MB)"
    except (PyMongoError, KeyError):
        pass  # it may not be read
    return [*left, oplog, "freed space in the server's files, and its backups"]


async def _compact(collections: Collections, name: str) -> bool:
    """Compact a collection, while others read and write; False if this user may not."""
    try:
        await collections.database.command("compact", name, force=True)
    except OperationFailure as error:
        if error.code not in _NOT_ALLOWED:
            raise
        return False
    return True


async def _remove_if_empty(collections: Collections, lock: Document) -> None:
    """Remove the document of an empty line, unless the line is written to at the same time."""
    line = tuple(lock["_id"].values())
    async with collections.database.client.start_session(snapshot=True) as session:
        one: list[Document] = [{"$limit": 1}, {"$project": {"_id": 1}}]
        requests = [
            FindRequest(collections.table(space), [{"$match": {"_id": id_range(space, line)}}, *one])
            for space in TABLES
            if space is not LINES
        ]
        is_used = any(lock.get(field_of(space)) for space in TABLES) or any(await find(session, requests))
    # The condition fails if the line was written to since its document was read.
    if not is_used:
        await collections.lines.delete_one({"_id": lock["_id"], LAST: lock[LAST], WROTE: lock.get(WROTE)})


DRIVER_NAME = "holdfast"
"""The driver name that the server shows for connections of Holdfast."""


_IDLE_MICROSECONDS = 5_000_000
"""How long a transaction may be idle. A typical one takes some thousand microseconds."""


async def end_orphaned_transactions(collections: Collections) -> None:
    """End the transactions of Holdfast and of this user that have been idle for seconds."""
    admin = collections.database.client.admin
    stages: list[Document] = [
        {"$currentOp": {"allUsers": False, "idleSessions": True}},
        {
            "$match": {
                "type": "idleSession",
                "transaction.timeInactiveMicros": {"$gt": _IDLE_MICROSECONDS},
                "clientMetadata.driver.name": {"$regex": rf"(^|\|){DRIVER_NAME}($|\|)"},
            }
        },
        {"$project": {"lsid": 1}},
    ]
    try:
        found = await (await admin.aggregate(stages)).to_list()
        if found:
            await admin.command("killSessions", [{"id": each["lsid"]["id"]} for each in found])
    except OperationFailure as error:
        if error.code not in _FORBIDDEN:
            raise
        # Some hosted servers do not allow it. They end such transactions later.
        _log.info("cannot list orphaned transactions: %s", error)
