"""The row codec of an encrypted store, and the store below it, which has the keys in memory when rows need them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from holdfast.backends.interface import Backend, Batch, Change, Create, Delete, Ensure, Expect, Get, Put, Query, Row
from holdfast.backends.tables import KEYS, REFS, STEPS, Key, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.codec.envelope import RecordContext, Sealer, missing_key, sealed_key_id, tampered_error
from holdfast.engine.checked_rows import CHECKSUMS, PreparedBatch, RowCodec, StoredExpect
from holdfast.engine.fields import NameEntry
from holdfast.engine.metadata_filter import MetadataFilter
from holdfast.engine.row_format import SUBJECT, Line, StepRef
from holdfast.engine.sealed_rows import UNSEALED, SealedRowCodec
from holdfast.engine.subject_names import MIXED, subject_of_line, subjects_of_step
from holdfast.errors import DeniedError
from holdfast.security.encryption.cipher import Cipher
from holdfast.security.encryption.hidden_names import NamedBackend, prefix_refused
from holdfast.security.encryption.key_rows import LineKey, LineName
from holdfast.security.encryption.settings import Encryption, Mode
from holdfast.security.encryption.store_keys import KeyMemory, StoreKeys, not_encrypted

_WRITES = (Create, Ensure, Put)

_KEY_ID = slice(12, 44)
"""Where a sealed body has the id of its key: to find out quickly whether it is known."""


class EncryptedRows(SealedRowCodec):
    """Seals the rows of each line with a key of its own. Bound to a store, whose keys it uses."""

    def __init__(self, encryption: Encryption, memory: KeyMemory | None = None, keys: StoreKeys | None = None) -> None:
        self._encryption = encryption
        indexed = None if encryption.indexed is None else tuple(sorted(set(encryption.indexed)))
        settings = (encryption.provider, encryption.max_age, encryption.max_uses, encryption.hide_names, indexed)
        self._memory = memory or KeyMemory(*settings)
        self._store_keys = keys
        self.converts: bool = encryption.mode != "on"
        self.hides_names: bool = encryption.hide_names
        super().__init__(keys=self._memory.ciphers)

    @property
    def mode(self) -> Mode:
        """Whether the store is encrypted, or becomes so, or ceases to be."""
        return self._encryption.mode

    @property
    def store_keys(self) -> StoreKeys:
        """The keys of the store that this codec is bound to."""
        assert self._store_keys is not None  # noqa: S101 - every store binds it
        return self._store_keys

    def bind(self, backend: Backend) -> tuple[Backend, RowCodec]:
        named = NamedBackend(backend) if self._encryption.hide_names else backend
        keys = StoreKeys(named, self._memory)
        if isinstance(named, NamedBackend):
            named.keys = keys
        return KeyedBackend(named, keys), EncryptedRows(self._encryption, self._memory, keys)

    async def check_store(self, backend: Backend, tenant: str | None, *, read_only: bool = False) -> None:
        """Read the keys of a tenant, and create them in a new store.

        `ConfigError` with the code `not-encrypted` if the store has rows and no keys.
        """
        keys = self.store_keys
        if tenant is None or await keys.tenant(tenant) is not None:
            return
        if not read_only and self.mode != "turning-off":
            await keys.create_tenant(tenant, convert=self.mode == "turning-on")
            await keys.require_tenant(tenant)
        elif self.mode == "on" and await keys.has_rows(tenant):
            raise not_encrypted(backend.url)

    def may_be_clear(self, what: str) -> bool:
        return what in self._encryption.clear

    async def file_sealer(self, tenant: str) -> Sealer | None:
        if self.mode == "turning-off":
            return None
        return Cipher((await self.store_keys.require_tenant(tenant)).digest.derive(b"file 1"))

    async def matcher(self, tenant: str, filters: Sequence[MetadataFilter]) -> Callable[[Row], bool] | None:
        keys = await self.store_keys.tenant(tenant) if self.mode == "on" else None
        return None if keys is None or keys.index is None else keys.index.matcher(filters)

    async def field_names(self, tenant: str) -> NameEntry | None:
        """Return how declared entries are named. There is no index where names are hidden: it has those of threads."""
        if self.mode == "turning-off":
            return await super().field_names(tenant)
        keys = None if self.hides_names else await self.store_keys.tenant(tenant)
        return None if keys is None or keys.index is None else keys.index.name_entry

    def metadata_tokens(self, key: Key, metadata: str) -> str:
        keys = self.store_keys.known_tenant(str(key[0]))
        return "" if keys is None or keys.index is None else keys.index.tokens(metadata)

    def check_prefix(self, prefix: str) -> None:
        if prefix and self.hides_names:
            raise prefix_refused(prefix)

    # Writing --------------------------------------------------------------------------------------------------

    async def prepare(self, batch: Batch) -> PreparedBatch:
        keys = self.store_keys
        if not self.converts and (line := _one_written_line(batch)) and (known := keys.key_in_use(line)):
            return PreparedBatch(known.conditions, batch, SealingKeys(self, {line: known}))
        lines = _written_lines(batch)
        if self.converts:
            batch = await self._as_stored(batch)
        if not lines or self.mode == "turning-off":
            for tenant in {str(change.key[0]) for change in batch if isinstance(change, Expect)}:
                await keys.tenant(tenant)
            return PreparedBatch((), batch, self.encode)
        for each in batch:
            if each[0] is KEYS and _deletes_keys(each, lines):
                # A line that is created again in the same batch keeps its key. Positions in the batch stay.
                nothing = Delete(KEYS, (*lines[0], "none"))
                batch = [nothing if _deletes_keys(other, lines) else other for other in batch]
                break
        used = await keys.line_keys(lines, partial(subject_in_batch, batch))
        conditions = [each for key in used.values() for each in key.conditions]
        adds_keys = not all(key.stored for key in used.values())
        return PreparedBatch(conditions, batch, SealingKeys(self, used), adds_keys)

    def settle(self, prepared: PreparedBatch, *, applied: bool) -> None:
        if isinstance(prepared.encode, SealingKeys):
            self.store_keys.settle(prepared.encode.keys, applied=applied)

    async def _as_stored(self, batch: Batch) -> list[Change]:
        """Return changes whose conditions are about rows as they are stored, some sealed and some not."""
        changes = list(batch)
        for number, change in enumerate(changes):
            if isinstance(change, Expect) and change.columns and change.space.name not in UNSEALED:
                (rows,) = await self.store_keys.backend.read([Get(change.space, [change.key])])
                if rows and not sealed_key_id(rows[0].body):
                    changes[number] = StoredExpect(*change)
        return changes

    def sealer(self, key: Key) -> Sealer:
        found = self.store_keys.line_key(str(key[0]), str(key[1]))
        if found is None:
            raise missing_key(b"", f"line {key[1]!r}")
        return found.cipher

    def digest(self, key: Key, content: bytes) -> bytes:
        return self.store_keys.digest(str(key[0]), content)

    def encode(self, table: Table, row: Row) -> Row:
        return CHECKSUMS.encode(table, row) if self.mode == "turning-off" else super().encode(table, row)

    def hide_key(self, table: Table, key: Key) -> Key:
        return key if self.mode == "turning-off" else super().hide_key(table, key)

    def other_key(self, table: Table, key: Key) -> Key | None:
        if self.mode == "on":
            return None
        hidden = super().hide_key(table, key)
        other = hidden if self.mode == "turning-off" else key
        return None if hidden == key else other

    # Reading --------------------------------------------------------------------------------------------------

    def decode(self, table: Table, row: Row) -> Row:
        if self.converts and table.name not in UNSEALED and not sealed_key_id(row.body):
            return CHECKSUMS.decode(table, row)
        try:
            return super().decode(table, row)
        except DeniedError:
            # A line that has keys has those of all its rows.
            if self._store_keys is None or self._store_keys.line_key(str(row.key[0]), str(row.key[1])) is None:
                raise
            where = str(RecordContext(table.name, row.key))
            raise tampered_error("a row is sealed with the key of another line, or an old one", where) from None


class SealingKeys:
    """Encodes the rows of one batch: with the keys of its conditions, whatever others do meanwhile."""

    def __init__(self, rows: EncryptedRows, keys: Mapping[LineName, LineKey]) -> None:
        self._rows = rows
        self.keys = keys

    def __call__(self, table: Table, row: Row) -> Row:
        if table.name in UNSEALED:
            return CHECKSUMS.encode(table, row)
        return self._rows.seal(table, row, self.keys[row.key[:2]].cipher)  # type: ignore[index]


class KeyedBackend(Wrapper):
    """A store of sealed rows. When it has read some, their keys are in memory."""

    def __init__(self, inner: Backend, keys: StoreKeys) -> None:
        super().__init__(inner)
        self.keys = keys

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        answers, unknown = await self._read(queries)
        if unknown:
            await self.keys.load_ids(unknown)
            if not self.inner.capabilities.fresh and self._unknown(queries, answers):
                # A cache may have rows from before they were encrypted anew: what is read after this is newer.
                await self.inner.changes()
                answers, unknown = await self._read(queries)
                await self.keys.load_ids(unknown)
        return answers

    async def _read(self, queries: Sequence[Query]) -> tuple[list[list[Row]], dict[bytes, LineName]]:
        """Return rows, and the keys of theirs that are not in memory."""
        lines = _queried_lines(queries)
        if self.keys.are_known(lines):
            answers = await self.inner.read(queries)
        else:
            more = await self.keys.queries(lines)
            found = await self.inner.read([*queries, *more])
            for rows in found[len(queries) :]:
                await self.keys.add(rows)
            answers = found[: len(queries)]
        return answers, self._unknown(queries, answers)

    def _unknown(self, queries: Sequence[Query], answers: Sequence[Sequence[Row]]) -> dict[bytes, LineName]:
        """Return the ids of the keys of rows that are not in memory, and the line of each."""
        known, unknown, last = self.keys.memory.ciphers.recent, dict[bytes, LineName](), b""
        for query, rows in zip(queries, answers, strict=True):
            if rows and query[0].name not in UNSEALED:
                for row in rows:
                    id = row[2][_KEY_ID]
                    if id == last:  # most rows are of one line
                        continue
                    if id not in known and (id := sealed_key_id(row.body)) and id not in known:
                        unknown[id] = (str(row.key[0]), str(row.key[1]))
                    last = id
        return unknown


def _one_written_line(batch: Batch) -> LineName | None:
    """Return the line that a batch stores sealed rows of; None if it has none, or several, or changes keys."""
    line: Key | None = None
    for change in batch:
        if change[0] is KEYS:
            return None
        if isinstance(change, _WRITES) and change[0].name not in UNSEALED:
            name = change[1][0][:2]
            if line is None:
                line = name
            elif line != name:
                return None
    return line  # type: ignore[return-value]


def _written_lines(batch: Batch) -> list[LineName]:
    """Return the lines that a batch stores sealed rows of."""
    lines: dict[Key, None] = {}
    for change in batch:
        if isinstance(change, _WRITES) and change[0].name not in UNSEALED:
            lines[change[1][0][:2]] = None
    return list(lines)  # type: ignore[arg-type]


def _deletes_keys(change: Change, lines: Iterable[LineName]) -> bool:
    """Return whether a change deletes all keys of lines that are written in the same batch."""
    return (
        isinstance(change, Delete)
        and change.space is KEYS
        and len(change.prefix) <= 2
        and any(name[: len(change.prefix)] == change.prefix[:2] for name in lines)
    )


def _queried_lines(queries: Sequence[Query]) -> list[LineName]:
    """Return the lines that queries are about, as far as they say so."""
    lines: dict[LineName, None] = {}
    for query in queries:
        if query[0].name in UNSEALED:
            continue
        if isinstance(query, Get):
            for key in query.keys:
                lines[key[:2]] = None  # type: ignore[index]
        elif len(query[1]) >= 2:
            lines[query[1][:2]] = None  # type: ignore[index]
    return list(lines)


def subject_in_batch(batch: Batch, name: tuple[str, str]) -> str:
    """Return the subject of a line that a batch creates: by an assignment, by its name, or by the metadata of a
    thread's first checkpoint; empty for none."""
    line, named = Line(*name), ""
    for change in batch:
        if isinstance(change, _WRITES) and change.row.key[:2] == name:
            if change[0] is REFS and change.row.key[2] == SUBJECT:
                subject = str(change.row.columns[0])
                return "" if subject == MIXED else subject
            if change[0] is STEPS:
                subjects, _ = subjects_of_step(StepRef.of(change.row))
                named = named or (subjects[0] if len(subjects) == 1 else "")
    return subject_of_line(line) or named
