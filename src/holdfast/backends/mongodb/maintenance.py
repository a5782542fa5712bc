"""How large a store in MongoDB is, whether it is sound, and clearing away what is not used any more."""

from __future__ import annotations

from pymongo.errors import OperationFailure

from holdfast.backends.mongodb.large_bodies import sweep
from holdfast.backends.mongodb.reader import FindRequest, find
from holdfast.backends.mongodb.row_mapping import Document, under
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.tables import TABLES

_WORTHWHILE = 1 << 20
"""How many bytes a collection has free, at the least, for it to be worth moving together."""

_NOT_OURS = frozenset({13, 59, 72, 115, 117, 166, 291, 8000})
"""Not authorized, not known to a router or a service, not possible now. The room is used again in any case."""


async def size(layout: Collections) -> int:
    """The bytes of documents, before MongoDB compresses them, and of indexes."""
    total = 0
    for collection in layout.all:
        stats = await layout.database.command("collStats", collection.name)
        # Not the size of files, which lags behind by up to a minute.
        total += int(stats.get("size", 0)) + int(stats.get("totalIndexSize", 0))
    return total


async def damage(layout: Collections) -> list[str]:
    """What MongoDB's `validate` finds."""
    found: list[str] = []
    for collection in layout.all:
        # In the background: otherwise nobody could write meanwhile, and this would wait for every transaction.
        said = await layout.database.command("validate", collection.name, background=True)
        if not said.get("valid"):
            errors = said.get("errors") or ["it is not valid"]
            found += [f"{collection.name}: {error}" for error in errors]
    return found


async def tidy(layout: Collections) -> None:
    """Remove uploads that were given up, and what says who wrote last to lines that are gone; and have collections that
    are half empty give their room back to the disk, where this user may."""
    await sweep(layout)
    async for lock in layout.commits.find({"emptied": True}):
        await _remove_if_gone(layout, lock)
    for collection in layout.all:
        stats = await layout.database.command("collStats", collection.name)
        free, room = int(stats.get("freeStorageSize", 0)), int(stats.get("storageSize", 0))
        if free >= _WORTHWHILE and 2 * free >= room and not await _compact(layout, collection.name):
            return


async def _compact(layout: Collections, name: str) -> bool:
    """Have a collection moved together; False where that is not for us to ask. Others read and write meanwhile."""
    try:
        await layout.database.command("compact", name, force=True)
    except OperationFailure as error:
        if error.code not in _NOT_OURS:
            raise
        return False
    return True


async def _remove_if_gone(layout: Collections, lock: Document) -> None:
    """Forget a line where nothing is. Somebody who writes to it meanwhile gets ahead of this."""
    line = tuple(lock["_id"].values())
    async with layout.database.client.start_session(snapshot=True) as session:
        one: list[Document] = [{"$limit": 1}, {"$project": {"_id": 1}}]
        questions = [FindRequest(layout.of(space), [{"$match": {"_id": under(space, line)}}, *one]) for space in TABLES]
        there = any(await find(session, questions))
    # Only if nobody wrote since the lock was read, and so since it was seen that nothing is there.
    if not there:
        await layout.commits.delete_one({"_id": lock["_id"], "last": lock["last"]})
