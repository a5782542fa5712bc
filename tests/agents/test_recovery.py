"""Recovery at the start of an agent that did not end properly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.agents.api.agent import restore_persister
from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.recovery.startup import resolve_manually
from holdfast.agents.runtime.two_phase import Recovery
from holdfast.agents.storage.transition_log import read_transitions
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.store.store import Store
from tests.agents.workers import (
    AsyncWorker,
    Crash,
    Worker,
    async_store_on,
    kinds,
    line_of,
    path,
    recorded,
    store_on,
)


class Kept(Worker, name="test-kept"):
    """Keeps what it is told."""

    log: list[str] = []
    told: list[Recovery]

    def persist(self) -> dict[str, Any]:
        return {"log": self.log}

    def handle_recovery(self, recovery: Recovery) -> None:
        self.told = [*getattr(self, "told", []), recovery]


def crashed(store: Store, *before: str, trigger: str = "work", **attached: Any) -> Kept:
    """An agent that is gone in the middle of something."""
    agent = Kept().attach(store, "w", **attached)
    for name in before:
        change: Callable[[], object] = getattr(agent, name)
        change()
    agent.what = "crash"
    lives = trigger in ("start", "pause", "resume", "stop")
    going: Callable[[], object] = getattr(agent, trigger) if lives else lambda: agent.transition(trigger, 1)
    with pytest.raises(Crash):
        going()
    return agent


def fresh(memory: MemoryBackend, **attached: Any) -> tuple[Store, Kept]:
    """The agent in another process."""
    store = store_on(memory)
    return store, Kept().attach(store, "w", **attached)


def test_nobody_runs_what_the_record_says_runs() -> None:
    memory = MemoryBackend()
    old = Kept().attach(store_on(memory), "w")
    old.start()
    old.transition("work", 1)
    store, agent = fresh(memory)
    agent.start()
    assert (agent.status, agent.state, agent.log) == ("running", "busy", ["start ", "act 1", "start "])
    (found,) = agent.recoveries
    assert agent.told == [found]
    assert (found.kind, found.resolved, found.pending, found.version) == ("crashed", "none", None, 4)
    assert found.since == store.agents.load("w", version=4).updated
    assert "crashed" in str(found)
    (row,) = recorded(store, kind="recovery")
    assert (row.trigger, row.outcome) == ("crashed", "none")
    assert kinds(store)[4:] == ["recovery", "lifecycle.begin", "lifecycle"]
    with pytest.raises(ConflictError) as raised:
        old.save()
    assert raised.value.code == "agent-conflict"


def test_a_transition_is_taken_back() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start")
    store, agent = fresh(memory)
    agent.start()
    assert (agent.status, agent.state, agent.log) == ("running", "idle", ["start ", "start "])
    (found,) = agent.recoveries
    assert (found.kind, found.resolved, found.ran) == ("transition", "back", False)
    assert found.pending is not None
    assert (found.pending.trigger, found.pending.data, found.since) == ("work", 1, found.pending.time)
    assert str(found) == "agent 'w': transition 'work' idle → busy: undone"
    (row,) = recorded(store)
    assert (row.outcome, row.error) == ("error", "interrupted, and undone")
    assert row.correlation == found.pending.correlation == recorded(store, kind="recovery")[0].correlation
    assert store.agents.load("w").pending is None
    assert store.maintenance.verify().findings == []


@pytest.mark.parametrize("saves", [1, 300])
@pytest.mark.parametrize("by", ["start", "hand", "caller"])
def test_what_was_saved_in_the_middle_is_taken_back_too(by: str, saves: int) -> None:
    memory = MemoryBackend()
    store = store_on(memory)
    agent = Saver().attach(store, "w")
    agent.metadata["team"] = "a"
    agent.context["k"] = 0
    agent.start()
    agent.conversation.append("before")
    agent.saves = saves
    agent.what = "crash"
    with pytest.raises(Crash):
        agent.transition("work", 1)
    middle = store.agents.load("w")
    assert (middle.context, middle.messages, middle.state) == ({"k": 1}, 2, "idle")
    if by == "caller":
        agent.what = ""
        agent.recover()
        assert agent.status == "running"
    else:
        store = store_on(memory)
        agent = Saver().attach(store, "w")
        if by == "hand":
            run(resolve_manually(line_of(store), "back", restore_persister))
            assert store.agents.list(metadata={"team": "a"})[0].messages == 1
        agent.start()
    assert (agent.context, len(agent.conversation), agent.state) == ({"k": 0}, 1, "idle")
    assert agent.log == ["start "] * (1 if by == "caller" else 2)
    assert store.agents.load("w", version=middle.version).context == {"k": 1}
    agent.what = ""
    agent.transition("work", 2)
    assert store_on(memory).agents.load("w").state == "busy"


class Saver(Kept, name="test-saver"):
    log: list[str] = []
    saves = 1

    def act(self, data: Any) -> None:
        self.context["k"] = 1
        self.conversation.append("in the middle")
        for _ in range(self.saves):
            self.save()
        self.step("act", data)


@pytest.mark.parametrize("by", ["class", "attach", "transition"])
def test_a_transition_is_rolled_forward(by: str) -> None:
    memory = MemoryBackend()
    trigger = "insist" if by == "transition" else "work"
    crashed(store_on(memory), "start", trigger=trigger)
    store = store_on(memory)
    if by == "class":
        agent: Kept = Forward().attach(store, "w")
    else:
        agent = Kept().attach(store, "w", on_incomplete="forward" if by == "attach" else "back")
    agent.start()
    assert (agent.status, agent.state, agent.log) == ("running", "busy", ["start ", "act 1", "start "])
    (found,) = agent.recoveries
    assert (found.resolved, found.ran) == ("forward", True)
    assert str(found).endswith("finished")
    assert path(store) == [(trigger, "idle", "busy", "ok")]


class Forward(Kept, name="test-forward", on_incomplete="forward"):
    log: list[str] = []


Forward.spec = replace(Forward.spec, name=Kept.spec.name)  # the same class, in a later release


def test_an_action_that_fails_when_it_is_run_again() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", trigger="insist")
    store, agent = fresh(memory)
    agent.what = "error"
    with pytest.raises(ValueError, match="it went wrong"):
        agent.start()
    assert agent.persister.data.pending is None
    assert path(store) == [("insist", "idle", "busy", "error")]
    # It stands where it came from, and all that tells of it says so.
    (row,) = run(read_transitions(line_of(store), kind="recovery"))
    assert (row.outcome, [each.resolved for each in agent.recoveries]) == ("back", ["back"])
    agent.what = ""
    agent.start()
    assert (agent.status, agent.state) == ("running", "idle")


def test_a_crash_while_it_is_rolled_forward() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", trigger="insist")
    _, agent = fresh(memory)
    agent.what = "crash"
    with pytest.raises(Crash):
        agent.start()
    store, agent = fresh(memory)
    agent.start()
    assert (agent.state, agent.log) == ("busy", ["start ", "act 1", "start "])
    assert path(store) == [("insist", "idle", "busy", "ok")]


@pytest.mark.parametrize("how", ["back", "forward"])
def test_by_hand(how: Any) -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", trigger="careful")
    store, agent = fresh(memory)
    for change in (agent.start, agent.recover):
        with pytest.raises(ConflictError, match="incomplete") as raised:
            change()
        assert raised.value.code == "transition-incomplete"
        assert "resolve('w'" in raised.value.hint
    found = run(resolve_manually(line_of(store), how, restore_persister))
    assert (found.kind, found.resolved, found.ran) == ("transition", how, False)
    assert str(found).endswith("undone" if how == "back" else "finished, without its action")
    assert path(store) == [("careful", "idle", "busy", "ok" if how == "forward" else "error")]
    with pytest.raises(NotFoundError, match="the agent has no incomplete operation"):
        run(resolve_manually(line_of(store), how, restore_persister))
    agent.start()
    assert (agent.status, agent.state) == ("running", "busy" if how == "forward" else "idle")
    assert agent.log == ["start ", "start "]
    assert [each.kind for each in agent.recoveries] == ["crashed"]


def test_by_the_caller_instead_of_by_hand() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", trigger="careful")
    _, agent = fresh(memory)
    agent.persister.lifecycle.recoveries.clear()
    with pytest.raises(ConflictError):
        agent.start()
    (found,) = agent.recover("forward")
    assert found.resolved == "forward"
    assert (agent.state, agent.status) == ("busy", "stopped")
    with pytest.raises(InvalidError, match="'back' or 'forward'"):
        agent.recover("sideways")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["back", "forward"])
@pytest.mark.parametrize("trigger", ["start", "pause", "resume", "stop"])
def test_a_life_by_hand(trigger: str, how: Any) -> None:
    memory = MemoryBackend()
    before = {"start": (), "pause": ("start",), "resume": ("start", "pause"), "stop": ("start",)}[trigger]
    crashed(store_on(memory), *before, trigger=trigger)
    store = store_on(memory)
    found = run(resolve_manually(line_of(store), how, restore_persister))
    assert (found.kind, found.resolved, found.ran) == ("lifecycle", how, False)
    came, went = {
        "start": ("created", "running"),
        "pause": ("running", "paused"),
        "resume": ("paused", "running"),
        "stop": ("running", "stopped"),
    }[trigger]
    assert store.agents.load("w").status == (went if how == "forward" else came)


def test_who_is_in_the_middle_of_it_after_all_gets_a_conflict() -> None:
    memory = MemoryBackend()
    other = store_on(memory)
    worker = Meddled().attach(store_on(memory), "w")
    worker.meddle = lambda: run(resolve_manually(line_of(other), "back", restore_persister))
    with pytest.raises(ConflictError) as raised:
        worker.transition("work")
    assert raised.value.code == "agent-conflict"
    assert other.agents.load("w").state == "idle"
    with pytest.raises(ConflictError, match="another process has resolved"):
        worker.recover("back")
    assert worker.persister.data.pending is None
    worker.meddle = lambda: None
    assert worker.transition("work") == "busy"


class Meddled(Worker, name="test-meddled"):
    meddle: Callable[[], object]

    def persist(self) -> dict[str, Any]:
        return {"log": self.log}

    def act(self, data: Any) -> None:
        del data
        self.meddle()


def test_resolving_is_back_or_forward() -> None:
    store = store_on(MemoryBackend())
    with pytest.raises(InvalidError, match="'back' or 'forward'"):
        run(resolve_manually(line_of(store), "manual", restore_persister))  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        run(resolve_manually(line_of(store), "back", restore_persister))


STARTED = {
    ("start", "back"): ["start "],
    ("start", "forward"): ["start "],
    ("pause", "back"): ["start ", "start "],
    ("pause", "forward"): ["start ", "pause ", "start "],
    ("resume", "back"): ["start ", "pause ", "start "],
    ("resume", "forward"): ["start ", "pause ", "resume "],
    ("stop", "back"): ["start ", "start "],
    ("stop", "forward"): ["start ", "stop ", "start "],
}


@pytest.mark.parametrize(("trigger", "how"), sorted(STARTED))
def test_a_life_that_was_interrupted(trigger: str, how: Any) -> None:
    """A start ends with a running agent, and calls nothing twice that was not interrupted."""
    memory = MemoryBackend()
    before = {"start": (), "pause": ("start",), "resume": ("start", "pause"), "stop": ("start",)}[trigger]
    crashed(store_on(memory), *before, trigger=trigger)
    store, agent = fresh(memory, on_incomplete=how)
    agent.start()
    assert (agent.status, store.agents.load("w").status) == ("running", "running")
    assert agent.log == STARTED[trigger, how]
    (found,) = agent.recoveries
    assert (found.kind, found.resolved, found.ran) == ("lifecycle", how, how == "forward")


@pytest.mark.parametrize("how", ["back", "forward"])
@pytest.mark.parametrize("trigger", ["start", "pause", "resume", "stop"])
def test_a_start_that_was_interrupted_after_it_had_recovered(trigger: str, how: Any) -> None:
    memory = MemoryBackend()
    before = {"start": (), "pause": ("start",), "resume": ("start", "pause"), "stop": ("start",)}[trigger]
    crashed(store_on(memory), *before, trigger=trigger)
    for _ in range(3):
        _, agent = fresh(memory, on_incomplete=how)
        agent.on_start = lambda: vanish()  # type: ignore[method-assign]
        if (trigger, how) == ("resume", "forward"):
            agent.on_resume = lambda: vanish()  # type: ignore[method-assign]
        with pytest.raises(Crash):
            agent.start()
    store, agent = fresh(memory, on_incomplete=how)
    agent.start()
    assert agent.status == store.agents.load("w").status == "running"
    assert agent.log == STARTED[trigger, how]


def vanish() -> None:
    raise Crash


@pytest.mark.parametrize("how", ["back", "forward"])
def test_a_resumption_that_was_interrupted_is_resumed(how: Any) -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", "pause", trigger="resume")
    _, agent = fresh(memory, on_incomplete=how)
    agent.resume()
    assert agent.status == "running"
    assert agent.log == ["start ", "pause ", "resume "]
    _, other = fresh(memory)
    with pytest.raises(InvalidError, match="'resume' is not a trigger of the state 'running'"):
        other.resume()


def test_a_machine_that_does_not_know_it_any_more() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start", trigger="insist")
    store = store_on(memory)
    agent = Changed().attach(store, "w", on_incomplete="forward")
    with pytest.raises(ConflictError, match="incomplete") as raised:
        agent.start()
    assert "no longer declares it" in raised.value.hint
    agent.recover("back")
    agent.start()
    assert agent.state == "idle"


class Changed(Kept, name="test-changed"):
    log: list[str] = []
    machine = Machine("idle")


Changed.spec = replace(Changed.spec, name=Kept.spec.name)  # the same class, in a later release


@pytest.mark.parametrize("data", ["left", "right"])
def test_of_several_ways_to_one_state_it_is_the_one_that_was_begun(data: str) -> None:
    memory = MemoryBackend()
    agent = Forked().attach(store_on(memory), "w")
    agent.what = "crash"
    with pytest.raises(Crash):
        agent.transition("go", data)
    again = Forked().attach(store_on(memory), "w")
    again.start()
    assert again.log == [f"{data} {data}", "start "]
    assert again.state == "b"


class Forked(Kept, name="test-forked", on_incomplete="forward"):
    log: list[str] = []
    machine = Machine("a", "b")
    machine.add("go", "*", "b", action="right")
    machine.add("go", "a", "b", guard=lambda _, data: data == "left", action="left")

    def left(self, data: Any) -> None:
        self.step("left", data)

    def right(self, data: Any) -> None:
        self.step("right", data)


def test_an_object_that_was_restored_is_told_too() -> None:
    memory = MemoryBackend()
    crashed(store_on(memory), "start")
    agent = store_on(memory).agents.restore("w")
    with pytest.raises(ConflictError, match="incomplete"):
        agent.transition("work")
    (found,) = agent.recover()
    assert found.kind == "transition"
    assert (agent.status, agent.state) == ("stopped", "idle")
    agent.start()
    assert agent.log == ["start ", "start "]


@pytest.mark.parametrize("how", ["back", "forward"])
def test_a_transfer(how: Any) -> None:
    """Whatever becomes of it, who is started then runs."""
    memory = MemoryBackend()
    store = store_on(memory)
    giver, taker = Kept().attach(store, "w"), Taker().attach(store, "x")
    giver.start()
    giver.conversation.append({"role": "user", "content": "hello"})
    taker.start()
    taker.what = "crash"
    with pytest.raises(Crash):
        giver.transfer(taker)
    store, agent = fresh(memory, on_incomplete=how)
    agent.start()
    (found,) = agent.recoveries
    assert (found.kind, found.resolved) == ("transfer", how)
    assert (agent.status, agent.log) == ("running", ["start ", "start "])
    assert [store.agents.load(id).messages for id in "wx"] == ([1, 0] if how == "back" else [0, 1])
    assert [each.trigger for each in recorded(store, kind="recovery")] == ["transfer"]


@pytest.mark.parametrize("how", ["back", "forward"])
def test_a_transfer_by_hand(how: Any) -> None:
    memory = MemoryBackend()
    store = store_on(memory)
    giver, taker = Kept().attach(store, "w"), Taker().attach(store, "x")
    giver.conversation.append({"role": "user", "content": "hello"})
    giver.save()
    taker.save()
    taker.what = "crash"
    with pytest.raises(Crash):
        giver.transfer(taker)
    store = store_on(memory)
    found = run(resolve_manually(line_of(store), how, restore_persister))
    assert (found.kind, found.resolved, found.ran) == ("transfer", how, False)
    assert [store.agents.load(id).messages for id in "wx"] == ([1, 0] if how == "back" else [0, 1])


class Taker(Kept, name="test-taker"):
    log: list[str] = []

    def accepts(self, offer: object) -> bool:
        self.step("accepts", offer)
        return True


def test_a_new_agent_has_nothing_to_recover() -> None:
    agent = Kept().attach(store_on(MemoryBackend()), "w")
    assert agent.recover() == []
    agent.start()
    assert agent.recover() == []


@pytest.mark.parametrize("how", ["back", "forward"])
def test_under_asyncio(how: Any) -> None:
    async def main() -> None:
        memory = MemoryBackend()
        worker = AsyncWorker().attach(async_store_on(memory), "w")
        await worker.start()
        worker.what = "crash"
        with pytest.raises(Crash):
            await worker.transition("work", 1)
        again = AsyncWorker().attach(async_store_on(memory), "w", on_incomplete=how)
        await again.start()
        assert again.state == ("busy" if how == "forward" else "idle")
        assert [each.resolved for each in again.recoveries] == [how]
        with pytest.raises(NotFoundError):
            await arun(resolve_manually(line_of(async_store_on(memory)), how, restore_persister))

    asyncio.run(main())
