"""A checkpointer for programs of any framework, or none: put, get_tuple and list by thread id.

It takes LangGraph's forms, too: a config in place of a thread id, and a checkpoint with channels in place of a state.
What it saves so, `HoldfastSaver` reads, and the reverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import validation
from holdfast.engine.ids import new_id
from holdfast.engine.namespaces import split_name
from holdfast.engine.pages import Page, paged
from holdfast.engine.types import PendingWrite
from holdfast.errors import InvalidError
from holdfast.store import graph_forms
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.graph_forms import Config
from holdfast.store.identity_view import AsyncIdentityView, IdentityOperations, IdentityView
from holdfast.store.saved_checkpoint import SavedCheckpoint
from holdfast.store.store import AsyncStore, Store, StoreOperations
from holdfast.store.thread import ThreadOperations

R = TypeVar("R", str, Config)
"""A thread id, or a config of LangGraph."""


class CheckpointTuple(msgspec.Struct, frozen=True):
    """A checkpoint with its state and pending writes."""

    thread_id: str
    id: str
    parent_id: str | None
    state: Mapping[str, Any]
    metadata: Mapping[str, Any]
    time: datetime
    pending_writes: list[PendingWrite]
    stamp: str = ""
    """The time as the text that was saved, if it was saved in LangGraph's form."""
    bookkeeping: Mapping[str, Any] = {}
    """What was saved in LangGraph's form besides, such as the versions of channels."""

    @property
    def config(self) -> dict[str, Any]:
        """The config that names it, as LangGraph has it."""
        config: dict[str, Any] = graph_forms.config_of(*split_name(self.thread_id), self.id)
        return config

    @property
    def parent_config(self) -> dict[str, Any] | None:
        """The config that names its parent, if it has one."""
        return None if self.parent_id is None else replace(self, id=self.parent_id).config

    @property
    def checkpoint(self) -> dict[str, Any]:
        """The checkpoint in LangGraph's form."""
        checkpoint: dict[str, Any] = graph_forms.checkpoint_of(self)
        return checkpoint


class BaseCheckpointer(ABC):
    """The operations of a `Checkpointer`, for type hints, and for checkpointers of your own."""

    @abstractmethod
    def put(self, thread_id: R, state: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> R:
        """Save a state, and return the id of the checkpoint, or the config that names it."""

    @abstractmethod
    def put_writes(self, thread_id: str | Config, id: Any, writes: Any, task_id: str = "", task_path: str = "") -> None:
        """Store what a task wrote after a checkpoint."""

    @abstractmethod
    def get_tuple(self, thread_id: str | Config, id: str | None = None) -> CheckpointTuple | None:
        """Return the latest checkpoint of a thread, or the one with an id."""

    @abstractmethod
    def list(
        self,
        thread_id: str | Config,
        *,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CheckpointTuple]:
        """List the checkpoints of a thread, the latest first."""

    @abstractmethod
    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread."""


@declare(local="It is for frameworks.")
class _Checkpointer:
    """Operations of a checkpointer. `Checkpointer` and `AsyncCheckpointer` have these as methods."""

    def __init__(self, store: StoreOperations | IdentityOperations) -> None:
        self.store = store
        self._checkpoints = CheckpointStore(store)

    def _thread(self, name: str) -> ThreadOperations[Any]:
        return ThreadOperations[Any](self.store._handle, name)

    @operation(changes=True)
    async def put(
        self,
        thread_id: R,
        state: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        parent_id: str | None = None,
    ) -> R:
        """Save the state of a thread and return the id of the checkpoint. A second one on the same parent opens a
        branch.

        With a config in place of the thread id, the parent is the checkpoint that it names, and the config is returned
        that names the new one. The state may then be a checkpoint of LangGraph: its channels are the state.
        """
        if isinstance(thread_id, str):
            thread = self._thread(thread_id)
            return (await ThreadOperations[Any].put(thread, state, id=id, parent=parent_id, metadata=metadata)).id
        place, entries = graph_forms.place_of(thread_id), dict(metadata or {})
        if parent_id is not None:
            raise InvalidError("the config names the parent", where="parent_id", hint="Leave parent_id out")
        if "channel_values" in validation.require_mapping(state, "state"):
            new = id or str(state.get("id") or new_id(self.store._handle.now()))
            await self._checkpoints.save(
                place.thread,
                graph_forms.values_of(state),
                id=new,
                stamp=str(state.get("ts", "")),
                parent=place.checkpoint_id,
                bookkeeping=graph_forms.bookkeeping_of(state),
                metadata=entries,
                kind=str(entries.get("source", "save")),
            )
        else:
            thread = self._thread(place.thread)
            parent = place.checkpoint_id
            new = (await ThreadOperations[Any].put(thread, state, id=id, parent=parent, metadata=entries)).id
        made: Config = graph_forms.config_of(str(place.thread_id), place.namespace, new)
        return made

    @operation(changes=True)
    async def put_writes(
        self,
        thread_id: str | Config,
        id: str | Sequence[tuple[str, Any]],
        writes: Sequence[tuple[str, Any]] | str = (),
        task_id: str = "",
        task_path: str = "",
    ) -> None:
        """Store what a task wrote after the checkpoint with this id, which need not be saved yet:
        `put_writes("chat-1", id, [("messages", "hello")], task_id="t1")`. A config names both, and then the writes
        follow: `put_writes(config, writes, "t1")`.

        If the same task writes again, the values that it wrote first are kept.
        """
        if not isinstance(thread_id, str):
            given, config, task_id = id, thread_id, task_id or str(writes or "")
            thread_id, found = graph_forms.stored_thread(config), graph_forms.checkpoint_id_of(config)
            if found is None:
                raise InvalidError(
                    "the config does not name the checkpoint that the writes belong to",
                    hint="Pass the config that put returned",
                )
            id, writes = found, () if isinstance(given, str) else given
        if not isinstance(id, str) or isinstance(writes, str) or not task_id:
            raise InvalidError(
                "writes have an id of a checkpoint and of a task",
                hint="put_writes(thread_id, id, writes, task_id=…), or put_writes(config, writes, task_id)",
            )
        self.store._handle.thread_line(thread_id)
        if not all(map(_is_pair, writes)):
            raise InvalidError("a write must be a pair of channel and value", where=repr(writes)[:80])
        numbered = [(number, channel, value) for number, (channel, value) in enumerate(writes)]
        await self._checkpoints.put_writes(thread_id, id, numbered, task_id=task_id, task_path=task_path)

    @operation
    async def get_tuple(self, thread_id: str | Config, id: str | None = None) -> CheckpointTuple | None:
        """Return the latest checkpoint of a thread, or the one with an id, or that a config names; None if there is
        none."""
        if not isinstance(thread_id, str):
            id = id or graph_forms.checkpoint_id_of(thread_id)
            thread_id = graph_forms.stored_thread(thread_id)
        saved = await self._checkpoints.get(thread_id, id)
        return None if saved is None else _tuple(saved)

    @operation
    @paged
    async def list(
        self,
        thread_id: str | Config,
        *,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[CheckpointTuple]:
        """List the checkpoints of a thread, which may be named by a config, the latest first: those with these entries
        in their metadata.

        The first is what `get_tuple` returns. Those that were saved to forks beside it are left out; `Thread.log` has
        them.
        """
        count = validation.require_count(limit, "limit")
        entries = validation.require_mapping(metadata or {}, "metadata")
        name = thread_id if isinstance(thread_id, str) else graph_forms.stored_thread(thread_id)
        pages = await self._checkpoints.list_checkpoints([name], before=cursor, metadata=entries, limit=count + 1)
        return Page.cut([_tuple(each) async for page in pages for each in page], count, lambda each: each.id)

    @operation(changes=True)
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with everything that belongs to it."""
        await ThreadOperations[Any].delete(self._thread(thread_id))


def _tuple(saved: SavedCheckpoint) -> CheckpointTuple:
    return CheckpointTuple(
        saved.thread,
        saved.id,
        saved.parent,
        saved.state,
        saved.metadata,
        saved.time,
        saved.writes,
        saved.stamp,
        saved.bookkeeping,
    )


def _is_pair(write: object) -> bool:
    return isinstance(write, tuple | list) and len(write) == 2


class Checkpointer(SyncApi, _Checkpointer, BaseCheckpointer):
    """Saves and loads checkpoints by thread id, on an open `Store`, or on what its `as_identity` returns."""

    def __init__(self, store: Store | IdentityView) -> None:
        super().__init__(store)


class AsyncCheckpointer(AsyncApi, _Checkpointer):
    """Saves and loads checkpoints by thread id, on an open `AsyncStore`: operations are awaited."""

    def __init__(self, store: AsyncStore | AsyncIdentityView) -> None:
        super().__init__(store)
