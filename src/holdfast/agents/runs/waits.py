"""Runs that wait, while their threads do not any more.

A graph that a run waits with may be gone on with by other means: by a program whose saver knows no runs, by a switch to
another branch, or by a restore. Such a run would hold up those behind it for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holdfast.agents.runs.record import CANCELLED, DONE, FAILED, WAITING, StoredRun, ThreadQueue
from holdfast.agents.runs.table import GIVEN, OF_GRAPHS, WAS_PASSED, RunTable
from holdfast.agents.runs.wake import ring
from holdfast.backends.interface import Change, Get
from holdfast.backends.tables import REFS
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.engine.thread_status import status_keys, stored_status
from holdfast.engine.types import ThreadStatus
from holdfast.errors import CorruptError, NotFoundError
from holdfast.history.thread_status import is_answered, read_status
from holdfast.security.handle import StoreHandle

_IN_PROGRESS = 600 * 10**9
"""For how many nanoseconds after its last checkpoint a graph is presumed to be run by a program that has no claim."""


async def settle(table: RunTable, id: str, *, holds_up: bool = False) -> StoredRun:
    """Return a run. If it waits, and its thread does not: after it has ended as the thread has, or was queued since the
    thread was answered, or was cancelled since it holds up others, or the caller."""
    attempts = Attempts("settling a run", f"run {id}", table.context.metrics)
    while True:
        await attempts.begin()
        run = await table.get(id)
        if run.state != WAITING:
            return run
        queue = await table.queue(run.line(table.tenant))
        changes = await _changes(table, run, queue, holds_up or len(queue.ids) > 1)
        if not changes:
            return run
        if await table.context.backend.apply(changes) is None:
            await ring(table.context, table.tenant)


async def settle_some(table: RunTable, after: str) -> str:
    """Settle some of the runs that wait, after one with an id. Returns after which one to go on, which is empty at the
    end."""
    found, last = await table.waiting(after)
    if not found:
        return last
    lines = [Line(table.tenant, each.thread) for each in found]
    keys = [key for line in lines for key in (*status_keys(line), ThreadQueue.key(line))]
    (rows,) = await table.context.backend.read([Get(REFS, keys)])
    for each, line in zip(found, lines, strict=True):
        known = stored_status([row for row in rows if row.key[:2] == line and row.key != ThreadQueue.key(line)])
        queue = ThreadQueue(line, next((row for row in rows if row.key == ThreadQueue.key(line)), None))
        if known is None or known.status != "waiting" or await table.is_passed(line, queue.ids):
            with suppress(NotFoundError, CorruptError):  # it was deleted, or is left to `verify`
                await settle(table, each.id)
    return last


async def changes_on_event(handle: StoreHandle, line: Line) -> list[Change]:
    """Return the changes that queue the run of an agent that waits, with an event that it may wait for; or the
    condition that there is none which begins to wait meanwhile."""
    table = RunTable(handle)
    queue = await table.queue(line)
    first = (await table.of_threads([(line.name, queue.ids[0])]))[0] if queue.ids else None
    if first is None:
        return queue.replaced_by(queue.ids)
    return table.requeued(first, queue) if first.state == WAITING else [first.unchanged(table.tenant)]


async def is_paused(table: RunTable, run: StoredRun) -> bool:
    """Return whether the thread of a run that waits asks nothing: it is at a breakpoint, or was changed by hand."""
    status = await _status(table, run)
    return status is not None and status.status in ("unfinished", "idle")


async def _status(table: RunTable, run: StoredRun) -> ThreadStatus | None:
    try:
        return await read_status(table.handle.engine, run.line(table.tenant))
    except NotFoundError:
        return None


async def _changes(table: RunTable, run: StoredRun, queue: ThreadQueue, holds_up: bool) -> Sequence[Change]:
    if run.agent:
        return []  # what it waits for queues it
    status, line = await _status(table, run), run.line(table.tenant)
    if status is not None and status.status == "waiting" and await table.is_passed(line, queue.ids):
        return await table.ended(run, queue, CANCELLED, **WAS_PASSED)
    if status is None or status.status in ("waiting", "running"):
        return []
    if status.status == "done":
        return await table.ended(run, queue, DONE)
    if status.status == "failed":
        error: dict[str, Any] = {"error": f"{status.error}: {status.message}", "error_code": status.error}
        return await table.ended(run, queue, FAILED, **error)
    if await is_answered(table.handle.engine, line):
        return table.requeued(run, queue, base=GIVEN)
    waited = next((mark.place for mark in reversed(run.marks) if mark.state == WAITING), "")
    if not holds_up or status.checkpoint == waited:
        return []  # it is at a breakpoint, or nobody is held up
    head = await table.handle.engine.lines.latest_step(line)
    if head is None or (head.kind in OF_GRAPHS and table.context.clock() - head.time < _IN_PROGRESS):
        return []
    gone = {"error": "the thread was changed, and does not wait any more", "error_code": "not-waiting"}
    return await table.ended(run, queue, CANCELLED, **gone)
