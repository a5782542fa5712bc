"""What only stores in MongoDB have: documents that people can read, bodies in parts, replica sets and their limits."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bson import Int64
from pymongo import MongoClient
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.database import Database
from pymongo.driver_info import DriverInfo
from pymongo.errors import OperationFailure

import holdfast
from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.conformance.kit import Driven, case
from holdfast.backends.conformance.rows import meaning, row_of, step
from holdfast.backends.interface import Batch, Change, Create, Delete, Ensure, Expect, Get, Put, Row, Scan
from holdfast.backends.mongodb import commit_plan, committer, maintenance
from holdfast.backends.mongodb import large_bodies as mongodb_uploads
from holdfast.backends.mongodb.backend import MongoDBBackend
from holdfast.backends.mongodb.commit_group import Part
from holdfast.backends.mongodb.schema import Collections
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, METADATA, NODES, OBJECTS, STEPS, WORDS, Table
from holdfast.errors import ConfigError, HoldfastError, InvalidError, TooLargeError, UnavailableError
from tests.servers import MongoServer, mongodb, mongodb_server
from tests.support.nightly import by_night

MIB = 1 << 20
LINE = ("tenant", "line")


@pytest.fixture
def url() -> Iterator[str]:
    """A fresh database, dropped in the end."""
    found = mongodb()
    yield found
    with MongoClient[dict[str, Any]](found) as client:
        client.drop_database(client.get_default_database().name)


@pytest.fixture
def store(url: str) -> Iterator[Driven]:
    driven = _open(url)
    yield driven
    driven.close()


@pytest.fixture
def plain(url: str) -> Iterator[Database[dict[str, Any]]]:
    """The database, as anybody sees it."""
    with MongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()


def _open(url: str, **options: Any) -> Driven:
    return Driven(run(MongoDBBackend.open(url, **options)), run)


def _body(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def _wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _commit(store: Driven, batches: list[Batch], stamp: GroupStamp) -> list[Any]:
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    return run(backend._run_in_loop(lambda: backend._commit(batches, stamp)))


# Documents ----------------------------------------------------------------------------------------------------------


def test_documents_are_what_a_person_would_ask_for(store: Driven, plain: Database[dict[str, Any]]) -> None:
    value = '{"user": {"name": "Ada", "tags": ["a", 1, null, 2.5]}, "a.b": true}'
    store.fill(STEPS, [step(n, id=f"id-{n}", hash=b"\x00\xff", time=2**53 + 1) for n in range(3)])
    store.fill(NODES, [row_of(NODES, *LINE, 0, b"\x00\xff", body=b"node")])
    store.fill(METADATA, [row_of(METADATA, "tenant", "thread", "id-1", "source", value=value)])
    _wait_until(lambda: plain.metadata.count_documents({}))

    (line,) = plain.lines.find({"_id": {"tenant": "tenant", "line": "line"}})
    found = line["steps"]["0,1"]
    assert (found["_id"], found["id"], found["time"]) == ({"branch": 0, "seq": 1}, "id-1", 2**53 + 1)
    assert (found["hash"], found["body"]) == (b"\x00\xff", b"body")
    assert isinstance(found["_id"]["seq"], Int64)
    assert plain.nodes.find_one({"_id.node": "00ff"}) is not None
    entry = plain.metadata.find_one({"value.user.name": "Ada"})
    assert entry is not None
    assert entry["value"]["user"]["tags"] == ["a", 1, None, 2.5]


def test_json_that_mongodb_cannot_hold_is_kept_as_text(store: Driven) -> None:
    cases = {
        "dollar": '{"$set": 1}',
        "nested dollar": '{"a": {"$ref": "x"}}',
        "large number": str(2**64),
        "half a character": '"\\ud800"',
        "deep": "[" * 90 + "]" * 90,
        "zero in a name": '{"\\u0000": 1}',
        "none at all": "not JSON",
    }
    for name, text in cases.items():
        row = row_of(METADATA, "tenant", "thread", "id", name, value=text)
        with case(name):
            store.fill(METADATA, [row])
            assert store.scan(METADATA, row.key) == [row]


def test_json_that_would_outgrow_a_document_is_kept_as_text(store: Driven) -> None:
    text = "[" + ",".join("1" for _ in range(150_000)) + "]"
    row = row_of(METADATA, "tenant", "thread", "id", "key", value=text)
    store.fill(METADATA, [row])
    assert [meaning(METADATA, each) for each in store.scan(METADATA)] == [meaning(METADATA, row)]


def test_json_is_expected_by_what_it_means(store: Driven) -> None:
    row = row_of(METADATA, "tenant", "thread", "id", "key", value='{"a": 1, "b": 2}')
    store.fill(METADATA, [row])
    assert store.apply(Expect(METADATA, row.key, ('{"b":2,"a":1}',))) is None
    assert store.apply(Expect(METADATA, row.key, ('{"b":2,"a":true}',))) == 0


def test_scans_use_the_indexes(store: Driven, plain: Database[dict[str, Any]]) -> None:
    store.fill(STEPS, [step(n, id=f"{n:04}", branch=n % 3) for n in range(300)])
    key = {"tenant": "tenant", "line": "line", "branch": 1}
    within = {"_id": {"$gte": key, "$lt": {**key, "branch": 2}}}
    plan = plain.steps.find(within).sort("_id", -1).limit(2).explain()
    assert plan["executionStats"]["totalDocsExamined"] == 2
    by_id = {"_id.tenant": "tenant", "_id.line": "line", "id": {"$gte": "0100"}}
    order = [("_id.tenant", 1), ("_id.line", 1), ("id", 1), ("revision", 1), ("_id", 1)]
    plan = plain.steps.find(by_id).sort(order).limit(2).explain()
    assert plan["executionStats"]["totalDocsExamined"] == 2


def test_two_stores_share_a_database_under_prefixes(url: str, plain: Database[dict[str, Any]]) -> None:
    one, two = _open(url, prefix="one_"), _open(f"{url}&prefix=two.")
    one.fill(STEPS, [step(1)])
    assert two.scan(STEPS) == []
    two.fill(STEPS, [step(2)])
    assert one.scan(STEPS) == [step(1)]
    assert plain["one_lines"].count_documents({}) == plain["two.lines"].count_documents({}) == 1
    one.close()
    two.close()


# Bodies in parts ----------------------------------------------------------------------------------------------------


def _parts(plain: Database[dict[str, Any]]) -> int:
    return plain.parts.count_documents({})


@pytest.mark.nightly
def test_a_body_of_40_megabytes(store: Driven, plain: Database[dict[str, Any]]) -> None:
    row = row_of(OBJECTS, *LINE, b"d", 0, body=_body(40 * MIB))
    assert store.apply(Create(OBJECTS, row), Create(STEPS, step(1))) is None
    assert store.apply(Create(OBJECTS, row)) == 0
    assert _parts(plain) == 5
    found, bare = store.read(Get(OBJECTS, [row.key]), Scan(OBJECTS, LINE, bodies=False))
    assert found[0] == row
    assert bare[0].key == row.key
    assert store.scan(OBJECTS)[0] == row

    small = row._replace(body=b"small")
    assert store.apply(Put(OBJECTS, small)) is None
    assert store.scan(OBJECTS) == [small]
    assert _parts(plain) == 0
    assert plain.lines.count_documents({"_id.upload": {"$exists": True}}) == 0


@pytest.mark.nightly
def test_many_bodies_that_are_too_much_together(store: Driven, plain: Database[dict[str, Any]]) -> None:
    rows = [row_of(OBJECTS, *LINE, b"d", n, body=_body(MIB + n)) for n in range(40)]
    other = row_of(OBJECTS, "tenant", "other", b"d", 0, body=_body(9 * MIB))
    assert store.apply(*(Ensure(OBJECTS, row) for row in rows)) is None
    assert store.apply(Create(OBJECTS, other)) is None
    assert _parts(plain) == 42
    assert store.scan(OBJECTS, LINE) == rows
    assert store.apply(Delete(OBJECTS, rows[3].key)) is None
    assert _parts(plain) == 41
    assert store.apply(Delete(OBJECTS, (*LINE, b"d"))) is None
    assert _parts(plain) == 2
    assert store.scan(OBJECTS) == [other]
    assert store.apply(Delete(OBJECTS, ())) is None
    assert _parts(plain) == 0


@pytest.mark.nightly
def test_parts_that_are_not_wanted_after_all_are_removed(store: Driven, plain: Database[dict[str, Any]]) -> None:
    row = row_of(OBJECTS, *LINE, b"d", 0, body=_body(9 * MIB))
    store.fill(OBJECTS, [row])
    again = row._replace(body=_body(10 * MIB))
    assert store.apply(Ensure(OBJECTS, again), Create(STEPS, step())) is None
    assert store.apply(Create(OBJECTS, again)) == 0
    assert store.scan(OBJECTS) == [row]
    assert _parts(plain) == 2


def test_an_upload_that_nobody_refers_to_is_swept_once_it_is_old(
    store: Driven, plain: Database[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain.lines.update_one({"_id": {"upload": "u"}}, {"$currentDate": {"begun": True}}, upsert=True)
    plain.parts.insert_one({"_id": {"upload": "u", "part": 0}, "data": b"x"})
    run(store.backend.tidy())
    assert _parts(plain) == 1, "it may be under way"
    monkeypatch.setattr(mongodb_uploads, "_MAX_AGE_MS", -1000)
    run(store.backend.tidy())
    assert _parts(plain) == 0
    assert plain.lines.count_documents({}) == 0


def test_a_body_whose_parts_are_gone_is_corrupt(store: Driven, plain: Database[dict[str, Any]]) -> None:
    row = row_of(OBJECTS, *LINE, b"d", 0, body=_body(9 * MIB))
    store.fill(OBJECTS, [row])
    plain.parts.delete_one({"_id.part": 1})
    with pytest.raises(holdfast.errors.CorruptError, match="1 of its 2 parts"):
        store.scan(OBJECTS)


def test_what_no_document_has_room_for_is_refused(store: Driven) -> None:
    with pytest.raises(TooLargeError, match="columns"):
        store.apply(Create(STEPS, step(metadata="x" * (7 * MIB))))
    with pytest.raises(TooLargeError):
        store.apply(Create(OBJECTS, row_of(OBJECTS, *LINE, b"d", 0, body=bytes(257 * MIB))))
    assert store.scan(STEPS) == []


# Groups -------------------------------------------------------------------------------------------------------------


def test_a_group_that_comes_again_is_made_once(store: Driven) -> None:
    batches: list[Batch] = [[Put(STEPS, step(0))], [Create(STEPS, step(0))], [Put(STEPS, step(1))]]
    stamp = GroupStamp("client", 0, 5)
    assert _commit(store, batches, stamp) == [None, 1 - 1, None]
    assert store.apply(Delete(STEPS, LINE)) is None
    assert _commit(store, batches, stamp) == [None, 0, None]
    assert store.scan(STEPS) == [], "made twice"
    with pytest.raises(UnavailableError, match="later group"):
        _commit(store, batches, GroupStamp("client", 0, 4))
    assert _commit(store, batches, GroupStamp("client", 1, 4)) == [None, 0, None], "another slot"


def test_what_is_remembered_of_a_line_does_not_outlive_it(url: str, store: Driven) -> None:
    """Another handle changes what this one remembers; every kind of condition sees it."""
    other = _open(url)
    line = row_of(LINES, *LINE, created=1)
    changed = row_of(LINES, *LINE, created=2)
    usual: tuple[Change, ...] = (Expect(LINES, LINE, line.columns), Create(STEPS, step(1)))
    store.fill(LINES, [line])
    assert store.apply(Expect(LINES, LINE, line.columns), Create(STEPS, step(0))) is None
    other.fill(LINES, [changed])
    assert store.apply(*usual) == 0
    other.fill(LINES, [line])
    assert other.apply(Create(STEPS, step(1))) is None
    assert store.apply(*usual) == 1
    assert other.apply(Delete(LINES, ()), Delete(STEPS, ())) is None
    assert store.apply(*usual) == 0
    assert store.apply(Expect(LINES, LINE, None), Create(STEPS, step(1))) is None
    assert other.scan(STEPS) == [step(1)]
    other.close()


def test_no_batch_is_refused_for_what_is_out_of_date(url: str, store: Driven) -> None:
    """It comes in a group with another, whose lines nobody else has touched."""
    other = _open(url)
    one, two = row_of(LINES, "tenant", "one"), row_of(LINES, "tenant", "two")
    changed = row_of(LINES, "tenant", "two", version=1)
    assert _commit(store, [[Create(LINES, one)], [Create(LINES, two)]], GroupStamp("client", 0, 1)) == [None, None]
    other.fill(LINES, [changed])
    group: list[Batch] = [
        [Create(STEPS, step(line="one"))],
        [Expect(LINES, two.key, changed.columns), Create(STEPS, step(line="two"))],
    ]
    assert _commit(store, group, GroupStamp("client", 0, 2)) == [None, None]
    assert len(store.scan(STEPS)) == 2
    other.close()


def test_a_key_that_is_taken_is_so_for_a_group_that_deletes_it_too(store: Driven) -> None:
    assert store.apply(Create(LINES, row_of(LINES, *LINE)), Create(STEPS, step(0))) is None
    group: list[Batch] = [[Create(STEPS, step(0)), Create(STEPS, step(1))], [Delete(STEPS, step(0).key)]]
    assert _commit(store, group, GroupStamp("client", 0, 1)) == [0, None]
    assert store.scan(STEPS) == []


def test_what_was_only_ensured_is_not_taken_for_what_is_there(url: str, store: Driven) -> None:
    other = _open(url)
    there, ensured = row_of(LINES, *LINE, version=2), row_of(LINES, *LINE, version=1)
    other.fill(LINES, [there])
    assert store.apply(Expect(STEPS, step(0).key, None), Create(STEPS, step(0))) is None
    assert store.apply(Ensure(LINES, ensured), Create(STEPS, step(1))) is None
    assert store.apply(Expect(LINES, LINE, ensured.columns), Create(STEPS, step(2))) == 0
    assert store.apply(Expect(LINES, LINE, there.columns), Create(STEPS, step(2))) is None
    other.close()


def test_a_line_that_comes_while_all_are_deleted_is_seen_to_be_gone(
    url: str, store: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group that deletes was judged before it came, and its transaction begins after."""
    other = _open(url)
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    line = row_of(LINES, *LINE)
    recorded = commit_plan.read_view
    came: list[Any] = []

    async def slow(collections: Collections, parts: Sequence[Part]) -> Any:
        view = await recorded(collections, parts)
        if not came:
            came.append(await asyncio.to_thread(other.apply, Create(LINES, line)))
        return view

    monkeypatch.setattr(committer, "read_view", slow)
    assert store.apply(Delete(LINES, ("tenant",)), Delete(STEPS, ("tenant",))) is None
    assert came == [None]
    there = store.scan(LINES) == [line]
    assert other.apply(Expect(LINES, LINE, line.columns), Create(STEPS, step(0))) == (None if there else 0)
    other.close()


def test_what_mongodb_cannot_hold_is_refused_alone(store: Driven) -> None:
    cases: dict[str, tuple[Table, Row, type[Exception]]] = {
        "too large in UTF-8": (
            METADATA,
            row_of(METADATA, *LINE, "c", "k", value=f'"{"中" * (5 * MIB)}"'),
            TooLargeError,
        ),
        "a name that is no text": (METADATA, row_of(METADATA, *LINE, "c", "\ud800"), InvalidError),
        "a column that is no text": (STEPS, step(0, id="\ud800"), InvalidError),
        "a key": (STEPS, step(1 << 63), InvalidError),
        "a number": (STEPS, step(0, time=1 << 64), InvalidError),
    }
    for number, (name, (space, wrong, error)) in enumerate(cases.items(), 1):
        with case(name):
            right = step(5, body=name.encode())
            outcomes = _commit(store, [[Put(space, wrong)], [Put(STEPS, right)]], GroupStamp("client", 0, number))
            assert isinstance(outcomes[0], error)
            assert outcomes[1] is None
            assert store.scan(STEPS) == [right]


def test_what_is_no_name_cannot_be_looked_for(store: Driven) -> None:
    for key in (("tenant", "\ud800", 0, 0), ("tenant", "line", 0, 1 << 63)):
        with pytest.raises(InvalidError):
            store.read(Get(STEPS, [key]))


class _Failing(MongoServer):
    """A server that fails when told to."""

    def command(self) -> list[str | Path]:
        return [*super().command(), "--setParameter", "enableTestCommands=1"]


def test_a_commit_that_was_made_and_not_confirmed_is_looked_up() -> None:
    mongodb()  # skips where there is no MongoDB
    interrupted = {"code": 11601, "errmsg": "operation was interrupted"}
    with _Failing().start() as server, MongoClient[dict[str, Any]](server.url) as client:
        store = _open(server.fresh(), timeout=120)
        failures: list[dict[str, Any]] = [{"writeConcernError": interrupted}, {"errorCode": 11601}]
        for seq, failure in enumerate(failures):
            point = {"configureFailPoint": "failCommand", "mode": {"times": 1}}
            client.admin.command({**point, "data": {"failCommands": ["commitTransaction"], **failure}})
            assert store.apply(Create(STEPS, step(seq))) is None
        assert store.scan(STEPS) == [step(0), step(1)]
        store.close()


def test_a_line_that_was_deleted_is_forgotten_by_tidying(store: Driven, plain: Database[dict[str, Any]]) -> None:
    kept = ("tenant", "kept")
    for line in (LINE, kept):
        assert store.apply(Create(LINES, row_of(LINES, *line)), Create(STEPS, step(line=line[1]))) is None
    assert store.apply(Delete(LINES, LINE), Delete(STEPS, LINE)) is None
    assert store.apply(Delete(STEPS, kept)) is None
    assert plain.lines.count_documents({"_id.line": "line"}) == 1
    run(store.backend.tidy())
    assert plain.lines.count_documents({"_id.line": "line"}) == 0
    assert plain.lines.count_documents({"_id.line": "kept"}) == 1
    assert store.apply(Expect(LINES, LINE, None), Create(LINES, row_of(LINES, *LINE))) is None
    assert len(store.scan(LINES)) == 2


def test_words_are_found_by_their_index(store: Driven, plain: Database[dict[str, Any]]) -> None:
    store.fill(WORDS, [row_of(WORDS, *LINE, 0, n, time=n, words=f"all word{n}") for n in range(50)])
    asked = {"$and": [{"_id.tenant": "tenant"}, {"words": "word7"}]}
    plan = plain.words.find(asked).sort([("time", -1), ("_id", -1)]).explain()
    assert plan["executionStats"]["totalKeysExamined"] == 1


def test_what_is_deleted_counts_no_more(store: Driven) -> None:
    for batch in range(10):
        rows = [row_of(NODES, *LINE, batch, bytes([n]), body=_body(100_000 + n)) for n in range(10)]
        store.fill(NODES, rows)
    before = run(store.backend.size())
    assert store.apply(Delete(NODES, LINE)) is None
    run(store.backend.tidy())
    assert run(store.backend.size()) < before / 10


def test_tidying_has_collections_moved_together_that_are_half_empty(
    store: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says so only some minutes after something was deleted; here it says so at once."""
    command, asked, code = AsyncDatabase.command, list[str](), 0

    async def telling(self: Any, name: str, collection: str, **options: Any) -> Any:
        if name == "compact":
            asked.append(collection)
            if code:
                raise OperationFailure("refused", code)
            if not by_night():  # it may wait for what other tests do on the same server
                return {"bytesFreed": 0}
        found = await command(self, name, collection, **options)
        free = 2 << 20 if collection in ("nodes", "steps") else 0
        return {**found, "freeStorageSize": free, "storageSize": 3 << 20} if name == "collStats" else found

    monkeypatch.setattr(AsyncDatabase, "command", telling)
    store.fill(NODES, [row_of(NODES, *LINE, 0, b"n", body=b"node")])
    run(store.backend.tidy())
    assert asked == ["steps", "nodes"]
    code = 13  # not authorized: nobody is troubled with that
    run(store.backend.tidy())
    assert asked == ["steps", "nodes", "steps"]
    code = 96
    with pytest.raises(HoldfastError, match="refused"):
        run(store.backend.tidy())
    assert len(store.scan(NODES)) == 1


class _ServerWithLogin(MongoServer):
    """A server on which only users with a password may do anything."""

    def prepare(self) -> None:
        super().prepare()
        self.run_tool("sh", "-c", f"umask 377; echo keyofthemembers1 > {self.directory}/key")

    def command(self) -> list[str | Path]:
        return [*super().command(), "--auth", "--keyFile", self.directory / "key"]


@pytest.mark.nightly
def test_a_user_who_may_only_read_and_write_verifies_and_repairs() -> None:
    with _ServerWithLogin().start() as server:
        with MongoClient[dict[str, Any]](server.url, directConnection=True) as client:
            client.admin.command("createUser", "root", pwd="root", roles=["root"])
        admin = server.url.replace("//", "//root:root@") + "&authSource=admin"
        with MongoClient[dict[str, Any]](admin) as client:
            client.admin.command("createUser", "app", pwd="app", roles=[{"role": "readWrite", "db": "test"}])
        url = server.url.replace("//", "//app:app@") + "&authSource=admin"
        with holdfast.open(url, connect_timeout=60) as store:
            store.thread("chat").put({"n": 1})
            assert store.maintenance.verify().findings == []
            with MongoClient[dict[str, Any]](admin) as client:
                client.test.lines.update_one({"_id.line": "chat"}, {"$set": {"steps.0,0.kind": "altered"}})
            assert [each.code for each in store.maintenance.verify().damage] == ["wrong-column"]
            assert len(store.maintenance.repair().repaired) == 1
            store.maintenance.compact()
            store.thread("chat").delete()


@pytest.mark.nightly  # waits for the server to abandon it
def test_a_transaction_that_was_abandoned_does_not_block_for_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_IDLE_MICROSECONDS", 200_000)
    store = _open(url, timeout=120)
    store.fill(STEPS, [step(0)])
    with MongoClient[dict[str, Any]](url, driver=DriverInfo("holdfast")) as client, client.start_session() as session:
        session.start_transaction()
        lines = client.get_default_database().lines
        assert lines.update_one({"_id.line": "line"}, {"$set": {"last": "x"}}, session=session).matched_count == 1
        begun = time.monotonic()
        assert store.apply(Create(STEPS, step(1))) is None
        assert time.monotonic() - begun < 50  # the server would end it after a minute
    assert store.scan(STEPS) == [step(0), step(1)]
    store.close()


# Opening ------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("count", [2, pytest.param(10, marks=pytest.mark.nightly)])
def test_processes_open_a_new_store_at_once(url: str, count: int) -> None:
    command = [sys.executable, "-m", "holdfast.backends.conformance.child", "claim", url, "{}"]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen([*command, f"w{n}", "3"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for n in range(count)
    ]
    won: list[int] = []
    for child in children:
        said, errors = child.communicate("go\n", timeout=300)
        assert child.returncode == 0, errors
        ready, *keys = said.split()
        assert ready == "ready"
        won += map(int, keys)
    assert sorted(won) == [0, 1, 2]


def test_a_store_of_a_newer_layout_is_refused(url: str, plain: Database[dict[str, Any]]) -> None:
    _open(url).close()
    plain.holdfast.update_one({"_id": "layout"}, {"$set": {"version": 4}})
    with pytest.raises(ConfigError, match="newer Holdfast"):
        _open(url)


def test_a_store_of_an_older_layout_is_refused(url: str, plain: Database[dict[str, Any]]) -> None:
    _open(url).close()
    plain.holdfast.update_one({"_id": "layout"}, {"$set": {"version": 1}})
    with pytest.raises(ConfigError, match=r"layout 1 of an older Holdfast.*Copy it"):
        _open(url)


class _Alone(MongoServer):
    """A server that is no replica set."""

    def command(self) -> list[str | Path]:
        command = super().command()
        at = command.index("--replSet")
        return [*command[:at], *command[at + 2 :]]

    def settle(self) -> None:
        """There is nothing to initiate."""


@pytest.mark.nightly
def test_a_server_that_stands_alone_is_refused() -> None:
    mongodb()  # skips where there is no MongoDB
    with _Alone().start() as server, pytest.raises(ConfigError, match=r"rs\.initiate"):
        _open(f"mongodb://127.0.0.1:{server.port}/agents")


@pytest.mark.parametrize(
    "wrong",
    [
        "mongodb://",
        "mongodb://host:port/agents",
        "mongodb://[::1/agents",
        "mongodb://localhost/a b$",
        "mongodb://localhost/agents?prefix=$a",
        "mongodb://localhost/agents?timeout=soon",
        "mongodb://localhost/agents?w=no&journal=perhaps",
    ],
)
def test_wrong_urls_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        _open(wrong)


def test_a_wrong_password_is_said_and_not_shown(url: str) -> None:
    wrong = url.replace("mongodb://", "mongodb://someone:s3cr3t@")
    with pytest.raises(ConfigError, match="login was refused") as caught:
        _open(wrong)
    assert "s3cr3t" not in str(caught.value)


# Processes and servers ----------------------------------------------------------------------------------------------


def test_a_forked_child_has_connections_of_its_own(url: str, store: Driven) -> None:
    store.fill(STEPS, [step(0)])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            refused = store.apply(Create(STEPS, step(1)))
            found = store.scan(STEPS)
            store.close()
            status = 0 if refused is None and len(found) == 2 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.apply(Create(STEPS, step(2))) is None
    assert len(store.scan(STEPS)) == 3


@pytest.mark.nightly
def test_saving_goes_on_when_the_server_is_back() -> None:
    with mongodb_server() as server:
        store = _open(server.fresh(), timeout=150)
        rows = [step(n) for n in range(60)]
        made: list[Row] = []

        def write() -> None:
            for row in rows:
                assert store.apply(Create(STEPS, row)) is None
                made.append(row)

        writer = threading.Thread(target=write)
        writer.start()
        while len(made) < 20:
            assert writer.is_alive()
            time.sleep(0.001)
        server.kill()
        server.restart()
        writer.join()
        assert made == rows == store.scan(STEPS)
        assert run(store.backend.check()) == []
        store.close()


@pytest.mark.nightly
def test_connections_to_a_server_that_was_not_ready_yet_are_given_up() -> None:
    with mongodb_server() as server, ThreadPoolExecutor(3) as pool:
        url = server.fresh().replace("replicaSet=rs0", "directConnection=true")
        with holdfast.open(url, timeout=150) as store:
            store.thread("t").put({"a": 1})
            server.kill()
            shutil.rmtree(server.directory / "data")
            server.prepare()
            server.restart()  # it answers, and is in no replica set
            reading = [pool.submit(store.threads) for _ in range(3)]
            time.sleep(1)
            server.settle()
            assert [each.result() for each in reading] == [[], [], []]
            store.thread("t").put({"a": 2})
            assert store.thread("t").get().state == {"a": 2}


def test_a_conversation_from_end_to_end(url: str, plain: Database[dict[str, Any]]) -> None:
    name = f"chat-{secrets.token_hex(2)}"
    with holdfast.open(url) as store:
        for n in range(40):
            store.thread(name).put({"messages": [f"message {m}" for m in range(n + 1)], "count": n})
    with holdfast.open(url) as store:
        found = store.thread(name).get()
        assert found is not None
        assert found.state["count"] == 39
        assert len(list(store.thread(name).log())) == 40
    (line,) = plain.lines.find({"_id.line": name})
    assert plain.steps.count_documents({"_id.line": name}) + len(line.get("steps", {})) == 40


def test_errors_are_ours(store: Driven, plain: Database[dict[str, Any]]) -> None:
    plain.command("collMod", "lines", validator={"steps.0,0.kind": {"$ne": "forbidden"}})
    with pytest.raises(HoldfastError, match="validation"):
        store.apply(Create(STEPS, step(kind="forbidden")))
    assert store.scan(STEPS) == []
    plain.command("collMod", "nodes", validator={"body": {"$ne": b"forbidden"}})
    with pytest.raises(HoldfastError, match="validation"):
        store.apply(Create(NODES, row_of(NODES, *LINE, 0, b"n", body=b"forbidden")))
