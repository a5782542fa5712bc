"""Stored bytes go bad: it is noticed, and no state comes out other than it went in."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.engine.lines import Clock, store_on
from tests.support.nightly import mostly_nightly

SHARDS = 16

Truth = dict[str, dict[str, Any]]


def small_store(folder: Path) -> tuple[bytes, Truth]:
    """A store in a small file, closed; and the states in it."""
    store = Store(store_on(opened(folder), fold_every=3, clock=Clock())._engine, "")
    truth: Truth = {}
    for turn in range(5):
        for thread in ("chat", "notes"):
            state = {"messages": [f"{thread} message {n}" * 3 for n in range(turn + 1)], "turn": turn}
            saved = store.put(thread, state, metadata={"turn": turn})
            truth.setdefault(thread, {})[saved.id] = state
    store.thread("chat").tag("end")
    store.put("chat", {"turn": -1}, id="again", parent=store.log("chat", limit=3)[-1].id)
    truth["chat"]["again"] = {"turn": -1}
    store.close()
    path = folder / "store.db"
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "delete")
    connection.pragma("page_size", 512)
    connection.execute("VACUUM")
    connection.pragma("journal_mode", "wal")
    connection.close()
    return path.read_bytes(), truth


def opened(folder: Path) -> SQLiteBackend:
    return run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))


def everything(folder: Path) -> Truth:
    """All states of all threads, read as anybody would."""
    backend = opened(folder)
    try:
        store = store_on(backend)
        threads = [thread.thread for thread in store.threads()]
        return {
            thread: {checkpoint.id: store.get(thread, checkpoint.id).state for checkpoint in store.log(thread).all()}
            for thread in threads
        }
    finally:
        run(backend.close())


def read_damaged(folder: Path, content: bytes | bytearray, truth: Truth, what: str) -> str:
    """What comes of reading a damaged store: the truth, or an error of ours."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "store.db").write_bytes(content)
    try:
        found = everything(folder)
    except HoldfastError as error:
        return type(error).__name__
    assert found == truth, what
    return "right"


@pytest.mark.parametrize("shard", mostly_nightly(range(SHARDS), daily=[0]))
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, shard: int) -> None:
    content, truth = small_store(tmp_path)
    chance = random.Random(shard)
    outcomes: Counter[str] = Counter()
    for place in range(shard, len(content), SHARDS):
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        outcomes[read_damaged(tmp_path / "damaged", damaged, truth, f"bit of byte {place}")] += 1
    # Not every byte matters to what was read; nearly all are covered by a checksum all the same.
    assert outcomes["CorruptError"] > 0.9 * outcomes.total(), outcomes


@pytest.mark.parametrize("shard", mostly_nightly(range(SHARDS), daily=[0]))
def test_a_file_cut_short_is_noticed(tmp_path: Path, shard: int) -> None:
    content, truth = small_store(tmp_path)
    for length in range(1 + shard, len(content), SHARDS):
        outcome = read_damaged(tmp_path / "damaged", content[:length], truth, f"cut to {length}")
        assert outcome != "right", length
