"""Random histories: a backend answers as the model does."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.backends.conformance.kit import Driven, Suite
from holdfast.backends.conformance.model import Model
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.tables import NODES, STEPS, TABLES, WRITES, Key, Table

# Few values of each type, those that are most often sorted wrongly.
TEXT = st.sampled_from(["", "B", "a", "a\0", "ab", "b", "\uffff", "\U00010000"])
NUMBERS = st.sampled_from([0, 1, 2, 10, 2**63 - 1])
PLACES = st.sampled_from([-2, -1, 0, 10])
BYTES = st.sampled_from([b"", b"\0", b"\0\0", b"\x7f", b"\x80", b"\xff"])
BODIES = st.sampled_from([b"", b"1", b"22", b"\0" * 300])
OWNERS = st.sampled_from(["a", "b"])

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
        # Decorated inside: so that each class that inherits the test has its own function.
        @settings(
            deadline=None,
            max_examples=self.histories or settings().max_examples,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(HISTORIES)
        def follow(drawn: tuple[Pool, list[Any]]) -> None:
            assert plain.apply(*(Delete(space, ()) for space in TABLES)) is None
            model = Model()
            for batch, queries in _history(*drawn):
                failed = model.apply(batch)
                refused = plain.apply(*batch)
                assert refused == (failed[0] if failed else None)
                for query, found in zip(queries, plain.read(*queries), strict=True):
                    _same(query, found, model.read(query))
            for space in TABLES:
                assert plain.scan(space) == model.read(Scan(space, ()))

        follow()


def _same(query: Query, found: list[Row], expected: list[Row]) -> None:
    if isinstance(query, Get):
        assert sorted(found, key=repr) == sorted(expected, key=repr)
    elif query.bodies:
        assert found == expected
    else:
        assert [row[:2] for row in found] == [row[:2] for row in expected]
        assert all(row.body in (b"", whole.body) for row, whole in zip(found, expected, strict=True))
