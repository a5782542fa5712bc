"""Tests of queries: which rows they return, and in which order."""

from __future__ import annotations

from itertools import product

from holdfast.backends.conformance.kit import Driven, Suite, case, needs, same, seqs
from holdfast.backends.conformance.model import Model
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import ColumnHint, Get, Put, Query, Row, Scan
from holdfast.backends.tables import BRANCHES, EVENTS, LINES, NODES, REFS, STEPS, TIME, WRITES, Key, Scalar

MANY = 5000
"""The number of rows that are read by their keys at once."""

GRID = [step(seq, branch=branch) for branch in range(3) for seq in range(5)]
"""Three branches of five steps."""

PREFIXES: dict[Key, int] = {
    (): 15,
    ("tenant",): 15,
    ("tenant", "line"): 15,
    ("tenant", "line", 1): 5,
    ("tenant", "line", 1, 4): 1,
    ("tenant", "line", 1, 5): 0,
    ("tenant", "lin"): 0,
    ("tenan",): 0,
    ("",): 0,
}
"""Prefixes, and how many rows of the grid they match."""

BOUNDS: list[tuple[Key, Key, list[tuple[int, int]]]] = [
    ((1,), (), [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]),
    ((), (1,), [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]),
    ((1,), (2,), [(1, 0), (1, 1), (1, 2), (1, 3), (1, 4)]),
    ((1, 3), (2,), [(1, 3), (1, 4)]),
    ((1,), (1, 2), [(1, 0), (1, 1)]),
    ((1, 1), (1, 3), [(1, 1), (1, 2)]),
    ((0, 4), (2, 1), [(0, 4), (1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (2, 0)]),
    ((1, 1), (1, 1), []),
    ((2,), (1,), []),
    ((1, 9), (2, 0), []),
    ((3,), (), []),
    ((), (0,), []),
]
"""Start, stop, and the rows of the grid between them."""


_KINDS = ("change", "hook", "transfer", "read")
_OUTCOMES = ("ok", "changed", "error", "vetoed")
_NAMES = ("", "agent:é", 'a"b', "a%_b", "$1")


class Reads(Suite):
    """`read`, `Get` and `Scan`."""

    def test_an_empty_store_holds_nothing(self, store: Driven) -> None:
        assert all(rows == [] for rows in store.everything().values())
        assert store.read(Get(STEPS, [("tenant", "line", 0, 0)])) == [[]]

    def test_no_query_gets_no_answer(self, store: Driven) -> None:
        assert store.read() == []

    def test_every_query_gets_its_answer_in_its_place(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        store.fill(NODES, [row_of(NODES, "tenant", "line", 0, b"n", body=b"node")])
        one, node = Get(STEPS, [GRID[3].key]), Scan(NODES, ("tenant",))
        queries: list[Query] = [one, node, Scan(STEPS, ("nobody",)), one, Scan(STEPS, ("tenant", "line", 2))]
        found = store.read(*queries)
        assert [[row.key for row in rows] for rows in found] == [
            [GRID[3].key],
            [("tenant", "line", 0, b"n")],
            [],
            [GRID[3].key],
            [row.key for row in GRID[10:]],
        ]

    def test_rows_are_counted_as_they_are_read(self, store: Driven) -> None:
        names = ["", "a", "a\0", "b", "chat", "chats", "é", "␞x", "\U0010ffff"]
        store.fill(LINES, [row_of(LINES, "tenant", name) for name in names])
        store.fill(LINES, [row_of(LINES, "other", name) for name in names[:3]])
        bounds: list[tuple[Key, Key]] = [((), ()), *(((low,), (high,)) for low in names for high in ["b", "d", "␟"])]
        scans = [Scan(LINES, ("tenant",), *each) for each in bounds]
        scans += [Scan(LINES, ("tenant",), (name,)) for name in names]
        scans.append(Scan(LINES, ("nobody",)))
        counts = store.drive(store.backend.count_rows(scans))
        assert counts in (None, [len(rows) for rows in store.read(*scans)])

    # Get

    def test_get_leaves_out_what_is_not_there(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        (found,) = store.read(
            Get(STEPS, [GRID[7].key, ("tenant", "line", 9, 9), ("tenant", "other", 0, 0), GRID[0].key])
        )
        assert sorted(found) == [GRID[0], GRID[7]]

    def test_get_of_no_keys_finds_nothing(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        assert store.read(Get(STEPS, [])) == [[]]

    def test_get_finds_a_row_once(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        assert store.read(Get(STEPS, [GRID[2].key, GRID[2].key])) == [[GRID[2]]]

    def test_get_of_thousands(self, plain: Driven) -> None:
        rows = [row_of(NODES, "tenant", "line", 0, n.to_bytes(4), body=b"%d" % n) for n in range(MANY)]
        plain.fill(NODES, rows)
        (found,) = plain.read(Get(NODES, [row.key for row in rows]))
        assert same(sorted(found), rows)

    # Scan: which rows

    def test_prefix(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        for prefix, count in PREFIXES.items():
            with case(prefix):
                assert store.scan(STEPS, prefix) == [row for row in GRID if row.key[: len(prefix)] == prefix]
                assert len(store.scan(STEPS, prefix)) == count

    def test_bounds(self, store: Driven) -> None:
        store.fill(STEPS, [*GRID, step(2, line="lind", branch=1), step(2, line="linf", branch=1)])
        for start, stop, found in BOUNDS:
            with case((start, stop)):
                _bounds(store, start, stop, found)

    def test_bounds_across_lines_and_tenants(self, store: Driven) -> None:
        rows = [
            row_of(BRANCHES, tenant, line, branch)
            for tenant in ("a", "b", "c")
            for line in ("x", "y", "z")
            for branch in (1, 2)
        ]
        store.fill(BRANCHES, rows)
        assert store.scan(BRANCHES, (), start=("b",)) == rows[6:]
        assert store.scan(BRANCHES, (), start=("a", "y", 2), stop=("c", "x")) == rows[3:12]
        assert store.scan(BRANCHES, ("b",), start=("y",), stop=("z", 2)) == rows[8:11]
        assert store.scan(BRANCHES, ("b",), stop=("z",), reverse=True, limit=3) == rows[9:6:-1]
        assert store.scan(BRANCHES, (), reverse=True) == rows[::-1]
        assert store.scan(BRANCHES, (), limit=7) == rows[:7]

    # Scan: by index

    def test_by_index(self, store: Driven) -> None:
        rows = [step(0, id="c"), step(1, id="a"), step(2, id="b"), step(3, id="", branch=1)]
        other = step(0, line="other", id="a")
        store.fill(STEPS, [*rows, other])
        line = ("tenant", "line")
        assert store.scan(STEPS, line, by="id") == [rows[3], rows[1], rows[2], rows[0]]
        assert store.scan(STEPS, line, by="id", reverse=True) == [rows[0], rows[2], rows[1], rows[3]]
        assert store.scan(STEPS, line, by="id", start=("a",), stop=("c",)) == [rows[1], rows[2]]
        assert store.scan(STEPS, line, by="id", reverse=True, limit=1) == [rows[0]]
        assert store.scan(STEPS, (*line, "b"), by="id") == [rows[2]]
        assert store.scan(STEPS, ("tenant",), by="id") == [rows[3], rows[1], rows[2], rows[0], other]

    def test_by_index_where_columns_are_equal(self, store: Driven) -> None:
        rows = [step(seq, branch=branch, id="same", revision=revision) for branch, seq, revision in
                [(0, 10, 1), (1, 2, 1), (0, 9, 2), (0, 2, 1), (2, 0, 0)]]  # fmt: skip
        store.fill(STEPS, rows)
        in_order = [(2, 0), (0, 2), (0, 10), (1, 2), (0, 9)]
        line = ("tenant", "line")
        assert seqs(store.scan(STEPS, line, by="id")) == in_order
        assert seqs(store.scan(STEPS, line, by="id", reverse=True)) == in_order[::-1]
        assert seqs(store.scan(STEPS, (*line, "same"), by="id", start=(1,), stop=(2,))) == in_order[1:4]
        assert seqs(store.scan(STEPS, (*line, "same", 1), by="id", reverse=True, limit=2)) == [(1, 2), (0, 10)]
        # A scan in pages continues after a row, and many rows may have the same id.
        assert seqs(store.scan(STEPS, line, by="id", start=("same", 1, 0, 10))) == in_order[2:]
        assert seqs(store.scan(STEPS, line, by="id", start=("same", 1, 1), stop=("same", 2, 0, 9))) == in_order[3:4]
        assert seqs(store.scan(STEPS, line, by="id", stop=("same", 1, 1))) == in_order[:3]
        assert seqs(store.scan(STEPS, (*line, "same", 1, 0), by="id", start=(3,), reverse=True)) == [(0, 10)]

    # Scan: by time

    @needs("times")
    def test_by_time(self, store: Driven) -> None:
        model = _filled_by_time(store)
        bounds: list[Key] = [(), (3,), (3, "b", "id-1"), (3, "b", "id-1", 1), (4, "a\0")]
        for tenant, start in product(("tenant", ""), bounds):
            scans = [
                Scan(EVENTS, (tenant,), start, stop, reverse, limit, TIME)
                for stop, reverse, limit in product(bounds, (False, True), (None, 3))
            ]
            assert store.read(*scans) == [model.read(scan) for scan in scans]
        assert model.read(Scan(EVENTS, ("tenant",), (3, "b"), (4,), by=TIME))

    @needs("times")
    def test_steps_by_time(self, store: Driven) -> None:
        rows = [step(seq, line=line, id=f"{seq}", time=4 - seq % 3) for line in ("a", "b", "a\0") for seq in range(6)]
        left_out = [step(0, line="␞agent:a", id="x", time=3), step(7, line="a", id="", time=3)]
        model = Model()
        model.apply([Put(STEPS, row) for row in rows])
        store.fill(STEPS, [*rows, *left_out])
        for start, stop in (((), ()), ((3,), ()), ((), (3,)), ((3, "a", 0, 2), (3, "b", 0, 5)), ((), (4, "a", 0))):
            for reverse, limit in ((False, None), (True, None), (False, 4), (True, 4)):
                scan = Scan(STEPS, ("tenant",), start, stop, reverse, limit, TIME)
                found = store.scan(STEPS, ("tenant",), start=start, stop=stop, reverse=reverse, limit=limit, by=TIME)
                kept = [row for row in found if row not in left_out]
                assert kept == model.read(scan)[: len(kept)]
                assert len(kept) == len(model.read(scan)) or len(found) == limit

    @needs("times")
    def test_hints_leave_out_nothing_that_fits(self, store: Driven) -> None:
        _filled_by_time(store)
        every, orders = store.scan(EVENTS, ("tenant",), by=TIME), (TIME, "")
        hints = [
            *(ColumnHint("kind", (kind,)) for kind in _KINDS),
            *(ColumnHint("outcome", (outcome,)) for outcome in _OUTCOMES),
            *(ColumnHint("cause", (name,)) for name in _NAMES if name),
            *(ColumnHint("actor", (name,)) for name in _NAMES if name),
            *(ColumnHint("correlation", (name, "none")) for name in _NAMES),
            ColumnHint("outcome", ("changed", "ok", "skipped"), excluded=True),
            ColumnHint("outcome", ("ok",), excluded=True),
            *(ColumnHint("target", (part,), contains=True) for part in ("", "é", '"', "%", ".*", "x\ty")),
            ColumnHint("line", ("a", "none")),
            ColumnHint("line", ("a", "b"), excluded=True),
            ColumnHint("nothing", ("x",)),
        ]
        for one in hints:
            for other in (None, ColumnHint("kind", ("change",)), ColumnHint("action", ("set",))):
                both = (one,) if other is None else (one, other)
                fit = [row for row in every if all(_fits(row, hint) for hint in both)]
                scans = [
                    Scan(EVENTS, ("tenant",), by=by, hints=with_hints) for with_hints in (both, ()) for by in orders
                ]
                found = store.read(*scans)
                for some, rows in zip(found[:2], found[2:], strict=True):
                    assert all(row in some for row in fit), both
                    assert some == [row for row in rows if row in some], both

    def test_hints_about_references_leave_out_nothing_that_fits(self, store: Driven) -> None:
        targets = ("waiting 1", "failed 1", "done waiting 2", "unfinished 3", "waiting", "")
        rows = [
            Row(("tenant", line, kind, "", ""), (target, 1))
            for kind in ("lease", "status", "tag")
            for line, target in zip("abcdef", targets, strict=True)
        ]
        store.fill(REFS, sorted(rows))
        of_kind = ColumnHint("kind", ("status",))
        for status in ("waiting ", "failed ", "unfinished "):
            part = ColumnHint("target", (status,), contains=True)
            for hints in ((of_kind,), (part,), (of_kind, part)):
                found = store.read(Scan(REFS, ("tenant",), hints=hints))[0]
                fit = [row for row in sorted(rows) if all(_fits_reference(row, hint) for hint in hints)]
                assert fit, hints
                assert [row for row in found if row in fit] == fit, hints
                limited = store.read(Scan(REFS, ("tenant",), ("b",), limit=2, hints=hints))[0]
                assert limited == [row for row in found if str(row.key[1]) >= "b"][:2], hints

    def test_without_bodies(self, store: Driven) -> None:
        store.fill(STEPS, GRID)
        for by in ("", "id"):
            found = store.scan(STEPS, ("tenant", "line"), bodies=False, by=by)
            assert [(row.key, row.columns) for row in found] == [(row.key, row.columns) for row in GRID]
            assert {row.body for row in found} <= {b"", b"body"}

    # Scan: order

    def test_text_is_ordered_by_its_utf_8_bytes(self, store: Driven) -> None:
        # In UTF-16 the characters beyond U+FFFF come before U+E000; collations fold case and skip punctuation.
        names = ["", "\0", "\0\0", "\0a", " ", "-", "0", "10", "2", "A", "B", "Z", "_", "a", "a\0", "a\0b", "a ", "aa"]
        names += ["b", "~", "e\u0301", "\u00e9", "ß", "ſ", "한", "\ue000", "\uffff", "\U00010000", "😀", "\U0010ffff"]
        names.sort(key=str.encode)
        _ordered(store, [row_of(REFS, "tenant", name, "k", "n", "s") for name in names], 1)

    def test_numbers_are_ordered_by_value(self, store: Driven) -> None:
        numbers = [0, 1, 2, 9, 10, 11, 100, 255, 256, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 2, 2**63 - 1]
        _ordered(store, [row_of(BRANCHES, "tenant", "line", number) for number in numbers], 2)

    def test_places_of_writes_may_be_negative(self, store: Driven) -> None:
        places = [-(2**63), -(2**31), -10, -9, -2, -1, 0, 1, 2, 10, 2**63 - 1]
        _ordered(store, [row_of(WRITES, "tenant", "line", "s", "t", n) for n in places], 4)

    def test_bytes_are_ordered_as_they_are(self, store: Driven) -> None:
        names = [b"", b"\0", b"\0\0", b"\0\xff", b"\1", b"0", b"A", b"a", b"a\0", b"aa", b"\x7f", b"\x80", b"\xc3\xa9"]
        names += [b"\xff", b"\xff\0", b"\xff\xff"]
        _ordered(store, [row_of(NODES, "tenant", "line", 7, name) for name in names], 3)


def _fits_reference(row: Row, hint: ColumnHint) -> bool:
    value = str(dict(zip(REFS.all_columns, (*row.key, *row.columns), strict=True))[hint.column])
    return any(each in value if hint.contains else each == value for each in hint.values)


def _bounds(store: Driven, start: Key, stop: Key, found: list[tuple[int, int]]) -> None:
    prefix = ("tenant", "line")
    assert seqs(store.scan(STEPS, prefix, start=start, stop=stop)) == found
    assert seqs(store.scan(STEPS, prefix, start=start, stop=stop, reverse=True)) == found[::-1]
    for limit in (0, 1, 3, 100):
        assert seqs(store.scan(STEPS, prefix, start=start, stop=stop, limit=limit)) == found[:limit]
        back = store.scan(STEPS, prefix, start=start, stop=stop, limit=limit, reverse=True)
        assert seqs(back) == found[::-1][:limit]


def _ordered(store: Driven, rows: list[Row], place: int) -> None:
    """Check the order of rows that differ in one column, and bounds."""
    space = {2: BRANCHES, 3: NODES, 4: WRITES, 1: REFS}[place]
    store.fill(space, [*rows[1::2], *rows[::2]])
    prefix = rows[0].key[:place]

    def bound(row: Row) -> tuple[Scalar, ...]:
        return (row.key[place],)

    for reverse in (False, True):
        assert store.scan(space, prefix, reverse=reverse) == (rows[::-1] if reverse else rows)
        ranges = [(first, last) for first in range(0, len(rows), 3) for last in range(first, len(rows), 4)]
        found = store.read(
            *(Scan(space, prefix, bound(rows[first]), bound(rows[last]), reverse) for first, last in ranges)
        )
        for (first, last), between in zip(ranges, found, strict=True):
            assert between == (rows[first:last][::-1] if reverse else rows[first:last])
    exact = store.read(*(Scan(space, row.key[: place + 1]) for row in rows))
    assert exact == [[row] for row in rows]


def _filled_by_time(store: Driven) -> Model:
    """Store events, many of which have the same time, and return a model that has them too."""
    rows = [
        row_of(
            EVENTS, tenant, line, f"id-{number % 3}", number, body=b"body", time=1 + number * 7 % 5,
            kind=_KINDS[number % 4], action=("set", "delete")[number % 2], outcome=_OUTCOMES[number // 4 % 4],
            cause=_NAMES[number % 5], actor=_NAMES[number // 2 % 5], correlation=_NAMES[number // 3 % 5],
            target=("", 'é"x', "a%b.*", "x\ty")[number % 4],
        )
        for tenant in ("tenant", "other")
        for line in ("a", "b", "a\0")
        for number in range(16)
    ]  # fmt: skip
    store.fill(EVENTS, rows)
    model = Model()
    model.apply([Put(EVENTS, row) for row in rows])
    return model


def _fits(row: Row, hint: ColumnHint) -> bool:
    if hint.column not in EVENTS.all_columns:
        return True
    value = str((*row.key, *row.columns)[list(EVENTS.all_columns).index(hint.column)])
    if hint.contains:
        return all(each in value for each in hint.values)
    return (value in hint.values) is not hint.excluded
