"""Opening a store whose server cannot be reached: it fails at once, or is retried for as long as `connect_timeout`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import holdfast
from holdfast.errors import ConfigError, UnavailableError
from tests.servers import mongodb_server, postgres_server, redis_server
from tests.servers.processes import HOST, Port

URLS = {
    "postgres": "postgresql://me:s3cr3t@{address}/agents",
    "mongodb": "mongodb://me:s3cr3t@{address}/agents",
    "redis": "redis://me:s3cr3t@{address}/0",
    "s3": "s3://bucket/x?endpoint=http://{address}&access_key_id=me&secret_access_key=s3cr3t",
}
LONG = 600
"""Seconds: what is retried for as long is not over while a test runs."""


@pytest.fixture
def closed() -> Iterator[str]:
    """The address of a port that nobody listens on."""
    port = Port()
    yield f"{HOST}:{port.number}"
    port.close()


def retries(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "holdfast.backends"]


@pytest.mark.parametrize("kind", URLS)
def test_a_refused_connection_fails_at_once(kind: str, closed: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnavailableError, match=r"could not be reached: .*refused") as caught:
        holdfast.open(URLS[kind].format(address=closed), timeout=LONG)
    host, _, port = closed.rpartition(":")
    assert host in caught.value.what
    assert port in caught.value.what
    assert caught.value.code == "unreachable"
    assert "connect_timeout" in caught.value.hint
    assert "s3cr3t" not in str(caught.value)
    assert retries(caplog) == []


@pytest.mark.parametrize("kind", URLS)
def test_a_name_that_does_not_resolve_fails_at_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnavailableError, match=r"could not be reached: .*no-such-host\.invalid") as caught:
        holdfast.open(URLS[kind].format(address="no-such-host.invalid:9"), timeout=LONG)
    assert "s3cr3t" not in str(caught.value)
    assert retries(caplog) == []


@pytest.mark.parametrize("kind", URLS)
def test_it_is_retried_until_connect_timeout(kind: str, closed: str, caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()
    with pytest.raises(UnavailableError, match=r"could not be reached for 1 s: .*refused") as caught:
        holdfast.open(URLS[kind].format(address=closed), connect_timeout="1s")
    assert time.monotonic() - begun > 0.4
    assert caught.value.code == "unreachable"
    assert retries(caplog)
    for record in retries(caplog):
        assert record.levelno == logging.WARNING
        assert "s3cr3t" not in record.getMessage()
        assert "refused" in record.getMessage()


@pytest.mark.parametrize(
    "started",
    [postgres_server, redis_server, pytest.param(mongodb_server, marks=pytest.mark.nightly)],
    ids=["postgres", "redis", "mongodb"],
)
def test_a_server_that_is_started_while_open_retries(
    started: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with started() as server, ThreadPoolExecutor(1) as pool:
        url = server.fresh()
        server.kill()
        opening = pool.submit(lambda: holdfast.open(url, connect_timeout=LONG))
        while not retries(caplog):
            assert not opening.done(), opening.exception()
            time.sleep(0.01)
        server.restart()
        with opening.result(LONG) as store:
            store.put("chat", {"n": 1})
            assert store.get("chat").state == {"n": 1}


def test_a_connect_timeout_that_is_none() -> None:
    with pytest.raises(ConfigError, match="connect_timeout cannot be 'soon'"):
        holdfast.open("redis://localhost/0?connect_timeout=soon")
    with pytest.raises(ConfigError, match="connect_timeout cannot be -1"):
        holdfast.open("redis://localhost/0", connect_timeout=-1)
