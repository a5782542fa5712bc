"""Runs queries on a snapshot of several shards.

A damaged shard makes queries fail that name it. A scan over many shards takes what is left of it: else one damaged
thread would make all others inaccessible.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple, TypeVar

from holdfast.backends.batch_eval import Columns
from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.object_names import ShardNames, folder
from holdfast.backends.object_store.object_storage import check_deadline, clock, gather_limited
from holdfast.backends.object_store.salvage import SalvagedView, ShardSalvager
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import (
    BodyLookup,
    LogEntryDraft,
    RetryLimit,
    ShardVersion,
    ShardView,
    ViewOutdated,
)
from holdfast.backends.tables import Key, Table
from holdfast.errors import CorruptError

_logger = logging.getLogger("holdfast.backends")

T = TypeVar("T")

_FIRST_SHARDS = 32
"""How many shards are read at first, if a scan may find enough in them."""


_SNAPSHOT_ATTEMPTS = 24
"""How often several shards are read before those that keep changing are locked."""


class ShardViews(NamedTuple):
    """A snapshot of shards."""

    views: dict[ShardNames, ShardView]

    def columns(self, space: Table, key: Key) -> Columns | None:
        """Return the columns of a row, or None if it does not exist."""
        return self.views[str(key[0]), str(key[1])].columns(space, key)


class QueryRunner:
    """Runs queries."""

    def __init__(self, shard_log: ShardLog) -> None:
        self._log = shard_log
        self._salvager = ShardSalvager(shard_log)
        self._warned: set[ShardNames] = set()
        """Damaged shards that were reported."""

    async def run(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Return the rows of each query, on one snapshot."""
        retry_limit = RetryLimit()
        while True:
            shard_queries = [_ShardQuery(query) for query in queries]
            try:
                return await self._run(shard_queries)
            except ViewOutdated as outdated:
                retry_limit.check(outdated)
                for names in {each for one in shard_queries for each in one.shards()}:
                    self._log.forget_shard(folder(names))

    async def on_snapshot(
        self, names: set[ShardNames], read: Callable[[ShardViews], T], salvage: Set[ShardNames] = frozenset()
    ) -> T:
        """Call `read` with a snapshot of several shards. Those in `salvage` may be damaged."""
        ordered = sorted(names)
        before: list[ShardVersion] = []
        changing: set[ShardNames] = set()
        for _ in range(_SNAPSHOT_ATTEMPTS):
            check_deadline()
            views = await gather_limited([self._read_shard(each, each in salvage) for each in ordered])
            versions = [view.version for view in views]
            # If none changed between two reads of all of them, both reads are a snapshot.
            if len(ordered) <= 1 or versions == before:
                return read(ShardViews(dict(zip(ordered, views, strict=True))))
            if before:
                changing.update(each for each, old, new in zip(ordered, before, versions, strict=True) if old != new)
            before = versions
        return await self._on_locked_snapshot(names, changing, read, salvage)

    async def _read_shard(self, names: ShardNames, salvage: bool) -> ShardView:
        """Read a shard. With `salvage`, what is left of it if it is damaged."""
        try:
            return await self._log.read_shard(folder(names), names)
        except CorruptError as error:
            if not salvage:
                raise
            if names not in self._warned:
                self._warned.add(names)
                _logger.warning("a scan found a damaged thread, %r, and uses what is left of it: %s", names[1], error)
            return SalvagedView(names, folder(names), await self._salvager.salvage(folder(names)))

    async def _on_locked_snapshot(
        self,
        names: set[ShardNames],
        changing: set[ShardNames],
        read: Callable[[ShardViews], T],
        salvage: Set[ShardNames],
    ) -> T:
        """Call `read` with a snapshot, while shards that keep changing are locked.

        The lock is a transaction that changes nothing and is aborted in the end.
        """
        id = secrets.token_hex(16)
        try:
            for each in sorted(changing):
                await self._lock_shard(each, id)
            return await self.on_snapshot(names, read, salvage)
        finally:
            await self._log.decide(id, committed=False)

    async def _lock_shard(self, names: ShardNames, id: str) -> None:
        while True:
            check_deadline()
            view = await self._log.read_shard(folder(names), names)
            await self._log.make_writable(view)
            draft = LogEntryDraft(view, id)
            if await self._log.append(view, draft):
                return

    async def find_shards(self, prefix: Key) -> list[ShardNames]:
        """List the shards whose names start with a prefix, in order. Some may be empty."""
        if len(prefix) >= 2:
            return [(str(prefix[0]), str(prefix[1]))]
        storage = self._log.storage
        if prefix:
            tenants = [object_names.tenant_folder(str(prefix[0]))]
        else:
            tenants = [name for name in await storage.list_folders("") if object_names.is_tenant(name)]
        lines = await gather_limited([storage.list_folders(tenant) for tenant in tenants])
        found = [
            (tenant, line)
            for tenant, in_folder in zip(tenants, lines, strict=True)
            for line in in_folder
            if object_names.is_line(line)
        ]
        return sorted(
            name for name in await gather_limited([self.shard_names(*each) for each in found]) if name is not None
        )

    async def shard_names(self, tenant: str, line: str) -> ShardNames | None:
        """Return tenant and line of a shard, from its folder or from its objects; None if it is empty."""
        names = object_names.decode_name(tenant), object_names.decode_name(line)
        if names[0] is not None and names[1] is not None:
            return names[0], names[1]
        try:
            view = await self._log.read_shard(f"{tenant}/{line}")
        except CorruptError:
            salvaged = await self._salvager.salvage(f"{tenant}/{line}")
            if salvaged.names is None:
                raise
            return salvaged.names
        return view.names if view.token else None

    async def _run(self, shard_queries: Sequence[_ShardQuery]) -> list[list[Row]]:
        if any(one.unlimited for one in shard_queries):
            found = await self._find_in_all(shard_queries)
        else:
            found = await self._find_in_some(shard_queries)
        located = [each for rows in found for each in rows]
        bodies = iter(await self._log.bodies.fetch([where for _, where in located if where is not None]))
        return [[row if where is None else row._replace(body=next(bodies)) for row, where in rows] for rows in found]

    async def _find_in_all(self, shard_queries: Sequence[_ShardQuery]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """Find rows in all shards of a tenant or of the store, on one snapshot.

        A listing of all objects shows which shards have changed.
        """
        shard_log = self._log
        roots = {top for one in shard_queries for top in one.listing_roots()}
        views: dict[ShardNames, ShardView] = {}
        named = _named(shard_queries)
        while True:
            check_deadline()
            versions = {each: view.version for each, view in views.items()}
            began = clock()
            names_there = await self._list_names(roots)
            shards = await self._shards_in(names_there) | {each for one in shard_queries for each in one.shards()}
            # The name of a first object does not show whether its generation has ended.
            ended = [each for each, view in views.items() if view.ended_generation]
            for again in await gather_limited([shard_log.read_shard(folder(each)) for each in ended]):
                if again.ended_generation and again is views[again.names]:
                    names_there.discard(object_names.first_object(again.folder))
            outdated_shards = []
            for each in sorted(shards):
                view = views.get(each)
                if isinstance(view, SalvagedView):
                    continue
                if view is None or versions[each] != view.version or not shard_log.confirm(view, names_there, began):
                    outdated_shards.append(each)
            if not outdated_shards:
                # None has changed since the listing started: together they are a snapshot of that time.
                for one in shard_queries:
                    one.shard_limit = len(shards)
                    one.narrow([each for each in sorted(shards) if each[: len(one.prefix)] == one.prefix])
                return [one.find(views) for one in shard_queries]
            # For shards that come from the cache, the next listing shows whether they are up to date.
            cached = {each: shard_log.cached(folder(each)) for each in outdated_shards if each not in views}
            views |= {each: view for each, view in cached.items() if view is not None}
            missing = [each for each in outdated_shards if cached.get(each) is None]
            loaded = await gather_limited([self._read_shard(each, each not in named) for each in missing])
            views |= dict(zip(missing, loaded, strict=True))

    async def _list_names(self, roots: set[str]) -> set[str]:
        found = await gather_limited([self._log.storage.list_objects(top) for top in sorted(roots)])
        return {info.name for in_folder in found for info in in_folder}

    async def _shards_in(self, names_there: set[str]) -> set[ShardNames]:
        """List the shards of these objects."""
        folders = {tuple(name.split("/", 2)[:2]) for name in names_there if name.count("/") >= 2}
        found = await gather_limited([self.shard_names(*each) for each in sorted(folders)])
        return {each for each in found if each is not None}

    async def _find_in_some(self, shard_queries: Sequence[_ShardQuery]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """Find rows in some shards, on one snapshot."""
        wide = [one for one in shard_queries if one.wide]
        listed = [await self.find_shards(one.prefix) for one in wide]
        while True:
            for one, names in zip(wide, listed, strict=True):
                one.narrow(names)
            found = await self._find_rows(shard_queries)
            if not wide:
                break
            # A new shard could be part of a batch that the others have: then read again.
            before, listed = listed, [await self.find_shards(one.prefix) for one in wide]
            if listed == before:
                break
        return found

    async def _find_rows(self, shard_queries: Sequence[_ShardQuery]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """Find rows on one snapshot, and the locations of their bodies."""
        while True:
            names = {each for one in shard_queries for each in one.shards()}
            salvage = names - _named(shard_queries)
            found = await self.on_snapshot(names, lambda at: [one.find(at.views) for one in shard_queries], salvage)
            short = [one for one, rows in zip(shard_queries, found, strict=True) if one.may_have_more(len(rows))]
            if not short:
                return found
            for one in short:
                one.shard_limit *= 4


class _ShardQuery:
    """A query, and the shards that it reads."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._names = _named_shards(query)
        self.prefix: Key = query.prefix if isinstance(query, Scan) else ()
        self.wide = isinstance(query, Scan) and len(query.prefix) < 2
        self.unlimited = self.wide and isinstance(query, Scan) and query.limit is None
        self.shard_limit = _FIRST_SHARDS

    def listing_roots(self) -> set[str]:
        """The folders to list for this query."""
        if self.wide and not self.prefix:
            return {""}
        tenants = {str(self.prefix[0])} if self.wide else {tenant for tenant, _ in self._names}
        return {object_names.TRANSACTIONS, *map(object_names.tenant_folder, tenants)}

    def narrow(self, names: Sequence[ShardNames]) -> None:
        """Select those of these shards that a wide scan may find rows in, in the order of the scan."""
        scan = self._query
        if not isinstance(scan, Scan) or not self.wide:
            return
        width = len(scan.prefix)

        def may_have_rows(each: ShardNames) -> bool:
            rest = each[width:]
            return rest[: len(scan.start)] >= scan.start[: len(rest)] and (
                not scan.stop or rest[: len(scan.stop)] <= scan.stop[: len(rest)]
            )

        self._names = [each for each in names if may_have_rows(each)]
        if scan.reverse:
            self._names.reverse()

    def shards(self) -> list[ShardNames]:
        """The shards to read."""
        limited = self.wide and isinstance(self._query, Scan) and self._query.limit is not None
        return self._names[: self.shard_limit] if limited else self._names

    def may_have_more(self, count: int) -> bool:
        """Whether names_there may be more rows in shards that were not read."""
        query = self._query
        return isinstance(query, Scan) and len(self.shards()) < len(self._names) and count < (query.limit or 0)

    def find(self, views: dict[ShardNames, ShardView]) -> list[tuple[Row, BodyLookup | None]]:
        """Find the rows, and the locations of their bodies."""
        query = self._query
        found: list[tuple[Row, BodyLookup | None]] = []
        if isinstance(query, Get):
            for key in dict.fromkeys(query.keys):
                view = views[str(key[0]), str(key[1])]
                row = view.row(query.space, key)
                if row is not None:
                    found.append(_located(view, row))
            return found
        for names in self.shards():
            view = views[names]
            limit = None if query.limit is None else query.limit - len(found)
            rows = view.scan(query, limit)
            found += [_located(view, row) if query.bodies else (row._replace(body=b""), None) for row in rows]
        return found


def _located(view: ShardView, row: Row) -> tuple[Row, BodyLookup | None]:
    """Return a row and the location of its body; None if the row has its body."""
    return row, None if isinstance(view, SalvagedView) else view.locate(row)


def _named(shard_queries: Sequence[_ShardQuery]) -> set[ShardNames]:
    """List the shards that queries name, and not only scan with others."""
    return {each for one in shard_queries if not one.wide for each in one.shards()}


def _named_shards(query: Query) -> list[ShardNames]:
    """List the shards that a query names."""
    if isinstance(query, Get):
        return sorted({(str(key[0]), str(key[1])) for key in query.keys})
    return [(str(query.prefix[0]), str(query.prefix[1]))] if len(query.prefix) >= 2 else []
