"""Pruning many threads in one pass: how much memory that takes, how long, and what a writer notices of it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import holdfast
from benchmarks.measure import Figure

_NOT_ALONE = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
"""
"""Ends a process when nobody has the other end of its stdin: however this one ends, none goes on without it."""

_PRUNE = """
import json, re, sys, time
import holdfast

began = time.perf_counter()
with holdfast.open(sys.argv[1]) as store:
    report = store.maintenance.prune(keep_last=int(sys.argv[2]), each=lambda thread: None)
# Not getrusage: there, a process begins with the most that the one had which started it.
status = open("/proc/self/status").read()
print(json.dumps({
    "seconds": time.perf_counter() - began,
    "rss": int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) * 1024,
    "dropped": report.dropped,
    "bytes": report.bytes,
    "problems": len(report.problems),
}))
"""

_WRITE = """
import json, sys, time
import holdfast

appended, slowest, errors = 0, 0.0, 0
with holdfast.open(sys.argv[1]) as store:
    print("ready", flush=True)
    end = time.monotonic() + 600
    while time.monotonic() < end and not store.thread("stop").tags():
        began = time.perf_counter()
        try:
            store.thread(f"thread {appended % int(sys.argv[2]):05}").update({"turn": appended})
        except holdfast.errors.HoldfastError:
            errors += 1
        slowest = max(slowest, time.perf_counter() - began)
        appended += 1
        time.sleep(0.005)
print(json.dumps({"appended": appended, "slowest": slowest, "errors": errors}))
"""


def fill(url: str, threads: int, steps: int) -> None:
    """Threads of conversations that grow by a message with each step."""
    with holdfast.open(url) as store:
        store.thread("stop").put({})
        for number in range(threads):
            messages: list[dict[str, Any]] = []
            with store.transaction() as together:
                for step in range(steps):
                    messages.append({"role": "user", "content": f"message {step} of {number}, " + "and more " * 20})
                    together.put(f"thread {number:05}", {"messages": list(messages), "step": step})


def pruned(threads: int, steps: int, keep: int, folder: pathlib.Path) -> dict[str, Any]:
    """Prune to the last so many while another process writes, and what both have to say."""
    url = f"sqlite:///{folder}/prune.db"
    fill(url, threads, steps)
    with holdfast.open(url) as store:
        before = store.status().bytes
    theirs, ours = os.pipe()
    command = [sys.executable, "-c", _NOT_ALONE + _WRITE, url, str(threads)]
    writer = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        command = [sys.executable, "-c", _NOT_ALONE + _PRUNE, url, str(keep)]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=True)
        with holdfast.open(url) as store:
            store.thread("stop").tag("now")
            after = store.status().bytes
        said, _ = writer.communicate(timeout=60)
    finally:
        writer.kill()
        os.close(ours)
        os.close(theirs)
    found: dict[str, Any] = {**json.loads(done.stdout), **json.loads(said), "before": before, "after": after}
    return found


def prune_many() -> list[Figure]:
    """1,000 threads of 200 steps pruned to their last 100, while a writer appends."""
    with tempfile.TemporaryDirectory() as folder:
        found = pruned(1000, 200, 100, pathlib.Path(folder))
    shrunk = f"{found['bytes'] / 1e6:.0f} MB of rows go, the file from {found['before'] / 1e6:.0f} to "
    shrunk += f"{found['after'] / 1e6:.0f} MB"
    wrote = f"{found['appended']} steps appended meanwhile"
    return [
        Figure("prune 1,000 threads to the last 100: memory", found["rss"] / 1e6, "MB", ceiling=200, note=shrunk),
        Figure("prune 1,000 threads to the last 100: threads a second", 1000 / found["seconds"], "/s"),
        Figure("prune 1,000 threads to the last 100: errors of a writer", found["errors"], "", ceiling=0, note=wrote),
        Figure("prune 1,000 threads to the last 100: slowest step of a writer", found["slowest"] * 1000, "ms"),
        Figure("prune 1,000 threads to the last 100: threads not done", found["problems"], "", ceiling=0),
    ]


CASES = (prune_many,)
