"""Checkpoints by themselves: policies, and agents of plain Python."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.errors import ConfigError, InvalidError, NotFoundError
from holdfast.savers import (
    AsyncAutoCheckpointer,
    AsyncCheckpointableMixin,
    AutoCheckpointer,
    CheckpointableMixin,
    EveryStep,
    Interval,
    OnChange,
    OnEvent,
)
from holdfast.store.auto_checkpoint import PolicyContext
from tests.store.stores import aover
from tests.support.interference import InterferingBackend


class Clock:
    """A clock that goes as told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def states(store: Store, thread: str = "t") -> list[Any]:
    """The states of a thread, the oldest first."""
    return [store.thread(thread).get(each.id).state for each in reversed(store.thread(thread).log())]


def test_every_step_is_the_default(store: Store) -> None:
    state: dict[str, Any] = {"n": 0}
    with AutoCheckpointer(store, "t", lambda: state) as autosave:
        for n in range(3):
            state["n"] = n
            saved = autosave.step({"at": n})
            assert saved is not None
            assert (saved.metadata, autosave.last) == ({"at": n}, saved)
        assert autosave.step() is not None  # nothing changed, and yet it is a step
        assert autosave.event("anything") is None
    assert states(store) == [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 2}]


def test_every_so_many_steps_and_the_rest_at_the_end(store: Store) -> None:
    state = {"n": 0}
    with AutoCheckpointer(store, "t", lambda: state, EveryStep(3)) as autosave:
        saved = []
        for n in range(8):
            state["n"] = n
            saved.append(autosave.step() is not None)
        assert saved == [False, False, True, False, False, True, False, False]
    assert states(store) == [{"n": 2}, {"n": 5}, {"n": 7}]


def test_the_rest_is_saved_after_an_error_too(store: Store) -> None:
    state = {"n": 0}
    with pytest.raises(ZeroDivisionError), AutoCheckpointer(store, "t", lambda: state, EveryStep(10)) as autosave:  # noqa: PT012 - the block is what fails
        autosave.step()
        state["n"] = 1 // 0
    assert states(store) == [{"n": 0}]


def test_leaving_saves_what_changed_since_without_a_step_too(store: Store) -> None:
    state = {"n": 0}
    with AutoCheckpointer(store, "t", lambda: state, EveryStep(5)):
        state["n"] = 1
    assert states(store) == [{"n": 1}]
    with AutoCheckpointer(store, "t", lambda: state) as autosave:
        state["n"] = 2
        autosave.step()
        state["n"] = 3
    assert states(store) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_leaving_with_nothing_new_saves_nothing(store: Store) -> None:
    store.thread("t").put({"n": 0})
    with AutoCheckpointer(store, "t", lambda: {"n": 0}, EveryStep(5)):
        pass
    with AutoCheckpointer(store, "t", lambda: {"n": 0}, EveryStep(5)) as autosave:
        autosave.step()
        assert autosave.flush() is None
    assert states(store) == [{"n": 0}]


def test_every_so_many_seconds(store: Store) -> None:
    clock, state = Clock(), {"n": 0}
    autosave = AutoCheckpointer(store, "t", lambda: state, Interval(60), clock=clock)
    saved = []
    for n in range(8):
        clock.now += 25
        state["n"] = n
        saved.append(autosave.step() is not None)
    assert saved == [False, False, True, False, False, True, False, False]
    clock.now += 60
    assert autosave.step() is not None
    clock.now += 60
    assert autosave.step() is None  # nothing changed
    state["n"] = 9
    assert autosave.step() is None  # the time starts again there
    clock.now += 60
    assert autosave.event("late") is not None
    assert [each["n"] for each in states(store)] == [2, 5, 7, 9]


def test_on_change_sees_changes_in_place(store: Store) -> None:
    state: dict[str, Any] = {"deep": [{"x": [1]}]}
    autosave = AutoCheckpointer(store, "t", lambda: state, OnChange())
    saved = []
    for change in (None, None, 2, None, 3):
        if change:
            state["deep"][0]["x"].append(change)
        saved.append(autosave.step() is not None)
    assert saved == [True, False, True, False, True]
    assert [each["deep"][0]["x"] for each in states(store)] == [[1], [1, 2], [1, 2, 3]]


def test_on_change_tells_that_nothing_was_saved_at_its_first_step_too(store: Store) -> None:
    store.thread("t").put({"n": 0})
    autosave = AutoCheckpointer(store, "t", lambda: {"n": 0}, OnChange())
    assert autosave.step() is None


def test_on_change_compares_with_head_and_not_with_a_fork(store: Store) -> None:
    store.thread("t").put({"n": 1})
    store.thread("t").fork("draft", changes={"n": 2})
    assert AutoCheckpointer(store, "t", lambda: {"n": 1}, OnChange()).step() is None
    saved = AutoCheckpointer(store, "t", lambda: {"n": 2}, OnChange()).step()
    assert saved is not None
    assert store.thread("t").get().id == saved.id


def test_on_events(store: Store) -> None:
    state = {"n": 0}
    some = AutoCheckpointer(store, "some", lambda: state, OnEvent("tool", "error"))
    every = AutoCheckpointer(store, "every", lambda: state, OnEvent())
    for n, name in enumerate(["tool", "other", "error"]):
        state["n"] = n
        assert some.step() is None
        assert every.step() is None
        assert (some.event(name, {"why": n}) is not None) == (name != "other")
        assert every.event(name) is not None
    assert [each["n"] for each in states(store, "some")] == [0, 2]
    assert [each["n"] for each in states(store, "every")] == [0, 1, 2]
    assert store.thread("some").log()[0].metadata == {"event": "error", "why": 2}


def test_policies_add_up(store: Store) -> None:
    clock, state = Clock(), {"n": 0}
    autosave = AutoCheckpointer(store, "t", lambda: state, EveryStep(3), Interval(60), OnEvent("now"), clock=clock)
    assert autosave.step() is None
    assert autosave.event("now") is not None
    clock.now += 61
    assert autosave.step() is None  # only the interval is up, and nothing changed
    state["n"] = 1
    clock.now += 61
    assert autosave.step() is not None
    assert [autosave.step() is not None for _ in range(3)] == [False, False, True]


def test_a_policy_of_ones_own(store: Store) -> None:
    class Odd:
        if_changed = False

        def due(self, moment: PolicyContext) -> bool:
            return moment.steps % 2 == 1 and moment.event is None and moment.seconds >= 0

    autosave = AutoCheckpointer(store, "t", lambda: {"n": 1}, Odd())
    assert autosave.step() is not None
    assert autosave.event("x") is None


def test_by_hand(store: Store) -> None:
    autosave = AutoCheckpointer(store, "t", lambda: {"n": 1}, OnEvent("never"))
    saved = autosave.save(tag="good", labels=["x"], metadata={"m": 1})
    assert store.thread("t").get(at="good").id == saved.id
    assert (store.thread("t").labels(), saved.metadata) == ({"x": [saved.id]}, {"m": 1})


@pytest.mark.parametrize("make", [lambda: EveryStep(0), lambda: Interval(-1)], ids=["steps", "seconds"])
def test_policies_that_make_no_sense(make: Any) -> None:
    with pytest.raises((ConfigError, InvalidError), match="(is|must be) .*, not"):
        make()


def test_a_save_that_fails_is_tried_again(store: Store) -> None:
    state: dict[str, Any] = {"n": object()}
    autosave = AutoCheckpointer(store, "t", lambda: state, EveryStep(2))
    autosave.step()
    with pytest.raises(TypeError):
        autosave.step()
    state["n"] = 1
    assert autosave.step() is not None
    assert states(store) == [{"n": 1}]


def test_under_asyncio(url: str) -> None:
    async def go() -> None:
        state = {"n": 0}
        async with holdfast.aopen(url) as store:
            async with AsyncAutoCheckpointer(store, "t", lambda: state, EveryStep(2), OnEvent("now")) as autosave:
                assert await autosave.step() is None
                assert await autosave.step() is not None
                assert await autosave.event("now") is not None
                assert (await autosave.save(tag="x")).step == 2
                state["n"] = 1
                await autosave.step()
            assert (await store.thread("t").get()).state == {"n": 1}

    asyncio.run(go())


def test_what_changes_during_a_save_is_saved_at_the_end() -> None:
    backend = InterferingBackend()
    store = aover(backend)
    state = {"n": 0}
    autosave = AsyncAutoCheckpointer(store, "t", lambda: state, OnEvent("now"))

    def another_task() -> None:
        state["n"] = 1
        run(AsyncAutoCheckpointer.step(autosave))

    async def go() -> None:
        async with autosave:
            with backend.interfere(another_task):
                await autosave.event("now")
        assert (await store.thread("t").get()).state == {"n": 1}

    asyncio.run(go())


# Agents -----------------------------------------------------------------------------------------------------------


class Researcher(CheckpointableMixin):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self._client = object()


def test_an_agent_of_plain_python(store: Store) -> None:
    agent = Researcher().attach(store, "t", EveryStep(2), OnEvent("found"))
    agent.notes.append("one")
    assert agent.step_done() is None
    assert agent.step_done({"m": 1}) is not None
    agent.notes.append("two")
    found = agent.record_event("found")
    assert found is not None
    assert found.metadata == {"event": "found"}
    assert agent.checkpoint(tag="end", labels=["x"], metadata={"m": 2}).metadata == {"m": 2}
    assert states(store) == [{"notes": ["one"]}, {"notes": ["one", "two"]}, {"notes": ["one", "two"]}]


def test_an_agent_takes_a_state_on(store: Store) -> None:
    agent = Researcher().attach(store, "t")
    agent.notes.append("one")
    first = agent.checkpoint(tag="first")
    agent.notes.append("two")
    agent.extra = 1  # type: ignore[attr-defined]
    agent.checkpoint()
    again = Researcher().attach(store, "t")
    again.restore()
    assert (again.notes, again.extra) == (["one", "two"], 1)  # type: ignore[attr-defined]
    assert again.restore("first").id == first.id
    assert (again.notes, hasattr(again, "extra")) == (["one"], False)
    assert again.restore(first.id).id == first.id
    assert again.restore(first.time).id == first.id
    again.notes.append("other")
    again.step_done()
    assert store.thread("t").get().state == {"notes": ["one", "other"]}
    with pytest.raises(NotFoundError):
        Researcher().attach(store, "nobody").restore()


def test_an_agent_may_choose_its_state(store: Store) -> None:
    class Chooser(CheckpointableMixin):
        def __init__(self, n: int) -> None:
            self.n = n
            self.other = object()

        def checkpoint_state(self) -> dict[str, Any]:
            return {"n": self.n}

        def restore_state(self, state: Any) -> None:
            self.n = state["n"]

    Chooser(5).attach(store, "t").checkpoint()
    agent = Chooser(0).attach(store, "t")
    agent.restore()
    assert agent.n == 5


def test_an_agent_without_a_store_says_so() -> None:
    agent = Researcher()
    uses: list[Callable[[], object]] = [
        agent.checkpoint,
        agent.step_done,
        agent.restore,
        lambda: agent.record_event("x"),
    ]
    for use in uses:
        with pytest.raises(InvalidError, match=r'no store to save to. Call attach\(store, "thread"\) first'):
            use()


def test_an_async_agent(url: str) -> None:
    class Agent(AsyncCheckpointableMixin):
        n = 0

    async def go() -> None:
        async with holdfast.aopen(url) as store:
            agent = Agent().attach(store, "t", OnChange())
            agent.n = 1
            assert await agent.step_done() is not None
            assert await agent.step_done() is None
            assert await agent.record_event("x") is None
            await agent.checkpoint(tag="end")
            other = Agent().attach(store, "t")
            await other.restore("end")
            assert other.n == 1

    asyncio.run(go())
