"""Threads are pruned by a policy: what is kept reads as before, and a dry run says what the real one does."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.interface import Backend, Delete, Put, Row
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import FIELDS, NODES, REFS, TABLES, WORDS
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.integrity.findings import FindingCode
from holdfast.engine.leases import Lease
from holdfast.engine.rewrite.row_sizes import row_bytes
from holdfast.engine.row_format import Line
from holdfast.errors import ConflictError, CorruptError, HoldfastError, InvalidError, NotFoundError
from holdfast.maintenance.pruner import PruneReport, ThreadPruneReport
from holdfast.maintenance.retention import Retention
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.engine.lines import KINDS, Backends, Clock, backend, store_on
from tests.engine.pruned import LARGE, LINE, Picture, check_pruned, decorate, filled, go_on, rows_of
from tests.engine.test_histories import Thread, scripts
from tests.maintenance.kit import copied
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import examples, mostly_nightly

DAY = 24 * 3600 * 10**9


def states_of(store: Store, thread: str) -> dict[str, Any]:
    return {each.id: store.thread(thread).get(each.id).state for each in store.thread(thread).log().all()}


def stored_bytes(on: Backend, line: Line = LINE) -> int:
    """How many bytes all rows of a line take, without their checksums and without the index of fields."""
    rows, tables = rows_of(on, line), [table for table in TABLES if table is not FIELDS]
    return sum(row_bytes(CHECKSUMS.salvage(table, row)) for table in tables for row in rows[table.name])


def dropped_ids(report: PruneReport, thread: str = "t") -> list[str]:
    (found,) = [each for each in report.threads if each.thread == thread]
    return sorted(each.id for each in found.checkpoints if not each.kept)


def without_rewriting(report: PruneReport) -> list[Any]:
    return [(each.thread, each.kept, each.dropped, each.rows, each.bytes, each.checkpoints) for each in report.threads]


# What is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@given(
    script=scripts(),
    fold_every=st.sampled_from([2, 3, 32]),
    bits=st.integers(0, (1 << 30) - 1),
    rules=st.fixed_dictionaries(
        {"keep_last": st.integers(1, 6)},
        optional={"keep_tagged": st.booleans(), "keep_hourly": st.integers(1, 3), "keep_where": st.just("step:2..4")},
    ),
)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
def test_every_retained_state_is_equal(
    kind: str, script: list[Any], fold_every: int, bits: int, rules: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = backend(kind, Path(folder))
        store = store_on(on, fold_every=fold_every)
        thread = Thread(store)
        go_on(thread, script)
        merged(thread)
        decorate(store, sorted(thread.saved), bits)
        pinned = sorted(thread.saved)[bits % len(thread.saved)]
        store.thread("t").pin(pinned, reason="wanted")
        writes = {str(row.key[2]) for row in rows_of(on)["writes"]}
        before, whole, size = Picture(store), states_of(store, "t"), stored_bytes(on)
        heads = {
            branch.name: store.thread("t").get(at=branch.name).id
            for branch in store.thread("t").branches()
            if branch.name
        }
        head = store.thread("t").get().id
        planned = store.maintenance.prune(threads="t", dry_run=True, **rules)
        assert stored_bytes(on) == size, "a dry run changes nothing"
        done = store.maintenance.prune(threads="t", **rules)
        assert without_rewriting(done) == without_rewriting(planned)
        assert size - stored_bytes(on) == done.bytes
        gone = set(dropped_ids(done))
        if done.dropped or len(before.steps) > len(whole):
            last = {each.point[:2] for id, each in before.last().items() if id not in gone}
            check_pruned(store, before, before.steps.keys() - last, writes)
        assert identical(states_of(store, "t"), {id: state for id, state in whole.items() if id not in gone})
        assert not gone & {pinned, head, *heads.values()}
        assert store.thread("t").get().id == head
        assert {name: store.thread("t").get(at=name).id for name in heads} == heads
        again = store.maintenance.prune(threads="t", **rules)
        assert again.dropped == 0
        assert again.bytes == 0
        store.thread("t").put({"goes": "on"}, id="zzz")
        assert store.thread("t").get().state == {"goes": "on"}
        run(on.close())


def merged(thread: Thread) -> None:
    """Merge the branches that there are."""
    for branch in thread.forks:
        try:
            made = thread.store.thread("t").merge(branch, strategy="theirs")
        except HoldfastError:
            continue  # nothing to merge
        thread.saved[made.id] = thread.store.thread("t").get(made.id).state


def test_a_report_says_what_goes_and_why(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").label("good", "2")
    report = store.maintenance.prune(policy=Retention(keep_last=2), threads="t")
    (found,) = report.threads
    assert [(each.id, each.kept, each.reasons) for each in found.checkpoints] == [
        ("81", True, ("last of side", "last")),
        ("80", True, ("last",)),
        ("7", True, ("latest", "last of main")),
        *((str(n), False, ()) for n in (6, 5, 4, 3)),
        ("2", True, ("label good",)),
        *((str(n), False, ()) for n in (1, 0)),
    ]
    assert (report.kept, report.dropped, report.dry_run) == (4, 6, False)
    assert [each.id for each in store.thread("t").log().all()] == ["81", "80", "7", "2"]
    assert found.checkpoints[0].time == store.thread("t").get("81").time


def test_old_revisions_go(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").put({"n": "revised"}, id="6")
    before = len(rows_of(shared)["steps"])
    report = store.maintenance.prune(keep_last=100)
    assert report.dropped == 0
    assert len(rows_of(shared)["steps"]) < before
    assert store.thread("t").get("6").state == {"n": "revised"}
    assert report.bytes > 0


def test_leftovers_of_a_rewrite_that_died_are_counted(shared: Backend) -> None:
    store = filled(shared)
    form = int(rows_of(shared)["lines"][0].columns[2])
    run(shared.apply([Put(NODES, CHECKSUMS.encode(NODES, Row((*LINE, form + 1, b"left"), (), b"x" * 1000)))]))
    size = stored_bytes(shared)
    planned = store.maintenance.prune(threads="t", keep_last=3, dry_run=True)
    done = store.maintenance.prune(threads="t", keep_last=3)
    assert planned.bytes == done.bytes == size - stored_bytes(shared)
    assert planned.bytes > 1000


def test_words_go_with_their_steps_and_stay_with_what_is_said(shared: Backend) -> None:
    store = store_on(shared)
    store.maintenance.build_index()
    for n in range(6):
        store.thread("t").put({"messages": [f"word{i}" for i in range(n + 1)], "n": f"only{n}"}, id=str(n))
    store.maintenance.prune(threads="t", keep_last=2)
    assert len(rows_of(shared)["words"]) == 2
    assert [match.id for match in store.search("word0")] == ["4"]
    assert [match.id for match in store.search("word5")] == ["5"]
    assert store.search("only2") == []
    assert store.maintenance.verify("t", level="decode").findings == []
    run(shared.apply([Put(WORDS, row._replace(columns=(row.columns[0], "other"))) for row in rows_of(shared)["words"]]))
    assert [found.code for found in store.maintenance.verify("t", level="decode").findings] == [FindingCode.STALE_WORDS]


# Which threads ----------------------------------------------------------------------------------------------------


def many(on: Backend, count: int = 6, **settings: Any) -> Store:
    store = store_on(on, **settings)
    for number in range(count):
        for n in range(5):
            store.thread(f"{'ab'[number % 2]}{number}").put({"n": n, "text": f"{n} " * 50}, id=f"{n}")
    return store


def test_some_by_name_by_prefix_by_query_or_all(shared: Backend) -> None:
    store = many(shared)
    assert [each.thread for each in store.maintenance.prune(keep_last=4, threads=["a0", "b1"]).threads] == ["a0", "b1"]
    assert [each.thread for each in store.maintenance.prune(keep_last=4, prefix="b").threads] == ["b3", "b5"]
    assert [each.thread for each in store.maintenance.prune(keep_last=4, where="steps>4").threads] == ["a2", "a4"]
    report = store.maintenance.prune(keep_last=3)
    assert [each.thread for each in report.threads] == ["a0", "a2", "a4", "b1", "b3", "b5"]
    assert report.dropped == 6
    assert {len(store.thread(each.thread).log()) for each in store.threads()} == {3}
    with pytest.raises(NotFoundError):
        store.maintenance.prune(keep_last=3, threads="none")
    with pytest.raises(InvalidError, match="by name, or by a prefix"):
        store.maintenance.prune(keep_last=3, threads="a0", prefix="a")
    with pytest.raises(InvalidError):
        store.maintenance.prune()


def test_what_a_query_matches_is_kept(shared: Backend) -> None:
    store = filled(shared)
    report = store.maintenance.prune(keep_where="meta.n<2")
    assert [each.id for each in store.thread("t").log().all()] == ["81", "7", "1", "0"]
    assert report.threads[0].checkpoints[-1].reasons == ("matches",)
    with pytest.raises(InvalidError):
        store.maintenance.prune(keep_where="meta.n<")


def test_by_age(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, clock=clock)
    for n in range(5):
        store.thread("t").put({"n": n}, id=str(n))
        clock.now += DAY
    store.maintenance.prune(keep_within="36h")
    assert [each.id for each in store.thread("t").log().all()] == ["4"]


def test_namespaces_go_with_their_thread(shared: Backend) -> None:
    store = many(shared, 1)
    for name in ("a0␟child", "a0␟child|inner", "a0␟␟b", "a00"):
        for n in range(5):
            store.thread(name).put({"n": n}, id=str(n))
    report = store.maintenance.prune(keep_last=2, threads="a0")
    assert [each.thread for each in report.threads] == ["a0", "a0␟child", "a0␟child|inner"]
    assert [len(store.thread(name).log()) for name in ("a0", "a0␟child", "a0␟child|inner", "a0␟␟b", "a00")] == [
        2,
        2,
        2,
        5,
        5,
    ]
    assert len(store.maintenance.prune(keep_last=2, threads="a0␟child").threads) == 1
    for n in range(2):
        store.thread("gone␟child").put({"n": n})

    def listed(**selection: Any) -> list[str]:
        return [each.thread for each in store.maintenance.prune(keep_last=1, dry_run=True, **selection).threads]

    every = listed()
    assert every == ["a0", "a00", "a0␟child", "a0␟child|inner", "a0␟␟b", "gone␟child"]
    assert listed(prefix="a0␟c") == ["a0␟child", "a0␟child|inner"]
    assert listed(where="thread:a0") == ["a0", "a0␟child", "a0␟child|inner"]
    assert listed(where="thread:*child") == ["a0␟child", "gone␟child"]


def test_a_thread_fits_with_its_namespaces(shared: Backend) -> None:
    store = store_on(shared, fold_every=3)
    for thread in ("t", "t0", "t␟child"):
        bulky(store, thread)
    size = store.thread("t0").info().bytes
    report = store.maintenance.prune(max_thread_bytes=size)
    assert report.over == 0
    assert len(store.thread("t0").log()) == 12
    assert store.thread("t").info().bytes + store.thread("t␟child").info().bytes <= size
    assert len(store.thread("t").log()) + len(store.thread("t␟child").log()) < 20


def test_progress_and_each(shared: Backend) -> None:
    store = many(shared)
    told: list[Any] = []
    each: list[ThreadPruneReport] = []
    report = store.maintenance.prune(keep_last=2, progress=lambda *how: told.append(how), each=each.append)
    assert told[0] == (1, 6, "a0")
    assert told[-1] == (6, 6, "b5")
    assert [len(found.checkpoints) for found in each] == [5] * 6
    assert all(not found.checkpoints for found in report.threads)
    assert (report.kept, report.dropped) == (12, 18)


# Sizes ------------------------------------------------------------------------------------------------------------


def bulky(store: Store, thread: str, count: int = 12) -> None:
    for n in range(count):
        store.thread(thread).put(
            {"n": n, "text": f"{thread}{n}" + chr(97 + n) * 3000, "log": list(range(n))}, id=f"{n:02}"
        )


@pytest.mark.parametrize("most", [100, 1300, 1900, 4000])
def test_a_thread_fits(shared: Backend, most: int) -> None:
    store = store_on(shared, fold_every=3)
    bulky(store, "t")
    whole = states_of(store, "t")
    planned = store.maintenance.prune(max_thread_bytes=most, dry_run=True)
    report = store.maintenance.prune(max_thread_bytes=most)
    assert (planned.bytes, planned.dropped, planned.over) == (report.bytes, report.dropped, report.over)
    left = states_of(store, "t")
    assert left == {id: whole[id] for id in sorted(whole)[report.dropped :]}, "the oldest go"
    size = store.thread("t").info().bytes
    assert size <= most if not report.over else (len(left), size - most) == (1, report.over)
    if most == 4000:
        assert report.dropped == 0
    elif most > 100:
        assert 0 < report.dropped < 11


def test_all_threads_together_fit(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, fold_every=3, clock=clock)
    for thread in ("old", "new"):
        bulky(store, thread)
        clock.now += DAY
    whole = sum(each.bytes for each in store.threads())
    most = whole * 2 // 3
    planned = store.maintenance.prune(max_bytes=most, dry_run=True)
    report = store.maintenance.prune(max_bytes=most)
    assert (planned.bytes, planned.left, planned.over) == (report.bytes, report.left, report.over)
    assert sum(each.bytes for each in store.threads()) == report.left
    assert whole // 3 < (report.left or 0) <= most
    assert len(store.thread("new").log()) == 12, "the oldest go first, wherever they are"
    assert store.thread("old").get().state["n"] == 11
    report = store.maintenance.prune(max_bytes=1)
    assert report.over == (report.left or 0) - 1
    assert [len(store.thread(thread).log()) for thread in ("old", "new")] == [1, 1]


def test_what_goes_from_a_large_thread_need_not_go_elsewhere(shared: Backend) -> None:
    clock = Clock()
    store = store_on(shared, fold_every=3, clock=clock)
    bulky(store, "old", 4)
    clock.now += DAY
    bulky(store, "large", 40)
    whole = sum(each.bytes for each in store.threads())
    report = store.maintenance.prune(max_thread_bytes=whole // 3, max_bytes=whole * 2 // 3)
    assert len(store.thread("old").log()) == 4
    assert 1 < len(store.thread("large").log()) < 40
    assert report.over == 0
    assert sum(each.bytes for each in store.threads()) == report.left


def test_what_is_held_counts_and_stays(shared: Backend) -> None:
    store = store_on(shared, fold_every=3)
    bulky(store, "t")
    store.thread("t").hold(reason="wanted")
    size = store.thread("t").info().bytes
    report = store.maintenance.prune(max_bytes=size // 2)
    assert (report.left, report.over, report.dropped) == (size, size - size // 2, 0)
    assert [each.code for each in report.problems] == ["denied"]


# Others -----------------------------------------------------------------------------------------------------------


def test_a_rewrite_under_way_is_reported_and_the_pass_goes_on(shared: Backend) -> None:
    store = many(shared)
    lease = Lease(store._engine.context, Line("", "a2"), "rewrite")
    run(lease.acquire())
    report = store.maintenance.prune(keep_last=2)
    (problem,) = report.problems
    assert (problem.thread, problem.code, problem.dropped) == ("a2", "under-way", 0)
    assert report.dropped == 15
    assert len(store.thread("a2").log()) == 5
    with pytest.raises(ConflictError):
        store.maintenance.prune(keep_last=2, threads="a2")
    planned = store.maintenance.prune(keep_last=2, dry_run=True)
    assert planned.dropped == 3
    run(lease.release())
    assert store.maintenance.prune(keep_last=2).bytes == planned.bytes


def test_a_thread_that_is_damaged_is_reported(shared: Backend) -> None:
    store = many(shared, fold_every=2)
    for row in rows_of(shared, Line("", "a2"))["nodes"]:
        run(shared.apply([Put(NODES, row._replace(body=b"damaged"))]))
    store = store_on(shared, fold_every=2, cache_bytes=0)
    report = store.maintenance.prune(keep_last=2)
    assert [(each.thread, each.code) for each in report.problems] == [("a2", "corrupt")]
    with pytest.raises(CorruptError):
        store.maintenance.prune(keep_last=2, threads="a2", dry_run=True)


@pytest.mark.parametrize("rules", [{}, {"keep_where": "word"}], ids=str)
def test_a_thread_that_is_damaged_is_reported_also_where_all_have_to_fit(shared: Backend, rules: Any) -> None:
    store = many(shared, fold_every=2)
    size = sum(each.bytes for each in store.threads())
    for row in rows_of(shared, Line("", "a2"))["nodes"]:
        run(shared.apply([Put(NODES, row._replace(body=b"damaged"))]))
    store = store_on(shared, fold_every=2, cache_bytes=0)
    report = store.maintenance.prune(max_bytes=size // 2, max_thread_bytes=size // 12, **rules)
    assert [(each.thread, each.code) for each in report.problems] == [("a2", "corrupt")]
    assert report.dropped > 0
    assert sum(each.bytes for each in store.threads()) == report.left


class Counting(Wrapper):
    """Counts how often room is given back."""

    tidied = 0

    async def tidy(self) -> None:
        self.tidied += 1
        await self.inner.tidy()


def test_room_is_given_back_also_where_only_old_revisions_went(shared: Backend) -> None:
    counting = Counting(shared)
    store = filled(counting)
    store.thread("t").put({"n": "revised"}, id="6")
    assert store.maintenance.prune(keep_last=100).dropped == 0
    assert counting.tidied == 1
    store.maintenance.prune(keep_last=100)
    store.maintenance.prune(keep_last=1, dry_run=True)
    assert counting.tidied == 1, "there was nothing to give back"


@pytest.mark.nightly
@pytest.mark.parametrize("cached", [False, True])
def test_a_thread_that_is_deleted_meanwhile_is_left(fresh: Backends, cached: bool) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = many(backend, 2), store_on(backend.inner)
        store = store if cached else store_on(backend, fold_every=3)
        with moment.interfere(backend, lambda: other.thread("b1").delete()):
            report = store.maintenance.prune(keep_last=2)
        assert not report.problems
        assert len(other.thread("a0").log()) == 2
        assert len(other.thread("b1").log()) == (0 if moment.came else 2)
        assert other.maintenance.verify(level="decode").findings == []

    at_every_moment(scenario, at_least=7)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("what", "dry_run"),
    mostly_nightly([("pin", True), ("pin", False), ("tag", False), ("label", False)], daily=[("pin", False)]),
)
def test_what_is_protected_meanwhile_stays(fresh: Backends, what: str, dry_run: bool) -> None:
    protected: list[Moment] = []

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = copied(backend, filled, fold_every=3)
        other = store_on(backend.inner, fold_every=3)

        def act() -> None:
            with suppress(NotFoundError):  # it is gone already
                if what == "pin":
                    other.thread("t").pin("1", reason="now")
                else:
                    (other.thread("t").tag if what == "tag" else other.thread("t").label)("good", "1")
                protected.append(moment)

        with moment.interfere(backend, act):
            store.maintenance.prune(keep_last=2, threads="t", dry_run=dry_run)
        found = states_of(other, "t")
        if moment in protected or dry_run:
            assert found["1"]["n"] == 1
        else:
            assert "1" not in found
        assert dry_run or "0" not in found

    at_every_moment(scenario, ["read"] if dry_run else ["read", "apply"], at_least=8)
    assert len(protected) >= 20


def test_others_save_while_it_is_tried_out(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store = copied(backend, filled, fold_every=3, cache_bytes=0)
        other = store_on(backend.inner, fold_every=3)

        def act() -> None:
            other.thread("t").put({"n": "new"}, id="9")
            other.maintenance.compact("t")

        with moment.interfere(backend, act):
            report = store.maintenance.prune(keep_last=2, threads="t", dry_run=True)
        assert report.dropped in ((7, 9) if moment.came else (7,))

    at_every_moment(scenario, ["read"], at_least=30)


def test_the_file_gets_smaller(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as store:
        for n in range(300):
            store.thread("t").put({"n": n, "text": f"{n}" * 2000, "large": f"{LARGE}{n % 40}"})
        before = store.status().bytes
        report = store.maintenance.prune(keep_last=10)
        assert report.dropped == 290
        assert store.status().bytes < before // 2


@pytest.mark.parametrize("apart", [True, False])
def test_small_steps_are_given_back_too(tmp_path: Path, apart: bool) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db") as store:
        places = [(thread, n) for thread in range(8) for n in range(100)]
        with store.transaction() as together:
            for thread, n in places if apart else sorted(places, key=lambda place: place[1]):
                together.put(f"t{thread}", {"n": n, "said": f"message {n} of {thread}, " + "and more " * 20})
        run(store._engine.context.backend.tidy())
        before = store.status().bytes
        report = store.maintenance.prune(keep_last=20)
        assert report.dropped == 640
        assert before - store.status().bytes > 0.6 * report.bytes > 60_000


def test_awaited(tmp_path: Path) -> None:
    async def go() -> None:
        async with holdfast.aopen(f"sqlite:///{tmp_path}/store.db") as store:
            for n in range(5):
                await store.thread("t").put({"n": n}, id=str(n))
            await store.thread("t").pin("1", reason="why")
            assert (await store.maintenance.prune(keep_last=1)).dropped == 3
            assert [pin.id for pin in await store.thread("t").pins()] == ["1"]

    asyncio.run(go())


def test_references_of_what_goes_go(shared: Backend) -> None:
    store = filled(shared)
    store.thread("t").tag("best", "4")
    store.thread("t").pin("5", reason="r")
    store.thread("t").hold(reason="for now")
    store.thread("t").release()
    store.maintenance.prune(keep_last=2, keep_tagged=False)
    assert [(row.key[2], row.columns[0]) for row in rows_of(shared)["refs"]] == [("pin", "5")]
    run(shared.apply([Delete(REFS, (*LINE, "pin"))]))
    store.maintenance.prune(keep_last=2, keep_tagged=False)
    assert "5" not in states_of(store, "t")
