"""A hook that fails again and again is switched off, and comes back."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backends.runtime.breaker import LONGEST_REST, CircuitBreaker
from holdfast.errors import VetoError
from holdfast.hooks import HookContext
from tests.hooks.kit import SECOND, Clock, events, store


def test_hook_is_off_for_a_while_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    held = store(clock)
    broken = True
    calls = 0

    @held.hooks.before("state.set", max_failures=3, rest=30)
    def fragile(call: HookContext) -> None:
        nonlocal calls
        calls += 1
        if broken:
            raise RuntimeError("not now")

    with caplog.at_level(logging.WARNING, "holdfast.hooks"):
        for n in range(6):
            held.state()["k"] = n
        assert calls == 3
        (info,) = held.hooks.list()
        assert (info.state, info.calls, info.failures, info.skipped) == ("off", 3, 3, 3)
        assert info.off_until is not None
        assert info.last_error == "RuntimeError: not now"
        assert held.status().details["hooks_off"] == "fragile"
        assert "it is off for now" in caplog.text
        outcomes = [row.columns[5] for row in events(held) if row.columns[1] == "hook"]
        assert outcomes == ["error"] * 3 + ["skipped"] * 3

        clock.pass_by(31)
        assert held.hooks.list()[0].state == "trying"
        held.state()["k"] = 7  # is tried, fails, and rests for twice as long
        held.state()["k"] = 8
        assert calls == 4
        clock.pass_by(31)
        held.state()["k"] = 9
        assert calls == 4
        clock.pass_by(30)
        broken = False
        held.state()["k"] = 10
        held.state()["k"] = 11
        assert calls == 6
        assert held.hooks.list()[0].state == "on"
        assert "is back" in caplog.text
    held.close()


def test_closed_hook_that_is_off_still_refuses() -> None:
    held = store()

    @held.hooks.before("state.set", max_failures=1, fail_closed=True)
    def fragile(call: HookContext) -> None:
        raise RuntimeError("not now")

    for expected in ("failed", "is off"):
        with pytest.raises(VetoError, match=expected):
            held.state()["k"] = 1
    assert "k" not in held.state()
    held.close()


def test_veto_is_no_failure() -> None:
    held = store()

    @held.hooks.before("state.set", max_failures=1)
    def strict(call: HookContext) -> None:
        raise VetoError("no")

    for _ in range(3):
        with pytest.raises(VetoError, match="no"):
            held.state()["k"] = 1
    assert held.hooks.list()[0].vetoes == 3
    assert held.hooks.list()[0].state == "on"
    held.close()


def test_after_hook_is_switched_off_too() -> None:
    held = store()
    held.hooks.after("state.set", max_failures=2, name="bad")(_crash)
    held.hooks.after("state.set", max_failures=2, name="inline", inline=True)(_crash)
    for n in range(4):
        held.state()["k"] = n
    assert held.hooks.drain(30)
    for name in ("bad", "inline"):
        assert [each.outcome for each in held.hooks.history(name)] == ["skipped", "skipped", "error", "error"]
    held.close()


def _crash(call: HookContext) -> None:
    raise RuntimeError("no")


@given(st.lists(st.one_of(st.booleans(), st.integers(0, 700)), max_size=60))
def test_breaker_lets_as_it_should(happenings: list[bool | int]) -> None:
    """True: a call that would succeed; False: one that would fail; a number: so many seconds go by."""
    clock = Clock()
    breaker = CircuitBreaker(clock, failures=3, rest=10 * SECOND)
    in_a_row, rest, until = 0, 10 * SECOND, 0
    for each in happenings:
        if type(each) is int:
            clock.pass_by(each)
            continue
        expected = not until or clock.now + 1000 >= until
        assert breaker.allows() == expected
        if not expected:
            assert breaker.state == "open"
            continue
        if each:
            breaker.succeeded()
            in_a_row, rest, until = 0, 10 * SECOND, 0
        else:
            in_a_row += 1
            if until:
                rest = min(2 * rest, LONGEST_REST)
            breaker.failed()
            if until or in_a_row >= 3:
                until = clock.now + rest
        assert bool(breaker.until) == bool(until)
        assert breaker.until == until


def test_only_one_call_tries_it() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock, failures=1, rest=SECOND)
    assert breaker.failed()
    clock.pass_by(2)
    assert breaker.allows()
    assert not breaker.allows()
    assert breaker.state == "trying"
    assert breaker.failed()
    breaker.reinit_locks()
    assert not breaker.allows()
