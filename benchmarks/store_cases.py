"""What a store on SQLite costs: appends against bare commits, shared flushes, reads, and how all that grows."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import apsw
from langchain_core.messages import HumanMessage

import holdfast
from benchmarks.measure import Figure, in_turns, percentiles
from holdfast.backends.interface import Batch, Create
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.tables import LINES, STEPS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.model.line_salt import SALT_SIZE
from holdfast.engine.row_format import Line, LineInfo, StepRef, info_row
from tests.support.counting import CountingBackend

_ROUNDS = 1500
_TASKS = 64


@contextmanager
def folder() -> Iterator[str]:
    """A new directory on the disk; not in memory, where flushing costs nothing."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        yield name


class _Rows(Wrapper):
    """Notes the rows that an append stores."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.last: Batch = ()

    async def apply(self, batch: Batch) -> int | None:
        self.last = batch
        return await self.inner.apply(batch)


class Agent:
    """A small agent: a few channels, and one message more each step, of which it keeps the last."""

    def __init__(self) -> None:
        self._numbers = count()

    def next(self) -> dict[str, Any]:
        number = next(self._numbers)
        message = HumanMessage(f"turn {number}: " + "what the user said, at some length. " * 8, id=str(number))
        return {"messages": [message], "step": number, "next": "agent"}


def bare_commit(path: str, rows: _Rows) -> Any:
    """A function that commits the row of the last append with nothing but apsw, to a table of the same shape."""
    connection = apsw.Connection(path)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    names = ", ".join([*STEPS.all_columns, "body"])
    connection.execute(f"CREATE TABLE steps({names}, UNIQUE(tenant, line, branch, seq))")
    connection.execute("CREATE INDEX by_id ON steps(tenant, line, id, revision)")
    marks = ", ".join("?" * (len(STEPS.all_columns) + 1))
    insert = f"INSERT INTO steps VALUES({marks})"

    def commit() -> None:
        row = next(change.row for change in rows.last if isinstance(change, Create) and change.space is STEPS)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(insert, (*row.key, *row.columns, row.body))
        connection.execute("COMMIT")

    return commit


def appends() -> list[Figure]:
    """Appending a step, against a bare commit of the same row"""
    with folder() as name:
        store = holdfast.open(f"sqlite:///{name}/store.db")
        rows = _Rows(store._engine.context.stored)
        store = holdfast.Store(Engine(EngineContext(rows)), "")
        agent = Agent()
        commit = bare_commit(f"{name}/bare.db", rows)
        states = [agent.next() for _ in range(_ROUNDS + 1)]
        pending = iter(states)
        times = percentiles({"append": lambda: store.thread("agent").put(next(pending)), "bare": commit}, _ROUNDS)
        store.close()
    ours, bare = times["append"], times["bare"]
    half, most = len(ours) // 2, len(ours) * 99 // 100
    note = f"{ours[half]:.0f} µs against {bare[half]:.0f} µs"
    worst = f"{ours[most]:.0f} µs against {bare[most]:.0f} µs"
    return [
        Figure("append / bare commit, median", ours[half] / bare[half], "x", ceiling=4, note=note),
        Figure("append / bare commit, 99th percentile", ours[most] / bare[most], "x", ceiling=5, note=worst),
    ]


def shared_flushes() -> list[Figure]:
    """64 asyncio tasks on 64 threads of one file, against one after another: commits alone, and whole appends"""
    with folder() as name:
        figures = []
        agent = Agent()
        states = [agent.next() for _ in range(40)]

        async def rate(tasks: int, rounds: int, work: Any) -> float:
            async with holdfast.aopen(f"sqlite:///{name}/store.db") as store:
                await asyncio.gather(*(work(store, task, 0) for task in range(tasks)))

                async def task(number: int) -> None:
                    for turn in range(1, rounds + 1):
                        await work(store, number, turn)

                start = time.perf_counter()
                await asyncio.gather(*map(task, range(tasks)))
                return tasks * rounds / (time.perf_counter() - start)

        places = count()

        async def commit(store: holdfast.AsyncStore, task: int, turn: int) -> None:
            del turn
            point = StepRef(0, next(places), f"{task}", 0, 0, b"h" * 32, 1, "save", "", 1, 1)
            row = point.row(Line("", f"task {task}"), b"x" * 400)
            await arun(store._engine.context.backend.apply([Create(STEPS, row)]))

        async def append(store: holdfast.AsyncStore, task: int, turn: int) -> None:
            await store.thread(f"agent {task}").put(states[turn % len(states)])

        for what, work, floor in (("commits", commit, 5.0), ("appends", append, 1.5)):
            single = max(asyncio.run(rate(1, 400, work)) for _ in range(3))
            shared = max(asyncio.run(rate(_TASKS, 40, work)) for _ in range(3))
            note = f"{shared:,.0f} a second against {single:,.0f}"
            figures.append(Figure(f"64 tasks / one, {what}", shared / single, "x", floor=floor, note=note))
    return figures


def reads() -> list[Figure]:
    """Reading the latest state of a small agent"""
    with folder() as name, holdfast.open(f"sqlite:///{name}/store.db") as store:
        agent = Agent()
        for _ in range(50):
            store.thread("agent").put(agent.next())
        best = in_turns({"cached": lambda: store.thread("agent").get()}, rounds=50, repeats=20)["cached"]
    return [Figure("cached read of a small state", best * 1000, "µs", ceiling=75)]


def a_large_map() -> list[Figure]:
    """Setting one key of a dict of 100,000, against one of 100"""
    with folder() as name:
        inner = holdfast.open(f"sqlite:///{name}/store.db")
        counting = CountingBackend(inner._engine.context.stored)
        store = holdfast.Store(Engine(EngineContext(counting)), "")
        jobs: dict[str, Any] = {}
        for keys in (100, 100_000):
            thread = f"{keys} keys"
            store.thread(thread).put({"memory": {f"key {n:06}": f"value {n}" * 3 for n in range(keys)}})
            for _ in range(40):
                store.thread(thread).update({("memory", "key 000001"): "folded now"})
            chance = random.Random(keys)

            def change(thread: str = thread, keys: int = keys, chance: random.Random = chance) -> None:
                store.thread(thread).update({("memory", f"key {chance.randrange(keys):06}"): "a new value"})

            jobs[thread] = change
        times = percentiles(jobs, 600)
        counting.reset()
        for _ in range(320):
            jobs["100000 keys"]()
        written = counting.bytes_written.total() / 320
        store.close()
    few, many = times["100 keys"][300], times["100000 keys"][300]
    note = f"{many:.0f} µs against {few:.0f} µs"
    return [
        Figure("set in a dict of 100,000 / of 100, median", many / few, "x", ceiling=2, note=note),
        Figure("bytes written by such a set, folds included", written, "bytes", ceiling=5000),
    ]


def opening() -> list[Figure]:
    """Opening a store of 100,000 threads, against one of 10"""
    with folder() as name:
        for lines in (10, 100_000):
            with holdfast.open(f"sqlite:///{name}/{lines}.db") as store:
                backend = store._engine.context.backend
                info = LineInfo(1, 1, 1, salt=bytes(SALT_SIZE))
                for start in range(0, lines, 10_000):
                    numbers = range(start, min(lines, start + 10_000))
                    rows = [info_row(Line("", f"thread {n}"), info) for n in numbers]
                    run(backend.apply([Create(LINES, row) for row in rows]))
                store.thread("thread 3").put({"messages": []})

        def job(lines: int) -> Any:
            def read() -> None:
                with holdfast.open(f"sqlite:///{name}/{lines}.db") as store:
                    store.thread("thread 3").get()

            return read

        best = in_turns({"few": job(10), "many": job(100_000)}, rounds=20, repeats=2)
    note = f"{best['many']:.2f} ms against {best['few']:.2f} ms"
    return [Figure("open and read, 100,000 threads / 10", best["many"] / best["few"], "x", ceiling=1.5, note=note)]


CASES = (appends, shared_flushes, reads, a_large_map, opening)
