"""The proxies do to connections what they say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import obstore
import pytest
import redis
from obstore.exceptions import BaseError
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.servers.http_proxy import Fault, HttpProxy
from tests.servers.processes import HOST
from tests.servers.proxy import Proxy
from tests.servers.s3 import object_store


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with servers.redis_server() as server, Proxy(server.port) as made:
        yield made


def client_of(proxy: Proxy, timeout: float = 60.0) -> redis.Redis:
    return redis.Redis(HOST, proxy.port, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), client_name=None)


def test_cut_refuse_stall_and_count(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.set("a", 1)
        before = proxy.round_trips
        assert client.get("a") == b"1"
        client.pipeline().get("a").get("a").execute()
        assert proxy.round_trips == before + 2
        with socket.create_connection((HOST, proxy.port), 60) as held:
            held.sendall(b"PING\r\n")
            assert held.recv(100) == b"+PONG\r\n"
            proxy.cut()
            with pytest.raises(ConnectionResetError):
                held.recv(100)
        with suppress(redis.ConnectionError):
            client.get("a")  # it may not have seen yet that its connection was cut
        assert client.get("a") == b"1"
        proxy.refuse()
        proxy.cut()
        for _ in range(2):
            with pytest.raises(redis.ConnectionError):
                client.get("a")
        proxy.accept()
        assert client.get("a") == b"1"
        proxy.stall()
        with client_of(proxy, 0.3) as hasty, pytest.raises(redis.TimeoutError):
            hasty.get("a")
        proxy.flow()
        assert client.get("a") == b"1"
        proxy.latency = 0.05
        begun = time.monotonic()
        client.get("a")
        assert time.monotonic() - begun >= 0.1


def test_cut_before_and_after(proxy: Proxy) -> None:
    with client_of(proxy) as client:
        client.set("n", 0)
        proxy.cut_before(b"INCR")
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert client.get("n") == b"0"
        proxy.cut_after(b"INCR")
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert client.get("n") == b"1"
        assert client.incr("n") == 2
        assert proxy.sprung == 2


def test_http() -> None:
    url, options = servers.moto()
    bucket = url.removeprefix("s3://").partition("/")[0]
    with HttpProxy(int(options["endpoint"].rpartition(":")[2])) as proxy:
        store = object_store(bucket, {**options, "endpoint": proxy.endpoint})
        obstore.put(store, "a", b"1")
        assert bytes(obstore.get(store, "a").bytes()) == b"1"
        assert proxy.requests == {"PUT": 1, "GET": 1}
        proxy.rule = lambda method, path: Fault(503) if method == "PUT" else None
        with pytest.raises(BaseError, match="503"):
            obstore.put(store, "a", b"2")
        assert bytes(obstore.get(store, "a").bytes()) == b"1"
        proxy.rule = lambda method, path: Fault(0, "after") if method == "PUT" else None
        with pytest.raises(BaseError):
            obstore.put(store, "a", b"3")
        assert bytes(obstore.get(store, "a").bytes()) == b"3"
        assert proxy.faults == 2
        assert obstore.head(store, "a")["size"] == 1
