"""The room for a read cache in Redis."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.backends.redis.cache_storage import RedisCacheStorage
from holdfast.backends.runtime.drivers import run
from holdfast.backends.wrappers.cache import CacheStorage
from holdfast.errors import ConfigError, TransientError, UnavailableError
from tests.servers import redis, redis_server
from tests.servers.processes import NAME
from tests.servers.tls import Authority, tls_port


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy may take longer for an answer than a cache should be waited for."""
    monkeypatch.setattr("holdfast.backends.redis.cache_storage._TIMEOUT", 60.0)


@pytest.fixture
def url() -> str:
    return redis()


@pytest.fixture
def room(url: str) -> Iterator[RedisCacheStorage]:
    room = run(RedisCacheStorage.open(url))
    yield room
    run(room.close())


def test_it_keeps_and_drops(room: RedisCacheStorage, url: str) -> None:
    as_asked_for: CacheStorage = room
    run(as_asked_for.put_many({b"a": b"1", b"\0\xff": b"\0", b"c": b""}, 60))
    assert run(room.get_many([b"c", b"b", b"a", b"\0\xff"])) == [b"", None, b"1", b"\0"]
    run(room.drop([b"a", b"b"]))
    assert run(room.get_many([b"a", b"c"])) == [None, b""]
    other = run(RedisCacheStorage.open(url))
    assert run(other.get_many([b"c"])) == [b""]
    elsewhere = run(RedisCacheStorage.open(f"{url}-other"))
    assert run(elsewhere.get_many([b"c"])) == [None]
    run(other.close())
    run(elsewhere.close())


def test_nothing_to_do(room: RedisCacheStorage) -> None:
    assert run(room.get_many([])) == []
    run(room.put_many({}, 60))
    run(room.put_many({b"a": b"1"}, 0))
    run(room.drop([]))
    assert run(room.get_many([b"a"])) == [None]


def test_it_forgets_in_time(room: RedisCacheStorage) -> None:
    run(room.put_many({b"a": b"1"}, 0.05))
    time.sleep(0.1)
    assert run(room.get_many([b"a"])) == [None]


def test_a_room_that_is_down_says_so_at_once_and_comes_back() -> None:
    with redis_server() as server:
        room = run(RedisCacheStorage.open(server.url))
        run(room.put_many({b"a": b"1"}, 60))
        server.kill()
        for _ in range(2):
            with pytest.raises(TransientError):
                run(room.get_many([b"a"]))
        began = time.monotonic()
        with pytest.raises(TransientError):
            run(room.drop([b"a"]))
        assert time.monotonic() - began < 30
        assert room.status() == {"failures": 1}
        server.restart()
        with pytest.raises(TransientError, match="a moment ago"):
            run(room.get_many([b"a"]))
        room._down_until = time.monotonic()
        assert run(room.get_many([b"a"])) == [b"1"]
        run(room.close())


def test_a_room_that_is_down_at_first() -> None:
    room = run(RedisCacheStorage.open("redis://127.0.0.1:9/0"))
    assert room.status() == {"failures": 1}
    with pytest.raises(TransientError):
        run(room.get_many([b"a"]))
    run(room.close())


@pytest.mark.parametrize("wrong", ["redis://localhost/first", "redis://:wrong@{}"], ids=["database", "password"])
def test_a_wrong_url_is_refused(url: str, wrong: str) -> None:
    address = url.partition("//")[2].partition("?")[0]
    with pytest.raises(ConfigError):
        run(RedisCacheStorage.open(wrong.format(address)))


def test_a_certificate_that_is_not_trusted_is_refused(url: str, tmp_path: Path) -> None:
    """Else the cache would be of no use for ever, and nobody would know."""
    authority, identity = Authority(), tmp_path / "certificate.pem"
    identity.write_bytes(authority.issue())
    with tls_port(int(urlsplit(url).port or 0), identity) as port:
        with pytest.raises(ConfigError) as caught:
            run(RedisCacheStorage.open(f"rediss://{NAME}:{port}/0"))
        assert caught.value.code == "tls-failed"
        trusted = f"rediss://{NAME}:{port}/0?ssl_ca_certs={authority.write(tmp_path / 'authority.pem')}"
        room = run(RedisCacheStorage.open(trusted))
        run(room.put_many({b"a": b"1"}, 60))
        assert run(room.get_many([b"a"])) == [b"1"]
        run(room.close())


def test_a_closed_room_is_unavailable(url: str) -> None:
    room = run(RedisCacheStorage.open(url))
    run(room.close())
    run(room.close())
    with pytest.raises(UnavailableError):
        run(room.get_many([b"a"]))


def test_a_forked_child_has_connections_of_its_own(room: RedisCacheStorage) -> None:
    run(room.put_many({b"a": b"1"}, 60))
    child = os.fork()
    if not child:
        try:
            os._exit(0 if run(room.get_many([b"a"])) == [b"1"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert run(room.get_many([b"a"])) == [b"1"]
