"""Processes that are killed in the middle of their work, at a write and not after some time: on a slow machine, too,
every part of the work is struck."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from holdfast.backends.interface import Batch
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import JOBS, REFS

_counted = 0


def count_kill(killed: bool = True) -> None:
    """Count a process that a test has killed, if it did: a run says how many they were."""
    global _counted
    _counted += killed


def take_count() -> int:
    """Return how many processes were killed since this was asked last."""
    global _counted
    counted, _counted = _counted, 0
    return counted


Moment = Literal["before", "during", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "during", "after")


def run_in_child(work: Callable[[Callable[[str], None]], None]) -> tuple[list[str], bool]:
    """Run work in a process of its own, given a function to report with. Returns what it reported, and whether it was
    killed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(read)
            work(lambda what: _report(write, what))
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        reported = pipe.read().decode().split("\n")[:-1]
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    count_kill(killed)
    assert killed or os.waitstatus_to_exitcode(status) == 0, reported
    return reported, killed


def kill_at_write(number: int, moment: Moment) -> None:
    """Kill this process before, during or after its n-th write to a store of SQLite. Those of jobs and leases alone are
    not counted: a process that waits for a lease has many."""
    original, writes = SQLiteBackend.apply, 0

    async def apply(self: SQLiteBackend, batch: Batch) -> int | None:
        nonlocal writes
        if {change.space for change in batch} <= {JOBS, REFS}:
            return await original(self, batch)
        writes += 1
        if writes == number and moment == "before":
            kill()
        if writes == number and moment == "during":
            threading.Thread(target=kill, daemon=True).start()
        answer = await original(self, batch)
        if writes == number:
            kill()
        return answer

    pytest.MonkeyPatch().setattr(SQLiteBackend, "apply", apply)


def kill() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def _report(write: int, what: str) -> None:
    os.write(write, f"{what}\n".encode())
