"""Reading around what cannot be read: nothing that can be read is left out, as far as damage lies together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.interface import Get, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import UnreadableRange, scan_readable_rows, scan_rows
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS, WRITES, Key, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.errors import CorruptError

NAMES = st.text(st.characters(codec="utf-8"), max_size=60)


class Damaged(Wrapper):
    """A store in which some rows cannot be read, or only their keys can."""

    def __init__(self, space: Table, there: Sequence[Row], lost: set[Key], *, keys_read: bool = False) -> None:
        super().__init__(MemoryBackend())
        run(self.inner.apply([Put(space, row) for row in there]))
        self._lost = lost
        self._keys_read = keys_read
        self.reads = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self.reads += 1
        found = await self.inner.read(queries)
        for query, answer in zip(queries, found, strict=True):
            if self._keys_read and isinstance(query, Scan) and not query.bodies:
                continue
            if any(row.key in self._lost for row in answer):
                raise CorruptError("a page is damaged")
        return found


def around(store: Damaged, space: Table, prefix: Key, bodies: bool = True) -> tuple[list[Row], list[UnreadableRange]]:
    holes: list[UnreadableRange] = []

    async def read() -> list[Row]:
        return [row async for row in scan_readable_rows(store, space, prefix, holes, bodies=bodies)]

    return run(read()), holes


def check(space: Table, there: Sequence[Row], lost: set[Key], prefix: Key = (), *, keys_read: bool = False) -> Damaged:
    """All that can be read is read, in order, and what cannot lies in holes."""
    store = Damaged(space, there, lost, keys_read=keys_read)
    found, holes = around(store, space, prefix)
    there = run(store.inner.read([Scan(space, prefix)]))[0]
    assert found == [row for row in there if row.key not in lost]
    for row in there:
        rest = row.key[len(prefix) :]
        inside = any(hole.start <= rest and (not hole.stop or rest < hole.stop) for hole in holes)
        assert inside == (row.key in lost), row
    return store


def steps(count: int, branches: int = 2) -> list[Row]:
    columns = ("id", 0, 0, b"hash", 0, "", "", 0, 0, -1)
    return [Row(("", "t", branch, seq), columns, b"body") for branch in range(branches) for seq in range(count)]


@given(st.sets(st.integers(0, 199), max_size=60), st.booleans())
def test_steps_wherever_they_are_damaged(lost: set[int], keys_read: bool) -> None:
    every = steps(100)
    check(STEPS, every, {every[number].key for number in lost}, ("", "t"), keys_read=keys_read)


@pytest.mark.nightly
@given(st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=60, unique=True), st.data())
def test_names_where_damage_lies_together(names: list[tuple[str, str]], data: st.DataObject) -> None:
    """Whatever they are, also where they have the same beginning or are very long."""
    first = data.draw(st.text("ab\0", max_size=3)) * data.draw(st.sampled_from([1, 40]))
    every = sorted(Row(("", first + one, other, 0), ("", ""), b"body") for one, other in names)
    made = [Row((*row.key[:3], "task", 0), row.columns, b"body") for row in every]
    start = data.draw(st.integers(0, len(made)))
    stop = data.draw(st.integers(start, len(made)))
    check(WRITES, made, {row.key for row in made[start:stop]})


@given(st.sets(st.binary(min_size=20, max_size=20), min_size=1, max_size=80), st.data())
def test_digests_of_which_only_bodies_are_damaged(digests: set[bytes], data: st.DataObject) -> None:
    every = [Row(("", "t", 1, digest), (), b"body") for digest in digests]
    lost = data.draw(st.sets(st.sampled_from(sorted(row.key for row in every))))
    check(NODES, every, lost, ("", "t"), keys_read=True)


def test_few_reads_are_enough() -> None:
    every = steps(2000, branches=1)
    assert check(STEPS, every, {row.key for row in every[700:740]}, ("", "t")).reads < 150
    lines = [Row(("", f"thread {number:04}"), (0, 0, 0, 0, "")) for number in range(1000)]
    assert check(LINES, lines, {row.key for row in lines[300:360]}, ("",)).reads < 350
    assert check(LINES, lines, {row.key for row in lines[:60]}, ("",)).reads < 350
    everything = check(LINES, lines, {row.key for row in lines}, ("",)).reads
    assert everything < 250


def test_a_single_row() -> None:
    (row,) = steps(1, branches=1)
    assert around(Damaged(STEPS, [row], set()), STEPS, row.key) == ([row], [])
    found, (hole,) = around(Damaged(STEPS, [row], {row.key}), STEPS, row.key)
    assert (found, hole.start, hole.stop) == ([], (), ())


def test_pages_of_rows_with_the_same_id() -> None:
    """Those that are pruned have none: a page goes on within them."""
    every = [row._replace(columns=("", *row.columns[1:])) for row in steps(700)]
    store = Damaged(STEPS, every, set())

    async def read() -> list[Row]:
        return [row async for row in scan_rows(store, STEPS, ("", "t"), bodies=False, by="id")]

    assert [row.key for row in run(read())] == [row.key for row in every]


def test_rows_that_go_meanwhile_are_no_damage() -> None:
    class Forgetful(Damaged):
        async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
            if isinstance(queries[0], Get):
                return [[] for _ in queries]
            return await super().read(queries)

    every = steps(3, branches=1)
    found, holes = around(Forgetful(STEPS, every, {every[1].key}, keys_read=True), STEPS, ("", "t"))
    assert (len(found), holes) == (1, [])
