"""The same operations under asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncStore, Store
from holdfast.errors import ConfigError, ConflictError, InvalidError, NotFoundError, UnavailableError
from holdfast.store.store import Operations
from holdfast.store.threads import ThreadOperations


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_every_operation_is_awaited(url: str) -> None:
    async def go() -> None:
        store = await holdfast.aopen(url)
        first = await store.put("t", {"n": 0, "d": {"x": 1}}, name="first", tags=["g"], metadata={"m": 1})
        second = await store.update("t", {("d", "y"): 2}, remove=[("d", "x")])
        assert (await store.get("t")).state == {"n": 0, "d": {"y": 2}}
        assert (await store.get("t", name="first")).metadata == {"m": 1}
        assert [each.id for each in await store.log("t")] == [second.id, first.id]
        assert [each.thread for each in await store.threads()] == ["t"]
        assert (await store.thread("t")).steps == 2
        assert (await store.stats()).threads == 1
        await store.name("t", "second")
        await store.tag("t", "g")
        await store.untag("t", "g", first.id)
        assert await store.names("t") == {"first": first.id, "second": second.id}
        assert await store.tags("t") == {"g": [second.id]}
        assert (await store.fork("t", first.id, branch="b")).base == first.id
        assert len(await store.branches("t")) == 2
        assert (await store.restore("t", first.id)).kind == "restore"
        async with store.transaction() as together:
            together.put("t", {"n": 1})
            together.update("u", {"n": 2})
        assert [each.thread for each in together.checkpoints] == ["t", "u"]
        await store.compact("t")
        assert await store.delete("t")
        with pytest.raises(NotFoundError):
            await store.get("t")
        with pytest.raises(ConflictError):
            await store.fork("u", branch="main")
        with pytest.raises(InvalidError):
            await store.put("u", {}, on_conflict="nonsense")
        await store.close()
        await store.close()
        with pytest.raises(UnavailableError):
            await store.get("u")

    run(go())


def test_both_kinds_of_store_have_the_same_operations() -> None:
    names = [name for cls in (Operations, ThreadOperations) for name in vars(cls) if not name.startswith("_")]
    assert len(names) > 15
    sync, awaited = holdfast.open("memory://"), AsyncStore(Operations.__new__(Operations), "")  # type: ignore[arg-type]
    for name in names:
        one, other = getattr(sync, name), getattr(awaited, name)
        assert inspect.signature(one) == inspect.signature(other)
        assert one.__doc__ == other.__doc__
        assert one.__doc__
        assert inspect.iscoroutinefunction(other) or name == "transaction"
        assert not inspect.iscoroutinefunction(one)
    assert isinstance(sync, Store)
    sync.close()


def test_a_failing_block_saves_nothing(url: str) -> None:
    async def go() -> None:
        async with holdfast.aopen(url) as store:
            with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what fails
                async with store.transaction() as together:
                    together.put("t", {"n": 1})
                    raise ZeroDivisionError
            assert await store.threads() == []
        with pytest.raises(UnavailableError):
            await store.threads()

    run(go())


def test_opening_fails_when_awaited() -> None:
    async def go() -> None:
        for url, cache_bytes in (("nonsense://", 0), ("memory://", -1)):
            with pytest.raises(ConfigError):
                await holdfast.aopen(url, cache_bytes=cache_bytes)
            with pytest.raises(ConfigError):
                async with holdfast.aopen(url, cache_bytes=cache_bytes):
                    pass

    run(go())


def test_64_tasks(url: str) -> None:
    async def go() -> None:
        async with holdfast.aopen(url) as store:

            async def agent(n: int) -> None:
                for m in range(3):
                    state = {"n": n, "items": list(range(m))}
                    saved = await store.put(f"agent {n}", state)
                    found = await store.get(f"agent {n}")
                    assert (found.id, found.state) == (saved.id, state)
                    await store.put("shared", {"by": n, "m": m})

            await asyncio.gather(*(agent(n) for n in range(64)))
            assert (await store.stats()).threads == 65
            shared = await store.log("shared")
            assert len(shared) == 64 * 3
            states = [(await store.get("shared", each.id)).state for each in shared]
            assert sorted((state["by"], state["m"]) for state in states) == [
                (n, m) for n in range(64) for m in range(3)
            ]

    run(go())


def test_a_store_serves_one_loop_after_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def opened() -> AsyncStore:
        store = await holdfast.aopen(url)
        await store.put("t", {"n": 0})
        return store

    async def used(store: AsyncStore) -> None:
        assert (await store.put("t", {"n": 1})).step == 1
        await store.close()

    store = asyncio.run(opened())
    asyncio.run(used(store))


@pytest.mark.parametrize("wait", [0, 0.0002, 0.002])
def test_a_cancelled_put_is_whole_or_not_there(tmp_path: Path, wait: float) -> None:
    async def go() -> None:
        async with holdfast.aopen(f"sqlite:///{tmp_path}/store.db") as store:
            known = {(await store.put("t", {"n": -1, "items": []})).id: {"n": -1, "items": []}}
            for n in range(20):
                state = {"n": n, "items": [f"item {m}" for m in range(n)], "big": "x" * 100_000}
                async with store.transaction() as together:
                    together.put("counter", {"n": n})
                putting = asyncio.create_task(store.put("t", state, id=f"~{n:03}", name=f"name {n}", tags=["all"]))
                await asyncio.sleep(wait * chance(n))
                putting.cancel()
                await asyncio.gather(putting, return_exceptions=True)
                known[f"~{n:03}"] = state
                kept = await store.put("t", {"n": "after", "items": [n]}, id=f"~{n:03} after")
                known[kept.id] = {"n": "after", "items": [n]}
            log = await store.log("t")
            ids = [each.id for each in log]
            assert {f"~{n:03} after" for n in range(20)} <= set(ids)
            for each in log:
                assert (await store.get("t", each.id)).state == known[each.id]
            saved = {id for id in ids if id.startswith("~") and not id.endswith("after")}
            assert {f"~{name[5:]:0>3}" for name in await store.names("t")} == saved
            assert set((await store.tags("t")).get("all", [])) == saved

    run(go())


def chance(n: int) -> float:
    """Something between 0 and 1 that differs from time to time."""
    return n * 7 % 20 / 20
