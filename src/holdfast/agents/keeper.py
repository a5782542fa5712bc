"""A keeper: does the durable work for one live agent.

All of it is coroutines of the engine's kind. What programs call is in `holdfast.agents.agent`.
"""

from __future__ import annotations

import threading
import time as clocks
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.agents.calling import called
from holdfast.agents.conversation import Conversation, Said
from holdfast.agents.lines import AgentLine, Delta
from holdfast.agents.machine import Called, Transition
from holdfast.agents.record import CONVERSATION, PENDING, AgentRecord, Pending, Status
from holdfast.agents.specs import Spec
from holdfast.agents.turns import Turns
from holdfast.checkpoints import to_datetime
from holdfast.engine.records import Point
from holdfast.errors import Invalid, Veto
from holdfast.hooks.features import calling
from holdfast.model.diff import diff
from holdfast.model.operations import Set
from holdfast.model.packed import Packed, flatten, pack_name, pack_state, unpack_name
from holdfast.security import tracing
from holdfast.security.events import Event


@dataclass(slots=True)
class AgentData:
    """What an agent carries besides its own fields."""

    configuration: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    tools: dict[str, Any] = field(default_factory=dict)
    workflow: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    conversation: Conversation = field(default_factory=Conversation)
    status: Status = "created"
    state: str = ""
    created: datetime | None = None
    pending: Pending | None = None


class Taken(NamedTuple):
    """An agent's state at one moment: what is to be saved of it, and what that makes of what was saved."""

    delta: Delta
    packed: dict[bytes, Packed]
    said: Said


class Keeper:
    """Saves one agent, and brings it back."""

    def __init__(self, line: AgentLine, agent: Any, spec: Spec, data: AgentData) -> None:
        self.line = line
        self.agent = agent
        self.spec = spec
        self.data = data
        self.point: Point | None = None
        """The step that the agent goes on from."""
        self.lock = threading.RLock()
        """Held while the state is taken, and while something that belongs together is changed."""
        self._turns = Turns()
        self._sent: dict[bytes, Packed] = {}
        if not data.state and spec.machine is not None:
            data.state = spec.machine.initial

    @property
    def version(self) -> int:
        """How many steps the agent has had; 0 if it was never saved."""
        return 0 if self.point is None else self.point.depth + 1

    # Saving and loading ---------------------------------------------------------------------------------------

    def take(self) -> Taken:
        """The agent's state as it is now, and what of it differs from what was saved."""
        with self.lock:
            data, codec = self.data, self.line.handle.codec
            if data.created is None:
                data.created = to_datetime(self.line.handle.now())
            fields = dict(self.agent.persist())
            self.agent.validate(fields)
            said = data.conversation.unsaved()
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
                "counts": {"messages": len(data.conversation)},
            }
            if data.pending is not None:
                state[PENDING] = data.pending.to_dict()
            packed = pack_state(codec, state)
            added = codec.pack_items(said.added)
        delta = Delta(kept=said.kept, added=added)
        if said.whole or (added and not said.kept):
            delta.messages, delta.added = list(added), ()
        for name, value in packed.items():
            change = diff(self._sent[name], value) if name in self._sent else Set(flatten(value))
            if change is not None:
                delta.put[unpack_name(name)] = change
        delta.removed = [unpack_name(name) for name in self._sent if name not in packed]
        return Taken(delta, packed, said)

    async def save(self, kind: str = "save", *, if_changed: bool = False) -> Point:
        """Save the agent as it is."""
        return await self._commit(kind, [self._event("agent", "save")], hook="agent.save", if_changed=if_changed)

    async def _commit(self, kind: str, events: Sequence[Event], *, hook: str = "", if_changed: bool = False) -> Point:
        """A step of the agent."""
        async with self._turns.turn():
            permit = await self.line.allow("write")
            before = await self._asked(hook)
            taken = self.take()
            if if_changed and not taken.delta and self.point is not None:
                return self.point
            data = self.data
            about = {"class": self.spec.name, "status": data.status, "state": data.state}
            told = [*events, *before.events]
            (point,) = await self.line.save(self.line.saving(kind, taken.delta, self.point, about, told, permit))
            self.point, self._sent = point, taken.packed
            data.conversation.saved(taken.said)
            before.done(self.version, point.id)
            return point

    async def _asked(self, hook: str) -> Any:
        line = self.line
        return await calling(
            line.handle.engine,
            hook,
            scope=str(line.scope),
            key=line.id,
            actor=line.handle.guard.actor,
            trace=tracing.traced(),
            metadata={"status": self.data.status, "state": self.data.state},
        )

    async def load(self, point: Point) -> AgentRecord:
        """Take on what a step left."""
        await self.line.allow("read")
        record = await self.line.record(point)
        messages = await self.line.messages(point)
        values = await self.line.handle.engine.states.values(self.line.line, point)
        self.agent.validate(record.fields)
        with self.lock:
            data = self.data
            data.configuration, data.context = dict(record.configuration), dict(record.context)
            data.tools, data.workflow, data.metadata = dict(record.tools), dict(record.workflow), dict(record.metadata)
            data.status, data.state, data.created = record.status, record.state, record.created
            data.pending, data.conversation = record.pending, Conversation.loaded(messages)
            self.agent.restore(record.fields)
            self.point = point
            self._sent = {name: value for name, value in values.items() if name != pack_name(CONVERSATION)}
        return record

    # Two phases -----------------------------------------------------------------------------------------------

    async def lifecycle(self, trigger: str, target: Status, via: Status, action: Callable[..., Any] | None) -> None:
        """A change of status: saved before what is to be done for it, and after."""
        source = self.data.status
        await self._through(
            Pending("lifecycle", trigger, source, target, self._now(), self._correlation()),
            action,
            begin=lambda: setattr(self.data, "status", via),
            finish=lambda: setattr(self.data, "status", target),
            fail=lambda: setattr(self.data, "status", "failed"),
        )

    async def transition(self, trigger: str, data: Any = None) -> str:
        """Have the machine take a transition; returns the state that it led to."""
        if self.spec.machine is None:
            raise Invalid("the agent has no machine", where=f"agent {self.line.id!r}")
        if self.data.pending is not None:
            raise Invalid(
                f"{self.data.pending.kind} {self.data.pending.trigger!r} is under way",
                where=f"agent {self.line.id!r}",
                hint="Have it resolved first",
                code="transition-incomplete",
            )
        way = await self._way(trigger, data)
        action = None if way.action is None else self._bound(way.action)
        await self._through(
            Pending("transition", trigger, way.source, way.target, self._now(), self._correlation(), data=data),
            None if action is None else lambda: action(data),
            begin=lambda: None,
            finish=lambda: setattr(self.data, "state", way.target),
            fail=lambda: None,
        )
        return way.target

    async def _way(self, trigger: str, data: Any) -> Transition:
        machine = self.spec.machine
        assert machine is not None  # noqa: S101 - seen by the caller
        for way in machine.ways(trigger, self.data.state):
            if way.guard is None or await called(self._bound(way.guard), data):
                for validator in way.validators:
                    await called(self._bound(validator), data)
                return way
        raise Veto(
            f"no guard lets {trigger!r} pass from the state {self.data.state!r}", where=f"agent {self.line.id!r}"
        )

    def _bound(self, function: Called) -> Callable[..., Any]:
        if isinstance(function, str):
            found: Callable[..., Any] = getattr(self.agent, function)
            return found
        return lambda *args: function(self.agent, *args)

    async def _through(
        self,
        pending: Pending,
        action: Callable[..., Any] | None,
        *,
        begin: Callable[[], None],
        finish: Callable[[], None],
        fail: Callable[[], None],
    ) -> None:
        """First what is to come is saved, then it is done, then that it is done is saved."""
        started, before = clocks.perf_counter_ns(), (self.data.status, self.data.state)
        hook = f"agent.{pending.trigger}" if pending.kind == "lifecycle" else "agent.transition"
        if action is not None:
            self.data.pending = pending
            begin()
            try:
                await self._commit(f"{pending.kind}.begin", [])
            except BaseException:
                self.data.pending, (self.data.status, self.data.state) = None, before
                raise
            try:
                await called(action)
            except Exception as error:
                self.data.pending = None
                self.data.status, self.data.state = before
                fail()
                event = self._changed(pending, started, f"{type(error).__name__}: {error}")
                await self._commit(f"{pending.kind}.failed", [event])
                raise
        during = (self.data.status, self.data.state)
        self.data.pending = None
        finish()
        try:
            await self._commit(pending.kind, [self._changed(pending, started)], hook=hook)
        except BaseException:
            self.data.status, self.data.state = during
            self.data.pending = pending if action is not None else None
            raise

    def _changed(self, pending: Pending, started: int, error: str = "") -> Event:
        detail: Mapping[str, Any] = {
            "from": pending.source,
            "to": pending.target,
            "data": pending.data,
            **({"error": error} if error else {}),
        }
        return Event(
            pending.kind,
            self.line.handle.guard.actor,
            pending.trigger,
            f"{pending.source} → {pending.target}",
            "error" if error else "ok",
            clocks.perf_counter_ns() - started,
            self.line.handle.codec.pack(detail),
        )

    def _event(self, kind: str, action: str) -> Event:
        return Event(kind, self.line.handle.guard.actor, action, self.line.id)

    def _now(self) -> datetime:
        return to_datetime(self.line.handle.now())

    def _correlation(self) -> str:
        return tracing.traced().correlation
