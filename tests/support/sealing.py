"""A cipher for tests, and a row codec that counts what it seals and opens."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections import Counter

from holdfast.backends.interface import Backend, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import TABLES, Table
from holdfast.codec.envelope import Sealer
from holdfast.engine.checked_rows import RowCodec
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.sealed_rows import UNSEALED, SealedRowCodec
from holdfast.errors import CorruptError
from holdfast.security.encryption.encrypted_rows import EncryptedRows
from holdfast.security.encryption.provider import LocalKeys
from holdfast.security.encryption.settings import Encryption
from holdfast.security.encryption.store_keys import KeyMemory, StoreKeys
from holdfast.store.store import Store


class XorSealer:
    """Combines content with a stream of digests, and signs it. Like a cipher, it has a random nonce; it is none."""

    def __init__(self, key_id: bytes = b"k1", key: bytes = b"secret", nonce: bytes | None = None) -> None:
        self.key_id = key_id
        self._key = key
        self._nonce = nonce

    def seal(self, content: bytes, associated: bytes) -> bytes:
        nonce = self._nonce or os.urandom(8)
        hidden = nonce + self._combine(nonce, content)
        return self._sign(hidden, associated) + hidden

    def unseal(self, sealed: bytes, associated: bytes) -> bytes:
        tag, hidden = sealed[:16], sealed[16:]
        if tag != self._sign(hidden, associated):
            raise CorruptError("the seal is broken")
        return self._combine(hidden[:8], hidden[8:])

    def digest(self, content: bytes) -> bytes:
        return hmac.digest(self._key, b"digest" + content, "sha256")

    def _sign(self, hidden: bytes, associated: bytes) -> bytes:
        return hmac.digest(self._key, len(associated).to_bytes(4) + associated + hidden, "sha256")[:16]

    def _combine(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + nonce).digest(len(data))
        return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data))


class CountingRows(SealedRowCodec):
    """Counts the rows that are sealed and opened, by table."""

    def __init__(self, sealer: XorSealer | None = None) -> None:
        super().__init__(sealer or XorSealer())
        self.sealed: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()

    def encode(self, table: Table, row: Row) -> Row:
        self.sealed[table.name] += 1
        return super().encode(table, row)

    def decode(self, table: Table, row: Row) -> Row:
        opened = super().decode(table, row)
        self.opened[table.name] += 1
        return opened


class CountingEncryptedRows(EncryptedRows):
    """Counts the rows that are sealed and opened in any store that uses it, by table."""

    def __init__(
        self, encryption: Encryption | None = None, memory: KeyMemory | None = None, keys: StoreKeys | None = None
    ) -> None:
        super().__init__(
            encryption or Encryption(LocalKeys(b"k" * 32), clear=("words", "readable", "export")), memory, keys
        )
        self.sealed: Counter[str] = Counter()
        self.opened: Counter[str] = Counter()

    def bind(self, backend: Backend) -> tuple[Backend, RowCodec]:
        stored, bound = super().bind(backend)
        assert isinstance(bound, EncryptedRows)
        counting = CountingEncryptedRows(self._encryption, self._memory, bound.store_keys)
        counting.sealed, counting.opened = self.sealed, self.opened
        return stored, counting

    def seal(self, table: Table, row: Row, sealer: Sealer) -> Row:
        self.sealed[table.name] += 1
        return super().seal(table, row, sealer)

    def decode(self, table: Table, row: Row) -> Row:
        opened = super().decode(table, row)
        self.opened[table.name] += 1
        return opened


def sealed_store(backend: Backend, rows: RowCodec, *, fold_every: int = 3, project: bool = False) -> Store:
    """A store whose rows are sealed."""
    cache = MemoryCache(1 << 20)
    return Store(Engine(EngineContext(backend, cache, fold_every=fold_every, project=project, rows=rows)), "")


def assert_all_sealed(backend: Backend, rows: RowCodec, secrets: list[str]) -> int:
    """Every body in a store is sealed for its own row, and nowhere is a secret to be read. Returns how many."""
    count = 0
    stored, rows = rows.bind(backend)  # with its keys
    for table in TABLES:
        for row in run(stored.read([Scan(table, ())]))[0]:
            if table.name not in UNSEALED:
                rows.decode(table, row)  # raises unless it was sealed there
                count += 1
                clear = repr((row.columns, row.body))
                assert not [each for each in secrets if each in clear], (table.name, row)
    return count
