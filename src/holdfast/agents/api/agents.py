"""The agents of a store: made, saved, loaded, brought back to life, listed, handed over."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from datetime import datetime
from typing import Any, Literal, Unpack

from holdfast.agents.api.agent import AgentOperations, AsyncPersistentAgent, PersistentAgent, check_kind
from holdfast.agents.api.handle import AgentHandle, AsyncAgentHandle
from holdfast.agents.api.restorer import revived
from holdfast.agents.definition.options import Policies
from holdfast.agents.definition.spec import Spec, registry
from holdfast.agents.recovery.fallback import last_good, reload
from holdfast.agents.recovery.manual import resolve as resolved
from holdfast.agents.recovery.rollback import rollback as rolled_back
from holdfast.agents.runtime.autosave import AutosaveWorker
from holdfast.agents.runtime.metrics import StoreMetrics
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.recovery_report import Recovery
from holdfast.agents.storage import listing
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.json_document import check, exists, exported, imported
from holdfast.agents.storage.listing import AgentFilter, AgentInfo, AgentStep
from holdfast.agents.storage.record import AgentRecord, Status
from holdfast.agents.storage.transition_log import TransitionRecord, transitions
from holdfast.agents.transfer.log import transfers
from holdfast.agents.transfer.offer import Transfer
from holdfast.agents.transfer.transfer import transfer
from holdfast.backends.interface import Change, Expect
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.backends.tables import STEPS
from holdfast.engine import trace_context, validation
from holdfast.engine.guard import both_guards
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError, CorruptError, InvalidError
from holdfast.history import comparison
from holdfast.history.diff_result import Diff
from holdfast.hooks.feature_hooks import calling
from holdfast.security.audit.retain import remove
from holdfast.security.handle import StoreHandle

_UNSURE = 1000
"""How many creations are remembered at most of which it is not known whether they were made."""


class AgentsOperations:
    """What can be done with agents. `Agents` and `AsyncAgents` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    # Live agents ----------------------------------------------------------------------------------------------

    @sync_and_async
    async def create(self, kind: type | Spec | str, id: str, /, **configuration: Any) -> Any:
        """Make a new agent, and save it. `kind` is its class, or the name under which that is registered.

        Returns the agent; of a class that inherits nothing, the `AgentHandle` that it is worked with. `ConflictError`
        if there is an agent of this id. After `OutcomeUnknownError`, the same call made again by this program goes on
        with what it began.
        """
        line = AgentLine(self._handle, id)
        await line.allow("write")
        spec = registry.of(kind)
        unsure, asked = AutosaveWorker.of(self._handle.engine).creations, self._handle.codec.pack(configuration)
        place = (type(self), line.line, self._handle.guard.actor, spec.name, asked)
        begun = unsure.pop(place, None)
        if begun is not None and await self._made(begun, place):
            return begun
        if await line.newest() is not None:
            raise exists(line)
        agent = self._attached(spec.made(configuration, line.where), id, spec, dict(configuration), {})
        try:
            await self._made(agent, place)
        except ConflictError as error:
            raise exists(line) from error  # another was first
        return agent

    async def _made(self, agent: AgentOperations, place: Hashable) -> bool:
        """Save a new agent; or make sure of that, if it is not known whether it was saved. Returns whether it is."""
        keeper = agent.keeper
        try:
            if keeper.doubtful is None:
                await keeper.commit("create", [keeper.event("agent", "create")], hook="agent.create")
                return True
            async with keeper.turns.turn():
                return await keeper.settle()
        finally:
            if keeper.doubtful is not None:
                unsure = AutosaveWorker.of(self._handle.engine).creations
                unsure[place] = agent
                if len(unsure) > _UNSURE:
                    del unsure[next(iter(unsure))]

    def attach(
        self,
        agent: Any,
        id: str,
        *,
        kind: type | Spec | str | None = None,
        configuration: Mapping[str, Any] | None = None,
        **policies: Unpack[Policies],
    ) -> Any:
        """Say of an object that it is kept, and under which id. Nothing is read or saved yet: `start` does that.

        Returns the agent; of a class that inherits nothing, the `AgentHandle` that it is worked with. `kind` says of
        which class of agents it is, where a function made it; `configuration` what it was made with, where its
        attributes do not tell.
        """
        if isinstance(agent, AgentOperations) and not isinstance(agent, PersistentAgent | AsyncPersistentAgent):
            raise InvalidError("this is kept already", where=f"agent {agent.id!r}", hint="Attach the object itself")
        spec = registry.of(type(agent) if kind is None else kind)
        given = None if configuration is None else dict(validation.mapping(configuration, "configuration"))
        return self._attached(agent, id, spec, given, policies)

    def _attached(
        self, agent: Any, id: str, spec: Spec, configuration: dict[str, Any] | None, policies: Mapping[str, Any]
    ) -> Any:
        check_kind(agent, self)
        if isinstance(agent, PersistentAgent | AsyncPersistentAgent):
            if configuration is not None and not agent.configuration:
                agent.configuration.update(configuration)
            return agent.attach(self, id, **policies)
        found = spec.configured(agent) if configuration is None else configuration
        settings = spec.settings.changed(policies)
        make = AgentHandle if isinstance(self, SyncApi) else AsyncAgentHandle
        kept: AgentHandle[Any] | AsyncAgentHandle[Any] = make(AgentLine(self._handle, id), agent, spec, found, settings)
        kept.announce()
        return kept

    @sync_and_async
    async def save(self, agent: AgentOperations) -> int:
        """Save a live agent as it is; returns its version."""
        if not isinstance(agent, AgentOperations):
            raise InvalidError(
                "an agent of a class of its own is saved by what attach returned", where=repr(agent)[:80]
            )
        keeper, mine = agent.keeper, AgentLine(self._handle, agent.id)
        theirs = keeper.line
        if theirs.handle.engine is not self._handle.engine or theirs.line != mine.line:
            raise InvalidError("the agent is attached to another store", where=mine.where)
        await mine.allow("write")
        await keeper.save()
        return keeper.version

    @sync_and_async
    async def restore(self, id: str, **policies: Unpack[Policies]) -> Any:
        """The live agent: made anew by the class that is registered, with the configuration, the fields, the messages,
        the state and all else that was saved last. Call `start` or `resume` to have it go on.

        Nothing that is named in the store is imported: its class has to be known. `NotFoundError` if it is not.
        """
        line = AgentLine(self._handle, id)
        await line.allow("read")
        record, spec = await self._whole(line, policies)
        made = spec.made(record.configuration, line.where)
        agent = self._attached(made, id, spec, dict(record.configuration), policies)
        keeper: AgentPersister = agent.keeper
        async with keeper.turns.turn():
            await reload(keeper)
        call = await keeper.asked("agent.restore")
        call.done(keeper.version, "" if keeper.point is None else keeper.point.id)
        return agent

    async def _whole(self, line: AgentLine, policies: Mapping[str, Any]) -> tuple[AgentRecord, Spec]:
        """What an agent is made anew of, and its class."""
        newest = await line.point()
        try:
            record = await line.record(newest)
        except CorruptError as error:
            record = (await last_good(line, newest, error)).record
            if registry.get(record.kind).settings.changed(policies).on_corrupt != "last-good":
                raise
        return record, registry.get(record.kind)

    # Records --------------------------------------------------------------------------------------------------

    @sync_and_async
    async def load(self, id: str, *, version: int | None = None, at: str | datetime | None = None) -> AgentRecord:
        """An agent as it was saved last, as an older version, or as of a time; `at` may also be the id of a step.
        Raises `NotFoundError`."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        record = await line.record(await self._point(line, version, at))
        await self._handle.guard.saw(line.scope, ())
        return record

    @sync_and_async
    async def exists(self, id: str) -> bool:
        """Whether there is an agent of this id."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        return await line.newest() is not None

    @sync_and_async
    async def messages(
        self, id: str, start: int | None = None, stop: int | None = None, *, version: int | None = None
    ) -> list[Any]:
        """Messages of an agent, as `list[start:stop]` would give them; as it was saved last, or as an older version."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        found = await line.messages(await line.point(version), start, stop)
        await self._handle.guard.saw(line.scope, ())
        return found

    @sync_and_async
    async def history(self, id: str, *, before: str | None = None, limit: int = 100) -> list[AgentStep]:
        """The steps of an agent, the newest first; those before another, by its id."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        newest = await line.point()
        count = validation.count(limit, "limit")
        return await listing.steps(line, newest, validation.optional_name(before, "id"), count)

    @sync_and_async
    async def diff(self, id: str, a: int | str | None = None, b: int | str | None = None) -> Diff:
        """What differs between two versions of an agent, or two steps by their ids; without `b`, it is the last one,
        and without `a`, what `b` changed."""
        line, engine = AgentLine(self._handle, id), self._handle.engine
        await line.allow("read")
        new = comparison.ComparedPoint(line.line, await self._named(line, b))
        old = await comparison.before(engine, new) if a is None else new._replace(point=await self._named(line, a))
        found = await comparison.compare(engine, old, new)
        await self._handle.guard.saw(line.scope, ())
        return found

    @sync_and_async
    async def export(self, id: str, *, version: int | None = None) -> dict[str, Any]:
        """An agent as one JSON document that people can read, with its messages: as it was saved last, or as an older
        version."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        found = await exported(line, await line.point(version))
        await self._handle.guard.saw(line.scope, ())
        return found

    @sync_and_async
    async def import_(self, document: Mapping[str, Any], *, id: str | None = None) -> AgentRecord:
        """Save an agent from what `export` returned: under the id that it had, or another. `ConflictError` if there is
        an agent of this id."""
        return await imported(AgentLine(self._handle, check(document).get("id", "") if id is None else id), document)

    @sync_and_async
    async def delete(self, id: str) -> None:
        """Remove an agent for good: its record, its messages, its history. What the audit tells of it stays.
        `DeniedError` if it is held. The state of its scope, `store.state(agent=id)`, is not touched."""
        line, handle = AgentLine(self._handle, id), self._handle
        with trace_context.correlation():
            permit = await line.allow("write")
            newest = await line.point()
            said = listing.said_by(newest)
            call = await calling(
                handle.engine,
                "agent.delete",
                scope=str(line.scope),
                key=line.id,
                actor=handle.guard.actor,
                trace=trace_context.current(),
                metadata={name: said.get(name, "") for name in ("class", "status", "state")},
            )

            async def unchanged(again: bool) -> list[Change]:
                last = await handle.engine.lines.newest(line.line) if again else newest
                if last is None:
                    raise line.unknown()
                return [Expect(STEPS, (*line.line, last.branch, last.seq + 1), None)]

            await remove(handle.engine, [line.line], handle.guard.actor, both_guards(permit.guards, unchanged))
            call.done(newest.depth + 1, newest.id)

    # What happened --------------------------------------------------------------------------------------------

    @sync_and_async
    async def transitions(
        self,
        id: str,
        *,
        limit: int = 100,
        before: str | None = None,
        after: str | None = None,
        trigger: str | None = None,
        outcome: str | None = None,
        oldest_first: bool = False,
    ) -> list[TransitionRecord]:
        """The transitions of an agent's machine, the latest first: those before or after another, by its cursor, those
        of a trigger, those that went well (`ok`) or failed (`error`)."""
        return await transitions(
            AgentLine(self._handle, id),
            limit=limit,
            before=before,
            after=after,
            trigger=trigger,
            outcome=outcome,
            oldest_first=oldest_first,
        )

    @sync_and_async
    async def rollback(self, id: str, to: str | int) -> AgentRecord:
        """Make an agent what it was: as a version, at a checkpoint by its id, or when it last was in a state by its
        name. A new step is saved; nothing is rewritten."""
        line = AgentLine(self._handle, id)
        return await line.record(await rolled_back(line, to))

    @sync_and_async
    async def resolve(self, id: str, how: Literal["back", "forward"]) -> Recovery:
        """Resolve by hand what an agent left half-done: `"back"`, as if it had not begun, or `"forward"`. Forward, it
        is finished without its action: the application's code is not at hand here."""
        return await resolved(AgentLine(self._handle, id), how, revived)

    @sync_and_async
    async def transfer(
        self,
        source: str,
        target: str,
        *,
        context: Mapping[str, Any] | None = None,
        reason: str = "",
        accept: bool = False,
    ) -> Transfer:
        """Hand the conversation and the context of an agent to another one, in one step of both. See `agent.transfer`.

        Both are brought back to life to be asked; whoever runs one of them elsewhere gets `ConflictError` at its next
        save. With `accept` the receiver is not asked, and its class need not be known here.
        """
        giver = await revived(self._handle, source, inert_too=True)
        return await transfer(giver, target, revived, context=context, reason=reason, accept=accept)

    @sync_and_async
    async def transfers(self, id: str, *, limit: int = 100) -> list[Transfer]:
        """The transfers from and to an agent, the latest first, each as far as the agent's line tells of it."""
        line = AgentLine(self._handle, id)
        await line.allow("read")
        if await line.newest() is None:
            raise line.unknown()
        return await transfers(line, limit)

    def metrics(self) -> StoreMetrics:
        """How saving goes, in figures: of all agents that this program had of the store, together, and of those that it
        has, each by itself. An identity is shown its own."""
        return AutosaveWorker.of(self._handle.engine).metrics(self._handle.guard.actor)

    async def _point(self, line: AgentLine, version: int | None, at: str | datetime | None) -> StepRef:
        if version is not None and at is not None:
            raise InvalidError("an agent is loaded as a version or as of a time, not both", where=line.where)
        return await line.point(version) if at is None else await line.at(at)

    async def _named(self, line: AgentLine, name: int | str | None) -> StepRef:
        return await line.at(name) if isinstance(name, str) else await line.point(name)

    # Last, since its name hides that of the type.

    @sync_and_async
    async def list(
        self,
        *,
        kind: str | type | Spec | None = None,
        status: Status | None = None,
        state: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        pending: bool | None = None,
        prefix: str = "",
        since: datetime | None = None,
        until: datetime | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[AgentInfo]:
        """A page of agents in order of their ids: those of a class, of a status, in a state of their machine, with
        these entries in their metadata, those of which something is half-done (`pending`), or nothing, those whose ids
        start with a prefix, those that were saved last since a time and before another, those after another. No states
        are read. An identity is shown those that it may read."""
        name = kind if kind is None or isinstance(kind, str) else registry.of(kind).name
        first, last = (None if each is None else validation.moment(each) for each in (since, until))
        wanted = AgentFilter(name, status, state, validation.mapping(metadata or {}, "metadata"), first, last, pending)
        return await listing.agents(self._handle, wanted, prefix, after, validation.count(limit, "limit"))


class Agents(SyncApi, AgentsOperations):
    """The agents of a store: `store.agents`."""


class AsyncAgents(AsyncApi, AgentsOperations):
    """The same, for asyncio."""
