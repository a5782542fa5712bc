"""When an agent is due to be saved: settings, changes, pauses after failures. By a clock by hand, without threads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.definition.autosave import Autosave
from holdfast.agents.runtime.autosave import AutosaveWorker
from holdfast.agents.runtime.dirty_tracker import DirtyTracker
from holdfast.errors import ConfigError, ConflictError, DeniedError, TransientError, UnavailableError
from tests.agents.autosaved import Clock, Noter, wobbly


class Noted(AutosaveWorker):
    """Notes what it is told, and saves nothing."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hurried = 0
        self.asked: list[float] = []

    def put(self, watch: DirtyTracker, at: float) -> None:
        self.asked.append(at)

    def hurry(self, watch: DirtyTracker) -> None:
        self.hurried += 1

    def settled(self, watch: DirtyTracker) -> None:
        self.put(watch, watch.due())


def watched(**settings: Any) -> tuple[DirtyTracker, Noted, Clock]:
    store, _ = wobbly()
    store.engine.workers.append(saver := Noted(clock := Clock()))
    agent = Noter().attach(store, "a", autosave=Autosave(**settings))
    watch = agent.keeper.watch
    assert watch is not None
    return watch, saver, clock


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
    watch, saver, clock = watched(interval=5.0, changes=3)
    assert watch.due() == math.inf  # nothing is there to be looked at
    watch.changed(1)
    assert (watch.due(), saver.asked, saver.hurried) == (1005.0, [1005.0], 0)
    clock.now += 2
    watch.changed(1)
    assert (watch.due(), watch.unsaved, watch.oldest) == (1005.0, 2, 2.0)
    watch.changed(1)
    assert saver.hurried == 1
    assert watch.due() <= clock.now
    watch.changed(1)
    assert saver.hurried == 1  # once is enough


def test_what_changes_while_it_is_saved_is_due_by_its_own_time() -> None:
    watch, _, clock = watched(interval=5.0)
    watch.changed(2)
    mark = watch.taken()
    clock.now += 3
    watch.changed(1)
    clock.now += 1
    assert watch.saved(mark) == 2
    assert (watch.unsaved, watch.oldest, watch.due()) == (1, 1.0, 1008.0)
    assert watch.saved(watch.taken()) == 1
    assert (watch.unsaved, watch.oldest) == (0, 0.0)


def test_pauses_after_failures_grow_and_end_with_a_success() -> None:
    watch, _, clock = watched(interval=1.0, pause=0.1, longest_pause=1.0, failures=100)
    watch.changed(1)
    pauses = []
    for _ in range(8):
        watch.failed(TransientError("down"))
        pauses.append(watch.due() - clock.now)
        clock.now = watch.due()
    for pause, most in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0], strict=True):
        assert most / 2 - 1e-9 <= pause <= most + 1e-9
    watch.changed(1)
    watch.saved(watch.taken())
    watch.changed(1)
    assert watch.due() == clock.now + 1.0


def test_pauses_are_by_chance() -> None:
    several = set()
    for _ in range(5):
        watch, _, clock = watched()
        watch.changed(1)
        watch.failed(TransientError("down"))
        several.add(watch.due() - clock.now)
    assert len(several) > 1


def test_the_breaker_opens_for_the_store_and_not_for_what_is_the_agents_own() -> None:
    watch, _, clock = watched(failures=3, rest=5.0, longest_rest=12.0)
    for _ in range(10):
        assert not watch.failed(DeniedError("it may not"))
        assert not watch.failed(ValueError("its own"))
    assert watch.breaker.state == "on"
    opened = [
        watch.failed(error) for error in (TransientError("down"), UnavailableError("full"), TransientError("down"))
    ]
    assert opened == [False, False, True]
    assert watch.breaker.state == "off"
    assert not watch.breaker.lets()
    rests = []
    for _ in range(3):
        clock.now = watch.breaker.until / 1e9
        assert watch.breaker.lets()
        assert not watch.breaker.lets()  # one at a time
        assert not watch.failed(TransientError("still"))
        rests.append(round(watch.breaker.until / 1e9 - clock.now, 3))
    assert rests == [10.0, 12.0, 12.0]
    clock.now += 12
    assert watch.breaker.lets()
    watch.breaker.left()
    assert watch.breaker.lets()
    watch.made(watch.taken())
    assert watch.breaker.state == "on"


def test_agents_with_the_same_settings_share_a_breaker() -> None:
    store, _ = wobbly()
    several = [
        Noter().attach(store, f"a{number}", autosave=settings).keeper.watch
        for number, settings in enumerate((Autosave(), Autosave(interval=1), Autosave(rest=1)))
    ]
    one, same, other = [each.breaker for each in several if each is not None]
    assert one is same
    assert one is not other


@pytest.mark.parametrize(
    "error", [ConflictError("taken"), UnavailableError("closed", code="closed")], ids=["conflict", "closed"]
)
def test_what_cannot_pass_halts_it_until_it_is_saved(error: Exception) -> None:
    watch, _, _ = watched()
    watch.changed(1)
    watch.failed(error)
    seen = [watch.halted]
    assert watch.due() == math.inf
    assert not watch.wants
    watch.loaded()
    assert [*seen, watch.halted] == [error, None]
    assert watch.unsaved == 0


def test_an_agent_at_rest_is_not_looked_at() -> None:
    watch, _, clock = watched(interval=5.0)
    agent: Noter = watch.keeper.agent
    agent.start()
    assert watch.due() == clock.now + 5.0
    agent.pause()
    assert watch.due() == math.inf
    watch.changed(1)
    assert watch.due() == clock.now + 5.0


@given(st.lists(st.sampled_from(["change", "many", "take", "save", "fail", "wait"]), max_size=60))
def test_whatever_happens_nothing_is_forgotten(moves: list[str]) -> None:
    watch, _, clock = watched(interval=5.0, changes=4, failures=1000)
    made: list[float] = []  # when each change was made
    saved, mark = 0, None
    for move in moves:
        clock.now += 0.25
        if move in ("change", "many"):
            count = 1 if move == "change" else 3
            watch.changed(count)
            made += [clock.now] * count
        elif move == "take":
            mark = watch.taken()
        elif move == "save" and mark is not None:
            watch.saved(mark)
            saved, mark = max(saved, mark), None
        elif move == "fail":
            watch.failed(TransientError("down"))
        unsaved = made[saved:]
        assert watch.unsaved == len(unsaved)
        assert (watch.oldest > 0) <= bool(unsaved)
        if unsaved:
            # It is due within the interval since the oldest change, or after a pause at most; it is never forgotten.
            assert watch.due() <= max(unsaved[0] + 5.0, clock.now + 5.0)
            assert watch.oldest <= clock.now - unsaved[0]
        if mark is None and unsaved and "take" not in moves:
            assert watch.oldest == clock.now - unsaved[0]
