"""Quotas: a tenant stores no more than it may, however many write, and what is refused leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast import Store
from holdfast.backends.interface import Backend, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import FOLDS, LINES, NODES, OBJECTS, STEPS, TABLES, WRITES
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.quotas import Quota, QuotaUsage
from holdfast.errors import InvalidError, QuotaError
from holdfast.savers import CheckpointStore
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.counting import CountingBackend
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly

EVERYDAY = ("memory", "sqlite", "file", "postgres")


class Time:
    """A clock that tests set forward."""

    def __init__(self) -> None:
        self._ahead = 0

    def __call__(self) -> int:
        return time.time_ns() + self._ahead

    def forward(self, seconds: float) -> None:
        self._ahead += int(seconds * 1e9)


def opened(backend: Backend, clock: Any = time.time_ns, tenant: str = "acme") -> Store:
    """Another process, as far as quotas are concerned."""
    context = EngineContext(backend, MemoryCache(1 << 22))
    context.quotas._clock = clock
    return Store(Engine(context), tenant)


def save(store: Store, count: int, thread: str = "t", **state: Any) -> int:
    """Save until that is refused. Returns how often it was not."""
    for n in range(count):
        try:
            store.thread(thread).put({**state, "n": n})
        except QuotaError:
            return n
    return count


def _save_together(store: Store, *threads: str) -> None:
    with store.transaction() as transaction:
        for thread in threads:
            transaction.put(thread, {"n": 2})


def rows(backend: Backend, *tables: Any) -> int:
    return sum(len(run(backend.read([Scan(table, ())]))[0]) for table in tables)


@pytest.mark.parametrize("kind", mostly_nightly((*KINDS, *COMPOSED), daily=EVERYDAY))
def test_limits_hold_on_every_store(kind: str, tmp_path: Path) -> None:
    url = place(kind, tmp_path)
    with holdfast.open(url, tenant="acme") as store:
        limits = store.maintenance
        assert astuple(limits.quota()) == (Quota(), QuotaUsage())
        store.thread("a").put({"n": 1})
        limits.set_quota(threads=2, steps=5)
        store.thread("b").put({"n": 1})
        with pytest.raises(QuotaError, match="2 of 2 threads are used, and this needs 1") as caught:
            store.thread("c").put({"n": 1})
        assert (caught.value.code, caught.value.where) == ("quota-exceeded", "tenant 'acme'")
        # A transaction is refused as a whole: the part that would fit is not saved either.
        with pytest.raises(QuotaError):
            _save_together(store, "a", "c")
        assert [info.thread for info in store.threads()] == ["a", "b"]
        assert len(store.thread("a").log()) == 1
        assert save(store, 10, "a") == 3
        with pytest.raises(QuotaError, match="5 of 5 steps are used"):
            store.state(agent="x").set("key", 1)
        assert astuple(limits.quota().used)[1:] == (2, 5)
        # Reading and removing is always possible, and makes room.
        assert store.thread("a").get().state == {"n": 2}
        store.thread("b").delete()
        deadline = time.monotonic() + 120
        while not save(store, 10, "d"):  # on a busy machine, not every refused save counts again
            assert time.monotonic() < deadline
        assert astuple(limits.quota().used)[1:] == (2, 5)
        limits.set_quota(bytes=limits.quota().used.bytes + 100_000)
        with pytest.raises(QuotaError, match="bytes are used, and this needs"):
            store.thread("a").put({"blob": os.urandom(200_000)})
        store.thread("a").put({"blob": os.urandom(20_000)})
        assert limits.quota().used.bytes <= (limits.quota().limits.bytes or 0)
        limits.set_quota()
        store.thread("a").put({"blob": os.urandom(200_000)})
        assert limits.verify().ok
    if kind != "memory":
        with holdfast.open(url, tenant="acme") as store:
            assert len(store.thread("a").get().state["blob"]) == 200_000


def test_other_tenants_are_not_limited() -> None:
    backend = MemoryBackend()
    acme, other = opened(backend), opened(backend, tenant="other")
    acme.maintenance.set_quota(steps=1)
    assert save(other, 20) == 20
    assert save(acme, 20) == 1
    assert astuple(other.maintenance.quota()) == (Quota(), QuotaUsage(other.thread("t").info().bytes, 1, 20))
    acme.maintenance.set_quota(steps=0)
    assert save(acme, 1) == 0


@pytest.mark.parametrize("limit", [40, 300])
def test_writers_together_never_exceed_a_limit(limit: int) -> None:
    backend = MemoryBackend()
    stores = [opened(backend) for _ in range(5)]
    stores[0].maintenance.set_quota(steps=limit)
    with ThreadPoolExecutor(10) as pool:  # two threads in each
        saved = sum(pool.map(lambda n: save(stores[n % 5], limit, f"t{n}"), range(10)))
    # Of a large limit, each keeps a little for itself; and of any, what it holds for a write that is then refused.
    assert limit - 5 * max(limit // 64, 1) <= saved <= limit
    if limit <= 64:
        saved += save(stores[0], limit, "rest")
        assert saved == limit
    assert stores[0].maintenance.quota().used.steps == saved


def test_threads_are_never_more_than_the_limit() -> None:
    backend = MemoryBackend()
    stores = [opened(backend) for _ in range(4)]
    stores[0].maintenance.set_quota(threads=10)

    def create(number: int) -> int:
        return sum(save(stores[number], 1, f"{number}-{n}") for n in range(10))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(create, range(4))) == 10


def test_writers_of_one_new_thread_need_room_for_one() -> None:
    """The first creates it; the others, which wanted to, save to it."""
    store = opened(MemoryBackend())
    store.maintenance.set_quota(threads=1)
    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: save(store, 3), range(8))) == 24


def test_most_saves_cost_nothing_more() -> None:
    backend = CountingBackend(MemoryBackend())
    store = opened(backend)
    costs = []
    for limits in ({}, {"steps": 1_000_000, "bytes": 1 << 40, "threads": 1000}):
        store.maintenance.set_quota(**limits)
        save(store, 260)  # allotments are small at first
        backend.reset()
        assert save(store, 256) == 256
        costs.append((backend.reads, backend.applies))
    (reads, applies), (limited_reads, limited_applies) = costs
    assert applies == 256
    assert 1 <= limited_applies - applies <= 3
    assert 1 <= limited_reads - reads <= 3


def test_an_allotment_of_a_process_that_died_is_not_lost() -> None:
    backend, clock = MemoryBackend(), Time()
    first, second = opened(backend, clock), opened(backend, clock)
    first.maintenance.set_quota(steps=300)
    saved = save(first, 100)
    while not (left := first._engine.context.quotas._tenants["acme"].left.steps):
        saved += save(first, 1)
    early = save(second, 300, "u")
    assert saved + early == 300 - left
    clock.forward(130)
    assert saved + early + save(second, 300, "u") == 300


def test_limits_are_known_to_others_after_a_minute() -> None:
    backend, clock = MemoryBackend(), Time()
    operator, writer = opened(backend, clock), opened(backend, clock)
    assert save(writer, 10) == 10
    operator.maintenance.set_quota(steps=20)
    clock.forward(61)
    assert save(writer, 20) == 10
    operator.maintenance.set_quota(steps=30)
    assert save(writer, 20) == 10
    operator.maintenance.set_quota()
    assert save(writer, 20) == 20


def test_what_was_saved_before_the_limits_were_known_is_counted_later() -> None:
    backend, clock = MemoryBackend(), Time()
    operator, late = opened(backend, clock), opened(backend, clock)
    save(late, 1)
    operator.maintenance.set_quota(steps=200)
    save(operator, 1, "u")
    assert save(late, 100) == 100  # it does not know yet
    clock.forward(130)
    assert save(operator, 200, "u") == 200 - 102


def test_a_limit_that_is_lowered_does_not_prevent_making_room() -> None:
    store = opened(MemoryBackend())
    save(store, 100, text="x" * 100)
    store.maintenance.set_quota(steps=50, bytes=100)
    assert save(store, 1) == 0
    assert store.maintenance.prune(keep_last=10).dropped == 90
    store.maintenance.compact()
    store.maintenance.set_quota(steps=50)
    assert save(store, 100) == 40


def test_pending_writes_are_counted() -> None:
    store = opened(MemoryBackend())
    saver = CheckpointStore(store)
    store.maintenance.set_quota(bytes=50_000)
    saved = store.thread("t").put({"n": 1})
    run(saver.put_writes("t", saved.id, [(0, "channel", os.urandom(10_000))], task_id="task"))
    with pytest.raises(QuotaError):
        run(saver.put_writes("t", saved.id, [(1, "channel", os.urandom(50_000))], task_id="task"))


def test_a_copy_that_is_refused_leaves_nothing() -> None:
    backend = MemoryBackend()
    store = opened(backend)
    save(store, 70, blob=os.urandom(100_000))
    size = store.thread("t").info().bytes
    before = {table: rows(backend, table) for table in TABLES}
    for limits in ({"threads": 1}, {"steps": 100}, {"bytes": size * 3 // 2}):
        store.maintenance.set_quota(**limits)
        with pytest.raises(QuotaError):
            run(CheckpointStore(store).copy("t", "u"))
        store.maintenance.set_quota()
        assert {table: rows(backend, table) for table in TABLES} == before
    run(CheckpointStore(store).copy("t", "u"))


@pytest.mark.parametrize(
    "limits", [{"threads": 0}, {"steps": 30}, {"bytes": 50_000}], ids=["threads", "steps", "bytes"]
)
def test_threads_of_another_store_are_refused(tmp_path: Path, limits: dict[str, int]) -> None:
    source = opened(MemoryBackend())
    save(source, 70, blob=os.urandom(100_000))
    source.thread("t").hold(reason="a copy has it, too")
    source.maintenance.export(tmp_path / "archive")
    url = f"sqlite:///{tmp_path}/target.db"
    with holdfast.open(url, tenant="acme") as target:
        target.maintenance.set_quota(**limits)
        with pytest.raises(QuotaError):
            source.maintenance.copy_to(url)
        with pytest.raises(QuotaError):
            target.maintenance.import_(tmp_path / "archive")
        assert target.threads() == []
        assert rows(target._engine.context.backend, LINES, STEPS, FOLDS, NODES, OBJECTS, WRITES) == 0
        target.maintenance.set_quota()
        source.maintenance.copy_to(url)
        assert len(list(target.thread("t").log().all())) == 70


def test_system_lines_are_free() -> None:
    """What is denied is recorded, also where nothing more can be stored."""
    store = opened(MemoryBackend())
    store.maintenance.set_quota(steps=0, bytes=0, threads=0)
    store.access.grant("agent:y", "read", "agent:x")
    assert store.maintenance.quota().used == QuotaUsage()


_PROGRAM = """
import sys
import holdfast
from holdfast.errors import QuotaError

with holdfast.open(sys.argv[1], tenant="acme") as store:
    try:
        for n in range(1000):
            store.thread(sys.argv[2]).put({"n": n})
            print(n, flush=True)
            if n == 4:
                sys.stdin.readline()  # until the others have begun too
    except QuotaError:
        print("refused", flush=True)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def test_processes_together_never_exceed_a_limit(kind: str, tmp_path: Path) -> None:
    url, limit = place(kind, tmp_path), 130
    with holdfast.open(url, tenant="acme") as store:
        store.maintenance.set_quota(steps=limit)
        command = [sys.executable, "-c", _PROGRAM, url]
        with ExitStack() as stack:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            writers = [stack.enter_context(subprocess.Popen([*command, f"t{n}"], **pipes)) for n in range(3)]
            for writer in writers:
                assert writer.stdout is not None
                assert [writer.stdout.readline() for _ in range(5)] == [f"{n}\n" for n in range(5)]
            for writer in writers:
                assert writer.stdin is not None
                writer.stdin.write("\n")
                writer.stdin.flush()
            killed, *others = writers
            killed.kill()
            count_kill()
            for writer in others:
                assert writer.communicate(timeout=300)[0].endswith("refused\n")
        used = store.maintenance.quota().used.steps
        # Each kept at most one in 64 of what was left, and the killed one what it did not come to use.
        assert limit - 3 * (limit // 64) <= used <= limit


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_an_allotment_of_its_own() -> None:
    store = opened(MemoryBackend())
    store.maintenance.set_quota(steps=100_000)
    save(store, 50)
    quotas = store._engine.context.quotas
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, quotas._process.encode())
        os._exit(0 if not quotas._tenants else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert os.read(read, 100).decode() != quotas._process
    assert quotas._tenants


@pytest.mark.parametrize("limit", [-1, 1.5, "10", True])
def test_limits_that_make_no_sense(limit: Any) -> None:
    with pytest.raises(InvalidError):
        opened(MemoryBackend()).maintenance.set_quota(bytes=limit)
