"""Live changes: events that name what changed, resumed without a gap, and many streams at a time."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

import holdfast
from holdfast.errors import DeniedError, HoldfastError
from holdfast.interfaces.http import events
from holdfast.interfaces.http.transport import HttpTransport
from tests.interfaces.http.kit import SECONDS, ServedStore


class EventReader:
    """Reads a stream of events."""

    def __init__(self, served: ServedStore, token: str = "", last: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=SECONDS)
        headers = {"Authorization": f"Bearer {token or served.token}", **({"Last-Event-ID": last} if last else {})}
        self._connection.request("GET", "/api/v1/events", headers=headers)
        self._response = self._connection.getresponse()
        assert self._response.status == 200
        assert self._response.headers["content-type"].startswith("text/event-stream")
        self.last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> dict[str, Any]:
        """Wait for the next event."""
        data = ""
        while line := self._response.readline().decode():
            name, _, value = line.rstrip("\n").partition(": ")
            if name == "id":
                self.last = value
            elif name == "data":
                data = value
            elif not line.strip() and data:
                return dict(json.loads(data))
        raise AssertionError("the stream ended")

    def threads(self, count: int) -> set[str]:
        """Wait until so many threads were named."""
        found: set[str] = set()
        while len(found) < count:
            found |= set(self.next()["threads"])
        return found


@pytest.fixture
def live(filled: holdfast.Store) -> Iterator[ServedStore]:
    """A filled store whose changes are looked for often."""
    with ServedStore(filled) as served:
        yield served


def test_a_change_is_an_event(live: ServedStore) -> None:
    with EventReader(live) as reader:
        assert reader.next() == {"threads": [], "agents": [], "scopes": [], "complete": True}
        live.store.thread("chat").put({"n": 1})
        assert reader.next()["threads"] == ["chat"]
        live.store.state(agent="writer")["draft"] = 2
        assert reader.next()["scopes"] == ["agent:writer"]


class FaultyView:
    """A view of a store whose changes cannot be read, for a reason that is no error of a store's."""

    def __init__(self, store: holdfast.Store) -> None:
        self._store = store
        self.calls = threading.Semaphore(0)

    def changes(self, since: str | None = None) -> Any:
        self.calls.release()
        raise ValueError("a fault")


def test_a_stream_after_a_fault_is_answered(live: ServedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is told to every stream that begins while it lasts, and is over with it, for those that are open."""
    view, faulty = live.service.view, FaultyView(live.store)
    with EventReader(live) as opened, closing(HttpTransport(live.url, live.token, timeout=SECONDS)) as client:
        opened.next()
        monkeypatch.setattr(live.service, "view", lambda _: faulty)
        for _ in range(3):
            assert faulty.calls.acquire(timeout=SECONDS)
        with pytest.raises(HoldfastError, match="the server has a fault"):
            client.open_events()
        monkeypatch.setattr(live.service, "view", view)
        with client.open_events() as stream:
            first = next(stream.events())
            assert first[1].complete
            live.store.thread("after").put({"n": 1})
            assert opened.threads(1) == {"after"}
    monkeypatch.setattr(live.service, "view", lambda _: faulty)
    with closing(HttpTransport(live.url, live.token, timeout=SECONDS)) as client:
        for _ in range(2):  # the first look of all, and no other stream is open
            with pytest.raises(HoldfastError, match="the server has a fault"):
                client.open_events()
        monkeypatch.setattr(live.service, "view", view)
        with client.open_events() as stream:
            assert next(stream.events())[1].complete


def test_a_stream_resumes_without_a_gap(live: ServedStore) -> None:
    with EventReader(live) as reader:
        reader.next()
        live.store.thread("one").put({"n": 1})
        assert reader.threads(1) == {"one"}
        last = reader.last
    for name in ("two", "three"):  # nobody listens
        live.store.thread(name).put({"n": 1})
    with EventReader(live, last=last) as reader:
        assert set(reader.next()["threads"]) == {"two", "three"}
    with EventReader(live, last="of another store") as reader:
        assert reader.next()["complete"] is False


def test_no_change_is_lost_while_streams_come_and_go(live: ServedStore) -> None:
    names = {f"thread-{number}" for number in range(40)}

    def write() -> None:
        for name in sorted(names):
            live.store.thread(name).put({"n": 1})

    with EventReader(live) as first:
        start = (first.next(), first.last)[1]
    writer = threading.Thread(target=write)
    writer.start()
    found, last, rounds = set[str](), start, 0
    while not names <= found:
        with EventReader(live, last=last) as reader:
            found |= set(reader.next()["threads"])
            last = reader.last
        rounds += 1
        assert rounds < 10_000
    writer.join()


def test_an_identity_gets_events_of_its_own(live: ServedStore) -> None:
    store = live.store
    alice = store.as_identity("user:alice")
    alice.thread("mine").put({"n": 1})
    token = store.access.issue_token("user:alice").secret
    with EventReader(live, token) as reader, EventReader(live) as owner:
        reader.next()
        owner.next()
        store.thread("chat").put({"n": 1})
        alice.thread("mine").put({"n": 2})
        assert owner.threads(2) == {"chat", "mine"}
        assert reader.next()["threads"] == ["mine"]


def test_streams_are_limited(filled: holdfast.Store) -> None:
    with ServedStore(filled, max_streams=2) as served, EventReader(served), EventReader(served):
        answer = served.get("/events")
        assert (answer.status, answer.json["code"]) == (429, "rate-limited")
    with ServedStore(filled, max_streams=2) as served:
        for _ in range(5):  # one that ended makes room
            with EventReader(served) as reader:
                reader.next()
            until = time.monotonic() + SECONDS
            while served.hub.count and time.monotonic() < until:
                served.get("")


def test_an_identity_leaves_streams_to_others(filled: holdfast.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_MAX_EACH", 2)
    alice, bob, carol = (filled.access.issue_token(f"user:{name}").secret for name in ("alice", "bob", "carol"))
    with ServedStore(filled, max_streams=4) as served, EventReader(served, alice), EventReader(served, alice):
        assert served.get("/events", token=alice).status == 429
        with EventReader(served, bob):
            assert served.get("/events", token=carol).status == 429
            with EventReader(served) as owner:
                assert owner.next()["complete"]


def test_the_stream_of_a_token_that_was_revoked_ends(live: ServedStore) -> None:
    token, other = (live.store.access.issue_token("user:alice") for _ in range(2))
    alice = live.store.as_identity("user:alice")
    with EventReader(live, token.secret) as reader, EventReader(live, other.secret) as kept:
        reader.next()
        kept.next()
        live.store.access.revoke_token(token.id)
        alice.thread("later").put({"n": 1})
        assert kept.threads(1) == {"later"}
        with pytest.raises(AssertionError, match="the stream ended"):
            reader.next()


def test_a_server_stops_quietly_while_streams_are_open(
    filled: holdfast.Store, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), ExitStack() as stack:
        with ServedStore(filled) as served:
            reader = stack.enter_context(EventReader(served))
            reader.next()
            start = time.monotonic()
        assert time.monotonic() - start < 1.9  # it waits for two seconds before it cancels what is open
        with pytest.raises(AssertionError, match="the stream ended"):
            reader.next()
    assert [each for each in caplog.records if each.name.startswith(("uvicorn", "holdfast.http"))] == []


@contextmanager
def running_server(file: Path) -> Iterator[tuple[int, str, str]]:
    """Serve a store by the command, and yield its process, its address and its token."""
    command = [sys.executable, "-m", "holdfast", "serve", str(file), "--port", "0", "--json"]
    environment = {**os.environ, "XDG_STATE_HOME": str(file.parent / "state")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield process.pid, started["url"], Path(started["token_file"]).read_text()
        finally:
            process.terminate()
            assert process.wait(SECONDS) == 0


def test_serve_stops_when_it_is_asked_to(filled_file: Path, tmp_path: Path) -> None:
    shutil.copyfile(filled_file, tmp_path / "agents.db")
    with running_server(tmp_path / "agents.db") as (_, url, token), holdfast.open(url, token=token) as remote:
        assert remote.thread("chat").info().steps == 13
        with pytest.raises(DeniedError, match="read-only"):
            remote.thread("chat").put({"n": 1})


@pytest.mark.nightly
def test_with_1000_streams_others_are_answered(tmp_path: Path) -> None:
    file = tmp_path / "agents.db"
    with holdfast.open(file) as store:
        store.thread("chat").put({"n": 0})
        with running_server(file) as (pid, url, token):
            usual, events, memory = asyncio.run(_many_streams(url, token, pid, store))
    assert events == 1000
    assert usual < 1.0  # seconds, the median: other programs run, too
    assert memory < 500 << 20


async def _many_streams(url: str, token: str, pid: int, store: holdfast.Store) -> tuple[float, int, int]:
    port = int(url.rstrip("/").rpartition(":")[2])
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head)
            if b" 200 " in await reader.readline():
                await reader.readuntil(b"event: changes")
                return reader, writer
            writer.close()  # one caller may not open so many at once, and is told to wait
            await writer.wait_closed()
            await asyncio.sleep(1)

    streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    times = []
    try:
        for _ in range(20):  # 50 at a time: a server accepts only so many at once
            streams += await asyncio.gather(*(connect() for _ in range(50)))
        with httpx.Client(headers={"Authorization": f"Bearer {token}"}) as client:
            for _ in range(20):
                start = time.perf_counter()
                answer = await asyncio.to_thread(client.get, f"{url.rstrip('/')}/api/v1/threads")
                assert answer.status_code == 200
                times.append(time.perf_counter() - start)
        store.thread("chat").put({"n": 1})
        received = await asyncio.wait_for(
            asyncio.gather(*(reader.readuntil(b'"threads":["chat"]') for reader, _ in streams)), SECONDS
        )
        resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert resident is not None
    finally:
        for _, writer in streams:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for _, writer in streams), return_exceptions=True)
    return statistics.median(times), len(received), int(resident[1]) * 1024


_BROWSE = """
import sys, threading, time
from http.client import HTTPConnection  # the lightest: what is measured is the server
from urllib.parse import urlsplit

def browse(number):
    connection = HTTPConnection(urlsplit(sys.argv[1]).netloc)
    while not stop.wait(0.5):
        for part in ("log?limit=20", "checkpoints/HEAD/value"):
            path = f"/api/v1/threads/chat-{number}/{part}"
            connection.request("GET", path, headers={"Authorization": f"Bearer {sys.argv[2]}"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        looks.append(number)
    connection.close()

stop, looks = threading.Event(), []
readers = [threading.Thread(target=browse, args=(number,)) for number in range(8)]
for each in readers:
    each.start()
print("started", flush=True)
sys.stdin.read()
stop.set()
for each in readers:
    each.join()
print(len(looks), set(looks) == set(range(8)), flush=True)
"""
"""Eight people who browse, each with a look of two requests every half second. They are in a process of their own, as
browsers are: in that of the writers, they would take turns with them in the interpreter."""


@pytest.mark.nightly
def test_readers_hardly_slow_writers(tmp_path: Path) -> None:
    """Eight people who browse, and eight writers that do nothing else."""
    file = tmp_path / "agents.db"
    with holdfast.open(file) as store:
        for number in range(8):
            store.thread(f"chat-{number}").put({"messages": ["hello"] * 50, "n": 0})
        alone: list[float] = []
        watched: list[float] = []
        with running_server(file) as (_, url, token):
            # The best of each counts: other programs on the machine can only make it slower. While they are too many
            # for either to come near its best, more turns are taken.
            while len(alone) < 5 or (len(alone) < 15 and max(watched) <= 0.9 * max(alone)):
                alone.append(_write_rate(store))
                with _browsing(url, token):
                    watched.append(_write_rate(store))
    assert max(watched) > 0.9 * max(alone), (alone, watched)


@contextmanager
def _browsing(url: str, token: str) -> Iterator[None]:
    command = [sys.executable, "-c", _BROWSE, url, token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "started\n"
            yield
        finally:
            process.stdin.close()
        looks, all_looked = process.stdout.readline().split()
        assert (int(looks) >= 8, all_looked, process.wait(SECONDS)) == (True, "True", 0)


def _write_rate(store: holdfast.Store) -> float:
    stop, problems, saved = threading.Event(), list[BaseException](), [0] * 8

    def write(number: int) -> None:
        try:
            while not stop.is_set():
                store.thread(f"chat-{number}").update({"n": saved[number]})
                saved[number] += 1
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    start = time.perf_counter()
    for each in threads:
        each.start()
    time.sleep(3)  # the span that is measured
    stop.set()
    for each in threads:
        each.join()
    assert problems == []
    return sum(saved) / (time.perf_counter() - start)
