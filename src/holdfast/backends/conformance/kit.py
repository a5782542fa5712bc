"""Tools of the suite: stores, drivers and fixtures."""

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
F = TypeVar("F", bound=Callable[..., None])
Drive = Callable[[Coroutine[Any, Any, Any]], Any]


def _unwrapped(backend: Backend) -> Backend:
    return backend


@dataclass
class Stores:
    """A store for the suite, which is empty when a test starts.

    The suite opens it any number of times: one after another to check what was stored, and at once if the backend is
    `shared`. Other processes open it through the command.
    """

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: type[Backend] | None = None
    """The backend, if it is not the one for the scheme of the URL."""
    wrap: Callable[[Backend], Backend] = _unwrapped
    """Wraps an open store."""
    command: Sequence[str] = (sys.executable, "-m", "holdfast.backends.conformance.child")
    """Runs `holdfast.backends.conformance.child.main` with the arguments that follow."""

    async def open(self) -> Backend:
        """Open the store, or open it again."""
        return self.wrap(await self.backend().open(self.url, **self.options))

    def backend(self) -> type[Backend]:
        """Return the backend that opens the store."""
        return self.kind or backend_for(self.url)


class Driven:
    """An open store with its driver."""

    def __init__(self, backend: Backend, drive: Drive) -> None:
        self.backend = backend
        self.drive = drive

    def read(self, *queries: Query) -> list[list[Row]]:
        """Read, as of one moment."""
        found: list[list[Row]] = self.drive(self.backend.read(queries))
        return found

    def apply(self, *changes: Change) -> int | None:
        """Apply a batch."""
        refused: int | None = self.drive(self.backend.apply(changes))
        return refused

    def fill(self, space: Table, rows: Sequence[Row]) -> None:
        """Put rows into a table."""
        assert self.apply(*(Put(space, row) for row in rows)) is None

    def scan(self, space: Table, prefix: Key = (), **options: Any) -> list[Row]:
        """Return the rows of one scan."""
        return self.read(Scan(space, prefix, **options))[0]

    def everything(self) -> dict[str, list[Row]]:
        """Return all rows of the store, by the name of their table."""
        found = self.read(*(Scan(space, ()) for space in TABLES))
        return {space.name: rows for space, rows in zip(TABLES, found, strict=True)}

    def close(self) -> None:
        """Close the store."""
        self.drive(self.backend.close())


class Suite:
    """The base of every part of the suite. A subclass provides `stores`."""

    histories: int | None = None
    """The number of random histories; None for the default of hypothesis. Fewer are enough for a slow store."""

    kills: int = 5
    """How many processes are killed while they write."""

    watched: int = 60
    """How many batches are written while readers watch."""

    lacks: frozenset[str] = frozenset()
    """The features in `Capabilities` that the backend is known not to have. Their tests are left out; those of other
    features that it does not claim are skipped."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in dir(cls):
            if missing_feature(getattr(cls, name), lambda feature: feature not in cls.lacks):
                setattr(cls, name, None)

    def test_it_claims_nothing_that_it_is_said_to_lack(self, stores: Stores) -> None:
        backend = run(stores.open())
        claims = {name for name in self.lacks if getattr(backend.capabilities, name)}
        run(backend.close())
        assert not claims, f"remove these from `lacks`: {claims}"

    @pytest.fixture
    def stores(self) -> Stores:
        """The store to test."""
        raise NotImplementedError("a subclass of the conformance suite has to provide the fixture `stores`")

    @pytest.fixture
    def claimed(self, request: pytest.FixtureRequest, stores: Stores) -> Stores:
        """The store to test, if its backend claims what the test needs."""
        if getattr(request.function, "needs", ()):
            backend = run(stores.open())
            capabilities = backend.capabilities
            run(backend.close())
            if missing := missing_feature(request.function, lambda feature: bool(getattr(capabilities, feature))):
                pytest.skip(f"the backend does not claim {missing!r}")
        return stores

    @pytest.fixture(params=["sync", "async"])
    def drive(self, request: pytest.FixtureRequest) -> Iterator[Drive]:
        """Both drivers."""
        if request.param == "sync":
            yield run
            return
        with asyncio.Runner() as runner:
            yield lambda coroutine: runner.run(arun(coroutine))

    @pytest.fixture
    def store(self, claimed: Stores, drive: Drive) -> Iterator[Driven]:
        """An open store, through either driver."""
        driven = Driven(drive(claimed.open()), drive)
        yield driven
        driven.close()

    @pytest.fixture
    def plain(self, claimed: Stores) -> Iterator[Driven]:
        """An open store, through the sync driver only: for long tests, and those with their own tasks or threads."""
        driven = Driven(run(claimed.open()), run)
        yield driven
        driven.close()


@contextmanager
def case(name: object) -> Iterator[None]:
    """Add the name of the case to errors: for tests that loop over many cases on one store."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the case {name!r}")
        raise


def seqs(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return branch and number of rows of `STEPS`."""
    return [row.key[2:] for row in rows]


def put_steps(rows: Sequence[Row]) -> list[Change]:
    """Return changes that put rows into `STEPS`."""
    return [Put(STEPS, row) for row in rows]


def same(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """Return whether rows are equal: for so many or large rows that pytest would take minutes to show a difference."""
    return list(found) == list(expected)


def needs(*features: str) -> Callable[[F], F]:
    """Mark a test of features that a backend need not have, by their names in `Capabilities`. Of "a or b", one is
    enough."""

    def mark(test: F) -> F:
        test.needs = features  # type: ignore[attr-defined]
        return test

    return mark


def missing_feature(test: object, has: Callable[[str], bool]) -> str | None:
    """Return a feature that a test needs and that is not there."""
    return next((each for each in getattr(test, "needs", ()) if not any(map(has, each.split(" or ")))), None)
