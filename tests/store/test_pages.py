"""Listings in pages: small ones have together what a large one has, with asyncio too, and wrong cursors are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store, snapshots
from holdfast.agents import PersistentAgent
from holdfast.errors import InvalidError

_STAGES = ("only",)

_LISTINGS: dict[str, Callable[..., Any]] = {
    "keys": lambda store, **page: store.state(agent="a").list_keys(**page),
    "items": lambda store, **page: store.state(agent="a").list_items(**page),
    "state history": lambda store, **page: store.state(agent="a").history(**page),
    "scopes": lambda store, **page: store.scopes(**page),
    "artifacts": lambda store, **page: store.artifacts.list(**page),
    "changes with an artifact": lambda store, **page: store.artifacts.changes("file0", **page),
    "artifacts of a scope": lambda store, **page: store.artifacts.of("agent:a", **page),
    "document": lambda store, **page: store.sharing.document("plan").history(**page),
    "results": lambda store, **page: store.sharing.pipeline("p", _STAGES).results(**page),
    "dead": lambda store, **page: store.sharing.pipeline("q", _STAGES).dead(**page),
    "agents": lambda store, **page: store.agents.list(**page),
    "agent history": lambda store, **page: store.agents.history("a0", **page),
    "hooks": lambda store, **page: store.hooks.history(**page),
    "hooks of a scope": lambda store, **page: store.hooks.history(scope="agent:a", **page),
}


class Pager(PersistentAgent, name="tests: pager"):
    """Saves a number."""

    count: int = 0


def fill(store: Store) -> None:
    """Save at least three items for each listing."""
    store.hooks.before("state.set", name="look", inline=True)(lambda call: None)
    done, failed = (store.sharing.pipeline(name, _STAGES, tries=1) for name in "pq")
    store.artifacts.register(b"x", id="other")
    for number in range(4):
        store.artifacts.register(b"%d" % number, id=f"file{number}")
        with store.artifacts.using("file0", "other"):
            store.state(agent="a")[f"k{number}"] = number
        store.state(agent=f"b{number}")["k"] = 1
        store.sharing.document("plan").edit(lambda value: (value or 0) + 1)
        store.agents.create(Pager, f"a{number}")
        agent = store.agents.restore("a0", Pager)
        agent.count += 1
        agent.save()
    store.state(agent="a").batch({f"k{number}": 2 for number in range(4)})
    done.put_many(range(4))
    assert done.work("only", lambda value: value, timeout=0) == 4
    failed.put_many(range(4))
    while (task := failed.take("only")) is not None:
        failed.fail(task, "no", retry=False)


def test_small_pages_have_what_a_large_one_has(tmp_path: Path, subtests: pytest.Subtests) -> None:
    whole: dict[str, Any] = {}
    with holdfast.open(tmp_path / "s.db") as store:
        fill(store)
        for name, listing in _LISTINGS.items():
            with subtests.test(name):
                every = whole[name] = listing(store, limit=1000)
                assert len(every) >= 3
                assert every.next is None
                for limit in (1, 2, len(every) - 1, len(every)):
                    page = listing(store, limit=limit)
                    assert page == every[:limit]
                    assert list(page.all()) == every
                    assert (page.next is None) == (limit == len(every))
                    assert page.next is None or listing(store, limit=1000, cursor=page.next) == every[limit:]
                assert listing(store, limit=0) == []
                assert listing(store, limit=0).next is None
                for wrong in ({"cursor": 5}, {"cursor": "\ud800"}, {"limit": -1}):
                    with pytest.raises(InvalidError):
                        listing(store, **wrong)

    async def go() -> None:
        async with await holdfast.aopen(tmp_path / "s.db") as store:
            for name, listing in _LISTINGS.items():
                with subtests.test(name, asyncio=True):
                    assert [each async for each in (await listing(store, limit=1)).all()] == whole[name]

    asyncio.run(go())


def test_a_page_in_the_middle_of_a_step(store: Store) -> None:
    state = store.state(agent="a")
    state.batch({"a b": 1, "c": 2, "d": 3})
    page = state.history(limit=1)
    assert [each.key for each in page.all()] == ["a b", "c", "d"]
    for wrong in ("x", " a", "-1 a", "9" * 30):
        with pytest.raises(InvalidError):
            state.history(cursor=wrong)
    state.batch({"a b": 2, "e": 1})
    assert [each.key for each in page.all()] == ["a b", "c", "d"]


def test_snapshots_in_pages(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.hfsnap").write_bytes(b"none")
    whole = snapshots.list(tmp_path)
    assert [each.name for each in whole] == ["0.hfsnap", "1.hfsnap", "2.hfsnap"]
    assert list(snapshots.list(tmp_path, limit=1).all()) == whole
    assert [each.name for each in snapshots.list(tmp_path, cursor="0.hfsnap")] == ["1.hfsnap", "2.hfsnap"]
    with pytest.raises(InvalidError):
        snapshots.list(tmp_path, cursor=5)  # type: ignore[arg-type]
