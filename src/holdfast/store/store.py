"""The store: threads of checkpoints, for sync and for async programs.

`Store` and `AsyncStore` have the same operations, written once; those of `AsyncStore` are awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.namespaces import is_thread
from holdfast.engine.row_format import Line, check_name
from holdfast.engine.types import BranchInfo, Checkpoint, StoreStats, to_datetime
from holdfast.engine.validation import Path
from holdfast.errors import InvalidError
from holdfast.store.threads import ThreadOperations

if TYPE_CHECKING:
    from holdfast.engine.copy.between_stores import CopyReport, Tell
    from holdfast.engine.integrity.findings import Finding
    from holdfast.engine.text_index.indexer import IndexReport, Progress
    from holdfast.history.blame import BlameEntry, ValueChange
    from holdfast.history.diff_result import Diff
    from holdfast.history.merge import Resolve
    from holdfast.history.search import SearchPage
    from holdfast.maintenance.archive.export import ExportReport
    from holdfast.maintenance.archive.format import Place
    from holdfast.maintenance.archive.import_ import ImportReport
    from holdfast.maintenance.orphans import OrphanReport
    from holdfast.maintenance.pins import HoldInfo, PinInfo
    from holdfast.maintenance.pruner import PruneReport, ThreadPruneReport
    from holdfast.maintenance.repair.quarantine import QuarantinedRow
    from holdfast.maintenance.repair.repairer import RepairReport
    from holdfast.maintenance.retention import Retention, RetentionRules
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport


class Operations(ThreadOperations):
    """What can be done with a store. `Store` and `AsyncStore` have these as methods."""

    # Seeing: differences, blame -------------------------------------------------------------------------------

    @sync_and_async
    async def diff(
        self,
        thread: str,
        a: str | None = None,
        b: str = "HEAD",
        *,
        other: str | None = None,
        state: Mapping[str, Any] | None = None,
        large: bool = False,
    ) -> Diff:
        """What differs between two states: first in numbers, then place by place, or as a JSON Patch.

        `a` and `b` are revisions of the thread (see `resolve`); without `a`, it is what `b` changed of its parent. With
        `other`, `b` is a revision of that other thread, and `a` the latest of this one unless it is named; with
        `state`, `a` is compared with that state. Nodes that both sides share are not read. Large values that differ
        are fetched only with `large`.
        """
        from holdfast.history import comparison

        line = self._line(thread)
        if other is None and state is None:
            return await comparison.compare_revisions(self.engine, line, a, b, large=large)
        old = await comparison.spot(self.engine, line, "HEAD" if a is None else a)
        if state is not None:
            if other is not None or b != "HEAD":
                raise InvalidError("a checkpoint is compared with another or with a state, not with both")
            return await comparison.compare(self.engine, old, validation.mapping(state, "state"), large=large)
        new = await comparison.spot(self.engine, self._line(other or ""), b)
        return await comparison.compare(self.engine, old, new, large=large)

    @sync_and_async
    async def blame(
        self, thread: str, path: Path, at: str = "HEAD", *, start: int = 0, limit: int | None = None
    ) -> list[BlameEntry]:
        """Which checkpoint wrote what is at a place of a state, when, and by whom.

        `path` is text as `messages[3]`, `messages[-10:]`, `memory.user`, or a tuple of a channel, keys and places in
        lists. Of a list or a dict, it is told of each item or entry: `limit` of them from the `start`-th on. Raises
        `NotFoundError` if there is nothing.
        """
        from holdfast.history import blame, paths

        start, limit = validation.count(start, "start"), validation.optional_count(limit, "limit")
        place = paths.place(path)
        return await blame.blame(self.engine, self._line(thread), place, at, start=start, limit=limit)

    @sync_and_async
    async def history(
        self, thread: str, path: Path, at: str = "HEAD", *, before: str | None = None, limit: int | None = None
    ) -> list[ValueChange]:
        """Every checkpoint that changed a place of a state, the latest first, with what it changed there.

        It goes from `at` along first parents; `before` is the id of the last one of the page before. A place in a list
        follows its item, wherever it stood. What did not change the place is skipped without being read.
        """
        from holdfast.history import blame, paths

        before, limit = validation.optional_name(before, "id"), validation.optional_count(limit, "limit")
        return await blame.history(self.engine, self._line(thread), paths.place(path), at, before=before, limit=limit)

    # Branches, merges -----------------------------------------------------------------------------------------

    @sync_and_async
    async def resolve(self, thread: str, revision: str) -> Checkpoint:
        """The checkpoint that a revision names, without its state.

        As in git: `HEAD` is the latest; a branch's name, the last one of the branch; a name; an id, or the start of
        one; `#12`, `draft#12` a step by its number; `X~2`, `X^`, `X^2` those before X, `X^2` the second parent of a
        merge; `X@{2h}`, `X@{yesterday}`, `X@{2026-11-01T10:00}` as of a time. Raises `NotFoundError`, and
        `InvalidError` if several ids start so.
        """
        line = self._line(thread)
        point = await self._find(line, at=revision)
        return Checkpoint.from_step(line, await self.engine.heads.head(line, point), self._codec)

    @sync_and_async
    async def fork(
        self,
        thread: str,
        id: str | None = None,
        *,
        branch: str,
        at: str | None = None,
        step: int | None = None,
        changes: Mapping[Path, Any] | None = None,
        remove: Iterable[Path] = (),
    ) -> BranchInfo:
        """Start a branch with a name at a checkpoint. Copies nothing; `put(..., branch=name)` goes on from there.

        The checkpoint is the latest, or named as in `get`. With `changes` or `remove`, which are as in `update`, the
        branch begins with a checkpoint whose state is edited so; both are made, or neither.
        """
        from holdfast.history import branches

        line = self._own_line(thread)
        branches.checked_name(branch, line)
        point = await self._find(line, id, at=at, step=step)
        if not changes and not remove:
            made = await self._lines.fork(line, point, branch)
            return BranchInfo(made.branch, made.name, point.id, to_datetime(made.created), point.id)
        edit = self._parts(thread, changes or {}, remove)
        first = (await branches.fork(self.engine, line, point, branch, edit)).point
        return BranchInfo(first.branch, branch, point.id, to_datetime(first.time), first.id, 1, current=True)

    @sync_and_async
    async def branches(self, thread: str) -> list[BranchInfo]:
        """The branches of a thread. `main` is the first, until a new revision of one of its checkpoints takes over.

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
            for each in await branches.describe(self.engine, self._line(thread))
        ]

    @sync_and_async
    async def rename_branch(self, thread: str, name: str, new: str) -> None:
        """Give a branch another name. `main` keeps its own."""
        from holdfast.history import branches

        await branches.rename(self.engine, self._own_line(thread), name, new)

    @sync_and_async
    async def delete_branch(self, thread: str, name: str, *, force: bool = False, dry_run: bool = False) -> list[str]:
        """Delete a branch with the checkpoints that only it has, and return their ids.

        Raises `ConflictError` if it is not merged into another branch, if other branches start from it, or if one of
        its checkpoints has a name or a tag; not with `force`, and then branches that start from it stay as they are.
        Pinned checkpoints and held threads raise `DeniedError`. `main` is not deleted. With `dry_run` nothing is, and
        it says what would be.
        """
        from holdfast.history import branches

        line = self._own_line(thread)
        return (await branches.delete(self.engine, line, name, force=force, dry_run=dry_run)).ids

    @sync_and_async
    async def switch(self, thread: str, branch: str) -> Checkpoint:
        """Make a branch the one that goes on: its last checkpoint becomes the latest of the thread.

        Unless the latest is one of its own already, a checkpoint of kind `switch` is saved on it; it changes nothing.
        """
        from holdfast.history import branches

        line = self._own_line(thread)
        return Checkpoint.from_step(line, await branches.switch(self.engine, line, branch), self._codec)

    @sync_and_async
    async def merge(
        self,
        thread: str,
        theirs: str,
        into: str = "HEAD",
        *,
        strategy: str | None = None,
        resolve: Resolve | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Bring what another branch, or any revision, changed since the common ancestor into a branch.

        `into` is the branch, or `HEAD`, the latest checkpoint; the merge is a checkpoint on top of it with two parents.
        If everything of `theirs` is there already, nothing is saved and the head is returned. Where both sides changed
        the same differently, `resolve` is asked: a function that is given a `MergeConflict` and returns the value,
        `MISSING` or `UNRESOLVED` (see `holdfast.history.merge`), or ways to settle by path, as in `{"messages":
        "union"}`. What is left, `strategy` settles: `"ours"`, `"theirs"`, or `"union"`, which has the items of both in
        lists. What is left then raises `ConflictError` with all `clashes`, and nothing is saved.

        If others add to the branch meanwhile, they are merged with; a checkpoint that `into` names by its id must be
        the last one.
        """
        from holdfast.history import merge

        line = self._own_line(thread)
        metadata = validation.mapping(metadata or {}, "metadata")
        head = await merge.merge(self.engine, line, theirs, into, strategy=strategy, resolve=resolve, metadata=metadata)
        return Checkpoint.from_step(line, head, self._codec)

    # Search ---------------------------------------------------------------------------------------------------

    @sync_and_async
    async def search(
        self, query: str, *, limit: int = 20, after: str | None = None, progress: Progress | None = None
    ) -> SearchPage:
        """A page of the checkpoints that match a query, such as `refund tag:release time>2h`; the guide "Search" has
        the whole syntax.

        A text matches the checkpoint that brought it, and the match shows where. `after` is the `next` of the page
        before. Where the store keeps an index of words (see `index`), text is found at once; otherwise every checkpoint
        is looked at, from the latest on, until there are `limit` matches, and `progress` is told how far that is.
        A query that cannot be read raises `InvalidError`, which shows the place.
        """
        from holdfast.history.search import search

        count = validation.count(limit, "limit") or 1
        return await search(self.engine, self.tenant, query, limit=count, after=after, progress=progress)

    @sync_and_async
    async def index(self, *, progress: Progress | None = None) -> IndexReport:
        """Make an index of the words in this tenant's threads, and keep it from then on, whoever writes.

        Only what is missing is made: begun again it goes on where it ended. Writers go on meanwhile. Raises
        `UnsupportedError` where the store can keep none.
        """
        return await self.engine.indexer.build(self.tenant, progress)

    @sync_and_async
    async def drop_index(self) -> bool:
        """Keep no index of words any more, and remove it. False if there was none."""
        return await self.engine.indexer.drop(self.tenant)

    # Pruning, pins, holds -------------------------------------------------------------------------------------

    @sync_and_async
    async def prune(
        self,
        policy: Retention | None = None,
        *,
        threads: str | Iterable[str] | None = None,
        prefix: str = "",
        where: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        each: Callable[[ThreadPruneReport], None] | None = None,
        **rules: Unpack[RetentionRules],
    ) -> PruneReport:
        """Remove old checkpoints: of some threads by name, of those that a `prefix` or a query names, or of all.

        What stays is said by a `Retention`, or by its fields: `prune(keep_last=100, keep_daily=30)`. A checkpoint stays
        if any of them keeps it; it reads as before, with the same hash. Pins and holds are respected. The namespaces of
        a LangGraph thread are pruned with it.

        With `dry_run` nothing is changed, and the report says what would be. Writers go on meanwhile. A thread that is
        held, or that another process is rewriting, is left as it is and reported, unless it is the only one named.
        `progress` is called after each thread. With `each`, that is told of every thread and what becomes of its
        checkpoints, and the report has figures only: for stores with more checkpoints than fit into memory.
        """
        from holdfast.maintenance import pruner, retention

        selection = pruner.ThreadSelection.of(threads, prefix, where)
        policy = retention.policy_of(policy, rules)
        return await pruner.prune(
            self.engine, self.tenant, policy, selection, dry_run=dry_run, progress=progress, each=each
        )

    @sync_and_async
    async def pin(self, thread: str, revision: str = "HEAD", *, reason: str = "") -> str:
        """Keep a checkpoint from being pruned, for a reason; there may be several. Returns its id."""
        from holdfast.maintenance import pins

        return await pins.pin(self.engine, self._line(thread), revision, reason)

    @sync_and_async
    async def unpin(self, thread: str, revision: str = "HEAD", *, reason: str | None = None) -> str:
        """Take a pin away from a checkpoint, or all that it has. Returns its id. `NotFoundError` if there is none."""
        from holdfast.maintenance import pins

        return await pins.unpin(self.engine, self._line(thread), revision, reason)

    @sync_and_async
    async def pins(self, thread: str) -> list[PinInfo]:
        """The checkpoints of a thread that are pinned, and why."""
        from holdfast.maintenance import pins

        return await pins.pins(self.engine, self._line(thread))

    @sync_and_async
    async def hold(self, thread: str, *, reason: str = "") -> None:
        """Keep a thread, with its namespaces, from being pruned or deleted: both raise `DeniedError` until it is
        released.

        There may be several holds, each with its reason. What is saved to the thread is saved as always.
        """
        await self.engine.holds.hold(self._line(thread), check_name(reason, "reason"))

    @sync_and_async
    async def release(self, thread: str, *, reason: str | None = None) -> None:
        """Take a hold away from a thread, or all that it has. `NotFoundError` if there is none."""
        from holdfast.maintenance import pins

        await pins.release(self.engine, self._line(thread), reason)

    @sync_and_async
    async def holds(self, thread: str | None = None) -> list[HoldInfo]:
        """The holds of a thread, or of all threads, and why they are held."""
        from holdfast.maintenance import pins

        return await pins.holds(self.engine, self.tenant, None if thread is None else self._line(thread))

    @sync_and_async
    async def orphans(
        self, *, dry_run: bool = False, grace: str = "1d", progress: Progress | None = None
    ) -> OrphanReport:
        """Remove rows that belong to nothing, such as a process leaves that died in the middle of a copy.

        What may still be wanted by something under way goes only when it has been there for the time of `grace`. With
        `dry_run` it is only told what there is.
        """
        from holdfast.maintenance import orphans

        return await orphans.sweep(self.engine, self.tenant, grace=grace, dry_run=dry_run, progress=progress)

    # Verifying, repairing -------------------------------------------------------------------------------------

    @sync_and_async
    async def verify(
        self,
        thread: str | None = None,
        *,
        level: str = "hashes",
        heads: StoreHeads | None = None,
        progress: Progress | None = None,
        after: str = "",
        limit: int | None = None,
        each: Callable[[Finding], None] | None = None,
    ) -> VerifyReport:
        """See whether a thread, or all of this tenant's and the store itself, are as they were written.

        `level` says how deep to look: `structure` (everything is where it should be), `hashes` (every hash recomputed,
        everything there that a state needs) or `decode` (every state put together, every value decoded). Against
        `heads` that were exported before, even a lost end is found. What is found is in the report; nothing is raised
        and nothing changed. Writers may go on meanwhile. `after` a thread by name, and for a `limit` of threads, a long
        verification is done in parts: `report.next` says where to go on. `each` is told of findings as they are made.
        """
        from holdfast.maintenance.verify import verifier

        threads = None if thread is None else [self._line(thread).name]
        return await verifier.verify(
            self.engine,
            self.tenant,
            threads,
            level=verifier.level_of(level),
            heads=heads,
            progress=progress,
            after=after,
            limit=limit,
            each=each,
        )

    @sync_and_async
    async def heads(self, thread: str | None = None) -> StoreHeads:
        """Where every thread ends: keep it elsewhere (`heads.save(path)`), and give it to `verify` later."""
        from holdfast.maintenance.verify.heads import export_heads

        threads = None if thread is None else [self._line(thread).name]
        return await export_heads(self.engine, self.tenant, threads)

    @sync_and_async
    async def repair(
        self,
        source: Operations | str | Sequence[Operations | str] = (),
        *,
        thread: str | None = None,
        heads: StoreHeads | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> RepairReport:
        """Mend what is damaged, from other stores with the same history: mirrors, copies or backups, by themselves or
        by URL. Whatever is taken from them is checked by its hash.

        What no source has is salvaged: every checkpoint that still reads is kept, and the rest goes to `quarantine`. A
        damaged SQLite file is replaced by a new one with all that can be read, and kept beside it. With `dry_run`
        nothing is changed, and the same is told. Interrupted, it is begun again.
        """
        from holdfast.maintenance.repair import repairer

        given = [source] if isinstance(source, str | Operations) else list(source)
        threads = None if thread is None else [self._line(thread).name]
        async with repairer.opened_sources(self.engine, given, self.tenant) as sources:
            return await repairer.repair(
                self.engine, self.tenant, sources, threads=threads, heads=heads, dry_run=dry_run, progress=progress
            )

    @sync_and_async
    async def quarantine(self, thread: str | None = None) -> list[QuarantinedRow]:
        """What repairs took out of threads because it was damaged, as it was found."""
        from holdfast.maintenance.repair.quarantine import quarantined

        threads = None if thread is None else [self._line(thread).name]
        return [each async for each in quarantined(self.engine, self.tenant, threads)]

    # Moving: copies, export, import ---------------------------------------------------------------------------

    @sync_and_async
    async def copy_to(
        self,
        other: Operations | str,
        /,
        *,
        tenants: str = "own",
        threads: Iterable[str] | None = None,
        progress: Tell | None = None,
        **options: Any,
    ) -> CopyReport:
        """Copy all threads of this tenant to another store, given by itself or by its URL; or only some `threads`, with
        their namespaces; with `tenants="all"`, those of all tenants.

        Threads are copied as they are, with branches, names, tags and pending writes, under the same hashes. What is
        there already is skipped: a copy that was interrupted goes on when it is begun again. Writers may go on here
        meanwhile; the report names threads that kept changing. At the end all rows are compared, and the hashes in the
        other store recomputed. A thread that has another history there raises `ConflictError`, and is not changed.
        `progress` is called after each thread. `options` are for opening the other store by its URL.
        """
        if tenants not in ("own", "all"):
            raise InvalidError(f"tenants is 'own' or 'all', not {tenants!r}")
        tenant = None if tenants == "all" else self.tenant
        only = None if threads is None else await self._lines_of(threads)
        if only is not None and tenant is None:
            raise InvalidError("threads are named where those of one tenant are copied, not of all")
        if isinstance(other, str):
            from holdfast.engine.copy.between_stores import copy_to_url

            return await copy_to_url(self.engine, other, options, tenant, progress, only)
        if options:
            raise InvalidError(f"the other store is open already, and takes no option {min(options)!r}")
        if other.tenant != self.tenant and tenant is not None:
            raise InvalidError(
                f"the other store was opened for tenant {other.tenant!r}, and would not see what is copied",
                hint=f"Open it with tenant={self.tenant!r}, or give its URL",
            )
        from holdfast.engine.copy.between_stores import StoreCopier

        return await StoreCopier(self.engine, other.engine, progress).copy(tenant, only)

    @sync_and_async
    async def export(
        self,
        place: Place,
        *,
        threads: Iterable[str] | None = None,
        format: str = "holdfast",  # noqa: A002 - what it is called everywhere
        progress: Progress | None = None,
    ) -> ExportReport:
        """Write all threads to one file, or only some, with their namespaces: `import_` brings them back, here or in
        another store, under the same hashes.

        `place` is a path, compressed if it ends in `.gz`, or a file that is open in binary mode. At a path there is the
        whole file in the end, or what was there before. Each thread is verified as it is written. With `format="json"`
        the file has the state of every checkpoint instead, one JSON document to a line, for other tools: that cannot
        be imported. `progress(done, total, thread)` is called after each thread.
        """
        from holdfast.maintenance.archive import export

        lines = await self._lines_of(threads)
        if format == "json":
            return await export.export_states(
                self.engine, lines, place, lambda line, head: Checkpoint.from_step(line, head, self._codec), progress
            )
        if format != "holdfast":
            raise InvalidError(f"the format is 'holdfast' or 'json', not {format!r}")
        return await export.export_threads(self.engine, lines, place, progress)

    @sync_and_async
    async def import_(
        self,
        place: Place,
        *,
        threads: Iterable[str] | None = None,
        as_thread: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ImportReport:
        """Bring threads back from a file that `export` wrote: all in it, or some; one of them perhaps under another
        name, `as_thread`. Ids and hashes stay what they are; threads become this store's tenant's.

        Nothing is written before the checksum of the file and every hash in it were seen to be right. What is there
        already is left as it is. A thread that is there with another history raises `ConflictError`, and then nothing
        is written at all. With `dry_run` it is only seen what would be brought.
        """
        from holdfast.maintenance.archive import import_

        named = None if threads is None else list(validation.names(threads, "threads"))
        name = None if as_thread is None else self._own_line(as_thread).name
        want = import_.wanted(self.tenant, named, name)
        return await import_.import_threads(self.engine, place, want, dry_run, progress)

    async def _lines_of(self, threads: Iterable[str] | None) -> list[Line]:

        named = (
            None if threads is None else [self._line(thread).name for thread in validation.names(threads, "threads")]
        )
        return await self.engine.lines.of_threads(self.tenant, named)

    # The store itself -----------------------------------------------------------------------------------------

    @sync_and_async
    async def stats(self) -> StoreStats:
        """The store in figures: its size, this tenant's threads, and what the cache holds."""
        cache, backend = self.engine.ground.cache, self.engine.ground.backend
        lines, size = await self._lines.names(self.tenant), await backend.size()
        threads = sum(is_thread(line.name) for line in lines)
        return StoreStats(backend.url, size, threads, cache.held, cache.max_bytes, cache.hits, cache.misses)

    @sync_and_async
    async def status(self) -> dict[str, int | float | str]:
        """How the store is doing, by name: what waits to be copied, what was healed, which hooks are off.

        Which names there are depends on what the store is made of; a plain one may have none.
        """
        status = await self.engine.ground.backend.status()
        return status if self.engine.hooks is None else {**status, **self.engine.hooks.status()}

    @sync_and_async
    async def compact(self, thread: str) -> None:
        """Fold a thread anew from its first step, under the same hashes, and free what nothing needs any more.

        Writers and readers go on meanwhile.
        """
        await self.engine.rewriter.rewrite(self._line(thread))
        await self.engine.ground.backend.tidy()

    @sync_and_async
    async def project(
        self, *, after: str = "", again: bool = False, progress: Callable[[str, int], None] | None = None
    ) -> int:
        """Make the readable rows of this tenant's threads, where they do not tell of every checkpoint.

        For a store that had none so far, or was written to by programs that make none. Writers go on meanwhile. Begun
        again it goes on where it ended, by itself, or `after` a thread by name. With `again` all rows are made anew.
        `progress` is called with the name of each thread that was looked at, and how many that makes. Returns the
        number of threads whose rows were made.
        """
        check_name(after, "name of a thread")
        return await self.engine.projector.build_all(self.tenant, after, again, progress)


class Store(SyncApi, Operations):
    """A store whose operations return when they are done. Safe to use from many threads at a time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class AsyncStore(AsyncApi, Operations):
    """A store whose operations are awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()
