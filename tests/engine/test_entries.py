"""Entries of a state that several threads have in hand."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.engine.entries import touched
from holdfast.engine.states import Held
from holdfast.model.drafts import EMPTY
from holdfast.model.nodes import Origin
from holdfast.model.operations import EditMap, Set
from holdfast.model.packed import pack_name

STEPS = [(Origin(0, number), EditMap((), ((pack_name(f"key {number}"), Set(b"\x01")),))) for number in range(3)]


class Halfway(tuple[tuple[Origin, EditMap], ...]):
    """Steps of which somebody asks as well, when another has gone through one of them."""

    held: Held
    seen: list[int]

    def __iter__(self) -> Iterator[tuple[Origin, EditMap]]:
        for number, step in enumerate(super().__iter__()):
            yield step
            if not number and not self.seen:
                self.seen.append(0)
                self.seen.append(len(touched(self.held)))


def test_who_comes_second_sees_all_keys() -> None:
    tail = Halfway(STEPS)
    tail.seen = []
    tail.held = Held(EMPTY, 0, tail)
    assert len(touched(tail.held)) == len(STEPS)
    assert tail.seen == [0, len(STEPS)]
