"""Agents and the other features of a store: they are no threads, and maintenance covers them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.memory import MemoryBackend
from tests.agents.greeters import Greeter, opened

LINE = "␞agents:a"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", project=True) as made:
        yield made


def lived(store: Store) -> Greeter:
    """An agent with a history, a conversation and a large value, and a thread beside it."""
    store.thread("chat").put({"text": "plain words"})
    agent: Greeter = store.agents.create(Greeter, "a", greeting="Hi")
    agent.start()
    for number in range(40):
        agent.greet(f"secret {number}")
        agent.transition("rest" if number % 2 else "work")
    agent.notes["big"] = "much " * 50_000
    agent.stop()
    return agent


def same(one: Store, other: Store) -> None:
    """An agent is the same in both, and goes on alike."""
    first, second = one.agents.load("a"), other.agents.load("a")
    assert first == second
    assert one.agents.messages("a") == other.agents.messages("a")
    assert one.agents.history("a", limit=1000) == other.agents.history("a", limit=1000)
    assert one.agents.transitions("a", limit=1000) == other.agents.transitions("a", limit=1000)
    mine, theirs = one.agents.restore("a"), other.agents.restore("a")
    assert mine.greet("Ada") == theirs.greet("Ada")
    theirs.start()
    assert theirs.transition("work") == "busy"


def test_an_agent_is_no_thread(store: Store) -> None:
    lived(store)
    store.maintenance.build_index()
    assert [thread.thread for thread in store.threads()] == ["chat"]
    assert store.threads(prefix="␞") == []
    assert store.status().threads == 1
    assert store.search("secret") == []
    assert [str(each.scope) for each in store.scopes()] == []
    assert store.maintenance.verify(level="decode").findings == []


def test_agents_are_copied(store: Store) -> None:
    lived(store)
    other = opened(MemoryBackend())
    store.maintenance.copy_to(other)
    same(store, other)
    assert other.maintenance.verify().findings == []
    assert other.audit.verify().ok


def test_agents_are_exported_and_imported(store: Store) -> None:
    lived(store)
    file = io.BytesIO()
    store.maintenance.export(file, threads=["a"], kinds="agent")
    file.seek(0)
    other = opened(MemoryBackend())
    other.maintenance.import_(file)
    same(store, other)


def test_old_versions_are_pruned_when_asked_for_and_the_agent_stays(store: Store) -> None:
    agent = lived(store)
    before = store.agents.load("a")
    store.maintenance.prune(threads="chat", keep_last=1)
    assert len(store.agents.history("a", limit=100)) == 43
    store.maintenance.prune(keep_last=1)
    assert len(store.agents.history("a", limit=100)) == 43
    store.maintenance.prune(kinds="agent", keep_last=2)
    assert store.agents.load("a") == before
    assert len(store.agents.history("a", limit=100)) == 2
    with pytest.raises(holdfast.errors.NotFoundError):
        store.agents.load("a", version=3)
    assert len(store.agents.messages("a")) == 40
    agent.start()
    agent.greet("after")
    agent.stop()
    assert store.agents.load("a").messages == 41
    assert store.maintenance.verify(level="decode").findings == []
    assert store.agents.restore("a").count == 41


def test_held_and_repaired(store: Store, tmp_path: Path) -> None:
    lived(store)
    with holdfast.open(f"sqlite:///{tmp_path}/mirror.db") as mirror:
        store.maintenance.copy_to(mirror)
        from holdfast.backends.interface import Put, Row, Scan
        from holdfast.backends.runtime.drivers import run
        from holdfast.backends.tables import STEPS

        backend = store._engine.context.stored
        (rows,) = run(backend.read([Scan(STEPS, ("", LINE))]))
        body = bytearray(rows[-1].body)
        body[-17] ^= 1
        run(backend.apply([Put(STEPS, Row(rows[-1].key, rows[-1].columns, bytes(body)))]))
        store._engine.context.cache.clear()
        with pytest.raises(holdfast.errors.CorruptError):
            store.agents.load("a")
        store.maintenance.repair(mirror)
        store._engine.context.cache.clear()
        same(store, mirror)
        assert store.maintenance.verify().findings == []
