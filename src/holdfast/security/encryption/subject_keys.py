"""The keys of persons: each encrypts the keys of the lines that are one person's, and is encrypted by the tenant's.

Whoever deletes one erases all of these lines at once. They are rows of `KEYS`, and like all of these never copied. What
stands for the name of the line is a keyed digest of the subject, so nobody can tell from the rows who it is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from msgspec.msgpack import encode

from holdfast.backends.interface import Backend, Batch, Change, Create, Delete, Get, Put, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import KEYS
from holdfast.engine.optimistic import Attempts
from holdfast.security.encryption.cipher import Cipher, new_key
from holdfast.security.encryption.hidden_names import SUBJECT_LINE
from holdfast.security.encryption.key_rows import (
    ACTIVE,
    DATA,
    DESTROYING,
    SUBJECT,
    WRAPPING,
    KeyRow,
    LineKey,
    LineName,
    SubjectKey,
    TenantKeys,
    destroyed_changes,
)


class TenantKeySource(Protocol):
    """The keys of a store, without those of persons."""

    backend: Backend

    async def require_tenant(self, tenant: str) -> TenantKeys:
        """Return the keys of a tenant, and create them if there are none."""

    async def load_tenant(self, tenant: str) -> TenantKeys | None:
        """Read the keys of a tenant again."""

    async def wrapping_of(self, row: KeyRow, tenant: TenantKeys) -> Cipher | None:
        """Return the key that encrypts the key of a line."""

    async def refuse_destroyed(self, rows: Iterable[KeyRow], digest: Cipher) -> None:
        """Raise `CorruptError` if one of the keys was destroyed, and put back since."""

    def open_line_key(self, row: KeyRow, wrapping: Cipher) -> Cipher:
        """Decrypt the key of a line."""

    def associated(self, row: KeyRow) -> bytes:
        """Return what the key of a line is bound to."""

    def forget_line(self, name: LineName) -> None:
        """Read the key of a line again when it is needed."""


class SubjectKeys:
    """The keys of persons in one store."""

    def __init__(self, keys: TenantKeySource) -> None:
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
