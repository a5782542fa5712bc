"""Agents that recover: a program runs them, and a worker goes on when it has died."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.agents import AsyncPersistentAgent, PersistentAgent
from holdfast.errors import ClaimLostError, ConflictError, InvalidError
from tests.agents.runs.test_workers_kills import NO_KILL, left_over
from tests.support.kills import kill, run_in_child


class Guide(PersistentAgent, name="runs-guide", recover=True):
    """Goes on with the tour that it was on."""

    seen: list[str] = []

    def run(self) -> list[str]:
        for place in ("abbey", "pier"):
            if place not in self.seen:
                self.seen.append(place)
                self.save()
        return self.seen


@NO_KILL
@pytest.mark.parametrize("killed", [False, True])
def test_a_worker_goes_on_with_an_agent_whose_program_died(tmp_path: Path, killed: bool) -> None:
    path = tmp_path / "a.db"

    def tour(report: Callable[[str], None]) -> None:
        with holdfast.open(path) as store, Guide().attach(store, "g-1") as guide:
            guide.seen.append("abbey")
            guide.save()
            report(store.runs.list(agent="g-1")[0].state)
            if killed:
                kill()

    reported, _ = run_in_child(tour)
    assert reported == ["running"]
    with holdfast.open(path) as store:
        assert len(store.runs.list(agent="g-1")) == killed  # one that was stopped leaves no run
        store.worker(Guide).run_due()
        record = store.agents.load("g-1")
        assert (record.fields["seen"], record.status) == ((["abbey", "pier"] if killed else ["abbey"]), "stopped")
        assert [each.state for each in store.runs.list(agent="g-1")] == ["done"] * killed
    assert left_over(path) == []


def test_an_agent_that_recovers_runs_in_one_place_at_a_time(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        first = Guide().attach(store, "g-1")
        first.start()
        with pytest.raises(ConflictError, match="in progress"):
            store.agents.restore("g-1").start()
        store.worker(Guide).run_due()
        assert store.agents.load("g-1").status == "running"  # a worker leaves it alone
        first.pause()
        assert store.runs.list() == []
        second = store.agents.restore("g-1")
        second.resume()
        store.runs.cancel(store.runs.list()[0].id)
        with pytest.raises(ClaimLostError):
            second.save()
        with pytest.raises(InvalidError, match="recover"):
            Guide().attach(store, "g-2", recover="yes")  # type: ignore[arg-type]


def test_one_that_failed_is_retried_by_a_worker(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        with pytest.raises(ValueError, match="lost"), Guide().attach(store, "g-1"):
            raise ValueError("lost the way")
        (run,) = store.runs.list(agent="g-1")
        assert (run.state, run.error_code) == ("failed", "agent-failed")
        assert "lost the way" in run.error
        store.runs.retry(run.id)
        store.worker(Guide).run_due()
        assert store.runs.get(run.id).result == ["abbey", "pier"]
        submitted = store.runs.submit(None, agent="g-1")
        with pytest.raises(ConflictError):
            store.agents.restore("g-1").start()  # its turn comes after what was submitted
        store.worker(Guide).run_due()
        assert store.runs.get(submitted.id).state == "done"


def test_an_agent_of_asyncio_recovers(tmp_path: Path) -> None:
    class AsyncGuide(AsyncPersistentAgent, name="runs-async-guide", recover=True):
        async def run(self) -> str:
            return "went on"

    async def tour() -> None:
        async with holdfast.aopen(tmp_path / "a.db") as store:
            guide = await store.agents.create(AsyncGuide, "g-1")
            async with guide:
                assert [each.state for each in await store.runs.list(agent="g-1")] == ["running"]
            assert await store.runs.list(agent="g-1") == []

    asyncio.run(tour())
