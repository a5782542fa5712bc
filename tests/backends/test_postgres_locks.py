"""The PostgreSQL backend: which writers wait for which."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.conformance.kit import Driven
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Batch, Change, Create, Delete, Expect, Put
from holdfast.backends.postgres.apply_function import GROUP_LINES, MAX_LOCKS, lock_id, pack
from holdfast.backends.postgres.backend import PostgresBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import LINES, STEPS
from tests.backends.postgres_databases import emptied

_WAITERS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def store(url: str) -> Iterator[Driven]:
    driven = Driven(run(PostgresBackend.open(url)), run)
    yield driven
    driven.close()


@contextmanager
def another_writer(url: str, *keys: tuple[str, ...], exclusive: bool = False) -> Iterator[None]:
    """Hold the locks of a writer under way: of the store, of a tenant, or of a line."""
    function = "pg_advisory_xact_lock" if exclusive else "pg_advisory_xact_lock_shared"
    with psycopg.connect(url) as holder:
        for key in keys:
            holder.execute(f"SELECT {function}(%s)".encode(), [lock_id("holdfast", *key)])
        yield


class Waiting:
    """A change in another thread, which has to wait for a lock."""

    def __init__(self, url: str, store: Driven, *changes: Change) -> None:
        self._done: list[int | None] = []
        self._thread = threading.Thread(target=lambda: self._done.append(store.apply(*changes)))
        self._thread.start()
        deadline = time.monotonic() + 120
        with psycopg.connect(url, autocommit=True) as connection:
            while connection.execute(_WAITERS.encode()).fetchone() != (1,):
                assert self._thread.is_alive(), "it did not wait"
                assert time.monotonic() < deadline, "it does not reach the lock"

    def join(self) -> None:
        self._thread.join()
        assert self._done == [None]


def test_groups_are_cut_by_the_lines_they_touch(store: Driven, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads that are saved at once lock nothing but themselves."""
    backend = store.backend
    assert isinstance(backend, PostgresBackend)
    groups: list[tuple[int, int]] = []
    commit = backend._commit

    async def observed(batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
        groups.append((len(batches), len({line for batch in batches for line in pack(batch).changed})))
        return await commit(batches, stamp)

    monkeypatch.setattr(backend, "_commit", observed)
    count = 4 * GROUP_LINES

    async def save(line: str) -> int | None:
        return await arun(backend.apply([Create(STEPS, step(0, line=line))]))

    async def save_all() -> None:
        first = [f"first {slot}" for slot in range(backend.slots)]
        with another_writer(url, *(("tenant", line) for line in first), exclusive=True):
            saves = []
            for line in first:  # each a group, which waits
                saves.append(asyncio.create_task(save(line)))
                while len(groups) < len(saves):
                    await asyncio.sleep(0)
            saves += [asyncio.create_task(save(f"{n}")) for n in range(count)]
            while backend._groups is None or len(backend._groups._queued) < count:
                await asyncio.sleep(0)
        assert await asyncio.gather(*saves) == [None] * len(saves)

    with another_writer(url, (), ("tenant",)):
        asyncio.run(asyncio.wait_for(save_all(), 120))
        assert groups == [(1, 1)] * backend.slots + [(GROUP_LINES, GROUP_LINES)] * 4
        everything = Waiting(url, store, Delete(LINES, ()))  # the control: this does wait for the other writer
    everything.join()


def test_a_transaction_of_many_lines_locks_only_these(store: Driven, url: str) -> None:
    changes = [Create(STEPS, step(0, line=f"{n}")) for n in range(MAX_LOCKS)]
    with another_writer(url, (), ("tenant",), ("tenant", "another")):
        assert store.apply(*changes) is None
    with another_writer(url, ("tenant", "7")):
        waiting = Waiting(url, store, *(Create(STEPS, step(1, line=f"{n}")) for n in range(MAX_LOCKS)))
    waiting.join()


def test_a_transaction_of_more_lines_than_are_locked_one_by_one_locks_its_tenant(store: Driven, url: str) -> None:
    changes = [Create(STEPS, step(0, line=f"{n}")) for n in range(MAX_LOCKS + 1)]
    with another_writer(url, (), ("tenant",)):
        waiting = Waiting(url, store, *changes)
        other = row_of(LINES, "other", "line")
        assert store.apply(Create(LINES, other)) is None  # another tenant's writer does not wait
        assert store.scan(STEPS) == []
    waiting.join()
    assert len(store.scan(STEPS)) == MAX_LOCKS + 1


def test_deleting_a_tenant_waits_for_its_writers_only(store: Driven, url: str) -> None:
    store.fill(LINES, [row_of(LINES, "one", "line"), row_of(LINES, "two", "line")])
    with another_writer(url, (), ("two",), ("two", "line")):
        assert store.apply(Delete(LINES, ("one",))) is None
        waiting = Waiting(url, store, Delete(LINES, ("two",)))
    waiting.join()
    assert store.scan(LINES) == []


def test_conditions_on_a_line_do_not_exclude_each_other(store: Driven, url: str) -> None:
    """Many writers depend on one line, such as that of grants, which few change."""
    grants = row_of(LINES, "tenant", "grants", version=1)
    store.fill(LINES, [grants])
    condition = Expect(LINES, grants.key, grants.columns)
    with another_writer(url, (), ("tenant",), ("tenant", "grants")):
        assert store.apply(condition, Create(STEPS, step(0))) is None
        changed = grants._replace(columns=(2, *grants.columns[1:]))
        waiting = Waiting(url, store, condition, Put(LINES, changed))
    waiting.join()
    assert store.apply(condition, Create(STEPS, step(1))) == 0
    with another_writer(url, ("tenant", "grants"), exclusive=True):
        waiting = Waiting(url, store, Expect(LINES, changed.key, changed.columns), Create(STEPS, step(1)))
    waiting.join()
