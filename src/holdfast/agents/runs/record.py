"""Runs as they are stored, and as people see them.

The record of a run is a row of its thread, among the leases: it is deleted, erased and encrypted with the thread, and
like all work in progress it is in no copy and no backup. Rows among the jobs of the store lead to it, as to timers: one
under the time at which the run is due, or one while a worker has it; and one for lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from holdfast._fields import Hidden, Label
from holdfast._structs import convert
from holdfast.agents.storage.agent_line import agent_id
from holdfast.backends.interface import Change, Delete, Expect, Put, Row, Scan
from holdfast.backends.tables import JOBS, REFS, Key
from holdfast.codec import Codec, msgpack
from holdfast.codec.envelope import BodyKind, unwrap, wrap
from holdfast.engine.row_format import LEASE, Line
from holdfast.engine.run_rows import (
    BUSY,
    BY_KEY,
    BY_TIME,
    DUE,
    RECORD,
    WAITS,
    due_name,
    graph_digest,
    run_place,
)
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError

RunState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
"""The states of a run: it waits for a worker, or for its turn; a worker has it; it waits for an answer; it is over."""

QUEUED: RunState = "queued"
RUNNING: RunState = "running"
WAITING: RunState = "waiting"
DONE: RunState = "done"
FAILED: RunState = "failed"
CANCELLED: RunState = "cancelled"

STATES: tuple[RunState, ...] = get_args(RunState)
ENDED: tuple[RunState, ...] = (DONE, FAILED, CANCELLED)
"""The states of a run that is over."""

NO_VALUE = b""
"""Stands for a value that was not given: no packed value is empty."""

NEVER = 4_102_444_800 * 10**9
"""When a run is due that waits for a signal, however long that takes."""


CLIENT = "␞client"
"""The only key of the input of a run that a client of LangGraph submitted: what it asked for."""


PASSED = "passed"
"""The code of the error of a run that was cancelled since a later one does not wait for its answer."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run: work on a thread, or of an agent, that was submitted.

    The state is `queued`, `running`, `waiting` for an answer or a signal, `done`, `failed` or `cancelled`. How often a
    worker began it are the `attempts`, and those that ended with an error in a row are the `failures`.
    """

    id: Annotated[str, Label("run")]
    thread: str
    """Its thread; empty for a run of an agent."""
    graph: str
    """What does it: the name of a graph, a workflow or a class of agents, as workers know it."""
    state: RunState
    agent: Hidden[str] = ""
    """The id of its agent, if it is one of an agent."""
    attempts: int = 0
    failures: Hidden[int] = 0
    worker: Hidden[str] = ""
    """The machine and the process that began it last."""
    code: Hidden[str] = ""
    """The version of the code of that worker, if it was given one."""
    submitter: Hidden[str] = ""
    """The identity that submitted it; empty for the store's owner."""
    created: datetime
    started: Hidden[datetime | None] = None
    """When it was first begun."""
    ended: datetime | None = None
    due: Hidden[datetime | None] = None
    """From when on a worker may begin it, of one that is queued, or that waits until then at most."""
    error: str = ""
    error_code: Hidden[str] = ""
    input: Hidden[Any] = None
    result: Hidden[Any] = None
    """What a workflow returned. The result of a graph is the state of its thread."""

    @property
    def is_over(self) -> bool:
        """Whether it is done, failed or cancelled."""
        return self.state in ENDED


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A moment in a run: it was begun, anew after it was over, or it came to a state."""

    state: Literal["begun"] | RunState
    time: int
    place: str
    """The last checkpoint of the thread at that moment; of a workflow, the number of steps that had ended."""
    error: str = ""


class StoredRun(msgspec.Struct, frozen=True, array_like=True):
    """A run as it is stored. Times are nanoseconds since 1970; 0 stands for none."""

    id: str
    thread: str
    graph: str
    state: RunState
    created: int
    due: int
    input: bytes
    max_attempts: int
    key: str = ""
    """The digest of its idempotency key."""
    version: int = 0
    """How often it was changed."""
    attempts: int = 0
    failures: int = 0
    deaths: int = 0
    """How many of its workers died."""
    worker: str = ""
    code: str = ""
    started: int = 0
    ended: int = 0
    error: str = ""
    error_code: str = ""
    result: bytes = NO_VALUE
    base: str | None = None
    """The checkpoint that its thread had when the input was first given to the graph."""
    is_graph: bool = False
    """Whether a graph does it, and its thread has its checkpoints; known when it was begun."""
    marks: tuple[Mark, ...] = ()
    is_own: bool = False
    """Whether a program began it itself, and nobody submitted it."""
    submitter: str = ""
    then: str = ""
    """The workflow that is submitted when it is over."""
    passes: bool = False
    """Whether a run before it that waits is cancelled."""

    @classmethod
    def of(cls, row: Row) -> StoredRun:
        """Return the run in a row. `CorruptError` if there is none."""
        try:
            return convert(msgpack.parse(unwrap(row.body, max_bytes=_MAX_BODY).content), cls)
        except msgspec.MsgspecError as error:
            raise CorruptError(f"a run cannot be decoded: {error}", where=f"row {row.key!r}") from error

    def line(self, tenant: str) -> Line:
        """Return the line of its thread."""
        return Line(tenant, self.thread)

    @property
    def agent(self) -> str:
        """The id of its agent; empty for a run on a thread."""
        return agent_id(Line("", self.thread)) or ""

    @property
    def _is_due(self) -> bool:
        """Whether a worker begins it when its time has come."""
        return self.state == QUEUED or (self.state == WAITING and bool(self.agent))

    def row(self, tenant: str) -> Row:
        """Return the row of its record."""
        body = wrap(msgspec.msgpack.encode(self), codec=BodyKind.RAW)
        return Row((*record_key(self.line(tenant), self.id),), self._columns, body)

    @property
    def _columns(self) -> tuple[str, int]:
        return (f"{self.state} {self.version} {graph_digest(self.graph)} {self.key}", self.due or self.created)

    def changed(self, **fields: Any) -> StoredRun:
        """Return it with other fields."""
        return replace(self, version=self.version + 1, **fields)

    def unchanged(self, tenant: str) -> Change:
        """Return the condition that it was not changed."""
        return Expect(REFS, record_key(self.line(tenant), self.id), self._columns)

    def conflict(self, hint: str) -> ConflictError:
        """Return the error for what is not done to a run in its state."""
        return ConflictError(f"the run is {self.state}", where=f"run {self.id}", hint=hint, code="run-state")

    def list_row(self, tenant: str) -> Row:
        """Return the row by which lists find it."""
        columns = (RECORD, self.graph, self.state, self.created, self.version)
        return Row(run_place(tenant, BY_TIME, self.id), columns, wrap(self.thread.encode(), codec=BodyKind.RAW))

    def place_row(self, tenant: str, token: str = "") -> Row:
        """Return the row by which workers find it: one that is due, that one has, with the token of its claim, or that
        waits."""
        columns = (RECORD, self.graph, self.state, self.due, self.version)
        content = msgspec.msgpack.encode([self.thread, token])
        return Row(self._place(tenant), columns, wrap(content, codec=BodyKind.RAW))

    def _place(self, tenant: str) -> Key:
        if self._is_due:
            return run_place(tenant, DUE, due_name(self.graph, self.due, self.id))
        return run_place(tenant, BUSY if self.state == RUNNING else WAITS, self.id)

    def key_row(self, tenant: str) -> Row:
        """Return the row by which it is found by its idempotency key."""
        content = msgspec.msgpack.encode([self.thread, self.id])
        columns = (RECORD, "", "", self.created, 1)
        return Row(run_place(tenant, BY_KEY, self.key), columns, wrap(content, codec=BodyKind.RAW))

    def changes_to(self, new: StoredRun, tenant: str, *, is_next: bool, token: str = "") -> list[Change]:
        """Return the changes that replace it by another version, unless it was changed meanwhile. `is_next` says
        whether workers are to find it if it is queued: it is the first of its thread."""
        changes: list[Change] = [self.unchanged(tenant)]
        was_placed, is_placed = self.state in _PLACED, new.state in _PLACED and (new.state != QUEUED or is_next)
        if was_placed and not (is_placed and self._place(tenant) == new._place(tenant)):
            changes.append(Delete(JOBS, self._place(tenant)))
        changes += [Put(REFS, new.row(tenant)), Put(JOBS, new.list_row(tenant))]
        if is_placed:
            changes.append(Put(JOBS, new.place_row(tenant, token)))
        return changes

    def describe(self, codec: Codec) -> Run:
        """Return the public description."""
        return Run(
            id=self.id,
            thread="" if (agent := self.agent) else self.thread,
            agent=agent,
            graph=self.graph,
            state=self.state,
            attempts=self.attempts,
            failures=self.failures,
            worker=self.worker,
            code=self.code,
            submitter=self.submitter,
            created=to_datetime(self.created),
            started=_time(self.started),
            ended=_time(self.ended),
            due=_time(self.due) if self._is_due and self.due < NEVER else None,
            error=self.error,
            error_code=self.error_code,
            input=codec.unpack(self.input) if self.input else None,
            result=codec.unpack(self.result) if self.result else None,
        )


_PLACED = (QUEUED, RUNNING, WAITING)
_MAX_BODY = 1 << 30


def _time(moment: int) -> datetime | None:
    return to_datetime(moment) if moment else None


def record_key(line: Line, id: str) -> Key:
    """Return the key of the record of a run."""
    return (*line, LEASE, RECORD, id)


def step_ordinal(row: Row) -> int:
    """Return the place of a step among those of its run that have ended, from 1; 0 of one that has not."""
    return int(str(row.columns[0]).rpartition(" ")[2])


def steps_prefix(line: Line, id: str) -> Key:
    """Return the start of the keys of the steps of a run."""
    return (*line, LEASE, f"steps of {id}")


def parts_prefix(line: Line, id: str) -> Key:
    """Return the start of the keys of the parts of the stream of a run."""
    return (*line, LEASE, f"parts of {id}")


def key_of(actor: str, key: str) -> str:
    """Return an idempotency key of the store's owner or of an identity, which has its own ones."""
    return f"{actor}\0{key}" if actor else key


def key_digest(key: str) -> str:
    """Return the digest of an idempotency key: the name of its row."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


class FoundRun(msgspec.Struct, frozen=True):
    """A run that workers may begin, or that one has: what its row among the jobs says."""

    id: str
    thread: str
    graph: str
    due: int
    token: str
    """The token of the claim of the worker that has it."""

    def key(self, tenant: str) -> Key:
        """Return the key of the row."""
        if self.token:
            return run_place(tenant, BUSY, self.id)
        return run_place(tenant, DUE, due_name(self.graph, self.due, self.id))

    @classmethod
    def of(cls, row: Row) -> FoundRun:
        """Return what a row says."""
        _, graph, _, due, _ = row.columns
        thread, token = decode_place(row)
        return cls(str(row.key[2]).rpartition("/")[2], thread, str(graph), int(due), token)


def decode_place(row: Row) -> tuple[str, str]:
    """Return the two texts in a row that leads to a run."""
    try:
        first, second = convert(msgpack.parse(unwrap(row.body).content), tuple[str, str])
    except msgspec.MsgspecError as error:
        raise CorruptError(f"a run cannot be decoded: {error}", where=f"row {row.key!r}") from error
    return first, second


def due_scan(tenant: str, graph: str, limit: int) -> Scan:
    """Return the query for the rows of runs of a graph that are due, or will be, by their times."""
    start = str(run_place("", DUE, f"{graph_digest(graph)}/")[2])
    return Scan(JOBS, (tenant, ""), (start,), (start[:-1] + "0",), limit=limit)


def place_scan(tenant: str, kind: str, after: str, limit: int | None) -> Scan:
    """Return the query for the rows of a kind that lead to runs, after one with an id."""
    start = str(run_place("", kind, "")[2])
    return Scan(JOBS, (tenant, ""), (f"{start}{after}\x01" if after else start,), (start[:-1] + "0",), limit=limit)


# The runs of a thread ---------------------------------------------------------------------------------------------


class ThreadQueue:
    """The runs of a thread that are not over, in their order: one row of the thread. The first has its turn.

    A run for later is behind those that were submitted before, and before those that are due after it.
    """

    def __init__(self, line: Line, row: Row | None) -> None:
        self._line = line
        self._row = row
        entries = [] if row is None else [each.partition("@") for each in str(row.columns[0]).split()]
        self.ids: Sequence[str] = [id for id, _, _ in entries]
        self._later = {id: int(due, 16) for id, _, due in entries if due}
        """From when on those may be begun that were submitted for later."""

    @staticmethod
    def key(line: Line) -> Key:
        """Return the key of the row."""
        return (*line, LEASE, "runs", "")

    def place(self, run: StoredRun) -> int:
        """Return the place of a new run among the others."""
        if run.due > run.created:
            self._later[run.id] = run.due
        return max((number for number, id in enumerate(self.ids, 1) if self._later.get(id, 0) <= run.due), default=0)

    def replaced_by(self, ids: Iterable[str]) -> list[Change]:
        """Return the changes that replace it, unless it was changed meanwhile."""
        key = self.key(self._line)
        text = " ".join(f"{id}@{self._later[id]:x}" if id in self._later else id for id in ids)
        expected = Expect(REFS, key, None if self._row is None else self._row.columns)
        if text == ("" if self._row is None else self._row.columns[0]):
            return [expected]
        count = 1 if self._row is None else int(self._row.columns[1]) + 1
        return [expected, Put(REFS, Row(key, (text, count))) if text else Delete(REFS, key)]


def parse_state(state: object) -> RunState:
    """Return the state that a caller names. `InvalidError` if there is no such state."""
    for each in STATES:
        if each == state:
            return each
    raise InvalidError(f"a run is {', '.join(STATES[:-1])} or {STATES[-1]}, not {ascii(state)[:80]}")
