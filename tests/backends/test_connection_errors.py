"""Servers that cannot be used: the same error for the same cause on every store, at once, and without the password."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pymongo
import pytest
import redis as redis_driver
from pymongo.errors import OperationFailure

import holdfast
from holdfast.errors import ConfigError, HoldfastError, UnavailableError
from tests import servers
from tests.servers.processes import HOST, NAME, Port
from tests.servers.s3 import ACCESS_KEY, SECRET_KEY
from tests.servers.tls import Authority, tls_port
from tests.support.nightly import mostly_nightly

SECRET = "s3cr3t"
"""The password in the URLs, which is wrong."""
PASSWORD = "right"
LONG = 600.0
"""For how many seconds an open store would retry."""
AT_ONCE = LONG / 10
"""A test that takes less waited for no retries."""
SHORT = 4.0

KINDS = ("postgres", "mongodb", "redis", "s3")


AUTHORITY_OPTIONS = {"postgres": "sslrootcert", "mongodb": "tlsCAFile", "redis": "ssl_ca_certs", "s3": "ca_file"}
"""The option of each store that names the file of the authority of a certificate."""


def build_encrypted_url(kind: str, address: str, authority: Path | None = None, *, password: str = SECRET) -> str:
    """The URL of a store behind a port with TLS."""
    url = build_url(kind, address, password=password, tls=True)
    if kind == "postgres":  # the port knows nothing of PostgreSQL
        url += "&sslnegotiation=direct"
    if authority is not None:
        url += f"{'&' if '?' in url else '?'}{AUTHORITY_OPTIONS[kind]}={authority}"
    return url


def build_url(kind: str, address: str, *, password: str = SECRET, tls: bool = False, name: str = "") -> str:
    """The URL of a store; `name` is that of a database, bucket or replica set."""
    match kind:
        case "postgres":
            mode = "verify-full" if tls else "prefer"
            return f"postgresql://locked:{password}@{address}/{name or 'postgres'}?sslmode={mode}"
        case "mongodb":
            which = f"replicaSet={name}" if name else "directConnection=true"
            return f"mongodb://locked:{password}@{address}/agents?authSource=admin&tls={str(tls).lower()}&{which}"
        case "redis":
            return f"{'rediss' if tls else 'redis'}://:{password}@{address}/{name or 0}"
    endpoint = f"{'https' if tls else 'http'}://{address}"
    keys = f"access_key_id={ACCESS_KEY}&secret_access_key={password}"
    return f"s3://{name or 'places'}/x?endpoint={endpoint}&region=us-east-1&{keys}"


class World(NamedTuple):
    """Addresses, by kind of store."""

    locked: dict[str, str]
    """Servers without TLS and with a password."""
    encrypted: dict[str, str]
    """Servers with TLS only, and a certificate for `localhost`."""
    expired: dict[str, str]
    """Servers with TLS only, and a certificate that has expired."""
    authority: Path
    """The file of the authority that issued both."""
    other_authority: Path
    closed: str
    """Where nobody listens."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("certificates")
    with ExitStack() as stack:
        postgres = stack.enter_context(_locked_postgres())
        redis = stack.enter_context(servers.redis_server())
        with redis_driver.Redis(HOST, redis.port) as client:
            client.config_set("requirepass", PASSWORD)
        mongodb = f"{HOST}:{urlsplit(servers.mongodb()).port}"
        with (
            pymongo.MongoClient[dict[str, object]](f"mongodb://{mongodb}/?directConnection=true") as database,
            suppress(OperationFailure),  # of an earlier run, on a server that was given
        ):
            database.admin.command("createUser", "locked", pwd=PASSWORD, roles=["root"])
        s3 = urlsplit(servers.s3()[1]["endpoint"]).netloc
        locked = {"postgres": postgres, "mongodb": mongodb, "redis": f"{HOST}:{redis.port}", "s3": s3}
        authority = Authority()
        certificate, expired = folder / "certificate.pem", folder / "expired.pem"
        certificate.write_bytes(authority.issue())
        expired.write_bytes(authority.issue(-60))

        def encrypt(address: str, identity: Path) -> str:
            return f"{NAME}:{stack.enter_context(tls_port(int(address.partition(':')[2]), identity))}"

        port = Port()
        stack.callback(port.close)
        closed = f"{HOST}:{port.number}"
        yield World(
            locked,
            {kind: encrypt(address, certificate) for kind, address in locked.items()},
            {kind: encrypt(address, expired) for kind, address in locked.items()},
            authority.write(folder / "authority.pem"),
            Authority().write(folder / "other.pem"),
            closed,
        )


@contextmanager
def _locked_postgres() -> Iterator[str]:
    """PostgreSQL, where the user `locked` has a password."""
    with servers.postgres_server() as server:
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(f"host all locked {HOST}/32 scram-sha-256\n{rules.read_text()}")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE locked SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("SELECT pg_reload_conf()")
        yield f"{HOST}:{server.port}"


class Cause(NamedTuple):
    """Why a store cannot be opened."""

    url: Callable[[str, World], str]
    error: type[HoldfastError]
    code: str
    kinds: tuple[str, ...] = KINDS
    hint: str = ""
    """What the hint has in it; `{option}` is the one that names an authority."""


def _without_password(kind: str, world: World) -> str:
    url = build_url(kind, world.locked[kind], password="")
    return url.partition("&access_key_id")[0] if kind == "s3" else url.replace("locked:@", "").replace(":@", "")


NAMES = {"postgres": "no_such_database", "mongodb": "no_such_set", "redis": "4000", "s3": "no-such-bucket"}


def _wrong_name(kind: str, world: World) -> str:
    if kind == "s3":  # SeaweedFS makes the bucket
        return build_url(kind, urlsplit(servers.moto()[1]["endpoint"]).netloc, name=NAMES[kind])
    password = "" if kind == "mongodb" else PASSWORD
    return build_url(kind, world.locked[kind], password=password, name=NAMES[kind]).replace("locked:@", "")


CAUSES = {
    "refused": Cause(lambda kind, world: build_url(kind, world.closed), UnavailableError, "unreachable"),
    "no such host": Cause(
        lambda kind, world: build_url(kind, "no-such-host.invalid:9"), UnavailableError, "unreachable"
    ),
    "wrong password": Cause(lambda kind, world: build_url(kind, world.locked[kind]), ConfigError, "login-refused"),
    "no password": Cause(_without_password, ConfigError, "login-refused", ("postgres", "redis", "s3")),
    "server without TLS": Cause(
        lambda kind, world: build_url(kind, world.locked[kind], tls=True), ConfigError, "tls-failed"
    ),
    "server with TLS": Cause(
        lambda kind, world: build_url(kind, world.encrypted[kind]),
        ConfigError,
        "tls-failed",
        ("mongodb", "redis", "s3"),  # PostgreSQL agrees on TLS by itself
    ),
    "no authority": Cause(
        lambda kind, world: build_encrypted_url(kind, world.encrypted[kind]), ConfigError, "tls-failed", hint="{option}"
    ),
    "other authority": Cause(
        lambda kind, world: build_encrypted_url(kind, world.encrypted[kind], world.other_authority),
        ConfigError,
        "tls-failed",
        hint="{option}",
    ),
    "no file of an authority": Cause(
        lambda kind, world: build_encrypted_url(kind, world.encrypted[kind], Path("no-such-file.pem")),
        ConfigError,
        "tls-failed",
        hint="{option}",
    ),
    "file without an authority": Cause(
        lambda kind, world: build_encrypted_url(kind, world.encrypted[kind], Path(__file__)),
        ConfigError,
        "tls-failed",
        hint="{option}",
    ),
    "certificate of another host": Cause(
        lambda kind, world: build_encrypted_url(kind, world.encrypted[kind].replace(NAME, HOST), world.authority),
        ConfigError,
        "tls-failed",
        hint="Name the host as the certificate does",
    ),
    "expired certificate": Cause(
        lambda kind, world: build_encrypted_url(kind, world.expired[kind], world.authority),
        ConfigError,
        "tls-failed",
        hint="enew the certificate",
    ),
    "no such database": Cause(_wrong_name, ConfigError, "config"),
    "port that is no number": Cause(lambda kind, world: build_url(kind, "localhost:port"), ConfigError, "config"),
    "port that is too large": Cause(lambda kind, world: build_url(kind, "localhost:65536"), ConfigError, "config"),
    "password with @": Cause(
        lambda kind, world: build_url(kind, "localhost:9", password=f"a@{SECRET}@b"),
        ConfigError,
        "config",
        ("postgres", "mongodb", "redis"),
    ),
    "password with /": Cause(
        lambda kind, world: build_url(kind, "localhost:9", password=f"12/{SECRET}"),
        ConfigError,
        "config",
        ("postgres", "mongodb", "redis"),
    ),
    "password with %": Cause(
        lambda kind, world: build_url(kind, "localhost:9", password=f"%{SECRET}"),
        ConfigError,
        "config",
        ("postgres", "mongodb"),
    ),
}


def retries(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "holdfast.backends"]


@pytest.mark.parametrize(
    ("cause", "kind"), [(cause, kind) for cause, each in CAUSES.items() for kind in each.kinds], ids=str
)
def test_the_same_error_for_the_same_cause(
    cause: str, kind: str, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{world.closed}")  # where a machine's role would be
    url = CAUSES[cause].url(kind, world)
    begun = time.monotonic()
    with pytest.raises(HoldfastError) as caught:
        holdfast.open(url, timeout=LONG)
    assert time.monotonic() - begun < AT_ONCE
    assert (type(caught.value), caught.value.code) == (CAUSES[cause].error, CAUSES[cause].code), str(caught.value)
    assert caught.value.hint
    assert CAUSES[cause].hint.format(option=AUTHORITY_OPTIONS[kind]) in caught.value.hint
    if caught.value.code == "unreachable":
        assert "could not be reached: " in caught.value.what
        assert (world.closed.partition(":")[2] if cause == "refused" else "no-such-host.invalid") in caught.value.what
        assert "connect_timeout" in caught.value.hint
    assert retries(caplog) == []
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_the_passwords_are_in_the_urls(world: World) -> None:
    """Or the test above would find none in any message."""
    given = {cause: all(SECRET in each.url(kind, world) for kind in each.kinds) for cause, each in CAUSES.items()}
    assert [cause for cause, there in given.items() if not there] == ["no password", "no such database"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_password_opens(kind: str, world: World) -> None:
    password = SECRET_KEY if kind == "s3" else PASSWORD
    with holdfast.open(build_url(kind, world.locked[kind], password=password), timeout=LONG) as store:
        assert list(store.threads()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_of_the_authority_that_is_named_opens(kind: str, world: World) -> None:
    password = SECRET_KEY if kind == "s3" else PASSWORD
    url = build_encrypted_url(kind, world.encrypted[kind], world.authority, password=password)
    with holdfast.open(url, timeout=LONG) as store:
        store.thread("encrypted").put({"body": "x" * (1 << 20)})
        assert store.thread("encrypted").get().state == {"body": "x" * (1 << 20)}
        store.thread("encrypted").delete()


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does one thing with each connection."""
    with socket.create_server((HOST, 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connections.append(connection)
                    answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"{HOST}:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_hangs_up_is_unreachable(kind: str) -> None:
    with listener(lambda connection: connection.close()) as address, pytest.raises(UnavailableError) as caught:
        holdfast.open(build_url(kind, address), timeout=LONG)
    assert caught.value.code == "unreachable"
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["redis"]))
def test_a_server_that_never_answers_is_unreachable(kind: str) -> None:
    with listener(lambda connection: None) as address, pytest.raises(UnavailableError) as caught:
        holdfast.open(build_url(kind, address), timeout=SHORT)
    assert caught.value.code == "unreachable"
    assert SECRET not in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(KINDS, daily=["postgres"]))
def test_retries_are_logged_once(kind: str, world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "holdfast.backends")
    url = build_url(kind, world.closed)
    for seconds in (3, 30, 300):  # a busy machine may come to no second try in three seconds
        caplog.clear()
        with pytest.raises(UnavailableError, match=f"could not be reached for {seconds} s: ") as caught:
            holdfast.open(url, connect_timeout=f"{seconds}s")
        assert caught.value.code == "unreachable"
        if len(retries(caplog)) > 1:
            break
    first, *others = retries(caplog)
    assert first.levelno == logging.WARNING
    assert "refused" in first.getMessage()
    assert {record.levelno for record in others} == {logging.DEBUG}
    assert SECRET in url
    assert not [record for record in retries(caplog) if SECRET in record.getMessage()]


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(servers.postgres_server, marks=pytest.mark.nightly),
        servers.redis_server,
        pytest.param(servers.mongodb_server, marks=pytest.mark.nightly),
    ],
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
            store.thread("chat").put({"n": 1})
            assert store.thread("chat").get().state == {"n": 1}


def test_a_connect_timeout_that_is_none() -> None:
    with pytest.raises(ConfigError, match="connect_timeout cannot be 'soon'"):
        holdfast.open("redis://localhost/0?connect_timeout=soon")
    with pytest.raises(ConfigError, match="connect_timeout cannot be -1"):
        holdfast.open("redis://localhost/0", connect_timeout=-1)
