"""Servers that take encrypted connections only, with certificates of an authority of their own, over their lives.

Why a store cannot be opened is tested in every run, on ports that decrypt for servers without TLS, by
`test_connection_errors.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.errors import ConfigError, HoldfastError, TransientError
from tests import servers
from tests.servers.pace import hurried
from tests.servers.places import with_options
from tests.servers.processes import HOST, NAME, Ended
from tests.servers.tls import Authority

pytestmark = pytest.mark.nightly

PATIENCE = 150.0

START: dict[str, Callable[[bytes], Any]] = {
    "postgres": servers.postgres_server,
    "mongodb": servers.mongodb_server,
    "redis": servers.redis_server,
    "s3": servers.s3_server,
}


class Encrypted:
    """A server with a certificate, a fresh place on it, and the authority that issued the certificate."""

    def __init__(self, kind: str, server: Any, authority: Authority, folder: Path) -> None:
        self.kind = kind
        self.server = server
        self.authority = authority
        self.file = authority.write(folder / "authority.pem")
        self.other_file = Authority().write(folder / "other.pem")
        place = server.fresh()
        self._place = with_options(place, server.options) if kind == "s3" else place

    def url(self, authority: Path | None) -> str:
        """The URL of the place, for a client who trusts an authority."""
        match self.kind:
            case "postgres":
                options = {"sslmode": "verify-full", "sslrootcert": authority}
            case "mongodb":
                options = {"tls": "true", "tlsCAFile": authority}
            case "redis":
                options = {"ssl_ca_certs": authority}
            case _:
                options = {"ca_file": authority}
        return with_options(self._place, {name: value for name, value in options.items() if value is not None})

    def certify(self, *lifetime: float) -> None:
        """Start it again with another certificate."""
        self.server.identity = self.authority.issue(*lifetime)
        self.server.restart()

    def expire(self) -> None:
        """Start it again with a certificate that has expired when this returns."""
        if self.kind != "mongodb":
            self.certify(-60)
            return
        for seconds in (10, 40, 160):  # it does not start with one that has expired already
            issued = time.monotonic()
            try:
                self.certify(seconds)
            except Ended:
                continue
            time.sleep(max(0.0, issued + seconds + 1 - time.monotonic()))
            return
        raise AssertionError("no certificate lived as long as the server takes to start")


@pytest.fixture(scope="module", params=START)
def encrypted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encrypted]:
    authority = Authority()
    with START[request.param](authority.issue()) as server:
        yield Encrypted(request.param, server, authority, tmp_path_factory.mktemp(request.param))


def refusal(url: str) -> HoldfastError:
    with pytest.raises(ConfigError) as caught:
        holdfast.open(url, timeout=PATIENCE)
    assert caught.value.code == "tls-failed", str(caught.value)
    return caught.value


def test_only_those_who_trust_the_authority_are_served(encrypted: Encrypted) -> None:
    option = {"postgres": "sslrootcert", "mongodb": "tlsCAFile", "redis": "ssl_ca_certs", "s3": "ca_file"}
    for authority in (None, encrypted.other_file):
        assert option[encrypted.kind] in refusal(encrypted.url(authority)).hint
    elsewhere = encrypted.url(encrypted.file).replace(NAME, HOST)
    assert "Name the host as the certificate does" in refusal(elsewhere).hint
    with holdfast.open(encrypted.url(encrypted.file), timeout=PATIENCE) as store:
        for number in range(10):
            store.thread("chat").put({"number": number, "body": "x" * 100_000})
    with holdfast.open(encrypted.url(encrypted.file), timeout=PATIENCE) as store:
        assert len(store.thread("chat").log()) == 10
        assert store.thread("chat").get().state["number"] == 9
        assert store.maintenance.verify().findings == []


def test_a_url_without_tls_is_refused(encrypted: Encrypted) -> None:
    """Or the test above would not show that anything is encrypted."""
    url = encrypted.url(None)
    if encrypted.kind == "postgres":
        with psycopg.connect(encrypted.url(encrypted.file)) as connection:
            assert connection.pgconn.ssl_in_use
        with pytest.raises(ConfigError) as caught:
            holdfast.open(url.replace("verify-full", "disable"))
        assert "sslmode=require" in caught.value.hint
        return
    plain = {"mongodb": ("tls=true", "tls=false"), "redis": ("rediss:", "redis:"), "s3": ("https:", "http:")}
    assert "encrypted connections only" in refusal(url.replace(*plain[encrypted.kind])).what


def test_a_certificate_expires_and_is_renewed_while_a_store_is_open(encrypted: Encrypted) -> None:
    url = encrypted.url(encrypted.file)
    with holdfast.open(url, timeout=PATIENCE) as store:
        store.thread("renewed").put({"number": 1})
        encrypted.certify()
        store.thread("renewed").put({"number": 2})  # another one of the same authority
        encrypted.expire()
        assert "enew the certificate" in refusal(url).hint
        if encrypted.kind != "mongodb":  # whose connections are older than that
            with hurried(store, 1.5), pytest.raises((TransientError, ConfigError)):
                store.thread("renewed").put({"number": 3}, id="third")
        encrypted.certify()
        store.thread("renewed").put({"number": 3}, id="third")
        assert store.thread("renewed").get().state == {"number": 3}
    with holdfast.open(url, timeout=PATIENCE) as store:
        assert len(store.thread("renewed").log()) == 3
        assert store.maintenance.verify().findings == []
