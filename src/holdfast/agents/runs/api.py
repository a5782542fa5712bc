"""Operations on runs: `store.runs`."""

from __future__ import annotations

import builtins
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.agents.runs.answers import store_answer
from holdfast.agents.runs.limits import ALL, RunLimit, list_limits, set_limit
from holdfast.agents.runs.record import (
    CANCELLED,
    ENDED,
    FAILED,
    NO_VALUE,
    QUEUED,
    WAITING,
    Run,
    StoredRun,
    key_digest,
    key_of,
    parse_state,
)
from holdfast.agents.runs.steps import RunStep, Workflow, list_steps, resolve_step, step_rows
from holdfast.agents.runs.table import GIVEN, MAX_ATTEMPTS, ON_BUSY, ListedRun, OnBusy, RunTable, new_id
from holdfast.agents.runs.waits import is_paused, settle
from holdfast.agents.runs.wake import ring
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.listing import read_summary
from holdfast.backends.runtime.drivers import AsyncApi, Pause, SyncApi, arun, declare, operation, run
from holdfast.engine import validation
from holdfast.engine.guard import filter_visible
from holdfast.engine.model.missing import MISSING
from holdfast.engine.pages import Page
from holdfast.engine.row_format import Line, check_name
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle, owner_handle
from holdfast.time_parser import Duration, Time, parse_deadline, parse_seconds

_SHORTEST, _LONGEST = 0.02, 0.5
"""The pauses between two looks for events, in seconds."""

_STEPS = 256


class RunEvent(msgspec.Struct, frozen=True):
    """An event of a run. Its id, given as `after`, is where a stream continues."""

    id: Annotated[str, Label("event")]
    kind: str
    """`checkpoint`, `step`, or the state that the run came to: `waiting`, `done`, `failed` or `cancelled`."""
    time: datetime
    name: str = ""
    """The checkpoint, or the key of the step."""
    detail: Hidden[str] = ""
    """How the checkpoint was made, how the step ended, or the error of the run."""


class RunAccess(Protocol):
    """What an identity may do with runs, in place of the store's owner."""

    actor: str
    """The identity."""

    def submitting(self, line: Line) -> AbstractAsyncContextManager[None]:
        """Require the right to submit a run on a thread, and act under it."""

    async def visible(self, lines: Sequence[Line]) -> Set[Line]:
        """Return those of some threads that may be read."""


@declare(not_in_scripts="Workers are processes of the host.")
class RunOperations:
    """Operations on runs. `Runs` and `AsyncRuns` have these as methods."""

    def __init__(self, handle: StoreHandle, access: RunAccess | None = None) -> None:
        self._handle = owner_handle(handle)
        self._access = access
        self._table: Final = RunTable(self._handle)

    @operation(changes=True)
    async def submit(
        self,
        thread: str | None,
        input: Any = None,  # noqa: A002 - what it is called everywhere
        *,
        graph: str | Workflow[..., Any] | None = None,
        agent: str | None = None,
        idempotency_key: str | None = None,
        on_busy: OnBusy = "queue",
        attempts: int = MAX_ATTEMPTS,
        when: Time | Duration | None = None,
        then: str | Workflow[..., Any] | None = None,
    ) -> Run:
        """Have a worker run a graph on a thread, or a workflow, by its name; or the `agent` with an id, whose method
        `run` it calls. Returns at once: the run is stored.

        `input` is what the graph is invoked with; of a workflow or an agent the list of the arguments, or a dict of
        them by name. Without a thread, the run of a workflow has one of its own. If the thread has a run that is not
        over, this one waits for its turn; with `on_busy="pass"` it does not wait for an answer: a run that asks
        something is cancelled; with `"refuse"` it is a `ConflictError`, code `under-way`, with `"replace"` others are
        cancelled, and with `"branch"` it works on a copy of the thread, as that was before the run that is under way:
        its `thread` is the new one. With the `idempotency_key` of an earlier run, that is returned. A run is attempted
        up to `attempts` times if it fails; it is begun at once, or `when` the time has come, such as `"2h"` from now.
        When it is over, or its graph asks something, the workflow `then` is submitted in the same batch, with the id of
        this run.
        """
        if on_busy not in ON_BUSY:
            raise InvalidError(f"on_busy cannot be {on_busy!r}"[:200], hint=f"Pass one of {', '.join(ON_BUSY)}")
        if on_busy in ("branch", "pass") and agent is not None:
            raise InvalidError("an agent has no branches: its runs wait for each other", where=f"agent {agent!r}")
        now = self._handle.now()
        id = new_id(now)
        line = self._line(f"run-{id}" if thread is None else thread) if agent is None else self._agent(agent, thread)
        packed = NO_VALUE if input is None else self._handle.codec.pack(input)
        if packed and self._handle.engine.protection is not None:
            await self._handle.engine.protection.refuse(line, packed, "input")
        if idempotency_key is not None and not check_name(idempotency_key, "idempotency key"):
            raise InvalidError("an idempotency key must not be empty")
        actor = "" if self._access is None else self._access.actor
        key = None if idempotency_key is None else key_of(actor, idempotency_key)
        name = self._name_of(graph, agent)
        stored = StoredRun(
            id,
            line.name,
            name,
            QUEUED,
            now,
            now if when is None else _nanoseconds(parse_deadline(when, to_datetime(now))),
            packed,
            validation.require_count(attempts, "attempts", 1),
            "" if key is None else key_digest(key),
            submitter=actor,
            then="" if then is None else self._name_of(then, None),
            passes=on_busy == "pass",
        )
        async with AsyncExitStack() as permits:
            if self._access is not None:
                await permits.enter_async_context(self._access.submitting(line))
                if on_busy == "branch":
                    await permits.enter_async_context(self._access.submitting(self._table.branch_line(line, id)))
            if agent is not None:
                stored = msgspec.structs.replace(stored, graph=await self._class_of(agent, name))
            if on_busy == "refuse" or (stored.passes and stored.due <= now):
                for first in (await self._table.queue(line)).ids[:1]:
                    await settle(self._table, first, holds_up=True)
            has_thread = thread is not None or agent is not None
            found = await self._table.submit(stored, key, on_busy, has_thread=has_thread)
            return self._describe(found)

    def _line(self, thread: str) -> Line:
        return self._handle.thread_line(thread)

    def _agent(self, agent: str, thread: str | None = None) -> Line:
        if thread is not None:
            raise InvalidError("a run is on a thread or of an agent, and not both", where=f"agent {agent!r}"[:200])
        return AgentLine(self._handle, agent).line

    def _name_of(self, graph: str | Workflow[..., Any] | None, agent: str | None) -> str:
        if graph is None and agent is not None:
            return ""  # that of its class
        name = check_name(graph.name if isinstance(graph, Workflow) else graph, "name of a graph")
        if not name:
            raise InvalidError("the name of a graph must not be empty", hint="Compile it with a name, or give it one")
        return name

    async def _class_of(self, agent: str, name: str) -> str:
        """Return the name of the class of an agent. `InvalidError` if the caller says another one."""
        line = AgentLine(self._handle, agent)
        found = str(read_summary(await line.require_step()).get("class", ""))
        if name not in ("", found):
            raise InvalidError(f"the agent's class is {found!r}, and not {name!r}"[:200], where=line.where)
        return found

    @operation
    async def get(self, id: str) -> Run:
        """Return a run. `NotFoundError` if there is none."""
        return self._describe(await self._table.get(id))

    @operation
    async def list(
        self,
        *,
        state: str | None = None,
        thread: str | None = None,
        agent: str | None = None,
        graph: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Run]:
        """List runs, the latest first: those in a state, of a thread, of an agent, or of a graph. The id of a run is a
        cursor."""
        wanted = None if state is None else parse_state(state)
        count, before = validation.require_count(limit, "limit"), validation.cursor_text(cursor)
        if before.strip("0123456789abcdef"):
            raise validation.cursor_error(cursor)
        line = self._agent(agent, thread) if agent is not None else None if thread is None else self._line(thread)
        visible = None if self._access is None else self._access.visible

        def fits(run: StoredRun | ListedRun) -> bool:
            return wanted in (None, run.state) and graph in (None, run.graph)

        found: list[StoredRun] = []
        if line is not None and await filter_visible(visible, [line], lambda each: each):
            of_thread = await self._table.of_thread(line)
            found = [run for run in of_thread if fits(run) and (not before or run.id < before)]
        while line is None and len(found) <= count:
            listed = await self._table.page(max(count + 1, _STEPS), before)
            if not listed:
                break
            before = listed[-1].id
            places = [(each.thread, each.id) for each in listed if fits(each)]
            places = await filter_visible(visible, places, lambda each: Line(self._table.tenant, each[0]))
            found += [each for each in await self._table.of_threads(places) if each is not None and fits(each)]
        return Page.cut(
            [self._describe(each) for each in found[: count + 1]],
            count,
            lambda each: each.id,
            lambda cursor: RunOperations.list(
                self, state=state, thread=thread, agent=agent, graph=graph, limit=count, cursor=cursor
            ),
        )

    @operation(not_remote="It waits: follow the run, or get it again.")
    async def wait(self, id: str, *, timeout: Duration | None = None) -> Run:
        """Return a run when it is over, or waits for an answer; as it is, when the `timeout` is over."""
        left = math.inf if timeout is None else parse_seconds(timeout, "timeout")
        pause = _SHORTEST
        while True:
            stored = await self._table.get(id)
            if stored.state == WAITING or stored.state in ENDED or left <= 0:
                return self._describe(stored)
            await Pause(min(pause, left))
            left, pause = left - pause, min(2 * pause, _LONGEST)

    @operation(changes=True)
    async def cancel(self, id: str) -> Run:
        """Cancel a run. Whoever has it stores nothing more from now on; a step that it is in may still have its
        effects. One that is over stays as it is."""
        return self._describe(await self._table.cancel(id))

    @operation(changes=True)
    async def retry(self, id: str) -> Run:
        """Have a run that failed or was cancelled done again, from where it stopped."""
        return self._describe(
            await self._table.requeue(id, (FAILED, CANCELLED), "Only one that failed or was cancelled is retried")
        )

    @operation(changes=True)
    async def answer(self, id: str, value: Any = None, *, question: str | None = None) -> Run:
        """Answer the question at which the graph of a run waits: a worker continues it with this value.

        `question` is the id of one of `store.thread(name).status().questions`, if several wait. At a breakpoint there
        is none: without a value, the graph goes on. `ConflictError` if the run does not wait.
        """
        stored = await settle(self._table, id)
        if stored.agent:
            raise stored.conflict(f"An agent is sent a signal: store.agents.signal({stored.agent!r}, …)")
        if stored.state == WAITING and value is None and question is None and await is_paused(self._table, stored):
            return self._describe(await self._table.requeue(id, (WAITING,), "It went on meanwhile", base=GIVEN))
        await store_answer(self._handle, stored.line(self._handle.tenant), value, question, run=id)
        return self._describe(await self._table.get(id))

    @operation
    async def steps(self, id: str) -> Sequence[RunStep]:
        """Return the recorded steps of a run, in their order."""
        return await list_steps(self._table, id)

    @operation(changes=True)
    async def resolve(self, id: str, step: str, *, result: Any = MISSING, retry: bool = False) -> None:
        """Record the `result` of a step whose outcome is unknown, or that failed; or that it is to be run again. Then
        `retry` the run."""
        if (result is not MISSING) + bool(retry) != 1:
            raise InvalidError("pass exactly one of result and retry to resolve a step", where=f"step {step!r}"[:200])
        await resolve_step(self._table, id, step, None if retry else self._handle.codec.pack(result))

    @operation(changes=True)
    async def delete(self, id: str) -> bool:
        """Delete the record of a run that is over, with its steps; the thread stays. Returns False if there is none."""
        return await self._table.delete(id)

    @operation(changes=True)
    async def limit(self, graph: str | None, most: int | None) -> None:
        """Have workers do at most so many runs of a graph or workflow at a time, in all processes together; without a
        `graph`, of all of the tenant. With 0, none is begun. `None` in place of the number removes the limit."""
        name = ALL if graph is None else check_name(graph, "name of a graph")
        if graph is not None and not name:
            raise InvalidError("the name of a graph must not be empty", hint="Pass None for all graphs together")
        count = None if most is None else validation.require_count(most, "limit", 0)
        await set_limit(self._table.context, self._table.tenant, name, count)
        await ring(self._table.context, self._table.tenant)

    @operation
    async def limits(self) -> Sequence[RunLimit]:
        """Return the limits for all workers, and how many runs count for each."""
        return await list_limits(self._table.context, self._table.tenant)

    @operation
    async def events(self, id: str, after: str = "") -> Sequence[RunEvent]:
        """Return the events of a run since one with an id, as they are stored: a checkpoint of its thread or a step,
        and what it came to. None is missing or comes twice, whichever process asks."""
        return (await self._events(id, after))[0]

    def follow(self, id: str, after: str = "", *, timeout: Duration | None = None) -> RunStream:
        """Iterate over the events of a run as they come, until it is over: `for event in store.runs.follow(id)`, or
        `async for` on an async store. A stream that was cut is continued `after` the id of the last event, in any
        process. With a `timeout`, it ends after so much time without an event."""
        return RunStream(self, id, after, None if timeout is None else parse_seconds(timeout, "timeout"))

    def _describe(self, stored: StoredRun) -> Run:
        return stored.describe(self._handle.codec)

    async def _events(self, id: str, after: str) -> tuple[builtins.list[RunEvent], bool]:
        """Return the events after one, and whether they were the last.

        The id of an event is the place that the run had come to, and how many of its marks came before.
        """
        place, _, count = after.rpartition(".") if after else ("", "", "0")
        if not count.isdecimal():
            raise InvalidError("this is not the id of an event", where=repr(after)[:80])
        while True:
            stored = await self._table.get(id)
            if stored.is_graph:
                points = await self._checkpoints(stored, place)
            else:
                points = await self._ended_steps(stored, _number(place))
            if (await self._table.get(id)).version == stored.version:  # otherwise a mark among them is not known yet
                return _in_order(stored, points, place, int(count)), stored.state in ENDED

    async def _checkpoints(self, stored: StoredRun, after: str) -> builtins.list[RunEvent]:
        first = next((mark.place for mark in stored.marks), None)
        if first is None:
            return []
        points = await self._table.checkpoints(stored.line(self._handle.tenant), after or first)
        return [RunEvent(each.id, "checkpoint", to_datetime(each.time), each.id, each.kind) for each in points]

    async def _ended_steps(self, stored: StoredRun, after: int) -> builtins.list[RunEvent]:
        rows = await step_rows(self._table, stored.line(self._handle.tenant), stored.id)
        ended = [each for each in rows if each[0].ordinal > after and each[0].state != "running"]
        return [
            RunEvent(str(step.ordinal), "step", to_datetime(int(row.columns[1])), step.key, step.state)
            for step, row in sorted(ended, key=lambda each: each[0].ordinal)
        ]


def _number(place: str) -> int:
    return int(place) if place.isdecimal() else 0


def _in_order(stored: StoredRun, points: Sequence[RunEvent], place: str, passed: int) -> builtins.list[RunEvent]:
    """Return the checkpoints or steps after a place, among the marks of a run after the first ones."""
    position: Callable[[str], Any] = str if stored.is_graph else _number
    found, left = builtins.list[RunEvent](), deque(points)

    def take(until: str | None) -> Iterator[RunEvent]:
        while left and (until is None or position(left[0].id) <= position(until)):
            yield left.popleft()

    for number, mark in enumerate(stored.marks[passed:], passed):
        for each in take(mark.place):
            if mark.state != "begun":  # those before are of other runs
                place = each.id
                found.append(msgspec.structs.replace(each, id=f"{place}.{number}"))
        if mark.state != "begun":
            found.append(RunEvent(f"{place}.{number + 1}", mark.state, to_datetime(mark.time), "", mark.error))
    if stored.marks and stored.state not in ENDED and stored.marks[-1].state not in ENDED:
        found += [msgspec.structs.replace(each, id=f"{each.id}.{len(stored.marks)}") for each in take(None)]
    return found


class HasEvents(Protocol):
    """What has runs."""

    async def _events(self, id: str, after: str) -> tuple[builtins.list[RunEvent], bool]:
        """Return the events of a run after one, and whether they were the last."""


class RunStream:
    """The events of a run as they come: `for`, or `async for` on an async store. It ends when the run is over."""

    def __init__(self, runs: HasEvents, id: str, after: str, timeout: float | None) -> None:
        self._runs = runs
        self._id = id
        self.last = after
        """The id of the last event that was returned: where another stream continues."""
        self._timeout = timeout

    async def _next(self, pause: float) -> tuple[list[RunEvent], bool]:
        if pause:
            await Pause(pause)
        return await self._runs._events(self._id, self.last)

    def __iter__(self) -> Iterator[RunEvent]:
        pause, waited, is_over = 0.0, 0.0, False
        while not is_over and not (self._timeout is not None and waited > self._timeout):
            events, is_over = run(self._next(pause))
            for event in events:
                self.last = event.id
                yield event
            pause = 0.0 if events else min(max(2 * pause, _SHORTEST), _LONGEST)
            waited = 0.0 if events else waited + pause

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        pause, waited, is_over = 0.0, 0.0, False
        while not is_over and not (self._timeout is not None and waited > self._timeout):
            events, is_over = await arun(self._next(pause))
            for event in events:
                self.last = event.id
                yield event
            pause = 0.0 if events else min(max(2 * pause, _SHORTEST), _LONGEST)
            waited = 0.0 if events else waited + pause


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


class Runs(SyncApi, RunOperations):
    """The runs of a store: `store.runs`."""


class AsyncRuns(AsyncApi, RunOperations):
    """The runs of an `AsyncStore`: operations are awaited."""
