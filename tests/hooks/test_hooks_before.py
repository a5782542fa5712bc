"""Hooks before a change: they see it, change it, refuse it, and can not get in its way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.engine.namespaces import HOOKS
from holdfast.errors import ConflictError, DeniedError, InvalidError, NotFoundError, VetoError
from holdfast.hooks import HookContext, ReplaceValue
from holdfast.hooks.points import POINTS, check_points
from tests.hooks.kit import async_store, beside, events, store


def test_hook_changes_a_value_and_the_next_one_sees_that() -> None:
    held = store()

    @held.hooks.before("state.set", order=2)
    def second(call: HookContext) -> Any:
        return [*call.value, "second"]

    @held.hooks.before("state.set", order=1)
    def first(call: HookContext) -> Any:
        return [*call.value, "first"]

    held.state(agent="a")["k"] = []
    assert held.state(agent="a")["k"] == ["first", "second"]
    assert [info.name for info in held.hooks.list()] == ["first", "second"]
    assert [row.columns[5] for row in events(held) if row.columns[1] == "hook"] == ["changed", "changed"]
    held.close()


@pytest.mark.parametrize("inline", [False, True])
def test_hook_is_told_everything(inline: bool) -> None:
    held = store()
    calls: list[tuple[Any, ...]] = []

    @held.hooks.before("state.*", inline=inline)
    def look(call: HookContext) -> None:
        told = (call.point, call.scope, call.key, call.value, call.old, call.before)
        calls.append((*told, call.version, call.id, call.actor, call.correlation, call.cause))

    state = held.state(agent="a", step="s")
    with holdfast.correlation("c1", cause="e1"):
        state["k"] = {"a": 1}
        state.patch("k", {"b": 2})
        del state["k"]
    assert calls == [
        ("state.set", "agent:a/step:s", "k", {"a": 1}, holdfast.MISSING, 0, 0, "", "", "c1", "e1"),
        ("state.patch", "agent:a/step:s", "k", {"a": 1, "b": 2}, {"a": 1}, 1, 0, "", "", "c1", "e1"),
        ("state.delete", "agent:a/step:s", "k", holdfast.MISSING, {"a": 1, "b": 2}, 2, 0, "", "", "c1", "e1"),
    ]
    assert repr(_call_of(held)) == "<Call state.set global x>"
    held.close()


def _call_of(held: Any) -> HookContext:
    found: list[HookContext] = []
    held.hooks.before("state.set", inline=True, name="grab")(lambda call: found.append(call))
    held.state()["x"] = 1
    return found[0]


def test_hooks_are_chosen_by_point_scope_and_key() -> None:
    held = store()
    seen: list[tuple[str, str]] = []
    held.hooks.before("state.set", scope="agent:*", key="plan/**", inline=True)(
        lambda call: seen.append((call.scope, call.key))
    )
    for agent, key in [("a", "plan/x/y"), ("b", "other"), ("c", "plan/z")]:
        held.state(agent=agent)[key] = 1
    held.state(user="u")["plan/x"] = 1
    held.state(agent="a", step="s")["plan/x"] = 1
    del held.state(agent="a")["plan/x/y"]
    assert seen == [("agent:a", "plan/x/y"), ("agent:c", "plan/z")]
    held.close()


def test_value_is_the_hooks_own() -> None:
    held = store()

    @held.hooks.before("state.set")
    def spoil(call: HookContext) -> None:
        call.value["spoilt"] = True

    held.state()["k"] = {}
    assert held.state()["k"] == {}
    held.close()


def test_value_of_none_and_the_same_value() -> None:
    held = store()
    held.hooks.before("state.set", key="none", name="none")(lambda call: ReplaceValue(None))
    held.hooks.before("state.set", key="same", name="same")(lambda call: call.value)
    held.state()["none"] = 1
    held.state()["same"] = 1
    assert held.state()["none"] is None
    assert held.state()["same"] == 1
    outcomes = {row.columns[3]: row.columns[5] for row in events(held) if row.columns[1] == "hook"}
    assert outcomes == {"none": "changed", "same": "ok"}
    held.close()


def test_patch_that_a_hook_changes_is_written_as_the_hook_has_it() -> None:
    held = store()
    state = held.state()
    state["k"] = {"a": 1, "long": "x" * 500}
    held.hooks.before("state.patch")(lambda call: {**call.value, "by": "hook"})
    state.patch("k", {"b": 2}, remove=["a"])
    assert state["k"] == {"long": "x" * 500, "b": 2, "by": "hook"}
    state.patch("new", {"c": 3})
    assert state["new"] == {"c": 3, "by": "hook"}
    held.close()


def test_veto_refuses_and_leaves_nothing_but_a_row_that_tells_so() -> None:
    held = store()
    state = held.state(agent="a")
    state["k"] = 1

    @held.hooks.before("state.set", key="k")
    def no(call: HookContext) -> None:
        raise VetoError("the plan is closed")

    with pytest.raises(VetoError, match="the plan is closed") as caught, holdfast.correlation("c1"):
        state.batch({"k": "secret", "other": 2})
    assert isinstance(caught.value, DeniedError)
    assert caught.value.code == "vetoed"
    assert caught.value.where == "key 'k' of agent:a"
    assert dict(state) == {"k": 1}
    assert len(state.history()) == 1
    change, hook = events(held, HOOKS)
    assert change.columns[1:7] == ("change", "", "set", "agent:a\tk", "vetoed", "c1")
    assert hook.columns[1:7] == ("hook", "", "no", "agent:a\tk", "veto", "c1")
    (told,) = held.hooks.history(scope="agent:a")
    assert (told.hook, told.scope, told.key, told.outcome) == ("no", "agent:a", "k", "veto")
    assert told.detail["reason"] == "the plan is closed"
    assert "secret" not in repr(told)
    held.close()


def test_veto_of_one_key_undoes_a_transaction_over_scopes_and_threads() -> None:
    held = store()
    held.hooks.before("state.set", scope="agent:b")(_refuse)
    together = held.transaction()
    with pytest.raises(VetoError), together:
        _fill(together)
    assert held.threads() == []
    assert dict(held.state(agent="a")) == {}
    held.close()


def _fill(together: Any) -> None:
    together.put("thread", {"a": 1})
    together.state(agent="a").set("x", 1)
    together.state(agent="b").set("y", 1)


def _refuse(call: HookContext) -> None:
    raise VetoError("no")


def _crash(call: HookContext) -> None:
    raise RuntimeError("the secret is hunter-two")


_released = threading.Event()


def _hang(call: HookContext) -> str:
    assert _released.wait(60)
    return "too late"


@pytest.fixture
def released() -> Iterator[None]:
    """Hooks that hang do so until the test is over."""
    _released.clear()
    yield
    _released.set()


async def _crash_async(call: HookContext) -> None:
    raise RuntimeError("the secret is hunter-two")


async def _hang_async(call: HookContext) -> str:
    await asyncio.sleep(30)
    return "too late"


def _unpackable(call: HookContext) -> object:
    return object()


def _forgot_async(call: HookContext) -> Any:
    return _hang_async(call)


FAILING = {
    "crash": (_crash, "error"),
    "hang": (_hang, "late"),
    "crash-async": (_crash_async, "error"),
    "hang-async": (_hang_async, "late"),
    "unpackable": (_unpackable, "error"),
    "forgot-async": (_forgot_async, "error"),
}


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_hook_that_fails_does_not_block(name: str, kind: str) -> None:
    function, outcome = FAILING[name]
    held: Any = store() if kind == "sync" else async_store()
    held.hooks.before("state.set", budget=0.05 if outcome == "late" else 30, name="bad")(function)
    _set(held, "k", "value")
    (row,) = [row for row in events(held) if row.columns[1] == "hook"]
    assert row.columns[5] == outcome
    (info,) = held.hooks.list()
    assert (info.calls, info.failures) == (1, 1)
    assert info.last_error
    assert _get(held, "k") == "value"
    _close(held)


@pytest.mark.usefixtures("released")
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_hook_that_fails_closed_refuses(name: str, kind: str) -> None:
    function, outcome = FAILING[name]
    held: Any = store() if kind == "sync" else async_store()
    budget = 0.05 if outcome == "late" else 30
    held.hooks.before("state.set", budget=budget, name="bad", fail_closed=True)(function)
    with pytest.raises(VetoError, match="'bad' failed") as caught:
        _set(held, "k", "value")
    assert caught.value.code == "hook-failed"
    assert caught.value.__cause__ is not None
    assert _get(held, "k") is None
    assert "hunter-two" not in repr(events(held))
    _close(held)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_async_hook_changes_and_refuses(kind: str) -> None:
    held: Any = store() if kind == "sync" else async_store()

    async def think(call: HookContext) -> Any:
        await asyncio.sleep(0)
        if call.key == "no":
            raise VetoError("no")
        return call.value + 1

    held.hooks.before("state.set")(think)
    _set(held, "k", 1)
    assert _get(held, "k") == 2
    with pytest.raises(VetoError):
        _set(held, "no", 1)
    _close(held)


def _set(held: Any, key: str, value: Any) -> None:
    if isinstance(held, holdfast.Store):
        held.state(agent="a").set(key, value)
    else:
        asyncio.run(held.state(agent="a").set(key, value))


def _get(held: Any, key: str) -> Any:
    if isinstance(held, holdfast.Store):
        return held.state(agent="a").get(key)
    return asyncio.run(held.state(agent="a").get(key))


def _close(held: Any) -> None:
    if isinstance(held, holdfast.Store):
        held.close()
    else:
        asyncio.run(held.close())


def test_sync_hook_does_not_block_the_event_loop() -> None:
    held = async_store()
    going, go_on = threading.Event(), threading.Event()

    @held.hooks.before("state.set", budget=30)
    def slow(call: HookContext) -> None:
        going.set()
        assert go_on.wait(30)

    async def main() -> None:
        setting = asyncio.create_task(held.state().set("k", 1))
        while not going.is_set():
            await asyncio.sleep(0.001)
        assert not setting.done()  # and yet the loop goes on
        go_on.set()
        await setting
        await held.close()

    asyncio.run(main())


def test_cancelled_setting_cancels_the_hook() -> None:
    held = async_store()
    going, ended = asyncio.Event(), list[str]()

    @held.hooks.before("state.set", budget=30)
    async def slow(call: HookContext) -> None:
        going.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        setting = asyncio.create_task(held.state().set("k", 1))
        await going.wait()
        setting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await setting
        await asyncio.sleep(0)
        assert ended == ["cancelled"]
        assert not await held.state().has("k")
        await held.close()

    asyncio.run(main())


def test_late_thread_of_a_closed_loop_harms_nobody() -> None:
    held, begun, go_on, done = async_store(), threading.Event(), threading.Event(), threading.Event()

    @held.hooks.before("state.set", budget=0.1, max_failures=1000)
    def slow(call: HookContext) -> None:
        begun.set()
        assert go_on.wait(30)
        done.set()

    while not begun.is_set():  # on a busy machine, its time may be over before
        asyncio.run(held.state().set("k", 1))
    go_on.set()
    assert done.wait(30)
    assert asyncio.run(held.state().get("k")) == 1
    asyncio.run(held.close())


def test_inline_hook_that_is_late_is_told_of_and_its_answer_counts() -> None:
    held = store()

    @held.hooks.before("state.set", inline=True, budget=0.001, fail_closed=True)
    def slow(call: HookContext) -> int:
        time.sleep(0.003)
        return 2

    held.state()["k"] = 1
    assert held.state()["k"] == 2
    (row,) = [row for row in events(held) if row.columns[1] == "hook"]
    assert row.columns[5] == "late"
    assert held.hooks.list()[0].failures == 1
    held.close()


def test_hook_may_change_state_itself_and_is_not_called_for_that() -> None:
    held = store()

    @held.hooks.before("state.set", name="counting")
    def count(call: HookContext) -> None:
        held.state(user="counts").change("n", lambda n: n + 1, default=0)

    held.state()["a"] = 1
    held.state()["b"] = 1
    assert held.state(user="counts")["n"] == 2
    outcomes = [(row.columns[4], row.columns[5]) for row in events(held) if row.columns[1] == "hook"]
    assert sorted(outcomes) == [("a", "ok"), ("b", "ok"), ("n", "skipped"), ("n", "skipped")]
    held.close()


def test_hook_is_not_called_again_for_the_same_change_when_others_are_first() -> None:
    held = store()
    other = beside(held)
    calls: list[Any] = []

    @held.hooks.before("state.set", key="mine")
    def look(call: HookContext) -> int:
        calls.append(call.value)
        other.state()["theirs"] = len(calls)  # takes the place that this change was prepared for
        return int(call.value) + 1

    held.state()["mine"] = 1
    held.state()["mine"] = 5
    assert calls == [1, 5]
    assert held.state()["mine"] == 6
    assert len([row for row in events(held) if row.columns[1] == "hook"]) == 2
    held.close()


def test_hook_is_called_again_where_another_value_comes_of_it() -> None:
    held = store()
    held.state()["n"] = 0
    other = beside(held)
    seen: list[int] = []

    @held.hooks.before("state.set", key="n")
    def look(call: HookContext) -> None:
        seen.append(call.value)
        if len(seen) == 1:
            other.state()["n"] = 10

    held.state().change("n", lambda n: n + 1)
    assert held.state()["n"] == 11
    assert seen == [1, 11]
    held.close()


def test_delete_that_a_hook_answers_with_a_value() -> None:
    held = store()
    held.state()["k"] = 1
    held.hooks.before("state.delete", name="odd")(lambda call: 5)
    del held.state()["k"]
    assert "k" not in held.state()
    assert "a hook returned a value" in held.hooks.list()[0].last_error
    held.close()


def test_rollback_copy_and_expire_pass_hooks_too() -> None:
    held = store()
    state = held.state(agent="a")
    state["k"] = 1
    state["k"] = 2
    points: list[tuple[str, Any]] = []
    held.hooks.before("state.*", inline=True)(lambda call: points.append((call.point, call.value)))
    state.rollback(1)
    state.expire("k", 60)
    state.copy_to(held.state(agent="b"))
    state.clear()
    assert points == [
        ("state.rollback", 1),
        ("state.expire", 1),
        ("state.set", 1),
        ("state.delete", holdfast.MISSING),
    ]
    held.close()


def test_notes_go_into_the_audit_row() -> None:
    held = store()

    @held.hooks.before("state.set", key="k")
    def note(call: HookContext) -> None:
        call.note(ticket="T-1")
        call.note(size=call.value_size)

    held.state().batch({"k": "abc", "other": 1})
    rows = {row.columns[4]: row for row in events(held) if row.columns[1] == "change"}
    assert rows["k"].body
    assert not rows["other"].body
    held.close()


# Registering --------------------------------------------------------------------------------------------------------


def test_hook_is_removed_by_name_or_function() -> None:
    held = store()
    seen: list[str] = []

    @held.hooks.before("state.set", inline=True)
    def one(call: HookContext) -> None:
        seen.append("one")

    held.hooks.before("state.set", inline=True, name="two")(lambda call: seen.append("two"))
    held.state()["k"] = 1
    held.hooks.remove(one)
    held.state()["k"] = 2
    held.hooks.remove("two")
    held.state()["k"] = 3
    assert seen == ["one", "two", "two"]
    assert held.hooks.list() == []
    with pytest.raises(NotFoundError):
        held.hooks.remove("two")
    held.close()


def test_names_are_taken_once() -> None:
    held = store()
    held.hooks.before("state.set", name="n")(_refuse)
    with pytest.raises(InvalidError, match="already"):
        held.hooks.after("state.set", name="n")(_refuse)
    held.close()


def test_points_are_checked_with_a_suggestion() -> None:
    held = store()
    with pytest.raises(InvalidError, match=r"Did you mean 'state\.set'"):
        held.hooks.before("state.sett")
    with pytest.raises(InvalidError, match=r"Did you mean 'state\.\*'"):
        held.hooks.before("stat.*")
    with pytest.raises(InvalidError, match="The points are"):
        held.hooks.before("zzzzzz")
    with pytest.raises(InvalidError, match="for a point"):
        held.hooks.before()
    with pytest.raises(InvalidError, match="for a point"):
        held.hooks.before(_refuse)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="must be a string"):
        held.hooks.before(3)  # type: ignore[arg-type]
    assert check_points(("*",)) == set(POINTS)
    assert check_points(("session.*", "state.set")) > {"session.start", "state.set"}
    held.close()


OPTIONS: list[dict[str, Any]] = [
    {"budget": 0},
    {"budget": "1"},
    {"order": "first"},
    {"scope": "*" * 40},
    {"key": ""},
    {"max_failures": 0},
    {"rest": -1},
    {"priority": 3},
    {"name": "a//b"},
]


def test_options_are_checked(subtests: pytest.Subtests) -> None:
    for options in OPTIONS:
        with subtests.test(options=options):
            held = store()
            if options == {"key": ""}:
                held.hooks.before("state.set", **options)(_refuse)  # every key
            else:
                with pytest.raises(InvalidError):
                    held.hooks.before("state.set", **options)(_refuse)
            held.close()


def test_what_is_no_hook() -> None:
    held = store()
    with pytest.raises(InvalidError, match="must be a function"):
        held.hooks.before("state.set")(3)  # type: ignore[type-var]
    with pytest.raises(InvalidError, match="not a built-in"):
        held.hooks.add(_refuse, "state.set")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="inline"):
        held.hooks.before("state.set", inline=True)(_hang_async)
    held.close()


def test_object_with_an_async_call_is_awaited() -> None:
    class Thinks:
        async def __call__(self, call: HookContext) -> int:
            await asyncio.sleep(0)
            return int(call.value) * 2

    held = store()
    held.hooks.before("state.set")(Thinks())
    held.state()["k"] = 4
    assert held.state()["k"] == 8
    assert held.hooks.list()[0].name == "Thinks"
    held.close()


def test_conflicts_are_told_before_hooks_are_called() -> None:
    held = store()
    held.state()["k"] = 1
    seen: list[int] = []
    held.hooks.before("state.set", inline=True)(lambda call: seen.append(1))
    with pytest.raises(ConflictError):
        held.state().set("k", 2, expected=7)
    assert seen == []
    held.close()
