"""How long appending and reading take on every store, warm and cold; and what readable rows cost."""

from __future__ import annotations

import gc
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import obstore
import psycopg
import pymongo
from redis import Redis

import holdfast
from benchmarks.langgraph_work import chat
from benchmarks.measure import Figure, Job, Result, Table, missing, turns
from benchmarks.servers import STORES, Missing, Place, server_of
from holdfast.backends.urls import url_to_path
from tests.servers.s3 import object_store

T = TypeVar("T")

_MESSAGES = 200
_WARM = 100
_COLD = 12


class _Agent:
    """A chat of 200 messages on one store, to which more come."""

    def __init__(self, place: Place, stack: ExitStack, bare_write: Job | None = None) -> None:
        self._place = place
        self._bare_write = bare_write
        self._messages = chat((_MESSAGES + _WARM + _COLD) // 2 + 1)
        self._length = 0
        self._store = stack.enter_context(self._opened())
        self.times: dict[str, list[float]] = {}
        while self._length < _MESSAGES:
            self._append(self._store)

    def _append(self, store: holdfast.Store) -> None:
        self._length += 1
        store.thread("chat").put({"messages": self._messages[: self._length], "step": self._length})

    def warm(self) -> None:
        """One more, and a look, in the store that is open."""
        self._timed("append", partial(self._append, self._store))
        self._timed("read", partial(_read, self._store))

    def bare(self) -> None:
        """The least that the same store can do durably."""
        assert self._bare_write is not None
        self._timed("bare write", self._bare_write)

    def cold(self) -> None:
        """In stores that are opened for the purpose: new connections, and nothing remembered."""
        for what, action in (("first append", self._append), ("first read", _read)):
            gc.collect()
            with self._timed("open", self._opened) as store:
                self._timed(what, partial(action, store))

    def _opened(self) -> holdfast.Store:
        return holdfast.open(self._place.url, **self._place.options)

    def _timed(self, what: str, job: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = job()
        self.times.setdefault(what, []).append((time.perf_counter() - start) * 1000)
        return result

    def median(self, what: str) -> float:
        return statistics.median(self.times[what])


def _read(store: holdfast.Store) -> object:
    return store.thread("chat").get().state


def _in_sqlite(place: Place, stack: ExitStack) -> Job:
    connection = apsw.Connection(f"{url_to_path(place.url)}-bare")
    stack.callback(connection.close)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE bare (body BLOB)")
    return lambda: connection.execute("INSERT INTO bare VALUES (?)", (_BARE,))


def _in_files(place: Place, stack: ExitStack) -> Job:
    path = stack.enter_context(tempfile.TemporaryDirectory(dir=Path(str(url_to_path(place.url))).parent))
    numbers = itertools.count()

    def write() -> None:
        with Path(path, str(next(numbers))).open("xb") as file:
            file.write(_BARE)
            file.flush()
            os.fsync(file.fileno())

    return write


def _in_postgres(place: Place, stack: ExitStack) -> Job:
    connection = stack.enter_context(psycopg.connect(place.url, autocommit=True))
    connection.execute("CREATE TABLE bare (body bytea)")
    return lambda: connection.execute("INSERT INTO bare VALUES (%b)", (_BARE,), prepare=True)


def _in_mongodb(place: Place, stack: ExitStack) -> Job:
    client = stack.enter_context(pymongo.MongoClient[dict[str, Any]](place.url))
    bare = client.get_default_database()["bare"]
    return lambda: bare.insert_one({"body": _BARE})


def _in_redis(place: Place, stack: ExitStack) -> Job:
    del place
    client = stack.enter_context(Redis(*server_of("redis")))
    return lambda: client.rpush("bare", _BARE)


def _in_s3(place: Place, stack: ExitStack) -> Job:
    del stack
    bucket = object_store(place.url.split("/")[2], place.options)
    numbers = itertools.count()
    return lambda: obstore.put(bucket, f"bare/{next(numbers)}", _BARE)


_BARE = random.Random(1).randbytes(1000)
_BARE_WRITES: dict[str, Callable[[Place, ExitStack], Job]] = {
    "sqlite": _in_sqlite,
    "file": _in_files,
    "postgresql": _in_postgres,
    "mongodb": _in_mongodb,
    "redis": _in_redis,
    "s3": _in_s3,
}
"""One durable write of a kilobyte, with the server's own client and nothing else."""


def latency_on_every_store() -> Result:
    """Appending a message and reading the latest state of a chat of 200, warm and cold, on every store"""
    figures: list[Figure] = []
    agents: dict[str, _Agent] = {}
    with ExitStack() as stack:
        for kind, opener in STORES.items():
            try:
                place = stack.enter_context(opener(None))
                agents[kind] = _Agent(place, stack, _BARE_WRITES[kind](place, stack))
            except Missing as why:
                figures.append(missing(f"latency on {kind}", why))
        gc.collect()
        for kind in turns(agents, _WARM):
            agents[kind].warm()
            agents[kind].bare()
        for kind in turns(agents, _COLD):
            agents[kind].cold()
    columns = ["append", "bare write", "read", "open", "first append", "first read"]
    rows = [(kind, [f"{agent.median(what):.2f} ms" for what in columns]) for kind, agent in agents.items()]
    base = agents["sqlite"]
    for kind, agent in agents.items():
        append, bare = agent.median("append"), agent.median("bare write")
        note = f"a bare durable write takes {bare:.2f} ms"
        figures.append(Figure(f"{kind}: p50 of an append", append, "ms", None, 40, note, goal=10))
        if kind != "sqlite":
            taken, beside = agent.median("append"), base.median("append")
            note = f"{taken:.2f} ms against {beside:.2f} ms"
            figures.append(Figure(f"{kind}: append / on SQLite", taken / beside, "x", note=note))
    return Result(figures, tables=[Table("A chat of 200 messages on every store, medians", columns, rows)])


def readable_rows() -> Result:
    """What readable rows beside the log cost each step of a chat of 200 messages, on the stores that have them"""
    figures: list[Figure] = []
    rows = []
    for kind in ("sqlite", "postgresql", "mongodb"):
        try:
            with ExitStack() as stack:
                places = {project: stack.enter_context(STORES[kind](None)) for project in (False, True)}
                agents = {
                    project: _Agent(place._replace(options={**place.options, "project": project}), stack)
                    for project, place in places.items()
                }
                gc.collect()
                for project in turns(agents, _WARM):
                    agents[project].warm()
                sizes = {project: place.stored() for project, place in places.items()}
        except Missing as why:
            figures.append(missing(f"readable rows on {kind}", why))
            continue
        off, on = (agents[project].median("append") for project in (False, True))
        steps = _MESSAGES + _WARM
        note = f"{on:.2f} ms against {off:.2f} ms"
        figures.append(Figure(f"{kind}: append with readable rows / without", on / off, "x", note=note))
        sized = [f"{sizes[project] / steps:,.0f}" for project in (False, True)]
        rows.append((kind, [f"{off:.2f} ms", f"{on:.2f} ms", *sized]))
    columns = ["append", "with readable rows", "bytes a step", "with readable rows"]
    return Result(figures, tables=[Table("What readable rows cost", columns, rows)] if rows else [])


CASES = (latency_on_every_store, readable_rows)
