"""Tests with many threads, tasks and handles at a time."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import ge
from typing import TypeVar

import pytest

from holdfast.backends.conformance.kit import Driven, Stores, Suite, case, needs
from holdfast.backends.conformance.rows import column, row_of, step
from holdfast.backends.interface import Backend, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import BRANCHES, LINES, NODES, STEPS

T = TypeVar("T")

THREADS = 8
KEYS = 40
PAUSE = 9
"""After how many batches a writer waits for all readers."""
WIDTH = 6
"""The number of rows of a batch in tests of atomicity."""


class Races(Suite):
    """Atomicity, isolation and cancellation."""

    @pytest.fixture
    def handles(self, stores: Stores, plain: Driven) -> Iterator[list[Backend]]:
        """Return a handle for each thread: several if the store is shared, otherwise the same one."""
        if not plain.backend.capabilities.shared:
            yield [plain.backend] * THREADS
            return
        others = [run(stores.open()) for _ in range(3)]
        yield [plain.backend, *others] * (THREADS // 4)
        for other in others:
            run(other.close())

    # Create if absent

    def test_of_threads_that_create_one_key_one_wins(self, plain: Driven, handles: list[Backend]) -> None:
        barrier = threading.Barrier(THREADS)

        def compete(worker: int) -> list[int]:
            barrier.wait()
            return [key for key in range(KEYS) if run(handles[worker].apply([_claim(key, worker)])) is None]

        _one_winner_each(plain, _in_threads(compete))

    def test_of_tasks_that_create_one_key_one_wins(self, plain: Driven) -> None:
        async def compete(worker: int) -> list[int]:
            won = []
            for key in range(KEYS):
                if await arun(plain.backend.apply([_claim(key, worker)])) is None:
                    won.append(key)
                await asyncio.sleep(0)
            return won

        async def main() -> list[list[int]]:
            return await asyncio.gather(*(compete(worker) for worker in range(32)))

        _one_winner_each(plain, asyncio.run(main()))

    def test_of_event_loops_that_create_one_key_one_wins(self, plain: Driven, handles: list[Backend]) -> None:
        async def compete(worker: int) -> list[int]:
            backend = handles[worker]
            answers = await asyncio.gather(*(arun(backend.apply([_claim(key, worker)])) for key in range(KEYS)))
            return [key for key, refused in enumerate(answers) if refused is None]

        _one_winner_each(plain, _in_threads(lambda worker: asyncio.run(compete(worker))))

    def test_compare_and_set_loses_no_update(self, plain: Driven, handles: list[Backend]) -> None:
        key = ("tenant", "line")
        plain.fill(LINES, [row_of(LINES, *key)])
        each = 10

        def count(worker: int) -> None:
            done = 0
            # If one fails, another has succeeded meanwhile.
            for _ in range(each * THREADS):
                ((row,),) = run(handles[worker].read([Get(LINES, [key])]))
                raised = row_of(LINES, *key, created=int(column(LINES, row, "created")) + 1, form=worker)
                done += run(handles[worker].apply([Expect(LINES, key, row.columns), Put(LINES, raised)])) is None
                if done == each:
                    return
            raise AssertionError(
                f"could set only {done} of {each} times: the value that is read differs from the one that is compared"
            )

        _in_threads(count)
        assert column(LINES, plain.scan(LINES)[0], "created") == each * THREADS

    def test_of_batches_that_exclude_each_other_one_is_made(self, plain: Driven, handles: list[Backend]) -> None:
        """Each is conditional on the absence of the other's row."""
        for lines in (("line", "line"), ("one", "other")):
            with case(lines):
                _exclude_each_other(plain, handles, lines)

    # Whole batches, one moment

    def test_readers_see_whole_batches_of_one_moment(self, plain: Driven, handles: list[Backend]) -> None:
        plain.apply(*_version(0))
        stop = threading.Event()
        acknowledged = 0
        reads = [0] * 4
        read_done = threading.Condition()

        def watch(reader: int) -> None:
            last_version = 0
            try:
                while not stop.is_set():
                    last_version = _read_version(handles[reader], max(last_version, acknowledged))
                    with read_done:
                        reads[reader] += 1
                        read_done.notify()
            finally:
                stop.set()
                with read_done:
                    read_done.notify()

        with ThreadPoolExecutor(len(reads)) as pool:
            readers = [pool.submit(watch, reader) for reader in range(len(reads))]
            try:
                for version in range(1, self.watched):
                    assert plain.apply(*_version(version)) is None
                    acknowledged = version
                    if version % PAUSE == 0:
                        # However busy the machine is, every reader reads now: of two reads, one starts after this.
                        with read_done:
                            enough = [count + 2 for count in reads]
                            assert read_done.wait_for(lambda: stop.is_set() or all(map(ge, reads, enough)), 120)  # noqa: B023
            finally:
                stop.set()
            for reader in readers:
                reader.result()

    def test_tasks_see_whole_batches_of_one_moment(self, plain: Driven) -> None:
        plain.apply(*_version(0))
        backend = plain.backend

        async def write() -> None:
            for version in range(1, self.watched):
                assert await arun(backend.apply(_version(version))) is None

        async def main() -> int:
            writing = asyncio.create_task(write())
            reads = 0
            while not writing.done():
                found = await arun(backend.read([Scan(NODES, ()), Scan(STEPS, ())]))
                assert len({row.body for rows in found for row in rows}) == 1, "parts of several batches at once"
                reads += 1
                await asyncio.sleep(0)
            await writing
            return reads

        assert asyncio.run(main()) > 0

    @needs("fresh")
    def test_what_is_acknowledged_is_seen_through_every_handle(self, plain: Driven, handles: list[Backend]) -> None:
        for seq in range(20):
            writer, reader = handles[seq % 4], handles[(seq + 1) % 4]
            assert run(writer.apply([Create(STEPS, step(seq))])) is None
            ((last,),) = run(reader.read([Scan(STEPS, ("tenant", "line"), reverse=True, limit=1)]))
            assert last.key[3] == seq
        assert len(plain.scan(STEPS)) == 20

    # Cancellation

    def test_a_cancelled_task_leaves_a_whole_batch_or_nothing(self, plain: Driven) -> None:
        rng = random.Random(1)  # noqa: S311 - moments, not secrets
        backend = plain.backend

        async def write(number: int) -> int | None:
            rows = [row_of(NODES, "tenant", f"{number:03}", 0, bytes([n])) for n in range(WIDTH)]
            return await arun(backend.apply([Create(NODES, row) for row in rows]))

        async def main() -> set[int]:
            tasks = []
            for number in range(60):
                tasks.append(asyncio.create_task(write(number)))
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.choice([0, 0, 0.0005]))
                if rng.random() < 0.6:
                    tasks[rng.randrange(number + 1)].cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(answer) for answer in answers} <= {type(None), asyncio.CancelledError}
            # After this one, all batches of cancelled tasks have been applied or dropped.
            assert await arun(backend.apply([])) is None
            return {number for number, answer in enumerate(answers) if answer is None}

        finished = asyncio.run(main())
        lines = [row.key[1] for row in plain.scan(NODES)]
        assert {lines.count(line) for line in lines} <= {WIDTH}, "half a batch"
        assert {f"{number:03}" for number in finished} <= set(lines), "acknowledged, and not there"
        plain.fill(NODES, [row_of(NODES, "tenant", "after", 0, b"n")])

    def test_a_cancelled_reader_harms_nobody(self, plain: Driven) -> None:
        plain.apply(*_version(7))
        backend = plain.backend

        async def main() -> list[list[Row]]:
            tasks = [asyncio.create_task(arun(backend.read([Scan(NODES, ())]))) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(answer, list) for answer in answers[1::2])
            return await arun(backend.read([Scan(NODES, ())]))

        assert len(asyncio.run(main())[0]) == WIDTH

    def test_an_empty_batch_comes_after_what_was_submitted(self, plain: Driven) -> None:
        backend = plain.backend

        async def main() -> int:
            tasks = [asyncio.create_task(arun(backend.apply([Create(BRANCHES, _branch(n))]))) for n in range(20)]
            await asyncio.sleep(0)
            assert await arun(backend.apply([])) is None
            (rows,) = await arun(backend.read([Scan(BRANCHES, ())]))
            await asyncio.gather(*tasks)
            return len(rows)

        assert asyncio.run(main()) == 20


def _read_version(backend: Backend, least: int) -> int:
    """Read a version, and check that it is complete and not older than another."""
    found = run(backend.read([Scan(NODES, ()), Scan(STEPS, ()), Scan(NODES, (), reverse=True, limit=1)]))
    versions = {int(row.body) for rows in found for row in rows}
    assert len(versions) == 1, f"parts of several batches at once: {sorted(versions)}"
    assert [len(rows) for rows in found] == [WIDTH, WIDTH, 1]
    assert min(versions) >= least, "older than what was acknowledged or last_version before"
    return min(versions)


def _one_winner_each(store: Driven, won: list[list[int]]) -> None:
    assert sorted(key for keys in won for key in keys) == list(range(KEYS))
    owners = {key: worker for worker, keys in enumerate(won) for key in keys}
    found = store.scan(STEPS)
    assert {row.key[3]: int(row.body) for row in found} == owners


def _exclude_each_other(plain: Driven, handles: list[Backend], lines: tuple[str, str]) -> None:
    barrier = threading.Barrier(2)

    def rows(key: int) -> list[Row]:
        return [step(2 * key + side, line=line) for side, line in enumerate(lines)]

    def compete(side: int) -> list[int]:
        won = []
        for key in range(KEYS):
            mine, other = rows(key)[side], rows(key)[1 - side]
            barrier.wait()
            if run(handles[side].apply([Expect(STEPS, other.key, None), Create(STEPS, mine)])) is None:
                won.append(key)
        return won

    with ThreadPoolExecutor(2) as pool:
        won = [*pool.map(compete, range(2))]
    assert sorted(won[0] + won[1]) == list(range(KEYS))
    assert sum(len(plain.scan(STEPS, ("tenant", line))) for line in set(lines)) == KEYS


def _claim(key: int, worker: int) -> Create:
    return Create(STEPS, step(key, body=b"%d" % worker))


def _branch(number: int) -> Row:
    return row_of(BRANCHES, "tenant", "line", number)


def _version(number: int) -> list[Put]:
    """Return a batch that puts the same number into a dozen rows of two tables."""
    body = b"%d" % number
    nodes = [Put(NODES, row_of(NODES, "tenant", f"line {n}", 0, b"n", body=body)) for n in range(WIDTH)]
    return [*nodes, *(Put(STEPS, step(0, line=f"line {n}", body=body)) for n in range(WIDTH))]


def _in_threads(work: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))
