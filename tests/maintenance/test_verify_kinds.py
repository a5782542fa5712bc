"""Kinds of damage that come about by more than one flipped byte, each found for what it is."""

from __future__ import annotations

from datetime import date
from random import Random

import pytest

from holdfast.backends.interface import Backend, Delete, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FOLDS, NODES, OBJECTS, REFS, STEPS, Table
from holdfast.codec.envelope import BodyKind, wrap
from holdfast.engine.checked_rows import CheckedBackend
from holdfast.engine.integrity.findings import Finding, FindingCode, Severity
from holdfast.engine.row_format import Line, fold_row, open_fold
from holdfast.maintenance.verify import verifier
from holdfast.store.store import Store
from tests.engine.lines import store_on

LINE = Line("", "t")


def made(backend: Backend, count: int = 9, **more: object) -> Store:
    store = store_on(backend, fold_every=3)
    for turn in range(count):
        store.thread("t").put({"items": [f"item {n}" for n in range(turn)], **more}, id=str(turn))
    return store


def rows(backend: Backend, space: Table) -> list[Row]:
    return run(backend.read([Scan(space, tuple(LINE))]))[0]


def codes(found: list[Finding]) -> set[FindingCode]:
    return {each.code for each in found}


def test_a_folded_state_that_is_another_one_is_found_by_making_it_again() -> None:
    store = made(backend := CheckedBackend(MemoryBackend()))
    first, second, *_ = rows(backend, FOLDS)
    form, commit = second.columns
    root = open_fold(first, bytes(first.columns[1]))  # type: ignore[arg-type]
    place = (int(second.key[2]), int(second.key[3]))
    info = run(store._engine.lines.info(LINE))._replace(form=int(form))
    run(backend.apply([Put(FOLDS, fold_row(LINE, place, bytes(commit), info, root))]))  # type: ignore[arg-type]
    assert codes(store.maintenance.verify().damage) == set()
    (found,) = store.maintenance.verify(level="decode").damage
    assert (found.code, found.place) == (FindingCode.FOLD_MISMATCH, place)


def test_large_values_of_which_a_piece_is_not_there_or_is_another() -> None:
    large = Random(1).randbytes(2_500_000)
    store = made(backend := CheckedBackend(MemoryBackend()), large=large)
    first, middle, last = rows(backend, OBJECTS)
    for piece in (first, middle, last):
        run(backend.apply([Delete(OBJECTS, piece.key)]))
        (found,) = store.maintenance.verify().damage
        assert (found.code, found.affected_count) == (FindingCode.MISSING_OBJECT, 9)
        run(backend.apply([Put(OBJECTS, piece)]))
    other = wrap(b"other", codec=BodyKind.RAW)
    run(backend.apply([Put(OBJECTS, last._replace(body=other))]))
    (found,) = store.maintenance.verify().damage
    assert (found.code, found.affected_count) == (FindingCode.DAMAGED_OBJECT, 9)
    assert store.maintenance.verify(level="structure").findings == []


def test_a_node_that_is_damaged_names_all_that_need_it() -> None:
    store = store_on(backend := CheckedBackend(MemoryBackend()), fold_every=3)
    for turn in range(8):
        store.thread("t").put({"items": list(range(1500)), "turn": turn}, id=str(turn))
    affected: dict[FindingCode, int] = {}
    for node in rows(backend, NODES):
        for change in (Delete(NODES, node.key), Put(NODES, node._replace(body=b"HF" + node.body[2:-1] + b"\0"))):
            run(backend.apply([change]))
            for found in store.maintenance.verify().damage:
                affected[found.code] = max(affected.get(found.code, 0), found.affected_count)
            run(backend.apply([Put(NODES, node)]))
    assert affected[FindingCode.MISSING_NODE] == affected[FindingCode.DAMAGED_NODE] > 3
    stray = Row((*LINE, 1, bytes(20)), (), b"HF")
    run(backend.apply([Put(NODES, stray)]))
    (found,) = store.maintenance.verify().damage
    assert "no folded state needs it" in found.message


@pytest.mark.parametrize("pruned", [False, True])
def test_what_was_merged_must_be_there(pruned: bool) -> None:
    store = made(backend := CheckedBackend(MemoryBackend()), 4)
    store.thread("t").fork("side", at="1")
    store.thread("t").put({"side": 1}, branch="side", id="side")
    merge = store.thread("t").merge("side", into="main", strategy="ours")
    for turn in range(3):
        store.thread("t").put({"turn": turn}, branch="main")
    if pruned:
        store.maintenance.prune(keep_last=1)
    assert store.maintenance.verify(level="decode").findings == []
    (row,) = [row for row in rows(backend, STEPS) if row.key[2:] == (1, 0)]
    columns = list(row.columns)
    columns[3] = bytes(32)
    run(backend.apply([Put(STEPS, row._replace(columns=tuple(columns)))]))
    found = [each for each in store.maintenance.verify().findings if "it merges" in each.message]
    assert [each.checkpoint for each in found] == ["" if pruned else merge.id]
    if pruned:
        (stub,) = [row for row in rows(backend, STEPS) if not row.columns[0] and row.columns[6]]
        columns = list(stub.columns)
        columns[6] = "nothing that can be read"
        run(backend.apply([Put(STEPS, stub._replace(columns=tuple(columns)))]))
        assert FindingCode.WRONG_COLUMN in codes(store.maintenance.verify().damage)


def test_metadata_as_people_read_it() -> None:
    store = store_on(backend := CheckedBackend(MemoryBackend()))
    store.thread("t").put({}, id="plain", metadata={"source": "loop", "list": [1, None, 2.5]})
    store.thread("t").put({}, id="other", metadata={"day": date(2026, 11, 15)})
    assert store.maintenance.verify().findings == []
    plain, other = rows(backend, STEPS)

    def said(row: Row, text: str) -> bool:
        columns = (*row.columns[:6], text, *row.columns[7:])
        run(backend.apply([Put(STEPS, row._replace(columns=columns))]))
        found = store.maintenance.verify().findings
        run(backend.apply([Put(STEPS, row)]))
        return not any(each.code is FindingCode.WRONG_COLUMN for each in found)

    assert said(plain, '{"list": [1, null, 2.5], "source": "loop"}')  # as a store may give it back
    assert not said(plain, '{"source": "loop", "list": [1, null, 2]}')
    assert not said(plain, "not JSON")
    assert not said(plain, "")
    assert said(other, '{"day": "told by somebody who knew the class"}')
    assert not said(other, '{"night": "2026-11-15"}')


def test_many_names_and_some_that_point_to_nothing() -> None:
    store = made(backend := CheckedBackend(MemoryBackend()))
    for number in range(150):
        store.thread("t").tag(f"name {number}", str(number % 9))
    assert store.maintenance.verify().findings == []
    kept = rows(backend, REFS)
    run(backend.apply([Put(REFS, kept[70]._replace(columns=("none", 0)))]))
    run(backend.apply([Put(REFS, kept[80]._replace(columns=("", 0)))]))
    assert [each.code for each in store.maintenance.verify().damage] == [FindingCode.DANGLING_REF] * 2


def test_a_report_lists_damage_rather_than_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MAX_FINDINGS", 2)
    report = verifier.VerifyReport("", "", "hashes")
    for code in (
        FindingCode.ORPHAN,
        FindingCode.MISSING_STEP,
        FindingCode.ORPHAN,
        FindingCode.DAMAGED_STEP,
        FindingCode.DAMAGED_FOLD,
    ):
        report.add(Finding(code, ""))
    assert (report.found, codes(report.findings)) == (5, {FindingCode.MISSING_STEP, FindingCode.DAMAGED_STEP})
    assert all(each.severity is Severity.DAMAGE for each in report.damage)
