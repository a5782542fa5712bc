"""Keys sort like the places they stand for, and never collide."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Corrupt, Invalid
from holdfast.model.keys import Key, branch_prefix, line_prefix, tenant_prefix

names = st.text(st.characters(codec=None), max_size=8) | st.text("a\0\x01\xff", max_size=4)
numbers = st.integers(0, 2**64 - 1) | st.integers(0, 3)
places = st.builds(Key, names, names, numbers, numbers)


@given(places)
def test_round_trip(key: Key) -> None:
    assert Key.decode(key.encode()) == key


@given(places, places)
def test_bytes_sort_like_places(one: Key, other: Key) -> None:
    assert (one.encode() < other.encode()) == (one < other)
    assert (one.encode() == other.encode()) == (one == other)


@given(places, places)
def test_prefixes_hold_just_what_is_theirs(key: Key, other: Key) -> None:
    data = other.encode()
    assert data.startswith(tenant_prefix(key.tenant)) == (other.tenant == key.tenant)
    assert data.startswith(line_prefix(key.tenant, key.line)) == (other[:2] == key[:2])
    assert data.startswith(branch_prefix(key.tenant, key.line, key.branch)) == (other[:3] == key[:3])


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (Key("t", "l", -1, 0), "branch of a step is a whole number"),
        (Key("t", "l", 0, 2**64), "seq of a step"),
        (Key(b"t", "l", 0, 0), "name of a tenant is a string, not bytes"),  # type: ignore[arg-type]
        (Key("t", "ü" * 513, 0, 0), "name of a line has at most 1024 bytes of UTF-8, and this one 1026"),
        (Key("t", "l", "0", 0), "whole number"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_place(key: Key, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        key.encode()


@pytest.mark.parametrize(
    "data", [b"", b"a", b"a\x00\x01", b"a\x00\x02b", b"\x00\x01\x00\x01" + b"1" * 15, b"\xff\x00\x01\x00\x01"]
)
def test_bytes_that_are_no_place(data: bytes) -> None:
    with pytest.raises(Corrupt, match="not the place of a step"):
        Key.decode(data)
