"""A checkpointer for programs of any framework, or none: put, get_tuple and list by thread id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.pages import Page
from holdfast.engine.types import PendingWrite
from holdfast.errors import InvalidError
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.identity_view import AsyncIdentityView, IdentityOperations, IdentityView
from holdfast.store.saved_checkpoint import SavedCheckpoint
from holdfast.store.store import AsyncStore, Store, StoreOperations
from holdfast.store.thread import ThreadOperations


class CheckpointTuple(NamedTuple):
    """A checkpoint with its state and pending writes."""

    thread_id: str
    id: str
    parent_id: str | None
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]
    time: datetime
    pending_writes: list[PendingWrite]


class _Checkpointer:
    """Operations of a checkpointer. `Checkpointer` and `AsyncCheckpointer` have these as methods."""

    def __init__(self, store: StoreOperations | IdentityOperations) -> None:
        self.store = store
        self._checkpoints = CheckpointStore(store)

    def _thread(self, name: str) -> ThreadOperations[Any]:
        return ThreadOperations[Any](self.store._handle, name)

    @sync_and_async
    async def put(
        self,
        thread_id: str,
        state: Mapping[str, Any],
        *,
        id: str | None = None,
        parent_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Save the state of a thread and return the id of the checkpoint. A second one on the same parent opens a
        branch."""
        thread = self._thread(thread_id)
        saved = await ThreadOperations[Any].put(thread, state, id=id, parent=parent_id, metadata=metadata)
        return saved.id

    @sync_and_async
    async def put_writes(
        self, thread_id: str, id: str, writes: Sequence[tuple[str, Any]], *, task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote after the checkpoint with this id, which need not be saved yet.

        If the same task writes again, the values that it wrote first are kept.
        """
        self.store._handle.thread_line(thread_id)
        if not all(map(_is_pair, writes)):
            raise InvalidError("a write is a pair of channel and value", where=repr(writes)[:80])
        numbered = [(number, channel, value) for number, (channel, value) in enumerate(writes)]
        await self._checkpoints.put_writes(thread_id, id, numbered, task_id=task_id, task_path=task_path)

    @sync_and_async
    async def get_tuple(self, thread_id: str, id: str | None = None) -> CheckpointTuple | None:
        """Return the latest checkpoint of a thread, or the one with an id; None if there is none."""
        saved = await self._checkpoints.get(thread_id, id)
        return None if saved is None else _tuple(saved)

    @sync_and_async
    async def list(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CheckpointTuple]:
        """List the checkpoints of a thread, the latest first: those with these entries in their metadata.

        The first is what `get_tuple` returns. Those that were saved to forks beside it are left out; `Thread.log` has
        them.
        """
        count = validation.require_count(limit, "limit")
        entries = validation.require_mapping(metadata or {}, "metadata")
        pages = await self._checkpoints.list_checkpoints([thread_id], before=cursor, metadata=entries, limit=count + 1)
        return Page.cut(
            [_tuple(each) async for page in pages for each in page],
            count,
            lambda each: each.id,
            lambda cursor: _Checkpointer.list(self, thread_id, metadata=metadata, limit=limit, cursor=cursor),
        )

    @sync_and_async
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with everything that belongs to it."""
        await ThreadOperations[Any].delete(self._thread(thread_id))


def _tuple(saved: SavedCheckpoint) -> CheckpointTuple:
    return CheckpointTuple(saved.thread, saved.id, saved.parent, saved.state, saved.metadata, saved.time, saved.writes)


def _is_pair(write: object) -> bool:
    return isinstance(write, tuple | list) and len(write) == 2


class Checkpointer(SyncApi, _Checkpointer):
    """Saves and loads checkpoints by thread id, on an open `Store`, or on what its `as_identity` returns."""

    def __init__(self, store: Store | IdentityView) -> None:
        super().__init__(store)


class AsyncCheckpointer(AsyncApi, _Checkpointer):
    """Saves and loads checkpoints by thread id, on an open `AsyncStore`: operations are awaited."""

    def __init__(self, store: AsyncStore | AsyncIdentityView) -> None:
        super().__init__(store)
