"""Lines of which steps are dropped: what must be left of them, and what must not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from holdfast.backends.interface import Backend, Batch, Query, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import TABLES
from holdfast.backends.wrappers import Wrapper
from holdfast.engine.branch_graph import Position
from holdfast.engine.model.large_pointers import parse_pointer
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.rewrite.rewriter import Choose, RewritePlan
from holdfast.engine.row_format import Branch, Line, StepRef
from holdfast.errors import NotFoundError, UnavailableError
from holdfast.store.store import Store
from tests.codec.values import identical
from tests.engine.lines import store_on
from tests.engine.test_histories import Thread, perform

LINE = Line("", "t")
LARGE = "large " * 11_500
"""Kept beside the line."""


def rows_of(on: Backend, line: Line = LINE) -> dict[str, list[Row]]:
    """All that is stored of a line, by the name of its space."""
    found = run(on.read([Scan(space, tuple(line)) for space in TABLES]))
    return {space.name: rows for space, rows in zip(TABLES, found, strict=True)}


class Kept(NamedTuple):
    """A step as it must stay."""

    point: StepRef
    header: Any
    state: dict[str, Any]
    large: frozenset[bytes]
    """The digests of large values in its state."""


class Picture:
    """A line with all its steps, also those that were revised since."""

    def __init__(self, store: Store, line: Line = LINE) -> None:
        engine = store._engine
        rows = rows_of(engine.context.backend, line)
        cold = store_on(engine.context.backend, cache_bytes=0)._engine.states
        self.branches = [Branch.of(row) for row in rows["branches"]]
        points = [StepRef.of(row) for row in rows["steps"]]
        self.stubs = {point[:2] for point in points if point.pruned}
        self.steps: dict[tuple[int, int], Kept] = {}
        for point in points:
            if not point.pruned:
                (head,) = run(engine.step_info.describe(line, [point]))
                tree = run(cold.tree(line, run(cold.get(line, point)), run(engine.lines.salt(line))))
                large = frozenset(parse_pointer(each).digest for each in tree.pointers)
                self.steps[point[:2]] = Kept(point, head.header, dict(run(engine.state(line, point))), large)
        self.ids = {each.point.id for each in self.steps.values()}

    def last(self) -> dict[str, Kept]:
        """The last revision of each id."""
        return {each.point.id: each for each in sorted(self.steps.values(), key=lambda each: each.point.revision)}

    def before(self, place: tuple[int, int]) -> Iterable[tuple[int, int]]:
        """The places before one, along its branch and those that it comes from."""
        bases = {each.branch: (each.base_branch, each.base_length) for each in self.branches}
        branch, length = place
        while True:
            yield from ((branch, seq) for seq in range(length))
            if branch not in bases:
                return
            branch, length = bases[branch]


def dropping(places: Iterable[tuple[int, int]]) -> Choose:
    chosen = frozenset(places)

    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        return RewritePlan(chosen & {point[:2] for point in points})

    return choose


def dropping_ids(*ids: str) -> Choose:
    async def choose(points: Sequence[StepRef], branches: Sequence[Branch]) -> RewritePlan:
        return RewritePlan(frozenset(point[:2] for point in points if point.id in ids))

    return choose


def prune(store: Store, choose: Choose, line: Line = LINE) -> None:
    run(store._engine.rewriter.rewrite(line, choose))


def check_pruned(store: Store, before: Picture, dropped: set[tuple[int, int]], writes: Iterable[str] = ()) -> Picture:
    """What is left is what should be."""
    rows = rows_of(store._engine.context.backend)
    left = {place: each for place, each in before.steps.items() if place not in dropped}
    now = Picture(store)
    assert now.steps.keys() == left.keys()
    for place, was in left.items():
        found = now.steps[place]
        assert found.point._replace(tail=0, size=0) == was.point._replace(tail=0, size=0)
        assert found.header == was.header
        assert identical(found.state, was.state), place
    # Places are left exactly where something that is kept lies behind them.
    needed = {place for kept in left for place in before.before(kept)} - left.keys()
    assert now.stubs == needed
    for row in rows["steps"]:
        point = StepRef.of(row)
        assert point.pruned == (row.body == b"")
    # References, writes and large values of what is gone are gone, and no others.
    ids = {each.point.id for each in left.values()}
    gone = before.ids - ids
    assert all(row.columns[0] in ids for row in rows["refs"])
    assert {row.key[2] for row in rows["writes"]} == set(writes) - gone
    # (That those which are needed are there is seen by reading all states. Some are stored as changes of others.)
    assert {row.key[2] for row in rows["objects"]} <= {digest for each in left.values() for digest in each.large}
    forms = {row.columns[0] for row in rows["folds"]} | {row.key[2] for row in rows["nodes"]}
    assert forms <= {row.columns[2] for row in rows["lines"]}, "nodes or folds of another form are left"
    # And so it is seen from outside.
    last = now.last()
    assert [each.id for each in store.thread("t").log().all()] == sorted(last, reverse=True)
    for id, each in last.items():
        got = store.thread("t").get(id)
        assert identical(got.state, each.state)
        assert (got.hash, got.step) == (each.point.hash.hex(), each.point.depth)
    for id in gone:
        with pytest.raises(NotFoundError):
            store.thread("t").get(id)
    for branch, seq in dropped:
        with pytest.raises(NotFoundError):
            run(store._engine.lines.find(LINE, Position(branch, seq)))
    summary = store.thread("t").info()
    assert (summary.steps, summary.latest) == (len(left), store.thread("t").get().id if ids else None)
    assert [(each.steps, each.bytes) for each in store.threads(prefix="t")] == [(summary.steps, summary.bytes)]
    bases = {None, *ids}
    assert all(branch.base in bases for branch in store.thread("t").branches())
    return now


def decorate(store: Store, ids: list[str], chance: int) -> None:
    """Give names, tags and pending writes to some checkpoints."""
    for number, id in enumerate(ids):
        if (chance >> number) & 1:
            store.thread("t").tag(f"name {number}", id, move=True)
        if (chance >> number) & 2:
            store.thread("t").label("tag", id)
    chosen = [id for number, id in enumerate(ids) if (chance >> number) & 4] + ["not saved yet"]
    for id in chosen:
        written = PendingWriteRow("path", "task", 0, "channel", store._engine.context.codec.pack(id))
        run(store._engine.writes.put(LINE, id, [written]))


def after(thread: Thread, now: Picture) -> None:
    """What a thread should hold from here on."""
    thread.saved = {id: each.state for id, each in now.last().items()}
    for branch in list(thread.forks):
        try:
            thread.forks[branch] = thread.store.thread("t").get(at=branch).id
        except NotFoundError:
            del thread.forks[branch]


def go_on(thread: Thread, script: list[Any]) -> None:
    """Do what a script says, but for forks whose names are taken, since others before them are gone."""
    for action, (state, chance) in script:
        if action != "fork" or not thread.saved or f"fork {len(thread.forks)}" not in branches(thread.store):
            perform(thread, action, state, chance)


def branches(store: Store) -> list[str]:
    return [each.name for each in store.thread("t").branches()]


def filled(on: Backend, **settings: Any) -> Store:
    """A store with a thread of eight steps on main, and a branch of two after the fourth."""
    store = store_on(on, **{"fold_every": 3, **settings})
    for n in range(8):
        state = {"n": n, "list": [f"item {i}" for i in range(n)], "large": f"{LARGE}{n // 2}"}
        store.thread("t").put(state, id=str(n), metadata={"n": n})
    store.thread("t").fork("side", at="3")
    store.thread("t").put({"side": 1}, id="80", branch="side")
    store.thread("t").put({"side": 2}, id="81", branch="side")
    return store


class Mortal(Wrapper):
    """Does so much, and then nothing more."""

    def __init__(self, inner: Backend, lives: int) -> None:
        super().__init__(inner)
        self.lives = lives

    def _live(self) -> None:
        self.lives -= 1
        if self.lives < 0:
            raise UnavailableError("killed")

    async def read(self, queries: Sequence[Query]) -> list[list[Row]]:
        self._live()
        return await self.inner.read(queries)

    async def apply(self, batch: Batch) -> int | None:
        self._live()
        return await self.inner.apply(batch)
