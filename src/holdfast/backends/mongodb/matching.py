"""Looking for words in a store in MongoDB: a row's words are an array, with an index that has an entry for each."""

from __future__ import annotations

import json
import sys

from bson import Int64
from pymongo import DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.mongodb.documents import Document, id_of, key_of
from holdfast.backends.mongodb.layout import Layout
from holdfast.backends.port import Match, Matches
from holdfast.backends.spaces import WORDS


async def find_matches(layout: Layout, session: AsyncClientSession, match: Match) -> Matches:
    """A page of what is found, the last first."""
    cursor = layout.of(WORDS).find(_filter(match), {"_id": 1, "time": 1}, session=session, allow_disk_use=True)
    cursor.sort([("time", DESCENDING), ("_id", DESCENDING)]).limit(match.limit + 1)
    found = [(int(document["time"]), key_of(WORDS, document)) async for document in cursor]
    page = found[: match.limit]
    last = json.dumps([page[-1][0], *page[-1][1]]) if len(found) > match.limit else None
    return Matches([key for _, key in page], last)


def _filter(match: Match) -> Document:
    """What finds rows with these words, after those of the page before."""
    conditions: list[Document] = [{"_id.tenant": match.tenant}]
    conditions += ({"words": word} for word in match.words)
    conditions += ({"words": {"$elemMatch": _starting_with(prefix)}} for prefix in match.prefixes if prefix)
    if match.line is not None:
        conditions.append({"_id.line": match.line})
    if match.after is not None:
        time, *key = json.loads(match.after)
        earlier = {"time": {"$lt": Int64(time)}}
        conditions.append({"$or": [earlier, {"time": Int64(time), "_id": {"$lt": id_of(WORDS, tuple(key))}}]})
    return {"$and": conditions}


def _starting_with(prefix: str) -> Document:
    """From the prefix to the first text that comes after all that start with it."""
    bounds: Document = {"$gte": prefix}
    rest = prefix.rstrip(chr(sys.maxunicode))
    if rest:
        following = ord(rest[-1]) + 1
        bounds["$lt"] = rest[:-1] + chr(0xE000 if following == 0xD800 else following)
    return bounds
