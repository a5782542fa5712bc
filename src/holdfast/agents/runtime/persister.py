"""A keeper: does the durable work for one live agent.

All of it is coroutines of the engine's kind. What programs call is in `holdfast.agents.api`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.spec import Spec
from holdfast.agents.runtime.autosave import AutosaveWorker, metrics_of
from holdfast.agents.runtime.data import AgentData, Attempt, CapturedState
from holdfast.agents.runtime.dirty_tracker import DirtyTracker, SaveTimer
from holdfast.agents.runtime.fair_lock import FairLock
from holdfast.agents.runtime.message_buffer import UnsavedMessages
from holdfast.agents.runtime.metrics import AgentMetrics, SaveStatistics
from holdfast.agents.runtime.two_phase import Lifecycle
from holdfast.agents.storage.agent_line import AgentLine, Delta
from holdfast.agents.storage.conflicts import Sides, resolved
from holdfast.agents.storage.record import PENDING, AgentPosition, AgentRecord, PendingChange
from holdfast.backends.runtime.drivers import Pause, run
from holdfast.engine import trace_context, validation
from holdfast.engine.events import Event
from holdfast.engine.guard import Permit
from holdfast.engine.ids import new_id
from holdfast.engine.model.diff import diff
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operations import Set
from holdfast.engine.model.packed_state import Packed, flatten, pack_name, pack_state, unpack_name, unpack_state
from holdfast.engine.rng import chance
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, HoldfastError, InvalidError, OutcomeUnknownError, UnavailableError
from holdfast.hooks.feature_hooks import FeatureHooks, calling

_ATTEMPTS = 1000
"""How often a save is made anew because others were first. Each time, somebody else got through."""

_LONGEST_PAUSE = 0.05

_METADATA = pack_name("metadata")

_DICTS = ("configuration", "context", "tools", "workflow", "metadata")
"""What an agent carries that are dicts."""


class AgentPersister:
    """Saves one agent, and brings it back."""

    def __init__(
        self, line: AgentLine, agent: Any, spec: Spec, data: AgentData, settings: AgentOptions | None = None
    ) -> None:
        self.line = line
        self.agent = agent
        self.spec = spec
        self.data = data
        self.settings = settings or spec.settings
        self.point: StepRef | None = None
        """The step that the agent goes on from."""
        self.lock = threading.RLock()
        """Held while the state is taken, and while something that belongs together is changed."""
        self.turns = FairLock()
        """Who saves has its turn: for others, steps of this agent come one after the other."""
        self.doubtful: Attempt | None = None
        """A step of which it is not known whether it was made. It is made sure of before anything else is saved."""
        self.phases = Lifecycle(self)
        self.saver = AutosaveWorker.of(line.handle.engine)
        self.figures = SaveStatistics(self.saver.figures)
        """How saving goes."""
        self.watch: DirtyTracker | None = None
        """What has it saved by itself, if that is wanted."""
        self.held = 0
        """More than 0 while nothing is to be saved in the background. Changed under the lock."""
        self.committer = 0
        """The thread that makes a step just now."""
        self.error: BaseException | None = None
        """What the last save failed with."""
        self._sent: dict[bytes, Packed] = {}
        self._spoken: tuple[int, int, list[bytes]] = (0, 0, [])
        data.conversation.check = line.handle.codec.pack_items
        count = self.method("count_tokens")
        if count is not None:
            data.conversation.count_by(count)
        if not data.state and spec.machine is not None:
            data.state = spec.machine.initial
        self.saver.joined(self)

    def autosave(self, *, sync: bool) -> None:
        """Have it saved by itself, if its settings say so."""
        if self.settings.autosave is not None:
            self.watch = DirtyTracker(self, self.settings.autosave, self.saver, sync=sync)
            self.data.conversation.on_change = self.changed

    def changed(self, count: int = 1) -> None:
        """Something was changed. Where every change is to be safe at once and the caller can wait, it is when this
        returns."""
        watch = self.watch
        if watch is not None:
            watch.changed(count)
            if self.held or self.committer == threading.get_ident():
                return
            if watch.waits:
                run(self.save(if_changed=True))
            elif watch.resolves:
                with suppress(HoldfastError):  # it is told of by `error`, and by the next save of the program
                    run(self.save(if_changed=True))

    def metrics(self) -> AgentMetrics:
        """How saving goes."""
        return metrics_of(self)

    def renew_locks(self) -> None:
        """For a forked child."""
        self.lock, self.turns = threading.RLock(), FairLock()
        self.phases.renew_locks()
        self.figures.renew_locks()
        if self.watch is not None:
            self.watch.renew_locks()

    def method(self, name: str) -> Callable[..., Any] | None:
        """What the agent's author wrote under a name, such as `on_start`; None if there is nothing."""
        return self.spec.method(self.agent, name)

    @property
    def version(self) -> int:
        """How many steps the agent has had; 0 if it was never saved."""
        return 0 if self.point is None else self.point.depth + 1

    # Saving and loading ---------------------------------------------------------------------------------------

    def take(self) -> CapturedState:
        """The agent's state as it is now, and what of it differs from what was saved. `InvalidError` if it is none that
        the agent's own `validate` lets pass."""
        with self.lock:
            mark = 0 if self.watch is None else self.watch.taken()
            said = self.data.conversation.unsaved()
            packed = self._packed(said)
            added = [*self._pack_messages(said), *said.given]
            standing = self.data.standing
        delta = Delta(kept=said.kept, added=added)
        if said.whole or (added and not said.kept):
            delta.messages, delta.added = list(added), ()
        for name, value in packed.items():
            change = diff(self._sent[name], value) if name in self._sent else Set(flatten(value))
            if change is not None:
                delta.put[unpack_name(name)] = change
        delta.removed = [unpack_name(name) for name in self._sent if name not in packed]
        return CapturedState(delta, packed, said, standing, mark)

    def _pack_messages(self, said: UnsavedMessages) -> list[bytes]:
        """The messages that are to be added. Those that were packed for a save that failed are not packed again: a
        store that is down for long would have ever more of it done. The lock is held."""
        epoch, kept, known = self._spoken
        if (epoch, kept) != (said.epoch, said.kept) or len(known) > len(said.added):
            known = []
        known = [*known, *self.line.handle.codec.pack_items(said.added[len(known) :])]
        self._spoken = said.epoch, said.kept, known
        return known

    def _packed(self, said: UnsavedMessages) -> dict[bytes, Packed]:
        """All channels but the conversation. The lock is held."""
        data = self.data
        if data.created is None:
            data.created = to_datetime(self.line.handle.now())
        fields = {**data.carried, **self.spec.persist(self.agent)}
        self.fits(data.state, fields)
        state = {
            "class": self.spec.name,
            "schema": self.spec.schema,
            "created": data.created,
            "status": data.status,
            "state": data.state,
            "configuration": data.configuration,
            "fields": fields,
            "context": data.context,
            "tools": data.tools,
            "workflow": data.workflow,
            "metadata": data.metadata,
            "counts": {"messages": said.length, "tokens": said.tokens},
        }
        if data.pending is not None:
            state[PENDING] = data.pending.to_dict()
        return pack_state(self.line.handle.codec, state)

    def fits(self, state: str, fields: Mapping[str, Any]) -> None:
        """`InvalidError` if the agent, or its machine, says something against a state and these fields."""
        own = self.method("validate")
        try:
            found = None if own is None else own(fields)
            if self.spec.machine is not None:
                self.spec.machine.validate(state, self.agent, fields)
        except HoldfastError:
            raise
        except Exception as error:
            raise InvalidError(
                str(error) or type(error).__name__,
                where=self.where,
                hint="The agent's own validate refuses this state; the record is as it was",
                code="agent-invalid",
            ) from error
        if inspect.iscoroutine(found):
            found.close()
            raise InvalidError("validate is a plain function, also of an agent for asyncio", where=self.where)

    @property
    def where(self) -> str:
        """How errors name the agent."""
        return f"agent {self.line.id!r}"

    async def save(self, kind: str = "save", *, if_changed: bool = False, background: bool = False) -> StepRef:
        """Save the agent as it is. In the background raises `AgentBusy`, if it is in the middle of something."""
        event = self.event("agent", "autosave" if background else "save")
        return await self.commit(kind, [event], hook="agent.save", if_changed=if_changed, background=background)

    async def commit(
        self,
        kind: str,
        events: Sequence[Event],
        *,
        hook: str = "",
        if_changed: bool = False,
        standing: AgentPosition | None = None,
        background: bool = False,
    ) -> StepRef:
        """A step of the agent. If it is to stand elsewhere, it does by that step, or not at all: no other step of it
        comes in between."""
        async with self.turns.turn():
            with SaveTimer(self):
                await self.settle()
                before = self.data.standing
                if standing is not None:
                    self._stand(standing)
                try:
                    return await self._committed(kind, events, hook, if_changed, background, moves=standing is not None)
                except BaseException:
                    if standing is not None:
                        self._stand(before)
                    raise

    def _stand(self, standing: AgentPosition) -> None:
        with self.lock:
            self.data.standing = standing

    async def _committed(
        self, kind: str, events: Sequence[Event], hook: str, if_changed: bool, background: bool, *, moves: bool
    ) -> StepRef:
        permit = await self.line.allow("write")
        before = await self.asked(hook)
        told = [*events, *before.events]
        for attempt in range(_ATTEMPTS):
            if attempt > 1:
                await Pause(chance.random() * min(_LONGEST_PAUSE, 0.001 * attempt))
            taken = self.watch.take() if background and self.watch is not None else self.take()
            if if_changed and not taken.delta and self.point is not None:
                self.figures.add(unchanged=1)
                if self.watch is not None:
                    self.watch.saved(taken.mark)
                return self.point
            try:
                (point,) = await self.sent(self.attempt(kind, taken, told, permit))
            except ConflictError as conflict:
                if not moves and await self.settle():
                    continue  # it was one's own step, which came only now
                if background and self.watch is not None and self.watch.sync:
                    raise  # what the agent does just now, in its own thread, would be lost
                await self._resolve(conflict)
                continue
            before.done(self.version, point.id)
            return point
        raise ConflictError(
            f"others were first {_ATTEMPTS} times", where=self.where, hint="Try again later", code="agent-conflict"
        )

    def attempt(
        self,
        kind: str,
        taken: CapturedState,
        events: Sequence[Event],
        permit: Permit,
        instead_of: StepRef | None = None,
    ) -> Attempt:
        """A step, with an id of its own: it can be tried again without being made twice."""
        line, parent = self.line, self.point
        about = line.about(self.spec.name, taken.standing, taken.said.length, taken.packed[_METADATA])
        after = max("" if parent is None else parent.id, "" if instead_of is None else instead_of.id)
        id = new_id(line.handle.now(), after)
        return Attempt(line.saving(kind, taken.delta, parent, about, events, permit, id, instead_of), taken, events)

    async def sent(self, attempt: Attempt, *others: Attempt) -> list[StepRef]:
        """Have steps made, all or none: the first is this agent's, and others are of other agents, whose keepers are to
        be told by `saved`. Where it is not known whether they were made, that is made sure of by the next one."""
        try:
            points = await self.line.save(attempt.saving, *(each.saving for each in others))
        except BaseException as error:
            if not others and (
                isinstance(error, OutcomeUnknownError | UnavailableError) or not isinstance(error, HoldfastError)
            ):
                before = self.doubtful
                shared = before is not None and before.redo is not None
                self.doubtful = attempt._replace(earlier=before) if shared else attempt
            raise
        self.saved(attempt, points[0])
        return points

    def saved(self, attempt: Attempt, point: StepRef) -> None:
        """The step was made."""
        self.point, self._sent, self.doubtful = point, attempt.taken.packed, None
        self._spoken = (0, 0, [])
        self.data.conversation.saved(attempt.taken.said)
        self.figures.made(attempt.events)
        if self.watch is not None:
            self.watch.made(attempt.taken.mark)

    async def settle(self) -> bool:
        """Make sure of a step of which it is not known whether it was made: it is made by now, or cannot be any more.
        Returns whether it was, if there was one; the agent then stands where that step has it. For who has the turn."""
        attempt = self.doubtful
        if attempt is None:
            return False
        if attempt.redo is not None:
            return await self._settle_shared(attempt, attempt.redo)
        try:
            await self.sent(attempt)
        except ConflictError:
            self.doubtful = attempt.earlier  # another was first; or that one
            return await self.settle()
        self._stand(attempt.taken.standing)
        return True

    async def _settle_shared(self, attempt: Attempt, redo: Callable[[], bool]) -> bool:
        """The same for a step that was to be made together with another agent's. It is not tried again: if it is not
        there, whatever is saved next takes its place, or finds that it came after all."""
        newest = await self.line.newest()
        if newest is None or newest.id != attempt.saving.id:
            return False
        self.doubtful = None
        if not redo():
            return False
        self.saved(attempt, newest)
        return True

    async def _resolve(self, conflict: ConflictError) -> None:
        """Bring what another has saved together with what was to be saved, as was agreed; else raise the conflict."""
        how, base, line = self.settings.on_conflict, self.point, self.line
        newest = await line.newest()
        if how == "refuse" or base is None or newest is None or newest.id == base.id:
            raise conflict
        await line.allow("read")
        theirs = await line.channels(newest)
        record = await line.record(newest, theirs)
        self._check_class(record)
        if not await line.follows(newest, base):
            raise conflict  # it was deleted and made anew: there is nothing that both sides started from
        with self.lock:
            said = self.data.conversation.unsaved()
            sides = Sides(self._sent, self._packed(said), theirs)
            if said.whole and how != "last-write" and record.messages != said.kept:
                raise conflict
            state = resolved(line.handle.codec, how, sides, self.where)
            self.fits(state["state"], state["fields"])
            if how != "last-write":
                self._take_on(state)
            else:
                self.data.standing = AgentPosition(state["status"], state["state"], self._pending(state))
            # Last: an agent that could not take it on does not go on from there.
            self.point, self._sent = newest, theirs
            if not said.whole:  # messages of both sides are kept in any case
                self.data.conversation.rebase(record.messages, record.tokens, self.messages)

    def _take_on(self, state: Mapping[str, Any]) -> None:
        """Be as channels say. The lock is held. The author's own code comes first: if it raises, nothing else is
        changed."""
        data, pending = self.data, self._pending(state)
        carried = self.spec.restore(self.agent, state["fields"])
        data.configuration, data.context, data.tools = (dict(state[name]) for name in _DICTS[:3])
        data.workflow, data.metadata = (dict(state[name]) for name in _DICTS[3:])
        data.status, data.state, data.created = state["status"], state["state"], state["created"]
        data.pending, data.carried = pending, carried

    def _pending(self, state: Mapping[str, Any]) -> PendingChange | None:
        pending = state.get(PENDING)
        return None if pending is None else PendingChange.of(pending, self.where)

    async def asked(self, hook: str, **about: Any) -> FeatureHooks:
        """Have the hooks of a point called before a change, with what is to be saved. Raises `VetoError`. What they
        change of it, the agent takes on."""
        line, scope = self.line, str(self.line.scope)
        engine, codec = line.handle.engine, line.handle.codec
        if not hook or engine.hooks is None or not any(engine.hooks.matching(hook, scope, line.id)):
            return FeatureHooks(MISSING)
        with self.lock:
            data = self.data
            value = {name: getattr(data, name) for name in _DICTS}
            value["fields"] = {**data.carried, **self.spec.persist(self.agent)}
            value = codec.unpack(codec.pack(value))  # what the agent does meanwhile is not what hooks do
        call = await calling(
            engine,
            hook,
            scope=scope,
            key=line.id,
            value=value,
            actor=line.handle.guard.actor,
            trace=trace_context.traced(),
            metadata={"class": self.spec.name, "status": self.data.status, "state": self.data.state, **about},
        )
        if call.value is not value:
            self._corrected(value, call.value)
        return call

    def _corrected(self, before: Mapping[str, Any], after: Any) -> None:
        """Take on what hooks changed: only that, since the agent may have gone on meanwhile."""
        given = validation.mapping(after, "state of the agent, as a hook left it")
        with self.lock:
            for name in _DICTS:
                _change(getattr(self.data, name), before[name], given.get(name, {}))
            fields = {**self.data.carried, **self.spec.persist(self.agent)}
            if _change(fields, before["fields"], given.get("fields", {})):
                self.data.carried = self.spec.restore(self.agent, fields)

    async def load(self, point: StepRef) -> AgentRecord:
        """Take on what a step left. If that cannot be, the agent is as it was, but for what its own `restore` did."""
        line = self.line
        await line.allow("read")
        values = await line.channels(point)
        record = await line.record(point, values)
        self._check_class(record)
        fields = self.spec.upgraded(record.fields, record.schema, self.where)
        self.fits(record.state, fields)
        state = {**unpack_state(line.handle.codec, values), "fields": fields}
        with self.lock:
            self._take_on(state)
            self.data.conversation.stored(record.messages, record.tokens, self.messages)
            self.point, self._sent, self.doubtful = point, values, None
            if self.watch is not None:
                self.watch.loaded()
        await line.handle.guard.saw(line.scope, ())
        return replace(record, fields=fields)

    def _check_class(self, record: AgentRecord) -> None:
        """No object takes on what an agent of another class has saved: it would be lost with the next step."""
        if record.kind != self.spec.name:
            raise InvalidError(
                f"the agent that is kept is of the class {record.kind!r}, and this one is of {self.spec.name!r}",
                where=self.where,
                hint="Use another id; if the class was renamed, declare it under the name that it had",
            )

    async def messages(self, start: int, stop: int) -> list[Any]:
        """Messages that are saved, from one place to another."""
        if self.point is None:
            return []
        await self.line.allow("read")
        found = await self.line.messages(self.point, start, stop)
        await self.line.handle.guard.saw(self.line.scope, ())
        return found

    async def written(self) -> None:
        """Something was changed: where every change is to be safe at once, it is when this returns."""
        watch = self.watch
        if watch is not None and watch.settings.write_through and watch.unsaved and not self.held:
            await self.save(if_changed=True)

    def event(self, kind: str, action: str, detail: Mapping[str, Any] | None = None) -> Event:
        """A row that tells of something that was done with the agent."""
        packed = b"" if detail is None else self.line.handle.codec.pack(detail)
        return Event(kind, self.line.handle.guard.actor, action, self.line.id, detail=packed)

    def now(self) -> datetime:
        return to_datetime(self.line.handle.now())

    def correlation(self) -> str:
        return trace_context.traced().correlation


def _change(value: dict[str, Any], before: Mapping[str, Any], after: Any) -> bool:
    """Change entries of a dict as those of another were changed. Returns whether any was."""
    given = validation.mapping(after, "part of the state of the agent, as a hook left it")
    gone = [name for name in before if name not in given]
    new = {name: each for name, each in given.items() if name not in before or each != before[name]}
    for name in gone:
        value.pop(name, None)
    value.update(new)
    return bool(gone or new)
