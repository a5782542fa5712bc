"""LangGraph's long-term memory with 100,000 items: its SqliteStore and PostgresStore beside HoldfastStore.

`ITEMS=10000` makes it shorter; the bounds of searches are those of 100,000.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from langgraph.store.base import BaseStore, PutOp

from benchmarks.langgraph_prose import prose
from benchmarks.langgraph_savers import disk
from benchmarks.measure import Cost, Figure, Result, Row, cost, missing, turns
from benchmarks.servers import Missing, postgres

COUNT = int(os.environ.get("ITEMS", "100000"))
_AT_ONCE = 2000
_TOPICS = 200
_NAMESPACE = ("memories", "alice")
_ROUNDS = {"put": 1000, "get": 400, "search": 12}
"""As many puts as several folds of ours are apart: a fold is most of what puts cost."""
_OURS = "Holdfast"

Bounds = dict[str, float]


def value_of(number: int) -> dict[str, Any]:
    """Return an item: a text of 200 characters, and fields to search for, each with 200 values."""
    return {
        "text": prose(200, number),
        "topic": f"topic {number % _TOPICS}",
        "weight": number % _TOPICS,
        "kind": "fact",
    }


def _fill(items: BaseStore) -> None:
    for start in range(0, COUNT, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, COUNT))
        items.batch([PutOp(_NAMESPACE, f"item {number}", value_of(number)) for number in numbers])


def _jobs(items: BaseStore) -> dict[str, Callable[[int], object]]:
    def search(number: int) -> None:
        found = items.search(_NAMESPACE, filter={"topic": f"topic {number % _TOPICS}"}, limit=10)
        assert len(found) == min(10, COUNT // _TOPICS)
        assert all(each.value["topic"] == f"topic {number % _TOPICS}" for each in found)

    def get(number: int) -> None:
        found = items.get(_NAMESPACE, f"item {number}")
        assert found is not None
        assert found.value["weight"] == number % _TOPICS

    return {
        "put": lambda number: items.put(_NAMESPACE, f"item {number}", value_of(number)),
        "get": get,
        "search": search,
    }


def _compare(who: str, stores: dict[str, BaseStore], bounds: Bounds, sizes: Callable[[str], int]) -> Result:
    for items in stores.values():
        _fill(items)
    figures, rows = [], []
    jobs = {name: _jobs(items) for name, items in stores.items()}
    for what, rounds in _ROUNDS.items():
        numbers = random.Random(what).sample(range(COUNT), rounds + 1)
        for name in stores:
            jobs[name][what](numbers[0])  # the first call prepares statements and fills caches
        taken: dict[str, list[Cost]] = {name: [] for name in stores}
        for name, number in zip(turns(stores, rounds), itertools.cycle(_twice(numbers[1:])), strict=False):
            taken[name].append(cost(partial(jobs[name][what], number)))
        means = {name: sum(each.wall for each in taken[name]) / rounds for name in stores}
        cpu = {name: sum(each.cpu for each in taken[name]) / rounds for name in stores}
        note = f"{cpu[who] * 1000:,.0f} µs of CPU against {cpu[_OURS] * 1000:,.0f}"
        if who == "PostgresStore":  # where most of the work is the server's
            note = f"{means[who] * 1000:,.0f} µs against {means[_OURS] * 1000:,.0f}"
        measured = means if who == "PostgresStore" else cpu
        ratio, floor = measured[who] / measured[_OURS], bounds[what]
        goal = 1.0 if floor < 1 else None
        figures.append(Figure(f"items: {what}, {who} / ours", ratio, "x", floor, None, note, goal))
        rows += [Row(f"items: {what}", name, means[name], cpu[name]) for name in stores]
    found = {name: sizes(name) / COUNT for name in stores}
    note = f"{found[who]:,.0f} against {found[_OURS]:,.0f}"
    ratio = found[who] / found[_OURS]
    figures.append(Figure(f"items: bytes, {who} / ours", ratio, "x", bounds["bytes"], None, note, 1.0))
    return Result(figures, rows)


def _twice(numbers: list[int]) -> Iterator[int]:
    """Yield each number for both stores."""
    for number in numbers:
        yield from (number, number)


@contextmanager
def _ours(url: str) -> Iterator[BaseStore]:
    from holdfast.langgraph import HoldfastStore

    with HoldfastStore.from_conn_string(url) as items:
        yield items


def items_beside_sqlite_store() -> Result:
    """Put, get and filtered search among 100,000 items in a SQLite file, beside LangGraph's SqliteStore"""
    from langgraph.store.sqlite import SqliteStore

    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        paths = {each: f"{name}/{each}.db" for each in ("SqliteStore", _OURS)}
        theirs = stack.enter_context(SqliteStore.from_conn_string(paths["SqliteStore"]))
        theirs.setup()
        stores = {"SqliteStore": theirs, _OURS: stack.enter_context(_ours(f"sqlite:///{paths[_OURS]}"))}
        bounds = {"put": 0.06, "get": 0.12, "search": 15.0, "bytes": 0.3}
        return _compare("SqliteStore", stores, bounds, lambda each: disk(paths[each]))


def items_beside_postgres_store() -> Result:
    """Put, get and filtered search among 100,000 items on PostgreSQL, beside LangGraph's PostgresStore"""
    import psycopg
    from langgraph.store.postgres import PostgresStore

    try:
        urls = {each: postgres().fresh() for each in ("PostgresStore", _OURS)}
    except Missing as error:
        return Result([missing("items: on PostgreSQL", error)])
    with ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        theirs = stack.enter_context(PostgresStore.from_conn_string(urls["PostgresStore"]))
        theirs.setup()
        stores = {"PostgresStore": theirs, _OURS: stack.enter_context(_ours(urls[_OURS]))}

        def size(who: str) -> int:
            with psycopg.connect(urls[who]) as connection:
                (found,) = connection.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
            return int(found)

        bounds = {"put": 0.04, "get": 0.3, "search": 5.0, "bytes": 0.4}
        return _compare("PostgresStore", stores, bounds, size)


CASES = (items_beside_sqlite_store, items_beside_postgres_store)
