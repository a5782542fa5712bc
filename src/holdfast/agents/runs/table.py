"""The stored runs of a tenant, and how they change: each change is one batch with all rows that tell of it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.agents.runs.limits import StoredLimit, find_room
from holdfast.agents.runs.outage import until_answered
from holdfast.agents.runs.record import (
    CANCELLED,
    ENDED,
    FAILED,
    NEVER,
    NO_VALUE,
    PASSED,
    QUEUED,
    RUNNING,
    WAITING,
    FoundRun,
    Mark,
    RunState,
    StoredRun,
    ThreadQueue,
    decode_place,
    due_scan,
    key_digest,
    parts_prefix,
    place_scan,
    record_key,
    step_ordinal,
    steps_prefix,
)
from holdfast.agents.runs.submitter import subject_of_new, submitter_conditions
from holdfast.agents.runs.wake import ring
from holdfast.backends.interface import Change, Create, Delete, Ensure, Get, Row, Scan
from holdfast.backends.tables import JOBS, LINES, REFS
from holdfast.codec.envelope import unwrap
from holdfast.engine.branch_graph import Position
from holdfast.engine.claims import Claim, StoredClaim, claim_removal, read_claims, read_with_claims
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.guard import current_authority
from holdfast.engine.namespaces import rename_line
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef, info_row
from holdfast.engine.run_rows import BUSY, BY_KEY, BY_TIME, LIMIT, WAITS, record_scan, run_place
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    InvalidError,
    NotFoundError,
    QuotaError,
)
from holdfast.history.log_walk import LogWalk
from holdfast.history.thread_status import is_answered
from holdfast.security.audit.thread_audit import recorded
from holdfast.security.handle import StoreHandle

OnBusy: TypeAlias = Literal["queue", "pass", "refuse", "replace", "branch"]
"""The reaction to a run of the same thread that is not over: wait for its end, wait until it is over or asks something
and then cancel it, raise `ConflictError`, cancel it at once, or work on a copy of the thread as it was before that."""

_log = logging.getLogger("holdfast.runs")

T = TypeVar("T")

ON_BUSY: tuple[OnBusy, ...] = ("queue", "pass", "refuse", "replace", "branch")

WAS_PASSED: dict[str, Any] = {"error": "a later run did not wait for its answer", "error_code": PASSED}
"""The fields of a run that was cancelled since another one of its thread does not wait for its answer."""

MAX_WAITING = 1000
"""How many runs of a thread may wait."""

MAX_DEATHS = 20
"""After how many workers that died a run is given up: it may be what kills them."""

MAX_ATTEMPTS = 3
"""How often a run is attempted that fails, unless it says otherwise."""

_MAX_FOLLOWING = 20
"""How often one is attempted that follows another, and that nobody submits again: for more than an hour."""

GIVEN = "given"
"""No id of a checkpoint: the graph has got what it was to get."""

_PAGE = 200

_STEPS = 256

OF_GRAPHS = ("input", "loop")
"""The kinds of checkpoints that a graph makes when it runs."""


class HandOver(BaseException):
    """The run is to be handed over before its next step. Not an `Exception`, so that no error handling catches it."""


class Parked(HandOver):
    """The run is to be handed over while its agent waits."""

    def __init__(self, due: int, unless: Sequence[Change]) -> None:
        super().__init__()
        self.fields: dict[str, Any] = {"state": WAITING, "due": due, "unless": unless}
        """The fields of the run then, if nothing has come meanwhile."""


class HeldRun:
    """A run that this process has the claim of."""

    def __init__(self, stored: StoredRun, claim: Claim) -> None:
        self.stored = stored
        self.claim = claim
        self.must_stop: Callable[[], bool] = bool
        """Returns whether the run is to be handed over before its next step."""
        self.hand_over: type[HandOver] = HandOver
        """What a step raises then."""
        self.ended_steps: int | None = None
        """How many steps have ended, if that is known."""
        self.is_limited = False
        """Whether others may wait for its end, since a limit is for it."""
        self.is_unknown = False
        """Whether a step said that it does not know its outcome."""

    @property
    def line(self) -> Line:
        """The line of its thread."""
        return self.claim.line

    @property
    def since(self) -> int:
        """When the run was first begun."""
        return self.stored.started

    def go_on(self) -> None:
        """Raise what hands the run over, if its worker stops."""
        if self.must_stop():
            raise self.hand_over

    def wait(self, line: Line, until: int | None, unless: Sequence[Change]) -> None:
        """Raise what hands the run over while its agent waits; not if it is another agent that does."""
        if line == self.line:
            raise Parked(NEVER if until is None else until, unless)


class ListedRun(NamedTuple):
    """A run as lists have it, without its record."""

    thread: str
    id: str
    graph: str
    state: str


class Look(NamedTuple):
    """What a worker sees that looks for runs."""

    due: list[FoundRun]
    """Those to be begun, also later, in the order of their times."""
    busy: list[FoundRun]
    """Some of those that workers have."""
    last: str
    """After which of these to read on; empty at the end."""
    limits: list[StoredLimit]


class RunTable:
    """The runs of a tenant."""

    def __init__(self, handle: StoreHandle) -> None:
        self.handle = handle
        self.context = handle.engine.context
        self.tenant = handle.tenant

    # Finding ----------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> StoredRun:
        """Return a run. `NotFoundError` if there is none."""
        found = await self.find(id)
        if found is None:
            raise self.missing(id)
        return found

    def missing(self, id: str) -> NotFoundError:
        """Return the error for who names a run that does not exist."""
        return NotFoundError(f"there is no run {str(id)[:80]!r}", hint="See which there are: store.runs.list()")

    async def find(self, id: str) -> StoredRun | None:
        """Return a run, or None."""
        given: object = id
        if not isinstance(given, str) or not given.isalnum() or not given.isascii():
            raise InvalidError("the id of a run is the text that submit returned", where=repr(id)[:80])
        (rows,) = await self.context.backend.read([Get(JOBS, [run_place(self.tenant, BY_TIME, id)])])
        return (await self.of_threads([(_thread_of(rows[0]), id)]))[0] if rows else None

    async def of_threads(self, wanted: Sequence[tuple[str, str]]) -> list[StoredRun | None]:
        """Return runs by their threads and ids; None for those that are gone."""
        keys = [record_key(Line(self.tenant, thread), id) for thread, id in wanted]
        (rows,) = await self.context.backend.read([Get(REFS, keys)])
        found = {row.key: StoredRun.of(row) for row in rows}
        return [found.get(key) for key in keys]

    async def page(self, limit: int, before: str) -> list[ListedRun]:
        """Return runs as lists have them, the latest first, before one with an id."""
        prefix = str(run_place("", BY_TIME, "")[2])
        stop = prefix + before if before else prefix[:-1] + "0"
        scan = Scan(JOBS, (self.tenant, ""), (prefix,), (stop,), reverse=True, limit=limit)
        (rows,) = await self.context.backend.read([scan])
        return [ListedRun(_thread_of(row), str(row.key[2])[len(prefix) :], *map(str, row.columns[1:3])) for row in rows]

    async def of_thread(self, line: Line) -> list[StoredRun]:
        """Return the runs of a thread, the latest first. One that is damaged is left to `verify`."""
        (rows,) = await self.context.backend.read([record_scan(line)._replace(bodies=True)])
        return sorted(_readable(StoredRun.of, rows), key=lambda each: each.id, reverse=True)

    async def before_submit(self, line: Line, key: str | None) -> tuple[ThreadQueue, StoredRun | None]:
        """Return the runs of a thread that are not over, and the run with an idempotency key, if there is one."""
        keys = [] if key is None else [run_place(self.tenant, BY_KEY, key_digest(key))]
        rows, places = await self.context.backend.read([Get(REFS, [ThreadQueue.key(line)]), Get(JOBS, keys)])
        known = (await self.of_threads([decode_place(places[0])]))[0] if places else None
        return ThreadQueue(line, rows[0] if rows else None), known

    async def look(self, graphs: Iterable[str], limit: int, after: str) -> Look:
        """Look for runs of these graphs that are to be begun, and for some of those that workers have, after one with
        an id."""
        scans = [due_scan(self.tenant, graph, limit) for graph in graphs]
        held = [place_scan(self.tenant, BUSY, after, _PAGE), place_scan(self.tenant, LIMIT, "", None)]
        busy, limits, *due = await self.context.stored.read([*held, *scans])
        found = [each for rows in due for each in self._found(rows)]
        return Look(
            sorted(found, key=lambda each: (each.due, each.id)),
            self._found(busy),
            _last_of(busy),
            [StoredLimit.of(self.context.rows.decode(JOBS, row)) for row in limits],
        )

    async def waiting(self, after: str) -> tuple[list[FoundRun], str]:
        """Return some of the runs that wait, after one with an id; and after which one to read on, which is empty at
        the end."""
        (rows,) = await self.context.stored.read([place_scan(self.tenant, WAITS, after, _PAGE)])
        return self._found(rows), _last_of(rows)

    def _found(self, rows: Sequence[Row]) -> list[FoundRun]:
        return _readable(lambda row: FoundRun.of(self.context.rows.decode(JOBS, row)), rows)

    async def claims(self, runs: Sequence[FoundRun]) -> dict[Line, StoredClaim]:
        """Return the claims of the threads of some runs."""
        return await read_claims(self.context, [Line(self.tenant, run.thread) for run in runs])

    async def queue(self, line: Line) -> ThreadQueue:
        """Return the runs of a thread that are not over."""
        (rows,) = await self.context.backend.read([Get(REFS, [ThreadQueue.key(line)])])
        return ThreadQueue(line, rows[0] if rows else None)

    async def conditions(self, line: Line, attempts: Attempts) -> list[Change]:
        """Return the condition of a change of runs that a run makes: its claim. `ClaimLostError` if that is lost."""
        conditions = current_authority().conditions_of_run(self.context, line)
        return [] if conditions is None else [*await conditions(attempts.count > 1)]

    # Submitting -------------------------------------------------------------------------------------------------

    async def submit(self, run: StoredRun, key: str | None, on_busy: OnBusy, *, has_thread: bool) -> StoredRun:
        """Store a new run; or return the one with the same idempotency key. `has_thread` says whether its thread was
        named."""
        line = run.line(self.tenant)
        attempts = Attempts("submitting a run", line, self.context.metrics)
        while True:
            await attempts.begin()
            queue, known = ThreadQueue(line, None), None
            if has_thread or attempts.count > 1:  # otherwise the batch says if anything is there
                queue, known = await self.before_submit(line, key)
            if known is not None:
                return _same(known, run, has_thread)
            cancelled: list[Change] = []
            ids = queue.ids
            if ids and on_busy == "refuse":
                raise ConflictError(
                    "the thread has a run that is not over",
                    where=f"thread {line}",
                    hint="Wait for it, or submit with on_busy='queue' or 'replace'",
                    code="under-way",
                )
            if ids and on_busy == "branch":
                return await self._branch(run, key, ids[0], attempts)
            if ids and on_busy == "replace":
                cancelled, ids = await self._cancel_all(line, ids), ()
            elif ids and run.passes and run.due <= run.created:
                cancelled, ids = await self._pass_first(line, ids)
            if len(ids) >= MAX_WAITING:
                raise QuotaError(f"{len(ids):,} runs of the thread wait already", where=f"thread {line}")
            place = min(max(queue.place(run) - len(queue.ids) + len(ids), 0), len(ids))
            if ids and place == 0:
                place, behind = await self._turn_of(line, ids[0])
                cancelled += behind
            if place and ids[0] != queue.ids[0]:
                cancelled += await self._begin_turn(line, ids[0])
            batch = [*await self.conditions(line, attempts), *cancelled]
            batch += [*queue.replaced_by([*ids[:place], run.id, *ids[place:]])]
            batch += [Create(REFS, run.row(self.tenant)), Create(JOBS, run.list_row(self.tenant))]
            if place == 0:
                batch.append(Create(JOBS, run.place_row(self.tenant)))
            if key is not None:
                batch.append(Create(JOBS, run.key_row(self.tenant)))
            # Also if it is known: another process may have deleted it, and what is erased is found by its row.
            batch.append(Ensure(LINES, info_row(line, self.handle.engine.lines.new_info())))
            batch += await subject_of_new(self.handle, line, run.submitter)
            about = {"run": run.id, "graph": run.graph}
            if await recorded(self.handle.engine, line, "submit-run", about, is_limited=True)(batch) is None:
                self.context.metrics.count("runs_total", run.graph, "submitted")
                await ring(self.context, self.tenant)
                return run

    async def _pass_first(self, line: Line, ids: Sequence[str]) -> tuple[list[Change], Sequence[str]]:
        """Return the changes that cancel the run whose turn it is on a thread, and the others, if it waits for an
        answer; otherwise the condition that it does not begin to."""
        (first,) = await self.of_threads([(line.name, ids[0])])
        if first is None:
            return [], ids
        if first.state != WAITING or await is_answered(self.handle.engine, line):
            return [first.unchanged(self.tenant)], ids
        new = await self._over(first, CANCELLED, **WAS_PASSED)
        changes = [*first.changes_to(new, self.tenant, is_next=False), *await self._followed(first, new)]
        return changes, ids[1:]

    async def is_passed(self, line: Line, ids: Sequence[str]) -> bool:
        """Return whether a run that waits holds up one that does not wait for its answer; these are all of its thread.
        One that is damaged is left to `verify`."""
        if not ids[1:]:
            return False
        (rows,) = await self.context.backend.read([Get(REFS, [record_key(line, id) for id in ids[1:]])])
        now = self.context.clock()
        return any(each.passes and each.due <= now for each in _readable(StoredRun.of, rows))

    def branch_line(self, line: Line, id: str) -> Line:
        """Return the line of the thread that a run works on whose own thread is busy."""
        return self.handle.thread_line(f"{line.name}-{id}")

    async def _branch(self, run: StoredRun, key: str | None, busy: str, attempts: Attempts) -> StoredRun:
        """Store a new run with a thread of its own, which is as its thread was before the run that is under way."""
        line = run.line(self.tenant)
        new_line = self.branch_line(line, run.id)
        new = msgspec.structs.replace(run, thread=new_line.name)
        (first,) = await self.of_threads([(line.name, busy)])
        until = await self._before(line, first)
        if not until:
            return await self.submit(new, key, "queue", has_thread=False)
        await self._require_stored(line, until)
        rows: list[Change] = [
            *await self.conditions(line, attempts),
            *ThreadQueue(new_line, None).replaced_by([new.id]),
        ]
        rows += [Create(REFS, new.row(self.tenant)), Create(JOBS, new.list_row(self.tenant))]
        rows.append(Create(JOBS, new.place_row(self.tenant)))
        if key is not None:
            rows.append(Create(JOBS, new.key_row(self.tenant)))
        about = {"run": run.id, "graph": run.graph, "from": line.name}
        store = recorded(self.handle.engine, new_line, "submit-run", about, is_limited=True)

        async def apply(batch: Sequence[Change]) -> int | None:
            await self._require_stored(line, until)  # the batch fails if it is pruned from now on
            return await store([*batch, *rows])

        names = {each: rename_line(each, line, new_line) for each in await self.handle.engine.lines.family(line)}
        await LineCopier(self.handle.engine).copy(names, apply, owned=not current_authority().actor, until=until)
        self.context.metrics.count("runs_total", run.graph, "submitted")
        await ring(self.context, self.tenant)
        return new

    async def _before(self, line: Line, run: StoredRun | None) -> str:
        """Return the last checkpoint of a thread before a run of it; empty if there was none."""
        if run is None or not run.marks or not run.is_graph:
            return await self.head(line)
        return run.marks[0].place if run.base in (None, GIVEN) else str(run.base)

    async def _require_stored(self, line: Line, base: str) -> None:
        """Raise `ConflictError` if the checkpoint from which a busy thread is copied was pruned."""
        try:
            await self.handle.engine.lines.find(line, base)
        except NotFoundError as error:
            raise ConflictError(
                "the thread is busy, and its checkpoint before that run was pruned",
                where=f"thread {line}",
                hint="Submit with on_busy='queue', or when the run has ended",
                code="under-way",
            ) from error

    async def _turn_of(self, line: Line, id: str) -> tuple[int, list[Change]]:
        """Return the place for a run that is due before the first one of a thread, and what takes its turn from that.
        One that was begun keeps it."""
        (first,) = await self.of_threads([(line.name, id)])
        if first is None or first.state != QUEUED or first.marks:
            return 1, []
        return 0, first.changes_to(first.changed(), self.tenant, is_next=False)

    async def _cancel_all(self, line: Line, ids: Sequence[str]) -> list[Change]:
        """Return the changes that cancel the runs of a thread."""
        changes: list[Change] = []
        for run in await self.of_threads([(line.name, id) for id in ids]):
            if run is not None and run.state not in ENDED:
                new = await self._over(run, CANCELLED)
                changes += [*run.changes_to(new, self.tenant, is_next=False), *await self._followed(run, new)]
                if run.state == RUNNING:  # otherwise a program may have the claim
                    changes += claim_removal(line)
        return changes

    async def _followed(self, run: StoredRun, new: StoredRun) -> list[Change]:
        """Return the changes that submit what follows a run, if that is over now, or its graph asks something."""
        is_told = run.state == WAITING and new.state == CANCELLED
        if not run.then or is_told or not (new.state in ENDED or (new.state == WAITING and new.is_graph)):
            return []
        now = self.context.clock()
        id = new_id(now)
        line = self.handle.thread_line(f"{run.then}-{id}")
        given = self.handle.codec.pack([run.id])
        following = StoredRun(id, line.name, run.then, QUEUED, now, now, given, _MAX_FOLLOWING, submitter=run.submitter)
        return [
            Create(REFS, following.row(self.tenant)),
            Create(JOBS, following.list_row(self.tenant)),
            Create(JOBS, following.place_row(self.tenant)),
            *ThreadQueue(line, None).replaced_by([id]),
            Ensure(LINES, info_row(line, self.handle.engine.lines.new_info())),
            *await subject_of_new(self.handle, line, run.submitter),
        ]

    async def _over(self, run: StoredRun, state: RunState, ended_steps: int | None = None, **fields: Any) -> StoredRun:
        """Return a run as one that is over."""
        now = self.context.clock()
        mark = Mark(state, now, await self._place(run, ended_steps), fields.get("error", ""))
        return run.changed(state=state, ended=now, marks=(*run.marks, mark), **fields)

    async def _place(self, run: StoredRun, ended_steps: int | None = None) -> str:
        """Return how far a run is: the last checkpoint of its thread, or how many of its steps have ended."""
        line = run.line(self.tenant)
        if not run.marks:
            return ""  # it was not begun
        if run.is_graph:
            return await self.head(line)
        if ended_steps is None:
            (rows,) = await self.context.backend.read([Scan(REFS, steps_prefix(line, run.id), bodies=False)])
            ended_steps = max((step_ordinal(row) for row in rows), default=0)
        return str(ended_steps)

    async def head(self, line: Line) -> str:
        """Return the id of the last checkpoint of a thread; empty if there is none."""
        head = await self.handle.engine.lines.latest_step(line)
        return "" if head is None else head.id

    async def checkpoints(self, line: Line, after: str) -> list[StepRef]:
        """Return the checkpoints of a thread after one, the first one first."""
        engine = self.handle.engine
        head = await engine.lines.latest_step(line)
        if head is None:
            return []
        walk = LogWalk(engine, line, await engine.lines.branches(line), first_parents=True)
        await walk.start([Position(head.branch, head.seq)])
        found: list[StepRef] = []
        while page := await walk.page(_STEPS):
            for visited in page:
                if visited.point.id <= after:  # that one itself may have been pruned
                    return found[::-1]
                found.append(visited.point)
        return found[::-1]

    # Working ----------------------------------------------------------------------------------------------------

    async def begin(
        self, found: FoundRun, life: float, code: str, *, is_graph: bool, is_limited: bool = False, is_ours: bool = True
    ) -> HeldRun | StoredRun | None:
        """Claim a run that is due, or one whose worker is gone.

        That is only queued again, and returned, if it is not `is_ours`; or it is given up, since it may be what kills
        workers. None if others were first, or have the thread. `NoRoom` if it `is_limited`, and others have to end
        before.
        """
        line, is_recovery = Line(self.tenant, found.thread), bool(found.token)
        attempts = Attempts("beginning a run", line, self.context.metrics)
        while True:
            await attempts.begin()
            record = Get(REFS, [record_key(line, found.id)])
            (rows,), claims = await read_with_claims(self.context, [record], [line])
            if not rows:  # its thread was removed by other means than a deletion
                await self.context.backend.apply([Delete(JOBS, found.key(self.tenant))])
                return None
            run, before = StoredRun.of(rows[0]), claims.get(line)
            if run.state not in ((RUNNING,) if is_recovery else (QUEUED, WAITING)) or run.due != found.due:
                return None
            if before is not None and before.is_held(self.context):
                return None  # another worker was first; or it is of a program that has the thread without a run
            claim, now, deaths = Claim(self.context, line, life), self.context.clock(), run.deaths + is_recovery
            over = claim.put_over(None if before is None else before.row)
            if deaths >= MAX_DEATHS or not is_ours:
                dead: dict[str, Any] = {
                    "error": f"{deaths} workers died while they had it",
                    "error_code": "workers-died",
                }
                queued = run.changed(state=QUEUED, due=now, deaths=deaths)
                new = queued if deaths < MAX_DEATHS else await self._over(run, FAILED, deaths=deaths, **dead)
                if not await self._replace(HeldRun(run, claim), await self.queue(line), new, over[:1]):
                    return None
                self.context.metrics.count("runs_total", run.graph, FAILED if new.state == FAILED else "recovered")
                return new
            # One that is taken over counts already.
            changes = await find_room(self.context, self.tenant, run.graph) if is_limited and not is_recovery else []
            new = run.changed(
                state=RUNNING,
                attempts=run.attempts + 1,
                deaths=deaths,
                started=run.started or now,
                worker=_this_process(),
                code=code,
                is_graph=is_graph,
                **await self._start(run, line, now, is_graph=is_graph),
            )
            batch = [*changes, *run.changes_to(new, self.tenant, is_next=True, token=claim.token), *over]
            claim.also = submitter_conditions(self.handle, run.submitter)
            batch += [] if claim.also is None else await claim.also(False)
            failed = await self.context.backend.apply(batch)
            if failed is None:
                self.context.metrics.count("runs_total", run.graph, "recovered" if is_recovery else "begun")
                held = HeldRun(new, claim)
                held.is_limited = is_limited
                return held
            if failed >= len(changes):
                return None  # otherwise another run was begun that counts

    async def take(self, line: Line, graph: str, life: float, failed: str = "", *, is_graph: bool = True) -> HeldRun:
        """Begin a run that a program does itself; or go on with the one whose turn it is, if that waits for an answer,
        or its process died, or with one that `failed`. `ConflictError` if another process has the thread."""
        attempts = Attempts("beginning a run", line, self.context.metrics)
        while True:
            await attempts.begin()
            queue, claim, now = await self.queue(line), Claim(self.context, line, life), self.context.clock()
            before = (await read_claims(self.context, [line])).get(line)
            if before is not None and before.is_held(self.context):
                raise claim.busy()
            id = queue.ids[0] if queue.ids else failed
            first = (await self.of_threads([(line.name, id)]))[0] if id else None
            if first is not None and not is_graph and not first.is_own:
                raise claim.busy()  # an agent does one thing at a time
            changes = claim.put_over(None if before is None else before.row)
            worker, head = _this_process(), await self.head(line) if is_graph else "0"
            if first is not None and first.state in (WAITING, RUNNING, FAILED):
                if first.graph != graph:
                    raise ConflictError(
                        f"a run of {first.graph!r} on the thread is not over",
                        where=f"run {first.id} of thread {line}",
                        hint="Wait for its end, or cancel it",
                        code="under-way",
                    )
                # What the program gives to the graph is not known here: a worker that goes on gives it nothing.
                fields: dict[str, Any] = {"worker": worker, "base": GIVEN}
                if first.state == FAILED:
                    fields |= {"ended": 0, "error": "", "marks": (*first.marks, Mark("begun", now, head))}
                new = first.changed(state=RUNNING, attempts=first.attempts + 1, **fields)
                changes += [*first.changes_to(new, self.tenant, is_next=True, token=claim.token)]
                changes += queue.replaced_by(queue.ids or [first.id])
            else:
                id, mark = new_id(now), Mark("begun", now, head)
                new = StoredRun(id, line.name, graph, RUNNING, now, now, NO_VALUE, MAX_ATTEMPTS)
                fields = {"attempts": 1, "worker": worker, "started": now, "base": head, "marks": (mark,)}
                new = msgspec.structs.replace(new, is_graph=is_graph, is_own=True, **fields)
                changes += [Create(REFS, new.row(self.tenant)), Create(JOBS, new.list_row(self.tenant))]
                changes += [Create(JOBS, new.place_row(self.tenant, claim.token))]
                changes += queue.replaced_by([id, *queue.ids])
                changes.append(Ensure(LINES, info_row(line, self.handle.engine.lines.new_info())))
            if await self.context.apply(changes) is None:
                self.context.metrics.count("runs_total", graph, "begun")
                return HeldRun(new, claim)

    async def _start(self, run: StoredRun, line: Line, now: int, *, is_graph: bool) -> dict[str, Any]:
        """Return the fields of a run that say where it starts."""
        is_new = not run.marks or run.marks[-1].state in ENDED
        place = await self.head(line) if is_graph else run.marks[-1].place if run.marks else "0"
        fields: dict[str, Any] = {"marks": (*run.marks, Mark("begun", now, place))} if is_new else {}
        if not is_graph:
            return fields
        if run.base is None:
            return fields | {"base": place}
        if is_new and await self._was_left(run, line):
            return fields | {"base": place}
        return fields

    async def _was_left(self, run: StoredRun, line: Line) -> bool:
        """Return whether a run that was over starts anew with its input: it had stored nothing, or the graph has been
        run on the thread since. What a person changed there does not matter."""
        last = run.marks[-1].place
        return last == run.base or any(each.kind in OF_GRAPHS for each in await self.checkpoints(line, last))

    async def finish(
        self, held: HeldRun, state: RunState, *, removes: bool = False, unless: Sequence[Change] = (), **fields: Any
    ) -> StoredRun:
        """Record what became of a run, and release its claim; or remove its record. One that waits is queued at once if
        these conditions of what it waits for do not hold any more. `ClaimLostError` if the claim is lost."""
        protection = self.handle.engine.protection
        if protection is not None and fields.get("error"):
            fields["error"] = protection.redact_text(fields["error"])

        async def end() -> StoredRun:
            if state in ENDED:
                return await self._over(held.stored, state, held.ended_steps, **fields)
            new = held.stored.changed(state=state, **fields)
            if state != WAITING:
                return new
            mark = Mark(state, self.context.clock(), await self._place(held.stored))
            return msgspec.structs.replace(new, marks=(*new.marks, mark))

        new = await until_answered(end, held.claim.life)

        async def store() -> bool:
            nonlocal new, unless
            queue = await self.queue(held.line)
            is_passed = new.state == WAITING and new.is_graph and await self.is_passed(held.line, queue.ids)
            if is_passed and not await is_answered(self.handle.engine, held.line):
                new = await self._over(held.stored, CANCELLED, held.ended_steps, **{**fields, **WAS_PASSED})
            if await self._replace(held, queue, new, [held.claim.condition(), *unless], removes=removes):
                return True
            (stored,) = await self.of_threads([(held.line.name, new.id)])
            if stored == new or (removes and stored is None):
                return True  # the answer to an earlier attempt was lost
            await held.claim.require_valid()
            if unless:
                new, unless = held.stored.changed(state=QUEUED, due=self.context.clock()), ()
            return False

        attempts = Attempts("ending a run", held.line, self.context.metrics)
        await attempts.begin()
        while not await until_answered(store, held.claim.life):
            await attempts.begin()
        self.context.metrics.count("runs_total", new.graph, "retried" if new.state == QUEUED else new.state)
        return new

    async def _replace(
        self,
        held: HeldRun,
        queue: ThreadQueue,
        new: StoredRun,
        conditions: Sequence[Change],
        *,
        removes: bool = False,
    ) -> bool:
        """Replace a run that is running by a later version, which is not. Returns False if others changed something."""
        batch = [*conditions, *held.stored.changes_to(new, self.tenant, is_next=True), *held.claim.end()]
        batch += [*await self._leave(queue, held.line, new), *await self._followed(held.stored, new)]
        if removes:
            batch += self._removal(new)
        if await self.context.backend.apply(batch) is not None:
            return False
        if len(queue.ids) > 1 or new.state == QUEUED or held.is_limited or new.then:
            await ring(self.context, self.tenant)
        return True

    async def _leave(self, queue: ThreadQueue, line: Line, new: StoredRun) -> list[Change]:
        """Return the changes that give the next run of a thread its turn, if another is over."""
        if new.state not in ENDED:
            return queue.replaced_by(queue.ids)
        rest = [id for id in queue.ids if id != new.id]
        changes = queue.replaced_by(rest)
        if rest and queue.ids[0] == new.id:
            changes += await self._begin_turn(line, rest[0])
        return changes

    async def _begin_turn(self, line: Line, id: str) -> list[Change]:
        """Return the changes that have workers find a run, which is the first of its thread now."""
        (following,) = await self.of_threads([(line.name, id)])
        return [] if following is None else following.changes_to(following.changed(), self.tenant, is_next=True)

    # By hand ----------------------------------------------------------------------------------------------------

    async def cancel(self, id: str) -> StoredRun:
        """End a run: whoever has it stores nothing more. One that is over stays as it is."""
        attempts = Attempts("cancelling a run", f"run {id}", self.context.metrics)
        while True:
            await attempts.begin()
            run = await self.get(id)
            if run.state in ENDED:
                return run
            line = run.line(self.tenant)
            batch = await self.conditions(line, attempts)
            batch += await self.ended(run, await self.queue(line), CANCELLED)
            if run.state == RUNNING:
                batch += claim_removal(line)
            if await recorded(self.handle.engine, line, "cancel-run", {"run": id})(batch) is None:
                self.context.metrics.count("runs_total", run.graph, CANCELLED)
                await ring(self.context, self.tenant)
                return await self.get(id)

    async def ended(self, run: StoredRun, queue: ThreadQueue, state: RunState, **fields: Any) -> list[Change]:
        """Return the changes that end a run, and give the next one of its thread its turn."""
        new = await self._over(run, state, **fields)
        batch = [*run.changes_to(new, self.tenant, is_next=False), *await self._followed(run, new)]
        return batch + await self._leave(queue, run.line(self.tenant), new)

    async def requeue(self, id: str, states: Sequence[RunState], hint: str, **fields: Any) -> StoredRun:
        """Have a run done that waits for an answer, or is over. `ConflictError` if it is in none of these states."""
        attempts = Attempts("queueing a run", f"run {id}", self.context.metrics)
        while True:
            await attempts.begin()
            run = await self.get(id)
            if run.state not in states:
                raise run.conflict(hint)
            line = run.line(self.tenant)
            batch = await self.conditions(line, attempts)
            batch += self.requeued(run, await self.queue(line), **fields)
            if await recorded(self.handle.engine, line, "retry-run", {"run": id})(batch) is None:
                await ring(self.context, self.tenant)
                return await self.get(id)

    def requeued(self, run: StoredRun, queue: ThreadQueue, **fields: Any) -> list[Change]:
        """Return the changes that have a run done that waits, or is over."""
        now = self.context.clock()
        new = run.changed(state=QUEUED, due=now, ended=0, failures=0, deaths=0, error="", error_code="", **fields)
        ids = queue.ids if run.id in queue.ids else [*queue.ids, run.id]
        return [*run.changes_to(new, self.tenant, is_next=ids[0] == run.id), *queue.replaced_by(ids)]

    async def delete(self, id: str) -> bool:
        """Delete the record of a run that is over, with its steps. False if there is none."""
        run = await self.find(id)
        if run is None:
            return False
        if run.state not in ENDED:
            raise run.conflict("Cancel it first")
        return await self.context.backend.apply([run.unchanged(self.tenant), *self._removal(run)]) is None

    def _removal(self, run: StoredRun) -> list[Change]:
        line = run.line(self.tenant)
        changes: list[Change] = [Delete(REFS, record_key(line, run.id)), Delete(REFS, steps_prefix(line, run.id))]
        changes.append(Delete(REFS, parts_prefix(line, run.id)))
        changes.append(Delete(JOBS, run_place(self.tenant, BY_TIME, run.id)))
        if run.key:
            changes.append(Delete(JOBS, run_place(self.tenant, BY_KEY, run.key)))
        return changes


def new_id(now: int) -> str:
    """Return the id of a new run: later ones are greater."""
    return f"{now:016x}{os.urandom(4).hex()}"


def _this_process() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


def _last_of(rows: Sequence[Row]) -> str:
    return str(rows[-1].key[2]).rpartition("/")[2] if len(rows) == _PAGE else ""


def _readable(decode: Callable[[Row], T], rows: Sequence[Row]) -> list[T]:
    """Return what is in rows: a damaged one does not stop the others."""
    found = []
    for row in rows:
        try:
            found.append(decode(row))
        except HoldfastError as error:
            _log.warning("a run is skipped: %s", error)
    return found


def _thread_of(row: Row) -> str:
    return unwrap(row.body).content.decode()


def _same(known: StoredRun, run: StoredRun, has_thread: bool) -> StoredRun:
    """Return the run that was submitted with an idempotency key before. `ConflictError` if it is other work."""
    if (known.graph, known.input) != (run.graph, run.input) or (
        has_thread and known.thread not in (run.thread, f"{run.thread}-{known.id}")
    ):
        raise ConflictError(
            "another run was submitted with this idempotency key",
            where=f"run {known.id} of thread {known.thread}",
            hint="Use another key for another piece of work",
            code="run-key",
        )
    return known
