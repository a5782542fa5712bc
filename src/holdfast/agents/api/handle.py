"""Operations on an attached agent, and the handle of an object that does not inherit them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast._lazy import load
from holdfast.agents.api.conversation import AsyncConversation, Conversation
from holdfast.agents.api.tools import AsyncTools, Tools
from holdfast.agents.api.workflow import Workflow
from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.spec import Spec
from holdfast.agents.definition.state_machine import OnIncomplete
from holdfast.agents.recovery.rollback import reload, roll_back_live
from holdfast.agents.recovery.startup import recover, resume, start
from holdfast.agents.runtime.autosave import ChangeBlock, metrics_of
from holdfast.agents.runtime.data import AgentData
from holdfast.agents.runtime.metrics import AgentMetrics
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.agents.runtime.placeholder import RestoreAgent
from holdfast.agents.runtime.two_phase import Recovery
from holdfast.agents.steps.api import AsyncSteps, AsyncTimers, OnceOperations, Steps, Timers
from holdfast.agents.steps.records import StepLine
from holdfast.agents.steps.signals import Signal
from holdfast.agents.steps.timers import sleep_until
from holdfast.agents.steps.waits import wait_for_signal
from holdfast.agents.storage.agent_line import AgentLine
from holdfast.agents.storage.listing import read_summary
from holdfast.agents.storage.record import Status, error_text
from holdfast.agents.transfer.offer import Transfer
from holdfast.agents.transfer.transfer import resolve_receiver, transfer
from holdfast.backends.runtime.drivers import AsyncApi, Part, SyncApi, arun, declare, operation, run
from holdfast.engine.guard import current_authority
from holdfast.engine.model.operators import UpdateOperator
from holdfast.engine.paths import require_path
from holdfast.errors import InvalidError
from holdfast.recording.journal import record_call
from holdfast.time_parser import Duration, Time, parse_duration

T = TypeVar("T")


@declare(not_remote="An agent runs where its code is.")
class AgentOperations(OnceOperations):
    """The operations on an attached agent."""

    _persister: AgentPersister | None = None
    _restore_other: RestoreAgent
    """Restores the other agent of a transfer."""

    @property
    def persister(self) -> AgentPersister:
        """The persister of the agent. Raises `InvalidError` if the agent is not attached to a store."""
        if self._persister is None:
            raise InvalidError("the agent is not attached to a store", hint='Call attach(store, "id") first')
        return self._persister

    @property
    def id(self) -> str:
        """The id of the agent."""
        return self.persister.line.id

    @property
    def version(self) -> int:
        """The number of steps; 0 if the agent was never saved."""
        return self.persister.version

    @property
    def status(self) -> Status:
        """The status of the agent in its lifecycle."""
        return self._data.status

    @property
    def state(self) -> str:
        """The state of the agent's machine."""
        return self._data.state

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration that the agent was created with."""
        return self._data.configuration

    conversation: Part[Conversation, AsyncConversation] = Part(
        "holdfast.agents.api.conversation.Conversation",
        "The agent's messages.",
        lambda kind, agent: kind(agent._data.conversation, agent._persister),
    )

    @property
    def context(self) -> dict[str, Any]:
        """The agent's knowledge of its work."""
        return self._data.context

    tools: Part[Tools, AsyncTools] = Part(
        "holdfast.agents.api.tools.Tools",
        "The agent's tools: their permissions, and statistics of their use.",
        lambda kind, agent: kind(agent._data, agent._persister),
    )

    @property
    def workflow(self) -> Workflow:
        """The progress of the agent's work."""
        return Workflow(self._data, self._persister)

    @property
    def metadata(self) -> dict[str, Any]:
        """Other data that is stored with the agent, and shown in lists."""
        return self._data.metadata

    @property
    def _data(self) -> AgentData:
        return self.persister.data

    def change_block(self) -> ChangeBlock:
        """Make changes that belong together: `with agent.change_block():`. They count as one change, and no background
        save sees half of them. With `write_through` and an `AsyncStore`, use `async with`: they are saved at the end of
        the block."""
        return ChangeBlock(self.persister)

    def mark_changed(self, count: int = 1) -> None:
        """Report a change that is not detected otherwise, such as of an attribute, so that it is saved automatically in
        time. With `Autosave(write_through=True)` and a `Store`, it is saved when this returns."""
        self.persister.mark_changed(count)

    def update_field(self, path: str | tuple[Any, ...], operator: UpdateOperator) -> Any:
        """Change a field, or a value in the dicts of one, by an operator: `agent.update_field("served", Increment(1))`.
        Returns the new value.

        The next save stores the operator. If another process saved the agent first and `on_conflict` is `"merge"`, the
        operator is applied to what that process saved, and is not compared with it.
        """
        persister, keys = self.persister, require_path(path)
        with persister.lock:
            fields = persister.spec.persist(persister.agent)
            value = persister.data.operators.apply(persister.line.handle.codec, fields, keys, operator)
            persister.spec.set_field(persister.agent, keys[0], fields)
        persister.mark_changed()
        return value

    @operation(changes=True)
    async def flush(self) -> int:
        """Save all changes made so far; without any, there is no step. Returns the version."""
        await self.persister.save(if_changed=True)
        return self.persister.version

    @property
    def metrics(self) -> AgentMetrics:
        """Metrics of the agent's saves."""
        return metrics_of(self.persister)

    @property
    def autosave_error(self) -> BaseException | None:
        """The error of the last save, if that failed."""
        return self.persister.error

    @operation(changes=True)
    async def save(self) -> int:
        """Save the agent, and return its version."""
        await self.persister.save()
        return self.persister.version

    @operation
    async def reload(self) -> None:
        """Load the newest saved state, usually another process's. Unsaved changes are lost."""
        async with self.persister.save_lock.acquire():
            if await reload(self.persister) is None:
                raise self.persister.line.not_found_error()

    @operation(changes=True)
    async def transition(self, trigger: str, data: Any = None) -> str:
        """Take a transition of the machine, and return the state that it led to."""
        return await self.persister.lifecycle.transition(trigger, data)

    @operation(changes=True)
    async def start(self) -> None:
        """Start the agent, from its newest saved state if there is one. What is half-done is resolved first: see
        `recoveries`."""
        await self._begin(start)

    @operation(changes=True)
    async def pause(self) -> None:
        """Pause the agent, and save it."""
        await self.persister.lifecycle.pause()
        await self._end()

    @operation(changes=True)
    async def resume(self) -> None:
        """Resume the agent where it was paused; also in another process."""
        await self._begin(resume)

    @operation(changes=True)
    async def stop(self) -> None:
        """Stop the agent, and save it."""
        await self.persister.lifecycle.stop()
        await self._end()

    @operation(changes=True)
    async def fail(self, error: BaseException | str) -> None:
        """Record that the agent failed."""
        await self.persister.lifecycle.fail(error)
        await self._end(error)

    @operation(changes=True)
    async def recover(self, how: OnIncomplete | None = None) -> list[Recovery]:
        """Resolve what was interrupted: as `how` says, or by `on_incomplete`. For a transition or a change of status,
        unsaved changes since it began are lost: its action was not finished. Otherwise, nothing is lost."""
        return await recover(self.persister, self._restore_other, how)

    @operation(changes=True)
    async def rollback(self, to: str | int) -> int:
        """Roll the agent back to an earlier version, to a checkpoint, or to when it was last in a state of its machine,
        by a new step. Returns the version. Unsaved changes are lost."""
        await roll_back_live(self.persister, to)
        return self.persister.version

    @operation(changes=True)
    async def transfer(
        self, to: Any, *, context: Mapping[str, Any] | None = None, reason: str = "", accept: bool = False
    ) -> Transfer:
        """Hand the conversation and the context over to another agent: a live one, or the one with an id.

        The messages follow those of the receiver. Entries of its context with the same name are replaced; those of
        `context` are added to the giver's. Either agent may refuse: the receiver by its method `accepts(offer)`, the
        giver by `offers(offer)`, with an error or with a false result other than None. That raises `DeniedError`, code
        `transfer-refused`, and nothing changes. With `accept`, the receiver is not asked. Its `on_receive(offer)` is
        called in the end.
        """
        receiver = resolve_receiver(to)
        return await transfer(
            self.persister, receiver, self._restore_other, context=context, reason=reason, accept=accept
        )

    @property
    def recoveries(self) -> list[Recovery]:
        """The changes that were found half-done at starts, and how they were resolved."""
        return list(self.persister.lifecycle.recoveries)

    # Durable steps --------------------------------------------------------------------------------------------

    @property
    def _step_line(self) -> StepLine:
        lifecycle = self.persister.lifecycle
        line: StepLine | None = lifecycle.step_line
        if line is None:
            line = lifecycle.step_line = StepLine(self.persister.line, self.persister)
        return line

    def _reach(self, kind: str, key: str) -> None:
        """Remember that this process has come to a sleep or a wait, for versions of the code."""
        self.persister.lifecycle.reached_steps.add(f"{kind}/{self._step_line.check_key(key)}")

    steps: Part[Steps, AsyncSteps] = Part(
        "holdfast.agents.steps.api.Steps",
        "The durable steps of the agent.",
        lambda kind, agent: kind(agent._step_line, agent.persister),
    )

    timers: Part[Timers, AsyncTimers] = Part(
        "holdfast.agents.steps.api.Timers", "The timers of the agent.", lambda kind, agent: kind(agent._step_line)
    )

    def _durable_steps(self) -> Any:
        agent: Any = self  # of a `Store` or an `AsyncStore`: the steps are alike
        return agent.steps

    @operation(changes=True, not_in_scripts="A script has seconds: `timers.set` signals the agent later.")
    async def sleep_until(self, when: Time | Duration, *, key: str) -> bool:
        """Sleep until a time, or for a duration. It is recorded under the key: after a restart, the same call sleeps
        for what is left. Returns False if `timers.cancel(key)` ended it."""
        self._reach("sleep", key)
        slept: bool = await record_call("timer", key, None, partial(sleep_until, self._step_line, when, key))
        return slept

    @operation(changes=True, not_in_scripts="A script has seconds: `timers.set` signals the agent later.")
    async def sleep(self, duration: Duration, *, key: str) -> bool:
        """Sleep for a duration. See `sleep_until`."""
        self._reach("sleep", key)
        length = parse_duration(duration, positive=True)
        slept: bool = await record_call("timer", key, None, partial(sleep_until, self._step_line, length, key))
        return slept

    @operation(changes=True)
    async def wait_for(self, signal: str, *, timeout: Duration | None = None, key: str | None = None) -> Signal | None:
        """Wait for a signal of a name, and take it: the oldest, also if it came before. None after the timeout.

        With a key, what came is recorded, also that nothing did: after a restart, the same call returns it again, and
        the timeout counts from the first one.
        """
        if key is not None:
            self._reach("wait", key)

        async def wait() -> dict[str, Any] | None:
            found = await wait_for_signal(self._step_line, signal, timeout, key)
            return None if found is None else {name: getattr(found, name) for name in Signal.__struct_fields__}

        taken = await record_call("signal", signal, None, wait)
        return None if taken is None else Signal(**taken)

    async def _enter_context(self) -> None:
        line = self.persister.line
        await line.allow("read")
        newest = await line.latest_step()
        is_paused = newest is not None and read_summary(newest).get("status") == "paused"
        await self._begin(resume if is_paused else start)

    async def _begin(self, action: Callable[[AgentPersister, RestoreAgent], Awaitable[None]]) -> None:
        """Start or resume the agent: as a run that workers take over, if it recovers, and is in none."""
        persister = self.persister
        begin = partial(action, persister, self._restore_other)
        if not persister.options.recover or persister.claim is not None or current_authority().claim is not None:
            await begin()
        else:
            await load("holdfast.agents.runs.live_agents", "begin_live")(persister, begin)

    async def _end(self, error: BaseException | str = "") -> None:
        """End the run of an agent that recovers."""
        if self.persister.live_run is not None:
            await self.persister.live_run.end(error if isinstance(error, str) else error_text(error))

    async def _exit_context(self, error: BaseException | None) -> None:
        lifecycle = self.persister.lifecycle
        if error is None:
            if self.persister.data.status == "running":
                await lifecycle.stop()
            await self._end()
            return
        try:
            await lifecycle.fail(error)
            await self._end(error)
        except Exception as other:  # noqa: BLE001 - it becomes a note of the error of the block, which matters more
            error.add_note(f"That {lifecycle.where} failed could not be recorded: {error_text(other)}")


class AgentContext(AgentOperations):
    """Runs an agent of a `Store` for the length of a `with` block."""

    def __enter__(self) -> Self:
        """Start the agent, or resume it if it is paused."""
        run(self._enter_context())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the agent, if it still runs; or record that it failed, with the error that ends the block."""
        run(self._exit_context(error))


class AsyncAgentContext(AgentOperations):
    """Runs an agent of an `AsyncStore` for the length of an `async with` block."""

    async def __aenter__(self) -> Self:
        """Start the agent, or resume it if it is paused."""
        await arun(self._enter_context())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop the agent, if it still runs; or record that it failed, with the error that ends the block."""
        await arun(self._exit_context(error))


class AgentHandleOperations(AgentOperations, Generic[T]):
    """An attached plain object, and the operations on it."""

    def __init__(
        self,
        line: AgentLine,
        agent: T,
        spec: Spec,
        configuration: dict[str, Any],
        options: AgentOptions,
        restore: RestoreAgent,
    ) -> None:
        data = AgentData(configuration, state=spec.machine.initial if spec.machine is not None else "")
        self._restore_other = restore
        self._attach(AgentPersister(line, agent, spec, data, options))

    def _attach_again(self, line: AgentLine, options: AgentOptions) -> None:
        """Continue through another handle of the store."""
        former = self.persister
        self._attach(AgentPersister(line, former.agent, former.spec, former.data, options, former))

    def _attach(self, persister: AgentPersister) -> None:
        self._persister = persister
        persister.autosave(sync=isinstance(self, SyncApi))
        hook = persister.find_method("on_attach")
        if hook is not None and hook(self) is not None:
            raise InvalidError("on_attach must be a plain function that returns None", where=persister.where)

    @property
    def agent(self) -> T:
        """The object itself."""
        agent: T = self.persister.agent
        return agent

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}: {self.agent!r}>"


class AgentHandle(SyncApi, AgentContext, AgentHandleOperations[T]):
    """A plain object that is attached to a `Store`::

    handle = store.agents.attach(Plain(), "plain-1")
    handle.start()
    handle.agent.work()
    handle.stop()
    """


class AsyncAgentHandle(AsyncApi, AsyncAgentContext, AgentHandleOperations[T]):
    """The asyncio form of `AgentHandle`: operations are awaited, and hooks and actions may be coroutine functions."""
