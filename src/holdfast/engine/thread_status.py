"""The stored status of a thread: one row of `refs`, written with the step or the pending writes that change it.

It has the status and the id of the step that it was stored with, and nothing of the content: questions and errors are
in the pending writes that follow the step. A thread without a row is idle. What this process stored last is cached, so
that saves that do not change the status write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, TypeAlias, get_args

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, ColumnHint, Put, Row, Scan
from holdfast.backends.tables import REFS, Key
from holdfast.engine.claims import RUN, Claim, claim_key
from holdfast.engine.context import EngineContext
from holdfast.engine.namespaces import is_thread, root_of
from holdfast.engine.row_format import HINT, LEASE, STATUS, Line, StepRef
from holdfast.errors import CorruptError, InvalidError

ThreadState: TypeAlias = Literal["idle", "running", "waiting", "failed", "unfinished", "done"]
"""The statuses of a thread: nothing is known to be left to do; a process works on it, under a claim; it waits for an
answer; a node raised an error; there is more to do, and nobody is known to do it; its graph reached the end."""

IDLE: ThreadState = "idle"
RUNNING: ThreadState = "running"
WAITING: ThreadState = "waiting"
FAILED: ThreadState = "failed"
UNFINISHED: ThreadState = "unfinished"
DONE: ThreadState = "done"

STATES: tuple[ThreadState, ...] = get_args(ThreadState)

_WEIGHT = 300


class StoredStatus(NamedTuple):
    """The row of a status: since when it is that, in nanoseconds since 1970, and the step that it was stored with."""

    status: ThreadState
    since: int
    step: str

    @classmethod
    def of(cls, row: Row) -> StoredStatus:
        """Return the status in a row of `refs`."""
        word, _, step = str(row.columns[0]).partition(" ")
        for status in STATES:
            if status == word:
                return cls(status, int(row.columns[1]), step)
        raise CorruptError(f"{word!r} is no status of a thread", where=f"thread {row.key[1]!s}", hint=HINT)

    def row(self, line: Line) -> Row:
        """Return the row of `refs`."""
        return Row((*line, STATUS, "", ""), (f"{self.status} {self.step}", self.since))

    def is_of(self, head: StepRef) -> bool:
        """Return whether the status still holds if this is HEAD. A run that goes on stores steps, but no status."""
        return self.step == head.id or (self.status in (UNFINISHED, IDLE) and self.step < head.id)


class _KnownStatus:
    """The status that this process stored or read last, the last step that it holds for, the task that failed, if it
    did here, and whether another one of that step asks something."""

    __slots__ = ("is_asked", "status", "step", "task")

    def __init__(self, status: ThreadState, step: str, task: str = "") -> None:
        self.status = status
        self.step = step
        self.task = task
        self.is_asked = False


def note_status(context: EngineContext, line: Line, rows: Sequence[Row]) -> None:
    """Cache the status of a thread that is among rows that were read from the store. What is known of that step, or a
    later one, stays: it may be about to be stored."""
    with suppress(CorruptError):  # of one that cannot be read nothing is known, and the next one replaces it
        stored = stored_status(rows)
        known: _KnownStatus | None = None if stored is None else context.cache.get(("status", line))
        if stored is not None and (known is None or known.step < stored.step):
            context.cache.put(("status", line), _KnownStatus(stored.status, stored.step), _WEIGHT)


def forget_status(context: EngineContext, line: Line) -> None:
    """Forget the status of a thread: whether it was stored is not known."""
    context.cache.drop(("status", line))


def has_status(context: EngineContext, line: Line) -> bool:
    """Return whether the thread is known to have a stored status."""
    return context.cache.get(("status", line)) is not None


def status_changes(
    context: EngineContext, line: Line, status: ThreadState, step: str, parent: str | None
) -> Callable[[str], Sequence[Change]] | None:
    """Return what is to be attached to a step after which a thread has a status; None if the row has it already."""
    known: _KnownStatus | None = context.cache.get(("status", line))
    # Only after the step that it holds for: another process may have changed it with a later one.
    if known is not None and known.status == status != DONE and known.step == parent:
        known.step = step
        return None
    return partial(_with_step, context, line, status)


def _with_step(context: EngineContext, line: Line, status: ThreadState, step: str) -> Sequence[Change]:
    known: _KnownStatus | None = context.cache.get(("status", line))
    if known is None:
        context.cache.put(("status", line), _KnownStatus(status, step), _WEIGHT)
    elif known.step > step or (known.step == step and known.status in (WAITING, FAILED)):
        return ()  # pending writes of this step or of a later one were stored before it
    else:
        known.status, known.step, known.task = status, step, ""
    return (Put(REFS, StoredStatus(status, context.clock(), step).row(line)),)


def overtaken_status(context: EngineContext, line: Line, status: ThreadState) -> Sequence[Change]:
    """Return the change that stores the status of a thread again, if pending writes changed it while a step was stored
    with another one: whichever was stored last, what the writes say counts."""
    known: _KnownStatus | None = context.cache.get(("status", line))
    if known is None or known.status == status or known.status not in (WAITING, FAILED):
        return ()
    return (Put(REFS, StoredStatus(known.status, context.clock(), known.step).row(line)),)


def with_writes(
    context: EngineContext, line: Line, head: StepRef | None, step: str, status: ThreadState | None, task: str
) -> Sequence[Change]:
    """Return the change that stores a status together with what a task wrote after a step; none if the row has it
    already, or if the step is not the latest. Without a status the task has succeeded."""
    known: _KnownStatus | None = context.cache.get(("status", line))
    if (known is None and status is None) or (head is not None and step < head.id):
        return ()
    if known is not None and known.step == step:
        if status is None:
            if known.status != FAILED or known.task != task:
                return ()
            status = WAITING if known.is_asked else UNFINISHED  # in another attempt
        elif known.status == status:
            known.task = task
            return ()
        # Another task asks still: it asked after the one that goes on now.
        elif known.status == WAITING and status == UNFINISHED and known.task not in ("", task) and task.strip("0-"):
            return ()
        # A run in which a task failed has failed, whatever other tasks of the same step ask.
        elif known.status == FAILED and status == WAITING and known.task not in ("", task):
            known.is_asked = True
            return ()
    if status is None:
        return ()
    # Before it is stored: the step may be stored at the same time, and its own status is an earlier one.
    if known is None or known.step <= step:
        context.cache.put(("status", line), _KnownStatus(status, step, task), _WEIGHT)
    return (Put(REFS, StoredStatus(status, context.clock(), step).row(line)),)


def concurrent_status(
    context: EngineContext, line: Line, step: str, status: ThreadState, task: str
) -> Sequence[Change]:
    """Return the change that stores again that the run has failed, after a task stored its own status, if another task
    of the step stored one at the same time: a failure counts, whichever was stored last."""
    known: _KnownStatus | None = context.cache.get(("status", line))
    if known is None or known.step != step or {known.status, status} != {WAITING, FAILED}:
        return ()
    if known.status == WAITING:
        known.status, known.task = FAILED, task
    known.is_asked = True
    return (Put(REFS, StoredStatus(FAILED, context.clock(), step).row(line)),)


# Running ----------------------------------------------------------------------------------------------------------


def run_claim(context: EngineContext, line: Line) -> Claim:
    """Return the claim under which a thread is running."""
    return Claim(context, root_of(line))


def status_keys(line: Line) -> list[Key]:
    """Return the keys of the rows that tell the status of a thread: that of its status, and that of its claim."""
    return [(*line, STATUS, "", ""), claim_key(line)]


def stored_status(rows: Sequence[Row]) -> StoredStatus | None:
    """Return the status that is among these rows."""
    return next((StoredStatus.of(row) for row in rows if row.key[2] == STATUS), None)


def show_status(rows: Sequence[Row], head: StepRef | None, held: Collection[Line]) -> ThreadState | None:
    """Return the status of a thread, given the rows that tell it, HEAD, and the threads with a valid claim; None if it
    has to be derived, since HEAD was moved by other means than a run of the graph."""
    stored = stored_status(rows)
    status = IDLE if stored is None or head is None else stored.status if stored.is_of(head) else None
    is_running = any(row.key[:2] in held for row in rows)
    return RUNNING if status in (IDLE, UNFINISHED, DONE) and is_running else status


def status_scan(context: EngineContext, tenant: str, status: ThreadState, start: Key, limit: int) -> Scan:
    """Return the query for the rows of threads that may have a status, by name, from a key on."""
    hints = [ColumnHint("kind", (LEASE if status == RUNNING else STATUS,))]
    if status != RUNNING and not context.rows.hides_columns:
        hints.append(ColumnHint("target", (f"{status} ",), contains=True))
    return Scan(REFS, (tenant,), start, limit=limit, hints=tuple(hints))


def may_have(row: Row, status: ThreadState) -> bool:
    """Return whether the row that a scan returned is about a thread that may have the status."""
    key, name = row.key, str(row.key[1])
    if not is_thread(name):
        return False
    return (
        key[2:4] == (LEASE, RUN)
        if status == RUNNING
        else key[2] == STATUS and str(row.columns[0]).startswith(f"{status} ")
    )


def parse_status(status: object) -> ThreadState:
    """Return the status that a caller names. `InvalidError` if there is no such status."""
    for each in STATES:
        if each == status:
            return each
    raise InvalidError(f"a thread is {', '.join(STATES[:-1])} or {STATES[-1]}, not {ascii(status)[:80]}")
