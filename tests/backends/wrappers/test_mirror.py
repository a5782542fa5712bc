"""Mirrors: in both stores before it is acknowledged, and healed from one another."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import zlib
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Backend, Change, Create, Delete, Get, Put, Query, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import NODES, STEPS, Table
from holdfast.backends.wrappers import Wrapper
from holdfast.backends.wrappers.journal_sender import SendTask
from holdfast.backends.wrappers.mirror import MirrorBackend
from holdfast.backends.wrappers.store_diff import RowDifference
from holdfast.errors import CorruptError, DeniedError, OutcomeUnknownError, TransientError
from tests.backends.wrappers.pairs import Held, contents, contents_at, files, pair_url, paired, settled
from tests.support.faults import Fault, Faults


def down() -> TransientError:
    return TransientError("the remote store is down")


def mirror(local: Backend, remote: Backend, patience: float = 120.0, *, strict: bool = False) -> MirrorBackend:
    store = paired(local, remote, MirrorBackend, patience=patience, strict=strict, drain=0.1)
    assert isinstance(store, MirrorBackend)
    return store


def row(seq: int, text: bytes) -> Row:
    """A row whose body tells whether it is sound."""
    return step(seq, body=zlib.crc32(text).to_bytes(4) + text)


def sound(space: Table, row: Row) -> bool:
    return space is not STEPS or zlib.crc32(row.body[4:]).to_bytes(4) == row.body[:4]


@pytest.mark.parametrize("drive", ["sync", "async"])
def test_what_is_acknowledged_is_in_both(drive: str) -> None:
    store = mirror(MemoryBackend(), Faults(MemoryBackend(), [Fault("apply", n, delay=0.01) for n in range(1, 30)]))
    for n in range(10):
        change = store.apply([Create(STEPS, step(n))])
        assert (run(change) if drive == "sync" else asyncio.run(arun(change))) is None
        assert len(contents(store.remote)["steps"]) == n + 1
    assert run(store.status())["degraded"] == 0
    run(store.close())


def test_many_tasks_wait_together() -> None:
    held, local = Held(MemoryBackend()), MemoryBackend()
    remote = Faults(held)
    store = mirror(local, remote)
    held.gate.clear()

    async def main() -> None:
        writes = [asyncio.create_task(arun(store.apply([Create(STEPS, step(n))]))) for n in range(200)]
        while len((await local.read([Scan(STEPS, ())]))[0]) < 200:
            await asyncio.sleep(0.001)
        held.gate.set()
        await asyncio.gather(*writes)

    asyncio.run(main())
    assert remote.applies < 100
    assert len(contents(remote)["steps"]) == 200
    run(store.close())


@pytest.mark.parametrize("drive", ["sync", "async"])
def test_it_goes_on_alone_and_catches_up(drive: str, caplog: pytest.LogCaptureFixture) -> None:
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=10_000)])
    store = mirror(MemoryBackend(), remote, patience=0.8)

    def write(n: int) -> float:
        began = time.monotonic()
        change = store.apply([Create(STEPS, step(n))])
        assert (run(change) if drive == "sync" else asyncio.run(arun(change))) is None
        return time.monotonic() - began

    with caplog.at_level(logging.WARNING, logger="holdfast.copies"):
        assert write(0) >= 0.8
    assert "continuing without it" in caplog.text
    # Most of them at least: the machine may be busy elsewhere.
    assert sorted(write(n) for n in range(1, 10))[4] < 0.6, "nobody waits for a copy that is known to be away"
    found = run(store.status())
    assert (found["degraded"], found["lag_batches"]) == (1, 10)
    remote.plan.clear()
    settled(store)
    store._patience = 120
    write(10)
    assert run(store.status())["degraded"] == 0
    assert len(contents(remote)["steps"]) == 11
    run(store.close())


def test_a_strict_mirror_does_not_go_on_alone() -> None:
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=10_000)])
    store = mirror(MemoryBackend(), remote, patience=0.1, strict=True)
    with pytest.raises(OutcomeUnknownError, match="not yet in the copy"):
        run(store.apply([Create(STEPS, step(0))]))
    for _ in range(3):
        with pytest.raises(TransientError, match="does not keep up") as caught:
            run(store.apply([Create(STEPS, step(1))]))
        assert not isinstance(caught.value, OutcomeUnknownError)
    assert len(contents(store.inner)["steps"]) == 1, "nothing was done"
    remote.plan.clear()
    settled(store)
    store._patience = 120
    assert run(store.apply([Create(STEPS, step(1))])) is None
    assert len(contents(remote)["steps"]) == 2
    run(store.close())


@pytest.mark.parametrize("strict", [False, True])
def test_a_copy_that_does_not_answer_is_waited_for_once(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises no error either: only that entries do not arrive tells that it is away."""
    held = Held(MemoryBackend())
    store = mirror(MemoryBackend(), held, patience=0.3, strict=strict)
    held.gate.clear()
    if strict:
        with pytest.raises(OutcomeUnknownError, match="not yet in the copy"):
            run(store.apply([Create(STEPS, step(0))]))
    else:
        assert run(store.apply([Create(STEPS, step(0))])) is None
    assert held.reached.is_set()
    assert run(store.status())["trouble"] == ""
    waits: list[int] = []
    wait_sent = store._sender.wait_sent

    def count_waits(number: int, seconds: float) -> SendTask:
        waits.append(number)
        return wait_sent(number, seconds)

    monkeypatch.setattr(store._sender, "wait_sent", count_waits)
    for n in range(1, 4):
        if strict:
            with pytest.raises(TransientError, match="does not keep up"):
                run(store.apply([Create(STEPS, step(n))]))
        else:
            assert run(store.apply([Create(STEPS, step(n))])) is None
    assert waits == []
    assert len(contents(store.inner)["steps"]) == (1 if strict else 4)
    assert run(store.status())["degraded"] == 1
    held.gate.set()
    assert settled(store)["degraded"] == 0, "also without another write"
    store._patience = 120
    assert run(store.apply([Create(STEPS, step(9))])) is None
    assert len(waits) == 1
    run(store.close())


def test_a_closed_mirror_leaves_nobody_waiting() -> None:
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=10_000)])
    store = mirror(MemoryBackend(), remote, patience=300)

    async def main() -> None:
        write = asyncio.create_task(arun(store.apply([Create(STEPS, step(0))])))
        await asyncio.sleep(0.1)
        await arun(store.close())
        await asyncio.wait_for(write, 100)

    asyncio.run(main())


# Healing


def damage(store: Backend, *changes: Change) -> None:
    """Change a store past the mirror."""
    assert run(store.apply(changes)) is None


def test_a_row_that_is_not_sound_is_read_from_the_copy_and_put_right(caplog: pytest.LogCaptureFixture) -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    store = mirror(local, remote)
    store.set_row_check(sound)
    rows = [row(n, b"%d" % n) for n in range(5)]
    assert run(store.apply([Create(STEPS, each) for each in rows])) is None
    damage(local, Put(STEPS, rows[2]._replace(body=b"flipped bits and secrets")))
    with caplog.at_level(logging.WARNING, logger="holdfast.copies"):
        assert run(store.read([Scan(STEPS, ()), Get(STEPS, [rows[2].key])])) == [rows, [rows[2]]]
    assert "1 repaired" in caplog.text
    assert "secrets" not in caplog.text
    assert contents(local)["steps"] == rows
    assert run(store.status())["healed"] == 1
    assert run(store.check()) == []
    run(store.close())


def test_without_a_sound_copy_the_damage_is_shown() -> None:
    local, remote = MemoryBackend(), Faults(MemoryBackend())
    store = mirror(local, remote, patience=0.2)
    store.set_row_check(sound)
    assert run(store.apply([Create(STEPS, row(0, b"0"))])) is None
    broken = row(0, b"0")._replace(body=b"xxxxxx")
    damage(local, Put(STEPS, broken))
    damage(remote.inner, Put(STEPS, broken))
    assert run(store.read([Scan(STEPS, ())])) == [[broken]], "the engine says what is wrong with it"
    damage(remote.inner, Put(STEPS, row(0, b"0")))
    remote.plan.append(Fault("read", 1, down, times=10_000))
    assert run(store.read([Scan(STEPS, ())])) == [[broken]]
    remote.plan.clear()
    store._patience = 120
    assert run(store.read([Scan(STEPS, ())])) == [[row(0, b"0")]]
    run(store.close())


def test_a_copy_that_lags_does_not_answer() -> None:
    local = MemoryBackend()
    remote = Faults(MemoryBackend())
    store = mirror(local, remote, patience=0.2)
    store.set_row_check(sound)
    assert run(store.apply([Create(STEPS, row(0, b"old"))])) is None
    remote.plan.append(Fault("apply", 1, down, times=10_000))
    assert run(store.apply([Put(STEPS, row(0, b"new"))])) is None
    broken = row(0, b"new")._replace(body=b"xxxxxx")
    damage(local, Put(STEPS, broken))
    assert run(store.read([Scan(STEPS, ())])) == [[broken]], "an older state, as if it were the latest"
    run(store.close())


class Damaged(Wrapper):
    """A store in which the rows with some keys cannot be read, nor those near them written."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.damaged: set[tuple[object, ...]] = set()
        self.writable = True

    async def read(self, queries: list[Query]) -> list[list[Row]]:  # type: ignore[override]
        found = await self.inner.read(queries)
        if any(each.key in self.damaged for rows in found for each in rows):
            raise CorruptError("a page is damaged")
        return found

    async def apply(self, batch: list[Change]) -> int | None:  # type: ignore[override]
        keys = {change.row.key for change in batch if isinstance(change, Create | Put)}
        if keys & self.damaged:
            if not self.writable:
                raise CorruptError("a page is damaged")
            self.damaged -= keys
        return await self.inner.apply(batch)


@pytest.mark.parametrize("writable", [True, False])
def test_what_cannot_be_read_is_answered_by_the_copy(writable: bool) -> None:
    local = Damaged(MemoryBackend())
    local.writable = writable
    store = mirror(local, MemoryBackend())
    rows = [row(n, b"%d" % n) for n in range(5)]
    assert run(store.apply([Create(STEPS, each) for each in rows])) is None
    local.damaged = {rows[3].key}
    assert run(store.read([Scan(STEPS, ())])) == [rows]
    found = run(store.status())
    assert (found["healed"], found["unhealed"]) == ((1, 0) if writable else (0, 1))
    assert run(store.read([Scan(STEPS, ())])) == [rows]
    assert run(store.read([Get(STEPS, [rows[0].key])])) == [[rows[0]]]
    assert run(store.status())["healed"] == (1 if writable else 0)
    run(store.close())


def test_all_is_compared_and_healed() -> None:
    local, remote = Damaged(MemoryBackend()), MemoryBackend()
    store = mirror(local, remote)
    store.set_row_check(sound)
    rows = [row(n, b"%d" % n) for n in range(300)]
    assert run(store.apply([Create(STEPS, each) for each in rows])) is None
    local.damaged = {rows[5].key}
    damage(local.inner, Put(STEPS, rows[100]._replace(body=b"broken")))
    damage(remote, Put(STEPS, rows[200]._replace(body=b"broken")), Put(STEPS, row(250, b"other")))
    damage(remote, Delete(STEPS, rows[299].key))
    found = run(store.heal())
    assert [line.rpartition(", ")[2] for line in found] == ["5)", "100)", "200)", "250)", "299)"]
    assert "cannot be read here" in found[0]
    assert run(local.read([Scan(STEPS, ())])) == [rows]
    # Sound in both: nobody can tell which is right.
    assert [line.rpartition(", ")[2] for line in run(store.check())] == ["250)"]
    assert run(store.status())["healed"] == 4
    run(store.close())


def test_damage_in_a_file_does_not_keep_a_thread_from_being_read(tmp_path: Path) -> None:
    url = pair_url(tmp_path, "mirror", drain=0.5)  # a damaged journal is not sent
    rng = random.Random(5)
    states = {f"chat-{n}": {"messages": [rng.randbytes(300).hex() for _ in range(60)]} for n in range(30)}
    with holdfast.open(url) as store:
        for thread, state in states.items():
            store.thread(thread).put(state)
    file = tmp_path / "local.db"
    data = bytearray(file.read_bytes())
    # Those behind the first have no part of the schema.
    for page in range(100, len(data) // 4096, 3):
        data[page * 4096 + 2000] ^= 0xFF
    file.write_bytes(data)
    broken = 0
    with holdfast.open(files(tmp_path)[0]) as plain:
        for thread in states:
            try:
                plain.thread(thread).get()
            except CorruptError:
                broken += 1
    assert broken > 5, "the damage is not where it hurts"
    with holdfast.open(url) as store:
        for thread, state in states.items():
            latest = store.thread(thread).get()
            assert latest is not None
            assert latest.state == state
    assert len(contents_at(files(tmp_path)[1])["lines"]) == 30


def test_a_row_is_not_put_back_over_what_was_written_since() -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    store = mirror(local, remote)
    store.set_row_check(sound)
    assert run(store.apply([Create(STEPS, row(0, b"old")), Create(NODES, Row(("t", "l", 0, b"n"), (), b"x"))])) is None
    damage(local, Put(STEPS, row(0, b"old")._replace(body=b"broken")))
    plain = store._read_copy

    async def slow(queries: list[Query]) -> object:
        copied = await plain(queries)
        await store.apply([Put(STEPS, row(0, b"new"))])
        return copied

    store._read_copy = slow  # type: ignore[method-assign, assignment]
    assert run(store.read([Scan(STEPS, ())])) == [[row(0, b"old")]]
    assert contents(local)["steps"] == [row(0, b"new")]
    run(store.close())


def test_the_copy_is_not_put_right_with_what_is_out_of_date(monkeypatch: pytest.MonkeyPatch) -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    store = mirror(local, remote)
    store.set_row_check(sound)
    assert run(store.apply([Create(STEPS, row(0, b"old"))])) is None
    damage(remote, Put(STEPS, row(0, b"old")._replace(body=b"broken")))
    compare = store._compare

    async def compare_and_write() -> list[RowDifference]:
        found = await compare()
        assert await store.apply([Put(STEPS, row(0, b"new"))]) is None
        return found

    monkeypatch.setattr(store, "_compare", compare_and_write)
    assert len(run(store.heal())) == 1
    assert contents(remote)["steps"] == contents(local)["steps"] == [row(0, b"new")]
    run(store.close())


def test_a_copy_that_may_not_be_read_does_not_hide_what_is_here() -> None:
    local, remote = MemoryBackend(), Faults(MemoryBackend())
    store = mirror(local, remote)
    store.set_row_check(sound)
    broken = row(0, b"text")._replace(body=b"broken")
    assert run(store.apply([Create(STEPS, row(0, b"text")), Create(STEPS, row(1, b"more"))])) is None
    damage(local, Put(STEPS, broken))
    remote.plan.append(Fault("read", remote.reads + 1, lambda: DeniedError("the password was changed"), times=10_000))
    assert run(store.read([Scan(STEPS, ())])) == [[broken, row(1, b"more")]]
    remote.plan.clear()
    run(store.close())
