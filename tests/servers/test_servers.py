"""The servers start, keep a value, and go away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
import psycopg
import pymongo
import pytest
import redis as redis_driver
from obstore.exceptions import AlreadyExistsError

from tests import servers
from tests.servers import azurite
from tests.servers.processes import Missing, Server, descendants, gone
from tests.servers.s3 import object_store

ROOT = Path(__file__).resolve().parents[2]


def sql_round_trip(url: str) -> object:
    with psycopg.connect(url, prepare_threshold=None) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
        return connection.execute("SELECT value FROM kept").fetchall()[0][0]


def wait_until_removed(directory: Path) -> None:
    deadline = time.monotonic() + 120
    while directory.exists():
        assert time.monotonic() < deadline, "the server outlived its tests"
        time.sleep(0.05)


def test_postgres() -> None:
    first, second = servers.postgres(), servers.postgres()
    assert first != second
    assert sql_round_trip(first) == sql_round_trip(second) == 7
    with psycopg.connect(first) as connection:
        assert connection.info.server_version // 10_000 == 18


def test_pgbouncer() -> None:
    url = servers.pgbouncer()
    assert sql_round_trip(url) == 7
    with psycopg.connect(url, dbname="pgbouncer", autocommit=True, prepare_threshold=None) as console:
        modes = {row[0]: row[1] for row in console.execute("SHOW CONFIG", prepare=False)}
    assert modes["pool_mode"] == "transaction"


def test_mongodb() -> None:
    first, second = servers.mongodb(), servers.mongodb()
    for url in (first, second):
        with pymongo.MongoClient[dict[str, Any]](url) as client:
            kept = client.get_default_database()["kept"]
            with client.start_session() as session, session.start_transaction():
                kept.insert_one({"_id": 1, "value": 7}, session=session)
            assert [found["value"] for found in kept.find()] == [7]


def test_redis() -> None:
    first, second = servers.redis(), servers.redis()
    assert first != second
    with redis_driver.Redis.from_url(first.partition("?")[0]) as client:
        client.set("kept", 7)
        assert client.get("kept") == b"7"
        assert client.config_get("appendfsync") == {"appendfsync": "always"}


@pytest.mark.parametrize("server", [servers.s3, servers.moto], ids=["seaweedfs", "moto"])
def test_s3(server: Callable[[], tuple[str, dict[str, Any]]]) -> None:
    url, options = server()
    other, _ = server()
    assert url != other
    bucket, prefix = url.removeprefix("s3://").split("/")
    store = object_store(bucket, options, prefix)
    obstore.put(store, "kept", b"7", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "kept", b"8", mode="create")
    assert bytes(obstore.get(store, "kept").bytes()) == b"7"


def test_kill_restart_and_pause() -> None:
    with servers.redis_server() as server:
        with redis_driver.Redis.from_url(server.url) as client:
            client.set("kept", 7)
            server.kill()
            with pytest.raises(redis_driver.ConnectionError):
                client.get("kept")
            server.restart()
            assert client.get("kept") == b"7"
            server.pause()
            with (
                redis_driver.Redis.from_url(server.url, socket_timeout=0.3) as hasty,
                pytest.raises(redis_driver.TimeoutError),
            ):
                hasty.get("kept")
            server.resume()
            assert client.get("kept") == b"7"
        directory, pid = server.directory, server.pid
    assert pid is not None
    assert gone(pid)
    wait_until_removed(directory)


def test_a_postgres_server_takes_all_its_processes_along() -> None:
    with servers.postgres_server() as server:
        assert server.pid is not None
        pids = [server.pid, *descendants(server.pid)]
        assert len(pids) > 3
        url = server.fresh()
        assert sql_round_trip(url) == 7
        server.kill()
        assert all(gone(pid) for pid in pids)
        server.restart()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT value FROM kept").fetchall() == [(7,)]


def test_nothing_is_left_of_a_killed_test_process() -> None:
    """Not even when the process that started it had no say in its end."""
    program = (
        "from tests import servers; import os, time\n"
        "server = servers.redis_server()\n"
        "print(server.pid, server.directory, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, directory = child.stdout.readline().split()
        assert not gone(int(pid))
        child.send_signal(signal.SIGKILL)
    wait_until_removed(Path(directory))
    deadline = time.monotonic() + 120
    while not gone(int(pid)):  # it was killed, and may still be on its way out
        assert time.monotonic() < deadline, "the server outlived its tests"
        time.sleep(0.05)


def test_a_server_that_is_missing_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> Server:
        raise Missing("it is not there")

    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception, match="SERVER MISSING: Oracle: it is not there"):
        servers._had("Oracle", start)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="SERVER MISSING: Oracle: it is not there"):
        servers._had("Oracle", start)


def test_a_server_of_the_user_is_used_and_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.postgres_server() as server:
        monkeypatch.setenv("HOLDFAST_TEST_POSTGRES_URL", server.url)
        url = servers.postgres()
        assert f":{server.port}/holdfast_test_" in url
        assert sql_round_trip(url) == 7
        servers.given.clean()
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url).close()


@pytest.fixture
def fake_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of npm, which installs an empty Azurite and writes down that it was called."""
    monkeypatch.setattr(azurite, "FOLDER", tmp_path / "azurite")
    program = tmp_path / "npm"
    main = "node_modules/azurite/dist/src/blob/main.js"
    program.write_text(f"#!/bin/sh\necho called >> {tmp_path}/calls\nmkdir -p {Path(main).parent}\ntouch {main}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return program


def test_azurite_is_installed_once(fake_npm: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        programs = set(pool.map(lambda _: azurite.install(), range(4)))
    assert len(programs) == 1
    assert programs.pop().is_file()
    assert (fake_npm.parent / "calls").read_text() == "called\n"


def test_azurite_that_cannot_be_installed_is_missing(fake_npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    with pytest.raises(Missing, match="npm could not install it: no network"):
        azurite.install()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Missing, match="apt-get install npm"):
        azurite.AzuriteServer()
