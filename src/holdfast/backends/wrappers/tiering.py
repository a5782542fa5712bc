"""Old bodies in a cheaper store: `tiers:?hot=postgresql://…&cold=s3://…&after=30d`.

The hot store has all rows. `tidy` moves the bodies of old steps, and of lines to which nothing was added for as long,
to the cold store, and leaves in their place the digest and the length. A body is durable in the cold store before it
leaves the hot one. A read that needs such bodies fetches them, many at once, checks them against their digests, and has
them brought back unless they are many.

`tidy` is called by you, say once a day. It works line by line, may be interrupted anywhere, and goes on the next time.

What is deleted is gone from the hot store at once. From the cold one it goes at once where whole lines or tenants are
deleted, and else when `tidy` is called next.

Options: `after` (how old a step has to be: `30d`, `12h`, or seconds), `keep` (how many of the last steps of a branch
always stay, 64), `bring_back` (true).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

from holdfast.backends.interface import (
    Backend,
    Batch,
    Capabilities,
    Change,
    Create,
    Delete,
    Ensure,
    Expect,
    Get,
    Put,
    Query,
    Row,
    Scan,
    Sound,
)
from holdfast.backends.tables import JOURNAL, OBJECTS, Key, Table
from holdfast.backends.urls import seconds, switch, whole
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of, shown
from holdfast.backends.wrappers.private_rows import is_blank, move_theirs, page_of_theirs, read_theirs
from holdfast.backends.wrappers.tier_mover import FENCES, Line, TierMover, fence
from holdfast.backends.wrappers.tier_stub import EXTRA, MOVED, TierStub, given, kept, stub_in
from holdfast.errors import ConfigError, CorruptError, HoldfastError

_log = logging.getLogger("holdfast.tiers")

AFTER = 30 * 86_400.0
KEEP = 64

_HOT: Key = ("", "hot", 0)
_COLD: Key = ("", "cold", 0)
_LOOKS = 4
_FEW = 64
_PAGE = 64

_Place = tuple[int, int]


class TieredBackend(Wrapper):
    """A hot store, and a cold one for old bodies. See the module."""

    schemes = ("tiers",)
    smallest: ClassVar[int] = 256
    """How many bytes a body has at least to be moved: its stub takes some too."""

    def __init__(
        self, hot: Backend, cold: Backend, *, after: float = AFTER, keep: int = KEEP, bring_back: bool = True
    ) -> None:
        super().__init__(hot)
        self.cold = cold
        self._after = after
        self._bring_back = bring_back
        self._mover = TierMover(hot, cold, after, keep, self.smallest)
        self._fetched = 0
        self._left = 0

    @classmethod
    async def open(cls, url: str, **options: Any) -> TieredBackend:
        """Open both stores, and see that they belong together."""
        found = parts_of(url, "tiers", ("after", "keep", "bring_back"), options)
        after = seconds(shown(url), "after", found.get("after", AFTER))
        keep = whole(url, "keep", found.get("keep", KEEP))
        back = switch(url, "bring_back", found.get("bring_back", True))
        hot, cold = await open_parts(found["hot"], found["cold"])
        try:
            await _pair(hot, cold)
        except BaseException:
            await cold.close()
            await hot.close()
            raise
        return cls(hot, cold, after=after, keep=keep, bring_back=back)

    def check_rows_with(self, sound: Sound) -> None:
        """For the hot store. What comes from the cold one is known by its digest."""
        self.inner.check_rows_with(lambda space, row: stub_in(row) is not None or sound(space, given(row)))

    @property
    def url(self) -> str:
        return compose("tiers", hot=self.inner.url, cold=self.cold.url, after=f"{self._after:g}")

    @property
    def capabilities(self) -> Capabilities:
        hot, cold = self.inner.capabilities, self.cold.capabilities
        return hot._replace(
            durable=hot.durable and cold.durable, shared=hot.shared and cold.shared, max_body=hot.max_body - EXTRA
        )

    # Reading

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        missing: Key = ()
        for _ in range(_LOOKS):
            found = await read_theirs(self.inner, queries)
            stubs = _open(queries, found)
            if not stubs:
                return found
            rows = {at: found[at[0]][at[1]] for at in stubs}
            bodies = await self._fetch(rows, stubs)
            if len(bodies) == len(stubs):
                for (query, place), body in bodies.items():
                    found[query][place] = found[query][place]._replace(body=body)
                await self._return([(queries[at[0]].space, row, bodies[at]) for at, row in rows.items()])
                return found
            # Written or brought back since it was read; or gone for good.
            missing = next(rows[at].key for at in stubs if at not in bodies)
        raise CorruptError(
            f"the body of {missing!r} was moved to the cold store, and is not there as it was",
            where=self.cold.url,
            hint="Restore the cold store from a backup",
        )

    async def _fetch(self, rows: dict[_Place, Row], stubs: dict[_Place, TierStub]) -> dict[_Place, bytes]:
        keys = {at: stub.key(rows[at].key) for at, stub in stubs.items()}
        ((*found,),) = await self.cold.read([Get(OBJECTS, list(keys.values()))])
        bodies = {row.key: row.body for row in found}
        self._fetched += len(found)
        return {at: bodies[key] for at, key in keys.items() if key in bodies and stubs[at].fits(bodies[key])}

    async def _return(self, rows: list[tuple[Table, Row, bytes]]) -> None:
        """Have bodies in the hot store again, if they are few: whoever reads them all will not soon do so again."""
        size = sum(len(body) + EXTRA for _, _, body in rows)
        if not self._bring_back or len(rows) > _FEW or size > self.inner.capabilities.max_batch:
            return
        once = {(space.name, row.key): (space, row, body) for space, row, body in rows}
        lines: dict[Line, list[tuple[Table, Row, bytes]]] = {}
        for space, row, body in once.values():
            whole_row = kept(row._replace(body=body)).body
            lines.setdefault((str(row.key[0]), str(row.key[1])), []).append((space, row, whole_row))
        for line, moved in lines.items():
            try:
                await self._mover.bring_back(line, moved)
            except HoldfastError as error:
                _log.warning("%s: what was read stays in the cold store: %s", self.inner.url, error)

    # Writing

    async def apply(self, batch: Batch) -> int | None:
        moved = await move_theirs(self.inner, batch)
        changes = [_kept(change) for change in moved.changes]
        fences = {fence(part): part for change in changes if (part := _disturbed(change)) is not None}
        down: set[Key] = set()
        while True:
            # A fence that a condition finds is taken down; those of a tenant's lines are, whether there are any or not.
            guards: list[Change] = [
                Delete(JOURNAL, key) if key in down or len(part) < 2 else Expect(JOURNAL, key, None)
                for key, part in fences.items()
            ]
            if any(isinstance(change, Delete) and not change.prefix for change in changes):
                ((*standing,),) = await self.inner.read([FENCES])
                guards += [Delete(JOURNAL, row.key) for row in standing if row.key not in fences]
            refused = await self.inner.apply([*changes, *guards])
            if refused is None:
                break
            if refused < len(changes):
                return moved.places[refused]
            down.add(list(fences)[refused - len(changes)])
        await self._forget([change.prefix for change in batch if isinstance(change, Delete) and change.space in MOVED])
        return None

    async def _forget(self, deleted: list[Key]) -> None:
        """Have whole lines gone from the cold store too."""
        for part in {tuple(prefix) for prefix in deleted if len(prefix) <= 2}:
            try:
                await self._mover.sweep_all(part)
            except HoldfastError as error:  # the deletion itself is made, and nobody may be told otherwise
                self._left += 1
                _log.warning("%s: deleted, but not here yet; tidy will do it: %s", self.cold.url, error)

    # Care

    async def size(self) -> int:
        return await self.inner.size() + await self.cold.size()

    async def check(self) -> list[str]:
        """What both stores find wrong with themselves, and which bodies are not in the cold one as they were."""
        found = [f"{store.url}: {what}" for store in (self.inner, self.cold) for what in await store.check()]
        for space in MOVED:
            after: Key = ()
            while True:
                ((*rows,),) = await self.inner.read([page_of_theirs(space, after, _PAGE)])
                stubs = {(0, place): stub for place, row in enumerate(rows) if (stub := stub_in(row)) is not None}
                fetched = await self._fetch({(0, place): row for place, row in enumerate(rows)}, stubs)
                for _, place in stubs.keys() - fetched.keys():
                    if await self._is_missing(space, rows[place]):
                        found.append(f"{self.cold.url}: the body of a row of {space.name} is gone: {rows[place].key!r}")
                if len(rows) < _PAGE:
                    break
                after = rows[-1].key
        return found

    async def _is_missing(self, space: Table, row: Row) -> bool:
        """Whether a body stays away, though its stub is still there."""
        ((*now,),) = await self.inner.read([Get(space, [row.key])])
        return now == [row]

    async def tidy(self) -> None:
        """Move what is old, sweep what nothing refers to, and have both stores tidy themselves."""
        await self._mover.move_all()
        await self._mover.sweep_all()
        self._left = 0
        await self.inner.tidy()
        await self.cold.tidy()

    async def status(self) -> dict[str, int | float | str]:
        """What this process moved, brought back, fetched and swept; how many deletions wait for `tidy`."""
        mover = self._mover
        found: dict[str, int | float | str] = {
            "moved": mover.moved,
            "brought_back": mover.brought_back,
            "fetched": self._fetched,
            "swept": mover.swept,
            "to_sweep": self._left,
        }
        found |= {f"hot_{name}": value for name, value in (await self.inner.status()).items()}
        return found | {f"cold_{name}": value for name, value in (await self.cold.status()).items()}

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self.cold.close()


def _open(queries: Sequence[Query], found: list[list[Row]]) -> dict[_Place, TierStub]:
    """Take the marks off bodies that look like stubs, and find the stubs for bodies that were asked for."""
    stubs: dict[_Place, TierStub] = {}
    for at, (query, rows) in enumerate(zip(queries, found, strict=True)):
        if query.space not in MOVED:
            continue
        for place, row in enumerate(rows):
            stub = stub_in(row)
            if stub is None:
                rows[place] = given(row)
            elif isinstance(query, Scan) and not query.bodies:
                rows[place] = row._replace(body=b"")
            else:
                stubs[at, place] = stub
    return stubs


def _kept(change: Change) -> Change:
    if isinstance(change, Create | Ensure | Put) and change.space in MOVED:
        return change._replace(row=kept(change.row))
    return change


def _disturbed(change: Change) -> Key | None:
    """What a change may take from under a mover: a line, or all lines of a tenant. New rows are no danger."""
    if change.space not in MOVED:
        return None
    if isinstance(change, Put):
        return tuple(change.row.key[:2])
    if isinstance(change, Delete) and change.prefix:
        return tuple(change.prefix[:2])
    return None


async def _pair(hot: Backend, cold: Backend) -> None:
    """See that two stores belong together, or make them a pair if both are new to it."""
    while True:
        ((*ours,),) = await hot.read([Get(JOURNAL, [_HOT])])
        ((*theirs,),) = await cold.read([Get(JOURNAL, [_COLD])])
        if not ours:
            await hot.apply([Create(JOURNAL, Row(_HOT, (0,), secrets.token_bytes(16)))])
            continue
        row = ours[0]
        if theirs and theirs[0].body == row.body:
            if not row.columns[0]:
                await hot.apply([Expect(JOURNAL, _HOT, (0,)), Put(JOURNAL, row._replace(columns=(1,)))])
            return
        if not theirs and not await is_blank(cold):
            # Others may be making the pair at this moment.
            ((*theirs,),) = await cold.read([Get(JOURNAL, [_COLD])])
            if theirs:
                continue
            raise _not_its_cold(cold)
        if theirs or row.columns[0]:
            raise _not_its_cold(cold)
        await cold.apply([Create(JOURNAL, Row(_COLD, (0,), row.body))])


def _not_its_cold(cold: Backend) -> ConfigError:
    return ConfigError(
        "this is not the cold store that belongs to the hot one",
        where=cold.url,
        hint="Name the one that was used before. A hot store that has none yet is given an empty one",
    )
