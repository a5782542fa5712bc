"""What stores record of changes, each in its own way: late commits, limits, restored stores, deleted lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis as redis_client
from pymongo import MongoClient

from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.feed import MAX_LINES, RecentLines
from holdfast.backends.interface import Backend, Change, Changes, Create, Delete, Expect, Put
from holdfast.backends.object_store.backend import ChangeFinder, parse_since
from holdfast.backends.object_store.local import FileBackend
from holdfast.backends.object_store.object_storage import deadline_in
from holdfast.backends.postgres import setup
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import JOURNAL, LINES, NODES, STEPS, TRANSITIONS
from tests import servers
from tests.backends.postgres_databases import emptied
from tests.backends.shard_kit import InMemory, Process, Through
from tests.servers.mongod import MongoServer
from tests.servers.postgresql import PostgresServer


@contextmanager
def opened(url: str, **options: Any) -> Iterator[Backend]:
    store = run(backend_for(url).open(url, **options))
    try:
        yield store
    finally:
        run(store.close())


def write(store: Backend, *lines: str) -> None:
    assert run(store.apply([Put(STEPS, step(line=line)) for line in lines])) is None


def names(found: Changes) -> set[str]:
    assert found.complete
    return {line for _, line in found.lines}


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis", "mongodb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    makers: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/a.db",
        "postgresql": emptied,
        "redis": servers.redis,
        "mongodb": servers.mongodb,
    }
    return makers[request.param]()


def test_derived_rows_and_conditions_change_no_line(url: str) -> None:
    """Stores of objects cannot tell: the log of a line has them."""
    with opened(url) as store:
        write(store, "line", "other")
        token = run(store.changes()).token
        derived = [
            Put(JOURNAL, row_of(JOURNAL, "t", "line", 1)),
            Put(TRANSITIONS, row_of(TRANSITIONS, "t", "line", "c")),
        ]
        assert run(store.apply(derived)) is None
        assert run(store.changes(token)).lines == []
        row = step(line="other")
        batch: list[Change] = [Expect(STEPS, row.key, row.columns), Put(STEPS, step(1, line="line"))]
        assert run(store.apply(batch)) is None
        assert names(run(store.changes(token))) == {"line"}


def test_a_refused_batch_changes_no_line(url: str) -> None:
    with opened(url) as store:
        write(store, "line")
        token = run(store.changes()).token
        assert run(store.apply([Put(STEPS, step(1, line="other")), Create(STEPS, step(line="line"))])) == 1
        assert run(store.changes(token)).lines == []


# In memory


def test_a_store_in_memory_remembers_the_last_lines() -> None:
    recent = RecentLines("memory", "memory://")
    for number in range(MAX_LINES + 10):
        recent.add([[Delete(STEPS, ("t", f"{number}"))]])
    assert not recent.changes("memory.9").complete
    assert len(recent.changes("memory.10").lines) == MAX_LINES
    assert recent.changes("memory.10").complete
    for _ in range(10):
        recent.add([[Delete(STEPS, ("t", "same"))]])
    last = MAX_LINES + 20
    assert recent.changes(f"memory.{last - 3}").lines == [("t", "same")]
    assert not recent.changes(f"memory.{last + 1}").complete, "a token from the future"


# SQLite


def test_a_gap_is_not_removed_by_a_process_that_replaces_what_was_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db?synchronous=normal"
    with opened(url) as store, opened(url) as other:
        write(store, "first")
        write(other, "other")
        token = run(store.changes()).token
        write(other, "early")
        write(store, "line")
        write(store, "line")  # replaces the row before, which is deleted later
        write(other, *(f"{number:04}" for number in range(MAX_LINES - 1)))
        write(other, "last")  # before that, all rows up to the replaced one are trimmed
        assert not run(store.changes(token)).complete
        for _ in range(100):
            write(store, "line")
        assert not run(store.changes(token)).complete, "nobody knows any more that there was an early change"


# PostgreSQL


def test_a_transaction_that_commits_late_is_not_missed() -> None:
    """Its number is smaller than that of others which were reported before it was visible."""
    url = emptied()
    with opened(url) as store, psycopg.connect(url) as late:
        token = run(store.changes()).token
        late.execute("INSERT INTO holdfast.changes (tenant, line) VALUES ('tenant', 'late')")
        seen = set[str]()
        for line in ("a", "b"):
            write(store, line)
            found = run(store.changes(token))
            assert names(found) == {line}, "nothing twice, although the token cannot pass the transaction"
            token = found.token
            assert run(store.changes(token)).lines == []
            seen |= names(found)
        late.commit()
        found = run(store.changes(token))
        assert names(found) == {"late"}
        assert run(store.changes(found.token)).lines == []
        late.execute("INSERT INTO holdfast.changes (tenant, line) VALUES ('tenant', 'never')")
        late.rollback()
        assert run(store.changes(found.token)).lines == []


def test_a_role_sees_the_changes_of_its_tenant() -> None:
    url = servers.postgres()
    role = f"reader_{url.rpartition('/')[2]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    setup(url, rls=True, role=role)
    limited = url.replace("://app@", f"://{role}:x@")
    with opened(limited, tenant="one") as one, opened(limited, tenant="other") as other:
        token = run(one.changes()).token
        assert run(other.apply([Put(LINES, row_of(LINES, "other", "secret"))])) is None
        assert run(one.changes(token)).lines == []
        assert run(one.apply([Put(LINES, row_of(LINES, "one", "mine"))])) is None
        assert run(one.changes(token)).lines == [("one", "mine")]
        assert run(other.changes(token)).lines == [("other", "secret")], "the control"
        run(one.tidy())
        assert run(one.apply([Delete(LINES, ("one",))])) is None
        assert not run(one.changes(token)).complete
        assert run(other.changes(token)).complete, "the tenant of others was deleted"


def test_a_schema_remembers_the_last_changes() -> None:
    url = emptied()
    with opened(url) as store:
        old = run(store.changes()).token
        assert (
            run(store.apply([Put(NODES, row_of(NODES, "t", f"{n}", 0, b"n")) for n in range(MAX_LINES + 50)])) is None
        )
        token = run(store.changes(old)).token
        write(store, "last")
    with opened(url) as again:  # its first group trims
        write(again, "new")
        assert names(run(again.changes(token))) == {"last", "new"}
        assert not run(again.changes(old)).complete


def test_a_restored_schema_does_not_know_the_tokens_of_the_lost_one() -> None:
    url = servers.postgres()
    with opened(url) as store:
        write(store, "line")
        token = run(store.changes()).token
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA holdfast CASCADE")
    with opened(url) as store:
        assert not run(store.changes(token)).complete


# Redis


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [PostgresServer, pytest.param(MongoServer, marks=pytest.mark.nightly)])
def test_a_server_with_an_older_copy_of_its_files_does_not_know_the_tokens_of_the_lost_ones(
    kind: type[PostgresServer] | type[MongoServer],
) -> None:
    with kind().start() as server:
        data, copy = server.directory / "data", server.directory / "copy"
        with opened(server.url) as store:
            write(store, "line")
        server.kill()  # what is copied is what a snapshot of the disk has
        server.run_tool("cp", "-a", data, copy)
        server.restart()
        with opened(server.url) as store:
            for _ in range(5):
                write(store, "lost")
            token = run(store.changes()).token
            assert run(store.changes(token)).complete
        server.kill()
        server.run_tool("rm", "-r", data)
        server.run_tool("mv", copy, data)
        server.restart()
        with opened(server.url) as store:
            assert not run(store.changes(token)).complete
            for number in range(50):  # the numbers of transactions are past those of the token
                write(store, f"new {number}")
            assert not run(store.changes(token)).complete


@contextmanager
def raw_redis(url: str) -> Iterator[tuple[redis_client.Redis, str]]:
    """A client of the server, and the key of the changes of a store."""
    address, _, prefix = url.partition("?prefix=")
    with redis_client.Redis.from_url(address) as client:
        yield client, f"{{{prefix}}}:changes"


def test_redis_remembers_the_last_changes() -> None:
    url = servers.redis()
    with opened(url) as store, raw_redis(url) as (client, key):
        old = run(store.changes()).token
        write(store, "line")
        token = run(store.changes(old)).token
        client.zadd(key, {f"t+{n}+": 1 for n in range(2 * MAX_LINES)})
        assert run(store.changes(old)).complete, "nothing was forgotten yet"
        write(store, "last")
        assert client.zcard(key) == MAX_LINES
        assert run(store.changes(token)).lines == [("tenant", "last")]
        assert not run(store.changes(old)).complete


def test_a_server_of_another_history_does_not_know_the_token() -> None:
    """A replica that took over, or a server that started again, may lack the last changes."""
    with opened(servers.redis()) as store:
        write(store, "line")
        kind, place, number = run(store.changes()).token.split(".")
        id, _, history = place.partition("-")
        assert len(history) == 40
        assert not run(store.changes(f"{kind}.{id}-{'0' * 40}.{number}")).complete
        assert run(store.changes(f"{kind}.{place}.{number}")).complete, "the control"
        assert not run(store.changes(f"{kind}.{place}.{int(number) + 1}")).complete, "from the future"


def test_tidying_removes_the_names_of_deleted_lines_from_redis() -> None:
    url = servers.redis()
    with opened(url) as store, raw_redis(url) as (client, key):
        assert run(store.apply([Put(LINES, row_of(LINES, "t", line)) for line in ("stays", "private")])) is None
        assert run(store.apply([Delete(LINES, ("t", "private"))])) is None
        assert client.zscore(key, "t+private+") is not None
        run(store.tidy())
        assert client.zrange(key, 0, -1) == [b"t+stays+"]


# MongoDB


def test_a_dropped_collection_and_a_lost_log_are_noticed() -> None:
    url = servers.mongodb()
    with opened(url) as store, MongoClient[dict[str, Any]](url) as client:
        write(store, "line")
        token = run(store.changes()).token
        kind, place, *_ = token.split(".")
        assert not run(store.changes(f"{kind}.{place}.4294967295.1")).complete, "from the future"
        write(store, "other")
        assert names(run(store.changes(token))) == {"other"}, "the control"
        client.get_default_database().lines.drop()
        write(store, "third")
        assert not run(store.changes(token)).complete


# Objects


async def find(process: Process, token: str | None = None) -> Changes:
    with deadline_in(60):
        return await ChangeFinder(process.core, process.answers).find(parse_since(token, ""))


def test_a_line_whose_batch_is_committed_later_is_named_again() -> None:
    """The parts of a batch on two lines are in their logs before it is committed."""

    async def main() -> None:
        blobs = InMemory()
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def way(kind: str, name: str, ask: Callable[[], Any]) -> Any:
            if kind == "create" and name.startswith("transactions/"):
                reached.set()
                await go_on.wait()
            return await ask()

        reader, writer = Process(blobs), Process(Through(blobs, way))
        await reader.apply(Create(STEPS, step(line="before")))
        start = (await find(reader)).token
        task = asyncio.create_task(writer.apply(*(Create(STEPS, step(line=line)) for line in "ab")))
        await reached.wait()
        first = await find(reader)  # its token must not take the entries for committed
        early = await find(reader, start)
        go_on.set()
        assert await task is None
        for token in (first.token, early.token):
            found = await find(reader, token)
            assert names(found) == {"a", "b"}
            assert names(await find(reader, found.token)) == set()

    asyncio.run(main())


def test_a_deleted_line_is_named_until_its_log_is_removed(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/store"
    with opened(url, grace=10) as store:
        assert isinstance(store, FileBackend)
        write(store, "stays", "private")
        token = run(store.changes()).token
        assert run(store.apply([Delete(STEPS, ("tenant", "private"))])) is None
        assert names(run(store.changes(token))) == {"private"}

        async def tidy() -> None:
            for _ in range(3):
                await store._opened().garbage_collector.tidy(grace=-1.0)

        run(store._run_once(tidy))
        assert not [path for path in (tmp_path / "store").rglob("*") if "private" in path.name and any(path.iterdir())]
        found = run(store.changes(token))
        assert not found.complete
        write(store, "private")
        assert names(run(store.changes(found.token))) == {"private"}


def test_a_poll_of_objects_at_rest_only_lists_them() -> None:
    async def main() -> None:
        blobs = InMemory()
        process = Process(blobs)
        for line in "abc":
            await process.apply(Create(STEPS, step(line=line)))
        token = (await find(process)).token
        blobs.asked.clear()
        assert names(await find(process, token)) == set()
        assert blobs.asked == {"list": 1}
        await process.apply(Create(STEPS, step(1, line="b")))
        blobs.asked.clear()
        assert names(await find(process, token)) == {"b"}
        assert blobs.asked == {"list": 1, "get": 1}

    asyncio.run(main())
