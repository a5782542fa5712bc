"""The Microsoft Agent Framework on Holdfast: `HoldfastCheckpointStorage`, the checkpoints of workflows, and
`HoldfastHistoryProvider`, the messages of sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    HistoryProvider,
    Message,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowEvent,
)

from holdfast.codec.registry import register
from holdfast.engine.types import Checkpoint
from holdfast.errors import NotFoundError
from holdfast.interfaces.conversations import AnyStore, ConversationThread, call, list_threads, require_store

__all__ = ["HoldfastCheckpointStorage", "HoldfastHistoryProvider"]

_FRAMEWORK = "agent-framework"
_CHECKPOINT = "checkpoint"


for _kind in (Message, Content, ChatResponse, ChatResponseUpdate, AgentResponse, AgentResponseUpdate):
    register(_kind, lambda value: value.to_dict(), _kind.from_dict, name=f"{_FRAMEWORK}: {_kind.__name__}")
register(WorkflowEvent, lambda event: event.to_dict(), WorkflowEvent.from_dict, name=f"{_FRAMEWORK}: WorkflowEvent")


class HoldfastCheckpointStorage:
    """The checkpoints of workflows, each workflow in a thread of its name.

    ::

        workflow = WorkflowBuilder(..., checkpoint_storage=HoldfastCheckpointStorage(store)).build()

    A checkpoint of the framework is one of the thread, tagged with its id; it follows the one that the framework says,
    so that a run that is resumed from an older one is a branch. Values keep their types, and nothing is pickled: of
    classes of your own, dataclasses and pydantic models are stored as they are; `holdfast.register` others. A `Store`
    and an `AsyncStore` do equally, and so do their views of identities.
    """

    def __init__(self, store: AnyStore) -> None:
        self._store = require_store(store, "a storage of checkpoints")
        self._workflows: dict[str, str] = {}
        """The workflows of checkpoints that were seen."""

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Save a checkpoint. Returns its id."""
        thread = self._thread(checkpoint.workflow_name)
        id: str = checkpoint.checkpoint_id
        fields: dict[str, Any] = {"metadata": {**thread.mark, _CHECKPOINT: id}, "tag": id, "kind": "checkpoint"}
        before = checkpoint.previous_checkpoint_id
        if before is not None:
            with suppress(NotFoundError):
                fields |= {"parent": await call(thread.handle.find, before), "on_conflict": "branch"}
        await call(thread.handle.put, checkpoint.to_dict(), **fields)
        self._workflows[id] = checkpoint.workflow_name
        return id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. `WorkflowCheckpointException` if there is none of this id."""
        thread = await self._thread_with(checkpoint_id)
        if thread is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._made(await call(thread.handle.get, checkpoint_id))

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, in the order in which they were saved."""
        handle = self._thread(workflow_name).handle
        ids = await self.list_checkpoint_ids(workflow_name=workflow_name)
        return [self._made(await call(handle.get, id)) for id in ids]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, in the order in which they were saved."""
        return [entry.metadata[_CHECKPOINT] async for entry in self._entries(workflow_name)]

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the latest time; None if there is none."""
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return max(found, key=lambda each: datetime.fromisoformat(each.timestamp), default=None)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint. The thread is deleted with the last of them; until then, `prune` removes what is left of
        others."""
        thread = await self._thread_with(checkpoint_id)
        if thread is None:
            return False
        if await self.list_checkpoint_ids(workflow_name=thread.handle.name) == [checkpoint_id]:
            await call(thread.handle.delete)
        else:
            await call(thread.handle.untag, checkpoint_id)
        del self._workflows[checkpoint_id]
        return True

    def _thread(self, workflow: str) -> ConversationThread:
        return ConversationThread(self._store, workflow, _FRAMEWORK)

    async def _thread_with(self, id: str) -> ConversationThread | None:
        """Return the thread of the workflow that has a checkpoint."""
        known = self._workflows.pop(id, None)
        names = [known] if known is not None else []
        names += [info.thread async for info in list_threads(self._store, where=f"meta.framework={_FRAMEWORK}")]
        for name in names:
            thread = self._thread(name)
            try:
                tags = await call(thread.handle.tags)
            except NotFoundError:
                continue
            if id in tags and _CHECKPOINT in (await call(thread.handle.find, id)).metadata:
                self._workflows[id] = name
                return thread
        return None

    async def _entries(self, workflow: str) -> AsyncIterator[Checkpoint[Any]]:
        """Yield the checkpoints of a workflow that were not deleted, without their states, the oldest first."""
        handle = self._thread(workflow).handle
        found: list[Checkpoint[Any]] = []
        try:
            tags = await call(handle.tags)
            for id, at in tags.items():
                entry = await call(handle.find, at)
                if entry.metadata.get(_CHECKPOINT) == id:
                    found.append(entry)
        except NotFoundError:
            return
        for entry in sorted(found, key=lambda each: each.time):
            yield entry

    def _made(self, saved: Checkpoint[Any]) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(saved.state)


class HoldfastHistoryProvider(HistoryProvider):
    """The messages of sessions, each session in a thread of its name.

    ::

        agent = Agent(client, context_providers=[HoldfastHistoryProvider(store)])

    The options are those of `HistoryProvider`. A `Store` and an `AsyncStore` do equally, and so do their views of
    identities.
    """

    def __init__(self, store: AnyStore, source_id: str = "holdfast", **options: Any) -> None:
        self._store = require_store(store, "a provider of histories")
        super().__init__(source_id, **options)

    async def get_messages(self, session_id: str | None, **_: Any) -> list[Message]:
        """Return the messages of a session."""
        return [Message.from_dict(each) for each in await self._thread(session_id).messages()]

    async def save_messages(self, session_id: str | None, messages: Sequence[Message], **_: Any) -> None:
        """Add messages to a session. None is lost, whoever else adds some."""
        await self._thread(session_id).append([message.to_dict() for message in messages])

    async def clear(self, session_id: str | None) -> None:
        """Remove all messages of a session. They stay in the history of the thread."""
        await self._thread(session_id).clear()

    def _thread(self, session: str | None) -> ConversationThread:
        return ConversationThread(self._store, session or "default", _FRAMEWORK)
