"""HEAD: what the name of a thread resumes. Only a switch moves it to a branch; a fork never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.runnables import RunnableConfig

import holdfast
from holdfast import Store
from holdfast.backends.interface import Delete, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.backends.tables import HEADS, LINES, STEPS
from holdfast.engine.checked_rows import CHECKSUMS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.projection.rows import Head
from holdfast.engine.row_format import Line, StepRef
from holdfast.errors import CorruptError
from holdfast.langgraph import HoldfastSaver
from holdfast.savers import Checkpointer
from tests.support.interference import InterferingBackend, Moment, at_every_moment
from tests.support.nightly import by_day, examples


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"
    with holdfast.open(url, project=True) as opened:
        for n in range(3):
            opened.thread("t").put({"n": n})
        yield opened


def n_of(store: Store, at: str = "HEAD") -> Any:
    return store.thread("t").get(at=at).state["n"]


BESIDE: dict[str, Callable[[Store], object]] = {
    "fork with changes": lambda s: s.thread("t").fork("x", at="HEAD~1", changes={"n": 100}),
    "put to a fork": lambda s: (s.thread("t").fork("x"), s.thread("t").put({"n": 100}, branch="x")),
    "update of a fork": lambda s: (s.thread("t").fork("x"), s.thread("t").update({"n": 100}, branch="x")),
    "restore on a fork": lambda s: (s.thread("t").fork("x"), s.thread("t").restore("#0", branch="x")),
    "merge into a fork": lambda s: (
        s.thread("t").fork("x", at="#0"),
        s.thread("t").merge("main", "x"),
    ),
    "put after a step of a fork": lambda s: (
        s.thread("t").fork("x", changes={"n": 100}),
        s.thread("t").put({"n": 101}, parent=s.thread("t").find("x")),
    ),
    "a branch of a fork": lambda s: (
        s.thread("t").fork("x", changes={"n": 100}),
        s.thread("t").put({"n": 101}, parent=s.thread("t").find("x")),
        s.thread("t").put({"n": 102}, parent=s.thread("t").find("x~1")),
    ),
}


@pytest.mark.parametrize("save", BESIDE.values(), ids=BESIDE.keys())
def test_what_is_saved_beside_head_does_not_move_it(store: Store, save: Callable[[Store], object]) -> None:
    save(store)
    for n in (2, 3, 4):
        if n > 2:
            store.thread("t").put({"n": n})
        assert n_of(store) == n_of(store, "main") == n_of(store, "@{now}") == n
        assert [each.name for each in store.thread("t").branches() if each.current] == ["main"]
        assert store.thread("t").info().latest == store.thread("t").get().id == next(iter(store.threads())).latest
    store.thread("t").switch("x")
    last = n_of(store, "x")
    assert n_of(store) == last
    store.thread("t").put({"n": 200})
    assert n_of(store) == n_of(store, "x") == 200
    assert n_of(store, "main") == 4
    store.thread("t").put({"n": 5}, branch="main")
    assert (n_of(store), n_of(store, "main")) == (200, 5)


def test_without_forks_the_greatest_id_is_head(store: Store) -> None:
    """As in LangGraph's own savers: a graph that returns to any of its checkpoints goes on from there."""
    first, second, third = (each.id for each in reversed(store.thread("t").log()))
    store.thread("t").put({"n": "again"}, parent=first)
    assert n_of(store) == "again"
    store.thread("t").put({"n": "third"}, parent=third)
    assert n_of(store) == "third"
    store.thread("t").put({"n": "more"})
    assert n_of(store, "main") == "more"
    store.thread("t").put({"n": "second"}, parent=second)
    assert n_of(store) == "second"


def test_an_older_checkpoint_of_heads_history_opens_a_branch_that_is_head(store: Store) -> None:
    store.thread("t").fork("x", changes={"n": 100})
    store.thread("t").put({"n": "again"}, parent=store.thread("t").find("HEAD~1"))
    assert n_of(store) == "again"
    store.thread("t").update({"n": 101}, branch="x")
    store.thread("t").update({"n": 3}, branch="main")
    assert n_of(store) == "again"
    store.thread("t").put({"n": "on"})
    assert n_of(store) == "on"


def test_lists_of_checkpointers_begin_with_head(store: Store) -> None:
    """Whoever lists one takes it for the latest."""
    fork = store.thread("t").fork("x", changes={"n": 100}).head
    saver = Checkpointer(store)
    for _ in range(2):
        (latest,) = saver.list("t", limit=1)
        assert latest == saver.get_tuple("t")
        listed = [each.id for each in saver.list("t", limit=2).all()]
        assert listed == [
            each.id for each in store.thread("t").log() if each.id not in (fork, store.thread("t").get(at="x").id)
        ]
        store.thread("t").update({"n": 101}, branch="x")
        store.thread("t").update({"n": 3})
    assert saver.get_tuple("t", fork) is not None


def test_a_conflict_that_is_merged_leaves_head_on_its_branch(store: Store) -> None:
    base = store.thread("t").get()
    store.thread("t").put({"n": 2, "a": 1})
    store.thread("t").put({"n": 2, "b": 1}, parent=base, on_conflict="merge")
    assert store.thread("t").get().state == {"n": 2, "a": 1, "b": 1} == store.thread("t").get(at="main").state
    store.thread("t").fork("x", changes={"n": 100})
    base = store.thread("t").get()
    store.thread("t").put({**base.state, "c": 1})
    store.thread("t").put({**base.state, "d": 1}, parent=base, on_conflict="merge")
    assert (
        store.thread("t").get().state
        == {"n": 2, "a": 1, "b": 1, "c": 1, "d": 1}
        == store.thread("t").get(at="main").state
    )


def test_head_stays_where_it_is_in_a_new_revision() -> None:
    with holdfast.open("memory://") as store:
        for n in range(3):
            store.thread("t").put({"n": n}, id=f"a{n}")
        store.thread("t").fork("x", at="a0", changes={"n": 100})
        store.thread("t").put({"n": 1, "revised": True}, id="a1", parent="a0")
        assert store.thread("t").get().id == "a2"
        assert store.thread("t").get().branch == store.thread("t").get(at="main").branch != 0
        store.thread("t").put({"n": 0, "revised": True}, id="a0")  # the fork is moved, too
        assert store.thread("t").get().id == store.thread("t").get(at="main").id == "a2"
        store.thread("t").put({"n": 3})
        assert (n_of(store), n_of(store, "main"), n_of(store, "x")) == (3, 3, 100)
        assert store.maintenance.verify("t").findings == []


def test_head_stays_in_copies_and_when_others_are_pruned(store: Store, tmp_path: Path) -> None:
    store.thread("t").fork("x", changes={"n": 100})
    for n in range(101, 105):
        store.thread("t").update({"n": n}, branch="x")
    store.maintenance.export(tmp_path / "f")
    with holdfast.open("memory://") as copy, holdfast.open("memory://") as imported:
        store.maintenance.copy_to(copy)
        imported.maintenance.import_(tmp_path / "f")
        for each in (copy, imported):
            assert (n_of(each), n_of(each, "x")) == (2, 104)
            each.thread("t").put({"n": 3})
            assert (n_of(each), n_of(each, "x")) == (3, 104)
    saver = HoldfastSaver(store)
    saver.copy_thread("t", "u")
    assert store.thread("u").get().state == {"n": 2}
    saver.prune(["u"])
    assert store.thread("u").get().state == {"n": 2}
    assert len(store.thread("u").log()) == 1
    store.maintenance.prune(["t"], keep_latest=True)
    assert (n_of(store), n_of(store, "x")) == (2, 104)
    assert store.maintenance.verify().findings == []


def test_head_stays_where_it_is_in_a_repair() -> None:
    backend = MemoryBackend()
    store = _over(backend)
    for n in range(3):
        store.thread("t").put({"n": n})
    store.thread("t").fork("x", changes={"n": 100})
    ((row,),) = run(backend.read([Get(LINES, [("", "t")])]))
    run(backend.apply([Put(LINES, row._replace(columns=(*row.columns[:-1], "zz")))]))
    with pytest.raises(CorruptError):
        _over(backend).thread("t").put({"n": 3})
    store = _over(backend)
    store.maintenance.repair(thread="t", accept_loss=True)
    assert (n_of(store), n_of(store, "x")) == (2, 100)
    store.thread("t").put({"n": 101}, parent=store.thread("t").find("x"))
    assert (n_of(store), n_of(store, "x")) == (2, 101)
    store.thread("t").put({"n": 3})
    assert n_of(store) == n_of(store, "main") == 3


def test_a_damaged_column_does_not_move_head() -> None:
    """Columns of steps are read without their checksum at first."""
    noticed = 0
    for at_end in (False, True):
        backend = _forked(at_end)
        for row in _steps(backend):
            for beside in (-2, -1, 0, 1, 2, 99):
                run(backend.apply([Put(STEPS, row._replace(columns=(*row.columns[:-1], beside)))]))
                try:
                    assert n_of(_over(backend)) == 2
                except CorruptError:
                    noticed += 1
                assert len(_over(backend).thread("t").branches()) == 3  # lists are not checked
                assert [each.thread for each in _over(backend).threads()] == ["t"]
            run(backend.apply([Put(STEPS, row)]))
    assert noticed > 10


def test_a_column_that_names_no_branch() -> None:
    """A file that somebody else has written may have it."""
    for number in range(5):
        for beside in (-2, 0, 1, 2, 99, 2**40):
            backend = _forked(False)
            row = _steps(backend)[number]
            written = StepRef.of(row)._replace(beside=beside).row(Line("", "t"), CHECKSUMS.decode(STEPS, row).body)
            run(EngineContext(backend, MemoryCache(1)).backend.apply([Put(STEPS, written)]))
            store = _over(backend)
            head = store.thread("t").get()
            assert [each.head for each in store.thread("t").branches() if each.current] == [head.id]
            following = store.thread("t").put({"n": "on"})
            assert following.parent == head.id
            assert store.thread("t").get().id == following.id


@pytest.mark.parametrize("is_gone", [False, True], ids=["damaged", "gone"])
def test_head_stays_on_its_branch_when_steps_are_lost(is_gone: bool) -> None:
    for at_end in (False, True):
        for number in range(1, 5):  # and not the first, which all others need
            backend = _forked(at_end)
            row = _steps(backend)[number]
            damaged = row._replace(body=bytes([*row.body[:-1], row.body[-1] ^ 1]))
            run(backend.apply([Delete(STEPS, row.key) if is_gone else Put(STEPS, damaged)]))
            store = _over(backend)
            store.maintenance.repair(thread="t", accept_loss=True)
            assert [each.name for each in store.thread("t").branches() if each.current] == ["main"]
            assert store.thread("t").get().id == store.thread("t").get(at="main").id
            assert n_of(store) == 2 or row.key[2] == 0
            assert store.maintenance.verify().findings == []


def _forked(at_end: bool) -> MemoryBackend:
    """A thread whose HEAD is 2, the last of all, or before what was saved beside it."""
    backend = MemoryBackend()
    store = _over(backend)
    store.thread("t").put({"n": 0})
    for name in "xy":
        store.thread("t").fork(name, changes={"n": name})
    if at_end:
        store.thread("t").put({"n": 1})
        store.thread("t").put({"n": 2})
    else:
        store.thread("t").put({"n": 2})
        store.thread("t").put({"n": "more"}, branch="y")
    return backend


def _steps(backend: MemoryBackend) -> list[Row]:
    (rows,) = run(backend.read([Scan(STEPS, ("", "t"))]))
    return rows


def test_a_deleted_current_branch_gives_way_to_main(store: Store) -> None:
    store.thread("t").fork("x", changes={"n": 100})
    store.thread("t").switch("x")
    store.thread("t").put({"n": 101})
    store.thread("t").put({"n": 3}, branch="main")
    assert n_of(store) == 101
    assert len(store.thread("t").delete_branch("x", force=True, dry_run=True)) == 3
    assert n_of(store) == 101
    store.thread("t").delete_branch("x", force=True)
    assert n_of(store) == n_of(store, "main") == 3
    store.thread("t").put({"n": 4})
    assert n_of(store) == n_of(store, "main") == 4


def test_a_switch_meanwhile_is_not_lost() -> None:
    """Whoever saves beside HEAD says where HEAD is: that must be so at the moment of the save."""

    def scenario(moment: Moment, first: bool) -> None:
        backend = InterferingBackend()
        store, other = _over(backend), _over(backend)
        for n in range(2):
            store.thread("t").put({"n": n})
        for name, n in (("x", 100), ("y", 200)):
            store.thread("t").fork(name) if first else store.thread("t").fork(name, changes={"n": n})
        with moment.interfere(backend, lambda: other.thread("t").switch("y")):
            store.thread("t").put({"n": 101}, branch="x")
        for each in (store, other, _over(backend)):
            head = each.thread("t").find()
            assert head.branch == (each.thread("t").find("y").branch if moment.came else 0)
            assert n_of(each, "x") == 101

    for first in (True, False):  # whether nothing was saved beside HEAD before
        assert at_every_moment(partial(scenario, first=first))


def test_a_graph_that_returns_to_a_checkpoint_meanwhile_is_not_lost() -> None:
    """Whoever saves beside HEAD says where HEAD is: that is where the graph has moved it."""

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = _over(backend), _over(backend)
        ids = [store.thread("t").put({"n": n}).id for n in range(3)]
        store.thread("t").put({"n": "again"}, parent=ids[0])
        store.thread("t").fork("x")
        with moment.interfere(backend, lambda: other.thread("t").put({"n": "back"}, parent=ids[2])):
            store.thread("t").put({"n": 101}, branch="x")
        for each in (store, other, _over(backend)):
            assert n_of(each) == ("back" if moment.came else "again")
            assert n_of(each, "x") == 101

    assert at_every_moment(scenario)


MEANWHILE: dict[str, Callable[[Store], object]] = {
    "beside HEAD": lambda s: s.thread("t").put({"n": 101}, branch="x"),
    "after HEAD": lambda s: s.thread("t").put({"n": 3}),
    "after a step, as HEAD": lambda s: s.thread("t").put({"n": 3}, parent=s.thread("t").find("main").id),
    "before HEAD": lambda s: s.thread("t").put({"n": "back"}, parent=s.thread("t").find("#0").id),
}


@pytest.mark.parametrize("save", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_a_switch_is_not_lost_by_what_is_saved_meanwhile(save: Callable[[Store], object]) -> None:
    before: list[bool] = []

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = _over(backend), _over(backend)
        for n in range(3):
            store.thread("t").put({"n": n})
        for name, n in (("x", 100), ("y", 200)):
            store.thread("t").fork(name, changes={"n": n})

        def act() -> None:
            before.append(n_of(other) == 2)
            save(other)

        with moment.interfere(backend, act):
            switched = store.thread("t").switch("y")
        if not moment.came or before[-1]:  # and not after HEAD was switched
            for each in (store, other, _over(backend)):
                assert each.thread("t").find().id == switched.id
                assert n_of(each) == n_of(each, "y") == n_of(each, "@{now}") == 200

    stride = by_day(1, 2)
    at_every_moment(scenario, stride=stride)
    assert sum(before) > 10 // stride


def test_a_graph_that_is_running_does_not_undo_a_switch() -> None:
    """It names the checkpoints that it follows: those are on the branch that HEAD was switched away from."""

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = _over(backend), _over(backend)
        last = store.thread("t").put({"n": 0})
        store.thread("t").fork("x", changes={"n": 100})
        with moment.interfere(backend, lambda: other.thread("t").switch("x")):
            for n in range(1, 4):
                last = store.thread("t").put({"n": n}, parent=last)
        for each in (store, other, _over(backend)):
            assert (n_of(each), n_of(each, "main"), n_of(each, "x")) == (100 if moment.came else 3, 3, 100)
            assert n_of(each, "@{now}") == n_of(each)

    assert at_every_moment(scenario, at_least=3)


def test_head_is_read_consistently_while_it_is_moved() -> None:
    """The end of the branch that HEAD was on may be beside it when it is read."""

    def scenario(moment: Moment) -> None:
        backend = InterferingBackend()
        store, other = _over(backend), _over(backend)
        store.thread("t").put({"n": 0})
        store.thread("t").fork("x", changes={"n": 100})

        def move() -> None:
            other.thread("t").switch("x")
            other.thread("t").put({"n": "beside"}, branch="main")

        with moment.interfere(backend, move):
            assert n_of(store) in (0, 100)
        assert n_of(store) == (100 if moment.came else 0)

    assert at_every_moment(scenario, kinds=["read"], at_least=2)


# Against a model ------------------------------------------------------------------------------------------------------


def _over(backend: Any) -> Store:
    return Store(Engine(EngineContext(backend, MemoryCache(1 << 20), project=True)), "")


@dataclass
class Branch:
    """A branch: the checkpoint it starts from, and its own."""

    name: str
    base: str | None
    own: list[str] = field(default_factory=list)


class Model:
    """The branches of a thread, and the one that is current."""

    def __init__(self) -> None:
        self.branches = [Branch("main", None)]
        self.current = self.branches[0]
        self.beside: set[str] = set()
        """What was saved beside HEAD."""
        self.switched_from = ""
        """What was HEAD before the last switch."""

    def of(self, id: str) -> Branch:
        return next(branch for branch in self.branches if id in branch.own)

    def named(self, name: str) -> Branch:
        return next(branch for branch in self.branches if branch.name == name)

    def head(self) -> str:
        return self.current.own[-1]

    def history(self, id: str | None) -> list[str]:
        if id is None:
            return []
        branch = self.of(id)
        return [*self.history(branch.base), *branch.own[: branch.own.index(id) + 1]]

    def fork(self, name: str, at: str) -> Branch:
        self.branches.append(Branch(name, at))
        return self.branches[-1]

    def after(self, parent: str) -> Branch:
        """Return the branch of a checkpoint that follows another, and move HEAD as that does."""
        branch = self.of(parent)
        was_head = parent not in self.beside and parent > self.switched_from
        if branch.own[-1] != parent:
            branch = self.fork("", parent)
        if was_head or (parent != self.switched_from and parent in self.history(self.head())):
            self.current = branch
        return branch

    def switch(self, name: str, id: str, left: str = "") -> None:
        self.switched_from = left or self.head()
        self.current = self.named(name)
        self.current.own.append(id)

    def add(self, branch: Branch, id: str) -> None:
        branch.own.append(id)
        if branch is not self.current:
            self.beside.add(id)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "branch", "parent", "fork", "edit", "switch", "delete", "revise"]),
        st.integers(0, 1 << 16),
        st.booleans(),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(OPERATIONS)
def test_any_operations_as_in_a_model(operations: list[tuple[str, int, bool]]) -> None:
    shared, model = MemoryBackend(), Model()
    stores = [_over(shared), _over(shared)]
    model.current.own.append(stores[0].thread("t").put({"n": 0}).id)
    for number, (what, chance, other) in enumerate(operations, 1):
        store = stores[other]
        thread = store.thread("t")
        names = [branch.name for branch in model.branches if branch.name]
        ids = [id for branch in model.branches for id in branch.own]
        name, id = names[chance % len(names)], ids[chance % len(ids)]
        if what == "put":
            model.add(model.current, thread.put({"n": number}).id)
        elif what == "branch":
            model.add(model.named(name), thread.put({"n": number}, branch=name).id)
        elif what == "parent":
            model.add(model.after(id), thread.put({"n": number}, parent=id).id)
        elif what == "fork":
            thread.fork(f"fork {number}", at=id)
            model.fork(f"fork {number}", id)
        elif what == "edit":
            edited = thread.fork(f"fork {number}", at=id, changes={"n": number})
            assert edited.head is not None
            model.add(model.fork(f"fork {number}", id), edited.head)
        elif what == "switch":
            switched = thread.switch(name)
            if model.named(name) is not model.current:
                model.switch(name, switched.id)
            assert switched.id == model.head()
        elif what == "delete" and name != "main":
            branch = model.named(name)
            if any(each.base in branch.own for each in model.branches):
                continue
            left = model.head()
            thread.delete_branch(name, force=True)
            model.branches.remove(branch)
            if branch is model.current:
                model.switch("main", thread.find("main").id, left)
        elif what == "revise":
            thread.put({"n": number, "revised": True}, id=id)  # and what follows it is moved with it
        check(stores, model)


def check(stores: list[Store], model: Model) -> None:
    """Everything that knows a HEAD knows the same."""
    head = model.head()
    for store in (*stores, _over(stores[0]._engine.context.backend)):
        thread = store.thread("t")
        assert store.thread("t").get().id == thread.find("HEAD").id == thread.info().latest == head
        assert [each.head for each in thread.branches() if each.current] == [head]
        history = model.history(head)
        assert [thread.find(f"#{n}").id for n in range(len(history))] == history
        for branch in model.branches:
            if branch.name:
                assert thread.find(branch.name).id == (branch.own[-1] if branch.own else branch.base)
        saver = HoldfastSaver(store)
        on: RunnableConfig = {"configurable": {"thread_id": "t"}}
        found = saver.get_tuple(on)
        assert found is not None
        assert found.checkpoint["id"] == head
    (rows,) = run(stores[0]._engine.context.backend.read([Get(HEADS, [("", "t")])]))
    shown = Head.of(rows)
    assert shown is not None
    assert shown.checkpoint == head
