"""Queries, answered as of one moment."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from holdfast.backends.batch_eval import Columns
from holdfast.backends.interface import Get, Query, Row, Scan
from holdfast.backends.object_store import object_names
from holdfast.backends.object_store.entries import LogEntryDraft
from holdfast.backends.object_store.object_names import Names, folder
from holdfast.backends.object_store.object_storage import check_deadline, clock, together
from holdfast.backends.object_store.shard_log import ShardLog
from holdfast.backends.object_store.shard_view import BodyLookup, ShardView, Version
from holdfast.backends.object_store.staleness import StaleReadLimit, ViewOutdated
from holdfast.backends.tables import Key, Table

T = TypeVar("T")

_CHUNK = 32
"""How many shards are looked into at a time, where a scan may find enough in the first of them."""


_ROUNDS = 24
"""So often several shards are looked at in the hope that nothing changes meanwhile."""


class ShardViews(NamedTuple):
    """Shards as they are at one moment."""

    views: dict[Names, ShardView]

    def columns(self, space: Table, key: Key) -> Columns | None:
        """The columns of a row, or None where there is none."""
        return self.views[str(key[0]), str(key[1])].columns(space, key)


class QueryRunner:
    """Answers queries."""

    def __init__(self, core: ShardLog) -> None:
        self._core = core

    async def answer(self, queries: Sequence[Query]) -> list[list[Row]]:
        """What each query finds, all as of one moment."""
        patience = StaleReadLimit()
        while True:
            asked = [_Asked(query) for query in queries]
            try:
                return await self._answer(asked)
            except ViewOutdated as stale:
                patience.bear(stale)
                for names in {each for one in asked for each in one.shards()}:
                    known = self._core.known(folder(names))
                    if known is not None:
                        self._core.forget(known)

    async def at_once(self, names: set[Names], look: Callable[[ShardViews], T]) -> T:
        """What one sees who looks at several shards at one moment."""
        ordered = sorted(names)
        before: list[Version] = []
        hot: set[Names] = set()
        for _ in range(_ROUNDS):
            check_deadline()
            views = await together([self._core.fresh(folder(each), each) for each in ordered])
            versions = [view.version for view in views]
            # Where nothing changed between two looks at all of them, all were so between the looks.
            if len(ordered) <= 1 or versions == before:
                return look(ShardViews(dict(zip(ordered, views, strict=True))))
            if before:
                hot.update(each for each, old, new in zip(ordered, before, versions, strict=True) if old != new)
            before = versions
        return await self._held(names, hot, look)

    async def _held(self, names: set[Names], hot: set[Names], look: Callable[[ShardViews], T]) -> T:
        """Look while nobody can write to those shards that change all the time.

        They are held by a transaction that does nothing and is void in the end.
        """
        id = secrets.token_hex(16)
        try:
            for each in sorted(hot):
                await self._hold(each, id)
            return await self.at_once(names, look)
        finally:
            await self._core.decide(id, made=False)

    async def _hold(self, names: Names, id: str) -> None:
        while True:
            check_deadline()
            view = await self._core.fresh(folder(names), names)
            await self._core.clear(view)
            draft = LogEntryDraft(view, id)
            if await self._core.append(view, draft):
                return

    async def shards_under(self, prefix: Key) -> list[Names]:
        """The shards whose names start so, in order. Some may be empty."""
        if len(prefix) >= 2:
            return [(str(prefix[0]), str(prefix[1]))]
        blobs = self._core.blobs
        if prefix:
            tenants = [object_names.tenant_folder(str(prefix[0]))]
        else:
            tenants = [name for name in await blobs.folders("") if object_names.is_tenant(name)]
        lines = await together([blobs.folders(tenant) for tenant in tenants])
        found = [
            (tenant, line)
            for tenant, of_one in zip(tenants, lines, strict=True)
            for line in of_one
            if object_names.is_line(line)
        ]
        return sorted(name for name in await together([self._names(*each) for each in found]) if name is not None)

    async def _names(self, tenant: str, line: str) -> Names | None:
        """The names of a shard: from its folder's, or from what is in it. None where nothing is."""
        names = object_names.decoded(tenant), object_names.decoded(line)
        if names[0] is not None and names[1] is not None:
            return names[0], names[1]
        view = await self._core.fresh(f"{tenant}/{line}")
        return view.names if view.token else None

    async def _answer(self, asked: Sequence[_Asked]) -> list[list[Row]]:
        if any(one.whole for one in asked):
            found = await self._surveyed(asked)
        else:
            found = await self._looked_up(asked)
        located = [each for rows in found for each in rows]
        bodies = iter(await self._core.bodies.fetch([where for _, where in located if where is not None]))
        return [[row._replace(body=b"" if where is None else next(bodies)) for row, where in rows] for rows in found]

    async def _surveyed(self, asked: Sequence[_Asked]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """What each finds as of one moment, where all shards of a tenant or of the store are looked into.

        A listing of all objects tells at once of every shard whether something has come to it.
        """
        core = self._core
        tops = {top for one in asked for top in one.tops()}
        views: dict[Names, ShardView] = {}
        while True:
            check_deadline()
            versions = {each: view.version for each, view in views.items()}
            began = clock()
            there = await self._listed(tops)
            wanted = await self._shards_in(there) | {each for one in asked for each in one.shards()}
            # Whether a birth is that of a life that ended, its name does not tell.
            graves = [each for each, view in views.items() if view.buried]
            for again in await together([core.fresh(folder(each)) for each in graves]):
                if again.buried and again is views[again.names]:
                    there.discard(object_names.birth(again.folder))
            behind = []
            for each in sorted(wanted):
                view = views.get(each)
                if view is None or versions[each] != view.version or not core.confirmed(view, there, began):
                    behind.append(each)
            if not behind:
                # None has changed between when the listing began and when it was read: all were so when it began.
                for one in asked:
                    one.opened = len(wanted)
                    one.narrow([each for each in sorted(wanted) if each[: len(one.prefix)] == one.prefix])
                return [one.find(views) for one in asked]
            # Of those that are met for the first time, the next listing tells whether what is known is enough.
            known = {each: core.known(folder(each)) for each in behind if each not in views}
            views |= {each: view for each, view in known.items() if view is not None}
            missing = [each for each in behind if known.get(each) is None]
            loaded = await together([core.fresh(folder(each), each) for each in missing])
            views |= dict(zip(missing, loaded, strict=True))

    async def _listed(self, tops: set[str]) -> set[str]:
        found = await together([self._core.blobs.listed(top) for top in sorted(tops)])
        return {blob.name for of_one in found for blob in of_one}

    async def _shards_in(self, there: set[str]) -> set[Names]:
        """The shards that objects of these names are in."""
        folders = {tuple(name.split("/", 2)[:2]) for name in there if name.count("/") >= 2}
        found = await together([self._names(*each) for each in sorted(folders)])
        return {each for each in found if each is not None}

    async def _looked_up(self, asked: Sequence[_Asked]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """What each finds as of one moment, where few shards are looked into."""
        wide = [one for one in asked if one.wide]
        listed = [await self.shards_under(one.prefix) for one in wide]
        while True:
            for one, names in zip(wide, listed, strict=True):
                one.narrow(names)
            found = await self._found(asked)
            if not wide:
                break
            # No shard may have come meanwhile: it could be part of a batch that the others have.
            before, listed = listed, [await self.shards_under(one.prefix) for one in wide]
            if listed == before:
                break
        return found

    async def _found(self, asked: Sequence[_Asked]) -> list[list[tuple[Row, BodyLookup | None]]]:
        """What each finds as of one moment, and where the bodies are."""
        while True:
            names = {each for one in asked for each in one.shards()}
            found = await self.at_once(names, lambda at: [one.find(at.views) for one in asked])
            short = [one for one, rows in zip(asked, found, strict=True) if one.goes_on(len(rows))]
            if not short:
                return found
            for one in short:
                one.opened *= 4


class _Asked:
    """A query, and the shards that it is about."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._names = _named(query)
        self.prefix: Key = query.prefix if isinstance(query, Scan) else ()
        self.wide = isinstance(query, Scan) and len(query.prefix) < 2
        self.whole = self.wide and isinstance(query, Scan) and query.limit is None
        self.opened = _CHUNK

    def tops(self) -> set[str]:
        """The folders to be listed for all that is asked."""
        if self.wide and not self.prefix:
            return {""}
        tenants = {str(self.prefix[0])} if self.wide else {tenant for tenant, _ in self._names}
        return {object_names.TRANSACTIONS, *map(object_names.tenant_folder, tenants)}

    def narrow(self, names: Sequence[Names]) -> None:
        """Of a wide scan, take those of these shards that rows may be in, in the order of the scan."""
        scan = self._query
        if not isinstance(scan, Scan) or not self.wide:
            return
        width = len(scan.prefix)

        def reached(each: Names) -> bool:
            rest = each[width:]
            return rest[: len(scan.start)] >= scan.start[: len(rest)] and (
                not scan.stop or rest[: len(scan.stop)] <= scan.stop[: len(rest)]
            )

        self._names = [each for each in names if reached(each)]
        if scan.reverse:
            self._names.reverse()

    def shards(self) -> list[Names]:
        """The shards to look into."""
        limited = self.wide and isinstance(self._query, Scan) and self._query.limit is not None
        return self._names[: self.opened] if limited else self._names

    def goes_on(self, count: int) -> bool:
        """Whether there may be more in shards that were not looked into."""
        query = self._query
        return isinstance(query, Scan) and len(self.shards()) < len(self._names) and count < (query.limit or 0)

    def find(self, views: dict[Names, ShardView]) -> list[tuple[Row, BodyLookup | None]]:
        """The rows, and where their bodies are."""
        query = self._query
        found: list[tuple[Row, BodyLookup | None]] = []
        if isinstance(query, Get):
            for key in dict.fromkeys(query.keys):
                view = views[str(key[0]), str(key[1])]
                row = view.row(query.space, key)
                if row is not None:
                    found.append((row, view.locate(row)))
            return found
        for names in self.shards():
            view = views[names]
            limit = None if query.limit is None else query.limit - len(found)
            rows = view.scan(query, limit)
            found += [(row, view.locate(row) if query.bodies else None) for row in rows]
        return found


def _named(query: Query) -> list[Names]:
    """The shards that a query names."""
    if isinstance(query, Get):
        return sorted({(str(key[0]), str(key[1])) for key in query.keys})
    return [(str(query.prefix[0]), str(query.prefix[1]))] if len(query.prefix) >= 2 else []
