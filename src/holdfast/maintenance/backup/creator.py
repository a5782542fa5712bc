"""Making a backup: a full one the first time, and then what has changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

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
    Layer,
    LineEntry,
    Manifest,
    Slice,
    manifest_name,
)
from holdfast.maintenance.backup.line_rows import LineRow
from holdfast.maintenance.backup.packs import PAGES, PackWriter, PendingSlice
from holdfast.maintenance.backup.reader import ChunkLoader
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

_SIMILAR = 4
"""How many layers of similar size are merged into one."""
_PAGE_LINES = 2048
_SMALL_LAYER = 256
"""The lines of a layer that is stored in the same pack as the chunks of its lines."""


async def write_layers(
    repository: Repository,
    writer: PackWriter,
    layers: Sequence[Layer],
    before: Mapping[Line, LineEntry],
    entries: Mapping[Line, _PendingEntry],
) -> tuple[tuple[Layer, ...], list[LineEntry]]:
    """Write the lines of a backup, and all that was added to the writer, given the layers and lines of the last one.
    Returns the layers and all lines."""
    changed = [line for line, entry in entries.items() if not entry.is_stored or entry.resolve() != before.get(line)]
    removed = before.keys() - entries.keys()
    start = first_to_merge([*(layer.lines for layer in layers), len(changed) + len(removed)])
    known = [page for layer in layers[start:] for page in layer.pages]
    count = len(changed) + len(removed) + sum(layer.lines for layer in layers[start:])
    if count <= _SMALL_LAYER:
        await writer.close()
    else:
        await writer.flush()
    found = {line: entry.resolve() for line, entry in entries.items()}
    ordered = [found[line] for line in sorted(found)]
    if changed or removed:
        lines = {entry.line: entry for page in known for entry in await repository.page(page)}
        lines |= {line: found[line] for line in changed} | {line: LineEntry.of_removed(line) for line in removed}
        kept = [lines[line] for line in sorted(lines) if start or not lines[line].is_removed]
        layers = [*layers[:start], Layer(len(kept), await _write_pages(writer, kept))]
    return tuple(layer for layer in layers if layer.pages), ordered


def first_to_merge(sizes: Sequence[int]) -> int:
    """Return the first of some layers, with these numbers of lines, that is merged with all after it: the first of all,
    if the others have as many lines as it; else the first of some of similar size."""
    if sum(sizes[1:]) >= sizes[0]:
        return 0
    start, lines = len(sizes) - 1, sizes[-1]
    while start >= _SIMILAR - 1 and sizes[start - _SIMILAR + 1] <= 2 * lines:
        lines += sum(sizes[start - _SIMILAR + 1 : start])
        start -= _SIMILAR - 1
    return start


async def _write_pages(writer: PackWriter, entries: Sequence[LineEntry]) -> tuple[Slice, ...]:
    pages = [entries[start : start + _PAGE_LINES] for start in range(0, len(entries), _PAGE_LINES)]
    pending = [await writer.add(PAGES, msgspec.msgpack.encode(page)) for page in pages]
    await writer.flush()
    return tuple(each.resolve() for each in pending)


def needed_bytes(entries: Collection[LineEntry], layers: Sequence[Layer]) -> int:
    """Return the bytes of all blocks that a backup needs."""
    blocks = {(part.pack, part.offset): part.length for layer in layers for part in layer.pages}
    blocks |= {(part.pack, part.offset): part.length for entry in entries for part in entry.parts}
    return sum(blocks.values())


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
_ROUNDS = 3
"""How many times what changed meanwhile is read before the moment is chosen."""


class _LostChunks(Exception):
    """The repository does not have what it had of a line: all of it is read again."""


class _PendingChunk(NamedTuple):
    keys: PendingSlice
    bodies: PendingSlice
    rows: int

    def resolve(self) -> Chunk:
        return Chunk(self.keys.resolve(), self.bodies.resolve(), self.rows)


_AnyChunk: TypeAlias = Chunk | _PendingChunk


class _PendingEntry(NamedTuple):
    """A line of the new backup, some of whose chunks may not be stored yet."""

    entry: LineEntry
    chunks: tuple[_AnyChunk, ...]

    @classmethod
    def of(cls, line: Line, outline: Outline, chunks: tuple[_AnyChunk, ...]) -> _PendingEntry:
        columns: tuple[Any, ...] = () if outline.row is None else outline.row.columns
        body = b"" if outline.row is None else outline.row.body
        keys = tuple(bytes(row.columns[0]) for row in outline.keys)  # type: ignore[arg-type]
        entry = LineEntry(*line, columns, body, outline.tips, outline.digest(), outline.last_event, (), keys)
        return cls(entry, chunks)

    @property
    def is_stored(self) -> bool:
        return all(isinstance(each, Chunk) for each in self.chunks)

    def resolve(self) -> LineEntry:
        chunks = tuple(each if isinstance(each, Chunk) else each.resolve() for each in self.chunks)
        return msgspec.structs.replace(self.entry, chunks=chunks)


class _ChunkBuilder:
    """Collects changes of a line into chunks."""

    def __init__(self, writer: PackWriter, line: Line) -> None:
        self._writer = writer
        self._line = line
        self.chunks: list[_PendingChunk] = []
        self._begin()

    def _begin(self) -> None:
        self._removed: list[tuple[str, Key]] = []
        self._rows: dict[str, list[tuple[Key, tuple[Scalar, ...], int]]] = {}
        self._bodies: list[bytes] = []
        self._size = self._count = 0

    def remove(self, table: str, key: Key) -> None:
        """Remove a row, or those with this beginning of the key."""
        self._removed.append((table, key))

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
        self.chunks.append(_PendingChunk(where, bodies, self._count))
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

    async def _find_base(self, store: str) -> tuple[Manifest | None, list[LineEntry]]:
        """Return the newest backup whose lines can be read, and these: the new one has what has changed since."""
        async for backup in self._repository.newest_first(store):
            try:
                return backup.manifest, await self._repository.entries(backup.manifest)
            except UNREADABLE as error:
                _log.warning("backup %s is not continued: %s (%s)", backup.id, error.what, error.where)
        return None, []

    async def _make(self, store: str, chain: Chain, reason: str) -> Backup | None:
        start = time.monotonic()
        writer = self._repository.pack_writer()
        records = await list_records(self._repository)
        base, known = (None, list[LineEntry]()) if chain.newest is None else await self._find_base(store)
        before = {entry.line: entry for entry in known}
        reused, now = ReusedPacks(self._repository), self._engine.context.clock()
        checked = (now,) * GROUPS if base is None else base.checked
        has_damage = base is not None and any(each.startswith(DAMAGE) and each not in base.records for each in records)
        if base is not None and (has_damage or now - max(base.checked, default=0) >= self._check_every):
            if await self._has_keyrings(base):
                checked = await reused.check(base, known, now, is_all=has_damage)
            else:
                base, known, before, checked = None, [], {}, (now,) * GROUPS
        lost = {entry.line for entry in known if reused.is_damaged(entry)}
        damaged = {Line(each.tenant, each.name) for each in (() if base is None else base.damaged)}
        moment, entries = await self._capture(writer, before, "" if base is None else base.token, lost, damaged)
        old = () if base is None else base.layers
        if base is not None and reused.is_lost(base.pages):
            old, before = (), {}  # all lists are written again
        layers, found = await write_layers(self._repository, writer, old, before, entries)
        rings = await self._write_keys(store, () if base is None else base.keyrings, found)
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
                lines=sum(1 for each in found if each.columns),
                rows=sum(chunk.rows for each in found for chunk in each.chunks),
                added=sum(each.size for each in writer.packs),
                needed=needed_bytes(found, layers),
                layers=layers,
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

    async def _write_keys(self, store: str, before: Sequence[str], entries: Sequence[LineEntry]) -> tuple[str, ...]:
        """Write the keys of an encrypted store. Returns the key rings that the backup needs."""
        if not self._reader.has_keys:
            return ()
        from holdfast.maintenance.backup.keyring import KeyringWriter

        self._key_writer = KeyringWriter(self._engine, self._repository, store)
        return await self._key_writer.write([*self._keys.values()], before, entries)

    # Lines ----------------------------------------------------------------------------------------------------

    async def _capture(
        self, writer: PackWriter, before: Mapping[Line, LineEntry], token: str, lost: Set[Line], damaged: Set[Line]
    ) -> tuple[Moment, dict[Line, _PendingEntry]]:
        """Read what has changed, first all of it while it goes on changing, and then the rest as of one moment. Of
        lines that are lost in the repository, all is read, unless they cannot be read. Also what was damaged the last
        time: it still is, or a repair has changed no row."""
        entries = {line: _PendingEntry(entry, entry.chunks) for line, entry in before.items() if line not in lost}
        is_first = not token
        token, changed = await self._moments.start(token)
        self.had_gap = changed is None and not is_first
        pending = {*before, *await self._reader.lines(self._tenant)} if changed is None else {*changed, *lost, *damaged}
        settings = {Line(line.tenant, "") for line in (*before, *pending)} if self._reader.has_keys else set[Line]()
        """The lines with the keys of tenants, which the feed does not name."""
        for _ in range(_ROUNDS):
            ordered = sorted(pending)
            for start in range(0, len(ordered), AT_ONCE):
                outlines = await self._reader.outlines(ordered[start : start + AT_ONCE])
                for number, (line, outline) in enumerate(outlines.items(), start + 1):
                    await self._update(writer, entries, line, outline)
                    if self._progress is not None:
                        self._progress(number, len(ordered), await self._reader.name(line))
            token, pending = await self._moments.changed(token)
            if not pending or len(pending) >= len(ordered):
                break  # nothing is left, or it does not become less
        rewritten: set[Line] = set()
        attempt = 0
        while True:
            moment = await self._moments.find(token, pending | settings)
            if moment.is_complete:
                for line in entries.keys() - moment.outlines.keys():
                    del entries[line]
            again = [
                line
                for line, outline in moment.outlines.items()
                if not await self._update(writer, entries, line, outline)
            ]
            attempt += 1
            if not again or attempt == _CAPTURES:
                self._damaged |= dict.fromkeys(again, "it was rewritten or deleted whenever it was read")
                for line in lost & self._damaged.keys() - entries.keys():
                    entries[line] = _PendingEntry(before[line], before[line].chunks)
                return moment, entries
            # Some were rewritten or deleted after the moment. Only what changes now is read again, these with all rows.
            rewritten.update(again)
            self._reader.reads_whole = lambda line: line in rewritten or line not in entries
            token, changed_lines = await self._moments.changed(moment.token)
            pending = changed_lines.union(again)

    async def _update(
        self,
        writer: PackWriter,
        entries: dict[Line, _PendingEntry],
        line: Line,
        outline: Outline | CorruptError,
    ) -> bool:
        """Bring the entry of a line up to its outline. Returns False if it was rewritten since."""
        if isinstance(outline, CorruptError):
            self._damaged[line] = str(outline)
            return True
        if not outline.exists:
            entries.pop(line, None)
            return True
        try:
            try:
                entry = await self._entry(writer, line, outline, entries.get(line))
            except _LostChunks:
                entry = await self._entry(writer, line, outline, None)
        except ConcurrentChange:
            return False
        except CorruptError as error:
            self._damaged[line] = str(error)
            return True
        self._damaged.pop(line, None)
        entries[line] = entry
        return True

    async def _entry(
        self, writer: PackWriter, line: Line, outline: Outline, last: _PendingEntry | None
    ) -> _PendingEntry:
        if last is not None and not _is_same_line(last.entry, outline):
            last = None  # deleted, and created again
        old = None if last is None else last.entry
        if last is not None and _is_unchanged(last.entry, outline):
            return _PendingEntry.of(line, outline, last.chunks)
        if outline.keys and (old is None or old.small != outline.digest()):
            ids = () if old is None or not line.name else old.keys
            self._keys |= {(row.key, row.columns[0]): row for row in outline.keys if row.columns[0] not in ids}
        builder = _ChunkBuilder(writer, line)
        if old is None or old.small != outline.digest():
            for table, rows in outline.small:
                if old is not None:
                    builder.remove(table.name, ())
                for row in rows:
                    await builder.add(table.name, row.key[2:], row.columns, row.body)
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
            return _PendingEntry.of(line, outline, last.chunks)
        chunks: tuple[_AnyChunk, ...] = (*(() if last is None else last.chunks), *builder.chunks)
        if last is not None:
            chunks = await self._merge(writer, line, chunks)
        return _PendingEntry.of(line, outline, chunks)

    async def _merge(self, writer: PackWriter, line: Line, chunks: tuple[_AnyChunk, ...]) -> tuple[_AnyChunk, ...]:
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


def _as_chunks(chunks: Sequence[_AnyChunk]) -> Sequence[Chunk]:
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
