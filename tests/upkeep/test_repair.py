"""Repairing: from an intact copy all is equal again; without one, all that reads is kept."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.backends.spaces import FOLDS, NODES, OBJECTS, REFS, STEPS
from holdfast.engine.drivers import run
from holdfast.engine.findings import Level, Weight
from holdfast.errors import Invalid, Unavailable
from holdfast.upkeep.mending import mend
from holdfast.upkeep.quarantine import quarantined
from holdfast.upkeep.repair import repair
from holdfast.upkeep.sources import Source
from tests.engine.lines import store_on
from tests.engine.pruned import Mortal
from tests.upkeep import damage
from tests.upkeep.damage import LINE, Damage, Rows, damage_in, found_in, loaded, picture, small

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
        if not any(each.weight is Weight.DAMAGE for each in found_in(engine, Level.DECODE)):
            continue
        mended = run(mend(engine, LINE, [Source(loaded(rows))]))
        assert mended is not None, what
        assert mended.lost == [], what
        assert mended.left == [], what
        assert picture(engine) == truth, what
        now = damage.rows_of(engine.ground.backend)  # type: ignore[arg-type]
        assert {at: row for at, row in now.items() if at[0] is REFS} == refs, what


def check_salvage(rows: Rows, count: int, seed: int) -> None:
    truth = picture(loaded(rows))
    for what, damaged in every(rows, seed, count):
        engine = loaded(damaged)
        if not any(each.weight is Weight.DAMAGE for each in found_in(engine, Level.DECODE)):
            continue
        affected = {id for each in found_in(engine, Level.DECODE) for id in each.affected}
        mended = run(mend(engine, LINE, []))
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


@pytest.mark.parametrize("pruned", [False, True])
def test_from_an_intact_copy_all_is_equal_again(pruned: bool) -> None:
    check_from_copy(small(pruned=pruned), 40, 1)


@pytest.mark.parametrize("pruned", [False, True])
def test_without_one_all_that_reads_is_kept(pruned: bool) -> None:
    check_salvage(small(pruned=pruned), 40, 2)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("pruned", [False, True])
def test_both_for_much_more(pruned: bool, seed: int) -> None:
    check_from_copy(small(pruned=pruned), 200, seed)
    check_salvage(small(pruned=pruned), 200, seed)


def broken(rows: Rows) -> Rows:
    """Three steps damaged: one that a folded state follows, and two at the end."""
    spoilt = dict(rows)
    for seq in (1, 6, 7):
        key = (*LINE, 0, seq)
        body = bytearray(rows[STEPS, key].body)
        if not body:
            continue  # pruned
        body[-1] ^= 1
        spoilt[STEPS, key] = rows[STEPS, key]._replace(body=bytes(body))
    return spoilt


def test_a_dry_run_tells_the_same_and_changes_nothing() -> None:
    rows = broken(small(pruned=False))
    engine = loaded(rows)
    told = run(repair(engine, "", dry_run=True))
    assert damage.rows_of(engine.ground.backend) == rows  # type: ignore[arg-type]
    done = run(repair(engine, ""))
    assert told.dry_run
    assert [each.lost for each in told.mended] == [each.lost for each in done.mended]
    assert {each.checkpoint for each in done.lost} == {"1", "6", "7"}
    assert done.sound
    assert done.plain()["mended"][0]["thread"] == "t"


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
    assert run(repair(engine, "", [source])).mended == []
    done = run(repair(engine, "", [source], threads=["t"]))
    assert done.sound
    assert picture(engine) == picture(source)


def test_a_cut_off_end_comes_back_from_a_copy() -> None:
    rows = small(pruned=False)
    cut = {at: row for at, row in rows.items() if at != (STEPS, (*LINE, 0, 7))}
    engine = loaded(cut)
    assert run(repair(engine, "", [loaded(rows)])).sound
    assert picture(engine) == picture(loaded(rows))


def test_a_store_is_not_repaired_from_itself() -> None:
    engine = loaded({})
    with pytest.raises(Invalid):
        run(repair(engine, "", [engine]))


@pytest.mark.parametrize("copy", [False, True])
def test_interrupted_anywhere_it_is_as_it_was_or_better_and_finishes_when_begun_again(copy: bool) -> None:
    rows = small(pruned=True)
    spoilt = broken(rows)
    at = next(at for at in rows if at[0] is NODES)
    spoilt = {each: row for each, row in spoilt.items() if each != at}
    truth = picture(loaded(rows))
    readable = readable_in(spoilt)
    for lives in range(0, 400, 7):
        engine = loaded(spoilt)
        mortal = Mortal(engine.ground.backend, lives)
        sources = [Source(loaded(rows))] if copy else []
        try:
            run(mend(store_on(mortal, fold_every=3).engine, LINE, sources))
        except Unavailable:
            finished = False
        else:
            finished = True
        now = readable_in(damage.rows_of(engine.ground.backend))  # type: ignore[arg-type]
        assert readable <= now, lives
        later = store_on(engine.ground.backend, fold_every=3, clock=lambda: 2_000_000_000_000_000_000).engine
        run(mend(later, LINE, sources))
        assert damage_in(later) == [], lives
        if copy:
            assert picture(later) == truth, lives
        if finished:
            break
    else:
        pytest.fail("it never finished")


def readable_in(rows: Rows) -> set[str]:
    """The checkpoints that can be read, all told."""
    engine = loaded(rows)
    store = store_on(engine.ground.backend, fold_every=3, cache_bytes=0)
    found = set()
    for (space, _), row in rows.items():
        if space is STEPS and row.columns[0]:
            try:
                store.get("t", str(row.columns[0]))
            except ValueError:
                continue
            found.add(str(row.columns[0]))
    return found
