"""Hooks after a change: soon, in order, and never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.backends.interface import Row
from holdfast.backends.runtime.drivers import run
from holdfast.engine import trace_context
from holdfast.engine.events import digest
from holdfast.engine.namespaces import HOOKS
from holdfast.engine.row_format import Line
from holdfast.errors import TransientError, VetoError
from holdfast.hooks import HookContext
from holdfast.hooks import outbox as later_module
from holdfast.hooks.outbox import OutboxCall
from tests.hooks.kit import async_store, events, store


def test_after_hooks_are_told_what_was_made() -> None:
    held = store()
    seen: list[Any] = []

    @held.hooks.after("state.*")
    def look(call: HookContext) -> None:
        seen.append((call.point, call.key, call.value, call.before, call.version, call.id, trace_context.current()))

    with holdfast.correlation("c1", cause="e1"):
        held.state(agent="a")["k"] = {"n": 1}
        del held.state(agent="a")["k"]
    assert held.hooks.drain(30)
    second, first = held.state(agent="a").history()
    assert seen == [
        ("state.set", "k", {"n": 1}, 0, 1, first.id, trace_context.Trace("c1", first.id)),
        ("state.delete", "k", holdfast.MISSING, 1, 0, second.id, trace_context.Trace("c1", second.id)),
    ]
    held.close()


def test_changes_that_after_hooks_make_have_the_change_as_their_cause() -> None:
    held = store()

    @held.hooks.after("state.set", scope="agent:*")
    def follow(call: HookContext) -> None:
        held.state(user="log")[call.key] = call.version

    with holdfast.correlation("c1"):
        held.state(agent="a")["k"] = 1
    assert held.hooks.drain(30)
    (made,) = held.state(user="log").history()
    (first,) = held.state(agent="a").history()
    assert (made.correlation, made.cause) == ("c1", first.id)
    held.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_after_hooks_run_in_order_within_a_scope(kind: str) -> None:
    held = store()
    seen: dict[str, list[int]] = {}

    if kind == "sync":

        @held.hooks.after("state.set")
        def look(call: HookContext) -> None:
            seen.setdefault(call.scope, []).append(call.value)
    else:

        @held.hooks.after("state.set")
        async def look_async(call: HookContext) -> None:
            await asyncio.sleep(0)
            seen.setdefault(call.scope, []).append(call.value)

    for n in range(40):
        held.state(agent=f"a{n % 3}")["k"] = n
    assert held.hooks.drain(30)
    assert seen == {f"agent:a{each}": list(range(each, 40, 3)) for each in range(3)}
    held.close()


def test_after_hook_holds_up_nobody_and_other_scopes_go_on() -> None:
    held = store()
    go_on, seen = threading.Event(), list[str]()

    @held.hooks.after("state.set")
    def slow(call: HookContext) -> None:
        if call.scope == "agent:slow":
            assert go_on.wait(30)
        seen.append(call.scope)

    held.state(agent="slow")["k"] = 1
    held.state(agent="quick")["k"] = 1
    deadline = time.monotonic() + 30
    while held.status().details["hooks_waiting"] != 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert held.status().details["hooks_waiting"] == 1
    assert seen == ["agent:quick"]
    assert not held.hooks.drain(0.01)
    go_on.set()
    assert held.hooks.drain(30)
    assert seen == ["agent:quick", "agent:slow"]
    held.close()


def _crash(call: HookContext) -> None:
    raise RuntimeError("the secret is hunter-two")


def _veto(call: HookContext) -> None:
    raise VetoError("too late")


async def _hang(call: HookContext) -> None:
    await asyncio.sleep(30)


@pytest.mark.parametrize(
    ("function", "outcome"), [(_crash, "error"), (_veto, "error"), (_hang, "late")], ids=["crash", "veto", "hang"]
)
def test_after_hook_that_fails_loses_nothing(function: Any, outcome: str) -> None:
    held = store()
    held.hooks.after("state.set", name="bad", budget=0.02 if outcome == "late" else 30)(function)
    held.state()["k"] = 1
    assert held.hooks.drain(30)
    assert held.state()["k"] == 1
    (told,) = held.hooks.history("bad")
    assert told.outcome == outcome
    assert told.detail["phase"] == "after"
    assert "hunter-two" not in repr(told)
    held.close()


def test_executions_are_recorded_together_by_steps_that_cover_them() -> None:
    held = store()
    held.hooks.after("state.set", name="look")(lambda call: None)
    for n in range(20):
        held.state()["k"] = n
    assert held.hooks.drain(30)
    rows = events(held, HOOKS)
    assert len(rows) == 20
    assert len({row.key[2] for row in rows}) < 20  # not a step for each
    for id in {str(row.key[2]) for row in rows}:
        point = run(held._engine.lines.find(Line("", HOOKS), id))
        header = run(held._engine.step_info.head(Line("", HOOKS), point)).header
        covered = [(row.columns, b"") for row in rows if row.key[2] == id]
        assert (held._engine.context.codec.unpack(header.metadata), header.events) == ({}, digest(covered))
    told = held.hooks.history("look", limit=100)
    assert [each.cause for each in told] == [each.id for each in held.state().history()]
    held.close()


def test_oldest_are_dropped_where_too_many_wait_and_that_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held = store()
    go_on, seen = threading.Event(), list[int]()

    @held.hooks.after("state.set", name="slow")
    def slow(call: HookContext) -> None:
        assert go_on.wait(30)
        seen.append(call.value)

    held.hooks._registry().after_queue._max_waiting = 4
    held.state()["k"] = 0
    deadline = time.monotonic() + 30
    while held.hooks._registry().after_queue._all and time.monotonic() < deadline:
        time.sleep(0.001)
        if held.hooks._registry().after_queue._all[0].finished:
            break
    with caplog.at_level(logging.ERROR, "holdfast.hooks"):
        for n in range(1, 10):
            held.state()["k"] = n
    go_on.set()
    assert held.hooks.drain(30)
    assert seen == [0, 7, 8, 9]
    assert held.hooks.list()[0].dropped == 6
    assert held.status().details["hooks_dropped"] == 6
    assert "were dropped" in caplog.text
    held.close()


def test_closing_waits_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    held = store()
    seen: list[int] = []
    held.hooks.after("state.set")(lambda call: seen.append(call.value))
    monkeypatch.setattr(registry := held.hooks._registry(), "close", partial(registry.close, 60))
    for n in range(30):
        held.state()["k"] = n
    held.close()
    assert seen == list(range(30))
    held.close()


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    held = store()
    going, go_on = threading.Event(), threading.Event()

    @held.hooks.after("state.set", name="stuck")
    def stuck(call: HookContext) -> None:
        going.set()
        assert go_on.wait(60)

    held.state()["k"] = 1
    assert going.wait(60)  # what has begun is not dropped
    held.state()["k"] = 2
    held.hooks._registry().close(0.05)
    assert "before all after-hooks were done" in caplog.text
    assert held.hooks.list()[0].dropped == 1
    go_on.set()


def test_async_store_has_the_same() -> None:
    async def main() -> None:
        held, seen = async_store(), list[int]()

        @held.hooks.after("state.set")
        async def look(call: HookContext) -> None:
            await asyncio.sleep(0)
            seen.append(call.value)

        for n in range(5):
            await held.state().set("k", n)
        assert await held.hooks.drain(30)
        assert seen == [0, 1, 2, 3, 4]
        assert len(await held.hooks.history("look")) == 5
        await held.close()

    asyncio.run(main())


def test_drain_without_hooks() -> None:
    held = store()
    assert held.hooks.drain()
    assert held.hooks.list() == []
    assert held.status().details == {}
    held.close()


def test_inline_after_hook_has_run_when_the_change_returns() -> None:
    held = store()
    seen: list[int] = []
    held.hooks.after("state.set", inline=True)(lambda call: seen.append(call.version))
    held.state()["k"] = 1
    assert seen == [1]
    held.close()


def test_after_hook_is_not_called_for_what_it_does_itself() -> None:
    held = store()

    @held.hooks.after("state.set", name="echo")
    def echo(call: HookContext) -> None:
        held.state(user="echo")[call.key] = call.value

    held.state()["k"] = 1
    assert held.hooks.drain(30)
    assert [(each.outcome, each.scope) for each in held.hooks.history("echo")] in (
        [("ok", "global"), ("skipped", "user:echo")],
        [("skipped", "user:echo"), ("ok", "global")],
    )
    held.close()


def test_recording_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    written: list[Any] = []
    call = OutboxCall(Row(("one",), (0, "")), None)  # type: ignore[arg-type]
    fails = [TransientError("not now"), TransientError("not yet")]

    def write(outcomes: Sequence[Any]) -> None:
        assert later.is_waiting(("one",))
        assert later.is_delivered(("one",))
        if fails:
            raise fails.pop()
        written.extend(outcomes)

    later = later_module.AfterQueue(lambda job: None, write, every=0.01)  # type: ignore[arg-type,return-value]
    outcomes = [later_module.Outcome(None, call if n == 1 else None) for n in range(3)]
    with later._lock:  # they are recorded together
        for each in outcomes:
            later.record(each)
    assert later.drain(30)
    assert written == outcomes
    assert not later.is_waiting(("one",))
    assert not later.is_delivered(("one",))
    assert "not recorded yet" in caplog.text
    later.close()


def test_recording_is_given_up_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    def write(outcomes: Sequence[Any]) -> None:
        raise TransientError("never")

    later = later_module.AfterQueue(lambda job: None, write, every=0.001)  # type: ignore[arg-type,return-value]
    later.record(later_module.Outcome(None))
    assert later.drain(30)
    assert "could not be recorded" in caplog.text
    later.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_child_has_hooks_of_its_own(tmp_path: Path) -> None:
    held = holdfast.open(f"sqlite:///{tmp_path}/s.db")
    seen: list[int] = []
    held.hooks.before("state.set", name="before")(lambda call: call.value + 1)
    held.hooks.after("state.set", name="after")(lambda call: seen.append(call.value))
    held.state()["k"] = 1
    assert held.hooks.drain(30)
    child = os.fork()
    if child == 0:
        try:
            held.state()["k"] = 10
            ok = held.hooks.drain(20) and seen == [2, 11]
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.state()["k"] == 11
    held.close()


def test_the_text_of_an_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open("memory://") as store, caplog.at_level(logging.DEBUG, "holdfast"):

        @store.hooks.before("state.set")
        def refuse_words(call: Any) -> None:
            raise ValueError(f"cannot read {call.value}")

        store.state(agent="a")["k"] = "the secret words"
    assert "refuse_words" in caplog.text
    assert "ValueError" in caplog.text
    assert "secret words" not in caplog.text
