"""Transfers of several agents by one call: each is atomic, and none keeps the others from being made."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.transfer.offer import Offer
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import DeniedError, InvalidError, NotFoundError, TransientError, VetoError
from holdfast.store.store import AsyncStore, Store
from tests.agents.autosaved import Wobbly


class Desk(PersistentAgent, name="tests: desk of many"):
    """Has a conversation."""


class Expert(PersistentAgent, name="tests: expert of many"):
    """Does not accept everything, and fails with some of it."""

    def accepts(self, offer: Offer) -> bool:
        return offer.source != "unwelcome"

    def on_receive(self, offer: Offer) -> None:
        if offer.source == "troubling":
            raise ZeroDivisionError


class AsyncDesk(AsyncPersistentAgent, name="tests: async desk of many"):
    """Has a conversation."""


def opened(backend: Any = None) -> Store:
    return Store(Engine(EngineContext(backend or MemoryBackend())), "")


def create(store: Store, *ids: str) -> None:
    for id in ids:
        desk = store.agents.create(Desk, id)
        desk.conversation.append({"role": "user", "content": id})
        desk.save()


def messages(store: Store, id: str) -> list[str]:
    return [each["content"] for each in store.agents.messages(id)]


def test_several_agents_transfer_to_one_and_to_another() -> None:
    store = opened()
    create(store, "a", "b", "c")
    for id in ("expert", "other"):
        store.agents.create(Expert, id)
    results = store.agents.transfer_many({"a": "expert", "b": "other", "c": "expert"}, reason="noon", context={"n": 1})
    assert [(each.source, each.target, each.phase, each.messages, each.reason, each.error) for each in results] == [
        ("a", "expert", "acknowledged", 1, "noon", ""),
        ("b", "other", "acknowledged", 1, "noon", ""),
        ("c", "expert", "acknowledged", 1, "noon", ""),
    ]
    assert [messages(store, id) for id in ("a", "b", "c", "expert", "other")] == [[], [], [], ["a", "c"], ["b"]]
    assert store.agents.load("expert").context == {"n": 1}
    assert store.agents.transfer_many({}) == []


def test_one_that_fails_keeps_no_other_from_being_made() -> None:
    store = opened()
    create(store, "first", "unwelcome", "troubling", "vetoed", "last")
    store.agents.create(Expert, "expert")

    @store.hooks.before("agent.transfer", key="vetoed")
    def veto(_: Any) -> None:
        raise VetoError("not this one")

    names = ("first", "unwelcome", "troubling", "vetoed", "last")
    results = store.agents.transfer_many(dict.fromkeys(names, "expert"))
    assert [(each.source, each.phase, each.error.partition(":")[0]) for each in results] == [
        ("first", "acknowledged", ""),
        ("unwelcome", "refused", "it said no"),
        ("troubling", "given", "ZeroDivisionError"),  # the expert has it
        ("vetoed", "refused", "VetoError"),
        ("last", "acknowledged", ""),
    ]
    assert messages(store, "expert") == ["first", "troubling", "last"]
    assert [len(messages(store, name)) for name in names] == [0, 1, 0, 1, 0]
    assert list(store.agents.list(pending=True)) == []


@pytest.mark.parametrize("targets", [{"a": "expert", "b": "nobody"}, {"a": "expert", "nobody": "expert"}])
def test_nothing_begins_unless_all_agents_exist(targets: dict[str, str]) -> None:
    store = opened()
    create(store, "a", "b")
    store.agents.create(Expert, "expert")
    with pytest.raises(NotFoundError):
        store.agents.transfer_many(targets)
    with pytest.raises(InvalidError, match="to itself"):
        store.agents.transfer_many({"a": "expert", "b": "b"})
    with pytest.raises(InvalidError):
        store.agents.transfer_many(["a", "b"])  # type: ignore[arg-type]
    assert (messages(store, "a"), store.agents.load("a").version) == (["a"], 2)


def test_nor_unless_all_are_allowed() -> None:
    store = opened()
    create(store, "a", "b")
    store.agents.create(Expert, "expert")
    store.access.grant("agent:clerk", ["read", "write"], agent="a")
    store.access.grant("agent:clerk", ["read", "write"], agent="expert")
    clerk = store.as_identity(agent="clerk")
    with pytest.raises(DeniedError):
        clerk.agents.transfer_many({"a": "expert", "b": "expert"})
    assert store.agents.load("a").version == 2
    assert [each.phase for each in clerk.agents.transfer_many({"a": "expert"})] == ["acknowledged"]


def test_a_store_that_fails_in_between_says_what_was_made() -> None:
    backend = Wobbly(MemoryBackend())
    store = opened(backend)
    create(store, "a", "b", "c")
    store.agents.create(Expert, "expert")

    @store.hooks.before("agent.transfer", key="b", inline=True)
    def fail(_: Any) -> None:
        backend.fail()

    with pytest.raises(TransientError) as failed:
        store.agents.transfer_many(dict.fromkeys("abc", "expert"))
    assert failed.value.__notes__ == ["It was the transfer of agent 'b'. Made before: a"]
    backend.work()
    assert [messages(store, id) for id in ("a", "b", "c", "expert")] == [[], ["b"], ["c"], ["a"]]


def test_the_same_for_asyncio() -> None:
    async def main() -> None:
        store = AsyncStore(Engine(EngineContext(MemoryBackend())), "")
        for id in ("a", "b", "c"):
            desk = await store.agents.create(AsyncDesk, id)
            desk.conversation.append(id)
            await desk.save()
        results = await store.agents.transfer_many({"a": "c", "b": "c"})
        assert [each.phase for each in results] == ["acknowledged", "acknowledged"]
        assert await store.agents.messages("c") == ["c", "a", "b"]

    asyncio.run(main())
