"""The bytes of a snapshot: every changed, missing or added one is detected."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from holdfast import snapshots
from holdfast.agents.snapshots import container, strict_json
from holdfast.agents.snapshots.header import PayloadInfo, SnapshotHeader, decode, encode
from holdfast.errors import (
    CorruptError,
    HoldfastError,
    SnapshotCorruptError,
    SnapshotInvalidError,
    SnapshotTooLargeError,
    SnapshotUnsupportedError,
)
from tests.snapshots.kit import forged, header_of, lines_of
from tests.support.cases import case

DOCUMENT = {
    "kind": "langchain",
    "content": {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain", "schema", "messages", "HumanMessage"],
        "kwargs": {"content": "hello", "type": "human"},
    },
}
LIMIT = container.LIMIT


def opened(data: bytes, limit: int = LIMIT) -> container.OpenedSnapshot:
    return container.open_file(data, limit, "here")


def test_what_was_written_is_read() -> None:
    data = forged(DOCUMENT)
    found = opened(data)
    assert json.loads(found.content) == DOCUMENT
    assert container.size_of(found.header) == len(data)
    assert container.read_header(data, "here")[0] == found.header


@given(st.binary(max_size=3000))
def test_any_content_comes_back(content: bytes) -> None:
    data = container.build(content, header_of)
    assert opened(data).content == content
    assert gzip.decompress(data).count(b"seal") >= 1


def test_every_flipped_bit_of_a_file_is_detected() -> None:
    data = bytearray(forged(DOCUMENT))
    for index in range(len(data)):
        for bit in range(8):
            data[index] ^= 1 << bit
            with pytest.raises((SnapshotCorruptError, SnapshotUnsupportedError)):
                opened(bytes(data))
            data[index] ^= 1 << bit
    opened(bytes(data))


def test_every_other_byte_in_the_place_of_the_right_one_is_detected() -> None:
    data = bytearray(forged(DOCUMENT))
    for index in range(len(data)):
        right = data[index]
        for wrong in (0, 1, 0x20, 0x7F, 0xFF, right ^ 0x55):
            if wrong == right:
                continue
            data[index] = wrong
            with pytest.raises((SnapshotCorruptError, SnapshotUnsupportedError)):
                opened(bytes(data))
        data[index] = right


def test_a_file_that_is_cut_off_or_goes_on_is_detected() -> None:
    data = forged(DOCUMENT)
    for length in range(len(data)):
        with pytest.raises(SnapshotCorruptError):
            opened(data[:length])
    for more in (b"\0", b"\n", data, gzip.compress(b"x")):
        with pytest.raises(SnapshotCorruptError):
            opened(data + more)


def test_flips_in_a_real_file_are_detected_by_verify_and_restore(tmp_path: Path) -> None:
    path = tmp_path / "messages.hfsnap"
    snapshots.snapshot([HumanMessage("hello " * 50)], path)
    data = bytearray(path.read_bytes())
    for index in range(0, len(data), 7):
        data[index] ^= 0x10
        path.write_bytes(data)
        for look in (snapshots.verify, snapshots.restore):
            with pytest.raises(CorruptError):
                look(path)
        data[index] ^= 0x10
    path.write_bytes(data)
    assert snapshots.restore(path) == [HumanMessage("hello " * 50)]


def test_two_files_cannot_be_spliced() -> None:
    one, two = forged(DOCUMENT), forged({"kind": "langchain", "content": []})
    _, end = container.read_header(one, "here")
    with pytest.raises(SnapshotCorruptError, match="seal"):
        opened(one[:end] + two[end:])
    _, second = container.read_header(two, "here")
    with pytest.raises(SnapshotCorruptError, match="seal"):
        opened(two[:second] + one[end:])


def test_a_person_opens_it_with_zcat(tmp_path: Path) -> None:
    path = tmp_path / "messages.hfsnap"
    info = snapshots.snapshot([HumanMessage("grüße")], path, description="a greeting")
    shown = subprocess.run(["zcat"], input=path.read_bytes(), capture_output=True, check=True).stdout
    header, content, seal = map(json.loads, shown.splitlines())
    assert header["id"] == info.id
    assert header["description"] == "a greeting"
    assert "grüße" in shown.decode()
    assert content["kind"] == "langchain"
    assert seal.keys() == {"seal"}
    line = shown.splitlines(keepends=True)[1]
    assert header["content"] == {
        "bytes": len(line),
        "packed": info.size - len(container._store(shown.splitlines(keepends=True)[0])) - len(container._seal(b"")),
        "sha256": hashlib.sha256(line).hexdigest(),
    }


def test_the_golden_file_is_read_and_written_alike() -> None:
    path = Path(__file__).parents[1] / "golden" / "snapshot-v1.hfsnap"
    info = snapshots.verify(path)
    assert (info.id, info.format, info.kind) == ("0123456789abcdef" * 2, 1, "langchain")
    assert snapshots.restore(path) == HumanMessage("hello")
    data = path.read_bytes()
    found = opened(data)
    # Header and seal have one form; how the content is packed may differ from one zlib to another.
    assert container._store(encode(found.header)) == data[: container.read_header(data, "here")[1]]
    assert json.loads(found.content) == DOCUMENT
    assert lines_of(path)[1] == DOCUMENT


# Bombs ------------------------------------------------------------------------------------------------------------


def bomb(size: int, told: int | None = None) -> bytes:
    """A file whose content is nothing but zeros, and whose header tells of so many."""
    content = bytes(size)
    packed = container._deflate(content, 9)
    member = container._START + packed + container._END.pack(zlib.crc32(content), size)
    about = PayloadInfo(size if told is None else told, len(member), hashlib.sha256(content).hexdigest())
    body = container._store(encode(header_of(about))) + member
    return body + container._seal(body)


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(SnapshotTooLargeError, match="unpack to"):
        opened(bomb(64 << 20))
    with pytest.raises(SnapshotTooLargeError, match="limit"):
        opened(bomb(1 << 20), limit=1000)


def test_a_bomb_whose_header_lies_is_refused_while_it_is_unpacked() -> None:
    with pytest.raises(SnapshotCorruptError, match="larger than the header says"):
        opened(bomb(64 << 20, told=100))
    with pytest.raises(SnapshotCorruptError, match="smaller than the header says"):
        opened(bomb(1000, told=1001))


def test_what_is_as_monotonous_as_a_bomb_is_written_so_that_it_can_be_read() -> None:
    content = b"a" * (17 << 20)
    data = container.build(content, header_of)
    assert len(data) > len(content)
    assert opened(data).content == content


def test_a_file_larger_than_the_limit_allows_is_not_read_on(tmp_path: Path) -> None:
    path = tmp_path / "large.hfsnap"
    path.write_bytes(forged(DOCUMENT) + bytes(1 << 20))
    with pytest.raises(SnapshotTooLargeError, match="larger than"):
        snapshots.verify(path, limit=1000)
    with pytest.raises(SnapshotInvalidError, match="limit"):
        snapshots.verify(path, limit=-1)


# Headers and documents that somebody made up --------------------------------------------------------------------


def sealed(header: bytes, content: bytes = b"{}", packed: bytes | None = None) -> bytes:
    member = container._START + container._deflate(content, 6) if packed is None else packed
    member += container._END.pack(zlib.crc32(content), len(content)) if packed is None else b""
    body = container._store(header) + member
    return body + container._seal(body)


def plain() -> dict[str, Any]:
    content = b"{}"
    member = container._START + container._deflate(content, 6) + container._END.pack(zlib.crc32(content), 2)
    header: dict[str, Any] = json.loads(
        encode(header_of(PayloadInfo(2, len(member), hashlib.sha256(content).hexdigest())))
    )
    return header


def line(header: Any) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def test_a_header_in_order_is_taken() -> None:
    assert opened(sealed(line(plain()))).content == b"{}"


WRONG_TYPES: tuple[Any, ...] = (None, 1.5, True, [], {})
WRONG: list[tuple[str, Any]] = [
    (name, value)
    for name in SnapshotHeader.__struct_fields__
    for value in (*WRONG_TYPES, "x" if name in ("version", "content", "versions", "tools") else -1)
    if not (name in ("secrets", "classes", "tools", "middleware") and value == [])
    and not (name == "versions" and value == {})
]


def test_a_header_with_a_wrong_type_is_refused(subtests: pytest.Subtests) -> None:
    for name, value in WRONG:
        with case(subtests, name, value), pytest.raises((SnapshotCorruptError, SnapshotUnsupportedError)):
            opened(sealed(line({**plain(), name: value})))


LIES: list[tuple[Any, ...]] = [
    ({"format": "other"}, "not a Holdfast snapshot"),
    ({"version": 0}, "format 0"),
    ({"version": 2}, "newer Holdfast"),
    ({"version": 2, "more": 1}, "newer Holdfast"),
    ({"more": 1}, "header is invalid"),
    ({"kind": "code"}, "header is invalid"),
    ({"id": "../../etc"}, "invalid id or digest"),
    ({"time": "2026-01-02T03:04:05"}, "is not a time"),
    ({"time": "yesterday"}, "is not a time"),
    ({"time": "2026-01-02T03:04:05+01:00"}, "is not a time"),
    ({"content": {"bytes": -1, "packed": 1, "sha256": "0" * 64}}, "invalid size"),
    ({"content": {"bytes": 1, "packed": -1, "sha256": "0" * 64}}, "invalid size"),
    ({"content": {"bytes": 2, "packed": 9, "sha256": "0" * 64}}, "size of the packed content"),
    ({"content": {**plain()["content"], "sha256": "0" * 64}}, "digest of the content"),
    ({"content": {**plain()["content"], "sha256": "x"}}, "invalid id or digest"),
    ({"content": {**plain()["content"], "bytes": 3}}, "smaller"),
    ({"content": {**plain()["content"], "bytes": 1}}, "larger"),
    ({"content": {**plain()["content"], "bytes": 1 << 62}}, "limit"),
]


def test_a_header_that_lies_is_refused(subtests: pytest.Subtests) -> None:
    for changes, why in LIES:
        with case(subtests, changes, why), pytest.raises(HoldfastError, match=why):
            opened(sealed(line({**plain(), **changes})))


NO_HEADERS: list[tuple[Any, ...]] = [
    (b"\n", "invalid JSON"),
    (b"{\n", "invalid JSON"),
    (b"[]\n", "header is invalid"),
    (b'{"id":"\xff"}\n', "invalid JSON"),
    (line(plain()).replace(b'"name":""', b'"name":"a","name":""'), "a form that Holdfast never writes"),
    (line(plain()).replace(b'"name":""', b'"name": ""'), "a form that Holdfast never writes"),
    (line(plain())[:-1], "damaged"),
    (b"[" * 60000 + b"\n", "invalid JSON|header is invalid"),
]


def test_a_header_that_is_no_header_is_refused(subtests: pytest.Subtests) -> None:
    for header, why in NO_HEADERS:
        with case(subtests, header, why), pytest.raises(SnapshotCorruptError, match=why):
            opened(sealed(header))


WRONGLY_PACKED: list[tuple[Any, ...]] = [
    (b"", "packed in a form"),
    (container._START, "truncated"),
    (container._START + b"\x07", "cannot be unpacked"),
    (container._START + container._deflate(b"{}", 6), "differs from what was packed"),
    (container._START + container._deflate(b"{}", 6) + bytes(8), "differs from what was packed"),
    (gzip.compress(b"{}", mtime=1), "packed in a form"),
]


def test_content_that_is_not_packed_as_it_should_be_is_refused(subtests: pytest.Subtests) -> None:
    for packed, why in WRONGLY_PACKED:
        with case(subtests, packed, why):
            header = plain()
            header["content"]["packed"] = len(packed)
            with pytest.raises(SnapshotCorruptError, match=why):
                opened(sealed(line(header), packed=packed))


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data: bytes) -> None:
    for given_bytes in (data, container._START + data, container._START + b"\x01" + data):
        with pytest.raises(SnapshotCorruptError):
            opened(given_bytes)
    with pytest.raises((SnapshotCorruptError, SnapshotUnsupportedError)):
        decode(data, "here")


def test_a_header_has_an_end() -> None:
    with pytest.raises(SnapshotTooLargeError, match="header"):
        container.build(b"{}", lambda about: header_of(about, description="x" * 70_000))


DISPUTED_JSON: list[Any] = [
    b'{"a":1,"a":2}',
    b'{"a":{"b":1,"b":1}}',
    b"NaN",
    b"[Infinity]",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"{",
    b"",
    b"\xff",
    b"[" * 300 + b"]" * 300,
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b"1 2",
    b'"\x01"',
]


def test_json_that_readers_disagree_on_is_refused(subtests: pytest.Subtests) -> None:
    for text in DISPUTED_JSON:
        with case(subtests, text), pytest.raises(SnapshotCorruptError):
            strict_json.read(text, "here")


@pytest.mark.nightly
def test_json_that_would_fill_the_memory_is_refused() -> None:
    for text in (b"[" + b"[]," * (2 << 20) + b"[]]", b"[" + b"1," * (17 << 20) + b"1]"):
        with pytest.raises(SnapshotTooLargeError, match="values"):
            strict_json.read(text, "here")
    assert len(strict_json.read(b'["' + b"[,]" * (6 << 20) + b'"]', "here")[0]) == 18 << 20


def test_brackets_in_texts_are_no_depth() -> None:
    value = ["[" * 500, '\\"[[[' * 200, {"}": "{" * 500}]
    assert strict_json.read(strict_json.write(value), "here") == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_comes_back(value: Any) -> None:
    assert strict_json.read(strict_json.write(value), "here") == value


def test_half_a_surrogate_pair_comes_back() -> None:
    assert strict_json.read(strict_json.write("\ud800"), "here") == "\ud800"
