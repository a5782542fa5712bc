"""The collections of a store in MongoDB.

There is one for each table, and two more. `lines` has a document for each line, with its small rows (see
`line_document`), and one for each unfinished upload.

- `parts`: bodies that are too large for a document.
- `holdfast`: the version of the layout.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.mongodb.line_document import ANY, EMPTIED, FEW_HAVE, SINCE, UNTIL, field_of
from holdfast.backends.mongodb.row_mapping import THREAD_STEP, Document, index_fields
from holdfast.backends.tables import (
    AGENT_FIELDS,
    AGENT_VALUES,
    CONVERSATION_HISTORY,
    EVENTS,
    HEADS,
    LINES,
    METADATA,
    STATE_TRANSITIONS,
    STATE_VALUES,
    STEPS,
    TABLES,
    TRANSITIONS,
    WORDS,
    Table,
)
from holdfast.errors import ConfigError

VERSION = 3
"""The layout. Goes up when older versions of Holdfast cannot use the store."""

OLDEST_WIRE = 13
"""The wire version of MongoDB 5.0, the first that reads snapshots outside transactions."""

DURABLE = WriteConcern(w="majority", j=True)

_READABLE_INDEXES: Mapping[Table, Mapping[str, tuple[str, ...]]] = {
    HEADS: {
        "thread": ("tenant", "thread"),
        "time": ("tenant", "time"),
        "agent": ("tenant", "agent"),
        "state": ("tenant", "state"),
    },
    STATE_VALUES: {"thread": ("tenant", "thread", "channel"), "channel": ("tenant", "channel")},
    CONVERSATION_HISTORY: {"thread": ("tenant", "thread", "number"), "agent": ("tenant", "agent", "number")},
    TRANSITIONS: {"thread": ("tenant", "thread", "time")},
    METADATA: {"thread": ("tenant", "thread", "checkpoint"), "key": ("tenant", "key")},
    STATE_TRANSITIONS: {"agent": ("tenant", "agent", "time"), "success": ("tenant", "success", "time")},
}
"""The indexes for people: by thread, in the order of a conversation, and by what is searched for in all threads. Those
with a field that only agents have are of agents only."""

_OF_AGENTS: Document = {"agent": {"$gt": ""}}

_TIME_INDEXES: Mapping[Table, Mapping[str, tuple[tuple[str, ...], Document]]] = {
    STEPS: {"time": (("time", "_id"), THREAD_STEP)},
    EVENTS: {
        "time": (("time", "_id", "kind", "outcome"), {}),
        "correlation": (("correlation", "time", "_id"), {"correlation": {"$gt": ""}}),
        "cause": (("cause", "time", "_id"), {"cause": {"$gt": ""}}),
    },
}
"""The indexes by time across lines, and of what is looked for among many events: their fields, and a condition."""

_ALREADY_EXISTS = frozenset({48, 85, 86})

Collection: TypeAlias = AsyncCollection[Document]


class Collections:
    """The collections of a store, read from the primary and written to the disks of a majority."""

    def __init__(self, database: AsyncDatabase[Document], prefix: str) -> None:
        self._prefix = prefix
        self.database: AsyncDatabase[Document] = database.with_options(
            read_preference=ReadPreference.PRIMARY, write_concern=DURABLE, read_concern=ReadConcern("majority")
        )
        self._spaces = {space: self._named(space.name) for space in TABLES}
        self.lines: Collection = self._spaces[LINES]
        self.parts: Collection = self._named("parts")
        self.about = self._named("holdfast")

    def table(self, space: Table) -> Collection:
        """The collection of a table."""
        return self._spaces[space]

    @property
    def all(self) -> list[Collection]:
        """Every collection of the store."""
        return [*self._spaces.values(), self.parts, self.about]

    async def prepare(self, where: str) -> None:
        """Create what does not exist yet. Several processes may do so at once."""
        await _check_server(self.database, where)
        about = await self.about.find_one({"_id": "layout"}) or {}
        version = about.get("version", VERSION)
        if not isinstance(version, int) or version > VERSION:
            raise ConfigError(
                f"the store was created by a newer Holdfast: its layout is {version}, and this one knows {VERSION}",
                where=where,
                hint="Upgrade Holdfast",
            )
        if version < VERSION:
            raise ConfigError(
                f"the store has the layout {version} of an older Holdfast, and this one knows {VERSION} only",
                where=where,
                hint="Copy it to a store of another kind with that Holdfast, and then to a new database or prefix",
            )
        if about:
            return
        await asyncio.gather(
            *(_create_collection(collection, _index_models(space)) for space, collection in self._spaces.items()),
            _create_collection(self.parts, []),
            _create_collection(self.about, []),
        )
        views = _views(self._prefix).items()
        await asyncio.gather(*(_create(self._named(name), viewOn=on, pipeline=stages) for name, (on, stages) in views))
        await self.about.update_one({"_id": "layout"}, {"$setOnInsert": {"version": VERSION}}, upsert=True)

    def _named(self, name: str) -> Collection:
        return self.database[self._prefix + name]


async def _check_server(database: AsyncDatabase[Document], where: str) -> None:
    """Check that the server supports transactions and snapshots."""
    hello = await database.client.admin.command("hello")
    if hello.get("maxWireVersion", 0) < OLDEST_WIRE:
        raise ConfigError("this MongoDB is too old", where=where, hint="Upgrade the server to 5.0 or newer")
    if hello.get("isreplicaset"):  # it has just started, or was never initiated
        raise ServerInterrupted(
            "this MongoDB server is in no replica set yet; if it is new, call rs.initiate() once in mongosh"
        )
    if "setName" not in hello and hello.get("msg") != "isdbgrid":
        raise ConfigError(
            "this MongoDB server is not in a replica set, which transactions need",
            where=where,
            hint="Start mongod with --replSet rs0 and call rs.initiate() once in mongosh: one server is a set too",
        )


def _index_models(space: Table) -> list[IndexModel]:
    indexes = [
        IndexModel([(field, ASCENDING) for field in index_fields(space, index)], name=index) for index in space.indexes
    ]
    for index, names in _READABLE_INDEXES.get(space, {}).items():
        keys = [(name, ASCENDING) for name in names]
        of_agents = index in ("agent", "state") and space is not STATE_TRANSITIONS
        indexes.append(IndexModel(keys, name=index, **({"partialFilterExpression": _OF_AGENTS} if of_agents else {})))
    for index, (fields, condition) in _TIME_INDEXES.get(space, {}).items():
        keys = [(field, ASCENDING) for field in ("_id.tenant", *fields)]
        indexes.append(IndexModel(keys, name=index, **({"partialFilterExpression": condition} if condition else {})))
    if space is LINES:
        # By the times of embedded steps; and for `tidy`, which few documents concern.
        for name in (SINCE, UNTIL):
            keys = [("_id.tenant", ASCENDING), (name, ASCENDING)]
            indexes.append(IndexModel(keys, name=name, partialFilterExpression={name: {"$exists": True}}))
        indexes += [IndexModel([(name, ASCENDING)], name=name, sparse=True) for name in (EMPTIED, "begun")]
        for table in FEW_HAVE:
            name, keys = field_of(table), [("_id.tenant", ASCENDING)]
            indexes.append(IndexModel(keys, name=name, partialFilterExpression={name: ANY}))
    if space is WORDS:
        # One entry for each word, ordered by time, the last first; and all by time, for searches without a word.
        last_first = [("time", DESCENDING), ("_id", DESCENDING)]
        indexes += [
            IndexModel([("_id.tenant", ASCENDING), ("words", ASCENDING), *last_first], name="words"),
            IndexModel([("_id.tenant", ASCENDING), *last_first], name="time"),
        ]
    return indexes


def _views(prefix: str) -> dict[str, tuple[str, list[Document]]]:
    """Return the views for people: by name, the collection that each shows, and how.

    The server applies conditions on fields of `heads` first, and so finds them by its indexes.
    """
    heads, values = prefix + HEADS.name, prefix + STATE_VALUES.name
    same_line = {"$and": [{"$eq": [f"${name}", f"$${name}"]} for name in ("tenant", "thread")]}
    agents: list[Document] = [
        {"$match": _OF_AGENTS},
        {
            "$lookup": {
                "from": values,
                "let": {"tenant": "$tenant", "thread": "$thread"},
                "pipeline": [
                    {"$match": {"$expr": same_line, "channel": {"$in": list(AGENT_VALUES)}}},
                    {"$project": {"_id": 0, "k": "$channel", "v": "$value"}},
                ],
                "as": "values",
            }
        },
        {"$set": {"values": {"$arrayToObject": "$values"}}},
        {
            "$project": {
                **{name: 1 if name == column else f"${column}" for name, column in AGENT_FIELDS.items()},
                **{name: f"$values.{name}" for name in AGENT_VALUES},
            }
        },
    ]
    # With a projection, the server would not sort them by an index.
    threads: list[Document] = [{"$match": {"thread": {"$not": re.compile("^␞")}}}]
    return {"agent_states": (heads, agents), "threads": (heads, threads)}


async def _create_collection(collection: Collection, indexes: list[IndexModel]) -> None:
    await _create(collection)
    if indexes:
        await collection.create_indexes(indexes)


async def _create(collection: Collection, **options: Any) -> None:
    try:
        await collection.database.create_collection(collection.name, check_exists=False, **options)
    except OperationFailure as error:
        if error.code not in _ALREADY_EXISTS:
            raise
