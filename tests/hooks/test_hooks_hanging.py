"""A hook that hangs, again and again, keeps no other hook from running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.hooks import HookContext
from holdfast.hooks.hook import _QUEUES, _THREADS
from tests.hooks.kit import async_store, store

OFTEN = _THREADS + 8
"""How often a hook hangs: more often than it has threads."""


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Hooks that hang do so until the test is over."""
    end = threading.Event()
    yield end
    end.set()


class Hang:
    """A hook that hangs in its thread, and remembers which values it was called with."""

    def __init__(self, end: threading.Event) -> None:
        self._end = end
        self.values: list[Any] = []

    def __call__(self, call: HookContext) -> None:
        self.values.append(call.value)
        self._end.wait(120)


class AsyncHang(Hang):
    """One that blocks the event loop that it runs on."""

    async def __call__(self, call: HookContext) -> None:  # type: ignore[override]
        super().__call__(call)


class Check:
    """A hook that works."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def __call__(self, call: HookContext) -> Any:
        self.values.append(call.value)
        return None if call.value is None else call.value + 1


class AsyncCheck(Check):
    async def __call__(self, call: HookContext) -> Any:
        await asyncio.sleep(0)
        return super().__call__(call)


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_before_a_change_of_a_sync_store(end: threading.Event, kind: str) -> None:
    held = store()
    hang, check = (Hang(end), Check()) if kind == "thread" else (AsyncHang(end), AsyncCheck())
    held.hooks.before("state.set", key="hang", budget=0.02, max_failures=1000, name="hang")(hang)
    held.hooks.before("state.set", key="check", budget=30, fail_closed=True, name="check")(check)
    for n in range(OFTEN):
        held.state()["hang"] = n
    held.state()["check"] = 1
    assert held.state()["check"] == 2
    hanging, checking = held.hooks.list()
    assert (hanging.failures, checking.failures, checking.calls) == (OFTEN, 0, 1)
    assert hang.values  # it did hang
    end.set()
    held.close()


def test_before_a_change_of_an_async_store(end: threading.Event) -> None:
    async def main() -> None:
        held, hang, check = async_store(), Hang(end), Check()
        held.hooks.before("state.set", key="hang", budget=0.1, max_failures=1000, name="hang")(hang)
        held.hooks.before("state.set", key="check", budget=30, fail_closed=True, name="check")(check)
        await asyncio.gather(*(held.state(agent=f"a{n}").set("hang", n) for n in range(OFTEN)))
        await held.state().set("check", 1)
        assert await held.state().get("check") == 2
        assert hang.values
        end.set()
        await held.close()

    asyncio.run(main())


def test_after_changes(end: threading.Event) -> None:
    held, hang, checked = store(), Hang(end), threading.Event()
    held.hooks.after("state.set", name="hang", order=-1)(hang)
    held.hooks.after("state.set", name="check")(lambda call: checked.set() if call.value == "last" else None)
    for n in range(2 * _QUEUES):
        held.state(agent=f"a{n}")["k"] = n
    held.state(agent="a0")["k"] = "last"
    assert checked.wait(20)  # the hook that hangs has 30 seconds
    assert hang.values
    end.set()
    assert held.hooks.drain(30)
    assert hang.values[-1] is not None
    held.close()


def test_a_call_that_did_not_begin_in_time_never_does(end: threading.Event) -> None:
    held, hang = store(), Hang(end)
    held.hooks.before("state.set", budget=0.02, max_failures=1000, name="hang")(hang)
    n = 0
    while len(hang.values) < _THREADS:  # until all of its threads hang
        held.state()["k"] = n
        n += 1
    late = range(n, n + 5)
    for n in late:
        held.state()["k"] = n
    end.set()
    while "last" not in hang.values:  # which waits for its turn, after those
        held.state()["k"] = "last"
    assert not set(late) & set(hang.values)
    held.close()


def test_a_hook_that_is_removed_leaves_the_others_their_threads(end: threading.Event) -> None:
    held, hang = store(), Hang(end)
    held.hooks.before("state.set", key="hang", budget=0.02, name="hang")(hang)
    held.hooks.before("state.set", key="check", budget=30, fail_closed=True, name="check")(Check())
    held.state()["hang"] = 1
    held.hooks.remove("hang")
    held.state()["check"] = 1
    assert held.state()["check"] == 2
    end.set()
    held.close()
