"""The rows of a store are frozen: a store that an earlier release wrote is read by this one, on any backend.

`tests/golden/store-v2.json` holds the rows of a small store with a bit of everything in it, and SQLite's tables as they
were made for it. It is written once, by running this module, `python -m tests.test_golden_store`.
"""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.backends.interface import Backend, Put, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.schema import create_statements
from holdfast.backends.tables import (
    BEHIND,
    EVENTS,
    FIELDS,
    JOBS,
    JOURNAL,
    KEYS,
    LINKS,
    QUARANTINE,
    READABLE,
    STATE_TRANSITIONS,
    TABLES,
    WORDS,
)
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.engine.lines import KINDS, backend, store_on
from tests.engine.rows import showing

GOLDEN = pathlib.Path(__file__).parent / "golden" / "store-v2.json"
EMPTY = (BEHIND, STATE_TRANSITIONS, JOURNAL, WORDS, QUARANTINE, JOBS, EVENTS, LINKS, KEYS, FIELDS)
"""The tables that are empty where nobody asked for what is in them."""

LARGE = random.Random(1).randbytes(50).hex() * 800

STATES: dict[str, dict[str, Any]] = {
    "01": {"messages": ["hello"], "turn": 1},
    "02": {"messages": ["hello", "there"], "turn": 2},
    "03": {"messages": ["hello", "there", "again"], "memory": {f"key {n}": n for n in range(30)}, "turn": 3},
    "04": {"messages": ["another way"], "report": LARGE},
    "05": {"messages": ["another way"], "report": LARGE + "and more"},
    "06": {"messages": ["as it should have been"]},
    "07": {"memory": {"a": 1}, "messages": ["at last"]},
    "08": {"messages": ["beside"], "turn": 8},
}


SALTED = patch("holdfast.engine.lines.new_salt", lambda: b"salt of a golden")
"""Gives new lines always the same salt, so that their ids and hashes are the same."""


def fill(store: Store) -> None:
    """Steps, folds, a branch, a fork with a step beside HEAD, a large value, a revision, a name, a tag, pending writes,
    readable rows."""
    store.thread("t").put(STATES["01"], id="01", metadata={"source": "input"})
    store.thread("t").put(STATES["02"], id="02", tag="good", labels=["x", "y"])
    store.thread("t").put(STATES["03"], id="03")
    store.thread("t").put(STATES["04"], id="04", parent="02")
    store.thread("t").put(STATES["05"], id="05")
    store.thread("t").put({"to be": "revised"}, id="06")
    store.thread("t").put(STATES["07"], id="07")
    store.thread("t").put(STATES["06"], id="06")
    store.thread("t").fork("what if", at="03")
    store.thread("t").put(STATES["08"], id="08", branch="what if")
    Checkpointer(store).put_writes("t", "07", [("answer", 42), ("why", None)], task_id="task", task_path="path")


def check(store: Store) -> None:
    """All that is there."""
    for id, state in STATES.items():
        assert store.thread("t").get(id).state == state, id
    assert [checkpoint.id for checkpoint in store.thread("t").log().all()] == sorted(STATES, reverse=True)
    assert store.thread("t").get("01").metadata == {"source": "input"}
    assert (store.thread("t").tags(), store.thread("t").labels()) == ({"good": "02"}, {"x": ["02"], "y": ["02"]})
    assert store.thread("t").get(at="what if").id == "08"
    assert store.thread("t").get().id == "07"
    (latest, *_) = Checkpointer(store).list("t", limit=1)
    assert [(write.channel, write.value) for write in latest.pending_writes] == [("answer", 42), ("why", None)]


def rows_of(on: Backend) -> dict[str, list[Any]]:
    found = run(on.read([Scan(space, ()) for space in TABLES]))
    return {
        space.name: [[[_to_json(value) for value in (*row.key, *row.columns)], row.body.hex()] for row in rows]
        for space, rows in zip(TABLES, found, strict=True)
    }


def put_rows(on: Backend, frozen: dict[str, list[Any]]) -> None:
    """Have a store hold rows that `rows_of` gave."""
    for space in TABLES:
        rows = []
        for values, body in frozen.get(space.name, ()):
            values = tuple(map(_from_json, values))
            rows.append(Row(values[: len(space.key)], values[len(space.key) :], bytes.fromhex(body)))
        assert run(on.apply([Put(space, row) for row in rows])) is None


def _to_json(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _from_json(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_version_1_is_read(kind: str, tmp_path: pathlib.Path) -> None:
    on = backend(kind, tmp_path)
    put_rows(on, json.loads(GOLDEN.read_text())["rows"])
    store = store_on(on, fold_every=3)
    check(store)
    made = store.thread("t").put({"still": "written"})
    assert (made.parent, store.thread("t").get().state) == ("07", {"still": "written"})
    store.maintenance.compact("t")
    for id, state in STATES.items():
        assert store_on(on).thread("t").get(id).state == state, id
    run(on.close())


def test_every_space_has_rows_in_it() -> None:
    frozen = json.loads(GOLDEN.read_text())["rows"]
    assert {name for name, rows in frozen.items() if rows} == {space.name for space in TABLES if space not in EMPTY}


def test_what_is_frozen_is_what_a_store_writes(tmp_path: pathlib.Path) -> None:
    """The same shape, not the same bytes: versions are drawn by chance."""
    on = backend("memory", tmp_path)
    store = showing(on, fold_every=3)
    with SALTED:
        fill(store)
    check(store)
    frozen, now = json.loads(GOLDEN.read_text())["rows"], rows_of(on)
    assert not any(now[space.name] for space in EMPTY)
    for space in TABLES:
        if space in EMPTY:
            continue
        key = len(space.key)
        assert [values[:key] for values, _ in now[space.name]] == [values[:key] for values, _ in frozen[space.name]]
        if space in READABLE:
            assert now[space.name] == frozen[space.name]
        for (_, body), (_, then) in zip(now[space.name], frozen[space.name], strict=True):
            if bytes.fromhex(then)[4:5] != b"\x01":  # what is compressed depends on zstd's release
                assert body[:-32] == then[:-32]  # without the checksum: it covers random columns


def test_sqlite_tables_are_as_they_were() -> None:
    frozen = json.loads(GOLDEN.read_text())["sqlite"]
    assert create_statements() == frozen


if __name__ == "__main__":
    if GOLDEN.exists():
        raise SystemExit("it is frozen already")
    made = backend("memory", pathlib.Path())
    with SALTED:
        fill(showing(made, fold_every=3))
    GOLDEN.write_text(json.dumps({"sqlite": create_statements(), "rows": rows_of(made)}, indent=1) + "\n")
