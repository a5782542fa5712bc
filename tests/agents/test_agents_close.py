"""Closing a store saves the agents that run, and reports changes of others that are lost."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents import AgentBuilder, Autosave
from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.spec import registry
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.memory import MemoryBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConflictError
from holdfast.store.store import AsyncStore, Store
from tests.agents.autosaved import Wobbly

REPORT = "changes to agents could not be saved: "


class Cook(PersistentAgent, name="tests: cook of a store that is closed"):
    """Cooks."""

    dishes: list[str] = []
    machine = Machine("idle", "cooking")
    machine.add("cook", "idle", "cooking", action="cook")

    def cook(self, data: Any) -> None:
        """Begin, and be interrupted."""
        self.dishes.append(data)
        raise KeyboardInterrupt


class AsyncCook(AsyncPersistentAgent, name="tests: async cook of a store that is closed"):
    """Cooks."""

    dishes: list[str] = []


def opened(backend: Any) -> Store:
    return Store(Engine(EngineContext(backend)), "")


def dishes(backend: Any, id: str = "a") -> object:
    return opened(backend).agents.load(id).fields["dishes"]


@pytest.fixture
def backend() -> Wobbly:
    """A store whose contents outlive its handles."""

    class Lasting(Wobbly):
        async def close(self) -> None:
            pass

    return Lasting(MemoryBackend())


def test_a_running_agent_is_saved(backend: Wobbly, caplog: pytest.LogCaptureFixture) -> None:
    with opened(backend) as store:
        agent, unchanged = Cook().attach(store, "a"), Cook().attach(store, "b")
        agent.start()
        unchanged.start()
        agent.dishes.append("soup")
        agent.conversation.append({"role": "user", "content": "Soup, please."})
    assert dishes(backend) == ["soup"]
    record = opened(backend).agents.load("a")
    assert (record.version, record.status, record.messages) == (2, "running", 1)
    assert opened(backend).agents.load("b").version == 1
    assert caplog.text == ""


def test_also_if_an_error_ends_the_block_of_the_store(backend: Wobbly) -> None:
    store = opened(backend)
    agent = Cook().attach(store, "a")
    agent.start()
    agent.dishes.append("soup")
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    assert dishes(backend) == ["soup"]


def test_an_agent_of_an_async_store(backend: Wobbly) -> None:
    async def main() -> None:
        async with AsyncStore(Engine(EngineContext(backend)), "") as store:
            agent = AsyncCook().attach(store, "a")
            await agent.start()
            agent.dishes.append("soup")

    asyncio.run(main())
    assert dishes(backend) == ["soup"]


def test_a_plain_object(backend: Wobbly) -> None:
    class Plain:
        dishes = 0

    spec = AgentBuilder("tests: plain cook").fields("dishes").build(Plain)
    try:
        with opened(backend) as store:
            handle = store.agents.create(spec, "a")
            handle.start()
            handle.agent.dishes = 3
        assert dishes(backend) == 3
    finally:
        registry.forget(spec.name)


@pytest.mark.parametrize("changed", [True, False])
def test_one_that_does_not_run_is_reported(backend: Wobbly, caplog: pytest.LogCaptureFixture, changed: bool) -> None:
    with opened(backend) as store:
        agent, stopped = store.agents.create(Cook, "a"), Cook().attach(store, "b")
        with stopped:
            pass
        if changed:
            agent.dishes.append("soup")
            stopped.dishes.append("bread")
        Cook().attach(store, "never saved").dishes.append("nothing")
    assert dishes(backend) == dishes(backend, "b") == []
    reports = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert len(reports) == changed
    assert not changed or reports[0].startswith(REPORT + "a, b: ")


def test_one_that_another_process_has_taken_over(backend: Wobbly, caplog: pytest.LogCaptureFixture) -> None:
    with opened(backend) as store:
        agent = Cook().attach(store, "a")
        halted = Cook().attach(store, "b", autosave=Autosave(interval=60))
        for each in (agent, halted):
            each.start()
            each.dishes.append("soup")
            with store.agents.restore(each.id, Cook) as other:
                other.dishes.append("bread")
        with pytest.raises(ConflictError):
            halted.save()
    assert dishes(backend) == dishes(backend, "b") == ["bread"]
    assert "agent 'a' could not be saved: another process has saved or deleted the agent" in caplog.text
    assert REPORT + "b: " in caplog.text


def test_a_store_that_is_down(backend: Wobbly, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(backend)
    agent, unchanged = Cook().attach(store, "a"), Cook().attach(store, "b")
    agent.start()
    unchanged.start()
    agent.dishes.append("soup")
    backend.fail()
    store.close()
    backend.work()
    assert REPORT + "a: the store is down" in caplog.text
    assert dishes(backend) == []


def test_one_in_the_middle_of_a_change(backend: Wobbly, caplog: pytest.LogCaptureFixture) -> None:
    """Its half-done work is not saved: the next start resolves it."""
    store = opened(backend)
    agent = Cook().attach(store, "a")
    agent.start()
    with pytest.raises(KeyboardInterrupt):
        agent.transition("cook", "soup")
    store.close()
    assert dishes(backend) == []
    assert REPORT + "a: " in caplog.text


def test_a_forked_process_leaves_it_to_its_parent(backend: Wobbly) -> None:
    store = opened(backend)
    agent = Cook().attach(store, "a")
    agent.start()
    agent.dishes.append("soup")
    agent.persister.reinit_locks()  # as after a fork
    store.close()
    assert dishes(backend) == []


@pytest.mark.parametrize("closed", [True, False])
def test_the_end_of_a_program(tmp_path: Path, closed: bool) -> None:
    program = f"""
import holdfast

class Cook(holdfast.agents.PersistentAgent, name="cook"):
    dishes: list[str] = []

store = holdfast.open({str(tmp_path / "store.db")!r})
agent = Cook().attach(store, "a")
agent.start()
agent.dishes.append("soup")
{"store.close()" if closed else ""}
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    with holdfast.open(tmp_path / "store.db") as store:
        assert store.agents.load("a").fields == {"dishes": ["soup"]}
