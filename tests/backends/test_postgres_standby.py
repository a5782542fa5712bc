"""Reads that a standby of PostgreSQL answers: `read_from`. What others write is late in it; what one saw is not."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import setup, standby
from holdfast.backends.runtime.drivers import run
from holdfast.encryption import Encryption, LocalKeys
from holdfast.errors import ConfigError, ConflictError, NotFoundError, TransientError
from holdfast.savers import Checkpointer
from tests import servers
from tests.servers import PostgresServer, PostgresStandby
from tests.servers.proxy import Proxy


class Pair(NamedTuple):
    """A database on a server and on a standby of it, and a store of both."""

    primary: PostgresServer
    standby: PostgresStandby
    url: str
    read_from: str


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby on a busy machine may be slow to answer, and is used all the same."""
    monkeypatch.setattr(standby, "_PATIENCE", 50.0)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[PostgresServer, PostgresStandby]]:
    with servers.postgres_server() as primary, servers.postgres_standby(primary) as replica:
        yield primary, replica


def pair_of(primary: PostgresServer, replica: PostgresStandby) -> Pair:
    url = primary.fresh()
    setup(url)
    replica.catch_up()
    return Pair(primary, replica, url, replica.url_of(urlsplit(url).path[1:]))


@pytest.fixture
def pair(both: tuple[PostgresServer, PostgresStandby]) -> Iterator[Pair]:
    yield pair_of(*both)
    both[1].resume_replay()


@pytest.fixture
def own() -> Iterator[Pair]:
    """Servers of one test, to be killed and promoted."""
    with servers.postgres_server() as primary, servers.postgres_standby(primary) as replica:
        yield pair_of(primary, replica)


@pytest.fixture
def store(pair: Pair) -> Iterator[holdfast.Store]:
    with opened(pair) as store:
        yield store


@pytest.fixture
def other(pair: Pair) -> Iterator[holdfast.Store]:
    """Another process, without a standby."""
    with holdfast.open(pair.url) as store:
        yield store


def opened(pair: Pair, **options: Any) -> holdfast.Store:
    """A store that reads from the standby for an hour before it asks the primary again."""
    return holdfast.open(pair.url, read_from=pair.read_from, **{"max_lag": 3600, **options})


def answered(store: holdfast.Store) -> int:
    """How many reads the standby has answered. Asks no server, which would be a read of all threads."""
    return int(run(store._engine.context.stored.status())["standby_reads"])


def value(store: holdfast.Store, thread: str = "a") -> Any:
    return store.thread(thread).get().state["value"]


def put(store: holdfast.Store, value: object, thread: str = "a") -> None:
    store.thread(thread).put({"value": value})


def shows(store: holdfast.Store, expected: object) -> bool:
    return bool(value(store) == expected)


def until(holds: Callable[[], object], seconds: float = 50) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settle(pair: Pair, store: holdfast.Store) -> None:
    """Let the standby have all there is, and be in use."""
    pair.standby.catch_up()

    def used() -> bool:
        before = answered(store)
        store.threads()
        return answered(store) > before

    until(used)


def pause(pair: Pair, store: holdfast.Store) -> None:
    """From here on, what is written does not get to the standby, which is in use."""
    settle(pair, store)
    pair.standby.pause_replay()


# What is late, and what never is


def test_only_what_others_wrote_is_late(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    put(other, "old")
    pause(pair, store)
    put(other, "new")
    assert value(store) == "old"  # the control: here the standby answers
    assert answered(store)
    put(store, "own", "b")
    assert value(store, "b") == "own"
    before = answered(store)
    assert {each.thread for each in store.threads()} == {"a", "b"}  # a list has all that this process wrote
    assert answered(store) == before
    pair.standby.resume_replay()
    settle(pair, store)
    assert value(store) == "new"
    assert answered(store) > before


def test_what_was_read_stays(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    put(other, 1)
    pause(pair, store)
    put(other, 2)
    assert value(store) == 1
    with store.transaction() as transaction:
        assert transaction.get("a").state == {"value": 2}  # from the primary
    before = answered(store)
    assert value(store) == 2
    assert answered(store) == before


def test_a_list_from_the_primary_counts_for_every_thread(
    pair: Pair, store: holdfast.Store, other: holdfast.Store
) -> None:
    put(other, 1)
    pause(pair, store)
    put(store, 0, "b")
    put(other, 2)
    put(other, 2, "c")
    assert value(store) == 1
    assert {each.thread for each in store.threads()} == {"a", "b", "c"}
    assert value(store) == 2


def test_nothing_that_is_read_for_a_change_is_late(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    for thread in "abcdef":
        store.thread(thread).put({"value": 1, "items": []})
    put(other, 1, "late")
    Checkpointer(store).put("g", {"value": 1})
    store.state(agent="a").set("key", 1)
    pause(pair, store)
    put(other, 2, "late")
    assert value(store, "late") == 1  # the control
    for thread in "abcdef":
        other.thread(thread).update({"value": 2})
    Checkpointer(other).put("g", {"value": 2})
    other.state(agent="a").set("key", 2)

    store.thread("a").increment("value")
    store.thread("b").append("items", "more")
    store.thread("c").update({"items": [7]})
    with store.transaction() as transaction:
        transaction.put("d", {"value": transaction.get("d").state["value"] + 1})
    store.thread("e").tag("two")
    store.thread("f").fork("side")
    found = Checkpointer(store).get_tuple("g")
    assert found is not None
    assert found.state == {"value": 2}
    assert store.state(agent="a").get("key") == 2

    assert value(other) == 3
    assert other.thread("b").get().state == {"value": 2, "items": ["more"]}
    assert other.thread("c").get().state == {"value": 2, "items": [7]}
    assert value(other, "d") == 3
    assert other.thread("e").get(at="two").state["value"] == 2
    assert other.thread("f").get(at="side").state["value"] == 2


def test_a_refused_save_shows_what_it_was_refused_for(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    first = store.thread("a").put({"value": 1})
    put(other, 1, "late")
    pause(pair, store)
    put(other, 2)
    put(other, 2, "late")
    assert value(store, "late") == 1  # the control
    with pytest.raises(ConflictError):
        store.thread("a").put({"value": 3}, parent=first, on_conflict="raise")
    assert value(store) == 2


def test_deleted_threads(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    put(other, 1, "theirs")
    put(other, 1, "mine")
    pause(pair, store)
    other.thread("theirs").delete()
    assert value(store, "theirs") == 1  # late
    store.thread("mine").delete()
    with pytest.raises(NotFoundError):
        store.thread("mine").get()
    put(store, 2, "theirs")
    assert value(store, "theirs") == 2
    assert len(store.thread("theirs").log()) == 1


def test_after_the_feed_of_changes_reads_are_as_new(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    put(other, 1)
    token = store.changes().token
    pause(pair, store)
    put(other, 2)
    assert value(store) == 1
    assert store.changes(token).threads == ["a"]
    assert value(store) == 2


def test_every_kind_of_reading(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    for number in range(40):
        other.thread("a").put({"value": number, "text": "refund"}, tag=f"t{number}", metadata={"user": "alice"})
    settle(pair, store)
    thread = store.thread("a")
    reads: dict[str, Callable[[], object]] = {
        "get": thread.get,
        "log": thread.log,
        "history": lambda: thread.history("value"),
        "blame": lambda: thread.blame("value"),
        "diff": lambda: thread.diff("t3", "t9"),
        "branches": thread.branches,
        "tags": thread.tags,
        "info": thread.info,
        "threads": store.threads,
        "where": lambda: store.threads(where="meta.user=alice"),
        "search": lambda: store.search("refund"),
        "timeline": store.timeline.query,
        "audit": store.audit.query,
        "all pages": lambda: list(thread.log(limit=7).all()),
    }
    for name, read in reads.items():
        before = answered(store)
        read()
        assert answered(store) >= before + (6 if name == "all pages" else 1), name
    assert thread.log() == other.thread("a").log()
    assert store.search("refund") == other.search("refund")


def test_a_standby_that_falls_behind_is_not_used(pair: Pair, other: holdfast.Store) -> None:
    put(other, 1)
    with opened(pair, max_lag=1) as store:
        pause(pair, store)
        put(other, 2)
        until(partial(shows, store, 2))
        before = answered(store)
        for number in range(3, 8):
            put(other, number)
            until(partial(shows, store, number))
        assert answered(store) == before


# Who reads


def test_rights_are_revoked_at_once(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    put(store, 1)
    grant = other.access.grant("agent:reader", "read", thread="a")
    pause(pair, store)
    reader = store.as_identity(agent="reader")
    put(other, 2)
    assert value(store) == 1  # the control: the owner's reads are late
    assert reader.thread("a").get().state == {"value": 2}
    other.access.revoke(grant)
    with pytest.raises(NotFoundError, match="was revoked"):
        reader.thread("a").get()


def test_tenants_and_row_security(pair: Pair) -> None:
    database = urlsplit(pair.url).path[1:]
    with psycopg.connect(pair.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE role_{database} LOGIN".encode())
    setup(pair.url, rls=True, role=f"role_{database}")
    guarded = pair._replace(
        url=pair.url.replace("app@", f"role_{database}@"), read_from=pair.read_from.replace("app@", f"role_{database}@")
    )
    pair.standby.catch_up()
    with opened(guarded, tenant="one") as one, opened(guarded, tenant="two") as two:
        put(one, "of one")
        settle(pair, one)
        settle(pair, two)
        pair.standby.pause_replay()
        before = answered(one), answered(two)
        assert value(one) == "of one"
        with pytest.raises(NotFoundError):
            two.thread("a").get()
        assert answered(one) > before[0]
        assert answered(two) > before[1]
        put(two, "of two")
        assert value(two) == "of two"
        assert value(one) == "of one"


def test_encrypted(pair: Pair) -> None:
    keys = Encryption(LocalKeys(b"1" * 32))
    with opened(pair, encryption=keys) as store, holdfast.open(pair.url, encryption=keys) as other:
        put(other, 1)
        settle(pair, store)
        assert value(store) == 1
        before = answered(store)
        pair.standby.pause_replay()
        put(other, 2)
        assert value(store) == 1
        assert answered(store) > before
        other.encryption_keys.rotate()
        put(other, 3)
        put(store, 4)
        assert value(store) == 4


def test_in_asyncio(pair: Pair) -> None:
    async def main() -> int:
        async with holdfast.aopen(pair.url, read_from=pair.read_from, max_lag=3600) as store:

            async def work(name: str) -> None:
                for number in range(20):
                    await store.thread(name).put({"value": number})
                    assert (await store.thread(name).get()).state == {"value": number}
                    await asyncio.sleep(random.uniform(0, 0.01))
                    assert (await store.thread(name).get()).state == {"value": number}

            await asyncio.gather(*(work(f"thread {number}") for number in range(8)))
            return int((await store.status()).details["standby_reads"])

    assert asyncio.run(main())


def test_time_never_goes_back(pair: Pair, store: holdfast.Store, other: holdfast.Store) -> None:
    """While the standby is late every now and then, several threads read what grows, each its own view of it."""
    put(other, 0)
    settle(pair, store)
    stop, latest, before = threading.Event(), [0], answered(store)
    seen: list[int] = []
    lock = threading.Lock()

    def read() -> None:
        while not stop.is_set():
            least = latest[0]
            found = value(store, "own")
            assert found >= least, "what this process wrote"
            with lock:
                found = value(store)
                assert not seen or found >= seen[-1], "what it read"
                seen.append(found)

    put(store, 0, "own")
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            read()
        except BaseException as error:  # raised below
            failures.append(error)

    readers = [threading.Thread(target=guarded) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(1, 41):
        if number % 8 == 4:
            pair.standby.pause_replay()
        if number % 8 == 0:
            pair.standby.resume_replay()
        put(other, number)
        put(store, number, "own")
        latest[0] = number
        if number % 5 == 0:
            store.thread("a").tag(f"t{number}")  # reads from the primary
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures, failures
    assert answered(store) > before
    assert len(set(seen)) > 1


# What happens to a standby


def test_killed_and_started_again(own: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with opened(own) as store, holdfast.open(own.url) as other:
        put(other, 1)
        settle(own, store)
        own.standby.kill()
        put(other, 2)
        with caplog.at_level(logging.WARNING, "holdfast.backends"):
            assert value(store) == 2  # at once
        assert "is not used, and the primary answers" in caplog.text
        assert "not used" in str(store.status().details["standby_state"])
        own.standby.restart()
        settle(own, store)
        assert store.status().details["standby_state"] == "used"
        assert "by the standby again" in caplog.text


@pytest.mark.nightly
def test_nothing_goes_back_whatever_answers_at_the_address(own: Pair) -> None:
    """A writer reads at once what it wrote, while one standby or another answers: late, killed, restarted, promoted."""
    chance = random.Random(4)
    with (
        servers.postgres_standby(own.primary) as second,
        Proxy(own.standby.port) as front,
        opened(own._replace(read_from=own.read_from.replace(str(own.standby.port), str(front.port)))) as store,
        holdfast.open(own.url) as other,
    ):
        put(other, 0)
        rounds, stop, failures = [0], threading.Event(), list[BaseException]()

        def write() -> None:
            least = 0
            while not stop.is_set():
                rounds[0] += 1
                put(store, rounds[0], "own")
                assert value(store, "own") == rounds[0], "what it wrote"
                assert store.thread("own").info().steps == rounds[0]
                assert {each.name for each in store.threads()} == {"a", "own"}
                found = value(store)
                assert found >= least, "what it read"
                least = found

        def guarded() -> None:
            try:
                write()
            except BaseException as error:  # raised below
                failures.append(error)

        def go_on() -> None:
            enough = rounds[0] + 4
            until(lambda: failures or rounds[0] >= enough, 300)

        def use(standby: PostgresStandby) -> None:
            front.switch(standby.port)
            until(lambda: failures or run(store._engine.context.stored.status())["standby_state"] == "used", 300)

        writer = threading.Thread(target=guarded)
        writer.start()
        standbys = [own.standby, second]
        for number in range(1, 9):
            for each in standbys:
                each.resume_replay()
            here, there = chance.sample(standbys, 2)
            use(here)
            here.catch_up()
            before = answered(store)
            until(lambda: failures or answered(store) > before, 300)  # noqa: B023 - the control: it is read from
            put(other, number)
            event = number % 4
            if event == 0:
                here.pause_replay()
            elif event == 1:
                there.pause_replay()
                go_on()
                front.switch(there.port)  # an older one
            elif event == 2:
                here.kill()
                go_on()
                here.restart()
                here.pause_replay()
            else:
                there.kill()
                there.restart()
                there.pause_replay()
                front.switch(there.port)
            go_on()
            assert not failures, failures
        for each in standbys:
            each.resume_replay()
        second.catch_up()
        use(second)
        second.promote()
        until(lambda: not second._call("pg_is_in_recovery()"))
        with holdfast.open(second.url_of(urlsplit(own.url).path[1:])) as apart:
            put(apart, -1)
            put(apart, -1, "own")
        go_on()
        use(own.standby)
        go_on()
        stop.set()
        writer.join()
        assert not failures, failures
        settle(own, store)


@pytest.mark.nightly
def test_standing_still(own: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_PATIENCE", 0.5)
    with opened(own) as store:
        put(store, 1)
        settle(own, store)
        own.standby.pause()
        start = time.monotonic()
        assert value(store) == 1
        assert time.monotonic() - start < 20  # not the timeout of the store
        own.standby.resume()
        settle(own, store)


@pytest.mark.nightly  # killed by day
def test_promoted(own: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with opened(own) as store, holdfast.open(own.url) as other:
        put(other, 1)
        settle(own, store)
        own.standby.promote()
        until(lambda: not own.standby._call("pg_is_in_recovery()"))
        with holdfast.open(own.read_from) as apart:  # it takes changes of its own
            put(apart, "of another history")
            before = answered(store)
            put(other, 2)
            assert value(store) == 2
            assert answered(store) == before
            assert value(apart) == "of another history"
        assert "it was promoted" in caplog.text
        assert "not used" in str(store.status().details["standby_state"])


@pytest.mark.nightly
def test_away_when_a_store_is_opened(own: Pair, caplog: pytest.LogCaptureFixture) -> None:
    own.standby.kill()
    with opened(own) as store:
        assert "is not used" in caplog.text
        put(store, 1)
        assert value(store) == 1
        own.standby.restart()
        settle(own, store)


@pytest.mark.nightly
def test_the_primary_away(own: Pair) -> None:
    with opened(own, timeout=1) as store:
        put(store, 1)
        settle(own, store)
        own.primary.kill()
        assert value(store) == 1  # reads go on for max_lag
        with pytest.raises(TransientError):
            put(store, 2)
        own.primary.restart()
        put(store, 3)
        assert value(store) == 3


# Wrong use


def test_what_is_no_standby_of_the_store(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="read_from is not a standby of the primary"):
        opened(pair._replace(read_from=pair.standby.url))  # another database of it
    with pytest.raises(ConfigError, match="read_from cannot be 'replica.example.org'"):
        opened(pair._replace(read_from="replica.example.org"))
    with pytest.raises(ConfigError, match="max_lag cannot be 0"):
        opened(pair, max_lag=0)


def test_the_primary_is_not_its_own_standby(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    with opened(pair._replace(read_from=pair.url)) as store:
        put(store, 1)
        assert value(store) == 1
        assert answered(store) == 0
    assert "is not used" in caplog.text


def test_in_a_url_without_its_password(pair: Pair) -> None:
    secret = pair.read_from.replace("app@", "app:secret@")
    with holdfast.open(f"{pair.url}?read_from={quote(secret, safe='')}&max_lag=1h") as store:
        settle(pair, store)
        assert "secret" not in str(store.status())
        assert pair.read_from in str(store.status().details)


def test_in_compositions(pair: Pair, tmp_path: Path) -> None:
    part = quote(f"{pair.url}?read_from={quote(pair.read_from, safe='')}", safe="")
    with ExitStack() as stack:
        put(stack.enter_context(holdfast.open(pair.url)), 1)
        for kind in ("retry", "readonly"):
            settle(pair, stack.enter_context(holdfast.open(f"{kind}:?store={part}")))
        for url in (f"cache:?store={part}", f"mirror:?local={tmp_path}/a.db&remote={part}"):
            with pytest.raises(ConfigError, match="a part of a composition cannot read from a standby"):
                stack.enter_context(holdfast.open(url))
