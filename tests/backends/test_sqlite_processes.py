"""One SQLite file in several processes: no batch lost, no error, and nothing carried through a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.backends.interface import Create, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import connections as sqlite_connections
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import NODES
from tests.support.nightly import mostly_nightly

PRELUDE = """
import asyncio, os, sys, threading, time
from holdfast.backends.interface import Create, Get, Put, Row, Scan
from holdfast.backends.tables import NODES
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.backends.runtime.drivers import arun, run

url, name = sys.argv[1:]

def node(line, n):
    return Row(("t", line, 0, b"%06d" % n), (), b"x" * 600)

def write(store, line, count):
    for n in range(count):
        assert run(store.apply([Create(NODES, node(line, n)), Put(NODES, node("all", 0))])) is None
        assert run(store.read([Get(NODES, [node(line, n).key])])) == [[node(line, n)]]
"""

APPENDING = """
store = run(SQLiteBackend.open(url, synchronous="normal"))
write(store, name, 100)
run(store.close())
"""

FORKING = """
store = run(SQLiteBackend.open(url, synchronous="normal"))
stop = threading.Event()
counts = {}
failures = []

def work(k):
    n = 0
    try:
        while not stop.is_set():
            assert run(store.apply([Create(NODES, node(f"thread {k}", n))])) is None
            n += 1
            run(store.read([Get(NODES, [node(f"thread {k}", 0).key]), Get(NODES, [])]))
    except BaseException as error:
        failures.append(error)
    counts[k] = n

async def tasks():
    async def task(k):
        n = 0
        while not stop.is_set():
            assert await arun(store.apply([Create(NODES, node(f"task {k}", n))])) is None
            n += 1
        counts[f"task {k}"] = n
    try:
        await asyncio.gather(*(task(k) for k in range(4)))
    except BaseException as error:
        failures.append(error)

async def in_child(k):
    await asyncio.gather(*(arun(store.apply([Create(NODES, node(f"child {k}", 1000 + n))])) for n in range(10)))

threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
for thread in threads:
    thread.start()
children = []
for k in range(6):
    time.sleep(0.02)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            write(store, f"child {k}", 30)
            asyncio.run(in_child(k))
            run(store.close())
            status = 0
        finally:
            os._exit(status)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
stop.set()
for thread in threads:
    thread.join(120)
    assert not thread.is_alive()
assert not failures, failures
found = run(store.read([Scan(NODES, ("t",))]))[0]
per_line = {}
for row in found:
    per_line[row.key[1]] = per_line.get(row.key[1], 0) + 1
for k in range(2):
    assert per_line[f"thread {k}"] == counts[k] > 0, (k, per_line, counts)
for k in range(4):
    assert per_line[f"task {k}"] == counts[f"task {k}"] > 0
for k in range(6):
    assert per_line[f"child {k}"] == 40
assert run(store.check()) == []
run(store.close())
"""

LEFT_OPEN = """
store = run(SQLiteBackend.open(url))
write(store, name, 3)
asyncio.run(arun(store.apply([Create(NODES, node("task", 0))])))
if name == "dropped":
    del store
"""


def start(script: str, path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", PRELUDE + script, f"sqlite:///{path}", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    output, errors = process.communicate(timeout=300)
    assert (process.returncode, output, errors) == (0, "", "")


@pytest.mark.parametrize("count", mostly_nightly([3, 8], daily=[3]))
def test_processes_make_a_file_and_append_to_it(tmp_path: Path, count: int) -> None:
    path = tmp_path / "store.db"
    processes = [start(APPENDING, path, f"{n}") for n in range(count)]
    for process in processes:
        finish(process)
    store = run(SQLiteBackend.open(f"sqlite:///{path}"))
    rows = run(store.read([Scan(NODES, ("t",), bodies=False)]))[0]
    assert len(rows) == count * 100 + 1
    assert run(store.check()) == []
    run(store.close())
    assert [file.name for file in tmp_path.iterdir()] == ["store.db"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks_while_threads_and_tasks_write(tmp_path: Path) -> None:
    finish(start(FORKING, tmp_path / "store.db", "forking"))


@pytest.mark.parametrize("name", ["kept", "dropped"])
def test_a_store_that_nobody_closes_makes_no_noise(tmp_path: Path, name: str) -> None:
    finish(start(LEFT_OPEN, tmp_path / "store.db", name))
    store = run(SQLiteBackend.open(f"sqlite:///{tmp_path}/store.db"))
    assert len(run(store.read([Scan(NODES, ("t",))]))[0]) == 5
    run(store.close())


def test_around_a_fork_connections_are_closed_and_opened_anew(tmp_path: Path) -> None:
    """What the two sides of a fork do, one after another in this process."""
    store = run(SQLiteBackend.open(f"sqlite:///{tmp_path}/store.db"))
    for n, after in enumerate((sqlite_connections._after_fork_in_parent, sqlite_connections._after_fork_in_child)):
        row = Row(("t", "l", 0, bytes([n])))
        assert run(store.apply([Create(NODES, row)])) is None
        assert row in run(store.read([Scan(NODES, ())]))[0]
        sqlite_connections._before_fork()
        assert store._connections._writer is None
        assert store._connections._idle == []
        after()
    assert len(run(store.read([Scan(NODES, ())]))[0]) == 2
    run(store.close())
