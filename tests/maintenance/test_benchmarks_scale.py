"""Threads that are made in bulk are as if they had been saved, and every operation that is measured on them works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from benchmarks.bulk_threads import fill, metadata_of, thread_of
from benchmarks.scale import WORK, Cost, prepared, store_for, table_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[holdfast.Store]:
    with holdfast.open(f"sqlite:///{tmp_path}/threads.db") as opened:
        fill(opened, 40, steps=3)
        yield opened


def test_threads_made_in_bulk_are_sound_and_go_on(store: holdfast.Store) -> None:
    assert store.maintenance.verify(level="decode").findings == []
    assert len(store.threads(limit=1000)) == 40
    assert [each.thread for each in store.threads(where="meta.user=u7")] == [thread_of(7)]
    thread = store.thread(thread_of(7))
    assert [each.step for each in thread.log()] == [2, 1, 0]
    assert thread.get().metadata == metadata_of(7)
    assert [each["role"] for each in thread.get().state["messages"]] == ["user", "assistant", "user"]
    thread.update({"more": 1})
    assert thread.diff("HEAD~1", "HEAD")
    assert store.maintenance.prune(keep_last=1).dropped == 2 * 40 + 1
    assert store.maintenance.verify(level="decode").findings == []
    with pytest.raises(ValueError, match="exists already"):
        fill(store, 1, first=3)


def test_what_is_measured_works(tmp_path: Path) -> None:
    """One after another in a folder, since some need what those before them have made."""
    for name, work in WORK.items():
        try:
            with prepared(work, store_for(work, tmp_path, size=40)) as store:
                work.call(store, tmp_path)
        except Exception as error:
            error.add_note(name)
            raise


def test_the_table_says_what_was_stopped_and_what_has_a_rate() -> None:
    found = {"walk": {1000: Cost(0.1, 40.0), 20_000: Cost(2.0, 41.0)}, "long": {1000: Cost(None, None)}}
    assert table_of(found).splitlines()[2:] == [
        "| walk | 100.0 ms, 40 MB | 2.0 s, 41 MB | 10,000 |",
        "| long | stopped |  |  |",
    ]
