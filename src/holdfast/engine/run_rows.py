"""The rows that lead to the runs of a thread: they are removed with it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from holdfast.backends.interface import Change, Delete, Row, Scan
from holdfast.backends.tables import JOBS, REFS, Key
from holdfast.engine.row_format import LEASE, Line

RECORD = "run record"
"""The name of the rows of runs, among the leases of a thread."""

LIMIT = "run-limit"
"""The rows of limits for runs of a graph."""

DUE, BUSY, WAITS, BY_TIME, BY_KEY = "due", "busy", "waits", "run", "run-key"
"""The rows that lead to a run: by when it is due, also of an agent that waits until then; while a worker has it; while
it waits for an answer; for lists; by its idempotency key."""


def run_place(tenant: str, kind: str, name: str) -> Key:
    """Return the key of a row that leads to a run. No job has such a name."""
    return (tenant, "", f"\x01{kind}/{name}")


def due_name(graph: str, due: int, id: str) -> str:
    """Return the name of the row of a run that is due: workers read those of their own graphs, by their times."""
    return f"{graph_digest(graph)}/{due:020d}/{id}"


def graph_digest(graph: str) -> str:
    """Return the digest of the name of a graph."""
    return blake2b(graph.encode(), digest_size=8).hexdigest()


def record_scan(line: Line) -> Scan:
    """Return the query for the runs of a thread."""
    return Scan(REFS, (*line, LEASE, RECORD), bodies=False)


def place_removals(rows: Iterable[Row]) -> list[Change]:
    """Return the changes that remove what leads to some runs, given the rows of those."""
    changes: list[Change] = []
    for row in rows:
        tenant, id, (target, time) = str(row.key[0]), str(row.key[4]), row.columns
        _, _, graph, key = str(target).split(" ")
        places = [(DUE, f"{graph}/{int(time):020d}/{id}"), (BUSY, id), (WAITS, id), (BY_TIME, id)]
        places += [(BY_KEY, key)] if key else []
        changes += [Delete(JOBS, run_place(tenant, kind, name)) for kind, name in places]
    return changes
