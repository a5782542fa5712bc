"""Repairing: from an intact copy all is equal again; without one, all that reads is kept."""

from __future__ import annotations

from random import Random

import pytest

from holdfast._views import plain
from holdfast.backends.interface import Delete, Put, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FOLDS, LINES, NODES, OBJECTS, REFS, STEPS, TABLES
from holdfast.engine.integrity.findings import FindingCode, Severity, VerifyLevel
from holdfast.engine.leases import Lease
from holdfast.errors import InvalidError, UnavailableError
from holdfast.maintenance.repair.quarantine import QuarantinedRow, quarantined
from holdfast.maintenance.repair.repairer import repair, repair_line
from holdfast.maintenance.repair.sources import RepairSource
from holdfast.maintenance.verify.heads import export_heads
from tests.damaged import flipped
from tests.engine.lines import store_on
from tests.engine.pruned import Mortal
from tests.maintenance import damage
from tests.maintenance.damage import LINE, Damage, Rows, damage_in, found_in, loaded, picture, small
from tests.support.nightly import mostly_nightly

SPOILED = (STEPS, FOLDS, NODES, OBJECTS)


def every(rows: Rows, seed: int, count: int) -> list[tuple[Damage, Rows]]:
    """Some of every kind of damage."""
    found = [*damage.missing(rows), *damage.altered(rows), *damage.exchanged(rows)]
    return Random(seed).sample([each for each in found if each[0][1] is not REFS], count)


def check_from_copy(rows: Rows, count: int, seed: int) -> None:
    truth = picture(loaded(rows))
    refs = {at: row for at, row in rows.items() if at[0] is REFS}
    for what, damaged in every(rows, seed, count):
        engine = loaded(damaged)
        if not any(each.severity is Severity.DAMAGE for each in found_in(engine, VerifyLevel.DECODE)):
            continue
        mended = run(repair_line(engine, LINE, [RepairSource(loaded(rows))]))
        assert mended is not None, what
        assert mended.lost == [], what
        assert mended.left == [], what
        assert picture(engine) == truth, what
        now = damage.rows_of(engine.context.backend)
        assert {at: row for at, row in now.items() if at[0] is REFS} == refs, what


def check_salvage(rows: Rows, count: int, seed: int) -> None:
    truth = picture(loaded(rows))
    for what, damaged in every(rows, seed, count):
        engine = loaded(damaged)
        if not any(each.severity is Severity.DAMAGE for each in found_in(engine, VerifyLevel.DECODE)):
            continue
        affected = {id for each in found_in(engine, VerifyLevel.DECODE) for id in each.affected}
        mended = run(repair_line(engine, LINE, []))
        assert mended is not None, what
        assert damage_in(engine) == [], what
        lost = {(each.branch, each.step) for each in mended.lost}
        now = picture(engine)
        assert {at: each[2] for at, each in now.items()} == {
            at: each[2] for at, each in truth.items() if at not in lost
        }, what
        if what[1] not in SPOILED:
            assert not lost, what
        if lost and affected and what[0] == "altered":
            assert {each.checkpoint for each in mended.lost} <= affected | {""}, what
        assert mended.quarantined or what[0] == "missing", what


@pytest.mark.parametrize("pruned", mostly_nightly([False, True], daily=[True]))
def test_from_an_intact_copy_all_is_equal_again(pruned: bool) -> None:
    check_from_copy(small(pruned=pruned), 12, 1)


@pytest.mark.parametrize("pruned", mostly_nightly([False, True], daily=[True]))
def test_without_one_all_that_reads_is_kept(pruned: bool) -> None:
    check_salvage(small(pruned=pruned), 12, 2)


@pytest.mark.parametrize("stride", mostly_nightly([1, 3], daily=[3]))
def test_a_column_that_no_hash_covers_is_as_in_the_copy(stride: int) -> None:
    rows = small(pruned=False)
    truth = picture(loaded(rows))
    altered = [damaged for what, damaged in damage.altered(rows) if what[-1] == "beside"]
    assert len(altered) > 3
    for damaged in altered[::stride]:
        engine = loaded(damaged)
        assert run(repair_line(engine, LINE, [RepairSource(loaded(rows))]))
        assert picture(engine) == truth


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("pruned", mostly_nightly([False, True], daily=[True]))
def test_both_for_much_more(pruned: bool, seed: int) -> None:
    check_from_copy(small(pruned=pruned), 200, seed)
    check_salvage(small(pruned=pruned), 200, seed)


def broken(rows: Rows) -> Rows:
    """Three steps damaged: one that a folded state follows, and two at the end."""
    spoilt = dict(rows)
    for seq in (1, 6, 7):
        key = (*LINE, 0, seq)
        body = bytearray(rows[STEPS, key].body)
        if not rows[STEPS, key].columns[0]:
            continue  # pruned
        body[-17] ^= 1  # the last byte of the step: from behind its checksum it could be proven
        spoilt[STEPS, key] = rows[STEPS, key]._replace(body=bytes(body))
    return spoilt


def test_a_dry_run_tells_the_same_and_changes_nothing() -> None:
    rows = broken(small(pruned=False))
    engine = loaded(rows)
    told = run(repair(engine, "", dry_run=True))
    assert damage.rows_of(engine.context.backend) == rows
    done = run(repair(engine, ""))
    assert told.dry_run
    assert [each.lost for each in told.repaired] == [each.lost for each in done.repaired]
    assert {each.checkpoint for each in done.lost} == {"1", "6", "7"}
    assert done.ok
    assert plain(done)["repaired"][0]["thread"] == "t"


def test_damaged_rows_are_kept_in_quarantine() -> None:
    rows = broken(small(pruned=False))
    engine = loaded(rows)
    run(repair(engine, ""))

    async def kept() -> list[tuple[str, tuple[object, ...], bytes]]:
        return [(each.space, each.key, each.body) async for each in quarantined(engine, "")]

    found = run(kept())
    for seq in (1, 6, 7):
        assert ("steps", (0, seq), rows[STEPS, (*LINE, 0, seq)].body) in found


def test_a_thread_that_is_gone_is_taken_from_a_source_if_it_is_named() -> None:
    rows = small(pruned=True)
    engine, source = loaded({}), loaded(rows)
    assert run(repair(engine, "", [source])).repaired == []
    done = run(repair(engine, "", [source], threads=["t"]))
    assert done.ok
    assert picture(engine) == picture(source)


def test_a_cut_off_end_comes_back_from_a_copy() -> None:
    rows = small(pruned=False)
    cut = {at: row for at, row in rows.items() if at != (STEPS, (*LINE, 0, 7))}
    engine = loaded(cut)
    assert run(repair(engine, "", [loaded(rows)])).ok
    assert picture(engine) == picture(loaded(rows))


def other_history() -> Rows:
    """The rows of another thread of the same name, with a branch more."""
    store = store_on(damage.memory(), fold_every=3)
    for number in range(12):
        store.thread("t").put({"other": number}, id=f"o{number}")
    store.thread("t").fork("theirs", at="o3")
    store.thread("t").put({"other": "branch"}, branch="theirs", id="o99")
    store.thread("t").tag("theirs", "o11")
    return damage.rows_of(store._engine.context.backend)


@pytest.mark.parametrize("whole", [False, True])
def test_nothing_is_taken_from_a_source_that_has_another_history(whole: bool) -> None:
    rows = small(pruned=False)
    key = (STEPS, (*LINE, 0, 7))
    spoilt = {**rows, key: rows[key]._replace(body=flipped(rows[key].body, -17))}
    engine = loaded(spoilt)
    mended = run(repair_line(engine, LINE, [RepairSource(loaded(other_history()))], whole=whole))
    assert mended is not None
    assert [each.checkpoint for each in mended.lost] == ["7"]
    assert (mended.restored, mended.left) == (0, [])
    now, truth = picture(engine), picture(loaded(rows))
    assert {at: each[2] for at, each in now.items()} == {at: each[2] for at, each in truth.items() if at != (0, 7)}
    refs = {at for at in damage.rows_of(engine.context.backend) if at[0] is REFS}
    assert refs <= {at for at in rows if at[0] is REFS}


def test_only_a_thread_that_is_named_is_repaired() -> None:
    rows = small(pruned=False)
    engine, source = loaded(rows), loaded(rows)
    for number in range(3):
        store_on(source.context.backend, fold_every=3).thread("u").put({"x": number}, id=str(number))
    found = run(source.context.backend.read([Scan(space, ("", "u")) for space in TABLES]))
    copied = [Put(space, row) for space, each in zip(TABLES, found, strict=True) for row in each]
    run(engine.context.backend.apply([*copied, Delete(STEPS, ("", "u", 0, 2))]))
    assert run(repair(engine, "", [source], threads=["t"])).repaired == []
    assert [each.thread for each in run(repair(engine, "", [source])).repaired] == ["u"]


def test_steps_that_changed_places_are_put_back_though_nothing_else_tells_where_they_were() -> None:
    rows = small(pruned=False)
    one, other = (STEPS, (*LINE, 0, 6)), (STEPS, (*LINE, 0, 7))
    swapped = {**rows, one: rows[other]._replace(key=one[1]), other: rows[one]._replace(key=other[1])}
    engine = loaded(swapped)
    mended = run(repair_line(engine, LINE, []))
    assert mended is not None
    assert mended.lost == []
    assert picture(engine) == picture(loaded(rows))


def test_a_branch_that_stands_on_an_end_that_is_lost_is_kept() -> None:
    store = store_on(damage.memory(), fold_every=1)
    for number in range(4):
        store.thread("t").put({"n": number}, id=str(number))
    store.thread("t").fork("side", at="3")
    store.thread("t").put({"n": 4}, branch="side", id="4")
    rows = damage.rows_of(store._engine.context.backend)
    del rows[STEPS, (*LINE, 0, 3)]
    engine = loaded(rows)
    done = run(repair(engine, ""))
    assert done.ok
    assert [(each.branch, each.step) for each in done.lost] == [(0, 3)]
    assert damage_in(engine) == []
    assert store_on(engine.context.backend).thread("t").get("4").state == {"n": 4}


def test_an_end_that_no_source_has_is_told_where_heads_were_exported() -> None:
    rows = small(pruned=False)
    heads = run(export_heads(loaded(rows), ""))
    cut = {at: row for at, row in rows.items() if at != (STEPS, (*LINE, 0, 7))}
    assert [each.code for each in run(repair(loaded(cut), "", heads=heads)).left] == [FindingCode.CUT_OFF]
    assert run(repair(loaded(cut), "", [loaded(rows)], heads=heads)).ok


def test_the_row_of_a_thread_that_counts_wrongly_is_kept_too() -> None:
    rows = small(pruned=True)
    key = (LINES, tuple(LINE))
    columns = (*rows[key].columns[:-1], 77)
    engine = loaded({**rows, key: rows[key]._replace(columns=columns)})
    assert run(repair(engine, "")).ok

    async def kept() -> list[tuple[str, tuple[object, ...]]]:
        return [(each.space, each.columns) async for each in quarantined(engine, "")]

    assert ("lines", columns) in run(kept())


def test_a_store_is_not_repaired_from_itself() -> None:
    engine = loaded({})
    with pytest.raises(InvalidError):
        run(repair(engine, "", [engine]))


@pytest.mark.parametrize(("copy", "stride"), mostly_nightly([(False, 17), (True, 17), (True, 29)], daily=[(True, 29)]))
def test_interrupted_anywhere_it_is_as_it_was_or_better_and_finishes_when_begun_again(copy: bool, stride: int) -> None:
    rows = small(pruned=True)
    spoilt = broken(rows)
    at = next(at for at in rows if at[0] is NODES)
    spoilt = {each: row for each, row in spoilt.items() if each != at}
    truth = picture(loaded(rows))
    readable = readable_in(spoilt)
    for lives in range(0, 400, stride):
        engine = loaded(spoilt)
        mortal = Mortal(engine.context.stored, lives)
        sources = [RepairSource(loaded(rows))] if copy else []
        try:
            run(repair_line(store_on(mortal, fold_every=3)._engine, LINE, sources))
        except UnavailableError:
            finished = False
        else:
            finished = True
        now = readable_in(damage.rows_of(engine.context.backend))
        assert readable <= now, lives
        later = store_on(engine.context.backend, fold_every=3, clock=lambda: 2_000_000_000_000_000_000)._engine
        run(repair_line(later, LINE, sources))
        assert damage_in(later) == [], lives
        if copy:
            assert picture(later) == truth, lives
        if finished:
            break
    else:
        pytest.fail("it never finished")
    assert lives >= 70, "it was killed only a few times"


def readable_in(rows: Rows) -> set[str]:
    """The checkpoints that can be read, all told."""
    engine = loaded(rows)
    store = store_on(engine.context.backend, fold_every=3, cache_bytes=0)
    found = set()
    for (space, _), row in rows.items():
        if space is STEPS and row.columns[0]:
            try:
                store.thread("t").get(str(row.columns[0]))
            except ValueError:
                continue
            found.add(str(row.columns[0]))
    return found


def test_a_thread_that_another_is_at_work_on_keeps_no_other_from_being_mended() -> None:
    rows = broken(small(pruned=False))
    engine = loaded(rows)
    store = store_on(engine.context.backend, fold_every=3)
    for number in range(3):
        store.thread("u").put({"n": number}, id=str(number))
    run(engine.context.backend.apply([Delete(STEPS, ("", "u", 0, 1))]))
    lease = Lease(engine.context, LINE, "rewrite")
    run(lease.acquire())
    done = run(repair(engine, ""))
    assert not done.ok
    assert [each.thread for each in done.repaired] == ["u"]
    assert "in progress" in done.problems[0]
    assert plain(done)["problems"] == done.problems
    run(lease.release())
    assert run(repair(engine, "")).ok


def test_a_thread_without_a_row_gets_one_again() -> None:
    rows = {at: row for at, row in small(pruned=True).items() if at[0] is not LINES}
    engine = loaded(rows)
    assert run(repair(engine, "")).ok
    assert picture(engine) == picture(loaded(small_with_lines(rows)))


def small_with_lines(rows: Rows) -> Rows:
    whole = small(pruned=True)
    return {**rows, **{at: row for at, row in whole.items() if at[0] is LINES}}


def test_a_source_that_is_damaged_itself_gives_what_it_has() -> None:
    rows = small(pruned=False)
    mine = {at: row for at, row in rows.items() if at != (STEPS, (*LINE, 0, 3))}
    theirs = dict(rows)
    for seq in (1, 5):
        key = (STEPS, (*LINE, 0, seq))
        theirs[key] = rows[key]._replace(body=flipped(rows[key].body))
    for at in [at for at in theirs if at[0] in (NODES, OBJECTS)]:
        theirs[at] = theirs[at]._replace(body=flipped(theirs[at].body, 0))
    engine = loaded(mine)
    done = run(repair(engine, "", [loaded(theirs)]))
    assert done.ok
    assert done.lost == []
    assert picture(engine) == picture(loaded(rows))


def test_what_is_in_quarantine_can_be_shown() -> None:
    engine = loaded(broken(small(pruned=False)))
    run(repair(engine, ""))

    async def kept() -> list[QuarantinedRow]:
        return [each async for each in quarantined(engine, "", ["t"])]

    rows = run(kept())
    assert {each.space for each in rows} >= {"steps"}
    assert {each.thread for each in rows} == {"t"}
    assert all(each.body and each.reason for each in rows)
