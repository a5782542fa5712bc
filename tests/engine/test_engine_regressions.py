"""What once went wrong: two stores on one file, stale memories, rewrites that were overtaken, large values, odd ids."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.interface import Backend, Delete, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import NODES, REFS, TABLES
from holdfast.codec import Codec
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.ids import new_id, time_of
from holdfast.engine.leases import Lease
from holdfast.errors import ConflictError, InvalidError, NotFoundError, TooLargeError
from holdfast.store.store import Store
from tests.engine.lines import KINDS, Backends, Clock, backend, store_on
from tests.support.interference import InterferingBackend, Moment, at_every_moment

LARGE = ["a" * 100_000, "b" * 100_000, "c" * 100_000]


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A backend for several stores, closed in the end."""
    opened = backend(request.param, tmp_path)
    yield opened
    run(opened.close())


def stores(on: Backend, **settings: Any) -> tuple[Store, Store]:
    clock = Clock()
    return store_on(on, clock=clock, **settings), store_on(on, clock=clock, **settings)


# Large values -----------------------------------------------------------------------------------------------------


def test_large_items_added_by_a_cold_writer_are_stored(shared: Backend) -> None:
    for count in (1, 2, 3):
        store_on(shared).thread("t").put({"list": LARGE[:count]})
    assert store_on(shared).thread("t").get().state == {"list": LARGE}


def test_large_items_stay_through_folds_and_partial_changes(shared: Backend) -> None:
    store = store_on(shared, fold_every=2, cache_bytes=0)
    for count in (1, 2, 3):
        store.thread("t").put({"list": LARGE[:count], "n": count})
    store.thread("t").update({"list": [*LARGE, "small"], "n": 4})
    assert store_on(shared).thread("t").get().state == {"list": [*LARGE, "small"], "n": 4}


def test_children_with_large_items_are_rebased(shared: Backend) -> None:
    store = store_on(shared, cache_bytes=0, fold_every=2)
    store.thread("t").put({"list": ["x"]}, id="1")
    store.thread("t").put({"list": ["x", LARGE[0]]}, id="2")
    store.thread("t").put({"list": ["x", LARGE[0], "y"]}, id="3")
    store.thread("t").put({"other": 1}, id="1")
    assert store.thread("t").get("1").state == {"other": 1}
    assert store.thread("t").get("2").state == {"list": ["x", LARGE[0]]}
    assert store.thread("t").get("3").state == {"list": ["x", LARGE[0], "y"]}


def test_what_could_not_be_read_is_not_written() -> None:
    ground = EngineContext(run(MemoryBackend.open("memory://")), codec=Codec(max_bytes=1 << 20))
    store = Store(Engine(ground), "")
    store.thread("t").put({"n": 1})
    channels = {f"c{n}": ["x" * 60_000] * 8 for n in range(3)}
    with pytest.raises(TooLargeError, match=r"over the limit of 1048576 \(at thread 't'\). Save it in several"):
        store.thread("t").put(channels)
    assert store.thread("t").put({"n": 2}).parent == store.thread("t").log()[1].id


def test_the_cache_weighs_what_it_holds_uncompressed() -> None:
    store = store_on(run(MemoryBackend.open("memory://")), cache_bytes=2 << 20)
    for n in range(20):
        for turn in range(10):
            store.thread(f"t{n}").put({"text": f"{turn}" * 60_000})
    held = [entry for entry, _ in store._engine.context.cache._entries.values() if hasattr(entry, "tail")]
    tails = sum(len(op.value) for each in held for _, edit in each.tail for _, op in edit.put)
    assert tails <= 2 << 20


# Stale memories ---------------------------------------------------------------------------------------------------


def test_unchanged_is_judged_by_what_is_there_now(shared: Backend) -> None:
    one, other = stores(shared)
    one.thread("t").put({"v": 1})
    other.thread("t").put({"v": 2})
    one.thread("t").put({"v": 1}, if_changed=True)
    assert other.thread("t").get().state == {"v": 1}


def test_unchanged_on_top_of_the_latest_that_others_follow_with_lower_ids(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"v": 1}, id="9")
    store.thread("t").put({"v": 2}, id="5")
    assert store.thread("t").put({"v": 1}, if_changed=True, labels=["same"]).id == "9"
    assert store.thread("t").labels() == {"same": ["9"]}


def test_a_change_is_judged_by_what_is_there_now(shared: Backend) -> None:
    one, other = stores(shared)
    one.thread("t").put({"a": 1})
    other.thread("t").update({("d", "x"): 1})
    one.thread("t").update({}, remove=[("d", "x")])
    assert one.thread("t").get().state == {"a": 1, "d": {}}
    with pytest.raises(NotFoundError):
        one.thread("t").update({}, remove=[("d", "x")])


def test_an_id_that_others_saved_meanwhile_is_seen(shared: Backend) -> None:
    one, other = stores(shared)
    one.thread("t").put({"v": 1}, id="1")
    one.thread("t").put({"v": 2}, id="2")
    other.thread("t").put({"v": 3}, id="3")
    one.thread("t").put({"v": 33}, id="3")
    assert [(each.id, each.parent) for each in one.thread("t").log().all()] == [("3", "2"), ("2", "1"), ("1", None)]
    assert one.thread("t").get("3").state == {"v": 33}
    other.thread("t").put({"v": 4}, id="4")
    other.thread("t").put({"v": 5}, id="5")
    with pytest.raises(ConflictError, match="checkpoint 4 already exists, with a different parent"):
        one.thread("t").put({"v": 44}, id="4", parent="5")


def test_a_thread_deleted_and_made_anew_by_another(shared: Backend) -> None:
    one, other = stores(shared, fold_every=2)
    for n in range(5):
        one.thread("t").put({"n": n})
    other.thread("t").delete()
    other.thread("t").put({"fresh": True})
    one.thread("t").put({"fresh": True, "more": 1})
    assert len(one.thread("t").log()) == 2
    assert other.thread("t").get().state == {"fresh": True, "more": 1}


def test_lazy_reads_go_on_after_another_compacted(shared: Backend) -> None:
    one, other = stores(shared, fold_every=2)
    for n in range(8):
        one.thread("t").put({"list": [f"item {i}" * 100 for i in range(n * 10)]}, id=str(n))
    lazy = one.thread("t").get("5", lazy=True).state
    assert lazy.length("list") == 50
    other.maintenance.compact("t")
    assert lazy["list"] == [f"item {i}" * 100 for i in range(50)]
    other.maintenance.compact("t")
    assert one.thread("t").get("5", lazy=True).state["list"] == lazy["list"]
    assert one.thread("t").put({"list": []}).step == 8


# Revisions --------------------------------------------------------------------------------------------------------


def test_main_goes_with_a_new_revision(shared: Backend) -> None:
    store = store_on(shared)
    for n in range(3):
        store.thread("t").put({"v": n}, id=str(n))
    store.thread("t").put({"v": "new"}, id="2")
    assert store.thread("t").get(at="main").state == {"v": "new"}
    made = store.thread("t").put({"v": 3}, id="3", branch="main")
    assert made.parent == "2"
    assert store.thread("t").get().state == {"v": 3}
    store.thread("t").put({"v": "newer"}, id="1")
    assert store.thread("t").get(at="main").id == "3"
    assert [each.name for each in store.thread("t").branches()].count("main") == 1


def test_revising_again_and_again_leaves_no_heap_of_branches(shared: Backend) -> None:
    store = store_on(shared)
    for n in range(4):
        store.thread("t").put({"v": n}, id=str(n))
    for n in range(3):
        store.thread("t").put({"v": f"2, {n}"}, id="2")
    before = len(store.thread("t").branches())
    for n in range(4):
        store.thread("t").put({"v": f"1, {n}"}, id="1")
    assert (
        len(store.thread("t").branches()) == before + 8
    )  # each time one for the revision, and one for what follows it
    assert [store.thread("t").get(str(n)).state["v"] for n in range(4)] == [0, "1, 3", "2, 2", 3]


def test_what_is_appended_during_a_revision_moves_along(shared: Backend) -> None:
    backend = InterferingBackend(shared)
    store, other = store_on(backend), store_on(shared)
    for n in range(3):
        store.thread("t").put({"v": n}, id=str(n))
    with backend.interfere(lambda: other.thread("t").put({"v": 3}, id="3", branch="main")):
        store.thread("t").put({"v": "new"}, id="1")
    assert store.thread("t").get(at="main").id == "3"
    assert store.thread("t").get("3").parent == "2"
    assert [store.thread("t").get(str(n)).state["v"] for n in range(4)] == [0, "new", 2, 3]


def test_a_branch_that_moves_while_one_appends_to_it(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend, cache_bytes=0), store_on(backend.inner)
        store.thread("t").put({"v": 0}, id="0")
        store.thread("t").put({"v": 1}, id="1")
        store.thread("t").fork("f", at="1")
        store.thread("t").put({"v": 2}, id="2", branch="f")
        with moment.interfere(backend, lambda: other.thread("t").put({"v": "new"}, id="1")):
            store.thread("t").put({"v": 3}, id="3", branch="f")
        assert store.thread("t").get(at="f").id == "3"
        assert store.thread("t").get("3").parent == "2"
        assert other.thread("t").get("1").state == {"v": "new" if moment.came else 1}

    at_every_moment(scenario)


def test_names_and_tags_of_what_is_saved_again(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"v": 1}, id="1", tag="n")
    store.thread("t").put({"v": 1}, id="1", tag="n", labels=["x"])
    store.thread("t").put({"v": 2}, id="1", tag="n", labels=["y"])
    store.thread("t").put({"v": 3}, id="2")
    for state in ({"v": 3}, {"v": 4}):
        with pytest.raises(ConflictError, match="has the tag"):
            store.thread("t").put(state, id="2", tag="n")
    assert (store.thread("t").tags(), store.thread("t").labels()) == ({"n": "1"}, {"x": ["1"], "y": ["1"]})
    assert store.thread("t").get("2").state == {"v": 3}


# Rewrites ---------------------------------------------------------------------------------------------------------


def lists(store: Store) -> dict[str, Any]:
    """Save nine checkpoints, of lists that grow."""
    states = {str(n): {"list": [f"item {i}" for i in range(n * 7)]} for n in range(9)}
    for id, state in states.items():
        store.thread("t").put(state, id=id)
    return states


def test_a_rewrite_that_was_overtaken_harms_nobody(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend, clock = InterferingBackend(fresh()), Clock()
        store = store_on(backend, clock=clock, fold_every=2)
        other = store_on(backend.inner, clock=clock, fold_every=2)
        states = lists(store)

        def overtake() -> None:
            clock.now += 3600 * 10**9  # the other one takes it for dead
            other.maintenance.compact("t")
            other.thread("t").put(states.setdefault("9", {"list": []}), id="9")

        with moment.interfere(backend, overtake), contextlib.suppress(ConflictError):
            store.maintenance.compact("t")
        cold = store_on(backend.inner, fold_every=2)
        assert {each.id: cold.thread("t").get(each.id).state for each in cold.thread("t").log().all()} == states

    at_every_moment(scenario, at_least=4)


def test_deleting_during_a_rewrite_leaves_nothing(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend, fold_every=2), store_on(backend.inner)
        lists(store)
        with (
            moment.interfere(backend, lambda: other.thread("t").delete()),
            contextlib.suppress(ConflictError, NotFoundError),
        ):
            store.maintenance.compact("t")
        assert len(other.threads()) == (not moment.came)
        rows = run(backend.read([Scan(space, ("", "t")) for space in TABLES]))
        assert any(rows) == (not moment.came)

    at_every_moment(scenario, at_least=4)


def test_a_lease_from_a_clock_that_was_ahead_is_dead(shared: Backend) -> None:
    ahead, store = store_on(shared, clock=Clock(2 * 10**18)), store_on(shared)
    store.thread("t").put({"v": 1})
    line = ahead._handle.thread_line("t")
    run(Lease(ahead._engine.context, line, "rewrite").acquire())
    store.maintenance.compact("t")


def test_compacting_frees_what_is_left_of_others(shared: Backend) -> None:
    store = store_on(shared, fold_every=2)
    for n in range(8):
        store.thread("t").put({"list": list(range(n))})
    backend = InterferingBackend(shared)
    cut = Store(Engine(EngineContext(backend, MemoryCache(0), fold_every=2)), "")

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), backend.interfere(die, at=4):
        cut.maintenance.compact("t")
    run(shared.apply([Delete(REFS, ("", "t", "lease"))]))
    store.maintenance.compact("t")
    (nodes,) = run(shared.read([Scan(NODES, ("", "t"))]))
    assert len({row.key[2] for row in nodes}) == 1


# Deleting while others read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [0, 1 << 20], ids=["cold", "warm"])
@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.thread("t").get().state["list"],
        lambda store: store.thread("t").get(lazy=True).state["list"],
        lambda store: store.thread("t").get(lazy=True).state.slice("list", start=0),
    ],
    ids=["get", "lazy", "slice"],
)
def test_deleted_between_two_reads(fresh: Backends, cache: int, use: Callable[[Store], Any]) -> None:
    last = [f"item {i}" for i in range(27)] + [LARGE[0]]

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend, cache_bytes=cache, fold_every=2), store_on(backend.inner)
        for n in range(5):
            store.thread("t").put({"list": last[: n * 7]})
        with moment.interfere(backend, lambda: other.thread("t").delete()):
            try:
                assert use(store) == last
            except NotFoundError:
                assert not other.threads()
        assert store.thread("t").put({"again": 1}).step == (0 if moment.came else 5)

    at_every_moment(scenario, ["read"])


def test_deleted_while_it_is_listed(fresh: Backends) -> None:
    def scenario(moment: Moment) -> None:
        backend = InterferingBackend(fresh())
        store, other = store_on(backend, cache_bytes=0, fold_every=2), store_on(backend.inner)
        for n in range(5):
            store.thread("t").put({"n": n}, id=str(n))
        with moment.interfere(backend, lambda: other.thread("t").delete()):
            found = [each.id for each in store.thread("t").log().all()]
        assert found == ["4", "3", "2", "1", "0"] or (moment.came and found == [])

    at_every_moment(scenario, ["read"])


# Ids and keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "after",
    [
        "",
        "step-9",
        "ffffffff-ffff-6fff-bfff-ffffffffffff",
        "fffffffe-ffff-6fff-bfff-ffffffffffff",
        "٩٩٩٩٩٩٩٩-٩٩٩٩-6٩٩٩-٩٩٩٩-٩٩٩٩٩٩٩٩٩٩٩٩",
        "zz~zz~zz",
        "x" * 900,
    ],
)
def test_ids_that_are_made_sort_after_the_parents(after: str) -> None:
    for short in (False, True, True, False, True):
        made = new_id(10**18, after, short=short)
        assert made > after
        after = made


def test_short_ids_sort_by_time_with_others() -> None:
    made = [new_id(10**18 + 100 * number, short=bool(number % 2)) for number in range(40)]
    assert made == sorted(made)
    assert [time_of(id) for id in made] == [10**18 + 100 * number for number in range(40)]
    assert {len(id) for id in made} == {23, 36}


def test_an_id_that_would_be_too_long_is_not_made() -> None:
    with pytest.raises(InvalidError, match="id made to follow that of the parent may have at most 1024"):
        new_id(10**18, "x" * 1020)


def test_keys_that_are_equal_in_python_are_one_key(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"d": {True: {"a": 1}, 2: "two"}})
    store.thread("t").update({("d", 1, "x"): 2, ("d", 2.0): "zwei"})
    assert repr(store.thread("t").get().state["d"]) == "{True: {'a': 1, 'x': 2}, 2: 'zwei'}"


def test_branches_opened_together_get_numbers_of_their_own(shared: Backend) -> None:
    store = store_on(shared)
    store.thread("t").put({"v": 1}, id="1")
    store.thread("t").put({"v": 2}, id="2")
    with store.transaction() as together:
        for n in range(3, 6):
            together.put("t", {"v": n}, id=str(n), parent="1")
        together.put("new", {"v": 1}, id="1")
        together.put("new", {"v": 2}, id="2", parent="1")
        together.put("new", {"v": 3}, id="3", parent="1")
    assert len({each.branch for each in together.checkpoints[:3]}) == 3
    assert [store.thread("t").get(str(n)).state["v"] for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert [(each.id, each.parent) for each in store.thread("new").log().all()] == [("3", "1"), ("2", "1"), ("1", None)]


def test_a_transaction_on_a_branch_and_on_what_it_changes_itself(shared: Backend) -> None:
    store = store_on(shared, fold_every=2)
    store.thread("t").put({"v": 1}, id="1")
    store.thread("t").fork("f", at="1")
    with store.transaction() as together:
        together.put("t", {"v": 2}, id="2", branch="f")
        together.update("t", {("d", "k"): 1}, id="3", branch="f")
        together.put("t", {"v": 3, "d": {"k": 1, "l": 2}}, id="4", branch="f")
        together.put("t", {"v": 3, "d": {"k": 1, "l": 2}}, id="5", branch="f", if_changed=True, labels=["same"])
    assert [each.id for each in together.checkpoints] == ["2", "3", "4", "4"]
    assert store.thread("t").get(at="f").state == {"v": 3, "d": {"k": 1, "l": 2}}
    assert store.thread("t").get("3").state == {"v": 2, "d": {"k": 1}}
    assert store.thread("t").labels() == {"same": ["4"]}
