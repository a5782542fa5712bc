"""Workers that are killed at every write: each run ends, and each effect is made once, unless the worker died in it."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import holdfast
from holdfast.backends.interface import Batch, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import JOBS, JOURNAL, REFS
from holdfast.errors import TransientError, UnavailableError
from tests import servers
from tests.agents.runs.graphs import Log, buying, chain, logging_nodes, write_ledger
from tests.servers.mongod import MongoServer
from tests.servers.postgresql import PostgresServer
from tests.servers.valkey import RedisServer
from tests.support.kills import count_kill, kill, run_in_child
from tests.support.nightly import mostly_nightly

NO_KILL = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def kill_at_batch(number: int, after: bool) -> None:
    """Kill this process before or after its n-th batch, of whatever kind."""
    original, count = SQLiteBackend.apply, 0

    async def apply(self: SQLiteBackend, batch: Batch) -> int | None:
        nonlocal count
        count += 1
        is_it = count == number  # others count on meanwhile
        if is_it and not after:
            kill()
        answer = await original(self, batch)
        if is_it:
            kill()
        return answer

    pytest.MonkeyPatch().setattr(SQLiteBackend, "apply", apply)


def left_over(path: Path | str) -> list[object]:
    """What is left of claims and queues."""
    with holdfast.open(path) as store:
        queries = [Scan(JOBS, ()), Scan(JOURNAL, ()), Scan(REFS, ())]
        jobs, beats, refs = run(store._handle.engine.context.backend.read(queries))
        places = [row.key for row in jobs if str(row.key[2]).startswith(("\x01busy", "\x01due"))]
        return [*places, *beats, *(row.key for row in refs if row.key[2:4] in (("lease", "run"), ("lease", "runs")))]


@NO_KILL
@pytest.mark.parametrize("after", [False, True])
def test_a_workflow_ends_wherever_its_worker_is_killed(tmp_path: Path, after: bool) -> None:
    struck = 0
    for number in range(1, 60):
        path, ledger = tmp_path / f"{number}.db", tmp_path / f"{number}.txt"
        with holdfast.open(path) as store:
            id = store.runs.submit("t", ["o"], graph="buy").id

        def work(report: Callable[[str], None], path: Path = path, ledger: Path = ledger, number: int = number) -> None:
            kill_at_batch(number, after)
            with holdfast.open(path) as store:
                store.worker(buying(ledger)).run_due()

        _, killed = run_in_child(work)
        struck += killed
        with holdfast.open(path) as store:
            store.worker(buying(ledger)).run_due()
            ended = store.runs.get(id)
        assert (ended.state, ended.result) == ("done", [f"paid {part}" for part in range(5)])
        effects = Counter(ledger.read_text().split("\n")[:-1])
        assert len(effects) == 5
        assert sum(effects.values()) - 5 <= killed
        assert left_over(path) == []
        if not killed:
            break
    assert struck > 10  # the claim, five steps of two batches each, and the end


@NO_KILL
def test_a_graph_ends_wherever_its_worker_is_killed(tmp_path: Path) -> None:
    struck = 0
    for number in range(1, 60):
        path = tmp_path / f"{number}.db"
        with holdfast.open(path) as store:
            id = store.runs.submit("t", {"log": ["in"]}, graph="chain").id

        def work(report: Callable[[str], None], path: Path = path, number: int = number, id: str = id) -> None:
            kill_at_batch(number, after=True)
            with holdfast.open(path) as store:
                store.worker(chain(*logging_nodes(3))).run_due()
                ended = store.runs.get(id)
                report(f"{ended.state} {ended.error}")

        reported, killed = run_in_child(work)
        struck += killed
        assert killed or reported == ["done "]
        with holdfast.open(path) as store:
            store.worker(chain(*logging_nodes(3))).run_due()
            assert store.runs.get(id).state == "done"
            assert store.thread("t").get().state["log"] == ["in", "n0", "n1", "n2"]
            assert len(store.thread("t").branches()) == 1
            events = list(store.runs.follow(id))
            assert [each.name for each in events[:-1]] == [each.id for each in store.thread("t").log()][::-1]
        assert left_over(path) == []
        if not killed:
            break
    assert struck > 6


@NO_KILL
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("kind", ["workflow", "graph"])
@pytest.mark.parametrize(("length", "kills", "cuts"), mostly_nightly([(12, 3, 6), (110, 10, 50)], daily=[(12, 3, 6)]))
def test_a_client_that_is_cut_off_sees_all_that_killed_workers_did(
    tmp_path: Path, kind: str, length: int, kills: int, cuts: int
) -> None:
    path, followed = tmp_path / "a.db", tmp_path / "followed"
    strikes = {length * (number + 1) // (kills + 1) for number in range(kills)}

    def strike(part: int) -> None:
        mark = tmp_path / f"struck-{part}"
        if part in strikes and not mark.exists():
            mark.touch()
            kill()

    @holdfast.step(on_unknown="retry")
    def act(part: int) -> int:
        strike(part)
        return part

    @holdfast.workflow
    def many() -> int:
        return sum(act(part) for part in range(length))

    graph = chain(*logging_nodes(length, lambda name: strike(int(name[1:]))), name="many")
    given: Any
    target, given = (many, None) if kind == "workflow" else (graph, {"log": []})
    with holdfast.open(path) as store:
        id = store.runs.submit("t", given, graph="many").id
    client = os.fork()
    if not client:
        code = 1
        try:
            code = 0 if follow_in_pieces(path, id, followed) >= cuts else 2
        finally:
            os._exit(code)

    def work(report: Callable[[str], None]) -> None:
        with holdfast.open(path) as store:
            store.worker(target).run_due()

    killed = 0
    while run_in_child(work)[1]:
        killed += 1
    assert killed == kills
    assert os.waitstatus_to_exitcode(os.waitpid(client, 0)[1]) == 0
    with holdfast.open(path) as store:
        assert store.runs.get(id).state == "done"
        events = [f"{each.id} {each.kind} {each.name}" for each in store.runs.events(id)]
    assert len(events) > length
    assert followed.read_text().splitlines() == events


def follow_in_pieces(path: Path, id: str, into: Path) -> int:
    """Write the events of a run, and be cut off after every second one. Returns how often that was."""
    last, cuts = "", 0
    while True:
        with holdfast.open(path) as store:
            for seen, event in enumerate(store.runs.follow(id, after=last, timeout=60)):
                if seen == 2:  # it has come, and is lost
                    break
                write_ledger(into, f"{event.id} {event.kind} {event.name}")
                last = event.id
            else:
                return cuts
        cuts += 1


class _Ledgers:
    """Two files outside: which steps were started, and their effects, each with the process that did it."""

    def __init__(self, folder: Path) -> None:
        self.started, self.effects = folder / "started", folder / "effects"

    def work(self) -> list[Any]:
        """A workflow and a graph of five steps."""

        @holdfast.step(on_unknown="retry")
        def pay(order: str, part: int) -> str:
            write_ledger(self.started, f"{order} {part} {os.getpid()}")
            write_ledger(self.effects, f"{order} {part} {os.getpid()}")
            return f"paid {part}"

        @holdfast.workflow
        def buy(order: str) -> list[str]:
            return [pay(order, part) for part in range(5)]

        def make(part: int) -> Callable[[Log], dict[str, Any]]:
            def node(state: Log) -> dict[str, Any]:
                return {"log": [pay(state["log"][0], part)]}

            node.__name__ = f"n{part}"
            return node

        return [buy, chain(*map(make, range(5)))]

    def count(self) -> int:
        """How many steps were started."""
        return self.started.read_bytes().count(b"\n") if self.started.exists() else 0

    def in_a_run(self, process: int) -> bool:
        """Whether the last step that a process started is not the last one of its run."""
        parts = [line.split()[1] for line in self.started.read_text().splitlines() if line.endswith(f" {process}")]
        return bool(parts) and parts[-1] != "4"

    def check(self, orders: Sequence[str], struck: Counter[int]) -> None:
        """Each effect was made once, but for those in doubt: one for each time that a process was struck."""
        made: dict[str, list[int]] = {}
        for line in self.effects.read_text().splitlines():
            what, _, process = line.rpartition(" ")
            made.setdefault(what, []).append(int(process))
        assert set(made) == {f"{order} {part}" for order in orders for part in range(5)}
        again = {what: processes for what, processes in made.items() if len(processes) > 1}
        for what, processes in again.items():  # who was stopped may make it after the one who took over
            assert sum(each in struck for each in processes) >= len(processes) - 1, (what, processes, struck)
        assert sum(len(processes) - 1 for processes in again.values()) <= struck.total(), (again, struck)


class _Workers:
    """Worker processes, each of which does one run at a time, and those of them that were stopped."""

    def __init__(self, url: str, ledgers: _Ledgers, count: int) -> None:
        self._url, self._ledgers = url, ledgers
        self.running = [self._start() for _ in range(count)]
        self.stopped: list[int] = []
        self.struck = Counter[int]()
        self._seen, self._moved = 0, time.monotonic()

    def _start(self) -> int:
        child = os.fork()
        if not child:
            try:
                while True:
                    with suppress(UnavailableError, TransientError), holdfast.open(self._url) as store:
                        store.worker(*self._ledgers.work(), lease=5, concurrency=1).work()
            finally:
                os._exit(1)
        return child

    def strike(self, *, stops: bool) -> None:
        """Kill or stop one; another takes its place, or one that was stopped is woken."""
        victim = self._stop_one()
        self.running.remove(victim)
        self.struck[victim] += 1
        if stops:
            self.stopped.append(victim)
        else:
            self._kill(victim)
            count_kill()
        if len(self.stopped) > _MOST_STOPPED:
            self.running.append(self.stopped.pop(0))
            os.kill(self.running[-1], signal.SIGCONT)
        else:
            self.running.append(self._start())

    def _stop_one(self) -> int:
        """Stop the one that was there longest; every second time, one that is in the middle of a run."""
        in_a_run, deadline = self.struck.total() % 4 < 2, time.monotonic() + 10
        while True:
            for each in self.running:
                assert os.waitpid(each, os.WNOHANG) == (0, 0), "a worker has ended by itself"
                os.kill(each, signal.SIGSTOP)
                if not in_a_run or self._ledgers.in_a_run(each) or time.monotonic() > deadline:
                    return each
                os.kill(each, signal.SIGCONT)
            time.sleep(0.005)

    def watch(self) -> None:
        """Let those that are stopped go on for a moment if nothing moves: one has a lock, in the middle of a batch."""
        now = self._ledgers.count()
        if now > self._seen:
            self._seen, self._moved = now, time.monotonic()
        elif time.monotonic() > self._moved + 3:
            for number in (signal.SIGCONT, signal.SIGSTOP):
                for each in self.stopped:
                    os.kill(each, number)
                time.sleep(0.02)
            self.struck.update(self.stopped)
            self._moved = time.monotonic()

    def wake(self) -> None:
        """Let all that are stopped go on."""
        for each in self.stopped:
            os.kill(each, signal.SIGCONT)

    def _kill(self, process: int) -> None:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)

    def end(self) -> None:
        """Kill all."""
        for each in (*self.running, *self.stopped):
            self._kill(each)


_MOST_STOPPED = 6
"""So many workers are stopped at a time, since servers have a limit of connections."""

_Server: TypeAlias = PostgresServer | MongoServer | RedisServer

_SERVERS: dict[str, Callable[[], _Server]] = {
    "postgres": servers.postgres_server,
    "mongodb": servers.mongodb_server,
    "redis": servers.redis_server,
}

_SMALL = ("sqlite", 20, 4, 2, 0)


@NO_KILL
@pytest.mark.time_limit(3600)
@pytest.mark.parametrize(
    ("kind", "runs", "strikes", "workers", "restarts"),
    mostly_nightly(
        [
            _SMALL,
            ("sqlite", 300, 30, 4, 0),
            ("postgres", 200, 20, 8, 2),
            ("mongodb", 100, 10, 4, 1),
            ("redis", 100, 10, 4, 1),
        ],
        daily=[_SMALL],
    )
    + [
        pytest.param(*case, marks=pytest.mark.torture)
        for case in (
            ("sqlite", 2000, 200, 4, 0),
            ("postgres", 2000, 200, 8, 5),
            ("mongodb", 500, 50, 4, 2),
            ("redis", 500, 50, 4, 2),
        )
    ],
)
def test_workers_that_are_killed_and_stopped_do_all_runs(
    tmp_path: Path, kind: str, runs: int, strikes: int, workers: int, restarts: int
) -> None:
    server = None if kind == "sqlite" else _SERVERS[kind]()
    url = f"sqlite:///{tmp_path / 'a.db'}" if server is None else server.fresh()
    ledgers, orders = _Ledgers(tmp_path), [f"o{number}" for number in range(runs)]
    with holdfast.open(url) as store:
        ids = [submit_order(store, order) for order in orders]
    at_work, gap = _Workers(url, ledgers, workers), max(runs * 5 * 2 // (3 * strikes), 1)
    restarts_at = {strikes * (number + 1) // (restarts + 1) for number in range(restarts)}
    try:
        for strike in range(strikes):
            wait_for_steps(ledgers, gap * (strike + 1), at_work)
            at_work.strike(stops=strike % 2 == 1)
            if strike in restarts_at and server is not None:
                server.restart()
        with holdfast.open(url) as store:
            deadline = time.monotonic() + 60 + runs
            while len(store.runs.list(state="done", limit=runs)) < runs:
                assert not store.runs.list(state="failed")
                assert time.monotonic() < deadline, [each for id in ids if (each := store.runs.get(id)).state != "done"]
                at_work.watch()
                time.sleep(0.5)
            ended = {id: store.runs.get(id) for id in ids}
            at_work.wake()  # when others have done their runs
            last = submit_order(store, "last")
            assert store.runs.wait(last, timeout=120).state == "done"
            time.sleep(2)  # for what those who were woken would do
            assert {id: store.runs.get(id) for id in ids} == ended
            assert sum(each.attempts > 1 for each in ended.values()) >= strikes // 4  # they were taken over
            for id, order in list(zip(ids, orders, strict=True))[:: max(runs // 100, 1)]:
                assert [each.state for each in store.runs.steps(id)] == ["done"] * 5
                if ended[id].graph == "chain":
                    thread = store.thread(ended[id].thread)
                    assert thread.get().state["log"] == [order, *(f"paid {part}" for part in range(5))]
                    assert len(thread.branches()) == 1
    finally:
        at_work.end()
        if server is not None:
            leftovers = left_over(url)
            server.stop()
        else:
            leftovers = left_over(url)
    ledgers.check([*orders, "last"], at_work.struck)
    assert leftovers == []


def submit_order(store: holdfast.Store, order: str) -> str:
    """Submit a run of the workflow, or of the graph: every fifth."""
    if order[1:].isdecimal() and int(order[1:]) % 5 == 0:
        return store.runs.submit(f"t-{order}", {"log": [order]}, graph="chain").id
    return store.runs.submit(f"t-{order}", [order], graph="buy").id


def wait_for_steps(ledgers: _Ledgers, count: int, workers: _Workers) -> None:
    """Wait until so many steps were started."""
    deadline = time.monotonic() + 120
    while (now := ledgers.count()) < count:
        assert time.monotonic() < deadline, f"{now} steps were started, and no more"
        workers.watch()
        time.sleep(0.005)


def test_a_ledger_is_written_line_by_line(tmp_path: Path) -> None:
    write_ledger(tmp_path / "l", "a")
    write_ledger(tmp_path / "l", "b")
    assert (tmp_path / "l").read_text() == "a\nb\n"
