"""When an agent is due to be saved: options, changes, pauses after failures. With a clock set by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.definition.options import Autosave
from holdfast.agents.runtime.autosave import AutosaveWorker, DirtyTracker
from holdfast.agents.runtime.persister import AgentPersister
from holdfast.errors import ConfigError, ConflictError, DeniedError, TransientError, UnavailableError
from tests.agents.autosaved import Clock, Noter, wobbly


class Noted(AutosaveWorker):
    """Notes what it is told, and saves nothing."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hurried = 0
        self.asked: list[float] = []

    def put(self, tracker: DirtyTracker, at: float) -> None:
        self.asked.append(at)

    def hurry(self, tracker: DirtyTracker) -> None:
        self.hurried += 1

    def end_save(self, tracker: DirtyTracker) -> None:
        self.put(tracker, tracker.due())


def watched(**settings: Any) -> tuple[DirtyTracker, Noted, Clock]:
    store, _ = wobbly()
    store._engine.workers.append(saver := Noted(clock := Clock()))
    agent = Noter().attach(store, "a", autosave=Autosave(**settings))
    tracker = agent.persister.tracker
    assert tracker is not None
    return tracker, saver, clock


WRONG: list[dict[str, Any]] = [
    {"interval": 0},
    {"interval": "5"},
    {"interval": math.inf},
    {"interval": math.nan},
    {"changes": 0},
    {"changes": 2.0},
    {"changes": True},
    {"failures": 0},
    {"pause": -1},
    {"rest": 0},
    {"write_through": 1},
]


def test_wrong_settings_are_refused(subtests: pytest.Subtests) -> None:
    for wrong in WRONG:
        with subtests.test(wrong=wrong), pytest.raises(ConfigError, match=next(iter(wrong))):
            Autosave(**wrong)


def test_a_change_is_due_after_the_interval_and_many_at_once() -> None:
    tracker, saver, clock = watched(interval=5.0, changes=3)
    assert tracker.due() == math.inf  # nothing is there to be looked at
    tracker.add_changes(1)
    assert (tracker.due(), saver.asked, saver.hurried) == (1005.0, [1005.0], 0)
    clock.now += 2
    tracker.add_changes(1)
    assert (tracker.due(), tracker.unsaved, tracker.oldest) == (1005.0, 2, 2.0)
    tracker.add_changes(1)
    assert saver.hurried == 1
    assert tracker.due() <= clock.now
    tracker.add_changes(1)
    assert saver.hurried == 1  # once is enough


def test_what_changes_while_it_is_saved_is_due_by_its_own_time() -> None:
    tracker, _, clock = watched(interval=5.0)
    tracker.add_changes(2)
    mark = tracker.start_capture()
    clock.now += 3
    tracker.add_changes(1)
    clock.now += 1
    assert tracker.mark_saved(mark) == 2
    assert (tracker.unsaved, tracker.oldest, tracker.due()) == (1, 1.0, 1008.0)
    assert tracker.mark_saved(tracker.start_capture()) == 1
    assert (tracker.unsaved, tracker.oldest) == (0, 0.0)


def test_pauses_after_failures_grow_and_end_with_a_success() -> None:
    tracker, _, clock = watched(interval=1.0, pause=0.1, max_pause=1.0, failures=100)
    tracker.add_changes(1)
    pauses = []
    for _ in range(8):
        tracker.record_failure(TransientError("down"))
        pauses.append(tracker.due() - clock.now)
        clock.now = tracker.due()
    for pause, most in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert most / 2 - 1e-9 <= pause <= most + 1e-9
    tracker.add_changes(1)
    tracker.mark_saved(tracker.start_capture())
    tracker.add_changes(1)
    assert tracker.due() == clock.now + 1.0


def test_pauses_are_by_chance() -> None:
    several = set()
    for _ in range(5):
        tracker, _, clock = watched()
        tracker.add_changes(1)
        tracker.record_failure(TransientError("down"))
        several.add(tracker.due() - clock.now)
    assert len(several) > 1


def _state(tracker: DirtyTracker) -> str:
    return tracker.breaker.state


def test_the_breaker_opens_for_the_store_and_not_for_what_is_the_agents_own() -> None:
    tracker, _, clock = watched(failures=3, rest=5.0, max_rest=12.0)
    for _ in range(10):
        assert not tracker.record_failure(DeniedError("it may not"))
        assert not tracker.record_failure(ValueError("its own"))
    assert _state(tracker) == "closed"
    opened = [
        tracker.record_failure(error)
        for error in (TransientError("down"), UnavailableError("full"), TransientError("down"))
    ]
    assert opened == [False, False, True]
    assert _state(tracker) == "open"
    assert not tracker.breaker.allows()
    rests = []
    for _ in range(3):
        clock.now = tracker.breaker.until / 1e9
        assert tracker.breaker.allows()
        assert not tracker.breaker.allows()  # one at a time
        assert not tracker.record_failure(TransientError("still"))
        rests.append(round(tracker.breaker.until / 1e9 - clock.now, 3))
    assert rests == [10.0, 12.0, 12.0]
    clock.now += 12
    assert tracker.breaker.allows()
    tracker.breaker.cancel_trial()
    assert tracker.breaker.allows()
    tracker.record_step(tracker.start_capture())
    assert _state(tracker) == "closed"


def test_agents_with_the_same_settings_share_a_breaker() -> None:
    store, _ = wobbly()
    several = [
        Noter().attach(store, f"a{number}", autosave=settings).persister.tracker
        for number, settings in enumerate((Autosave(), Autosave(interval=1), Autosave(rest=1)))
    ]
    one, same, other = [each.breaker for each in several if each is not None]
    assert one is same
    assert one is not other


@pytest.mark.parametrize(
    "error", [ConflictError("taken"), UnavailableError("closed", code="closed")], ids=["conflict", "closed"]
)
def test_what_cannot_pass_halts_it_until_it_is_saved(error: Exception) -> None:
    tracker, _, _ = watched()
    tracker.add_changes(1)
    tracker.record_failure(error)
    seen = [tracker.halt_error]
    assert tracker.due() == math.inf
    assert not tracker.needs_save
    tracker.mark_loaded()
    assert [*seen, tracker.halt_error] == [error, None]
    assert tracker.unsaved == 0


def test_an_agent_at_rest_is_not_looked_at() -> None:
    tracker, _, clock = watched(interval=5.0)
    assert isinstance(tracker.agent, AgentPersister)
    agent: Noter = tracker.agent.agent
    agent.start()
    assert tracker.due() == clock.now + 5.0
    agent.pause()
    assert tracker.due() == math.inf
    tracker.add_changes(1)
    assert tracker.due() == clock.now + 5.0


@given(st.lists(st.sampled_from(["change", "many", "take", "save", "fail", "wait"]), max_size=60))
def test_whatever_happens_nothing_is_forgotten(moves: list[str]) -> None:
    tracker, _, clock = watched(interval=5.0, changes=4, failures=1000)
    made: list[float] = []  # when each change was made
    saved, mark = 0, None
    for move in moves:
        clock.now += 0.25
        if move in ("change", "many"):
            count = 1 if move == "change" else 3
            tracker.add_changes(count)
            made += [clock.now] * count
        elif move == "take":
            mark = tracker.start_capture()
        elif move == "save" and mark is not None:
            tracker.mark_saved(mark)
            saved, mark = max(saved, mark), None
        elif move == "fail":
            tracker.record_failure(TransientError("down"))
        unsaved = made[saved:]
        assert tracker.unsaved == len(unsaved)
        assert (tracker.oldest > 0) <= bool(unsaved)
        if unsaved:
            # It is due within the interval since the oldest change, or after a pause at most; it is never forgotten.
            assert tracker.due() <= max(unsaved[0] + 5.0, clock.now + 5.0)
            assert tracker.oldest <= clock.now - unsaved[0]
        if mark is None and unsaved and "take" not in moves:
            assert tracker.oldest == clock.now - unsaved[0]
