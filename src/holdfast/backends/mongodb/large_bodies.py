"""Bodies that are kept in parts beside their documents.

They are stored before the transaction that refers to them: one of hundreds of megabytes would not fit into a server's
cache. A document in `commits` names an upload until that transaction removes it; so an upload that nobody will refer to
is known, and swept once it is old.
"""

from __future__ import annotations

import secrets

from bson import Binary

from holdfast.backends.mongodb.commit_group import PART, CommitGroup
from holdfast.backends.mongodb.reader import parts_of
from holdfast.backends.mongodb.row_mapping import Document, id_of
from holdfast.backends.mongodb.schema import Collections

_OLD = 24 * 3600 * 1000
"""After how many milliseconds an upload that nobody refers to is given up."""

_PARTS_AT_ONCE = 4


class LargeBodies:
    """The uploads of one client."""

    def __init__(self, layout: Collections) -> None:
        self._layout = layout
        self._made: dict[int, tuple[int, dict[int, Document]]] = {}
        """By slot: for which group, and where the bodies of its rows are. For when the group is sent again."""

    async def of(self, group: CommitGroup) -> dict[int, Document]:
        """Where the parts are of those bodies that do not go into the transaction, by the identity of their rows."""
        if not group.outgrown:
            return {}
        number, made = self._made.get(group.stamp.slot, (0, {}))
        if number == group.stamp.number and made.keys() == {id(row) for _, row in group.outgrown}:
            return made
        made = await self._upload(group)
        self._made[group.stamp.slot] = (group.stamp.number, made)
        return made

    def forget(self, group: CommitGroup) -> None:
        """The group was made."""
        self._made.pop(group.stamp.slot, None)

    async def discard(self, group: CommitGroup) -> None:
        """Nothing of the group was made, and nothing will be."""
        _, made = self._made.pop(group.stamp.slot, (0, {}))
        for upload in {kept["upload"] for kept in made.values()}:
            await _remove(self._layout, {"upload": upload})

    async def _upload(self, group: CommitGroup) -> dict[int, Document]:
        upload = secrets.token_hex(12)
        begun = {"$currentDate": {"begun": True}}
        await self._layout.commits.update_one({"_id": {"upload": upload}}, begun, upsert=True)
        made: dict[int, Document] = {}
        waiting: list[Document] = []
        first = 0
        for space, row in group.outgrown:
            pieces = range(0, len(row.body), PART)
            made[id(row)] = {"upload": upload, "first": first, "count": len(pieces), "size": len(row.body)}
            for number, start in enumerate(pieces, first):
                waiting.append(
                    {
                        "_id": {"upload": upload, "part": number},
                        "space": space.name,
                        "key": id_of(space, row.key),
                        "data": Binary(row.body[start : start + PART]),
                    }
                )
                if len(waiting) == _PARTS_AT_ONCE:
                    await self._layout.parts.insert_many(waiting)
                    waiting = []
            first += len(pieces)
        if waiting:
            await self._layout.parts.insert_many(waiting)
        return made


async def sweep(layout: Collections) -> None:
    """Remove uploads that were begun long ago and never referred to."""
    old = {"$expr": {"$lt": ["$begun", {"$subtract": ["$$NOW", _OLD]}]}, "begun": {"$exists": True}}
    await layout.commits.update_many(old, {"$set": {"swept": True}})  # from now on nobody can refer to them
    async for document in layout.commits.find({"begun": {"$exists": True}, "swept": True}):
        await _remove(layout, document["_id"])


async def _remove(layout: Collections, named: Document) -> None:
    """Remove an upload: what names it last, so that none is left behind unnamed."""
    await layout.parts.delete_many({"_id": parts_of(named["upload"])})
    await layout.commits.delete_one({"_id": named})
