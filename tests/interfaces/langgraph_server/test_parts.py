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
from langgraph_sdk import get_client

import holdfast
from tests.interfaces.http.kit import SECONDS
from tests.interfaces.langgraph_server.kit import Clients, serving, support

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
            return await asyncio.gather(*begun)

        with working(tmp_path) as first, working(tmp_path):
            found = asyncio.run(all_streams())
        for number, (_, parts, _) in enumerate(found):
            check(number, parts)
        assert max(run.attempts for run in store.runs.list()) > 1  # the control: some were taken up


@pytest.mark.nightly
def test_200_streams_of_one_server(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "agents.db") as store, serving(store, {"support": support}) as clients:

        async def all_streams() -> list[tuple[str, list[Any], list[float]]]:
            return await asyncio.gather(*(stream(clients, number, 0.5) for number in range(200)))

        for number, (_, parts, _) in enumerate(asyncio.run(all_streams())):
            check(number, parts)
