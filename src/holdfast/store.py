"""The store: threads of checkpoints, for sync and for async programs.

`Store` and `AsyncStore` have the same operations, written once; those of `AsyncStore` are awaited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from holdfast.checkpoints import BranchInfo, Stats, to_datetime
from holdfast.engine.drivers import Async, Sync, operation
from holdfast.engine.lines import MAIN
from holdfast.engine.moving import Copied, Mover, Tell, copy_to_url
from holdfast.engine.records import check_name
from holdfast.errors import Invalid
from holdfast.operations import Basics


class Operations(Basics):
    """What can be done with a store. `Store` and `AsyncStore` have these as methods."""

    # Seeing: differences, blame (D) ---------------------------------------------------------------------------

    # Branches, merges (M) -------------------------------------------------------------------------------------

    @operation
    async def fork(self, thread: str, id: str | None = None, *, branch: str, step: int | None = None) -> BranchInfo:
        """Start a branch with a name at a checkpoint. Copies nothing; `put(..., branch=name)` goes on from there."""
        line = self._line(thread)
        check_name(branch, "name of a branch")
        if not branch:
            raise Invalid("the name of a branch is not empty", where=f"thread {thread!r}")
        point = await self._find(line, id, step=step)
        made = await self._lines.fork(line, point, branch)
        return BranchInfo(made.branch, made.name, point.id, to_datetime(made.created))

    @operation
    async def branches(self, thread: str) -> list[BranchInfo]:
        """The branches of a thread. `main` is the first, until a new revision of one of its checkpoints takes over.

        Branches that writers opened in a conflict have no name.
        """
        line = self._line(thread)
        info = await self._lines.info(line)
        others = await self._lines.branches(line)
        main = "" if any(branch.name == MAIN.name for branch in others) else MAIN.name
        found = [BranchInfo(0, main, None, to_datetime(info.created))]
        for branch in others:
            base = await self._lines.base(line, branch)
            found.append(BranchInfo(branch.branch, branch.name, base, to_datetime(branch.created)))
        return found

    # Search (Q) -----------------------------------------------------------------------------------------------

    # Pruning, pins, holds (P) ---------------------------------------------------------------------------------

    # Verifying, repairing (V) ---------------------------------------------------------------------------------

    # Moving: copies, export, import (W) -----------------------------------------------------------------------

    @operation
    async def copy_to(
        self, other: Operations | str, /, *, tenants: str = "own", progress: Tell | None = None, **options: Any
    ) -> Copied:
        """Copy all threads of this tenant to another store, given by itself or by its URL; with `tenants="all"`, those
        of all tenants.

        Threads are copied as they are, with branches, names, tags and pending writes, under the same hashes. What is
        there already is skipped: a copy that was interrupted goes on when it is begun again. Writers may go on here
        meanwhile; the report names threads that kept changing. At the end all rows are compared, and the hashes in the
        other store recomputed. A thread that has another history there raises `Conflict`, and is not changed.
        `progress` is called after each thread. `options` are for opening the other store by its URL.
        """
        if tenants not in ("own", "all"):
            raise Invalid(f"tenants is 'own' or 'all', not {tenants!r}")
        tenant = None if tenants == "all" else self.tenant
        if isinstance(other, str):
            return await copy_to_url(self.engine, other, options, tenant, progress)
        if options:
            raise Invalid(f"the other store is open already, and takes no option {min(options)!r}")
        if other.tenant != self.tenant and tenant is not None:
            raise Invalid(
                f"the other store was opened for tenant {other.tenant!r}, and would not see what is copied",
                hint=f"Open it with tenant={self.tenant!r}, or give its URL",
            )
        return await Mover(self.engine, other.engine, progress).copy(tenant)

    # The store itself -----------------------------------------------------------------------------------------

    @operation
    async def stats(self) -> Stats:
        """The store in figures: its size, this tenant's threads, and what the cache holds."""
        cache, backend = self.engine.ground.cache, self.engine.ground.backend
        threads, size = len(await self._lines.names(self.tenant)), await backend.size()
        return Stats(backend.url, size, threads, cache.held, cache.max_bytes, cache.hits, cache.misses)

    @operation
    async def status(self) -> dict[str, int | float | str]:
        """How the store is doing, by name: what waits to be copied, what was healed, whether a breaker is open.

        Which names there are depends on what the store is made of; a plain one may have none.
        """
        return await self.engine.ground.backend.status()

    @operation
    async def compact(self, thread: str) -> None:
        """Fold a thread anew from its first step, under the same hashes, and free what nothing needs any more.

        Writers and readers go on meanwhile.
        """
        await self.engine.rewriter.rewrite(self._line(thread))
        await self.engine.ground.backend.tidy()

    @operation
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


class Store(Sync, Operations):
    """A store whose operations return when they are done. Safe to use from many threads at a time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()


class AsyncStore(Async, Operations):
    """A store whose operations are awaited."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close()
