"""References to schemas: of a step, of single keys that it changed, and of pending writes."""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator

import pytest

from holdfast.backends.interface import Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS, WRITES
from holdfast.engine.append import AppendRequest
from holdfast.engine.model.packed_state import pack_name
from holdfast.engine.model.steps import KeySchemas, PendingWriteRow, StepHeader
from holdfast.engine.row_format import Line
from holdfast.errors import InvalidError
from holdfast.store.store import Store
from tests.engine.lines import Backends, saving, store_on, writes_of
from tests.support.sealing import CountingRows, sealed_store

LINE, SCOPE = Line("", "t"), Line("", "␞agent:a")
KEYS: KeySchemas = ((pack_name("plan"), "plan@3"),)
WRITE = PendingWriteRow("path", "task", 0, "answer", b"\x01", "answer@1")


@pytest.fixture(params=["memory", "sqlite"])
def backends(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[Backends]:
    opened = Backends(request.param, tmp_path)
    yield opened
    opened.close()


def request_of(store: Store, line: Line, n: int, id: str, **more: object) -> AppendRequest:
    return saving(store._engine, line, {"plan": n, "other": n}, id=id, schema="chat@2", key_schemas=KEYS, **more)


def fill(store: Store) -> None:
    """Three steps in each of two lines, and a pending write after each but the last; the next step takes it over."""
    for n, id in enumerate(("1", "2", "3")):
        for line in (LINE, SCOPE):
            run(store._engine.writer.save(request_of(store, line, n, id)))
        if id != "3":
            run(store._engine.writes.put(LINE, id, [WRITE]))


def header(store: Store, line: Line, id: str) -> StepHeader:
    engine = store._engine
    return run(engine.step_info.head(line, run(engine.lines.find(line, id)))).header


def check(store: Store) -> None:
    for line in (LINE, SCOPE):
        for id in ("1", "2", "3"):
            found = header(store, line, id)
            assert (found.schema, found.key_schemas) == ("chat@2", KEYS)
    assert [writes_of(store, LINE, id) for id in ("1", "2", "3")] == [[WRITE], [WRITE], []]
    assert store.thread("t").get("3").schema == "chat@2"
    assert store.maintenance.verify(level="decode").findings == []


def test_references_are_stored_copied_and_verified(backends: Backends, tmp_path: pathlib.Path) -> None:
    on = backends()
    fill(store_on(on, fold_every=2))
    store = store_on(on, fold_every=2)
    check(store)
    copy, imported = store_on(backends()), store_on(backends())
    store.maintenance.copy_to(copy)
    file = io.BytesIO()
    store.maintenance.export(file, kinds="all")
    file.seek(0)
    imported.maintenance.import_(file, kinds="all")
    check(copy)
    check(imported)
    assert store.audit.verify().ok
    from holdfast.access import check_audit

    store.audit.export(tmp_path / "audit")
    assert check_audit(tmp_path / "audit").ok


def test_they_stay_when_steps_are_pruned_and_revised(backends: Backends) -> None:
    on = backends()
    store = store_on(on, fold_every=2)
    fill(store)
    run(store._engine.writer.save(request_of(store, LINE, 9, "1")))  # the others follow the new revision
    check(store_on(on, fold_every=2))
    store.maintenance.prune("t", keep_last=1)
    assert header(store, LINE, "3").key_schemas == KEYS
    other = store_on(backends(), fold_every=2)
    fill(other)
    other.thread("t").pin(at="1")
    other.maintenance.prune("t", keep_last=1)  # the write after the first is a row again
    assert writes_of(other, LINE, "1") == [WRITE]


def test_the_hash_covers_them(backends: Backends) -> None:
    store = store_on(backends())
    fill(store)
    found = header(store, LINE, "2")
    digests = {each.digest() for each in (found, found._replace(schema=""), found._replace(key_schemas=()))}
    assert len(digests) == 3
    assert found._replace(key_schemas=((KEYS[0][0], "plan@4"),)).digest() not in digests


def test_another_reference_is_another_revision(backends: Backends) -> None:
    store = store_on(backends())
    fill(store)
    again = run(store._engine.writer.save(request_of(store, LINE, 2, "3")))
    assert again[0].point.revision == 0  # the same
    other = saving(store._engine, LINE, {"plan": 2, "other": 2}, id="3", schema="chat@3", key_schemas=KEYS)
    assert run(store._engine.writer.save(other))[0].point.revision == 1


def test_sealed_rows_do_not_show_them(backends: Backends) -> None:
    on, rows = backends(), CountingRows()
    store = sealed_store(on, rows)
    fill(store)
    check(store)
    plain = backends()
    fill(store_on(plain))
    for each, visible in ((on, False), (plain, True)):
        stored = b"".join(row.body for table in (STEPS, WRITES) for row in run(each.read([Scan(table, ())]))[0])
        assert (b"chat@2" in stored) is visible


def test_a_reference_is_short(backends: Backends) -> None:
    store = store_on(backends())
    with pytest.raises(InvalidError, match="at most 255 bytes"):
        run(store._engine.writes.put(LINE, "1", [WRITE._replace(schema="s" * 256)]))
