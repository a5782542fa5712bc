"""Transactions whose process died in the middle of them.

MongoDB does not notice that nobody will go on with one. For a minute, unless the server is set otherwise, it keeps
whatever it wrote from everybody else. So whoever cannot get at a line looks for such transactions, and ends them. One
that is only slow is told so when it goes on, and begins anew.
"""

from __future__ import annotations

import logging

from pymongo.errors import OperationFailure

from holdfast.backends.mongodb.row_mapping import Document
from holdfast.backends.mongodb.schema import Collections

_log = logging.getLogger("holdfast.mongodb")

DRIVER = "holdfast"
"""How the server knows our connections."""

_IDLE = 5_000_000
"""For how many microseconds a transaction may do nothing. The usual one is over after some thousand."""

_MAY_NOT_LOOK = frozenset({13, 59, 115, 303, 8000})


async def end_abandoned(layout: Collections) -> None:
    """End the transactions of this user, begun by Holdfast, that have done nothing for seconds."""
    admin = layout.database.client.admin
    stages: list[Document] = [
        {"$currentOp": {"allUsers": False, "idleSessions": True}},
        {
            "$match": {
                "type": "idleSession",
                "transaction.timeInactiveMicros": {"$gt": _IDLE},
                "clientMetadata.driver.name": {"$regex": rf"(^|\|){DRIVER}($|\|)"},
            }
        },
        {"$project": {"lsid": 1}},
    ]
    try:
        found = await (await admin.aggregate(stages)).to_list()
        if found:
            await admin.command("killSessions", [{"id": each["lsid"]["id"]} for each in found])
    except OperationFailure as error:
        if error.code not in _MAY_NOT_LOOK:
            raise
        # Some hosted servers do not allow it. Theirs end by themselves, only later.
        _log.info("cannot look for transactions that were abandoned: %s", error)
