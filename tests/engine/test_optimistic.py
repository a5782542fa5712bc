"""Attempts at changes that others prevent."""

from __future__ import annotations

import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.metric_families import CONFLICTS
from holdfast.backends.runtime.metrics import MetricsRegistry
from holdfast.engine import optimistic
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError


def attempt_all(attempts: Attempts) -> int:
    """Try until it is given up. Returns how often."""

    async def go() -> int:
        while True:
            assert await attempts.begin() == attempts.count - 1

    with pytest.raises(ConflictError) as caught:
        run(go())
    assert str(caught.value).startswith(f"gave up merging a branch after {attempts.count - 1} concurrent writes")
    assert "thread 'a'" in str(caught.value)
    assert caught.value.code == "agent-conflict"
    return attempts.count - 1


def test_a_change_is_given_up_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def advance() -> float:
        nonlocal now
        now += 1.0
        return now

    monkeypatch.setattr(optimistic, "monotonic", advance)
    metrics = MetricsRegistry()
    tried = attempt_all(Attempts("merging a branch", Line("", "a"), metrics, code="agent-conflict"))
    # The first look at the clock is at the second attempt, and from the sixth on there is one at each.
    assert tried == 35
    counted = [each for each in metrics.read() if each.family == CONFLICTS]
    assert [(each.labels, each.value) for each in counted] == [(("merging a branch",), 35)]


@pytest.mark.usefixtures("impatient")
def test_a_long_change_is_tried_a_few_times() -> None:
    assert attempt_all(Attempts("merging a branch", "thread 'a'", code="agent-conflict")) == 5


def test_a_change_that_nobody_prevents_does_not_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimistic, "monotonic", None)
    assert run(Attempts("merging a branch").begin()) == 0
