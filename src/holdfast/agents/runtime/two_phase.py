"""Change an agent in two phases: save the intent, run the action, then save that it is done.

A crash in the middle leaves a record of what was under way. It is found at the next start, and resolved. A change
without an action takes one step: it has no middle.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast._fields import Local
from holdfast.agents.definition.spec import Spec
from holdfast.agents.definition.state_machine import ANY, Machine, Transition, bind, invoke
from holdfast.agents.runtime.autosave import TrackedAgent, suspend_autosave
from holdfast.agents.runtime.data import Attempt, SavedState
from holdfast.agents.runtime.field_schema import FieldSchema
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import STATUSES, AgentPosition, PendingChange, Status, error_text
from holdfast.backends.runtime.fair_lock import FairLock
from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, VetoError
from holdfast.hooks.feature_hooks import FeatureHooks
from holdfast.recording.journal import RecordMode, TaskJournal, current_journal

LIFECYCLE = Machine(*STATUSES)
"""The lifecycle of every agent. Its states are the statuses; its actions are methods that an agent may have."""

LIFECYCLE.add("start", ["created", "stopped", "failed"], "running", via="starting", action="on_start")
LIFECYCLE.add("pause", "running", "paused", via="pausing", action="on_pause")
LIFECYCLE.add("resume", "paused", "running", via="resuming", action="on_resume")
LIFECYCLE.add("stop", ["running", "paused", "failed", "created"], "stopped", via="stopping", action="on_stop")
LIFECYCLE.add("fail", ANY, "failed", action="on_fail")

_active_changes: ContextVar[tuple[_ActiveChange, ...]] = ContextVar("holdfast_agents_active_changes", default=())
"""The changes that the running code is part of."""


class _ActiveChange:
    """A change of an agent that is under way."""

    __slots__ = ("description", "ended", "lifecycle")

    def __init__(self, lifecycle: Lifecycle, description: str) -> None:
        self.lifecycle = lifecycle
        self.description = description
        self.ended = False


class _Refusal:
    """Where a transition would have led that is refused."""

    def __init__(self, target: str) -> None:
        self.target = target


class TwoPhaseChange(NamedTuple):
    """An action, and the position of the agent during it, after it, and after its failure."""

    pending: PendingChange
    action: Callable[[], Awaitable[Any]] | None
    during: AgentPosition
    after: AgentPosition
    failed: AgentPosition
    """The position if the action raises an error."""


class UnsavedResult(NamedTuple):
    """A change whose action is done, which is still to be saved."""

    change: TwoPhaseChange
    started: int
    begin_step: str


class PhasedAgent(TrackedAgent, Protocol):
    """An agent that can be changed in two phases: an `AgentPersister`."""

    agent: Any
    spec: Spec
    schema: FieldSchema
    save_lock: FairLock
    uncertain_attempt: Attempt | None
    refusal_uncertain: bool

    @property
    def where(self) -> str: ...
    def find_method(self, name: str) -> Callable[..., Any] | None: ...
    def now(self) -> datetime: ...
    async def commit(self, kind: str, events: Sequence[Event], *, position: AgentPosition | None = None) -> StepRef: ...
    async def call_hooks(self, hook: str, **details: Any) -> FeatureHooks: ...
    async def resolve_uncertain(self) -> bool: ...
    def saved_state(self) -> SavedState: ...
    async def revert(self, saved: SavedState) -> None: ...


def make_save_lock() -> FairLock:
    """Make a lock for saving an agent, which an agent's own code must not do while it is being saved."""
    return FairLock(
        "the agent is already being saved by the caller",
        hint="Do not save an agent in its persist, restore or validate, nor in its conflict resolver",
    )


class Lifecycle:
    """The lifecycle of one agent, and the transitions of its machine: one change at a time, whoever requests it."""

    def __init__(self, persister: PhasedAgent) -> None:
        self.persister = persister
        self.recoveries: list[Recovery] = []
        """The changes that were found half-done at starts, and how they were resolved."""
        self.owns_status: bool = False
        """Whether this object set the agent's status, and not a process that is gone."""
        self.step_line: Any = None
        """The `StepLine` of its durable steps, once it was used."""
        self.reached_steps: set[str] = set()
        """The records of durable steps, sleeps and waits that this process has come to."""
        self.recorded_steps: frozenset[str] | None = None
        """The records of durable steps that earlier processes left, as this one found them at its first new step."""
        self.has_reported_unused = False
        self.line_columns: tuple[Any, ...] | None = None
        """The row of the agent's line, as its durable steps last found it."""
        self.unsaved_result: UnsavedResult | None = None
        self._lock = make_save_lock()
        if persister.spec.machine is not None:
            persister.spec.machine.check(persister.agent)

    def reinit_locks(self) -> None:
        """Reset after a fork."""
        self._lock = make_save_lock()

    @property
    def where(self) -> str:
        """The agent's name for errors."""
        return self.persister.where

    @asynccontextmanager
    async def exclusive(self, description: str) -> AsyncIterator[None]:
        """Let no other change of the agent begin during this block. Raises `InvalidError` inside a change of the same
        agent, which would wait for itself."""
        outer = _active_changes.get()
        for each in outer:
            if each.lifecycle is self and not each.ended:
                raise InvalidError(
                    f"{description} cannot begin within {each.description} of the same agent",
                    where=self.where,
                    hint="Return from the action first, and begin it afterwards",
                    code="nested-transition",
                )
        async with self._lock.acquire():
            change = _ActiveChange(self, description)
            _active_changes.set((*outer, change))
            try:
                with suspend_autosave(self.persister):
                    yield
            finally:
                change.ended = True  # for tasks that were started in the block, and outlive it
                _active_changes.set(outer)

    # Transitions ----------------------------------------------------------------------------------------------

    async def transition(self, trigger: str, data: Any = None) -> str:
        """Take a transition of the machine, and return the state that it led to."""
        if self.persister.spec.machine is None:
            raise InvalidError("the agent has no machine", where=self.where)
        async with self.exclusive(f"the transition {trigger!r}"):
            await self.require_nothing_pending()
            started, state = perf_counter_ns(), self.persister.data.state
            with trace_context.correlation() as correlation:
                pending = self._pending_change("transition", trigger, state, "", correlation, data)
                async with self._recorded_refusal(pending, started) as refusal:
                    transition = await self._choose(self.persister.spec.machine, trigger, data, refusal)
                pending = replace(pending, target=transition.target)
                pending = _with_alternative(self.persister.spec.machine, transition, pending)
                await self.run(self.plan_transition(transition, pending), "agent.transition")
            return transition.target

    async def _choose(self, machine: Machine, trigger: str, data: Any, refusal: _Refusal) -> Transition:
        state, agent = self.persister.data.state, self.persister.agent
        for transition in machine.transitions_for(trigger, state, self.where):
            refusal.target = refusal.target or transition.target
            if transition.guard is None or await invoke(bind(transition.guard, agent), data):
                refusal.target = transition.target
                for validator in transition.validators:
                    await invoke(bind(validator, agent), data)
                return transition
        raise VetoError(f"no guard allows {trigger!r} from the state {state!r}", where=self.where)

    @asynccontextmanager
    async def _recorded_refusal(self, pending: PendingChange, started: int) -> AsyncIterator[_Refusal]:
        """Record a transition that an error in this block refuses, and count it."""
        refusal = _Refusal(pending.target)
        try:
            yield refusal
        except Exception as error:
            try:
                event = self.build_event(replace(pending, target=refusal.target), started, error_text(error))
                await self.record_refusal(event)
            except HoldfastError as failure:  # the refusal counts, and tells of it
                error.add_note(f"And that could not be recorded: {failure}")
            raise

    async def record_refusal(self, event: Event) -> StepRef | None:
        """Record a transition that was refused, and count it. Returns the step; None if the agent was never saved."""
        persister = self.persister
        persister.statistics.add(refused=1)
        async with persister.save_lock.acquire():
            await persister.resolve_uncertain()
            persister.refusal_uncertain = True
            recorded = await persister.line.record_refusal(event, persister.point)
            persister.refusal_uncertain = False
            if recorded is None:
                return None
            before, point = recorded
            persister.statistics.add(failed_transitions=1)
            if persister.point is not None and persister.point.id == before.id:
                persister.point = point
            return point

    def plan_transition(self, transition: Transition, pending: PendingChange) -> TwoPhaseChange:
        """Plan the change that a transition makes."""
        machine, position = self.persister.spec.machine, self.persister.data.position
        assert machine is not None  # noqa: S101 - the transition belongs to it
        callbacks = (machine.leave.get(pending.source), transition.action, machine.enter.get(transition.target))
        before = position._replace(state=pending.source, pending=None)
        return TwoPhaseChange(
            pending,
            self._action([bind(each, self.persister.agent) for each in callbacks if each is not None], pending.data),
            before._replace(state=transition.via or pending.source, pending=pending),
            before._replace(state=transition.target),
            before,
        )

    def _action(self, callbacks: Sequence[Callable[..., Any]], *args: Any) -> Callable[[], Awaitable[None]] | None:
        async def action() -> None:
            for each in callbacks:
                await invoke(each, *args)

        return action if callbacks else None

    # The lifecycle --------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Pause the agent, and save it."""
        async with self.exclusive("the pause"):
            await self.require_nothing_pending()
            await self.change_status("pause")

    async def stop(self) -> None:
        """Stop the agent, and save it."""
        async with self.exclusive("the stop"):
            await self.require_nothing_pending()
            await self.change_status("stop")

    async def fail(self, error: BaseException | str) -> None:
        """Save that the agent failed, then call its `on_fail`. A change that is under way stays so, and is resolved at
        the next start."""
        async with self.exclusive("the failure"):
            data, text = self.persister.data, error if isinstance(error, str) else error_text(error)
            with trace_context.correlation() as correlation:
                pending = self._pending_change("lifecycle", "fail", data.status, "failed", correlation)
                hooks = await self._call_hooks(pending, "agent.fail")
                event = self.build_event(pending, perf_counter_ns(), text)._replace(outcome="ok")
                position = data.position._replace(status="failed")
                point = await self.persister.commit("lifecycle", [event, *hooks.events], position=position)
                hooks.call_after(self.persister.version, point.id)
                self.owns_status = True
                on_fail = self.persister.find_method("on_fail")
                if on_fail is not None:
                    await invoke(on_fail, error)

    async def change_status(self, trigger: str, *, after_recovery: bool = False) -> None:
        """Change the status, which may be one that a recovery left."""
        status = self.persister.data.status
        transition = LIFECYCLE.transitions_for(trigger, "stopped" if after_recovery else status, self.where)[0]
        with trace_context.correlation() as correlation:
            pending = self._pending_change("lifecycle", trigger, status, transition.target, correlation)
            await self.run(self.plan_status_change(transition, pending), f"agent.{trigger}")
        self.owns_status = True

    def plan_status_change(self, transition: Transition, pending: PendingChange) -> TwoPhaseChange:
        """Plan the change that a transition of the lifecycle makes."""
        before = self.persister.data.position._replace(pending=None)
        method = self.persister.find_method(str(transition.action))
        return TwoPhaseChange(
            pending,
            self._action([] if method is None else [method]),
            before._replace(status=parse_status(transition.via or transition.source), pending=pending),
            before._replace(status=parse_status(transition.target)),
            before._replace(status="failed"),
        )

    async def resolve_uncertain(self) -> None:
        """Find out whether a step was saved of which that is uncertain."""
        async with self.persister.save_lock.acquire():
            await self.persister.resolve_uncertain()

    async def report_recovery(self, recovery: Recovery) -> None:
        """Add a recovery to the list, and pass it to the agent's own handler."""
        self.recoveries.append(recovery)
        handler = self.persister.find_method("handle_recovery")
        if handler is not None:
            await invoke(handler, recovery)

    # Two phases -----------------------------------------------------------------------------------------------

    async def run(self, change: TwoPhaseChange, hook: str) -> None:
        """Save the intent, run the action, and save that it is done.

        An error of the action is saved, too. Anything else that ends it, such as an interrupt or an unavailable store,
        leaves the change under way, in memory as in the store.
        """
        started, self.unsaved_result = perf_counter_ns(), None
        if change.pending.kind == "transition":
            async with self._recorded_refusal(change.pending, started):
                hooks = await self._call_hooks(change.pending, hook)
                if change.action is None:
                    self._check_state(change.after.state)
        else:
            hooks = await self._call_hooks(change.pending, hook)
        events, begin_step = hooks.events, ""
        if change.action is not None:
            point = await self.persister.commit(f"{change.pending.kind}.begin", events, position=change.during)
            events, begin_step = [], point.id
            await self.run_action(change, started)
        await self.finish(UnsavedResult(change, started, begin_step), events)
        hooks.call_after(self.persister.version, self.persister.point.id if self.persister.point is not None else "")

    async def run_action(self, change: TwoPhaseChange, started: int, events: Sequence[Event] = ()) -> None:
        """Run the action of a change. If it fails, the agent is as it was before the action, and that is saved."""
        if change.action is None:
            return
        saved, is_done = self.persister.saved_state(), False
        try:
            await self._run_recorded(change.pending, change.action)
            is_done = True
            self._check_state(change.after.state)
        except Exception as error:
            self.persister.statistics.add(refused=is_done and change.pending.kind == "transition")
            await self.persister.revert(saved)
            event = self.build_event(change.pending, started, error_text(error))
            await self.persister.commit(f"{change.pending.kind}.failed", [event, *events], position=change.failed)
            raise

    def _check_state(self, state: str) -> None:
        """Raise an error if the agent cannot be in a state as it is."""
        self.persister.schema.check_valid(state, self.persister.spec.persist(self.persister.agent))

    async def _run_recorded(self, pending: PendingChange, action: Callable[[], Awaitable[None]]) -> None:
        """Run an action, and record what it calls, if that is wanted."""
        persister = self.persister
        record = persister.options.record
        if record is False or persister.point is None:
            return await action()
        version, point = persister.version, persister.point
        journal = TaskJournal(f"{version}:{pending.trigger}", version)
        before = current_journal.set(journal)
        error = ""
        try:
            await action()
        except BaseException as raised:
            error = error_text(raised)
            raise
        finally:
            current_journal.reset(before)
            mode: RecordMode = "full" if record is True else record
            await persister.line.put_recorded(point, pending.trigger, pending.data, journal, error, mode)

    async def finish(self, result: UnsavedResult, events: Sequence[Event] = ()) -> None:
        """Save that a change is done."""
        change = result.change
        if change.action is not None:
            self.unsaved_result = result
        event = self.build_event(change.pending, result.started, begin_step=result.begin_step)
        await self.persister.commit(change.pending.kind, [event, *events], position=change.after)
        self.unsaved_result = None

    def build_event(self, pending: PendingChange, started: int, error: str = "", begin_step: str = "") -> Event:
        """Build the event that records a change."""
        detail = ({"error": error} if error else {}) | ({"begun": begin_step} if begin_step else {})
        return change_event(self.persister.line, pending, detail, perf_counter_ns() - started)

    async def _call_hooks(self, pending: PendingChange, hook: str) -> FeatureHooks:
        details = {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        return await self.persister.call_hooks(hook, **details)

    def _pending_change(
        self, kind: str, trigger: str, source: str, target: str, correlation: str, data: Any = None
    ) -> PendingChange:
        return PendingChange(kind, trigger, source, target, self.persister.now(), correlation, data=data)

    async def require_nothing_pending(self) -> None:
        """Raise `ConflictError` if something is half-done."""
        attempt = self.persister.uncertain_attempt
        if attempt is not None and attempt.redo is not None:
            await self.resolve_uncertain()  # the agent may have received a transfer
        pending = self.persister.data.pending
        if pending is not None:
            raise incomplete_error(
                pending, self.where, "Have it resolved first: recover(), or the next start, does that"
            )


def _with_alternative(machine: Machine, transition: Transition, pending: PendingChange) -> PendingChange:
    """Record which transition was chosen, where guards chose it before others that lead to the same state."""
    number = _alternatives(machine, pending).index(transition)
    return pending if number == 0 else replace(pending, phase=f"{pending.phase} {number}")


def find_transition(machine: Machine, pending: PendingChange) -> Transition | None:
    """Return the transition that is under way, if it is still declared."""
    alternatives, number = _alternatives(machine, pending), pending.phase.rpartition(" ")[2]
    index = int(number) if number.isdecimal() else 0
    return alternatives[index] if index < len(alternatives) else None


def _alternatives(machine: Machine, pending: PendingChange) -> list[Transition]:
    try:
        transitions = machine.transitions_for(pending.trigger, pending.source)
    except InvalidError:
        return []
    return [each for each in transitions if each.target == pending.target]


def change_event(line: AgentLine, pending: PendingChange, detail: Mapping[str, Any], duration: int = 0) -> Event:
    """Build the event that records the outcome of a change: an error, if the details have one."""
    return Event(
        pending.kind,
        line.handle.guard.actor,
        pending.trigger,
        f"{pending.source} → {pending.target}",
        "error" if "error" in detail else "ok",
        duration,
        line.handle.codec.pack({"from": pending.source, "to": pending.target, "data": pending.data, **detail}),
    )


def incomplete_error(pending: PendingChange, where: str, hint: str) -> ConflictError:
    """Build the error for a change that is refused while another is half-done."""
    return ConflictError(
        f"the {pending.kind} {pending.trigger!r}, from {pending.source} to {pending.target}, is incomplete",
        where=where,
        hint=hint,
        code="transition-incomplete",
    )


def parse_status(name: str) -> Status:
    """Return the status of a name. Raises `CorruptError` if there is none."""
    for status in STATUSES:
        if status == name:
            return status
    raise CorruptError(f"there is no status {name!r}", hint="Resolve it by hand, or roll the agent back")


RecoveryKind: TypeAlias = Literal["crashed", "transition", "lifecycle", "transfer", "fell-back"]


class Recovery(msgspec.Struct, frozen=True):
    """Something that was found half-done, and how it was resolved."""

    agent: str
    """The id of the agent."""
    kind: RecoveryKind
    """`crashed`: the record says that the agent is running, and no process runs it. `transition`, `lifecycle` and
    `transfer`: such a change was under way. `fell-back`: the newest state could not be read."""
    resolved: Literal["back", "forward", "none"]
    """Whether the change was undone (`back`) or finished (`forward`); `none` where there was nothing to resolve."""
    time: datetime
    """When it was resolved."""
    since: datetime
    """When the change had begun; or when the agent was last saved."""
    version: int
    """The version of the agent that was found."""
    pending: Local[PendingChange | None] = None
    """The change that was under way."""
    ran: bool = False
    """Whether the action was run, or is known to have ended. If this is false for a finished change, the change was
    finished without its action."""
    lost: tuple[str, ...] = ()
    """The ids of steps that could not be read, the newest first."""

    def __str__(self) -> str:
        if self.pending is None:
            return f"agent {self.agent!r}: {self.kind}, since {self.since.isoformat(timespec='seconds')}"
        pending = self.pending
        how = {"back": "undone", "forward": "finished", "none": "left"}[self.resolved]
        how += ", without its action" if self.resolved == "forward" and not self.ran else ""
        return f"agent {self.agent!r}: {pending.kind} {pending.trigger!r} {pending.source} → {pending.target}: {how}"


def recovery_event(line: AgentLine, recovery: Recovery) -> Event:
    """Build the event that records a recovery."""
    pending = recovery.pending
    detail: dict[str, Any] = {"since": recovery.since, "version": recovery.version, "ran": recovery.ran}
    if pending is not None:
        detail |= {"trigger": pending.trigger, "from": pending.source, "to": pending.target, "data": pending.data}
        detail |= {"correlation": pending.correlation}
    if recovery.lost:
        detail["lost"] = list(recovery.lost)
    guard, pack = line.handle.guard, line.handle.codec.pack
    return Event("recovery", guard.actor, recovery.kind, line.id, recovery.resolved, detail=pack(detail))


def recovery_kind(pending: PendingChange) -> RecoveryKind:
    """Return the kind of recovery that a pending change takes."""
    return {"transition": "transition", "transfer": "transfer"}.get(pending.kind, "lifecycle")  # type: ignore[return-value]
