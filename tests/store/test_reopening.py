"""Everything is there after closing and opening, and readable with other tools."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import NotFoundError
from holdfast.savers import Checkpointer


def test_everything_is_there_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, tenant="acme") as store:
        for n in range(40):
            store.put("t", {"items": [f"item {m}" for m in range(n)], "big": "x" * 100_000, "n": n}, id=f"{n:03}")
        store.thread("t").fork("b", at="010")
        store.update("t", {"n": "b"}, branch="b", id="100", tag="on b", labels=["x", "y"], metadata={"m": (1, 2)})
        store.thread("t").fork("empty", at="020")
        store.put("t", {"n": "revised"}, id="100")
        Checkpointer(store).put_writes("t", "100", [("c", {1})], task_id="task")
        log, thread = store.log("t"), store.thread("t").info()
        names, tags, branches = store.thread("t").tags(), store.thread("t").labels(), store.thread("t").branches()
        states = {each.id: store.get("t", each.id).state for each in log}
    with holdfast.open(url, tenant="acme") as store:
        assert (store.log("t"), store.thread("t").info()) == (log, thread)
        assert (store.thread("t").tags(), store.thread("t").labels(), store.thread("t").branches()) == (
            names,
            tags,
            branches,
        )
        assert {each.id: store.get("t", each.id).state for each in log} == states
        assert store.get("t", at="empty").id == "020"
        assert store.get("t", at="on b").state == {"n": "revised"}
        found = Checkpointer(store).get_tuple("t", "100")
        assert found is not None
        assert found.pending_writes == [("task", "c", {1})]
        assert store.get("t").id == "039"
        assert store.put("t", {"n": "more"}).step == 40


def test_what_is_deleted_stays_deleted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as store:
        store.put("t", {"n": 1})
        store.put("u", {"n": 1})
        store.delete("t")
    with holdfast.open(url) as store, pytest.raises(NotFoundError):
        store.get("t")


def test_what_others_saved_is_seen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url) as one, holdfast.open(url) as two:
        one.put("t", {"n": 1, "l": [1]})
        assert two.get("t").state == {"n": 1, "l": [1]}
        two.update("t", {"l": [1, 2]})
        assert one.get("t").state == {"n": 1, "l": [1, 2]}
        two.delete("t")
        with pytest.raises(NotFoundError):
            one.get("t")
        two.put("t", {"n": "new"})
        assert one.put("t", {"n": "newer"}).step == 1


def test_the_views_show_threads_and_log(tmp_path: Path) -> None:
    with holdfast.open(f"sqlite:///{tmp_path}/store.db", tenant="acme") as store:
        first = store.put("t", {"n": 1}, metadata={"by": "me", "at": (1, 2)})
        store.update("t", {"n": 2})
        store.thread("t").fork("b")
    connection = sqlite3.connect(tmp_path / "store.db")
    try:
        threads = connection.execute("SELECT tenant, thread, steps, branches, created, last FROM threads").fetchall()
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
            store.put("t", {"n": n, "items": list(range(n * 3))})
        assert store.get("t", at=20).state == {"n": 20, "items": list(range(60))}
        assert store.stats().cache_bytes == 0


def test_synchronous_normal_keeps_everything_through_a_close(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db?synchronous=normal"
    with holdfast.open(url) as store:
        store.put("t", {"n": 1})
    with holdfast.open(url) as store:
        assert store.get("t").state == {"n": 1}
