"""Entries of a state that several threads have in hand."""

from __future__ import annotations

from collections.abc import Iterator

import holdfast
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.entry_reader import EntryReader, changed_keys
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.nodes import ChildRef, MapRoot, WrittenBy
from holdfast.engine.model.operations import EditMap, Set
from holdfast.engine.model.packed_state import pack_name
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState, StateLoader

STEPS = [(WrittenBy(0, number), EditMap((), ((pack_name(f"key {number}"), Set(b"\x01")),))) for number in range(3)]


class Halfway(tuple[tuple[WrittenBy, EditMap], ...]):
    """Steps of which somebody asks as well, when another has gone through one of them."""

    held: LoadedState
    seen: list[int]

    def __iter__(self) -> Iterator[tuple[WrittenBy, EditMap]]:
        for number, step in enumerate(super().__iter__()):
            yield step
            if not number and not self.seen:
                self.seen.append(0)
                self.seen.append(len(changed_keys(self.held)))


def test_who_comes_second_sees_all_keys() -> None:
    tail = Halfway(STEPS)
    tail.seen = []
    tail.held = LoadedState(EMPTY, 0, tail)
    assert len(changed_keys(tail.held)) == len(STEPS)
    assert tail.seen == [0, len(STEPS)]


def test_what_was_folded_last_is_not_read_from_nodes() -> None:
    with holdfast.open("memory://") as store:
        backend, cache = store._engine.context.backend, MemoryCache(1 << 20)
        entries, line = EntryReader(StateLoader(backend, cache, 1 << 20), cache), Line("", "t")
        there, gone = WrittenBy(0, 1), WrittenBy(0, 2)
        root = MapRoot(ChildRef(b"not in the store", 0, 2, b"", b""), 2)
        held = LoadedState(root, 1, recent={b"\xa1a": (there, Set(b"\x05")), b"\xa1b": (gone, None)})
        found = run(entries.find(line, held, b"\xa1a"))
        assert found is not None
        assert (found.value, found.origin) == (b"\x05", there)
        assert run(entries.origin(line, held, b"\xa1a")) == there
        assert run(entries.find(line, held, b"\xa1b")) is None


def test_states_that_others_followed_are_not_kept() -> None:
    with holdfast.open("memory://") as store:
        state = store.state(agent="a")
        for number in range(300):  # more than are folded at a time
            state["key"] = number
        kept = [each for each, _ in store._engine.context.cache._entries.values() if isinstance(each, LoadedState)]
        assert len(kept) <= 2
        assert [state.get_at("key", version) for version in (1, 150, 300)] == [0, 149, 299]
