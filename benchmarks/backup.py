"""Backups of conversations: how large they are, what a second one costs, what writers notice, and how fast they come
back; beside a copy of the file. `python -m benchmarks.backup --megabytes 1000` measures a larger store."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import apsw

import holdfast
from benchmarks.langgraph_prose import prose
from benchmarks.measure import Figure
from holdfast.encryption import Encryption, LocalKeys, generate_key

_MEGABYTES = 8
_STEPS = 30
_ROUNDS = 4
_FOLLOWED = 8
_LARGE = 200
"""From so many megabytes on, what a second backup costs is measured against the size: before, it is what any costs."""

_WRITER = """
import json, sys, threading, time
import holdfast

done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
latencies, number = [], 0
with holdfast.open(sys.argv[1]) as store:
    print("ready", flush=True)
    while not done.is_set():
        start = time.perf_counter()
        store.put(f"live {number % 50}", {"n": number, "text": "and so on " * 30})
        latencies.append((start, time.perf_counter() - start))
        number += 1
        time.sleep(0.002)
print(json.dumps(latencies))
"""


def build(path: pathlib.Path, megabytes: float, encryption: Any = False) -> int:
    """Fill a store with conversations, until its file has this size. Returns the bytes of the JSON form of all its
    states."""
    total = number = 0
    with holdfast.open(path, encryption=encryption) as store:
        while _size(path) < megabytes * 1e6:
            messages: list[dict[str, str]] = []
            size = 0
            with store.transaction() as together:
                for step in range(_STEPS):
                    seed = number * _STEPS + step
                    messages.append({"role": "user", "content": prose(300, 2 * seed)})
                    messages.append({"role": "assistant", "content": prose(1200, 2 * seed + 1)})
                    size += sum(len(json.dumps(each)) + 2 for each in messages[-2:])
                    total += size + 30
                    together.put(f"thread {number:06}", {"messages": list(messages), "step": step})
            number += 1
    return total


def _size(path: pathlib.Path) -> int:
    found = [path, *path.parent.glob(f"{path.name}-*")]
    return sum(each.stat().st_size for each in found if each.is_file())


def _repository_size(path: pathlib.Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _vacuumed(path: pathlib.Path) -> int:
    """Return the size of the file after `VACUUM`."""
    copy = path.with_name("vacuumed.db")
    connection = apsw.Connection(str(path))
    try:
        connection.execute("VACUUM INTO ?", (str(copy),))
    finally:
        connection.close()
    try:
        return copy.stat().st_size
    finally:
        copy.unlink()


def _io() -> int:
    """Return the bytes that this process has read and written so far."""
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def _writer_latencies(path: pathlib.Path, folder: pathlib.Path) -> tuple[float, float]:
    """Return the median latency of a writer in another process, in microseconds: while nothing else happens, and while
    backups are made, in turns."""
    command = [sys.executable, "-c", _WRITER, str(path)]
    quiet, busy = list[tuple[float, float]](), list[tuple[float, float]]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with holdfast.open(path) as store:
            time.sleep(0.5)
            for number in range(_ROUNDS):
                start = time.perf_counter()
                store.backups(folder / f"round {number}").create()
                between = time.perf_counter()
                busy.append((start, between))
                time.sleep(max(1.0, between - start))
                quiet.append((between, time.perf_counter()))
                shutil.rmtree(folder / f"round {number}")
        latencies = json.loads(writer.communicate("")[0])

    def median(spans: list[tuple[float, float]]) -> float:
        chosen = [taken for start, taken in latencies if any(first <= start < last for first, last in spans)]
        return 1e6 * float(statistics.median(chosen))

    return median(quiet), median(busy)


def measure(megabytes: float) -> list[Figure]:
    """Measure a store of this size."""
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        path, repository = folder / "agents.db", folder / "repository"
        in_json = build(path, megabytes)
        figures = [*_sizes(folder, path, repository, in_json, megabytes), *_restores(folder, path, repository)]
        quiet, busy = _writer_latencies(path, folder)
        note = f"{quiet:.0f} µs, during backups {busy:.0f} µs"
        figures.append(
            Figure("backup, median latency of a writer", 100 * (busy / quiet - 1), "% more", ceiling=20, note=note)
        )
        figures.append(_lag(path, repository))
        figures += _encrypted(folder, megabytes / 4)
    return figures


def _sizes(
    folder: pathlib.Path, path: pathlib.Path, repository: pathlib.Path, in_json: int, megabytes: float
) -> list[Figure]:
    file = _vacuumed(path)
    with holdfast.open(path) as store:
        start = time.perf_counter()
        store.backups(repository).create()
        first = time.perf_counter() - start
        size = _repository_size(repository)
        before = _io()
        start = time.perf_counter()
        store.backups(repository).create()
        second, moved = time.perf_counter() - start, _io() - before
    start = time.perf_counter()
    _copy(path, folder / "copy.db")
    copied = time.perf_counter() - start
    (folder / "copy.db").unlink()
    note = f"{size / 1e6:.1f} MB in {first:.2f} s; a copy of the file {file / 1e6:.1f} MB in {copied:.2f} s"
    ceiling = 1.0 if megabytes >= _LARGE else None
    return [
        Figure("backup, size of the JSON of all states", size / in_json, "of it", ceiling=0.3, note=note),
        Figure("backup, size of the file after VACUUM", size / file, "of it", ceiling=0.6),
        Figure(
            "backup, read and written by a second one",
            100 * moved / _size(path),
            "% of the store",
            ceiling=ceiling,
            note=f"{moved:,} bytes in {1000 * second:.0f} ms",
        ),
    ]


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def _restores(folder: pathlib.Path, path: pathlib.Path, repository: pathlib.Path) -> list[Figure]:
    with holdfast.open("memory://") as store:
        start = time.perf_counter()
        store.backups(repository).restore(threads=["thread 000001"])
        one = time.perf_counter() - start
    start = time.perf_counter()
    _copy(path, folder / "copied.db")
    with holdfast.open(folder / "copied.db") as store:
        assert store.maintenance.verify().ok
    copied = time.perf_counter() - start
    with holdfast.open(folder / "restored.db") as store:
        start = time.perf_counter()
        store.backups(repository).restore()
        whole = time.perf_counter() - start
    note = f"{whole:.2f} s; cp and verify {copied:.2f} s"
    return [
        Figure("backup, one thread restored", one, "s", ceiling=5.0),
        Figure("backup, speed of restoring everything", copied / whole, "of cp and verify", floor=0.5, note=note),
    ]


def _lag(path: pathlib.Path, repository: pathlib.Path) -> Figure:
    """Follow a store that changes all the time, as by default, and see how far that is behind."""
    lags: list[float] = []
    with holdfast.open(path) as store:

        def stop() -> bool:
            store.put("live", {"n": len(lags)})
            return len(lags) > _FOLLOWED

        store.backups(repository).follow(stop=stop, report=lambda status: lags.append(status.lag))
    note = f"at most {max(lags[1:]):.2f} s"
    return Figure("backup, lag of following", statistics.median(lags[1:]), "s", ceiling=1.0, note=note)


def _encrypted(folder: pathlib.Path, megabytes: float) -> list[Figure]:
    path, key = folder / "sealed.db", Encryption(LocalKeys(generate_key()))
    build(path, megabytes, key)
    file = _vacuumed(path)
    with holdfast.open(path, encryption=key) as store:
        store.backups(folder / "sealed", keys=LocalKeys(generate_key())).create()
    size = _repository_size(folder / "sealed")
    return [Figure("backup of an encrypted store, size of the file after VACUUM", size / file, "of it")]


def backup() -> list[Figure]:
    """Backups of a small store of conversations."""
    return measure(_MEGABYTES)


CASES: tuple[Callable[[], list[Figure]], ...] = (backup,)


if __name__ == "__main__":
    from benchmarks.run import print_figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=_MEGABYTES, help="the size of the store's file")
    print_figures(measure(parser.parse_args().megabytes))
