"""Threads are written to a file and brought back from it: the same, or not at all."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import random
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Put, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import LINES, NODES, STEPS, TABLES, Table
from holdfast.engine.copy import between_stores
from holdfast.engine.integrity.verify import verify
from holdfast.engine.namespaces import thread_name
from holdfast.engine.row_format import Line
from holdfast.errors import ConfigError, ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.engine.lines import store_on
from tests.engine.test_histories import Thread, perform, scripts
from tests.servers.places import DURABLE, place
from tests.store.test_copy_to import backend_of, check_same, fill, log_of
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import examples, mostly_nightly


def filled(threads: int = 3) -> Store:
    store = store_on(MemoryBackend(), fold_every=4)
    fill(store, threads)
    return store


@pytest.fixture
def source() -> Store:
    return filled()


def is_empty(store: Store) -> bool:
    return not any(run(backend_of(store).read([Scan(space, ()) for space in TABLES])))


def is_sound(store: Store, thread: str) -> bool:
    return not run(verify(store._engine.context, Line("", thread))).findings


# There and back -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "name"),
    mostly_nightly(
        [*product(DURABLE, ["threads.jsonl", "threads.jsonl.gz"])],
        daily=[("sqlite", "threads.jsonl.gz"), ("postgres", "threads.jsonl")],
    ),
)
def test_threads_come_back_as_they_were(to: str, name: str, source: Store, tmp_path: Path) -> None:
    file = tmp_path / name
    rows = log_of(backend_of(source))
    report = source.maintenance.export(file)
    count = sum(len(found) for space, found in rows.items() if space != LINES.name)
    assert (report.threads, report.records, report.changing) == (3, count, ())
    size = len(gzip.decompress(file.read_bytes())) if name.endswith(".gz") else file.stat().st_size
    assert report.bytes == size
    with holdfast.open(place(to, tmp_path)) as target:
        imported = target.maintenance.import_(file)
        names = ("thread 0", "thread 1", "thread 2")
        assert (imported.threads, imported.skipped) == (names, ())
        assert imported.rows == sum(map(len, rows.values()))
        check_same(source, target)
        for thread in names:
            assert [each.hash for each in target.thread(thread).log().all()] == [
                each.hash for each in source.thread(thread).log().all()
            ]
            assert identical(target.thread(thread).get().state, source.thread(thread).get().state)
        again = target.maintenance.import_(file)
        assert (again.threads, again.skipped, again.rows) == ((), names, 0)
        target.thread("thread 0").put({"goes": "on"})
        assert target.maintenance.import_(file).skipped == names, "what is in the file is there"
        assert target.thread("thread 0").get().state == {"goes": "on"}


def test_the_file_can_be_looked_at(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "threads.jsonl", threads=["thread 1"])
    lines = (tmp_path / "threads.jsonl").read_bytes().splitlines(keepends=True)
    first, begin, *_, end, last = map(json.loads, lines)
    assert (first["type"], first["version"]) == ("holdfast-export", 1)
    assert (begin["type"], begin["tenant"], begin["thread"]) == ("thread", "", "thread 1")
    assert end == {"type": "end", "rows": len(lines) - 4}
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    assert last == {"type": "checksum", "sha256": digest, "threads": 1, "rows": len(lines) - 4}


def test_the_same_threads_make_the_same_file(source: Store, tmp_path: Path) -> None:
    def told(name: str) -> bytes:
        source.maintenance.export(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        text = gzip.decompress(data) if name.endswith(".gz") else data
        return re.sub(rb'"time":"[^"]*"}\n', b"", text.rpartition(b'{"type":"checksum"')[0])

    assert told("a.jsonl") == told("b.jsonl") == told("c.jsonl.gz")


def test_a_file_that_is_open_is_written_and_read(source: Store) -> None:
    file = io.BytesIO()
    source.maintenance.export(file, threads=iter(["thread 2"]))
    assert not file.closed
    target = store_on(MemoryBackend())
    file.seek(0)
    assert target.maintenance.import_(file).threads == ("thread 2",)
    assert not file.closed
    zipped = io.BytesIO(gzip.compress(file.getvalue()))
    assert target.maintenance.import_(zipped).skipped == ("thread 2",)
    for text in (io.StringIO(), io.TextIOWrapper(io.BytesIO())):
        with pytest.raises(InvalidError, match="as text"):
            source.maintenance.export(text)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="as text"):
            target.maintenance.import_(text)  # type: ignore[arg-type]


def test_through_a_pipe(source: Store) -> None:
    read, write = os.pipe()
    target = store_on(MemoryBackend())
    with os.fdopen(read, "rb") as inward, os.fdopen(write, "wb") as outward:
        import threading

        def export() -> None:
            source.maintenance.export(outward)
            outward.close()

        exporting = threading.Thread(target=export)
        exporting.start()
        target.maintenance.import_(inward)
        exporting.join()
    check_same(source, target)


def test_async(tmp_path: Path, source: Store) -> None:
    source.maintenance.export(tmp_path / "threads.jsonl")

    async def main() -> None:
        async with await holdfast.aopen(f"sqlite:///{tmp_path}/store.db") as target:
            assert len((await target.maintenance.import_(tmp_path / "threads.jsonl")).threads) == 3
            assert (await target.maintenance.export(tmp_path / "again.jsonl.gz")).threads == 3

    asyncio.run(main())
    back = store_on(MemoryBackend())
    back.maintenance.import_(tmp_path / "again.jsonl.gz")
    check_same(source, back)


def test_progress(source: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, str]] = []

    def tell(done: int, total: int | None, what: str) -> None:
        seen.append((done, total, what))

    source.maintenance.export(tmp_path / "f", progress=tell)
    assert seen == [(n + 1, 3, f"thread {n}") for n in range(3)]
    seen.clear()
    store_on(MemoryBackend()).maintenance.import_(tmp_path / "f", progress=tell)
    assert seen == [
        *((n + 1, None, f"read thread {n}") for n in range(3)),
        *((n + 1, 3, f"verified thread {n}") for n in range(3)),
        *((n + 1, 3, f"thread {n}") for n in range(3)),
    ]


def test_an_empty_store(tmp_path: Path) -> None:
    assert store_on(MemoryBackend()).maintenance.export(tmp_path / "f").threads == 0
    target = store_on(MemoryBackend())
    assert target.maintenance.import_(tmp_path / "f").threads == ()
    assert is_empty(target)


@settings(max_examples=examples(15), deadline=None)
@given(script=scripts(), fold_every=st.sampled_from([1, 3, 32]), pruned=st.booleans())
def test_any_history_comes_back(script: list[Any], fold_every: int, pruned: bool) -> None:
    store = store_on(MemoryBackend(), fold_every=fold_every)
    thread = Thread(store)
    for action, (state, chance) in script:
        perform(thread, action, state, chance)
    if pruned:
        store.maintenance.prune(keep_last=2)
    with tempfile.TemporaryDirectory() as folder:
        store.maintenance.export(Path(folder) / "f")
        target = store_on(MemoryBackend())
        target.maintenance.import_(Path(folder) / "f")
    check_same(store, target)


# Which threads ------------------------------------------------------------------------------------------------------


def test_some_threads(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f", threads=["thread 2", "thread 0", "thread 2"])
    target = store_on(MemoryBackend())
    assert target.maintenance.import_(tmp_path / "f", threads=["thread 0"]).threads == ("thread 0",)
    assert [each.thread for each in target.threads()] == ["thread 0"]
    with pytest.raises(NotFoundError, match="'thread 1'"):
        target.maintenance.export(tmp_path / "g", threads=["thread 1"])
    assert not (tmp_path / "g").exists()
    with pytest.raises(NotFoundError, match="no thread 'thread 1' in the file"):
        target.maintenance.import_(tmp_path / "f", threads=["thread 1"])
    with pytest.raises(InvalidError):
        source.maintenance.export(tmp_path / "f", threads="thread 1")
    with pytest.raises(InvalidError, match="'csv'"):
        source.maintenance.export(tmp_path / "f", format="csv")


def test_namespaces_go_with_their_thread(tmp_path: Path) -> None:
    source = store_on(MemoryBackend())
    for name in ("chat", thread_name("chat", "child:1"), "chatty", thread_name("other", "child:1"), "other"):
        source.thread(name).put({"in": name})
    report = source.maintenance.export(tmp_path / "f", threads=["chat", "other"])
    assert report.threads == 4
    target = store_on(MemoryBackend())
    assert set(target.maintenance.import_(tmp_path / "f", threads=["chat"]).threads) == {
        "chat",
        thread_name("chat", "child:1"),
    }
    target.maintenance.import_(tmp_path / "f", threads=["chat"], as_thread="talk")
    assert target.thread(thread_name("talk", "child:1")).get().state == {"in": thread_name("chat", "child:1")}
    alone = store_on(MemoryBackend())
    assert alone.maintenance.import_(tmp_path / "f", threads=[thread_name("chat", "child:1")]).threads == (
        thread_name("chat", "child:1"),
    )


def test_under_another_name(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f")
    for _ in range(2):
        source.maintenance.import_(tmp_path / "f", threads=["thread 1"], as_thread="copy")
    assert [each.hash for each in source.thread("copy").log().all()] == [
        each.hash for each in source.thread("thread 1").log().all()
    ]
    assert identical(source.thread("copy").get().state, source.thread("thread 1").get().state)
    assert source.thread("copy").tags() == source.thread("thread 1").tags()
    assert is_sound(source, "copy")
    with pytest.raises(InvalidError, match="several"):
        source.maintenance.import_(tmp_path / "f", threads=["thread 0", "thread 1"], as_thread="copy")
    with pytest.raises(InvalidError, match="the file has several"):
        source.maintenance.import_(tmp_path / "f", as_thread="copy")
    with pytest.raises(InvalidError, match="must not be empty"):
        source.maintenance.import_(tmp_path / "f", threads=["thread 0"], as_thread="")


def test_to_another_tenant(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/a.db", tenant="acme") as acme:
        acme.thread("t").put({"whose": "acme"})
        acme.maintenance.export(tmp_path / "f")
        hashes = [each.hash for each in acme.thread("t").log().all()]
    with holdfast.open(f"sqlite:///{tmp_path}/a.db", tenant="other") as other:
        assert other.maintenance.import_(tmp_path / "f").threads == ("t",)
        assert other.thread("t").get().state == {"whose": "acme"}
        assert [each.hash for each in other.thread("t").log().all()] == hashes
        assert other.maintenance.import_(tmp_path / "f").skipped == ("t",)


def test_copying_some_threads(source: Store) -> None:
    target = store_on(MemoryBackend())
    assert source.maintenance.copy_to(target, threads=["thread 1"]).threads == 1
    assert [each.thread for each in target.threads()] == ["thread 1"]
    with pytest.raises(NotFoundError):
        source.maintenance.copy_to(target, threads=["nowhere"])
    with pytest.raises(InvalidError, match="if one tenant"):
        source.maintenance.copy_to(target, threads=["thread 1"], tenants="all")


# What is refused ----------------------------------------------------------------------------------------------------


def test_another_history_is_not_written_over(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f")
    target = store_on(MemoryBackend())
    target.thread("thread 1").put({"mine": 1})
    before = log_of(backend_of(target))
    with pytest.raises(ConflictError, match="a different thread with this name"):
        target.maintenance.import_(tmp_path / "f")
    assert log_of(backend_of(target)) == before, "not even the threads before it"
    assert target.maintenance.import_(tmp_path / "f", threads=["thread 0", "thread 2"]).threads == (
        "thread 0",
        "thread 2",
    )


def test_a_thread_that_went_two_ways(source: Store, tmp_path: Path) -> None:
    target = store_on(MemoryBackend())
    source.maintenance.copy_to(target)
    source.thread("thread 0").put({"here": 1})
    target.thread("thread 0").put({"there": 1})
    source.maintenance.export(tmp_path / "f")
    with pytest.raises(ConflictError, match="has a checkpoint there that it does not have here"):
        target.maintenance.import_(tmp_path / "f")
    assert target.thread("thread 0").get().state == {"there": 1}


def test_what_was_added_since_is_brought(source: Store, tmp_path: Path) -> None:
    target = store_on(MemoryBackend())
    source.maintenance.copy_to(target)
    source.thread("thread 0").put({"more": 1})
    source.maintenance.export(tmp_path / "f")
    dry = target.maintenance.import_(tmp_path / "f", dry_run=True)
    assert (dry.threads, dry.skipped, dry.rows) == (("thread 0",), ("thread 1", "thread 2"), 0)
    assert target.thread("thread 0").get().state != {"more": 1}
    assert target.maintenance.import_(tmp_path / "f").threads == ("thread 0",)
    check_same(source, target)


def test_holds_pins_tags_and_labels_of_a_thread_that_exists_are_brought(source: Store, tmp_path: Path) -> None:
    target = store_on(MemoryBackend())
    source.maintenance.copy_to(target)
    thread = source.thread("thread 0")
    thread.hold(reason="case 9")
    thread.pin(reason="for later")
    thread.tag("v9")
    thread.label("seen")
    source.maintenance.export(tmp_path / "f")
    target.thread("thread 0").put({"goes": "on"})
    assert target.maintenance.import_(tmp_path / "f", dry_run=True).threads == ("thread 0",)
    assert target.thread("thread 0").holds() == []
    report = target.maintenance.import_(tmp_path / "f")
    assert (report.threads, report.skipped, report.rows) == (("thread 0",), ("thread 1", "thread 2"), 4)
    imported = target.thread("thread 0")
    assert [each.reason for each in imported.holds()] == ["case 9"]
    assert [each.reason for each in imported.pins()] == ["for later"]
    assert imported.tags()["v9"] == thread.tags()["v9"]
    assert imported.labels()["seen"] == thread.labels()["seen"]
    with pytest.raises(DeniedError, match="case 9"):
        imported.delete()
    assert imported.get().state == {"goes": "on"}
    assert is_sound(target, "thread 0")
    assert target.maintenance.import_(tmp_path / "f").threads == ()


def test_what_the_store_said_of_a_thread_stays(tmp_path: Path) -> None:
    """A file knows nothing of holds, pins, names and branches that the thread got here, and takes none of them away."""
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    ids = [source.thread("t").put({"n": n}).id for n in range(3)]
    source.thread("t").tag("shared", ids[0])
    source.maintenance.copy_to(target)
    target.thread("t").hold(reason="audit")
    target.thread("t").pin(ids[0], reason="evidence")
    target.thread("t").tag("release", ids[1])
    target.thread("t").tag("shared", ids[1], move=True)
    target.thread("t").fork("idea", at=ids[1])
    Checkpointer(target).put_writes("t", ids[2], [("n", "pending")], task_id="task")
    source.thread("t").put({"n": 3})
    source.thread("t").tag("theirs", ids[2])
    source.maintenance.export(tmp_path / "f")
    assert target.maintenance.import_(tmp_path / "f").threads == ("t",)
    assert target.thread("t").get().state == {"n": 3}
    assert [each.reason for each in target.thread("t").holds()] == ["audit"]
    assert [(each.id, each.reason) for each in target.thread("t").pins()] == [(ids[0], "evidence")]
    for name, id_ in (("release", ids[1]), ("shared", ids[1]), ("theirs", ids[2])):
        assert target.thread("t").find(name).id == id_
    assert [each.name for each in target.thread("t").branches()] == ["main", "idea"]
    loaded = Checkpointer(target).get_tuple("t", ids[2])
    assert loaded is not None
    assert [(each.channel, each.value) for each in loaded.pending_writes] == [("n", "pending")]
    assert is_sound(target, "t")


@pytest.mark.parametrize("same_name", [True, False])
def test_branches_that_are_in_each_others_way(same_name: bool, tmp_path: Path) -> None:
    source, target = store_on(MemoryBackend()), store_on(MemoryBackend())
    ids = [source.thread("t").put({"n": n}).id for n in range(3)]
    source.maintenance.copy_to(target)
    target.thread("t").fork("idea", at=ids[1])
    source.thread("t").fork("first", at=ids[0])
    source.thread("t").put({"n": 9}, branch="first")
    if same_name:
        target.thread("t").fork("other", at=ids[0])
        target.thread("t").delete_branch("idea")
        target.thread("t").rename_branch("other", "first")
    source.maintenance.export(tmp_path / "f")
    before = log_of(backend_of(target))
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="has another branch"):
            target.maintenance.import_(tmp_path / "f", dry_run=dry_run)
    assert log_of(backend_of(target)) == before
    assert target.maintenance.import_(tmp_path / "f", as_thread="u").threads == ("u",)


def test_what_was_pruned_comes_back(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f", threads=["thread 0"])
    hashes = [each.hash for each in source.thread("thread 0").log().all()]
    source.maintenance.prune(keep_last=1, threads=["thread 0"])
    assert len(source.thread("thread 0").log()) < len(hashes)
    assert source.maintenance.import_(tmp_path / "f").threads == ("thread 0",)
    assert [each.hash for each in source.thread("thread 0").log().all()] == hashes
    assert is_sound(source, "thread 0")


def test_a_dry_run_writes_nothing(source: Store, tmp_path: Path) -> None:
    source.maintenance.export(tmp_path / "f")
    target = store_on(MemoryBackend())
    assert len(target.maintenance.import_(tmp_path / "f", dry_run=True).threads) == 3
    assert is_empty(target)


# Writing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [NODES, STEPS], ids=["nodes", "steps"])
def test_a_damaged_thread_is_not_exported(source: Store, tmp_path: Path, table: Table) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"an older export")
    (rows,) = run(backend_of(source).read([Scan(table, ("", "thread 1"))]))
    run(backend_of(source).apply([Put(table, rows[0]._replace(body=rows[0].body[:-1]))]))
    with pytest.raises(CorruptError, match="thread 1"):
        source.maintenance.export(file)
    assert file.read_bytes() == b"an older export"
    assert [each.name for each in tmp_path.iterdir()] == ["f"], "nothing is left lying about"
    assert source.maintenance.export(file, threads=["thread 0"]).threads == 1


def test_a_place_that_cannot_be_written(source: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        source.maintenance.export(tmp_path / "no" / "folder" / "f")
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="could not be written"):
        source.maintenance.export(tmp_path / "taken")
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


def test_a_disk_that_is_full(source: Store) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    class Gone(io.BytesIO):
        def write(self, data: Any) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(ConfigError, match="No space left"):
        source.maintenance.export(Full())
    with pytest.raises(BrokenPipeError):
        source.maintenance.export(Gone())


@pytest.mark.skipif(os.name != "posix", reason="no modes")
def test_only_its_owner_can_read_the_file(source: Store, tmp_path: Path) -> None:
    """It is not encrypted. So it is for an export of the audit, also over what an earlier attempt left."""
    for name in ("f", "audit", "audit.new"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).chmod(0o644)
    source.maintenance.export(tmp_path / "f")
    source.audit.export(tmp_path / "audit")
    for name in ("f", "audit"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_a_thread_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    source = filled()

    def tell(done: int, total: int | None, what: str) -> None:
        if done == 1:
            source.thread("thread 1").delete()

    assert source.maintenance.export(tmp_path / "f", progress=tell).threads == 2
    target = store_on(MemoryBackend())
    assert target.maintenance.import_(tmp_path / "f").threads == ("thread 0", "thread 2")


@pytest.mark.nightly
def test_threads_are_read_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all at once: what lies on the disk beside is one thread at a time, and a log of 16 MB."""
    beside = tmp_path / "beside"
    beside.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(beside))
    source = store_on(MemoryBackend(), fold_every=4)
    for n in range(12):
        source.thread(f"t{n}").put({"n": random.Random(n).randbytes(4_000_000)})
    largest = 0

    def tell(done: int, total: int | None, what: str) -> None:
        nonlocal largest
        largest = max(largest, sum(each.stat().st_size for each in beside.rglob("scratch.db*")))

    source.maintenance.export(tmp_path / "f", progress=tell)
    assert 4_000_000 < largest < 30_000_000
    assert not list(beside.iterdir())


# States alone -------------------------------------------------------------------------------------------------------


def test_states_for_other_tools(tmp_path: Path) -> None:
    source = store_on(MemoryBackend(), fold_every=3)
    for n in range(70):
        state = {"messages": [f"m{m}" for m in range(n)], "pair": (1, 2), "large": "y" * 100_000 if n == 5 else ""}
        source.thread("t").put(state, metadata={"n": n})
    source.thread("u").put({"$tuple": [1]})
    seen: list[tuple[int, int | None, str]] = []
    report = source.maintenance.export(tmp_path / "f.jsonl", format="json", progress=lambda *told: seen.append(told))
    assert (report.threads, report.records) == (2, 71)
    assert seen == [(1, 2, "t"), (2, 2, "u")]
    documents = [json.loads(line) for line in (tmp_path / "f.jsonl").read_bytes().splitlines()]
    codec = source._engine.context.codec
    found = {each["checkpoint"]: each for each in documents}
    for thread in ("t", "u"):
        for checkpoint in source.thread(thread).log().all():
            told = found[checkpoint.id]
            assert identical(codec.from_json(told["state"]), source.thread(thread).get(checkpoint.id).state)
            assert codec.from_json(told["metadata"]) == checkpoint.metadata
            assert (told["thread"], told["parent"], told["hash"]) == (thread, checkpoint.parent, checkpoint.hash)
            assert told["time"] == checkpoint.time.isoformat()
    assert [each["metadata"].get("n") for each in documents[:70]] == list(range(69, -1, -1))
    assert documents[0]["state"]["pair"] == {"$tuple": [1, 2]}
    with pytest.raises(InvalidError, match="not a file of exported threads"):
        store_on(MemoryBackend()).maintenance.import_(tmp_path / "f.jsonl")


# What is not content ------------------------------------------------------------------------------------------------


def archive_with_rights() -> bytes:
    """A file of everything of a store in which a stranger has every right."""
    with holdfast.open("memory://") as source:
        source.thread("chat").put({"x": 1})
        source.state(agent="a")["plan"] = "secret"
        source.sessions.start("s1").state["k"] = 1
        source.access.grant("agent:stranger", ["read", "write"], "global", below=True)
        with pytest.raises(DeniedError):
            source.as_identity(agent="other").state(agent="a").get("plan")
        file = io.BytesIO()
        source.maintenance.export(file, kinds="all")
    return file.getvalue()


def test_rights_are_imported_only_when_they_are_asked_for() -> None:
    file = archive_with_rights()
    with holdfast.open("memory://") as store:
        store.state(agent="victim")["plan"] = "secret"
        dry = store.maintenance.import_(io.BytesIO(file), dry_run=True)
        assert [(each.kind, each.name, each.selected) for each in dry.contents] == [
            ("access", "access", False),
            ("audit", "audit", False),
            ("system", "sessions", False),
            ("thread", "chat", True),
            ("scope", "agent:a", True),
            ("session", "session:s1", True),
        ]
        report = store.maintenance.import_(io.BytesIO(file))
        assert report.contents == dry.contents
        assert [each.kind for each in report.left_out] == ["access", "audit", "system"]
        assert set(report.threads) == {"chat", "␞agent:a", "␞session:s1"}
        assert store.access.grants() == []
        with pytest.raises(DeniedError):
            store.as_identity(agent="stranger").state(agent="victim").get("plan")
        with pytest.raises(InvalidError, match="cannot start with ␞"):
            store.maintenance.import_(io.BytesIO(file), threads=["␞access"])
        assert store.maintenance.import_(io.BytesIO(file), kinds="access").threads == ("␞access",)
        assert store.as_identity(agent="stranger").state(agent="victim").get("plan") == "secret", "the control"
    with holdfast.open("memory://") as store:
        assert store.maintenance.import_(io.BytesIO(file), threads=["sessions"], kinds="system").threads == (
            "␞sessions",
        )
        with pytest.raises(NotFoundError, match="there is no scope 'agent:z' in the file"):
            store.maintenance.import_(io.BytesIO(file), threads=["agent:z"], kinds="scope")


def test_short_threads_are_imported_and_recorded_together(tmp_path: Path) -> None:
    source, backend = store_on(MemoryBackend()), InterferingBackend()
    names = [f"t{number:03}" for number in range(400)]
    for name in names:
        source.thread(name).put({"n": name})
    source.maintenance.export(tmp_path / "f")
    target = store_on(backend)
    report = target.maintenance.import_(tmp_path / "f")
    assert list(report.threads) == names
    assert len(backend.batches) < 10
    records = [each for each in target.audit.query(action="import", limit=1000) if each.thread in names]
    assert sorted(each.thread for each in records) == names
    assert all(list(each.detail["arrived"]) == [each.thread] for each in records), "each says what is about its thread"
    assert target.maintenance.verify(level="decode").findings == []
    assert list(target.maintenance.import_(tmp_path / "f").skipped) == names


def test_others_work_on_a_thread_during_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the short threads is that of the file or theirs, and never a mixture."""
    monkeypatch.setattr(between_stores, "GROUP", 2)
    source = store_on(MemoryBackend())
    for name in "abcd":
        source.thread(name).put({"n": name})
        source.thread(name).put({"n": name, "more": 1})
    source.maintenance.export(tmp_path / "f")

    def scenario(moment: Moment, what: str) -> None:
        backend = InterferingBackend()
        target, other = store_on(backend), store_on(backend)

        def act() -> None:
            if what == "create" and not other.threads(prefix="b"):
                other.thread("b").put({"n": "mine"})
            elif what == "delete" and other.threads(prefix="b"):
                other.thread("b").delete()
            elif what == "hold" and other.threads(prefix="b"):
                other.thread("b").hold(reason="evidence")

        with suppress(ConflictError), moment.interfere(backend, act):
            target.maintenance.import_(tmp_path / "f")
        assert target.maintenance.verify(level="decode").findings == []
        there = [each.thread for each in target.threads()]
        for name in there:
            state = target.thread(name).get().state
            assert state == source.thread(name).get().state or (name, state) == ("b", {"n": "mine"})
        if what != "create":
            assert {*there} >= {"a", "c", "d"}

    for what in ("create", "delete", "hold"):
        at_every_moment(partial(scenario, what=what), at_least=2)


DONE_MEANWHILE: dict[str, Callable[[Store], object]] = {
    "save": lambda store: store.thread("b").put({"n": "later"}),
    "delete": lambda store: store.thread("b").delete(),
    "erase": lambda store: store.erasure.erase("anna", metadata_keys=("user",)),
    "prune": lambda store: store.maintenance.prune(["b"], keep_last=1),
    "rename": lambda store: (
        store.thread("b").fork("side", at="HEAD~1"),
        store.thread("b").rename_branch("side", "other"),
    ),
    "hold": lambda store: store.thread("b").hold(reason="evidence"),
}


@pytest.mark.parametrize("what", mostly_nightly([*DONE_MEANWHILE], daily=["erase"]))
def test_what_others_do_during_an_export(what: str, tmp_path: Path) -> None:
    """The file has each thread as it was at one moment, before or after that."""

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store = store_on(backend)
        for name in "abc":
            for number in range(3):
                store.thread(name).put({"n": number}, metadata={"user": "anna"} if name == "b" else {})
        with moment.interfere(backend, lambda: DONE_MEANWHILE[what](store_on(backend))):
            store.maintenance.export(tmp_path / "f")
        target = store_on(MemoryBackend())
        target.maintenance.import_(tmp_path / "f")
        assert target.maintenance.verify(level="decode").findings == []
        there = {each.thread: len(target.thread(each.thread).log()) for each in target.threads()}
        assert {name: number for name, number in there.items() if name != "b"} == {"a": 3, "c": 3}
        assert there.get("b", 0) in {3, *({"save": [4], "delete": [0], "erase": [0], "prune": [1]}.get(what, ()))}
        if "b" in there:
            names = [each.name for each in target.thread("b").branches()]
            assert names in ([["main"], ["main", "side"], ["main", "other"]] if what == "rename" else [["main"]])

    at_every_moment(scenario, ["read"], at_least=3)
