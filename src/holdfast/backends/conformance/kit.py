"""What the parts of the suite share: getting at stores, driving them, and rows to put into them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from holdfast.backends.interface import Backend, Change, Put, Query, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import STEPS, TABLES, Key, Table

T = TypeVar("T")
Drive = Callable[[Coroutine[Any, Any, Any]], Any]


def _as_it_is(backend: Backend) -> Backend:
    return backend


@dataclass
class Stores:
    """Where the suite finds a store, which is empty when a test begins.

    The suite opens it any number of times: one after another to see what was kept, and at once where the backend says
    that it may be shared. Other processes open it through the command.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: type[Backend] | None = None
    """The backend, if it is not the one that is registered for the URL's scheme."""
    wrap: Callable[[Backend], Backend] = _as_it_is
    """What to put around a store that was opened."""
    command: Sequence[str] = (sys.executable, "-m", "holdfast.backends.conformance.child")
    """Runs `holdfast.backends.conformance.child.main` with the arguments that follow."""

    async def open(self) -> Backend:
        """Open the store, or open it again."""
        return self.wrap(await self.backend().open(self.url, **self.options))

    def backend(self) -> type[Backend]:
        """What opens the store."""
        return self.kind or backend_for(self.url)


class Driven:
    """An open store, with a driver that waits for its answers."""

    def __init__(self, backend: Backend, drive: Drive) -> None:
        self.backend = backend
        self.drive = drive

    def read(self, *queries: Query) -> list[list[Row]]:
        """The answers to queries of one moment."""
        found: list[list[Row]] = self.drive(self.backend.read(queries))
        return found

    def apply(self, *changes: Change) -> int | None:
        """Apply a batch."""
        refused: int | None = self.drive(self.backend.apply(changes))
        return refused

    def fill(self, space: Table, rows: Sequence[Row]) -> None:
        """Have these rows in a space."""
        assert self.apply(*(Put(space, row) for row in rows)) is None

    def scan(self, space: Table, prefix: Key = (), **options: Any) -> list[Row]:
        """The rows that one scan finds."""
        return self.read(Scan(space, prefix, **options))[0]

    def everything(self) -> dict[str, list[Row]]:
        """All rows of the store, by the name of their space."""
        found = self.read(*(Scan(space, ()) for space in TABLES))
        return {space.name: rows for space, rows in zip(TABLES, found, strict=True)}

    def close(self) -> None:
        """Close the store."""
        self.drive(self.backend.close())


class Suite:
    """The base of every part of the suite. A subclass gives `stores`; the rest follows from it."""

    histories: int | None = None
    """How many random histories are tried; None is as many as hypothesis is set to. Fewer do for a slow store."""

    kills: int = 5
    """How many processes are killed while they write."""

    watched: int = 60
    """How many batches are written while readers watch."""

    @pytest.fixture
    def stores(self) -> Stores:
        """Where a store is."""
        raise NotImplementedError("a subclass of the conformance suite has to give the fixture `stores`")

    @pytest.fixture(params=["sync", "async"])
    def drive(self, request: pytest.FixtureRequest) -> Iterator[Drive]:
        """Both ways to run a backend's coroutines."""
        if request.param == "sync":
            yield run
            return
        with asyncio.Runner() as runner:
            yield lambda coroutine: runner.run(arun(coroutine))

    @pytest.fixture
    def store(self, stores: Stores, drive: Drive) -> Iterator[Driven]:
        """An open store, through either driver."""
        driven = Driven(drive(stores.open()), drive)
        yield driven
        driven.close()

    @pytest.fixture
    def plain(self, stores: Stores) -> Iterator[Driven]:
        """An open store, through the sync driver only: for long tests, and those with their own tasks or threads."""
        driven = Driven(run(stores.open()), run)
        yield driven
        driven.close()


@contextmanager
def case(name: object) -> Iterator[None]:
    """Name the case in whatever goes wrong inside: for tests that loop over many cases, on one store."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name!r}")
        raise


def seqs(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Branch and number of rows of `STEPS`."""
    return [row.key[2:] for row in rows]


def put_steps(rows: Sequence[Row]) -> list[Change]:
    """Changes that put rows into `STEPS`."""
    return [Put(STEPS, row) for row in rows]


def same(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """Whether rows are these, for rows so many or large that pytest would take minutes to show how they differ."""
    return list(found) == list(expected)


def needs_fresh(store: Driven) -> None:
    """For tests of what one handle sees of another's."""
    if not store.backend.capabilities.fresh:
        pytest.skip("does not claim to be fresh")
