"""Automatic saves in the background: agents of a Store, and of an AsyncStore."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.agents.definition.options import Autosave
from holdfast.agents.definition.state_machine import invoke
from holdfast.agents.runtime.autosave import AgentBusy, AutosaveWorker, SaveQueue, _is_ending, suspend_autosave
from holdfast.errors import ConflictError, TransientError
from tests.agents.autosaved import AsyncNoter, Noter, async_wobbly, steps, threads, until, wobbly

QUICK = Autosave(interval=0.05, changes=10, pause=0.01, max_pause=0.02)
SELDOM = Autosave(interval=1000.0, changes=10)


def notes(store: holdfast.Store, id: str = "a") -> list[str]:
    found: list[str] = store.agents.load(id).fields["notes"]
    return found


async def saved(agent: AsyncNoter) -> None:
    """Wait until all is saved."""
    while agent.metrics.unsaved:
        await asyncio.sleep(0.001)


# When ---------------------------------------------------------------------------------------------------------


def test_many_changes_make_one_save_and_none_makes_none() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=SELDOM)
        agent.start()
        for number in range(9):
            agent.notes.append(str(number))
            agent.mark_changed()
        time.sleep(0.05)
        assert steps(store, agent) == 1
        agent.mark_changed()
        until(lambda: steps(store, agent) == 2)
        assert notes(store) == [str(number) for number in range(9)]
        until(lambda: agent.metrics.counts.coalesced == 9)  # counted a moment after it is saved
        assert not agent.metrics.unsaved
        agent.mark_changed(10)
        until(lambda: agent.metrics.counts.unchanged == 1)
        assert steps(store, agent) == 2  # it said so, but nothing was


def test_messages_tools_and_workflow_count_by_themselves() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=SELDOM)
        agent.start()
        agent.conversation.append({"role": "user", "content": "hello"})
        assert agent.metrics.unsaved == 1
        agent.tools.declare("search")
        agent.workflow["step"] = 1
        assert agent.metrics.unsaved == 3
        with agent.change_block():
            agent.notes.append("x")
        assert agent.metrics.unsaved == 4
        assert agent.flush() == 2
        assert agent.metrics.unsaved == 0
        assert agent.flush() == 2  # nothing to do


def test_what_nobody_tells_of_is_found_while_the_agent_runs() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=QUICK)
        agent.start()
        agent.notes.append("silent")
        until(lambda: notes(store) == ["silent"])
        agent.pause()
        made = steps(store, agent)
        agent.notes.append("at rest")
        time.sleep(0.2)
        assert steps(store, agent) == made


def test_an_agent_without_autosave_has_no_thread_and_no_watch() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a")
        agent.start()
        agent.mark_changed()
        with agent.change_block():
            agent.notes.append("x")
        assert agent.persister.tracker is None
        assert agent.metrics.unsaved == 0
        assert not agent.metrics.is_autosaved
        until(lambda: not threads())


# Without being in the way -------------------------------------------------------------------------------------


def test_the_agent_goes_on_while_a_save_hangs() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.01, changes=1))
        agent.start()
        backend.gate.clear()
        agent.notes.append("0")
        agent.mark_changed()
        until(lambda: agent.persister.committing_thread)
        began = time.perf_counter()
        for number in range(1, 1000):
            agent.notes.append(str(number))
            agent.mark_changed()
        assert time.perf_counter() - began < 60  # the store would have taken two minutes
        assert agent.metrics.unsaved == 1000
        backend.gate.set()
        until(lambda: len(notes(store)) == 1000)


def test_nothing_is_taken_in_the_middle_of_a_change() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.001, changes=1))
        agent.start()
        with agent.change_block():
            agent.notes.append("half")
            agent.mark_changed()
            time.sleep(0.1)
            assert notes(store) == []
            agent.notes.append("whole")
        until(lambda: notes(store) == ["half", "whole"])


def test_nothing_is_taken_in_the_middle_of_a_transition() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.001, changes=1))
        agent.start()
        seen: list[list[str]] = []

        def work(agent: Noter) -> None:
            agent.notes.append("half")
            agent.mark_changed()
            time.sleep(0.1)
            seen.append(notes(store))

        agent.transition("work", None)
        agent.transition("rest")
        agent.work = lambda data: work(agent)  # type: ignore[method-assign]
        agent.transition("work")
        assert seen == [[]]
        assert notes(store) == ["half"]


def test_a_container_that_changes_while_it_is_packed_is_tried_again() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=1000, changes=1))
        agent.start()
        real, tried = agent.persist, 0

        def persist() -> Mapping[str, Any]:
            nonlocal tried
            tried += 1
            if tried < 3:
                raise RuntimeError("dictionary changed size during iteration")
            return {**real(), "table": {"x": 1}}

        agent.persist = persist  # type: ignore[method-assign]
        agent.mark_changed()
        until(lambda: store.agents.load("a").fields["table"] == {"x": 1})
        assert tried == 3
        assert agent.metrics.counts.failed == 0
        assert agent.autosave_error is None


def test_one_that_always_changes_while_it_is_packed_is_told_of() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=1000, changes=1))
        agent.start()

        def torn() -> dict[str, object]:
            raise RuntimeError("dictionary changed size during iteration")

        agent.persist = torn  # type: ignore[method-assign]
        agent.mark_changed()
        until(lambda: agent.metrics.counts.failed)
        assert isinstance(agent.autosave_error, RuntimeError)
        del agent.persist
        until(lambda: not agent.metrics.unsaved)
        assert agent.autosave_error is None


def test_a_dict_that_really_grows_meanwhile_is_saved_in_the_end() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.005, changes=5))
        agent.start()
        for number in range(3000):
            agent.table[f"key {number}"] = number
            agent.mark_changed()
        agent.stop()
        assert store.agents.load("a").fields["table"] == agent.table
        assert agent.metrics.counts.failed == 0


# Threads and lives --------------------------------------------------------------------------------------------


def test_hundreds_of_agents_share_one_thread_which_ends_with_them() -> None:
    until(lambda: not threads())  # those of other tests
    store, _ = wobbly()
    with store:
        agents = [Noter().attach(store, f"a{number}", autosave=QUICK) for number in range(100)]
        for agent in agents:
            agent.notes.append("x")
            agent.mark_changed()
        assert len(threads()) == 1
        until(lambda: not any(each.metrics.unsaved for each in agents))
        assert all(steps(store, agent) == 1 for agent in agents[::30])
        agents.clear()
        del agent
        until(lambda: gc.collect() >= 0 and not threads())
        late = Noter().attach(store, "late", autosave=QUICK)
        late.mark_changed()
        until(lambda: steps(store, late))
        assert len(threads()) == 1
    until(lambda: not threads())  # the store is closed, and the agent lives on
    assert late.version


def test_an_agent_is_kept_alive_only_while_it_has_something_unsaved() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.02))
        agent.start()
        backend.gate.clear()
        agent.notes.append("last words")
        agent.mark_changed()
        gone = weakref.ref(agent)
        del agent
        gc.collect()
        assert gone() is not None
        backend.gate.set()
        until(lambda: notes(store) == ["last words"])
        until(lambda: gc.collect() >= 0 and gone() is None)


def test_closing_the_store_saves_what_is_unsaved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with holdfast.open(url) as store:
        told, silent, at_rest = (Noter().attach(store, id, autosave=SELDOM) for id in ("told", "silent", "rest"))
        for agent in (told, silent, at_rest):
            agent.start()
        told.notes.append("x")
        told.mark_changed()
        silent.notes.append("y")
        at_rest.stop()
        at_rest.notes.append("z")
    with holdfast.open(url) as store:
        assert [notes(store, id) for id in ("told", "silent", "rest")] == [["x"], ["y"], []]
    told.mark_changed()  # nobody saves it any more, and nobody minds
    assert told.metrics.unsaved == 1


def test_closing_a_store_that_is_down_tells_what_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    store, backend = wobbly()
    agents = [Noter().attach(store, f"a{number}", autosave=SELDOM) for number in range(3)]
    for agent in agents:
        agent.start()
        agent.notes.append("lost")
        agent.mark_changed()
    backend.fail()
    with caplog.at_level(logging.ERROR, "holdfast.agents"):
        store.close()
    assert backend.refused == 1  # it is not asked again for each
    assert "changes to agents could not be saved: a0, a1, a2: " in caplog.text


_PROGRAM = """
import holdfast, sys
from holdfast.agents.api.agent import PersistentAgent
from holdfast.agents.definition.options import Autosave
from holdfast.agents.runtime.autosave import AgentBusy
from holdfast.agents.runtime.autosave import suspend_autosave
from holdfast.agents.runtime.autosave import AutosaveWorker
class Noter(PersistentAgent, name="noter"):
    notes: list[str] = []
store = holdfast.open(sys.argv[1])
agent = Noter().attach(store, "a", autosave=Autosave(interval=1000))
agent.start()
agent.notes.append("before the end")
agent.mark_changed()
"""


def test_a_program_that_ends_saves_what_is_unsaved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM, url], timeout=300, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    with holdfast.open(url) as store:
        assert notes(store) == ["before the end"]


def test_a_forked_child_saves_what_it_changes_itself(tmp_path: Path) -> None:
    store = holdfast.open(f"sqlite:///{tmp_path}/a.db")
    agent = Noter().attach(store, "a", autosave=Autosave(interval=0.02, changes=1))
    agent.start()
    agent.mark_changed()
    until(lambda: agent.metrics.counts.unchanged)
    child = os.fork()
    if not child:
        code = 1
        try:
            agent.notes.append("of the child")
            agent.mark_changed()
            until(lambda: not agent.metrics.unsaved)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert notes(store) == ["of the child"]
    store.close()


def test_nothing_is_taken_while_somebody_has_the_lock_or_holds_it_off() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=SELDOM)
        tracker = agent.persister.tracker
        assert tracker is not None
        seen: list[object] = []

        def take() -> None:
            try:
                seen.append(tracker.capture().mark)
            except AgentBusy:
                seen.append("busy")

        def elsewhere() -> None:
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()

        with agent.persister.lock:
            elsewhere()
        with suspend_autosave(agent.persister):
            take()
        agent.mark_changed(3)
        elsewhere()
        assert seen == ["busy", "busy", 3]


def test_after_a_fork_locks_are_free_and_what_the_parent_has_to_save_is_left_to_it() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=SELDOM)
        agent.start()
        agent.mark_changed()
        AutosaveWorker.of(store._engine)._thread_queue.close()  # a child has none
        with agent.persister.lock:
            AutosaveWorker.of(store._engine).reinit_locks()
            assert agent.metrics.unsaved == 0
            agent.mark_changed()
            thread = threading.Thread(target=agent.flush)
            thread.start()
            thread.join(120)
            assert not thread.is_alive()
        assert agent.metrics.unsaved == 0


def test_a_forked_child_that_ends_does_not_save_what_is_the_parents() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=SELDOM)
        agent.start()
        agent.notes.append("of the parent")
        agent.mark_changed()
        AutosaveWorker.of(store._engine)._thread_queue.close()  # a child has none
        AutosaveWorker.of(store._engine).reinit_locks()
        AutosaveWorker.of(store._engine).flush_at_exit()
        assert notes(store) == []
        agent.mark_changed()
        AutosaveWorker.of(store._engine).flush_at_exit()
        assert notes(store) == ["of the parent"]


def test_a_program_that_ends_without_closing_a_store_for_asyncio_tells_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, _ = async_wobbly()
    agent = AsyncNoter().attach(store, "a", autosave=SELDOM)

    async def work() -> None:
        await agent.start()
        agent.notes.append("lost")
        agent.mark_changed()

    asyncio.run(work())
    AutosaveWorker.of(store._engine).flush_at_exit()
    assert "changes to agents could not be saved: a: the AsyncStore was not closed" in caplog.text
    asyncio.run(store.close())


def test_a_program_that_ends_while_the_store_is_left_alone_tells_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, backend = wobbly()
    agent = Noter().attach(store, "a", autosave=Autosave(interval=1000, failures=1, rest=1000, max_rest=1000))
    agent.start()
    agent.notes.append("lost")
    agent.mark_changed()
    AutosaveWorker.of(store._engine).flush_at_exit()
    assert notes(store) == ["lost"]
    agent.notes.append("really lost")
    agent.mark_changed()
    backend.fail()
    with pytest.raises(TransientError):
        agent.save()
    refused = backend.refused
    with caplog.at_level(logging.ERROR, "holdfast.agents"):
        AutosaveWorker.of(store._engine).flush_at_exit()
    assert backend.refused == refused
    assert "changes to agents could not be saved: a: " in caplog.text
    backend.work()
    agent.notes.append("bad")
    bystander = Noter().attach(store, "b", autosave=SELDOM)
    bystander.start()
    bystander.mark_changed()
    store.close()
    assert "a bad note" in caplog.text
    assert bystander.metrics.unsaved == 0
    store.close()
    AutosaveWorker.of(store._engine).flush_at_exit()


@pytest.mark.parametrize("workers", [1, 3])
def test_an_agent_that_is_always_being_changed_is_saved_all_the_same(workers: int) -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=0.02, changes=10**6))
        agent.start()
        deadline = time.monotonic() + 120

        def work() -> None:
            while agent.metrics.counts.done < 4 and time.monotonic() < deadline:
                with agent.change_block(), agent.change_block():
                    agent.notes.append("x")
                    time.sleep(0.002)

        several = [threading.Thread(target=work) for _ in range(workers)]
        for thread in several:
            thread.start()
        for thread in several:
            thread.join()
        assert agent.metrics.counts.done >= 4


@pytest.mark.parametrize("workers", [1, 3])
def test_an_agent_of_an_event_loop_that_is_always_being_changed_is_saved_all_the_same(workers: int) -> None:
    async def scenario() -> int:
        store, _ = async_wobbly()
        async with store:
            agent = AsyncNoter().attach(store, "a", autosave=Autosave(interval=0.02, changes=10**6))
            await agent.start()
            deadline = time.monotonic() + 120

            async def work() -> None:
                while agent.metrics.counts.done < 4 and time.monotonic() < deadline:
                    async with agent.change_block(), agent.change_block():
                        agent.notes.append("x")
                        await asyncio.sleep(0.002)

            await asyncio.gather(*(work() for _ in range(workers)))
            return agent.metrics.counts.done

    assert asyncio.run(scenario()) >= 4


@pytest.mark.nightly
@pytest.mark.parametrize("ends", [False, True])
def test_a_loop_whose_tasks_are_cancelled_leaves_the_rest_for_later(ends: bool) -> None:
    store, backend = async_wobbly()
    agents = [AsyncNoter().attach(store, str(n), autosave=Autosave(interval=0.05, changes=1)) for n in range(40)]
    apply = backend.apply
    gate: list[asyncio.Event] = []

    async def slow(changes: Any) -> Any:
        await invoke(gate[0].wait)
        return await apply(changes)

    async def begin() -> None:
        gate.append(asyncio.Event())
        for agent in agents:
            await agent.start()
        backend.apply = slow  # type: ignore[method-assign,assignment]
        for agent in agents:
            agent.notes.append("x")
            agent.mark_changed()
        await asyncio.sleep(0.02)
        backend.apply = apply  # type: ignore[method-assign]

    async def go_on() -> None:
        if ends:
            for agent in agents:
                agent.mark_changed()
        for agent in agents:
            await asyncio.wait_for(saved(agent), 120)
        await store.close()

    async def both() -> None:
        await begin()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await go_on()

    if ends:
        asyncio.run(begin())  # warnings, as of tasks that nobody waited for, are errors here
        gc.collect()
        assert not any(agent.persister.tracker.is_saving for agent in agents if agent.persister.tracker is not None)
        asyncio.run(go_on())
    else:
        asyncio.run(both())


@pytest.mark.parametrize("busy", [True, False], ids=["a save is under way", "nothing is under way"])
@pytest.mark.parametrize("closing", [False, True], ids=["", "a generator is being closed"])
def test_a_loop_that_takes_long_to_end_begins_no_save(
    busy: bool, closing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once tasks were cancelled, a new one would be left over when the loop is closed."""
    store, backend = async_wobbly()
    agents = [AsyncNoter().attach(store, str(n), autosave=Autosave(interval=0.01, changes=1)) for n in range(4)]
    apply, look, gate = backend.apply, SaveQueue._check, asyncio.Event()
    begun = looks = 0
    late: list[int] = []
    tasks: list[asyncio.Task[None]] = []  # the garbage collector would take one that waits for nothing else

    def count_looks(lane: SaveQueue) -> None:
        nonlocal looks
        look(lane)
        looks += 1

    async def count_saves(changes: Any) -> Any:
        nonlocal begun
        begun += 1
        await invoke(gate.wait)
        return await apply(changes)

    async def generate() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            await gate.wait()

    async def linger() -> None:
        """A task of the program that cleans up when it is cancelled, and changes agents as it does."""
        generator = generate()
        await anext(generator)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            before, looks_before = begun, looks
            # As the event loop closes a generator that nobody has any more.
            close = asyncio.create_task(generator.aclose()) if closing else None
            for agent in agents[1:]:
                agent.notes.append("at the end")
                agent.mark_changed()
            while looks == looks_before:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            late.append(begun - before)
            gate.set()
            await (generator.aclose() if close is None else close)

    async def work() -> None:
        for agent in agents:
            await agent.start()
        backend.apply = count_saves  # type: ignore[method-assign,assignment]
        tasks.append(task := asyncio.create_task(linger()))
        if busy:
            agents[0].notes.append("x")
            agents[0].mark_changed()
        await asyncio.sleep(0)
        while begun < busy:
            await asyncio.sleep(0.001)
        assert not task.done()

    monkeypatch.setattr(SaveQueue, "_check", count_looks)
    asyncio.run(work())
    assert late == [0]
    assert not any(agent.persister.tracker.is_saving for agent in agents if agent.persister.tracker is not None)
    asyncio.run(store.close())


def test_a_loop_that_waits_for_its_executor_is_ending() -> None:
    seen: list[bool] = []
    release = threading.Event()

    def check(loop: asyncio.AbstractEventLoop) -> None:
        seen.append(_is_ending(loop))
        release.set()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        seen.append(_is_ending(loop))
        task = asyncio.create_task(asyncio.sleep(60))
        loop.run_in_executor(None, release.wait, 60)
        loop.call_later(0.05, check, loop)
        assert not task.done()

    asyncio.run(work())
    assert seen == [False, True]


# What others do -----------------------------------------------------------------------------------------------


def test_a_conflict_halts_autosave_and_is_raised_by_the_next_save() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=QUICK)
        agent.start()
        other = store.agents.restore("a")
        other.notes.append("theirs")
        other.save()
        agent.notes.append("mine")
        agent.mark_changed()
        until(lambda: not agent.metrics.is_autosaved)
        made = steps(store, agent)
        assert isinstance(agent.autosave_error, ConflictError)
        assert agent.notes == ["mine"]
        agent.mark_changed(100)
        time.sleep(0.1)
        assert steps(store, agent) == made
        with pytest.raises(ConflictError) as caught:
            agent.save()
        assert caught.value.code == "agent-conflict"


def test_a_conflict_that_can_be_resolved_is_where_the_agent_runs() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=QUICK, on_conflict="merge")
        agent.start()
        other = store.agents.restore("a")
        other.notes.append("theirs")
        other.save()
        agent.table["mine"] = 1
        agent.mark_changed()
        until(lambda: not agent.metrics.is_autosaved)
        assert agent.notes == []  # nothing is taken on behind the agent's back
        agent.mark_changed()
        assert agent.metrics.is_autosaved
        assert (agent.notes, agent.table) == (["theirs"], {"mine": 1})
        assert store.agents.load("a").fields["table"] == {"mine": 1}


@pytest.mark.parametrize("lost", [1, 3])
def test_a_step_whose_answer_was_lost_is_not_made_twice(lost: int) -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=QUICK)
        agent.start()
        backend.lose = lost
        for number in range(30):
            agent.notes.append(str(number))
            agent.conversation.append({"role": "user", "content": str(number)})
        until(lambda: not agent.metrics.unsaved)
        figures = agent.metrics
        assert figures.is_autosaved
        assert figures.counts.failed >= 1
        assert figures.counts.done == steps(store, agent) == agent.version
        assert notes(store) == [str(number) for number in range(30)]
        assert store.agents.load("a").messages == 30


def test_a_bad_state_is_not_saved_and_the_next_good_one_is() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=QUICK)
        agent.start()
        agent.notes.append("bad")
        agent.mark_changed()
        until(lambda: agent.metrics.counts.invalid >= 2)
        figures = agent.metrics
        assert "bad note" in figures.error
        assert figures.breaker == "closed"
        assert figures.unsaved == 1
        agent.notes.clear()
        agent.notes.append("good")
        until(lambda: notes(store) == ["good"])
        assert backend.refused == 0


def test_the_store_comes_back_and_all_is_saved_at_once() -> None:
    store, backend = wobbly()
    patient = Autosave(interval=0.01, pause=0.01, max_pause=30.0, failures=3, rest=0.2, max_rest=0.2)
    with store:
        agents = [Noter().attach(store, f"a{number}", autosave=patient) for number in range(20)]
        for agent in agents:
            agent.start()
        backend.fail()
        began = time.monotonic()
        for agent in agents:
            agent.notes.append("x")
            agent.mark_changed()
        until(lambda: store.agents.metrics().breaker == "open")
        assert store.agents.metrics().unsaved == 20
        time.sleep(0.5)
        # Those that were under way, and one at a time since then: every 0.2 seconds, shortened by chance.
        refused = backend.refused
        assert refused <= 16 + 2 + (time.monotonic() - began) / 0.1
        assert store.agents.metrics().unsaved == 20
        backend.work()
        until(lambda: not store.agents.metrics().unsaved, 20)
        assert all(notes(store, agent.id) == ["x"] for agent in agents)
        assert store.agents.metrics().breaker == "closed"


# Write-through ------------------------------------------------------------------------------------------------


def test_in_write_through_all_is_saved_when_the_call_returns() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(write_through=True))
        agent.start()
        agent.conversation.append({"role": "user", "content": "one"})
        assert store.agents.load("a").messages == 1
        agent.notes.append("x")
        agent.mark_changed()
        assert notes(store) == ["x"]
        made = steps(store, agent)
        with agent.change_block():
            agent.notes.append("y")
            agent.conversation.append({"role": "user", "content": "two"})
            assert steps(store, agent) == made
        assert steps(store, agent) == made + 1
        assert notes(store) == ["x", "y"]
        with suppress(ZeroDivisionError), agent.change_block():
            agent.notes.append("z")
            raise ZeroDivisionError
        assert agent.metrics.unsaved == 1
        backend.fail()
        with pytest.raises(TransientError):
            agent.conversation.append({"role": "user", "content": "three"})
        backend.work()
        until(lambda: store.agents.load("a").messages == 3)  # it is tried again in the background
        assert notes(store) == ["x", "y", "z"]


def test_in_write_through_an_agent_may_change_while_its_state_is_taken() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(write_through=True, interval=0.02))
        agent.start()
        real, again = agent.persist, [True]

        def persist() -> Mapping[str, Any]:
            if again.pop() if again else False:
                agent.conversation.append({"role": "system", "content": "asked for my state"})
            return real()

        agent.persist = persist  # type: ignore[method-assign]
        agent.mark_changed()
        until(lambda: store.agents.load("a").messages == 1)


def test_in_write_through_an_async_agent_awaits() -> None:
    async def main() -> None:
        store, _ = async_wobbly()
        async with store:
            agent = AsyncNoter().attach(store, "a", autosave=Autosave(write_through=True, interval=1000))
            await agent.start()
            await agent.conversation.say({"role": "user", "content": "one"})
            assert (await store.agents.load("a")).messages == 1
            async with agent.change_block():
                agent.notes.append("x")
                await asyncio.sleep(0.02)
                assert (await store.agents.load("a")).fields["notes"] == []
            assert (await store.agents.load("a")).fields["notes"] == ["x"]
            agent.conversation.append({"role": "user", "content": "two"})
            await agent.flush()
            assert (await store.agents.load("a")).messages == 2
            agent.conversation.append({"role": "user", "content": "three"})
            await saved(agent)  # it hurries in the background
            assert (await store.agents.load("a")).messages == 3

    asyncio.run(asyncio.wait_for(main(), 120))


# asyncio ------------------------------------------------------------------------------------------------------


def test_an_async_agent_is_saved_on_its_own_loop() -> None:
    async def main() -> None:
        store, backend = async_wobbly()
        took: set[int] = set()
        async with store:
            agent = AsyncNoter().attach(store, "a", autosave=QUICK)
            real = agent.persist

            def persist() -> Mapping[str, Any]:
                took.add(threading.get_ident())
                return real()

            agent.persist = persist  # type: ignore[method-assign]
            await agent.start()
            for number in range(25):
                agent.notes.append(str(number))
                agent.mark_changed()
                await asyncio.sleep(0)
            await saved(agent)
            backend.fail()
            agent.notes.append("down")
            agent.mark_changed()
            while agent.metrics.counts.failed < 3:
                await asyncio.sleep(0.001)
            backend.work()
            await saved(agent)
            agent.notes.append("silent")
            while (await store.agents.load("a")).fields["notes"][-1] != "silent":
                await asyncio.sleep(0.001)
            agent.notes.append("at the end")
        assert took == {threading.get_ident()}
        assert agent.persister._saved_channels  # it was saved as the store was closed
        assert not agent.metrics.counts.invalid
        assert agent.metrics.counts.done == agent.version

    asyncio.run(asyncio.wait_for(main(), 120))


def test_an_async_agent_outlives_its_loop() -> None:
    store, _ = async_wobbly()
    agent = AsyncNoter().attach(store, "a", autosave=Autosave(interval=0.02))
    agent.mark_changed()  # there is no loop yet
    assert agent.metrics.unsaved == 1

    async def first() -> None:
        await agent.start()
        agent.notes.append("first")
        agent.mark_changed()

    async def second() -> None:
        agent.notes.append("second")
        agent.mark_changed()
        await saved(agent)
        assert (await store.agents.load("a")).fields["notes"] == ["first", "second"]
        await store.close()

    asyncio.run(first())
    agent.mark_changed()  # its loop is closed
    asyncio.run(asyncio.wait_for(second(), 120))


def test_a_cancelled_save_is_made_sure_of() -> None:
    async def main() -> None:
        store, _ = async_wobbly()
        async with store:
            agent = AsyncNoter().attach(store, "a", autosave=QUICK)
            await agent.start()
            agent.notes.append("x")
            task = asyncio.create_task(agent.save())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            agent.notes.append("y")
            await agent.save()
            assert (await store.agents.load("a")).fields["notes"] == ["x", "y"]

    asyncio.run(asyncio.wait_for(main(), 120))


# All of it at once --------------------------------------------------------------------------------------------


def test_whatever_the_store_does_all_is_there_in_the_end_and_the_figures_are_right() -> None:
    store, backend = wobbly()
    settings = Autosave(interval=0.003, changes=2, pause=0.001, max_pause=0.003, failures=3, rest=0.005, max_rest=0.01)
    agents = [Noter().attach(store, f"a{number}", autosave=settings) for number in range(20)]
    end = time.monotonic() + 1.5

    def going_on() -> bool:
        """Until something failed, at least."""
        now = time.monotonic()
        return now < end or (now < end + 60 and not store.agents.metrics().counts.failed)

    def work(agent: Noter) -> None:
        chance = random.Random(agent.id)
        while going_on():
            agent.notes.append("x")
            agent.mark_changed()
            with agent.change_block():
                agent.table["turns"] = agent.table.get("turns", 0) + 1
            if chance.random() < 0.05:
                with suppress(TransientError):
                    agent.flush()
            time.sleep(chance.random() * 0.01)

    def disturb() -> None:
        chance = random.Random(5)
        while going_on():
            time.sleep(chance.random() * 0.05)
            backend.fail()
            time.sleep(chance.random() * 0.02)
            backend.work()
            backend.lose = chance.randrange(2)

    workers = [threading.Thread(target=work, args=(agent,)) for agent in agents]
    workers.append(threading.Thread(target=disturb))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    backend.lose = 0
    with store:
        until(lambda: not any(agent.metrics.unsaved for agent in agents))
        until(lambda: all(agent.metrics.counts.changes == 2 * len(agent.notes) for agent in agents))
        for agent in agents:
            fields = store.agents.load(agent.id).fields
            assert (fields["notes"], fields["table"]) == (agent.notes, agent.table)
            assert agent.metrics.counts.done == agent.version == steps(store, agent)
        assert store.agents.metrics().counts.failed > 0
