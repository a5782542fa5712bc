"""The types of agents, as a type checker sees them. `make lint` checks this file; run, it checks that they are so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import holdfast
from holdfast.agents import AsyncPersistentAgent, PersistentAgent, persistent
from holdfast.agents.api.handle import AgentHandle, AsyncAgentHandle
from holdfast.errors import InvalidError


class Counter(PersistentAgent, name="types-counter"):
    count: int = 0


class DoubleCounter(Counter, name="types-double-counter"):
    pass


class AsyncCounter(AsyncPersistentAgent, name="types-async-counter"):
    count: int = 0


@persistent(name="types-plain")
@dataclass
class Plain:
    count: int = 0


def test_agents_of_a_store() -> None:
    with holdfast.open("memory://") as store:
        assert assert_type(store.agents.create(Counter, "a"), Counter).count == 0
        assert assert_type(store.agents.restore("a", Counter), Counter).version == 1
        assert isinstance(assert_type(store.agents.restore("a"), Any), Counter)
        assert assert_type(store.agents.attach(Counter(), "b"), Counter).version == 0
        assert assert_type(Counter().attach(store, "b"), Counter).version == 0
        handle = assert_type(store.agents.create(Plain, "p"), AgentHandle[Plain])
        assert assert_type(handle.agent, Plain).count == 0
        assert assert_type(store.agents.restore("p", Plain), AgentHandle[Plain]).version == 1
        assert assert_type(store.agents.attach(Plain(), "q"), AgentHandle[Plain]).version == 0
        assert isinstance(assert_type(store.agents.create("types-plain", "r"), Any), AgentHandle)


def test_agents_of_an_async_store() -> None:
    async def run() -> None:
        async with holdfast.aopen("memory://") as store:
            assert assert_type(await store.agents.create(AsyncCounter, "a"), AsyncCounter).count == 0
            assert assert_type(await store.agents.restore("a", AsyncCounter), AsyncCounter).version == 1
            assert assert_type(store.agents.attach(AsyncCounter(), "b"), AsyncCounter).version == 0
            assert assert_type(await store.agents.create(Plain, "p"), AsyncAgentHandle[Plain]).agent.count == 0
            assert assert_type(await store.agents.restore("p", Plain), AsyncAgentHandle[Plain]).version == 1
            assert isinstance(assert_type(await store.agents.restore("p"), Any), AsyncAgentHandle)

    asyncio.run(run())


def test_an_agent_of_another_class_is_refused() -> None:
    with holdfast.open("memory://") as store:
        store.agents.create(DoubleCounter, "a")
        assert type(store.agents.restore("a", Counter)) is DoubleCounter
        store.agents.create(Counter, "b")
        for kind in (DoubleCounter, Plain):
            with pytest.raises(InvalidError, match=f"'types-counter', which is not a {kind.__name__}"):
                store.agents.restore("b", kind)


if TYPE_CHECKING:

    def wrong(store: holdfast.Store) -> None:
        store.agents.restore("a", Counter, on_conflict="nonsense")  # type: ignore[call-overload]
        _ = store.agents.restore("a", Counter).nonsense  # type: ignore[attr-defined]
