"""The same operations under asyncio."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import AsyncStore
from holdfast.backends.runtime.drivers import Operation
from holdfast.errors import ConfigError, ConflictError, InvalidError, NotFoundError, UnavailableError
from holdfast.store.audit import AuditOperations
from holdfast.store.maintenance import MaintenanceOperations
from holdfast.store.store import StoreOperations
from holdfast.store.thread import ThreadOperations
from holdfast.store.thread_references import ThreadReferences


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_every_operation_is_awaited(url: str) -> None:
    async def go() -> None:
        store = await holdfast.aopen(url)
        first = await store.thread("t").put({"n": 0, "d": {"x": 1}}, tag="first", labels=["g"], metadata={"m": 1})
        second = await store.thread("t").update({("d", "y"): 2}, remove=[("d", "x")])
        assert (await store.thread("t").get()).state == {"n": 0, "d": {"y": 2}}
        assert (await store.thread("t").get(at="first")).metadata == {"m": 1}
        assert [each.id for each in await store.thread("t").log()] == [second.id, first.id]
        assert [each.thread for each in await store.threads()] == ["t"]
        assert (await store.thread("t").info()).steps == 2
        assert (await store.status()).threads == 1
        await store.thread("t").tag("second")
        await store.thread("t").label("g")
        await store.thread("t").unlabel("g", first.id)
        assert await store.thread("t").tags() == {"first": first.id, "second": second.id}
        assert await store.thread("t").labels() == {"g": [second.id]}
        assert (await store.thread("t").fork("b", at=first.id)).base == first.id
        assert len(await store.thread("t").branches()) == 2
        assert (await store.thread("t").restore(at=first.id)).kind == "restore"
        async with store.transaction() as together:
            together.put("t", {"n": 1})
            together.update("u", {"n": 2})
        assert [each.thread for each in together.checkpoints] == ["t", "u"]
        await store.maintenance.compact("t")
        assert await store.thread("t").delete()
        with pytest.raises(NotFoundError):
            await store.thread("t").get()
        with pytest.raises(ConflictError):
            await store.thread("u").fork("main")
        with pytest.raises(InvalidError):
            await store.thread("u").put({}, on_conflict="nonsense")  # type: ignore[arg-type]
        await store.close()
        await store.close()
        with pytest.raises(UnavailableError):
            await store.thread("u").get()

    run(go())


def operations(cls: type) -> list[str]:
    return [name for name, value in vars(cls).items() if isinstance(value, Operation) and name[0] != "_"]


def test_both_kinds_of_store_have_the_same_operations() -> None:
    with holdfast.open("memory://") as store:
        other = AsyncStore(store._engine, "")
        pairs: list[tuple[Any, Any, type]] = [
            (store, other, StoreOperations),
            (store.thread("t"), other.thread("t"), ThreadOperations),
            (store.thread("t"), other.thread("t"), ThreadReferences),
            (store.maintenance, other.maintenance, MaintenanceOperations),
            (store.audit, other.audit, AuditOperations),
        ]
        assert sum(len(operations(cls)) for _, _, cls in pairs) > 50
        for sync, awaited, cls in pairs:
            for name in operations(cls):
                one, two = getattr(sync, name), getattr(awaited, name)
                assert inspect.signature(one) == inspect.signature(two)
                assert one.__doc__ == two.__doc__
                assert one.__doc__
                assert inspect.iscoroutinefunction(two)
                assert not inspect.iscoroutinefunction(one)


def test_a_store_has_few_members() -> None:
    with holdfast.open("memory://") as store:
        assert len([name for name in dir(store) if name[0] != "_"]) <= 39


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
                    saved = await store.thread(f"agent {n}").put(state)
                    found = await store.thread(f"agent {n}").get()
                    assert (found.id, found.state) == (saved.id, state)
                    await store.thread("shared").put({"by": n, "m": m})

            await asyncio.gather(*(agent(n) for n in range(64)))
            assert (await store.status()).threads == 65
            shared = [each async for each in (await store.thread("shared").log()).all()]
            assert len(shared) == 64 * 3
            states = [(await store.thread("shared").get(each.id)).state for each in shared]
            assert sorted((state["by"], state["m"]) for state in states) == [
                (n, m) for n in range(64) for m in range(3)
            ]

    run(go())


def test_a_store_serves_one_loop_after_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"

    async def opened() -> AsyncStore:
        store = await holdfast.aopen(url)
        await store.thread("t").put({"n": 0})
        return store

    async def used(store: AsyncStore) -> None:
        assert (await store.thread("t").put({"n": 1})).step == 1
        await store.close()

    store = asyncio.run(opened())
    asyncio.run(used(store))


@pytest.mark.parametrize("wait", [0, 0.0002, 0.002])
def test_a_cancelled_put_is_whole_or_not_there(tmp_path: Path, wait: float) -> None:
    async def go() -> None:
        async with holdfast.aopen(f"sqlite:///{tmp_path}/store.db") as store:
            known = {(await store.thread("t").put({"n": -1, "items": []})).id: {"n": -1, "items": []}}
            for n in range(20):
                state = {"n": n, "items": [f"item {m}" for m in range(n)], "big": "x" * 100_000}
                async with store.transaction() as together:
                    together.put("counter", {"n": n})
                putting = asyncio.create_task(
                    store.thread("t").put(state, id=f"~{n:03}", tag=f"name {n}", labels=["all"])
                )
                await asyncio.sleep(wait * chance(n))
                putting.cancel()
                await asyncio.gather(putting, return_exceptions=True)
                known[f"~{n:03}"] = state
                kept = await store.thread("t").put({"n": "after", "items": [n]}, id=f"~{n:03} after")
                known[kept.id] = {"n": "after", "items": [n]}
            log = await store.thread("t").log()
            ids = [each.id for each in log]
            assert {f"~{n:03} after" for n in range(20)} <= set(ids)
            for each in log:
                assert (await store.thread("t").get(each.id)).state == known[each.id]
            saved = {id for id in ids if id.startswith("~") and not id.endswith("after")}
            assert {f"~{name[5:]:0>3}" for name in await store.thread("t").tags()} == saved
            assert set((await store.thread("t").labels()).get("all", [])) == saved

    run(go())


def chance(n: int) -> float:
    """Something between 0 and 1 that differs from time to time."""
    return n * 7 % 20 / 20
