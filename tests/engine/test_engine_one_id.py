"""One id of the caller's own that several writers save at once, each with another content: one wins, the others get a
conflict, and no step has the id twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import ConflictError
from holdfast.store.store import Store
from tests.engine.lines import store_on
from tests.servers.places import KINDS, place
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import mostly_nightly

WRITERS = 8


SHARED = [kind for kind in KINDS if kind != "memory"]
"""Stores on which a save takes long enough that another one starts meanwhile."""


@pytest.fixture(params=mostly_nightly(SHARED, daily=["sqlite", "file", "postgres"]))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return place(request.param, tmp_path)


@pytest.fixture
def any_store(url: str) -> Iterator[Store]:
    with holdfast.open(url) as store:
        yield store


Save = Callable[[Store, int], object]


def saved(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except ConflictError as error:
        assert "at the same time" in error.what or "with a different parent" in error.what  # noqa: PT017 - others fail
        return False
    return True


def save_all(stores: Sequence[Store], save: Save) -> int:
    """Let all writers save at once, each to one of some stores. Returns how many did not get a conflict."""
    start, outcomes = threading.Barrier(WRITERS), list[bool]()

    def write(number: int) -> None:
        start.wait()
        outcomes.append(saved(lambda: save(stores[number % len(stores)], number)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(outcomes) == WRITERS, "a writer failed with another error"
    return sum(outcomes)


@pytest.mark.nightly
@pytest.mark.parametrize("stores", [1, WRITERS])
def test_of_writers_that_save_one_id_at_least_one_wins_and_verify_is_clean(
    any_store: Store, url: str, stores: int
) -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(holdfast.open(url)) for _ in range(stores - 1)]
        check_one_id([any_store, *others])


def check_one_id(stores: Sequence[Store]) -> None:
    lost, any_store = 0, stores[0]
    for turn in range(4):
        thread = f"t{turn}"
        if turn % 2:
            any_store.thread(thread).put({"before": 1}, id="0")
        if turn == 3:
            any_store.thread(thread).put({"n": -1}, id="x")
        won = save_all(stores, lambda store, number: store.thread(thread).put({"n": number}, id="x"))  # noqa: B023
        assert won, thread
        assert len([each for each in any_store.thread(thread).log() if each.id == "x"]) == 1
        lost += WRITERS - won
    assert lost, "no two saved at once"
    assert not any_store.maintenance.verify().findings


def test_the_same_content_is_no_conflict(any_store: Store) -> None:
    assert save_all([any_store], lambda store, _: store.thread("t").put({"n": 1}, id="x")) == WRITERS
    assert not any_store.maintenance.verify().findings


def at_the_end(store: Store, number: int) -> object:
    return store.thread("t").put({"n": number}, id="x")


def on_a_branch(store: Store, number: int) -> object:
    return store.thread("t").put({"n": number}, id="x", branch="main" if number else "side")


@pytest.mark.parametrize("save", [at_the_end, on_a_branch])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_at_every_moment_of_a_save_another_store_saves_the_same_id(save: Save, exists: bool, cached: bool) -> None:
    conflicts = 0

    def scenario(moment: Moment) -> None:
        nonlocal conflicts
        backend = InterferingBackend()
        first = store_on(backend)
        first.thread("t").put({"n": 0}, id="0")
        first.thread("t").fork("side", at="0")
        if exists:
            first.thread("t").put({"n": -1}, id="x", branch="main")
        store = first if cached else store_on(backend)
        other = store_on(backend)
        with moment.interfere(backend, lambda: saved(lambda: save(other, 0))):
            won = saved(lambda: save(store, 1))
        conflicts += not won
        found = store_on(backend)
        assert not found.maintenance.verify().findings
        assert (found.thread("t").get(at="x").state == {"n": 1}) is won

    at_every_moment(scenario)
    assert conflicts
