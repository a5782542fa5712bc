"""Search for words in a store in MongoDB: a row's words are an array, with an index entry for each.

MongoDB uses the entries of one word only, and reads all documents that these name. It caches which of several words it
used, however rare they are now; so the rarest is determined first, and only that is left to the index.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from bson import Int64
from pymongo import DESCENDING
from pymongo.asynchronous.client_session import AsyncClientSession

from holdfast.backends.interface import WordMatch, WordMatches
from holdfast.backends.mongodb.row_mapping import Document, build_id, id_range, read_key
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.tables import WORDS

_COMMON = 500
"""Words that are in more rows than this count as equally common."""


async def find_matches(collections: Collections, session: AsyncClientSession, match: WordMatch) -> WordMatches:
    """Return a page of matches, the latest first."""
    words = await _sort_by_rarity(collections, session, match) if match.line is None else match.words
    cursor = collections.table(WORDS).find(
        _filter(match, words), {"_id": 1, "time": 1}, session=session, allow_disk_use=True
    )
    if match.line is not None:
        cursor.hint("_id_")
    cursor.sort([("time", DESCENDING), ("_id", DESCENDING)]).limit(match.limit + 1)
    found = [(int(document["time"]), read_key(WORDS, document)) async for document in cursor]
    page = found[: match.limit]
    last = json.dumps([page[-1][0], *page[-1][1]]) if len(found) > match.limit else None
    return WordMatches([key for _, key in page], last)


async def _sort_by_rarity(collections: Collections, session: AsyncClientSession, match: WordMatch) -> Sequence[str]:
    if len(match.words) < 2:
        return match.words
    counts: dict[str, int] = {}
    for word in match.words:
        condition = {"_id.tenant": match.tenant, "words": word}
        counts[word] = await collections.table(WORDS).count_documents(condition, session=session, limit=_COMMON)
    return sorted(counts, key=counts.__getitem__)


def _filter(match: WordMatch, words: Sequence[str]) -> Document:
    """Build the filter for rows with these words, after the page before. Only the first word uses the index."""
    if match.line is None:
        conditions: list[Document] = [{"_id.tenant": match.tenant}, *({"words": word} for word in words[:1])]
    else:
        conditions = [{"_id": id_range(WORDS, (match.tenant, match.line))}, *({"words": word} for word in words[:1])]
    conditions += ({"$expr": {"$in": [{"$literal": word}, "$words"]}} for word in words[1:])
    for prefix in filter(None, match.prefixes):
        starting: Document = {"$elemMatch": _prefix_range(prefix)}
        # The double negation keeps it from using the index.
        conditions.append({"$nor": [{"words": {"$not": starting}}]} if words else {"words": starting})
    if match.after is not None:
        time, *key = json.loads(match.after)
        earlier = {"time": {"$lt": Int64(time)}}
        conditions.append({"$or": [earlier, {"time": Int64(time), "_id": {"$lt": build_id(WORDS, tuple(key))}}]})
    return {"$and": conditions}


def _prefix_range(prefix: str) -> Document:
    """The range from a prefix to the first text after all that start with it."""
    bounds: Document = {"$gte": prefix}
    rest = prefix.rstrip(chr(sys.maxunicode))
    if rest:
        following = ord(rest[-1]) + 1
        bounds["$lt"] = rest[:-1] + chr(0xE000 if following == 0xD800 else following)
    return bounds
