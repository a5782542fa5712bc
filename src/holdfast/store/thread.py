"""The handle of a thread: `store.thread("chat-1")`. Its checkpoints, history, branches, tags and pins.

`Thread` and `AsyncThread` have the same operations, written once; those of `AsyncThread` are awaited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast, is_typeddict

from holdfast._lazy import unknown_attribute
from holdfast.backends.interface import Row
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, operation
from holdfast.engine import validation
from holdfast.engine.lines import LABEL, MAIN
from holdfast.engine.model.operators import AddToSet, Append, Increment, Max, UpdateOperator
from holdfast.engine.model.packed_state import PackedMap, unpack_state
from holdfast.engine.pages import Page, paged
from holdfast.engine.paths import Path, path_text, require_path, require_range
from holdfast.engine.pending_writes import decode_writes
from holdfast.engine.row_format import StepRef, check_name
from holdfast.engine.step_info import StepInfo
from holdfast.engine.types import (
    BranchInfo,
    Checkpoint,
    PendingWrite,
    Revision,
    S,
    ThreadInfo,
    ThreadStatus,
    to_datetime,
)
from holdfast.errors import InvalidError, NotFoundError, UnsupportedError
from holdfast.security.handle import StoreHandle
from holdfast.store.thread_access import described, needs, refresh_known, thread_access
from holdfast.store.thread_references import ThreadReferences

if TYPE_CHECKING:
    from holdfast.engine.append import AppendRequest, Edit
    from holdfast.engine.schema_bindings import LineSchema
    from holdfast.history.blame import BlameEntry, ValueChange
    from holdfast.history.comparison import ComparedPoint
    from holdfast.history.diff_result import Diff
    from holdfast.history.merge import Resolve
    from holdfast.schemas.registry import VersionUse
    from holdfast.schemas.schema_set import SchemaSet
    from holdfast.store.checkpoint_fields import CheckpointFields, OnConflict
    from holdfast.store.thread_run import ThreadRun
    from holdfast.time_parser import Duration


class ThreadOperations(ThreadReferences, Generic[S]):
    """Operations on one thread. `Thread` and `AsyncThread` have these as methods."""

    def __init__(self, handle: StoreHandle, name: str) -> None:
        self._handle = handle
        self._line = handle.thread_line(name)
        self._name = name

    @property
    def name(self) -> str:
        """The name of the thread."""
        return self._name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    if not TYPE_CHECKING:  # a type checker knows better
        __getattr__ = unknown_attribute("THREAD_WORDS")

        def __getitem__(self, key: object) -> Any:
            read, write = f"thread.get().state[{key!r}]", f"thread.update({{{key!r}: …}})"
            raise TypeError(f"a thread is no dict: read {read}, write {write}")

        def __setitem__(self, key: object, value: object) -> None:
            self[key]

    # Saving ---------------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("write", creates=True)
    async def put(
        self,
        state: S,
        *,
        if_changed: bool = False,
        parent: str | Checkpoint | None = None,
        branch: str | None = None,
        on_conflict: OnConflict | None = None,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tag: str | None = None,
        labels: Iterable[str] | None = None,
        kind: str | None = None,
        ttl: Duration | None = None,
    ) -> Checkpoint[S]:
        """Save the state of the thread as a new checkpoint. Stores what differs from the parent's state.

        The parent is HEAD, unless one is given (a checkpoint, or its id), or a branch by its name. What is saved to
        another branch than that of HEAD does not move HEAD. If another writer saved after the same parent first,
        `on_conflict` decides: `"overwrite"`, the default without a parent, saves after the new HEAD; `"branch"`, the
        default with one, opens a branch; `"merge"` merges that branch into the one of the parent at once, with a
        function in place of it to resolve what both sides changed (see `merge`); what stays unresolved raises
        `ConflictError`, and the state is on its branch; `"raise"` raises `ConflictError`, and nothing is saved. With
        `parent=""` and `"raise"`, the checkpoint is the first of its thread, or there is a `ConflictError`.

        An `id` of the caller's own may be saved again: the same content is no new checkpoint, other content a new
        revision of it. Such ids must increase: HEAD is the checkpoint with the greatest id on its branch. `tag` and
        `labels` are given to the checkpoint as it is saved. With `if_changed`, a state that equals the parent's is not
        saved: the parent is returned. A `ttl`, such as `"30d"`, is set for the whole thread, as by `expire`. The `kind`
        is `save`, or a name of the caller's own.
        """
        given = {
            "parent": parent,
            "branch": branch,
            "on_conflict": on_conflict,
            "id": id,
            "metadata": metadata,
            "tag": tag,
            "labels": labels,
            "kind": kind,
            "ttl": ttl,
        }
        fields = cast("CheckpointFields", {name: each for name, each in given.items() if each is not None})
        request = self._put_request(state, if_changed, self._append_fields("Thread.put", fields))
        return await self._merge_branch(await self._save(request), fields)

    @operation(changes=True)
    @needs("write", creates=True)
    async def update(
        self,
        changes: Mapping[Path, Any],
        *,
        remove: Iterable[Path] = (),
        **fields: Unpack[CheckpointFields],
    ) -> Checkpoint[S]:
        """Save a checkpoint that differs from its parent at these paths only.

        `changes` maps paths to new values; `remove` lists paths. A path is text, `"plan.done"` or `"messages[-1]"`,
        with odd keys in quotes, `'files["a.txt"]'`, or a tuple of the keys as they are, `("plan", "done")`. Dicts on
        the way to a new key are created; items of a list must exist. Nothing else of the state is read or packed: the
        cost does not depend on how large it is. The other arguments are those of `put`.

        A value may be an operator of `holdfast.state`, such as `Increment(1)`, which changes the value that is there;
        `append`, `increment`, `add_to_set` and `max` are updates with one of them.
        """
        return await self._save_edit("Thread.update", self._edit(changes, remove), fields)

    @operation(changes=True)
    @needs("write", creates=True)
    async def append(self, path: Path, *items: Any, **fields: Unpack[CheckpointFields]) -> Checkpoint[S]:
        """Save a checkpoint with items added at the end of a list, which starts empty: `append("messages", message)`.

        The list is not read: the cost does not depend on how long it is. Items that others append at the same time, in
        any process, are kept, also in a merge. The other arguments are those of `put`.
        """
        return await self._operate("Thread.append", path, Append(*items), fields)

    @operation(changes=True)
    @needs("write", creates=True)
    async def increment(self, path: Path, by: float = 1, **fields: Unpack[CheckpointFields]) -> Checkpoint[S]:
        """Save a checkpoint with a number added to a value, which starts at 0. See `append`."""
        return await self._operate("Thread.increment", path, Increment(by), fields)

    @operation(changes=True)
    @needs("write", creates=True)
    async def add_to_set(self, path: Path, *items: Any, **fields: Unpack[CheckpointFields]) -> Checkpoint[S]:
        """Save a checkpoint with items added to a set, which starts empty. See `append`."""
        return await self._operate("Thread.add_to_set", path, AddToSet(*items), fields)

    @operation(changes=True)
    @needs("write", creates=True)
    async def max(self, path: Path, value: Any, **fields: Unpack[CheckpointFields]) -> Checkpoint[S]:
        """Save a checkpoint with a number, a text or a time at a path, unless the value there is greater. See
        `append`."""
        return await self._operate("Thread.max", path, Max(value), fields)

    @operation(changes=True)
    @needs("write")
    async def restore(self, at: Revision, *, branch: str | None = None) -> Checkpoint[S]:
        """Save a new checkpoint with the state of an older one. Nothing is undone.

        It follows the latest checkpoint, or the last one of a branch.
        """
        from holdfast.history import langgraph_compat

        line, engine = self._line, self._engine
        point = await self._find(at)
        packed = await engine.lines.read_step(line, point, partial(engine.states.values, line))
        fields = self._append_fields("Thread.restore", {"branch": branch, "kind": "restore"})
        unheld = await engine.delta_reader().unread(line, point)
        fields |= langgraph_compat.step_fields(engine, line, {"restored": point.id}, unheld)
        fields["schema"], fields["preconditions"] = await self._version_use().conditions_at(line, point)
        fields["is_unversioned"] = not fields["schema"]
        return await self._save(self._request(langgraph_compat.without_follows(packed), fields))

    # Reading --------------------------------------------------------------------------------------------------

    @operation(may_lag=True)
    @needs("read")
    async def get(self, at: Revision = "HEAD", *, lazy: bool = False, migrate: bool = True) -> Checkpoint[S]:
        """Read a checkpoint with its state: the latest of the thread, or another.

        `at` is a revision, as in git (see `find`), the number of a step, a time, or a checkpoint. The state's values
        are new objects, the caller's own. With `lazy` nothing of the state is fetched until it is accessed. If a schema
        is attached to the thread, a state of an older version is upgraded; with `migrate=False` it is as it was stored,
        and its version is the checkpoint's `schema`. Raises `NotFoundError`.
        """
        if lazy and self._handle.guard.actor:
            raise UnsupportedError(
                "an identity reads a state as a whole: its right is checked once, when it is read",
                where=f"thread {self._line}",
                hint="Leave out lazy=True",
            )
        return await self._read(await self._find(at), lazy=lazy, migrate=migrate)

    @operation(may_lag=True)
    @needs("read")
    async def find(self, at: Revision = "HEAD") -> Checkpoint[S]:
        """Find the checkpoint that a revision names, without its state.

        As in git: `HEAD` is the last one of the current branch; the name of a branch, the last one of that branch; a
        tag; an id, or the start of one; `#12`, `draft#12` a step by its number; `X~2`, `X^`, `X^2` those before X,
        `X^2` the second parent of a merge; `X@{2h}`, `X@{yesterday}`, `X@{2026-11-01T10:00}` as of a time. A number is
        a step on the branch of HEAD, a datetime what was HEAD then. Raises `NotFoundError`, and `InvalidError`
        if several ids start so.
        """
        point = await self._find(at)
        return self._checkpoint(await self._engine.step_info.head(self._line, point))

    @operation(may_lag=True)
    @needs("read")
    async def info(self) -> ThreadInfo:
        """Summarize the thread. Raises `NotFoundError`."""
        return await described(self._engine, await self._lines.summary(self._line))

    @operation(may_lag=True)
    @needs("read")
    async def status(self) -> ThreadStatus:
        """Return what the thread does, or why it does nothing: it waits for an answer, a node failed, it is done.

        Raises `NotFoundError`. See the guide "Threads and checkpoints".
        """
        from holdfast.history.thread_status import read_status

        return await read_status(self._engine, self._line)

    @operation(changes=True)
    @needs("write")
    async def answer(self, value: Any = None, *, question: str | None = None) -> ThreadStatus:
        """Answer an interrupt of a graph: `graph.invoke(None, config)` goes on with it, in any process. Returns the
        status of the thread after that.

        `question` is the id of one of `status().questions`, if several wait. The answer is stored as LangGraph stores
        one, also in a subgraph. A run of the thread that waits is queued for a worker. `ConflictError` if the thread
        waits for nothing (code `not-waiting`), or if another answered first (code `answered`).
        """
        from holdfast.agents.runs.answers import store_answer

        await store_answer(self._handle, self._line, value, question)
        return await ThreadOperations.status(self)

    def running(self) -> ThreadRun:
        """Return the claim of a run, for `with` or `async with`: the thread is *running* while this process has it.

        For the time in which a graph works on the thread. Raises `ConflictError` if another process has the lease.
        """
        from holdfast.store.thread_run import ThreadRun

        return ThreadRun(self._handle, self._line)

    @operation(may_lag=True)
    @paged
    @needs("read")
    async def log(
        self,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        where: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Checkpoint[S]]:
        """List the checkpoints, the latest first, without their states: a page of them.

        Only those with a `label`; those with these entries in their `metadata`; those that match a query, `where` (see
        `Store.search`).
        """
        line, codec = self._line, self._handle.codec
        before = validation.optional_name(cursor, "cursor") or ""
        count = validation.require_count(limit, "limit") + 1
        entries = validation.require_mapping(metadata or {}, "metadata")
        packed = {key: codec.pack(value) for key, value in entries.items()}
        labelled = None
        if label is not None:
            labelled = {id for _, id in await self._lines.refs(line, LABEL, check_name(label, "label"))}
        search = None
        if where is not None:
            from holdfast.history.search import prepare

            search = prepare(self._engine, line.tenant, where)
        checkpoints: list[Checkpoint[S]] = []
        while len(checkpoints) < count:
            rows: list[Row] = []
            if search is None:
                size = 256 if label is not None or packed else count - len(checkpoints)
                rows = await self._lines.history(line, before=before, limit=size)
                points = [StepRef.of(row) for row in rows]
                before = points[-1].id if len(rows) == size else ""
            else:
                points, before = await search.points(line, before)
            heads = await self._engine.step_info.describe(line, points, rows)
            if search is None:
                await self._engine.step_info.require_parents(line, heads)
            for head in heads:
                checkpoint = self._checkpoint(head)
                own = checkpoint.metadata
                if (labelled is None or checkpoint.id in labelled) and all(
                    key in own and packed[key] == codec.pack(own[key]) for key in packed
                ):
                    checkpoints.append(checkpoint)
            if not before:
                break
        return Page.cut(checkpoints, limit, lambda each: each.id)

    @operation(may_lag=True)
    @needs("read")
    async def pending_writes(self, at: Revision = "HEAD") -> list[PendingWrite]:
        """List what tasks wrote after a checkpoint, before the next one includes it: results and interrupts of a graph.

        Nothing of the state is read.
        """
        (rows,) = await self._engine.writes.of_many(self._line, [await self._find(at)])
        return decode_writes(self._handle.codec, rows)

    @operation(may_lag=True)
    @needs("read")
    async def diff(
        self,
        a: Revision | None = None,
        b: Revision = "HEAD",
        *,
        other: str | None = None,
        state: Mapping[str, Any] | None = None,
        large: bool = False,
        migrate: bool | SchemaSet = False,
    ) -> Diff:
        """Compare two states: a summary in numbers, then path by path, or as a JSON Patch.

        Without `a`, it is what `b` changed of its parent. With `other`, `b` is a revision of that other thread, and `a`
        the latest of this one unless it is given; with `state`, `a` is compared with that state. Nodes that both sides
        share are not read. Large values that differ are fetched only with `large`.

        States are compared as they are stored. With `migrate` both are brought to one version of their schema first:
        that which is attached to the thread, or the newest of the schemas that are passed.
        """
        from holdfast.history import comparison

        engine = self._engine
        if other is None and state is None:
            if migrate is False:
                return await comparison.compare_revisions(engine, self._line, a, b, large=large)
            new = await comparison.find_point(engine, self._line, b)
            if a is None:
                old = await comparison.find_parent(engine, new)
            else:
                old = await comparison.find_point(engine, self._line, a)
            return await self._compare_migrated(old, new, migrate)
        old = await comparison.find_point(engine, self._line, "HEAD" if a is None else a)
        if state is not None:
            if other is not None or b != "HEAD":
                raise InvalidError("a checkpoint is compared with another or with a state, not with both")
            if migrate is not False:
                raise InvalidError("a state that is passed has no version to migrate from", hint="Leave out migrate")
            return await comparison.compare(engine, old, validation.require_mapping(state, "state"), large=large)
        line = self._handle.thread_line(other or "")
        async with thread_access(self._handle, line, ["read"]):
            new = await comparison.find_point(engine, line, b)
            if migrate is not False:
                return await self._compare_migrated(old, new, migrate)
            return await comparison.compare(engine, old, new, large=large)

    async def _compare_migrated(self, old: ComparedPoint, new: ComparedPoint, migrate: bool | SchemaSet) -> Diff:
        from holdfast.store.migrated_diff import compare_migrated

        return await compare_migrated(self._engine, (old, new), migrate)

    @operation(may_lag=True)
    @paged
    @needs("read")
    async def blame(
        self, path: Path, at: Revision = "HEAD", *, limit: int = 100, cursor: str | None = None
    ) -> Page[BlameEntry]:
        """Find the checkpoint that wrote the value at a path: which, when, and by whom.

        `path` is text as `messages[3]`, `messages[-10:]`, `memory.user`, or a tuple of a channel, keys and indexes. Of
        a list or a dict, each item or entry is listed, a page of them. Raises `NotFoundError` if there is nothing.
        """
        from holdfast.history import blame

        keys, count = require_range(path), validation.require_count(limit, "limit")
        position, point = await self._cursor_point(cursor, at)
        start = validation.cursor_number(position)
        entries = await blame.blame(self._engine, self._line, keys, point, start=start, limit=count + 1)
        return Page.cut(entries, count, lambda _: f"{start + count}@{point.id}")

    @operation(may_lag=True)
    @paged
    @needs("read")
    async def history(
        self, path: Path, at: Revision = "HEAD", *, limit: int = 100, cursor: str | None = None
    ) -> Page[ValueChange]:
        """List every checkpoint that changed the value at a path, the latest first, with the change: a page of them.

        It goes from `at` along first parents. An index of a list follows its item, wherever it was. Checkpoints that
        did not change the value are skipped without being read.
        """
        from holdfast.history import blame

        keys, count = require_range(path), validation.require_count(limit, "limit")
        position, point = await self._cursor_point(cursor, at)
        changes, following = await blame.history(self._engine, self._line, keys, point, after=position, limit=count)
        return Page(changes, None if following is None else f"{following}@{point.id}")

    # Branches -------------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("write")
    async def fork(
        self,
        branch: str,
        at: Revision = "HEAD",
        *,
        changes: Mapping[Path, Any] | None = None,
        remove: Iterable[Path] = (),
        dry_run: bool = False,
    ) -> BranchInfo:
        """Start a branch at a checkpoint. Copies nothing; `put(..., branch=name)` continues it. HEAD stays where it is.

        With `changes` or `remove`, which are as in `update`, the branch begins with a checkpoint whose state is edited
        so; both are made, or neither. With `dry_run` nothing is saved, and what would be refused is.
        """
        from holdfast.history import branches

        line = self._line
        branches.check_branch_name(branch, line)
        point = await self._find(at)
        if dry_run:
            others = await self._lines.check_free(line, branch)
            if changes or remove:
                await branches.check_fork(self._engine, line, point, branch, self._edit(changes or {}, remove))
            created = to_datetime(self._engine.context.clock())
            return BranchInfo(others[-1].branch + 1 if others else 1, branch, point.id, created)
        if not changes and not remove:
            use = self._version_use()
            reference = await use.reference(line, point)
            apply = use.applied([reference], f"thread {line}", self._recorded("fork", branch=branch))
            made = await self._lines.fork(line, point, branch, apply)
            return BranchInfo(made.branch, made.name, point.id, to_datetime(made.created), point.id)
        _, conditions = await self._version_use().conditions_at(line, point)
        edit = self._edit(changes or {}, remove)
        first = (await branches.fork(self._engine, line, point, branch, edit, conditions)).point
        return BranchInfo(first.branch, branch, point.id, to_datetime(first.time), first.id, 1)

    @operation(may_lag=True)
    @needs("read")
    async def branches(self) -> list[BranchInfo]:
        """List the branches. `main` is the first, until a new revision of one of its checkpoints takes over.

        Branches that writers opened in a conflict have no name.
        """
        from holdfast.history import branches

        return [
            BranchInfo(
                each.branch.branch,
                each.branch.name,
                each.base and each.base.id,
                to_datetime(each.branch.created),
                each.head and each.head.id,
                each.ahead,
                each.is_current,
            )
            for each in await branches.describe(self._engine, self._line)
        ]

    @operation(changes=True)
    @needs("write")
    async def rename_branch(self, name: str, new: str) -> None:
        """Rename a branch. `main` keeps its own name."""
        from holdfast.history import branches

        await branches.rename(
            self._engine, self._line, name, new, self._recorded("rename-branch", branch=name, new=new)
        )

    @operation(changes=True)
    @needs("delete")
    async def delete_branch(self, name: str, *, force: bool = False, dry_run: bool = False) -> list[str]:
        """Delete a branch with the checkpoints that only it has, and return their ids.

        Raises `ConflictError` if it is not merged into another branch, if other branches start from it, or if one of
        its checkpoints has a tag or a label; not with `force`, and then branches that start from it stay as they are.
        Pinned checkpoints and held threads raise `DeniedError`. `main` is not deleted; from the current branch, the
        thread is switched to it first. With `dry_run` nothing is deleted, and the ids that would be are returned.
        """
        from holdfast.history import branches

        apply = self._recorded("delete-branch", branch=name)
        deleted = await branches.delete(self._engine, self._line, name, force=force, dry_run=dry_run, apply=apply)
        return deleted.ids

    @operation(changes=True)
    @needs("write")
    async def switch(self, branch: str) -> Checkpoint[S]:
        """Make a branch the current one: HEAD moves to it, and what names no branch continues there.

        Unless HEAD is on it already, a checkpoint of kind `switch` is saved on it, with an unchanged state.
        """
        from holdfast.history import branches

        return await self._moved(await branches.switch(self._engine, self._line, branch))

    @operation(changes=True)
    @needs("read", "write")
    async def merge(
        self,
        theirs: Revision,
        into: Revision = "HEAD",
        *,
        strategy: str | None = None,
        resolve: Resolve | None = None,
        metadata: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> Checkpoint[S]:
        """Merge what another branch, or any revision, changed since the common ancestor into a branch.

        `into` is the branch, or `HEAD`, the latest checkpoint; the merge is a checkpoint on top of it with two parents.
        If it has everything of `theirs` already, nothing is saved and the head is returned. Where both sides changed
        the same differently, `resolve` is asked: a function that takes a `MergeConflict` and returns the value,
        `MISSING` or `UNRESOLVED`, or rules by path, as in `{"messages": "union"}`. The rest is resolved by `strategy`:
        `"ours"`, `"theirs"`, or `"union"`, which has the items of both in lists. What is left then raises
        `ConflictError` with all `conflicts`, and nothing is saved. Values are compared: if both sides turn a counter
        from 1 to 2, it is 2. If others add to the branch meanwhile, they are merged with; a checkpoint that `into`
        names must be the last. With `dry_run` nothing is saved, and the head of the branch is returned with the state
        that the merge would have.
        """
        from holdfast.history import merge

        metadata = validation.require_mapping(metadata or {}, "metadata")
        if dry_run:
            preview = merge.preview_merge(self._engine, self._line, theirs, into, strategy=strategy, resolve=resolve)
            return self._checkpoint(*await preview)
        head = await merge.merge(
            self._engine, self._line, theirs, into, strategy=strategy, resolve=resolve, metadata=metadata
        )
        return await self._moved(head)

    # Owner ----------------------------------------------------------------------------------------------------

    @operation(may_lag=True)
    @needs("read")
    async def owner(self) -> str:
        """Return the identity that owns the thread; empty if it is the store's owner. Raises `NotFoundError`."""
        from holdfast.security.access.identity_guard import read_owners

        await self._lines.info(self._line)
        return (await read_owners(self._engine, [self._line]))[self._line]

    # Deletion -------------------------------------------------------------------------------------------------

    @operation(changes=True)
    @needs("delete", removes=True)
    async def delete(self) -> bool:
        """Delete the thread with everything that belongs to it, also its namespaces. False if there is none."""
        line, hooks = self._line, self._engine.hooks
        lines = await self._lines.family(line)
        delete = partial(self._lines.delete, *lines, apply=self._recorded("delete", lines=len(lines)))
        return await (delete() if hooks is None else hooks.delete(line, delete))

    # Inside ---------------------------------------------------------------------------------------------------

    def _append_fields(self, call: str, fields: CheckpointFields) -> dict[str, Any]:
        if not fields:
            return {}
        # Loaded only here: who only reads does without.
        from holdfast.store.checkpoint_fields import append_fields, unknown_field_error

        try:
            return append_fields(self._handle, self._line, **fields)
        except TypeError as error:
            raise unknown_field_error(call, fields) or error from None

    def _put_request(self, state: S, if_changed: bool, fields: dict[str, Any]) -> AppendRequest:
        from holdfast.engine.reserved_channels import (
            unless_aside_changes,
        )  # loaded only here: who only reads does without

        packed = self._engine.pack_cache(self._line).pack(validation.require_mapping(state, "state"))
        kept = unless_aside_changes(self._engine, self._line, packed)
        return self._request(kept, fields, if_changed=if_changed)

    def _edit_request(self, call: str, edit: Edit, fields: CheckpointFields) -> AppendRequest:
        if fields:
            fields.setdefault("kind", "update")
        return self._request(edit, {"kind": "update", **self._append_fields(call, fields), "is_pure": True})

    def _request(self, state: PackedMap | Edit, fields: dict[str, Any], *, if_changed: bool = False) -> AppendRequest:
        from holdfast.engine.append import AppendRequest  # loaded only here: who only reads does without

        return AppendRequest(self._line, state, **fields, if_changed=if_changed)

    def _edit(self, changes: Mapping[Path, Any], remove: Iterable[Path] = ()) -> Edit:
        values = validation.require_mapping(changes, "set of changes")
        put: dict[tuple[Any, ...], Any] = {}
        text_paths = set()
        for path, value in values.items():
            keys = require_path(path)
            if keys in put:
                raise InvalidError("the same value is changed twice", where=path_text(keys))
            put[keys] = value
            if isinstance(path, str):
                text_paths.add(keys)
        if isinstance(remove, tuple) and remove:
            raise InvalidError(
                "a tuple is one path, and several may be removed",
                where=repr(remove)[:80],
                hint=f"Give a list: remove=[{remove!r}], or of channels, remove={list(remove)!r}",
            )
        removed = [require_path(path) for path in validation.require_several(remove, "path to remove")]
        return self._edit_parts(put, removed, text_paths)

    def _edit_parts(
        self, put: Mapping[tuple[Any, ...], Any], removed: Sequence[tuple[Any, ...]], text_paths: Collection[Any]
    ) -> Edit:
        from holdfast.engine.reserved_channels import require_unreserved

        require_unreserved(self._line, (*put, *removed))
        return self._engine.edit_parts(self._line, put, removed, text_paths)

    def _version_use(self) -> VersionUse:
        from holdfast.schemas.registry import VersionUse

        return VersionUse(self._engine, self._line.tenant, self._handle.guard.actor)

    async def _operate(
        self, call: str, path: Path, operator: UpdateOperator, fields: CheckpointFields
    ) -> Checkpoint[S]:
        keys = require_path(path)
        edit = self._edit_parts({keys: operator}, (), (keys,) if isinstance(path, str) else ())
        return await self._save_edit(call, edit, fields)

    async def _save_edit(self, call: str, edit: Edit, fields: CheckpointFields) -> Checkpoint[S]:
        return await self._merge_branch(await self._save(self._edit_request(call, edit, fields)), fields)

    async def _save(self, request: AppendRequest) -> Checkpoint[S]:
        (head,) = await self._engine.writer.save(request)
        return await self._moved(head)

    async def _moved(self, head: StepInfo) -> Checkpoint[S]:
        """Return a checkpoint that was saved by other means than a run of a graph, whose status it may change."""
        await refresh_known(self._engine, self._line)
        return self._checkpoint(head)

    async def _merge_branch(self, saved: Checkpoint[S], fields: CheckpointFields) -> Checkpoint[S]:
        """Merge a checkpoint that had to open a branch into the branch of its parent, if the caller asked for that."""
        parent, on_conflict = fields.get("parent"), fields.get("on_conflict")
        if parent is None or (on_conflict != "merge" and not callable(on_conflict)):
            return saved
        base = (await self._find(parent)).branch
        if saved.branch == base:
            return saved
        names = {each.branch: each.name for each in await self._lines.branches(self._line)}
        into = names.get(base) or (MAIN.name if not base and MAIN.name not in names.values() else "")
        resolve = on_conflict if callable(on_conflict) else None
        head = into or (await self._lines.head(self._line, base)).id
        return await ThreadOperations.merge(self, saved, head, resolve=resolve)

    async def _cursor_point(self, cursor: str | None, at: Revision) -> tuple[str | None, StepRef]:
        """Return the position in a cursor, and the checkpoint that the first page was read at; or that of `at`."""
        if cursor is None:
            return None, await self._find(at)
        position, _, id = check_name(cursor, "cursor").partition("@")
        if not id:
            raise InvalidError(
                "the cursor does not belong to this listing", where=repr(cursor)[:80], hint="Pass the `next` of a page"
            )
        return position, await self._lines.find(self._line, id)

    async def _read(self, point: StepRef, *, lazy: bool = False, migrate: bool = True) -> Checkpoint[S]:
        line, engine = self._line, self._engine
        head = await engine.lines.read_step(line, point, partial(engine.step_info.head, line))
        schema = None if engine.schemas is None or not migrate else engine.schemas.find(line)
        is_old = schema is not None and schema.reference != head.header.schema and schema.applies_to(head.header.schema)
        if lazy:
            from holdfast.store.lazy_state import AsyncLazyState, LazyState, UpgradedReader

            part = engine.state_reader(line, point)
            if is_old and schema is not None:
                part = UpgradedReader(engine, line, point, partial(self._packed_upgraded, schema, head))
            kind = LazyState if isinstance(self, SyncApi) else AsyncLazyState
            state: Any = kind(part, hides_aside=schema is not None)
        elif is_old and schema is not None:
            state = await engine.lines.read_step(line, point, partial(self._upgraded, schema, head))
        else:
            state = await engine.lines.read_step(line, point, partial(engine.state, line))
            if schema is not None:
                from holdfast.engine.schema_bindings import ASIDE

                state.pop(ASIDE, None)
        if is_old and schema is not None:
            head = head._replace(header=head.header._replace(schema=schema.reference))
        return self._checkpoint(head, state)

    async def _upgraded(self, schema: LineSchema, head: StepInfo, point: StepRef) -> dict[str, Any]:
        """Return the state at a step in the version of a schema."""
        return unpack_state(self._handle.codec, await self._packed_upgraded(schema, head, point))

    async def _packed_upgraded(self, schema: LineSchema, head: StepInfo, point: StepRef) -> PackedMap:
        packed = await self._engine.states.values(self._line, point)
        return await schema.upgrade(self._line, point, head.header.schema, packed)

    def _checkpoint(self, head: StepInfo, state: Any = None) -> Checkpoint[S]:
        return Checkpoint.from_step(self._line, head, self._handle.codec, state)


class Thread(SyncApi, ThreadOperations[S]):
    """A thread of a `Store`: its operations return when they are done."""

    def _repr_html_(self) -> str:
        from holdfast._views import html_listing

        try:
            return html_listing(self.log(), repr(self))
        except NotFoundError:
            return html_listing((), repr(self))


class AsyncThread(AsyncApi, ThreadOperations[S]):
    """A thread of an `AsyncStore`: its operations are awaited."""


def check_schema(schema: object) -> None:
    """Raise `UnsupportedError` unless it is a class whose instances are dicts: states are returned as they are."""
    if schema is None or is_typeddict(schema) or (isinstance(schema, type) and issubclass(schema, dict)):
        return
    raise UnsupportedError(
        "the schema of a thread must be a TypedDict, or dict",
        where=repr(schema)[:80],
        hint="Declare a typing.TypedDict",
    )
