"""The keys of a store: where they are stored, and which of them are in memory.

Each tenant has *wrapping keys*, numbered, of which the latest is in use, and one for digests; the provider encrypts
them. One row lists them with their states, bound by the provider, so that no state can be altered, and no key be left
out or brought back. Each line has *data keys*, encrypted by the wrapping key of the same number; or, if the line is the
data of one person, by a *subject key*, which that wrapping key encrypts. They are rows of `KEYS`, in
the line that they belong to: deleting a line deletes them, and they are stored in one batch with the first row of the
line.

Every batch has a condition for each line that the key still exists and is in use, so no row is ever stored with a key
that was destroyed or replaced meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.msgpack import encode

from holdfast.backends.interface import (
    Backend,
    Batch,
    BlockingCall,
    Change,
    Create,
    Delete,
    Get,
    Put,
    Query,
    Row,
    Scan,
)
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import KEYS, LINES, REFS, SIGNING, Key
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.engine.optimistic import Attempts
from holdfast.engine.sealed_rows import hidden_name
from holdfast.errors import ConfigError, CorruptError, DeniedError
from holdfast.security.encryption.cipher import KEY_SIZE, Cipher, new_key
from holdfast.security.encryption.hidden_names import SUBJECT_LINE, NameCodec
from holdfast.security.encryption.key_rows import (
    ACTIVE,
    DATA,
    DESTROYING,
    DIGEST,
    INDEX,
    LIST,
    NAMES,
    SUBJECT,
    WRAPPING,
    KeyRow,
    LineKey,
    LineName,
    MetadataIndex,
    SubjectKey,
    TenantKeys,
    destroyed_changes,
    destroyed_key,
    digest_list,
)
from holdfast.security.encryption.provider import KeyProvider, altered_key, call_provider

_INDEXED = packed_form(tuple[str, ...])

_CAPACITY = 20_000
"""How many data keys are in memory, at least; older ones are read again."""


class CipherCache:
    """Data keys in memory, by id. Old ones go in two steps, so that none goes between reading a row and opening it."""

    def __init__(self) -> None:
        self.recent: dict[bytes, Cipher] = {}
        self._older: dict[bytes, Cipher] = {}

    def get(self, key_id: bytes, /) -> Cipher | None:
        """Return a key; None if it is not in memory."""
        return self.recent.get(key_id) or self._older.get(key_id)

    def age(self) -> None:
        """Let go of the keys that were not read since the last time."""
        self._older, self.recent = self.recent, {}


@dataclass(slots=True)
class KeyMemory:
    """Keys and settings that the stores of a program with the same provider share."""

    provider: KeyProvider
    max_age: float
    max_uses: int
    hide_names: bool = False
    indexed: tuple[str, ...] | None = None
    """The entries of metadata that are to be indexed; None for those that the store has declared."""
    ciphers: CipherCache = field(default_factory=CipherCache)
    is_listed: bool = True
    """Whether the keys of a tenant are all there, with a list of them: those of a backup are not."""
    tenants: dict[str, TenantKeys] = field(default_factory=dict)
    """The keys of tenants as of any of the stores: for another one that has none, as a copy."""


class StoreKeys:
    """The keys of one store."""

    def __init__(self, backend: Backend, memory: KeyMemory) -> None:
        self.backend = backend
        self.memory = memory
        self._tenants: dict[str, TenantKeys] = {}
        self._lines: dict[LineName, LineKey] = {}
        self._older: dict[LineName, LineKey] = {}
        self._stale: set[str] = set()
        """Tenants whose keys were changed."""

    @cached_property
    def subjects(self) -> SubjectKeys:
        """The keys of persons."""
        return SubjectKeys(self)

    def forget_line(self, name: LineName) -> None:
        """Read the key of a line again when it is needed."""
        self._lines.pop(name, None)
        self._older.pop(name, None)

    # Tenants --------------------------------------------------------------------------------------------------

    async def tenant(self, tenant: str) -> TenantKeys | None:
        """Return the keys of a tenant; None if the store has none."""
        found = self._tenants.get(tenant)
        if found is None or tenant in self._stale or self._is_old(found):
            return await self.load_tenant(tenant)
        return found

    def known_tenant(self, tenant: str) -> TenantKeys | None:
        """Return the keys of a tenant, if they are in memory, however old."""
        return self._tenants.get(tenant)

    async def load_tenant(self, tenant: str) -> TenantKeys | None:
        """Read the keys of a tenant."""
        self._stale.discard(tenant)
        (rows,) = await self.backend.read([Scan(KEYS, (tenant, ""))])
        return await self._open_tenant(tenant, rows)

    async def require_tenant(self, tenant: str) -> TenantKeys:
        """Return the keys of a tenant, and create them if the store is new.

        `ConfigError` with the code `not-encrypted` if it has rows, and no keys.
        """
        attempts = Attempts("creating keys", self.backend.url)
        while True:
            await attempts.begin()
            found = await self.tenant(tenant)
            if found is not None:
                return found
            await self.create_tenant(tenant)

    async def create_tenant(self, tenant: str, *, convert: bool = False) -> None:
        """Create the keys of a tenant: those of another store of this program, if it has some."""
        shared = self.memory.tenants.get(tenant)
        if not convert and await self.has_rows(tenant):
            raise not_encrypted(self.backend.url)
        if shared is not None:
            rows = [row for row in shared.listed_rows if row.kind != NAMES]
        else:
            rows = [await self.new_row(tenant, kind, 0) for kind in (WRAPPING, DIGEST)]
            if self.memory.indexed:
                rows.append(_index_row(rows[1], Cipher(await self.unwrap(rows[1])), self.memory.indexed))
        if self.memory.hide_names:
            rows.append(await self.new_row(tenant, NAMES, 0))
        rows.append(await self.new_list(tenant, rows))
        await self.backend.apply([Create(KEYS, row.stored()) for row in rows])

    async def has_rows(self, tenant: str) -> bool:
        """Return whether a store has lines, and no keys but that of certificates."""
        keys, lines = await self.backend.read(
            [Scan(KEYS, (tenant,), limit=2, bodies=False), Scan(LINES, (tenant,), limit=1, bodies=False)]
        )
        return bool(lines) and all(row.key[2] == SIGNING for row in keys)

    async def new_row(
        self, tenant: str, kind: str, number: int, key: bytes | None = None, state: str = ACTIVE
    ) -> KeyRow:
        """Return the row of a new key of a tenant; or of an existing one, encrypted anew."""
        provider, key = self.memory.provider, key or new_key()
        row = KeyRow(tenant, "", kind, number, Cipher(key).key_id, "", state, time.time_ns(), b"")
        wrap_key: BlockingCall[tuple[str, bytes]] = BlockingCall(
            lambda: call_provider(provider, lambda: (provider.key_id, provider.wrap(key, row.context)))
        )
        wrapped_by, wrapped = await wrap_key
        return row._replace(wrapped_by=wrapped_by, wrapped=wrapped)

    async def unwrap(self, row: KeyRow) -> bytes:
        """Decrypt a key of a tenant."""
        provider = self.memory.provider
        key: bytes = await BlockingCall(
            lambda: call_provider(provider, lambda: provider.unwrap(row.wrapped, row.wrapped_by, row.context))
        )
        if len(key) != 32 or Cipher(key).key_id != row.id:
            raise altered_key(row.wrapped_by, self.backend.url)
        return key

    async def new_list(self, tenant: str, rows: Iterable[KeyRow]) -> KeyRow:
        """Return the row that lists the keys of a tenant, as they are in `rows`."""
        return await self.new_row(tenant, LIST, 0, state=digest_list(rows))

    async def list_changes(self, tenant: TenantKeys, rows: Iterable[KeyRow]) -> list[Change]:
        """Return the changes that list the keys of a tenant as they are in `rows` from now on, on condition that
        nobody changed them since they were read. They belong into the batch that changes the keys."""
        old = tenant.list_row
        assert old is not None  # noqa: S101 - those of a backup are not changed
        return [old.unchanged(), Put(KEYS, (await self.new_list(old.tenant, rows)).row())]

    async def _check_list(self, rows: Sequence[KeyRow]) -> KeyRow | None:
        """Return the list of the keys of a tenant. `CorruptError` if it is not of these rows."""
        found = next((row for row in rows if row.kind == LIST), None)
        if not self.memory.is_listed:
            return found
        if found is None or found.state != digest_list(rows):
            raise altered_list(self.backend.url)
        try:
            await self.unwrap(found)
        except DeniedError as error:
            if error.code != "key-wrong":
                raise
            raise altered_list(self.backend.url) from error
        return found

    async def _open_tenant(self, tenant: str, rows: Sequence[Row]) -> TenantKeys | None:
        every = [KeyRow.of(row) for row in rows]
        mine = [row for row in every if row.kind in (WRAPPING, DIGEST, NAMES)]
        if not mine and all(row.kind != LIST for row in every):
            return None
        ciphers = {row.id.hex(): Cipher(await self.unwrap(row)) for row in mine}
        digests = [row for row in mine if row.kind == DIGEST]
        active = [row.number for row in mine if row.kind == WRAPPING and row.state == ACTIVE]
        if not digests or not active:
            raise DeniedError(
                "keys of the store are missing",
                where=self.backend.url,
                hint="Restore its table `keys` from a copy of it",
                code="key-missing",
            )
        list_row = await self._check_list(every)
        names = next((row for row in mine if row.kind == NAMES), None)
        if self.memory.hide_names != (names is not None):
            raise _other_names(self.backend.url, hidden=names is not None)
        if tenant in self._tenants and self._is_old(self._tenants[tenant]):
            self._age()
        digest = ciphers[digests[0].id.hex()]
        wrapping = [row for row in mine if row.kind == WRAPPING]
        if len(wrapping) > 1 or wrapping[0].number:  # the first one is not destroyed before there is another
            await self.refuse_destroyed(wrapping, digest)
        found = TenantKeys(mine, ciphers, digest, max(active), time.monotonic())
        found.list_row, found.index_row = list_row, next((row for row in every if row.kind == INDEX), None)
        found.index = self._open_index(digest, found.index_row)
        if names is not None:
            before = self._tenants.get(tenant)
            found.names = before.names if before else NameCodec(ciphers[names.id.hex()].digest)
        self._tenants[tenant] = self.memory.tenants[tenant] = found
        await self._open_lines(tenant, [row for row in every if row.kind == DATA])
        return found

    async def refuse_destroyed(self, rows: Iterable[KeyRow], digest: Cipher) -> None:
        """Raise `CorruptError` if one of the keys of a tenant or a person was destroyed, and put back since."""
        keys = [destroyed_key(row.tenant, row.id) for row in rows]
        if self.memory.hide_names:
            keys = [(*key[:3], hidden_name(digest.digest, REFS, key, str(key[3])), key[4]) for key in keys]
        (found,) = await self.backend.read([Get(REFS, keys)])
        if found:
            raise CorruptError(
                "a key that was destroyed is in the store again",
                where=self.backend.url,
                hint="Somebody put it there: delete its row of the table `keys`",
                code="tampered",
            )

    def _open_index(self, digest: Cipher, row: KeyRow | None) -> MetadataIndex | None:
        """Return the indexed entries of metadata that a tenant has declared."""
        declared: tuple[str, ...] = ()
        if row is not None:
            try:
                declared = ByteReader(digest.unseal(row.wrapped, row.associated())).packed(_INDEXED)
            except CorruptError:
                raise altered_key(row.wrapped_by[:16], self.backend.url) from None
        if self.memory.indexed is not None and declared != self.memory.indexed:
            raise ConfigError(
                f"the store has declared other entries of metadata as indexed: {', '.join(declared) or 'none'}",
                where=self.backend.url,
                hint="Leave out indexed=; to change it, copy everything into a new store",
                code="index-declared",
            )
        return MetadataIndex(declared, digest.derive) if declared else None

    def _is_old(self, keys: TenantKeys) -> bool:
        memory = self.memory
        return keys.uses >= memory.max_uses or time.monotonic() - keys.read_at > memory.max_age

    def _age(self) -> None:
        self.memory.ciphers.age()
        self._older, self._lines = self._lines, {}

    # Lines ----------------------------------------------------------------------------------------------------

    def line_key(self, tenant: str, line: str) -> LineKey | None:
        """Return the key that the rows of a line are sealed with, if it is in memory."""
        name = (tenant, line)
        return self._lines.get(name) or self._older.get(name)

    def digest(self, tenant: str, content: bytes) -> bytes:
        """Return a keyed digest; an arbitrary one if the store has no keys."""
        found = self._tenants.get(tenant) or self.memory.tenants.get(tenant)
        return bytes(32) if found is None else found.digest.digest(content)

    def are_known(self, lines: Sequence[LineName]) -> bool:
        """Return whether the keys of lines are in memory, and not too old."""
        for name in lines:
            tenant = self._tenants.get(name[0])
            if tenant is None or name not in self._lines or self._is_old(tenant):
                return False
        return True

    async def queries(self, lines: Iterable[LineName]) -> list[Query]:
        """Return the queries for the keys of those lines that are not in memory."""
        wanted: dict[str, list[Key]] = {}
        for tenant, line in lines:
            known = self._tenants.get(tenant)
            if known is not None and self._is_old(known):
                await self.load_tenant(tenant)
            if (tenant, line) in self._lines:
                continue
            keys = await self.tenant(tenant)
            if keys is not None:
                wanted.setdefault(tenant, []).extend((tenant, line, DATA, number) for number in keys.numbers)
        return [Get(KEYS, keys) for keys in wanted.values()]

    async def add(self, rows: Iterable[Row]) -> None:
        """Decrypt the keys of lines."""
        by_tenant: dict[str, list[KeyRow]] = {}
        for row in rows:
            found = KeyRow.of(row)
            by_tenant.setdefault(found.tenant, []).append(found)
        for tenant, found_rows in by_tenant.items():
            await self._open_lines(tenant, found_rows)

    async def read_names(self, stored: Backend, tenant: str, names: Sequence[str]) -> dict[str, str]:
        """Return the names of lines that are hidden, by the stored ones: of those whose keys are there."""
        keys = await self.tenant(tenant)
        if keys is None:
            return {}
        rows = await stored.read(
            [Get(KEYS, [(tenant, name, DATA, number) for name in names for number in keys.numbers])]
        )
        return await self.open_names(map(KeyRow.unchecked, rows[0]), keys)

    async def open_names(self, rows: Iterable[KeyRow], keys: TenantKeys) -> dict[str, str]:
        """Return the names of lines that are hidden, by the stored ones, given the rows of their keys."""
        found: dict[str, str] = {}
        for key in rows:
            try:
                wrapping = await self.wrapping_of(key, keys)
                if wrapping is not None:
                    found[key.line] = wrapping.unseal(key.wrapped, key.associated())[KEY_SIZE:].decode()
            except CorruptError:
                continue  # the rows of the line say so
        return found

    async def load(self, lines: Iterable[LineName], *, again: bool = False) -> None:
        """Read the keys of lines; of those in memory too, with `again`: then somebody changed them."""
        names = list(lines)
        if again:
            for name in names:
                self._lines.pop(name, None)
                self._older.pop(name, None)
            for tenant in {tenant for tenant, _ in names}:
                await self.load_tenant(tenant)
        queries = await self.queries(names)
        if queries:
            for rows in await self.backend.read(queries):
                await self.add(rows)

    async def load_ids(self, ids: Mapping[bytes, LineName]) -> None:
        """Read the keys with these ids, which rows of lines have."""
        for again in (False, True):
            missing = {name: None for id, name in ids.items() if self.memory.ciphers.get(id) is None}
            if not missing:
                return
            for name in missing:
                self._lines.pop(name, None)
            await self.load(missing, again=again)

    async def line_keys(
        self, lines: Iterable[LineName], subject_of: Callable[[LineName], str] = lambda _: ""
    ) -> dict[LineName, LineKey]:
        """Return the keys that lines are to be sealed with: new ones for those that have none yet, or an old one.
        `subject_of` says whose data a new line is, if it is one person's."""
        names = list(lines)
        used = {name: key for name in names if (key := self.key_in_use(name)) is not None}
        if len(used) == len(names):
            return used
        tenants = {tenant: await self.require_tenant(tenant) for tenant in {tenant for tenant, _ in names}}
        await self.load(name for name in names if name not in self._lines)
        for name in names:
            current, key = tenants[name[0]].current, self._lines.get(name)
            if key is None or (key.row.number < current and key.stored):
                subject = await self.subjects.of_new_key(key, name, subject_of, tenants[name[0]])
                key = self._lines[name] = self._new_line_key(name, tenants[name[0]], subject)
            used[name] = key
        return used

    def key_in_use(self, name: LineName) -> LineKey | None:
        """Return the key of a line, if it is in memory, stored, current and not too old."""
        key, tenant = self._lines.get(name), self._tenants.get(name[0])
        if key is None or tenant is None or not key.stored or key.row.number != tenant.current:
            return None
        return None if name[0] in self._stale or self._is_old(tenant) else key

    def settle(self, used: Mapping[LineName, LineKey], *, applied: bool) -> None:
        """Take notice that keys were stored; or that somebody changed keys, so that they have to be read again."""
        for name, key in used.items():
            if not applied:
                self._lines.pop(name, None)
                self.subjects.forget()
                self._stale.add(name[0])
            elif not key.stored and self._lines.get(name) is key:
                self._lines[name] = LineKey(key.row, key.cipher, stored=True)

    async def new_line_key(self, name: LineName, subject: str = "") -> LineKey:
        """Return a new key of a line, which is not stored yet: for a person's line, or that of the old key's person."""
        tenant = await self.require_tenant(name[0])
        old = None if subject else self._lines.get(name)
        by = await self.subjects.of_new_key(old, name, lambda _: subject, tenant)
        return self._new_line_key(name, tenant, by)

    def _new_line_key(self, name: LineName, tenant: TenantKeys, subject: SubjectKey | None) -> LineKey:
        key = new_key()
        cipher = Cipher(key)
        by = tenant.current_row
        wrapping, wrapped_by = tenant.wrapping[by.id.hex()], by.id.hex()
        if subject is not None:
            wrapping, wrapped_by = subject.cipher, subject.wrapped_by
        row = KeyRow(*name, DATA, by.number, cipher.key_id, wrapped_by, ACTIVE, time.time_ns(), b"")
        hidden = b"" if tenant.names is None else row.line.encode()
        row = row._replace(wrapped=wrapping.seal(key + hidden, self.associated(row)))
        tenant.uses += 1
        self.memory.ciphers.recent[cipher.key_id] = cipher
        return LineKey(row, cipher, False, None if subject is None else subject.row)

    async def _open_lines(self, tenant: str, rows: Iterable[KeyRow]) -> None:
        keys = self._tenants.get(tenant) or self.memory.tenants[tenant]
        if len(self.memory.ciphers.recent) > _CAPACITY:
            self._age()
        for row in rows:
            cipher = self.memory.ciphers.recent.get(row.id)
            if cipher is None:
                wrapping = await self.wrapping_of(row, keys)
                if wrapping is None:
                    continue  # rows that need it say that it is missing
                cipher = self.open_line_key(row, wrapping)
                keys.uses += 1
                self.memory.ciphers.recent[row.id] = cipher
            name = (row.tenant, row.line)
            before = self._lines.get(name)
            if row.state == ACTIVE and (before is None or before.row.number <= row.number):
                self._lines[name] = LineKey(row, cipher, stored=True)

    async def wrapping_of(self, row: KeyRow, tenant: TenantKeys) -> Cipher | None:
        """Return the key that encrypts the key of a line, or a subject key; None if there is none any more."""
        if not row.subject:
            return tenant.wrapping.get(row.wrapped_by)
        found = await self.subjects.load(row.tenant, row.subject, row.number, tenant)
        return None if found is None or found.row.id.hex() != row.wrapper else found.cipher

    def open_line_key(self, row: KeyRow, wrapping: Cipher) -> Cipher:
        """Decrypt the key of a line. `DeniedError` if it is not the key that its id commits to."""
        try:
            cipher = Cipher(wrapping.unseal(row.wrapped, self.associated(row))[:KEY_SIZE])
        except CorruptError:
            raise altered_key(row.wrapped_by[:16], f"{self.backend.url}, line {row.line!r}") from None
        if cipher.key_id != row.id:
            raise altered_key(row.wrapped_by[:16], f"{self.backend.url}, line {row.line!r}")
        return cipher

    async def with_state(self, row: KeyRow, state: str) -> KeyRow:
        """Return the row of the key of a line with another state, if it can be decrypted at all."""
        wrapping, changed = (
            await self.wrapping_of(row, await self.require_tenant(row.tenant)),
            row._replace(state=state),
        )
        if wrapping is None:
            return changed
        key = wrapping.unseal(row.wrapped, self.associated(row))
        return changed._replace(wrapped=wrapping.seal(key, self.associated(changed)))

    def associated(self, row: KeyRow) -> bytes:
        """Return what the key of a line is bound to: its stored name, by which it is found."""
        tenant = self._tenants.get(row.tenant) or self.memory.tenants[row.tenant]
        names = tenant.names
        return row.associated() if names is None else row._replace(line=names.hide(row.line)).associated()


class SubjectKeys:
    """The keys of persons in one store: each encrypts the keys of the lines that are one person's, and is encrypted by
    the tenant's.

    Whoever deletes one erases all of these lines at once. They are never copied, like all rows of `KEYS`. A keyed
    digest of the subject stands for the name of the line, so nobody can tell from the rows who it is.
    """

    def __init__(self, keys: StoreKeys) -> None:
        self._keys = keys
        self._loaded: dict[tuple[str, str, int], SubjectKey] = {}
        """By tenant, digest and number."""

    def forget(self) -> None:
        """Read the keys again when they are needed: somebody changed them."""
        self._loaded.clear()

    async def of_new_key(
        self, old: LineKey | None, name: LineName, subject_of: Callable[[LineName], str], tenant: TenantKeys
    ) -> SubjectKey | None:
        """Return the subject key for a new key of a line: that of its old key, or of its subject; None for none."""
        if old is not None:
            digest = old.row.subject
        else:
            subject = subject_of(name)
            digest = subject_digest(tenant, subject) if subject else ""
        return await self.require(name[0], digest, tenant) if digest else None

    async def load(self, tenant: str, digest: str, number: int, keys: TenantKeys) -> SubjectKey | None:
        """Return the key of a subject, by the digest; None if there is none."""
        found = self._loaded.get((tenant, digest, number))
        if found is None:
            (rows,) = await self._keys.backend.read([Get(KEYS, [(tenant, SUBJECT_LINE + digest, SUBJECT, number)])])
            row = KeyRow.of(rows[0]) if rows else None
            wrapping = None if row is None else keys.wrapping.get(row.wrapped_by)
            if row is None or wrapping is None:
                return None
            if row.state == ACTIVE:  # one that is about to be destroyed is recorded already
                await self._keys.refuse_destroyed([row], keys.digest)
            found = self._loaded[tenant, digest, number] = SubjectKey(row, self._keys.open_line_key(row, wrapping))
        return found

    async def require(self, tenant: str, digest: str, keys: TenantKeys) -> SubjectKey:
        """Return the key of a subject that encrypts new keys of lines, and create it if there is none."""
        attempts = Attempts("creating a subject's key", self._keys.backend.url)
        while True:
            await attempts.begin()
            found = await self.load(tenant, digest, keys.current, keys)
            if found is not None and found.row.state == ACTIVE:
                return found
            self.forget()
            key, by = new_key(), keys.current_row
            id, now = Cipher(key).key_id, time.time_ns()
            row = KeyRow(tenant, SUBJECT_LINE + digest, SUBJECT, by.number, id, by.id.hex(), ACTIVE, now, b"")
            row = row._replace(wrapped=keys.wrapping[by.id.hex()].seal(key, self._keys.associated(row)))
            await self._keys.backend.apply([by.unchanged(), Create(KEYS, row.stored())])

    async def assign(self, name: LineName, subject: str) -> None:
        """Encrypt the keys of a line with the key of a subject; with that of the tenant, if it is empty."""
        attempts = Attempts("assigning a line's key", f"line {name[1]!r}")
        while True:
            await attempts.begin()
            tenant = await self._keys.require_tenant(name[0])
            (rows,) = await self._keys.backend.read([Scan(KEYS, (*name, DATA))])
            changes: list[Change] = []
            for row in map(KeyRow.of, rows):
                wrapping = await self._keys.wrapping_of(row, tenant)
                if wrapping is None or (subject and row.number != tenant.current):
                    continue  # it is lost, or about to be replaced
                key = wrapping.unseal(row.wrapped, self._keys.associated(row))
                if subject:
                    found = await self.require(name[0], subject_digest(tenant, subject), tenant)
                    new, by = found.cipher, found.wrapped_by
                    changes.append(found.row.unchanged())
                else:
                    by = next(each.id.hex() for each in tenant.rows if each[2:4] == (WRAPPING, row.number))
                    new = tenant.wrapping[by]
                if by != row.wrapped_by:
                    moved = row._replace(wrapped_by=by, wrapped=new.seal(key, self._keys.associated(row)))
                    changes += [row.unchanged(), Put(KEYS, moved.stored())]
            if not changes or await self._keys.backend.apply(changes) is None:
                self._keys.forget_line(name)
                return
            self.forget()
            await self._keys.load_tenant(name[0])

    async def ids(self, tenant: str, subject: str) -> list[bytes]:
        """Return the ids of the keys of a subject."""
        digest = subject_digest(await self._keys.require_tenant(tenant), subject)
        (rows,) = await self._keys.backend.read([Scan(KEYS, (tenant, SUBJECT_LINE + digest))])
        return [KeyRow.of(row).id for row in rows]

    async def destroy(self, tenant: str, subject: str, apply: Callable[[Batch], Awaitable[int | None]]) -> int:
        """Destroy the keys of a subject, and return their number. Lines that still exist, since others share them,
        are encrypted by the tenant's key from now on. `apply` stores the record that they are destroyed."""
        keys = await self._keys.require_tenant(tenant)
        digest = subject_digest(keys, subject)
        attempts = Attempts("destroying a subject's keys", self._keys.backend.url)
        while True:
            await attempts.begin()
            (rows,) = await self._keys.backend.read([Scan(KEYS, (tenant, SUBJECT_LINE + digest))])
            found = list(map(KeyRow.of, rows))
            # From now on, nobody encrypts the key of a line with it, and no backup brings it back.
            for row in found:
                if row.state == ACTIVE:
                    await apply([row.unchanged(), *self._ended(row, keys)])
            self.forget()
            left = [row for row in await self._line_rows(tenant) if row.subject == digest]
            if not left and all(row.state == DESTROYING for row in found):
                await self._keys.backend.apply([Delete(KEYS, (tenant, SUBJECT_LINE + digest))])
                return len(found)
            for row in left:
                await self.assign((row.tenant, row.line), "")

    def _ended(self, row: KeyRow, keys: TenantKeys) -> list[Change]:
        """Return the changes that mark a key to be destroyed, if it can be decrypted at all."""
        wrapping, ended = keys.wrapping.get(row.wrapped_by), row._replace(state=DESTROYING)
        if wrapping is not None:
            key = wrapping.unseal(row.wrapped, self._keys.associated(row))
            ended = ended._replace(wrapped=wrapping.seal(key, self._keys.associated(ended)))
        return [Put(KEYS, ended.row()), *destroyed_changes(row.tenant, [row.id], time.time_ns())]

    async def _line_rows(self, tenant: str) -> list[KeyRow]:
        found = scan_rows(self._keys.backend, KEYS, (tenant,))
        return [KeyRow.of(row) async for row in found if row.key[2] == DATA]


def subject_digest(tenant: TenantKeys, subject: str) -> str:
    """Return the keyed digest of a subject."""
    return tenant.digest.digest(encode(("holdfast subject key 1", subject)))[:16].hex()


def _index_row(digest: KeyRow, cipher: Cipher, names: tuple[str, ...]) -> KeyRow:
    row = KeyRow(digest.tenant, "", INDEX, 0, digest.id, digest.id.hex(), ACTIVE, time.time_ns(), b"")
    return row._replace(wrapped=cipher.seal(encode(names), row.associated()))


def _other_names(url: str, *, hidden: bool) -> ConfigError:
    return ConfigError(
        "the names in the store are hidden" if hidden else "the names in the store are not hidden",
        where=url,
        hint="Open it with Encryption(…, hide_names=True)"
        if hidden
        else "Open it without hide_names=True; to hide them, copy everything into a new store that is open with it",
        code="names-hidden",
    )


def altered_list(url: str) -> CorruptError:
    """Return the error for keys of a tenant that are not those of their list."""
    return CorruptError(
        "the keys of the store are not those that it had: one was altered, removed, or put back",
        where=url,
        hint="Find out who can write to the store, and restore its table `keys` from a copy of it",
        code="tampered",
    )


def not_encrypted(url: str) -> ConfigError:
    """Return the error for a store that is to be encrypted, and is not."""
    return ConfigError(
        "the store is not encrypted",
        where=url,
        hint="Open it without encryption=; or turn encryption on, as the guide on encryption says",
        code="not-encrypted",
    )
