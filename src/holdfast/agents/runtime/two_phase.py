"""Changes of an agent in two phases: what is to come is saved, then it is done, then that it is done is saved.

A crash in the middle leaves a record that says what was under way. It is found at the next start, and resolved. Where
nothing is to be done in between, one step is enough: there is no middle.
"""

from __future__ import annotations

import time as clocks
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.agents.definition.callbacks import called
from holdfast.agents.definition.state_machine import ANY, Machine, Transition, bound
from holdfast.agents.runtime.change_block import undisturbed
from holdfast.agents.runtime.fair_lock import FairLock
from holdfast.agents.storage.record import STATUSES, AgentPosition, PendingChange, Status
from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.errors import ConflictError, CorruptError, InvalidError, VetoError

if TYPE_CHECKING:
    from holdfast.agents.runtime.persister import AgentPersister
    from holdfast.agents.runtime.recovery_report import Recovery

LIFECYCLE = Machine(*STATUSES)
"""The life of every agent. Its states are the statuses; its actions are methods that an agent may have."""

LIFECYCLE.add("start", ["created", "stopped", "failed"], "running", via="starting", action="on_start")
LIFECYCLE.add("pause", "running", "paused", via="pausing", action="on_pause")
LIFECYCLE.add("resume", "paused", "running", via="resuming", action="on_resume")
LIFECYCLE.add("stop", ["running", "paused", "failed", "created"], "stopped", via="stopping", action="on_stop")
LIFECYCLE.add("fail", ANY, "failed", action="on_fail")

_within: ContextVar[tuple[_Within, ...]] = ContextVar("holdfast_agents_within", default=())
"""The changes that what is done now is a part of."""


class _Within:
    """A change of an agent that is under way."""

    __slots__ = ("of", "over", "what")

    def __init__(self, of: Lifecycle, what: str) -> None:
        self.of = of
        self.what = what
        self.over = False


class TwoPhaseChange(NamedTuple):
    """What is to be done, and where the agent stands before, meanwhile and after."""

    pending: PendingChange
    action: Callable[[], Awaitable[Any]] | None
    meanwhile: AgentPosition
    after: AgentPosition
    failed: AgentPosition
    """Where it stands if the action raises an error."""


class UnsavedResult(NamedTuple):
    """A change whose action was done; that it was is yet to be saved."""

    change: TwoPhaseChange
    started: int
    begun: str


class Lifecycle:
    """The lifecycle of one agent, and the transitions of its machine. One change at a time, whoever asks for it."""

    def __init__(self, keeper: AgentPersister) -> None:
        self.keeper = keeper
        self.recoveries: list[Recovery] = []
        """What was found at starts, and what became of it."""
        self.ours = False
        """Whether it was this object that made the agent's status what it is; and not another one, which is gone."""
        self.done: UnsavedResult | None = None
        self._turns = FairLock()
        if keeper.spec.machine is not None:
            keeper.spec.machine.check(keeper.agent)

    def renew_locks(self) -> None:
        """For a forked child."""
        self._turns = FairLock()

    @property
    def where(self) -> str:
        """The agent, for errors."""
        return self.keeper.where

    @asynccontextmanager
    async def exclusive(self, what: str) -> AsyncIterator[None]:
        """No other change of the agent begins during this block. `InvalidError` from within a change of the same agent,
        which would wait for itself."""
        around = _within.get()
        for each in around:
            if each.of is self and not each.over:
                raise InvalidError(
                    f"{what} cannot begin within {each.what} of the same agent",
                    where=self.where,
                    hint="Have the action return first, and begin it afterwards",
                    code="nested-transition",
                )
        async with self._turns.turn():
            mine = _Within(self, what)
            _within.set((*around, mine))
            try:
                with undisturbed(self.keeper):
                    yield
            finally:
                mine.over = True  # for tasks that were started meanwhile, and go on
                _within.set(around)

    # Transitions ----------------------------------------------------------------------------------------------

    async def transition(self, trigger: str, data: Any = None) -> str:
        """Have the machine take a transition; returns the state that it led to."""
        if self.keeper.spec.machine is None:
            raise InvalidError("the agent has no machine", where=self.where)
        async with self.exclusive(f"the transition {trigger!r}"):
            await self.nothing_pending()
            way = await self._way(self.keeper.spec.machine, trigger, data)
            with trace_context.correlation() as correlation:
                pending = self._pending("transition", trigger, self.keeper.data.state, way.target, correlation, data)
                pending = marked(self.keeper.spec.machine, way, pending)
                await self.through(self.transiting(way, pending), "agent.transition")
            return way.target

    async def _way(self, machine: Machine, trigger: str, data: Any) -> Transition:
        state, agent = self.keeper.data.state, self.keeper.agent
        for way in machine.ways(trigger, state, self.where):
            if way.guard is None or await called(bound(way.guard, agent), data):
                for validator in way.validators:
                    await called(bound(validator, agent), data)
                return way
        raise VetoError(f"no guard lets {trigger!r} pass from the state {state!r}", where=self.where)

    def transiting(self, way: Transition, pending: PendingChange) -> TwoPhaseChange:
        """The change that a transition is."""
        machine, standing = self.keeper.spec.machine, self.keeper.data.standing
        assert machine is not None  # noqa: S101 - the transition is of it
        several = (machine.leave.get(pending.source), way.action, machine.enter.get(way.target))
        before = standing._replace(state=pending.source, pending=None)
        return TwoPhaseChange(
            pending,
            self._action([bound(each, self.keeper.agent) for each in several if each is not None], pending.data),
            before._replace(state=way.via or pending.source, pending=pending),
            before._replace(state=way.target),
            before,
        )

    def _action(self, several: Sequence[Callable[..., Any]], *args: Any) -> Callable[[], Awaitable[None]] | None:
        async def action() -> None:
            for each in several:
                await called(each, *args)

        return action if several else None

    # The lifecycle --------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Pause it, and save it."""
        async with self.exclusive("the pause"):
            await self.nothing_pending()
            await self.live("pause")

    async def stop(self) -> None:
        """Stop it, and save it."""
        async with self.exclusive("the stop"):
            await self.nothing_pending()
            await self.live("stop")

    async def fail(self, error: BaseException | str) -> None:
        """Say that it failed. That is saved first; then its `on_fail` is called. What is under way stays so, and is
        resolved at the next start."""
        async with self.exclusive("the failure"):
            data, text = self.keeper.data, error if isinstance(error, str) else _told(error)
            with trace_context.correlation() as correlation:
                pending = self._pending("lifecycle", "fail", data.status, "failed", correlation)
                before = await self._asked(pending, "agent.fail")
                event = self.event(pending, clocks.perf_counter_ns(), text)._replace(outcome="ok")
                standing = data.standing._replace(status="failed")
                point = await self.keeper.commit("lifecycle", [event, *before.events], standing=standing)
                before.done(self.keeper.version, point.id)
                self.ours = True
                hook = self.keeper.method("on_fail")
                if hook is not None:
                    await called(hook, error)

    async def live(self, trigger: str, *, also: bool = False) -> None:
        """Change the status. `also` where the status is what a recovery left it as."""
        status = self.keeper.data.status
        way = LIFECYCLE.ways(trigger, "stopped" if also else status, self.where)[0]
        with trace_context.correlation() as correlation:
            pending = self._pending("lifecycle", trigger, status, way.target, correlation)
            await self.through(self.living(way, pending), f"agent.{trigger}")
        self.ours = True

    def living(self, way: Transition, pending: PendingChange) -> TwoPhaseChange:
        """The change that one of the status is."""
        before = self.keeper.data.standing._replace(pending=None)
        hook = self.keeper.method(str(way.action))
        return TwoPhaseChange(
            pending,
            self._action([] if hook is None else [hook]),
            before._replace(status=status_of(way.via or way.source), pending=pending),
            before._replace(status=status_of(way.target)),
            before._replace(status="failed"),
        )

    async def settle(self) -> None:
        """Make sure of a step of which it is not known whether it was made."""
        async with self.keeper.turns.turn():
            await self.keeper.settle()

    # Two phases -----------------------------------------------------------------------------------------------

    async def through(self, change: TwoPhaseChange, hook: str, more: Sequence[Event] = ()) -> None:
        """First what is to come is saved, then it is done, then that it is done is saved.

        An error of the action is saved, too. Whatever else ends it, such as an interrupt, or a store that is down,
        leaves it under way, in memory as in the store.
        """
        started, self.done = clocks.perf_counter_ns(), None
        before = await self._asked(change.pending, hook)
        more, begun = [*more, *before.events], ""
        if change.action is not None:
            point = await self.keeper.commit(f"{change.pending.kind}.begin", more, standing=change.meanwhile)
            more, begun = (), point.id
            await self.act(change, started)
        await self.finish(UnsavedResult(change, started, begun), more)
        before.done(self.keeper.version, self.keeper.point.id if self.keeper.point is not None else "")

    async def act(self, change: TwoPhaseChange, started: int, more: Sequence[Event] = ()) -> None:
        """Do what is to be done on the way."""
        if change.action is None:
            return
        try:
            await change.action()
            self.keeper.fits(change.after.state, self.keeper.spec.persist(self.keeper.agent))
        except Exception as error:
            event = self.event(change.pending, started, _told(error))
            await self.keeper.commit(f"{change.pending.kind}.failed", [event, *more], standing=change.failed)
            raise

    async def finish(self, done: UnsavedResult, more: Sequence[Event] = ()) -> None:
        """Save that it is done."""
        change = done.change
        if change.action is not None:
            self.done = done
        event = self.event(change.pending, done.started, begun=done.begun)
        await self.keeper.commit(change.pending.kind, [event, *more], standing=change.after)
        self.done = None

    def event(self, pending: PendingChange, started: int, error: str = "", begun: str = "") -> Event:
        """The row that tells of a change."""
        detail: dict[str, Any] = {"from": pending.source, "to": pending.target, "data": pending.data}
        if error:
            detail["error"] = error
        if begun:
            detail["begun"] = begun
        handle = self.keeper.line.handle
        return Event(
            pending.kind,
            handle.guard.actor,
            pending.trigger,
            f"{pending.source} → {pending.target}",
            "error" if error else "ok",
            clocks.perf_counter_ns() - started,
            handle.codec.pack(detail),
        )

    async def _asked(self, pending: PendingChange, hook: str) -> Any:
        about = {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        return await self.keeper.asked(hook, **about)

    def _pending(
        self, kind: str, trigger: str, source: str, target: str, correlation: str, data: Any = None
    ) -> PendingChange:
        return PendingChange(kind, trigger, source, target, self.keeper.now(), correlation, data=data)

    async def nothing_pending(self) -> None:
        """`ConflictError` if something is half-done."""
        doubtful = self.keeper.doubtful
        if doubtful is not None and doubtful.redo is not None:
            await self.settle()  # it may have been handed something
        pending = self.keeper.data.pending
        if pending is not None:
            raise incomplete(pending, self.where, "Have it resolved first: recover(), or the next start, does that")


def marked(machine: Machine, way: Transition, pending: PendingChange) -> PendingChange:
    """The same; it says which way it is, where guards chose it before others that lead to the same state."""
    number = _alike(machine, pending).index(way)
    return pending if number == 0 else replace(pending, phase=f"{pending.phase} {number}")


def way_of(machine: Machine, pending: PendingChange) -> Transition | None:
    """The transition that is under way, if it is still declared."""
    alike, number = _alike(machine, pending), pending.phase.rpartition(" ")[2]
    place = int(number) if number.isdecimal() else 0
    return alike[place] if place < len(alike) else None


def _alike(machine: Machine, pending: PendingChange) -> list[Transition]:
    try:
        ways = machine.ways(pending.trigger, pending.source)
    except InvalidError:
        return []
    return [way for way in ways if way.target == pending.target]


def incomplete(pending: PendingChange, where: str, hint: str) -> ConflictError:
    """The error for what cannot be done while something else is half-done."""
    return ConflictError(
        f"the {pending.kind} {pending.trigger!r}, from {pending.source} to {pending.target}, is half-done",
        where=where,
        hint=hint,
        code="transition-incomplete",
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def status_of(name: str) -> Status:
    """The status of that name. `CorruptError` if there is none."""
    for status in STATUSES:
        if status == name:
            return status
    raise CorruptError(f"there is no status {name!r}", hint="Resolve it by hand, or roll the agent back")
