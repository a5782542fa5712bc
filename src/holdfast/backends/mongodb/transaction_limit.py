"""How much goes into one transaction: what it wrote has to stay in the server's cache until it is committed."""

from __future__ import annotations

from pymongo.errors import OperationFailure

from holdfast.backends.mongodb.schema import Collections

_SHARE = 5
"""One part in so many of the cache may be taken by what is not written back. What is not committed cannot be; beyond
that share the server stops all who write, and gives up the oldest transaction: this one. It may do so earlier,
from less than half of that on: it depends on how busy it is, and the log of the replica set comes on top."""

_MAY_NOT_ASK = frozenset({13, 59, 115, 303, 8000})


async def room(layout: Collections) -> int | None:
    """How many bytes of changes the primary takes in one transaction, if it says."""
    try:
        status = await layout.database.client.admin.command("serverStatus", repl=0, metrics=0, locks=0)
    except OperationFailure as error:
        if error.code not in _MAY_NOT_ASK:
            raise
        return None
    cache = status.get("wiredTiger", {}).get("cache", {}).get("maximum bytes configured")
    return None if cache is None else int(cache) // _SHARE
