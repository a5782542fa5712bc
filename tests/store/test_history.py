"""Looking back: log, threads, time travel, restore."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.backends.runtime.drivers import run
from holdfast.errors import InvalidError, NotFoundError
from tests.engine.lines import KINDS, Clock, backend, store_on


@pytest.fixture(params=KINDS)
def clocked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Store, Clock]]:
    on = backend(request.param, tmp_path)
    clock = Clock()
    yield store_on(on, clock=clock), clock
    run(on.close())


def test_the_log_has_the_latest_first(store: Store) -> None:
    ids = [store.thread("t").put({"n": n}, metadata={"n": n, "even": n % 2 == 0}).id for n in range(300)]
    ids.reverse()
    log = store.thread("t").log()
    assert [each.id for each in log] == ids[:100]
    assert [each.id for each in log.all()] == ids
    assert log[0] == store.thread("t").log(limit=1)[0]
    assert log[0].state is None
    assert [each.id for each in store.thread("t").log(limit=7)] == ids[:7]
    assert [each.id for each in store.thread("t").log(cursor=ids[6], limit=3)] == ids[7:10]
    assert store.thread("t").log(limit=0) == []
    assert [each.metadata["n"] for each in store.thread("t").log(metadata={"even": True}, limit=3)] == [298, 296, 294]
    assert [each.metadata["n"] for each in store.thread("t").log(metadata={"n": 3, "even": False}).all()] == [3]
    assert store.thread("t").log(metadata={"n": 3, "even": True}) == []


def test_metadata_without_the_entry_is_not_meant(store: Store) -> None:
    store.thread("t").put({})
    assert store.thread("t").log(metadata={"error": None}) == []


def test_a_log_in_pages_is_the_whole_log(store: Store) -> None:
    for n in range(20):
        store.thread("t").put({"n": n}, id=f"{n:03}")
    store.thread("t").put({"n": "again"}, id="010")
    expected = [f"{n:03}" for n in reversed(range(20))]
    for limit in (1, 3, 4, 5, 19, 20, 21):
        page = store.thread("t").log(limit=limit)
        assert [each.id for each in page.all()] == expected
        pages = [list(page)]
        while page.next is not None:
            page = store.thread("t").log(limit=limit, cursor=page.next)
            pages.append(list(page))
        assert [len(each) for each in pages] == [len(expected[at : at + limit]) for at in range(0, 20, limit)]


def test_a_thread_nobody_wrote_to_has_an_empty_log(store: Store) -> None:
    assert store.thread("nobody").log() == []
    assert (store.thread("nobody").tags(), store.thread("nobody").labels()) == ({}, {})


def test_threads_by_name(store: Store) -> None:
    names = ["a/1", "a/2", "a/é", "b", "a", "😀", "Z"]
    for name in names:
        store.thread(name).put({})
    ordered = sorted(names)
    assert [each.thread for each in store.threads()] == ordered
    assert [each.thread for each in store.threads(prefix="a/")] == ["a/1", "a/2", "a/é"]
    assert [each.thread for each in store.threads(prefix="a/", cursor="a/1")] == ["a/2", "a/é"]
    assert [each.thread for each in store.threads(prefix="b", cursor="a/1")] == ["b"]
    assert store.threads(prefix="a", cursor="b") == []
    assert [each.thread for each in store.threads(cursor="a", limit=2)] == ["a/1", "a/2"]
    assert store.threads(limit=0) == []
    assert store.threads(prefix="none") == []


def test_a_thread_at_a_glance(store: Store) -> None:
    first = store.thread("t").put({"n": 0})
    latest = store.thread("t").put({"n": 1})
    store.thread("t").fork("b", at=first.id)
    other = store.thread("t").put({"n": 2}, branch="b")
    thread = store.thread("t").info()
    assert (thread.thread, thread.steps, thread.branches) == ("t", 3, 2)
    assert thread.latest == latest.id
    assert thread.created <= first.time <= thread.updated == max(latest.time, other.time)
    assert thread.bytes > 0
    assert store.threads() == [thread]


def test_the_store_in_figures(store: Store, url: str) -> None:
    for n in range(5):
        store.thread(f"t{n}").put({"x": "y" * 1000})
    store.thread("t1").get()
    stats = store.status()
    assert (stats.url, stats.threads, stats.cache_limit) == (url, 5, 64 << 20)
    assert stats.bytes > 500
    assert 0 < stats.cache_bytes < stats.cache_limit
    assert stats.cache_hits > 0
    assert stats.cache_misses > 0


def test_stats_count_beyond_a_page(store: Store) -> None:
    with store.transaction() as together:
        for n in range(1003):
            together.put(f"t{n}", {})
    assert store.status().threads == 1003


# Time travel ------------------------------------------------------------------------------------------------------


def test_by_step(store: Store) -> None:
    made = [store.thread("t").put({"n": n}) for n in range(5)]
    assert [store.thread("t").get(at=n).state["n"] for n in range(5)] == list(range(5))
    store.thread("t").fork("b", at=made[2].id)
    store.thread("t").put({"n": "b0"}, branch="b")
    store.thread("t").put({"n": "b1"}, branch="b")
    assert [store.thread("t").get(at=f"b#{n}").state["n"] for n in range(5)] == [0, 1, 2, "b0", "b1"]
    assert store.thread("t").get(at="main#3").id == made[3].id
    with pytest.raises(NotFoundError, match=r"'b' has the steps 0 to 4, but no step 5 .*thread 't'"):
        store.thread("t").get(at="b#5")
    with pytest.raises(NotFoundError, match="no step 5"):
        store.thread("t").get(at=5)
    with pytest.raises(InvalidError, match="0 or more, not -1"):
        store.thread("t").get(at=-1)


def test_by_time(clocked: tuple[Store, Clock]) -> None:
    store, clock = clocked
    made = []
    for n in range(10):
        made.append(store.thread("t").put({"n": n}))
        clock.now += 60 * 10**9
    for n, each in enumerate(made):
        assert store.thread("t").get(at=each.time).state == {"n": n}
        assert store.thread("t").get(at=each.time + timedelta(seconds=30)).state == {"n": n}
    zone = timezone(timedelta(hours=5))
    assert store.thread("t").get(at=made[4].time.astimezone(zone)).state == {"n": 4}
    assert store.thread("t").get(at=made[4].time.astimezone().replace(tzinfo=None)).state == {"n": 4}
    assert store.thread("t").get(at=datetime(2100, 1, 1, tzinfo=UTC)).state == {"n": 9}
    with pytest.raises(NotFoundError, match="no checkpoint at or before that time"):
        store.thread("t").get(at=made[0].time - timedelta(seconds=1))
    assert store.thread("t").restore(at=made[3].time).metadata == {"restored": made[3].id}


def test_by_time_over_branches(clocked: tuple[Store, Clock]) -> None:
    store, clock = clocked
    first = store.thread("t").put({"n": 0})
    clock.now += 10**9
    second = store.thread("t").put({"n": 1})
    clock.now += 10**9
    store.thread("t").fork("b", at=first.id)
    third = store.thread("t").put({"n": "b"}, branch="b")
    clock.now += 10**9
    store.thread("t").put({"n": 2}, branch="main")
    assert store.thread("t").get(at=second.time).id == second.id
    assert store.thread("t").get(at=third.time).id == second.id  # HEAD was on main all the time
    assert store.thread("t").get(at=f"b@{{{third.time.isoformat()}}}").id == third.id
    with pytest.raises(NotFoundError, match="the thread has no checkpoint at or before"):
        store.thread("t").get(at=first.time - timedelta(seconds=1))


def test_by_time_over_branches_of_graphs(clocked: tuple[Store, Clock]) -> None:
    """Without forks, HEAD was wherever a checkpoint was saved last."""
    store, clock = clocked
    saved = [store.thread("t").put({"n": 0})]
    for parent in (0, 0, 1, 2):
        clock.now += 10**9
        saved.append(store.thread("t").put({"n": len(saved)}, parent=saved[parent]))
    for each in saved:
        assert store.thread("t").get(at=each.time).id == each.id


def test_time_never_goes_back_along_a_line(clocked: tuple[Store, Clock]) -> None:
    store, clock = clocked
    first = store.thread("t").put({"n": 0})
    clock.now -= 3600 * 10**9
    second = store.thread("t").put({"n": 1})
    assert second.time == first.time
    assert second.id > first.id
    assert store.thread("t").get().id == second.id


# Restore ----------------------------------------------------------------------------------------------------------


def test_restore_appends(store: Store) -> None:
    made = [store.thread("t").put({"n": n, "big": "x" * 100_000 * n}) for n in range(4)]
    restored = store.thread("t").restore(at=made[1].id)
    assert (restored.parent, restored.step, restored.kind) == (made[3].id, 4, "restore")
    assert restored.metadata == {"restored": made[1].id}
    assert store.thread("t").get().state == {"n": 1, "big": "x" * 100_000}
    assert [each.id for each in store.thread("t").log().all()] == [restored.id, *(each.id for each in reversed(made))]
    assert store.thread("t").get(made[3].id).state["n"] == 3


def test_restore_by_name_and_by_step(store: Store) -> None:
    store.thread("t").put({"n": 0}, tag="good")
    store.thread("t").put({"n": 1})
    store.thread("t").put({"n": 2})
    store.thread("t").restore(at="good")
    assert store.thread("t").get().state == {"n": 0}
    store.thread("t").restore(at=1)
    assert store.thread("t").get().state == {"n": 1}


# Delete, compact --------------------------------------------------------------------------------------------------


def test_delete_takes_everything_along(store: Store) -> None:
    first = store.thread("t").put({"big": "x" * 200_000}, tag="n", labels=["g"])
    store.thread("t").fork("b")
    store.thread("other").put({"n": 1})
    assert store.thread("t").delete() is True
    assert store.thread("t").delete() is False
    assert [each.thread for each in store.threads()] == ["other"]
    assert (store.thread("t").log(), store.thread("t").tags(), store.thread("t").labels()) == ([], {}, {})
    for look in (
        lambda: store.thread("t").get(),
        lambda: store.thread("t").get(first.id),
        lambda: store.thread("t").info(),
    ):
        with pytest.raises(NotFoundError, match=r"no such thread.*thread 't'.*See threads\(\)"):
            look()
    again = store.thread("t").put({"n": 1}, tag="n")
    assert (again.step, again.parent) == (0, None)
    assert store.thread("t").get().state == {"n": 1}
    with pytest.raises(NotFoundError):
        store.thread("t").get(at="b")


def test_compact_changes_no_state_and_no_hash(store: Store) -> None:
    items: list[str] = []
    made = []
    for n in range(100):
        items = [*items[n % 3 :], f"item {n} {'x' * 100}"]
        made.append(store.thread("t").put({"items": items, "n": n}))
    store.thread("t").fork("b", at=made[40].id)
    store.thread("t").put({"n": "b"}, branch="b", tag="on b")
    log = store.thread("t").log()
    states = {each.id: store.thread("t").get(each.id).state for each in log}
    store.maintenance.compact("t")
    assert store.thread("t").log() == log
    store._engine.context.cache.clear()
    assert {each.id: store.thread("t").get(each.id).state for each in log} == states
    assert store.thread("t").put({"n": "after"}, branch="b").parent == store.thread("t").get(at="on b").id
