"""A search without an index says that it scans, shows its progress, and stops at a limit unless it is asked not to."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import Store
from holdfast.errors import InvalidError
from holdfast.history import search as search_module

THREADS, EACH = 7, 30


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with one needle, in the first checkpoint of the thread that was changed first: it is searched last."""
    with holdfast.open("memory://") as store:
        for thread in range(THREADS):
            for number in range(EACH):
                what = "needle" if not thread and not number else "hay"
                store.thread(f"t{thread}").put({"say": f"{what} {thread} {number}"}, metadata={"odd": number % 2})
        yield store


def test_it_stops_at_the_limit_and_resumes(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="holdfast.search"):
        page = store.search("needle", scan_limit=50)
    assert "stopped after" in caplog.text
    assert (list(page), page.how, page.stopped) == ([], "scan", True)
    assert 50 <= page.examined <= 50 + 128
    assert (
        repr(page)
        == f"<SearchPage of 0, {page.examined} checkpoints scanned without an index, the rest was not searched>"
    )
    pages, examined = 1, page.examined
    while page.next is not None:
        page = store.search("needle", scan_limit=50, cursor=page.next)
        examined += page.examined
        pages += 1
    assert [match.thread for match in page] == ["t0"]
    assert not page.stopped
    assert pages >= 3
    assert examined == THREADS * EACH, "each is read once"


def test_all_goes_on(store: Store) -> None:
    assert [match.thread for match in store.search("needle", scan_limit=50).all()] == ["t0"]
    everything = [match.id for match in store.search("hay", limit=200, scan_limit=None).all()]
    assert len(everything) == THREADS * EACH - 1
    assert [match.id for match in store.search("hay", limit=7, scan_limit=11).all()] == everything


def test_without_a_limit_it_reads_everything(store: Store) -> None:
    page = store.search("needle", scan_limit=None)
    assert [match.thread for match in page] == ["t0"]
    assert (page.next, page.stopped, page.examined) == (None, False, THREADS * EACH)
    page = store.search("needle")
    assert len(page) == 1, "the default is enough for a small store"


def test_a_scan_that_ends_at_the_limit_is_not_stopped(store: Store) -> None:
    for limit, is_stopped in ((THREADS * EACH - 1, False), (THREADS * EACH - EACH, True)):
        page = store.search("nowhere", scan_limit=limit)
        assert (page.stopped, page.next is not None) == (is_stopped, is_stopped), limit


def test_an_index_has_no_limit(store: Store) -> None:
    store.maintenance.build_index()
    page = store.search("needle", scan_limit=1)
    assert (len(page), page.how, page.stopped) == (1, "index", False)
    assert repr(page) == "<SearchPage of 1>"


def test_queries_without_text_stop_too(store: Store) -> None:
    page = store.search("meta.odd:7", scan_limit=40)
    assert (page.how, page.stopped) == ("scan", True)
    assert [match.id for match in page.all()] == []
    # Threads that their own properties exclude are not read, and count.
    page = store.search("steps>1000", scan_limit=3)
    assert (len(page), page.examined, page.next) == (0, 0, None)


def test_progress(store: Store) -> None:
    calls: list[tuple[int, int | None, str]] = []
    store.search("needle", progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[-1] == (THREADS, THREADS, "t0")
    calls.clear()
    for number in range(300):
        store.thread("long").put({"say": f"hay {number}"})
    store.search("needle thread:long", progress=lambda *call: calls.append(call))
    assert len(calls) >= 3, "also within a thread"


def test_threads_are_searched_in_blocks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {match.id for match in store.search("hay", limit=1000).all()}
    monkeypatch.setattr(search_module, "_BLOCK", 2)
    monkeypatch.setattr(search_module, "_THREAD_PAGE", 2)
    calls: list[tuple[int, int | None, str]] = []
    page = store.search("hay", limit=1000, progress=lambda *call: calls.append(call))
    assert {match.id for match in page} == whole
    assert (1, None, "t1") in calls
    order = list(dict.fromkeys(match.thread for match in page))
    assert order == ["t1", "t0", "t3", "t2", "t5", "t4", "t6"], "the last changed first, in each block"
    for limit, scan_limit in ((1000, 1), (1000, 31), (13, None), (13, 40), (1, 1)):
        found = [match.id for match in store.search("hay", limit=limit, scan_limit=scan_limit).all()]
        assert len(found) == len(whole), (limit, scan_limit)
        assert set(found) == whole, (limit, scan_limit)
    # A block in which nothing can match ends a page as well.
    page = store.search("thread:t6 OR steps>1000", scan_limit=3)
    assert page.stopped
    assert {match.thread for match in page.all()} == {"t6"}


def test_a_thread_that_changes_while_the_search_is_stopped(store: Store) -> None:
    page = store.search("hay", limit=1000, scan_limit=40)
    assert page.stopped
    seen = {match.id for match in page}
    store.thread(page[-1].thread).put({"say": "hay, new"})
    rest = [match.id for match in store.search("hay", limit=1000, scan_limit=None, cursor=page.next)]
    assert not seen & set(rest)
    assert len(seen) + len(rest) == THREADS * EACH - 1


def test_wrong_limits(store: Store) -> None:
    for wrong in (-1, 1.5, "10", True):
        with pytest.raises(InvalidError, match="scan_limit"):
            store.search("hay", scan_limit=wrong)  # type: ignore[arg-type]
    assert store.search("needle", scan_limit=0).stopped
