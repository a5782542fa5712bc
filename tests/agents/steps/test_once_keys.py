"""Keys of durable steps that are used for something else, and records that are not used any more."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import holdfast
from holdfast.agents import AsyncPersistentAgent, Retry
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from tests.agents.steps.desk import ID, Desk, desk_of
from tests.servers.places import KINDS, place
from tests.state.kit import Place
from tests.support.nightly import mostly_nightly


def charge(order: int) -> str:
    return f"charged {order}"


def refund(order: int) -> str:
    return f"refunded {order}"


def charge_customer(order: int) -> str:
    return f"charged {order}"


class AsyncDesk(AsyncPersistentAgent, name="tests: strict desk, async"):
    """An agent of an AsyncStore."""


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite",)))
def test_a_key_belongs_to_one_function(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        desk = desk_of(store)
        assert desk.once("order-42", charge, 42) == "charged 42"
        with pytest.raises(ConflictError) as error:
            desk.once("order-42", refund, 42)
        assert error.value.code == "step-function"
        assert "formerly='charge'" in error.value.hint
        with pytest.raises(ConflictError, match="arguments"):
            desk.once("order-42", charge, 43)
        # It was renamed, or is called in another way.
        assert desk.once("order-42", charge_customer, 42, formerly="charge") == "charged 42"
        assert desk.once("order-42", charge_customer, 42, formerly=("charge", "pay")) == "charged 42"
        assert desk.once("order-42", partial(charge), 42) == "charged 42"
        assert desk.once("bound", partial(charge, 1)) == "charged 1"
        with pytest.raises(ConflictError) as error:
            desk.once("bound", partial(refund, 1))
        assert error.value.code == "step-function"
        decorated = desk.once(lambda order: f"order-{order}", formerly="charge")(charge_customer)
        assert decorated(42) == "charged 42"
        with pytest.raises(InvalidError):
            desk.once("new", charge, 1, formerly=(3,))  # type: ignore[arg-type]


def test_recorded_steps_that_are_not_asked_for_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        for n in range(3):
            desk.once(f"step-{n}", charge, n)
        assert "steps-unused" not in caplog.text  # all of them are new
    with holdfast.open(tmp_path / "s.db") as store, caplog.at_level(logging.WARNING, "holdfast.steps"):
        desk = desk_of(store)
        desk.once("step-0", charge, 0)
        assert "steps-unused" not in caplog.text
        desk.once("new-1", charge, 1)
        desk.once("new-2", charge, 2)
        assert caplog.text.count("steps-unused") == 1
        assert "2 recorded steps were not asked for, such as 'step-1'" in caplog.text


def test_a_strict_agent_is_refused(tmp_path: Path) -> None:
    calls: list[int] = []
    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        for n in range(3):
            desk.once(f"step-{n}", calls.append, n)
    with holdfast.open(tmp_path / "s.db") as store:
        desk = Desk().attach(store, ID, strict=True)
        desk.reload()
        for _ in range(2):
            with pytest.raises(ConflictError) as error:
                desk.once("step-3", calls.append, 3)
            assert error.value.code == "steps-unused"
        for n in range(5):
            desk.once(f"step-{n}", calls.append, n)
        assert calls == [0, 1, 2, 3, 4]
        with pytest.raises(InvalidError):
            Desk().attach(store, "other", strict="yes")  # type: ignore[arg-type]


def test_strict_and_async(tmp_path: Path) -> None:
    async def main() -> None:
        async with await holdfast.aopen(tmp_path / "s.db") as store:
            desk = AsyncDesk().attach(store, "desk", strict=True)
            await desk.save()
            await desk.once("one", charge, 1)
            again = AsyncDesk().attach(store, "desk", strict=True)
            await again.reload()
            with pytest.raises(ConflictError) as error:
                await again.once("two", charge, 2)
            assert error.value.code == "steps-unused"
            with pytest.raises(ConflictError) as error:
                await again.once("one", refund, 1)
            assert error.value.code == "step-function"

    asyncio.run(main())


TIMERS = 3000


@pytest.mark.nightly
@pytest.mark.time_limit(600)
def test_a_wait_keeps_its_timeout_with_many_due_timers(tmp_path: Path) -> None:
    place_ = Place(f"sqlite:///{tmp_path}/s.db")
    try:
        store = place_.open()
        desk = desk_of(store)
        for n in range(TIMERS):
            desk.timers.set(f"timer-{n}", "1s", signal="tick")
        place_.clock.sleep(60)
        delivered: list[int] = []
        begun = monotonic()
        assert desk.wait_for("never", timeout=0) is None
        delivered.append(len(desk.steps.signals("tick")))
        assert 0 < delivered[0] < TIMERS  # it did not go on until all were delivered
        assert monotonic() - begun < 60
        while len(desk.steps.signals("tick")) < TIMERS:  # later waits deliver the rest
            desk.wait_for("never", timeout=0)
        assert desk.timers.list() == []
        store.close()
    finally:
        place_.close()


def test_a_signal_to_an_agent_that_does_not_exist_yet(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        with pytest.raises(NotFoundError):
            store.agents.signal(ID, "approved", 1)
        assert store.agents.signal(ID, "approved", 1, id="a", create=True)
        assert not store.agents.signal(ID, "approved", 1, id="a", create=True)
        assert store.agents.unsaved() == [ID]
        desk = desk_of(store)
        found = desk.wait_for("approved", timeout=0)
        assert found is not None
        assert found.value == 1
        assert store.agents.unsaved() == []


def test_versions_of_an_agent_that_loops(tmp_path: Path) -> None:
    def round_(desk: Desk, order: int, new: bool) -> int:
        name = f"order-{order}"
        version = desk.steps.version("new-pricing", within=name) if new else 0
        desk.once(f"{name}-charge", charge, order)
        return version

    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        round_(desk, 1, new=False)
        round_(desk, 2, new=False)
    with holdfast.open(tmp_path / "s.db") as store:  # with new code, in the middle of the second round
        desk = desk_of(store)
        assert desk.steps.version("new-pricing") == 0  # as a whole, it was at work before
        assert round_(desk, 2, new=True) == 0
        assert round_(desk, 3, new=True) == 1
        assert round_(desk, 4, new=True) == 1
    with holdfast.open(tmp_path / "s.db") as store:
        desk = desk_of(store)
        assert [round_(desk, n, new=True) for n in (2, 3, 4, 5)] == [0, 1, 1, 1]


def test_attempts_count_anew_after_a_retry_by_hand(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "s.db") as store:
        desk, calls = desk_of(store), list[int]()

        def fail() -> None:
            calls.append(1)
            raise OSError("down")

        def run() -> None:
            desk.once("charge", fail, retry=Retry(2, backoff=0))

        with pytest.raises(OSError, match="down"):
            run()
        assert (len(calls), desk.steps.get("charge").attempts) == (3, 3)
        desk.steps.resolve("charge", retry=True)
        with pytest.raises(OSError, match="down"):
            run()
        assert (len(calls), desk.steps.get("charge").attempts) == (6, 3)


@pytest.mark.parametrize("how", ["one", "all", "job"])
def test_old_records_are_deleted_by_retention(how: str, tmp_path: Path) -> None:
    place_ = Place(f"sqlite:///{tmp_path}/s.db")
    try:
        store = place_.open()
        desk = desk_of(store)
        _fill(store, desk, "old")
        place_.clock.sleep(100 * 86400)
        _fill(store, desk, "young")
        assert store.as_identity(agent="other").agents.prune_steps("90d").agents == 0
        would = store.agents.prune_steps("90d", dry_run=True)
        assert (would.agents, would.steps, would.waits, would.signals, would.timers) == (1, 2, 2, 1, 1)
        assert len(desk.steps.list()) == 4
        if how == "job":
            store.jobs.add("tidy steps", "prune-steps", settings={"older_than": "90d"})
            assert store.jobs.run("tidy steps").outcome == "ok"
        else:
            assert store.agents.prune_steps("90d", agent=ID if how == "one" else None) == would
        assert [each.key for each in desk.steps.list()] == ["young-done", "young-failed"]
        assert [each.value for each in desk.steps.signals("lonely")] == ["young"]
        assert [each.name for each in desk.timers.list()] == ["young-timer"]
        assert desk.once("young-done", charge, 1) == "charged 1"
        assert store.agents.prune_steps("90d", dry_run=True).agents == 0
        with pytest.raises(InvalidError):
            store.jobs.add("wrong", "prune-steps", settings={})
        with pytest.raises(holdfast.errors.DeniedError):
            store.as_identity(agent="other").agents.prune_steps("90d", agent=ID)
        assert store.maintenance.verify().findings == []
        store.close()
    finally:
        place_.close()


def _fill(store: holdfast.Store, desk: Desk, name: str) -> None:
    def fail() -> Any:
        raise OSError("down")

    desk.once(f"{name}-done", charge, 1)
    with pytest.raises(OSError, match="down"):
        desk.once(f"{name}-failed", fail)
    store.agents.signal(ID, f"{name}-signal", 1)
    if name == "old":  # one that waits would deliver the old timer
        desk.wait_for(f"{name}-signal", timeout=0, key=f"{name}-wait")
    desk.sleep(0.001, key=f"{name}-sleep")
    store.agents.signal(ID, "lonely", name)
    desk.timers.set(f"{name}-timer", "1h")
