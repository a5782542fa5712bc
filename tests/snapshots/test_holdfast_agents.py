"""Agents of Holdfast: a snapshot from one store, restored into another."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import snapshots
from holdfast.agents import AsyncPersistentAgent, persistent
from holdfast.agents.storage.record import PendingChange
from holdfast.backends.runtime.drivers import run
from holdfast.errors import (
    DeniedError,
    HoldfastError,
    NotFoundError,
    SnapshotCorruptError,
    SnapshotExistsError,
    SnapshotInvalidError,
    SnapshotRefusedError,
    TooLargeError,
)
from tests.snapshots.greeter import VALUES, Greeter
from tests.snapshots.kit import elsewhere, forged, lines_of, set_at
from tests.support.cases import case


class AsyncGreeter(AsyncPersistentAgent, name="tests.snapshots.async-greeter"):
    greeted: list[str] = []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "greeter.hfsnap"


def greeter(store: Any, id: str = "g1") -> Greeter:
    agent = Greeter(greeting="Hello").attach(store, id)
    agent.start()
    agent.greet("Ada")
    agent.weights.update(VALUES)
    agent.context["topic"] = ("ships", 3)
    agent.metadata["team"] = "north"
    return agent


def messages(agent: Any) -> list[Any]:
    line = agent.persister.line

    async def read() -> list[Any]:
        return list(await line.read_messages(await line.require_step()))

    return run(read())


def test_an_agent_lives_on_in_another_store(path: Path) -> None:
    with holdfast.open("memory://") as one, holdfast.open("memory://") as two:
        agent = greeter(one)
        info = snapshots.snapshot(agent, path, description="one greeted")
        assert (info.kind, info.type, info.name) == ("persistent", "tests.snapshots.greeter", "g1")
        again = snapshots.restore(path, store=two)
        assert type(again) is Greeter
        assert again.id == "g1"
        assert again.greeted == ["Ada"]
        assert again.weights == VALUES
        assert type(again.weights[1]) is tuple
        assert again.context == agent.context
        assert again.metadata == agent.metadata
        assert messages(again) == messages(agent)
        assert again.status == agent.status == "running"
        assert again.greet("Bob") == agent.greet("Bob")
        again.save()
        assert two.agents.load("g1").version == again.version > 1


def test_an_agent_that_ran_goes_on_when_it_is_started(path: Path) -> None:
    with holdfast.open("memory://") as one, holdfast.open("memory://") as two:
        snapshots.snapshot(greeter(one), path)
        again = snapshots.restore(path, store=two)
        again.start()
        assert again.status == "running"
        assert again.greeted == ["Ada"]
        again.stop()
        assert two.agents.load("g1").status == "stopped"


def test_what_was_not_saved_yet_is_in_it(path: Path) -> None:
    with holdfast.open("memory://") as store, holdfast.open("memory://") as two:
        agent = greeter(store)
        agent.save()
        agent.greet("Bob")
        snapshots.snapshot(agent, path)
        assert snapshots.restore(path, store=two).greeted == ["Ada", "Bob"]
        version = agent.version
        snapshots.snapshot(agent, path, overwrite=True)
        assert agent.version == version  # nothing has changed, and nothing was saved


def test_an_agent_is_frozen_without_being_alive(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = greeter(store)
        first = agent.save()
        agent.greet("Bob")
        agent.save()
        snapshots.snapshot(snapshots.StoredAgent(store, "g1", version=first), path)
        record = snapshots.restore(path, store=store, agent_id="g2", live=False)
        assert (record.id, record.fields["greeted"], record.messages) == ("g2", ["Ada"], 1)
        assert store.agents.load("g1").fields["greeted"] == ["Ada", "Bob"]
        with pytest.raises(NotFoundError):
            snapshots.snapshot(snapshots.StoredAgent(store, "nobody"), path, overwrite=True)


def test_another_process_behaves_the_same(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = greeter(store)
        snapshots.snapshot(agent, path)
        code = (
            "import json, sys, holdfast\n"
            "from holdfast import snapshots\n"
            "from tests.snapshots.greeter import VALUES\n"
            "with holdfast.open('memory://') as store:\n"
            "    agent = snapshots.restore(sys.argv[1], store=store)\n"
            "    assert agent.weights == VALUES\n"
            "    sys.stdout.write(json.dumps([agent.greet('Bob'), agent.greet('Eve'), agent.context['topic'][1]]))\n"
        )
        done = elsewhere(code, path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [agent.greet("Bob"), agent.greet("Eve"), 3]


@persistent(name="tests.snapshots.plain", fields=["count"])
class Plain:
    def __init__(self, step: int = 1) -> None:
        self.step = step
        self.count = 0


def test_plain_objects_that_are_kept(path: Path) -> None:
    with holdfast.open("memory://") as store:
        kept = store.agents.create(Plain, "p1", step=3)
        kept.agent.count = 7
        snapshots.snapshot(kept, path)
        again = snapshots.restore(path, store=store, agent_id="p2")
        assert (again.agent.step, again.agent.count) == (3, 7)


GOLDEN = Path(__file__).parents[1] / "golden" / "snapshot-v1-persistent.hfsnap"


def test_the_golden_agent_lives() -> None:
    with holdfast.open("memory://") as store:
        agent = snapshots.restore(GOLDEN, store=store)
        assert (agent.id, agent.greeted, agent.weights) == ("g1", ["Ada"], VALUES)
        assert agent.greet("Bob") == "Hello, Bob, as number 2"


def test_asyncio_has_the_same(path: Path) -> None:
    async def work() -> None:
        async with holdfast.aopen("memory://") as one, holdfast.aopen("memory://") as two:
            agent = AsyncGreeter().attach(one, "a1")
            await agent.start()
            agent.greeted.append("Ada")
            await snapshots.asnapshot(agent, path)
            again = await snapshots.arestore(path, store=two)
            assert type(again) is AsyncGreeter
            assert again.greeted == ["Ada"]
            await again.save()

    asyncio.run(work())


def test_what_is_there_is_not_overwritten(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = greeter(store)
        snapshots.snapshot(agent, path)
        with pytest.raises(SnapshotExistsError, match="agent with this id"):
            snapshots.restore(path, store=store)
        again = snapshots.restore(path, store=store, agent_id="g2")
        assert again.id == "g2"
        assert store.agents.load("g1").version == agent.version


def test_a_store_that_has_no_room_for_it_says_so(path: Path) -> None:
    small = holdfast.codec.Codec(max_bytes=2000)
    with holdfast.open("memory://") as store, holdfast.open("memory://", codec=small) as other:
        agent = greeter(store)
        agent.greeted.append("A" * 5000)
        snapshots.snapshot(agent, path)
        with pytest.raises(TooLargeError, match="over the limit"):
            snapshots.restore(path, store=other)


def test_a_class_that_is_not_known_is_told_before_anything_is_written(path: Path) -> None:
    with holdfast.open("memory://") as store:
        snapshots.snapshot(greeter(store), path)
        document = lines_of(path)[1]
        document["content"]["state"]["class"] = "somebody.elses"
        path.write_bytes(forged(document, kind="persistent"))
        with pytest.raises(HoldfastError, match="somebody.elses"):
            snapshots.restore(path, store=store, agent_id="g2")
        with pytest.raises(NotFoundError):
            store.agents.load("g2")
        assert snapshots.restore(path, store=store, agent_id="g2", live=False).kind == "somebody.elses"


def test_rights_are_those_of_the_agents_scope(path: Path) -> None:
    with holdfast.open("memory://") as store:
        greeter(store).save()
        other = store.as_identity(agent="other")
        with pytest.raises(DeniedError):
            snapshots.snapshot(snapshots.StoredAgent(other, "g1"), path)
        snapshots.snapshot(snapshots.StoredAgent(store, "g1"), path)
        with pytest.raises(DeniedError):
            snapshots.restore(path, store=other, agent_id="g2")
        assert snapshots.restore(path, store=other, agent_id="other", live=False).id == "other"


def test_hooks_see_it(path: Path) -> None:
    with holdfast.open("memory://") as store:
        snapshots.snapshot(greeter(store), path)
        seen = []

        @store.hooks.before("agent.create")
        def veto(call: Any) -> Any:
            seen.append((call.point, call.key))
            if call.key == "g2":
                raise holdfast.errors.VetoError("no agents on Sundays")
            return {**call.value, "metadata": {"seen": True}}

        with pytest.raises(holdfast.errors.VetoError, match="Sundays"):
            snapshots.restore(path, store=store, agent_id="g2")
        assert snapshots.restore(path, store=store, agent_id="g3", live=False).metadata == {"seen": True}
        assert seen == [("agent.create", "g2"), ("agent.create", "g3")]


def test_secrets_are_refused(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = Greeter(greeting="Hello", nested={"api_key": "abc"}).attach(store, "g1")
        with pytest.raises(SnapshotRefusedError, match="api_key") as raised:
            snapshots.snapshot(agent, path)
        assert raised.value.where == "configuration.nested.api_key"
        snapshots.snapshot(agent, path, not_secret=["api_key"])
        listed = Greeter(greeting="Hello", nested=[{"password": "abc"}]).attach(store, "g2")
        with pytest.raises(SnapshotRefusedError) as raised:
            snapshots.snapshot(listed, path)
        assert raised.value.where == "configuration.nested[0].password"
        with pytest.raises(SnapshotRefusedError, match="GREETING"):
            snapshots.snapshot(agent, path, not_secret=["api_key"], secrets={"GREETING": "Hello"}, overwrite=True)


@pytest.mark.parametrize("part", ["weights", "context", "metadata"])
def test_a_secret_by_its_name_is_refused_wherever_an_agent_has_names(part: str, path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = Greeter().attach(store, "g1")
        getattr(agent, part)["service"] = {"password": "sk-1"}
        with pytest.raises(SnapshotRefusedError, match="password") as raised:
            snapshots.snapshot(agent, path)
        assert raised.value.where.endswith(f"{part}.service.password")
        assert not path.exists()


def test_what_does_not_belong_is_refused(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = greeter(store)
        with pytest.raises(SnapshotInvalidError, match="no threads"):
            snapshots.snapshot(agent, path, config={})
        with pytest.raises(HoldfastError, match="not attached to a store"):
            snapshots.snapshot(Greeter(), path)
        snapshots.snapshot(agent, path)
        with pytest.raises(SnapshotInvalidError, match="needs a store"):
            snapshots.restore(path)
        with pytest.raises(SnapshotInvalidError, match="not a Holdfast store"):
            snapshots.restore(path, store={})
        with pytest.raises(SnapshotInvalidError, match="create_agent"):
            snapshots.restore(path, store=store, tools=[len])
        for id in ("", "a/../b", "x" * 300, "a\0b"):
            with pytest.raises(SnapshotInvalidError):
                snapshots.restore(path, store=store, agent_id=id)
        snapshots.snapshot([], path, overwrite=True)
        for wrong in ({"agent_id": "x"}, {"live": False}, {"store": store}):
            with pytest.raises(SnapshotInvalidError, match="is not one"):
                snapshots.restore(path, **wrong)


def test_an_agent_in_the_middle_of_something_is_not_frozen(path: Path) -> None:
    with holdfast.open("memory://") as store:
        agent = greeter(store)
        agent._data.pending = PendingChange("transition", "leave", "a", "b", dt.datetime.now(dt.UTC))
        with pytest.raises(SnapshotInvalidError, match="an incomplete operation: leave"):
            snapshots.snapshot(agent, path)


CHANGES = [
    set_at("state", to=[]),
    set_at("state", to={}),
    set_at("state", to={"$tuple": 5}),
    set_at("state", "status", to="flying"),
    set_at("state", "status", to=5),
    set_at("state", "class", to=5),
    set_at("state", "fields", to=[]),
    set_at("state", "fields", to={"$bytes": 5}),
    set_at("state", "pending", to=None),
    set_at("state", "conversation", to={}),
    set_at("state", "conversation", to=[{"$bytes": 5}]),
    set_at("state", "counts", to=5),
    set_at("state", "created", to="yesterday"),
    set_at("holdfast", to="thread"),
    set_at("format", to=2),
    set_at("id", to=5),
    set_at("version", to=True),
    set_at("more", to=1),
]


def test_an_agent_that_somebody_tampered_with_is_refused(path: Path, subtests: pytest.Subtests) -> None:
    with holdfast.open("memory://") as store:
        snapshots.snapshot(greeter(store), path)
        sound = lines_of(path)[1]
        for change in CHANGES:
            with case(subtests, change):
                document = copy.deepcopy(sound)
                change(document["content"])
                path.write_bytes(forged(document, kind="persistent"))
                with pytest.raises(SnapshotCorruptError):
                    snapshots.restore(path, store=store, agent_id="g2", live=False)


def test_tricks_in_the_name_of_an_agent_are_refused(path: Path, subtests: pytest.Subtests) -> None:
    with holdfast.open("memory://") as store:
        snapshots.snapshot(greeter(store), path)
        document = lines_of(path)[1]
        for id in ["../../x", "", "a\0b", "x" * 300, "a\nb"]:
            with case(subtests, ascii(id)):
                document["content"]["id"] = id
                path.write_bytes(forged(document, kind="persistent"))
                with pytest.raises(SnapshotInvalidError):
                    snapshots.restore(path, store=store, live=False)
