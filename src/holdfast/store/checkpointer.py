"""A saver for programs of any framework, or none: put, get_tuple, list, by thread id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.pages import Page
from holdfast.engine.pending_writes import PendingWriteRow
from holdfast.engine.row_format import check_name
from holdfast.engine.types import Checkpoint
from holdfast.errors import InvalidError, NotFoundError
from holdfast.store.store import AsyncStore, Store, StoreOperations


class PendingWrite(NamedTuple):
    """What a task wrote after a checkpoint, before the next one took it in."""

    task_id: str
    channel: str
    value: Any


class CheckpointTuple(NamedTuple):
    """A checkpoint with its state, and what was written since."""

    thread_id: str
    id: str
    parent_id: str | None
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]
    time: datetime
    pending_writes: list[PendingWrite]


class _Saver:
    """What a saver does. `Checkpointer` and `AsyncCheckpointer` have these as methods."""

    def __init__(self, store: StoreOperations) -> None:
        self.store = store

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
        """Save a thread's state; returns the checkpoint's id. Two checkpoints on one parent make a branch."""
        store = self.store
        saved = await StoreOperations.put(store, thread_id, state, id=id, parent=parent_id, metadata=metadata)
        return saved.id

    @sync_and_async
    async def put_writes(
        self, thread_id: str, id: str, writes: Sequence[tuple[str, Any]], *, task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote after the checkpoint with this id, which need not be saved yet.

        Written again by the same task, the same place keeps its first value.
        """
        line = self.store._thread(thread_id)._own_line()
        if not writes:
            return
        check_name(id, "id of a checkpoint")
        check_name(task_id, "id of a task")
        check_name(task_path, "path of a task")
        codec = self.store._engine.context.codec
        if not all(map(_is_pair, writes)):
            raise InvalidError("a write is a pair of channel and value", where=repr(writes)[:80])
        packed = codec.pack_items(value for _, value in writes)
        rows = [
            PendingWriteRow(task_path, task_id, place, check_name(channel, "name of a channel"), value)
            for place, ((channel, _), value) in enumerate(zip(writes, packed, strict=True))
        ]
        await self.store._engine.writes.put(line, id, rows)

    @sync_and_async
    async def get_tuple(self, thread_id: str, id: str | None = None) -> CheckpointTuple | None:
        """The latest checkpoint of a thread, or the one with an id; None if there is none."""
        try:
            saved = await self._get(thread_id, id)
        except NotFoundError:
            return None
        return await self._tuple(saved, saved.state)

    @sync_and_async
    async def list(
        self,
        thread_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CheckpointTuple]:
        """List the checkpoints of a thread, the latest first: those with these entries in their metadata."""
        page = await StoreOperations.log(self.store, thread_id, metadata=metadata, limit=limit, cursor=cursor)
        tuples = []
        for checkpoint in page:
            saved = await self._get(thread_id, checkpoint.id)
            tuples.append(await self._tuple(checkpoint, saved.state))
        return Page(
            tuples,
            page.next,
            lambda cursor: _Saver.list(self, thread_id, metadata=metadata, limit=limit, cursor=cursor),
        )

    @sync_and_async
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with everything that belongs to it."""
        await StoreOperations.delete(self.store, thread_id)

    async def _get(self, thread_id: str, id: str | None) -> Checkpoint:
        """The latest checkpoint, or the one with exactly this id, which need not look like one of ours."""
        validation.optional_name(id, "id of a checkpoint")
        thread = self.store._thread(thread_id)
        return await thread._read(await thread._lines.find(thread._line, id))

    async def _tuple(self, checkpoint: Checkpoint, state: Mapping[str, Any]) -> CheckpointTuple:
        line = self.store._handle.thread_line(checkpoint.thread)
        writes = await self.store._engine.writes.of(line, checkpoint.id)
        values = self.store._engine.context.codec.unpack_items(write.packed for write in writes)
        pending = [PendingWrite(write.task, write.channel, value) for write, value in zip(writes, values, strict=True)]
        return CheckpointTuple(
            checkpoint.thread,
            checkpoint.id,
            checkpoint.parent,
            state,
            checkpoint.metadata,
            checkpoint.time,
            pending,
        )


def _is_pair(write: object) -> bool:
    return isinstance(write, tuple | list) and len(write) == 2


class Checkpointer(SyncApi, _Saver):
    """Saves and loads checkpoints by thread id, on an open `Store`."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)


class AsyncCheckpointer(AsyncApi, _Saver):
    """The same on an `AsyncStore`, awaited."""

    def __init__(self, store: AsyncStore) -> None:
        super().__init__(store)
