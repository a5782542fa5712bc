"""Lists of threads by their steps, branches and sizes, and by queries that ask for these: at any number of threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.interface import Query, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import STEPS
from holdfast.encryption import Encryption, LocalKeys
from holdfast.engine import thread_sizes
from holdfast.engine.thread_sizes import ThreadOrder
from holdfast.savers import CheckpointStore
from holdfast.store.store import Store
from tests.damaged import flipped
from tests.servers.places import COMPOSED, KINDS, place
from tests.support.nightly import mostly_nightly

ORDERS: tuple[ThreadOrder, ...] = ("updated", "steps", "branches", "size")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with holdfast.open(tmp_path / "a.db") as opened:
        yield opened


def fill(store: Store, count: int = 9) -> None:
    """Threads whose order by name, steps, branches and size differ; and lines that are no threads."""
    for number in range(count):
        thread = store.thread(f"t{number}")
        for step in range(1 + number * 4 % 5):
            thread.put({"n": step, "text": "x" * (number * 7 % 9 * 300)}, metadata={"user": f"u{number % 2}"})
        for branch in range(number * 5 % 3):
            thread.fork(f"b{branch}", changes={"n": -branch})
    store.state(agent="writer")["draft"] = "x" * 5000
    store.sessions.start("visit").state["seen"] = 1


def named(store: Store, where: str | None = None, **options: object) -> list[str]:
    return [each.thread for each in store.threads(where=where, limit=2, **options).all()]  # type: ignore[arg-type]


def sorted_by(store: Store, order: ThreadOrder) -> list[str]:
    """The names in an order, by what a list by name says of each thread."""
    field = "bytes" if order == "size" else order
    found = sorted(((getattr(each, field), each.thread) for each in store.threads().all()), reverse=True)
    return [name for _, name in found]


def check_orders(store: Store) -> None:
    for order in ORDERS:
        assert named(store, order=order) == sorted_by(store, order), order


def test_threads_are_listed_by_a_number_the_largest_first(store: Store) -> None:
    fill(store)
    check_orders(store)
    assert len({tuple(sorted_by(store, order)) for order in ORDERS}) == len(ORDERS), "the control: they differ"
    for order in ORDERS:
        of_user = [name for name in sorted_by(store, order) if int(name[1:]) % 2]
        assert named(store, "meta.user=u1", order=order) == of_user, order
        assert named(store, prefix="t3", order=order) == ["t3"], order
    assert store.threads(order="size", limit=1, preview=True)[0].message


def test_an_order_follows_what_happens_to_threads(store: Store, tmp_path: Path) -> None:
    fill(store)
    check_orders(store)
    store.thread("t0").put({"text": "y" * 9000})
    check_orders(store)
    with holdfast.open(tmp_path / "a.db") as other:
        check_orders(other)
        other.thread("t4").delete()
        for number in range(7):
            other.thread("t1").update({"n": number})
        other.thread("new").put({"n": 1})
    check_orders(store)
    store.maintenance.prune(["t1"], keep_last=1)
    check_orders(store)
    assert "t4" not in named(store, order="steps")


def test_only_threads_that_changed_are_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    read: set[str] = set()
    backend, original = store._engine.context.backend, store._engine.context.backend.read

    async def noted(queries: list[Query]) -> object:
        read.update(
            str(each.prefix[1])
            for each in queries
            if isinstance(each, Scan) and each.space == STEPS and each.prefix[1:]
        )
        return await original(queries)

    monkeypatch.setattr(backend, "read", noted)
    run(store._engine.sizes.known(""))
    assert len(read) == 9, "the control"
    read.clear()
    run(store._engine.sizes.known(""))
    assert read == set()
    store.thread("t3").put({"n": 100})
    read.clear()
    run(store._engine.sizes.known(""))
    assert read == {"t3"}


def test_all_are_read_again_where_the_store_forgot_what_changed(store: Store, tmp_path: Path) -> None:
    fill(store)
    check_orders(store)
    token = store.changes().token
    store.thread("t0").put({"text": "y" * 9000})
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("DELETE FROM changes")
    assert not store.changes(token).complete, "the control"
    check_orders(store)


def test_sizes_of_very_many_threads_are_read_each_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_sizes, "_MOST", 3)
    monkeypatch.setattr(thread_sizes, "_PAGE", 2)
    fill(store)
    check_orders(store)
    assert store._engine.sizes._known is None
    store.thread("t0").put({"text": "y" * 9000})
    check_orders(store)


QUERIES = (
    "steps>2",
    "steps>100",
    "-steps>2",
    "branches>1 OR steps:1",
    "size>2kb meta.user=u1",
    "thread:t3 OR thread:*5",
    "updated<1h",
    "created>1h steps<3",
    "time>1h text",
    "meta.user=u0 steps>1",
)


def test_filters_by_sizes_find_what_reading_all_finds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store)
    everything = {query: named(store, query) for query in QUERIES}
    assert everything["steps>100"] == [] != everything["steps>2"], "the control"
    monkeypatch.setattr("holdfast.store.thread_access._WALKED", 2)
    monkeypatch.setattr("holdfast.history.search._THREAD_PAGE", 2)
    for query, expected in everything.items():
        assert named(store, query) == expected, query
        for order in ORDERS:
            by_order = [name for name in sorted_by(store, order) if name in expected]
            assert named(store, query, order=order) == by_order, (query, order)


def test_a_status_and_an_order_together(store: Store) -> None:
    fill(store)
    for name in ("t0", "t3", "t6"):
        question = [(-3, "__interrupt__", "May I?")]
        head = store.thread(name).find().id
        run(CheckpointStore(store).put_writes(name, head, question, task_id="ask", status="waiting"))
    for order in ORDERS:
        by_order = sorted_by(store, order)
        assert named(store, status="waiting", order=order) == [name for name in by_order if name in ("t0", "t3", "t6")]
        assert len(named(store, status="idle", order=order)) == 6


def test_an_identity_lists_what_it_may_read_in_each_order(store: Store) -> None:
    fill(store)
    store.access.grant("user:bob", "read", thread="t3")
    store.access.grant("user:bob", "read", thread="t8")
    bob = store.as_identity("user:bob")
    for order in ORDERS:
        expected = [name for name in sorted_by(store, order) if name in ("t3", "t8")]
        assert [each.thread for each in bob.threads(order=order)] == expected


def test_a_damaged_thread_hides_no_other(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with holdfast.open(url) as store:
        fill(store)
        by_size = sorted_by(store, "size")
    (first,) = (tmp_path / "store").rglob("line=t6/birth")
    first.write_bytes(flipped(first.read_bytes(), 60))
    with holdfast.open(url) as store:
        assert [each.thread for each in store.threads() if each.damaged] == ["t6"], "the control"
        found = named(store, order="size")
        assert [name for name in found if name != "t6"] == [name for name in by_size if name != "t6"]
        assert found[-1] == "t6"
        assert "t6" in named(store, order="updated")


def test_wrong_orders_are_refused(store: Store) -> None:
    with pytest.raises(holdfast.errors.InvalidError, match="listed by name, updated, steps, branches or size"):
        store.threads(order="length")  # type: ignore[arg-type]
    with pytest.raises(holdfast.errors.InvalidError, match="only threads"):
        store.threads(kind="agent", order="size")
    with pytest.raises(holdfast.errors.InvalidError, match="cursor"):
        store.threads(order="size", cursor="t00")


def test_hidden_names_are_listed_in_order(tmp_path: Path) -> None:
    encryption = Encryption(LocalKeys(b"k" * 32), hide_names=True)
    with holdfast.open(tmp_path / "a.db", encryption=encryption) as store:
        fill(store)
        check_orders(store)
        store.thread("t2").put({"text": "y" * 9000})
        check_orders(store)


@pytest.mark.parametrize("kind", mostly_nightly([*KINDS, *COMPOSED], daily=["memory", "postgres", "redis"]))
def test_every_store_lists_in_order(kind: str, tmp_path: Path) -> None:
    with holdfast.open(place(kind, tmp_path), tenant="acme") as store:
        fill(store, 6)
        check_orders(store)
        store.thread("t1").delete()
        store.thread("t0").put({"text": "y" * 9000})
        check_orders(store)
