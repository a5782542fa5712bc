"""What the tests of compositions share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.backends.interface import Backend, Batch, BlockingCall, Query, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOURNAL, TABLES
from holdfast.backends.urls import compose
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.replica_pair import attach
from holdfast.backends.wrappers.replication import ReplicatingBackend, WriteBehindBackend
from holdfast.backends.wrappers.tiering import TieredBackend
from tests.support.faults import Faults


def opened(url: str, **options: Any) -> Backend:
    return run(backend_for(url).open(url, **options))


def files(folder: Path) -> tuple[str, str]:
    return f"sqlite:///{folder}/local.db", f"sqlite:///{folder}/remote.db"


def pair_url(folder: Path, kind: str = "write-behind", **options: object) -> str:
    """Unless told otherwise, with time enough for a machine that is busy."""
    local, remote = files(folder)
    patient = {"drain": 120, **({"patience": 120} if kind == "mirror" else {})}
    return compose(kind, local=local, remote=remote, **{**patient, **options})


def paired(
    local: Backend, remote: Backend, kind: type[ReplicatingBackend] = WriteBehindBackend, **settings: Any
) -> ReplicatingBackend:
    """A pair of stores that are open, as `open` makes it of URLs."""
    bare = remote.inner if isinstance(remote, Faults) else remote
    identity = run(attach(local.inner if isinstance(local, Faults) else local, bare, restore=False))
    store = kind(local, remote, identity, **settings)
    run(store._start())
    return store


def contents(backend: Backend) -> dict[str, list[Row]]:
    """All rows of a store but for the journal."""
    spaces = [space for space in TABLES if space is not JOURNAL]
    found = run(backend.read([Scan(space, ()) for space in spaces]))
    return {space.name: rows for space, rows in zip(spaces, found, strict=True)}


def contents_at(url: str) -> dict[str, list[Row]]:
    backend = opened(url)
    try:
        return contents(backend)
    finally:
        run(backend.close())


def settled(store: Backend, seconds: float = 120) -> dict[str, int | float | str]:
    """The status once nothing waits to be copied any more."""
    deadline = time.monotonic() + seconds
    while (found := run(store.status()))["lag_batches"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Held(Wrapper):
    """A store that holds up calls while its gate is closed."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        """Somebody waits at the gate, or did."""

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        await self._pass()
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        await self._pass()
        return await self.inner.apply(batch)

    async def _pass(self) -> None:
        if not self.gate.is_set():
            self.reached.set()
            await BlockingCall(lambda: self.gate.wait(120))


class Clock:
    """Stands for the module `time` in a module under test: time passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return int(self.monotonic() * 1e9)

    perf_counter = monotonic


def sqlite(folder: Path, name: str = "store") -> str:
    return f"sqlite:///{folder}/{name}.db"


class Restless(TieredBackend):
    """Moves everything to the cold store before each read, however small it is."""

    smallest = 0

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        await self._mover.move_all()
        return await super().read(queries)
