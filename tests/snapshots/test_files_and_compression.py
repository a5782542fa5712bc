"""Snapshots in memory and in file objects, and how their content is compressed."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

import holdfast
from holdfast import snapshots
from holdfast.agents import PersistentAgent
from holdfast.agents.snapshots import container
from holdfast.agents.snapshots.header import COMPRESSIONS, PayloadInfo, encode
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import (
    ConfigError,
    DeniedError,
    HoldfastError,
    SnapshotCorruptError,
    SnapshotError,
    SnapshotInvalidError,
    SnapshotTooLargeError,
    SnapshotUnsupportedError,
    UnavailableError,
)
from tests.snapshots.kit import header_of

LONG = HumanMessage("a long message, which is compressed. " * 200)


def packed(compression: Any = "gzip", message: Any = LONG) -> bytes:
    buffer = io.BytesIO()
    info = snapshots.snapshot(message, buffer, compression=compression)
    assert (info.size, info.compression) == (len(buffer.getvalue()), compression)
    return buffer.getvalue()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_snapshot_says_how_it_is_compressed(compression: Any, tmp_path: Path) -> None:
    data = packed(compression)
    assert snapshots.restore(data) == snapshots.restore(bytearray(data)) == snapshots.restore(memoryview(data)) == LONG
    found = snapshots.verify(data)
    assert (found.compression, found.size, found.source) == (compression, len(data), "file object")
    assert snapshots.info(data) == found
    (tmp_path / "there.hfsnap").write_bytes(data)
    assert snapshots.restore(tmp_path / "there.hfsnap") == LONG
    snapshots.snapshot(LONG, tmp_path / "here.hfsnap", compression=compression)
    assert [each.info and each.info.compression for each in snapshots.list(tmp_path)] == [compression] * 2
    assert (len(data) > 7000) == (compression == "none")


def test_every_flipped_bit_is_detected() -> None:
    for compression in ("zstd", "none"):
        data = bytearray(packed(compression, HumanMessage("hello")))
        for index in range(len(data)):
            data[index] ^= 1 << index % 8
            with pytest.raises((SnapshotCorruptError, SnapshotUnsupportedError)):
                snapshots.restore(bytes(data))
            data[index] ^= 1 << index % 8
        assert snapshots.restore(bytes(data)).content == "hello"


def _sealed(content: bytes, member: bytes, compression: str, told: int | None = None) -> bytes:
    """A file that is sealed as it should be, with a member that is not what it says."""
    size = len(content) if told is None else told
    payload = PayloadInfo(size, len(member), hashlib.sha256(content).hexdigest(), compression)
    body = container._store(encode(header_of(payload))) + member
    return body + container._seal(body)


def test_forged_content_is_refused_by_its_type() -> None:
    content = json.dumps({"kind": "langchain", "content": 1}).encode()
    good = container._pack(content, "zstd", 6)
    for data, kind in (
        (_sealed(content, good[:-3], "zstd"), SnapshotCorruptError),
        (_sealed(content, good + b"x", "zstd"), SnapshotCorruptError),
        (_sealed(content, b"no frame", "zstd"), SnapshotCorruptError),
        (_sealed(content, good, "none"), SnapshotCorruptError),
        (_sealed(content, good, "gzip"), SnapshotCorruptError),
        (_sealed(content, content, "zstd"), SnapshotCorruptError),
        (_sealed(content, good, "zstd", told=len(content) - 1), SnapshotCorruptError),
        (_sealed(content, good, "zstd", told=len(content) + 1), SnapshotCorruptError),
        (_sealed(content, good, "brotli"), SnapshotUnsupportedError),
    ):
        with pytest.raises(SnapshotError) as refused:
            snapshots.verify(data)
        assert type(refused.value) is kind, refused.value
    with pytest.raises(SnapshotUnsupportedError, match="brotli"):
        snapshots.info(_sealed(content, good, "brotli"))
    bomb = container._pack(bytes(1 << 25), "zstd", 6)
    with pytest.raises(SnapshotTooLargeError):
        snapshots.verify(_sealed(content, bomb, "zstd", told=1 << 25))
    with pytest.raises(SnapshotTooLargeError):
        snapshots.restore(packed("zstd"), limit=100)


def test_content_that_is_compressed_much_is_stored_as_it_is() -> None:
    data = container.build(bytes(1 << 25), header_of, "zstd")
    assert container.read_header(data, "here")[0].content.compression == "none"
    assert container.open_file(data, 1 << 26, "here").content == bytes(1 << 25)


class _Raw(io.RawIOBase):
    """A pipe: it cannot seek, and takes and gives a little at a time."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = bytes(data[:10])
        self.data += part
        return len(part)

    def readinto(self, buffer: Any) -> int:
        part = self.data[: min(10, len(buffer))]
        del self.data[: len(part)]
        buffer[: len(part)] = part
        return len(part)


def test_file_objects_of_every_kind(tmp_path: Path) -> None:
    pipe = _Raw()
    snapshots.snapshot(LONG, pipe)  # type: ignore[arg-type]
    assert snapshots.restore(_Raw(bytes(pipe.data))) == LONG  # type: ignore[arg-type]
    with tempfile.TemporaryFile() as file:
        file.write(b"before")
        snapshots.snapshot(LONG, file)
        file.seek(6)
        assert snapshots.info(file) == snapshots.verify(file)
        assert (snapshots.restore(file), file.tell()) == (LONG, 6)
    with (tmp_path / "any-name").open("wb") as file:
        assert snapshots.snapshot(LONG, file).source == str(tmp_path / "any-name")
    with (tmp_path / "any-name").open("rb") as file:
        assert snapshots.restore(file) == LONG


def test_file_objects_that_do_not_fit(tmp_path: Path) -> None:
    closed = io.BytesIO()
    closed.close()
    (tmp_path / "file").write_bytes(packed())
    with (tmp_path / "file").open("rb") as readable, (tmp_path / "file").open(encoding="latin-1") as text:
        calls: tuple[tuple[Any, type[HoldfastError]], ...] = (
            (lambda: snapshots.snapshot(LONG, io.StringIO()), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.snapshot(LONG, closed), SnapshotInvalidError),
            (lambda: snapshots.snapshot(LONG, readable), UnavailableError),
            (lambda: snapshots.restore(text), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.restore(closed), SnapshotInvalidError),
            (lambda: snapshots.restore(b""), SnapshotCorruptError),
            (lambda: snapshots.restore(b"hello"), SnapshotCorruptError),
            (lambda: snapshots.restore(io.BytesIO(packed()[:-1])), SnapshotCorruptError),
            (lambda: snapshots.restore(packed(), region="x"), ConfigError),
            (lambda: snapshots.snapshot(LONG, 5), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.snapshot(LONG, io.BytesIO(), compression="lzma"), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.snapshot(LONG, bytearray(9)), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.delete(io.BytesIO()), SnapshotInvalidError),  # type: ignore[arg-type]
            (lambda: snapshots.exists(io.BytesIO()), SnapshotInvalidError),  # type: ignore[arg-type]
        )
        for call, kind in calls:
            with pytest.raises(kind):
                call()


class Sailor(PersistentAgent, name="tests: snapshot in memory"):
    trips: int = 0


def test_agents_of_holdfast_encrypted_stores_and_asyncio(tmp_path: Path) -> None:
    encryption = Encryption(LocalKeys(generate_key()))
    with holdfast.open(tmp_path / "s.db", encryption=encryption) as store, holdfast.open("memory://") as other:
        sailor = store.agents.create(Sailor, "s")
        sailor.trips = 3
        sailor.save()
        buffer = io.BytesIO()
        snapshots.snapshot(sailor, buffer, compression="zstd")
        assert b"trips" not in buffer.getvalue()
        assert snapshots.restore(buffer.getvalue(), store=store, agent_id="copy").trips == 3
        with pytest.raises(DeniedError):
            snapshots.restore(buffer.getvalue(), store=other)

    async def work() -> None:
        target = io.BytesIO()
        await snapshots.asnapshot(LONG, target, compression="none")
        assert await snapshots.arestore(target.getvalue()) == LONG

    asyncio.run(work())
