"""Pydantic AI on Holdfast: `HoldfastConversationStore`, conversations in threads, and `HoldfastDurability`, which makes
model requests and tool calls steps of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypedDict
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
)
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models import Model
from pydantic_ai.tools import AgentDepsT

from holdfast.agents.runs.steps import RunSteps, current_steps, step
from holdfast.errors import ConflictError, NotFoundError
from holdfast.interfaces.conversations import MESSAGES, AnyStore, ConversationThread, call, list_threads, require_store
from holdfast.state import Append

__all__ = ["HoldfastConversationStore", "HoldfastDurability"]

_ENTRIES, _RECORD, _LEFT = "entries", "record", "left"
_REMEMBERED = 4096
_RECORDS = TypeAdapter(ConversationRecord)


@dataclass(frozen=True)
class _Stored:
    """A conversation as it is in its thread: the checkpoint, the record, the history, and entries that it left."""

    head: Any
    record: ConversationRecord
    history: dict[str, Any]
    """Messages of the history by the ids of their entries, in order."""
    left: dict[str, tuple[str | None, Any]]
    """Parents and messages of entries that are in branches only."""

    def path(self, entry: str | None) -> dict[str, Any] | None:
        """Return the history up to an entry; None if the conversation does not have it."""
        behind: list[str] = []
        while entry in self.left:
            behind.append(entry)
            entry = self.left[entry][0]
        if entry is not None and entry not in self.history:
            return None
        found = {}
        for id, message in self.history.items() if entry is not None else ():
            found[id] = message
            if id == entry:
                break
        return found | {id: self.left[id][1] for id in reversed(behind)}

    def others(self, history: Mapping[str, Any]) -> dict[str, tuple[str | None, Any]]:
        """Return the entries that are not in a history, with their parents."""
        parents = dict(zip(self.history, [None, *self.history], strict=False))
        every = {id: (parents[id], message) for id, message in self.history.items()} | self.left
        return {id: each for id, each in every.items() if id not in history}


class HoldfastConversationStore(ConversationStore):
    """The conversations of Pydantic AI, each in a thread of its own.

    ::

        conversations = HoldfastConversationStore(store)
        conversation = await conversations.load("chat-1") or Conversation(conversation_id="chat-1")
        result = await agent.run("Hello", conversation=conversation)
        await conversations.save(result)

    The thread has the name of the conversation, its messages in the form of `ModelMessagesTypeAdapter`, and a
    checkpoint for each save. `branch` keeps the messages that it leaves; `fork` copies those that it takes over;
    `delete` deletes the history, too. A `Store` and an `AsyncStore` do equally, and so do their views of identities.
    """

    def __init__(self, store: AnyStore) -> None:
        self._store = require_store(store, "a store of conversations")
        self._owners: dict[str, str] = {}
        """The conversations of entries that were seen last."""
        self._latest: _Stored | None = None
        """The conversation that was saved last."""

    async def append(self, conversation_id: str, messages: Sequence[ModelMessage]) -> None:
        """Add messages at the end of a conversation, such as `result.new_messages()`, whoever else saves it."""
        while True:
            record = await self.read_record(conversation_id)
            last = None if record is None else record.head_id
            entries: list[ConversationEntry] = []
            for message in messages:
                entries.append(ConversationEntry(parent_id=last, message=message))
                last = entries[-1].id
            fresh = ConversationRecord(conversation_id=conversation_id, head_id=last)
            if record is not None:
                fresh = replace(record, head_id=last, revision=fresh.revision, updated_at=fresh.updated_at)
            try:
                await self.write_record(
                    fresh, new_entries=entries, expected_revision=None if record is None else record.revision
                )
            except ConversationConflict:
                continue
            return

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation; None if there is none."""
        stored = await self._read_stored(conversation_id, again=False)
        return None if stored is None else deepcopy(stored.record)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """Return the records of all conversations, or those of a scope, the latest first."""
        records = [each.record async for each in self._every() if scope is None or each.record.scope == scope]
        records.sort(key=lambda record: record.updated_at, reverse=True)
        return records[:limit]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Save a conversation in one checkpoint. `ConversationConflict` if it is not as it was expected to be."""
        name = record.conversation_id
        stored = await self._read_stored(name, again=False)
        if (None if stored is None else stored.record.revision) != expected_revision:
            raise ConversationConflict(name)
        messages = ModelMessagesTypeAdapter.dump_python([entry.message for entry in new_entries], mode="json")
        added = {entry.id: message for entry, message in zip(new_entries, messages, strict=True)}
        base = new_entries[0].parent_id if new_entries else record.head_id
        before = {} if stored is None else stored.path(base)
        if stored is None and base is not None:
            origin = await self._owner(base, record.forked_from)
            before = None if origin is None else origin.path(base)
        if before is None or record.head_id != next(reversed(before | added), None):
            raise ConversationConflict(name)
        fields = _RECORDS.dump_python(record, mode="json", exclude={"conversation_id", "head_id"})
        history = before | added
        state: dict[str, Any] = {MESSAGES: [*history.values()], _ENTRIES: [*history], _RECORD: fields}
        if stored is not None and (left := stored.others(history)):
            state[_LEFT] = {id: list(each) for id, each in left.items()}
        thread = self._thread(name)
        parent = await self._parent(thread) if stored is None else stored.head
        how = {"metadata": thread.mark, "parent": parent, "on_conflict": "raise"}
        try:
            if stored is not None and base == stored.record.head_id:  # the rest need not be packed again
                more = {MESSAGES: Append(*added.values()), _ENTRIES: Append(*added)} if added else {}
                head = await call(thread.handle.update, {**more, _RECORD: fields}, **how)
            else:
                head = await call(thread.handle.put, state, **how)
        except ConflictError as error:
            raise ConversationConflict(name) from error
        self._latest = _Stored(head, deepcopy(record), history, {} if stored is None else stored.others(history))
        self._remember(record)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation with its thread, and so all that it ever had. Forks have messages of their own."""
        stored = await self._read_stored(conversation_id)
        if stored is None or stored.record.revision != expected_revision:
            raise ConversationConflict(conversation_id)
        thread = self._thread(conversation_id)
        try:
            await call(
                thread.handle.put, {}, metadata=thread.mark, parent=stored.head, on_conflict="raise", kind="delete"
            )
        except ConflictError as error:
            raise ConversationConflict(conversation_id) from error
        await call(thread.handle.delete)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return an entry. `LookupError` if there is none."""
        return (await self.read_history(entry_id))[-1]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to one, the oldest first, or the last of them. `LookupError` if there is none."""
        stored = None if head_id is None else await self._owner(head_id, self._owners.get(head_id))
        path = None if stored is None else stored.path(head_id)
        if head_id is not None and path is None:
            raise LookupError(f"there is no entry {head_id!r}")
        ids = list(path or ())
        start = 0 if limit is None else max(len(ids) - limit, 0)
        values = ModelMessagesTypeAdapter.validate_python([(path or {})[id] for id in ids[start:]])
        parents = [None, *ids][start:]
        return [
            ConversationEntry(id=id, parent_id=parent, message=message)
            for id, parent, message in zip(ids[start:], parents, values, strict=False)
        ]

    def _thread(self, name: str) -> ConversationThread:
        return ConversationThread(self._store, name, "pydantic-ai")

    async def _parent(self, thread: ConversationThread) -> Any:
        """Return what the first save of a conversation follows: nothing, or what deleted the one before."""
        head = await thread.head()
        if head is not None and _RECORD in head.state:
            raise ConversationConflict(thread.handle.name)  # another one started it meanwhile
        return "" if head is None else head

    async def _read_stored(self, name: str, *, again: bool = True) -> _Stored | None:
        """Return a conversation; unless it is read `again`, that which was saved last, if nobody changed it since."""
        thread, latest = self._thread(name), self._latest
        if not again and latest is not None and latest.record.conversation_id == name:
            with suppress(NotFoundError):
                if (await call(thread.handle.find)).id == latest.head.id:
                    return latest
        head = await thread.head()
        if head is None or _RECORD not in head.state:
            return None
        state = head.state
        history = dict(zip(state[_ENTRIES], state[MESSAGES], strict=True))
        last = next(reversed(history), None)
        record = _RECORDS.validate_python({**state[_RECORD], "conversation_id": name, "head_id": last})
        self._remember(record)
        return _Stored(head, record, history, {id: (each[0], each[1]) for id, each in state.get(_LEFT, {}).items()})

    def _remember(self, record: ConversationRecord) -> None:
        for entry in (record.head_id, *record.branches):
            if entry is not None:
                self._owners.pop(entry, None)
                self._owners[entry] = record.conversation_id
        while len(self._owners) > _REMEMBERED:
            del self._owners[next(iter(self._owners))]

    async def _owner(self, entry: str, named: str | None) -> _Stored | None:
        """Return the conversation that has an entry: that which is named, or any."""
        found = None if named is None else await self._read_stored(named)
        if found is not None and found.path(entry) is not None:
            return found
        async for each in self._every():
            if each.path(entry) is not None:
                return each
        return None

    async def _every(self) -> AsyncIterator[_Stored]:
        """Yield all conversations, those that were saved last first."""
        async for info in list_threads(self._store, where="meta.framework=pydantic-ai", order="updated"):
            if (stored := await self._read_stored(info.thread)) is not None:
                yield stored


# Durable agents ---------------------------------------------------------------------------------------------------

_runs: WeakKeyDictionary[RunSteps, int] = WeakKeyDictionary()
"""How many runs of agents there were in each run."""


class StepConfig(TypedDict, total=False):
    """How a step is repeated: see `holdfast.step`."""

    retry: int
    on_unknown: Literal["raise", "retry"]


_MODEL: Final[StepConfig] = {"retry": 0, "on_unknown": "retry"}
_TOOL: Final[StepConfig] = {"retry": 0, "on_unknown": "raise"}


class HoldfastDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes the model requests and tool calls of an agent steps of a run.

    ::

        agent = Agent(model, name="support", capabilities=[HoldfastDurability()])

        @holdfast.workflow
        async def answer(question: str) -> str:
            return (await agent.run(question)).output

    A worker that takes the run up after another died goes on where it stopped: results that were recorded are returned,
    and neither the model nor a tool is called again. A model request that a worker died in is made again. What became
    of a tool call is then unknown, and the run fails, unless the tool says otherwise: `metadata={"holdfast":
    {"on_unknown": "retry"}}`, or `False` for a tool that is not to be a step. Outside of a run, the agent just runs.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        sequential_tools_in_durable_context=True,  # steps are known by their order
        tool_config_key="holdfast",
    )

    def __init__(self, *, models: Mapping[str, Model] | None = None, name: str | None = None) -> None:
        """`models` are those that a run may choose by their keys. `name` is that of the agent, if it has another in the
        names of steps."""
        super().__init__(models=models, name=name)

    @property
    def in_durable_context(self) -> bool:
        """Whether code is executed in a run, and not in one of its steps."""
        return bool(current_steps.get())

    def get_default_run_id(self) -> str | None:
        """Return the id of the agent's run, which is the same when the run is taken up."""
        steps = current_steps.get()
        if not steps:
            return None
        _runs[steps] = number = _runs.get(steps, 0) + 1
        return f"{steps.held.stored.id}:{number}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id of the conversation, which is the same when the run is taken up."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_durable_operation_backend(self) -> DurableOperationBackend[StepConfig]:
        """Return what makes operations steps."""

        def of_tool(id: DurableOperationId, tool: Any, name: str) -> StepConfig | Literal[False]:
            assert isinstance(id, ToolsetCallToolId | ToolsetValidateToolArgumentsId)  # noqa: S101 - for type checkers
            config: Any = self._build_resolve_tool_config(_TOOL)(tool, name)
            return config  # type: ignore[no-any-return]

        config = RoleBasedOperationConfig[StepConfig](
            model=_MODEL, event=_MODEL, capability=_TOOL, tool=_TOOL, resolve_tool=of_tool
        )
        return _Steps(agent_name=self.name, default_model_id=self.default_model_id, config=config)


class _Steps(JournalCallableOperationBackend[StepConfig]):
    """Runs an operation as a step."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,  # noqa: ARG002 - its name has all of it
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],  # noqa: ARG002 - steps are known by their order
        config: StepConfig,
    ) -> object:
        async def operation() -> object:
            return await body()

        operation.__name__ = name
        made = step(retry=config.get("retry", 0), on_unknown=config.get("on_unknown", "raise"))
        return await made(operation)()
