"""Answers that were read a moment ago, without asking the store: `cache:?store=postgresql://…&max_age=5`.

What is kept are whole answers: what one `read` found, as of one moment. They are kept for `max_age` seconds at most
(5 by default), in this process's memory, or in a Redis that several processes share.

**How old an answer may be.** It is never older than `max_age` seconds, and never older than the last batch that any
process wrote through the same room: every line has a mark there, made by chance; answers carry the marks of the lines
they are about, and whoever writes a line drops its mark before the write is acknowledged. A slow reader that stores
what it read before a write stores it under a mark that is gone. A batch that was refused drops the marks too, so what
is read next is what is in the store. Processes that write past the room, or have one each in memory, are seen after
`max_age` seconds.

Where a room cannot be reached, the store is asked. A mark that could not be dropped is not trusted in this process, and
counts in others until `max_age` is over.

Several stores may share a room in Redis: each is told from the others by a name that is kept in the store itself.

Options: `in` (`memory:`, or a URL of Redis), `max_age` (seconds; 0 keeps nothing, and is then as fresh as the store),
`size` (bytes of memory, 64 MiB).
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.backends.interface import Backend, Batch, Capabilities, Change, Create, Delete, Expect, Get, Query, Row
from holdfast.backends.key_encoding import encode_key
from holdfast.backends.runtime.fork_safety import renew_after_fork
from holdfast.backends.tables import JOURNAL, Key
from holdfast.backends.urls import seconds, whole
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.cache_storage import CacheStorage, MemoryCacheStorage
from holdfast.backends.wrappers.composite_urls import compose, open_parts, parts_of, shown
from holdfast.backends.wrappers.private_rows import move_theirs, read_theirs
from holdfast.errors import ConfigError, TransientError, UnavailableError

MAX_AGE = 5.0
SIZE = 64 << 20

_MARK_SECONDS = 3600.0
_MOST_LINES = 64
_MARK = 16
_NAME: Key = ("", "cached", 0)

_Rows = list[tuple[tuple[Any, ...], tuple[Any, ...], bytes]]
_decoder = msgspec.msgpack.Decoder(list[_Rows])


class CacheBackend(Wrapper):
    """Keeps answers in a room. See the module for what is promised."""

    schemes = ("cache",)
    takes_tenant = True

    def __init__(self, inner: Backend, room: CacheStorage, max_age: float = MAX_AGE, name: bytes = b"") -> None:
        """`name` tells the store from others that share the room; it is kept in the store itself."""
        super().__init__(inner)
        self._name = name
        self._room = room
        self._max_age = max_age
        self._closed = False
        self._hits = self._misses = self._passed = self._troubles = 0
        self._distrusted: dict[bytes, float] = {}
        """Marks that could not be dropped, and until when they may stand for something that is gone."""
        self.renew_locks()
        renew_after_fork(self)

    def renew_locks(self) -> None:
        """For a forked child."""
        self._lock = threading.Lock()

    @classmethod
    async def open(cls, url: str, *, tenant: str | None = None, **options: Any) -> CacheBackend:
        """Open a store, and the room for what is read from it."""
        found = parts_of(url, "cache", ("max_age", "size"), options)
        max_age = seconds(url, "max_age", found.get("max_age", MAX_AGE), 0, 86_400)
        place = found.get("in") or "memory:"
        if "size" in found and not place.startswith("memory:"):
            raise ConfigError(
                "size is for a cache in memory", where=place.partition(":")[0] + ":…", hint="Leave it out"
            )
        size = whole(url, "size", found.get("size", SIZE), 1)
        alone = place in ("memory:", "memory://")
        # The name that tells a store from others in a shared room is no tenant's row.
        (store,) = await open_parts(found["store"], tenant=tenant if alone else None)
        try:
            if alone:
                return cls(store, MemoryCacheStorage(size), max_age)
            return cls(store, await _shared_room(place), max_age, await _name_of(store))
        except BaseException:
            await store.close()
            raise

    @property
    def url(self) -> str:
        return compose("cache", store=self.inner.url, in_=self._room.url, max_age=f"{self._max_age:g}")

    @property
    def capabilities(self) -> Capabilities:
        inner = self.inner.capabilities
        return inner._replace(fresh=inner.fresh and not self._max_age)

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        marks = self._marks(queries)
        if marks is None:
            self._passed += 1
            return await self._ask(queries)
        began = time.monotonic()
        name = self._key(queries)
        try:
            kept, *found = await self._room.get_many([name, *marks])
            answer = None if None in found else _unpack(kept, b"".join(filter(None, found)), queries)
            if answer is not None:
                self._hits += 1
                return answer
            values = [mark or secrets.token_bytes(_MARK) for mark in found]
            new = {mark: value for mark, value, old in zip(marks, values, found, strict=True) if old is None}
            if new:
                await self._room.put_many(new, _MARK_SECONDS)
        except TransientError:
            self._troubles += 1
            return await self._ask(queries)
        self._misses += 1
        rows = await self._ask(queries)
        left = self._max_age - (time.monotonic() - began)
        if left > 0:
            try:
                await self._room.put_many({name: _pack(rows, b"".join(values))}, left)
            except TransientError:
                self._troubles += 1
        return rows

    async def apply(self, batch: Batch) -> int | None:
        if not batch or not self._max_age:
            return await self._tell(batch)
        marks = sorted({self._mark(_touched(change)) for change in batch})
        try:
            refused = await self._tell(batch)
        except BaseException:
            self._distrust(marks)  # it may yet be made, after the marks are gone
            await self._drop(marks)
            raise
        # Made or refused: what was kept may be out of date.
        await self._drop(marks)
        return refused

    async def status(self) -> dict[str, int | float | str]:
        counts = {"cache_hits": self._hits, "cache_misses": self._misses, "cache_passed": self._passed}
        return {**await self.inner.status(), **counts, "cache_troubles": self._troubles}

    async def close(self) -> None:
        self._closed = True
        try:
            await self._room.close()
        finally:
            await self.inner.close()

    def _marks(self, queries: Sequence[Query]) -> list[bytes] | None:
        """The marks of all that the queries are about; None where they are not about a few lines."""
        if not self._max_age or not queries:
            return None
        if self._closed:
            raise UnavailableError("the store is closed", where=self.url, hint="Open it again", code="closed")
        lines: set[Key] = set()
        for query in queries:
            if isinstance(query, Get):
                lines.update(tuple(key[:2]) for key in query.keys)
            elif len(query.prefix) < 2:
                return None
            else:
                lines.add(tuple(query.prefix[:2]))
        if not lines or len(lines) > _MOST_LINES:
            return None
        marks = sorted({self._mark(part) for line in lines for part in (line, line[:1], ())})
        if self._distrusted:
            now = time.monotonic()
            with self._lock:
                self._distrusted = {mark: until for mark, until in self._distrusted.items() if until > now}
                if not self._distrusted.keys().isdisjoint(marks):
                    return None
        return marks

    async def _ask(self, queries: Sequence[Query]) -> list[list[Row]]:
        return await (read_theirs(self.inner, queries) if self._name else self.inner.read(queries))

    async def _tell(self, batch: Batch) -> int | None:
        if not self._name:
            return await self.inner.apply(batch)
        moved = await move_theirs(self.inner, batch)
        refused = await self.inner.apply(moved.changes)
        return None if refused is None else moved.places[refused]

    def _key(self, queries: Sequence[Query]) -> bytes:
        """Under which the answer to some queries is kept."""
        asked = [
            ("get", query.space.name, list(query.keys)) if isinstance(query, Get) else (query.space.name, *query[1:])
            for query in queries
        ]
        return b"r" + self._digest(msgspec.msgpack.encode(asked))

    def _mark(self, part: Key) -> bytes:
        """The name of the mark of a line, of a tenant, or of everything."""
        return b"m%d" % len(part) + self._digest(encode_key(part))

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=24, key=self._name).digest()

    def _distrust(self, marks: list[bytes]) -> None:
        with self._lock:
            self._distrusted.update(dict.fromkeys(marks, time.monotonic() + self._max_age))

    async def _drop(self, marks: list[bytes]) -> None:
        try:
            await self._room.drop(marks)
        except TransientError:
            self._troubles += 1
            self._distrust(marks)
        except BaseException:
            self._distrust(marks)
            raise


async def _shared_room(url: str) -> CacheStorage:
    if url.partition(":")[0] not in ("redis", "rediss", "valkey", "valkeys"):
        raise ConfigError("a cache is in memory or in Redis", where=shown(url), hint="Write in=memory: or in=redis://…")
    try:
        from holdfast.backends.redis.cache_storage import RedisCacheStorage
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"a cache in Redis needs {error.name}, which is not installed",
            hint="Install it with: pip install 'holdfast[redis]'",
        ) from error
    return await RedisCacheStorage.open(url)


async def _name_of(store: Backend) -> bytes:
    """What tells a store from all others, whatever its URL is on the machine at hand. It is given its name once."""
    while True:
        ((*rows,),) = await store.read([Get(JOURNAL, [_NAME])])
        if rows:
            return rows[0].body
        await store.apply([Create(JOURNAL, Row(_NAME, (0,), secrets.token_bytes(16)))])


def _touched(change: Change) -> Key:
    """The line that a change is about; or what it is about, if that is more than a line."""
    if isinstance(change, Delete):
        return tuple(change.prefix[:2])
    if isinstance(change, Expect):
        return tuple(change.key[:2])
    return tuple(change.row.key[:2])


def _pack(rows: list[list[Row]], marks: bytes) -> bytes:
    return marks + msgspec.msgpack.encode(rows)


def _unpack(kept: bytes | None, marks: bytes, queries: Sequence[Query]) -> list[list[Row]] | None:
    """The answer that is kept, if it is of these marks."""
    if kept is None or not kept.startswith(marks):
        return None
    try:
        found = _decoder.decode(memoryview(kept)[len(marks) :])
    except msgspec.DecodeError:
        return None  # not what was put there: as good as nothing
    if len(found) != len(queries):
        return None
    return [[Row(*row) for row in rows] for rows in found]
