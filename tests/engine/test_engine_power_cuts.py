"""The power fails, at any moment of anything the engine does: what was acknowledged is there, and nothing by halves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.backends.runtime.drivers import run
from holdfast.backends.sqlite.backend import SQLiteBackend
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.engine.lines import Clock, store_on
from tests.support.nightly import mostly_nightly
from tests.support.sqlite.powercut import Labels, Log, check_cuts, record
from tests.support.sqlite.recording import Recorder

LONG = "word " * 30_000
"""Kept beside the line."""


class Play:
    """Does things to a store, and says before and after each what it does."""

    def __init__(self, store: Store, mark: Callable[[Any], None]) -> None:
        self.store = store
        self._mark = mark

    def put(self, thread: str, id: str, state: dict[str, Any], **more: Any) -> None:
        self._do("put", thread, id, state, lambda: self.store.thread(thread).put(state, id=id, **more))

    def update(self, thread: str, id: str, changes: dict[Any, Any], whole: dict[str, Any]) -> None:
        self._do("put", thread, id, whole, lambda: self.store.thread(thread).update(changes, id=id))

    def delete(self, thread: str) -> None:
        self._do("delete", thread, "", {}, lambda: self.store.thread(thread).delete())

    def compact(self, thread: str) -> None:
        self._do("compact", thread, "", {}, lambda: self.store.maintenance.compact(thread))

    def _do(self, what: str, thread: str, id: str, state: dict[str, Any], action: Callable[[], Any]) -> None:
        self._mark(("begins", what, thread, id, state))
        action()
        self._mark(("done", what, thread, id, state))


def play(store: Store, mark: Callable[[Any], None]) -> None:
    """A bit of everything: appends, folds, branches, large values, revisions, rewrites, deletions."""
    does = Play(store, mark)
    for turn in range(8):
        messages = [f"message {n} of a conversation" * 3 for n in range(turn + 1)]
        does.put("chat", f"{turn:03}", {"messages": messages, "turn": turn})
        does.put("notes", f"{turn:03}", {"notes": {f"key {n}": n * turn for n in range(20)}})
    does.put("chat", "010", {"messages": ["another way"], "turn": 3}, parent="003")
    does.put("chat", "011", {"messages": ["another way", "and on"], "report": LONG})
    whole = {"notes": {f"key {n}": n * 7 for n in range(20)} | {"key 3": "new"}}
    does.update("notes", "012", {("notes", "key 3"): "new"}, whole)
    does.put("chat", "002", {"messages": ["as it should have been"]})
    does.compact("chat")
    does.put("chat", "013", {"messages": ["after that"], "report": LONG + "and more"})
    does.delete("notes")
    does.put("notes", "001", {"notes": "from scratch"})
    does.compact("chat")
    does.delete("chat")


def recorded(synchronous: str) -> Log:
    """The log of a play on SQLite."""

    def workload(folder: Path, recorder: Recorder) -> None:
        backend = run(
            SQLiteBackend.open(
                f"sqlite:///{folder}/store.db", vfs=recorder.vfs, exclusive=True, synchronous=synchronous
            )
        )
        play(store_on(backend, fold_every=3, clock=Clock()), recorder.mark)
        run(backend.close())

    return record(workload)


def expected(labels: Labels) -> tuple[dict[str, dict[str, Any]], tuple[str, ...] | None]:
    """What must be there: states by id, by thread; and what was under way, which may be there or not."""
    threads: dict[str, dict[str, Any]] = {}
    under_way = None
    for when, what, thread, id, state in labels:
        under_way = (what, thread, id, state) if when == "begins" else None
        if when == "done" and what == "put":
            threads.setdefault(thread, {})[id] = state
        elif when == "done" and what == "delete":
            threads.pop(thread)
    return threads, under_way


def verify(folder: Path, labels: Labels) -> None:
    """Open what is left as anybody would, and look at every checkpoint."""
    threads, under_way = expected(labels)
    backend = run(SQLiteBackend.open(f"sqlite:///{folder}/store.db"))
    store = store_on(backend, fold_every=3)
    try:
        for thread in ("chat", "notes"):
            found = {
                checkpoint.id: store.thread(thread).get(checkpoint.id).state
                for checkpoint in store.thread(thread).log().all()
            }
            assert found in allowed(threads.get(thread, {}), thread, under_way), thread
        store.thread("chat").put({"messages": ["still works"]})
        assert store.thread("chat").get().state == {"messages": ["still works"]}
        assert run(backend.check()) == []
    finally:
        run(backend.close())


def allowed(saved: dict[str, Any], thread: str, under_way: Any) -> list[dict[str, Any]]:
    """What may be found in a thread: all that was saved, with or without what was under way."""
    ways = [saved]
    if under_way is not None and under_way[1] == thread:
        what, _, id, state = under_way
        if what == "put":
            ways.append({**saved, id: state})
        elif what == "delete":
            ways.append({})
    return ways


@pytest.mark.parametrize(("seed", "cuts"), mostly_nightly([(0, 25), (0, 250), (1, 250)], daily=[(0, 25)]))
def test_nothing_acknowledged_is_lost_by_a_power_cut(seed: int, cuts: int) -> None:
    assert check_cuts(recorded("full"), verify, cuts=cuts, seed=seed) == cuts


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(100, 120))
def test_nor_by_many_thousands(seed: int) -> None:
    log = recorded("full")
    assert check_cuts(log, verify, cuts=5 * len(log), seed=seed) == 5 * len(log)


@pytest.mark.parametrize("synchronous", mostly_nightly(["normal", "off"], daily=["normal"]))
def test_the_cuts_would_show_it(synchronous: str) -> None:
    """Without flushing before acknowledging, steps do get lost: this test sees it."""
    with pytest.raises((AssertionError, HoldfastError)):
        check_cuts(recorded(synchronous), verify, cuts=500)
