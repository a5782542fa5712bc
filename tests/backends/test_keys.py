"""Keys as bytes sort like the keys, and never collide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.tables import Key, decode_key, encode_key
from holdfast.errors import CorruptError

KINDS = (str, int, bytes)
texts = st.text(max_size=6) | st.text("a\0\x01\xff", max_size=4)
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 3)
names = st.binary(max_size=6) | st.lists(st.sampled_from([b"\0", b"\x01", b"\xff"]), max_size=4).map(b"".join)
keys = st.tuples(texts, numbers, names)


def _order(key: Key) -> list[object]:
    return [value.encode() if isinstance(value, str) else value for value in key]


@given(keys)
def test_round_trip(key: Key) -> None:
    assert decode_key(KINDS, encode_key(key)) == key


@given(keys, keys)
def test_bytes_sort_like_keys(one: Key, other: Key) -> None:
    assert (encode_key(one) < encode_key(other)) == (_order(one) < _order(other))
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(keys, keys, st.integers(0, 3))
def test_prefixes_hold_just_what_is_theirs(key: Key, other: Key, width: int) -> None:
    assert encode_key(other).startswith(encode_key(key[:width])) == (other[:width] == key[:width])


@pytest.mark.parametrize("data", [b"", b"a", b"a\x00\x01", b"a\x00\x02b", b"\xff\x00\x01" + b"1" * 8 + b"\0\1"])
def test_bytes_that_are_no_key(data: bytes) -> None:
    with pytest.raises(CorruptError, match="the key of a row"):
        decode_key(KINDS, data)


def test_bytes_after_the_key() -> None:
    with pytest.raises(CorruptError, match="the key of a row has more bytes"):
        decode_key(KINDS, encode_key(("a", 1, b"b")) + b"c")
