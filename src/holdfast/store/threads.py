"""The basic operations of a store: checkpoints saved and read, named, tagged, listed; threads deleted.

`Store` and `AsyncStore` have the same operations, written once; those of `AsyncStore` are awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.backends.interface import BlockingCall, Change, Create, Put, Row
from holdfast.backends.runtime.drivers import SyncApi, sync_and_async
from holdfast.backends.tables import REFS
from holdfast.codec import Codec
from holdfast.engine import validation
from holdfast.engine.engine import Engine
from holdfast.engine.lines import MAIN, NAME, TAG, At, LineIndex, LineSummary, OnBranch
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.namespaces import check_thread
from holdfast.engine.row_format import Line, StepRef, check_name, readable
from holdfast.engine.types import Checkpoint, ThreadInfo, to_datetime, to_time
from holdfast.engine.validation import Path
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.api import StateTransaction
from holdfast.store.owner import OwnerStore

if TYPE_CHECKING:
    from holdfast.engine.append import AppendRequest, Edit
    from holdfast.history.search import SearchRun


class CheckpointFields(TypedDict, total=False):
    """What can be said about a checkpoint as it is saved. See `Store.put`."""

    parent: str | None
    branch: str | None
    on_conflict: str
    id: str | None
    metadata: Mapping[str, Any] | None
    name: str | None
    tags: Iterable[str]
    kind: str


class ThreadOperations(OwnerStore):
    """Saving and reading checkpoints, naming them, deleting threads: what all else stands on."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        super().__init__(StoreHandle(engine, tenant))
        self.engine = engine
        self.tenant = tenant

    def _line(self, thread: str) -> Line:
        if not check_name(thread, "name of a thread"):
            raise InvalidError("the name of a thread is not empty")
        return Line(self.tenant, thread)

    def _own_line(self, thread: str) -> Line:
        """The line of a thread that is to be saved to. State of scopes is changed otherwise."""
        line = self._line(thread)
        check_thread(line.name)
        return line

    # Saving ---------------------------------------------------------------------------------------------------

    @sync_and_async
    async def put(
        self,
        thread: str,
        state: Mapping[str, Any],
        *,
        parent: str | None = None,
        branch: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
        kind: str = "save",
        on_conflict: str = "",
        if_changed: bool = False,
    ) -> Checkpoint:
        """Save the state of a thread as a new checkpoint. Stores what differs from the parent's state.

        The parent is the latest checkpoint, unless one is named by its id, or a branch by its name. If another writer
        followed the same parent first: without a parent's id, the checkpoint goes on top of what is then the latest;
        with one, `on_conflict` says whether to open a branch (`"branch"`, the default) or to raise `ConflictError`
        (`"refuse"`).

        An `id` of the caller's own may be saved again: the same content is no new checkpoint, other content a new
        revision of it. `name` and `tags` are given to the checkpoint as it is saved. With `if_changed`, a state that is
        just the parent's is not saved: the parent is returned.
        """
        line = self._own_line(thread)
        packed = self.engine.recent(line).pack(validation.mapping(state, "state"))
        about = self._about(line, parent, branch, on_conflict, id, metadata, name, tags, kind)
        return await self._save(self._saving(line, packed, if_changed, about))

    @sync_and_async
    async def update(
        self,
        thread: str,
        changes: Mapping[Path, Any],
        *,
        remove: Iterable[Path] = (),
        parent: str | None = None,
        branch: str | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
        kind: str = "update",
        on_conflict: str = "",
    ) -> Checkpoint:
        """Save a checkpoint that differs from its parent in just these places.

        `changes` maps a channel's name, or a tuple of the name and keys of dicts below it, to the new value; `remove`
        lists such places. Nothing else of the state is read or packed: the cost does not depend on how large it is.
        The rest is as in `put`.
        """
        line, edit = self._own_line(thread), self._parts(thread, changes, remove)
        about = self._about(line, parent, branch, on_conflict, id, metadata, name, tags, kind)
        return await self._save(self._saving(line, edit, False, about))

    @sync_and_async
    async def restore(
        self,
        thread: str,
        id: str | None = None,
        *,
        at: str | None = None,
        name: str | None = None,
        step: int | None = None,
        time: datetime | None = None,
        branch: str | None = None,
    ) -> Checkpoint:
        """Save a new checkpoint whose state is that of an older one, named as in `get`. Nothing is undone.

        It goes on top of the latest, or of the last one of a branch.
        """
        from holdfast.history import langgraph_compat

        line = self._own_line(thread)
        point = await self._find(line, id, at=at, name=name, step=step, time=time)
        packed = await self._lines.reading(line, point, partial(self.engine.states.values, line))
        about = self._about(line, branch=branch, kind="restore")
        unheld = await self.engine.deltas().unheld(line, point)
        about |= langgraph_compat.about(self.engine, line, {"restored": point.id}, unheld)
        return await self._save(self._saving(line, langgraph_compat.without_follows(packed), False, about))

    def transaction(self) -> Transaction:
        """Several keys changed and checkpoints saved, all or none, when the block ends without an error.

        ::

            with store.transaction() as together:  # async with, on an AsyncStore
                together.put("planner", {"plan": plan})
                together.update("worker", {"task": plan[0]})
                together.state(agent="worker")["busy"] = True

        What is read in it (`together.state(…)["budget"]`) must still be so when it ends: else it raises
        `ConflictError`, and nothing is changed. `transact` then begins anew by itself.
        """
        return Transaction(self)

    # Reading --------------------------------------------------------------------------------------------------

    @sync_and_async
    async def get(
        self,
        thread: str,
        id: str | None = None,
        *,
        at: str | None = None,
        name: str | None = None,
        branch: str | None = None,
        step: int | None = None,
        time: datetime | None = None,
        lazy: bool = False,
    ) -> Checkpoint:
        """A checkpoint and its state: the latest of a thread, or one named in one of these ways.

        The latest is the one with the greatest id. Ids that the store makes sort by time; so should those of the
        caller's own.

        `at` is a revision, as in `resolve`; `name` is a name it was given; `branch` takes the last one of a branch;
        `step` the one of that number (on that branch, or on main); `time` the one saved last by then. The state's
        values are fresh objects, the caller's own. With `lazy` nothing of the state is fetched until it is touched.
        Raises `NotFoundError`.
        """
        line = self._line(thread)
        point = await self._find(line, id, at=at, name=name, branch=branch, step=step, time=time)
        head = await self._lines.reading(line, point, partial(self.engine.heads.head, line))
        if lazy:
            from holdfast.store.lazy_state import AsyncLazyState, LazyState

            part = self.engine.partial(line, point)
            state: Any = LazyState(part) if isinstance(self, SyncApi) else AsyncLazyState(part)
        else:
            state = await self._lines.reading(line, point, partial(self.engine.state, line))
        return Checkpoint.from_step(line, head, self._codec, state)

    @sync_and_async
    async def log(
        self,
        thread: str,
        *,
        before: str | None = None,
        limit: int | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: str | None = None,
    ) -> list[Checkpoint]:
        """The checkpoints of a thread, the latest first, without their states.

        `before` an id; with a `tag`; with these entries in their `metadata`; those that match a query, `where` (see
        `search`).
        """
        line = self._line(thread)
        before = validation.optional_name(before, "id of a checkpoint")
        limit = validation.optional_count(limit, "limit")
        wanted = validation.mapping(metadata or {}, "metadata")
        packed = {key: self._codec.pack(value) for key, value in wanted.items()}
        tagged = None
        if tag is not None:
            tagged = {id for _, id in await self._lines.refs(line, TAG, check_name(tag, "tag"))}
        asked = None if where is None else self._search(where)
        found: list[Checkpoint] = []
        while limit is None or len(found) < limit:
            page = 256 if limit is None or tag is not None or wanted else limit - len(found)
            rows: list[Row] = []
            if asked is None:
                rows = await self._lines.history(line, before=before or "", limit=page)
                points = [StepRef.of(row) for row in rows]
                before = points[-1].id if len(rows) == page else ""
            else:
                points, before = await asked.points(line, before or "")
            for head in await self.engine.heads.describe(line, points, rows):
                checkpoint = Checkpoint.from_step(line, head, self._codec)
                if tagged is not None and checkpoint.id not in tagged:
                    continue
                if any(packed[key] != _packed_entry(self._codec, checkpoint.metadata, key) for key in wanted):
                    continue
                found.append(checkpoint)
            if not before:
                break
        return found if limit is None else found[:limit]

    @sync_and_async
    async def threads(
        self, *, prefix: str = "", after: str = "", limit: int = 100, where: str | None = None
    ) -> list[ThreadInfo]:
        """The threads of this tenant by name: those that start with a prefix, those after a name, those that match a
        query, `where` (see `search`)."""
        check_name(prefix, "start of a name")
        check_name(after, "name of a thread")
        count = validation.count(limit, "limit")
        if where is None:
            summaries = await self._lines.listing(self.tenant, prefix, after, count)
        else:
            summaries = await self._search(where).threads(prefix, after, count)
        return [_thread(summary) for summary in summaries]

    @sync_and_async
    async def thread(self, thread: str) -> ThreadInfo:
        """A thread at a glance. Raises `NotFoundError`."""
        return _thread(await self._lines.summary(self._line(thread)))

    # Names, tags, branches ------------------------------------------------------------------------------------

    @sync_and_async
    async def name(
        self, thread: str, name: str, id: str | None = None, *, at: str | None = None, move: bool = False
    ) -> None:
        """Give a checkpoint a name, by which `get` finds it. One checkpoint of a thread can have it."""
        await self._refer(thread, NAME, name, id, at, move=move)

    @sync_and_async
    async def unname(self, thread: str, name: str) -> None:
        """Take a name away; the checkpoint stays."""
        await self._lines.drop_ref(self._line(thread), NAME, check_name(name, "name of a checkpoint"))

    @sync_and_async
    async def tag(self, thread: str, tag: str, id: str | None = None, *, at: str | None = None) -> None:
        """Give a checkpoint a tag. Any number can have it; `log` finds them."""
        await self._refer(thread, TAG, tag, id, at, move=True)

    @sync_and_async
    async def untag(self, thread: str, tag: str, id: str | None = None) -> None:
        """Take a tag away from one checkpoint, or from all of the thread."""
        await self._lines.drop_ref(
            self._line(thread), TAG, check_name(tag, "tag"), validation.optional_name(id, "id of a checkpoint")
        )

    @sync_and_async
    async def names(self, thread: str) -> dict[str, str]:
        """The names in a thread, and the ids of the checkpoints that have them."""
        return dict(await self._lines.refs(self._line(thread), NAME))

    @sync_and_async
    async def tags(self, thread: str) -> dict[str, list[str]]:
        """The tags in a thread, and the ids of the checkpoints that have them."""
        found: dict[str, list[str]] = {}
        for tag, id in await self._lines.refs(self._line(thread), TAG):
            found.setdefault(tag, []).append(id)
        return found

    # Removing, closing ----------------------------------------------------------------------------------------

    @sync_and_async
    async def delete(self, thread: str) -> bool:
        """Delete a thread with everything that belongs to it, also its namespaces. False if there is none."""

        line = self._line(thread)
        lines = await self.engine.lines.family(line)
        if self.engine.hooks is not None:
            return await self.engine.hooks.delete(line, lambda: self._lines.delete(*lines))
        return await self._lines.delete(*lines)

    @sync_and_async
    async def close(self) -> None:
        """Let go of the store. Waits for what is being saved, and some seconds for after-hooks; closing again does
        nothing. Agents that are saved by themselves are, if they have something unsaved."""
        for worker in self.engine.workers:
            await worker.close()
        if self.engine.hooks is not None:
            await BlockingCall(self.engine.hooks.close)
        try:
            await self._flush_notes()
        finally:
            await self.engine.ground.backend.close()
            self.engine.ground.cache.clear()

    # Inside ---------------------------------------------------------------------------------------------------

    @property
    def _lines(self) -> LineIndex:
        return self.engine.lines

    @property
    def _codec(self) -> Codec:
        return self.engine.ground.codec

    def _search(self, where: str) -> SearchRun:
        from holdfast.history.query import parse
        from holdfast.history.search import SearchRun

        return SearchRun(self.engine, self.tenant, parse(where))

    def _parts(self, thread: str, changes: Mapping[Path, Any], remove: Iterable[Path]) -> Edit:
        put = {validation.path(path): value for path, value in validation.mapping(changes, "set of changes").items()}
        if isinstance(remove, tuple) and remove:
            raise InvalidError(
                "a tuple names one place, and several may be removed",
                where=repr(remove)[:80],
                hint=f"Give a list: remove=[{remove!r}], or of channels, remove={list(remove)!r}",
            )
        removed = [validation.path(path) for path in validation.several(remove, "place to remove")]
        return self.engine.parts(self._line(thread), put, removed)

    def _about(
        self,
        line: Line,
        parent: str | None = None,
        branch: str | None = None,
        on_conflict: str = "",
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Iterable[str] = (),
        kind: str = "save",
    ) -> dict[str, Any]:
        """What a `AppendRequest` holds besides the state."""
        from holdfast.engine.append import OnConflict

        if on_conflict not in ("", "branch", "refuse"):
            raise InvalidError(f"on_conflict is 'branch' or 'refuse', not {on_conflict!r}")
        at: At = validation.optional_name(parent, "id of a parent")
        if branch is not None:
            if parent is not None:
                raise InvalidError("a checkpoint follows a parent or the head of a branch: name one of them")
            at = OnBranch(check_name(branch, "name of a branch"))
        how = OnConflict.RETRY if parent is None and not on_conflict else OnConflict(on_conflict or "branch")
        if id is not None and not check_name(id, "id of a checkpoint"):
            raise InvalidError("the id of a checkpoint is not empty", where=f"thread {line}")
        refs = [(NAME, check_name(name, "name of a checkpoint"))] if name is not None else []
        if tags:
            refs += [(TAG, tag) for tag in validation.names(tags, "tag")]
        about: dict[str, Any] = {
            "parent": at,
            "on_conflict": how,
            "id": id or "",
            "kind": check_name(kind, "kind of a checkpoint"),
        }
        if refs:
            about["riders"] = self._riders(line, refs)
        if metadata:
            plain = dict(validation.mapping(metadata, "metadata"))
            about["metadata"], about["readable"] = self._codec.pack(plain), readable(self._codec, plain)
        return about

    def _riders(self, line: Line, refs: list[tuple[str, str]]) -> Callable[[str], list[Change]]:
        now = self.engine.ground.clock()

        def riders(id: str) -> list[Change]:
            changes: list[Change] = []
            for kind, name in refs:
                row = Row((*line, kind, name, "" if kind == NAME else id), (id, now))
                changes.append(Create(REFS, row) if kind == NAME else Put(REFS, row))
            return changes

        return riders

    def _saving(self, line: Line, state: PackedMap | Edit, if_changed: bool, about: dict[str, Any]) -> AppendRequest:
        """What is to be saved. Loaded only here, since those who look at a store do without."""
        from holdfast.engine.append import AppendRequest

        return AppendRequest(line, state, **about, if_changed=if_changed)

    async def _save(self, saving: AppendRequest) -> Checkpoint:
        (checkpoint,) = await self._save_all([saving])
        return checkpoint

    async def _save_all(self, savings: list[AppendRequest]) -> list[Checkpoint]:
        heads = await self.engine.rebaser.save(*savings)
        return [
            Checkpoint.from_step(saving.line, head, self._codec) for saving, head in zip(savings, heads, strict=True)
        ]

    async def _find(
        self,
        line: Line,
        id: str | None = None,
        *,
        at: str | None = None,
        name: str | None = None,
        branch: str | None = None,
        step: int | None = None,
        time: datetime | None = None,
    ) -> StepRef:
        """The one step that is meant."""
        validation.optional_name(id, "id of a checkpoint")
        if at is None and name is None and branch is None and step is None and time is None:
            return await self._lines.find(line, id)
        given = [each for each in (id, at, name, time) if each is not None]
        if len(given) + (branch is not None or step is not None) > 1:
            raise InvalidError(
                "a checkpoint is named in one way: by id, by revision, by name, by time, or by branch and step"
            )
        if at is not None:
            from holdfast.history.revisions import resolve

            return await resolve(self.engine, line, at)
        if time is not None:
            return await self._lines.at_time(line, to_time(validation.moment(time)))
        place: At = id
        if name is not None:
            owners = await self._lines.refs(line, NAME, check_name(name, "name of a checkpoint"))
            if not owners:
                raise NotFoundError(f"no checkpoint has the name {name!r}", where=f"thread {line}", hint="See names()")
            place = owners[0][1]
        elif step is not None:
            number = await self._lines.branch(
                line, MAIN.name if branch is None else check_name(branch, "name of a branch")
            )
            layout = await self._lines.layout(line)
            place = layout.along(number, validation.count(step, "number of a step"))
        elif branch is not None:
            place = OnBranch(check_name(branch, "name of a branch"))
        return await self._lines.find(line, place)

    async def _refer(
        self, thread: str, kind: str, name: str, id: str | None, at: str | None = None, *, move: bool
    ) -> None:
        line = self._line(thread)
        check_name(name, kind)
        point = await self._find(line, id, at=at)
        await self._lines.set_ref(line, kind, name, point.id, move=move)


def _packed_entry(codec: Codec, metadata: Mapping[str, Any], key: str) -> bytes | None:
    return codec.pack(metadata[key]) if key in metadata else None


def _thread(summary: LineSummary) -> ThreadInfo:
    latest = None if summary.latest is None else summary.latest.id
    created, updated = to_datetime(summary.created), to_datetime(summary.updated)
    return ThreadInfo(summary.line.name, created, updated, summary.steps, summary.branches, summary.size, latest)


class Transaction(StateTransaction):
    """Keys to be changed and checkpoints to be saved together. See `Store.transaction`."""

    def __init__(self, store: ThreadOperations) -> None:
        super().__init__(store._handle, store)
        self._store = store
        self._savings: list[AppendRequest] = []
        self.checkpoints: list[Checkpoint] = []
        """What was saved, in the order in which it was asked for; empty until then."""

    def put(
        self, thread: str, state: Mapping[str, Any], *, if_changed: bool = False, **about: Unpack[CheckpointFields]
    ) -> None:
        """Save the state of a thread, as `Store.put` does. It is packed now: later changes of it are not seen."""
        self._check_open()
        line = self._store._own_line(thread)
        store = self._store
        packed = store.engine.recent(line).pack(validation.mapping(state, "state"))
        self._savings.append(store._saving(line, packed, if_changed, store._about(line, **about)))

    def update(
        self,
        thread: str,
        changes: Mapping[Path, Any],
        *,
        remove: Iterable[Path] = (),
        **about: Unpack[CheckpointFields],
    ) -> None:
        """Change parts of a thread's state, as `Store.update` does."""
        self._check_open()
        line, edit = self._store._own_line(thread), self._store._parts(thread, changes, remove)
        about.setdefault("kind", "update")
        self._savings.append(self._store._saving(line, edit, False, self._store._about(line, **about)))

    async def _commit(self) -> None:
        savings, self._savings = self._savings, []
        self.written, heads = await self._pending.commit(savings)
        self.checkpoints = [
            Checkpoint.from_step(saving.line, head, self._store._codec)
            for saving, head in zip(savings, heads, strict=True)
        ]
