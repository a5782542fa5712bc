"""Bodies that are stored in parts beside their documents.

They are uploaded before the transaction that refers to them: hundreds of megabytes would not fit into a server's cache.
A document in `lines` names an upload until that transaction removes the document; so uploads that were never used are
found, and removed once they are old.
"""

from __future__ import annotations

import secrets

from bson import Binary

from holdfast.backends.mongodb.commit_group import PART_BYTES, CommitGroup
from holdfast.backends.mongodb.reader import all_parts
from holdfast.backends.mongodb.row_mapping import Document, build_id
from holdfast.backends.mongodb.schema import Collections

_MAX_AGE_MS = 24 * 3600 * 1000
"""After how many milliseconds an unused upload is removed."""

_PARTS_AT_ONCE = 4


class LargeBodies:
    """The uploads of one client."""

    def __init__(self, collections: Collections) -> None:
        self._collections = collections
        self._uploads: dict[int, tuple[int, dict[int, Document]]] = {}
        """By slot: the group, and where the bodies of its rows are, in case the group is sent again."""

    async def upload(self, group: CommitGroup) -> dict[int, Document]:
        """Upload the bodies that do not fit into the transaction. Returns their locations, by the id() of the row."""
        if not group.large_rows:
            return {}
        number, locations = self._uploads.get(group.stamp.slot, (0, {}))
        if number == group.stamp.number and locations.keys() == {id(row) for _, row in group.large_rows}:
            return locations
        locations = await self._store_parts(group)
        self._uploads[group.stamp.slot] = (group.stamp.number, locations)
        return locations

    def forget(self, group: CommitGroup) -> None:
        """Forget the uploads of a group that was committed."""
        self._uploads.pop(group.stamp.slot, None)

    async def discard(self, group: CommitGroup) -> None:
        """Remove the uploads of a group of which nothing is committed."""
        _, locations = self._uploads.pop(group.stamp.slot, (0, {}))
        for upload in {location["upload"] for location in locations.values()}:
            await _remove_upload(self._collections, {"upload": upload})

    async def _store_parts(self, group: CommitGroup) -> dict[int, Document]:
        upload = secrets.token_hex(12)
        started = {"$currentDate": {"begun": True}}
        await self._collections.lines.update_one({"_id": {"upload": upload}}, started, upsert=True)
        locations: dict[int, Document] = {}
        batch: list[Document] = []
        first = 0
        for space, row in group.large_rows:
            pieces = range(0, len(row.body), PART_BYTES)
            locations[id(row)] = {"upload": upload, "first": first, "count": len(pieces), "size": len(row.body)}
            for number, start in enumerate(pieces, first):
                batch.append(
                    {
                        "_id": {"upload": upload, "part": number},
                        "space": space.name,
                        "key": build_id(space, row.key),
                        "data": Binary(row.body[start : start + PART_BYTES]),
                    }
                )
                if len(batch) == _PARTS_AT_ONCE:
                    await self._collections.parts.insert_many(batch)
                    batch = []
            first += len(pieces)
        if batch:
            await self._collections.parts.insert_many(batch)
        return locations


async def remove_old_uploads(collections: Collections) -> None:
    """Remove uploads that were started long ago and never used."""
    old = {"$expr": {"$lt": ["$begun", {"$subtract": ["$$NOW", _MAX_AGE_MS]}]}, "begun": {"$exists": True}}
    await collections.lines.update_many(old, {"$set": {"swept": True}})  # from now on no transaction can use them
    async for document in collections.lines.find({"begun": {"$exists": True}, "swept": True}):
        await _remove_upload(collections, document["_id"])


async def _remove_upload(collections: Collections, id: Document) -> None:
    """Remove the parts of an upload, and then the document that names it."""
    await collections.parts.delete_many({"_id": all_parts(id["upload"])})
    await collections.lines.delete_one({"_id": id})
