"""Every path that makes or opens bodies goes through the row codec of the store.

The codec of these tests seals bodies: it opens none that it did not seal, and none of another table, line or record. A
path around it would store a row that it does not open, or fail to read one.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.interface import Backend, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import (
    BEHIND,
    FIELDS,
    FOLDS,
    JOBS,
    JOURNAL,
    KEYS,
    LINES,
    NODES,
    OBJECTS,
    QUARANTINE,
    READABLE,
    REFS,
    STEPS,
    TABLES,
    WORDS,
    WRITES,
    Table,
)
from holdfast.codec.envelope import wrap
from holdfast.engine.checked_rows import CHECKSUMS, CheckedBackend
from holdfast.errors import CorruptError, DeniedError, InvalidError
from holdfast.security.encryption.provider import LocalKeys
from holdfast.security.encryption.settings import Encryption
from holdfast.store.checkpoint_store import CheckpointStore
from holdfast.store.checkpointer import Checkpointer
from holdfast.store.store import Store
from tests import test_golden_features, test_golden_store
from tests.engine.lines import Backends, store_on
from tests.engine.lines import backend as open_backend
from tests.support.sealing import CountingEncryptedRows, CountingRows, assert_all_sealed, sealed_store

SECRETS = ["another way", "key 199", "task", "headline", "secret reason"]

SEALED = [table for table in TABLES if table not in (JOURNAL, KEYS, WORDS, FIELDS, BEHIND, *READABLE)]

sealed_tables = pytest.mark.parametrize("table", SEALED, ids=[table.name for table in SEALED])


@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.nightly)])
def backends(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Backends]:
    opened = Backends(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def rows() -> CountingEncryptedRows:
    return CountingEncryptedRows()


_registered = test_golden_features._registered


def fill(store: Store) -> None:
    test_golden_store.fill(store)
    test_golden_features.fill(store)
    store.thread("t").pin(at="05", reason="secret reason")


def check(store: Store) -> None:
    test_golden_store.check(store)
    test_golden_features.check(store)
    assert [each.reason for each in store.thread("t").pins()] == ["secret reason"]


def damage(backend: Backend, table: Table, number: int = 0) -> None:
    """Flip a bit in the body of a row."""
    row = run(backend.read([Scan(table, ("", "t"))]))[0][number]
    run(backend.apply([Put(table, row._replace(body=row.body[:-1] + bytes([row.body[-1] ^ 1])))]))


def test_saving_and_reading(backends: Backends, rows: CountingEncryptedRows) -> None:
    on = backends()
    fill(sealed_store(on, rows))
    assert assert_all_sealed(on, rows, SECRETS) > 300
    again = sealed_store(on, rows)  # with nothing in its cache
    check(again)
    assert again.thread("t").diff("01", "05").changes
    assert again.thread("t").blame("messages[0]")
    assert [each.name for each in again.threads()] == ["t"]
    assert {each.name for each in again.thread("t").branches()} >= {"what if"}
    assert again.status().threads == 1
    assert rows.sealed.keys() >= {table.name for table in SEALED} - {QUARANTINE.name, JOBS.name}
    with pytest.raises(DeniedError, match="needs master key"):  # without the key
        sealed_store(on, CountingEncryptedRows(Encryption(LocalKeys(b"2" * 32)))).thread("t").get()


def test_branches_revisions_and_merges(backends: Backends, rows: CountingEncryptedRows) -> None:
    on = backends()
    store = sealed_store(on, rows)
    thread = store.thread("t")
    for number in range(8):
        thread.put({"n": number, "items": list(range(number)), "big": "x" * 70_000 if number > 3 else ""})
    thread.fork("side", at="HEAD~4", changes={"other": 1})
    thread.put({**thread.get("side").state, "mine": True}, branch="side")
    sealed_store(on, rows).thread("t").merge("side")
    merged = sealed_store(on, rows).thread("t").get()
    assert (merged.state["n"], merged.state["mine"], merged.state["other"]) == (7, True, 1)
    first = list(thread.log().all())[-1]
    thread.put({"n": 0, "revised": True}, id=first.id, parent=None, on_conflict="overwrite")
    assert sealed_store(on, rows).thread("t").get(first.id).state == {"n": 0, "revised": True}
    thread.switch("side")
    thread.rename_branch("side", "aside")
    store.thread("t").update({"n": 99})
    assert sealed_store(on, rows).thread("t").get().state["n"] == 99
    assert_all_sealed(on, rows, ["aside", "revised"])
    assert store.maintenance.verify(level="decode").findings == []


def test_pending_writes_and_copies_within_the_store(backends: Backends, rows: CountingEncryptedRows) -> None:
    on = backends()
    store = sealed_store(on, rows)
    saver = Checkpointer(store)
    for number in range(6):
        id = f"{number:02}"
        store.thread("t").put({"n": number}, id=id)
        saver.put_writes("t", id, [("answer", number), ("why", "w" * 100)], task_id="task", task_path="path")
    run(store._engine.context.backend.apply([]))
    run(CheckpointStore(store).copy("t", "copy"))
    for name in ("t", "copy"):
        found = Checkpointer(sealed_store(on, rows)).list(name)
        assert [each.pending_writes[0].value for each in found] == list(reversed(range(6)))
    store.maintenance.prune("t", keep_last=2)
    assert len(list(sealed_store(on, rows).thread("t").log().all())) == 2
    assert_all_sealed(on, rows, ["answer", "path"])
    assert store.maintenance.verify(level="decode").findings == []


def test_maintenance(backends: Backends, rows: CountingEncryptedRows) -> None:
    on = backends()
    store = sealed_store(on, rows, project=True)
    fill(store)
    store.maintenance.prune("t", keep_last=3)
    store.maintenance.prune("agent:researcher", kinds="scope", keep_last=1, erase=True)
    store.maintenance.compact("t")
    assert store.maintenance.verify(level="decode").findings == []
    assert store.maintenance.verify(level="structure").findings == []
    assert store.audit.verify().ok
    heads = store.maintenance.heads()
    store.thread("t").put({"messages": ["kelp and tides"]})
    assert store.maintenance.verify(heads=heads).ok
    assert list(store.maintenance.sweep_orphans().found) == []
    store.jobs.add("nightly", "prune", schedule="every 1h", settings={"keep_last": 2})
    assert store.jobs.run("nightly").error == ""
    (job,) = store.jobs.list()
    assert (job.kind, len(job.runs)) == ("prune", 1)
    assert [hit.thread for hit in store.search("tides")] == ["t"]
    if store.status().capabilities.words:
        store.maintenance.build_index()
        assert [hit.thread for hit in store.search("tides")] == ["t"]
    store.thread("t").hold(reason="secret reason")
    with pytest.raises(DeniedError):
        store.thread("t").delete()
    store.thread("t").release()
    assert store.thread("t").delete()
    assert_all_sealed(on, rows, SECRETS)


@pytest.mark.nightly
def test_copies_and_archives(backends: Backends, rows: CountingEncryptedRows, tmp_path: pathlib.Path) -> None:
    on = backends()
    store = sealed_store(on, rows)
    fill(store)
    other, plain = backends(), backends()
    store.maintenance.copy_to(sealed_store(other, rows))
    check(sealed_store(other, rows))
    assert_all_sealed(other, rows, SECRETS)
    assert store.maintenance.copy_to(sealed_store(other, rows)).rows == 0  # nothing is new
    url = f"sqlite:///{tmp_path}/by-url.db"
    store.maintenance.copy_to(url)
    by_url = run(backend_for(url).open(url))
    check(sealed_store(by_url, rows))
    assert_all_sealed(by_url, rows, SECRETS)
    run(by_url.close())
    file = io.BytesIO()
    store.maintenance.export(file, kinds="all")
    for target in (sealed_store(backends(), rows), store_on(plain)):
        file.seek(0)
        target.maintenance.import_(file, kinds="all")
        test_golden_store.check(target)
        assert target.state(agent="researcher")["source"] == "a1"
    # A store without seals has the same records: ids and hashes are equal.
    copy = store_on(backends())
    store.maintenance.copy_to(copy)
    check(copy)
    assert {each.hash for each in copy.thread("t").log().all()} == {each.hash for each in store.thread("t").log().all()}


@pytest.mark.parametrize("table", [STEPS, FOLDS, NODES, OBJECTS, WRITES, REFS, LINES], ids=lambda table: table.name)
def test_damage_is_found_and_repaired(backends: Backends, rows: CountingEncryptedRows, table: Table) -> None:
    on, copy = backends(), backends()
    store = sealed_store(on, rows)
    test_golden_store.fill(store)
    store.maintenance.copy_to(sealed_store(copy, rows))
    damage(on, table)
    store = sealed_store(on, rows)
    assert not store.maintenance.verify().ok
    assert store.maintenance.repair(sealed_store(copy, rows), dry_run=True).ok
    report = store.maintenance.repair(sealed_store(copy, rows))
    assert report.ok, report
    assert report.lost == []
    assert store.maintenance.verify(level="decode").findings == []
    test_golden_store.check(sealed_store(on, rows))
    assert_all_sealed(on, rows, SECRETS)
    assert rows.sealed[QUARANTINE.name]
    assert [each.space for each in store.maintenance.quarantine()]


@sealed_tables
def test_a_body_opens_only_in_its_own_row(table: Table) -> None:
    rows = CountingRows()
    here = _row(table, "line", 1)
    stored = rows.encode(table, here)
    assert rows.decode(table, stored) == here  # the control
    elsewhere = [_row(table, "another", 1), _row(table, "line", 2)]
    for other in elsewhere:
        target = rows.encode(table, other)
        if target.key == stored.key and target.columns == stored.columns:
            continue
        with pytest.raises(CorruptError):
            rows.decode(table, target._replace(body=stored.body))
    others = [each for each in SEALED if each is not table and len(each.all_columns) == len(table.all_columns)]
    for each in others:
        with pytest.raises(CorruptError):
            rows.decode(each, stored)
    for number in range(len(table.columns)):
        columns = list(stored.columns)
        columns[number] = _other(columns[number])
        with pytest.raises(CorruptError):
            rows.decode(table, stored._replace(columns=tuple(columns)))
    with pytest.raises(CorruptError, match="not encrypted"):
        rows.decode(table, CHECKSUMS.encode(table, here))
    assert not rows.is_intact(table, stored._replace(body=stored.body + b"x"))
    assert rows.is_stored(table, stored, here)
    assert not rows.is_stored(table, stored, here._replace(body=wrap(b"other")))


def test_a_body_moved_to_another_line_is_refused(backends: Backends, rows: CountingEncryptedRows) -> None:
    on = backends()
    store = sealed_store(on, rows)
    for name in ("a", "b"):
        store.thread(name).put({"who": name}, id="1")
    (mine, theirs) = run(on.read([Get(STEPS, [("", "a", 0, 0)]), Get(STEPS, [("", "b", 0, 0)])]))
    moved = mine[0]._replace(body=theirs[0].body, columns=theirs[0].columns)
    assert sealed_store(on, rows).thread("a").get().state == {"who": "a"}  # the control
    run(on.apply([Put(STEPS, moved)]))
    with pytest.raises(CorruptError, match="seal of a row is broken"):
        sealed_store(on, rows).thread("a").get()
    with pytest.raises(CorruptError):
        sealed_store(on, rows).thread("a").put({"who": "c"}, parent="1")


def test_conditions_are_about_hidden_columns_too(rows: CountingEncryptedRows) -> None:
    on = open_backend("memory", pathlib.Path())
    store = CheckedBackend(on, rows)
    row = Row(("", "t", "lease", "x", ""), ("holder", 1))
    assert run(store.apply([Create(REFS, row)])) is None
    assert run(store.apply([Expect(REFS, row.key, ("holder", 1))])) is None
    assert run(store.apply([Expect(REFS, row.key, ("another", 1))])) == 0
    ((found,),) = run(store.read([Scan(REFS, ("", "t"), bodies=False)]))
    assert found == row
    assert "holder" not in repr(run(on.read([Scan(REFS, ())])))


def test_what_is_no_text_is_refused() -> None:
    rows = CountingRows()
    with pytest.raises(InvalidError, match="lone surrogates"):
        rows.encode(LINES, Row(("\ud800", "x"), (0, 0, 0, 0, "")))


def _row(table: Table, line: str, number: int) -> Row:
    key = [_value(kind, number) for kind in table.key.values()]
    key[:2] = ["tenant", line]
    return Row(tuple(key), tuple(_value(kind, number) for kind in table.columns.values()), wrap(b"content"))


def _value(kind: type, number: int) -> Any:
    return f"text {number}" if issubclass(kind, str) else bytes([number]) * 32 if kind is bytes else number


def _other(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else value + ("x" if isinstance(value, str) else b"x")
