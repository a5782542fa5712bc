"""Metrics of the saves of agents."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

import pytest

from holdfast.agents.definition.options import Autosave
from holdfast.agents.runtime.metrics import SAVE, SaveCounts, read_saves
from holdfast.backends.runtime.metrics import Metrics
from holdfast.errors import ConflictError, InvalidError, TransientError
from holdfast.metrics import to_prometheus
from tests.agents.autosaved import AsyncNoter, Noter, async_wobbly, steps, until, wobbly
from tests.interfaces.metrics.kit import parse, value


def test_each_way_in_which_a_save_ends_is_counted() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a")
        agent.start()
        agent.notes.append("x")
        agent.save()
        agent.flush()
        backend.fail()
        agent.notes.append("y")
        for _ in range(2):
            with pytest.raises(TransientError):
                agent.save()
        backend.work()
        agent.notes.append("bad")
        with pytest.raises(InvalidError):
            agent.save()
        agent.notes.remove("bad")
        agent.save()
        other = store.agents.restore("a")
        other.save()
        with pytest.raises(ConflictError):
            agent.save()
        counts = agent.metrics.counts
        assert (counts.done, counts.unchanged, counts.failed, counts.invalid) == (3, 1, 4, 1)
        assert counts.attempted == 8
        assert counts.retried == 3  # after each of the first three failures
        assert agent.metrics.success_rate == 3 / 7
        assert agent.metrics.error.startswith("ConflictError: ")
        assert agent.metrics.version == 3
        assert counts.done + other.metrics.counts.done == steps(store, agent)


def test_transitions_and_recoveries_are_counted() -> None:
    store, _ = wobbly()
    with store:
        agent = Noter().attach(store, "a")
        agent.start()
        agent.transition("work")
        agent.transition("rest")
        with pytest.raises(ZeroDivisionError):
            agent.transition("work", "fail")
        counts = agent.metrics.counts
        assert (counts.transitions, counts.failed_transitions, counts.recoveries) == (2, 1, 0)
        later = store.agents.restore("a")
        later.start()  # it was running, and nobody had stopped it
        assert len(later.recoveries) == later.metrics.counts.recoveries == 1


def test_a_transition_whose_answer_was_lost_is_counted_once() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a")
        agent.start()
        agent.transition("work")
        backend.lose = 1
        with pytest.raises(TransientError):
            agent.transition("rest")
        agent.save()
        assert agent.metrics.counts.transitions == 2
        assert len(store.agents.transitions("a")) == 2
        assert agent.metrics.counts.done == steps(store, agent)


def test_the_figures_of_a_store_are_those_of_its_agents() -> None:
    store, _ = wobbly()
    with store:
        settings = Autosave(interval=1000, changes=5)
        agents = [Noter().attach(store, f"a{number}", autosave=settings) for number in range(4)]
        for number, agent in enumerate(agents):
            agent.start()
            for _ in range(number):
                agent.conversation.append("x")
        figures = store.agents.metrics()
        assert set(figures.agents) == {"a0", "a1", "a2", "a3"}
        assert figures.unsaved == figures.counts.changes == 0 + 1 + 2 + 3
        assert figures.counts.done == 4
        assert figures.oldest >= figures.agents["a1"].oldest >= figures.agents["a2"].oldest > 0
        assert figures.buckets[float("inf")] == 4
        assert figures.success_rate == 1.0
        gone = agents.pop()
        gone.stop()
        del gone, agent
        until(lambda: gc.collect() >= 0 and "a3" not in store.agents.metrics().agents)
        assert store.agents.metrics().counts.done == 5  # what it did stays counted
        assert store.agents.metrics().counts.changes == 6


def test_an_identity_sees_its_own_agents_only() -> None:
    store, _ = wobbly()
    with store:
        mine, theirs = store.as_identity(agent="mine"), store.as_identity(agent="theirs")
        own = Noter().attach(mine, "mine")
        own.save()
        other = Noter().attach(theirs, "theirs")
        other.save()
        other.save()
        assert set(mine.agents.metrics().agents) == {"mine"}
        assert mine.agents.metrics().counts.done == 1
        assert store.agents.metrics().counts.done == 3
        assert set(store.agents.metrics().agents) == {"mine", "theirs"}


def test_the_figures_of_async_agents() -> None:
    async def main() -> None:
        store, _ = async_wobbly()
        async with store:
            agent = AsyncNoter().attach(store, "a", autosave=Autosave(interval=1000))
            await agent.start()
            agent.mark_changed(3)
            assert store.agents.metrics().unsaved == 3
            assert agent.metrics.counts.changes == 3

    asyncio.run(main())


class Opening(threading.Event):
    """Whoever waits for it waits so long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait(self, timeout: float | None = None) -> bool:
        time.sleep(self._seconds)
        return True


def test_the_times_are_those_of_the_saves() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a")
        agent.start()
        first = agent.metrics.counts.worst
        backend.gate = Opening(0.15)
        agent.save()
        figures = agent.metrics
        assert 0.15 <= figures.counts.worst <= figures.counts.seconds < 60
        assert figures.buckets[0.1] == (first <= 0.1)
        assert figures.buckets[float("inf")] == 2
        assert list(figures.buckets.values()) == sorted(figures.buckets.values())


def test_the_text_for_prometheus() -> None:
    store, backend = wobbly()
    with store:
        agent = Noter().attach(store, "a", autosave=Autosave(interval=1000, failures=1, rest=1000, max_rest=1000))
        agent.start()
        agent.mark_changed(2)
        backend.fail()
        with pytest.raises(TransientError):
            agent.save()
        figures = store.agents.metrics()
        backend.work()
        told = parse(to_prometheus(store.maintenance.metrics()))
        assert value(told, "agent_saves_total", outcome="done") == 1
        assert value(told, "agent_saves_total", outcome="failed") == 1
        assert value(told, "agent_changes_total") == value(told, "agent_unsaved_changes") == 2
        assert value(told, "breaker_open", of="agents") == value(told, "agent_breaker_opened_total") == 1
        assert value(told, "agent_save_seconds_bucket", le="+Inf") == value(told, "agent_save_seconds_count") == 1
        assert value(told, "agent_save_seconds_sum") == figures.counts.seconds
        assert value(told, "agent_oldest_unsaved_seconds") > 0


def test_many_threads_count_without_losing_any() -> None:
    store = Metrics()
    agents = [Metrics(store) for _ in range(4)]

    def count(figures: Metrics) -> None:
        for _ in range(2000):
            figures.add(failed=1)
            figures.add_duration(SAVE, 0.001)

    threads = [threading.Thread(target=count, args=(each,)) for each in (*agents, *agents)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (counts, durations), together = read_saves(store), read_saves(Metrics.sum(agents))
    assert counts.failed == together[0].failed == 16_000
    assert durations.bucket_counts == together[1].bucket_counts
    assert durations.count == 16_000


def test_figures_that_are_shown_stay_as_they_are() -> None:
    figures = Metrics()
    before, _ = read_saves(figures)
    figures.add(failed=1)
    assert before == SaveCounts()
    assert before.success_rate == 1.0
    shown: Any = read_saves(figures)[0]
    assert (shown.attempted, shown.success_rate) == (1, 0.0)
