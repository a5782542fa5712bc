"""Streams of runs, many at a time, and while workers die: no event is lost, and none comes twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError

import holdfast
from benchmarks import streams
from holdfast.agents.runs.record import parts_prefix
from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import REFS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.row_format import Line
from tests import servers
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Chat, Clients, logged, serving, support
from tests.support.kills import count_kill
from tests.support.nightly import mostly_nightly

_CODE = """
from tests.interfaces.langgraph_server.kit import support

graph = support()
"""


@contextmanager
def working(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, by the command."""
    (folder / "worked_graphs.py").write_text(_CODE)
    command = [sys.executable, "-m", "holdfast", "--store", "agents.db", "work", "support=worked_graphs.py:graph"]
    command += ["--concurrency", "32", "--lease", "2s"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait(SECONDS)


async def stream(clients: Clients, number: int, pause: float) -> tuple[str, list[Any], list[float]]:
    """Stream a run on a new thread. Returns the thread, the parts, and when each came."""
    async with get_client(url=clients.served.url, api_key=clients.served.token, timeout=SECONDS) as client:
        thread = (await client.threads.create())["thread_id"]
        modes: Any = ["values", "custom", "updates"]
        given: Any = {"messages": [{"role": "user", "content": f"hello {number}"}], "pause": pause}
        parts, times = [], []
        async for part in client.runs.stream(thread, "support", input=given, stream_mode=modes):
            parts.append(part)
            times.append(time.time())
        return thread, parts, times


def check(number: int, parts: list[Any]) -> None:
    """Check that the parts are those of one run, each once."""
    assert [int(each.id) for each in parts] == list(range(len(parts)))
    assert parts[-1].data["messages"][-1]["content"] == f"You said hello {number}"


def test_a_worker_elsewhere_does_the_runs(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, serving(store, {"support": support}, work=False) as clients:
        with working(tmp_path):
            _, parts, _ = asyncio.run(stream(clients, 1, 0))
        check(1, parts)
        assert [each.event for each in parts].count("updates") == 2


@pytest.mark.nightly
def test_streams_go_on_when_a_worker_is_killed(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, serving(store, {"support": support}, work=False) as clients:

        async def all_streams() -> list[tuple[str, list[Any], list[float]]]:
            begun = [asyncio.create_task(stream(clients, number, 3.0)) for number in range(20)]
            while len(list(store.runs.list(state="running"))) < 20:
                await asyncio.sleep(0.05)
            first.send_signal(signal.SIGKILL)
            count_kill()
            return await asyncio.gather(*begun)

        with working(tmp_path) as first, working(tmp_path):
            found = asyncio.run(all_streams())
        for number, (_, parts, _) in enumerate(found):
            check(number, parts)
        assert max(run.attempts for run in store.runs.list()) > 1  # the control: some were taken up


@pytest.mark.nightly
def test_200_streams_of_one_server() -> None:
    """All at a time; how long an event takes is measured by the benchmark, on a machine with nothing else to do."""
    found = streams.measure(200, 5, 1.0)
    assert found.numbers == [list(range(5))] * 200


# Beside other features --------------------------------------------------------------------------------------------


def run_once(clients: Clients, secret: str) -> tuple[str, str, list[Any]]:
    """Stream a run to its end. Returns its thread, its id and the parts."""
    client = clients.owner
    thread = client.threads.create(metadata={"about": secret})["thread_id"]
    modes: Any = ["values", "messages-tuple"]
    given: Any = {"messages": [("user", secret)]}
    parts = list(client.runs.stream(thread, "support", input=given, stream_mode=modes))
    return thread, parts[0].data["run_id"], parts


def stored_parts(store: holdfast.Store, thread: str, id: str) -> int:
    """How many rows the parts of a run have."""
    line = Line(store.tenant, thread)
    (rows,) = run(store._handle.engine.context.backend.read([Scan(REFS, parts_prefix(line, id))]))
    return len(rows)


def test_parts_are_encrypted(tmp_path: Path) -> None:
    secret = "kelp-and-barnacles"
    stores: dict[str, dict[str, Any]] = {"plain": {}, "sealed": {"encryption": Encryption(LocalKeys(b"k" * 32))}}
    for name, options in stores.items():
        folder = tmp_path / name
        folder.mkdir()
        with holdfast.open(folder / "a.db", **options) as store, serving(store, {"support": support}) as clients:
            _, _, parts = run_once(clients, secret)
            assert secret in str(parts)
        is_there = any(secret.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())
        assert is_there == (name == "plain")


def leaky() -> Any:
    """A graph that streams what it should not."""

    def tell(state: Chat) -> dict[str, Any]:
        from langgraph.config import get_stream_writer

        get_stream_writer()({"mail": "ada@example.org"})
        return {"log": ["told"]}

    builder: Any = StateGraph(Chat)
    builder.add_node("tell", tell)
    builder.add_edge(START, "tell")
    return builder.compile(name="leaky")


def test_parts_have_no_sensitive_data(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        mark = "ada@example.org"
        with serving(store, {"leaky": leaky}) as clients:
            modes: Any = ["custom"]
            client = clients.owner
            plain = list(client.runs.stream(None, "leaky", input=logged("x"), stream_mode=modes))
            assert mark in str(plain)
            store.redaction.protect("redact", formats="personal")
            sealed = list(client.runs.stream(None, "leaky", input=logged("x"), stream_mode=modes))
            assert sealed[-1].event == "custom"
            assert mark not in str(sealed)


@pytest.mark.parametrize("end", ["delete", "erase", "delete-run"])
def test_parts_go_with_their_thread_and_their_run(tmp_path: Path, end: str) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"support": support}) as clients:
        ada = clients.of("user:ada")
        thread = ada.threads.create()["thread_id"]
        made = ada.runs.create(thread, "support", input=logged("hers"), stream_mode="values")
        ada.runs.join(thread, made["run_id"])
        assert stored_parts(store, thread, made["run_id"])
        if end == "delete":
            ada.threads.delete(thread)
        elif end == "erase":
            store.erasure.erase("ada")
        else:
            clients.owner.runs.delete(thread, made["run_id"])
        assert stored_parts(store, thread, made["run_id"]) == 0


def test_nothing_is_stored_for_who_is_frozen(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"support": support}) as clients:
        ada = clients.of("user:ada")
        thread = ada.threads.create()["thread_id"]
        given: Any = {"log": ["hers"], "pause": 1.0}
        made = ada.runs.create(thread, "support", input=given, stream_mode="updates")
        while store.runs.get(made["run_id"]).state != "running" or not store.runs.events(made["run_id"]):
            time.sleep(0.01)
        store.access.freeze("user:ada")
        with pytest.raises(APIStatusError):
            ada.threads.get(thread)
        ended = store.runs.wait(made["run_id"], timeout=SECONDS)
        assert ended.state == "failed"
        assert stored_parts(store, thread, made["run_id"]) == 0


def test_metadata_of_a_thread_is_erased_and_backed_up_with_it(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store, serving(store, {"support": support}) as clients:
        ada = clients.of("user:ada")
        thread = ada.threads.create(metadata={"topic": "kelp"})["thread_id"]
        store.backups(tmp_path / "backups").create()
        store.erasure.erase("ada")
        with pytest.raises(APIStatusError):
            clients.owner.threads.get(thread)
    with holdfast.open(tmp_path / "b.db") as other:
        other.backups(tmp_path / "backups").restore()
        with serving(other, {"support": support}, work=False) as clients:
            assert clients.owner.threads.get(thread)["metadata"] == {"topic": "kelp"}


@pytest.mark.time_limit(300)
@pytest.mark.parametrize("kind", mostly_nightly(["memory", "files", "postgres"], daily=["memory"]))
def test_streams_are_the_same_on_every_store(tmp_path: Path, kind: str) -> None:
    urls = {"memory": lambda: "memory://", "files": lambda: f"file://{tmp_path}/files", "postgres": servers.postgres}
    with holdfast.open(urls[kind]()) as store, serving(store, {"support": support}) as clients:
        thread, id, parts = run_once(clients, "hello")
        assert [int(each.id) for each in parts] == list(range(len(parts)))
        again = list(clients.owner.runs.join_stream(thread, id, last_event_id="2"))
        assert [each.id for each in again] == [each.id for each in parts[3:]]
        assert clients.owner.threads.search(metadata={"about": "hello"})
