"""The base classes of agents, and restoring agents of any class."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, Unpack

from holdfast.agents.api.handle import AgentContext, AgentHandle, AgentOperations, AsyncAgentContext, AsyncAgentHandle
from holdfast.agents.definition.options import AgentOptions, Policies
from holdfast.agents.definition.spec import (
    SchemaSource,
    Spec,
    declared_fields,
    registry,
    separate_defaults,
    set_fields,
    warn_of_shared,
)
from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.recovery.rollback import find_readable, reload
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import load_placeholder
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.record import AgentRecord
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi
from holdfast.backends.runtime.metric_families import RESTORES
from holdfast.errors import CorruptError, InvalidError
from holdfast.security.handle import StoreHandle

if TYPE_CHECKING:
    from holdfast.schemas.schema import Schema
    from holdfast.schemas.schema_declaration import ValidationMode
    from holdfast.schemas.schema_set import SchemaSet


class AgentOwner(Protocol):
    """The store of an agent: a store, the result of `store.as_identity(…)`, or the agents of either."""

    _handle: StoreHandle


class _SyncOwner(SyncApi):
    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle


class _AsyncOwner(AsyncApi):
    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle


def check_kind(agent: object, store: object) -> None:
    """Raise `InvalidError` for an asyncio agent of a sync store, or the reverse."""
    if isinstance(agent, AsyncApi) and not isinstance(store, AsyncApi):
        raise InvalidError(
            f"a {type(agent).__name__} belongs in an AsyncStore", hint="Open the store with holdfast.aopen"
        )
    if isinstance(agent, SyncApi) and not isinstance(store, SyncApi):
        raise InvalidError(f"a {type(agent).__name__} belongs in a Store", hint="Derive it from AsyncPersistentAgent")


def attach_object(
    agent: Any, store: AgentOwner, id: str, spec: Spec, configuration: dict[str, Any] | None, policies: Any
) -> Any:
    """Attach an object, and return it; or its handle, if its class inherits no operations."""
    check_kind(agent, store)
    if isinstance(agent, AgentBase):
        if configuration is not None and not agent.configuration:
            agent.configuration.update(configuration)
        return agent.attach(store, id, **policies)
    if configuration is None:
        configuration = spec.read_configuration(agent)
    handle: Any = AgentHandle if isinstance(store, SyncApi) else AsyncAgentHandle
    line, options = AgentLine(store._handle, id), spec.options.with_policies(policies)
    return handle(line, agent, spec, configuration, options, restore_persister)


async def restore_agent(store: AgentOwner, id: str, policies: Mapping[str, Any], kind: type | None = None) -> Any:
    """Create an agent from its newest saved state, by the class that is registered; of this kind, if one is given."""
    with store._handle.engine.context.metrics.attempt(RESTORES, "agent"):
        return await _restore(store, id, policies, kind)


async def _restore(store: AgentOwner, id: str, policies: Mapping[str, Any], kind: type | None) -> Any:
    line = AgentLine(store._handle, id)
    await line.allow("read")
    record, spec = await _read_record(line, policies)
    if kind is not None and not (isinstance(spec.factory, type) and issubclass(spec.factory, kind)):
        raise InvalidError(
            f"the agent's class is {spec.name!r}, which is not a {kind.__name__}",
            where=line.where,
            hint="Restore it without a class, or with its own class",
        )
    agent = spec.create(record.configuration, line.where)
    attached = attach_object(agent, store, id, spec, dict(record.configuration), policies)
    persister: AgentPersister = attached.persister
    async with persister.save_lock.acquire():
        await reload(persister)
    hooks = await persister.call_hooks("agent.restore")
    hooks.call_after(persister.version, "" if persister.point is None else persister.point.id)
    return attached


async def _read_record(line: AgentLine, policies: Mapping[str, Any]) -> tuple[AgentRecord, Spec]:
    """Read the record that an agent is created from, and find its class."""
    newest = await line.require_step()
    try:
        record = await line.read_record(newest)
    except CorruptError as error:
        record = (await find_readable(line, newest, error)).record
        if registry.get(record.kind).options.with_policies(policies).on_corrupt != "last-good":
            raise
    return record, registry.get(record.kind)


async def restore_persister(handle: StoreHandle, id: str, *, allow_placeholder: bool = False) -> AgentPersister:
    """Restore an agent, and return its persister; or that of a placeholder, if the class is not registered and a
    placeholder is allowed."""
    line = AgentLine(handle, id)
    await line.allow("read")
    kind = (await line.read_record(await line.require_step())).kind
    if allow_placeholder and kind not in registry:
        return await load_placeholder(line)
    factory = registry.get(kind).factory
    owner = _AsyncOwner if isinstance(factory, type) and issubclass(factory, AsyncApi) else _SyncOwner
    agent = await restore_agent(owner(handle), id, {"autosave": None})
    persister: AgentPersister = agent.persister
    return persister


class AgentBase(AgentOperations):
    """The common base of both base classes."""

    spec: ClassVar[Spec]
    machine: ClassVar[Machine | None] = None
    _fields: ClassVar[Mapping[str, Any]] = {}
    _own_data: AgentData | None = None
    _constructor_arguments: Mapping[str, Any] = MappingProxyType({})
    _restore_other = staticmethod(restore_persister)

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        schema: SchemaSource = "1",
        conversation: Schema | SchemaSet | None = None,
        validation: ValidationMode = "refuse",
        abstract: bool = False,
        **policies: Unpack[Policies],
    ) -> None:
        """`name` is the one under which the class is registered, by default its own. `schema` is that of its fields: a
        `Schema`, or a `SchemaSet` with older versions and migrations; or only a version as text, see `upgrade`.
        `conversation` is the schema of its messages, as a list. What does not fit is refused, warned of, or with
        `validation="off"` not checked. An `abstract` class is only
        inherited from."""
        super().__init_subclass__()
        warn_of_shared(cls, {})
        if abstract:
            return
        cls._fields = declared_fields(cls, AgentBase)
        separate_defaults(cls, cls._fields)
        reserved = sorted(each for each in cls._fields if hasattr(AgentBase, each) or each == "spec")
        if reserved:
            raise InvalidError(
                f"{reserved[0]!r} is an attribute of every agent, and cannot be a field",
                where=f"class {cls.__qualname__}",
                hint="Give the field another name",
            )
        inherited = cls.__mro__[1].__dict__.get("spec")
        options = (inherited.options if isinstance(inherited, Spec) else AgentOptions()).with_policies(policies)
        spec = Spec(name or cls.__name__, cls, machine=cls.machine, fields=cls._fields, options=options)
        spec = spec.with_schema(schema, validation).with_conversation(conversation, validation)
        cls.spec = registry.register(spec)

    def __init__(self, **configuration: Any) -> None:
        if configuration and self._own_data is None:
            before = self._constructor_arguments
            self._constructor_arguments = {**before, **configuration} if before else configuration
        elif configuration:
            self._data.configuration.update(configuration)

    @property
    def _data(self) -> AgentData:
        """The data, which exists before the agent is attached to a store."""
        if self._own_data is None:
            state = self.machine.initial if self.machine is not None else ""
            self._own_data = AgentData(dict(self._constructor_arguments), state=state)
        return self._own_data

    def attach(self, store: AgentOwner, id: str, **policies: Unpack[Policies]) -> Self:
        """Attach the agent to a store, under an id. Nothing is read or saved yet: `start` does that.

        `on_conflict`, `on_corrupt`, `on_incomplete` and `autosave` override the options of its class.

        An agent that is attached already continues from what it saved last: its unsaved changes are saved through the
        new handle of the store. In a store, or under an id, where it was never saved, the next save saves all of it.
        """
        check_kind(self, store)
        if type(self).__dict__.get("spec") is None:
            raise InvalidError(
                "an abstract class cannot be instantiated as an agent", where=f"class {type(self).__qualname__}"
            )
        data = self._data
        if not data.configuration:
            data.configuration.update(self.spec.read_configuration(self))
        options = self.spec.options.with_policies(policies)
        line = AgentLine(store._handle, id)
        self._persister = AgentPersister(line, self, self.spec, data, options, self._persister)
        self._persister.autosave(sync=isinstance(self, SyncApi))
        return self

    def persist(self) -> Mapping[str, Any]:
        """Return the fields to save: those that the class declares. Override it to choose."""
        return {name: getattr(self, name) for name in self._fields if hasattr(self, name)}

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Take over saved fields: the counterpart of `persist`."""
        set_fields(self, self._fields, fields)

    def validate(self, fields: Mapping[str, Any]) -> None:
        """Raise an error for invalid fields. Override it."""

    def handle_recovery(self, recovery: Any) -> Any:
        """Handle a recovery at a start, if the agent did not end properly before. Override it."""

    def __repr__(self) -> str:
        name, persister = type(self).__name__, self._persister
        if persister is None:
            return f"<{name}, not attached>"
        return f"<{name} {persister.line.id!r}: {persister.data.status}, version {persister.version}>"


class PersistentAgent(AgentContext, AgentBase, SyncApi, abstract=True):
    """The base class of agents of a `Store`::

    class Greeter(PersistentAgent, name="greeter"):
        greeted: list[str] = []

        def greet(self, name):
            self.greeted.append(name)
            self.conversation.append({"role": "assistant", "content": f"{self.configuration['greeting']}, {name}"})

    with Greeter(greeting="Hello").attach(store, "greeter-1") as agent:
        agent.greet("Ada")

    The block starts and stops the agent, as `start()` and `stop()` do; an error that ends the block is a `fail(error)`.
    """


class AsyncPersistentAgent(AsyncAgentContext, AgentBase, AsyncApi, abstract=True):
    """The base class of agents of an `AsyncStore`: operations are awaited, and hooks and actions may be coroutine
    functions."""
