"""A backup as a store that can only be read: everything that works on stores works on it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from holdfast.backends.interface import Backend, Batch, Capabilities, Changes, Get, Query, Row, Scan
from holdfast.backends.memory import SortedRows
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FOLDS,
    LINES,
    LINKS,
    REFS,
    STEPS,
    TABLES,
    WRITES,
    Key,
    Scalar,
    Table,
)
from holdfast.codec.envelope import RecordContext, repack, sealed_key_id
from holdfast.engine.checked_rows import CHECKSUMS, RowCodec
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.line_stream import stream_line
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import Line, info_of, info_row
from holdfast.errors import CorruptError, DeniedError, HoldfastError
from holdfast.maintenance.backup.capture import BACKED_UP
from holdfast.maintenance.backup.format import Chunk, ChunkIndex, LineEntry, Slice, decode_value, starts_with
from holdfast.maintenance.backup.repository import Backup, Repository

if TYPE_CHECKING:
    from holdfast.maintenance.backup.keyring import BackupKeys
    from holdfast.security.encryption.encrypted_rows import EncryptedRows


_LINES = 64
_BYTES = 64 << 20
"""How many lines are in memory, and about how many bytes of them, unless one has more."""
_CACHE_BYTES = 8 << 20


class ChunkLoader:
    """Loads the chunks of lines."""

    def __init__(self, read: Callable[[Slice], Awaitable[bytes]], where: str) -> None:
        self._read = read
        self._where = where

    async def index(self, line: Line, chunk: Chunk) -> ChunkIndex:
        """Return the index of a chunk of a line."""
        index = decode_value(await self.read(line, chunk.keys), ChunkIndex, f"{self._where}, thread {line}")
        if (index.tenant, index.name) != line:
            what = "a backup has rows of another thread in this one"
            raise CorruptError(what, where=f"{self._where}, thread {line}")
        return index

    async def rows(self, line: Line, chunks: Sequence[Chunk]) -> LineRows:
        """Return the rows of a line."""
        found = LineRows()
        for chunk in chunks:
            index = await self.index(line, chunk)
            found.apply(index, await self.read(line, chunk.bodies), f"{self._where}, thread {line}")
        return found

    async def keys(self, line: Line, chunks: Sequence[Chunk]) -> dict[str, dict[Key, tuple[Scalar, ...]]]:
        """Return the keys and columns of the rows of a line, by table, without reading the bodies."""
        found = LineRows()
        for chunk in chunks:
            index = await self.index(line, chunk)
            for _, listed in index.rows:
                listed[:] = [(key, columns, 0) for key, columns, _ in listed]
            found.apply(index, b"", self._where)
        return {name: {key: row.columns for key, row in rows.items()} for name, rows in found.tables.items()}

    async def read(self, line: Line, part: Slice) -> bytes:
        """Return a part of a block of a line."""
        try:
            return await self._read(part)
        except CorruptError as error:
            raise CorruptError(error.what, where=f"{error.where}, thread {line}", hint=error.hint) from error


def loader_of(repository: Repository) -> ChunkLoader:
    """Return what loads chunks of a repository."""
    return ChunkLoader(repository.blocks.read, repository.where)


CodecKey: TypeAlias = tuple[Line, *tuple[bytes, ...]]


class BackupBackend(Backend):
    """The lines of a backup, as a store."""

    schemes: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        repository: Repository,
        name: str,
        entries: Sequence[LineEntry],
        cuts: Mapping[Line, Cut] = MappingProxyType({}),
        codec: EncryptedRows | None = None,
        own_codecs: Mapping[CodecKey, EncryptedRows] = MappingProxyType({}),
    ) -> None:
        """`cuts` make lines as they were at an earlier point. With a codec, rows are sealed, and are returned as those
        of a store that is not encrypted; some lines have codecs of their own."""
        self._codec = codec
        self._own_codecs = own_codecs
        self.on_close: Callable[[], Awaitable[None]] | None = None
        """Called once when the backup is closed."""
        self._cuts = cuts
        self._repository = repository
        self._url = f"{repository.where}#{name}"
        self._entries = {entry.line: entry for entry in entries}
        self._lines: OrderedDict[Line, tuple[dict[str, SortedRows], int]] = OrderedDict()
        self._size = 0
        self._order: list[Line] | None = None
        """The names of all lines, in order, once they are needed."""
        self.replaced: dict[Line, dict[str, SortedRows]] = {}
        """Lines that are not as the backup has them."""

    @classmethod
    async def open(cls, url: str, **options: Any) -> Backend:
        """Not possible: a backup is opened from its repository."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=True, shared=False, max_body=1 << 30, max_batch=1 << 31)

    def remove(self, line: Line) -> None:
        """Leave out a line."""
        self._entries.pop(line, None)
        self.replaced.pop(line, None)
        self._order = None

    async def take(self, line: Line, other: Backend) -> None:
        """Have a line with the rows that another store has, which is not encrypted."""
        self._order = None
        parts = self.replaced[line] = {table.name: SortedRows(table) for table in TABLES}
        async for table, row in stream_line(other, line, TABLES):
            parts[table.name].add(row)

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found: list[list[Row]] = [[] for _ in queries]
        walks: list[tuple[Iterator[Line], Scan, list[Row]]] = []
        for query, rows in zip(queries, found, strict=True):
            if isinstance(query, Get):
                rows += await self._get(query)
            elif len(query.prefix) >= 2:
                await self._scan(query, Line(str(query.prefix[0]), str(query.prefix[1])), rows)
            else:
                walks.append((self._lines_under(query), query, rows))
        while walks:  # side by side, so that each line is read once
            walks = [walk for walk in walks if await self._walk_on(*walk)]
        return found

    async def _walk_on(self, lines: Iterator[Line], scan: Scan, rows: list[Row]) -> bool:
        """Add the rows of the next line. Returns whether there may be more."""
        line = next(lines, None) if scan.limit is None or len(rows) < scan.limit else None
        if line is not None:
            await self._scan(scan, line, rows)
        return line is not None

    async def _scan(self, scan: Scan, line: Line, rows: list[Row]) -> None:
        """Add the rows of a line to those that were found."""
        part = await self._part(scan.space, line)
        if part is not None:
            rows += part.scan(scan, None if scan.limit is None else scan.limit - len(rows))

    def _lines_under(self, scan: Scan) -> Iterator[Line]:
        """Return the lines of which a scan may return rows, in its order."""
        if self._order is None:
            self._order = sorted(self._entries.keys() | self.replaced.keys())
        order = self._order
        first, last = [(*scan.prefix, *(() if scan.by else bound[:1])) for bound in (scan.start, scan.stop)]
        start = bisect_left(order, first)
        stop = bisect_right(order, last, key=lambda line: tuple(line)[: len(last)])
        places = range(start, stop)
        return (order[place] for place in (reversed(places) if scan.reverse else places))

    async def _get(self, query: Get) -> list[Row]:
        rows: list[Row] = []
        line, part = None, None
        for key in dict.fromkeys(query.keys):
            if line != key[:2]:  # most ask for rows of one line
                line = Line(str(key[0]), str(key[1]))
                part = await self._part(query.space, line)
            row = None if part is None else part.rows.get(key)
            if row is not None:
                rows.append(row)
        return rows

    async def _part(self, table: Table, line: Line) -> SortedRows | None:
        if line in self.replaced:
            return self.replaced[line].get(table.name)
        entry = self._entries.get(line)
        if entry is None:
            return None
        if table is LINES and line not in self._cuts:
            part = SortedRows(LINES)
            if entry.columns:
                part.add(await self._line_row(entry))
            return part
        if line not in self._lines:
            found = await self.load(line)
            parts: dict[str, SortedRows] = {}
            if line in self._cuts and entry.columns:
                parts[LINES.name] = SortedRows(LINES)
                parts[LINES.name].add(found.row)
            for name, rows in found.tables.items():
                part = parts[name] = SortedRows(TABLES_BY_NAME[name])
                part.add_many([row.in_backup(name, (*line, *key)) for key, row in rows.items()])
            self._lines[line] = parts, found.size
            self._size += found.size
            while len(self._lines) > 1 and (self._size > _BYTES or len(self._lines) > _LINES):
                self._size -= self._lines.popitem(last=False)[1][1]
        self._lines.move_to_end(line)
        return self._lines[line][0].get(table.name)

    async def load(self, line: Line) -> LineRows:
        """Return the rows of a line, as it was at the point that is read."""
        if (cut := self._cuts.get(line)) is None:
            return await self._load(self._entries[line])
        return await cut.make([await self._load(entry) for entry in cut.sources])

    async def _load(self, entry: LineEntry) -> LineRows:
        found = await loader_of(self._repository).rows(entry.stored_line, entry.chunks)
        if self._codec is not None:
            await self._open_line(entry, found)
        if entry.columns:
            found.row = await self._line_row(entry)
        return found

    async def _line_row(self, entry: LineEntry) -> Row:
        (row,) = await self._open_rows(entry, LINES, [Row(tuple(entry.line), entry.columns, entry.body)])
        return row

    async def _open_line(self, entry: LineEntry, found: LineRows) -> None:
        for name, rows in found.tables.items():
            sealed = [row.stored(name, (*entry.line, *key)) for key, row in rows.items()]
            opened = await self._open_rows(entry, TABLES_BY_NAME[name], sealed)
            found.tables[name] = {row.key[2:]: LineRow(row.columns, row.body) for row in opened}

    async def _open_rows(self, entry: LineEntry, table: Table, rows: Sequence[Row]) -> Sequence[Row]:
        """Return sealed rows as those of a store that is not encrypted. `DeniedError` if there is no key."""
        codec = self._own_codecs.get(_codec_key(entry), self._codec)
        if codec is None:
            return rows
        ids = {id: (str(row.key[0]), str(row.key[1])) for row in rows if (id := sealed_key_id(row.body))}
        await codec.store_keys.load_ids(ids)
        return [CHECKSUMS.encode(table, codec.decode(table, row)) for row in rows]

    async def apply(self, batch: Batch) -> int | None:
        if not batch:
            return None
        raise DeniedError(
            "a backup cannot be changed", where=self._url, hint="Restore it, and change what you restored"
        )

    async def changes(self, since: str | None = None) -> Changes:  # noqa: ARG002 - nothing changes
        return Changes([], "backup", complete=True)

    async def size(self) -> int:
        return sum(chunk.bodies.size for entry in self._entries.values() for chunk in entry.chunks)

    async def check(self) -> list[str]:
        problems = []
        for entry in self._entries.values():
            try:
                await loader_of(self._repository).rows(entry.stored_line, entry.chunks)
            except HoldfastError as error:
                problems.append(str(error))
        return problems

    async def tidy(self) -> None:
        return

    async def close(self) -> None:
        self._lines.clear()
        if self.on_close is not None:
            close, self.on_close = self.on_close, None
            await close()


def _codec_key(entry: LineEntry) -> CodecKey:
    return entry.line, *entry.keys


async def entries_of(repository: Repository, backup: Backup, tenant: str | None = None) -> AsyncIterator[LineEntry]:
    """Yield the lines of a backup, or those of a tenant."""
    for entry in await repository.entries(backup.manifest):
        if tenant is None or entry.tenant == tenant:
            yield entry


async def named_entries(
    repository: Repository, backup: Backup, keys: BackupKeys | None, like: Engine, tenant: str | None = None
) -> list[LineEntry]:
    """Return the lines of a backup, or those of a tenant, under their names. `like` is open, and may have the master
    key of an encrypted store, which is needed where names are hidden."""
    entries = [entry async for entry in entries_of(repository, backup, tenant)]
    return entries if keys is None else await keys.with_names(entries, like)


async def backup_engine(
    repository: Repository,
    name: str,
    entries: Sequence[LineEntry],
    like: Engine,
    cuts: Mapping[Line, Cut] = MappingProxyType({}),
    keys: BackupKeys | None = None,
) -> Engine:
    """Return an engine on lines of backups. `like` is open, and may have the master key of an encrypted store."""
    sources = [*entries, *(entry for cut in cuts.values() for entry in cut.sources)]
    codec = None if keys is None else await keys.codec(sources, like)
    replaced = [] if keys is None else keys.replaced(sources)
    own_codecs = {_codec_key(entry): await keys.codec([entry], like) for entry in replaced} if keys else {}
    backend = BackupBackend(repository, name, entries, cuts, codec, own_codecs)
    return Engine(EngineContext(backend, MemoryCache(_CACHE_BYTES), like.context.codec, rows=BACKUP_ROWS))


TABLES_BY_NAME = {table.name: table for table in TABLES}

_KINDS = {table.name: tuple(table.all_columns.values())[2:] for table in BACKED_UP}
"""The types of the columns of rows in backups, without tenant and line."""


class OpenRow(Row):
    """A row of a backup with its record as the body: digests of blocks protect it, and not a checksum of its own."""

    __slots__ = ()

    def _replace(self, **values: Any) -> Row:  # type: ignore[override] # a changed row is to be checked
        return Row(*self)._replace(**values)


class BackupRows(RowCodec):
    """Rows of a backup: those without checksums are as they were read, and others are checked."""

    async def field_names(self, tenant: str) -> None:
        """A backup has no index of fields: what is restored gets its own."""

    def decode(self, table: Table, row: Row) -> Row:
        return row if type(row) is OpenRow else super().decode(table, row)

    def salvage(self, table: Table, row: Row) -> Row:
        return row if type(row) is OpenRow else super().salvage(table, row)


BACKUP_ROWS = BackupRows()


class LineRow(NamedTuple):
    """A row of a line, without its key. The body is as it is stored; or unpacked, as `unpack_body` returns it."""

    columns: tuple[Scalar, ...]
    body: bytes
    is_unpacked: bool = False

    def stored(self, table: str, key: Key) -> Row:
        """Return the row as it is stored, given its whole key."""
        row = self.in_backup(table, key)
        return CHECKSUMS.encode(TABLES_BY_NAME[table], row) if type(row) is OpenRow else row

    def in_backup(self, table: str, key: Key) -> Row:
        """Return the row as the store that is a backup has it, given its whole key."""
        if not self.is_unpacked:
            return Row(key, self.columns, self.body)
        return OpenRow(key, self.columns, repack(self.body, RecordContext(table, key, self.columns)))


class LineRows:
    """All rows of a line, by table and key without tenant and line."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[Key, LineRow]] = {}
        self.row: Row = Row((), ())
        """The row of the line itself, as it is stored, where it is needed."""
        self.removed: list[tuple[str, Key]] = []
        """What the chunks removed, which may be in chunks before them."""
        self.size: int = 0

    def apply(self, index: ChunkIndex, bodies: bytes, where: str) -> None:
        """Apply a chunk."""
        self.removed += index.removed
        for name, prefix in index.removed:
            rows = self.tables.get(name, {})
            if not prefix:
                rows.clear()
            elif rows.pop(prefix, None) is None:
                for key in [key for key in rows if starts_with(key, prefix)]:
                    del rows[key]
        at = 0
        for name, listed in index.rows:
            kinds = _KINDS.get(name)
            if kinds is None:
                raise CorruptError(f"a backup has rows of an unknown table {name!r}", where=where)
            rows = self.tables.setdefault(name, {})
            for key, columns, length in listed:
                if tuple(map(type, (*key, *columns))) != kinds:
                    raise CorruptError(f"a row of {name} in a backup has other columns", where=where)
                size = length if length >= 0 else -length - 1
                rows[key] = LineRow(columns, bodies[at : at + size], length < 0)
                at += size
        if at != len(bodies):
            raise CorruptError("the rows of a backup do not have the recorded lengths", where=where)
        self.size += at


class Cut(NamedTuple):
    """A line at a point: the backups' entries of it that are needed, and what makes its rows from theirs."""

    sources: Sequence[LineEntry]
    make: Callable[[Sequence[LineRows]], Awaitable[LineRows]]


def at_step(id: str, before: Cut) -> Cut:
    """Return a line without everything after a step: ids increase."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        found = await before.make(sources)
        lengths = dict[Scalar, int]()
        for (branch, seq), row in sorted(found.tables.get(STEPS.name, {}).items()):
            lengths.setdefault(branch, 0)
            if lengths[branch] == seq and str(row.columns[0]) <= id:
                lengths[branch] = int(seq) + 1
        _truncate(found, lengths)
        return found

    return Cut(before.sources, make)


def whole(entry: LineEntry) -> Cut:
    """Return a line as a backup has it."""

    async def make(sources: Sequence[LineRows]) -> LineRows:
        return sources[0]

    return Cut([entry], make)


def _truncate(found: LineRows, lengths: dict[Scalar, int]) -> None:
    """Leave so many steps of each branch, and what belongs to them."""
    steps = found.tables.get(STEPS.name, {})
    removed = {str(row.columns[0]) for key, row in steps.items() if int(key[1]) >= lengths.get(key[0], 0)}
    removed -= {str(row.columns[0]) for key, row in steps.items() if int(key[1]) < lengths.get(key[0], 0)}
    removed.discard("")
    for table in (STEPS, FOLDS):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if int(key[1]) >= lengths.get(key[0], 0)]:
            del rows[key]
    branches = found.tables.get(BRANCHES.name, {})
    for key in [key for key in branches if not lengths.get(key[0])]:
        del branches[key]
    for table, column in ((WRITES, 0), (EVENTS, 0), (LINKS, 1)):
        rows = found.tables.get(table.name, {})
        for key in [key for key in rows if key[column] in removed]:
            del rows[key]
    refs = found.tables.get(REFS.name, {})
    for key in [key for key, ref in refs.items() if ref.columns[0] in removed]:
        del refs[key]
    info = info_of(CHECKSUMS.decode(LINES, found.row))
    ids = [str(row.columns[0]) for row in found.tables.get(STEPS.name, {}).values()]
    events, last = found.tables.get(EVENTS.name, {}), max(ids, default="")
    for key in [key for key in events if str(key[0]) > last]:  # also of later steps that were pruned
        del events[key]
    switched_from = info.switched_from if info.switched_from in ids else ""
    info = info._replace(pruned=ids.count(""), switched_from=switched_from)
    line = Line(*map(str, found.row.key))
    found.row = CHECKSUMS.encode(LINES, info_row(line, info)) if found.row.key else Row((), ())
