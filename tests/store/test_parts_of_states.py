"""What a lazy state tells of its parts without reading them, logs in pages, and what is pending after a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.backends import run
from holdfast.engine.state_reader import ValueOutline
from holdfast.engine.types import PendingWrite
from holdfast.errors import InvalidError, NotFoundError
from holdfast.savers import CheckpointStore
from holdfast.store.log_reader import LogReader, branch_names, short_ids


def test_an_outline_says_what_is_there(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        many = {f"k{number}": "v" * 50 for number in range(500)}
        store.thread("t").put(
            {"n": 1, "small": {"a": 1}, "many": many, "list": ["x" * 50] * 500, "text": "y" * 100_000}
        )
    with holdfast.open(tmp_path / "a.db") as store:
        state = store.thread("t").get(lazy=True).state
        assert state.outline("n") == ValueOutline("value", None, 1)
        assert state.outline("small").kind == "dict"
        assert (state.outline("list").kind, state.outline("list").length) == ("list", 500)
        assert state.outline("text") == ValueOutline("large", None, 100_005)
        assert state.keys_at("many") == list(many)
        assert state.outline("many.k3").kind == "value"
        with pytest.raises(NotFoundError):
            state.outline("none")
        with pytest.raises(InvalidError):
            state.keys_at("list")


def test_a_log_resumes_where_a_page_ended(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        for number in range(20):
            store.thread("t").put({"n": number})
        thread = store.thread("t")
        thread.fork("other", at=10)
        for number in range(5):
            store.thread("t").put({"n": -number}, branch="other")
        thread.merge("other", strategy="theirs")
        whole = LogReader(thread)
        whole.start(all_branches=True)
        expected = [entry.id for entry in whole.entries()]
        assert len(expected) == 26
        for size in (1, 3, 26, 100):
            found, cursor = [], None
            while True:
                reader = LogReader(thread)
                reader.start(all_branches=True, cursor=cursor)
                found += [entry.id for entry in reader.page(size)]
                cursor = reader.cursor
                if cursor is None:
                    break
            assert found == expected
        with pytest.raises(InvalidError):
            LogReader(thread).start(cursor="x")


def test_a_log_is_not_read_without_the_right(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"n": 1}, id="c1")
        bob = store.as_identity(user="bob")
        for read in (LogReader(bob.thread("t")).start, lambda: branch_names(bob.thread("t"))):
            with pytest.raises(NotFoundError):
                read()
        with pytest.raises(NotFoundError):
            short_ids(bob.thread("t"), ["c1"])
        store.access.grant("user:bob", "read", thread="t")
        reader = LogReader(bob.thread("t"))
        reader.start()
        assert [entry.id for entry in reader.page(10)] == ["c1"]
        assert short_ids(bob.thread("t"), ["c1"]) == {"c1": "c1"}


def test_pending_writes_are_listed_without_the_state(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as store:
        store.thread("t").put({"n": 1}, id="c1")
        run(CheckpointStore(store).put_writes("t", "c1", [(0, "__interrupt__", "sure?")], task_id="task"))
        assert store.thread("t").pending_writes() == [PendingWrite("task", "__interrupt__", "sure?")]
        with pytest.raises(NotFoundError):
            store.as_identity(user="bob").thread("t").pending_writes()
