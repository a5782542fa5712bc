"""Write-behind: everything gets to the copy, in order and once, whatever happens on the way."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Batch, Capabilities, Change, Create, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.group_commit import Outcome, body_bytes
from holdfast.backends.tables import JOURNAL, LINES, NODES, STEPS
from holdfast.backends.urls import compose
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.journal import PIECE
from holdfast.backends.wrappers.replica_pair import attach
from holdfast.backends.wrappers.replication import LazyBackend, OutgoingBatch, WriteBehindBackend
from holdfast.errors import (
    ConfigError,
    CorruptError,
    InvalidError,
    OutcomeUnknownError,
    TooLargeError,
    TransientError,
    UnavailableError,
)
from tests.backends.wrappers.pairs import contents, contents_at, files, opened, pair_url, paired, settled, until
from tests.damaged import flipped
from tests.support.faults import Fault, Faults
from tests.support.nightly import mostly_nightly


def down() -> TransientError:
    return TransientError("the remote store is down")


def journal_rows(store: WriteBehindBackend) -> int:
    return len(run(store.inner.read([Scan(JOURNAL, journal.LINE)]))[0])


def test_every_kind_of_change_is_copied() -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    store = paired(local, remote)
    batches: list[list[Change]] = [
        [Create(STEPS, step(n, body=b"%d" % n)) for n in range(5)],
        [Ensure(STEPS, step(0, body=b"not")), Ensure(STEPS, step(5, body=b"new"))],
        [Put(STEPS, step(1, body=b"put")), Expect(STEPS, step(2).key, step(2).columns), Delete(STEPS, step(2).key)],
        [Delete(STEPS, ("tenant", "line")), Create(STEPS, step(0, id="again"))],
        [Put(LINES, row_of(LINES, "tenant", "line", created=7)), Delete(NODES, ())],
    ]
    for batch in batches:
        assert run(store.apply(batch)) is None
    assert run(store.apply([Create(STEPS, step(0)), Create(STEPS, step(9))])) == 0
    settled(store)
    assert contents(remote) == contents(local)
    assert contents(remote)["steps"] == [step(0, id="again")]
    assert run(store.check()) == []
    run(store.close())


def test_it_is_acknowledged_before_it_is_copied_and_the_lag_is_told() -> None:
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=10_000)])
    store = paired(MemoryBackend(), remote, drain=0.05)
    for n in range(10):
        assert run(store.apply([Create(STEPS, step(n, body=bytes(100)))])) is None
    time.sleep(0.1)
    until(lambda: run(store.status())["trouble"])
    found = run(store.status())
    assert found["lag_batches"] == 10
    assert int(found["lag_bytes"]) >= 1000
    assert 0.1 <= float(found["lag_seconds"]) < 120
    assert "is down" in str(found["trouble"])
    assert run(store.read([Scan(STEPS, ())]))[0] == [step(n, body=bytes(100)) for n in range(10)]
    remote.plan.clear()
    found = settled(store)
    assert (found["lag_bytes"], found["lag_seconds"], found["trouble"]) == (0, 0, "")
    assert contents(remote) == contents(store.inner)
    run(store.close())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "error", mostly_nightly([TransientError, OutcomeUnknownError, UnavailableError], daily=[OutcomeUnknownError])
)
def test_whatever_the_remote_says_each_entry_is_made_once(when: str, error: type[TransientError]) -> None:
    rng = random.Random(f"{when} {error.__name__}")
    plan = [
        Fault("apply", n, lambda: error("the answer was lost"), "after" if when == "after" else "before")
        for n in range(1, 60)
        if rng.random() < 0.4
    ]
    remote = Faults(MemoryBackend(), plan)
    store = paired(MemoryBackend(), remote)
    for n in range(40):
        # Made twice, the second would find the row of the first and put it back.
        assert (
            run(store.apply([Delete(STEPS, step(n - 1).key), Create(STEPS, step(n)), Ensure(NODES, node(n))])) is None
        )
        if rng.random() < 0.3:
            time.sleep(0.002)
    settled(store)
    assert contents(remote) == contents(store.inner)
    run(store.close())


def node(n: int) -> Row:
    return row_of(NODES, "tenant", "line", 0, b"%d" % (n % 3), body=b"%d" % n)


def test_entries_that_touch_the_same_rows_stay_in_order() -> None:
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=2)])
    store = paired(MemoryBackend(), remote)
    for n in range(200):
        assert run(store.apply([Put(STEPS, step(n % 3, body=b"%d" % n))])) is None
    settled(store)
    assert [row.body for row in contents(remote)["steps"]] == [b"198", b"199", b"197"]
    run(store.close())


def test_a_batch_that_is_larger_than_a_row_of_the_journal() -> None:
    store = paired(MemoryBackend(), MemoryBackend())
    rng = random.Random(1)
    rows = [row_of(NODES, "t", "l", 0, bytes([n]), body=rng.randbytes(PIECE // 2 + n)) for n in range(9)]
    assert run(store.apply([Create(NODES, row) for row in rows])) is None
    assert run(store.apply([Create(NODES, row_of(NODES, "t", "l", 1, b""))])) is None
    settled(store)
    assert contents(store.remote) == contents(store.inner)
    run(store.close())


def test_what_the_copy_cannot_take_is_refused_at_once() -> None:
    class Small(MemoryBackend):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, max_body=1 << 20, max_batch=2 << 20)

    store = paired(MemoryBackend(), Small())
    assert store.capabilities.max_body == 1 << 20
    with pytest.raises(TooLargeError):
        run(store.apply([Create(NODES, row_of(NODES, "t", "l", 0, b"", body=bytes((1 << 20) + 1)))]))
    many = [Create(NODES, row_of(NODES, "t", "l", 0, bytes([n]), body=bytes(1 << 20))) for n in range(3)]
    with pytest.raises(TooLargeError):
        run(store.apply(many))
    assert run(store.apply(many[:1])) is None
    settled(store)
    run(store.close())


def test_one_batch_that_cannot_be_stored_does_not_fail_others(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))

    async def main() -> list[object]:
        writes = [arun(store.apply([Create(STEPS, step(n, time="x" if n == 5 else 0))])) for n in range(20)]
        return list(await asyncio.gather(*writes, return_exceptions=True))

    answers = asyncio.run(main())
    assert isinstance(answers[5], InvalidError)
    assert answers[:5] + answers[6:] == [None] * 19
    settled(store)
    run(store.close())


def test_the_journal_is_trimmed() -> None:
    store = paired(MemoryBackend(), MemoryBackend())
    assert isinstance(store, WriteBehindBackend)
    for n in range(1000):
        assert run(store.apply([Create(STEPS, step(n))])) is None
    settled(store)
    deadline = time.monotonic() + 120
    while journal_rows(store) > 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert run(store.apply([Create(STEPS, step(5000))])) is None
    settled(store)
    assert len(contents(store.remote)["steps"]) == 1001
    run(store.close())


# Opening, closing, opening again


def test_closing_waits_for_the_copy(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))
    for n in range(50):
        assert run(store.apply([Create(STEPS, step(n))])) is None
    run(store.close())
    local, remote = files(tmp_path)
    assert contents_at(local) == contents_at(remote)
    assert len(contents_at(remote)["steps"]) == 50


def test_what_is_left_at_closing_is_sent_after_opening_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local, remote = files(tmp_path)
    run(opened(pair_url(tmp_path)).close())
    cut_off = paired(opened(local), Faults(opened(remote), [Fault("apply", 1, down, times=10_000)]), drain=0.1)
    with caplog.at_level(logging.WARNING, logger="holdfast.copies"):
        for n in range(5):
            assert run(cut_off.apply([Create(STEPS, step(n))])) is None
        run(cut_off.close())
    assert "before everything was copied" in caplog.text
    assert contents_at(remote)["steps"] == []
    store = opened(pair_url(tmp_path))
    settled(store)
    run(store.close())
    assert contents_at(remote) == contents_at(local)


def test_a_remote_that_cannot_be_opened_keeps_nobody_from_writing(tmp_path: Path) -> None:
    run(opened(pair_url(tmp_path)).close())
    remote = tmp_path / "remote.db"
    remote.rename(tmp_path / "away")
    remote.mkdir()  # SQLite cannot open that
    with pytest.raises(ConfigError):
        opened(pair_url(tmp_path))  # plainly wrong, and said at once
    remote.rmdir()
    (tmp_path / "away").rename(remote)
    store = opened(pair_url(tmp_path))
    assert run(store.apply([Create(STEPS, step())])) is None
    settled(store)
    run(store.close())


def test_a_remote_that_failed_is_opened_anew(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))
    assert isinstance(store, WriteBehindBackend)
    assert isinstance(store.remote, LazyBackend)
    assert store.remote._opened is not None
    plan = [Fault("apply", 1, lambda: UnavailableError("a flush failed"), times=10_000)]
    store.remote._opened = Faults(store.remote._opened, plan)
    assert run(store.apply([Create(STEPS, step(0))])) is None
    settled(store)
    # Now it is gone altogether for a while, which looks like a mistake in its URL.
    run(store.remote._opened.close())
    (tmp_path / "remote.db").rename(tmp_path / "away")
    (tmp_path / "remote.db").mkdir()
    for n in range(1, 6):
        assert run(store.apply([Create(STEPS, step(n))])) is None
    until(lambda: "cannot be opened" in str(run(store.status())["trouble"]))
    found = run(store.status())
    assert (found["lag_batches"], "cannot be opened" in str(found["trouble"])) == (5, True)
    (tmp_path / "remote.db").rmdir()
    (tmp_path / "away").rename(tmp_path / "remote.db")
    settled(store)
    run(store.close())
    local, remote = files(tmp_path)
    assert contents_at(remote) == contents_at(local)


def test_a_store_that_was_there_before_is_copied_whole(tmp_path: Path) -> None:
    local, remote = files(tmp_path)
    plain = opened(local)
    rows = [step(n, line=f"{n % 7}", body=bytes(n)) for n in range(500)]
    assert run(plain.apply([Create(STEPS, row) for row in rows])) is None
    run(plain.close())
    store = opened(pair_url(tmp_path))
    for n in range(20):  # while it is being filled
        assert run(store.apply([Put(STEPS, rows[n * 20]._replace(body=b"new")), Delete(STEPS, rows[n].key)])) is None
    settled(store)
    assert run(store.check()) == []
    run(store.close())
    assert contents_at(remote) == contents_at(local)


def test_a_copy_that_was_emptied_is_filled_anew(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))
    for n in range(300):
        assert run(store.apply([Create(STEPS, step(n))])) is None
    run(store.close())
    (tmp_path / "remote.db").unlink()
    store = opened(pair_url(tmp_path))
    assert run(store.apply([Create(STEPS, step(300))])) is None
    settled(store)
    assert run(store.check()) == []
    run(store.close())
    assert len(contents_at(files(tmp_path)[1])["steps"]) == 301


def test_a_copy_that_was_not_finished_is_finished(tmp_path: Path) -> None:
    local, remote = files(tmp_path)
    plain = opened(local)
    rows = [step(n, body=bytes(10)) for n in range(300)]
    assert run(plain.apply([Create(STEPS, row) for row in rows])) is None
    faults = Faults(opened(remote), [Fault("apply", 3, down, times=10_000)])
    store = paired(plain, faults, drain=0.1)
    assert run(store.apply([Delete(STEPS, rows[0].key)])) is None
    until(lambda: faults.applies >= 3)
    run(store.close())
    assert 0 < len(contents_at(remote)["steps"]) < 300
    again = opened(pair_url(tmp_path))
    settled(again)
    assert run(again.check()) == []
    run(again.close())
    assert contents_at(remote)["steps"] == rows[1:]


def test_a_remote_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    _, remote = files(tmp_path)
    other = opened(remote)
    assert run(other.apply([Create(STEPS, step())])) is None
    run(other.close())
    with pytest.raises(ConfigError, match="not a copy of the local store"):
        opened(pair_url(tmp_path))
    assert len(contents_at(remote)["steps"]) == 1


def test_the_copy_of_another_store_is_refused(tmp_path: Path) -> None:
    run(opened(pair_url(tmp_path)).close())
    _, remote = files(tmp_path)
    for name in ("fresh", "paired"):
        mine = f"sqlite:///{tmp_path}/{name}.db"
        if name == "paired":
            run(opened(compose("write-behind", local=mine, remote=f"sqlite:///{tmp_path}/other.db")).close())
        with pytest.raises(ConfigError, match="copy of another store"):
            opened(compose("write-behind", local=mine, remote=remote))


def test_a_local_store_that_was_set_back_is_noticed(tmp_path: Path) -> None:
    local = tmp_path / "local.db"
    store = opened(pair_url(tmp_path))
    assert run(store.apply([Create(STEPS, step(0))])) is None
    run(store.close())
    backup = local.read_bytes()
    store = opened(pair_url(tmp_path))
    for n in range(1, 5):
        assert run(store.apply([Create(STEPS, step(n))])) is None
    run(store.close())
    local.write_bytes(backup)
    with pytest.raises(ConfigError, match="reset to an older state"):
        opened(pair_url(tmp_path))


# The local store is lost


def test_the_copy_alone_is_a_whole_store(tmp_path: Path) -> None:
    _, remote = files(tmp_path)
    with holdfast.open(pair_url(tmp_path)) as store:
        for n in range(100):
            store.thread("chat").put({"messages": list(range(n))})
    for file in tmp_path.glob("local.db*"):
        file.unlink()
    with holdfast.open(remote) as store:
        latest = store.thread("chat").get()
        assert latest is not None
        assert latest.state == {"messages": list(range(99))}
        assert len(list(store.thread("chat").log())) == 100


@pytest.mark.nightly
def test_a_lost_local_store_is_filled_from_the_copy_when_that_is_asked_for(tmp_path: Path) -> None:
    local, remote = files(tmp_path)
    store = opened(pair_url(tmp_path))
    rows = [step(n, body=bytes(n)) for n in range(300)]
    for row in rows:
        assert run(store.apply([Create(STEPS, row)])) is None
    run(store.close())
    (tmp_path / "local.db").rename(tmp_path / "old.db")
    with pytest.raises(ConfigError, match="restore=true"):
        opened(pair_url(tmp_path))
    store = opened(pair_url(tmp_path), restore=True)
    assert run(store.read([Scan(STEPS, ())]))[0] == rows
    assert run(store.apply([Create(STEPS, step(1000))])) is None
    assert run(store.check()) == []
    run(store.close())
    assert contents_at(remote) == contents_at(local)
    # The old one turns up again. It may not write into what now belongs to the new one.
    with pytest.raises(ConfigError, match="taken it over"):
        opened(compose("write-behind", local=f"sqlite:///{tmp_path}/old.db", remote=remote))


def test_a_store_whose_copy_was_taken_over_says_so(tmp_path: Path) -> None:
    old = opened(pair_url(tmp_path))
    assert run(old.apply([Create(STEPS, step(0))])) is None
    settled(old)
    new = opened(compose("write-behind", local=f"sqlite:///{tmp_path}/new.db", remote=files(tmp_path)[1]), restore=True)
    assert run(new.apply([Create(STEPS, step(1))])) is None
    settled(new)

    def write_on() -> None:
        deadline = time.monotonic() + 120
        for n in itertools.count(10):
            assert time.monotonic() < deadline
            run(old.apply([Create(STEPS, step(n))]))
            time.sleep(0.01)

    with pytest.raises(ConfigError, match="taken it over"):
        write_on()
    run(old.close())
    run(new.close())
    assert [row.key[3] for row in contents_at(files(tmp_path)[1])["steps"]] == [0, 1]


def test_a_restoration_that_broke_off_goes_on(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))
    rows = [step(n, body=bytes(n)) for n in range(300)]
    assert run(store.apply([Create(STEPS, row) for row in rows])) is None
    run(store.close())
    new = f"sqlite:///{tmp_path}/new.db"
    broken = Faults(opened(new), [Fault("apply", 4, down, times=10_000)])
    remote = opened(files(tmp_path)[1])
    with pytest.raises(TransientError):
        run(attach(broken, remote, restore=True))
    run(broken.close())
    run(remote.close())
    assert 0 < len(contents_at(new)["steps"]) < 300
    again = opened(compose("write-behind", local=new, remote=files(tmp_path)[1]))
    assert run(again.read([Scan(STEPS, ())]))[0] == rows
    assert run(again.check()) == []
    run(again.close())


# Differences, damage, forks


def test_differences_are_listed(tmp_path: Path) -> None:
    store = opened(pair_url(tmp_path))
    assert isinstance(store, WriteBehindBackend)
    assert run(store.apply([Create(STEPS, step(n)) for n in range(200)])) is None
    settled(store)
    past = opened(files(tmp_path)[1])
    assert (
        run(past.apply([Put(STEPS, step(7, body=b"x")), Delete(STEPS, step(150).key), Put(STEPS, step(999))])) is None
    )
    found = run(store.check())
    assert [line.rpartition(", ")[2] for line in found] == ["7)", "150)", "999)"]
    assert ["differs" in found[0], "missing in the copy" in found[1], "missing here" in found[2]] == [True] * 3
    run(past.close())
    run(store.close())


def test_a_damaged_journal_is_not_copied() -> None:
    local = MemoryBackend()
    remote = Faults(MemoryBackend(), [Fault("apply", 1, down, times=10_000)])
    store = paired(local, remote, drain=0.1)
    assert run(store.apply([Create(STEPS, step())])) is None
    ((row,),) = run(local.read([Get(JOURNAL, [(*journal.LINE, 1)])]))
    assert run(local.apply([Put(JOURNAL, row._replace(body=flipped(row.body)))])) is None
    with pytest.raises(CorruptError, match="row 1 of the journal"):
        list(journal.entries([row._replace(body=flipped(row.body))], "here"))
    remote.plan.clear()
    until(lambda: "row 1 of the journal" in str(run(store.status())["trouble"]))
    assert "row 1 of the journal" in str(run(store.status())["trouble"])
    assert contents(remote)["steps"] == []
    run(store.close())


@pytest.mark.nightly
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_copies_what_it_writes(tmp_path: Path) -> None:
    code = """
import os, sys
from holdfast.backends.interface import Create
from holdfast.backends.tables import STEPS
from holdfast.backends.conformance.rows import step
from holdfast.backends.runtime.drivers import run
from tests.backends.wrappers.pairs import opened, settled
store = opened(sys.argv[1])
assert run(store.apply([Create(STEPS, step(0))])) is None
child = os.fork()
assert run(store.apply([Create(STEPS, step(1 + bool(child)))])) is None
settled(store)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
run(store.close())
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, pair_url(tmp_path)], check=True, timeout=300)
    local, remote = files(tmp_path)
    assert len(contents_at(remote)["steps"]) == 3
    assert contents_at(remote) == contents_at(local)


# Several writers


def test_threads_and_handles_write_and_all_is_copied(tmp_path: Path) -> None:
    stores = [opened(pair_url(tmp_path)) for _ in range(3)]

    def write(worker: int) -> None:
        for n in range(40):
            assert run(stores[worker % 3].apply([Create(STEPS, step(n, branch=worker))])) is None

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    for store in stores:
        settled(store)
        run(store.close())
    local, remote = files(tmp_path)
    assert len(contents_at(remote)["steps"]) == 240
    assert contents_at(remote) == contents_at(local)


def test_an_interrupted_leader_leaves_nothing_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal comes after the local store has made a group, and before anybody was told."""
    local = MemoryBackend()
    store = paired(local, MemoryBackend())
    plain, interrupts = local.apply, [True]
    waiting = threading.Event()

    async def apply(batch: list[Change]) -> int | None:
        made = await plain(batch)
        if interrupts:
            interrupts.pop()
            waiting.set()
            time.sleep(0.2)  # another joins the queue
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(local, "apply", apply)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: waiting.wait() and run(store.apply([Create(STEPS, step(1))])))
        with pytest.raises(KeyboardInterrupt):
            run(store.apply([Create(STEPS, step(0))]))
        assert other.result() is None
    assert run(store.apply([Create(STEPS, step(0))])) == 0
    assert run(store.apply([Create(STEPS, step(2))])) is None
    settled(store)
    assert [row.key[3] for row in contents(store.remote)["steps"]] == [0, 1, 2]
    run(store.close())


# Groups of batches


class Small(MemoryBackend):
    """Takes no more than it says."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_body=1 << 20, max_batch=(1 << 20) + (1 << 16))

    async def apply(self, batch: Batch) -> int | None:
        if body_bytes(batch) > self.capabilities.max_batch:
            raise TooLargeError("too much for this store at once")
        return await super().apply(batch)


def committed(store: WriteBehindBackend, *batches: list[Change]) -> list[Outcome]:
    """What is answered to batches that wait together."""
    outcomes: list[Outcome] = []
    store._commit([OutgoingBatch(batch) for batch in batches], outcomes)
    return outcomes


def test_what_was_made_is_not_said_to_have_failed_with_what_came_after_it() -> None:
    store = paired(Faults(MemoryBackend(), [Fault("apply", 2, down)]), MemoryBackend())
    assert isinstance(store, WriteBehindBackend)
    # They write the same row, so they cannot be made as one.
    batches: list[list[Change]] = [[Put(STEPS, step(body=b"%d" % n))] for n in range(3)]
    made, failed, not_begun = committed(store, *batches)
    assert made is None
    assert (type(failed), type(not_begun)) == (TransientError, TransientError)
    assert [row.body for row in contents(store)["steps"]] == [b"0"]
    settled(store)
    assert contents(store.remote) == contents(store)
    run(store.close())


def test_what_cannot_be_written_down_fails_nobody_else() -> None:
    store = paired(MemoryBackend(), MemoryBackend())
    assert isinstance(store, WriteBehindBackend)
    good, bad = committed(store, [Create(STEPS, step(0))], [Create(STEPS, step(1, id="\ud800"))])
    assert good is None
    assert isinstance(bad, InvalidError)
    settled(store)
    assert contents(store.remote)["steps"] == [step(0)]
    run(store.close())


def test_batches_together_are_no_more_than_the_copy_takes() -> None:
    remote = Faults(Small(), [Fault("apply", 1, down, times=3)])  # until all of them wait
    store = paired(MemoryBackend(), remote)
    assert isinstance(store, WriteBehindBackend)
    batches: list[list[Change]] = [
        [Create(NODES, row_of(NODES, "t", "l", 0, bytes([n]), body=bytes(700_000)))] for n in range(5)
    ]
    assert committed(store, *batches) == [None] * 5
    settled(store)
    assert contents(remote) == contents(store.inner)
    run(store.close())


def test_a_store_is_copied_whole_in_pieces_that_the_copy_takes() -> None:
    local, remote = MemoryBackend(), Small()
    rows = [row_of(NODES, "t", "l", 0, bytes([n]), body=bytes(700_000)) for n in range(5)]
    assert run(local.apply([Create(NODES, row) for row in rows])) is None
    store = paired(local, remote)
    settled(store)
    assert contents(remote)["nodes"] == rows
    run(store.close())


def test_no_row_of_the_journal_is_larger_than_any_store_takes() -> None:
    row = row_of(NODES, "t", "l", 0, b"", body=bytes(3 << 20))
    made, _ = journal.build_entry(journal.JournalRow(0, 0), [Put(NODES, row)], 1)
    assert max(len(change.row.body) for change in made if isinstance(change, Create)) == 1 << 20
