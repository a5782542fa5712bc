"""Rotation: old keys are honoured until everything is encrypted anew, whoever reads, writes or is killed meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr

import holdfast
from holdfast.backends.interface import Backend, Batch, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.backends.tables import KEYS, TABLES
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.sealed_rows import UNSEALED
from holdfast.errors import ConfigError, ConflictError, CorruptError, DeniedError, InvalidError, NotFoundError
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests.security.encryption.planted import contents_of, find_planted, plant, planted, rows_of
from tests.servers.places import place
from tests.support.kills import MOMENTS, kill_at_write, run_in_child

OLD, NEW = b"1" * 32, b"2" * 32


def raw_backend(path: Path | str) -> Backend:
    url = path if isinstance(path, str) else f"sqlite:///{path}"
    return run(backend_for(url).open(url))


def key_ids(path: Path | str) -> set[bytes]:
    """The ids of the keys that rows are sealed with; empty for a row in the clear."""
    raw = raw_backend(path)
    found = {
        row.body[12:44] if row.body[5:6] == b"\1" else b""
        for table in TABLES
        if table.name not in UNSEALED
        for row in run(raw.read([Scan(table, ())]))[0]
    }
    run(raw.close())
    return found


def data_keys(path: Path | str) -> set[bytes]:
    raw = raw_backend(path)
    found = {row.columns[0] for row in run(raw.read([Scan(KEYS, ())]))[0] if row.key[2] == "data"}
    run(raw.close())
    return found  # type: ignore[return-value]


def a_week_later(store: Store) -> None:
    """Let a week pass."""
    force_setattr(store._engine.context, "clock", lambda: time.time_ns() + 8 * 86400 * 10**9)


def fill(store: Store, threads: int = 3) -> None:
    for name in range(threads):
        for number in range(40):
            store.thread(f"t{name}").put({"n": number, "items": list(range(number))})
        Checkpointer(store).put_writes(
            f"t{name}", store.thread(f"t{name}").get().id, [("__interrupt__", name)], task_id="x"
        )
    store.state(agent="r")["x"] = 1
    store.jobs.add("nightly", "prune", schedule="every 1h", settings={"keep_last": 2})


def pending_of(store: Store, thread: str) -> list[Any]:
    found = Checkpointer(store).get_tuple(thread)
    assert found is not None
    return [each.value for each in found.pending_writes]


def check(store: Store, threads: int = 3) -> None:
    for name in range(threads):
        state = store.thread(f"t{name}").get().state
        assert state == {"n": 39, "items": list(range(39))}
        assert pending_of(store, f"t{name}") == [name]
    assert store.state(agent="r")["x"] == 1
    assert [job.name for job in store.jobs.list()] == ["nightly"]
    assert store.maintenance.verify(level="decode").findings == []
    assert store.audit.verify().ok


def test_rotation_of_the_master_key_and_of_all_others(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=Encryption(LocalKeys(OLD))) as store:
        fill(store)
    before = key_ids(path)
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW, OLD))) as store:
        hashes = {each.hash for each in store.thread("t0").log().all()}
        old = store.encryption_keys.list()[0].id
        with pytest.raises(ConflictError) as caught:
            store.encryption_keys.destroy(old)  # in use
        assert caught.value.code == "key-in-use"
        assert store.encryption_keys.rotate().id != old
        with pytest.raises(ConflictError, match="6 threads"):
            store.encryption_keys.destroy(old)  # the keys of lines are still encrypted with it
    # The old master key is not needed any more, at once.
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
        check(store)
        seen: list[tuple[int, int | None, str]] = []
        report = store.encryption_keys.reencrypt(progress=lambda *each: seen.append(each))
        assert report.rows > 100
        assert [done for done, _, _ in seen] == list(range(1, len(seen) + 1))
        assert store.encryption_keys.reencrypt().rows == 0
        check(store)
        assert {each.hash for each in store.thread("t0").log().all()} == hashes
        after = key_ids(path)
        assert after.isdisjoint(before)
        assert after == data_keys(path)
        assert [each.lines for each in store.encryption_keys.list()][1] == 0
        assert store.encryption_keys.check().ok
        # An old key waits, can be saved, and is destroyed.
        created = {each.id: each.created for each in store.encryption_keys.list()}
        assert store.encryption_keys.destroy(old[:8]).destroyed_at is not None
        assert store.encryption_keys.destroy(old).state == "destroying"
        for wait in (0, "6d"):
            with pytest.raises(InvalidError):
                store.encryption_keys.destroy(old, wait=wait)
        assert {each.id: each.created for each in store.encryption_keys.list()} == created
        assert len(store.encryption_keys.list()) == 3
        assert store.encryption_keys.cancel(old).state == "retired"
        with pytest.raises(InvalidError):
            store.encryption_keys.cancel(old)
        assert {each.id: each.created for each in store.encryption_keys.list()} == created
        store.encryption_keys.destroy(old)
        a_week_later(store)
        store.encryption_keys.destroy(old)
        assert len(store.encryption_keys.list()) == 2
        with pytest.raises(NotFoundError):
            store.encryption_keys.destroy(old)
        records = [each for each in store.audit.query() if each.scope == "keys"]
        actions = [each.action for each in records if each.outcome == "ok"]
        assert actions.count("destroy-key") == 1
        refused = [each.detail["code"] for each in records if each.outcome == "denied"]
        assert refused == ["not-found", "invalid", "invalid", "key-in-use", "key-in-use"], "the newest first"
        assert set(actions) >= {"rotate-keys", "reencrypt", "schedule-key", "keep-key"}
        check(store)
    with pytest.raises(DeniedError):
        holdfast.open(path, encryption=Encryption(LocalKeys(OLD)))


def test_turning_encryption_on_and_off(tmp_path: Path) -> None:
    path, keys, names = tmp_path / "a.db", LocalKeys(NEW), planted(20)
    with holdfast.open(path, project=True) as store:
        fill(store)
        plant(store, names)
        store.maintenance.build_index()
    assert find_planted(names, contents_of(tmp_path))  # the control
    with holdfast.open(path, encryption=Encryption(keys, mode="turning-on")) as store:
        check(store)
        store.thread("new").put({"n": 1})
        # Content that two artifacts have, of which one is encrypted already: it is found by either.
        (first, *_) = store.artifacts.list()
        content = store.artifacts.read(first.id)
        store.artifacts.register(content, id="copy")
        assert {each.id for each in store.artifacts.list(sha256=first.sha256)} == {first.id, "copy"}
        store.artifacts.delete("copy")
        assert store.artifacts.read(first.id) == content
        store.jobs.remove("nightly")  # conditions on rows that are not encrypted yet
        store.jobs.add("nightly", "prune", schedule="every 1h", settings={"keep_last": 2})
        assert b"" in key_ids(path)
        report = store.encryption_keys.reencrypt()
        assert report.rows
        assert report.remains
        check(store)
    assert b"" not in key_ids(path)
    assert find_planted(names, contents_of(tmp_path)) == set()
    with holdfast.open(path, encryption=Encryption(keys)) as store:
        check(store)
        assert store.thread("new").get().state == {"n": 1}
    with holdfast.open(path, encryption=Encryption(keys, mode="turning-off")) as store:
        store.thread("newer").put({"n": 2})
        check(store)
        store.encryption_keys.reencrypt()
    assert key_ids(path) == {b""}
    with holdfast.open(path) as store:
        check(store)
        assert store.thread("newer").get().state == {"n": 2}
    with pytest.raises(ConfigError):
        holdfast.open(path, encryption=Encryption(keys))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("sqlite", 2),
        pytest.param("sqlite", 8, marks=pytest.mark.nightly),
        pytest.param("postgres", 8, marks=pytest.mark.nightly),
    ],
)
def test_rotation_while_others_write_and_read(tmp_path: Path, kind: str, count: int) -> None:
    """No error, nothing lost, no row in the clear, and none under an old key at the end."""
    path = place(kind, tmp_path)

    def opened() -> Store:
        return holdfast.open(path, encryption=Encryption(LocalKeys(NEW, OLD)))

    with holdfast.open(path, encryption=Encryption(LocalKeys(OLD))) as store:
        fill(store, threads=2)
        for writer in range(count):
            store.thread(f"w{writer}").put({"n": 0})
    before, stop, errors = key_ids(path), threading.Event(), list[BaseException]()
    seen: set[bytes] = set()
    written = [0] * count
    reads = [0] * count

    def write(number: int) -> None:
        try:
            with opened() as store:
                while not stop.is_set():
                    written[number] += 1
                    store.thread(f"w{number}").put({"n": written[number]})
                    id = store.thread(f"w{number}").get().id
                    # Pending writes that replace each other: none comes back.
                    Checkpointer(store).put_writes(f"w{number}", id, [("__error__", written[number])], task_id="x")
        except BaseException as error:
            errors.append(error)

    def read(number: int) -> None:
        try:
            with opened() as store:
                while not stop.is_set():
                    assert store.thread("t0").get().state["n"] == 39
                    last = store.thread(f"w{number}").get().state["n"]
                    assert last >= reads[number]
                    reads[number] = last
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(n,)) for n in range(count) for act in (write, read)]
    for each in threads:
        each.start()
    rotations = 0
    with opened() as store:
        while rotations < 3 or not all(written):
            store.encryption_keys.rotate()
            seen |= key_ids(path)  # before all is encrypted anew
            store.encryption_keys.reencrypt()
            rotations += 1
        assert seen & before
        assert b"" not in seen
        ids = key_ids(path)
        assert ids.isdisjoint(before)
        assert b"" not in ids
    stop.set()
    for each in threads:
        each.join()
    assert errors == []
    assert all(written)
    with opened() as store:
        for number in range(count):
            assert store.thread(f"w{number}").get().state["n"] == written[number]
            assert pending_of(store, f"w{number}") == [written[number]]
        store.encryption_keys.reencrypt()
        assert store.maintenance.verify(level="decode").findings == []
        assert store.encryption_keys.check().ok
    assert key_ids(path) == data_keys(path)


@pytest.mark.parametrize("times", [2, pytest.param(100, marks=pytest.mark.nightly)])
def test_a_rotation_that_is_killed_is_resumed(tmp_path: Path, times: int) -> None:
    path, rng, struck = tmp_path / "a.db", random.Random(times), Counter[str]()
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
        fill(store)

    def rotate(report: Callable[[str], None]) -> None:
        first = rng.choice((3, writes))  # most writes are of rows
        kill_at_write(rng.randint(1, first), rng.choice(MOMENTS))
        with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
            store.encryption_keys.rotate()
            store.encryption_keys.reencrypt()

    writes = _count_writes(path)
    for _ in range(times):
        before = {row.columns[0] for row in key_rows(path) if row.key[2] == "wrapping"}
        rng.random()  # that of a child is a copy
        _, killed = run_in_child(rotate)
        struck[phase_of(path, before) if killed else "after"] += 1
        with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
            check(store)
            store.encryption_keys.reencrypt()
            check(store)
        assert key_ids(path) == data_keys(path)
    if times > 10:
        assert min(struck[phase] for phase in ("before", "wrapping", "rows")) >= 3, struck
        assert struck["after"] < times // 2, struck


def _count_writes(path: Path) -> int:
    """How many writes a rotation takes."""
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store, pytest.MonkeyPatch.context() as patch:
        writes, original = 0, SQLiteBackend.apply

        async def apply(self: SQLiteBackend, batch: Batch) -> int | None:
            nonlocal writes
            writes += 1
            return await original(self, batch)

        patch.setattr(SQLiteBackend, "apply", apply)
        store.encryption_keys.rotate()
        store.encryption_keys.reencrypt()
    return writes


def key_rows(path: Path) -> list[Row]:
    raw = raw_backend(path)
    found = run(raw.read([Scan(KEYS, ())]))[0]
    run(raw.close())
    return found


def phase_of(path: Path, before: set[Any]) -> str:
    """How far a rotation came: to the new key of the tenant, to new keys of lines, or to rows under both."""
    rows = key_rows(path)
    if {row.columns[0] for row in rows if row.key[2] == "wrapping"} == before:
        return "before"
    newest = max(int(row.key[3]) for row in rows if row.key[2] == "wrapping")
    new = {row.columns[0] for row in rows if row.key[2] == "data" and row.key[3] == newest}
    if not new:
        return "wrapping"
    return "rows" if key_ids(path) & new else "keys"


def test_a_job_does_it_too(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store:
        store.thread("t").put({"n": 1})
        before = key_ids(path)
        store.encryption_keys.rotate()
        store.jobs.add("anew", "reencrypt")
        run_of = store.jobs.run("anew")
        assert run_of.ok, run_of
        assert key_ids(path).isdisjoint(before)
        assert store.thread("t").get().state == {"n": 1}
    with holdfast.open(tmp_path / "b.db") as store:
        store.jobs.add("anew", "reencrypt")
        with pytest.raises(ConfigError) as caught:
            store.jobs.run("anew")
        assert caught.value.code == "not-encrypted"


def test_a_downgrade_is_not_a_conversion(tmp_path: Path) -> None:
    """Only whoever opens a store decides whether rows in the clear are accepted: nothing in the store does."""
    path = tmp_path / "a.db"
    with holdfast.open(path) as store:
        store.thread("t").put({"n": 1})
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW), mode="turning-on")) as store:
        assert store.thread("t").get().state == {"n": 1}
    with holdfast.open(path, encryption=Encryption(LocalKeys(NEW))) as store, pytest.raises(CorruptError) as caught:
        store.thread("t").get()
    assert caught.value.code == "tampered"


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["sqlite", "file", "postgres", "mongodb", "redis", "s3", "mirror", "tiered"])
def test_what_was_there_before_encryption_is_removed(kind: str, tmp_path: Path) -> None:
    """On every store: from tables, and from the files that are the store's own; the rest is listed."""
    names, url, keys = planted(20), place(kind, tmp_path), LocalKeys(NEW)
    with holdfast.open(url) as store:
        plant(store, names)
        raw = run(backend_for(url).open(url)) if kind not in ("mirror", "tiered") else None
    if raw is not None:
        assert find_planted(names, rows_of(raw))  # the control
    with holdfast.open(url, encryption=Encryption(keys, mode="turning-on")) as store:
        remains = store.encryption_keys.reencrypt().remains
        assert remains
        assert store.thread("chat").get().state["n"] == 39
    if raw is not None:
        assert find_planted(names, rows_of(raw)) == set()
        run(raw.close())
    if kind in ("sqlite", "mirror", "tiered"):
        assert find_planted(names, contents_of(tmp_path)) == set()
    listed = {
        "postgres": "write-ahead log",
        "mongodb": "oplog",
        "redis": "replicas",
        "s3": "versions",
        "file": "replaced",
        "tiered": "versions",
    }
    assert any(listed.get(kind, "freed blocks") in each for each in remains), remains
    assert not [each for each in remains if "could not" in each], remains
    with holdfast.open(url, encryption=Encryption(keys)) as store:
        assert store.maintenance.verify(level="decode").findings == []


# Work that goes on after a rotation and a freeze ------------------------------------------------------------------


class Stopped(Exception):
    """Ends work that was begun, as a signal does."""


def stop_after(count: int) -> Callable[..., None]:
    calls = iter(range(1, 1000))

    def progress(*_: object) -> None:
        if next(calls) == count:
            raise Stopped

    return progress


NAMES = [f"t{number}" for number in range(6)]


@pytest.fixture(params=[False, True], ids=["named", "hidden"])
def begun(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store with six threads of five checkpoints, half of them an agent's."""
    with holdfast.open("memory://", encryption=Encryption(LocalKeys(OLD), hide_names=request.param)) as store:
        for number, name in enumerate(NAMES):
            acting = store.as_identity(agent="r") if number % 2 else store
            for n in range(5):
                acting.thread(name).put({"n": n})
        for n in range(5):
            store.as_identity(agent="r").state(agent="r")["k"] = n
        yield store


def rotate_and_freeze(store: Store) -> None:
    """Happens while work is interrupted."""
    old = {each.id for each in store.encryption_keys.list()}
    store.encryption_keys.rotate()
    assert store.encryption_keys.reencrypt().lines >= len(NAMES)
    assert {each.id for each in store.encryption_keys.list() if not each.lines} == old
    store.access.freeze("agent:r", reason="case 17")


def check_frozen(store: Store, steps: int, *, is_frozen: bool = True) -> None:
    """The states are there, however many checkpoints; and the agent is as frozen as it was."""
    assert [len(store.thread(name).log()) for name in NAMES] == [steps] * 6
    assert all(store.thread(name).get().state == {"n": 4} for name in NAMES)
    assert store.maintenance.verify(level="decode").findings == []
    assert store.encryption_keys.check().ok
    acting = store.as_identity(agent="r")
    assert store.access.frozen() == ({"agent:r": "case 17"} if is_frozen else {})
    if is_frozen:
        for use in (lambda: acting.thread("t1").get(), lambda: acting.state(agent="r")["k"]):
            with pytest.raises(DeniedError) as caught:
                use()
            assert caught.value.code == "identity-frozen"
        store.access.unfreeze("agent:r")
    assert acting.thread("t1").get().state == {"n": 4}


def test_a_prune_in_parts_goes_on(begun: Store) -> None:
    first = begun.maintenance.prune(kinds=["thread", "scope"], keep_last=2, limit=3)
    rotate_and_freeze(begun)
    assert first.next is not None
    second = begun.maintenance.prune(kinds=["thread", "scope"], keep_last=2, after=first.next)
    assert (first.dropped + second.dropped, second.next) == (7 * 3, None)
    check_frozen(begun, 2)
    assert begun.as_identity(agent="r").state(agent="r")["k"] == 4


def test_a_job_that_prunes_goes_on(begun: Store) -> None:
    begun.jobs.add("nightly", "prune", settings={"keep_last": 2})
    seen: list[str] = []

    def note(_done: int, _total: int | None, name: str) -> None:
        seen.append(name)

    assert begun.jobs.run("nightly", progress=note, stop=lambda: len(seen) == 3).outcome == "stopped"
    rotate_and_freeze(begun)
    assert begun.jobs.run("nightly", progress=note).outcome == "ok"
    assert sorted(seen) == NAMES, "each once"
    check_frozen(begun, 2)


def test_a_verification_in_parts_goes_on(begun: Store) -> None:
    first = begun.maintenance.verify(limit=4)
    rotate_and_freeze(begun)
    assert first.next is not None
    second = begun.maintenance.verify(after=first.next)
    assert (first.findings, second.findings, second.next) == ([], [], None)
    assert first.steps + second.steps >= 6 * 5
    check_frozen(begun, 5)


def test_an_export_that_was_stopped_begins_anew_and_an_older_file_is_still_read(begun: Store, tmp_path: Path) -> None:
    """The file is encrypted: not with what a rotation replaces."""
    older, newer = tmp_path / "older", tmp_path / "newer"
    begun.maintenance.export(older)
    with pytest.raises(Stopped):
        begun.maintenance.export(newer, progress=stop_after(3))
    assert not newer.exists()
    rotate_and_freeze(begun)
    assert begun.maintenance.export(newer).threads == len(NAMES)
    check_frozen(begun, 5)
    for file in (older, newer):
        with holdfast.open("memory://", encryption=Encryption(LocalKeys(NEW, OLD))) as other:
            with pytest.raises(Stopped):
                other.maintenance.import_(file, progress=stop_after(2))
            other.encryption_keys.rotate()
            other.encryption_keys.reencrypt()
            assert sorted(other.maintenance.import_(file).threads) == NAMES
            check_frozen(other, 5, is_frozen=False)


def test_a_copy_goes_on(begun: Store) -> None:
    with holdfast.open("memory://", encryption=Encryption(LocalKeys(NEW))) as other:
        with pytest.raises(Stopped):
            begun.maintenance.copy_to(other, progress=stop_after(3))
        rotate_and_freeze(begun)
        other.encryption_keys.rotate()
        other.encryption_keys.reencrypt()
        begun.maintenance.copy_to(other)
        check_frozen(other, 5)
    check_frozen(begun, 5)


def test_encrypting_anew_goes_on_after_a_prune_and_another_rotation(begun: Store) -> None:
    begun.encryption_keys.rotate()
    with pytest.raises(Stopped):
        begun.encryption_keys.reencrypt(progress=stop_after(4))
    begun.maintenance.prune(keep_last=2)
    begun.thread("t5").delete()
    rotate_and_freeze(begun)
    assert begun.encryption_keys.reencrypt().rows == 0, "everything is"
    for n in range(3, 5):
        begun.thread("t5").put({"n": n})
    check_frozen(begun, 2)
