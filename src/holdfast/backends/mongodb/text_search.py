"""Looking for words in a store in MongoDB: a row's words are an array, with an index that has an entry for each.

MongoDB uses the entries of one word only, and reads the documents that these name. It remembers which of several words
it took the last time, however rare they are now; so the rarest is found out first, and MongoDB left no choice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from bson import Int64
from pymongo import DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.interface import WordMatch, WordMatches
from holdfast.backends.mongodb.row_mapping import Document, id_of, key_of, under
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.tables import WORDS

_COMMON = 500
"""Words that are in more rows than this are all taken for equally common."""


async def find_matches(layout: Collections, session: AsyncClientSession, match: WordMatch) -> WordMatches:
    """A page of what is found, the last first."""
    words = await _rarest_first(layout, session, match) if match.line is None else match.words
    cursor = layout.of(WORDS).find(_filter(match, words), {"_id": 1, "time": 1}, session=session, allow_disk_use=True)
    if match.line is not None:
        cursor.hint("_id_")
    cursor.sort([("time", DESCENDING), ("_id", DESCENDING)]).limit(match.limit + 1)
    found = [(int(document["time"]), key_of(WORDS, document)) async for document in cursor]
    page = found[: match.limit]
    last = json.dumps([page[-1][0], *page[-1][1]]) if len(found) > match.limit else None
    return WordMatches([key for _, key in page], last)


async def _rarest_first(layout: Collections, session: AsyncClientSession, match: WordMatch) -> Sequence[str]:
    if len(match.words) < 2:
        return match.words
    counts: dict[str, int] = {}
    for word in match.words:
        wanted = {"_id.tenant": match.tenant, "words": word}
        counts[word] = await layout.of(WORDS).count_documents(wanted, session=session, limit=_COMMON)
    return sorted(counts, key=counts.__getitem__)


def _filter(match: WordMatch, words: Sequence[str]) -> Document:
    """What finds rows with these words, after those of the page before. Only the first word is for the index."""
    if match.line is None:
        conditions: list[Document] = [{"_id.tenant": match.tenant}, *({"words": word} for word in words[:1])]
    else:
        conditions = [{"_id": under(WORDS, (match.tenant, match.line))}, *({"words": word} for word in words[:1])]
    conditions += ({"$expr": {"$in": [{"$literal": word}, "$words"]}} for word in words[1:])
    for prefix in filter(None, match.prefixes):
        starting: Document = {"$elemMatch": _starting_with(prefix)}
        # Said twice the other way round, it is the same, and not for the index.
        conditions.append({"$nor": [{"words": {"$not": starting}}]} if words else {"words": starting})
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
