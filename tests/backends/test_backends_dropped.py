"""Stores that a program drops without closing them: nothing is left of them, and Python warns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.places import place
from tests.support.nightly import mostly_nightly

PROGRAM = """
import asyncio, gc, json, os, sys, threading, time, warnings
import holdfast

url = sys.argv[1]
warned = []
warnings.simplefilter("always")
warnings.showwarning = lambda message, category, *_: warned.append(f"{category.__name__}: {message}")

def held():
    "Threads, sockets and loops of stores."
    names = []
    for number in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            pass  # that of the listing
    open_files = [name for name in names if name.startswith(("socket:", "anon_inode:[eventpoll]"))]
    return threading.active_count(), len(open_files)

def use(close):
    store = holdfast.open(url)
    store.thread("chat").put({"n": 1})
    assert store.thread("chat").get().state == {"n": 1}
    if close:
        store.close()

async def use_async(close):
    store = await holdfast.aopen(url)
    await store.thread("chat").put({"n": 1})
    assert (await store.thread("chat").get()).state == {"n": 1}
    if close:
        await store.close()

use(True)  # loads the driver, which may keep threads of its own
gc.collect()
before = held()
for _ in range(3):
    use(True)
    asyncio.run(use_async(True))
gc.collect()
after_close, closed_warnings = held(), list(warned)
kept = [holdfast.open(url)]
while_open = held()
use(False)
asyncio.run(use_async(False))
kept.clear()
deadline = time.monotonic() + 120
while held() != before and time.monotonic() < deadline:
    gc.collect()
    time.sleep(0.01)
json.dump([before, after_close, while_open, held(), closed_warnings, warned], sys.stdout)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(["file", "redis", "postgres", "mongodb", "moto"], daily=["postgres"]))
def test_nothing_is_left_of_a_store(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    command = [sys.executable, "-c", PROGRAM, url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""  # no "Event loop is closed", "Task was destroyed" or "never awaited"
    before, after_close, while_open, after_drop, closed_warnings, warned = json.loads(ended.stdout)
    assert while_open > before  # what is open is seen
    assert after_close == after_drop == before
    assert closed_warnings == []
    assert len(warned) == 3
    for warning in warned:
        assert warning.startswith("ResourceWarning: the store at ")
        assert warning.endswith(" was not closed")
