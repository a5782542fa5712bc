"""Scoped state: what setting and getting a key costs, beside others that keep keys, and whether it grows with the keys.

A bare commit is a row of the same size put into a table of SQLite and flushed: nothing durable can be cheaper there.
"""

from __future__ import annotations

import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import apsw
import diskcache  # type: ignore[import-untyped]
import sqlitedict  # type: ignore[import-untyped]
from redis import Redis

import holdfast
from benchmarks.measure import Figure, Job, Result, Table, in_turns, missing, percentiles
from benchmarks.servers import Missing, redis
from holdfast.codec import default_codec
from holdfast.state.scope_state import State

_KEYS = 100
_MANY = 100_000
_ROUNDS = 3000
_VALUE = {"status": "working", "plan": ["search", "read", "answer"], "budget": 12.5}

Setter = Callable[[str, Any], object]
Getter = Callable[[str], object]


def _names(count: int) -> Iterator[str]:
    """Keys in an order in which neighbours lie far apart."""
    return (f"key/{number * 7919 % count:06}" for number in itertools.count())


def _filled(state: State, count: int) -> None:
    for start in range(0, count, 10_000):
        state.batch({f"key/{number:06}": _VALUE | {"n": number} for number in range(start, min(start + 10_000, count))})
    for name in itertools.islice(_names(count), 200):
        state[name] = _VALUE  # so that some of it is folded, and some is not


@contextmanager
def _bare(folder: pathlib.Path) -> Iterator[Setter]:
    connection = apsw.Connection(str(folder / "bare.db"))
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.pragma(*pragma.split(" = "))
    connection.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")
    value = b"x" * 80

    def put(key: str, _: Any) -> None:
        with connection:
            connection.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, value))

    yield put
    connection.close()


def state_set_and_get() -> Result:
    """Set and get of one of 100 keys: Holdfast, a bare commit, diskcache, sqlitedict, Redis."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = pathlib.Path(name)
        store = stack.enter_context(holdfast.open(f"sqlite:///{folder}/state.db"))
        state = store.state(agent="researcher")
        _filled(state, _KEYS)
        bare = stack.enter_context(_bare(folder))
        durable = stack.enter_context(diskcache.Cache(str(folder / "diskcache"), sqlite_synchronous=2))
        loose = stack.enter_context(sqlitedict.SqliteDict(str(folder / "sqlitedict.db"), autocommit=True))
        setters: dict[str, Setter] = {
            "bare commit": bare,
            "Holdfast": state.set,
            "diskcache, flushing": durable.set,
            "sqlitedict, not flushing": loose.__setitem__,
        }
        getters: dict[str, Getter] = {
            "Holdfast": state.get,
            "diskcache, flushing": durable.get,
            "sqlitedict, not flushing": loose.get,
        }
        absent = []
        try:
            client = stack.enter_context(Redis.from_url(redis().url))
            setters["Redis, flushing"] = lambda key, value: client.set(key, default_codec.pack(value))
            getters["Redis, flushing"] = lambda key: default_codec.unpack(client.get(key))
        except Missing as why:
            absent.append(missing("set and get in Redis", why))
        sets = percentiles(_jobs(setters, lambda put, key: put(key, _VALUE)), _ROUNDS)
        gets = percentiles(_jobs(getters, lambda get, key: get(key)), _ROUNDS)
        hot = in_turns({"get": lambda: [state.get("key/000001") for _ in range(100)]})["get"] * 10
    rows = [(who, [f"{_at(sets, who, 50):.0f}", f"{_at(sets, who, 99):.0f}", *(_cells(gets, who))]) for who in setters]
    table = Table("Scoped state, one of 100 keys, µs", ["set p50", "set p99", "get p50", "get p99"], rows)
    ratio = _at(sets, "Holdfast", 99) / _at(sets, "bare commit", 99)
    middle = _at(sets, "Holdfast", 50) / _at(sets, "bare commit", 50)
    return Result(
        [
            Figure("state: cached get", hot, "µs", ceiling=50),
            Figure(
                "state: p99 of a durable set / of a bare commit",
                ratio,
                "x",
                ceiling=10,
                goal=3,
            ),
            Figure("state: p50 of a durable set / of a bare commit", middle, "x", ceiling=8, goal=2),
            *(
                Figure(f"state: {what}, diskcache that flushes / Holdfast", _ahead(times), "x", floor=floor, goal=goal)
                for what, times, floor, goal in (("p50 of a set", sets, 0.2, 0.8), ("p50 of a get", gets, 0.12, 0.7))
            ),
            *absent,
        ],
        tables=[table],
    )


def state_bytes() -> list[Figure]:
    """Bytes of a file for each key that was set once: diskcache has the value, Holdfast also its history and audit."""
    with tempfile.TemporaryDirectory() as name:
        path, sizes = pathlib.Path(name, "state.db"), list[int]()
        for count in (1, _ROUNDS):
            with holdfast.open(path) as store:
                state = store.state(agent="researcher")
                for number in range(count):
                    state.set(f"key/{number:06}", _VALUE)
            sizes.append(path.stat().st_size)
        ours = (sizes[1] - sizes[0]) / _ROUNDS
        with diskcache.Cache(name) as cache:
            empty = cache.volume()
            for number in range(_ROUNDS):
                cache.set(f"key/{number:06}", _VALUE)
            theirs = (cache.volume() - empty) / _ROUNDS
    return [
        Figure("state: bytes of a set", ours, "bytes", ceiling=850),
        Figure("state: bytes of a set, diskcache / Holdfast", theirs / ours, "x", floor=0.22, goal=0.4),
    ]


def state_of_many_keys() -> list[Figure]:
    """Set, get and a page of the listing with 100 keys in the scope, and with 100,000."""
    with tempfile.TemporaryDirectory() as name, holdfast.open(f"sqlite:///{name}/many.db") as store:
        few, many = store.state(agent="few"), store.state(agent="many")
        _filled(few, _KEYS)
        _filled(many, _MANY)
        both = {"few": (few, _KEYS), "many": (many, _MANY)}
        names = {who: _names(count) for who, (_, count) in both.items()}
        found: dict[str, float] = {}
        kinds: dict[str, Callable[[State, str], object]] = {
            "set": lambda state, key: state.set(key, _VALUE),
            "get": lambda state, key: state.get(key),
            "a page of 50 keys": lambda state, key: state.list_keys(limit=50, cursor=key[:8]),
        }
        for what, kind in kinds.items():
            jobs: dict[str, Job] = {who: partial(_next, kind, state, names[who]) for who, (state, _) in both.items()}
            times = percentiles(jobs, 1000)
            found[what] = _at(times, "many", 50) / _at(times, "few", 50)
    return [
        Figure(f"state: {what} with 100,000 keys / with 100", ratio, "x", ceiling=2) for what, ratio in found.items()
    ]


def _jobs(calls: dict[str, Any], one: Callable[[Any, str], object]) -> dict[str, Job]:
    return {who: partial(_next, one, call, _names(_KEYS)) for who, call in calls.items()}


def _next(one: Callable[[Any, str], object], what: Any, names: Iterator[str]) -> None:
    one(what, next(names))


def _at(times: dict[str, list[float]], who: str, percent: int) -> float:
    return times[who][len(times[who]) * percent // 100]


def _ahead(times: dict[str, list[float]]) -> float:
    return _at(times, "diskcache, flushing", 50) / _at(times, "Holdfast", 50)


def _cells(times: dict[str, list[float]], who: str) -> list[str]:
    return [f"{_at(times, who, percent):.0f}" for percent in (50, 99)] if who in times else ["", ""]


CASES = (state_set_and_get, state_bytes, state_of_many_keys)
