"""Runs that a program does itself, while workers stand by: if it dies, one of them goes on with its graph.

A saver with `recover` begins such a run with the first checkpoint that a graph saves, and ends it when the graph is
done, asks something, or has failed. The record of one that is done is removed, if nobody submitted it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple, Self

from holdfast.agents.runs.record import DONE, FAILED, QUEUED, WAITING, RunState
from holdfast.agents.runs.steps import RunSteps, current_steps
from holdfast.agents.runs.table import HeldRun, RunTable
from holdfast.agents.storage.record import error_text
from holdfast.backends.interface import Change, Expect, Get
from holdfast.backends.runtime.drivers import Pause, arun, run
from holdfast.backends.runtime.heartbeat import Heartbeat
from holdfast.backends.tables import REFS
from holdfast.engine.claims import claim_key
from holdfast.engine.guard import acting, current_authority
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line
from holdfast.errors import ClaimLostError, ConflictError, HoldfastError, NotFoundError
from holdfast.history.thread_status import read_status
from holdfast.security.handle import StoreHandle

_LONGEST_NODE = 600.0
"""For how many seconds after the last save a run that a saver began is still held: its program may have given it up."""

_TURN = 0.001
"""The pause in seconds while another thread begins a run."""

_ENDS: dict[str, RunState] = {"done": DONE, "waiting": WAITING, "failed": FAILED}


class _End(NamedTuple):
    """What a run came to, and the checkpoint of the thread at which it did."""

    checkpoint: str
    state: RunState
    error: str


class _Held:
    """A run that this program has."""

    def __init__(self, run: HeldRun, steps: RunSteps, head: str, *, is_explicit: bool) -> None:
        self.run = run
        self.steps = steps
        self.is_explicit = is_explicit
        """Whether it is in a `with` block, and ends with that."""
        self.saved = time.monotonic()
        self.head = head
        """The last checkpoint that is stored. LangGraph stores what follows one before it, perhaps."""
        self.end: _End | None = None
        self.in_flight = 0

    async def beat(self) -> None:
        """Give a sign of life. `ConflictError` if there is none to give."""
        if not self.is_explicit and time.monotonic() - self.saved > _LONGEST_NODE:
            raise ConflictError("the run was given up")
        await self.run.claim.beat()


class ProgramRuns:
    """The runs of a graph that a program does itself."""

    def __init__(self, handle: StoreHandle, graph: str, life: float) -> None:
        self._table = RunTable(handle)
        self._graph = graph
        self._life = life
        self._held: dict[Line, tuple[_Held, Heartbeat]] = {}
        self._early: dict[Line, _End] = {}
        """The ends that were stored before the checkpoint that begins the run."""
        self._failed: dict[Line, str] = {}
        """The run of a thread that failed last: the next one is it again."""
        self._ending: set[Line] = set()
        """The threads of runs whose ends are being stored."""
        self._lock = threading.Lock()
        self._is_beginning = threading.Lock()

    async def save(
        self,
        thread: str,
        action: Callable[[], Awaitable[None]],
        checkpoint: str,
        *,
        is_checkpoint: bool,
        begins: bool,
        status: str | None,
        error: str = "",
    ) -> None:
        """Save a checkpoint, or what follows it, under the claim of the run of its thread, which is begun before if
        this `begins` one. The run ends when all is stored that led to such a status."""
        line = root_of(Line(self._table.tenant, thread))
        if current_authority().claim is not None:
            await action()  # in a run of a worker, or in a `with` block
            return
        end = _End(checkpoint, _ENDS[status], error) if status in _ENDS else None
        held = await self._begin(line, is_explicit=False) if begins else self._of(line)
        if held is None:
            # Of a task that ended when the run had, or before it has begun: nobody else has the thread.
            with acting(current_authority()._replace(preconditions=_Unclaimed(self, line).conditions)):
                await action()
            with self._lock:
                held = self._of(line)  # it has begun meanwhile, perhaps, and all else of it is stored
                if held is None and end is not None:
                    self._early[line] = end
        elif held.run.claim.is_lost:
            raise held.run.claim.lost()
        else:
            with self._lock:
                held.saved, held.in_flight = time.monotonic(), held.in_flight + 1
            try:
                with acting(current_authority()._replace(claim=held.run.claim)):
                    await action()
            finally:
                with self._lock:
                    held.in_flight -= 1
        if held is None or held.is_explicit:
            return
        if ended := self._note(line, held, checkpoint if is_checkpoint else "", end):
            try:
                await self._end(held, ended.state, ended.error)
            finally:
                self._ending.discard(line)

    def _note(self, line: Line, held: _Held, saved: str, end: _End | None) -> _End | None:
        """Note that something was stored. Returns the end of the run if nothing more is to come."""
        with self._lock:
            early = self._early.pop(line, None)
            held.head = max(held.head, saved)
            if early is not None and early.checkpoint > held.head:
                self._early[line] = early  # its checkpoint is still to come
            for each in (end, early):
                is_of = each is not None and (each is end or each.checkpoint == saved)
                if is_of and (held.end is None or held.end.state != FAILED):
                    held.end = each
            ended = held.end
            if ended is None or held.in_flight or ended.checkpoint > held.head or self._of(line) is not held:
                return None
            _, heartbeat = self._held.pop(line)
            self._ending.add(line)
        heartbeat.__exit__()
        return ended

    def forget_lost(self, thread: str) -> None:
        """Let the thread be run again by this program, which has lost a run of it: a graph begins to read it anew.

        Until then nothing is stored, whatever the graph that has lost it does still.
        """
        line = root_of(Line(self._table.tenant, thread))
        held = self._of(line)
        if held is not None and held.run.claim.is_lost:
            self._drop(line)

    async def settled(self, line: Line) -> _Held | None:
        """Return the run of a thread, when none is just being begun or ended."""
        while self._is_beginning.locked() or line in self._ending:
            await Pause(_TURN)
        return self._of(line)

    async def steps(self, thread: str) -> RunSteps | None:
        """Return the steps of the run of a thread that this program does; it is begun, if the first checkpoint of its
        graph is not stored yet. None under a claim of the program's own."""
        if current_authority().claim is not None:
            return None
        return (await self._begin(root_of(Line(self._table.tenant, thread)), is_explicit=False)).steps

    def enter(self, thread: str) -> ProgramRun:
        """Return the run of a thread, for `with` or `async with`."""
        return ProgramRun(self, root_of(Line(self._table.tenant, thread)))

    def _of(self, line: Line) -> _Held | None:
        found = self._held.get(line)
        return None if found is None else found[0]

    async def _begin(self, line: Line, *, is_explicit: bool) -> _Held:
        while not self._is_beginning.acquire(blocking=False):
            await Pause(_TURN)
        try:
            known = self._of(line)
            if known is not None and not (is_explicit and known.run.claim.is_lost):
                if is_explicit:
                    raise known.run.claim.busy()
                return known
            head = await self._table.head(line)
            taken = await self._table.take(line, self._graph, self._life, self._failed.pop(line, ""))
            held = _Held(taken, RunSteps(self._table, taken), head, is_explicit=is_explicit)
            heartbeat = Heartbeat(self._table.context.heartbeats, self._life, held.beat)
            heartbeat.__enter__()
            self._held[line] = held, heartbeat
            return held
        finally:
            self._is_beginning.release()

    def _drop(self, line: Line) -> None:
        found = self._held.pop(line, None)
        if found is not None:
            found[1].__exit__()

    async def _end(self, held: _Held, state: RunState, error: str = "") -> None:
        if state == DONE:
            await self._table.finish(held.run, DONE, removes=held.run.stored.is_own)
        elif state == QUEUED:
            await self._table.finish(held.run, QUEUED, due=self._table.context.clock())
        else:
            ended = await self._table.finish(held.run, state, error=error)
            if state == FAILED:
                self._failed[held.run.line] = ended.id

    async def end_block(self, line: Line, held: _Held, error: BaseException | None) -> None:
        """End the run of a `with` block by what its graph left."""
        self._drop(line)
        try:
            status = (await read_status(self._table.handle.engine, line, is_own=True)).status
        except NotFoundError:
            status = "done"  # it saved nothing
        state = _ENDS.get(status)
        if state is None:  # unfinished: workers go on if the program was interrupted, but not over a breakpoint
            state = WAITING if error is None else QUEUED
        await self._end(held, state, error_text(error) if error is not None and state == FAILED else "")


class _Unclaimed:
    """The condition that nobody has a thread, or that this program has, if it has begun a run meanwhile."""

    def __init__(self, runs: ProgramRuns, line: Line) -> None:
        self._runs, self._line = runs, line
        before = current_authority()
        self._before = before.preconditions

    async def conditions(self, again: bool) -> Sequence[Change]:
        """Return the conditions of a batch; if an earlier attempt has failed, after a look."""
        key, own = claim_key(self._line), Expect(REFS, claim_key(self._line), None)
        if again and (held := await self._runs.settled(self._line)) is not None:
            own = held.run.claim.condition()
        if again:
            (rows,) = await self._runs._table.context.backend.read([Get(REFS, [key])])
            if rows and rows[0].columns != own.columns:
                raise ClaimLostError(
                    "the run of the thread has ended, and another one goes on",
                    where=f"thread {self._line}",
                    hint="What this one does still is not stored",
                )
        more = () if self._before is None else await self._before(again)
        return [own, *more]


class ProgramRun:
    """A run of a thread that a program does itself, in `with` or `async with`. All that is stored in the block, also in
    scopes and by agents, is on the condition of its claim. `ConflictError` if another process has the thread."""

    def __init__(self, runs: ProgramRuns, line: Line) -> None:
        self._runs = runs
        self._line = line

    async def _enter(self) -> None:
        self._held = await self._runs._begin(self._line, is_explicit=True)

    def _act(self) -> None:
        authority = current_authority()._replace(claim=self._held.run.claim)
        self._acting: AbstractContextManager[None] = acting(authority)
        self._acting.__enter__()
        self._token = current_steps.set(self._held.steps)

    async def _exit(self, error: BaseException | None) -> None:
        try:
            await self._runs.end_block(self._line, self._held, error)
        except HoldfastError:
            if error is None:
                raise  # otherwise the error of the block says more

    def __enter__(self) -> Self:
        run(self._enter())
        self._act()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        current_steps.reset(self._token)
        self._acting.__exit__(None, None, None)
        run(self._exit(error))

    async def __aenter__(self) -> Self:
        await arun(self._enter())
        self._act()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with suppress(ValueError):  # a generator that is closed in another context
            current_steps.reset(self._token)
            self._acting.__exit__(None, None, None)
        await arun(self._exit(error))
