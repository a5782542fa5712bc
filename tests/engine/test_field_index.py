"""The index of fields of threads: what lists find by it, and that it follows what happens to threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Delete, Put, Query, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FIELDS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.fields import FIELD_LINE, metadata_entries
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.row_format import Line
from holdfast.savers import CheckpointStore
from holdfast.store.store import Store
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.nightly import mostly_nightly


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def fill(store: Store, count: int = 12) -> None:
    for number in range(count):
        metadata = {"user": f"u{number % 3}", "tags": ["all", f"odd-{number % 2}"], "deep": {"n": number % 4}}
        store.thread(f"t{number:02}").put({"n": number}, metadata=metadata)
        store.thread(f"t{number:02}").put({"n": number + 1})


def named(store: Store, where: str | None = None, **options: object) -> list[str]:
    return [each.thread for each in store.threads(where=where, limit=3, **options).all()]  # type: ignore[arg-type]


def stored(store: Store) -> set[tuple[object, ...]]:
    (rows,) = run(store._engine.context.backend.read([Scan(FIELDS, ())]))
    return {row.key for row in rows}


def scanned(store: Store, monkeypatch: pytest.MonkeyPatch, where: str) -> list[str]:
    """The answer without the index."""
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.history.search.field_filters", lambda query: [])
        return named(store, where)


QUERIES = (
    "meta.user=u1",
    "meta.user=nobody",
    "meta.deep.n=3",
    "meta.tags=all meta.tags=odd-1",
    "meta.user=u1 meta.deep.n=1",
    "meta.user=u0 OR meta.user=u2",
    "(meta.user=u0 OR meta.user=u2) meta.tags=odd-0",
    "meta.user=u1 steps>1",
    "meta.user=u1 -meta.deep.n=1",
    "meta.user=u1 meta.missing=1",
    "meta.user=u1 thread:t0*",
    "-meta.user=u1",
)


def test_lists_by_metadata_are_those_of_a_scan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    store.thread("plain").put({"n": 1})
    for query in QUERIES:
        expected = scanned(store, monkeypatch, query)
        assert named(store, query) == expected, query
        assert sorted(named(store, query, order="updated")) == expected, query
    assert named(store, "meta.user=u1", prefix="t0") == ["t01", "t04", "t07"]


def test_a_list_by_metadata_reads_only_what_it_returns(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    read: list[str] = []
    backend, original = store._engine.context.backend, store._engine.context.backend.read

    async def counted(queries: list[Query]) -> list[list[Row]]:
        read.extend(str(query.prefix[1]) for query in queries if isinstance(query, Scan) and len(query.prefix) > 1)
        return await original(queries)

    monkeypatch.setattr(backend, "read", counted)
    assert named(store, "meta.user=u1") == ["t01", "t04", "t07", "t10"]
    assert {name for name in read if name.startswith("t")} == {"t01", "t04", "t07", "t10"}


def test_threads_with_a_status_are_listed_by_their_last_update(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    writes = [(-3, "__interrupt__", "May I?")]
    for name in ("t07", "t02", "t09", "t04"):
        head = store.thread(name).find().id
        run(CheckpointStore(store).put_writes(name, head, writes, task_id="ask", status="waiting"))
    store.access.grant("user:bob", "read", thread="t09")
    expected = ["t09", "t07", "t04", "t02"]
    for few in (512, 2):  # of an index, and from the latest on
        monkeypatch.setattr("holdfast.store.thread_access._FEW", few)
        assert named(store, status="waiting", order="updated") == expected, few
        assert named(store, "steps>1", status="waiting", order="updated") == expected, few
        assert named(store, "meta.user=u1", status="waiting", order="updated") == ["t07", "t04"], few
        assert named(store, status="waiting", order="updated", prefix="t09") == ["t09"], few
        assert named(store, status="failed", order="updated") == [], few
        bob = store.as_identity("user:bob").threads(status="waiting", order="updated")
        assert [each.thread for each in bob] == ["t09"], few


def test_the_last_updated_come_first(store: Store) -> None:
    fill(store)
    store.thread("t03").put({"n": 0})
    store.thread("t05").put({"n": 0}, metadata={"user": "u2"})
    expected = ["t05", "t03", *(f"t{number:02}" for number in range(11, -1, -1) if number not in (3, 5))]
    assert named(store, order="updated") == expected
    assert named(store, "meta.user=u2", order="updated") == ["t05", "t11", "t08", "t02"]
    first = store.threads(order="updated", limit=2)
    store.thread("t00").put({"n": 5})  # it is before the cursor now, and does not come again
    rest = [each.thread for each in store.threads(order="updated", cursor=first.next)]
    assert rest == [name for name in expected[2:] if name != "t00"]
    with pytest.raises(holdfast.errors.InvalidError, match="cursor"):
        store.threads(order="updated", cursor="t00")
    with pytest.raises(holdfast.errors.InvalidError, match="listed by name"):
        store.threads(order="length")  # type: ignore[arg-type]


def test_a_save_writes_only_what_its_parent_does_not_have(store: Store) -> None:
    thread = store.thread("t")
    thread.put({"n": 0}, metadata={"user": "u", "step": 1, "source": "loop"})
    before = stored(store)
    assert before == {("", "t", ".user", "su", ""), ("", FIELD_LINE, ".user", "su", "t")}
    thread.put({"n": 1}, metadata={"user": "u", "step": 2, "source": "loop"})
    thread.put({"n": 2})
    assert stored(store) == before


def test_a_field_with_many_values_in_a_thread_is_bounded(store: Store) -> None:
    store.thread("other").put({"n": 0}, metadata={"cost": 5})
    for number in range(30):
        store.thread("t").put({"n": number}, metadata={"cost": number, "user": "u"})
    assert len(stored(store)) == 2 + 2 * 2
    assert named(store, "meta.cost=7") == ["t"]
    assert named(store, "meta.cost=5") == ["other", "t"]
    assert named(store, "meta.cost=99") == []
    store.thread("wide").put({"n": 0}, metadata={f"k{number}": number for number in range(50)})
    assert named(store, "meta.k40=40") == ["wide"]
    assert len(stored(store)) == 2 + 2 * 2 + 2


def test_the_values_of_steps_that_are_saved_together_are_counted_together(store: Store) -> None:
    for number in range(7):
        store.thread("t").put({"n": number}, metadata={"cost": number})
    with store.transaction() as together:
        for number in range(7, 12):
            together.put("t", {"n": number}, metadata={"cost": number})
    assert named(store, "meta.cost=11") == named(store, "meta.cost=1") == ["t"]
    assert store.maintenance.verify().findings == []
    assert len(stored(store)) == 2


def test_odd_names_and_values_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    values = ["x" * 5000, "line\nbreak", "nul\0", "null", "ß~.", "", "{}"]
    for number, value in enumerate(values):
        store.thread(f"t{number}").put({"n": 0}, metadata={"a.b": value, "a": {"b": number}, "k" * 400: number})
    for number, value in enumerate(values):
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        for query in (f'meta."a.b"="{quoted}"', f"meta.a.b={number}", f"meta.{'k' * 400}={number}"):
            assert named(store, query) == scanned(store, monkeypatch, query) == [f"t{number}"], query
    store.thread("t7").put({"n": 0}, metadata={"flag": True, "none": None, "one": 1.0})
    for query in ("meta.flag=true", "meta.none=null", "meta.one=1"):
        assert named(store, query) == scanned(store, monkeypatch, query) == ["t7"], query


def test_what_langgraph_changes_at_each_step_is_not_indexed() -> None:
    own = '{"source":"loop","step":3,"writes":{"a":1},"parents":{},"run_id":"r","langgraph_node":"n","thread_id":"t"}'
    assert metadata_entries(own) == frozenset()
    assert metadata_entries(own[:-1] + ',"user_id":"u"}') == {(("user_id",), "su")}


# What happens to threads ------------------------------------------------------------------------------------------


def test_deleting_a_thread_removes_its_rows(store: Store) -> None:
    fill(store, 2)
    store.thread("t00").delete()
    assert not [key for key in stored(store) if "t00" in key]
    assert [key for key in stored(store) if "t01" in key]
    store.thread("t00").put({"n": 1})
    assert named(store, "meta.user=u0") == []


def test_pruning_removes_the_values_of_what_goes(store: Store) -> None:
    thread = store.thread("t")
    for number in range(12):
        thread.put({"n": number}, metadata={"user": "old" if number < 6 else "new"})
    assert named(store, "meta.user=old") == ["t"]
    store.maintenance.prune(["t"], keep_last=3)
    assert named(store, "meta.user=old") == []
    assert named(store, "meta.user=new") == ["t"]
    assert not [key for key in stored(store) if "sold" in key]
    many = store.thread("many")
    for number in range(20):
        many.put({"n": number}, metadata={"cost": number})
    store.maintenance.prune(["many"], keep_last=3)
    assert [named(store, f"meta.cost={number}") for number in (5, 18)] == [[], ["many"]]
    assert store.maintenance.verify().ok


def test_forks_have_their_own_values_and_revisions_are_checked(store: Store) -> None:
    thread = store.thread("t")
    first = thread.put({"n": 0}, metadata={"user": "u"})
    thread.put({"n": 1})
    thread.fork("other", at=first.id)
    store.thread("t").put({"n": 2}, branch="other", metadata={"user": "v"})
    assert named(store, "meta.user=u") == named(store, "meta.user=v") == ["t"]
    assert named(store, "meta.user=u meta.user=v") == []


def test_a_revision_has_other_values_and_leaves_the_index_sound(store: Store) -> None:
    thread = store.thread("t")
    for user in ("u", "v"):
        thread.put({"user": user}, id="first", metadata={"user": user})
        thread.put({"n": 1}, id=f"after {user}")
    for options in ({}, {"order": "updated"}):
        assert named(store, "meta.user=u", **options) == []
        assert named(store, "meta.user=v", **options) == ["t"]
    assert store.maintenance.verify(level="decode").findings == []
    store.maintenance.prune(["t"], keep_last=1)
    assert store.maintenance.verify(level="decode").findings == []


def test_copies_and_files_have_the_index(store: Store, tmp_path: Path) -> None:
    fill(store, 4)
    with holdfast.open(tmp_path / "b.db") as other:
        store.maintenance.copy_to(other)
        assert named(other, "meta.user=u1") == ["t01"]
        assert stored(other) == stored(store)
    with holdfast.open("memory://") as other:
        store.maintenance.export(tmp_path / "all.hfa")
        other.maintenance.import_(tmp_path / "all.hfa")
        assert named(other, "meta.user=u1") == ["t01"]
    run(LineCopier(store._engine).copy({Line("", "t01"): Line("", "again")}))
    assert named(store, "meta.user=u1") == ["again", "t01"]


def test_a_restored_backup_has_the_index(store: Store, tmp_path: Path) -> None:
    fill(store, 4)
    backups = store.backups(str(tmp_path / "backups"))
    backups.create()
    store.thread("t01").delete()
    backups.restore()
    assert named(store, "meta.user=u1") == ["t01"]
    assert store.maintenance.verify().ok


def test_a_backup_that_is_opened_is_filtered_without_the_index(store: Store, tmp_path: Path) -> None:
    fill(store)
    backups = store.backups(tmp_path / "backups")
    backups.create()
    with backups.open("latest") as past:
        for where in ("meta.user=u1", "meta.user=nobody", "meta.user=u1 -steps>1"):
            for order in ("name", "updated"):
                assert named(past, where, order=order) == named(store, where, order=order)
        assert named(past, "meta.user=u1")


def test_verify_finds_and_repair_rebuilds_a_wrong_index(store: Store) -> None:
    fill(store, 4)
    before = stored(store)
    backend = store._engine.context.backend
    damages = (
        [Delete(FIELDS, ("", "t01"))],
        [Delete(FIELDS, ("", FIELD_LINE, ".user", "su1"))],
        [Put(FIELDS, Row(("", FIELD_LINE, ".user", "su1", "t02")))],
        [Put(FIELDS, Row(("", FIELD_LINE, ".user", "su1", "gone")))],
        [Put(FIELDS, Row(("", "t02", ".user", "su1", "")))],
    )
    for damage in damages:
        run(backend.apply(damage))
        found = store.maintenance.verify()
        assert {each.code for each in found.findings} == {FindingCode.STALE_FIELDS}, damage
        store.maintenance.repair()
        assert stored(store) == before, damage
        assert store.maintenance.verify().ok


def test_identities_find_what_they_may_read(store: Store) -> None:
    fill(store, 4)
    store.access.grant("agent:a", "read", thread="t01")
    view = store.as_identity(agent="a")
    assert [each.thread for each in view.threads(where="meta.tags=all")] == ["t01"]
    assert [each.thread for each in view.threads(where="meta.tags=all", order="updated")] == ["t01"]
    assert list(view.threads(where="meta.user=u0")) == []


def test_tenants_have_their_own_index(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", tenant="one") as one, holdfast.open(tmp_path / "a.db", tenant="two") as two:
        one.thread("t").put({"n": 1}, metadata={"user": "u"})
        assert named(one, "meta.user=u") == named(one, order="updated") == ["t"]
        assert named(two, "meta.user=u") == named(two, order="updated") == []


# Encryption -------------------------------------------------------------------------------------------------------


def test_an_encrypted_index_has_digests_of_what_is_declared(tmp_path: Path) -> None:
    keys = LocalKeys(b"k" * 32)
    with holdfast.open(tmp_path / "a.db", encryption=Encryption(keys, indexed=["user"])) as store:
        fill(store, 4)
        assert named(store, "meta.user=u1") == named(store, "meta.user=u1", order="updated") == ["t01"]
        assert named(store, "meta.deep.n=1") == ["t01"]
        assert len(stored(store)) == 4 * 2
        assert not [key for key in stored(store) if "u1" in str(key[2:4]) or "user" in str(key)]
    with holdfast.open(tmp_path / "b.db", encryption=Encryption(keys, indexed=["user"], hide_names=True)) as store:
        fill(store, 4)
        assert named(store, "meta.user=u1") == ["t01"]
        assert named(store, order="updated")[0] == "t03"
        assert stored(store) == set()


def test_an_index_follows_a_store_that_becomes_encrypted(tmp_path: Path) -> None:
    path, keys = tmp_path / "a.db", LocalKeys(b"k" * 32)
    with holdfast.open(path) as store:
        fill(store, 4)
    on = Encryption(keys, indexed=["user"], mode="turning-on")
    with holdfast.open(path, encryption=on) as store:
        store.thread("new").put({"n": 1}, metadata={"user": "u1"})
        assert named(store, "meta.user=u1") == ["new", "t01"]
        store.encryption_keys.reencrypt()
    with holdfast.open(path, encryption=Encryption(keys)) as store:
        assert named(store, "meta.user=u1") == ["new", "t01"]
        assert not [key for key in stored(store) if "su1" in key]
    with holdfast.open(path, encryption=Encryption(keys, mode="turning-off")) as store:
        assert named(store, "meta.user=u1") == ["new", "t01"]
        store.encryption_keys.reencrypt()
    with holdfast.open(path) as store:
        assert named(store, "meta.user=u1") == ["new", "t01"]
        assert store.maintenance.verify().ok


def test_the_saver_reads_the_threads_that_may_match(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    from holdfast.langgraph import HoldfastSaver

    saver = HoldfastSaver(store)
    for number in range(6):
        config = {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}}
        metadata = {"source": "loop", "step": 1, "user_id": f"u{number % 2}", "n": number}
        saver.put(config, empty_checkpoint(), metadata, {})  # type: ignore[arg-type]
    listed: list[list[str]] = []
    original = saver._checkpoints.list_checkpoints

    async def noted(threads: list[str], **options: object) -> object:
        listed.append(threads)
        return await original(threads, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(saver._checkpoints, "list_checkpoints", noted)

    def found(**wanted: object) -> set[str]:
        return {each.config["configurable"]["thread_id"] for each in saver.list(None, filter=wanted)}

    assert found(user_id="u1") == {"t1", "t3", "t5"} == set(listed.pop())
    assert found(user_id="u1", n=3) == {"t3"}
    assert found(user_id="nobody") == set()
    assert found(source="loop") == {f"t{number}" for number in range(6)} == set(listed.pop())


@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *COMPOSED], daily=["memory", "postgres", "redis"]))
def test_every_store_lists_alike(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        fill(store)
        for query in QUERIES:
            assert named(store, query) == scanned(store, monkeypatch, query), query
        store.thread("t03").put({"n": 0}, metadata={"user": "u1"})
        assert named(store, order="updated") == ["t03", *(f"t{n:02}" for n in range(11, -1, -1) if n != 3)]
        assert named(store, "meta.user=u1", order="updated") == ["t03", "t10", "t07", "t04", "t01"]
        store.thread("t04").delete()
        store.maintenance.prune(["t03"], keep_last=1)
        assert named(store, "meta.user=u0") == ["t00", "t06", "t09"]
        assert named(store, "meta.user=u1") == ["t01", "t03", "t07", "t10"]
        assert store.maintenance.verify().ok


def test_erasure_removes_values_from_the_index(store: Store) -> None:
    store.thread("own").put({"n": 1}, metadata={"user_id": "alice"})
    store.thread("kept").put({"n": 1}, metadata={"user_id": "bob"})
    for number, user in enumerate(("bob", "alice", "bob")):
        store.thread("both").put({f"k{number}": number}, metadata={"user_id": user})
    store.erasure.set_subject("alice", "own")
    store.erasure.mark_mixed("both")
    assert named(store, "meta.user_id=alice") == ["both", "own"], "the control"
    store.erasure.erase("alice", metadata_keys=["user_id"])
    assert not [key for key in stored(store) if "alice" in str(key)]
    assert named(store, "meta.user_id=bob") == ["both", "kept"]
    assert store.maintenance.verify().ok
