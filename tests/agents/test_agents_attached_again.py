"""An agent that is attached already is attached once more: it continues from what it saved, and loses nothing."""

from __future__ import annotations

import asyncio
import os
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
from holdfast.errors import ConflictError, InvalidError, OutcomeUnknownError, UnavailableError
from holdfast.store.store import AsyncStore, Store
from tests.agents.autosaved import Wobbly, until
from tests.backends.test_sqlite_recovery import file_limit, linux_only
from tests.support.nightly import mostly_nightly

POLICIES = ("raise", "merge", "overwrite")

QUICK = Autosave(interval=0.02, changes=1, pause=0.01, max_pause=0.05, failures=3, rest=0.05, max_rest=0.1)


class Clerk(PersistentAgent, name="tests: clerk that is attached again"):
    """Files what it gets."""

    files: list[str] = []
    machine = Machine("idle", "busy")
    machine.add("work", "idle", "busy", action="work")

    def work(self, data: Any) -> None:
        """Work, and try what is not allowed meanwhile."""
        if data == "elsewhere":
            self.attach(memory(), self.id)


class AsyncClerk(AsyncPersistentAgent, name="tests: async clerk that is attached again"):
    """Files what it gets."""

    files: list[str] = []


def memory(backend: Any = None) -> Store:
    return Store(Engine(EngineContext(backend or MemoryBackend())), "")


@linux_only
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_automatic_saves_continue_when_the_medium_works_again(tmp_path: Path, scheme: str) -> None:
    with holdfast.open(f"{scheme}:///{tmp_path}/store") as store:
        agent = Clerk().attach(store, "a", autosave=QUICK)
        agent.start()
        with file_limit(1 << 16):
            agent.files.append(os.urandom(200_000).hex())
            agent.conversation.append({"role": "user", "content": "File this."})
            until(lambda: agent.metrics.counts.failed > QUICK.failures)
            assert (agent.version, agent.metrics.unsaved) == (1, 1)
        until(lambda: not agent.metrics.unsaved)
        assert store.agents.load("a").fields == {"files": agent.files}
        assert [each["content"] for each in store.agents.messages("a")] == ["File this."]


@linux_only
@pytest.mark.parametrize(
    ("operation", "scheme", "policy"),
    mostly_nightly(
        [
            (operation, *each)
            for operation in ("save", "stop", "autosave")
            for each in (*(("sqlite", each) for each in POLICIES), ("file", "raise"))
        ],
        daily=[
            *(("save", "sqlite", each) for each in POLICIES),
            *[("save", "file", "raise"), ("stop", "sqlite", "merge"), ("autosave", "sqlite", "overwrite")],
        ],
    ),
)
def test_the_store_is_opened_again_after_its_medium_failed(
    tmp_path: Path, scheme: str, policy: Any, operation: str
) -> None:
    url = f"{scheme}:///{tmp_path}/store"
    large = os.urandom(200_000).hex()
    failed = holdfast.open(url)
    agent = Clerk().attach(failed, "a", on_conflict=policy, autosave=QUICK)
    agent.start()
    agent.conversation.append({"role": "user", "content": "One"})
    agent.flush()
    with file_limit(1 << 16):
        agent.files.append(large)
        agent.conversation.append({"role": "user", "content": "Two"})
        until(lambda: agent.metrics.counts.failed > QUICK.failures)
        with pytest.raises(UnavailableError):
            agent.flush()
        failed.close()
    with holdfast.open(url) as store:
        before = store.agents.load("a")
        assert (before.fields, before.messages) == ({"files": []}, 1)
        agent.attach(store, "a", on_conflict=policy, autosave=QUICK if operation == "autosave" else None)
        if operation == "autosave":
            until(lambda: agent.version > before.version)
        else:
            getattr(agent, operation)()
        record = store.agents.load("a")
        assert (record.fields, record.status) == (
            {"files": [large]},
            "stopped" if operation == "stop" else "running",
        )
        assert [each["content"] for each in store.agents.messages("a")] == ["One", "Two"]
        assert [each["content"] for each in agent.conversation] == ["One", "Two"]
        assert agent.recoveries == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_that_arrived_although_an_error_was_reported(policy: Any) -> None:
    backend = Wobbly()
    agent = Clerk().attach(memory(backend), "a", on_conflict=policy)
    agent.start()
    agent.files.append("one")
    backend.lose = 1
    with pytest.raises(OutcomeUnknownError):
        agent.stop()
    assert agent.status == "running"
    backend.fail(lambda: UnavailableError("the handle is closed", code="closed"))
    store = memory(backend.inner)
    agent.attach(store, "a", on_conflict=policy)
    agent.files.append("two")
    assert agent.save() == 3
    assert (agent.status, store.agents.load("a").status) == ("stopped", "stopped")
    assert store.agents.load("a").fields == {"files": ["one", "two"]}


def test_a_step_that_did_not_arrive() -> None:
    backend = Wobbly()
    agent = Clerk().attach(memory(backend), "a")
    agent.start()
    backend.fail(lambda: UnavailableError("the disk failed"))
    with pytest.raises(UnavailableError):
        agent.stop()
    agent.attach(memory(backend.inner), "a")
    assert (agent.save(), agent.status) == (2, "running")


@pytest.mark.parametrize("policy", POLICIES)
def test_another_process_has_saved_it_in_the_meantime(policy: Any) -> None:
    backend = Wobbly()
    agent = Clerk().attach(memory(backend), "a", on_conflict=policy)
    agent.save()
    agent.context["mine"] = 1
    backend.fail()
    store = memory(backend.inner)
    other = store.agents.restore("a")
    other.context["theirs"] = 2
    other.save()
    agent.attach(store, "a", on_conflict=policy)
    if policy == "raise":
        with pytest.raises(ConflictError):
            agent.save()
    else:
        agent.save()
        assert store.agents.load("a").context == {"mine": 1} | ({"theirs": 2} if policy == "merge" else {})


def test_messages_are_read_through_the_new_handle() -> None:
    backend = Wobbly()
    store = memory(backend)
    first = store.agents.create(Clerk, "a")
    first.conversation.extend([{"role": "user", "content": str(n)} for n in range(5)])
    first.save()
    agent = store.agents.restore("a", Clerk)
    backend.fail()
    agent.attach(memory(backend.inner), "a")
    assert agent.conversation[0]["content"] == "0"


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(("other_store", "id"), [(True, "a"), (False, "b"), (True, "b")])
def test_where_it_was_never_saved_all_of_it_is_saved(other_store: bool, id: str, twice: bool) -> None:
    store, other = memory(), memory()
    first = store.agents.create(Clerk, "a")
    first.conversation.extend([{"role": "user", "content": str(n)} for n in range(5)])
    first.save()
    agent = store.agents.restore("a", Clerk)  # which has none of the messages loaded
    agent.conversation.append({"role": "user", "content": "5"})
    if twice:
        agent.attach(other, "never saved")
    target = other if other_store else store
    agent.attach(target, id)
    assert agent.save() == 1
    agent.conversation.append({"role": "user", "content": "6"})
    assert agent.save() == 2
    assert [each["content"] for each in target.agents.messages(id)] == list("0123456")
    assert [each["content"] for each in agent.conversation] == list("0123456")
    assert store.agents.load("a").messages == 5
    assert list(other.agents.list()) == ([] if not other_store else [other.agents.list()[0]])


def test_attached_twice_without_a_save_in_between() -> None:
    backend, failed = MemoryBackend(), Wobbly()
    agent = Clerk().attach(memory(backend), "a")
    agent.start()
    agent.files.append("one")
    failed.fail()
    agent.attach(memory(failed), "a")
    store = memory(backend)
    agent.attach(store, "a")
    agent.save()
    assert (store.agents.load("a").fields, agent.version) == ({"files": ["one"]}, 2)


def test_not_in_the_middle_of_a_change() -> None:
    store, other = memory(), memory()
    agent = Clerk().attach(store, "a", autosave=QUICK)
    agent.start()
    with agent.change_block(), pytest.raises(InvalidError, match="in the middle of a change"):
        agent.attach(other, "a")
    with pytest.raises(InvalidError, match="in the middle of a change"):
        agent.transition("work", "elsewhere")
    agent.files.append("one")
    agent.flush()
    assert store.agents.load("a").fields == {"files": ["one"]}
    store.close()


def test_automatic_saves_by_the_former_handle_end() -> None:
    store, other = memory(), memory()
    agent = Clerk().attach(store, "a", autosave=QUICK)
    agent.start()
    agent.attach(other, "a")
    agent.files.append("one")
    agent.conversation.append({"role": "user", "content": "Hello"})
    agent.save()
    store.close()
    assert (store.agents.metrics().agents, agent.metrics.is_autosaved) == ({}, False)
    agent.attach(other, "a", autosave=QUICK)
    agent.files.append("two")
    until(lambda: other.agents.load("a").fields == {"files": ["one", "two"]})
    other.close()


def test_the_handle_of_a_plain_object() -> None:
    class Plain:
        seen = 0

    backend = Wobbly()
    spec = AgentBuilder("tests: plain and attached again").fields("seen").build(Plain)
    try:
        handle = memory(backend).agents.create(spec, "a")
        handle.start()
        handle.conversation.append({"role": "user", "content": "Hello"})
        handle.agent.seen = 1
        backend.fail()
        store = memory(backend.inner)
        assert store.agents.attach(handle, "a") is handle
        handle.save()
        record = store.agents.load("a")
        assert (record.fields, record.messages, record.status) == ({"seen": 1}, 1, "running")
    finally:
        registry.forget(spec.name)


def test_the_same_for_asyncio() -> None:
    backend = Wobbly()

    async def main() -> None:
        agent = AsyncClerk().attach(AsyncStore(Engine(EngineContext(backend)), ""), "a", autosave=QUICK)
        await agent.start()
        backend.fail()
        agent.files.append("one")
        agent.mark_changed()
        while agent.metrics.counts.failed < 2:
            await asyncio.sleep(0.001)
        store = AsyncStore(Engine(EngineContext(backend.inner)), "")
        with pytest.raises(InvalidError, match="belongs in an AsyncStore"):
            agent.attach(memory(backend.inner), "a")
        agent.attach(store, "a", autosave=QUICK)
        while agent.version < 2:
            await asyncio.sleep(0.001)
        assert (await store.agents.load("a")).fields == {"files": ["one"]}
        await store.close()

    asyncio.run(asyncio.wait_for(main(), 90))
