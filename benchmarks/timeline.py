"""The timeline of a store with many events: how long the first page takes, and how much memory all pages.

    python -m benchmarks.timeline [--events 1000000] [--url sqlite:////tmp/timeline.db]

Builds a store of threads, scopes with hooks, and reads of identities. Their rows are those of a few that were saved in
the usual way, under other names and at other times. Then it asks the questions of people who debug an agent, and prints
how long the first page of each takes: the best of several. A store that is there already is not filled again.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import holdfast
from benchmarks.measure import Figure, Result
from holdfast.backends.interface import Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS, LINES, STEPS, Table
from holdfast.engine.ids import new_id
from holdfast.store.timeline.api import TimelinePage

EVENT_COUNT = 1_000_000
THREAD_STEPS, SCOPE_EVENTS = 250, 800
ROUNDS = 10
MOST = 100
"""How many milliseconds the first page may take."""

MEMORY = 100
"""How many megabytes a process may take that reads all pages."""

START = 1_800_000_000 * 10**9
"""The time of the first event."""

TICK = 10**8
"""The time from one event to the next, in nanoseconds."""


class Builder:
    """Writes rows like those of a template, under other names and at other times."""

    def __init__(self, store: holdfast.Store) -> None:
        self._backend = store._engine.context.backend
        self._source = random.Random(25)
        self._now = START
        self._changes: list[Put] = []

    def rows(self, table: Table, line: str) -> list[Row]:
        """The rows of a line of the template."""
        (found,) = run(self._backend.read([Scan(table, ("", line))]))
        return found

    def put(self, table: Table, row: Row) -> None:
        self._changes.append(Put(table, row))
        if len(self._changes) >= 20_000:
            self.flush()

    def flush(self) -> None:
        run(self._backend.apply(self._changes))
        self._changes = []

    def tick(self) -> int:
        self._now += TICK
        return self._now

    def thread(self, name: str, steps: list[Row], start: int, every: int) -> None:
        """A thread whose steps are some time apart."""
        place = list(STEPS.columns).index("time")
        for number, row in enumerate(steps):
            columns = list(row.columns)
            columns[place] = start + number * every
            self.put(STEPS, Row(("", name, *row.key[2:]), tuple(columns), row.body))

    def events(self, line: str, template: list[Row], count: int, start: int, every: int) -> None:
        """Events of a line: each step has those of the template."""
        for number in range(count // len(template)):
            time_, id = start + number * every, new_id(start + number * every)
            correlation = f"{self._source.getrandbits(64):016x}"
            for place, row in enumerate(template):
                columns = list(row.columns)
                columns[0], columns[6] = time_ + place, correlation
                self.put(EVENTS, Row(("", line, id, place), tuple(columns), row.body))


def build(store: holdfast.Store, events: int) -> None:
    """Fill a store with so many events: half of them checkpoints."""
    thread = store.thread("template")
    for number in range(THREAD_STEPS):
        thread.update({f"plan.{number % 10}": f"order {number}", "count": number})
    builder = Builder(store)

    @store.hooks.before("state.set", record=True)
    def check(call: holdfast.hooks.HookContext) -> None:
        pass

    store.state(agent="template").set("plan", {"goal": "refund the order", "budget": 12})
    store.hooks.remove(check)
    line, steps = builder.rows(LINES, "template")[0], builder.rows(STEPS, "template")
    changes = builder.rows(EVENTS, "␞agent:template")
    span = events * TICK
    threads, scopes = events // 2 // THREAD_STEPS, events // 2 // SCOPE_EVENTS
    for number in range(threads):
        name = f"thread-{number:05}"
        builder.put(LINES, Row(("", name), line.columns, line.body))
        builder.thread(name, steps, START + span * number // threads, TICK * 40)
    for number in range(scopes):
        name = f"␞agent:a{number:05}"
        builder.put(LINES, Row(("", name), line.columns, line.body))
        builder.events(name, changes, SCOPE_EVENTS, START + span * number // scopes, TICK * 40)
    builder.flush()
    middle = START + span // 2
    failed = [Row(row.key, (*row.columns[:5], "error", *row.columns[6:]), row.body) for row in changes]
    builder.events("␞agent:failing", failed, 20 * len(failed), middle, TICK)
    builder.flush()


def timed(ask: Callable[[], TimelinePage]) -> tuple[float, TimelinePage]:
    """How long the first page takes, in milliseconds, and what is on it."""
    took, page = [], ask()
    for _ in range(ROUNDS):
        start = time.perf_counter()
        page = ask()
        took.append((time.perf_counter() - start) * 1000)
    return min(took), page


def measured(store: holdfast.Store, events: int) -> Iterator[Figure]:
    """Fill a store, if it is empty, and time each question."""
    if not store.threads(limit=1):
        build(store, events)
    middle = (START + events * TICK // 2) // 10**9
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(middle))
    one = store.timeline.query("kind:change", until=moment, limit=1)[0]
    last = events // 2 // THREAD_STEPS - 1
    questions: dict[str, Callable[[], TimelinePage]] = {
        "newest": store.timeline.query,
        "one kind": lambda: store.timeline.query("kind:hook"),
        "before a time": lambda: store.timeline.query(until=moment),
        "oldest first": lambda: store.timeline.query(oldest_first=True),
        "one thread": lambda: store.timeline.query(thread=f"thread-{last // 2:05}"),
        "one scope": lambda: store.timeline.query(scope="agent:a00100"),
        "text": lambda: store.timeline.query("refund"),
        "one correlation": lambda: store.timeline.query(f"correlation:{one.correlation}"),
        "errors": lambda: store.timeline.query(errors=True),
        "rare kind": lambda: store.timeline.query("kind:transfer"),
        "one actor": lambda: store.timeline.query("actor:agent:nobody"),
    }
    for name, ask in questions.items():
        took, page = timed(ask)
        note = f"{len(page)} events, {page.examined:,} rows read{', stopped' if page.stopped else ''}"
        yield Figure(f"timeline of {events:,} events: {name}", took, "ms", ceiling=MOST, note=note)


_READ_ALL = """
import json, re, sys, pathlib
import holdfast
with holdfast.open(sys.argv[1]) as store:
    count = sum(1 for _ in store.timeline.query("kind:change", limit=1000, scan_limit=None).all())
    status = pathlib.Path("/proc/self/status").read_text()
    print(json.dumps({"rss": int(re.search(r"VmHWM:\\s*(\\d+) kB", status)[1]) / 1024, "count": count}))
"""


def memory(url: str, events: int) -> Figure:
    """The memory of a process that reads all pages."""
    found = subprocess.run([sys.executable, "-c", _READ_ALL, url], check=True, capture_output=True, text=True)
    answer = json.loads(found.stdout)
    note = f"{answer['count']:,} events returned"
    return Figure(f"timeline of {events:,} events: memory", answer["rss"], "MB", ceiling=MEMORY, note=note)


def timeline_of_a_million_events() -> Result:
    """The first page of the timeline of 1,000,000 events, on SQLite"""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/timeline.db"
        with holdfast.open(url) as store:
            figures = list(measured(store, EVENT_COUNT))
        return Result([*figures, memory(url, EVENT_COUNT)])


CASES = (timeline_of_a_million_events,)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=EVENT_COUNT)
    parser.add_argument("--url")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.url or f"sqlite:///{Path(folder)}/timeline.db"
        start = time.perf_counter()
        with holdfast.open(url) as store:
            for figure in measured(store, options.events):
                print(f"{figure.name:60} {figure.value:8.1f} {figure.unit}   {figure.note}", flush=True)
        figure = memory(url, options.events)
        print(f"{figure.name:60} {figure.value:8.1f} {figure.unit}   {figure.note}")
        print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
