"""Old bodies in a cheaper store: `tiered:?hot=postgresql://…&cold=s3://…&after=30d`.

The hot store has all rows. `tidy` moves the bodies of old steps, and of lines that were idle for as long, to the cold
store, and replaces them by stubs with digest and length. A body is durable in the cold store before it leaves the hot
one. A read that needs such bodies fetches them, many at once, checks their digests, and brings them back unless they
are many.

Call `tidy` yourself, say once a day. It works line by line, and may be interrupted at any time.

Deletions take effect in the hot store at once; in the cold one at once for whole lines or tenants, and otherwise with
the next `tidy`.

Options: `after` (how old a step has to be: `30d`, `12h`, or seconds), `keep` (how many of the last steps of a branch
always stay hot, 64), `bring_back` (true).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec.structs import replace

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
    RowCheck,
    Scan,
)
from holdfast.backends.tables import JOURNAL, OBJECTS, Key, Table
from holdfast.backends.urls import compose, parse_bool, parse_duration, parse_int
from holdfast.backends.wrappers import Wrapper, open_parts, parse_composition
from holdfast.backends.wrappers.private_rows import caller_page, is_blank, read_caller_rows, translate_batch
from holdfast.backends.wrappers.tier_mover import (
    EXTRA,
    FENCES,
    TIERED_TABLES,
    Line,
    TierMover,
    TierStub,
    escape_body,
    fence,
    parse_stub,
    unescape_body,
)
from holdfast.errors import ConfigError, CorruptError, HoldfastError

_log = logging.getLogger("holdfast.tiered")

AFTER = 30 * 86_400.0
KEEP = 64

_HOT: Key = ("", "hot", 0)
_COLD: Key = ("", "cold", 0)
_ATTEMPTS = 4
_MAX_BROUGHT_BACK = 64
_PAGE = 64

_Place = tuple[int, int]


class TieredBackend(Wrapper):
    """A hot store, and a cold one for old bodies. See the module."""

    schemes: ClassVar[tuple[str, ...]] = ("tiered",)
    smallest: ClassVar[int] = 256
    """The smallest body that is moved, in bytes: its stub takes some too."""

    def __init__(
        self, hot: Backend, cold: Backend, *, after: float = AFTER, keep: int = KEEP, bring_back: bool = True
    ) -> None:
        super().__init__(hot)
        self.cold = cold
        self._after = after
        self._bring_back = bring_back
        self._mover = TierMover(hot, cold, after, keep, self.smallest)
        self._fetched = 0
        self._unswept = 0

    @classmethod
    async def open(cls, url: str, **options: Any) -> TieredBackend:
        """Open both stores, and check that they belong together."""
        parts = parse_composition(url, "tiered", ("after", "keep", "bring_back"), options)
        after = parse_duration(url, "after", parts.get("after", AFTER))
        keep = parse_int(url, "keep", parts.get("keep", KEEP))
        bring_back = parse_bool(url, "bring_back", parts.get("bring_back", True))
        hot, cold = await open_parts(parts["hot"], parts["cold"])
        try:
            await _attach(hot, cold)
        except BaseException:
            await cold.close()
            await hot.close()
            raise
        return cls(hot, cold, after=after, keep=keep, bring_back=bring_back)

    def set_row_check(self, check: RowCheck) -> None:
        """Set the check for the hot store. Bodies in the cold one have digests."""
        self.inner.set_row_check(lambda space, row: parse_stub(row) is not None or check(space, unescape_body(row)))

    @property
    def url(self) -> str:
        return compose("tiered", hot=self.inner.url, cold=self.cold.url, after=f"{self._after:g}")

    @property
    def capabilities(self) -> Capabilities:
        hot, cold = self.inner.capabilities, self.cold.capabilities
        return replace(
            hot,
            durable=hot.durable and cold.durable,
            shared=hot.shared and cold.shared,
            max_body=hot.max_body - EXTRA,
        )

    # Reading

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        missing: Key = ()
        for _ in range(_ATTEMPTS):
            found = await read_caller_rows(self.inner, queries)
            stubs = _unescape_rows(queries, found)
            if not stubs:
                return found
            rows = {at: found[at[0]][at[1]] for at in stubs}
            bodies = await self._fetch(rows, stubs)
            if len(bodies) == len(stubs):
                for (query, place), body in bodies.items():
                    found[query][place] = found[query][place]._replace(body=body)
                await self._bring_back_rows([(queries[at[0]].space, row, bodies[at]) for at, row in rows.items()])
                return found
            # Written or brought back since; or lost.
            missing = next(rows[at].key for at in stubs if at not in bodies)
        raise CorruptError(
            f"the body of {missing!r} was moved to the cold store, and is missing or damaged there",
            where=self.cold.url,
            hint="Restore the cold store from a backup",
        )

    async def _fetch(self, rows: dict[_Place, Row], stubs: dict[_Place, TierStub]) -> dict[_Place, bytes]:
        keys = {at: stub.key(rows[at].key) for at, stub in stubs.items()}
        ((*found,),) = await self.cold.read([Get(OBJECTS, list(keys.values()), required=True)])
        bodies = {row.key: row.body for row in found}
        self._fetched += len(found)
        return {at: bodies[key] for at, key in keys.items() if key in bodies and stubs[at].matches(bodies[key])}

    async def _bring_back_rows(self, rows: list[tuple[Table, Row, bytes]]) -> None:
        """Move bodies back to the hot store, if they are few: who reads them all will not soon do so again."""
        size = sum(len(body) + EXTRA for _, _, body in rows)
        if not self._bring_back or len(rows) > _MAX_BROUGHT_BACK or size > self.inner.capabilities.max_batch:
            return
        once = {(space.name, row.key): (space, row, body) for space, row, body in rows}
        lines: dict[Line, list[tuple[Table, Row, bytes]]] = {}
        for space, row, body in once.values():
            whole_row = escape_body(row._replace(body=body)).body
            lines.setdefault((str(row.key[0]), str(row.key[1])), []).append((space, row, whole_row))
        for line, moved in lines.items():
            try:
                await self._mover.bring_back(line, moved)
            except HoldfastError as error:
                _log.warning("%s: data that was read could not be moved to the hot store: %s", self.inner.url, error)

    # Writing

    async def apply(self, batch: Batch) -> int | None:
        inner = await translate_batch(self.inner, batch)
        changes = [_escape(change) for change in inner.changes]
        fences = {fence(part): part for change in changes if (part := _fenced_part(change)) is not None}
        removed: set[Key] = set()
        while True:
            # A fence that a condition finds is removed; those of the lines of a tenant are removed in any case.
            guards: list[Change] = [
                Delete(JOURNAL, key) if key in removed or len(part) < 2 else Expect(JOURNAL, key, None)
                for key, part in fences.items()
            ]
            if any(isinstance(change, Delete) and not change.prefix for change in changes):
                ((*placed,),) = await self.inner.read([FENCES])
                guards += [Delete(JOURNAL, row.key) for row in placed if row.key not in fences]
            refused = await self.inner.apply([*changes, *guards])
            if refused is None:
                break
            if refused < len(changes):
                return inner.positions[refused]
            removed.add(list(fences)[refused - len(changes)])
        await self._sweep_deleted(
            [change.prefix for change in batch if isinstance(change, Delete) and change.space in TIERED_TABLES]
        )
        return None

    async def _sweep_deleted(self, deleted: list[Key]) -> None:
        """Remove deleted lines from the cold store too."""
        for part in {tuple(prefix) for prefix in deleted if len(prefix) <= 2}:
            try:
                await self._mover.sweep_all(part)
            except HoldfastError as error:  # the deletion itself succeeded
                self._unswept += 1
                _log.warning("%s: not deleted here yet; tidy will do it: %s", self.cold.url, error)

    # Care

    async def size(self) -> int:
        return await self.inner.size() + await self.cold.size()

    async def check(self) -> list[str]:
        """Return the problems of both stores, and the bodies that the cold one lost."""
        found = [f"{store.url}: {what}" for store in (self.inner, self.cold) for what in await store.check()]
        for space in TIERED_TABLES:
            after: Key = ()
            while True:
                ((*rows,),) = await self.inner.read([caller_page(space, after, _PAGE)])
                stubs = {(0, place): stub for place, row in enumerate(rows) if (stub := parse_stub(row)) is not None}
                fetched = await self._fetch({(0, place): row for place, row in enumerate(rows)}, stubs)
                for _, place in stubs.keys() - fetched.keys():
                    if await self._is_missing(space, rows[place]):
                        found.append(
                            f"{self.cold.url}: the body of a row of {space.name} is missing: {rows[place].key!r}"
                        )
                if len(rows) < _PAGE:
                    break
                after = rows[-1].key
        return found

    async def _is_missing(self, space: Table, row: Row) -> bool:
        """Return whether a body is missing though its stub is still there."""
        ((*now,),) = await self.inner.read([Get(space, [row.key])])
        return now == [row]

    async def tidy(self) -> None:
        """Move old bodies, sweep unreferenced ones, and tidy both stores."""
        await self._mover.move_all()
        await self._mover.sweep_all()
        self._unswept = 0
        await self.inner.tidy()
        await self.cold.tidy()

    async def purge(self) -> list[str]:
        """Sweep unreferenced bodies, and purge both stores."""
        await self._mover.sweep_all()
        self._unswept = 0
        return [*await self.inner.purge(), *await self.cold.purge()]

    async def status(self) -> dict[str, int | float | str]:
        """Return what this process moved, brought back, fetched and swept, and the deletions that wait for `tidy`."""
        mover = self._mover
        found: dict[str, int | float | str] = {
            "moved": mover.moved,
            "brought_back": mover.brought_back,
            "fetched": self._fetched,
            "swept": mover.swept,
            "to_sweep": self._unswept,
        }
        found |= {f"hot_{name}": value for name, value in (await self.inner.status()).items()}
        return found | {f"cold_{name}": value for name, value in (await self.cold.status()).items()}

    async def close(self) -> None:
        try:
            await self.inner.close()
        finally:
            await self.cold.close()


def _unescape_rows(queries: Sequence[Query], found: list[list[Row]]) -> dict[_Place, TierStub]:
    """Unescape bodies in place, and return the stubs whose bodies the queries ask for."""
    stubs: dict[_Place, TierStub] = {}
    for at, (query, rows) in enumerate(zip(queries, found, strict=True)):
        if query.space not in TIERED_TABLES:
            continue
        for place, row in enumerate(rows):
            stub = parse_stub(row)
            if stub is None:
                rows[place] = unescape_body(row)
            elif isinstance(query, Scan) and not query.bodies:
                rows[place] = row._replace(body=b"")
            else:
                stubs[at, place] = stub
    return stubs


def _escape(change: Change) -> Change:
    if isinstance(change, Create | Ensure | Put) and change.space in TIERED_TABLES:
        return change._replace(row=escape_body(change.row))
    return change


def _fenced_part(change: Change) -> Key | None:
    """Return the line or tenant whose fences a change has to remove. Adding rows is safe."""
    if change.space not in TIERED_TABLES:
        return None
    if isinstance(change, Put):
        return tuple(change.row.key[:2])
    if isinstance(change, Delete) and change.prefix:
        return tuple(change.prefix[:2])
    return None


async def _attach(hot: Backend, cold: Backend) -> None:
    """Check that two stores are a pair, or make them one if neither has a partner."""
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
            # Another process may be making the pair now.
            ((*theirs,),) = await cold.read([Get(JOURNAL, [_COLD])])
            if theirs:
                continue
            raise _wrong_cold_store(cold)
        if theirs or row.columns[0]:
            raise _wrong_cold_store(cold)
        await cold.apply([Create(JOURNAL, Row(_COLD, (0,), row.body))])


def _wrong_cold_store(cold: Backend) -> ConfigError:
    return ConfigError(
        "this is not the cold store that belongs to the hot one",
        where=cold.url,
        hint="Name the one that was used before. A hot store without one needs an empty store",
    )
