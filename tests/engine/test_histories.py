"""Random histories of a thread: whatever is done, every checkpoint has the state that was saved in it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.backends.runtime.drivers import run
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.engine.lines import KINDS, Clock, backend, store_on
from tests.engine.model.histories import edited_state, states
from tests.support.nightly import examples

ACTIONS = st.lists(
    st.sampled_from(
        ["put"] * 8
        + ["put on old"] * 3
        + ["update"] * 3
        + ["fork", "put on fork", "restore", "put again", "same again", "compact", "forget", "refuse", "together"]
    ),
    min_size=1,
    max_size=25,
)


class Thread:
    """A thread, and beside it what it should hold: the state of each id, and the order in which they were saved."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.saved: dict[str, dict[str, Any]] = {}
        self.forks: dict[str, str] = {}
        self.count = 0
        self.is_forked = False
        """Whether something was put on a fork, which may be beside HEAD."""

    def id(self) -> str:
        self.count += 1
        return f"{self.count:04}"

    @property
    def latest(self) -> str | None:
        if self.is_forked:
            return self.store.thread("t").get().id  # as `tests/history/test_head.py` has it
        return max(self.saved, default=None)

    def check(self) -> None:
        if not self.saved:
            return
        for id, state in self.saved.items():
            assert identical(self.store.thread("t").get(id).state, state), id
        assert [checkpoint.id for checkpoint in self.store.thread("t").log().all()] == sorted(self.saved, reverse=True)
        latest = self.store.thread("t").get()
        assert latest.id == self.latest
        lazy = self.store.thread("t").get(lazy=True).state
        assert identical(dict(lazy), latest.state)
        for name, value in latest.state.items():
            if type(value) is list:
                assert lazy.length((name,)) == len(value)
                assert identical(lazy.slice((name,), start=-3), value[-3:])
        for branch, id in self.forks.items():
            assert self.store.thread("t").get(at=branch).id == id


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, Any]]:
    script: list[tuple[str, Any]] = []
    state = draw(states)
    for action in draw(ACTIONS):
        state = draw(edited_state(state))
        if draw(st.integers(0, 5)) == 0:  # values that are kept beside the line
            big = [letter * 70_000 for letter in draw(st.text("abc", max_size=3))]
            state = {**state, "big": big, "text": draw(st.sampled_from(["x", "y"])) * 80_000 + "end"}
        script.append((action, (state, draw(st.integers(0, 1 << 30)))))
    return script


def perform(thread: Thread, action: str, state: dict[str, Any], chance: int) -> None:
    store, saved = thread.store, thread.saved
    ids = sorted(saved)
    old = ids[chance % len(ids)] if ids else None
    if action in ("put", "together") or old is None:
        id = thread.id()
        if action == "together":
            with store.transaction() as together:
                together.put("t", state, id=id)
                together.put("other", state)
            assert identical(store.thread("other").get().state, state)
        else:
            store.thread("t").put(state, id=id)
        saved[id] = state
        _follow(thread, id)
    elif action == "put on old":
        id = thread.id()
        store.thread("t").put(state, id=id, parent=old)
        saved[id] = state
        _follow(thread, id)
    elif action == "update":
        id = thread.id()
        names = list(state)[: chance % 3]
        before_it = saved[thread.latest or ""]
        store.thread("t").update({name: state[name] for name in names}, id=id)
        saved[id] = {**before_it, **{name: state[name] for name in names}}
        _follow(thread, id)
    elif action == "fork":
        branch = f"fork {len(thread.forks)}"
        store.thread("t").fork(branch, at=old)
        thread.forks[branch] = old
    elif action == "put on fork" and thread.forks:
        branch = sorted(thread.forks)[chance % len(thread.forks)]
        id = thread.id()
        store.thread("t").put(state, id=id, branch=branch)
        thread.is_forked = True
        saved[id] = state
        thread.forks[branch] = id
    elif action == "restore":
        made = store.thread("t").restore(at=old)
        saved[made.id] = saved[old]
        _follow(thread, made.id)
    elif action == "put again":
        again = store.thread("t").put(state, id=old)
        assert again.id == old
        saved[old] = state
    elif action == "same again":
        before = len(store.thread("t").log())
        store.thread("t").put(saved[old], id=old)
        assert len(store.thread("t").log()) == before
    elif action == "compact":
        store.maintenance.compact("t")
    elif action == "forget":
        store._engine.context.cache.clear()


def _follow(thread: Thread, id: str) -> None:
    """A branch whose head something was put upon goes on with it, unless that opened a branch."""
    parent = thread.store.thread("t").get(id).parent
    for branch, head in thread.forks.items():
        if head == parent and thread.store.thread("t").get(at=branch).id == id:
            thread.forks[branch] = id


@pytest.mark.parametrize("kind", KINDS)
@given(script=scripts(), fold_every=st.sampled_from([1, 2, 3, 32]), cache=st.sampled_from([0, 20_000, 1 << 24]))
@settings(max_examples=examples(40))
def test_every_checkpoint_keeps_its_state(
    kind: str, script: list[tuple[str, Any]], fold_every: int, cache: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on = backend(kind, Path(folder))
        clock = Clock()
        thread = Thread(store_on(on, fold_every=fold_every, cache_bytes=cache, clock=clock))
        for action, (state, chance) in script:
            perform(thread, action, state, chance)
        thread.check()
        if kind == "sqlite":
            run(on.close())
            on = backend(kind, Path(folder))
        thread.store = store_on(on, clock=clock)
        thread.check()
        run(on.close())
