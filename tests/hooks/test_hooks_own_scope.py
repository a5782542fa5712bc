"""A before-hook that writes where its own change is being made: it is refused at once, and its veto is never lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import VetoError
from holdfast.hooks import HookContext
from holdfast.metrics import to_prometheus
from tests.hooks.kit import Clock, async_store, store
from tests.servers.places import KINDS, place
from tests.support.nightly import mostly_nightly

BUDGET = 20.0
"""Seconds: no hook here takes as long, unless it waits for the change that waits for it."""


def _code(error: pytest.ExceptionInfo[VetoError]) -> str:
    return error.value.code


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=("sqlite",)))
@pytest.mark.parametrize("inline", [False, True])
def test_the_veto_counts(kind: str, inline: bool, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as held:
        state = held.state(agent="a")
        state["n"] = 1
        refused: list[str] = []

        @held.hooks.before("state.set", key="n", budget=BUDGET, inline=inline)
        def check(call: HookContext) -> None:
            try:
                state["checked"] = call.value
            except VetoError as error:
                refused.append(error.code)
            raise VetoError("never")

        for n in range(3):
            with pytest.raises(VetoError, match="never"):
                state["n"] = n
        assert dict(state) == {"n": 1}
        assert refused == ["hook-own-change"] * 3
        (info,) = held.hooks.list()
        assert (info.vetoes, info.failures, info.bypassed) == (3, 0, 0)
        assert [each.outcome for each in held.hooks.history("check")] == ["veto"] * 3
        assert held.maintenance.verify().findings == []


def test_a_hook_that_does_not_handle_the_error_refuses_the_change() -> None:
    with store() as held:
        state, thread = held.state(agent="a"), held.thread("chat")
        thread.put({"n": 0})

        @held.hooks.before("state.*", "checkpoint.save", budget=BUDGET)
        def write(call: HookContext) -> None:
            if call.point == "checkpoint.save":
                thread.update({"by": "hook"})
            elif call.key != "by":
                state["by"] = "hook"

        changes: list[Callable[[], Any]] = [
            lambda: state.set("n", 1),
            lambda: state.batch({"n": 1, "m": 2}),
            lambda: state.patch("n", {"a": 1}),
            lambda: state.change("n", lambda n: n + 1, default=0),
            lambda: thread.put({"n": 1}),
            lambda: thread.update({"n": 1}),
        ]
        for change in changes:
            with pytest.raises(VetoError) as error:
                change()
            assert _code(error) == "hook-own-change"
            assert "after-hook" in error.value.hint
        assert (dict(state), thread.get().state) == ({}, {"n": 0})


def test_another_scope_of_the_same_transaction() -> None:
    with store() as held:
        one, two = held.state(agent="one"), held.state(agent="two")

        @held.hooks.before("state.set", scope="agent:two", budget=BUDGET)
        def write(call: HookContext) -> None:
            one["by"] = "hook"

        def change_both() -> None:
            with held.transaction() as transaction:
                transaction.state(agent="one")["n"] = 1
                transaction.state(agent="two")["n"] = 1

        with pytest.raises(VetoError) as error:
            change_both()
        assert _code(error) == "hook-own-change"
        assert (dict(one), dict(two)) == ({}, {})
        two["n"] = 1  # alone
        assert (dict(one), dict(two)) == ({"by": "hook"}, {"n": 1})


def test_async() -> None:
    async def main() -> None:
        held = async_store()
        state = held.state(agent="a")

        @held.hooks.before("state.set", key="n", budget=BUDGET)
        async def check(call: HookContext) -> None:
            await state.set("checked", call.value)

        with pytest.raises(VetoError) as error:
            await state.set("n", 1)
        assert _code(error) == "hook-own-change"
        assert not await state.has("n")
        assert not await state.has("checked")
        await held.close()

    asyncio.run(main())


def test_an_identity() -> None:
    with store() as held:
        seen = held.state(agent="a")

        @held.hooks.before("state.set", key="n", budget=BUDGET)
        def check(call: HookContext) -> None:
            seen["checked"] = call.actor

        with pytest.raises(VetoError) as error:
            held.as_identity(agent="a").state(agent="a")["n"] = 1
        assert _code(error) == "hook-own-change"
        assert dict(seen) == {}


def test_another_store_may_have_the_same_names() -> None:
    with store() as held, store() as mirror:
        mirror.hooks.before("state.set", budget=BUDGET)(lambda call: None)

        @held.hooks.before("state.set", budget=BUDGET)
        def copy(call: HookContext) -> None:
            mirror.state(agent="a")[call.key] = call.value

        held.state(agent="a")["n"] = 1
        assert dict(mirror.state(agent="a")) == dict(held.state(agent="a")) == {"n": 1}


def test_two_hooks_that_write_into_each_others_scope_do_not_wait_for_each_other() -> None:
    with store() as held:
        both = threading.Barrier(2)

        def write_there(call: HookContext) -> None:
            if call.key == "n":
                both.wait(BUDGET)  # now both changes are being made
                other = "two" if call.scope == "agent:one" else "one"
                held.state(agent=other)["seen"] = call.value

        held.hooks.before("state.set", scope="agent:one", budget=BUDGET, name="one")(write_there)
        held.hooks.before("state.set", scope="agent:two", budget=BUDGET, name="two")(write_there)
        threads = [
            threading.Thread(target=held.state(agent=agent).set, args=("n", agent), daemon=True)
            for agent in ("one", "two")
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert dict(held.state(agent="one")) == {"n": "one", "seen": "two"}
        assert dict(held.state(agent="two")) == {"n": "two", "seen": "one"}
        assert [(each.failures, each.worst < 0.9) for each in held.hooks.list()] == [(0, True)] * 2


def test_a_hook_that_was_late_writes_when_the_change_is_made() -> None:
    with store() as held:
        state, go_on, done = held.state(agent="a"), threading.Event(), threading.Event()

        @held.hooks.before("state.set", key="n", budget=0.05)
        def late(call: HookContext) -> None:
            go_on.wait(60)
            state["late"] = call.value
            done.set()

        state["n"] = 1
        go_on.set()
        assert done.wait(60)
        assert dict(state) == {"n": 1, "late": 1}


def test_an_after_hook_writes_to_its_scope() -> None:
    with store() as held:
        held.hooks.before("state.*", "checkpoint.save", budget=BUDGET, name="look")(lambda call: None)

        @held.hooks.after("state.set", "checkpoint.save", inline=True, name="inline")
        def inline(call: HookContext) -> None:
            held.state(agent="a")["inline"] = call.value

        @held.hooks.after("state.set", "checkpoint.save", name="soon")
        def soon(call: HookContext) -> None:
            if call.point == "checkpoint.save":
                held.thread("chat").update({"soon": True})
            else:
                held.state(agent="a")["soon"] = call.value

        held.state(agent="a")["n"] = 1
        held.thread("chat").put({"n": 1})
        assert held.hooks.drain(60)
        assert not [each for each in held.hooks.history() if each.outcome not in ("ok", "skipped")]
        assert held.thread("chat").get().state == {"n": 1, "soon": True}


@pytest.mark.parametrize("why", ["late", "error", "skipped"])
def test_a_change_without_a_hook_that_could_have_refused_it_is_visible(why: str) -> None:
    clock, end = Clock(), threading.Event()
    with store(clock) as held:
        fail_closed = dict[str, Any](fail_closed=True, inline=True, name="closed", key="closed")
        held.hooks.before("state.set", **fail_closed)(lambda call: 1 / 0)

        @held.hooks.before("state.set", key="n", budget=0.05, max_failures=1, name="check")
        def check(call: HookContext) -> None:
            if why != "late":
                raise RuntimeError("out of order")
            end.wait(60)

        held.jobs.add("watch", "alerts", schedule="every 1m", settings={"pending": "0s"})
        held.jobs.run("watch")
        assert not [each for each in held.alerts.list() if each.state == "firing"]
        held.state()["n"] = 1
        if why == "skipped":
            held.state()["n"] = 2  # it is off
        end.set()
        with pytest.raises(VetoError):
            held.state()["closed"] = 1
        found = held.maintenance.metrics()
        assert found.value("hook_bypassed_total", hook="check", outcome=why) == 1
        assert found.value("hook_bypassed_total", hook="closed") == 0
        assert f'holdfast_hook_bypassed_total{{store="memory://",hook="check",outcome="{why}"}} 1' in to_prometheus(
            found
        )
        assert held.hooks.history("check")[0].outcome == why
        assert held.hooks.list()[1].bypassed == found.value("hook_bypassed_total")
        held.jobs.run("watch")
        (alert,) = [each for each in held.alerts.list() if each.rule == "hook-bypassed"]
        assert (alert.state, "without a before-hook" in alert.message) == ("firing", True)


def test_own_changes_that_nothing_waits_for_are_made() -> None:
    with store() as held:
        thread = held.thread("chat")
        thread.put({"n": 1})

        @held.hooks.before("checkpoint.delete", budget=BUDGET)
        def save(_: HookContext) -> None:
            thread.put({"n": 2})

        assert thread.delete()
        assert held.threads() == []
        for n in (3, 4):
            thread.put({"n": n})

        @held.hooks.before("checkpoint.save", budget=BUDGET)
        def delete(_: HookContext) -> None:
            held.hooks.remove("save")
            thread.delete()

        thread.put({"n": 5})
        assert (len(thread.log()), thread.get().state) == (1, {"n": 5})
