"""Content that is streamed: access is checked with every read, and only a few megabytes are in memory."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import DeniedError

MB = 1 << 20
SIZES = {"in the record": 3_000, "in the line": 100_000, "in pieces": 3 * MB}

READS: dict[str, Callable[[Any], Any]] = {
    "read": lambda file: file.read(10),
    "read all": lambda file: file.read(),
    "read1": lambda file: file.read1(10),
    "readinto": lambda file: file.readinto(bytearray(10)),
    "readinto1": lambda file: file.readinto1(bytearray(10)),
    "readline": lambda file: file.readline(),
    "readlines": lambda file: file.readlines(10),
    "next": lambda file: next(file),
    "peek": lambda file: file.peek(10),
}


def lines_of(size: int) -> bytes:
    return b"a line of text\n" * (size // 15)


@contextmanager
def shared(folder: Path, size: int) -> Iterator[tuple[Store, Any, str, Any]]:
    """A store, the store as a reader who may read an artifact of the writer's, the artifact, and the grant."""
    with holdfast.open(folder / "a.db") as store:
        writer = store.as_identity(agent="writer")
        made = writer.artifacts.register(lines_of(size))
        grant = store.access.grant("agent:reader", "read", "agent:writer", keys="artifacts/*")
        yield store, store.as_identity(agent="reader"), made.id, grant


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_no_read_works_after_the_grant_is_revoked(size: int, tmp_path: Path, subtests: pytest.Subtests) -> None:
    with shared(tmp_path, size) as (store, reader, id, grant):
        files = {name: reader.artifacts.open(id) for name in READS}
        for name, read in READS.items():
            with subtests.test(f"{name}, while granted"):
                files[name].read(15)
                if name != "read all":
                    assert read(files[name])
        ended = reader.artifacts.open(id)
        assert ended.read() == lines_of(size)
        store.access.revoke(grant.id)
        for name, read in READS.items():
            with subtests.test(name), pytest.raises(DeniedError):
                read(files[name])
        with pytest.raises(DeniedError):
            ended.read(1)
        for file in (*files.values(), ended):
            file.close()
        with store.artifacts.open(id) as file:
            assert file.read() == lines_of(size)


def test_no_piece_comes_after_the_grant_is_revoked_with_asyncio(tmp_path: Path) -> None:
    async def work() -> None:
        async with await holdfast.aopen(tmp_path / "a.db") as store:
            made = await store.as_identity(agent="writer").artifacts.register(lines_of(3 * MB))
            grant = await store.access.grant("agent:reader", "read", "agent:writer", keys="artifacts/*")
            reader = store.as_identity(agent="reader")
            iterated, read = [await reader.artifacts.open(made.id) for _ in range(2)]
            assert await anext(iterated)
            await store.access.revoke(grant.id)
            with pytest.raises(DeniedError):
                await anext(iterated)
            with pytest.raises(DeniedError):
                await read.read()

    asyncio.run(work())


class Generated:
    """A file whose bytes are made as they are read."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, size: int, /) -> bytes:
        count = min(size, self.left)
        self.left -= count
        return self.left.to_bytes(8) * (count // 8) + bytes(count % 8)


@contextmanager
def peak() -> Iterator[list[int]]:
    """Measure how much memory a block takes, without the garbage collector: it may not run for long."""
    measured: list[int] = []
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield measured
        measured.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.nightly
def test_content_takes_a_few_megabytes_of_memory(tmp_path: Path, subtests: pytest.Subtests) -> None:
    size = 24 * MB
    with holdfast.open(tmp_path / "a.db") as store:
        with peak() as whole:
            assert len(bytes(size)) == size
        assert whole[0] >= size, "this is not how memory is measured"
        with subtests.test("register"):
            with peak() as taken:
                made = store.artifacts.register(Generated(size))
            assert taken[0] < 12 * MB

        def read() -> None:
            with store.artifacts.open(made.id) as file:
                while file.read(65536):
                    pass

        ways: dict[str, Callable[[], Any]] = {
            "open": read,
            "save": lambda: store.artifacts.save(made.id, tmp_path / "copy"),
            "verify": lambda: store.artifacts.verify(made.id),
        }
        for name, way in ways.items():
            with subtests.test(name):
                with peak() as taken:
                    way()
                assert taken[0] < 12 * MB
