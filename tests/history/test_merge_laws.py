"""Laws of merging over random histories."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.row_format import StepRef
from holdfast.errors import ConflictError
from holdfast.history.ancestry import Ancestry
from holdfast.store.store import Store
from tests.engine.model.histories import edited_state, states
from tests.support.nightly import examples

State = dict[str, Any]
forks = states.flatmap(lambda base: st.tuples(st.just(base), edited_state(base), edited_state(base)))


def forked(base: State, ours: State, theirs: State) -> Store:
    store = holdfast.open("memory://")
    store.thread("t").put(base)
    store.thread("t").fork("theirs")
    store.thread("t").put(ours, branch="main")
    store.thread("t").put(theirs, branch="theirs")
    return store


def text(value: Any) -> str:
    """Tells 1 from True, and dicts by order."""
    return repr(value)


@settings(max_examples=examples(30))
@given(
    states,
    st.dictionaries(st.sampled_from("abc"), st.integers()),
    st.dictionaries(st.sampled_from("xyz"), st.integers()),
)
def test_with_no_overlap_both_are_applied(base: State, ours: State, theirs: State) -> None:
    ours, theirs = {f"our {key}": n for key, n in ours.items()}, {f"their {key}": n for key, n in theirs.items()}
    with forked(base, base | ours, base | theirs) as store:
        store.thread("t").merge("theirs", "main")
        assert text(store.thread("t").get().state) == text(base | ours | theirs)


@settings(max_examples=examples(30))
@given(forks)
def test_sides_may_be_swapped(fork: tuple[State, State, State]) -> None:
    found: list[Any] = []
    base, one, other = fork
    for ours, theirs in ((one, other), (other, one)):
        with forked(base, ours, theirs) as store:
            try:
                store.thread("t").merge("theirs", "main")
                found.append(sorted(map(text, store.thread("t").get().state.items())))
            except ConflictError as refused:
                found.append({clash.path[:1] for clash in refused.conflicts})
    assert type(found[0]) is type(found[1])
    if isinstance(found[0], set):
        assert found[0] == found[1]
    else:
        assert len(found[0]) == len(found[1])


@settings(max_examples=examples(30))
@given(forks)
def test_a_strategy_settles_and_merging_back_brings_nothing_new(fork: tuple[State, State, State]) -> None:
    with forked(*fork) as store:
        store.thread("t").merge("theirs", "main", strategy="ours")
        merged = store.thread("t").get().state
        store.thread("t").merge("main", "theirs")  # no clash: main has all of theirs
        assert text(store.thread("t").get(at="theirs").state) == text(merged)


# Common ancestors against a naive search ------------------------------------------------------------------------


class Graph:
    """A line made by random appends, forks and merges, and its parents as they were told."""

    def __init__(self) -> None:
        self.now = 1
        self.store = Store(Engine(EngineContext(MemoryBackend(), MemoryCache(1 << 20), clock=self._clock)), "")
        self.line = self.store._handle.thread_line("t")
        self.parents: dict[str, list[str]] = {}
        self.heads: dict[str, str] = {}
        self._put("main", None)

    def _clock(self) -> int:
        return self.now

    def _put(self, branch: str, parent: str | None) -> None:
        made = self.store.thread("t").put({"n": len(self.parents)}, branch=branch)
        self.parents[made.id] = [] if parent is None else [parent]
        self.heads[branch] = made.id

    def act(self, kind: str, one: int, other: int, time: int) -> None:
        self.now += time
        names = sorted(self.heads)
        mine, yours = names[one % len(names)], names[other % len(names)]
        if kind == "put":
            self._put(mine, self.heads[mine])
        elif kind == "fork":
            ids = list(self.parents)  # as they came: chance has a say in what their ids are
            name = f"b{len(self.heads)}"
            self.store.thread("t").fork(name, at=ids[other % len(ids)])
            self.heads[name] = ids[other % len(ids)]
        else:
            theirs = self.heads[yours]
            merged = self.store.thread("t").merge(theirs, mine, strategy="ours")
            if theirs in self.before(self.heads[mine]):
                assert merged.id == self.heads[mine]
            else:
                assert merged.id not in self.parents
                self.parents[merged.id] = [self.heads[mine], theirs]
                self.heads[mine] = merged.id

    def before(self, id: str) -> set[str]:
        found, todo = set(), [id]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo += self.parents[at]
        return found

    def bases(self, one: str, other: str) -> set[str]:
        shared = self.before(one) & self.before(other)
        return {id for id in shared if not any(id in self.before(each) for each in shared - {id})}

    def point(self, id: str) -> StepRef:
        return run(self.store._engine.lines.find(self.line, id))


actions = st.tuples(
    st.sampled_from(["put", "put", "fork", "merge", "merge"]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([0, 1000]),
)


@settings(max_examples=examples(50))
@given(st.lists(actions, min_size=3, max_size=18), st.data())
def test_common_ancestors(todo: list[tuple[str, int, int, int]], data: st.DataObject) -> None:
    graph = Graph()
    for action in todo:
        graph.act(*action)
    ids = list(graph.parents)
    ancestry = Ancestry(graph.store._engine, graph.line, run(graph.store._engine.lines.branch_graph(graph.line)))
    for _ in range(5):
        one, other = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from(ids))
        found = run(ancestry.common(graph.point(one), graph.point(other)))
        assert found.best is not None
        assert {found.best.id, *(each.id for each in found.others)} == graph.bases(one, other)
        assert found.is_merged == (other in graph.before(one))
        assert all(each.time <= found.best.time for each in found.others)


# With prunes and deletions --------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(
    st.lists(actions, min_size=4, max_size=18),
    st.lists(st.integers(0, 20), max_size=3),
    st.integers(1, 6),
    st.lists(actions, max_size=4),
)
def test_remaining_checkpoints_read_as_before(
    todo: list[tuple[str, int, int, int]], deleted: list[int], kept: int, more: list[tuple[str, int, int, int]]
) -> None:
    """Merges, deleted branches and pruned steps together: all that is left is sound, and can be gone on with."""
    graph = Graph()
    for action in todo:
        graph.act(*action)
    store = graph.store
    states = {id: store.thread("t").get(id).state for id in graph.parents}
    for number in deleted:
        names = [each.name for each in store.thread("t").branches() if each.name != "main"]
        if names:
            store.thread("t").delete_branch(names[number % len(names)], force=True)
    store.maintenance.prune(threads="t", keep_last=kept)
    left = {each.id: each for each in store.thread("t").log().all()}
    for id, each in left.items():
        assert store.thread("t").get(id).state == states[id]
        if each.merged in left:
            assert store.thread("t").find(f"{id}^2").id == each.merged
    assert store.maintenance.verify("t", level="decode").findings == []
    names = [each.name for each in store.thread("t").branches() if each.name and each.head]
    for kind, one, other, _ in more:
        mine, yours = names[one % len(names)], names[other % len(names)]
        if kind == "merge":
            store.thread("t").merge(yours, mine, strategy="ours")
        else:
            store.thread("t").put({"more": one}, branch=mine)
    assert store.maintenance.verify("t", level="decode").findings == []
