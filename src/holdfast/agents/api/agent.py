"""Agents as programs meet them: a base class, and what a plain object is wrapped in to be kept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, Self, Unpack

from holdfast.agents.api.context import AsyncChangeContext, ChangeContext
from holdfast.agents.api.conversation import AsyncConversation, Conversation
from holdfast.agents.api.restorer import revived
from holdfast.agents.api.tools import AsyncTools, Tools
from holdfast.agents.api.workflow import Workflow
from holdfast.agents.definition.options import AgentOptions, Policies
from holdfast.agents.definition.spec import Spec, declared, part, registry, take_on
from holdfast.agents.definition.state_machine import Machine, OnIncomplete
from holdfast.agents.recovery.fallback import reload
from holdfast.agents.recovery.rollback import roll_back
from holdfast.agents.recovery.startup import recover, resume, start
from holdfast.agents.runtime.change_block import ChangeBlock
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.metrics import AgentMetrics
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.recovery_report import Recovery
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import Status
from holdfast.agents.transfer.offer import Transfer
from holdfast.agents.transfer.transfer import receiver_of, transfer
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.errors import InvalidError
from holdfast.security.handle import StoreHandle
from holdfast.state.api import sync_or_async_property


class AgentOwner(Protocol):
    """Where agents are kept: a store, what `store.as_identity(…)` returns, or the agents of either."""

    _handle: StoreHandle


class AgentOperations:
    """What can be done with an agent that is kept."""

    _keeper: AgentPersister | None = None

    @property
    def keeper(self) -> AgentPersister:
        """What saves it. Raises `InvalidError` if it is not attached to a store."""
        if self._keeper is None:
            raise InvalidError("the agent has no store to be kept in", hint='Call attach(store, "id") first')
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

    def _conversation(self) -> Conversation:
        """Its messages."""
        return Conversation(self._data.conversation, self._keeper)

    def _async_conversation(self) -> AsyncConversation:
        return AsyncConversation(self._data.conversation, self._keeper)

    conversation = sync_or_async_property(_conversation, _async_conversation)

    @property
    def context(self) -> dict[str, Any]:
        """What it knows of its work."""
        return self._data.context

    def _tools(self) -> Tools:
        """Its tools: which there are, which it may use, and how their use went."""
        return Tools(self._data, self._keeper)

    def _async_tools(self) -> AsyncTools:
        return AsyncTools(self._data, self._keeper)

    tools = sync_or_async_property(_tools, _async_tools)

    @property
    def workflow(self) -> Workflow:
        """How far its work has got."""
        return Workflow(self._data, self._keeper)

    @property
    def metadata(self) -> dict[str, Any]:
        """What else is to be kept with it, and found in lists."""
        return self._data.metadata

    @property
    def _data(self) -> AgentData:
        return self.keeper.data

    def changing(self) -> ChangeBlock:
        """Change several things that belong together: `with agent.changing():`. No save in the background sees half of
        it, and it counts as one change. `async with` is for agents of an `AsyncStore` that are to be saved at the end
        of the block, where every change is."""
        return ChangeBlock(self.keeper)

    def changed(self, count: int = 1) -> None:
        """Tell that something was changed of which nobody else knows, such as an attribute: what is saved by itself is
        then saved in time. With `Autosave(write_through=True)` and a `Store`, it is saved when this returns."""
        self.keeper.changed(count)

    @sync_and_async
    async def flush(self) -> int:
        """Have all that was changed so far saved when this returns; if nothing was, there is no step. Returns its
        version."""
        await self.keeper.save(if_changed=True)
        return self.keeper.version

    @property
    def metrics(self) -> AgentMetrics:
        """How saving it goes, in figures."""
        return self.keeper.metrics()

    @property
    def autosave_error(self) -> BaseException | None:
        """What keeps it from being saved, if the last save failed."""
        return self.keeper.error

    @sync_and_async
    async def save(self) -> int:
        """Save it as it is; returns its version."""
        await self.keeper.save()
        return self.keeper.version

    @sync_and_async
    async def reload(self) -> None:
        """Take on what was saved last: by another, as a rule. What was not saved of it is gone."""
        async with self.keeper.turns.turn():
            if await reload(self.keeper) is None:
                raise self.keeper.line.unknown()

    @sync_and_async
    async def transition(self, trigger: str, data: Any = None) -> str:
        """Have its machine take a transition; returns the state it led to."""
        return await self.keeper.phases.transition(trigger, data)

    @sync_and_async
    async def start(self) -> None:
        """Start it: as it was saved last, if it was. What is found half-done is resolved first: see `recoveries`."""
        await start(self.keeper.phases, revived)

    @sync_and_async
    async def pause(self) -> None:
        """Pause it, and save it."""
        await self.keeper.phases.pause()

    @sync_and_async
    async def resume(self) -> None:
        """Have it go on where it was paused; also in another process."""
        await resume(self.keeper.phases, revived)

    @sync_and_async
    async def stop(self) -> None:
        """Stop it, and save it."""
        await self.keeper.phases.stop()

    @sync_and_async
    async def fail(self, error: BaseException | str) -> None:
        """Say that it failed."""
        await self.keeper.phases.fail(error)

    @sync_and_async
    async def recover(self, how: OnIncomplete | None = None) -> list[Recovery]:
        """Resolve what was interrupted: as `on_incomplete` says, or as the caller does. Of a transition or a change of
        status, what was changed since it began and is not saved is gone: its action was not finished. Where nothing
        was interrupted, or a transfer, all stays."""
        return await recover(self.keeper.phases, revived, how)

    @sync_and_async
    async def rollback(self, to: str | int) -> int:
        """Make it what it was as an older version, at a checkpoint, or when it was last in a state of its machine, by a
        new step; returns its version. What was not saved of it is gone."""
        await roll_back(self.keeper.phases, to)
        return self.keeper.version

    @sync_and_async
    async def transfer(
        self, to: Any, *, context: Mapping[str, Any] | None = None, reason: str = "", accept: bool = False
    ) -> Transfer:
        """Hand the conversation and the context to another agent: one that is alive here, or the one that has an id.

        The messages come after those that the other has. Of its context, entries of the same name are replaced; those
        of `context` are given besides one's own. What the other's author wrote as `accepts(offer)` may refuse, and
        one's own `offers(offer)`, by an error, or by something false other than None: that raises `DeniedError`, code
        `transfer-refused`, and all stays where it was. With `accept`, the other is not asked. It is told by
        `on_receive(offer)`.
        """
        return await transfer(self.keeper, receiver_of(to), revived, context=context, reason=reason, accept=accept)

    @property
    def recoveries(self) -> list[Recovery]:
        """What was found half-done at starts, and what became of it."""
        return list(self.keeper.phases.recoveries)


class _Base(AgentOperations):
    """What both base classes have."""

    spec: ClassVar[Spec]
    machine: ClassVar[Machine | None] = None
    _fields: ClassVar[Mapping[str, Any]] = {}
    _own: AgentData | None = None
    _given: Mapping[str, Any] = MappingProxyType({})

    def __init_subclass__(
        cls, *, name: str | None = None, schema: str = "1", abstract: bool = False, **policies: Unpack[Policies]
    ) -> None:
        """`name` is the one under which agents of the class are found again: that of the class, if it is not given.
        `schema` is the version of the form of its fields; see `upgrade`. An `abstract` class is only inherited from."""
        super().__init_subclass__()
        if abstract:
            return
        cls._fields = declared(cls, _Base)
        part(cls, cls._fields)
        taken = sorted(each for each in cls._fields if hasattr(_Base, each) or each == "spec")
        if taken:
            raise InvalidError(
                f"{taken[0]!r} is something that every agent has, and cannot be a field of it",
                where=f"class {cls.__qualname__}",
                hint="Give the field another name",
            )
        inherited = cls.__mro__[1].__dict__.get("spec")
        settings = (inherited.settings if isinstance(inherited, Spec) else AgentOptions()).changed(policies)
        cls.spec = registry.register(
            Spec(name or cls.__name__, cls, str(schema), cls.machine, cls._fields, settings=settings)
        )

    def __init__(self, **configuration: Any) -> None:
        if configuration and self._own is None:
            self._given = {**self._given, **configuration} if self._given else configuration
        elif configuration:
            self._data.configuration.update(configuration)

    @property
    def _data(self) -> AgentData:
        """Also before it is attached to a store."""
        if self._own is None:
            self._own = AgentData(dict(self._given), state=self.machine.initial if self.machine is not None else "")
        return self._own

    def attach(self, store: AgentOwner, id: str, **policies: Unpack[Policies]) -> Self:
        """Say where it is kept, and under which id. Nothing is read or saved yet: `start` does that.

        `on_conflict`, `on_corrupt`, `on_incomplete` and `autosave` are what its class says, unless said here.
        """
        check_kind(self, store)
        if type(self).__dict__.get("spec") is None:
            raise InvalidError("an abstract class has no agents", where=f"class {type(self).__qualname__}")
        data = self._data
        if not data.configuration:
            data.configuration.update(self.spec.configured(self))
        settings = self.spec.settings.changed(policies)
        self._keeper = AgentPersister(AgentLine(store._handle, id), self, self.spec, data, settings)
        self._keeper.autosave(sync=isinstance(self, SyncApi))
        return self

    def persist(self) -> Mapping[str, Any]:
        """The fields to save: those that the class declares. Override it to choose."""
        return {name: getattr(self, name) for name in self._fields if hasattr(self, name)}

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Take on fields that were saved: the counterpart of `persist`."""
        take_on(self, self._fields, fields)

    def validate(self, fields: Mapping[str, Any]) -> None:
        """Raise what there is to say against fields. Override it."""

    def handle_recovery(self, recovery: Any) -> Any:
        """Told at a start what had happened since the last one, if that did not end as it should. Override it."""

    def __repr__(self) -> str:
        name, keeper = type(self).__name__, self._keeper
        if keeper is None:
            return f"<{name}, not attached>"
        return f"<{name} {keeper.line.id!r}: {keeper.data.status}, version {keeper.version}>"


class PersistentAgent(SyncApi, ChangeContext, _Base, abstract=True):
    """A plain agent that survives::

    class Greeter(PersistentAgent, name="greeter"):
        greeted: list[str] = []

        def greet(self, name):
            self.greeted.append(name)
            self.conversation.append({"role": "assistant", "content": f"{self.configuration['greeting']}, {name}"})

    with Greeter(greeting="Hello").attach(store, "greeter-1") as agent:
        agent.greet("Ada")

    The block starts it and stops it, as `start()` and `stop()` do; an error that ends the block is a `fail(error)`.
    """


class AsyncPersistentAgent(AsyncApi, AsyncChangeContext, _Base, abstract=True):
    """The same for asyncio: operations are awaited, and hooks and actions may be coroutine functions."""


def check_kind(agent: object, store: object) -> None:
    """`InvalidError` if an agent whose operations are awaited is to be kept in a store whose are not, or the
    reverse."""
    if isinstance(agent, AsyncApi) and not isinstance(store, AsyncApi):
        raise InvalidError(
            f"a {type(agent).__name__} is kept in an AsyncStore", hint="Open the store with holdfast.aopen"
        )
    if isinstance(agent, SyncApi) and not isinstance(store, SyncApi):
        raise InvalidError(f"a {type(agent).__name__} is kept in a Store", hint="Derive it from AsyncPersistentAgent")
