"""Hot and cold: what is moved, what comes back, and that nothing is lost on the way."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Backend, Batch, Capabilities, Change, Create, Delete, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.group_commit import body_bytes
from holdfast.backends.tables import LINES, NODES, OBJECTS, STEPS, WRITES
from holdfast.backends.urls import compose
from holdfast.backends.wrappers.tier_mover import parse_stub
from holdfast.backends.wrappers.tiering import TieredBackend
from holdfast.errors import ConfigError, CorruptError, DeniedError, HoldfastError, TooLargeError, TransientError
from tests.backends.wrappers.pairs import opened
from tests.support.faults import Fault, Faults

NOW = time.time_ns()
DAY = 86_400 * 10**9


def tiers(hot: Backend | None = None, cold: Backend | None = None, **settings: Any) -> TieredBackend:
    return TieredBackend(hot or MemoryBackend(), cold or MemoryBackend(), **{"after": 30 * 86_400.0, **settings})


def old_step(seq: int, days: float = 100, line: str = "line", branch: int = 0) -> Row:
    return step(seq, line=line, branch=branch, time=NOW - int(days * DAY), body=b"%d " % seq * 200)


def in_cold(store: TieredBackend) -> list[bytes]:
    return sorted(row.body for row in run(store.cold.read([Scan(OBJECTS, ())]))[0])


def stubs(store: TieredBackend) -> list[Row]:
    return [
        row
        for rows in run(store.inner.read([Scan(space, ()) for space in (STEPS, NODES, OBJECTS, WRITES)]))
        for row in rows
        if parse_stub(row)
    ]


def fill(store: Backend, *rows: Row) -> None:
    assert run(store.apply([Create(STEPS, row) for row in rows])) is None


def test_old_steps_are_moved_but_for_the_last_of_each_branch() -> None:
    store = tiers(keep=3, bring_back=False)
    rows = [old_step(seq, days=59.5 - seq) for seq in range(50)] + [old_step(seq, branch=1) for seq in range(5)]
    fill(store, *rows)
    run(store.tidy())
    moved = [row.key[2:] for row in stubs(store)]
    # Those of the last thirty days stay, and the last three of a branch whatever their age.
    assert moved == [*((0, seq) for seq in range(30)), (1, 0), (1, 1)]
    assert in_cold(store) == sorted(row.body for row in rows if row.key[2:] in moved)
    assert run(store.read([Scan(STEPS, ())])) == [rows]
    assert run(store.read([Get(STEPS, [rows[7].key])])) == [[rows[7]]]
    assert run(store.status())["moved"] == 32
    before = run(store.inner.read([Scan(STEPS, ())]))
    run(store.tidy())
    assert run(store.inner.read([Scan(STEPS, ())])) == before, "moved twice"


@pytest.mark.parametrize("days", [100, 1])
def test_everything_else_of_a_line_is_moved_when_nothing_was_added_for_long(days: float) -> None:
    store = tiers(keep=1, bring_back=False)
    others: list[Change] = [
        Create(NODES, row_of(NODES, "tenant", "line", 0, b"n", body=b"n" * 999)),
        Create(OBJECTS, row_of(OBJECTS, "tenant", "line", b"d", 0, body=b"o" * 999)),
        Create(WRITES, row_of(WRITES, "tenant", "line", "s", "t", 0, body=b"w" * 999)),
        Create(LINES, row_of(LINES, "tenant", "line", created=NOW - 200 * DAY)),
    ]
    fill(store, old_step(0), old_step(1, days))
    assert run(store.apply(others)) is None
    run(store.tidy())
    assert len(stubs(store)) == (4 if days == 100 else 1)
    found = run(store.read([Scan(NODES, ()), Scan(OBJECTS, ()), Scan(WRITES, ())]))
    assert [rows[0].body[:1] for rows in found] == [b"n", b"o", b"w"]


def test_a_new_line_is_not_taken_for_an_old_one() -> None:
    store = tiers()
    rows: list[Change] = [
        Create(WRITES, row_of(WRITES, "tenant", "line", "s", "t", 0, body=b"w" * 999)),
        Create(LINES, row_of(LINES, "tenant", "line", created=NOW)),
    ]
    assert run(store.apply(rows)) is None
    run(store.tidy())
    assert stubs(store) == []


def test_small_bodies_stay() -> None:
    store = tiers(keep=0)
    fill(store, old_step(0)._replace(body=bytes(100)), old_step(1))
    run(store.tidy())
    assert [row.key[3] for row in stubs(store)] == [1]


def test_what_is_read_comes_back_unless_it_is_much() -> None:
    store = tiers(keep=0)
    rows = [old_step(seq) for seq in range(100)]
    fill(store, *rows)
    run(store.tidy())
    assert run(store.read([Scan(STEPS, ())])) == [rows]
    assert len(stubs(store)) == 100, "whoever reads everything will not do so again"
    assert run(store.read([Get(STEPS, [row.key for row in rows[:10]])])) == [rows[:10]]
    assert len(stubs(store)) == 90
    assert run(store.status())["brought_back"] == 10
    run(store.read([Scan(STEPS, (), limit=50, bodies=False)]))
    assert len(stubs(store)) == 90
    assert len(in_cold(store)) == 100
    run(store.tidy())
    assert (len(stubs(store)), len(in_cold(store))) == (100, 100), "swept, and moved again"


def test_a_body_that_looks_like_a_stub_is_none() -> None:
    store = tiers(keep=0, bring_back=False)
    fill(store, old_step(0))
    run(store.tidy())
    (stub,) = stubs(store)
    rows = [old_step(1)._replace(body=stub.body), old_step(2)._replace(body=stub.body[:14]), old_step(3)]
    fill(store, *rows)
    for _ in range(2):
        assert run(store.read([Scan(STEPS, ())])) == [[old_step(0), *rows]]
        assert run(store.check()) == []
        run(TieredBackend(store.inner, store.cold, after=0, keep=0).tidy())


def test_deleting_a_line_empties_the_cold_store_too() -> None:
    store = tiers(keep=0)
    fill(store, *(old_step(seq, line=line) for line in ("a", "b", "c") for seq in range(3)))
    run(store.tidy())
    assert len(in_cold(store)) == 9
    assert run(store.apply([Delete(STEPS, ("tenant", "a")), Delete(NODES, ("tenant", "a"))])) is None
    assert len(in_cold(store)) == 6
    assert run(store.apply([Delete(STEPS, old_step(0, line="b").key)])) is None
    assert len(in_cold(store)) == 6
    run(store.tidy())
    assert len(in_cold(store)) == 5
    assert run(store.apply([Delete(STEPS, ("tenant",))])) is None
    assert in_cold(store) == []


def test_a_deletion_does_not_need_the_cold_store() -> None:
    cold = Faults(MemoryBackend())
    store = tiers(cold=cold, keep=0)
    fill(store, old_step(0))
    run(store.tidy())
    cold.plan.append(Fault("read", cold.reads + 1, lambda: TransientError("away"), times=100))
    assert run(store.apply([Delete(STEPS, ("tenant", "line"))])) is None
    assert run(store.status())["to_sweep"] == 1
    cold.plan.clear()
    assert len(in_cold(store)) == 1
    run(store.tidy())
    assert in_cold(store) == []
    assert run(store.status())["to_sweep"] == 0


def test_a_body_that_is_gone_is_said_to_be() -> None:
    store = tiers(keep=0)
    fill(store, old_step(0), old_step(1))
    run(store.tidy())
    first, second = run(store.cold.read([Scan(OBJECTS, ())]))[0]
    assert run(store.cold.apply([Delete(OBJECTS, first.key), Put(OBJECTS, second._replace(body=b"forged"))])) is None
    for seq in range(2):
        with pytest.raises(CorruptError, match="moved to the cold store, and is missing or damaged there"):
            run(store.read([Get(STEPS, [old_step(seq).key])]))
    run(store.read([Scan(STEPS, (), bodies=False)]))
    assert len(run(store.check())) == 2


def test_where_the_cold_store_is_away_only_what_is_there_cannot_be_read() -> None:
    cold = Faults(MemoryBackend())
    store = tiers(cold=cold, keep=0)
    fill(store, old_step(0), old_step(1, days=1))
    run(store.tidy())
    cold.plan.append(Fault("read", cold.reads + 1, lambda: TransientError("away"), times=100))
    assert run(store.read([Get(STEPS, [old_step(1).key])]))[0][0].body == old_step(1).body
    with pytest.raises(TransientError):
        run(store.read([Get(STEPS, [old_step(0).key])]))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("on", ["hot", "cold"])
def test_a_move_that_breaks_off_goes_on(on: str, when: Literal["before", "after"]) -> None:
    struck = 0
    while move_that_breaks_off(on, struck + 1, when):
        struck += 1
        assert struck < 100
    assert struck >= 2


def move_that_breaks_off(on: str, nth: int, when: Literal["before", "after"]) -> bool:
    """Return whether there was such a batch to break off at."""
    hot, cold = Faults(MemoryBackend()), Faults(MemoryBackend())
    store = tiers(hot, cold, keep=0, bring_back=False)
    rows = [old_step(seq, line=f"{seq % 3}") for seq in range(12)]
    fill(store, *rows)
    faulty = hot if on == "hot" else cold
    faulty.plan.append(Fault("apply", faulty.applies + nth, lambda: TransientError("away"), when))
    broke_off = False
    try:
        run(store.tidy())
    except TransientError:
        broke_off = True
        assert run(store.read([Scan(STEPS, ())])) == [sorted(rows)]
        run(store.tidy())
    assert len(stubs(store)) == len(in_cold(store)) == 12, nth
    assert run(store.read([Scan(STEPS, ())])) == [sorted(rows)], nth
    assert run(store.check()) == [], nth
    return broke_off


def test_a_move_cannot_undo_a_write() -> None:
    """The row is written between being read by the mover and being replaced by its stub."""
    hot = MemoryBackend()
    cold = Faults(MemoryBackend())
    store, other = tiers(hot, cold, keep=0), TieredBackend(hot, cold.inner)
    row = row_of(WRITES, "tenant", "line", "s", "t", -1, body=b"old" * 200)
    assert run(store.apply([Create(WRITES, row)])) is None
    plain = cold.apply

    async def apply(batch: list[Change]) -> int | None:
        done = await plain(batch)
        await other.apply([Put(WRITES, row._replace(body=b"new" * 200))])
        return done

    cold.apply = apply  # type: ignore[method-assign, assignment]
    run(store._mover.move_all())
    assert stubs(store) == []
    assert run(store.read([Scan(WRITES, ())]))[0][0].body == b"new" * 200
    del cold.apply
    run(store.tidy())
    assert len(stubs(store)) == 1
    assert in_cold(store) == [b"new" * 200]


def test_writers_readers_movers_and_sweepers_at_once(tmp_path: Path) -> None:
    """Rows that are written over and over, moved, swept and read at a time: each read finds the last or later."""
    url = compose(
        "tiered",
        hot=f"sqlite:///{tmp_path}/hot.db?synchronous=normal",
        cold=f"sqlite:///{tmp_path}/cold.db",
        after=0,
        keep=0,
    )
    stores = [opened(url) for _ in range(3)]
    stop = threading.Event()
    failures: list[BaseException] = []
    written = [0] * 4

    def guarded(work: Any) -> threading.Thread:
        def target() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)
                stop.set()

        thread = threading.Thread(target=target)
        thread.start()
        return thread

    def row(n: int, version: int) -> Row:
        return row_of(WRITES, "tenant", f"{n % 2}", "s", f"{n}", -1, body=b"%08d" % version + bytes(600))

    def write() -> None:
        n = random.randrange(4)
        version = written[n] + 1
        changes: list[Change] = [Put(WRITES, row(n, version))]
        if version % 5 == 0:
            changes.insert(0, Delete(WRITES, ("tenant", f"{n % 2}", "s", f"{n}")))
        assert run(stores[0].apply(changes)) is None
        written[n] = version

    def read() -> None:
        least = list(written)
        for found in run(stores[1].read([Scan(WRITES, ())]))[0]:
            n = int(str(found.key[3]))
            assert int(found.body[:8]) >= least[n]

    threads = [guarded(write), guarded(read), guarded(read)]
    threads += [guarded(lambda: run(stores[2].tidy())), guarded(lambda: run(stores[1].tidy()))]
    deadline = time.monotonic() + 180
    while (sum(written) <= 40 or not sum(int(run(store.status())["moved"]) for store in stores)) and not failures:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sum(written) > 10
    assert sum(int(run(store.status())["moved"]) for store in stores) > 0
    assert run(stores[0].check()) == []
    for store in stores:
        run(store.close())


def test_the_cold_store_of_another_is_refused(tmp_path: Path) -> None:
    def url(hot: str, cold: str) -> str:
        return compose("tiered", hot=f"sqlite:///{tmp_path}/{hot}.db", cold=f"sqlite:///{tmp_path}/{cold}.db")

    run(opened(url("a", "b")).close())
    run(opened(url("a", "b")).close())
    for hot, cold in (("c", "b"), ("a", "d"), ("e", "a")):
        with pytest.raises(ConfigError, match="not the cold store that belongs"):
            opened(url(hot, cold))


def test_a_thread_that_has_grown_cold_is_read_and_goes_on(tmp_path: Path) -> None:
    url = compose("tiered", hot=f"sqlite:///{tmp_path}/hot.db", cold=f"sqlite:///{tmp_path}/cold.db", after=0, keep=0)
    states = [{"messages": [random.Random(n).randbytes(200) for n in range(m)]} for m in range(80)]
    with holdfast.open(url) as store:
        for state in states:
            store.thread("chat").put(state)
    backend = opened(url)
    run(backend.tidy())
    assert int(run(backend.status())["moved"]) > 50
    run(backend.close())
    with holdfast.open(url) as store:
        for checkpoint in store.thread("chat").log().all():
            assert store.thread("chat").get(checkpoint.id).state == states[checkpoint.step]
        store.thread("chat").put({"messages": []})
        assert store.thread("chat").get().state == {"messages": []}
        store.thread("chat").delete()
    cold = opened(f"sqlite:///{tmp_path}/cold.db")
    assert run(cold.read([Scan(OBJECTS, ())])) == [[]]
    run(cold.close())


@pytest.mark.parametrize("error", [DeniedError, CorruptError, ConfigError])
def test_a_deletion_that_was_made_does_not_fail_with_the_cold_store(error: type[HoldfastError]) -> None:
    cold = Faults(MemoryBackend())
    store = tiers(cold=cold, keep=0)
    fill(store, old_step(0))
    run(store.tidy())
    cold.plan.append(Fault("read", cold.reads + 1, lambda: error("the key was taken away")))
    assert run(store.apply([Delete(STEPS, ("tenant", "line"))])) is None
    assert run(store.status())["to_sweep"] == 1


def test_what_is_too_much_for_one_batch_is_read_and_stays_in_the_cold_store() -> None:
    class Small(MemoryBackend):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, max_body=1 << 20, max_batch=1 << 20)

        async def apply(self, batch: Batch) -> int | None:
            if body_bytes(batch) > self.capabilities.max_batch:
                raise TooLargeError("too much for this store at once")
            return await super().apply(batch)

    store = tiers(Small(), keep=0)
    rows = [old_step(seq)._replace(body=b"%d" % seq * 400_000) for seq in range(4)]
    for row in rows:
        fill(store, row)
    run(store.tidy())
    assert len(stubs(store)) == 4
    assert run(store.read([Scan(STEPS, ())])) == [rows]
    assert run(store.read([Scan(STEPS, (), limit=2)])) == [rows[:2]]
    assert len(stubs(store)) == 2


def test_a_move_does_not_bring_back_what_was_deleted_whatever_its_fence_says() -> None:
    store = tiers(keep=0)
    fill(store, old_step(0), old_step(1))
    line = ("tenant", "line")
    token = run(store._mover._place_fence(line))
    rows = run(store.inner.read([Scan(STEPS, line)]))[0]
    # Everything is deleted by somebody who looked for fences before there was this one.
    assert run(store.inner.apply([Delete(STEPS, ())])) is None
    assert run(store._mover._move(line, token, STEPS, rows)) is False
    assert run(store.read([Scan(STEPS, ())])) == [[]]
