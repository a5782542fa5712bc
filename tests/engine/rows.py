"""Readable rows: as they are, and as they would be if they were made from the log alone."""

from __future__ import annotations

import json
from typing import Any, Literal

from holdfast.backends.interface import Backend, Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import CONVERSATION_HISTORY, HEADS, READABLE, STATE_VALUES, TABLES, JsonText, Scalar
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.namespaces import AUDIT
from holdfast.store.store import Store
from tests.engine.lines import Clock

Rows = dict[str, dict[tuple[Scalar, ...], dict[str, Any]]]


def showing(
    backend: Backend,
    *,
    fold_every: int = 32,
    cache_bytes: int = 1 << 20,
    clock: Any = None,
    project: bool | Literal["follow"] = True,
) -> Store:
    """A store that writes readable rows."""
    ground = EngineContext(
        backend, MemoryCache(cache_bytes), clock=clock or Clock(), fold_every=fold_every, project=project
    )
    return Store(Engine(ground), "")


def rows_of(backend: Backend) -> Rows:
    """All readable rows, by the name of their space and the rest of their key after the tenant."""
    found = run(backend.read([Scan(space, ()) for space in READABLE]))
    return {
        space.name: {
            row.key[1:]: {
                name: json.loads(str(value)) if kind is JsonText else value
                for (name, kind), value in zip(space.columns.items(), row.columns, strict=True)
            }
            for row in rows
        }
        for space, rows in zip(READABLE, found, strict=True)
    }


def thread_rows_of(backend: Backend) -> Rows:
    """The readable rows of threads: without those of the audit, which has a record of every deletion."""
    return {
        space: {key: row for key, row in rows.items() if key[0] != AUDIT} for space, rows in rows_of(backend).items()
    }


def made_again(backend: Backend, *, fold_every: int = 32) -> Rows:
    """The rows that are made from the log alone, in another store."""
    log = [space for space in TABLES if space not in READABLE]
    other = MemoryBackend()
    for space, rows in zip(log, run(backend.read([Scan(space, ()) for space in log])), strict=True):
        run(other.apply([Put(space, row) for row in rows]))
    engine = showing(other, fold_every=fold_every)._engine
    for line in run(engine.lines.names("")):
        run(engine.projector.build(line))
    return rows_of(other)


def check_rows(backend: Backend, *, fold_every: int = 32) -> None:
    """Rows are what they would be if they were made anew, but that large values stay left out for longer."""
    found, expected = rows_of(backend), made_again(backend, fold_every=fold_every)
    for rows in (found, expected):
        for head in rows[HEADS.name].values():
            del head["version"]
    for key, value in found[STATE_VALUES.name].items():
        if value["kind"] == "left out":
            kept = expected[STATE_VALUES.name][key]
            kept["kind"], kept["value"], kept["items"] = "left out", None, 0
            talk = expected[CONVERSATION_HISTORY.name]
            expected[CONVERSATION_HISTORY.name] = {place: row for place, row in talk.items() if place[:2] != key}
    for name, told in found.items():
        assert told == expected[name], name
