"""Transactions: all or none, as if each had happened alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import ConflictError, InvalidError
from tests.state.kit import Clock, awaited, store_on
from tests.support.interference import InterferingBackend


@pytest.fixture
def store() -> Iterator[Store]:
    with holdfast.open("memory://") as opened:
        yield opened


@contextmanager
def refused(error: type[Exception] = ConflictError) -> Iterator[pytest.ExceptionInfo[Any]]:
    """A transaction that ends with an error."""
    with pytest.raises(error) as caught:
        yield caught


def test_all_or_none(store: Store) -> None:
    a, b = store.state(agent="a"), store.state(agent="b")
    a["n"] = 10
    with store.transaction() as together:
        together.state(agent="a")["n"] -= 3
        together.state(agent="b")["n"] = 3
        del together.state(agent="b")["n"]
        together.state(agent="b").set("m", 3, ttl=100)
        assert together.state(agent="a")["n"] == 7
        assert "n" not in together.state(agent="b")
        assert together.state(agent="b").get("none", 5) == 5
        assert a["n"] == 10, "nobody else sees it yet"
        together.put("thread", {"k": 1})
    assert (dict(a), dict(b), store.thread("thread").get().state) == ({"n": 7}, {"m": 3}, {"k": 1})
    assert [(str(each.scope), each.key, each.version) for each in together.written] == [
        ("agent:a", "n", 2),
        ("agent:b", "n", 0),
        ("agent:b", "m", 1),
    ]
    with refused(ZeroDivisionError), store.transaction() as together:
        together.state(agent="a")["n"] = 1 / 0
    with refused(KeyError), store.transaction() as together:
        together.state(agent="a")["n"] = 0
        del together.state(agent="a")["none"]
    with refused(KeyError), store.transaction() as together:
        together.state(agent="a")["none"]
    assert dict(a) == {"n": 7}
    with pytest.raises(InvalidError, match="not open"):
        together.state(agent="a")


def test_a_batch_is_one_for_all_scopes() -> None:
    backend = InterferingBackend()
    store = store_on(backend, Clock())
    with store.transaction() as together:
        for n in range(5):
            together.state(agent=str(n))["k"] = n
    assert len(backend.batches) == 1


def test_one_whose_reads_are_out_of_date_changes_nothing(store: Store) -> None:
    a, b = store.state(agent="a"), store.state(agent="b")
    a["n"], b["n"] = 1, 1
    with refused() as caught, store.transaction() as together:
        seen = together.state(agent="a")["n"]
        a["n"] = 5
        together.state(agent="a")["n"] = seen + 1
        together.state(agent="b")["n"] = seen + 1
    assert caught.value.code == "version-mismatch"
    assert (a["n"], b["n"]) == (5, 1)


def test_keys_that_were_not_there_count_as_read(store: Store) -> None:
    with refused(), store.transaction() as together:
        if "owner" not in together.state(agent="a"):
            store.state(agent="a")["owner"] = "somebody else"
            together.state(agent="a")["owner"] = "me"
    assert store.state(agent="a")["owner"] == "somebody else"


def test_other_keys_of_the_scope_are_no_matter(store: Store) -> None:
    a = store.state(agent="a")
    a["n"] = 1
    with store.transaction() as together:
        seen = together.state(agent="a")["n"]
        a["other"] = 1
        together.state(agent="b")["n"] = seen
        a["another"] = 1
    assert store.state(agent="b")["n"] == 1


def test_write_skew_is_refused(store: Store) -> None:
    """Two doctors go off call, each having seen that the other is on: one of them may not."""
    one, other = store.state(workflow="ward", agent="one"), store.state(workflow="ward", agent="other")
    for state in (one, other):
        state["on"] = True
    first, second = store.transaction(), store.transaction()
    with refused(), second:
        with first:
            for each in (first, second):
                assert each.state(workflow="ward", agent="one")["on"]
                assert each.state(workflow="ward", agent="other")["on"]
            first.state(workflow="ward", agent="one")["on"] = False
        second.state(workflow="ward", agent="other")["on"] = False
    assert (one["on"], other["on"]) == (False, True)


def test_write_skew_at_the_last_moment_is_refused() -> None:
    """The other one commits after everything was checked, and before the batch is made."""
    backend, clock = InterferingBackend(), Clock()
    mine, theirs = store_on(backend, clock), store_on(backend, clock)
    mine.state(agent="one")["on"] = True
    mine.state(agent="other")["on"] = True
    meanwhile = backend.interfere(lambda: theirs.state(agent="other").set("on", False))
    with refused(), meanwhile, mine.transaction() as together:
        assert together.state(agent="other")["on"]
        together.state(agent="one")["on"] = False
    assert mine.state(agent="one")["on"] is True
    # Others who write beside it do no harm.
    meanwhile = backend.interfere(lambda: theirs.state(agent="other").set("beside", 1))
    with meanwhile, mine.transaction() as together:
        assert not together.state(agent="other")["on"]
        together.state(agent="one")["on"] = False
    assert mine.state(agent="one")["on"] is False
    # Nor does a scope that is made, of which something was found not to be there.
    meanwhile = backend.interfere(lambda: theirs.state(agent="new").set("k", 1))
    with refused(), meanwhile, mine.transaction() as together:
        assert "k" not in together.state(agent="new")
        together.state(agent="one")["on"] = True


def test_reads_of_a_scope_are_of_one_moment(store: Store) -> None:
    a = store.state(agent="a")
    a.batch({"x": 1, "y": 1})
    with store.transaction() as together:
        assert together.state(agent="a")["x"] == 1
        a.batch({"x": 2, "y": 2})
        assert together.state(agent="a")["y"] == 1
    assert together.written == []


def test_transact_begins_anew(store: Store) -> None:
    a = store.state(agent="a")
    a["n"] = 0
    calls = []

    def work(together: Any) -> str:
        seen = together.state(agent="a")["n"]
        calls.append(seen)
        if len(calls) < 3:
            a["n"] = len(calls)
        together.state(agent="a")["n"] = seen + 100
        return "done"

    assert store.transaction(work) == "done"
    assert calls == [0, 1, 2]
    assert a["n"] == 102

    def never(together: Any) -> None:
        together.state(agent="a")["n"] += 1
        a["n"] += 1

    with pytest.raises(ConflictError):
        store.transaction(never, attempts=2)
    with pytest.raises(InvalidError):
        store.transaction(work, attempts=0)


def test_threads_lose_nothing(store: Store) -> None:
    def work(_: int) -> None:
        for _ in range(10):
            store.transaction(lambda t: t.state(agent="a").set("n", t.state(agent="a").get("n", 0) + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.state(agent="a")["n"] == 40


def test_asyncio(store: Store) -> None:
    async def go() -> None:
        astore = awaited(store)

        async def work(together: Any) -> Any:
            state = together.state(agent="a")
            seen = await state.get("n", 0)
            await asyncio.sleep(0)
            state.set("n", seen + 1)
            return await state.has("n")

        assert await asyncio.gather(*(astore.transaction(work) for _ in range(8))) == [True] * 8
        assert await astore.state(agent="a").get("n") == 8
        async with astore.transaction() as together:
            together.state(agent="a").delete("n")
        assert not await astore.state(agent="a").has("n")
        with pytest.raises(InvalidError, match="async with"), astore.transaction():
            pass
        with pytest.raises(ConflictError):
            await astore.transaction(_never, attempts=1)
        with pytest.raises(InvalidError):
            await astore.transaction(work, attempts=0)

    async def _never(together: Any) -> None:
        await together.state(agent="a").get("n")
        await awaited(store).state(agent="a").set("n", 1)
        together.state(agent="a").set("n", 2)

    asyncio.run(go())

    async def wrong() -> None:
        with pytest.raises(InvalidError, match="`with`"):
            async with store.transaction():
                pass

    asyncio.run(wrong())
