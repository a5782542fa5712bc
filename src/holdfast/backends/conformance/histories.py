"""Random histories: a backend answers as the model does."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.backends.conformance.kit import Driven, Stores, Suite, needs
from holdfast.backends.conformance.model import Model
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import NODES, STEPS, TABLES, WRITES, Key, Table

# Few values of each type, those that are most often sorted wrongly.
TEXT = st.sampled_from(["", "B", "a", "a\0", "ab", "b", "\uffff", "\U00010000"])
NUMBERS = st.sampled_from([0, 1, 2, 10, 2**63 - 1])
PLACES = st.sampled_from([-2, -1, 0, 10])
BYTES = st.sampled_from([b"", b"\0", b"\0\0", b"\x7f", b"\x80", b"\xff"])
BODIES = st.sampled_from([b"", b"1", b"22", b"\0" * 300])
_OWNERS = ("a", "b")
OWNERS = st.sampled_from(_OWNERS)

USED = (STEPS, WRITES, NODES)
"""The tables of histories: with an index, with negative numbers, without columns."""

POOL = 5
"""The number of rows of each table in a history: few, so that its batches and queries overlap."""

Pool = dict[Table, list[Row]]
Step = tuple[list[Change], list[Query]]


def _rows(space: Table) -> st.SearchStrategy[Row]:
    kinds: dict[type, st.SearchStrategy[Any]] = {str: TEXT, int: NUMBERS, bytes: BYTES}
    special = {"tenant": OWNERS, "line": OWNERS, "place": PLACES}
    values = {name: special.get(name, kinds[kind]) for name, kind in space.all_columns.items()}
    width = len(space.key)
    return st.tuples(*values.values()).map(lambda found: Row(found[:width], found[width:]))


# Numbers are drawn that select from the pool: building strategies for every history would take the most time.
_SPACE = st.sampled_from(USED)
_ONE = st.integers(0, POOL - 1)
_WIDTH = st.integers(0, 6)
_KIND = st.sampled_from([Create, Ensure, Put, Delete, Expect])
_CHANGE = st.tuples(_KIND, _SPACE, _ONE, _ONE, _WIDTH, BODIES)
_BOUND = st.tuples(_ONE, _WIDTH)
_SCAN = st.tuples(
    _SPACE, _BOUND, _BOUND, _BOUND, st.booleans(), st.none() | st.integers(0, 3), st.booleans(), st.booleans()
)
_GET = st.tuples(_SPACE, st.lists(_ONE, max_size=3))
_POOL = st.fixed_dictionaries({space: st.lists(_rows(space), min_size=POOL, max_size=POOL) for space in USED})
_STEP = st.tuples(st.lists(_CHANGE, max_size=5), st.lists(_GET | _SCAN, max_size=3))
HISTORIES = st.tuples(_POOL, st.lists(_STEP, min_size=1, max_size=8))


def _history(pool: Pool, steps: list[Any]) -> list[Step]:
    """Return the batches and queries of the drawn numbers."""
    return [
        (_each_key_once([_change(pool, *drawn) for drawn in changes]), [_query(pool, drawn) for drawn in queries])
        for changes, queries in steps
    ]


def _change(pool: Pool, kind: Any, space: Table, one: int, other: int, width: int, body: bytes) -> Change:
    key, columns = pool[space][one].key, pool[space][other].columns
    if kind is Delete:
        return Delete(space, key[:width])
    if kind is Expect:
        return Expect(space, key, columns if width else None)
    changed: Change = kind(space, Row(key, columns, body))
    return changed


def _query(pool: Pool, drawn: tuple[Any, ...]) -> Query:
    if len(drawn) == 2:
        space, chosen = drawn
        return Get(space, [pool[space][one].key for one in chosen])
    space, first, start, stop, reverse, limit, indexed, bodies = drawn
    by = next(iter(space.indexes), "") if indexed else ""
    places = [list(space.all_columns).index(name) for name in space.order(by)]

    def cut(bound: tuple[int, int], skip: int = 0) -> Key:
        row = pool[space][bound[0]]
        return tuple((row.key + row.columns)[place] for place in places)[skip:][: bound[1]]

    prefix = cut(first)
    return Scan(space, prefix, cut(start, len(prefix)), cut(stop, len(prefix)), reverse, limit, by, bodies)


def _each_key_once(changes: list[Change]) -> list[Change]:
    """Leave out changes that a batch may not have: writing a key twice, or removing what it wrote."""
    written: list[tuple[Table, Key]] = []
    allowed = []
    for change in changes:
        if isinstance(change, Delete):
            width = len(change.prefix)
            if any(space == change.space and key[:width] == change.prefix for space, key in written):
                continue
        elif not isinstance(change, Expect):
            if (change.space, change.row.key) in written:
                continue
            written.append((change.space, change.row.key))
        allowed.append(change)
    return allowed


class Histories(Suite):
    """Random batches and queries over few keys."""

    def test_a_backend_answers_as_the_model_does(self, plain: Driven) -> None:
        def follow(history: list[Step]) -> None:
            assert plain.apply(*(Delete(space, ()) for space in TABLES)) is None
            model = Model()
            for batch, queries in history:
                _apply(plain, model, batch)
                _compare(plain, model, queries)
            for space in TABLES:
                assert plain.scan(space) == model.read(Scan(space, ()))

        self._for_histories(follow)

    @needs("durable or shared")
    def test_every_handle_answers_as_the_model_does(self, claimed: Stores) -> None:
        """Two open stores write in turn, and after every batch the other one and a third, just opened, read it.

        A store that is not `shared` is closed and opened again after every batch.
        """
        with _Handles(claimed) as handles:

            def follow(history: list[Step]) -> None:
                assert handles.writer().apply(*(Delete(space, ()) for space in TABLES)) is None
                model = Model()
                for batch, queries in history:
                    _apply(handles.writer(), model, batch)
                    _compare(handles.reader(), model, queries)
                    _compare_all(handles.opened_again(), model)

            self._for_histories(follow)

    def _for_histories(self, follow: Callable[[list[Step]], None]) -> None:
        # Decorated here: so that each class that inherits a test has its own function.
        @settings(
            deadline=None,
            max_examples=self.histories or settings().max_examples,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(HISTORIES)
        def follow_each(drawn: tuple[Pool, list[Any]]) -> None:
            follow(_history(*drawn))

        follow_each()


class _Handles:
    """A store that is open several times: two handles that write in turn, and one that is opened for every read."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._open = [self._opened()]
        features = self._open[0].backend.capabilities
        self._shared, self._fresh = features.shared, features.fresh
        if features.shared:
            self._open.append(self._opened())

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.pop().close()

    def writer(self) -> Driven:
        """Return the handle whose turn it is. Of a store that is not fresh it is always the same: what the other one
        has read may be older than a batch."""
        if self._fresh:
            self._open[:2] = reversed(self._open[:2])
        return self._open[0]

    def reader(self) -> Driven:
        """Return the handle that did not write last, if it is to see what the other wrote."""
        return self._open[:2][-1 if self._fresh else 0]

    def opened_again(self) -> Driven:
        """Return a handle that was just opened; of a store that is not shared, in place of the others."""
        last = 2 if self._shared else 0
        while len(self._open) > last:
            self._open.pop().close()
        self._open.append(self._opened())
        return self._open[-1]

    def _opened(self) -> Driven:
        return Driven(run(self._stores.open()), run)


def _apply(store: Driven, model: Model, batch: list[Change]) -> None:
    failed = model.apply(batch)
    assert store.apply(*batch) == (failed[0] if failed else None)


def _compare(store: Driven, model: Model, queries: list[Query]) -> None:
    for query, found in zip(queries, store.read(*queries), strict=True):
        _same(query, found, model.read(query))


def _compare_all(store: Driven, model: Model) -> None:
    """Compare all rows: first line by line, as a store may read one line otherwise than many."""
    for owners in itertools.product(_OWNERS, repeat=2):
        _compare(store, model, [Scan(space, owners) for space in USED])
    assert store.everything() == {space.name: model.read(Scan(space, ())) for space in TABLES}


def _same(query: Query, found: list[Row], expected: list[Row]) -> None:
    if isinstance(query, Get):
        assert sorted(found, key=repr) == sorted(expected, key=repr)
    elif query.bodies:
        assert found == expected
    else:
        assert [row[:2] for row in found] == [row[:2] for row in expected]
        assert all(row.body in (b"", whole.body) for row, whole in zip(found, expected, strict=True))
