"""What a type checker sees of operations. `make lint` checks this file; run, it checks that they are what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypedDict, assert_type

import pytest

import holdfast
from holdfast import AsyncStore, Checkpoint, Store
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, arun, operation, run
from holdfast.engine.pages import Page
from holdfast.errors import NotFoundError
from holdfast.store.checkpointer import AsyncCheckpointer, Checkpointer, CheckpointTuple
from holdfast.store.thread import Thread, ThreadOperations


class Chat(TypedDict):
    turns: int


def test_of_a_store() -> None:
    with holdfast.open("memory://") as store:
        assert_type(store, Store)
        assert isinstance(assert_type(store.thread("t").put({}), Checkpoint), Checkpoint)
        assert isinstance(assert_type(store.thread("t").get(), Checkpoint), Checkpoint)
        assert assert_type(store.thread("t").log(), Page[Checkpoint])
        assert assert_type(store.thread("t").delete(), bool) is True
        assert assert_type(store.thread("t"), Thread[Any]).name == "t"
        chat = assert_type(store.thread("chat", Chat), Thread[Chat])
        assert assert_type(chat.put({"turns": 1}), Checkpoint[Chat]).step == 0
        assert assert_type(chat.get().state["turns"], int) == 1
        assert assert_type(Checkpointer(store).get_tuple("t"), CheckpointTuple | None) is None


def test_of_an_async_store() -> None:
    async def go() -> None:
        async with holdfast.aopen("memory://") as store:
            assert_type(store, AsyncStore)
            putting = assert_type(store.thread("t").put({}), Coroutine[Any, Any, Checkpoint])
            assert isinstance(putting, Coroutine)
            assert isinstance(await putting, Checkpoint)
            assert isinstance(assert_type(await store.thread("t").get(), Checkpoint), Checkpoint)
            assert assert_type(await AsyncCheckpointer(store).get_tuple("u"), CheckpointTuple | None) is None

    asyncio.run(go())


if TYPE_CHECKING:

    def wrong(store: Store) -> None:
        store.thread("t").put()  # type: ignore[call-arg]
        store.thread("t").put({}, nonsense=1)  # type: ignore[call-arg]
        store.thread(5).get()  # type: ignore[call-overload]
        store.thread("chat", Chat).put({"turn": 1})  # type: ignore[typeddict-item]
        store.fork("t")  # type: ignore[attr-defined]


# The drivers themselves -------------------------------------------------------------------------------------------


class Adding:
    @operation
    async def add(self, a: int, *, b: int = 1) -> int:
        """Add."""
        return a + b

    @operation
    async def fail(self) -> None:
        raise NotFoundError("nothing")


class SyncAdding(SyncApi, Adding):
    pass


class AsyncAdding(AsyncApi, Adding):
    pass


def test_an_operation_is_called_or_awaited() -> None:
    assert assert_type(SyncAdding().add(1, b=2), int) == 3
    assert asyncio.run(AsyncAdding().add(1)) == 2
    assert run(Adding.add(SyncAdding(), 5)) == 6
    assert Adding.add.__doc__ == SyncAdding().add.__doc__ == "Add."
    with pytest.raises(NotFoundError):
        SyncAdding().fail()
    with pytest.raises(NotFoundError):
        asyncio.run(AsyncAdding().fail())


def test_errors_of_what_is_waited_for_arrive_where_it_is_awaited() -> None:
    from holdfast.backends.interface import BlockingCall

    seen = []

    async def careful() -> str:
        try:
            await BlockingCall(lambda: 1 // 0)
        except ZeroDivisionError:
            seen.append("caught")
        call: BlockingCall[str] = BlockingCall(lambda: "value")
        return await call

    assert run(careful()) == "value"
    assert asyncio.run(arun(careful())) == "value"
    assert seen == ["caught", "caught"]


def test_operations_of_a_store_can_await_each_other() -> None:
    with holdfast.open("memory://") as store:
        saved = run(ThreadOperations[Any].put(store.thread("t"), {"n": 1}))
        assert store.thread("t").get().id == saved.id
