"""The documents of lines in MongoDB: one update for a save, whatever is lost, moved, deleted or in the way."""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandListener

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.conformance.histories import Histories
from holdfast.backends.conformance.kit import Driven, Stores
from holdfast.backends.conformance.model import Model
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.conformance.suite import SyncOnly
from holdfast.backends.conformance.writes import Writes
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.mongodb import backend as mongodb_backend
from holdfast.backends.mongodb import commit_plan, committer, row_mover
from holdfast.backends.mongodb.backend import MongoDBBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import (
    BEHIND,
    BRANCHES,
    HEADS,
    LINES,
    METADATA,
    NODES,
    REFS,
    STEPS,
    TIME,
    WRITES,
    Key,
    Table,
)
from holdfast.errors import CorruptError, UnavailableError
from tests.backends.test_mongodb import _database, _empty
from tests.servers import mongodb
from tests.servers.mongod import MongoServer
from tests.support.nightly import by_day

LINE = ("tenant", "line")
INFO = row_of(LINES, *LINE, version=1)
KNOWN = Expect(LINES, LINE, INFO.columns)

EMBEDDED = (BRANCHES, STEPS, WRITES, REFS)


class Counted(CommandListener):
    """Counts commands that a store sends."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def started(self, event: Any) -> None:
        self.names[event.command_name] += 1

    def succeeded(self, event: Any) -> None:
        pass

    def failed(self, event: Any) -> None:
        pass

    def take(self) -> dict[str, int]:
        """What was sent since this was asked last, without what follows later."""
        names, self.names = self.names, Counter()
        return dict(names)


@pytest.fixture
def url() -> Iterator[str]:
    """A fresh database, dropped in the end."""
    found = mongodb()
    yield found
    with MongoClient[dict[str, Any]](found) as client:
        client.drop_database(client.get_default_database().name)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """The commands of the stores that are opened in a test."""
    listener = Counted()

    def heard(*arguments: Any, **options: Any) -> Any:
        return AsyncMongoClient(*arguments, event_listeners=[listener], **options)

    monkeypatch.setattr(mongodb_backend, "AsyncMongoClient", heard)
    return listener


@pytest.fixture
def store(url: str, counted: Counted) -> Iterator[Driven]:
    driven = _open(url)
    yield driven
    driven.close()
    del counted


@pytest.fixture
def other(url: str, store: Driven) -> Iterator[Driven]:
    """As another process has it."""
    driven = _open(url)
    yield driven
    driven.close()
    del store


@pytest.fixture
def plain(url: str) -> Iterator[Database[dict[str, Any]]]:
    """The database, as anybody sees it."""
    with MongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows move at once."""
    monkeypatch.setattr(commit_plan, "_MAX_ROWS", 4)
    monkeypatch.setattr(committer, "FEW_ROWS", 2)
    monkeypatch.setattr(row_mover, "FEW_ROWS", 2)
    monkeypatch.setattr(commit_plan, "_MAX_ROW_BYTES", 600)
    monkeypatch.setattr(row_mover, "_SECONDS", 0.0)


def _open(url: str, **options: Any) -> Driven:
    return Driven(run(MongoDBBackend.open(url, **options)), run)


def _commit(store: Driven, batches: list[Batch], stamp: GroupStamp) -> list[Any]:
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    return run(backend._run_in_loop(lambda: backend._commit(batches, stamp)))


def wait_until(holds: Callable[[], object]) -> None:
    """Until something holds that happens by itself."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _write(task: str, place: int = 0, step: str = "id-0") -> Row:
    return row_of(WRITES, *LINE, step, task, place, body=b"value")


def _ref(name: str, target: str = "id") -> Row:
    return row_of(REFS, *LINE, "name", name, "", target=target)


def _document(plain: Database[dict[str, Any]]) -> dict[str, Any]:
    found = plain.lines.find_one({"_id": {"tenant": "tenant", "line": "line"}})
    assert found is not None
    return found


# One update ---------------------------------------------------------------------------------------------------------


def test_a_save_is_one_command(store: Driven, counted: Counted) -> None:
    saves: list[list[Change]] = [
        [Expect(REFS, _ref("copy").key, None), Create(LINES, INFO), Create(STEPS, step(0)), Put(REFS, _ref("status"))],
        [KNOWN, Create(WRITES, _write("a")), Create(WRITES, _write("b"))],
        [KNOWN, Create(STEPS, step(1)), Delete(WRITES, _write("a").key), Delete(WRITES, _write("b").key)],
        [KNOWN, Create(STEPS, step(2)), Put(REFS, _ref("status", "other"))],
        [KNOWN, Put(LINES, row_of(LINES, *LINE, version=2)), Create(BRANCHES, row_of(BRANCHES, *LINE, 1))],
        [Expect(LINES, LINE, row_of(LINES, *LINE, version=2).columns), Create(STEPS, step(0, branch=1))],
    ]
    for batch in saves:
        counted.take()
        assert store.apply(*batch) is None
        assert counted.take() == {"update": 1}
    assert store.scan(STEPS) == [step(0), step(1), step(2), step(0, branch=1)]
    assert store.scan(WRITES) == []
    assert store.scan(REFS) == [_ref("status", "other")]
    counted.take()
    store.read(
        Get(LINES, [LINE]), Scan(STEPS, LINE, reverse=True, limit=1, by="id"), Scan(WRITES, LINE), Scan(NODES, LINE)
    )
    assert counted.take() == {"aggregate": 1}


def test_a_save_whose_readable_rows_follow_is_one_command(
    store: Driven, counted: Counted, plain: Database[dict[str, Any]]
) -> None:
    """It has a mark of each step that people do not see yet, by which an index finds the line."""

    def mark(n: int) -> Row:
        return row_of(BEHIND, *LINE, f"id-{n}", time=n + 1)

    assert store.apply(Create(LINES, INFO), Create(STEPS, step(0)), Put(BEHIND, mark(0))) is None
    assert store.apply(Create(LINES, row_of(LINES, "tenant", "other"))) is None
    for n in range(1, 4):
        counted.take()
        assert store.apply(KNOWN, Create(STEPS, step(n)), Put(BEHIND, mark(n))) is None
        assert counted.take() == {"update": 1}
    assert store.scan(BEHIND) == [mark(n) for n in range(4)]
    (found,) = store.read(Scan(BEHIND, ("tenant",)))
    assert found == [mark(n) for n in range(4)]
    some = {"_id.tenant": "tenant", "behind": {"$gt": {}}}
    assert [each["_id"]["line"] for each in plain.lines.find(some)] == ["line"]
    assert plain.lines.find(some).explain()["queryPlanner"]["winningPlan"]["inputStage"]["indexName"] == "behind"
    rows = [Put(METADATA, row_of(METADATA, *LINE, f"id-{n}", "key", value=str(n))) for n in range(4)]
    assert store.apply(KNOWN, *rows, *(Delete(BEHIND, mark(n).key) for n in range(4))) is None
    assert plain.metadata.count_documents({}) == 4
    assert store.scan(BEHIND) == []
    assert plain.lines.count_documents(some) == 0


def test_lines_of_one_group_are_sent_together(store: Driven, counted: Counted) -> None:
    lines = [("tenant", f"line {n}") for n in range(20)]
    first: list[Batch] = [[Create(LINES, row_of(LINES, *line))] for line in lines]
    counted.take()
    assert _commit(store, first, GroupStamp("client", 0, 1)) == [None] * 20
    assert counted.take().get("update") == 1
    again: list[Batch] = [[Create(STEPS, step(0, line=line[1]))] for line in lines]
    again.append([Create(STEPS, step(0, line="line 3"))])
    again.append([Create(NODES, row_of(NODES, *lines[7], 0, b"n", body=b"node"))])
    assert _commit(store, again, GroupStamp("client", 0, 2)) == [*[None] * 20, 0, None]
    assert len(store.scan(STEPS)) == 20
    assert len(store.scan(NODES)) == 1


# Lost answers -------------------------------------------------------------------------------------------------------


def test_a_group_whose_answer_was_lost_is_recognised_when_others_have_written_since(
    store: Driven, other: Driven
) -> None:
    stamp = GroupStamp("client", 0, 7)
    group: list[Batch] = [
        [Create(LINES, INFO), Create(STEPS, step(0))],
        [Create(STEPS, step(0))],
        [Put(REFS, _ref("a"))],
    ]
    assert _commit(store, group, stamp) == [None, 0, None]
    assert other.apply(KNOWN, Create(STEPS, step(1)), Put(REFS, _ref("a", "newer"))) is None
    assert other.apply(KNOWN, Delete(STEPS, step(0).key)) is None
    assert _commit(store, group, stamp) == [None, 0, None]
    assert (store.scan(STEPS), store.scan(REFS)) == ([step(1)], [_ref("a", "newer")])
    assert store.apply(Delete(LINES, LINE), Delete(STEPS, LINE), Delete(REFS, LINE)) is None
    assert _commit(store, group, stamp) == [None, 0, None], "made again after the line was deleted"
    with pytest.raises(UnavailableError, match="later group"):
        _commit(store, group, GroupStamp("client", 0, 6))


def test_writes_whose_answer_was_lost_are_recognised(store: Driven, other: Driven) -> None:
    assert store.apply(Create(LINES, INFO), Create(STEPS, step(0))) is None
    group: list[Batch] = [[KNOWN, Create(WRITES, _write("a"))]]
    assert _commit(store, group, GroupStamp("client", 0, 1)) == [None]
    assert other.apply(KNOWN, Create(STEPS, step(1)), Delete(WRITES, _write("a").key)) is None
    assert _commit(store, group, GroupStamp("client", 0, 1)) == [None]
    assert store.scan(WRITES) == []


class _Failing(MongoServer):
    """A server that fails when told to."""

    def command(self) -> list[Any]:
        return [*super().command(), "--setParameter", "enableTestCommands=1"]


@pytest.mark.nightly  # by day, answers that are lost on the way
def test_an_update_that_is_not_confirmed_is_looked_up() -> None:
    mongodb()  # skips where there is no MongoDB
    interrupted = {"code": 11602, "errmsg": "interrupted"}
    failures: list[dict[str, Any]] = [
        {"writeConcernError": interrupted},  # it was made
        {"errorCode": 91},
        {"closeConnection": True},
        {"errorCode": 50},
    ]
    with _Failing().start() as server, MongoClient[dict[str, Any]](server.url) as client:
        store = _open(server.fresh(), timeout=120)
        assert store.apply(Create(LINES, INFO)) is None
        batches: list[list[Change]] = [[KNOWN], []]
        for number, failure in enumerate(failures):
            for kind, batch in enumerate(batches):
                point = {"configureFailPoint": "failCommand", "mode": {"times": 1 + kind}}
                client.admin.command({**point, "data": {"failCommands": ["update"], **failure}})
                written = f"{number}-{kind}"
                assert store.apply(*batch, Create(STEPS, step(2 * number + kind)), Put(REFS, _ref(written))) is None
                assert store.apply(KNOWN, Create(WRITES, _write(written))) is None
        assert len(store.scan(STEPS)) == len(store.scan(REFS)) == len(store.scan(WRITES)) == 2 * len(failures)
        store.close()


def test_an_update_that_arrives_late_is_not_made(store: Driven, plain: Database[dict[str, Any]]) -> None:
    """Its caller gave up; another batch of the client was acknowledged meanwhile."""
    assert store.apply(Create(LINES, INFO)) is None
    sent: list[dict[str, Any]] = []
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    database = backend._collections.database
    command = type(database).command

    async def late(self: Any, name: Any, *values: Any, **options: Any) -> Any:
        if isinstance(name, dict) and not sent:
            sent.append(name)
            return {"n": 0}
        return await command(self, name, *values, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(database), "command", late)
        assert store.apply(Put(REFS, _ref("a", "first"))) is None
    assert store.apply(Put(REFS, _ref("a", "second"))) is None
    assert plain.command(sent[0])["n"] == 0
    assert store.scan(REFS) == [_ref("a", "second")]


# Others -------------------------------------------------------------------------------------------------------------


def test_writes_do_not_disturb_who_appends(store: Driven, other: Driven, counted: Counted) -> None:
    assert store.apply(Create(LINES, INFO), Create(STEPS, step(0))) is None
    for n in range(1, 5):
        assert other.apply(KNOWN, Create(WRITES, _write("t", n))) is None
        counted.take()
        assert store.apply(KNOWN, Create(STEPS, step(n))) is None
        assert counted.take() == {"update": 1}
    assert other.apply(KNOWN, Create(WRITES, _write("t", 2))) == 1
    assert store.apply(KNOWN, Put(LINES, row_of(LINES, *LINE, version=2))) is None
    assert other.apply(KNOWN, Create(WRITES, _write("t", 7))) == 0


def test_writes_change_nothing_of_what_is_known_of_a_line(store: Driven, counted: Counted) -> None:
    states = [row_of(HEADS, *LINE, steps=n) for n in range(3)]
    assert store.apply(Create(LINES, INFO), Put(HEADS, states[0])) is None
    assert store.apply(KNOWN, Expect(HEADS, LINE, states[0].columns), Put(HEADS, states[1])) is None
    assert store.apply(KNOWN, Create(WRITES, _write("a"))) is None
    assert store.apply(KNOWN, Expect(HEADS, LINE, None), Put(HEADS, states[2])) == 1
    assert store.apply(KNOWN, Expect(HEADS, LINE, states[1].columns), Put(HEADS, states[1])) is None
    assert store.apply(KNOWN, Create(WRITES, _write("b"))) is None
    counted.take()
    assert store.apply(KNOWN, Expect(HEADS, LINE, states[1].columns), Put(HEADS, states[2])) is None
    assert "aggregate" not in counted.take()
    assert store.scan(HEADS) == [states[2]]


def test_writes_that_come_while_their_step_is_pruned_are_not_left_over(
    store: Driven, other: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion was planned before they came."""
    assert store.apply(Create(LINES, INFO), Create(WRITES, _write("a"))) is None
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    read, came = commit_plan.read_view, list[Any]()

    async def slow(*arguments: Any) -> Any:
        view = await read(*arguments)
        if not came:
            came.append(await asyncio.to_thread(other.apply, KNOWN, Create(WRITES, _write("b"))))
        return view

    monkeypatch.setattr(committer, "read_view", slow)
    assert store.apply(KNOWN, Delete(WRITES, (*LINE, "id-0")), Delete(LINES, LINE)) is None
    assert came == [None]
    assert store.scan(WRITES) == []


def test_a_put_against_a_deletion_is_kept_or_refused(store: Driven, other: Driven) -> None:
    outcomes: Counter[tuple[int | None, int | None]] = Counter()
    for n in range(300):
        if n >= by_day(60, 12) and len(outcomes) > 1:
            break
        line = ("tenant", f"line {n}")
        info = row_of(LINES, *line, version=1)
        first: list[Change] = [Create(LINES, info), Create(STEPS, step(0, line=line[1]))]
        assert (store if n % 2 else other).apply(*first) is None
        done: list[Any] = [0, 0, 0]
        known = Expect(LINES, line, info.columns)

        def put(name: str = str(line[1]), known: Expect = known, done: list[Any] = done) -> None:
            done[0] = store.apply(known, Create(STEPS, step(1, line=name)))

        def write(line: Key = line, known: Expect = known, done: list[Any] = done) -> None:
            done[1] = store.apply(known, Create(WRITES, row_of(WRITES, *line, "id", "t", 0)))

        def delete(line: Key = line, known: Expect = known, done: list[Any] = done) -> None:
            done[2] = other.apply(known, *(Delete(table, line) for table in (LINES, STEPS, WRITES)))

        threads = [threading.Thread(target=each) for each in (put, write, delete)]
        for thread in threads[n % 3 :] + threads[: n % 3]:
            thread.start()
        for thread in threads:
            thread.join()
        assert done[2] is None
        for table in (LINES, STEPS, WRITES):
            assert store.scan(table, line) == other.scan(table, line) == []
        assert set(done) <= {None, 0}
        outcomes[done[0], done[1]] += 1
        # What is left of the line does not stand in the way, before it is tidied or after.
        if n % 3 == 0:
            run(other.backend.tidy())
        assert store.apply(known, Create(STEPS, step(1, line=line[1]))) == 0
        assert store.apply(*first) is None
    assert len(outcomes) > 1, "never at the same time"


# Reading ------------------------------------------------------------------------------------------------------------


def test_a_read_of_a_line_gets_its_document(store: Driven, counted: Counted) -> None:
    rows = [step(n, id=f"id-{9 - n}") for n in range(4)]
    assert store.apply(Create(LINES, INFO), *(Create(STEPS, each) for each in rows)) is None
    assert store.apply(Create(LINES, row_of(LINES, "tenant", "other")), Create(STEPS, step(0, line="other"))) is None
    counted.take()
    found = store.read(
        Scan(STEPS, LINE, (0, 1), (0, 3), reverse=True),
        Scan(STEPS, LINE, limit=2, by="id"),
        Scan(STEPS, (*LINE, "id-8"), by="id"),
        Get(STEPS, [rows[2].key, rows[0].key, (*LINE, 0, 7)]),
        Get(LINES, [LINE]),
        Scan(WRITES, LINE),
    )
    assert counted.take() == {"aggregate": 1}
    expected = [[rows[2], rows[1]], [rows[3], rows[2]], [rows[1]], [rows[0], rows[2]], [INFO], []]
    assert [found[0], found[1], found[2], sorted(found[3]), *found[4:]] == expected
    both = store.read(Get(STEPS, [rows[0].key, ("tenant", "other", 0, 0)]))[0]
    assert sorted(both) == [rows[0], step(0, line="other")]


@pytest.mark.parametrize("change", [{"$set": {"steps.0,0": 5}}, {"$unset": {"steps.0,0.id": ""}}], ids=str)
def test_a_document_that_was_changed_by_hand_is_damage(
    store: Driven, plain: Database[dict[str, Any]], change: dict[str, Any]
) -> None:
    assert store.apply(Create(LINES, INFO), Create(STEPS, step(0))) is None
    plain.lines.update_one({"_id.line": "line"}, change)
    for query in (Scan(STEPS, LINE), Scan(STEPS, LINE, by="id"), Get(STEPS, [step(0).key])):
        with pytest.raises(CorruptError):
            store.read(query)


# Rows that move -----------------------------------------------------------------------------------------------------


def _check_places(plain: Database[dict[str, Any]]) -> int:
    """Check that no row is in two places. Returns how many have moved."""
    moved = 0
    with plain.client.start_session(snapshot=True) as session:
        for line in plain.lines.find({"_id.line": {"$exists": True}}, session=session):
            for table in EMBEDDED:
                here = {tuple(row["_id"].values()) for row in line.get(table.name, {}).values()}
                of_line = {f"_id.{name}": line["_id"][name] for name in ("tenant", "line")}
                there = {tuple(row["_id"].values())[2:] for row in plain[table.name].find(of_line, session=session)}
                assert not here & there, table
                moved += len(there)
    return moved


@pytest.mark.usefixtures("moving")
def test_rows_that_moved_are_changed_where_they_are(store: Driven, plain: Database[dict[str, Any]]) -> None:
    assert store.apply(Create(LINES, INFO), Create(STEPS, step(0, id="a0"))) is None
    for n in range(1, 12):
        assert store.apply(KNOWN, Create(STEPS, step(n, id=f"a{n}")), Put(REFS, _ref(f"r{n}"))) is None
        assert store.apply(KNOWN, Create(WRITES, _write("t", n))) is None
    assert _check_places(plain) > 15
    assert "0,0" not in _document(plain).get("steps", {})
    for n in range(12):
        assert store.apply(KNOWN, Create(STEPS, step(n))) == 1
    assert store.apply(Create(REFS, _ref("r3"))) == 0
    assert store.apply(Create(WRITES, _write("t", 3))) == 0
    assert store.apply(Expect(REFS, _ref("r3").key, _ref("r3").columns), Put(REFS, _ref("r3", "new"))) is None
    assert store.apply(Put(STEPS, step(2, id="b"))) is None
    assert store.apply(Delete(WRITES, _write("t", 4).key), Delete(STEPS, step(5).key)) is None
    assert store.apply(Create(STEPS, step(5, id="again"))) is None
    assert store.apply(Create(STEPS, step(0, branch=3, id="c"))) is None
    _check_places(plain)
    assert store.scan(REFS, (*LINE, "name", "r3")) == [_ref("r3", "new")]
    assert [row.columns[0] for row in store.scan(STEPS, LINE, by="id", reverse=True, limit=3)] == ["c", "b", "again"]
    assert len(store.scan(WRITES)) == 10
    assert store.apply(Delete(STEPS, LINE), Delete(WRITES, LINE), Delete(REFS, LINE)) is None
    assert _check_places(plain) == 0
    assert store.apply(KNOWN, Create(STEPS, step(0)), Create(WRITES, _write("t", 3))) is None


def test_a_line_with_many_branches_has_few_marks(store: Driven, plain: Database[dict[str, Any]]) -> None:
    rows = [step(0, branch=branch, id=f"{branch:04}") for branch in range(300)]
    store.fill(STEPS, rows)
    assert len(_document(plain)["moved"]["steps"]) == 1
    assert store.apply(Create(STEPS, step(1, branch=7))) is None
    assert store.apply(Create(STEPS, step(0, branch=7))) == 0
    assert store.apply(Create(STEPS, step(1, branch=7))) == 0
    assert len(store.scan(STEPS)) == 301


def test_many_rows_move_by_themselves(store: Driven, counted: Counted, plain: Database[dict[str, Any]]) -> None:
    assert store.apply(Create(LINES, INFO)) is None
    for n in range(24):
        assert store.apply(KNOWN, Create(STEPS, step(n))) is None
    assert len(_document(plain)["steps"]) == 24
    assert store.apply(KNOWN, Create(STEPS, step(24)), Ensure(NODES, row_of(NODES, *LINE, 0, b"n", body=b"n"))) is None
    wait_until(lambda: plain.steps.count_documents({}) == 25)
    assert "steps" not in _document(plain)
    counted.take()
    assert store.apply(KNOWN, Create(STEPS, step(25))) is None
    assert store.apply(KNOWN, Create(STEPS, step(3))) == 1
    assert counted.take()["update"] == 2
    assert store.scan(STEPS) == [step(n) for n in range(26)]
    assert _check_places(plain) == 25


@pytest.mark.nightly  # by day, the limit is made smaller
def test_a_document_near_16_megabytes(
    store: Driven, other: Driven, plain: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only somebody who adds to it without reading it makes it so large; the server then says that it is full."""
    monkeypatch.setattr(commit_plan, "_MAX_BYTES", 1 << 30)
    monkeypatch.setattr(commit_plan, "_MAX_ROW_BYTES", 1 << 30)
    assert store.apply(Create(LINES, INFO)) is None
    rows = [row_of(WRITES, *LINE, f"id-{n:02}", "t", 0, body=random.Random(n).randbytes(1 << 20)) for n in range(20)]
    for row in rows[:15]:
        assert store.apply(KNOWN, Create(WRITES, row)) is None
    assert len(_document(plain)["writes"]) == 15
    assert store.apply(KNOWN, Create(STEPS, step(0))) is None
    monkeypatch.setattr(commit_plan, "_MAX_BYTES", 256 << 10)
    for row in rows[15:]:
        assert other.apply(KNOWN, Create(WRITES, row)) is None
    assert store.apply(KNOWN, Create(STEPS, step(1))) is None
    assert store.scan(WRITES) == rows
    assert store.scan(STEPS) == [step(0), step(1)]
    assert len(_document(plain).get("writes", {})) < 8
    _check_places(plain)


def test_steps_by_time_are_found_wherever_they_are(store: Driven, counted: Counted) -> None:
    chance = random.Random(5)
    rows = []
    for n in range(150):
        line = f"line {chance.randrange(12)}"
        row = row_of(STEPS, "tenant", line, 0, n, id=f"id-{n}", time=1000 + n // 2)
        rows.append(row)
        fold: list[Change] = [Create(NODES, row_of(NODES, "tenant", line, n, b"n", body=b"n"))] if n % 9 == 0 else []
        assert store.apply(Create(STEPS, row), *fold) is None
    place = list(STEPS.columns).index("time")
    rows.sort(key=lambda row: (row.columns[place], row.key))
    for start, stop in (((), ()), ((1020,), (1050,)), ((1020,), ()), ((), (1031, "tenant"))):
        found = [
            row
            for row in rows
            if (not start or row.columns[place] >= start[0]) and (not stop or row.columns[place] < stop[0])  # type: ignore[operator]
        ]
        if len(stop) > 1:
            stop = stop[:1]
        for reverse in (False, True):
            expected = found[::-1] if reverse else found
            for limit in (1, 7, 40, None):
                scan = Scan(STEPS, ("tenant",), start, stop, reverse, limit, TIME)
                assert store.read(scan)[0] == expected[:limit], (start, stop, reverse, limit)
    counted.take()
    store.read(Scan(STEPS, ("tenant",), (), (), True, 5, TIME))
    assert counted.take()["aggregate"] == 2


def test_pages_over_lines(store: Driven) -> None:
    lines = [f"line {n:03}" for n in range(200)]
    rows = [row_of(REFS, "tenant", line, "status", "", "", target="t") for line in lines]
    store.fill(REFS, rows)
    assert store.read(Scan(REFS, ("tenant",), limit=3))[0] == rows[:3]
    assert store.read(Scan(REFS, ("tenant",), (lines[50],), (lines[60],), limit=100))[0] == rows[50:60]
    assert store.read(Scan(REFS, ("tenant",), (), (lines[60],), limit=2, reverse=True))[0] == [rows[59], rows[58]]
    assert store.read(Scan(REFS, (), limit=150))[0] == rows[:150]


# Histories ----------------------------------------------------------------------------------------------------------

HISTORY = (LINES, STEPS, WRITES, REFS, HEADS, NODES)


def _random_row(chance: random.Random, table: Table) -> Row:
    key: list[Any] = [chance.choice("ab"), chance.choice("ab")]
    for name, kind in list(table.key.items())[2:]:
        key.append(
            chance.choice([0, 1, 7]) if kind is int else b"\0" if kind is bytes else chance.choice(["", "a.b", "$c"])
        )
        del name
    columns = {name: kind(chance.randrange(2)) if kind is int else kind() for name, kind in table.columns.items()}
    body = bytes(chance.choice([0, 3, 700])) if table is not HEADS else b""
    return row_of(table, *key, body=body, **columns)


def _random_change(chance: random.Random, model: Model) -> Change:
    table = chance.choice(HISTORY)
    row = _random_row(chance, table)
    kind = chance.choice([Create, Create, Put, Put, Ensure, Delete, Expect])
    if kind is Delete:
        return Delete(table, row.key[: chance.choice([len(row.key), len(row.key), 2, 3, 1])])
    if kind is Expect:
        found = model.rows.get((table.name, row.key))
        return Expect(table, row.key, found.columns if found else None)
    assert kind is not Delete
    return kind(table, row)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 1 else pytest.mark.nightly) for seed in range(40)]
)
@pytest.mark.usefixtures("moving")
def test_two_stores_answer_as_one_model_does(
    seed: int, store: Driven, other: Driven, plain: Database[dict[str, Any]]
) -> None:
    """While rows move all the time, and each of them knows only what it did itself."""
    chance, model = random.Random(seed), Model()
    for at in range(80):
        batch = [_random_change(chance, model) for _ in range(chance.randrange(1, 5))]
        keys = [(change.space, change.row.key) for change in batch if isinstance(change, Create | Ensure | Put)]
        gone = [change for change in batch if isinstance(change, Delete)]
        if len(set(keys)) < len(keys) or any(
            space is each.space and key[: len(each.prefix)] == each.prefix for space, key in keys for each in gone
        ):
            continue
        handle = chance.choice([store, store, other])
        failed = model.apply(batch)
        assert handle.apply(*batch) == (failed[0] if failed else None), f"batch {at}: {batch}"
        if at % 8 == 0:
            for table in HISTORY:
                scan = Scan(table, (), limit=chance.choice([None, 2]), reverse=chance.random() < 0.5)
                assert chance.choice([store, other]).read(scan)[0] == model.read(scan), f"batch {at}: {table}"
    for table in HISTORY:
        assert store.scan(table) == other.scan(table) == model.read(Scan(table, ()))
        assert run(store.backend.count_rows([Scan(table, ())])) == [len(model.read(Scan(table, ())))]
    _check_places(plain)


@pytest.mark.nightly  # by day, rows move in the tests above
@pytest.mark.usefixtures("moving")
class TestMovingRows(Histories, Writes, SyncOnly):
    """The suite on a store whose rows move at once."""

    histories = 15

    @pytest.fixture
    def stores(self) -> Iterator[Stores]:
        url = _database()
        yield Stores(url)
        _empty(url)


def test_a_failed_move_is_made_later(
    store: Driven, plain: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "FEW_ROWS", 0)
    monkeypatch.setattr(row_mover, "FEW_ROWS", 0)
    monkeypatch.setattr(row_mover, "_SECONDS", 0.01)
    blocking = f"blocked-{secrets.token_hex(2)}"
    plain.command("collMod", "refs", validator={"target": {"$ne": blocking}})
    assert store.apply(Create(LINES, INFO), Put(REFS, _ref("a", blocking))) is None
    assert store.scan(REFS) == [_ref("a", blocking)]
    plain.command("collMod", "refs", validator={})
    store.close()
    assert plain.refs.count_documents({}) == 1
