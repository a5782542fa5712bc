"""Shards on objects in memory: races, pauses, writers that die, and what it costs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Store
from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.races import Races
from holdfast.backends.conformance.rows import column, row_of, step
from holdfast.backends.interface import Create, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.object_store import (
    compaction,
    garbage_collection,
    object_names,
    object_storage,
    shard_log,
    shard_view,
    transactions,
)
from holdfast.backends.object_store.object_storage import clock, deadline_in
from holdfast.backends.object_store.shard_log import BodyReader
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import LINES, REFS, STEPS, TABLES
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, CorruptError, DeniedError, InvalidError, OutcomeUnknownError
from holdfast.testing import Stores
from tests.backends.shard_kit import PLACES, Double, InMemory, Process, Through, Turns
from tests.support.nightly import by_day, examples, fewer_examples, mostly_nightly

NUMBERS = itertools.count()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epochs of three entries, and indexes merged by two: many folds in short histories."""
    monkeypatch.setattr(shard_log, "EPOCH_ENTRIES", 3)
    monkeypatch.setattr(shard_view, "EPOCH_ENTRIES", 3)
    monkeypatch.setattr(compaction, "MERGE_WIDTH", 2)


@pytest.mark.usefixtures("small")
class TestSmallEpochs(Histories, Races):
    """The parts of the suite that are about one process, where every third batch is folded."""

    histories = fewer_examples().max_examples
    watched = by_day(60, 15)

    @pytest.fixture
    def stores(self) -> Iterator[Stores]:
        url = f"blobs://{next(NUMBERS)}"
        yield Stores(url, kind=Double)
        PLACES.pop(url, None)


def steps(rows: list[Row]) -> dict[Any, bytes]:
    return {row.key[3]: row.body for row in rows}


async def cold(blobs: InMemory) -> list[Row]:
    """All steps, as a process sees them that knows nothing."""
    return (await Process(blobs).read(Scan(STEPS, ())))[0]


# Races, in every order


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=300))
def test_whatever_the_order_every_key_has_one_winner(numbers: list[int]) -> None:
    async def main() -> None:
        blobs, turns = InMemory(), Turns(numbers)
        processes = [Process(Through(blobs, turns.way)) for _ in range(3)]

        async def claim(process: Process, worker: int) -> list[int]:
            won = []
            for key in range(6):
                if await process.apply(Create(STEPS, step(key, body=b"%d" % worker))) is None:
                    won.append(key)
            return won

        won = await turns.run(*(claim(process, worker) for worker, process in enumerate(processes)))
        assert sorted(key for keys in won for key in keys) == list(range(6))
        found = steps(await cold(blobs))
        assert found == {key: b"%d" % worker for worker, keys in enumerate(won) for key in keys}

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=400), st.lists(st.integers(0, 9), max_size=60))
def test_answers_that_are_lost_lose_and_double_nothing(numbers: list[int], losses: list[int]) -> None:
    async def main() -> None:
        blobs, turns, fate = InMemory(), Turns(numbers), iter(losses)

        async def way(kind: str, name: str, ask: Callable[[], Any]) -> Any:
            happens = next(fate, 9)
            if happens == 0:
                raise ServerInterrupted("nothing was sent")
            answer = await turns.way(kind, name, ask)
            if happens <= 2:
                raise ServerInterrupted("the answer was lost", sent=True)
            return answer

        async def count(process: Process) -> int:
            done = 0
            for _ in range(4):
                ((row,),) = await process.read(Get(LINES, [("tenant", "line")]))
                raised = row_of(LINES, "tenant", "line", created=int(column(LINES, row, "created")) + 1)
                done += await process.apply(Expect(LINES, row.key, row.columns), Put(LINES, raised)) is None
            return done

        await Process(blobs).apply(Create(LINES, row_of(LINES, "tenant", "line")))
        done = await turns.run(*(count(Process(Through(blobs, way))) for _ in range(2)))
        ((row,),) = await Process(blobs).read(Scan(LINES, ()))
        assert column(LINES, row, "created") == sum(done) > 0

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=400))
def test_batches_about_several_shards_are_seen_whole_in_every_order(numbers: list[int]) -> None:
    async def main() -> None:
        blobs, turns = InMemory(), Turns(numbers)
        await Process(blobs).apply(*both(0))
        seen: list[int] = []

        async def write(process: Process, numbers: range) -> None:
            for number in numbers:
                assert await process.apply(*both(number)) is None

        async def watch(process: Process) -> None:
            for _ in range(6):
                (rows,) = await process.read(Scan(STEPS, ("tenant",)))
                assert len(rows) == 2
                assert len({row.body for row in rows}) == 1, "half a batch"
                seen.append(int(rows[0].body))

        way = turns.way
        await turns.run(
            write(Process(Through(blobs, way)), range(1, 4)),
            write(Process(Through(blobs, way)), range(11, 14)),
            watch(Process(Through(blobs, way))),
        )
        last = {row.body for row in await cold(blobs)}
        assert last in ({b"3"}, {b"13"})
        ours = [number for number in seen if number < 10]
        assert ours == sorted(ours), "a reader went back in time"

    asyncio.run(main())


def both(number: int) -> list[Put]:
    """A batch about two shards."""
    return [Put(STEPS, step(0, line=line, body=b"%d" % number)) for line in ("a", "b")]


def test_who_knows_nothing_reads_every_transaction_at_once() -> None:
    async def main() -> None:
        blobs = InMemory()
        writer = Process(blobs)
        stride = by_day(1, 3)
        for number in range(1, 80):
            assert await writer.apply(*both(number)) is None
            if number % stride:
                continue
            blobs.asked.clear()
            for line in ("a", "b"):
                ((row,),) = await Process(blobs).read(Scan(STEPS, ("tenant", line)))
                assert row.body == b"%d" % number
            assert blobs.asked["get"] < 2 * (2 * 32 + 10), "an entry or its decision is read more than once"

    asyncio.run(main())


def test_a_reader_comes_to_an_end_though_others_never_rest() -> None:
    async def main() -> None:
        blobs = InMemory()
        await Process(blobs).apply(*both(0))
        looks = 0

        async def way(kind: str, name: str, ask: Callable[[], Any]) -> Any:
            nonlocal looks
            if kind == "get" and "/log/" in name and "line=a" in name and looks < 500:
                looks += 1
                await restless.apply(Put(STEPS, step(0, line="a", body=b"%d" % looks)))
            return await ask()

        restless = Process(blobs, patience=60.0)
        reader = Process(Through(blobs, way))
        found = await reader.read(Scan(STEPS, ("tenant", "a")), Scan(STEPS, ("tenant", "b")))
        assert [len(rows) for rows in found] == [1, 1]
        assert 20 < looks < 400
        assert await restless.apply(Put(STEPS, step(0, line="a", body=b"on"))) is None, "nobody is held for long"

    asyncio.run(main())


@pytest.mark.nightly
@pytest.mark.parametrize("lines", ["a", "ab"], ids=["a batch", "a transaction"])
def test_who_has_to_read_first_gets_a_turn(lines: str) -> None:
    """Two processes write without a pause. They never have to read, and so would always be first."""

    async def main() -> None:
        blobs, made, over = InMemory(), 0, False

        async def slowly(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            await asyncio.sleep(0.002)
            return await ask()

        async def write(process: Process, line: str, worker: int) -> None:
            nonlocal made
            while not over:
                assert await process.apply(Put(STEPS, step(0, line=line, branch=worker))) is None
                made += 1

        busy = [
            asyncio.ensure_future(write(Process(Through(blobs, slowly)), line, worker))
            for worker, line in enumerate("ab")
        ]
        while made < 40:
            await asyncio.sleep(0.002)
        late = Process(Through(blobs, slowly))
        try:
            for number in range(5):
                before = made
                changes = [Put(STEPS, step(number, line=line, branch=9)) for line in lines]
                assert await late.apply(*changes) is None
                assert made - before < 400
        finally:
            over = True
            await asyncio.gather(*busy)
        assert [name for name in blobs.objects if name.startswith("turns/")] == []

    asyncio.run(main())


def test_a_turn_of_a_process_that_died_is_over_after_a_while() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        process.core.turns.longest = 0.05
        with deadline_in(5.0):
            async with Process(blobs).core.turns.turn([object_names.folder(("tenant", "line"))]):
                (name,) = blobs.objects
                left = blobs.objects[name]
        blobs.objects[name] = left
        for key in range(80):
            assert await process.apply(Put(STEPS, step(key))) is None
        assert name not in blobs.objects

    asyncio.run(main())


# Writers that die


def dying(blobs: InMemory, kind: str, part: str) -> tuple[Process, asyncio.Event]:
    """A process that dies when it is about to do something, and does nothing more; and when it has."""
    dead = asyncio.Event()

    async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
        if asked == kind and part in name:
            dead.set()
        if dead.is_set():
            await asyncio.sleep(3600)
        return await ask()

    return Process(Through(blobs, way), timeout=1.0), dead


@pytest.mark.parametrize("part", ["line=b", "transactions/"])
def test_what_a_dead_writer_prepared_does_not_count_and_holds_nobody_up_for_long(part: str) -> None:
    async def main() -> None:
        blobs = InMemory()
        await Process(blobs).apply(*both(1))
        victim, died = dying(blobs, "create", part)
        dead = asyncio.ensure_future(victim.apply(*both(2)))
        await died.wait()
        other = Process(blobs, patience=0.1)
        began = clock()  # the time that it is given counts from when it is first seen
        assert {row.body for row in (await other.read(Scan(STEPS, ())))[0]} == {b"1"}
        assert await other.apply(Put(STEPS, step(0, line="a", body=b"3"))) is None
        assert clock() - began >= 0.09, "it was not given its time"
        assert [row.body for row in await cold(blobs)] == [b"3", b"1"]
        assert await other.apply(*both(4)) is None
        assert {row.body for row in await cold(blobs)} == {b"4"}
        dead.cancel()

    asyncio.run(main())


def test_who_was_declared_dead_and_lives_does_it_again() -> None:
    async def main() -> None:
        blobs = InMemory()
        await Process(blobs).apply(*both(1))
        hold = asyncio.Event()

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create" and name.startswith("transactions/") and not hold.is_set():
                await hold.wait()
            return await ask()

        slow = asyncio.ensure_future(Process(Through(blobs, way)).apply(*both(2)))
        await asyncio.sleep(0.01)
        assert await Process(blobs, patience=0.01).apply(Put(STEPS, step(0, line="a", body=b"3"))) is None
        hold.set()
        assert await slow is None
        assert {row.body for row in await cold(blobs)} == {b"2"}

    asyncio.run(main())


def test_nothing_is_taken_for_void_as_long_as_nobody_has_decided_it() -> None:
    async def main() -> None:
        blobs = InMemory()
        await Process(blobs).apply(*both(1))
        gate = Gate(lambda asked, name: asked == "create" and name.startswith("transactions/"))
        slow = Process(Through(blobs, gate.way))
        made = asyncio.ensure_future(slow.apply(*both(2), Create(STEPS, step(7, line="a", body=b"slow"))))
        await gate.reached.wait()
        collided = False

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            nonlocal collided
            if asked == "create" and name.startswith("transactions/") and not collided:
                collided = True
                return False  # as S3 answers two that come at the same time
            if asked == "create" and "line=a" in name:
                gate.open()
                await made
            return await ask()

        other = Process(Through(blobs, way), patience=0.01)
        won = await other.apply(Create(STEPS, step(7, line="a", body=b"other"))) is None
        assert collided
        assert await made == (2 if won else None)
        assert [row.body for row in await cold(blobs) if row.key[3] == 7] == [b"other" if won else b"slow"]

    asyncio.run(main())


def test_what_was_decided_counts_though_its_writer_died() -> None:
    async def main() -> None:
        blobs = InMemory()
        writer = Process(blobs)
        assert await writer.apply(*both(1)) is None
        # The writer is gone; nobody has told the parts. A reader asks what was decided.
        assert {row.body for row in await cold(blobs)} == {b"1"}
        assert sum(name.startswith("transactions/") for name in blobs.objects) == 1

    asyncio.run(main())


@pytest.mark.parametrize("lost", [ServerInterrupted("cut off", sent=True), None], ids=["first", "nothing"])
def test_an_error_that_follows_a_lost_answer_does_not_say_that_nothing_was_made(lost: ServerInterrupted | None) -> None:
    async def main() -> None:
        errors = [lost] if lost is not None else []

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked != "create":
                return await ask()
            if errors:
                await ask()
                raise errors.pop()
            raise DeniedError("the key was withdrawn")

        with pytest.raises(DeniedError if lost is None else ServerInterrupted) as caught:
            await Process(Through(InMemory(), way)).apply(Put(STEPS, step(0)))
        assert lost is None or getattr(caught.value, "sent", None) is True

    asyncio.run(main())


def test_a_try_that_comes_too_late_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine sleeps for longer than it should: what was broken off in the middle would be uncertain."""
    monkeypatch.setattr("holdfast.backends.object_store.object_storage.random.uniform", lambda least, most: 50.0)

    async def main() -> None:
        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create":
                await asyncio.sleep(0)
                raise ServerInterrupted("refused")
            return await ask()

        with pytest.raises(ServerInterrupted, match="refused") as caught:
            await Process(Through(InMemory(), way), timeout=0.2).apply(Put(STEPS, step(0)))
        assert not caught.value.sent

    asyncio.run(main())


def test_whose_object_took_a_name_has_to_be_found_out() -> None:
    async def main() -> None:
        blobs = InMemory()

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create":
                await ask()  # by something on the way, that then does it once more
            elif asked == "get" and blobs.objects:
                raise ServerInterrupted("cut off")
            return await ask()

        with pytest.raises(ServerInterrupted) as caught:
            await Process(Through(blobs, way), timeout=0.2).apply(Put(STEPS, step(0)))
        assert caught.value.sent

    asyncio.run(main())


@pytest.mark.parametrize("bad", [step(1 << 70), step(0, id="\ud800"), step(0, line="\ud800")], ids=["n", "c", "k"])
def test_a_batch_that_cannot_be_kept_is_refused_by_itself(bad: Row) -> None:
    async def main() -> None:
        store = await arun(Double.open(f"blobs://{next(NUMBERS)}"))
        good = [Create(STEPS, step(key)) for key in range(2, 12)]
        batches = [*good[:5], Create(STEPS, bad), *good[5:]]
        made = await asyncio.gather(*(arun(store.apply([each])) for each in batches), return_exceptions=True)
        assert isinstance(made.pop(5), InvalidError)
        assert made == [None] * 10
        assert len((await arun(store.read([Scan(STEPS, ("tenant", "line"))])))[0]) == 10
        await arun(store.close())
        PLACES.pop(store.url)

    asyncio.run(main())


# What a process learns while it is about to write


class Gate:
    """Holds up the first question of a process that a test tells, until it is opened."""

    def __init__(self, holds: Callable[[str, str], bool]) -> None:
        self._holds = holds
        self._open = asyncio.Event()
        self.reached = asyncio.Event()

    async def way(self, asked: str, name: str, ask: Callable[[], Any]) -> Any:
        """To be given to `Through`."""
        if not self.reached.is_set() and self._holds(asked, name):
            self.reached.set()
            await self._open.wait()
        return await ask()

    def open(self) -> None:
        self._open.set()


@pytest.mark.usefixtures("small")
def test_a_fold_that_others_made_first_is_not_written_as_something_else() -> None:
    async def main() -> None:
        blobs = InMemory()
        gate = Gate(lambda asked, name: asked == "get" and name.endswith("birth") and len(blobs.objects) == 3)
        slow, other = Process(Through(blobs, gate.way)), Process(blobs)
        slow.core.bodies = BodyReader(slow.blobs, 0)  # it has to read what it folds
        for key in range(3):
            await slow.apply(Put(STEPS, step(key)))
        await gate.reached.wait()  # it is about to fold
        await other.apply(Put(STEPS, step(3)))
        assert len((await slow.read(Scan(STEPS, ("tenant", "line"))))[0]) == 4
        gate.open()
        await slow.lanes.drain()
        assert sorted(steps(await cold(blobs))) == [0, 1, 2, 3]
        assert await other.apply(Put(STEPS, step(4))) is None
        assert sorted(steps(await cold(blobs))) == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_a_condition_is_not_taken_for_true_because_a_reader_went_on() -> None:
    async def main() -> None:
        blobs = InMemory()
        other = Process(blobs)
        await other.apply(*both(1))
        begun = 0

        def holds(asked: str, name: str) -> bool:
            nonlocal begun
            begun += asked == "create" and "line=a/log" in name
            return begun == 2

        gate = Gate(holds)

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create" and begun == 1 and "line=b/log" in name:
                await other.apply(Put(STEPS, step(5, line="b")))  # so that the parts are then added one by one
            return await gate.way(asked, name, ask)

        slow = Process(Through(blobs, way))
        changes = [Create(STEPS, step(9, line="b", body=b"slow")), Put(STEPS, step(9, line="a"))]
        made = asyncio.ensure_future(slow.apply(*reversed(changes)))
        await gate.reached.wait()
        assert await other.apply(Create(STEPS, step(9, line="b", body=b"other"))) is None
        assert len((await slow.read(Scan(STEPS, ("tenant", "b"))))[0]) == 3
        gate.open()
        assert await made == 1
        assert [row.body for row in await cold(blobs) if row.key[3] == 9] == [b"other"]

    asyncio.run(main())


@pytest.mark.parametrize("prefixes", [[("tenant", "b"), ("tenant", "a")], [("tenant",)]], ids=["lines", "tenant"])
def test_what_came_in_one_batch_is_deleted_whole_or_not_at_all(prefixes: list[tuple[str, ...]]) -> None:
    async def main() -> None:
        blobs = InMemory()
        other = Process(blobs)
        await other.apply(Put(STEPS, step(0, line="a")))
        gate = Gate(lambda asked, name: asked == "get" and name.endswith("line=a/birth"))
        slow = Process(Through(blobs, gate.way))
        deleted = asyncio.ensure_future(slow.apply(*(Delete(STEPS, prefix) for prefix in prefixes)))
        await gate.reached.wait()
        await asyncio.sleep(0.01)  # the other line was looked at
        assert await other.apply(*both(2)) is None
        gate.open()
        assert await deleted is None
        assert len(await cold(blobs)) in (0, 2)

    asyncio.run(main())


# Pauses


class Clock:
    """A clock that jumps when told to: a machine that was asleep."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        for module in (shard_log, garbage_collection, transactions):
            monkeypatch.setattr(module, "clock", lambda: clock() + self.ahead)


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def tidied(process: Process, rounds: int = 1) -> None:
    for _ in range(rounds):
        await process.tidying.tidy(grace=-1.0)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("written", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("fails", [False, True], ids=["free for it", "taken"])
def test_a_writer_that_slept_is_not_misled_by_freed_names(jumping: Clock, written: int, fails: bool) -> None:
    async def main() -> None:
        blobs = InMemory()
        hold, asleep = asyncio.Event(), asyncio.Event()

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create" and asleep.is_set() and not hold.is_set():
                await hold.wait()
            return await ask()

        sleeper, other = Process(Through(blobs, way)), Process(blobs)
        for key in range(written):
            await sleeper.apply(Put(STEPS, step(key)))
        asleep.set()
        late = asyncio.ensure_future(sleeper.apply(Create(STEPS, step(99, body=b"late"))))
        await asyncio.sleep(0.01)
        for key in range(10, 20):
            await other.apply(Put(STEPS, step(key)))
        if fails:
            await other.apply(Create(STEPS, step(99, body=b"other")))
        await other.apply(Delete(STEPS, ("tenant", "line", 0, 10)))
        await tidied(other)  # the names that the sleeper knows are free now
        jumping.ahead += 2000.0
        hold.set()
        assert await late == (0 if fails else None)
        found = steps(await cold(blobs))
        assert found[99] == (b"other" if fails else b"late")
        assert sorted(found) == [*range(written), *range(11, 20), 99]
        assert steps((await sleeper.read(Scan(STEPS, ())))[0]) == found

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_a_reader_that_slept_does_not_take_freed_names_for_the_end(jumping: Clock) -> None:
    async def main() -> None:
        blobs = InMemory()
        sleeper, other = Process(blobs), Process(blobs)
        await sleeper.apply(Put(STEPS, step(0)))
        for key in range(1, 12):
            await other.apply(Put(STEPS, step(key)))
        await other.apply(Delete(STEPS, ("tenant", "line", 0, 0)))
        await tidied(other)
        jumping.ahead += 2000.0
        assert sorted(steps((await sleeper.read(Scan(STEPS, ("tenant", "line"))))[0])) == list(range(1, 12))
        assert await sleeper.apply(Create(STEPS, step(5))) == 0

    asyncio.run(main())


def test_a_transaction_that_slept_is_uncertain(jumping: Clock) -> None:
    async def main() -> None:
        blobs = InMemory()

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create" and name.startswith("transactions/"):
                jumping.ahead += 2000.0
            return await ask()

        with pytest.raises(OutcomeUnknownError, match="paused"):
            await Process(Through(blobs, way)).apply(*both(1))

    asyncio.run(main())


def test_the_error_of_a_batch_that_its_caller_gave_up_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = run(Double.open(f"blobs://{next(NUMBERS)}"))
    opened = store._opened()

    async def give_up() -> None:
        asked = asyncio.Event()

        async def hang(kind: str, name: str, ask: Callable[[], Any]) -> Any:
            if kind == "create":
                asked.set()
                await asyncio.Event().wait()
            return await ask()

        opened.storage._storage = Through(opened.storage._storage, hang)
        store._timeout = opened.queues._timeout = 0.2
        first = asyncio.ensure_future(store._apply([Put(STEPS, step(0))]))
        await asked.wait()
        second = asyncio.ensure_future(store._apply([Put(STEPS, step(1))]))  # waits for the first, then hangs as well
        for each in (first, second):
            with pytest.raises(OutcomeUnknownError):
                await each
        left = set(opened.pending)  # the second, and on a busy machine the first as well
        assert left
        await asyncio.wait(left)
        assert not any(each.cancelled() for each in left)

    run(store._run_in_loop(give_up))
    run(store.close())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_batch_about_several_shards_that_slept_is_not_refused_for_its_own_sake(jumping: Clock) -> None:
    async def main() -> None:
        blobs = InMemory()
        await Process(blobs).apply(Put(STEPS, step(0, line="a")))

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            if asked == "create" and "line=a/log" in name:
                jumping.ahead += 2000.0
            return await ask()

        changes = [Delete(LINES, ("other",)), Create(STEPS, step(1, line="a"))]
        assert await Process(Through(blobs, way)).apply(*changes) is None
        assert sorted(steps(await cold(blobs))) == [0, 1]

    asyncio.run(main())


# Deleting


@pytest.mark.usefixtures("small")
def test_what_was_deleted_is_gone_from_the_storage() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        for key in range(8):
            await process.apply(Put(STEPS, step(key, body=b"secret-%d" % key, metadata=f"private-{key}")))
        await process.apply(
            Delete(STEPS, ("tenant", "line", 0, 3)), Put(REFS, row_of(REFS, "tenant", "line", "n", "a", "b"))
        )
        await tidied(process, 2)
        kept = b"".join(data for data, _ in blobs.objects.values())
        assert b"secret-3" not in kept
        assert b"secret-4" in kept
        assert len([name for name in blobs.objects if "/fold/" in name]) == 1
        assert sorted(steps(await cold(blobs))) == [0, 1, 2, 4, 5, 6, 7]

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [40_000, 300_000], ids=["carried by folds", "left in the log"])
def test_what_is_replaced_again_and_again_is_folded_away(size: int) -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        kept = [step(key, branch=1, body=bytes([key]) * size) for key in range(3)]
        for row in kept:
            await process.apply(Put(STEPS, row))
        for number in range(80):
            await process.apply(Put(STEPS, step(0, body=bytes([number]) * size)))
        with deadline_in(5.0):
            known = await Process(blobs).core.read_shard(object_names.folder(("tenant", "line")))
        held = sum(holder.size for holder in known.body_objects.values())
        assert held < 4 * size + 2 * (1 << 20) + 8 * size, "what is dead is still needed"
        rows = await cold(blobs)
        assert rows == [step(0, body=bytes([79]) * size), *kept]
        await tidied(process, 2)
        assert sum(len(data) for data, _ in blobs.objects.values()) < 4 * size + 20_000
        assert await cold(blobs) == rows

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_of_a_shard_in_which_nothing_is_left_nothing_stays(jumping: Clock, count: int) -> None:
    async def main() -> None:
        blobs = InMemory()
        process, other = Process(blobs), Process(blobs)
        for key in range(count):
            await process.apply(Put(STEPS, step(key)))
        assert len((await other.read(Scan(STEPS, ("tenant", "line"))))[0]) == count
        await process.apply(*(Delete(space, ("tenant", "line")) for space in TABLES))
        await tidied(process, 3)
        assert list(blobs.objects) == []
        # Another life, also for those who knew the one before.
        jumping.ahead += 2000.0
        assert await cold(blobs) == []
        assert await process.apply(Create(STEPS, step(0, body=b"new"))) is None
        assert steps((await other.read(Scan(STEPS, ("tenant", "line"))))[0]) == {0: b"new"}
        assert await other.apply(Create(STEPS, step(0))) == 0
        assert steps(await cold(blobs)) == {0: b"new"}

    asyncio.run(main())


def test_the_birth_of_the_next_life_is_not_deleted_in_place_of_the_last_ones() -> None:
    async def main() -> None:
        blobs = InMemory()
        other = Process(blobs)
        birth = object_names.first_object(object_names.folder(("tenant", "line")))
        await other.apply(Put(STEPS, step(0)))
        await other.apply(Delete(STEPS, ("tenant", "line")))
        cut = 0

        async def way(asked: str, name: str, ask: Callable[[], Any]) -> Any:
            nonlocal cut
            there = birth in blobs.objects
            answer = await ask()
            if asked == "delete" and there and birth not in blobs.objects:
                cut += 1
                assert await other.apply(Create(STEPS, step(1))) is None
                raise ServerInterrupted("cut off", sent=True)
            return answer

        await tidied(Process(Through(blobs, way)), 2)
        assert cut == 1
        assert sorted(steps(await cold(blobs))) == [1]

    asyncio.run(main())


def test_a_life_whose_end_was_not_finished_is_finished_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        await process.apply(Put(STEPS, step(0)))
        await process.apply(Delete(STEPS, ("tenant", "line")))
        with monkeypatch.context() as patched:
            patched.setattr(
                garbage_collection, "_IMMEDIATE_SECONDS", -1.0
            )  # it is paused after it has said that the life ended
            await tidied(process, 3)
        assert [name.rpartition("/")[2] for name in blobs.objects].count("birth") == 1
        assert await cold(blobs) == []
        assert await Process(blobs).read(Scan(STEPS, ("tenant", "line"))) == [[]]
        with pytest.raises(ServerInterrupted, match="keep writing"):
            await Process(blobs, timeout=0.2).apply(Create(STEPS, step(0)))
        for name, (data, _) in list(blobs.objects.items()):
            blobs.objects[name] = (data, 0.0)
        await tidied(Process(blobs), 2)
        assert list(blobs.objects) == []
        assert await process.apply(Create(STEPS, step(0, body=b"new"))) is None
        assert steps(await cold(blobs)) == {0: b"new"}

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 50), max_size=300))
def test_tidying_while_others_write_loses_nothing(numbers: list[int]) -> None:
    async def main() -> None:
        blobs, turns = InMemory(), Turns(numbers)

        async def write(process: Process, worker: int) -> None:
            for key in range(5):
                assert await process.apply(Put(STEPS, step(key, branch=worker))) is None
                if key < 4:
                    assert await process.apply(Delete(STEPS, ("tenant", "line", worker, key))) is None

        async def tidy(process: Process) -> None:
            for _ in range(3):
                await process.tidying.tidy()

        way = turns.way
        await turns.run(
            write(Process(Through(blobs, way)), 0),
            write(Process(Through(blobs, way)), 1),
            tidy(Process(Through(blobs, way))),
        )
        assert [row.key[2:] for row in await cold(blobs)] == [(0, 4), (1, 4)]

    asyncio.run(main())


def test_decisions_are_deleted_when_nobody_needs_them() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        await process.apply(*both(1))
        await tidied(process)
        assert [name for name in blobs.objects if name.startswith("transactions/")], "still in the log"
        await process.apply(*both(2))
        await tidied(process, 2)
        assert [name for name in blobs.objects if name.startswith("transactions/")] == []
        assert {row.body for row in await cold(blobs)} == {b"2"}

    asyncio.run(main())


# Damage


@pytest.mark.usefixtures("small")
def test_every_flipped_byte_is_found() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        for key in range(7):
            await process.apply(Put(STEPS, step(key, body=b"body %d" % key * 20)))
        await process.apply(*both(1))
        assert await Process(blobs).tidying.check() == []
        await tidied(process)
        before = await cold(blobs)
        for name, (data, at) in list(blobs.objects.items()):
            for place in range(0, len(data), 7 * by_day(1, 3)):
                blobs.objects[name] = (data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :], at)
                wrong = await Process(blobs).tidying.check()
                if not wrong:
                    # Of a fold, bodies that were deleted since; of the last entry that it has, everything.
                    assert await cold(blobs) == before
                    assert "/fold/" in name or "/log/" in name or name.startswith("transactions/") or name == "format"
                else:
                    assert name in wrong[0]
            blobs.objects[name] = (data, at)

    asyncio.run(main())


def test_a_missing_object_is_found() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        for key in range(40):
            await process.apply(Put(STEPS, step(key)))
        (fold,) = [name for name in blobs.objects if "/fold/" in name]
        assert await Process(blobs).tidying.check() == []
        del blobs.objects[fold]
        (wrong,) = await Process(blobs).tidying.check()
        assert f"is missing (at {fold})" in wrong

    asyncio.run(main())


# Storages that cannot be used


class Overwriting(InMemory):
    """Creates objects that exist, as a service does that ignores `If-None-Match`."""

    async def create(self, name: str, data: bytes) -> bool:
        await self.put(name, data)
        return True


class ReadOnly(InMemory):
    """Refuses to write."""

    async def create(self, name: str, data: bytes) -> bool:
        raise DeniedError("this key may not write")


def start(storage: InMemory) -> None:
    async def main() -> None:
        with deadline_in(5.0):
            await Process(storage).core.start()

    asyncio.run(main())


def test_a_storage_that_ignores_conditions_is_refused() -> None:
    objects = InMemory()
    start(objects)
    start(objects)
    before = dict(objects.objects)
    for storage in (Overwriting(), Overwriting(objects.objects)):  # a new store, and one that exists
        with pytest.raises(ConfigError, match="If-None-Match"):
            start(storage)
    assert [data for data, _ in objects.objects.values()] == [data for data, _ in before.values()]


def test_who_may_only_read_is_not_refused() -> None:
    objects = InMemory()
    start(objects)
    start(ReadOnly(objects.objects))


@pytest.mark.usefixtures("small")
def test_a_shard_with_more_objects_than_a_page_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (object_storage, shard_log):
        monkeypatch.setattr(module, "PAGE", 4)

    async def main() -> None:
        blobs = InMemory()
        writer = Process(blobs)
        for key in range(20):
            await writer.apply(Put(STEPS, step(key)))
            (rows,) = await Process(blobs).read(Scan(STEPS, ("tenant", "line")))
            assert sorted(steps(rows)) == list(range(key + 1))
        del blobs.objects[sorted(name for name in blobs.objects if "/log/" in name)[-2]]
        with pytest.raises(CorruptError, match="is missing"):
            await Process(blobs).read(Scan(STEPS, ("tenant", "line")))

    asyncio.run(main())


# Names


NAMES = [
    "",
    ".",
    "..",
    "a",
    "A",
    "a/b",
    "a=41",
    "A b",
    "con",
    "\0",
    "é",
    "e\u0301",
    "n" * 1024,
    "N" * 1024,
    "n" * 1023 + "m",
]


def test_names_are_apart_whatever_the_file_system_thinks_of_capitals() -> None:
    folders = {name: object_names.folder(("tenant", name)) for name in NAMES}
    assert len({found.lower() for found in folders.values()}) == len(NAMES)
    assert all(found == found.lower() for found in folders.values())
    for name, found in folders.items():
        line = found.partition("/")[2]
        assert len(line) <= 200
        assert set(line) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.=")
        assert object_names.decode_name(line) == (name if len(name) < 60 else None)


def test_the_longest_names_fit_into_the_key_of_an_object() -> None:
    shard = object_names.folder(("T" * 1024, "L" * 1024))
    assert len(object_names.entry(shard, object_names.next_token(object_names.new_generation()), 31)) < 600


# What it costs


class Counted(Double):
    """Counts what is asked of its storage."""

    counted: InMemory

    def _open_storage(self) -> InMemory:
        return self.counted


@pytest.mark.parametrize("quarter", mostly_nightly([100, 250, 500], daily=[100]))
def test_a_step_costs_hardly_more_than_one_object_however_long_the_line(quarter: int) -> None:
    blobs = Counted.counted = InMemory()
    store = Store(Engine(EngineContext(run(Counted.open("blobs://counted")))), tenant="")
    costs = []
    rng = random.Random(1)
    messages: list[str] = []
    for number in range(1, 4 * quarter + 1):
        messages = [*messages[-30:], rng.randbytes(200).hex()]
        store.thread("chat").put({"messages": messages})
        if number % quarter == 0:
            costs.append((blobs.asked["create"] + blobs.asked["put"], blobs.written, blobs.asked["get"]))
    store.close()
    for before, after in itertools.pairwise([(0, 0, 0), *costs]):
        created, written, read = (new - old for new, old in zip(after, before, strict=True))
        assert created < 1.1 * quarter
        assert read <= 0.1 * quarter
        assert written < 4_000 * quarter
    first, last = costs[1][1] - costs[0][1], costs[3][1] - costs[2][1]
    assert last < 1.2 * first, "a step costs more, the longer the line is"


@pytest.mark.nightly
def test_who_knows_nothing_reads_few_objects_of_a_long_line() -> None:
    async def main() -> None:
        blobs = InMemory()
        writer = Process(blobs)
        for key in range(1000):
            await writer.apply(Put(STEPS, step(key)))
        blobs.asked.clear()
        (rows,) = await Process(blobs).read(Scan(STEPS, ("tenant", "line", 0), (990,)))
        assert len(rows) == 10
        assert blobs.asked["get"] < 40
        assert blobs.asked["list"] <= 3
        warm = Process(blobs)
        await warm.read(Get(STEPS, [("tenant", "line", 0, 1)]))
        blobs.asked.clear()
        await warm.read(Get(STEPS, [("tenant", "line", 0, 1)]))
        assert blobs.asked == {"get": 1}, "what is known is asked for once"

    asyncio.run(main())
