"""A read cache: `cache:?store=postgresql://…&max_age=5`.

It caches whole answers: the result of one `read`, as of one moment. They are cached for `max_age` seconds at most (5 by
default), in memory or in a Redis that several processes share.

**How old an answer may be.** Never older than `max_age` seconds, and never older than the last batch that any process
wrote through the same cache: every line has a random mark there; answers carry the marks of their lines, and a writer
drops the mark of a line before the write is acknowledged. A slow reader that stores what it read before a write stores
it under a mark that is gone. A batch that was refused drops the marks too, so that the next read goes to the store.
Writes of processes that do not use this cache, or have one each in memory, are seen after `max_age` seconds; by
whoever asks for changes, when the answer names their lines.

If the cache cannot be reached, reads go to the store. A mark that could not be dropped is not trusted in this process,
and is valid in others until `max_age` is over.

The keys of an encrypted store are never cached: they are always read from the store.

Several stores may share a cache in Redis: each has a random name, which is stored in the store itself.

Options: `in` (`memory:`, or a URL of Redis), `max_age` (seconds; 0 caches nothing, and is then as fresh as the store),
`size` (bytes of memory, 64 MiB).
"""

from __future__ import annotations

import hashlib
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.backends.interface import (
    Backend,
    Batch,
    Capabilities,
    Changes,
    Create,
    Get,
    Query,
    Row,
    closed_error,
    key_of,
)
from holdfast.backends.runtime.fork_safety import ForkSafeLock
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import JOURNAL, KEYS, Key, encode_key, plain_text
from holdfast.backends.urls import compose, parse_duration, parse_int, redacted_url
from holdfast.backends.wrappers import Wrapper, open_parts, parse_composition, require_files
from holdfast.backends.wrappers.private_rows import read_caller_rows, translate_batch
from holdfast.byte_reader import ByteReader, packed_form
from holdfast.errors import ConfigError, CorruptError, TransientError

MAX_AGE = 5.0
SIZE = 64 << 20

_MARK_SECONDS = 3600.0
_MAX_LINES = 64
_MARK = 16
_CHECKSUM = 4
_NAME: Key = ("", "cached", 0)

_Rows = list[tuple[tuple[Any, ...], tuple[Any, ...], bytes]]
_FORM = packed_form(list[_Rows])


class CacheStorage(Protocol):
    """Stores values for a while. May forget anything at any time; never returns what was dropped.

    The methods are coroutines like those of a backend: they await only a `Suspension`. A storage that cannot be reached
    raises `TransientError`.
    """

    @property
    def url(self) -> str:
        """The storage for people to read; without passwords."""
        ...

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        ...

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        """Store values, for so many seconds at most."""
        ...

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Remove keys. When it returns, nobody finds them any more."""
        ...

    async def close(self) -> None:
        """Release everything. May be called again."""
        ...


_OVERHEAD = 200
"""How many bytes Python's objects for a value take besides it, about."""


class MemoryCacheStorage:
    """A cache in memory; the least recently used values are dropped first."""

    url = "memory:"

    def __init__(self, max_bytes: int) -> None:
        self._cache = MemoryCache(max_bytes)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = time.monotonic()
        found = (self._cache.get(key) or (None, now) for key in keys)
        return [value if now < until else None for value, until in found]

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        until = time.monotonic() + seconds
        for key, value in values.items():
            self._cache.put(key, (value, until), len(key) + len(value) + _OVERHEAD)

    async def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._cache.drop(key)

    async def close(self) -> None:
        self._cache.clear()


class CacheBackend(Wrapper):
    """Caches answers. See the module for the guarantees."""

    schemes: ClassVar[tuple[str, ...]] = ("cache",)
    takes_tenant = True
    takes_read_only = True

    def __init__(self, inner: Backend, storage: CacheStorage, max_age: float = MAX_AGE, name: bytes = b"") -> None:
        """`name` distinguishes the store from others that share the cache; it is stored in the store itself."""
        super().__init__(inner)
        self._name = name
        self._storage = storage
        self._max_age = max_age
        self._closed = False
        self._hits = self._misses = self._passed = self._troubles = 0
        self._distrusted: dict[bytes, float] = {}
        """Marks that could not be dropped, and until when they may be outdated."""
        self._lock = ForkSafeLock()

    @classmethod
    async def open(
        cls, url: str, *, tenant: str | None = None, read_only: bool = False, **options: Any
    ) -> CacheBackend:
        parts = parse_composition(url, "cache", ("max_age", "size"), options)
        max_age = parse_duration(url, "max_age", parts.get("max_age", MAX_AGE), 0, 86_400)
        cache_url = parts.get("in") or "memory:"
        if "size" in parts and not cache_url.startswith("memory:"):
            raise ConfigError(
                "size applies only to a cache in memory", where=cache_url.partition(":")[0] + ":…", hint="Leave it out"
            )
        size = parse_int(url, "size", parts.get("size", SIZE), 1)
        in_memory = cache_url in ("memory:", "memory://")
        if read_only:
            require_files(parts["store"])
        # The row with the name of the store is no tenant's, and has to be written once.
        (store,) = await open_parts(
            parts["store"], tenant=tenant if in_memory else None, read_only=read_only and in_memory
        )
        try:
            if in_memory:
                return cls(store, MemoryCacheStorage(size), max_age)
            return cls(store, await _open_shared_storage(cache_url), max_age, await _store_name(store))
        except BaseException:
            await store.close()
            raise

    @property
    def url(self) -> str:
        return compose("cache", store=self.inner.url, in_=self._storage.url, max_age=f"{self._max_age:g}")

    @property
    def capabilities(self) -> Capabilities:
        inner = self.inner.capabilities
        return replace(inner, fresh=inner.fresh and not self._max_age)

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        keys = [query for query in queries if query.space is KEYS]
        if not keys or len(keys) == len(queries):
            return await (self._read_inner(queries) if keys else self._read_cached(queries))
        # Keys after the rows that need them: the other way round, a row might have a newer one.
        rows = iter(await self._read_cached([query for query in queries if query.space is not KEYS]))
        found = iter(await self._read_inner(keys))
        return [next(found if query.space is KEYS else rows) for query in queries]

    async def _read_cached(self, queries: Sequence[Query]) -> list[list[Row]]:
        marks = self._marks(queries)
        if marks is None:
            self._passed += 1
            return await self._read_inner(queries)
        began = time.monotonic()
        name = self._key(queries)
        try:
            stored, *old = await self._storage.get_many([name, *marks])
            answer = None if None in old else _unpack(stored, b"".join(filter(None, old)), queries)
            if answer is not None:
                self._hits += 1
                return answer
            values = [mark or secrets.token_bytes(_MARK) for mark in old]
            new = {mark: value for mark, value, was in zip(marks, values, old, strict=True) if was is None}
            if new:
                await self._storage.put_many(new, _MARK_SECONDS)
        except TransientError:
            self._troubles += 1
            return await self._read_inner(queries)
        self._misses += 1
        rows = await self._read_inner(queries)
        left = self._max_age - (time.monotonic() - began)
        if left > 0:
            try:
                await self._storage.put_many({name: _pack(rows, b"".join(values))}, left)
            except TransientError:
                self._troubles += 1
        return rows

    async def apply(self, batch: Batch) -> int | None:
        if not batch or not self._max_age:
            return await self._apply_inner(batch)
        marks = sorted({self._mark(key_of(change)[:2]) for change in batch})
        try:
            refused = await self._apply_inner(batch)
        except BaseException:
            self._distrust(marks)  # the batch may still be applied, after the marks are dropped
            await self._drop(marks)
            raise
        # Applied or refused: cached answers may be out of date.
        await self._drop(marks)
        return refused

    async def changes(self, since: str | None = None) -> Changes:
        """As the store answers. What is read afterwards is not older than the answer: whoever follows the changes does
        not hear of them again."""
        found = await self.inner.changes(since)
        if self._max_age and (found.lines or since is None or not found.complete):
            known = since is not None and found.complete
            await self._drop(sorted(map(self._mark, found.lines)) if known else [self._mark(())])
        return found

    async def purge(self) -> list[str]:
        await self._drop([self._mark(())])
        remains = await self.inner.purge()
        shared = isinstance(self._storage, MemoryCacheStorage)
        return remains if shared else [*remains, f"the cache at {self._storage.url}, for {self._max_age:g} seconds"]

    async def status(self) -> dict[str, int | float | str]:
        counts = {"cache_hits": self._hits, "cache_misses": self._misses, "cache_passed": self._passed}
        return {**await self.inner.status(), **counts, "cache_troubles": self._troubles}

    async def close(self) -> None:
        self._closed = True
        try:
            await self.inner.close()  # waits for batches in progress, whose cached answers are then dropped
        finally:
            await self._storage.close()

    def _marks(self, queries: Sequence[Query]) -> list[bytes] | None:
        """Return the marks of the lines of some queries; None if they are not cached, such as those of many lines."""
        if not self._max_age or not queries:
            return None
        if self._closed:
            raise closed_error(self.url)
        lines: set[Key] = set()
        for query in queries:
            if isinstance(query, Get):
                lines.update(tuple(key[:2]) for key in query.keys)
            elif len(query.prefix) < 2:
                return None
            else:
                lines.add(tuple(query.prefix[:2]))
        if not lines or len(lines) > _MAX_LINES:
            return None
        marks = sorted({self._mark(part) for line in lines for part in (line, line[:1], ())})
        if self._distrusted:
            now = time.monotonic()
            with self._lock:
                self._distrusted = {mark: until for mark, until in self._distrusted.items() if until > now}
                if not self._distrusted.keys().isdisjoint(marks):
                    return None
        return marks

    async def _read_inner(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await (read_caller_rows(self.inner, queries) if self._name else self.inner.read(queries))

    async def _apply_inner(self, batch: Batch) -> int | None:
        if not self._name:
            return await self.inner.apply(batch)
        inner = await translate_batch(self.inner, batch)
        refused = await self.inner.apply(inner.changes)
        return None if refused is None else inner.positions[refused]

    def _key(self, queries: Sequence[Query]) -> bytes:
        """Return the key of the answer to some queries."""
        requests = [
            ("get", query.space.name, list(query.keys), query.required)
            if isinstance(query, Get)
            else (query.space.name, *query[1:])
            for query in queries
        ]
        return b"r" + self._digest(msgspec.msgpack.encode(requests))

    def _mark(self, part: Key) -> bytes:
        """Return the key of the mark of a line, of a tenant, or of everything."""
        return b"m%d" % len(part) + self._digest(encode_key(part))

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=24, key=self._name).digest()

    def _distrust(self, marks: list[bytes]) -> None:
        with self._lock:
            self._distrusted.update(dict.fromkeys(marks, time.monotonic() + self._max_age))

    async def _drop(self, marks: list[bytes]) -> None:
        try:
            await self._storage.drop(marks)
        except TransientError:
            self._troubles += 1
            self._distrust(marks)
        except BaseException:
            self._distrust(marks)
            raise


async def _open_shared_storage(url: str) -> CacheStorage:
    if url.partition(":")[0] not in ("redis", "rediss", "valkey", "valkeys"):
        raise ConfigError(
            "a cache must be in memory or in Redis", where=redacted_url(url), hint="Write in=memory: or in=redis://…"
        )
    from holdfast.backends.redis.cache_storage import RedisCacheStorage

    return await RedisCacheStorage.open(url)


async def _store_name(store: Backend) -> bytes:
    """Return the random name of a store. It is created once, since the same store may have another URL elsewhere."""
    while True:
        ((*rows,),) = await store.read([Get(JOURNAL, [_NAME])])
        if rows:
            return rows[0].body
        await store.apply([Create(JOURNAL, Row(_NAME, (0,), secrets.token_bytes(16)))])


def _pack(rows: list[list[Row]], marks: bytes) -> bytes:
    """Return an answer to cache, with the marks of its lines and a checksum."""
    data = marks + msgspec.msgpack.encode(rows, enc_hook=plain_text)
    return data + zlib.crc32(data).to_bytes(_CHECKSUM)


def _unpack(stored: bytes | None, marks: bytes, queries: Sequence[Query]) -> list[list[Row]] | None:
    """Return a cached answer, if it has these marks."""
    if stored is None or not stored.startswith(marks):
        return None
    data = memoryview(stored)[:-_CHECKSUM]
    if zlib.crc32(data).to_bytes(_CHECKSUM) != stored[-_CHECKSUM:]:
        return None  # not what was stored there
    try:
        found = ByteReader(stored[len(marks) : -_CHECKSUM], "a cached answer").packed(_FORM)
    except CorruptError:
        return None
    if len(found) != len(queries):
        return None
    return [[Row(*row) for row in rows] for rows in found]
