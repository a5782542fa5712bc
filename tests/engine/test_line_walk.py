"""Walks through lines: every line once, by name, after any name, with progress; and the columns of many at a time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.drivers import run
from holdfast.engine.line_walk import LineRowReader, count_lines, lines_of_kinds, pages_of, read_line_rows, walk_lines
from holdfast.engine.namespaces import ALL_KINDS, LineKind
from holdfast.engine.row_format import Line
from holdfast.store.store import Store
from tests.engine.lines import store_on

NAMES = ["a", "a-b", "a␟n", "b", "c", "␟␟", "ﬁ"]


@pytest.fixture
def store(shared: Backend) -> Store:
    store = store_on(shared)
    for number, name in enumerate(NAMES):
        for n in range(number + 1):
            store.thread(name).put({"n": n}, id=str(n), tag=f"tag{n}")
        store.thread(name).fork("other", at="0")
    store.state(agent="x")["k"] = 1
    store.state(user="u")["k"] = 1
    return store


def walked(store: Store, kinds: frozenset[LineKind] = ALL_KINDS, **options: Any) -> list[str]:
    async def walk() -> list[str]:
        return [line.name async for line in walk_lines(store._engine.context.backend, "", kinds, **options)]

    return run(walk())


@pytest.mark.parametrize("kinds", [ALL_KINDS, frozenset({"thread"}), frozenset({"scope"})], ids=len)
def test_it_goes_on_after_any_name_and_counts_what_is_left(store: Store, kinds: frozenset[LineKind]) -> None:
    every = walked(store, kinds)
    assert every == sorted(every)
    assert [name for name in every if not name.startswith("␞")] == ([] if "thread" not in kinds else sorted(NAMES))
    for at, name in enumerate(["", *every]):
        told: list[Any] = []
        assert walked(store, kinds, after=name, progress=lambda *how: told.append(how)) == every[at:]  # noqa: B023
        assert told == [(number, len(every) - at, each) for number, each in enumerate(every[at:], 1)]
        assert run(count_lines(store._engine.context.backend, "", kinds, after=name)) == len(every) - at


def test_by_the_start_of_a_name(store: Store) -> None:
    threads: frozenset[LineKind] = frozenset({"thread"})
    assert walked(store, threads, prefix="a") == ["a", "a-b", "a␟n"]
    assert walked(store, threads, prefix="a", after="a") == ["a-b", "a␟n"]
    assert run(count_lines(store._engine.context.backend, "", threads, prefix="a", after="a-b")) == 1


def test_columns_of_many_lines_are_those_of_each(store: Store) -> None:
    backend = store._engine.context.backend

    async def read() -> None:
        for wanted in (NAMES, NAMES[1::2], NAMES[-1:]):
            reader = LineRowReader(store._engine.context, "")
            for name in sorted(wanted):
                line = Line("", name)
                found = await reader.read(line)
                assert found == await read_line_rows(backend, line), name
                assert len(found.points) == NAMES.index(name) + 1
                assert len(found.branches) == 1
        pages = [page async for page in pages_of(lines_of_kinds(backend, ""), 2)]
        assert [len(page) for page in pages[:-1]] == [2] * (len(pages) - 1)
        assert [line.name for page in pages for line in page] == walked(store)

    run(read())
