"""Stores are copied to others as they are: completely, again where it ended, and never over anything else."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Backend, Batch, Capabilities, Delete, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import FIELDS, JOURNAL, LINES, NODES, OBJECTS, READABLE, REFS, STEPS, TABLES
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.checked_rows import CheckedBackend
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.copy_report import CopyProgress
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.integrity.verify import verify
from holdfast.engine.leases import Lease
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import Line, node_row
from holdfast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    TransientError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.damaged import flipped
from tests.engine.lines import Clock, store_on
from tests.engine.pruned import dropping_ids, prune
from tests.engine.rows import check_rows, rows_of, showing
from tests.engine.test_histories import Thread, perform, scripts
from tests.servers.places import DURABLE, place
from tests.support.faults import Fault, Faults
from tests.support.interference import InterferingBackend
from tests.support.kills import kill, run_in_child
from tests.support.nightly import by_day, examples, mostly_nightly

LARGE = random.Random(2).randbytes(70_000)


def fill(store: Store, threads: int = 3, steps: int = 12) -> None:
    """Threads with a bit of everything."""
    for number in range(threads):
        thread = f"thread {number}"
        for n in range(steps):
            state = {"messages": [f"{thread} {m}" for m in range(n)], "n": n, "large": LARGE if n > 4 else b""}
            store.thread(thread).put(state, metadata={"n": n}, labels=["odd"] if n % 2 else [])
        store.thread(thread).fork("side", at=3)
        store.thread(thread).put({"side": number}, branch="side", tag="aside")
        first = store.thread(thread).log()[-1].id
        store.thread(thread).put({"again": number}, parent=first)
        Checkpointer(store).put_writes(thread, store.thread(thread).get().id, [("channel", number)], task_id="task")
        mark(store, thread, "gone wrong")


def mark(store: Store, thread: str, text: str) -> None:
    """A pending write that takes the place of the one before it."""
    write = PendingWriteRow("", "task", -1, "__error__", store._engine.context.codec.pack(text))
    run(store._engine.writes.put(Line("", thread), store.thread(thread).get().id, [write]))


def log_of(backend: Backend, tenant: str | None = None) -> dict[str, list[Row]]:
    """All rows that a copy has to have."""
    prefix = () if tenant is None else (tenant,)
    spaces = [space for space in TABLES if space not in (*READABLE, JOURNAL, FIELDS)]
    found = run(backend.read([Scan(space, prefix) for space in spaces]))
    return {
        space.name: sorted(row for row in rows if space is not REFS or row.key[2] != "lease")
        for space, rows in zip(spaces, found, strict=True)
    }


def backend_of(store: Store) -> Backend:
    return store._engine.context.backend


def check_same(source: Store, target: Store) -> None:
    ours, theirs = log_of(backend_of(source)), log_of(backend_of(target))
    for name, rows in ours.items():
        # Each store has records of its own: of what was done to it.
        own, other = ([row for row in found if AUDIT not in row.key] for found in (rows, theirs[name]))
        assert other == own, name


# All of it --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", mostly_nightly(DURABLE, daily=["sqlite", "file", "postgres", "redis"]))
def test_a_store_is_copied_to_another_of_any_kind_and_back(to: str, tmp_path: Path) -> None:
    source, back = store_on(MemoryBackend(), fold_every=4), store_on(MemoryBackend())
    fill(source)
    with holdfast.open(place(to, tmp_path)) as middle:
        seen: list[CopyProgress] = []
        report = source.maintenance.copy_to(middle, progress=seen.append)
        rows = log_of(backend_of(source))
        assert (report.threads, report.skipped, report.changing) == (3, 0, ())
        assert report.rows == sum(map(len, rows.values()))
        assert report.bytes == sum(len(row.body) for found in rows.values() for row in found)
        assert [(each.phase, each.done, each.total, each.thread) for each in seen] == [
            (phase, n + 1, 3, f"thread {n}") for phase in ("copied", "verified") for n in range(3)
        ]
        assert (seen[-1].rows, seen[-1].bytes) == (report.rows, report.bytes)
        check_same(source, middle)
        for thread in ("thread 0", "thread 2"):
            assert [each.hash for each in middle.thread(thread).log().all()] == [
                each.hash for each in source.thread(thread).log().all()
            ]
            assert identical(middle.thread(thread).get().state, source.thread(thread).get().state)
        middle.maintenance.copy_to(back)
        check_same(source, back)
        more = middle.thread("thread 1").put({"goes": "on"})
        assert middle.thread("thread 1").get().id == more.id


def test_it_goes_by_url_and_for_asyncio(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/other.db"

    async def main() -> None:
        async with holdfast.aopen("memory://") as source:
            await source.thread("t").put({"n": 1})
            report = await source.maintenance.copy_to(url, synchronous="normal")
            assert (report.threads, report.skipped) == (1, 0)

    asyncio.run(main())
    with holdfast.open(url) as target:
        assert target.thread("t").get().state == {"n": 1}


def test_tenants_stay_apart() -> None:
    on = MemoryBackend()
    stores = {tenant: Store(store_on(on)._engine, tenant) for tenant in ("", "a", "b")}
    for tenant, store in stores.items():
        store.thread("t").put({"of": tenant})
    target = store_on(MemoryBackend())
    report = stores["a"].maintenance.copy_to(Store(target._engine, "a"))
    assert report.threads == 1
    assert log_of(backend_of(target)) == log_of(backend_of(stores["a"]), "a")
    with pytest.raises(InvalidError, match="opened for tenant ''"):
        stores["a"].maintenance.copy_to(target)
    report = stores[""].maintenance.copy_to(target, tenants="all")
    assert (report.threads, report.skipped) == (3, 1)
    assert log_of(backend_of(target)) == log_of(backend_of(stores[""]))
    with pytest.raises(InvalidError, match="'own' or 'all'"):
        stores[""].maintenance.copy_to(target, tenants="some")


def test_leases_and_journals_stay_where_they_are() -> None:
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    source.thread("t").put({"n": 1})
    run(Lease(source._engine.context, Line("", "t"), "rewrite").acquire())
    run(backend_of(source).apply([Put(JOURNAL, Row(("", "t", 1), (1,), b"journal"))]))
    assert source.maintenance.copy_to(target).changing == ()
    check_same(source, target)
    assert run(backend_of(target).read([Scan(REFS, ()), Scan(JOURNAL, ())])) == [[], []]


def test_readable_rows_are_made_where_the_other_store_has_them() -> None:
    source, target = store_on(MemoryBackend()), showing(MemoryBackend())
    fill(source, 2)
    source.maintenance.copy_to(target)
    assert len(rows_of(backend_of(target))["heads"]) == 2
    check_rows(target._engine.context.stored)
    source.thread("thread 1").put({"messages": ["more"]})
    source.maintenance.copy_to(target)
    check_rows(target._engine.context.stored)


def test_rows_of_what_was_pruned_go_from_the_copy() -> None:
    source, on = store_on(MemoryBackend()), MemoryBackend()
    ids = [source.thread("t").put({"n": n}, metadata={"secret": n}).id for n in range(6)]
    source.maintenance.copy_to(showing(on))
    prune(source, dropping_ids(*ids[:2]))
    source.maintenance.copy_to(showing(on, project=False))
    rows = rows_of(on)
    for name in ("transitions", "metadata"):
        assert {key[1] for key in rows[name]} == set(ids[2:])
    source.maintenance.copy_to(showing(on))
    check_rows(on)


def test_rows_follow_what_is_not_the_latest_in_the_copy() -> None:
    source, on = store_on(MemoryBackend()), MemoryBackend()
    source.thread("t").put({"n": 1}, id="1")
    source.thread("t").put({"n": 2}, id="5")
    source.maintenance.copy_to(showing(on))
    source.thread("t").put({"n": 3}, id="3", parent="1")
    source.maintenance.copy_to(showing(on))
    check_rows(on)
    source.thread("t").put({"n": 4}, id="3", metadata={"again": 1})
    source.maintenance.copy_to(showing(on))
    check_rows(on)


@given(script=scripts(), fold_every=st.sampled_from([1, 3, 32]), bits=st.integers(0, (1 << 30) - 1))
@settings(max_examples=examples(25))
def test_any_history_reads_the_same_at_every_checkpoint(script: list[Any], fold_every: int, bits: int) -> None:
    source, target = store_on(MemoryBackend(), fold_every=fold_every), store_on(MemoryBackend())
    thread = Thread(source)
    for number, (action, (state, chance)) in enumerate(script):
        perform(thread, action, state, chance)
        if bits >> number & 1 and thread.saved:
            source.maintenance.copy_to(target)
            check_same(source, target)
    source.maintenance.copy_to(target)
    check_same(source, target)
    copy = Thread(target)
    copy.saved, copy.forks = thread.saved, thread.forks
    copy.check()
    stub = [id for place, id in enumerate(sorted(thread.saved)[:-1]) if bits >> place & 1]
    prune(source, dropping_ids(*stub))
    try:
        source.maintenance.copy_to(target)
    except ConflictError:
        # Checkpoints at the end of a branch went for good, and might be the other's own.
        target.thread("t").delete()
        source.maintenance.copy_to(target)
    check_same(source, target)


# Again ------------------------------------------------------------------------------------------------------------


def test_what_is_there_is_skipped_and_only_what_is_new_is_added() -> None:
    source, target = store_on(MemoryBackend(), fold_every=4), store_on(MemoryBackend())
    fill(source)
    source.maintenance.copy_to(target)
    again = source.maintenance.copy_to(target)
    assert (again.threads, again.skipped, again.rows) == (3, 3, 0)
    source.thread("thread 1").put({"more": 1})
    source.thread("thread 2").label("later")
    mark(source, "thread 0", "again")
    third = source.maintenance.copy_to(target)
    assert third.skipped == 0
    assert third.rows <= 6
    check_same(source, target)
    source.thread("thread 2").unlabel("later")
    source.maintenance.compact("thread 0")
    source.maintenance.copy_to(target)
    check_same(source, target)


def test_it_goes_on_wherever_it_was_interrupted() -> None:
    source = store_on(MemoryBackend(), fold_every=4)
    fill(source, 2, 6)
    whole = Faults(MemoryBackend())
    source.maintenance.copy_to(store_on(whole))
    for nth in range(1, whole.applies + 1):
        for when in ("before", "after"):
            fault = Fault("apply", nth, lambda: UnavailableError("killed"), when)
            on = MemoryBackend()
            with pytest.raises(UnavailableError):
                source.maintenance.copy_to(store_on(Faults(on, [fault])))
            left = store_on(on)
            for thread in left.threads():
                # A thread that can be seen is complete.
                assert left.thread(thread.thread).log() == list(source.thread(thread.thread).log().all())
                assert run(verify(EngineContext(on), Line("", thread.thread))).findings == []
            source.maintenance.copy_to(left)
            check_same(source, left)


@pytest.mark.parametrize("how", ["compact", "fork", "put"])
def test_what_changed_since_goes_on_wherever_it_was_interrupted(how: str) -> None:
    def changed(on: Backend) -> Store:
        """A store that changed since it was copied."""
        source = store_on(MemoryBackend(), fold_every=4)
        fill(source, 1, 10)
        source.maintenance.copy_to(showing(on))
        if how == "compact":
            source.maintenance.compact("thread 0")
        elif how == "fork":
            source.thread("thread 0").fork("other", at="main#3")
        for n in range(8):
            source.thread("thread 0").put({"n": n})
        return source

    whole = Faults(MemoryBackend())
    source = changed(whole.inner)
    source.maintenance.copy_to(showing(whole))
    for nth in range(1, whole.applies + 1, by_day(1, 2)):
        for when in ("before", "after"):
            on = MemoryBackend()
            source = changed(on)
            with pytest.raises(UnavailableError):
                source.maintenance.copy_to(
                    showing(Faults(on, [Fault("apply", nth, lambda: UnavailableError("killed"), when)]))
                )
            source.maintenance.copy_to(showing(on))
            check_same(source, store_on(on))
            check_rows(on)


def test_it_goes_on_after_a_kill(tmp_path: Path) -> None:
    threads, steps = by_day(12, 8), by_day(40, 12)
    one, other = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/other.db"
    with holdfast.open(one, synchronous="normal") as source:
        fill(source, threads, steps)

    def copy(_: Callable[[str], None]) -> None:
        backend = InterferingBackend(run(SQLiteBackend.open(other)))
        with holdfast.open(one) as source, backend.interfere(kill, at=3):
            source.maintenance.copy_to(store_on(backend))

    for _ in range(3):
        _, killed = run_in_child(copy)
        assert killed
    with holdfast.open(one) as source, holdfast.open(other) as target:
        assert 0 < len(target.threads()) < threads
        for thread in target.threads():
            assert len(target.thread(thread.thread).log()) == steps + 2
        source.maintenance.copy_to(target)
        check_same(source, target)


# Others at work ---------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_writers_go_on_meanwhile(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    with holdfast.open(url, synchronous="normal") as source, holdfast.open(url, synchronous="normal") as writer:
        fill(source, 4, 20)
        stop = threading.Event()
        failed: list[BaseException] = []
        written = threading.Event()

        def write() -> None:
            try:
                for n in range(10_000):
                    if stop.is_set():
                        return
                    written.set()
                    writer.thread(f"thread {n % 5}").put({"n": n, "messages": [str(m) for m in range(n % 50)]})
                    if n % 20 == 19:
                        writer.maintenance.compact(f"thread {n % 5}")
                    if n % 31 == 30:
                        writer.thread("thread 4").delete()
                    time.sleep(0.002)
            except BaseException as error:
                failed.append(error)

        target = store_on(MemoryBackend())
        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert written.wait(60)
            first = source.maintenance.copy_to(target)
            assert set(first.changing) <= {f"thread {n}" for n in range(5)}
            for each in target.threads():
                assert run(verify(target._engine.context, Line("", each.thread))).findings == []
        finally:
            stop.set()
            thread.join()
        assert failed == []
        target.thread("thread 4").delete()  # it may have gone, or gone and come back as another, since the copy saw it
        assert source.maintenance.copy_to(target).changing == ()
        check_same(source, target)


@pytest.mark.nightly
def test_copies_at_once_end_with_the_same(tmp_path: Path) -> None:
    one, other = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/other.db"
    with holdfast.open(one, synchronous="normal") as source, holdfast.open(other, synchronous="normal") as target:
        fill(source, 4, 8)
        stop = threading.Event()
        failed: list[BaseException] = []

        def write() -> None:
            for n in range(10_000):
                if stop.is_set():
                    return
                source.thread(f"thread {n % 4}").put({"n": n})
                if n % 20 == 19:
                    source.maintenance.compact(f"thread {n % 4}")
                time.sleep(0.003)

        def copy() -> None:
            try:
                with holdfast.open(one) as mine, holdfast.open(other, synchronous="normal") as there:
                    for _ in range(2):
                        mine.maintenance.copy_to(there)
            except BaseException as error:
                failed.append(error)

        writer, copiers = threading.Thread(target=write), [threading.Thread(target=copy) for _ in range(2)]
        for thread in (writer, *copiers):
            thread.start()
        for thread in copiers:
            thread.join()
        stop.set()
        writer.join()
        assert failed == []
        assert source.maintenance.copy_to(target).changing == ()
        check_same(source, target)


def test_what_is_saved_there_meanwhile_is_not_written_over() -> None:
    source, on = store_on(MemoryBackend(), fold_every=1), InterferingBackend()
    source.thread("t").put({"n": 1})
    source.maintenance.copy_to(store_on(on))
    source.thread("t").put({"n": 2})
    there = store_on(on.inner, fold_every=1)

    def of_steps(batch: Batch) -> bool:
        return any(change.space is STEPS for change in batch)

    theirs = on.interfere(lambda: there.thread("t").put({"theirs": 1}, branch="main"), where=of_steps)
    with pytest.raises(ConflictError, match="that it does not have here"), theirs:
        source.maintenance.copy_to(store_on(on))
    assert store_on(on.inner).thread("t").get().state == {"theirs": 1}
    assert run(verify(EngineContext(on.inner), Line("", "t"))).findings == []


def test_a_thread_that_is_deleted_meanwhile_is_no_conflict() -> None:
    on, target = InterferingBackend(), store_on(MemoryBackend())
    source = store_on(on)
    source.thread("t").put({"n": 1})
    source.maintenance.copy_to(target)
    source.thread("t").put({"n": 2})

    def of_steps(queries: Sequence[Query]) -> bool:
        return any(isinstance(query, Scan) and query.space is STEPS and not query.reverse for query in queries)

    with on.interfere(lambda: store_on(on.inner).thread("t").delete(), "read", where=of_steps):
        assert source.maintenance.copy_to(target).changing == ()
    assert target.thread("t").get().state == {"n": 1}  # as if it had been deleted before the copy


def test_threads_that_keep_changing_are_named() -> None:
    busy = InterferingBackend()
    source = store_on(busy)
    source.thread("busy").put({"n": 1})
    source.thread("quiet").put({"n": 1})
    other, target = store_on(busy.inner), store_on(MemoryBackend())
    with busy.interfere(lambda: other.thread("busy").put({"at": time.monotonic_ns()}), "read", times=None):
        report = source.maintenance.copy_to(target)
    assert report.changing == ("busy",)
    # A state may have been folded after the steps were listed: its nodes wait for the next copy.
    found = run(verify(target._engine.context, Line("", "busy"))).findings
    assert {each.code for each in found} <= {FindingCode.ORPHAN}
    assert source.maintenance.copy_to(target).changing == ()
    assert run(verify(target._engine.context, Line("", "busy"))).findings == []
    check_same(source, target)


# What is in the way -----------------------------------------------------------------------------------------------


def test_nothing_is_written_over_another_history() -> None:
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend(), clock=Clock(1_800_000_000_000_000_000))
    source.thread("t").put({"n": 1})
    target.thread("t").put({"other": 1})
    before = log_of(backend_of(target))
    with pytest.raises(ConflictError, match="a different thread with this name"):
        source.maintenance.copy_to(target)
    assert log_of(backend_of(target)) == before


def test_nothing_is_written_over_what_went_on_by_itself() -> None:
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    source.thread("t").put({"n": 1})
    source.maintenance.copy_to(target)
    target.thread("t").put({"n": 2})
    before = log_of(backend_of(target))
    with pytest.raises(ConflictError, match="that it does not have here"):
        source.maintenance.copy_to(target)
    source.thread("t").put({"n": 3})
    with pytest.raises(ConflictError, match="that it does not have here"):
        source.maintenance.copy_to(target)
    assert log_of(backend_of(target)) == before


def test_a_store_is_not_copied_to_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/one.db"
    with holdfast.open(url) as store:
        for other in (store, url):
            with pytest.raises(InvalidError, match="to itself"):
                store.maintenance.copy_to(other)
        with pytest.raises(InvalidError, match="open already"):
            store.maintenance.copy_to(store, synchronous="normal")


class Narrow(Wrapper):
    """Holds rows of a megabyte."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(durable=False, shared=False, max_body=1 << 20, max_batch=1 << 20)

    async def apply(self, batch: Batch) -> int | None:
        bodies = [len(change.row.body) for change in batch if isinstance(change, Put)]
        assert max(bodies, default=0) <= 1 << 20
        assert sum(bodies) <= 1 << 20
        return await self.inner.apply(batch)


def test_batches_are_no_larger_than_the_other_store_takes() -> None:
    source, narrow = store_on(MemoryBackend()), Narrow(MemoryBackend())
    chance = random.Random(3)
    for n in range(40):
        source.thread("t").put({"n": n, "data": chance.randbytes(60_000)})
    source.maintenance.copy_to(store_on(narrow))
    check_same(source, store_on(narrow))


def test_a_row_that_the_other_store_cannot_hold_is_told_before_anything_is_written() -> None:
    source, narrow = store_on(MemoryBackend()), Narrow(MemoryBackend())
    source.thread("a").put({"n": 1})
    chance = random.Random(4)
    source.thread("t").put({"many": [chance.randbytes(30_000) for _ in range(50)]})
    with pytest.raises(UnsupportedError, match="over the limit of 1048576"):
        source.maintenance.copy_to(store_on(narrow))
    assert not any(log_of(narrow.inner).values())


def test_of_a_thread_with_a_pending_write_that_is_too_large_nothing_is_left() -> None:
    source, narrow = store_on(MemoryBackend()), Narrow(MemoryBackend())
    for thread in ("a", "t"):
        source.thread(thread).put({"n": 1})
    written = PendingWriteRow(
        "", "task", 0, "channel", source._engine.context.codec.pack(random.Random(5).randbytes(1 << 21))
    )
    run(source._engine.writes.put(Line("", "t"), source.thread("t").get().id, [written]))
    with pytest.raises(UnsupportedError, match="thread 't', writes"):
        source.maintenance.copy_to(store_on(narrow))
    assert {row.key[1] for rows in log_of(narrow.inner).values() for row in rows} == {"a"}


# Damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [STEPS, NODES, OBJECTS], ids=lambda space: space.name)
def test_a_damaged_thread_is_named_and_the_others_are_copied(space: Any) -> None:
    source, target = store_on(MemoryBackend(), fold_every=4), store_on(MemoryBackend())
    fill(source)
    stored = source._engine.context.stored
    row = run(stored.read([Scan(space, ("", "thread 1"))]))[0][0]
    run(stored.apply([Put(space, row._replace(body=flipped(row.body)))]))
    with pytest.raises(CorruptError, match="thread 'thread 1'"):
        source.maintenance.copy_to(target)
    assert [each.thread for each in target.threads()] == ["thread 0", "thread 2"]


@pytest.mark.parametrize("space", [STEPS, NODES, OBJECTS], ids=lambda space: space.name)
def test_what_is_missing_is_found_when_the_copy_is_verified(space: Any) -> None:
    source, target = store_on(MemoryBackend(), fold_every=4), store_on(MemoryBackend())
    fill(source)
    row = run(backend_of(source).read([Scan(space, ("", "thread 1"))]))[0][-1 if space is not STEPS else 2]
    run(backend_of(source).apply([Delete(space, row.key)]))
    with pytest.raises(CorruptError, match="thread 'thread 1'"):
        source.maintenance.copy_to(target)


class Lossy(Wrapper):
    """Loses a byte of one node."""

    async def apply(self, batch: Batch) -> int | None:
        changes = [
            Put(NODES, change.row._replace(body=flipped(change.row.body)))
            if isinstance(change, Put) and change.space is NODES and change.row.key[1] == "thread 1"
            else change
            for change in batch
        ]
        return await self.inner.apply(changes)


def test_a_copy_that_was_not_kept_is_found_out() -> None:
    source, target = store_on(MemoryBackend(), fold_every=4), store_on(Lossy(MemoryBackend()))
    fill(source)
    with pytest.raises(CorruptError, match="damaged-node: .* thread 'thread 1'"):
        source.maintenance.copy_to(target)


def test_a_thread_that_is_being_swept_is_not_said_to_be_wrong() -> None:
    on = MemoryBackend()
    fill(store_on(on, fold_every=4))
    line = Line("", "thread 1")
    run(CheckedBackend(on).apply([Put(NODES, node_row(line, 999, bytes([n]) * 8, b"node")) for n in range(3)]))
    sweeping = InterferingBackend(on)
    source, target = store_on(sweeping), store_on(MemoryBackend())

    def sweep() -> None:
        (old,) = run(on.read([Scan(NODES, (*line, 999), limit=1)]))
        run(on.apply([Delete(NODES, row.key) for row in old]))

    def of_the_line(queries: Sequence[Query]) -> bool:
        return any(isinstance(each, Scan) and each[:2] == (LINES, tuple(line)) for each in queries)

    with sweeping.interfere(sweep, "read", times=None, where=of_the_line) as swept:
        assert source.maintenance.copy_to(target).changing == ()
    assert swept.struck > 1
    check_same(source, target)


def test_a_thread_that_is_deleted_before_the_end_is_not_said_to_be_wrong() -> None:
    source, target = store_on(MemoryBackend(), fold_every=4), store_on(MemoryBackend())
    fill(source)

    def delete(progress: CopyProgress) -> None:
        if (progress.phase, progress.thread) == ("verified", "thread 0"):
            source.thread("thread 1").delete()

    assert source.maintenance.copy_to(target, progress=delete).changing == ("thread 1",)


def test_a_failure_that_passes_does_not_leave_the_other_store_open(tmp_path: Path) -> None:
    source = store_on(Faults(MemoryBackend(), [Fault("read", 6, lambda: TransientError("away for a moment"))]))
    for n in range(3):
        source.thread(f"t{n}").put({"n": n})
    url = f"sqlite:///{tmp_path}/other.db"
    with tempfile.TemporaryDirectory(), pytest.raises(TransientError):
        source.maintenance.copy_to(url)
    assert source.maintenance.copy_to(url).threads == 3
    assert run(backend_of(source).read([Scan(LINES, (), limit=1)]))[0]


def test_what_is_lost_before_the_end_is_copied_again() -> None:
    source, on = store_on(MemoryBackend(), fold_every=4), MemoryBackend()
    fill(source)

    def lose(progress: CopyProgress) -> None:
        if (progress.phase, progress.thread) == ("verified", "thread 0"):
            for thread, space in (("thread 1", STEPS), ("thread 2", NODES)):
                run(on.apply([Delete(space, run(on.read([Scan(space, ("", thread))]))[0][-1].key)]))

    assert source.maintenance.copy_to(store_on(on), progress=lose).changing == ()
    check_same(source, store_on(on))


class Asking(MemoryBackend):
    """Keeps what it was opened with."""

    takes_tenant = True
    asked: ClassVar[list[dict[str, Any]]] = []

    @classmethod
    async def open(cls, url: str, **options: Any) -> Asking:
        cls.asked.append(options)
        return cls()


def test_the_other_store_is_opened_for_the_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.copy.between_stores.backend_for", lambda url: Asking)
    source = holdfast.open("memory://", tenant="ann")
    source.maintenance.copy_to("asking://")
    source.maintenance.copy_to("asking://", tenants="all")
    source.maintenance.copy_to("asking://", tenant="bob")
    assert Asking.asked == [{"tenant": "ann"}, {}, {"tenant": "bob"}]


def test_a_copy_is_made_to_a_path(tmp_path: Path) -> None:
    with holdfast.open("memory://") as store:
        store.thread("t").put({"n": 1})
        for other in (tmp_path / "a.db", str(tmp_path / "b.db")):
            assert store.maintenance.copy_to(other).threads == 1
            with holdfast.open(other) as copy:
                assert copy.thread("t").get().state == {"n": 1}
        with pytest.raises(InvalidError, match="not int"):
            store.maintenance.copy_to(5)  # type: ignore[arg-type]
