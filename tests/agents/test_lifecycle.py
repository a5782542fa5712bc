"""The lifecycle of an agent: which changes there are, what each calls and saves, and what an error leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast.agents.api.agent import PersistentAgent
from holdfast.agents.runtime.two_phase import LIFECYCLE, parse_status
from holdfast.agents.storage.record import STATUSES, Status
from holdfast.backends.memory import MemoryBackend
from holdfast.errors import ConflictError, CorruptError, InvalidError
from tests.agents.workers import AsyncWorker, Worker, async_store_on, kinds, path, recorded, store_on

LEGAL: dict[str, tuple[tuple[Status, ...], Status]] = {
    "start": (("created", "stopped", "failed"), "running"),
    "pause": (("running",), "paused"),
    "resume": (("paused",), "running"),
    "stop": (("running", "paused", "failed", "created"), "stopped"),
}


def test_a_life() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    assert worker.status == "created"
    seen = []
    for change in (worker.start, worker.pause, worker.resume, worker.stop, worker.start):
        change()
        seen.append(worker.status)
        assert store.agents.load("w").status == worker.status
    assert seen == ["running", "paused", "running", "stopped", "running"]
    assert worker.log == ["start ", "pause ", "resume ", "stop ", "start "]
    assert kinds(store) == ["lifecycle.begin", "lifecycle"] * 5
    assert [store.agents.load("w", version=version).status for version in (1, 3, 5, 7, 9)] == [
        "starting",
        "pausing",
        "resuming",
        "stopping",
        "starting",
    ]
    assert path(store, kind="lifecycle") == [
        ("start", "created", "running", "ok"),
        ("pause", "running", "paused", "ok"),
        ("resume", "paused", "running", "ok"),
        ("stop", "running", "stopped", "ok"),
        ("start", "stopped", "running", "ok"),
    ]
    assert worker.recoveries == []


def test_without_methods_of_its_own_each_change_is_one_step() -> None:
    store = store_on(MemoryBackend())
    silent = Silent().attach(store, "w")
    silent.start()
    silent.pause()
    silent.resume()
    silent.fail("why not")
    silent.stop()
    assert kinds(store) == ["lifecycle"] * 5


class Silent(PersistentAgent, name="test-silent"):
    pass


@pytest.mark.parametrize("trigger", sorted(LEGAL))
@pytest.mark.parametrize("status", ["created", "running", "paused", "stopped", "failed"])
def test_only_these_changes_there_are(trigger: str, status: Status) -> None:
    """What there is not is refused before anything is written."""
    worker = Worker().attach(store_on(MemoryBackend()), "w")
    ways: dict[str, tuple[Callable[[], None], ...]] = {
        "created": (),
        "running": (worker.start,),
        "paused": (worker.start, worker.pause),
        "stopped": (worker.stop,),
        "failed": (lambda: worker.fail("x"),),
    }
    for each in ways[status]:
        each()
    before = worker.version
    sources, target = LEGAL[trigger]
    change: Callable[[], None] = getattr(worker, trigger)
    if status in sources:
        change()
        assert worker.status == target
        return
    with pytest.raises(InvalidError, match="is not a trigger of the state") as raised:
        change()
    assert raised.value.code == "no-transition"
    assert (worker.status, worker.version) == (status, before)


@pytest.mark.parametrize("trigger", ["start", "pause", "resume", "stop"])
def test_an_error_in_a_method_of_its_own_has_it_failed(trigger: str) -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    for name in {"start": (), "pause": ("start",), "resume": ("start", "pause"), "stop": ("start",)}[trigger]:
        getattr(worker, name)()
    worker.what = "error"
    with pytest.raises(ValueError, match="it went wrong"):
        getattr(worker, trigger)()
    assert worker.status == store.agents.load("w").status == "failed"
    assert kinds(store)[-1] == "lifecycle.failed"
    assert recorded(store, kind="lifecycle")[-1].error == "ValueError: it went wrong"
    worker.what = ""
    worker.start()
    assert store.agents.load("w").status == "running"


def test_a_failure_is_saved_before_it_is_told() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.start()
    worker.what = "error"
    with pytest.raises(ValueError, match="it went wrong"):
        worker.fail(OSError("no disk"))
    assert worker.status == store.agents.load("w").status == "failed"
    assert worker.log[-1] == "fail no disk"
    row = recorded(store, kind="lifecycle")[-1]
    assert (row.trigger, row.source, row.target, row.outcome, row.error) == (
        "fail",
        "running",
        "failed",
        "ok",
        "OSError: no disk",
    )
    worker.what = ""
    worker.fail("again")
    assert recorded(store, kind="lifecycle")[-1].source == "failed"


def test_a_failure_in_the_middle_of_a_transition_leaves_that_to_the_next_start() -> None:
    store = store_on(MemoryBackend())
    worker = Worker().attach(store, "w")
    worker.start()
    worker.what = "crash"
    with pytest.raises(BaseException):  # noqa: B017, PT011 - the crash
        worker.transition("work")
    worker.what = ""
    worker.fail("crashed")
    assert worker.status == "failed"
    assert worker.persister.data.pending is not None
    worker.start()
    assert (worker.status, worker.state) == ("running", "idle")
    assert [each.kind for each in worker.recoveries] == ["transition"]


def test_it_goes_on_in_another_process() -> None:
    memory = MemoryBackend()
    worker = Worker().attach(store_on(memory), "w")
    worker.start()
    worker.transition("work", 1)
    worker.conversation.append({"role": "user", "content": "hello"})
    worker.pause()
    again = Worker().attach(store_on(memory), "w")
    with pytest.raises(InvalidError, match="'start' is not a trigger of the state"):
        again.start()
    again.resume()
    assert (again.status, again.state, again.log) == ("running", "busy", ["start ", "act 1", "pause ", "resume "])
    assert len(again.conversation) == 1
    assert again.recoveries == []
    again.stop()
    third = Worker().attach(store_on(memory), "w")
    third.start()
    assert (third.status, third.state, third.recoveries) == ("running", "busy", [])
    with pytest.raises(ConflictError):
        worker.save()


def test_an_agent_for_asyncio() -> None:
    async def main() -> None:
        store = async_store_on(MemoryBackend())
        worker = AsyncWorker().attach(store, "w")
        await worker.start()
        await worker.transition("work", 1)
        await worker.pause()
        await worker.resume()
        worker.what = "error"
        with pytest.raises(ValueError, match="it went wrong"):
            await worker.stop()
        assert worker.status == "failed"
        worker.what = ""
        await worker.fail("still")
        await worker.start()
        assert worker.log == ["start ", "act 1", "pause ", "resume ", "fail still", "start "]
        assert (await store.agents.load("w")).status == "running"
        assert await worker.recover() == []

    asyncio.run(main())


def test_all_statuses_are_in_the_machine() -> None:
    assert LIFECYCLE.states == STATUSES
    with pytest.raises(CorruptError, match="no status 'asleep'"):
        parse_status("asleep")
