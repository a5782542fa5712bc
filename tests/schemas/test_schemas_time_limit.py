"""Functions of migrations are limited in time, and the limit strikes nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, TypedDict

import pytest

import holdfast
from holdfast.errors import InvalidError
from holdfast.schemas import Migration, Schema, SchemaSet, convert, custom, functions
from holdfast.schemas.functions import TIME_LIMIT


class Old(TypedDict):
    """A state."""

    count: int


class New(TypedDict):
    """The same later."""

    count: str


def versions(up: Callable[[Any], Any]) -> SchemaSet:
    return SchemaSet(
        Schema("n", "1.0.0", Old),
        Schema("n", "2.0.0", New),
        Migration("n", "1.0.0", "2.0.0", convert("count", up, int)),
    )


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(functions, "_LOOK_SECONDS", 0.01)


def forever(value: int) -> str:
    end = monotonic() + 60  # it would return after a minute, and fail the test then
    while monotonic() < end:
        value += 1
    return str(value)


def stubborn(value: int) -> str:
    """Handles everything, once."""
    try:
        return forever(value)
    except BaseException:
        return forever(value)


@pytest.mark.parametrize("function", [forever, stubborn])
def test_a_function_that_does_not_return_is_stopped(tmp_path: Path, function: Callable[[int], str]) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("a").put({"count": 1})
        store.schemas.attach(versions(function), threads="*")
        start = monotonic()
        with pytest.raises(InvalidError) as stopped:
            store.thread("a").get()
        assert monotonic() - start < 20
        assert (stopped.value.code, "convert count" in stopped.value.where) == ("migration-failed", True)
        assert "longer than" in stopped.value.what
        with pytest.raises(InvalidError):
            store.schemas.up(versions(function), check_first=False)
        assert [each.kind for each in store.thread("a").log()] == ["save"], "nothing was written"
        store.thread("b").put({"count": "2"})


def test_in_another_thread_and_in_an_event_loop() -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            versions(forever).migrate("n", {"count": 1}, "1.0.0")
        except InvalidError as error:
            failed.append(error)

    async def run_in_loop() -> None:
        await asyncio.get_running_loop().run_in_executor(None, run)

    thread = threading.Thread(target=run)
    thread.start()
    asyncio.run(run_in_loop())
    thread.join()
    assert len(failed) == 2


def test_an_event_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_SECONDS", 60)
    ticks = 0

    def until_ticks(value: int) -> str:
        while ticks < 3:
            value += 1
        return str(value)

    async def tick() -> None:
        nonlocal ticks
        migrate = versions(until_ticks).migrate
        running = asyncio.get_running_loop().run_in_executor(None, migrate, "n", {"count": 1}, "1.0.0")
        while not running.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await running

    asyncio.run(tick())


def test_the_exception_never_strikes_what_comes_after() -> None:
    """Calls that end at the very moment of their limit: either they fail, or nothing happens."""
    outcomes: list[bool] = []
    for number in range(16):
        until = 0.035 + 0.003 * number

        def up(state: dict[str, Any], until: float = until) -> dict[str, Any]:
            end = monotonic() + until
            while monotonic() < end:
                pass
            return state

        migration = Migration("n", "1.0.0", "2.0.0", custom(up, lossy=True))
        try:
            migration.upgrade({})
        except InvalidError:
            outcomes.append(True)
        else:
            outcomes.append(False)
        end = monotonic() + 0.02
        while monotonic() < end:  # an exception that is late would be raised here
            pass
    assert not TIME_LIMIT._started
    assert True in outcomes, "the control: some were over"
    assert False in outcomes, "and some were not"


_STOPPED_THEN_TRACED = """
import sys
from holdfast.schemas.functions import TIME_LIMIT, OverTime

thread = TIME_LIMIT.begin()
TIME_LIMIT._started[thread] -= 60
try:
    while True:
        pass
except OverTime:
    TIME_LIMIT.end(thread)
sys.settrace(lambda *_: None)
print((lambda: "traced")())
"""


def test_functions_can_be_traced_after_one_was_stopped() -> None:
    """In a process of its own, with a limit: what went wrong was the interpreter, which no longer began a function."""
    program = [sys.executable, "-c", _STOPPED_THEN_TRACED]
    assert subprocess.run(program, capture_output=True, text=True, timeout=60, check=True).stdout == "traced\n"
