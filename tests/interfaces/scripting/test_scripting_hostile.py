"""Hostile scripts are stopped and reported, and leave no trace in the host: no process, no file, no memory."""

from __future__ import annotations

import os
import threading
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.scripts import Sandbox
from tests.interfaces.scripting.hostile import JAVASCRIPT, LUA
from tests.support.cases import case

SCRIPTS: list[tuple[Any, str, str, object]] = [
    (language, name, source, expected)
    for language, scripts in (("lua", LUA), ("javascript", JAVASCRIPT))
    for name, (source, expected) in scripts.items()
]
SLOW = ("script-timeout", "*")
SAMPLE = ("endless loop", "pattern bomb", "endless promises", "large array")
"""Scripts that take as long as they may, and are run every day all the same."""

STOPPED = ("script-timeout", "script-memory", "script-stopped", "script-failed")


def attack(store: holdfast.Store, language: Any, source: str, expected: object = "") -> object:
    """The result of a script, or the code of its error. One that ends on its own has all the time that it needs."""
    timeout = 0.1 if expected in SLOW else 30
    with Sandbox(
        language, store, timeout=timeout, memory=16 << 20, max_message=1 << 20, output=lambda _: None
    ) as sandbox:
        pid = sandbox.pid
        try:
            return sandbox.run(source)
        except holdfast.errors.HoldfastError as error:
            return error.code
        finally:
            sandbox.close()
            assert not Path(f"/proc/{pid}").exists(), "the process is still there"


def check(store: holdfast.Store, language: Any, source: str, expected: object) -> None:
    got = attack(store, language, source, expected)
    assert got in STOPPED if expected == "*" else got == expected
    assert store.state("agent:h")["canary"] == "alive"
    assert store.hooks.list() == []


@pytest.fixture
def store() -> Any:
    with holdfast.open("memory://") as store:
        store.state("agent:h")["canary"] = "alive"
        yield store


@pytest.mark.parametrize("language", ["lua", "javascript"])
def test_hostile_scripts(store: holdfast.Store, language: str, subtests: pytest.Subtests) -> None:
    for written_in, name, source, expected in SCRIPTS:
        if written_in == language and (expected not in SLOW or name in SAMPLE):
            with case(subtests, name):
                check(store, language, source, expected)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as /proc has it


def resident() -> int:
    """The memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_sandboxes_leave_nothing_behind(store: holdfast.Store) -> None:
    attack(store, "lua", "return 1")
    before = descriptors(), threading.active_count()
    for source, expected in (("while true do end", "script-timeout"), ("error('x')", ""), ("return 1", "")):
        attack(store, "lua", source, expected)
    assert (descriptors(), threading.active_count()) == before


@pytest.mark.nightly
def test_500_hostile_scripts_in_a_row(store: holdfast.Store, subtests: pytest.Subtests) -> None:
    for language, _, source, expected in SCRIPTS:  # every library is loaded, every cache filled
        attack(store, language, source, expected)
    before, files, threads = resident(), descriptors(), threading.active_count()
    for language, name, source, expected in islice(cycle(SCRIPTS), 500):
        with case(subtests, language, name):
            check(store, language, source, expected)
    assert descriptors() == files
    assert threading.active_count() <= threads + 2  # of hooks that wait for work
    assert resident() - before < 16 << 20
