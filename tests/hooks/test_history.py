"""What is recorded of executions, and how it is found again."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidError, NotFoundError, VetoError
from holdfast.hooks import HookContext, execution_log
from tests.hooks.kit import Clock, store


def test_history_is_asked_by_hook_scope_key_and_time() -> None:
    clock = Clock()
    held = store(clock)
    held.hooks.before("state.set", name="one")(lambda call: None)
    held.hooks.after("state.set", name="two")(lambda call: None)
    for agent in "ab":
        for key in "xy":
            held.state(agent=agent)[key] = 1
            clock.pass_by(10)
    assert held.hooks.drain(30)
    everything = held.hooks.history()
    assert len(everything) == 8
    assert [each.time for each in everything] == sorted((each.time for each in everything), reverse=True)
    one = held.hooks.history("one")
    assert [(each.scope, each.key) for each in one] == [
        ("agent:b", "y"),
        ("agent:b", "x"),
        ("agent:a", "y"),
        ("agent:a", "x"),
    ]
    assert {(each.hook, each.key) for each in held.hooks.history(scope="agent:a", key="x")} == {
        ("one", "x"),
        ("two", "x"),
    }
    assert len(held.hooks.history(key="y")) == 4
    assert held.hooks.history("one", since=one[1].time) == one[:2]
    assert held.hooks.history("one", scope="agent:a", since=one[2].time) == one[2:3]
    assert held.hooks.history("one", limit=2) == one[:2]
    assert held.hooks.history("none") == held.hooks.history(limit=0) == held.hooks.history(scope="agent:none") == []
    assert one[0].duration > 0
    held.close()


def test_history_goes_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution_log, "_PAGE", 3)
    held = store()
    held.hooks.before("state.set", name="one", inline=True)(lambda call: None)
    for n in range(10):
        held.state(agent="a")["k"] = n
    for scope in (None, "agent:a"):
        assert len(held.hooks.history(scope=scope)) == 10
        found = held.hooks.history(scope=scope, limit=4)
        assert [each.id for each in found] == [each.id for each in held.state(agent="a").history(limit=4)]
        assert list(found.all()) == held.hooks.history(scope=scope)
    held.close()


def test_bad_questions() -> None:
    held = store()
    with pytest.raises(InvalidError):
        held.hooks.history(limit=-1)
    with pytest.raises(InvalidError):
        held.hooks.history(since="soon")
    for cursor in ("x", "1 2", "1 id x line", " id 1 line", "9" * 30 + " id 1 line", 5):
        with pytest.raises(InvalidError):
            held.hooks.history(cursor=cursor)  # type: ignore[arg-type]
    assert held.hooks.history(since=datetime(2026, 1, 1, tzinfo=UTC)) == held.hooks.history(since="2h") == []
    held.close()


@pytest.mark.parametrize("record", [False, True])
def test_values_are_stored_only_where_that_is_wanted(record: bool) -> None:
    held = store()

    @held.hooks.before("state.set", name="redact", record=record, key="k")
    def redact(call: HookContext) -> Any:
        return call.value.replace("secret", "***")

    held.hooks.before("state.set", name="look", record=record, key="k")(lambda call: None)
    held.state()["k"] = "the secret"
    look, redacted = held.hooks.history()
    assert redacted.outcome == "changed"
    assert redacted.detail["point"] == "state.set"
    if record:
        assert (redacted.detail["value"], redacted.detail["result"]) == ("the secret", "the ***")
        assert look.detail["value"] == "the ***"
    else:
        assert "secret" not in repr(redacted)
        assert redacted.detail["value"] != redacted.detail["result"]
        assert look.detail == {}
    held.close()


def test_digests_do_not_show_that_values_are_equal() -> None:
    held = store()

    @held.hooks.before("state.set", name="no")
    def no(call: HookContext) -> None:
        raise VetoError("no")

    for _ in range(2):
        with pytest.raises(VetoError):
            held.state()["k"] = "1234"
    one, two = held.hooks.history("no")
    assert one.detail["value"] != two.detail["value"]
    held.close()


def test_veto_is_raised_though_it_can_not_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    held = store()

    @held.hooks.before("state.set")
    def no(call: HookContext) -> None:
        raise VetoError("no", where="there")

    async def full(*args: Any) -> None:
        raise holdfast.errors.TransientError("the disk is full")

    monkeypatch.setattr("holdfast.hooks.execution_log.record_veto", full)
    with pytest.raises(VetoError, match="no") as caught:
        held.state()["k"] = 1
    assert "the disk is full" in caught.value.__notes__[0]
    assert caught.value.where == "there"
    held.close()


def test_history_is_asked_for_failures_points_and_slow_calls_and_each_is_found_by_its_reference() -> None:
    held = store()

    @held.hooks.before("state.*", name="check", record="digest")
    def check(call: HookContext) -> None:
        if call.point == "state.delete":
            raise ValueError("not that")
        if call.value == "slow":
            time.sleep(0.05)

    state = held.state(agent="a b/ü")
    for value in ("quick", "slow"):
        state["k%"] = value
    state.delete("k%")
    everything = held.hooks.history()
    assert [each.outcome for each in everything] == ["error", "ok", "ok"]
    assert held.hooks.history(failed=True) == held.hooks.history(point="state.delete") == everything[:1]
    assert held.hooks.history(point="state.set") == everything[1:]
    assert held.hooks.history(slower_than=0.05) == held.hooks.history(slower_than="0.05s", scope=state.scope)
    assert everything[1] in held.hooks.history(slower_than=0.05)
    assert everything[2] not in held.hooks.history(slower_than=everything[2].duration * 2)
    assert list(held.hooks.history(point="state.set", limit=1).all()) == everything[1:]
    assert [held.hooks.get(each.reference) for each in everything] == everything
    for wrong in ("", "1", "1/x", "-1/x/y", f"{9**30}/x/y", "1/x/"):
        with pytest.raises(InvalidError):
            held.hooks.get(wrong)
    row, line = everything[0].reference.rsplit("/", 1)
    for gone in (
        f"7{row}/{line}",
        f"{row}/x{line}",
        f"0/{everything[0].id}/{line}",
    ):  # the last is the change's own row
        with pytest.raises(NotFoundError):
            held.hooks.get(gone)
    held.close()
