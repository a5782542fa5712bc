"""How rows are stored: the one place where bodies are protected and opened.

In the engine, the body of a row is a record: compressed content with a short header (`holdfast.codec.envelope`). A
`RowCodec` makes the stored row of it, and returns the row of a stored one. It is passed to the context of the engine
when a store is opened, and every path uses it: saving, reading, copying, verifying, repairing, maintenance and jobs.
The usual one adds a checksum; that of `sealed_rows` encrypts. What a codec does is invisible above: records, ids and
hashes are the same whatever the codec, so that rows are copied between stores with different ones, and sealing a store
anew changes no hash.

`CheckedBackend` is the store as the engine uses it. What the engine reads with bodies was checked, so no other part of
it computes or compares checksums; rows that are read without their bodies, for lists, are unchecked.

The mark of a store that lost rows which nobody can name.

When a damaged SQLite file is salvaged, rows of unreadable pages are gone; when a damaged hold is removed, nobody knows
what it said. What is left looks intact. The mark says from which tables rows may be missing. While it is there, the
store counts as damaged, a repair compares every thread with its sources, and nothing that a legal hold may protect is
deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import (
    Backend,
    Batch,
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
)
from holdfast.backends.paging import scan_rows
from holdfast.backends.runtime.group_commit import body_bytes
from holdfast.backends.runtime.metrics import MetricsRegistry
from holdfast.backends.tables import (
    BEHIND,
    FIELDS,
    JOURNAL,
    KEYS,
    LINKS,
    READABLE,
    REFS,
    SIGNING,
    STEPS,
    WORDS,
    Key,
    Scalar,
    Table,
)
from holdfast.backends.wrappers import Wrapper
from holdfast.codec.envelope import DAMAGED, RecordContext, Sealer, expose, protect, strip
from holdfast.engine.fields import NameEntry, name_entry
from holdfast.engine.metadata_filter import UNMATCHED, MetadataFilter
from holdfast.errors import CorruptError, DeniedError, HoldfastError, TransientError, UnsupportedError

UNPROTECTED = frozenset(table.name for table in (JOURNAL, WORDS, FIELDS, BEHIND, *READABLE))
"""Tables whose rows are stored as they are: they can be rebuilt and servers store them in forms of their own, or belong
to wrappers, which are below the engine."""

_WITH_NAMES = (REFS, LINKS)
"""Tables whose keys may be stored in another form."""

_WRITES = (Create, Ensure, Put)


_ATTEMPTS = 20
"""How often a batch is applied whose keys others change at the same time."""


class StoredExpect(Expect):
    """A condition about columns as they are stored."""

    __slots__ = ()


class StoredDelete(Delete):
    """A deletion of a row by its key as it is stored."""

    __slots__ = ()


class PreparedBatch(NamedTuple):
    """Conditions under which rows may be encoded, with new keys; the batch; and how its rows are encoded."""

    conditions: Sequence[Change]
    batch: Batch
    encode: Callable[[Table, Row], Row]
    adds_keys: bool = False
    """Whether new keys are stored: then `RowCodec.settle` has to know that the batch was applied."""


class RowCodec:
    """Stores rows with a checksum over their table, key, columns and record."""

    hides_columns = False
    """Whether columns that are read without the body may be others than those that were written."""
    hides_names = False
    """Whether names in keys are digests, too: of lines and tags, and of what links are about."""
    converts = False
    """Whether some rows may be stored in another form than that of this codec."""

    def bind(self, backend: Backend) -> tuple[Backend, RowCodec]:
        """Return a store and the codec of its rows. One with keys reads them from the store, before rows need them."""
        return backend, self

    async def check_store(self, backend: Backend, tenant: str | None, *, read_only: bool = False) -> None:  # noqa: ARG002
        """Check that the rows of a tenant, or of all, are stored like this, before a store is used.

        `DeniedError` with the code `key-missing` if they are encrypted.
        """
        prefix: Key = () if tenant is None else (tenant, "")
        async for row in scan_rows(backend, KEYS, prefix, bodies=False):
            if row.key[2] != SIGNING:
                raise DeniedError(
                    "the store is encrypted, but was opened without a key",
                    where=backend.url,
                    hint="Open it with encryption=, or set HOLDFAST_ENCRYPTION",
                    code="key-missing",
                )

    async def prepare(self, batch: Batch) -> PreparedBatch:
        """Return a batch whose rows can be encoded, after the conditions on which they may be stored like that."""
        return PreparedBatch((), batch, self.encode)

    def settle(self, prepared: PreparedBatch, *, applied: bool) -> None:
        """Take notice that a batch that adds keys was applied, or that one of those conditions does not hold."""

    def may_be_clear(self, what: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether content may be stored in a form that anybody can read: `readable`, `words`, `export` …"""
        return True

    async def matcher(self, tenant: str, filters: Sequence[MetadataFilter]) -> Callable[[Row], bool] | None:  # noqa: ARG002
        """Return whether a step may match filters by its columns as they are stored; None if they do not tell."""
        return None

    async def field_names(self, tenant: str) -> NameEntry | None:  # noqa: ARG002 - for subclasses
        """Return how entries of metadata are named in the index of fields; None if there is none."""
        return name_entry

    async def file_sealer(self, tenant: str) -> Sealer | None:  # noqa: ARG002 - for subclasses
        """Return the key for files about a tenant that are stored elsewhere; None if they need none."""
        return None

    def check_prefix(self, prefix: str) -> None:
        """Raise `UnsupportedError` if lines cannot be found by how their names start."""

    def encode(self, table: Table, row: Row) -> Row:
        """Return a row as it is stored."""
        key, columns, record = row
        name = table.name
        if name in UNPROTECTED:
            return row
        return Row(key, columns, protect(record, RecordContext(name, key, columns)))

    def decode(self, table: Table, row: Row) -> Row:
        """Return a stored row with its record as the body. `CorruptError` if any byte of it differs."""
        key, columns, body = row
        name = table.name
        if name in UNPROTECTED:
            return row
        return Row(key, columns, expose(body, RecordContext(name, key, columns)))

    def salvage(self, table: Table, row: Row) -> Row:
        """Return a stored row that may be damaged, with its record as the body as far as possible. Nothing in it can be
        trusted."""
        return row if table.name in UNPROTECTED else row._replace(body=strip(row.body))

    def columns(self, table: Table, key: Key, columns: tuple[Scalar, ...]) -> tuple[Scalar, ...]:  # noqa: ARG002
        """Return the columns of a row as they are stored."""
        return columns

    def hide_key(self, table: Table, key: Key) -> Key:  # noqa: ARG002 - for subclasses
        """Return a key, or its first columns, as it is stored."""
        return key

    def hidden_places(self, table: Table, kind: Scalar) -> tuple[int, ...]:  # noqa: ARG002 - for subclasses
        """Return which columns of a key are stored in another form, and so in another order."""
        return ()

    def other_key(self, table: Table, key: Key) -> Key | None:  # noqa: ARG002 - for subclasses
        """Return another form in which a key may be stored, while a store is converted; None if there is none."""
        return None

    def is_intact(self, table: Table, row: Row) -> bool:
        """Return whether a stored row is what was written."""
        try:
            self.decode(table, row)
        except CorruptError:
            return False
        except HoldfastError:
            return True  # sealed with another key, or from a newer release: a copy would not repair that
        return True

    def is_stored(self, table: Table, stored: Row | None, row: Row) -> bool:
        """Return whether a stored row is this one, intact."""
        try:
            return stored is not None and self.decode(table, stored) == row
        except HoldfastError:
            return False


def clear_refused(what: str) -> UnsupportedError:
    """Return the error for content that would be stored in the clear, beside an encrypted store."""
    return UnsupportedError(
        f"the store is encrypted, and this would be stored unencrypted: {what}",
        hint=f"If that is intended, open the store with Encryption(…, clear=[{what!r}])",
        code="clear-refused",
    )


CHECKSUMS = RowCodec()
"""Stores rows with checksums."""


class CheckedBackend(Wrapper):
    """The store as the engine uses it. `inner` has the rows as they are stored."""

    rows: RowCodec

    def __init__(self, inner: Backend, rows: RowCodec = CHECKSUMS, metrics: MetricsRegistry | None = None) -> None:
        self.metrics: MetricsRegistry = MetricsRegistry() if metrics is None else metrics
        stored, self.rows = rows.bind(inner)
        super().__init__(stored)
        stored.set_row_check(self.rows.is_intact)

    async def apply(self, batch: Batch) -> int | None:
        start = perf_counter()
        try:
            if self.rows.hides_columns:
                return await self._apply_hidden(batch)
            return await self.inner.apply(_encode(batch, self.rows.encode))
        finally:
            self.metrics.observe_request("write", perf_counter() - start, body_bytes(batch))

    async def _apply_hidden(self, batch: Batch) -> int | None:
        """Apply a batch whose rows are stored with other columns and keys."""
        for _ in range(_ATTEMPTS):
            prepared = await self.rows.prepare(batch)
            conditions, changes, encode, adds_keys = prepared
            hidden = [
                type(change)(change[0], encode(*change))
                if isinstance(change, _WRITES)
                else _hidden_change(self.rows, change)
                for change in changes
            ]
            others = _other_deletions(self.rows, changes) if self.rows.converts else ()
            failed = await self.inner.apply([*conditions, *hidden, *others])
            if failed is not None and failed >= len(conditions):
                return failed - len(conditions)
            if failed is not None or adds_keys:
                self.rows.settle(prepared, applied=failed is None)
            if failed is None:
                return None
        raise TransientError("the keys of a store keep changing", where=self.url, hint="Try again")

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        if self.rows.hides_columns:
            return await self._read_in_order(queries)
        return await self._read_opened(queries)

    async def _read_in_order(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Read rows in the order of their keys, also where they are stored in another one: then all are read."""
        for query in queries:
            if query[0] in _WITH_NAMES and _is_reordered(self.rows, query):
                break
        else:
            return await self._read_opened(queries)
        reordered = [_is_reordered(self.rows, query) for query in queries]
        found = await self._read_opened(
            [
                Scan(query.space, query.prefix, bodies=query.bodies)  # type: ignore[union-attr]
                if reorder
                else query
                for query, reorder in zip(queries, reordered, strict=True)
            ]
        )
        return [
            select_rows(query, rows) if reorder and isinstance(query, Scan) else rows
            for query, rows, reorder in zip(queries, found, reordered, strict=True)
        ]

    async def _read_opened(self, queries: Sequence[Query]) -> list[list[Row]]:
        start = perf_counter()
        if self.rows.hides_columns:
            found = await self._read_hidden(queries)
        else:
            found = await self.inner.read(queries)
        size = sum([len(row[2]) for rows in found for row in rows])
        self.metrics.observe_request("read", perf_counter() - start, size)
        return [
            _open_answer(query, rows, self.rows, self.rows.decode) if rows else rows
            for query, rows in zip(queries, found, strict=True)
        ]

    async def _read_hidden(self, queries: Sequence[Query]) -> list[list[Row]]:
        """Read rows as they are stored: under either form of their keys, while the store is converted."""
        hidden = [_hidden_query(self.rows, each) for each in queries]
        if not self.rows.converts:
            return await self.inner.read(hidden)
        others = {number: other for number, each in enumerate(queries) if (other := _other_query(self.rows, each))}
        found = await self.inner.read([*hidden, *others.values()])
        for number, rows in zip(others, found[len(queries) :], strict=True):
            found[number] = sorted((*found[number], *rows), key=lambda row: row.key[4:])
            limit = getattr(queries[number], "limit", None)
            del found[number][len(found[number]) if limit is None else limit :]
        return found[: len(queries)]


class UncheckedBackend(Wrapper):
    """A store of which only the columns matter: they are opened, if need be, and not checked."""

    def __init__(self, inner: Backend, rows: RowCodec) -> None:
        super().__init__(inner)
        self._rows = rows

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        found = await self.inner.read([_hidden_query(self._rows, each) for each in queries])
        salvage = self._rows.salvage
        return [_open_answer(query, rows, self._rows, salvage) for query, rows in zip(queries, found, strict=True)]


def storage_of(backend: Backend) -> tuple[Backend, RowCodec]:
    """Return the store with its rows as they are stored, and their codec."""
    return (backend.inner, backend.rows) if isinstance(backend, CheckedBackend) else (backend, CHECKSUMS)


async def read_despite_damage(backend: Backend, queries: Sequence[Query]) -> list[list[Row]]:
    """Read rows for a list, in which a damaged one must not hide the others: its record is `DAMAGED`, which raises
    `CorruptError` when it is opened and when it is stored. Its columns cannot be trusted."""
    stored, codec = storage_of(backend)
    found = await stored.read([_hidden_query(codec, each) for each in queries] if codec.hides_columns else queries)

    def open_row(table: Table, row: Row) -> Row:
        try:
            return codec.decode(table, row)
        except CorruptError:
            return row._replace(body=DAMAGED)

    return [_open_answer(query, rows, codec, open_row) for query, rows in zip(queries, found, strict=True)]


async def read_filtered(backend: Backend, scans: Sequence[Scan], filters: Sequence[MetadataFilter]) -> list[list[Row]]:
    """Read steps without their bodies. Those that cannot match filters by their metadata may be left unopened: their
    metadata is `UNMATCHED`."""
    stored, codec = storage_of(backend)
    tenants = {str(scan.prefix[0]) for scan in scans}
    match = await codec.matcher(tenants.pop(), filters) if filters and len(tenants) == 1 else None
    if match is None:
        return await backend.read(scans)
    found = await stored.read(scans)
    wanted = [row.key for rows in found for row in rows if match(row)]
    opened = {row.key: row for rows in await backend.read([Get(STEPS, wanted)] if wanted else []) for row in rows}
    return [[opened.get(row.key) or _unmatched(row) for row in rows] for rows in found]


_UNMATCHED_COLUMNS = {"kind": "", "metadata": UNMATCHED}


def _unmatched(row: Row) -> Row:
    """Return a step with its visible columns alone."""
    columns = zip(STEPS.columns, row.columns, strict=True)
    return Row(row.key, tuple([_UNMATCHED_COLUMNS.get(name, value) for name, value in columns]))


def _encode(batch: Batch, encode: Callable[[Table, Row], Row]) -> list[Change]:
    return [type(change)(change[0], encode(*change)) if isinstance(change, _WRITES) else change for change in batch]


def _hidden_change(codec: RowCodec, change: Expect | Delete) -> Change:
    """Return a condition or deletion that is about rows as they are stored."""
    if isinstance(change, StoredExpect):
        return Expect(*change)
    if isinstance(change, Expect):
        table, key, columns = change
        if table in _WITH_NAMES:
            key = codec.hide_key(table, key)
        return Expect(table, key, columns and codec.columns(table, change.key, columns))
    if isinstance(change, StoredDelete):
        return Delete(*change)
    return Delete(change.space, codec.hide_key(*change))


def _other_deletions(codec: RowCodec, changes: Iterable[Change]) -> list[Change]:
    """Return the deletions of rows under other forms of their keys."""
    return [
        Delete(change.space, other)
        for change in changes
        if type(change) is Delete and (other := codec.other_key(*change)) is not None
    ]


def _is_reordered(codec: RowCodec, query: Query) -> bool:
    """Return whether the rows that a scan asks for are stored in another order."""
    if isinstance(query, Get) or query.by or len(query.prefix) < 3:
        return False
    return any(place >= len(query.prefix) for place in codec.hidden_places(query.space, query.prefix[2]))


def select_rows(query: Scan, rows: Iterable[Row]) -> list[Row]:
    """Return those of the rows under a prefix that a scan asks for, in its order."""
    columns = list(query.space.all_columns)
    places = [columns.index(name) for name in query.space.order(query.by)[len(query.prefix) :]]
    found: list[tuple[Key, Row]] = []
    for row in rows:
        values = (*row.key, *row.columns)
        at = tuple([values[place] for place in places])
        if at >= query.start and (not query.stop or at < query.stop):
            found.append((at, row))
    found.sort(key=lambda each: each[0], reverse=query.reverse)
    return [row for _, row in found[: query.limit]]


def _other_query(codec: RowCodec, query: Query) -> Query | None:
    table = query.space
    if isinstance(query, Scan):
        prefix = codec.other_key(table, query.prefix)
        return None if prefix is None else query._replace(prefix=prefix, bodies=True)
    keys = [other for key in query.keys if (other := codec.other_key(table, key)) is not None]
    return query._replace(keys=keys) if keys else None


def _hidden_query(codec: RowCodec, query: Query) -> Query:
    """Return a query for rows as they are stored, with their bodies: columns may be in them."""
    table = query[0]
    if table not in _WITH_NAMES:
        return query if isinstance(query, Get) or query.bodies else query._replace(bodies=True)
    if isinstance(query, Get):
        return query._replace(keys=[codec.hide_key(table, key) for key in query.keys])
    prefix, start, stop = query.prefix, query.start, query.stop
    if start or stop:  # pages go on where the last one ended, in the order in which rows are stored
        start, stop = (
            codec.hide_key(table, (*prefix, *bound))[len(prefix) :] if bound else bound for bound in (start, stop)
        )
    return query._replace(prefix=codec.hide_key(table, prefix), start=start, stop=stop, bodies=True)


def _open_answer(query: Query, rows: list[Row], codec: RowCodec, open_row: Callable[[Table, Row], Row]) -> list[Row]:
    table = query.space
    if table.name in UNPROTECTED:
        return rows
    if isinstance(query, Scan) and not query.bodies:
        if codec.hides_columns:
            rows = [codec.salvage(table, row) for row in rows]
        return [Row(row[0], row[1]) if row[2] else row for row in rows]
    return [open_row(table, row) for row in rows]


def mark_key(tenant: str) -> Key:
    """Return the key of the mark of a tenant. It belongs to no line."""
    return (tenant, "", "setting", "lost rows", "")


def mark_query(tenant: str) -> Get:
    """Return the query for the mark of a tenant."""
    return Get(REFS, [mark_key(tenant)])


def tables_of(rows: Sequence[Row]) -> list[str]:
    """Return the tables from which rows may be missing, by the answer to `mark_query`."""
    return str(rows[0].columns[0]).split() if rows else []


def mark_row(tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark of a tenant."""
    return Row(mark_key(tenant), (" ".join(sorted(set(tables))), now))


def stored_mark(rows: RowCodec, tenant: str, tables: Iterable[str], now: int) -> Row:
    """Return the mark as it is stored."""
    return rows.encode(REFS, mark_row(tenant, tables, now))


async def marked_tables(backend: Backend, tenant: str) -> list[str]:
    """Return the tables from which rows may be missing."""
    (rows,) = await backend.read([mark_query(tenant)])
    return tables_of(rows)


async def remove_mark(backend: Backend, tenant: str) -> None:
    """Remove the mark: the rows were restored, or their loss was accepted."""
    await backend.apply([Delete(REFS, mark_key(tenant))])
