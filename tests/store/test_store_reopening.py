"""Everything is there after closing and opening, and readable with other tools."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import astuple

import holdfast
from holdfast.errors import NotFoundError
from holdfast.savers import Checkpointer


def test_everything_is_there_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, tenant="acme") as store:
        for n in range(40):
            store.thread("t").put(
                {"items": [f"item {m}" for m in range(n)], "big": "x" * 100_000, "n": n}, id=f"{n:03}"
            )
        store.thread("t").fork("b", at="010")
        store.thread("t").update(
            {"n": "b"}, branch="b", id="100", tag="on b", labels=["x", "y"], metadata={"m": (1, 2)}
        )
        store.thread("t").fork("empty", at="020")
        store.thread("t").put({"n": "revised"}, id="100")
        Checkpointer(store).put_writes("t", "100", [("c", {1})], task_id="task")
        log, thread = store.thread("t").log(), store.thread("t").info()
        names, tags, branches = store.thread("t").tags(), store.thread("t").labels(), store.thread("t").branches()
        states = {each.id: store.thread("t").get(each.id).state for each in log}
    with holdfast.open(url, tenant="acme") as store:
        assert (store.thread("t").log(), store.thread("t").info()) == (log, thread)
        assert (store.thread("t").tags(), store.thread("t").labels(), store.thread("t").branches()) == (
            names,
            tags,
            branches,
        )
        assert {each.id: store.thread("t").get(each.id).state for each in log} == states
        assert store.thread("t").get(at="empty").id == "020"
        assert store.thread("t").get(at="on b").state == {"n": "revised"}
        found = Checkpointer(store).get_tuple("t", "100")
        assert found is not None
        assert list(map(astuple, found.pending_writes)) == [("task", "c", {1})]
        assert store.thread("t").get().id == "039"
        assert store.thread("t").put({"n": "more"}).step == 40


def test_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        store.thread("t").put({"n": 1})
        store.thread("u").put({"n": 1})
        store.thread("t").delete()
    with holdfast.open(url) as store, pytest.raises(NotFoundError):
        store.thread("t").get()


def test_what_others_saved_is_seen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as one, holdfast.open(url) as two:
        one.thread("t").put({"n": 1, "l": [1]})
        assert two.thread("t").get().state == {"n": 1, "l": [1]}
        two.thread("t").update({"l": [1, 2]})
        assert one.thread("t").get().state == {"n": 1, "l": [1, 2]}
        two.thread("t").delete()
        with pytest.raises(NotFoundError):
            one.thread("t").get()
        two.thread("t").put({"n": "new"})
        assert one.thread("t").put({"n": "newer"}).step == 1


def test_the_views_show_threads_and_log(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", tenant="acme") as store:
        first = store.thread("t").put({"n": 1}, metadata={"by": "me", "at": (1, 2)})
        store.thread("t").update({"n": 2})
        store.thread("t").fork("b")
    connection = sqlite3.connect(tmp_path / "store.db")
    try:
        threads = connection.execute("SELECT tenant, thread, steps, branches, created, time FROM threads").fetchall()
        log = connection.execute("SELECT tenant, thread, branch, seq, id, kind, metadata FROM log").fetchall()
    finally:
        connection.close()
    assert [each[:4] for each in threads] == [("acme", "t", 2, 2)]
    assert threads[0][4] <= threads[0][5]
    assert log[0] == ("acme", "t", 0, 0, first.id, "save", '{"by":"me","at":[1,2]}')
    assert [each[5] for each in log] == ["save", "update"]


def test_a_small_cache_changes_nothing_but_time(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, cache_bytes=0) as store:
        for n in range(40):
            store.thread("t").put({"n": n, "items": list(range(n * 3))})
        assert store.thread("t").get(at=20).state == {"n": 20, "items": list(range(60))}
        assert store.status().cache_bytes == 0


def test_synchronous_normal_keeps_everything_through_a_close(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db?synchronous=normal"
    with holdfast.open(url) as store:
        store.thread("t").put({"n": 1})
    with holdfast.open(url) as store:
        assert store.thread("t").get().state == {"n": 1}
