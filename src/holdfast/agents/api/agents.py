"""The agents of a store: create, save, load, restore, list and transfer them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, Unpack, overload

from msgspec.structs import replace

from holdfast.agents.api.agent import (
    AsyncPersistentAgent,
    PersistentAgent,
    attach_object,
    check_kind,
    restore_agent,
    restore_persister,
)
from holdfast.agents.api.external_machine import ExternalMachineOperations
from holdfast.agents.api.handle import AgentHandle, AgentHandleOperations, AgentOperations, AsyncAgentHandle
from holdfast.agents.definition.options import Policies
from holdfast.agents.definition.spec import Spec, registry
from holdfast.agents.recovery.rollback import roll_back
from holdfast.agents.recovery.startup import resolve_manually
from holdfast.agents.runtime.autosave import AutosaveWorker
from holdfast.agents.runtime.metrics import StoreMetrics
from holdfast.agents.runtime.two_phase import Recovery
from holdfast.agents.steps.api import AsyncSteps, AsyncTimers, Steps, Timers
from holdfast.agents.steps.records import StepLine
from holdfast.agents.steps.retention import PrunedSteps, delete_agent, prune_agents, prune_line
from holdfast.agents.steps.signals import send_signal
from holdfast.agents.storage import json_document, listing
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.listing import AgentFilter, AgentInfo, AgentStep
from holdfast.agents.storage.record import AgentRecord, Status, error_text
from holdfast.agents.storage.transition_log import TransitionRecord, read_transitions
from holdfast.agents.transfer.offer import Transfer, read_transfers
from holdfast.agents.transfer.transfer import transfer
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, operation, run, sync_or_async
from holdfast.engine import validation
from holdfast.engine.pages import Page, paged
from holdfast.engine.row_format import StepRef
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, InvalidError, TransientError, UnavailableError
from holdfast.history import comparison
from holdfast.history.diff_result import Diff
from holdfast.security.handle import StoreHandle
from holdfast.time_parser import Duration, Time, parse_nanoseconds, parse_time

A = TypeVar("A", bound=PersistentAgent)
B = TypeVar("B", bound=AsyncPersistentAgent)
T = TypeVar("T")

_MAX_CREATIONS = 1000
"""How many creations with an uncertain outcome are remembered at most."""


class AttachOptions(Policies, total=False):
    """The options of `attach`."""

    kind: type | Spec | str | None
    configuration: Mapping[str, Any] | None


class AgentsOperations(ExternalMachineOperations):
    """Operations on the agents of a store. `Agents` and `AsyncAgents` have these as methods."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    # Live agents ----------------------------------------------------------------------------------------------

    async def _create(self, kind: type | Spec | str, id: str, configuration: dict[str, Any]) -> Any:
        line = AgentLine(self._handle, id)
        await line.allow("write")
        spec = registry.of(kind)
        creations, packed = AutosaveWorker.of(self._handle.engine).creations, self._handle.codec.pack(configuration)
        request = (type(self), line.line, self._handle.guard.actor, spec.name, packed)
        earlier = creations.pop(request, None)
        if earlier is not None and await self._save_new(earlier, request):
            return earlier
        if await line.latest_step() is not None:
            raise json_document.agent_exists_error(line)
        agent = attach_object(spec.create(configuration, line.where), self, id, spec, dict(configuration), {})
        try:
            await self._save_new(agent, request)
        except ConflictError as error:
            raise json_document.agent_exists_error(line) from error  # another was first
        return agent

    async def _save_new(self, agent: AgentOperations, request: Hashable) -> bool:
        """Save a new agent, or resolve an earlier save whose outcome is uncertain. Returns whether it is saved."""
        persister = agent.persister
        try:
            if persister.uncertain_attempt is None:
                await persister.commit("create", [persister.build_event("agent", "create")], hook="agent.create")
                return True
            async with persister.save_lock.acquire():
                return await persister.resolve_uncertain()
        finally:
            if persister.uncertain_attempt is not None:
                creations = AutosaveWorker.of(self._handle.engine).creations
                creations[request] = agent
                if len(creations) > _MAX_CREATIONS:
                    del creations[next(iter(creations))]

    def _attach(
        self,
        agent: Any,
        id: str,
        kind: type | Spec | str | None = None,
        configuration: Mapping[str, Any] | None = None,
        **policies: Unpack[Policies],
    ) -> Any:
        if isinstance(agent, AgentHandleOperations):
            if agent.id != id:
                raise InvalidError(
                    "the object is already attached to an agent",
                    where=f"agent {agent.id!r}",
                    hint="Attach the object itself",
                )
            check_kind(agent, self)
            agent._attach_again(AgentLine(self._handle, id), agent.persister.spec.options.with_policies(policies))
            return agent
        spec = registry.of(type(agent) if kind is None else kind)
        checked = None if configuration is None else dict(validation.require_mapping(configuration, "configuration"))
        return attach_object(agent, self, id, spec, checked, policies)

    # Records --------------------------------------------------------------------------------------------------

    @operation
    async def load(self, id: str, *, version: int | None = None, at: str | datetime | None = None) -> AgentRecord:
        """Return the record of an agent: the newest, that of a version, or that of a time; `at` may also be the id of a
        step. Raises `NotFoundError`."""
        line = await self._readable_line(id)
        record = await line.read_record(await self._point(line, version, at))
        await self._handle.guard.saw(line.scope, ())
        return record

    @operation
    async def exists(self, id: str) -> bool:
        """Return whether there is an agent with this id."""
        line = await self._readable_line(id)
        return await line.latest_step() is not None

    @operation
    async def messages(
        self, id: str, start: int | None = None, stop: int | None = None, *, version: int | None = None
    ) -> list[Any]:
        """Return saved messages of an agent as `list[start:stop]` does; the newest, or those of a version."""
        line = await self._readable_line(id)
        messages = await line.read_messages(await line.require_step(version), start, stop)
        await self._handle.guard.saw(line.scope, ())
        return messages

    @operation
    @paged
    async def history(self, id: str, *, limit: int = 100, cursor: str | None = None) -> Page[AgentStep]:
        """List the steps of an agent, the newest first, a page of them. The id of a step is a cursor, too: of what is
        older."""
        line = await self._readable_line(id)
        newest = await line.require_step()
        count = validation.require_count(limit, "limit")
        steps = await listing.list_steps(line, newest, validation.cursor_text(cursor), count + 1)
        return Page.cut(steps, count, lambda step: step.id)

    @operation
    async def diff(self, id: str, a: int | str | None = None, b: int | str | None = None) -> Diff:
        """Compare two versions of an agent, or two steps by their ids. The default of `b` is the newest step, and that
        of `a` the step before `b`."""
        line, engine = await self._readable_line(id), self._handle.engine
        new = comparison.ComparedPoint(line.line, await self._find_step(line, b))
        if a is None:
            old = await comparison.find_parent(engine, new)
        else:
            old = new._replace(point=await self._find_step(line, a))
        diff = await comparison.compare(engine, old, new)
        await self._handle.guard.saw(line.scope, ())
        return diff

    @operation
    async def export(self, id: str, *, version: int | None = None) -> dict[str, Any]:
        """Return an agent as one JSON document that people can read, with its messages: the newest, or a version."""
        line = await self._readable_line(id)
        document = await json_document.export_document(line, await line.require_step(version))
        await self._handle.guard.saw(line.scope, ())
        return document

    @operation(changes=True)
    async def import_(self, document: Mapping[str, Any], *, id: str | None = None) -> AgentRecord:
        """Save an agent from a document of `export`: under the id that it had, or another. Raises `ConflictError` if
        the id is in use."""
        new_id = json_document.check_document(document).get("id", "") if id is None else id
        return await json_document.import_document(AgentLine(self._handle, new_id), document)

    @operation(changes=True)
    async def delete(self, id: str) -> None:
        """Delete an agent permanently: its record, its messages, its history, its steps and timers; or the steps and
        timers of one that was never saved. Its audit records stay. Raises `DeniedError` if it is on hold. The state of
        its scope, `store.state(agent=id)`, is not affected."""
        await delete_agent(self._handle, id)

    # Durable steps --------------------------------------------------------------------------------------------

    @operation
    @paged
    async def unsaved(self, *, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """List the ids of agents that have durable steps, timers or signals, and were never saved, a page of them.
        `delete` deletes these. The id of one is a cursor."""
        count = validation.require_count(limit, "limit")
        found = await listing.list_unsaved(self._handle, count + 1, validation.cursor_text(cursor))
        return Page.cut(found, count, lambda id: id)

    @operation(changes=True)
    async def signal(
        self, agent: str, name: str, value: Any = None, *, id: str | None = None, create: bool = False
    ) -> bool:
        """Send a signal to an agent, which `agent.wait_for(name)` returns, now or later. Returns False if one with this
        id was sent before. `NotFoundError` if there is no such agent; with `create`, it is kept for one that is saved
        later. It takes the right to write `signal` of the scope `agent:…/custom:steps/main`."""
        return await send_signal(StepLine(AgentLine(self._handle, agent)), name, value, id, create=create)

    @operation(changes=True, not_in_scripts="Retention is the host's.")
    async def prune_steps(
        self, older_than: Duration, *, agent: str | None = None, dry_run: bool = False
    ) -> PrunedSteps:
        """Delete the records of durable steps, sleeps and waits that ended longer ago, signals that nobody waited for,
        and timers that nobody delivered: of one agent, or of all that the caller may write. A step that is deleted is
        run again if it is asked for. The job `prune-steps` does this."""
        before = self._handle.now() - parse_nanoseconds(older_than, "age")
        if agent is None:
            return await prune_agents(self._handle, before, dry_run=dry_run)
        found = PrunedSteps()
        await prune_line(StepLine(AgentLine(self._handle, agent)), before, found, dry_run=dry_run)
        return found

    def _steps(self, id: str) -> Steps:
        """Return the durable steps of an agent, whether it is live or not."""
        return Steps(StepLine(AgentLine(self._handle, id)))

    @sync_or_async(_steps)
    def steps(self, id: str) -> AsyncSteps:
        return AsyncSteps(StepLine(AgentLine(self._handle, id)))

    def _timers(self, id: str) -> Timers:
        """Return the timers of an agent, whether it is live or not."""
        return Timers(StepLine(AgentLine(self._handle, id)))

    @sync_or_async(_timers)
    def timers(self, id: str) -> AsyncTimers:
        return AsyncTimers(StepLine(AgentLine(self._handle, id)))

    # History --------------------------------------------------------------------------------------------------

    @operation
    async def machine(self, id: str) -> dict[str, Any] | None:
        """Return the states and transitions that the machine of an agent was last declared with, as `Machine.of` takes
        them: without guards, validators and actions, which are in its code. None if the agent has no machine."""
        line = await self._readable_line(id)
        await line.require_step()
        return await line.read_machine()

    @operation
    @paged
    async def transitions(
        self,
        id: str,
        *,
        trigger: str | None = None,
        outcome: str | None = None,
        oldest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TransitionRecord]:
        """List the transitions of an agent's machine, the latest first, or the oldest, a page of them: those of one
        trigger, or of one outcome (`ok` or `error`)."""
        count = validation.require_count(limit, "limit")
        records = await read_transitions(
            AgentLine(self._handle, id),
            limit=count + 1,
            cursor=cursor,
            trigger=trigger,
            outcome=outcome,
            oldest_first=oldest_first,
        )
        return Page.cut(records, count, lambda record: record.cursor)

    @operation(changes=True)
    async def rollback(self, id: str, to: str | int) -> AgentRecord:
        """Roll an agent back to a version, to a checkpoint by its id, or to when it was last in a state by its name. A
        new step is saved; nothing is rewritten."""
        line = AgentLine(self._handle, id)
        return await line.read_record(await roll_back(line, to))

    @operation(changes=True)
    async def resolve(self, id: str, how: Literal["back", "forward"]) -> Recovery:
        """Resolve by hand what an agent left half-done: undo it (`"back"`), or finish it without its action
        (`"forward"`), since the application's code may not be available."""
        return await resolve_manually(AgentLine(self._handle, id), how, restore_persister)

    @operation(changes=True, rights=("read", "write"))
    async def transfer(
        self,
        source: str,
        target: str,
        *,
        context: Mapping[str, Any] | None = None,
        reason: str = "",
        accept: bool = False,
    ) -> Transfer:
        """Hand the conversation and the context of an agent over to another one. See `agent.transfer`.

        Both agents are restored to be asked; a process that runs one of them gets `ConflictError` at its next save.
        With `accept` the receiver is not asked, and its class need not be registered.
        """
        giver = await restore_persister(self._handle, source, allow_placeholder=True)
        return await transfer(giver, target, restore_persister, context=context, reason=reason, accept=accept)

    @operation(changes=True)
    async def transfer_many(
        self,
        targets: Mapping[str, str],
        *,
        context: Mapping[str, Any] | None = None,
        reason: str = "",
        accept: bool = False,
    ) -> Sequence[Transfer]:
        """Hand the conversations of several agents over: `transfer_many({"desk-1": "expert", "desk-2": "expert"})`.

        All agents must exist, and be allowed to the caller, before the first transfer begins. Each transfer is atomic
        and none depends on another. One that is refused or fails does not keep the others from being made: its result
        has the phase that it got to, usually `refused` or `undone`, and the error. If the store is unavailable, that is
        raised, with a note of the transfers that were made.
        """
        pairs = dict(validation.require_mapping(targets, "targets"))
        for source, target in pairs.items():
            if source == target:
                raise InvalidError("an agent cannot transfer to itself", where=f"agent {target!r}")
        for id in dict.fromkeys((*pairs, *pairs.values())):
            line = AgentLine(self._handle, id)
            await line.allow("write")
            await line.require_step()
        results: list[Transfer] = []
        for source, target in pairs.items():
            line = AgentLine(self._handle, source)
            last, _ = await read_transfers(line, 1)
            try:
                giver = await restore_persister(self._handle, source, allow_placeholder=True)
                made = await transfer(giver, target, restore_persister, context=context, reason=reason, accept=accept)
                results.append(made)
            except (TransientError, UnavailableError) as error:
                done = ", ".join(each.source for each in results if not each.error)
                error.add_note(f"It was the transfer of agent {source!r}. Made before: {done or 'none'}")
                raise
            except Exception as error:  # noqa: BLE001 - it is the result of this one, and the others are still made
                recorded, _ = await read_transfers(line, 1)
                if recorded[:1] == last:  # it had not begun
                    now = to_datetime(self._handle.now())
                    recorded = [Transfer("", source, target, "refused", now, reason=str(reason))]
                results.append(replace(recorded[0], error=recorded[0].error or error_text(error)))
        return results

    @operation
    @paged
    async def transfers(self, id: str, *, limit: int = 100, cursor: str | None = None) -> Page[Transfer]:
        """List the transfers from and to an agent, the latest first, a page of them, each in the phase that its line
        records."""
        count, line = validation.require_count(limit, "limit"), await self._readable_line(id)
        if await line.latest_step() is None:
            raise line.not_found_error()
        return Page(*await read_transfers(line, count, cursor))

    def metrics(self) -> StoreMetrics:
        """Return the metrics of saves: the totals of all agents that this program has or had of the store, and of each
        live one. An identity gets those of its own agents."""
        return AutosaveWorker.of(self._handle.engine).metrics(self._handle.guard.actor)

    async def _readable_line(self, id: str) -> AgentLine:
        line = AgentLine(self._handle, id)
        await line.allow("read")
        return line

    async def _point(self, line: AgentLine, version: int | None, at: str | datetime | None) -> StepRef:
        if version is not None and at is not None:
            raise InvalidError("pass a version or a time, not both", where=line.where)
        return await line.require_step(version) if at is None else await line.resolve_step(at)

    async def _find_step(self, line: AgentLine, name: int | str | None) -> StepRef:
        return await line.resolve_step(name) if isinstance(name, str) else await line.require_step(name)

    # Last, since its name hides the built-in type.

    @operation
    async def list(
        self,
        *,
        kind: str | type | Spec | None = None,
        status: Status | None = None,
        state: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        pending: bool | None = None,
        prefix: str = "",
        since: Time | None = None,
        until: Time | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[AgentInfo]:
        """List agents in the order of their ids, a page of them. Filter them by class, status, state of their machine,
        entries of their metadata, whether something is half-done (`pending`), prefix of the id, and time of the last
        save (`since`, and before `until`). No states are read. An identity gets those that it may read."""
        name = kind if kind is None or isinstance(kind, str) else registry.of(kind).name
        now = to_datetime(self._handle.now()).astimezone()
        first, last = (None if each is None else parse_time(each, now) for each in (since, until))
        entries = validation.require_mapping(metadata or {}, "metadata")
        conditions = AgentFilter(name, status, state, entries, first, last, pending)
        count = validation.require_count(limit, "limit")
        self._handle.engine.context.rows.check_prefix(prefix)

        async def read(cursor: str | None) -> Page[AgentInfo]:
            after = validation.cursor_text(cursor)
            agents = await listing.list_agents(self._handle, conditions, prefix, after, count + 1)
            return Page.cut(agents, count, lambda info: info.id, read)

        return await read(cursor)


class Agents(SyncApi, AgentsOperations):
    """The agents of a store: `store.agents`."""

    @overload
    def create(self, kind: type[A], id: str, /, **configuration: Any) -> A: ...
    @overload
    def create(self, kind: type[T], id: str, /, **configuration: Any) -> AgentHandle[T]: ...
    @overload
    def create(self, kind: Spec | str, id: str, /, **configuration: Any) -> Any: ...
    def create(self, kind: type | Spec | str, id: str, /, **configuration: Any) -> Any:
        """Create an agent, and save it. `kind` is its class, or the name under which that is registered.

        Returns the agent; or, if its class inherits no operations, its `AgentHandle`. Raises `ConflictError` if the id
        is in use. After `OutcomeUnknownError`, repeat the call with the same arguments to complete it.
        """
        return run(self._create(kind, id, configuration))

    @overload
    def restore(self, id: str, kind: type[A], **policies: Unpack[Policies]) -> A: ...  # type: ignore[overload-overlap]
    @overload
    def restore(self, id: str, kind: type[T], **policies: Unpack[Policies]) -> AgentHandle[T]: ...
    @overload
    def restore(self, id: str, kind: None = None, **policies: Unpack[Policies]) -> Any: ...
    def restore(self, id: str, kind: type | None = None, **policies: Unpack[Policies]) -> Any:
        """Restore a live agent: create it by the class that is registered, with the configuration, the fields, the
        messages, the state and everything else that was saved last. Call `start` or `resume` to run it.

        Nothing is imported by names in the store: raises `NotFoundError` if the class is not registered; and
        `InvalidError` if that is not `kind`, nor derived from it.
        """
        return run(restore_agent(self, id, policies, kind))

    @overload
    def attach(self, agent: A, id: str, **options: Unpack[AttachOptions]) -> A: ...  # type: ignore[overload-overlap]
    @overload
    def attach(self, agent: T, id: str, **options: Unpack[AttachOptions]) -> AgentHandle[T]: ...
    def attach(self, agent: Any, id: str, **options: Unpack[AttachOptions]) -> Any:
        """Attach an object to the store, under an id. Nothing is read or saved yet: `start` does that.

        Returns the agent; or, if its class inherits no operations, its `AgentHandle`. The options are `kind`, its class
        of agents, if a function created it; `configuration`, with which it was created, if its attributes do not show
        that; and those of `Policies`, which override the options of its class.

        An agent that is attached already, given as itself or as its `AgentHandle`, continues from what it saved last:
        its unsaved changes are saved through the new handle of the store.
        """
        return self._attach(agent, id, **options)


class AsyncAgents(AsyncApi, AgentsOperations):
    """The asyncio form of `Agents`: operations are awaited."""

    @overload
    async def create(self, kind: type[B], id: str, /, **configuration: Any) -> B: ...
    @overload
    async def create(self, kind: type[T], id: str, /, **configuration: Any) -> AsyncAgentHandle[T]: ...
    @overload
    async def create(self, kind: Spec | str, id: str, /, **configuration: Any) -> Any: ...
    async def create(self, kind: type | Spec | str, id: str, /, **configuration: Any) -> Any:
        """See `Agents.create`."""
        return await arun(self._create(kind, id, configuration))

    @overload
    async def restore(  # type: ignore[overload-overlap]
        self, id: str, kind: type[B], **policies: Unpack[Policies]
    ) -> B: ...
    @overload
    async def restore(self, id: str, kind: type[T], **policies: Unpack[Policies]) -> AsyncAgentHandle[T]: ...
    @overload
    async def restore(self, id: str, kind: None = None, **policies: Unpack[Policies]) -> Any: ...
    async def restore(self, id: str, kind: type | None = None, **policies: Unpack[Policies]) -> Any:
        """See `Agents.restore`."""
        return await arun(restore_agent(self, id, policies, kind))

    @overload
    def attach(self, agent: B, id: str, **options: Unpack[AttachOptions]) -> B: ...  # type: ignore[overload-overlap]
    @overload
    def attach(self, agent: T, id: str, **options: Unpack[AttachOptions]) -> AsyncAgentHandle[T]: ...
    def attach(self, agent: Any, id: str, **options: Unpack[AttachOptions]) -> Any:
        """See `Agents.attach`."""
        return self._attach(agent, id, **options)
