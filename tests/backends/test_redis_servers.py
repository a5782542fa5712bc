"""The Redis backend and its server: what it promises with which settings, and what it says when the server fails."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import redis as client

from holdfast.backends.async_backend import GroupStamp
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Batch, Create, Delete, Get, Put, Scan
from holdfast.backends.redis.backend import RedisBackend
from holdfast.backends.redis.connections import RedisConnections, connection_arguments
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.group_commit import Outcome
from holdfast.backends.tables import NODES, STEPS
from holdfast.errors import (
    ConfigError,
    DeniedError,
    HoldfastError,
    OutcomeUnknownError,
    TransientError,
    UnavailableError,
)
from tests.servers import RedisServer, redis, redis_server
from tests.servers.pace import TooSoon, given_time, hurried
from tests.servers.processes import wait_for


@contextmanager
def opened(url: str, **options: Any) -> Iterator[RedisBackend]:
    store = run(RedisBackend.open(url, **options))
    try:
        yield store
    finally:
        run(store.close())


def raw(server: RedisServer) -> closing[client.Redis]:
    """The server, as any other client sees it."""
    return closing(client.Redis.from_url(server.url))


def seqs(store: RedisBackend) -> list[int]:
    (rows,) = run(store.read([Scan(STEPS, ())]))
    return [int(row.key[3]) for row in rows]


# The URL ----------------------------------------------------------------------------------------------------------

WRONG = {
    "a database that is no number": ("redis://localhost/first", "not the number of a database"),
    "a port that is no number": ("redis://localhost:port/0", "the port in the URL is not a number"),
    "a parameter nobody knows": ("redis://localhost/0?no_such_thing=1", "no_such_thing"),
    "a parameter of the wrong kind": ("redis://localhost/0?socket_timeout=soon", "socket_timeout"),
    "a prefix with braces": ("redis://localhost/0?prefix={a}", "prefix"),
    "an empty prefix": ("redis://localhost/0?prefix=", "prefix"),
    "a way to be durable nobody knows": ("redis://localhost/0?durable=very", "durable"),
    "fewer replicas than none": ("redis://localhost/0?replicas=-1", "replicas"),
    "no time at all": ("redis://localhost/0?timeout=0", "timeout"),
    "another scheme": ("unix:///run/redis.sock", "not the URL"),
}


@pytest.mark.parametrize(("url", "what"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_url_is_refused_at_once(url: str, what: str) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigError, match=what):
        run(RedisBackend.open(url))
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("password", ["s3cr/t", "s3cr#t", "12/s3cr"])
def test_a_password_that_is_not_quoted_is_not_shown(password: str) -> None:
    with pytest.raises(ConfigError, match="redis://someone@localhost:6379/0") as caught:
        run(RedisBackend.open(f"redis://someone:{password}@localhost:6379/0"))
    assert "s3cr" not in str(caught.value)


def test_the_other_schemes_and_a_database() -> None:
    url = redis()
    assert "/0" in url
    with opened(url.replace("redis://", "valkey://").replace("/0", "/3")) as store, opened(url) as other:
        assert store.url.startswith("valkey://")
        run(store.apply([Create(STEPS, step())]))
        assert seqs(store) == [0]
        assert seqs(other) == []


def test_a_database_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="refuses the connection"):
        run(RedisBackend.open(redis().replace("/0", "/4000")))


def test_passwords_are_needed_and_not_shown() -> None:
    with redis_server() as server, raw(server) as other:
        other.config_set("requirepass", "se:cr@t")
        connection_arguments = server.url.partition("//")[2]
        with opened(f"redis://:se%3Acr%40t@{connection_arguments}") as store:
            assert "cr" not in store.url.partition("?")[0].partition("//")[2].partition("@")[0]
            assert run(store.apply([Create(STEPS, step())])) is None
        for url in (f"redis://:wrong@{connection_arguments}", f"redis://{connection_arguments}"):
            began = time.monotonic()
            with pytest.raises(ConfigError) as caught:
                run(RedisBackend.open(url))
            assert "wrong@" not in str(caught.value)
            assert time.monotonic() - began < 60


def test_a_user_who_may_not_ask_for_settings() -> None:
    with redis_server() as server, raw(server) as other:
        other.acl_setuser(
            "app", enabled=True, passwords=["+pw"], categories=["+@all", "-@admin"], keys=["{holdfast}:*"]
        )
        url = server.url.replace("//", "//app:pw@")
        with opened(url) as store:
            assert run(store.apply([Create(STEPS, step())])) is None
            assert not store.capabilities.durable  # it may be, but nobody says so
            assert run(store.check()) == []
            assert run(store.size()) > 0
        with pytest.raises(DeniedError, match="prefix"):
            run(RedisBackend.open(url, prefix="other"))


# What is promised -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "durable"),
    [
        ({}, True),
        ({"appendfsync": "everysec"}, False),
        ({"appendonly": "no"}, False),
        ({"no_appendfsync_on_rewrite": "yes"}, False),
    ],
    ids=["always", "everysec", "no file", "not while rewriting"],
)
def test_durable_is_what_the_server_flushes(settings: dict[str, str], durable: bool) -> None:
    with redis_server(**settings) as server, opened(server.url) as store:
        assert store.capabilities.durable is durable


def test_a_server_that_would_drop_keys_is_refused() -> None:
    with (
        redis_server(maxmemory_policy="allkeys-lru") as server,
        pytest.raises(ConfigError, match="maxmemory-policy is allkeys-lru"),
    ):
        run(RedisBackend.open(server.url))


def test_a_server_without_memory_takes_nothing_and_removes_all_the_same() -> None:
    with redis_server(maxmemory="20mb") as server, opened(server.url) as store:
        made = 0

        def fill() -> None:
            nonlocal made
            while made < 100:
                run(store.apply([Create(NODES, row_of(NODES, "t", "l", 0, bytes([made]), body=bytes(1 << 20)))]))
                made += 1

        with pytest.raises(TransientError, match="no memory left") as caught:
            fill()
        assert not isinstance(caught.value, OutcomeUnknownError)
        (rows,) = run(store.read([Scan(NODES, (), bodies=False)]))
        assert len(rows) == made
        assert run(store.apply([Delete(NODES, ("t", "l", 0, bytes([n]))) for n in range(made)])) is None
        assert run(store.apply([Create(STEPS, step())])) is None
        assert run(store.check()) == []


def test_waiting_for_the_disk() -> None:
    with redis_server(appendfsync="everysec") as server, raw(server) as other:
        with opened(server.url, durable="waitaof") as store:
            assert store.capabilities.durable
            before = _calls(other, "waitaof")
            for seq in range(3):
                assert run(store.apply([Create(STEPS, step(seq))])) is None
            assert _calls(other, "waitaof") >= before + 3
            assert run(store.apply([Create(STEPS, step(0))])) == 0
        server.restart()
        with opened(server.url, durable="waitaof") as store:
            assert seqs(store) == [0, 1, 2]


def test_a_group_that_comes_again_is_waited_for_again() -> None:
    # On a new connection, WAITAOF waits for what that connection wrote: so something has to be written.
    with redis_server(appendfsync="everysec") as server, raw(server) as other, opened(server.url) as store:
        stamp = GroupStamp("client", 0, 1)
        for times in (1, 2):
            assert _commit(store, [[Create(STEPS, step())]], stamp) == [None]
            assert _calls(other, "set") == times
        assert seqs(store) == [0]


def test_a_server_that_cannot_wait_for_its_disk() -> None:
    with (
        redis_server(appendonly="no") as server,
        pytest.raises(ConfigError, match="cannot wait for its append-only file"),
    ):
        run(RedisBackend.open(server.url, durable="waitaof"))


@pytest.mark.nightly
def test_replicas_have_it_before_it_is_acknowledged() -> None:
    with redis_server() as primary, redis_server(replicaof=f"127.0.0.1 {primary.port}") as replica:
        with raw(replica) as other:
            wait_for(lambda: _linked(other), "the replica")
            with opened(primary.url, replicas=1, timeout=120) as store:
                for seq in range(5):
                    assert run(store.apply([Create(STEPS, step(seq))])) is None
                    assert other.zcard("{holdfast}:steps.keys:tenant+line+") == seq + 1

            def refused(seconds: float) -> None:
                with pytest.raises((TransientError, UnavailableError)) as caught:
                    run(RedisBackend.open(replica.url, timeout=seconds))
                _in_time("replica", caught.value)

            given_time(refused, 0.5)
        replica.kill()
        with opened(primary.url, replicas=1, timeout=120) as store:

            def lonely(seconds: float) -> None:
                with hurried(store, seconds), pytest.raises(OutcomeUnknownError) as caught:
                    run(store.apply([Put(STEPS, step(5))]))
                _in_time("0 of 1 replicas", caught.value)

            given_time(lonely, 1)
        with opened(primary.url) as store:
            assert seqs(store) == [0, 1, 2, 3, 4, 5]


@pytest.mark.nightly
def test_a_primary_that_became_a_replica_is_not_read_from() -> None:
    with redis_server() as server, raw(server) as other, opened(server.url) as store:
        run(store.apply([Create(STEPS, step(0))]))
        other.replicaof("127.0.0.1", "9")  # nobody is there: it keeps what it has, and lags

        def refused(seconds: float) -> None:
            with hurried(store, seconds), pytest.raises(TransientError) as caught:
                run(store.read([Scan(STEPS, ())]))
            _in_time("replica", caught.value)
            with hurried(store, seconds), pytest.raises(TransientError) as caught:
                run(store.apply([Create(STEPS, step(1))]))
            _in_time("READONLY|replica", caught.value)
            if isinstance(caught.value, OutcomeUnknownError):
                raise TooSoon from caught.value  # a try was cut off before the server refused it

        given_time(refused, 1)
        other.replicaof("NO", "ONE")
        assert run(store.apply([Create(STEPS, step(2))])) is None
        assert seqs(store) == [0, 2]


@pytest.mark.nightly
def test_a_replica_that_has_nothing_yet_lost_nothing() -> None:
    empty, server = redis_server(), redis_server()
    with empty, server, raw(server) as other, opened(server.url) as store:
        other.replicaof("127.0.0.1", str(empty.port))
        wait_for(lambda: _linked(other), "the replica")

        def refused(seconds: float) -> None:
            for call in (lambda: store.read([Scan(STEPS, ())]), lambda: store.apply([Create(STEPS, step())])):
                with hurried(store, seconds), pytest.raises(TransientError) as caught:
                    run(call())
                _in_time("replica", caught.value)

        given_time(refused, 1)
        other.replicaof("NO", "ONE")
        with pytest.raises(UnavailableError, match="lost the store's data"):
            run(store.read([Scan(STEPS, ())]))


def _in_time(why: str, error: HoldfastError) -> None:
    """The server had the time to say why."""
    if not re.search(why, str(error)):
        raise TooSoon(error)


def _linked(replica: client.Redis) -> None:
    found: Any = replica.info("replication")
    assert found["master_link_status"] == "up"


def _calls(server: client.Redis, command: str) -> int:
    found: Any = server.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])


# Once and no more -------------------------------------------------------------------------------------------------


def _commit(store: RedisBackend, batches: list[Batch], stamp: GroupStamp) -> list[Outcome]:
    return run(store._run_in_loop(lambda: store._commit(batches, stamp)))


def test_a_group_is_made_once() -> None:
    with opened(redis()) as store:
        group: list[Batch] = [[Create(STEPS, step(0))], [Create(STEPS, step(0))], [Create(STEPS, step(1))]]
        first = _commit(store, group, GroupStamp("client", 0, 7))
        assert first == [None, 0, None]
        run(store.apply([Delete(STEPS, step(1).key)]))
        assert _commit(store, group, GroupStamp("client", 0, 7)) == first
        assert seqs(store) == [0]
        assert _commit(store, group, GroupStamp("client", 1, 7)) == [0, 0, None]
        assert _commit(store, [[Put(STEPS, step(5))]], GroupStamp("client", 0, 8)) == [None]


def test_a_group_that_was_overtaken_is_refused() -> None:
    with opened(redis()) as store:
        assert _commit(store, [[Create(STEPS, step(0))]], GroupStamp("client", 0, 8)) == [None]
        with pytest.raises(HoldfastError, match="OVERTAKEN"):
            _commit(store, [[Create(STEPS, step(1))]], GroupStamp("client", 0, 7))
        assert seqs(store) == [0]


def test_what_is_remembered_of_clients_goes_by_itself() -> None:
    url = redis()
    with opened(url) as store:
        run(store.apply([Create(STEPS, step())]))
        with closing(client.Redis.from_url(url.partition("?")[0])) as other:
            (record,) = other.scan_iter(f"*{url.partition('prefix=')[2]}}}:client:*")
            assert 86_400 <= int(str(other.ttl(record))) <= 2 * 86_400


def test_a_script_that_the_server_forgot_is_told_again() -> None:
    with redis_server() as server, raw(server) as other, opened(server.url) as store:
        for seq in range(3):
            other.script_flush()
            assert run(store.apply([Create(STEPS, step(seq))])) is None
            other.script_flush()
            assert seqs(store) == list(range(seq + 1))


# Failures ---------------------------------------------------------------------------------------------------------


def _flush(server: RedisServer) -> None:
    with raw(server) as other:
        other.flushall()


@pytest.mark.parametrize("lose", [RedisServer.restart, _flush], ids=["restarted", "emptied"])
def test_a_server_that_lost_its_data_is_not_taken_for_an_empty_store(lose: Any) -> None:
    with redis_server(appendonly="no") as server, opened(server.url) as store:
        run(store.apply([Create(STEPS, step())]))
        lose(server)
        for call in (
            lambda: store.read([Get(STEPS, [step().key])]),
            lambda: store.apply([Create(STEPS, step(1))]),
            store.size,
            store.check,
            store.tidy,
        ):
            with pytest.raises(UnavailableError, match="lost the store's data"):
                run(call())
        with opened(server.url) as again:
            assert seqs(again) == []
            run(again.apply([Create(STEPS, step(7))]))
        with pytest.raises(UnavailableError, match="lost the store's data"):
            run(store.read([]))


def test_a_server_that_is_killed_and_comes_back_loses_nothing() -> None:
    with redis_server() as server, opened(server.url, timeout=150) as store:
        stop = threading.Event()

        def write(branch: int) -> int:
            for seq in range(100_000):
                if stop.is_set():
                    return seq
                assert run(store.apply([Create(STEPS, step(seq, branch=branch))])) is None
            raise AssertionError("never told to stop")

        with ThreadPoolExecutor(4) as pool:
            writers = [pool.submit(write, branch) for branch in range(4)]
            for _ in range(3):
                time.sleep(0.2)
                server.restart()
            time.sleep(0.2)
            stop.set()
            counts = [writer.result() for writer in writers]
        for branch, count in enumerate(counts):
            (rows,) = run(store.read([Scan(STEPS, ("tenant", "line", branch))]))
            assert [row.key[3] for row in rows] == list(range(count))
        assert run(store.check()) == []


def test_a_server_that_is_gone() -> None:
    with redis_server() as server, opened(server.url) as store:
        run(store.apply([Create(STEPS, step())]))
        server.kill()
        with hurried(store, 1), pytest.raises(TransientError):
            run(store.read([Scan(STEPS, ())]))
        with hurried(store, 1), pytest.raises(TransientError):
            run(store.apply([Create(STEPS, step(1))]))
        server.restart()
        assert set(seqs(store)) <= {0, 1}


@pytest.mark.nightly
def test_a_server_that_stands_still() -> None:
    with redis_server() as server, opened(server.url) as store:
        run(store.apply([Create(STEPS, step())]))
        server.pause()
        with hurried(store, 1), pytest.raises(OutcomeUnknownError):
            run(store.apply([Create(STEPS, step(1))]))
        server.resume()
        assert run(store.apply([Create(STEPS, step(2))])) is None
        assert {0, 2} <= set(seqs(store))


@pytest.mark.nightly
def test_a_connection_that_never_answers_is_not_waited_for_to_the_end() -> None:
    with (
        redis_server() as server,
        _deaf_at_first(server.port) as port,
        opened(f"redis://127.0.0.1:{port}?socket_timeout=1", timeout=120, connect_timeout=120) as store,
    ):
        assert run(store.apply([Create(STEPS, step(0))])) is None


@contextmanager
def _deaf_at_first(behind: int) -> Iterator[int]:
    """A port whose first connection is taken and never answered; all others lead on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            first, _ = listening.accept()
            with first:
                while True:
                    try:
                        near, _ = listening.accept()
                    except OSError:
                        return
                    far = socket.create_connection(("127.0.0.1", behind))
                    for one, two in ((near, far), (far, near)):
                        threading.Thread(target=_pump, args=(one, two), daemon=True).start()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _pump(one: socket.socket, two: socket.socket) -> None:
    with one, suppress(OSError):  # when the other direction has ended first
        while data := one.recv(1 << 16):
            two.sendall(data)
        two.shutdown(socket.SHUT_WR)


def test_what_is_in_use_when_links_are_closed_is_closed_after() -> None:
    with redis_server() as server:

        async def main() -> None:
            connections = RedisConnections(connection_arguments(server.url), 60, server.url)
            asked = asyncio.create_task(connections.execute(("BLPOP", "nothing", 0.3)))
            await asyncio.sleep(0.1)
            await connections.close()
            assert await asked == [None]
            assert connections._idle == []

        asyncio.run(main())


def test_closing_while_others_read_leaves_nobody_waiting() -> None:
    store = run(RedisBackend.open(redis()))
    run(store.apply([Create(STEPS, step(seq, body=bytes(5000))) for seq in range(200)]))
    reading = threading.Barrier(9)

    def read() -> None:
        reading.wait()
        while True:
            seqs(store)

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(8)]
        reading.wait()
        time.sleep(0.05)
        run(store.close())
        for reader in readers:
            with pytest.raises(UnavailableError):
                reader.result(timeout=120)


def test_a_forked_child_has_connections_of_its_own() -> None:
    with opened(redis()) as store:
        assert run(store.apply([Create(STEPS, step(0))])) is None
        child = os.fork()
        if not child:
            try:
                done = run(store.apply([Create(STEPS, step(1))])) is None and seqs(store) == [0, 1]
                run(store.close())
                os._exit(0 if done else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert run(store.apply([Create(STEPS, step(2))])) is None
        assert seqs(store) == [0, 1, 2]


# A cluster --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_node_of_a_cluster_names_the_one_that_has_the_keys() -> None:
    one, other = redis_server(cluster_enabled="yes"), redis_server(cluster_enabled="yes")
    with one, other, raw(one) as first, raw(other) as second:
        slot = int(_cluster(first, "KEYSLOT", "{holdfast}"))
        _cluster(first, "MEET", "127.0.0.1", other.port)
        _cluster(first, "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
        _cluster(second, "ADDSLOTSRANGE", slot, slot)
        wait_for(lambda: _whole(first, second), "the cluster")
        with opened(one.url) as store:
            assert run(store.apply([Create(STEPS, step(0))])) is None
            assert seqs(store) == [0]
            assert run(store.check()) == []
            assert int(str(second.dbsize())) > 0
            assert int(str(first.dbsize())) == 0
            other.restart()
            assert run(store.apply([Create(STEPS, step(1))])) is None
            assert seqs(store) == [0, 1]


def _cluster(node: client.Redis, *arguments: str | int) -> str:
    return str(node.execute_command("CLUSTER", *arguments))  # type: ignore[no-untyped-call]


def _whole(*nodes: client.Redis) -> None:
    for node in nodes:
        found = _cluster(node, "INFO")
        assert "cluster_state:ok" in found, found
        assert "cluster_slots_ok:16384" in found, found
