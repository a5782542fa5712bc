"""A store full of conversations, of any size, made quickly and always the same."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import apsw

import holdfast
from benchmarks.langgraph_prose import prose
from holdfast.backends.interface import Backend, Create, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, Table
from holdfast.engine.copy.row_writer import rename_row
from holdfast.engine.row_format import Line
from holdfast.maintenance.backup.capture import BACKED_UP

_STEPS = 30
_DISTINCT = 350
"""So many conversations are written one by one, 16 MB of them. All further ones are copies under other names: too far
from each other for the blocks of a backup, or the pages of a database, to notice."""
_AT_ONCE = 20


def thread_name(number: int) -> str:
    """Return the name of a conversation."""
    return f"thread {number:06}"


def build(path: pathlib.Path, megabytes: float, encryption: Any = False) -> int:
    """Fill a store with conversations, until its file has this size after `VACUUM`, and do that. Returns the bytes of
    the JSON form of all its states."""
    total = number = 0
    with holdfast.open(path, encryption=encryption) as store:
        while number < _DISTINCT and _used(path) < megabytes * 1e6:
            total += write_conversation(store, number)
            number += 1
    size = vacuum(path)
    wanted = round(number * megabytes * 1e6 / size)
    if wanted > number:
        with holdfast.open(path) as store:
            backend = store._engine.context.backend
            lines = [[*_rows(backend, Line("", thread_name(each)))] for each in range(number)]
            for start in range(number, wanted, _AT_ONCE):
                changes = [
                    Create(table, rename_row(row, Line("", thread_name(each))))
                    for each in range(start, min(start + _AT_ONCE, wanted))
                    for table, row in lines[each % number]
                ]
                assert run(backend.apply(changes)) is None
        vacuum(path)
    return round(total * wanted / number) if wanted > number else total


def write_conversation(store: holdfast.Store, number: int) -> int:
    """Write a conversation, a checkpoint for each question with its answer. Returns the bytes of the JSON form of its
    states."""
    messages: list[dict[str, str]] = []
    total = size = 0
    with store.transaction() as together:
        for step in range(_STEPS):
            seed = number * _STEPS + step
            messages.append({"role": "user", "content": prose(300, 2 * seed)})
            messages.append({"role": "assistant", "content": prose(1200, 2 * seed + 1)})
            size += sum(len(json.dumps(each)) + 2 for each in messages[-2:])
            total += size + 30
            together.put(thread_name(number), {"messages": list(messages), "step": step})
    return total


def vacuum(path: pathlib.Path) -> int:
    """Run `VACUUM`. Returns the size of the file."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
    return path.stat().st_size


def _used(path: pathlib.Path) -> int:
    """Return the bytes of all pages in use."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        values = [next(iter(connection.execute(f"PRAGMA {each}")))[0] for each in ("page_count", "page_size")]
    finally:
        connection.close()
    return int(values[0]) * int(values[1])


def _rows(backend: Backend, line: Line) -> Iterator[tuple[Table, Row]]:
    """Yield the rows of a line."""
    for table in (LINES, *BACKED_UP):
        (found,) = run(backend.read([Scan(table, tuple(line))]))
        yield from ((table, row) for row in found)
