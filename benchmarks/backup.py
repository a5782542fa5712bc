"""Backups of conversations: how large they are, what a second one costs, what writers notice, and how fast they come
back; beside a copy of the file. `python -m benchmarks.backup --megabytes 1000 --directory PATH` measures a store of one
gigabyte, which is built there once; `--only writers` only what writers notice: for that the machine has to be quiet."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import holdfast
from benchmarks.conversations import build, thread_name
from benchmarks.measure import Figure
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.maintenance.backup.reused_packs import CHECKED_BYTES

_MEGABYTES = 8
_ROUNDS = 4
_FOLLOWED = 8
_LARGE = 200
"""From so many megabytes on, what a second backup costs is measured against the size: before, it is what any costs."""
_BESIDE_RESTIC = 100
"""From so many megabytes on, there are bounds beside restic: before, the cost is that of starting an interpreter."""
_OF_CPU = {"first": 6.0, "second": 4.0, "restore of all": 40.0, "restore of one thread": 3.0}
_OF_MEMORY = {"first": 1.3, "restore of all": 2.5}
"""The most that may be needed, of what restic needs: its own CPU and memory differ by half from run to run."""
_MEMORY = 400
"""The most megabytes of memory that a backup or a restore may take, however large the store is."""
_SEALED = 16
"""The most megabytes of an encrypted store: its conversations are written one by one."""

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
        store.thread(f"live {number % 50}").put({"n": number, "text": "and so on " * 30})
        latencies.append((start, time.perf_counter() - start))
        number += 1
        time.sleep(0.002)
print(json.dumps(latencies))
"""


def _remove(path: pathlib.Path) -> None:
    """Remove the files of a store, if there are any."""
    for each in (path, *path.parent.glob(f"{path.name}-*")):
        each.unlink(missing_ok=True)


def _repository_size(path: pathlib.Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def _io() -> tuple[int, int]:
    """Return the bytes that this process has read and written so far, wherever."""
    lines = (line.split() for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    found = {name.rstrip(":"): int(count) for name, count in lines}
    return found["rchar"], found["wchar"]


class _Peak:
    """Measures by how much the memory of this process grows at most in a `with` block, in megabytes."""

    megabytes = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before = self._value("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.megabytes = (self._value("VmHWM") - self._before) / 1000

    def _value(self, name: str) -> int:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _writer_latencies(path: pathlib.Path, folder: pathlib.Path, rounds: int) -> tuple[float, float]:
    """Return the median latency of a writer in another process, in microseconds: while nothing else happens, and while
    backups are made, in turns."""
    command = [sys.executable, "-c", _WRITER, str(path)]
    quiet, busy = list[tuple[float, float]](), list[tuple[float, float]]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with holdfast.open(path) as store:
            time.sleep(0.5)
            for number in range(rounds):
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


class Subject:
    """A store to measure, and a repository with a backup of it."""

    def __init__(self, folder: pathlib.Path, megabytes: float) -> None:
        """The store is built, unless the folder has it already."""
        self.folder = folder
        self.megabytes = megabytes
        self.path = folder / f"agents-{megabytes:g}.db"
        self.repository = folder / f"repository-{megabytes:g}"
        size = self.path.with_suffix(".json")
        if not size.exists():
            _remove(self.path)
            size.write_text(json.dumps(build(self.path, megabytes)))
        self.in_json: int = json.loads(size.read_text())

    @contextlib.contextmanager
    def copy(self) -> Iterator[pathlib.Path]:
        """Return a copy of the store, to be changed."""
        path = self.folder / "live.db"
        _remove(path)
        _copy(self.path, path)
        try:
            yield path
        finally:
            _remove(path)

    def back_up(self) -> None:
        """Make the first backup, unless there is one."""
        if not self.repository.exists():
            with holdfast.open(self.path) as store:
                store.backups(self.repository).create(accept_loss=True)


def _sizes(subject: Subject) -> list[Figure]:
    path, repository = subject.path, subject.repository
    shutil.rmtree(repository, ignore_errors=True)
    file = path.stat().st_size
    with holdfast.open(path) as store:
        start = time.perf_counter()
        with _Peak() as peak:
            store.backups(repository).create(accept_loss=True)  # of an earlier run
        first = time.perf_counter() - start
        size = _repository_size(repository)
        before = _io()
        start = time.perf_counter()
        store.backups(repository).create()
        second = time.perf_counter() - start
        read, written = (after - now for after, now in zip(_io(), before, strict=True))
    read -= min(CHECKED_BYTES, size)  # what it reuses is checked
    start = time.perf_counter()
    copied = _copy(path, subject.folder / "copy.db")
    (subject.folder / "copy.db").unlink()
    note = f"{size / 1e6:.1f} MB in {first:.2f} s; a copy of the file {file / 1e6:.1f} MB in {copied:.2f} s"
    is_large = subject.megabytes >= _LARGE
    return [
        Figure("backup, size of the JSON of all states", size / subject.in_json, "of it", ceiling=0.3, note=note),
        Figure("backup, size of the file after VACUUM", size / file, "of it", ceiling=0.6),
        Figure(
            "backup, read and written by a second one, besides its checks",
            100 * (read + written) / file,
            "% of the store",
            ceiling=1.0 if is_large else None,
            note=f"{read:,} bytes read and {written:,} written in {1000 * second:.0f} ms",
        ),
        Figure("backup, memory while it is made", peak.megabytes, "MB", ceiling=_MEMORY),
    ]


def _copy(source: pathlib.Path, target: pathlib.Path) -> float:
    """Copy a file as `cp` does, onto the disk. Returns the seconds."""
    start = time.perf_counter()
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())
    return time.perf_counter() - start


def _restores(subject: Subject) -> list[Figure]:
    subject.back_up()
    copied, restored = subject.folder / "copied.db", subject.folder / "restored.db"
    for path in (copied, restored):
        _remove(path)
    with holdfast.open("memory://") as store:
        start = time.perf_counter()
        store.backups(subject.repository).restore(threads=[thread_name(1)])
        one = time.perf_counter() - start
    taken = _copy(subject.path, copied)
    with holdfast.open(copied) as store:
        start = time.perf_counter()
        assert store.maintenance.verify().ok
        taken += time.perf_counter() - start
    with holdfast.open(restored) as store:
        start = time.perf_counter()
        with _Peak() as peak:
            store.backups(subject.repository).restore()
        whole = time.perf_counter() - start
    for path in (copied, restored):
        _remove(path)
    note = f"{whole:.2f} s; cp and verify {taken:.2f} s"
    return [
        Figure("backup, one thread restored", one, "s", ceiling=5.0),
        Figure("backup, speed of restoring everything", taken / whole, "of cp and verify", floor=0.5, note=note),
        Figure("backup, memory while everything is restored", peak.megabytes, "MB", ceiling=_MEMORY),
    ]


def _writers(subject: Subject) -> list[Figure]:
    with subject.copy() as path:
        quiet, busy = _writer_latencies(path, subject.folder, _ROUNDS if subject.megabytes < _LARGE else 1)
    note = f"{quiet:.0f} µs, during backups {busy:.0f} µs"
    value = 100 * (busy / quiet - 1)
    return [Figure("backup, median latency of a writer", value, "% more", ceiling=20, note=note)]


def _lag(subject: Subject) -> list[Figure]:
    """Follow a store that changes all the time, as by default, and see how far that is behind."""
    subject.back_up()
    lags: list[float] = []
    with subject.copy() as path, holdfast.open(path) as store:

        def stop() -> bool:
            store.thread("live").put({"n": len(lags)})
            return len(lags) > _FOLLOWED

        store.backups(subject.repository).follow(stop=stop, report=lambda status: lags.append(status.lag))
    note = f"at most {max(lags[1:]):.2f} s"
    return [Figure("backup, lag of following", statistics.median(lags[1:]), "s", ceiling=1.0, note=note)]


def _encrypted(subject: Subject) -> list[Figure]:
    path, key = subject.folder / "sealed.db", Encryption(LocalKeys(generate_key()))
    shutil.rmtree(subject.folder / "sealed", ignore_errors=True)
    _remove(path)
    build(path, min(subject.megabytes / 4, _SEALED), key)
    with holdfast.open(path, encryption=key) as store:
        store.backups(subject.folder / "sealed", keys=LocalKeys(generate_key())).create()
    size = _repository_size(subject.folder / "sealed")
    name = "backup of an encrypted store, size of the file after VACUUM"
    return [Figure(name, size / path.stat().st_size, "of it")]


class _Cost(NamedTuple):
    """What a process cost: seconds, seconds of CPU, and the most megabytes of memory."""

    wall: float
    cpu: float
    megabytes: float


_LAUNCHER = """
import json, resource, subprocess, sys, time

start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, capture_output=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000]))
"""
"""Runs a command and measures it, from a small process: a process starts with the peak of memory of the one that it
comes from."""


def _run(command: Sequence[str]) -> _Cost:
    """Run a command, and measure it."""
    return _Cost(*json.loads(subprocess.check_output([sys.executable, "-c", _LAUNCHER, *command])))


def _restic(subject: Subject) -> list[Figure]:
    """Measure the same store beside restic, which sees a file: each in processes of its own, from the command line."""
    program = shutil.which("restic")
    if program is None:
        return [Figure("backup beside restic", 0, "", missing=True, note="restic is not installed")]
    folder = subject.folder / "restic"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "password").write_text("benchmark")
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_text(generate_key())
    theirs, ours = folder / "theirs", folder / "ours"
    restic = [program, "-q", "-r", str(theirs), "-p", str(folder / "password"), "--no-cache"]
    with subject.copy() as path:
        holdfast_ = [sys.executable, "-m", "holdfast", "--store", str(path), "backup"]
        at = ["-r", str(ours), "-k", f"file:{folder / 'key'}"]  # restic always encrypts
        _run([*restic, "init"])
        first = _run([*holdfast_, "create", *at]), _run([*restic, "backup", str(path)])
        sizes = _repository_size(ours), _repository_size(theirs)
        with holdfast.open(path) as store:
            store.thread(thread_name(0)).put({"n": 1})
        second = _run([*holdfast_, "create", *at]), _run([*restic, "backup", str(path)])
        into = ["--store", str(folder / "restored.db"), "backup", "restore", "--create", *at, "latest"]
        whole = (
            _run([sys.executable, "-m", "holdfast", *into]),
            _run([*restic, "restore", "latest", "--target", str(folder / "restored")]),
        )
        into[1] = str(folder / "one.db")
        one = _run([sys.executable, "-m", "holdfast", *into, thread_name(1)]), whole[1]
    file, is_large = subject.path.stat().st_size, subject.megabytes >= _BESIDE_RESTIC
    shutil.rmtree(folder)
    costs = {"first": first, "second": second, "restore of all": whole, "restore of one thread": one}
    return [
        Figure(
            "backup beside restic, size",
            sizes[0] / sizes[1],
            "of restic's",
            ceiling=1.0,
            note=f"{sizes[0] / 1e6:.1f} MB and {sizes[1] / 1e6:.1f} MB, of a file of {file / 1e6:.1f} MB",
        ),
        *(
            Figure(
                f"backup beside restic, {name}",
                own.cpu / other.cpu,
                "of restic's CPU",
                ceiling=_OF_CPU[name] if is_large else None,
                note=f"{own.cpu:.2f} and {other.cpu:.2f} s of CPU, {own.wall:.2f} and {other.wall:.2f} s",
            )
            for name, (own, other) in costs.items()
        ),
        *(
            Figure(
                f"backup beside restic, memory of {name}",
                costs[name][0].megabytes / costs[name][1].megabytes,
                "of restic's",
                ceiling=ceiling if is_large else None,
                note=f"{costs[name][0].megabytes:.0f} and {costs[name][1].megabytes:.0f} MB",
            )
            for name, ceiling in _OF_MEMORY.items()
        ),
    ]


PARTS: dict[str, Callable[[Subject], list[Figure]]] = {
    "sizes": _sizes,
    "restore": _restores,
    "writers": _writers,
    "follow": _lag,
    "encrypted": _encrypted,
    "restic": _restic,
}


def measure(megabytes: float, parts: Sequence[str] = (*PARTS,), directory: pathlib.Path | None = None) -> list[Figure]:
    """Measure a store of this size, in a directory where it may be already."""
    with contextlib.ExitStack() as stack:
        folder = directory or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        subject = Subject(folder, megabytes)
        return [figure for part in parts for figure in PARTS[part](subject)]


def backup() -> list[Figure]:
    """Backups of a small store of conversations."""
    return measure(_MEGABYTES)


CASES: tuple[Callable[[], list[Figure]], ...] = (backup,)


if __name__ == "__main__":
    from benchmarks.run import print_figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=_MEGABYTES, help="the size of the store's file")
    parser.add_argument("--directory", type=pathlib.Path, help="where the store is built, and used again")
    parser.add_argument("--only", choices=PARTS, action="append", help="what is measured")
    given = parser.parse_args()
    print_figures(measure(given.megabytes, given.only or [*PARTS], given.directory))
