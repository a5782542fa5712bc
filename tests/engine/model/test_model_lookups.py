"""Finding entries in stored nodes finds what is in the dict, and tells of nodes that are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import decode, encode

from holdfast.engine.model import map_tree, node_lookup
from holdfast.engine.model.nodes import ChildRef, MapEntry, MapRoot, WrittenBy, sort_key
from holdfast.engine.model.packed_state import pack_name
from holdfast.engine.model.workspace import MissingNode, Rounds, Workspace
from holdfast.errors import CorruptError
from tests.support.cases import case

T = TypeVar("T")


def driven(rounds: Rounds[T], nodes: Mapping[bytes, bytes]) -> T:
    try:
        wanted = next(rounds)
        while True:
            wanted = rounds.send({id: nodes[id] for id in wanted if id in nodes})
    except StopIteration as done:
        value: T = done.value
        return value


def tree(names: list[str]) -> tuple[MapRoot, dict[bytes, bytes]]:
    ws = Workspace()
    changes: dict[bytes, MapEntry | None] = {
        pack_name(name): MapEntry(pack_name(name), rank, bytes([rank % 100]), WrittenBy(0, rank))
        for rank, name in enumerate(names)
    }
    return driven(map_tree.update(ws, MapRoot(None, 0), changes, len(names)), {}), dict(ws.created)


NAMES = st.lists(st.text("abcé", max_size=6), unique=True, max_size=300)


@given(NAMES, st.text("abcé", max_size=6))
def test_what_is_there_is_found(names: list[str], other: str) -> None:
    root, nodes = tree(names)
    place = sort_key(pack_name(other))
    after = sorted(name.encode() for name in names if name.encode() >= other.encode())
    for name in {*names[:5], other}:
        found = driven(node_lookup.find(root, pack_name(name), {}), nodes)
        assert (found is not None) == (name in names)
        if found is not None:
            rank = names.index(name)
            assert found == (pack_name(name), bytes([rank % 100]), WrittenBy(0, rank))
    every = driven(node_lookup.entries(root, place, lambda _: False), nodes)
    assert [entry.key for entry in every] == [pack_name(name.decode()) for name in after]
    some = driven(node_lookup.entries(root, place, lambda found: len(found) >= 3), nodes)
    assert every[: len(some)] == some
    assert len(some) >= min(3, len(every))
    assert driven(node_lookup.count(root, place), nodes) == len(after)


MANY = [f"key {number:05}" for number in range(5000)]
ASKED: dict[str, Callable[[MapRoot], Rounds[Any]]] = {
    "find": lambda root: node_lookup.find(root, pack_name("key 00001"), {}),
    "entries": lambda root: node_lookup.entries(root, b"", lambda _: False),
    "count": lambda root: node_lookup.count(root, sort_key(pack_name("key 00001"))),
}


def test_damaged_nodes_are_told_of(subtests: pytest.Subtests) -> None:
    for ask in ASKED:
        with case(subtests, ask):
            root, nodes = tree(MANY)
            assert root.child is not None
            with pytest.raises(MissingNode):
                driven(ASKED[ask](root), {})
            for damaged in (b"", b"\x92\x02\xc0", b"\x95\x01\xc0", b"\x92\x02\x90", b"nonsense"):
                with pytest.raises(CorruptError):
                    driven(ASKED[ask](_leaf_only(damaged)), {b"leaf": damaged})
                if damaged != b"\x92\x02\x90":  # an index of nothing is one
                    with pytest.raises(CorruptError):
                        driven(ASKED[ask](root), {**nodes, root.child.id: damaged})


def _leaf_only(data: bytes) -> MapRoot:
    return MapRoot(ChildRef(b"leaf", 0, len(data), b"", b"\xff"), 1)


def test_a_value_that_is_none_is_told_of() -> None:
    root, nodes = tree(["a"])
    assert root.child is not None
    kind, keys, ranks, slots, origins = decode(nodes[root.child.id])
    damaged = encode([kind, keys, ranks, [[7, *slots[0][1:]]], origins])
    with pytest.raises(CorruptError, match="a node has a value of an unknown kind"):
        driven(node_lookup.find(root, pack_name("a"), {}), {root.child.id: damaged})
