"""Streams of LangGraph's clients: how soon a client has what a graph says, of many at a time on one server."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client
from typing_extensions import TypedDict

import holdfast
from benchmarks.measure import Figure, Result

STREAMS = 200
_EVENTS = 20
_PAUSE = 1.0
"""The seconds between two events of a stream: so each second has as many events as there are streams."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Ticks(TypedDict, total=False):
    """How many events a run has, and the seconds between two."""

    events: int
    pause: float
    done: int


def tick(state: Ticks) -> Ticks:
    """Say what time it is, by a clock that all processes of a machine share."""
    for number in range(state["events"]):
        time.sleep(state["pause"])
        get_stream_writer()({"number": number, "sent": time.monotonic()})
    return {"done": state["events"]}


graph = StateGraph(Ticks).add_node(tick).add_edge(START, "tick").compile(name="ticks")


class Delays(NamedTuple):
    """What was measured."""

    delays: list[float]
    """Seconds from the call of the graph's writer until the client has the event."""
    spent: float
    """Seconds of CPU of the server, with its worker and the graph, of all events."""
    numbers: list[list[int]]
    """The numbers of the events of each stream, as they came."""


@contextmanager
def _serving(folder: Path, concurrency: int) -> Iterator[tuple[str, str, int]]:
    """Serve a new store in a process of its own. Yields its address, a token, and the process."""
    with holdfast.open(folder / "agents.db"):
        pass
    command = [sys.executable, "-m", "holdfast", "serve", str(folder / "agents.db"), "--port", "0", "--json", "--write"]
    command += ["--graph", "ticks=benchmarks.streams:graph", "--concurrency", str(concurrency)]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            yield started["url"], Path(started["token_file"]).read_text(), process.pid
        finally:
            process.terminate()


def measure(streams: int, events: int, pause: float) -> Delays:
    """Stream runs, all at a time, with one server and the clients in two processes."""
    with tempfile.TemporaryDirectory() as name, _serving(Path(name), streams) as (url, token, process):

        async def follow() -> tuple[list[int], list[float]]:
            numbers, delays = list[int](), list[float]()
            async with get_client(url=url, api_key=token, timeout=300) as client:
                given: Any = {"events": events, "pause": pause}
                async for part in client.runs.stream(None, "ticks", input=given, stream_mode=["custom"]):
                    if part.event == "custom":
                        delays.append(time.monotonic() - part.data["sent"])
                        numbers.append(part.data["number"])
            return numbers, delays

        async def follow_all() -> list[tuple[list[int], list[float]]]:
            return await asyncio.gather(*(follow() for _ in range(streams)))

        before = _spent(process)
        found = asyncio.run(follow_all())
        spent = _spent(process) - before
    return Delays([each for _, delays in found for each in delays], spent, [numbers for numbers, _ in found])


def _spent(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def streams_of_one_server() -> Result:
    """200 streams at a time, with an event a second each, from one server and its worker in one process"""
    found = measure(STREAMS, _EVENTS, _PAUSE)
    assert all(numbers == list(range(_EVENTS)) for numbers in found.numbers), "an event was lost, or came twice"
    delays = [each * 1000 for each in found.delays]
    cuts = statistics.quantiles(delays, n=100)
    return Result(
        [
            Figure(f"delay of an event of {STREAMS} streams, p95", cuts[94], "ms", ceiling=100),
            Figure(f"delay of an event of {STREAMS} streams, p50", cuts[49], "ms"),
            Figure(f"CPU of the server for an event of {STREAMS} streams", found.spent / len(delays) * 1000, "ms"),
        ]
    )


CASES = (streams_of_one_server,)

if __name__ == "__main__":
    shown = measure(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
    cuts = statistics.quantiles([each * 1000 for each in shown.delays], n=100)
    sys.stdout.write(f"p50 {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, p99 {cuts[98]:.1f} ms, ")
    sys.stdout.write(f"{len(shown.delays)} events, {shown.spent / len(shown.delays) * 1000:.2f} ms of CPU each\n")
