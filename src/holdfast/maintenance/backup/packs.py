"""Writing and reading packs: objects of many compressed blocks, each of many small pieces."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from holdfast.errors import CorruptError, UnsupportedError
from holdfast.maintenance.backup.format import (
    COPIES,
    HEADER,
    KINDS,
    NONCE,
    PACK,
    PACKS,
    ObjectCodec,
    PackInfo,
    PageBlocks,
    Slice,
    copy_name,
    digest_of,
    open_object,
    pack_name,
    seal_pack,
)
from holdfast.maintenance.backup.storage import RepositoryStorage

PAGES = "pages"
"""The stream of lists of lines. Its blocks are stored twice: in the pack, and beside it."""
_PAGE_BLOCKS = KINDS[f"{COPIES}/{PACKS}"].mark
_BLOCK_BYTES = 1 << 20
_SMALL_BYTES = 64 << 10
"""The bytes of blocks of several streams that are stored as one."""
PACK_BYTES = 8 << 20
"""The size of a pack, about."""
_CACHE_BYTES = 8 << 20


class _Block:
    """A block that is being filled; then where it is."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.data: bytearray = bytearray()
        self.pack = b""
        self.offset = 0
        self.length = 0
        self.digest = b""
        self.stored = b""
        """The block as it is in a pack that is not stored yet."""
        self.into: _Block | None = None
        """The block that it is a part of, from `base` on."""
        self.base = 0


class PendingSlice(NamedTuple):
    """A part of a block that may not be stored yet."""

    block: _Block
    start: int
    size: int

    def resolve(self) -> Slice:
        """Return the part. Its block must be closed; if the pack of it is not stored yet, the id of that is missing."""
        part = self.joined()
        block = part.block
        return Slice(block.pack, block.offset, block.length, block.digest, part.start, part.size)

    def joined(self) -> PendingSlice:
        """Return the part in the block that has it in the end."""
        into = self.block.into
        return self if into is None else PendingSlice(into, self.block.base + self.start, self.size)


class PackStorage(Protocol):
    """Stores packs."""

    where: str

    async def create(self, name: str, data: bytes) -> bool:
        """Store an object."""


class PackWriter:
    """Writes pieces of data into blocks, and blocks into packs."""

    def __init__(self, storage: PackStorage, codec: ObjectCodec, level: int) -> None:
        self._storage = storage
        self._codec = codec
        self._level = level
        self._open: dict[str, _Block] = {}
        self._begin()
        self.packs: list[PackInfo] = []
        """The packs that were stored."""

    def _begin(self) -> None:
        self._nonce = secrets.token_bytes(NONCE)
        self._closed: list[_Block] = []
        self._end = HEADER + NONCE

    async def add(self, stream: str, data: bytes) -> PendingSlice:
        """Add a piece. Those of one stream are together in blocks."""
        block = self._open.get(stream)
        if block is not None and len(block.data) + len(data) > _BLOCK_BYTES:
            await self._close(stream)
            block = None
        if block is None:
            block = self._open[stream] = _Block(stream)
        start = len(block.data)
        block.data += data
        return PendingSlice(block, start, len(data))

    async def read(self, part: PendingSlice, stored: BlockReader) -> bytes:
        """Return a piece that was added, which may not be stored yet."""
        part = part.joined()
        block = part.block
        if block.pack:
            return await stored.read(part.resolve())
        data = self._codec.decode_block(block.stored, self._storage.where) if block.stored else block.data
        return bytes(data[part.start : part.start + part.size])

    async def flush(self) -> None:
        """Store everything that was added."""
        await self.close()
        await self._store()

    async def close(self) -> None:
        """End all blocks. Small ones become one, without lists of lines."""
        first, *others = [stream for stream in self._open if stream != PAGES] or ("",)
        if sum(len(block.data) for block in self._open.values()) <= _SMALL_BYTES:
            for stream in others:
                block, target = self._open.pop(stream), self._open[first]
                block.into, block.base = target, len(target.data)
                target.data += block.data
                block.data.clear()
        for stream in list(self._open):
            await self._close(stream)

    async def _close(self, stream: str) -> None:
        block = self._open.pop(stream)
        stored = self._codec.encode_block(block.data, self._level)
        block.data.clear()
        block.offset, block.length, block.digest, block.stored = self._end, len(stored), digest_of(stored), stored
        self._end += len(stored)
        self._closed.append(block)
        if self._end >= PACK_BYTES:
            await self._store()

    async def _store(self) -> None:
        if not self._closed:
            return
        id, data = seal_pack([self._nonce, *(block.stored for block in self._closed)])
        await self._storage.create(pack_name(id), data)
        pages = {block.offset: block.stored for block in self._closed if block.stream == PAGES}
        if pages:
            name = copy_name(pack_name(id))
            await self._storage.create(name, self._codec.encode(_PAGE_BLOCKS, name, PageBlocks(pages)))
        for block in self._closed:
            block.pack, block.stored = id, b""
        self.packs.append(PackInfo(id, len(data)))
        self._begin()


def check_pack(name: str, data: bytes | None) -> None:
    """Raise `CorruptError` if a pack is not what was written under its name, or is missing."""
    if data is None:
        raise CorruptError("a pack of the repository is missing", where=name)
    if pack_name(pack_id(data, name)) != name:
        raise CorruptError("a pack is stored under the name of another pack", where=name)


def pack_id(data: bytes, where: str) -> bytes:
    """Return the id of a pack. `CorruptError` if it is not what was written."""
    return digest_of(open_object(PACK, data, where))


FindMoved: TypeAlias = Callable[[Slice], Awaitable[Sequence[Slice]]]


class BlockReader:
    """Reads parts of blocks, and checks them."""

    def __init__(self, storage: RepositoryStorage, codec: ObjectCodec, find_moved: FindMoved) -> None:
        """`find_moved` returns where a part of a pack that is gone may have been moved to."""
        self._storage = storage
        self._codec = codec
        self._find_moved = find_moved
        self._gone: set[bytes] = set()
        self._cache: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._size = 0
        self.bytes: int = 0
        """The number of bytes that were read."""

    async def read(self, part: Slice) -> bytes:
        """Return a part of a block. `CorruptError` if the block is not what was written."""
        found = await self._read(part)
        if found is None:
            where = f"{self._storage.where}/{pack_name(part.pack)}"
            raise CorruptError("a pack of the repository is missing", where=where, hint=_HINT)
        return found

    async def _read(self, part: Slice) -> bytes | None:
        """Return a part of a block, from where it may have been moved to, or from a copy; None if it is gone."""
        problem: CorruptError | None = None
        try:
            block = await self._block(part)
        except CorruptError as error:
            block, problem = None, error
        if block is not None:
            return block[part.start : part.start + part.size]
        for moved in await self._find_moved(part):
            found = await self._read(moved)
            if found is not None:
                self._gone.add(part.pack)
                return found
        block = await self._copied_block(part)
        if block is not None:
            return block[part.start : part.start + part.size]
        if problem is not None:
            raise problem
        return None

    async def _copied_block(self, part: Slice) -> bytes | None:
        """Return the copy of a block that has pages; None if there is none that can be read."""
        name = copy_name(pack_name(part.pack))
        where = f"{self._storage.where}/{name}"
        with suppress(CorruptError, UnsupportedError):
            copied = await self._storage.read(
                name, lambda data: self._codec.decode(_PAGE_BLOCKS, name, data, PageBlocks, where)
            )
            data = None if copied is None else copied.blocks.get(part.offset)
            if data is not None and digest_of(data) == part.digest:
                return self._codec.decode_block(data, where)
        return None

    async def _block(self, part: Slice) -> bytes | None:
        """Return an unpacked block; None if its pack is gone."""
        key = part.pack, part.offset
        block = self._cache.get(key)
        if block is not None:
            self._cache.move_to_end(key)
            return block
        name = pack_name(part.pack)
        where = f"{self._storage.where}/{name}"
        data = None if part.pack in self._gone else await self._storage.get(name, part.offset, part.length)
        if data is None:
            return None
        self.bytes += len(data)
        if digest_of(data) != part.digest:
            raise CorruptError("a pack of the repository was damaged", where=where, hint=_HINT)
        block = self._cache[key] = self._codec.decode_block(data, where)
        self._size += len(block)
        while self._size > _CACHE_BYTES and len(self._cache) > 1:
            self._size -= len(self._cache.popitem(last=False)[1])
        return block


_HINT = "`holdfast backup verify` names the threads that need it"
