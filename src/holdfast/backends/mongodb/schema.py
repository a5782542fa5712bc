"""The collections of a store in MongoDB, and how they come to be.

One for each space, and three of Holdfast's own:

- `commits`: for each line, which group wrote to it last (what two groups that touch one line come into conflict over);
  for each client, the outcome of its last groups; and the uploads under way.
- `parts`: bodies that are too large for a document.
- `holdfast`: the version of all this.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.mongodb.row_mapping import Document, index_fields
from holdfast.backends.tables import TABLES, WORDS, Table
from holdfast.errors import ConfigError

VERSION = 1
"""The layout. Goes up when older versions of Holdfast could not use the store."""

OLDEST_WIRE = 13
"""What MongoDB 5.0 speaks: the first that reads snapshots outside of transactions."""

DURABLE = WriteConcern(w="majority", j=True)

_REMEMBERED = 2 * 24 * 3600
"""For how many seconds the outcome of a client's last group is kept."""

_EXISTS = frozenset({48, 85, 86})

Collection: TypeAlias = AsyncCollection[Document]


class Collections:
    """Where everything is. All of it is read from the primary, and written to most of the servers, on disk."""

    def __init__(self, database: AsyncDatabase[Document], prefix: str) -> None:
        self._prefix = prefix
        self.database = database.with_options(
            read_preference=ReadPreference.PRIMARY, write_concern=DURABLE, read_concern=ReadConcern("majority")
        )
        self._spaces = {space: self._named(space.name) for space in TABLES}
        self.commits = self._named("commits")
        self.parts = self._named("parts")
        self._about = self._named("holdfast")

    def of(self, space: Table) -> Collection:
        """The collection of a space."""
        return self._spaces[space]

    @property
    def all(self) -> list[Collection]:
        """Every collection of the store."""
        return [*self._spaces.values(), self.commits, self.parts, self._about]

    async def prepare(self, where: str) -> None:
        """Make what is not there yet. Any number of processes may do so at a time."""
        await _fit(self.database, where)
        about = await self._about.find_one({"_id": "layout"}) or {}
        version = about.get("version", VERSION)
        if not isinstance(version, int) or version > VERSION:
            raise ConfigError(
                f"the store was made by a newer version of Holdfast: its layout is {version}, and this one knows"
                f" {VERSION}",
                where=where,
                hint="Upgrade Holdfast",
            )
        names = {space.name for space in TABLES}
        if names <= set(about.get("collections", ())):
            return
        expiring = IndexModel([("time", ASCENDING)], name="time", expireAfterSeconds=_REMEMBERED)
        # What tidying looks for, which few documents have.
        looked_for = [IndexModel([(name, ASCENDING)], name=name, sparse=True) for name in ("emptied", "begun")]
        await asyncio.gather(
            *(_make(collection, _indexes(space)) for space, collection in self._spaces.items()),
            _make(self.commits, [expiring, *looked_for]),
            _make(self.parts, []),
            _make(self._about, []),
        )
        await self._about.update_one(
            {"_id": "layout"},
            {"$setOnInsert": {"version": VERSION}, "$addToSet": {"collections": {"$each": sorted(names)}}},
            upsert=True,
        )

    def _named(self, name: str) -> Collection:
        return self.database[self._prefix + name]


async def _fit(database: AsyncDatabase[Document], where: str) -> None:
    """See that the server has transactions and snapshots."""
    hello = await database.client.admin.command("hello")
    if hello.get("maxWireVersion", 0) < OLDEST_WIRE:
        raise ConfigError("this MongoDB is too old", where=where, hint="Upgrade the server to 5.0 or newer")
    if hello.get("isreplicaset"):  # it has just started, or nobody ever told it who else is in its set
        raise ServerInterrupted(
            "this MongoDB server is in no replica set yet; if it is new, call rs.initiate() once in mongosh"
        )
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigError(
            "this MongoDB server stands alone, and only a replica set has transactions",
            where=where,
            hint="Start mongod with --replSet rs0 and call rs.initiate() once in mongosh: one server is a set too",
        )


def _indexes(space: Table) -> list[IndexModel]:
    indexes = [
        IndexModel([(field, ASCENDING) for field in index_fields(space, index)], name=index) for index in space.indexes
    ]
    if space is WORDS:
        # One entry for each word; those of one word by time, the last first. And all, for when no word is named.
        last_first = [("time", DESCENDING), ("_id", DESCENDING)]
        indexes += [
            IndexModel([("_id.tenant", ASCENDING), ("words", ASCENDING), *last_first], name="words"),
            IndexModel([("_id.tenant", ASCENDING), *last_first], name="time"),
        ]
    return indexes


async def _make(collection: Collection, indexes: list[IndexModel]) -> None:
    try:
        await collection.database.create_collection(collection.name, check_exists=False)
    except OperationFailure as error:
        if error.code not in _EXISTS:
            raise
    if indexes:
        await collection.create_indexes(indexes)
