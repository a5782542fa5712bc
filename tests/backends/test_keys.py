"""Keys as bytes sort like the keys, and never collide."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.tables import Key, encode_key

KINDS = (str, int, bytes)
texts = st.text(max_size=6) | st.text("a\0\x01\xff", max_size=4)
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 3)
names = st.binary(max_size=6) | st.lists(st.sampled_from([b"\0", b"\x01", b"\xff"]), max_size=4).map(b"".join)
keys = st.tuples(texts, numbers, names)


def _order(key: Key) -> list[object]:
    return [value.encode() if isinstance(value, str) else value for value in key]


@given(keys, keys)
def test_bytes_sort_like_keys(one: Key, other: Key) -> None:
    assert (encode_key(one) < encode_key(other)) == (_order(one) < _order(other))
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(keys, keys, st.integers(0, 3))
def test_prefixes_hold_just_what_is_theirs(key: Key, other: Key, width: int) -> None:
    assert encode_key(other).startswith(encode_key(key[:width])) == (other[:width] == key[:width])
