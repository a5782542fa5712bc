"""Agents as context managers: started, stopped, and failed if an error ends the block."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.agents import AgentBuilder
from holdfast.agents.api.handle import AgentHandle
from holdfast.agents.definition.spec import registry
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import InvalidError
from holdfast.store.store import Store
from tests.agents.greeters import AsyncGreeter, Greeter, aopened, opened


def statuses(store: Store) -> list[str]:
    return [each.status for each in store.agents.history("a")][::-1]


def test_a_block_starts_and_stops() -> None:
    store = opened(MemoryBackend())
    with Greeter(greeting="Hi").attach(store, "a") as agent:
        assert agent.status == "running"
        agent.greet("Ada")
    assert statuses(store) == ["running", "stopped"]
    with store.agents.restore("a") as agent:
        assert agent.greeted == ["Ada"]


def test_an_error_is_a_failure_and_goes_on() -> None:
    store = opened(MemoryBackend())
    for error in (ValueError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)), Greeter().attach(store, "a"):
            raise error
        assert store.agents.load("a").status == "failed"
    with Greeter().attach(store, "a") as agent:
        assert agent.status == "running"


def test_what_is_paused_stays_so_and_goes_on_in_the_next_block() -> None:
    store = opened(MemoryBackend())
    with Greeter().attach(store, "a") as agent:
        agent.pause()
    assert store.agents.load("a").status == "paused"
    with store.agents.restore("a") as agent:
        assert agent.status == "running"
        agent.stop()
    assert statuses(store) == ["running", "paused", "running", "stopped"]


def test_the_error_of_the_block_is_told_also_if_the_failure_cannot_be_saved() -> None:
    store = opened(MemoryBackend())
    with pytest.raises(Failed) as caught, Greeter().attach(store, "a") as agent:
        _overtaken(agent, store)
    assert (
        "That agent 'a' failed could not be recorded: ConflictError: another process has saved"
        in caught.value.__notes__[0]
    )


def test_nor_does_an_on_fail_that_raises_hide_it() -> None:
    class Touchy(Greeter, name="tests: touchy"):
        def on_fail(self, error: BaseException) -> None:
            raise ValueError("no more")

    store = opened(MemoryBackend())
    try:
        with pytest.raises(Failed) as caught, Touchy().attach(store, "a"):
            raise Failed
        assert "ValueError: no more" in caught.value.__notes__[0]
        assert store.agents.load("a").status == "failed"
    finally:
        registry.forget("tests: touchy")


def test_a_plain_object_has_a_block_of_its_own() -> None:
    class Plain:
        seen = 0

    store = opened(MemoryBackend())
    spec = AgentBuilder("tests: plain block").fields("seen").build(Plain)
    try:
        kept: AgentHandle[Any] = store.agents.create(spec, "a")
        with kept as same:
            assert same is kept
            kept.agent.seen = 3
        assert (store.agents.load("a").fields, kept.status) == ({"seen": 3}, "stopped")
        with pytest.raises(InvalidError, match="already attached"):
            store.agents.attach(kept, "b")
    finally:
        registry.forget(spec.name)


def test_the_same_for_asyncio() -> None:
    async def main() -> None:
        store = aopened(MemoryBackend())
        async with AsyncGreeter().attach(store, "a") as agent:
            agent.count = 2
            assert repr(agent) == "<AsyncGreeter 'a': running, version 1>"
        assert (await store.agents.load("a")).status == "stopped"
        with pytest.raises(ValueError, match="no"):
            async with agent:
                raise ValueError("no")
        assert (await store.agents.load("a")).status == "failed"
        task = asyncio.create_task(_forever(agent))
        while agent.status != "running":
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.agents.load("a")).status == "failed"

    asyncio.run(main())


class Failed(Exception):
    """What ends a block."""


def _overtaken(agent: Greeter, store: Store) -> None:
    other = store.agents.restore(agent.id)
    other.save()
    raise Failed


async def _forever(agent: AsyncGreeter) -> None:
    async with agent:
        await asyncio.Event().wait()
