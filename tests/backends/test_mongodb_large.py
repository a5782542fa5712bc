"""Large batches in MongoDB: what goes into one transaction, and what is told where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import InsertOne, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from holdfast.backends.conformance.kit import Driven
from holdfast.backends.conformance.rows import row_of
from holdfast.backends.interface import Batch, Create, Delete, Ensure, Put, Row
from holdfast.backends.mongodb import commit_group, commit_plan
from holdfast.backends.mongodb import committer as mongodb_commits
from holdfast.backends.mongodb.backend import MongoDBBackend
from holdfast.backends.mongodb.commit_group import cache_weight
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, METADATA, NODES, WORDS, Key
from holdfast.errors import HoldfastError, TooLargeError, UnavailableError
from tests.servers import mongodb

LINE = ("tenant", "line")
OTHER = ("tenant", "other")


@pytest.fixture
def store() -> Iterator[Driven]:
    """A store in a fresh database, dropped in the end."""
    url = mongodb()
    driven = Driven(run(MongoDBBackend.open(url, timeout=120)), run)
    yield driven
    driven.close()
    with MongoClient[dict[str, Any]](url) as client:
        client.drop_database(client.get_default_database().name)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """What is written: to which collection, and which operations."""
    bulk_write, seen = AsyncCollection.bulk_write, list[tuple[str, list[Any]]]()

    async def watched(self: Any, operations: list[Any], **options: Any) -> Any:
        seen.append((self.name, list(operations)))
        return await bulk_write(self, operations, **options)

    monkeypatch.setattr(AsyncCollection, "bulk_write", watched)
    return seen


def entry(number: int, value: str = "1", line: Key = LINE) -> Row:
    """A row with a value."""
    return row_of(METADATA, *line, f"{number:04}", "key", value=value)


def node(number: int, size: int) -> Row:
    """A row with a body."""
    return row_of(NODES, *LINE, 0, number.to_bytes(8, "big"), body=bytes(size))


def words(text: str) -> Row:
    """A row of words."""
    return row_of(WORDS, *LINE, 0, 0, words=text)


def cache_of(store: Driven) -> int:
    """How many bytes the cache of the server has."""
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)
    found = run(backend._run_in_loop(lambda: backend._use(commit_group.read_transaction_limit)))
    assert found is not None
    return commit_group._DIRTY_SHARE * found


# Too much -----------------------------------------------------------------------------------------------------------


def test_what_is_too_much_for_a_transaction_is_refused_before_anything_is_sent(
    store: Driven, sent: list[tuple[str, list[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_group, "_DIRTY_SHARE", cache_of(store) // 700_000)
    batch: Batch = [Put(METADATA, entry(number)) for number in range(1_500)]
    with pytest.raises(TooLargeError, match=r"over the \d+ that this store takes at once.*Save less at once"):
        store.apply(*batch)
    assert sent == []
    assert store.apply(*batch[:1_100]) is None
    assert len(store.scan(METADATA)) == 1_100


def test_large_bodies_count(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_group, "_DIRTY_SHARE", cache_of(store) // (3 << 20))
    with pytest.raises(TooLargeError, match="takes at once"):
        store.apply(*(Put(NODES, node(number, 1 << 18)) for number in range(20)))
    assert store.scan(NODES) == []


def test_what_is_uploaded_before_the_transaction_does_not_count() -> None:
    large: Batch = [Create(NODES, node(number, 5 << 20)) for number in range(4)]
    assert cache_weight(large) < 1 << 12
    assert cache_weight(large[:3]) > 15 << 20  # together they still fit


@pytest.mark.parametrize("code", [13, 59])
def test_where_the_server_does_not_tell_its_cache_it_is_asked_to_try(
    store: Driven, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    command = AsyncDatabase.command

    async def refusing(self: Any, name: Any, *values: Any, **options: Any) -> Any:
        if name == "serverStatus":
            raise OperationFailure("refused", code)
        return await command(self, name, *values, **options)

    monkeypatch.setattr(AsyncDatabase, "command", refusing)
    assert store.apply(*(Put(METADATA, entry(number)) for number in range(1_100))) is None
    assert len(store.scan(METADATA)) == 1_100


def test_a_failure_to_ask_is_told(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Any, name: Any, *values: Any, **options: Any) -> Any:
        raise OperationFailure("broken", 96)

    monkeypatch.setattr(AsyncDatabase, "command", broken)
    with pytest.raises(UnavailableError, match="broken"):
        store.apply(*(Put(METADATA, entry(number)) for number in range(1_100)))


def test_a_server_that_says_nothing_of_its_cache_is_asked_to_try(
    store: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a router of a sharded cluster, which has none."""

    async def silent(self: Any, name: Any, *values: Any, **options: Any) -> Any:
        return {"ok": 1}

    monkeypatch.setattr(AsyncDatabase, "command", silent)
    assert store.apply(*(Put(METADATA, entry(number)) for number in range(1_100))) is None


def test_what_the_server_finds_too_large_is_told_so(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before what it may take at most is reached, that depends on how busy it is."""
    bulk_write = AsyncCollection.bulk_write

    async def full(self: Any, operations: Any, **options: Any) -> Any:
        if self.name == "nodes" and len(operations) > 1:
            raise OperationFailure("transaction is too large and will not fit in the storage engine cache", 388)
        return await bulk_write(self, operations, **options)

    monkeypatch.setattr(AsyncCollection, "bulk_write", full)
    with pytest.raises(TooLargeError, match="will not fit in the storage engine cache"):
        store.apply(*(Create(NODES, node(number, 200_000)) for number in range(50)))
    assert store.scan(NODES) == []
    assert store.apply(Create(NODES, node(0, 10))) is None


def test_a_cache_that_others_fill_is_waited_for(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    bulk_write, refused = AsyncCollection.bulk_write, list[str]()

    async def full(self: Any, operations: Any, **options: Any) -> Any:
        if self.name == "nodes" and len(refused) < 2:
            refused.append(self.name)
            raise OperationFailure("transaction is too large and will not fit in the storage engine cache", 388)
        return await bulk_write(self, operations, **options)

    monkeypatch.setattr(AsyncCollection, "bulk_write", full)
    assert store.apply(Create(NODES, node(0, 10))) is None
    assert len(refused) == 2
    assert store.scan(NODES) == [node(0, 10)]


# Many rows ----------------------------------------------------------------------------------------------------------


def test_many_rows_are_inserted_where_many_were_deleted(store: Driven, sent: list[tuple[str, list[Any]]]) -> None:
    """To look for one of them, MongoDB walks over all that was deleted and not yet swept: it took seconds."""
    rows = [node(number, 5) for number in range(300)]
    store.apply(*(Put(NODES, row) for row in rows))
    store.apply(Delete(NODES, LINE))
    sent.clear()
    store.apply(*(Put(NODES, row) for row in rows))
    written = [each for name, operations in sent for each in operations if name == "nodes"]
    assert len(written) == 300
    assert all(isinstance(each, InsertOne) for each in written)
    assert store.scan(NODES) == rows


def test_all_of_a_new_line_is_inserted(store: Driven, sent: list[tuple[str, list[Any]]]) -> None:
    line = row_of(LINES, *LINE)
    nodes = [node(number, 5) for number in range(3)]
    batch: Batch = [
        Create(LINES, line),
        *(Ensure(NODES, each) for each in nodes),
        *(Put(METADATA, entry(each)) for each in range(3)),
    ]
    assert store.apply(*batch) is None
    written = [each for name, operations in sent for each in operations if name == "nodes"]
    assert len(written) == 3
    assert all(isinstance(each, InsertOne) for each in written)
    assert (store.scan(LINES), store.scan(NODES)) == ([line], nodes)


def test_rows_that_are_there_without_the_document_of_their_line_are_replaced(store: Driven) -> None:
    """As after somebody brought back all collections from a backup but `lines`."""
    store.apply(Create(LINES, row_of(LINES, *LINE)), Ensure(NODES, node(0, 5)), Put(WORDS, words("first")))
    backend = store.backend
    assert isinstance(backend, MongoDBBackend)

    async def forget() -> None:
        await backend._collections.lines.delete_many({})

    run(backend._run_in_loop(forget))
    assert (
        store.apply(Create(LINES, row_of(LINES, *LINE)), Put(WORDS, words("second")), Ensure(NODES, node(0, 9))) is None
    )
    assert store.scan(WORDS) == [words("second")]
    assert store.scan(NODES) == [node(0, 5)]


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_rows_that_are_sent_in_several_parts_are_made_as_one(
    store: Driven, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(mongodb_commits, "_ROWS_PER_REQUEST", rows)
    monkeypatch.setattr(commit_plan, "_MAX_BLIND_PUTS", 2)
    store.apply(*(Put(METADATA, entry(number, "0")) for number in range(7)), Create(NODES, node(0, 5)))
    taken = store.apply(*(Put(METADATA, entry(number, "9")) for number in range(9)), Create(NODES, node(0, 6)))
    assert taken == 9
    assert store.scan(METADATA) == [entry(number, "0") for number in range(7)]
    store.apply(
        Delete(METADATA, (*LINE, "0000")),
        Delete(METADATA, (*LINE, "0006")),
        Delete(NODES, LINE),
        *(Put(METADATA, entry(number, "1")) for number in range(3, 10)),
        *(Put(METADATA, entry(number, "2", OTHER)) for number in range(4)),
        Create(NODES, node(1, 5)),
    )
    mine = [entry(1, "0"), entry(2, "0"), *(entry(number, "1") for number in range(3, 10))]
    assert store.scan(METADATA, LINE) == mine
    assert store.scan(METADATA, OTHER) == [entry(number, "2", OTHER) for number in range(4)]
    assert store.scan(NODES) == [node(1, 5)]


def test_a_batch_that_is_too_much_does_not_harm_the_store(store: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_group, "_DIRTY_SHARE", cache_of(store))
    with pytest.raises(HoldfastError) as refused:
        store.apply(*(Put(METADATA, entry(number)) for number in range(1_001)))
    assert refused.value.code == "too-large"
    assert store.apply(Put(METADATA, entry(0))) is None
