"""Power cuts: what may be left on a disk when the power fails, at any point of a recorded run.

A run is recorded below SQLite (`record`), as a log of every write, truncation, flush, creation and deletion, with the
marks that the run sets ("step 7 was acknowledged"). From the log, `images` makes what a disk may hold after a cut:

- What a file held at its last flush before the cut is there.
- Of what was written since, each 512-byte sector of each write is there or not; sizes and truncations likewise.
- A file is surely there once it was flushed after its creation, and surely gone if it was deleted with its directory
  flushed. A flush of the directory settles all names in it. Names that nothing has settled may be either way.

`check_cuts` puts such images into a directory, one after another, and has them verified. Killing a process proves
little in comparison: what it wrote survives in the system's memory.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.support.sqlite.recording import Create, Delete, Event, Existing, Mark, Recorder, Sync, Truncate, Write

SECTOR = 512
"""What a disk writes whole or not at all."""

Log: TypeAlias = Sequence[Event]
Labels: TypeAlias = tuple[Any, ...]


def record(workload: Callable[[Path, Recorder], None]) -> Log:
    """Run a workload in a new directory, and log what reaches its files through the VFS named `recorder.vfs`.

    The workload opens its databases with that VFS, in exclusive locking mode (shared memory is not recorded), and
    calls `recorder.mark(label)` after what it was acknowledged.
    """
    with scratch() as directory, Recorder(directory) as recorder:
        workload(directory, recorder)
        return tuple(recorder.log)


def check_cuts(log: Log, verify: Callable[[Path, Labels], None], *, cuts: int = 200, seed: int = 0) -> int:
    """Have `verify` look at the images of this many cuts; it gets a directory, and the labels marked before the cut.

    It may change what is in the directory. If it raises, a note says which cut it was. Returns the number of cuts.
    """
    with scratch() as directory:
        for number, image in enumerate(images(log, Random(seed), cuts)):
            image.write(directory)
            try:
                verify(directory, image.labels)
            except BaseException as error:
                error.add_note(f"power cut {number} of {cuts} (seed {seed}): {image.describe(log)}")
                raise
    return cuts


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary directory, in memory where the system has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


# Images -----------------------------------------------------------------------------------------------------------


class Image(NamedTuple):
    """What a disk may hold after a cut."""

    point: int
    """How many events of the log came before the cut."""
    fate: str
    """What became of writes that were not flushed: `lost`, `kept` or `torn`."""
    labels: Labels
    """What was marked before the cut."""
    files: dict[str, bytes | bytearray]

    def write(self, directory: Path) -> None:
        """Make this the content of a directory."""
        for path in directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in self.files:
                path.unlink()
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    def describe(self, log: Log) -> str:
        """Where the cut was, in words."""
        last = log[self.point - 1] if self.point else "the beginning"
        if isinstance(last, Write):
            last = f"write of {len(last.data)} bytes at {last.offset} of {last.file}"
        sizes = ", ".join(f"{name}: {len(content)} bytes" for name, content in self.files.items())
        return f"after event {self.point} ({last}), unflushed writes {self.fate}; {sizes or 'no files'}"


def images(log: Log, rng: Random, cuts: int) -> Iterator[Image]:
    """What the disk may hold after cuts at so many points of a log, in the log's order.

    With as many cuts as there are points, or more, every point has one at least.
    """
    points = len(log) + 1
    chosen = sorted([*range(points)] * (cuts // points) + rng.sample(range(points), cuts % points))
    disk = _Disk()
    done = 0
    for point in chosen:
        for event in log[done:point]:
            disk.follow(event)
        done = point
        fate = rng.choices(["lost", "kept", "torn"], [3, 1, 4])[0]
        yield Image(point, fate, tuple(disk.labels), disk.after_cut(fate, rng))


@dataclass
class _File:
    """A file whatever its name: what is surely on the disk, and what was done to it since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)

    def flush(self) -> None:
        for change in self.pending:
            _make(self.durable, change)
        self.pending.clear()

    def after_cut(self, fate: str, rng: Random) -> bytearray:
        content = bytearray(self.durable)
        if fate == "lost":
            return content
        sizes = [len(content)]
        whole = bytearray(self.durable) if fate == "torn" else content
        for change in self.pending:
            _make(whole, change)
            sizes.append(len(whole))
            if fate == "torn":
                for left in _torn(change, rng):
                    _make(content, left)
        if fate == "torn" and rng.random() < 0.3:
            # The size is written apart from the data: it may be any that the file has had since.
            _make(content, Truncate(0, rng.choice(sizes)))
        return content


def _make(content: bytearray, change: Write | Truncate) -> None:
    if isinstance(change, Truncate):
        del content[change.size :]
        content.extend(bytes(change.size - len(content)))
        return
    content.extend(bytes(max(0, change.offset - len(content))))
    content[change.offset : change.offset + len(change.data)] = change.data


def _torn(change: Write | Truncate, rng: Random) -> list[Write | Truncate]:
    """What may become of a change that was not flushed."""
    fate = rng.choice(["whole", "nothing", "beginning", "sectors"])
    if fate == "nothing":
        return []
    if fate == "whole" or isinstance(change, Truncate):
        return [change]
    first = change.offset // SECTOR
    last = (change.offset + len(change.data) - 1) // SECTOR
    if fate == "beginning":
        kept = set(range(first, rng.randint(first, last + 1)))
    else:
        kept = {sector for sector in range(first, last + 1) if rng.random() < 0.5}
    left: list[Write | Truncate] = []
    for sector in sorted(kept):
        start = max(change.offset, sector * SECTOR)
        stop = min(change.offset + len(change.data), (sector + 1) * SECTOR)
        left.append(Write(change.file, start, change.data[start - change.offset : stop - change.offset]))
    return left


class _Disk:
    """A directory as the log leaves it, with what a cut would put at risk."""

    def __init__(self) -> None:
        self.labels: list[Any] = []
        self._files: dict[int, _File] = {}
        self._names: dict[str, list[int | None]] = {}
        """What a name may stand for after a cut: first what is settled, last what is so now."""

    def follow(self, event: Event) -> None:
        match event:
            case Mark(label):
                self.labels.append(label)
            case Write() | Truncate():
                self._files[event.file].pending.append(event)
            case Sync(file, directory):
                self._files[file].flush()
                self._settle(lambda now: directory or now == file)
            case Existing(file, name, content):
                self._files[file] = _File(bytearray(content))
                self._names[name] = [file]
            case Create(file, name):
                self._files[file] = _File()
                self._names.setdefault(name, [None]).append(file)
            case Delete(name, directory):
                self._names.setdefault(name, [None]).append(None)
                self._settle(lambda _: directory)

    def after_cut(self, fate: str, rng: Random) -> dict[str, bytes | bytearray]:
        files: dict[str, bytes | bytearray] = {}
        for name, stands_for in self._names.items():
            if fate == "torn":
                file = rng.choice(stands_for)
            else:
                file = stands_for[0 if fate == "lost" else -1]
            if file is not None:
                files[name] = self._files[file].after_cut(fate, rng)
        return files

    def _settle(self, condition: Callable[[int | None], bool]) -> None:
        for stands_for in self._names.values():
            if condition(stands_for[-1]):
                del stands_for[:-1]
