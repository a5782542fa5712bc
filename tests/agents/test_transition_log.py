"""Recorded transitions: in pages, counted, checked, and rolled back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.recovery.rollback import roll_back
from holdfast.agents.storage.transition_log import (
    TransitionKey,
    check_transitions,
    count_transitions,
    read_transitions,
)
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.agents.workers import (
    AsyncWorker,
    Crash,
    Worker,
    failing,
    kinds,
    line_of,
    path,
    recorded,
    store_on,
    worker_machine,
)
from tests.servers.places import place


def busy_worker(store: holdfast.Store, rounds: int = 3) -> Worker:
    worker = Worker().attach(store, "w")
    worker.start()
    for number in range(rounds):
        worker.transition("work", number)
        worker.transition("rest")
    return worker


# Pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_follow_each_other(limit: int, oldest_first: bool) -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store)
    worker.save()
    page = store.agents.transitions("w", limit=limit, oldest_first=oldest_first)
    expected = recorded(store)
    assert len(expected) == 6
    assert list(page.all()) == (expected if oldest_first else expected[::-1])


def test_what_is_asked_for() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store)
    worker.what = "error"
    with pytest.raises(ValueError, match="wrong"):
        worker.transition("work", "x")
    line = line_of(store)
    assert [each.data for each in run(read_transitions(line, trigger="work"))] == ["x", 2, 1, 0]
    assert [each.data for each in run(read_transitions(line, outcome="error"))] == ["x"]
    assert [each.trigger for each in run(read_transitions(line, kind="lifecycle"))] == ["start"]
    assert run(read_transitions(line, trigger="never")) == []
    newest = run(read_transitions(line, limit=1))[0]
    assert run(read_transitions(line, cursor=newest.cursor)) == recorded(store)[:-1][::-1]


def test_what_cannot_be_asked_for() -> None:
    store = store_on(MemoryBackend())
    busy_worker(store, 1)
    wrong_arguments: list[dict[str, Any]] = [{"limit": -1}, {"limit": True}, {"cursor": "x"}, {"cursor": "x y"}]
    for wrong in wrong_arguments:
        with pytest.raises(InvalidError):
            store.agents.transitions("w", **wrong)
    with pytest.raises(NotFoundError):
        run(read_transitions(line_of(store, "nobody")))


def test_a_page_reads_no_more_than_a_page() -> None:
    store, faults = failing()
    busy_worker(store, 120)
    line = line_of(store)
    run(read_transitions(line, limit=1))
    reads = faults.reads
    run(read_transitions(line, limit=100))
    assert faults.reads - reads <= 2


def test_counts() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store)
    worker.what = "error"
    with pytest.raises(ValueError, match="wrong"):
        worker.transition("work")
    total = count_transitions(run(read_transitions(line_of(store), limit=1000)))
    assert total == count_transitions(recorded(store))
    assert total.successes == {TransitionKey("idle", "work", "busy"): 3, TransitionKey("busy", "rest", "idle"): 3}
    assert total.failures == {TransitionKey("idle", "work", "busy"): 1}
    assert total.entries == {"busy": 3, "idle": 3}


# Replay -------------------------------------------------------------------------------------------------------


def test_what_was_recorded_leads_where_it_led() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 2)
    worker.what = "error"
    with pytest.raises(ValueError, match="wrong"):
        worker.transition("work")
    worker.what = ""
    worker.transition("work")
    worker.rollback("busy")
    again = check_transitions(run(read_transitions(line_of(store))), worker_machine())
    assert again.matches
    assert again.path == ("idle", "busy", "idle", "busy", "idle", "busy", "busy")
    assert (again.state, again.divergence) == ("busy", None)
    assert check_transitions([], Machine("a", "b")).path == ("a",)


def changed_machine(**how: str) -> Machine:
    machine = Machine("idle", "busy", "tired")
    machine.add("work", "idle", how.get("work", "busy"))
    machine.add("rest", "busy", "idle")
    machine.add("yawn", "busy", "tired")
    return machine


def test_a_machine_that_was_changed_since() -> None:
    store = store_on(MemoryBackend())
    busy_worker(store, 2)
    rows = recorded(store)
    found = check_transitions(rows, changed_machine(work="tired"))
    assert (found.matches, found.path, found.divergence) == (False, ("idle",), rows[0])
    assert found.reason == "'work' leads from 'idle' to 'tired', not 'busy'"
    without = Machine("idle", "busy")
    without.add("work", "idle", "busy")
    found = check_transitions(rows, without)
    assert (found.path, found.divergence) == (("idle", "busy"), rows[1])
    assert "is not a trigger of the state" in found.reason
    assert "no state 'busy'" in check_transitions(rows, Machine("idle")).reason
    assert "no state 'idle'" in check_transitions(rows, Machine("busy")).reason
    assert "the one before led to" in check_transitions([rows[0], *rows[2:]], changed_machine()).reason


@given(st.lists(st.sampled_from(["work", "rest", "yawn"]), max_size=12))
def test_replay_goes_as_the_machine_does(triggers: list[str]) -> None:
    store = store_on(MemoryBackend())
    walker = Walker().attach(store, "w")
    walked = ["idle"]
    for trigger in triggers:
        try:
            walked.append(walker.transition(trigger))
        except InvalidError:
            continue
    if walker.version:
        assert check_transitions(recorded(store), changed_machine()).path == tuple(walked)


class Walker(holdfast.agents.PersistentAgent, name="test-walker"):
    machine = changed_machine()


# Rollback -----------------------------------------------------------------------------------------------------


def test_back_to_a_version_a_checkpoint_and_a_state() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 1)
    worker.conversation.append({"role": "user", "content": "one"})
    worker.context["k"] = 1
    worker.save()
    first = store.agents.load("w")
    worker.transition("work", "later")
    worker.conversation.append({"role": "user", "content": "two"})
    worker.context["k"] = 2
    worker.save()
    busy = store.agents.load("w")
    worker.transition("rest")
    before = worker.version
    for to in (first.version, first.checkpoint, "busy"):
        expected = busy if to == "busy" else first
        before += 1
        assert worker.rollback(to) == before
        record = store.agents.load("w")
        for mine in (record, worker):
            assert (mine.state, mine.context, mine.status) == (expected.state, expected.context, "running")
        assert record.fields == expected.fields
        assert worker.log == expected.fields["log"]
        assert len(worker.conversation) == record.messages == expected.messages
        assert kinds(store)[-1] == "rollback"
        row = recorded(store)[-1]
        assert (row.trigger, row.target, row.outcome) == ("rollback", expected.state, "ok")
        assert row.data == {"version": expected.version, "checkpoint": expected.checkpoint}
    assert store.agents.load("w", version=busy.version).fields == busy.fields
    assert store.maintenance.verify().findings == []
    worker.transition("rest")
    worker.conversation.append({"role": "user", "content": "three"})
    worker.stop()
    assert store_on(store._engine.context.backend).agents.restore("w").log == worker.log


def test_back_to_a_state_is_to_before_the_action() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.log.append("before")
    worker.transition("work", 1)
    assert worker.log == ["before", "act 1"]
    worker.rollback("idle")
    assert (worker.log, worker.state) == (["before"], "idle")
    assert worker.persister.data.pending is None
    worker.rollback("busy")
    assert (worker.log, worker.state) == (["before", "act 1"], "busy")


def test_where_it_never_was() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 1)
    for to in ("nowhere", "done", 99, 0):
        with pytest.raises(NotFoundError):
            worker.rollback(to)
    with pytest.raises(NotFoundError):
        run(roll_back(line_of(store, "nobody"), 1))


def test_without_the_class() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 1)
    made = run(roll_back(line_of(store), "busy"))
    assert store.agents.load("w").checkpoint == made.id
    assert store.agents.load("w").state == "busy"
    with pytest.raises(ConflictError):
        worker.transition("work")


def test_what_does_not_fit_is_not_gone_back_to() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 1)
    worker.log.append("lazy")
    worker.save()
    lazy = worker.version
    worker.log.pop()
    worker.transition("work")
    before = worker.version
    run(roll_back(line_of(store), "idle"))
    worker = Worker().attach(store, "w")
    worker.start()
    strict = Strict().attach(store, "w")
    strict.start()
    with pytest.raises(InvalidError, match="not lazy"):
        strict.rollback(lazy)
    assert store.agents.load("w").version == strict.version > before


class Strict(Worker, name="test-strict"):
    log: list[str] = []

    def validate(self, fields: Any) -> None:
        if "lazy" in fields["log"]:
            raise ValueError("it is not lazy")


Strict.spec = replace(Strict.spec, name=Worker.spec.name)  # the same class, in a later release


def test_not_in_the_middle_of_something() -> None:
    store = store_on(MemoryBackend())
    worker = busy_worker(store, 1)
    worker.what = "crash"
    with pytest.raises(Crash):
        worker.transition("work")
    with pytest.raises(ConflictError, match="incomplete") as raised:
        run(roll_back(line_of(store), 1))
    assert raised.value.code == "transition-incomplete"


# Stores -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mongodb"])
def test_on_stores(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, tenant="acme") as store:
        worker = busy_worker(store, 2)
        worker.what = "crash"
        with pytest.raises(Crash):
            worker.transition("insist", {"n": 1})
    with holdfast.open(url, tenant="acme") as store:
        worker = store.agents.restore("w")
        worker.start()
        assert (worker.state, worker.status, worker.log[-2:]) == ("busy", "running", ["act {'n': 1}", "start "])
        worker.rollback("idle")
        worker.stop()
        assert [each[0] for each in path(store)] == ["work", "rest", "work", "rest", "insist", "rollback"]
        assert (
            count_transitions(run(read_transitions(line_of(store), limit=1000))).successes[
                TransitionKey("idle", "work", "busy")
            ]
            == 2
        )
        assert store.maintenance.verify().findings == []


def test_on_a_store_for_asyncio(tmp_path: Path) -> None:
    import asyncio

    async def main() -> None:
        async with holdfast.aopen(place("sqlite", tmp_path)) as store:
            worker = AsyncWorker().attach(store, "w")
            await worker.start()
            await worker.transition("work", 1)
            await worker.transition("rest")
            assert await worker.rollback("busy") == 6
            assert worker.state == "busy"
            await worker.stop()

    asyncio.run(main())
