"""Durable steps beside DBOS: what a step costs, what asking for it again costs, and the bytes that it leaves.

Both run the same function, and record what it returns before the next step begins. Holdfast records as well that a step
began, so that a process that dies in it leaves a question and not a second call; DBOS does not.

What is compared is processor time: of the thread that works with DBOS, which has others that do something else; of all
threads with Holdfast; and of the server, where there is one.
"""

from __future__ import annotations

import gc
import os
import pathlib
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

import apsw
import psycopg

import holdfast
from benchmarks import servers
from benchmarks.measure import Figure, Result, Table, missing, turns
from benchmarks.servers import Missing
from holdfast.agents import PersistentAgent

_OURS, _THEIRS = "Holdfast", "DBOS"
_STEPS = 200
_ROUNDS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


class Desk(PersistentAgent, name="desk-of-benchmarks"):
    """Charges."""


def charge(order: int) -> dict[str, Any]:
    """Return what a service might."""
    return {"order": order, "paid": 9.5, "note": "charged to the card of the customer"}


class _Spent(NamedTuple):
    """The processor time of a step in milliseconds: of the client, and of the server."""

    client: float
    server: float

    @property
    def total(self) -> float:
        return self.client + self.server


class _Server:
    """The processor time of a server and of its processes, those that have ended included."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def spent(self) -> float:
        """Return it in seconds; 0 where there is no server."""
        if self._pid is None:
            return 0.0
        total = 0
        for each in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = each.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            own = each.parent.name == str(self._pid)
            if own or fields[1] == str(self._pid):
                total += sum(map(int, fields[11:15] if own else fields[11:13]))
        return total / _TICKS


def _timed(server: _Server, clock: Callable[[], float], work: Callable[[], object]) -> _Spent:
    gc.collect()
    there, start = server.spent(), clock()
    work()
    return _Spent((clock() - start) / _STEPS * 1000, (server.spent() - there) / _STEPS * 1000)


class _Holdfast:
    """An agent for each round."""

    def __init__(self, url: str, server: _Server) -> None:
        self._url = url
        self._store = holdfast.open(url)
        self._server = server
        self._rounds = 0

    def run(self) -> _Spent:
        """Return what new steps take."""
        self._rounds += 1
        desk = Desk().attach(self._store, f"desk-{self._rounds}")
        desk.save()
        return _timed(self._server, time.process_time, lambda: self._work(desk))

    def resume(self) -> _Spent:
        """Return what the same steps take in a process that was restarted."""
        with holdfast.open(self._url) as other:
            desk = other.agents.restore(f"desk-{self._rounds}", Desk)
            return _timed(self._server, time.process_time, lambda: self._work(desk))

    def _work(self, desk: Desk) -> None:
        for number in range(_STEPS):
            desk.once(f"charge-{number}", charge, number)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


class _Dbos:
    """A workflow for each round."""

    def __init__(self, url: str, server: _Server) -> None:
        from dbos import DBOS

        self._dbos = DBOS
        self._spent: list[_Spent] = []
        self._last = ""
        DBOS(config={"name": "benchmarks", "system_database_url": url, "log_level": "ERROR"})
        step = DBOS.step()(charge)

        def work() -> None:
            for number in range(_STEPS):
                step(number)

        def measured() -> None:
            self._spent.append(_timed(server, time.thread_time, work))

        self._workflow: Any = DBOS.workflow(name="charges")(measured)
        DBOS.launch()

    def run(self) -> _Spent:
        """Return what new steps take."""
        handle = self._dbos.start_workflow(self._workflow)
        handle.get_result()
        self._last = handle.workflow_id
        return self._spent[-1]

    def resume(self) -> _Spent:
        """Return what the same steps take in a workflow that starts after all of them."""
        self._dbos.fork_workflow(self._last, _STEPS + 1).get_result()
        return self._spent[-1]

    def close(self) -> None:
        """Stop it."""
        self._dbos.destroy(destroy_registry=True)


@dataclass
class _Measured:
    """What was measured of one of the two."""

    name: str
    runs: list[_Spent] = field(default_factory=list)
    resumes: list[_Spent] = field(default_factory=list)
    grown: int = 0

    @property
    def run(self) -> _Spent:
        return min(self.runs, key=lambda each: each.total)

    @property
    def resume(self) -> _Spent:
        return min(self.resumes, key=lambda each: each.total)

    @property
    def size(self) -> float:
        return self.grown / _ROUNDS / _STEPS


def _compare(urls: dict[str, str], server: _Server, stored: Callable[[str], int]) -> list[_Measured]:
    """Measure both in turns."""
    found = {name: _Measured(name) for name in urls}
    with ExitStack() as stack:
        both: dict[str, _Holdfast | _Dbos] = {}
        for name, kind in ((_OURS, _Holdfast), (_THEIRS, _Dbos)):
            both[name] = kind(urls[name], server)
            stack.callback(both[name].close)
            both[name].run()  # it fills caches
            both[name].resume()
        for name in turns(both, _ROUNDS):
            before = stored(name)
            found[name].runs.append(both[name].run())
            found[name].grown += stored(name) - before
            found[name].resumes.append(both[name].resume())
    return [found[_OURS], found[_THEIRS]]


def _table(where: str, both: list[_Measured]) -> Table:
    columns = ("step: client ms", "server ms", "again: client ms", "server ms", "bytes of a step")
    rows = []
    for each in both:
        times = (each.run.client, each.run.server, each.resume.client, each.resume.server)
        rows.append((each.name, [*(f"{time:.2f}" for time in times), f"{each.size:,.0f}"]))
    return Table(f"A durable step, {where}", columns, rows)


def _figure(what: str, ours: float, theirs: float, unit: str, floor: float, goal: float | None = None) -> Figure:
    note = f"{theirs:,.3g} {unit} against {ours:,.3g}"
    return Figure(f"{what}: {_THEIRS} / {_OURS}", theirs / ours, "x", floor, note=note, goal=goal)


def durable_steps_on_sqlite() -> Result:
    """Durable steps on SQLite, beside DBOS"""
    if find_spec("dbos") is None:
        return Result([missing("durable steps on SQLite", "DBOS is not installed")])
    with tempfile.TemporaryDirectory() as name:
        urls = {each: f"sqlite:///{name}/{each}.db" for each in (_OURS, _THEIRS)}

        def stored(who: str) -> int:
            # With the library that has it open: closing a file with another gives up this one's locks.
            connection: Any = (apsw.Connection if who == _OURS else sqlite3.connect)(f"{name}/{who}.db")
            try:
                ((pages,),) = connection.execute("PRAGMA page_count")
                ((size,),) = connection.execute("PRAGMA page_size")
                return int(pages) * int(size)
            finally:
                connection.close()

        ours, theirs = both = _compare(urls, _Server(None), stored)
    return Result(
        [
            _figure("step on SQLite", ours.run.total, theirs.run.total, "ms", 1.3),
            _figure("step on SQLite, asked for again", ours.resume.total, theirs.resume.total, "ms", 2),
            _figure("bytes of a step on SQLite", ours.size, theirs.size, "bytes", 0.33, 0.5),
        ],
        tables=[_table("SQLite", both)],
    )


def durable_steps_on_postgres() -> Result:
    """Durable steps on PostgreSQL, beside DBOS"""
    if find_spec("dbos") is None:
        return Result([missing("durable steps on PostgreSQL", "DBOS is not installed")])
    try:
        server = servers.postgres()
    except Missing as why:
        return Result([missing("durable steps on PostgreSQL", why)])
    urls = {_OURS: server.fresh(), _THEIRS: server.fresh()}

    def stored(who: str) -> int:
        with psycopg.connect(urls[who]) as connection:
            found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        assert found is not None
        return int(found[0])

    pid = int((server.directory / "data" / "postmaster.pid").read_text().split()[0])
    ours, theirs = both = _compare(urls, _Server(pid), stored)
    return Result(
        [
            _figure("step on PostgreSQL", ours.run.total, theirs.run.total, "ms", 1.1),
            _figure("step on PostgreSQL, asked for again", ours.resume.total, theirs.resume.total, "ms", 1.7),
        ],
        tables=[_table("PostgreSQL", both)],
    )


# Runs -------------------------------------------------------------------------------------------------------------

_RUNS, _STEPS_OF_RUN = 40, 5


def _do_runs(store: holdfast.Store, worker: Any) -> float:
    """Return the processor time of some runs in seconds: submitted, claimed, five steps, and their ends."""
    start = time.process_time()
    ids = [store.runs.submit(None, [number], graph="sell").id for number in range(_RUNS)]
    worker.run_due()
    spent = time.process_time() - start
    assert all(store.runs.get(id).state == "done" for id in ids[:2])
    return spent


def _compare_runs(urls: dict[str, str], server: _Server) -> tuple[float, float]:
    """Return the processor time of a run in milliseconds, of ours and of theirs, with that of the server."""
    from dbos import DBOS

    step, inside = holdfast.step(charge), [0.0]

    @holdfast.workflow
    def sell(order: int) -> int:
        for part in range(_STEPS_OF_RUN):
            step(order * _STEPS_OF_RUN + part)
        return order

    DBOS(config={"name": "benchmarks", "system_database_url": urls[_THEIRS], "log_level": "ERROR"})
    their_step = DBOS.step()(charge)

    def sell_by_their_steps(order: int) -> int:
        start = time.thread_time()
        for part in range(_STEPS_OF_RUN):
            their_step(order * _STEPS_OF_RUN + part)
        inside[0] += time.thread_time() - start
        return order

    their_sell = DBOS.workflow(name="sell")(sell_by_their_steps)

    def do_theirs() -> float:
        """Of the threads that start and run workflows: others do something else."""
        inside[0], start = 0.0, time.thread_time()
        for number in range(_RUNS):
            DBOS.start_workflow(their_sell, number).get_result()
        return time.thread_time() - start + inside[0]

    def measure(work: Callable[[], float]) -> float:
        gc.collect()
        before = server.spent()
        return (work() + server.spent() - before) / _RUNS * 1000

    DBOS.launch()
    try:
        with holdfast.open(urls[_OURS]) as store:
            worker = store.worker(sell, concurrency=1)
            work: dict[str, Callable[[], float]] = {_OURS: lambda: _do_runs(store, worker), _THEIRS: do_theirs}
            spent: dict[str, list[float]] = {each: [] for each in work}
            for each in work:
                measure(work[each])  # it fills caches
            for each in turns(work, _ROUNDS):
                spent[each].append(measure(work[each]))
    finally:
        DBOS.destroy(destroy_registry=True)
    return min(spent[_OURS]), min(spent[_THEIRS])


def runs_on_sqlite() -> Result:
    """A run of five steps on SQLite, beside a workflow of DBOS"""
    if find_spec("dbos") is None:
        return Result([missing("runs on SQLite", "DBOS is not installed")])
    with tempfile.TemporaryDirectory() as name:
        urls = {each: f"sqlite:///{name}/{each}.db" for each in (_OURS, _THEIRS)}
        ours, theirs = _compare_runs(urls, _Server(None))
    return Result([_figure("run of five steps on SQLite", ours, theirs, "ms", 1.2)])


def runs_on_postgres() -> Result:
    """A run of five steps on PostgreSQL, beside a workflow of DBOS"""
    if find_spec("dbos") is None:
        return Result([missing("runs on PostgreSQL", "DBOS is not installed")])
    try:
        server = servers.postgres()
    except Missing as why:
        return Result([missing("runs on PostgreSQL", why)])
    pid = int((server.directory / "data" / "postmaster.pid").read_text().split()[0])
    ours, theirs = _compare_runs({_OURS: server.fresh(), _THEIRS: server.fresh()}, _Server(pid))
    return Result([_figure("run of five steps on PostgreSQL", ours, theirs, "ms", 1.0)])


CASES = (durable_steps_on_sqlite, durable_steps_on_postgres, runs_on_sqlite, runs_on_postgres)
