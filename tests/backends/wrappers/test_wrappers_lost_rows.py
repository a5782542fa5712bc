"""Pairs of stores of which one has lost rows, or was written directly."""

from __future__ import annotations

import hashlib
import logging
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Store
from holdfast.backends.conformance.rows import step
from holdfast.backends.interface import Backend, Create, Delete, Expect, Get, Put, Scan, lacks_rows
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import FOLDS, JOURNAL, LINES, NODES, OBJECTS, REFS, STEPS, TABLES, Key, Table
from holdfast.backends.urls import compose
from holdfast.backends.wrappers.mirror import MirrorBackend
from holdfast.backends.wrappers.replica_pair import ReplicaMismatch, attach, read_cursor
from holdfast.backends.wrappers.replication import WriteBehindBackend
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError, CorruptError, HoldfastError, OutcomeUnknownError
from tests.backends.wrappers.pairs import Held, contents, contents_at, files, opened, pair_url, paired, settled, until
from tests.support.faults import Faults
from tests.support.nightly import mostly_nightly

STEPS_SAVED = 70
"""Two folds, and some steps since."""

REFERENCED = (STEPS, FOLDS, NODES, OBJECTS)


def states() -> Iterator[dict[str, Any]]:
    rng = random.Random(7)
    messages = [rng.randbytes(200).hex() for _ in range(40)]
    for number in range(STEPS_SAVED):
        messages.append(rng.randbytes(200).hex())
        yield {"messages": list(messages), "n": number, "image": rng.randbytes(90_000) if not number % 30 else b""}


def fill(store: Store) -> list[str]:
    """Save checkpoints, and return their ids."""
    ids = [store.thread("chat").put(state).id for state in states()]
    store.thread("chat").tag("v1", at=12)
    store.thread("chat").fork("other", at=40)
    return ids


def read_all(store: Store, ids: list[str]) -> dict[str, str]:
    """Read everything that a thread has, most of it by what refers to it. Returns digests."""
    thread = store.thread("chat")
    found = {
        "latest": thread.get().state,
        "HEAD~30": thread.get(at="HEAD~30").state,
        "v1": thread.get(at="v1").state,
        "other": thread.get(at="other").state,
        "by id": [thread.get(at=id).state for id in ids],
        "diff": str(thread.diff("HEAD~40", "HEAD")),
        "blame": [str(each) for each in thread.blame("messages[45]")],
        "branches": [branch.name for branch in thread.branches()],
        "log": [checkpoint.id for checkpoint in thread.log(limit=1000)],
    }
    return {name: hashlib.sha256(repr(value).encode()).hexdigest() for name, value in found.items()}


def reopened(backend: Backend) -> Store:
    """A store with nothing in its cache."""
    backend.set_row_check(CHECKSUMS.is_intact)
    return Store(Engine(EngineContext(backend, MemoryCache(64 << 20))), "")


def mirrored(local: Backend, remote: Backend) -> MirrorBackend:
    store = paired(local, remote, MirrorBackend, patience=120.0, drain=0.1)
    assert isinstance(store, MirrorBackend)
    return store


def referenced(backend: Backend) -> list[tuple[Table, Key]]:
    """The rows to which others refer: all steps but the last, and what folded states are made of."""
    rows = contents(backend)
    last = max(row.key for row in rows["steps"] if row.key[2] == 0)
    return [(space, row.key) for space in REFERENCED for row in rows[space.name] if row.key != last]


@pytest.mark.parametrize("space", REFERENCED, ids=lambda space: space.name)
def test_lost_rows_are_read_from_the_copy_and_written_back(space: Table) -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    mirror = mirrored(local, remote)
    ids = fill(reopened(mirror))
    whole, expected = contents(local), read_all(reopened(local), ids)
    lost = [key for table, key in referenced(local) if table is space]
    assert len(lost) >= (2 if space is FOLDS else 3)
    assert run(local.apply([Delete(space, key) for key in lost])) is None
    with pytest.raises(HoldfastError):
        read_all(reopened(local), ids)  # without the copy, it is noticed
    assert read_all(reopened(mirror), ids) == expected
    status = run(mirror.status())
    assert (status["healed"], status["unhealed"]) == (len(lost), 0)
    assert contents(local) == whole
    assert read_all(reopened(local), ids) == expected
    run(mirror.close())


@pytest.mark.nightly
def test_each_lost_row_alone() -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    mirror = mirrored(local, remote)
    ids = fill(reopened(mirror))
    whole, expected = contents(local), read_all(reopened(local), ids)
    for space, key in referenced(local):
        assert run(local.apply([Delete(space, key)])) is None
        assert read_all(reopened(mirror), ids) == expected, (space.name, key)
        assert contents(local) == whole, (space.name, key)
    assert run(mirror.status())["healed"] == len(referenced(local))
    run(mirror.close())


def test_a_row_that_neither_has_is_missing() -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    mirror = mirrored(local, remote)
    fill(reopened(mirror))
    nodes = [key for space, key in referenced(local) if space is NODES]
    for store in (local, remote):
        assert run(store.apply([Delete(NODES, key) for key in nodes])) is None
    with pytest.raises(CorruptError, match="a node is missing"):
        reopened(mirror).thread("chat").get()
    assert run(mirror.status())["healed"] == 0
    run(mirror.close())


def test_it_is_written_back_while_others_write() -> None:
    local, remote = MemoryBackend(), MemoryBackend()
    mirror = mirrored(local, remote)
    rows = [step(n, body=b"%d" % n) for n in range(5)]
    assert run(mirror.apply([Create(STEPS, row) for row in rows])) is None
    assert run(local.apply([Delete(STEPS, rows[2].key)])) is None
    written: list[int] = []
    plain = local.apply

    async def write_first(batch: Any) -> int | None:
        """Write just before the row is put back, twice."""
        if len(written) < 2 and any(isinstance(change, Put) and change.row == rows[2] for change in batch):
            written.append(len(written))
            assert await mirror.apply([Create(STEPS, step(100 + len(written)))]) is None
        return await plain(batch)

    local.apply = write_first  # type: ignore[method-assign]
    query = Get(STEPS, [row.key for row in rows], required=True)
    assert sorted(run(mirror.read([query]))[0]) == rows
    assert len(written) == 2
    assert run(mirror.status())["healed"] == 1
    assert run(local.read([Get(STEPS, [rows[2].key])])) == [[rows[2]]]
    run(mirror.close())


def test_only_rows_that_are_required_are_looked_up() -> None:
    local, remote = MemoryBackend(), Faults(MemoryBackend())
    mirror = mirrored(local, remote)
    assert run(mirror.apply([Create(STEPS, step(n)) for n in range(3)])) is None
    missing = step(7).key
    before = remote.reads
    assert run(mirror.read([Get(STEPS, [missing]), Scan(STEPS, ())])) == [[], [step(0), step(1), step(2)]]
    assert remote.reads == before
    assert run(mirror.read([Get(STEPS, [missing], required=True)])) == [[]]
    assert remote.reads > before
    run(mirror.close())


def test_required_rows() -> None:
    rows = [step(0), step(1)]
    keys = [row.key for row in rows]
    assert not lacks_rows(Get(STEPS, [*keys, *keys], required=True), rows)
    assert lacks_rows(Get(STEPS, [*keys, step(2).key], required=True), rows)
    assert not lacks_rows(Get(STEPS, [*keys, step(2).key]), rows)
    assert lacks_rows(Scan(STEPS, (), required=3), rows)
    assert not lacks_rows(Scan(STEPS, (), required=2), rows)


def test_a_lost_body_of_a_cold_mirror(tmp_path: Path) -> None:
    """The cold store of a tiered one says, too, which rows it needs."""
    cold = compose("mirror", local=f"sqlite:///{tmp_path}/a.db", remote=f"sqlite:///{tmp_path}/b.db", patience=120)
    url = compose("tiered", hot=f"sqlite:///{tmp_path}/hot.db", cold=cold, after="0s", keep=0)
    with holdfast.open(url) as store:
        for state in states():
            store.thread("chat").put(state)
        store.maintenance.compact()
        assert store.status().details["moved"] != 0
    file = opened(f"sqlite:///{tmp_path}/a.db")
    assert contents(file)["objects"]
    assert run(file.apply([Delete(OBJECTS, ())])) is None
    run(file.close())
    with holdfast.open(url) as store:
        assert store.thread("chat").get().state == list(states())[-1]
        assert store.status().details["cold_healed"] != 0


@pytest.mark.nightly
@pytest.mark.parametrize("kind", mostly_nightly(["mirror", "write-behind"], daily=["mirror"]))
@pytest.mark.parametrize("side", [0, 1], ids=["local", "remote"])
def test_a_repair_restores_every_lost_row(tmp_path: Path, kind: str, side: int) -> None:
    """Also those that nothing refers to; and the pair still works afterwards."""
    url, parts = pair_url(tmp_path, kind), files(tmp_path)
    with holdfast.open(url) as store:
        for name in ("chat", "gone"):
            for number in range(40):
                store.thread(name).put({"n": number, "text": f"{name} {number} " * 50})
        store.thread("chat").tag("v1", at=3)
    whole = contents_at(parts[0])
    assert contents_at(parts[1]) == whole
    damaged = opened(parts[side])
    lost = [Delete(space, ("", "gone")) for space in TABLES if space is not JOURNAL]
    lost += [Delete(STEPS, ("", "chat", 0, 39)), Delete(STEPS, ("", "chat", 0, 20)), Delete(LINES, ("", "chat"))]
    lost += [Delete(REFS, ("", "chat")), Delete(FOLDS, ("", "chat"))]
    assert run(damaged.apply(lost)) is None
    run(damaged.close())
    with holdfast.open(url) as store:
        assert store.maintenance.repair().ok
        assert store.status().details["healed"] != 0
        assert store.thread("chat").get().state["n"] == store.thread("gone").get().state["n"] == 39
        store.thread("chat").put({"n": 40})
        assert settled(store._engine.context.backend)["trouble"] == ""
        assert store.maintenance.verify(level="decode").ok
    assert contents_at(parts[0]) == contents_at(parts[1])
    assert len(contents_at(parts[0])["steps"]) == len(whole["steps"]) + 1


def test_a_repair_leaves_a_thread_that_was_written_directly(tmp_path: Path) -> None:
    url, (local, remote) = pair_url(tmp_path, "write-behind"), files(tmp_path)
    put_directly(url, "both")
    put_directly(local, "here")
    put_directly(remote, "there")
    put_directly(remote, "there, later")
    before = contents_at(local), contents_at(remote)
    pair = opened(url)
    assert len(run(pair.heal())) >= 2
    run(pair.close())
    assert (contents_at(local), contents_at(remote)) == before


# Stores that were written directly


def put_directly(url: str, state: object) -> None:
    with holdfast.open(url) as store:
        store.thread("chat").put({"state": state})


def test_a_checkpoint_in_the_copy_is_not_replaced_by_a_mirror(tmp_path: Path) -> None:
    url, (local, remote) = pair_url(tmp_path, "mirror"), files(tmp_path)
    put_directly(url, "both")
    put_directly(remote, "only in the copy")
    before = contents_at(remote)
    with holdfast.open(url) as store:
        with pytest.raises(OutcomeUnknownError, match="differs from the local store") as caught:
            store.thread("chat").put({"state": "here"})
        assert "'chat'" in str(caught.value)
        assert "Nothing was replaced" in str(store.status().details["trouble"])
        with pytest.raises(ConfigError, match="written directly"):
            store.thread("other").put({"state": 1})
        assert store.thread("chat").get().state == {"state": "here"}
    assert contents_at(remote) == before
    # The sender may find it while the store is being opened, or soon after.
    with pytest.raises(ConfigError, match="written directly"), holdfast.open(url) as store:  # noqa: PT012
        until(lambda: "written directly" in str(store.status().details["trouble"]))
        store.thread("other").put({"state": 1})
    assert contents_at(remote) == before
    with holdfast.open(local) as store:
        assert store.thread("chat").get().state == {"state": "here"}
    with holdfast.open(remote) as store:
        assert store.thread("chat").get().state == {"state": "only in the copy"}


def test_a_checkpoint_in_the_copy_is_not_replaced_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, (_, remote) = pair_url(tmp_path), files(tmp_path)
    put_directly(url, "both")
    put_directly(remote, "only in the copy")
    before = contents_at(remote)
    with caplog.at_level(logging.ERROR, logger="holdfast.copies"), holdfast.open(url) as store:
        store.thread("chat").put({"state": "here"})
        until(lambda: "written directly" in str(store.status().details["trouble"]))
        with pytest.raises(ConfigError, match="written directly"):
            store.thread("chat").put({"state": "again"})
    assert "copying has stopped" in caplog.text
    assert contents_at(remote) == before


@pytest.mark.parametrize("how", ["tag", "branch", "delete", "prune"])
def test_other_changes_of_the_copy(tmp_path: Path, how: str) -> None:
    url, (_, remote) = pair_url(tmp_path, "mirror"), files(tmp_path)
    for number in range(4):
        put_directly(url, number)
    with holdfast.open(remote) as store:
        thread = store.thread("chat")
        if how == "branch":
            thread.fork("side", at=1)
        elif how == "delete":
            thread.delete()
        elif how == "prune":
            assert store.maintenance.prune(keep_last=1).dropped
        else:
            thread.tag("v1")
    before = contents_at(remote)
    with holdfast.open(url) as store:
        change = (
            partial(store.thread("chat").tag, "v1", at=0)
            if how == "tag"
            else partial(store.thread("chat").put, {"n": 5})
        )
        with pytest.raises(OutcomeUnknownError, match="differs from the local store"):
            change()
    assert contents_at(remote) == before


def test_what_was_lost_at_the_end_of_a_thread_is_not_replaced(tmp_path: Path) -> None:
    """Nothing refers to the last checkpoint: it is noticed when another is saved there."""
    url, (local, remote) = pair_url(tmp_path, "mirror"), files(tmp_path)
    put_directly(url, 0)
    put_directly(url, 1)
    file = opened(local)
    last = contents(file)["steps"][-1]
    assert run(file.apply([Delete(STEPS, last.key)])) is None
    run(file.close())
    with holdfast.open(url) as store, pytest.raises(OutcomeUnknownError, match="has lost rows"):
        store.thread("chat").put({"state": "another"})
    with holdfast.open(remote) as store:
        assert store.thread("chat").get().state == {"state": 1}


def test_conditions_hold_once_a_copy_is_filled() -> None:
    """What is written while a copy is filled reaches it twice: with the rest, and by the journal."""
    local, remote = MemoryBackend(), Held(MemoryBackend())
    assert run(local.apply([Create(STEPS, step(n)) for n in range(100)])) is None
    identity = run(attach(local, MemoryBackend(), restore=False))
    remote.gate.clear()
    store = WriteBehindBackend(local, remote, identity, drain=0.1)
    store._sender.wake()
    for n in range(100, 110):
        before = step(n - 1)
        assert run(store.apply([Expect(STEPS, before.key, before.columns), Create(STEPS, step(n))])) is None
    assert remote.reached.wait(120)
    remote.gate.set()
    settled(store)
    cursor = run(read_cursor(remote))
    assert cursor is not None
    assert cursor.filled == cursor.number == 10
    assert contents(remote) == contents(local)
    # From here on, the conditions hold in the copy too.
    assert run(store.apply([Create(STEPS, step(200))])) is None
    assert settled(store)["trouble"] == ""
    assert run(remote.apply([Create(STEPS, step(201))])) is None
    assert run(store.apply([Create(STEPS, step(201, body=b"another"))])) is None
    until(lambda: isinstance(store._sender.fatal_error, ReplicaMismatch))
    run(store.close())
