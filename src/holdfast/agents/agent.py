"""Agents as programs meet them: a base class, and what a plain object is wrapped in to be kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from holdfast.agents.conversation import Conversation
from holdfast.agents.keeper import AgentData, Keeper
from holdfast.agents.lines import AgentLine
from holdfast.agents.machine import Machine
from holdfast.agents.record import Status
from holdfast.agents.specs import MISSING, Spec, declared, fill, registry
from holdfast.engine.drivers import Async, Sync, operation
from holdfast.errors import Invalid
from holdfast.state.face import ScopedOperations


class AgentOperations:
    """What can be done with an agent that is kept."""

    _keeper: Keeper | None = None

    @property
    def keeper(self) -> Keeper:
        """What saves it. Raises `Invalid` if it is not attached to a store."""
        if self._keeper is None:
            raise Invalid("the agent has no store to be kept in", hint='Call attach(store, "id") first')
        return self._keeper

    @property
    def id(self) -> str:
        """Its id."""
        return self.keeper.line.id

    @property
    def version(self) -> int:
        """How many steps it has had; 0 if it was never saved."""
        return self.keeper.version

    @property
    def status(self) -> Status:
        """Where it is in its life."""
        return self._data.status

    @property
    def state(self) -> str:
        """The state of its machine."""
        return self._data.state

    @property
    def configuration(self) -> dict[str, Any]:
        """What it was made with."""
        return self._data.configuration

    @property
    def conversation(self) -> Conversation:
        """Its messages."""
        return self._data.conversation

    @property
    def context(self) -> dict[str, Any]:
        """What it knows of its work."""
        return self._data.context

    @property
    def workflow(self) -> dict[str, Any]:
        """How far its work has got."""
        return self._data.workflow

    @property
    def metadata(self) -> dict[str, Any]:
        """What else is to be kept with it, and found in lists."""
        return self._data.metadata

    @property
    def _data(self) -> AgentData:
        return self.keeper.data

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Change several things that belong together: no save in the background sees half of it."""
        with self.keeper.lock:
            yield

    @operation
    async def save(self) -> int:
        """Save it as it is; returns its version."""
        await self.keeper.save()
        return self.keeper.version

    @operation
    async def transition(self, trigger: str, data: Any = None) -> str:
        """Have its machine take a transition; returns the state it led to."""
        return await self.keeper.transition(trigger, data)

    @operation
    async def start(self) -> None:
        """Start it: as it was saved last, if it was."""
        keeper = self.keeper
        newest = await keeper.line.newest()
        if newest is not None and (keeper.point is None or keeper.point.id != newest.id):
            await keeper.load(newest)
        await keeper.lifecycle("start", "running", "starting", self._hook("on_start"))

    @operation
    async def pause(self) -> None:
        """Pause it, and save it."""
        await self.keeper.lifecycle("pause", "paused", "pausing", self._hook("on_pause"))

    @operation
    async def resume(self) -> None:
        """Have it go on where it was paused."""
        await self.keeper.lifecycle("resume", "running", "resuming", self._hook("on_resume"))

    @operation
    async def stop(self) -> None:
        """Stop it, and save it."""
        await self.keeper.lifecycle("stop", "stopped", "stopping", self._hook("on_stop"))

    def _hook(self, name: str) -> Any:
        return getattr(self.keeper.agent, name, None)


class _Base(AgentOperations):
    """What both base classes have."""

    spec: ClassVar[Spec]
    machine: ClassVar[Machine | None] = None
    _fields: ClassVar[Mapping[str, Any]] = {}
    _own: AgentData | None = None

    def __init_subclass__(cls, *, name: str | None = None, schema: str = "1", abstract: bool = False, **rest: Any):
        super().__init_subclass__(**rest)
        if not abstract:
            cls._fields = declared(cls, _Base)
            cls.spec = registry.register(Spec(name or cls.__name__, cls, schema, cls.machine, cls._fields))

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made = super().__new__(cls)
        fill(made, cls._fields)
        return made

    def __init__(self, **configuration: Any) -> None:
        self._data.configuration.update(configuration)

    @property
    def _data(self) -> AgentData:
        """Also before it is attached to a store."""
        if self._own is None:
            self._own = AgentData(state=self.machine.initial if self.machine is not None else "")
        return self._own

    def attach(self, store: ScopedOperations, id: str) -> Self:
        """Say where it is kept, and under which id."""
        if isinstance(store, Sync) is not isinstance(self, Sync):
            raise Invalid(
                f"a {type(self).__name__} is kept in {'a Store' if isinstance(self, Sync) else 'an AsyncStore'}"
            )
        self._keeper = Keeper(AgentLine(store._handle, id), self, self.spec, self._data)
        return self

    def persist(self) -> Mapping[str, Any]:
        """The fields to save: those that the class declares. Override it to choose."""
        return {name: getattr(self, name) for name in self._fields if hasattr(self, name)}

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Take on fields that were saved: the counterpart of `persist`."""
        for name, value in fields.items():
            setattr(self, name, value)
        for name, default in self._fields.items():
            if name not in fields and default is not MISSING:
                vars(self).pop(name, None)
                fill(self, {name: default})

    def validate(self, fields: Mapping[str, Any]) -> None:
        """Raise what there is to say against fields. Override it."""

    def handle_recovery(self, recovery: Any) -> Any:
        """Told at a start what had happened since the last one. Override it."""


class PersistentAgent(Sync, _Base, abstract=True):
    """A plain agent that survives::

    class Greeter(PersistentAgent, name="greeter"):
        greeted: list[str] = []

        def greet(self, name):
            self.greeted.append(name)
            self.conversation.append({"role": "assistant", "content": f"{self.configuration['greeting']}, {name}"})

    agent = Greeter(greeting="Hello").attach(store, "greeter-1")
    agent.start()
    agent.greet("Ada")
    agent.stop()
    """


class AsyncPersistentAgent(Async, _Base, abstract=True):
    """The same for asyncio: operations are awaited, and hooks and actions may be coroutine functions."""


def _kind(cls: type) -> type:
    return Sync if issubclass(cls, Sync) else Async
