"""Stored bytes go bad: it is noticed, and no state comes out other than it went in."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.backends.interface import Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import LINES
from holdfast.encryption import Encryption, LocalKeys, generate_key
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.damaged import flipped
from tests.engine.lines import Clock, store_on
from tests.support.nightly import mostly_nightly

SHARDS = 320

ROW_SHARDS = 3200
"""Every byte of the larger file, in so many parts."""

Truth = dict[str, dict[str, Any]]


def small_store(folder: Path) -> tuple[bytes, Truth]:
    """A store in a small file, closed; and the states in it."""
    store = Store(store_on(opened(folder), fold_every=3, clock=Clock())._engine, "")
    truth: Truth = {}
    for turn in range(5):
        for thread in ("chat", "notes"):
            state = {"messages": [f"{thread} message {n}" * 3 for n in range(turn + 1)], "turn": turn}
            saved = store.thread(thread).put(state, metadata={"turn": turn})
            truth.setdefault(thread, {})[saved.id] = state
    store.thread("chat").tag("end")
    store.thread("chat").put({"turn": -1}, id="again", parent=store.thread("chat").log(limit=3)[-1].id)
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


def everything(folder: Path, truth: Truth) -> Truth:
    """All states of the threads, and the latest ones, read as anybody would."""
    backend = opened(folder)
    try:
        store = store_on(backend)
        store.threads()
        found = {}
        for thread, states in truth.items():
            store.thread(thread).log().all()
            found[thread] = {id: store.thread(thread).get(id).state for id in states}
            assert store.thread(thread).get().state == states[max(states)], thread
        return found
    finally:
        run(backend.close())


def read_damaged(folder: Path, content: bytes | bytearray, truth: Truth, what: str) -> str:
    """What comes of reading a damaged store: the truth, or an error of ours."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "store.db").write_bytes(content)
    try:
        found = everything(folder, truth)
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
    # Free space and unused bytes of pages do not matter to what is read.
    assert outcomes["CorruptError"] > 0.1 * outcomes.total(), outcomes


@pytest.mark.parametrize("shard", mostly_nightly(range(SHARDS), daily=[0]))
def test_a_file_cut_short_is_noticed(tmp_path: Path, shard: int) -> None:
    content, truth = small_store(tmp_path)
    for length in range(1 + shard, len(content), SHARDS):
        outcome = read_damaged(tmp_path / "damaged", content[:length], truth, f"cut to {length}")
        assert outcome != "right", length


def rows_store(folder: Path) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """A store of some 200 rows in a file, closed; and the latest states of its threads."""
    path, truth = folder / "store.db", dict[str, dict[str, Any]]()
    with holdfast.open(path) as store:
        for turn in range(34):
            for thread in ("chat", "notes"):
                truth[thread] = {"messages": [f"{thread} {n}" for n in range(turn + 1)], "turn": turn}
                store.thread(thread).put(truth[thread], metadata={"turn": turn})
        for number in range(10):
            for turn in range(8):
                truth[f"thread-{number}"] = {"turn": turn, "text": f"text {number} " * 3}
                store.thread(f"thread-{number}").put(truth[f"thread-{number}"])
        store.thread("chat").tag("end")
        store.thread("chat").pin(reason="for later")
        store.thread("notes").hold(reason="case 7")
    return path.read_bytes(), truth


@pytest.mark.nightly  # by day, in a smaller file
@pytest.mark.parametrize("shard", range(48))
def test_a_flipped_bit_in_a_file_of_200_rows(tmp_path: Path, shard: int) -> None:
    """No latest state is ever a wrong one, and `verify` finds whatever is not read as it was."""
    flip_bits(*rows_store(tmp_path), tmp_path / "damaged", shard)


@pytest.mark.torture
def test_a_flipped_bit_in_every_byte_of_a_file_of_200_rows(tmp_path: Path) -> None:
    content, truth = rows_store(tmp_path)
    for shard in range(48, ROW_SHARDS):
        flip_bits(content, truth, tmp_path / "damaged", shard)


def flip_bits(content: bytes, truth: dict[str, dict[str, Any]], folder: Path, shard: int) -> None:
    """Flip a bit in each byte of a part of the file, and read it."""
    chance = random.Random(shard)
    outcomes: Counter[str] = Counter()
    for place in range(shard, len(content), ROW_SHARDS):
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "store.db").write_bytes(damaged)
        outcome = "right"
        try:
            with holdfast.open(folder / "store.db") as store:
                for thread, state in truth.items():
                    try:
                        assert store.thread(thread).get().state == state, f"bit of byte {place}: {thread}"
                    except HoldfastError as error:
                        outcome = type(error).__name__
                if outcome != "right":
                    assert not store.maintenance.verify().ok, f"bit of byte {place}: {outcome}, not found"
        except HoldfastError as error:  # the file cannot be opened or verified any more
            outcome = f"{type(error).__name__}, closed"
        outcomes[outcome] += 1
    assert outcomes["right"] < outcomes.total(), outcomes
    assert outcomes["CorruptError"], outcomes


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_thread_whose_own_row_is_damaged_can_be_deleted(tmp_path: Path, encrypted: bool) -> None:
    encryption = Encryption(LocalKeys(generate_key())) if encrypted else None
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        store.thread("t").put({"n": 1})
        store.thread("other").put({"n": 1})
        stored = store._engine.context.stored
        (rows,) = run(stored.read([Scan(LINES, ("", "t"))]))
        run(stored.apply([Put(LINES, rows[0]._replace(body=flipped(rows[0].body)))]))
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        assert store.maintenance.verify().damage
        assert store.thread("t").delete()
        assert not store.maintenance.verify().damage
        assert [each.thread for each in store.threads()] == ["other"]
