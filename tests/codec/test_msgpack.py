"""Operations on packed bytes without decoding them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from msgspec.msgpack import Ext, encode

from holdfast.codec import Codec, msgpack
from holdfast.errors import CorruptError, TooDeepError
from tests.codec.values import scalars, values
from tests.support.cases import case
from tests.support.nightly import fewer_examples

codec = Codec()

plain = st.recursive(
    scalars.filter(lambda v: not isinstance(v, int) or -(2**63) <= v < 2**64).filter(
        lambda v: not isinstance(v, str) or v.encode("utf-8", "replace").decode() == v
    )
    | st.builds(Ext, st.integers(1, 100), st.binary()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.lists(plain, max_size=20))
def test_lists_are_cut_and_joined(items: list[Any]) -> None:
    parts = msgpack.split_array(encode(items))
    assert parts == [encode(item) for item in items]
    assert msgpack.join_array(parts) == encode(items)


@given(st.dictionaries(st.text(), plain, max_size=20))
def test_dicts_are_cut_and_joined(entries: dict[str, Any]) -> None:
    parts = msgpack.split_map(encode(entries))
    assert parts == [(encode(key), encode(value)) for key, value in entries.items()]
    assert msgpack.join_map(parts) == encode(entries)


def test_headers_are_the_encoders_own(subtests: pytest.Subtests) -> None:
    for size in [0, 1, 2, 4, 8, 15, 16, 31, 32, 255, 256, 65535, 65536, 70000]:
        with case(subtests, size):
            assert msgpack.ext(5, b"x" * size) == encode(Ext(5, b"x" * size))
            assert msgpack.split_ext(msgpack.ext(5, b"x" * size)) == (5, b"x" * size)
            assert msgpack.text(b"x" * size) == encode("x" * size)
            assert msgpack.binary(b"x" * size) == encode(b"x" * size)
            assert (
                msgpack.content(msgpack.text(b"x" * size))
                == msgpack.content(msgpack.binary(b"x" * size))
                == b"x" * size
            )
            assert msgpack.split_array(encode([1] * size)) == [b"\x01"] * size
            assert msgpack.join_array([b"\x01"] * size) == encode([1] * size)
            entries = dict.fromkeys(range(size))
            assert msgpack.join_map(msgpack.split_map(encode(entries))) == encode(entries)


@given(values)
def test_inside_and_on_its_own(value: Any) -> None:
    packed = codec.pack(value)
    inside = codec.pack([value]).removeprefix(msgpack.ESCAPE)
    assert msgpack.split_array(inside) == [msgpack.inner(packed)]
    assert msgpack.top(msgpack.inner(packed)) == packed


@given(values)
def test_kinds(value: Any) -> None:
    data = msgpack.inner(codec.pack(value))
    assert msgpack.is_array(data) == (type(value) is list)
    assert msgpack.is_bin(data) == (type(value) is bytes)
    if type(value) is str and msgpack.is_str(data):
        assert msgpack.content(data).decode() == value


NO_LISTS: list[Any] = [
    b"\x92\x01",
    b"\x91\x01\x01",
    b"\xdd\xff\xff\xff\xff",
    b"\x91\xc1",
    b"\xdc\x00",
    b"\x91\xa5abc",
    b"\x91\xc7\x05\x01a",
]


def test_only_lists_and_dicts_are_split(subtests: pytest.Subtests) -> None:
    for data in NO_LISTS:
        with case(subtests, data), pytest.raises(CorruptError):
            msgpack.split_array(data)


def test_the_wrong_kind_is_not_cut() -> None:
    with pytest.raises(CorruptError):
        msgpack.split_array(encode({"a": 1}))
    with pytest.raises(CorruptError):
        msgpack.split_map(encode([1, 2]))
    assert msgpack.split_ext(b"\x01") is None


def test_depth() -> None:
    for opener in (b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\xde\x00\x01\x01"):
        msgpack.check_depth(opener * msgpack.MAX_DEPTH + b"\xc0")
        with pytest.raises(TooDeepError):
            msgpack.check_depth(opener * (msgpack.MAX_DEPTH + 1) + b"\xc0")
    msgpack.check_depth(
        encode([[[]] * 1000, "ü" * 1000, {"a": [1]}, b"\x91" * 1000, Ext(1, b"\x91" * 300), 1.5, 2**40])
    )
    with pytest.raises(CorruptError):
        msgpack.check_depth(b"\xdc\x00\xff" + b"\x90" * 100)
    with pytest.raises(CorruptError):
        msgpack.check_depth(b"\x92\xc1" + b"\x91" * 100)


def split(data: bytes) -> list[bytes] | str:
    try:
        return msgpack.split_array(data)
    except CorruptError as error:
        return str(error)


@fewer_examples()
@given(st.binary(max_size=40), st.integers(0, 1200), st.integers(1, 255), st.booleans())
def test_a_long_list_is_split_alike_in_all_threads(start: bytes, at: int, change: int, damage: bool) -> None:
    """In the main thread the decoder splits it; where it refuses the bytes, the error is the same."""
    items = [start, {"a": [1, None, "x" * 300]}, *([[2, {}]] * 300)]
    data = bytearray(msgpack.join_array([encode(each) for each in items]))
    if damage:
        data[at % len(data)] ^= change
    with ThreadPoolExecutor(1) as other:
        assert split(bytes(data)) == other.submit(split, bytes(data)).result()


def test_a_deep_list_is_split_without_recursion() -> None:
    deep = b"\x91" * 100_000 + b"\x90"
    assert split(b"\x91" + deep) == [deep]


@fewer_examples()
@given(st.lists(values, max_size=4), st.booleans(), st.integers(1, 3000), st.integers(0, 255))
def test_items_are_split_as_they_are_packed_alone(more: list[Any], others: bool, at: int, change: int) -> None:
    """Messages only, and with other values among them; damaged ones are an error, or other items."""
    items = [*([HumanMessage("x" * 100, id="1"), AIMessage("y")] * 10), *(more if others else [])]
    data = msgpack.top(msgpack.join_array(list(map(msgpack.inner, codec.pack_items(items)))))
    assert msgpack.split_items(data.removeprefix(msgpack.ESCAPE)) == codec.pack_items(items)
    assert msgpack.count_items(data.removeprefix(msgpack.ESCAPE)) == len(items)
    damaged = bytearray(data)
    damaged[at % len(data)] ^= change
    parts = split(bytes(damaged))
    if isinstance(parts, str):
        with pytest.raises(CorruptError) as refused:
            msgpack.split_items(bytes(damaged))
        assert str(refused.value) == parts
    else:
        assert msgpack.split_items(bytes(damaged)) == list(map(msgpack.top, parts))


def test_bytes_at_the_end_are_found_only_if_they_are_whole() -> None:
    for size in (0, 1, 255, 256, 65535, 65536):
        packed = msgpack.binary(b"x" * size)
        assert msgpack.last_bin(b"\x92\x00" + packed, 2) == b"x" * size
        for other in (packed + b"x", packed[:-1], msgpack.text(b"x" * size), packed[:1]):
            assert msgpack.last_bin(b"\x92\x00" + other, 2) is None
    assert msgpack.last_bin(b"\x92\x00", 2) is None
