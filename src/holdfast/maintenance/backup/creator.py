"""Making a backup: a full one the first time, and then what has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.backends.interface import Row
from holdfast.backends.runtime.drivers import Pause
from holdfast.backends.tables import Key, Scalar
from holdfast.codec.envelope import unpack_body
from holdfast.engine.copy.line_stream import RemovedKey
from holdfast.engine.engine import Engine
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.row_format import Line
from holdfast.engine.types import Progress
from holdfast.errors import CorruptError, NotFoundError
from holdfast.maintenance.backup.capture import (
    AT_ONCE,
    LineReader,
    Moment,
    MomentFinder,
    Outline,
)
from holdfast.maintenance.backup.format import (
    DAMAGE,
    Chunk,
    ChunkIndex,
    DamagedLine,
    LineEntry,
    Manifest,
    Slice,
    manifest_name,
)
from holdfast.maintenance.backup.line_lists import (
    AnyChunk,
    LayerWriter,
    LineLists,
    LostLists,
    PendingChunk,
    PendingEntry,
    Totals,
    write_lists,
)
from holdfast.maintenance.backup.packs import PackWriter, PendingSlice
from holdfast.maintenance.backup.reader import ChunkLoader, LineRow
from holdfast.maintenance.backup.records import list_records
from holdfast.maintenance.backup.repository import UNREADABLE, Backup, Chain, Repository
from holdfast.maintenance.backup.reused_packs import GROUPS, ReusedPacks
from holdfast.maintenance.backup.store_record import (
    chain_id,
    find_loss,
    is_copy,
    known_digest,
    record_backup,
    replace_store_id,
    store_id,
)
from holdfast.maintenance.backup.store_walk import GROUP, StoreWalk

_log = logging.getLogger("holdfast.backups")

if TYPE_CHECKING:
    from holdfast.maintenance.backup.keyring import KeyringWriter

_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 10_000
_MAX_CHUNKS = 24
_SMALL_CHUNK = 16 << 10
_PATIENCE, _PAUSE = 3, 0.3
"""How often and how many seconds to wait for the record of a backup that another process may have just made."""
_CAPTURES = 4
"""How often a moment is chosen: again, if lines are rewritten before their rows are read."""
_MOST_CHANGED = 20_000
"""If more lines have changed, all are compared, in order: what has changed is then not in memory as a whole."""
_ROUNDS = 3
"""How many times what changed meanwhile is read before the moment is chosen."""


class _LostChunks(Exception):
    """The repository does not have what it had of a line: all of it is read again."""


class _PendingLines:
    """The lines of a new backup: those of the lists that it continues, and what has changed."""

    def __init__(self, lists: LineLists, lost: Set[Line] = frozenset()) -> None:
        """Of `lost` lines, the repository does not have what it had: all of them is read again."""
        self.lists = lists
        self.changed: dict[Line, PendingEntry | None] = {}
        self.lost = lost

    async def find(self, line: Line) -> PendingEntry | None:
        """Return what is known of a line; None if nothing is."""
        if line in self.changed or line in self.lost:
            return self.changed.get(line)
        found = await self.lists.find(line)
        return None if found is None else PendingEntry.of_stored(found)

    def set(self, line: Line, entry: PendingEntry | None) -> None:
        """Note what a line is now, or that it is not there."""
        self.changed[line] = entry

    async def keep(self, lines: Set[Line]) -> None:
        """Note that there are only some lines."""
        self.changed |= {line: None for line in self.changed if line not in lines}
        async for entry in self.lists.walk():
            if entry.line not in lines:
                self.changed[entry.line] = None


async def _reads_whole(lines: _PendingLines, rewritten: Set[Line], line: Line) -> bool:
    """Return whether all rows of a line are to be read at once, since they may be gone later."""
    return line in rewritten or await lines.find(line) is None


class _ChunkBuilder:
    """Collects changes of a line into chunks."""

    def __init__(self, writer: PackWriter, line: Line) -> None:
        self._writer = writer
        self._line = line
        self.chunks: list[PendingChunk] = []
        self._begin()

    def _begin(self) -> None:
        self._removed: list[tuple[str, Key]] = []
        self._rows: dict[str, list[tuple[Key, tuple[Scalar, ...], int]]] = {}
        self._bodies: list[bytes] = []
        self._size = self._count = 0

    def remove(self, table: str, key: Key) -> None:
        """Remove a row, or those with this beginning of the key."""
        self._removed.append((table, key))

    async def add_small(self, outline: Outline) -> None:
        """Add the small rows of a line."""
        for table, rows in outline.small:
            for row in rows:
                await self.add(table.name, row.key[2:], row.columns, row.body)

    async def add(self, table: str, key: Key, columns: tuple[Scalar, ...], body: bytes) -> None:
        """Add a row as it is stored."""
        unpacked = unpack_body(body)
        row = LineRow(columns, body) if unpacked is None else LineRow(columns, unpacked, is_unpacked=True)
        await self.add_row(table, key, row)

    async def add_row(self, table: str, key: Key, row: LineRow) -> None:
        """Add a row."""
        if self._rows and next(reversed(self._rows)) != table and table in self._rows:
            await self.flush()
        size = len(row.body)
        self._rows.setdefault(table, []).append((key, row.columns, -size - 1 if row.is_unpacked else size))
        self._bodies.append(row.body)
        self._size += size
        self._count += 1
        if self._size >= _CHUNK_BYTES or self._count >= _CHUNK_ROWS:
            await self.flush()

    async def flush(self) -> None:
        """End a chunk, if there is anything in it."""
        if not self._removed and not self._rows:
            return
        index = ChunkIndex(*self._line, self._removed, list(self._rows.items()))
        where = await self._writer.add("index", msgspec.msgpack.encode(index))
        bodies = await self._writer.add("bodies", b"".join(self._bodies))
        self.chunks.append(PendingChunk(where, bodies, self._count))
        self._begin()


class BackupCreator:
    """Makes one backup."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository,
        tenant: str | None,
        progress: Progress | None,
        home: str,
        *,
        accept_loss: bool = False,
        check_every: int = 0,
    ) -> None:
        """`home` is the tenant that the store was opened for: the id of the store is among its settings. With
        `accept_loss`, it may be that the repository lost backups. What is reused is checked if `check_every`
        nanoseconds have passed since that was done."""
        self._check_every = check_every
        self._accept_loss = accept_loss
        self._engine = engine
        self._repository = repository
        self._tenant = tenant
        self._home = home
        self._progress = progress
        self._reader = LineReader(engine)
        self._moments = MomentFinder(engine, self._reader, tenant)
        self._damaged: dict[Line, str] = {}
        self.had_gap: bool = False
        """Whether the store could not say what has changed since the last backup, so that all lines were compared."""
        self._key_writer: KeyringWriter | None = None
        self._keys: dict[tuple[Key, Scalar], Row] = {}
        """Rows of keys of an encrypted store that the last backup does not have, by key and id."""

    async def create(self, reason: str) -> Backup:
        """Make a backup. `ConflictError` if others keep making backups of the same store."""
        copies = 0
        attempts = Attempts("creating a backup", self._repository.where, self._engine.context.metrics)
        while True:
            await attempts.begin()
            store = chain_id(await store_id(self._engine, self._home), self._home, self._tenant)
            chain = await self._repository.chain(store)
            if await is_copy(self._engine, self._home, self._repository, chain.newest):
                copies += 1
                await self._part(store, is_certain=copies > _PATIENCE)
                continue
            problem = None if self._accept_loss else await find_loss(self._engine, self._home, self._repository, store)
            if problem is not None:
                raise problem
            if chain.digest:
                await self._repository.storage.complete(manifest_name(store, chain.number))
            await self._repository.lock(store, chain.number + 1)
            made = await self._make(store, chain, reason)
            if made is not None:
                if self._key_writer is not None:
                    await self._key_writer.record_destroyed()
                await record_backup(self._engine, self._home, self._repository, made)
                return made

    async def _part(self, store: str, *, is_certain: bool) -> None:
        """Take another id: the store is a copy of another one, which makes backups under this id. That is certain if no
        other process of this store was about to record its backup."""
        if is_certain:
            what = "the store is a copy of another one, whose backups are %s: those of this one get another id"
            _log.warning(what, store[:8])
            await replace_store_id(self._engine, self._home)
        else:
            await Pause(_PAUSE)

    async def _find_base(self, store: str, unreadable: Set[int]) -> Manifest | None:
        """Return the newest backup that can be continued: the new one has what has changed since. The lists of some are
        known to be unreadable."""
        async for backup in self._repository.newest_first(store):
            if backup.manifest.number not in unreadable:
                return backup.manifest
        return None

    async def _make(self, store: str, chain: Chain, reason: str) -> Backup | None:
        start, unreadable = time.monotonic(), set[int]()
        while True:
            base = None if chain.newest is None else await self._find_base(store, unreadable)
            try:
                return await self._continue(store, chain, base, reason, start)
            except LostLists as lost:
                if base is None or lost.__cause__ is None:
                    raise
                _log.warning("backup %s.%s is not continued: %s", store[:8], base.number, lost.__cause__)
                unreadable.add(base.number)

    async def _continue(
        self, store: str, chain: Chain, base: Manifest | None, reason: str, start: float
    ) -> Backup | None:
        writer = self._repository.pack_writer()
        records = await list_records(self._repository)
        reused, now = ReusedPacks(self._repository), self._engine.context.clock()
        checked = (now,) * GROUPS if base is None else base.checked
        has_damage = base is not None and any(each.startswith(DAMAGE) and each not in base.records for each in records)
        if base is not None and (has_damage or now - max(base.checked, default=0) >= self._check_every):
            if await self._has_keyrings(base):
                checked = await reused.check(base, now, is_all=has_damage)
            else:
                base, checked = None, (now,) * GROUPS
        self._damaged.clear()
        self._keys.clear()
        lists = LineLists.of(self._repository, base)
        moment, lines = await self._capture(writer, lists, base, reused)
        is_whole = lines.lists is lists and reused.is_outdated
        written = await write_lists(self._repository, writer, lines.lists, lines.changed, whole=is_whole)
        rings = await self._write_keys(store, () if base is None else base.keyrings, written)
        return await self._repository.commit(
            Manifest(
                store=store,
                number=chain.number + 1,
                parent=chain.digest or await known_digest(self._engine, self._home, store, chain.number),
                time=max(moment.time, chain.time),  # clocks may go back
                until=max(moment.until, chain.until),
                token=moment.token,
                tenant=self._tenant,
                url=self._engine.context.backend.url,
                holdfast=_installed_version(),
                reason=reason,
                seconds=time.monotonic() - start,
                lines=written.totals.lines,
                rows=written.totals.rows,
                added=sum(each.size for each in writer.packs),
                needed=written.totals.needed,
                layers=written.layers,
                damaged=tuple(DamagedLine(*line, what) for line, what in sorted(self._damaged.items())),
                keyrings=rings,
                records=records,
                checked=checked,
            )
        )

    async def _has_keyrings(self, base: Manifest) -> bool:
        """Return whether the keys of a backup can be read. Without them, all is stored again."""
        if not base.keyrings:
            return True
        from holdfast.maintenance.backup.keyring import KeyringReader

        try:
            for ring in base.keyrings:
                await KeyringReader(self._repository, base.store).rows(ring)
        except (*UNREADABLE, NotFoundError):
            return False
        return True

    async def _write_keys(self, store: str, before: Sequence[str], lists: LineLists) -> tuple[str, ...]:
        """Write the keys of an encrypted store. Returns the key rings that the backup needs."""
        if not self._reader.has_keys:
            return ()
        from holdfast.maintenance.backup.keyring import KeyringWriter

        self._key_writer = KeyringWriter(self._engine, self._repository, store)
        tenants = await self._reader.tenants_with_keys(self._tenant)
        return await self._key_writer.write([*self._keys.values()], before, tenants, lists)

    # Lines ----------------------------------------------------------------------------------------------------

    async def _capture(
        self, writer: PackWriter, lists: LineLists, base: Manifest | None, reused: ReusedPacks
    ) -> tuple[Moment, _PendingLines]:
        """Read what has changed, first all of it while it goes on changing, and then the rest as of one moment. Of
        lines that are lost in the repository, all is read, unless they cannot be read. Also what was damaged the last
        time: it still is, or a repair has changed no row."""
        lost = reused.lost_lines
        lines = _PendingLines(lists, lost)
        token, changed = await self._moments.start("" if base is None else base.token)
        self.had_gap = changed is None and base is not None
        pending, count = set[Line](), 0
        if changed is None or len(changed) > _MOST_CHANGED:
            lines = _PendingLines(await self._walk(writer, lines))
            token, pending = await self._moments.changed(token)
        else:
            pending = {*changed, *lost, *(Line(each.tenant, each.name) for each in (base.damaged if base else ()))}
        for _ in range(_ROUNDS):
            if not pending or 0 < count <= len(pending):
                break  # nothing is left, or it does not become less
            ordered = sorted(pending)
            count = len(ordered)
            for start in range(0, count, AT_ONCE):
                outlines = await self._reader.outlines(ordered[start : start + AT_ONCE])
                for number, (line, outline) in enumerate(outlines.items(), start + 1):
                    await self._update(writer, lines, line, outline)
                    await self._report(number, count, line)
            token, pending = await self._moments.changed(token)
        tenants = await self._reader.tenants_with_keys(self._tenant) if self._reader.has_keys else ()
        settings = {Line(tenant, "") for tenant in tenants}
        """The lines with the keys of tenants, which the feed does not name."""
        rewritten: set[Line] = set()
        attempt = 0
        while True:
            moment = await self._moments.find(token, pending | settings)
            if moment.is_complete:
                await lines.keep(moment.outlines.keys())
            again = [
                line
                for line, outline in moment.outlines.items()
                if not await self._update(writer, lines, line, outline)
            ]
            attempt += 1
            if not again or attempt == _CAPTURES:
                self._damaged |= dict.fromkeys(again, "it was rewritten or deleted whenever it was read")
                return moment, lines
            # Some were rewritten or deleted after the moment. Only what changes now is read again, these with all rows.
            rewritten.update(again)
            self._reader.reads_whole = partial(_reads_whole, lines, rewritten)
            token, changed_lines = await self._moments.changed(moment.token)
            pending = changed_lines.union(again)

    async def _walk(self, writer: PackWriter, lines: _PendingLines) -> LineLists:
        """Compare all lines of the store with the lists of the last backup, and read those that differ. Returns new
        lists, which have them all."""
        layer = LayerWriter(self._repository, writer)
        known = lines.lists.walk()
        names = self._reader.names(self._tenant)
        entry, name = await anext(known, None), await anext(names, None)
        group = dict[Line, PendingEntry | None]()
        count, done, last = 0, 0, Line("", "")
        if self._progress is not None:
            async for each in self._reader.names(self._tenant):
                count += bool(each.name)
        while entry is not None or name is not None:
            line = min(each for each in (name, None if entry is None else entry.line) if each is not None)
            group[line] = None
            if entry is not None and entry.line == line:
                group[line] = PendingEntry.of_stored(entry)
                entry = await anext(known, None)
            if name == line:
                name = await anext(names, None)
                done, last = done + bool(line.name), line if line.name else last
            if len(group) == GROUP or (entry is None and name is None):
                for found in await self._read_group(writer, group, lines.lost):
                    await layer.add(found)
                if last.name:
                    await self._report(done, max(count, done), last)
                group.clear()
        written = await layer.finish()
        totals = Totals(layer.lines, layer.rows, layer.needed_bytes())
        return LineLists(self._repository, [written] if written.pages else [], totals)

    async def _read_group(
        self, writer: PackWriter, known: Mapping[Line, PendingEntry | None], lost: Set[Line]
    ) -> list[PendingEntry]:
        """Return what lines are now, given what is known of each. Of those that cannot be read, or are just being
        rewritten, that is what is known."""
        found, walk = dict(known), StoreWalk(self._reader, self._tenant)
        async for outlines in walk.outlines([*known]):
            new = {
                line: each
                for line, each in outlines.items()
                if known[line] is None and isinstance(each, Outline) and each.row is not None
            }
            read = await self._read_new(writer, walk, new) if 2 * len(new) > len(outlines) else {}
            for line, outline in outlines.items():
                if line in read:
                    found[line] = read[line]
                    continue
                try:
                    last = None if line in lost else known[line]
                    found[line] = await self._line(writer, line, outline, last)
                except ConcurrentChange:
                    pass  # the feed names it
                except CorruptError as error:
                    self._damaged[line] = str(error)
        return [each for each in found.values() if each is not None]

    async def _read_new(
        self, writer: PackWriter, walk: StoreWalk, outlines: Mapping[Line, Outline]
    ) -> dict[Line, PendingEntry]:
        """Read lines together of which nothing is known. Returns those that could be read, and were not rewritten."""
        read: dict[Line, PendingEntry] = {}
        with suppress(CorruptError):  # the others are read one by one, and so is the one that is damaged
            async for line, rows in walk.rows(outlines):
                outline, builder = outlines[line], _ChunkBuilder(writer, line)
                await builder.add_small(outline)
                async for table, row in rows:
                    await builder.add(table.name, row.key[2:], row.columns, row.body)
                await builder.flush()
                self._note_keys(outline, None)
                read[line] = PendingEntry.of(line, outline, tuple(builder.chunks))
        for line in await walk.changed(outlines):
            read.pop(line, None)
        return read

    async def _update(
        self, writer: PackWriter, lines: _PendingLines, line: Line, outline: Outline | CorruptError
    ) -> bool:
        """Bring a line up to its outline. Returns False if it was rewritten since."""
        try:
            lines.set(line, await self._line(writer, line, outline, await lines.find(line)))
        except ConcurrentChange:
            return False
        except CorruptError as error:
            self._damaged[line] = str(error)
        else:
            self._damaged.pop(line, None)
        return True

    async def _line(
        self, writer: PackWriter, line: Line, outline: Outline | CorruptError, last: PendingEntry | None
    ) -> PendingEntry | None:
        """Return a line as of its outline, given what is known of it; None if there is no such line. `ConcurrentChange`
        if it was rewritten since, and `CorruptError` if it cannot be read."""
        if isinstance(outline, CorruptError):
            raise outline
        if not outline.exists:
            return None
        try:
            return await self._entry(writer, line, outline, last)
        except _LostChunks:
            return await self._entry(writer, line, outline, None)

    async def _report(self, number: int, count: int, line: Line) -> None:
        if self._progress is not None:
            self._progress(number, count, await self._reader.name(line))

    def _note_keys(self, outline: Outline, old: LineEntry | None) -> None:
        """Note the keys of a line that what is known of it does not have."""
        if outline.keys and (old is None or old.small != outline.digest()):
            ids = () if old is None or not old.name else old.keys
            self._keys |= {(row.key, row.columns[0]): row for row in outline.keys if row.columns[0] not in ids}

    async def _entry(self, writer: PackWriter, line: Line, outline: Outline, last: PendingEntry | None) -> PendingEntry:
        if last is not None and not _is_same_line(last.entry, outline):
            last = None  # deleted, and created again
        old = None if last is None else last.entry
        if last is not None and _is_unchanged(last.entry, outline):
            return PendingEntry.of(line, outline, last.chunks)
        self._note_keys(outline, old)
        builder = _ChunkBuilder(writer, line)
        if old is None or old.small != outline.digest():
            for table, _ in outline.small if old is not None else ():
                builder.remove(table.name, ())
            await builder.add_small(outline)
        before = None
        if old is not None and outline.row is not None and old.columns == outline.row.columns:
            before = old.tips, old.last_event
        loader = self._loader(writer)
        keys: list[dict[str, dict[Key, tuple[Scalar, ...]]]] = []

        async def known() -> dict[str, dict[Key, tuple[Scalar, ...]]]:
            if not keys:
                try:
                    keys.append({} if last is None else await loader.keys(line, _as_chunks(last.chunks)))
                except CorruptError as error:
                    raise _LostChunks from error
            return keys[0]

        async for table, found in self._reader.rows(line, outline, before, known):
            if isinstance(found, RemovedKey):
                builder.remove(table.name, found.key[2:])
            else:
                await builder.add(table.name, found.key[2:], found.columns, found.body)
        await builder.flush()
        if last is not None and not builder.chunks:
            return PendingEntry.of(line, outline, last.chunks)
        chunks: tuple[AnyChunk, ...] = (*(() if last is None else last.chunks), *builder.chunks)
        if last is not None:
            chunks = await self._merge(writer, line, chunks)
        return PendingEntry.of(line, outline, chunks)

    async def _merge(self, writer: PackWriter, line: Line, chunks: tuple[AnyChunk, ...]) -> tuple[AnyChunk, ...]:
        """Merge the last chunks of a line, until each is larger than all after it. As long as there are not too many,
        only small ones, which cost less than the entries that name them."""
        sizes = [chunk.keys.size + chunk.bodies.size for chunk in chunks]
        is_long = len(chunks) > _MAX_CHUNKS
        start, size = len(chunks) - 1, sizes[-1]
        while start > 0 and sizes[start - 1] <= size and (is_long or size + sizes[start - 1] <= _SMALL_CHUNK):
            start -= 1
            size += sizes[start]
        start = min(start, len(chunks) // 2) if is_long else start
        if start == len(chunks) - 1:
            return chunks
        builder = _ChunkBuilder(writer, line)
        try:
            merged = await self._loader(writer).rows(line, _as_chunks(chunks[start:]))
        except CorruptError as error:
            raise _LostChunks from error
        for name, prefix in merged.removed if start else ():  # which may be of rows in the chunks before
            builder.remove(name, prefix)
        for name, found in merged.tables.items():
            for key, row in found.items():
                await builder.add_row(name, key, row)
        await builder.flush()
        return (*chunks[:start], *builder.chunks)

    def _loader(self, writer: PackWriter) -> ChunkLoader:
        """Return what loads chunks, also those that are not stored yet."""
        blocks = self._repository.blocks

        async def read(part: Slice | PendingSlice) -> bytes:
            return await (blocks.read(part) if isinstance(part, Slice) else writer.read(part, blocks))

        return ChunkLoader(read, self._repository.where)


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("holdfast")
    except PackageNotFoundError:
        return ""


def _as_chunks(chunks: Sequence[AnyChunk]) -> Sequence[Chunk]:
    """Return chunks as those that a loader takes, whose `read` knows parts that are not stored yet."""
    return cast(Sequence[Chunk], chunks)


def _is_same_line(entry: LineEntry, outline: Outline) -> bool:
    if outline.row is None or not entry.columns:
        return outline.row is None and not entry.columns
    return (entry.columns[0], entry.body) == (outline.row.columns[0], outline.row.body)


def _is_unchanged(entry: LineEntry, outline: Outline) -> bool:
    """Return whether a line has no other rows than it had."""
    columns = () if outline.row is None else outline.row.columns
    now = columns, outline.tips, outline.last_event, outline.digest()
    return now == (entry.columns, entry.tips, entry.last_event, entry.small)
