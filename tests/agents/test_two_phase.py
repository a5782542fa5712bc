"""Transitions in two phases: what is saved when, what an error leaves, and that only one runs at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.agents.api.agent import AsyncPersistentAgent, PersistentAgent
from holdfast.agents.definition.state_machine import Machine
from holdfast.backends.interface import Batch, Create, Put, Query, Row
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.trace_context import correlation
from holdfast.errors import ConflictError, HoldfastError, InvalidError, OutcomeUnknownError, TransientError, VetoError
from holdfast.hooks import HookContext
from tests.agents.workers import (
    AsyncWorker,
    Crash,
    Worker,
    async_store_on,
    failing,
    kinds,
    path,
    recorded,
    store_on,
)
from tests.support.faults import Fault


def test_an_action_is_between_two_steps() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    assert worker.transition("work", "a") == "busy"
    assert (worker.state, worker.version, worker.log) == ("busy", 2, ["act a"])
    assert worker.transition("rest") == "idle"
    assert kinds(store) == ["transition.begin", "transition", "transition"]
    assert path(store) == [("work", "idle", "busy", "ok"), ("rest", "busy", "idle", "ok")]
    before = store.agents.load("w", version=1)
    assert before.state == "idle"
    assert before.pending is not None
    assert (before.pending.trigger, before.pending.data) == ("work", "a")
    assert before.fields["log"] == []
    assert store.agents.load("w").pending is None
    assert store.maintenance.verify().findings == []


def test_both_steps_and_the_row_have_one_correlation() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.transition("work")
    with correlation("mine"):
        worker.transition("rest")
    own = recorded(store)[0].correlation
    assert own
    assert [store.agents.load("w", version=version).notes["correlation"] for version in (1, 2, 3)] == [own, own, "mine"]
    row = recorded(store)[1]
    assert (row.correlation, row.source, row.target, row.data, row.error) == ("mine", "busy", "idle", None, "")
    assert row.checkpoint == store.agents.load("w").checkpoint
    assert row.begin_step == ""


def test_an_error_of_the_action_is_saved_and_raised() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.what = "error"
    with pytest.raises(ValueError, match="it went wrong"):
        worker.transition("work", 3)
    assert worker.state == "idle"
    assert kinds(store) == ["transition.begin", "transition.failed"]
    (row,) = recorded(store)
    assert (row.outcome, row.error, row.data, row.ok) == ("error", "ValueError: it went wrong", 3, False)
    assert store.agents.load("w").pending is None
    worker.what = ""
    assert worker.transition("work") == "busy"


def test_guards_choose_and_validators_refuse() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    with pytest.raises(InvalidError, match="is not a trigger of the state") as raised:
        worker.transition("rest")
    assert (raised.value.code, raised.value.where) == ("no-transition", "agent 'w'")
    worker.transition("work")
    with pytest.raises(VetoError, match="no guard allows 'end' from"):
        worker.transition("end", "never")
    with pytest.raises(ValueError, match="the data are bad"):
        worker.transition("end", "bad")
    assert worker.transition("end", "broken") == "broken"
    worker.transition("repair")
    worker.transition("work")
    assert worker.transition("end", "well") == "done"
    assert [each.trigger for each in recorded(store) if not each.ok] == ["end", "end"]
    assert len(recorded(store)) == 7


@pytest.mark.parametrize("trigger", ["work", "jump"])
def test_a_state_is_not_reached_with_fields_that_do_not_fit_it(trigger: str) -> None:
    """Whether there is an action, or none."""
    store = store_on(MemoryBackend())
    worker = Jumper().attach(store, "w")
    worker.log = ["lazy"] if trigger == "jump" else []
    with pytest.raises(InvalidError, match="a busy one is not lazy"):
        worker.transition(trigger, "lazy")
    assert worker.state == "idle"
    assert worker.persister.data.pending is None
    assert worker.version == (0 if trigger == "jump" else 2)


class Jumper(Worker, name="test-jumper"):
    machine = Machine("idle", "busy", validators={"busy": "check_busy"})
    machine.add("work", "idle", "busy", action="act")
    machine.add("jump", "idle", "busy")


def test_fields_that_do_not_fit_the_state_are_not_saved_nor_restored() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.transition("work")
    worker.log.append("lazy")
    with pytest.raises(InvalidError, match="a busy one is not lazy"):
        worker.save()
    assert store.agents.load("w").fields["log"] == ["act None"]
    worker.log.pop()
    worker.transition("rest")
    worker.log.append("lazy")
    worker.save()
    strict = Machine("idle", "busy", validators={"idle": "check_busy"})
    strict.add("work", ["idle", "busy"], "busy")
    Worker.spec.__dict__["machine"], before = strict, Worker.spec.machine
    try:
        with pytest.raises(InvalidError, match="a busy one is not lazy"):
            store.agents.restore("w")
        Worker.spec.__dict__["machine"] = Machine("elsewhere")
        with pytest.raises(InvalidError, match="no state 'idle'"):
            store.agents.restore("w")
    finally:
        Worker.spec.__dict__["machine"] = before


def test_what_is_done_on_leaving_and_entering() -> None:
    store = store_on(MemoryBackend())
    gate = Gate().attach(store, "w")
    gate.transition("go", 1)
    gate.transition("again", 2)
    gate.transition("back", 3)
    assert gate.log == ["leave a 1", "go 1", "enter b 1", "enter b 2", "enter a 3"]
    assert kinds(store).count("transition.begin") == 3


class Gate(PersistentAgent, name="test-gate"):
    log: list[str] = []
    machine = Machine(
        "a",
        "b",
        enter={"a": "into_a", "b": lambda gate, data: gate.log.append(f"enter b {data}")},
        leave={"a": lambda gate, data: gate.log.append(f"leave a {data}")},
    )
    machine.add("go", "a", "b", action=lambda gate, data: gate.log.append(f"go {data}"))
    machine.add("again", "b", "b")
    machine.add("back", "b", "a")

    def into_a(self, data: Any) -> None:
        self.log.append(f"enter a {data}")


def test_a_machine_that_is_not_right_is_found_when_the_agent_is_attached() -> None:
    with pytest.raises(InvalidError, match="has no such method"):
        Wrong().attach(store_on(MemoryBackend()), "w")


class Wrong(PersistentAgent, name="test-wrong"):
    machine = Machine("a")
    machine.add("go", "a", "a", action="gone")


def test_an_agent_without_a_machine() -> None:
    plain = Plain().attach(store_on(MemoryBackend()), "w")
    with pytest.raises(InvalidError, match="no machine"):
        plain.transition("go")


class Plain(PersistentAgent, name="test-plain"):
    pass


# One at a time ------------------------------------------------------------------------------------------------


def test_no_transition_begins_within_another_of_the_same_agent() -> None:
    store = store_on(MemoryBackend())
    outer, other = Nested().attach(store, "w"), Nested().attach(store, "x")
    outer.call = lambda: outer.transition("go")
    with pytest.raises(InvalidError, match="cannot begin within the transition 'go'") as raised:
        outer.transition("go")
    assert raised.value.code == "nested-transition"
    assert path(store) == [("go", "a", "b", "error")]
    outer.call = outer.stop
    with pytest.raises(InvalidError, match="the stop cannot begin within"):
        outer.transition("go")
    outer.call = lambda: (other.transition("go"), outer.save())
    assert outer.transition("go") == other.state == "b"
    assert kinds(store) == [
        *["transition.begin", "transition.failed"] * 2,
        *["transition.begin", "save", "transition"],
    ]


def test_hooks_are_asked_before_anything_is_saved() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    seen: list[Any] = []

    def check(call: HookContext) -> None:
        seen.append((call.metadata["trigger"], call.metadata["from"], call.metadata["to"]))
        if len(seen) == 1:
            raise VetoError("not today")

    store.hooks.before("agent.transition", name="check")(check)
    with pytest.raises(VetoError, match="not today"):
        worker.transition("work")
    assert (worker.version, worker.log, worker.state) == (0, [], "idle")
    worker.transition("work")
    assert seen == [("work", "idle", "busy")] * 2
    assert path(store) == [("work", "idle", "busy", "ok")]
    assert store.maintenance.verify().findings == []


class Nested(PersistentAgent, name="test-nested"):
    machine = Machine("a", "b")
    machine.add("go", "a", "b", action="act")
    machine.add("back", "b", "a")
    call: Callable[[], object]

    def persist(self) -> dict[str, Any]:
        return {}

    def act(self, _: Any) -> None:
        if hasattr(self, "call"):
            self.call()


def test_a_task_that_an_action_started_is_not_within_it_any_more() -> None:
    async def main() -> None:
        starter = Starter().attach(async_store_on(MemoryBackend()), "w")
        await starter.transition("go")
        await starter.later
        assert starter.state == "a"

    asyncio.run(main())


class Starter(AsyncPersistentAgent, name="test-starter"):
    machine = Machine("a", "b")
    machine.add("go", "a", "b", action="act")
    machine.add("back", "b", "a")

    def persist(self) -> dict[str, Any]:
        return {}

    async def act(self, _: Any) -> None:
        self.gate = asyncio.Event()
        self.later = asyncio.create_task(self.follow())

    async def follow(self) -> None:
        while self.state == "a":
            await asyncio.sleep(0)
        await self.transition("back")


def test_threads_come_one_after_the_other() -> None:
    """Each transition is whole before the next begins: an action finds the state it was promised."""
    store = store_on(MemoryBackend())
    turner = Turner().attach(store, "w")

    def turn() -> None:
        for _ in range(10):
            turner.transition("turn")

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turner.most == 1
    assert turner.turns == 40
    assert kinds(store) == ["transition.begin", "transition"] * 40


class Turner(PersistentAgent, name="test-turner"):
    turns: int = 0
    machine = Machine("a")
    machine.add("turn", "a", "a", action="act")

    def __init__(self) -> None:
        self._inside = 0
        self.most = 0

    def persist(self) -> dict[str, Any]:
        return {"turns": self.turns}

    def act(self, _: Any) -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        self.turns += 1
        self._inside -= 1


def test_tasks_come_one_after_the_other() -> None:
    async def main() -> None:
        store = async_store_on(MemoryBackend())
        worker = AsyncWorker().attach(store, "w")
        await worker.transition("work")
        both = await asyncio.gather(worker.transition("rest"), worker.transition("rest"), return_exceptions=True)
        assert both[0] == "idle"
        assert isinstance(both[1], InvalidError)
        await asyncio.gather(worker.transition("work"), worker.save(), worker.save())
        assert worker.state == "busy"

    asyncio.run(main())


# What fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", ["work", "rest"])
def test_a_store_that_is_down_before_anything_is_saved(trigger: str) -> None:
    store, faults = failing()
    worker = Worker().attach(store, "w")
    if trigger == "rest":
        worker.transition("work")
    before = (worker.state, worker.version, list(worker.log))
    faults.plan = [Fault("apply", faults.applies + 1, lambda: TransientError("down"))]
    with pytest.raises(TransientError):
        worker.transition(trigger)
    assert (worker.state, worker.version, worker.log) == before
    assert worker.persister.data.pending is None
    worker.transition(trigger)
    assert worker.state != before[0]


def test_a_store_that_is_down_when_the_action_is_done() -> None:
    """The action is not run again: only that it was is still to be saved."""
    store, faults = failing()
    worker = Worker().attach(store, "w")
    faults.plan = [Fault("apply", 2, lambda: TransientError("down"))]
    with pytest.raises(TransientError):
        worker.transition("work", 1)
    assert worker.state == "idle"
    with pytest.raises(ConflictError, match="incomplete") as raised:
        worker.transition("work", 2)
    assert raised.value.code == "transition-incomplete"
    (recovery,) = worker.recover()
    assert (recovery.resolved, recovery.ran) == ("forward", True)
    assert (worker.state, worker.log) == ("busy", ["act 1"])
    assert path(store) == [("work", "idle", "busy", "ok")]
    assert worker.recover() == []


def test_an_end_that_is_taken_back_by_the_caller() -> None:
    store, faults = failing()
    worker = Worker().attach(store, "w")
    faults.plan = [Fault("apply", 2, lambda: TransientError("down"))]
    with pytest.raises(TransientError):
        worker.transition("work", 1)
    (recovery,) = worker.recover("back")
    assert recovery.resolved == "back"
    assert (worker.state, worker.log) == ("idle", [])


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_answer_that_is_lost(nth: int, when: Any) -> None:
    """It is made sure of, whether the step was made or not; no row is there twice."""
    store, faults = failing()
    worker = Worker().attach(store, "w")
    faults.plan = [Fault("apply", nth, lambda: OutcomeUnknownError("no answer"), when)]
    with pytest.raises(OutcomeUnknownError):
        worker.transition("work", 1)
    worker.recover("forward")
    if worker.state == "idle":
        worker.transition("work", 1)
    assert (worker.state, worker.log) == ("busy", ["act 1"])
    assert path(store) == [("work", "idle", "busy", "ok")]
    assert store_on(faults.inner).agents.load("w").state == "busy"


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_error_whose_answer_is_lost(when: Any) -> None:
    store, faults = failing()
    worker = Worker().attach(store, "w")
    worker.what = "error"
    faults.plan = [Fault("apply", 2, lambda: OutcomeUnknownError("no answer"), when)]
    with pytest.raises(OutcomeUnknownError) as raised:
        worker.transition("work", 1)
    assert isinstance(raised.value.__context__, ValueError)
    assert worker.recover() == []
    assert path(store) == [("work", "idle", "busy", "error")]
    assert worker.state == "idle"


def test_an_interrupt_leaves_it_under_way() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.what = "crash"
    with pytest.raises(Crash):
        worker.transition("work", 1)
    for begin in (lambda: worker.transition("work"), worker.pause, worker.stop, lambda: worker.rollback(1)):
        with pytest.raises(HoldfastError) as raised:
            begin()
        assert raised.value.code == "transition-incomplete"
    worker.what = ""
    (recovery,) = worker.recover()
    assert recovery.resolved == "back"
    assert (worker.state, worker.log) == ("idle", [])
    assert worker.transition("work") == "busy"


def test_a_task_that_is_cancelled_leaves_it_under_way() -> None:
    async def main() -> None:
        sleeper = Sleeper().attach(async_store_on(MemoryBackend()), "w")
        task = asyncio.create_task(sleeper.transition("go"))
        await sleeper.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert sleeper.persister.data.pending is not None
        sleeper.short = True
        (recovery,) = await sleeper.recover("forward")
        assert (recovery.resolved, recovery.ran, sleeper.state) == ("forward", True, "b")

    asyncio.run(main())


class Sleeper(AsyncPersistentAgent, name="test-sleeper"):
    machine = Machine("a", "b")
    machine.add("go", "a", "b", action="act")

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.short = False

    def persist(self) -> dict[str, Any]:
        return {}

    async def act(self, _: Any) -> None:
        self.begun.set()
        if not self.short:
            await asyncio.sleep(60)


def test_a_coroutine_function_needs_an_event_loop() -> None:
    store = store_on(MemoryBackend())
    agent = Mistaken().attach(store, "w")
    with pytest.raises(InvalidError, match="cannot run coroutine functions"):
        agent.transition("go")
    assert path(store) == [("go", "a", "b", "error")]


class Mistaken(PersistentAgent, name="test-mistaken"):
    machine = Machine("a", "b")
    machine.add("go", "a", "b", action="act")

    async def act(self, _: Any) -> None: ...


# What it costs ------------------------------------------------------------------------------------------------


class Weighed(Wrapper):
    """A store in memory that weighs what is asked of it."""

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.reads = 0
        self.rows = 0
        self.weight = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self.reads += 1
        return await super().read(queries)

    async def apply(self, batch: Batch) -> int | None:
        steps = [each.row for each in batch if isinstance(each, Create | Put) and each.space in (STEPS, EVENTS)]
        self.rows += len(steps)
        self.weight += sum(len(row.body) for row in steps)
        return await super().apply(batch)


def test_the_last_transition_costs_what_the_first_did() -> None:
    weighed = Weighed()
    counter = Counter().attach(store_on(weighed), "w")
    costs = []
    for _ in range(100):
        before = (weighed.reads, weighed.rows, weighed.weight)
        counter.transition("go")
        counter.transition("back")
        costs.append(
            tuple(now - then for now, then in zip((weighed.reads, weighed.rows, weighed.weight), before, strict=True))
        )
    reads, rows, weights = zip(*costs[10:], strict=True)
    assert set(reads) == {0}
    assert set(rows) == {5}  # three steps, and two rows that tell of transitions
    assert max(weights) < 1.1 * min(weights)


class Counter(PersistentAgent, name="test-counter"):
    count: int = 1000
    machine = Machine("a", "b")
    machine.add("go", "a", "b", action="act")
    machine.add("back", "b", "a")

    def act(self, _: Any) -> None:
        self.count += 1
