"""Tests of changes, and of the atomicity of batches."""

from __future__ import annotations

import itertools

from holdfast.backends.conformance.kit import Driven, Suite, case, put_steps, same, seqs
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Change, Create, Delete, Ensure, Expect, Get, Put, Scan
from holdfast.backends.tables import BRANCHES, LINES, NODES, STEPS, Scalar

MANY = 4000
"""The number of rows of a large batch."""

OLD = step(0, id="old", time=1, body=b"old")
NEW = step(0, id="new", time=2, body=b"new")
ABSENT = ("tenant", "line", 0, 99)
OTHER: dict[type, Scalar] = {str: "x", int: 77, bytes: b"x"}
"""A value of each type that no row has."""

AFTER_CHANGES: dict[str, tuple[list[Change], int | None]] = {
    "there": ([Create(STEPS, NEW), Expect(STEPS, NEW.key, NEW.columns)], None),
    "other columns": ([Create(STEPS, NEW), Expect(STEPS, NEW.key, OLD.columns)], 1),
    "not absent": ([Create(STEPS, NEW), Expect(STEPS, NEW.key, None)], 1),
    "absent before": ([Expect(STEPS, NEW.key, None), Create(STEPS, NEW)], None),
    "created": ([Create(STEPS, NEW), Create(STEPS, OLD)], 1),
    "put": ([Put(STEPS, NEW), Create(STEPS, OLD)], 1),
    "ensured": ([Ensure(STEPS, NEW), Create(STEPS, OLD)], 1),
}
"""Batches with conditions on earlier changes, and the position of the one that fails."""


class Writes(Suite):
    """`apply` and the changes of a batch."""

    # Each change

    def test_create_stores_a_row_where_the_key_is_free(self, store: Driven) -> None:
        assert store.apply(Create(STEPS, OLD)) is None
        assert store.scan(STEPS) == [OLD]

    def test_create_fails_where_the_key_is_taken(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        assert store.apply(Create(STEPS, NEW)) == 0
        assert store.apply(Create(STEPS, OLD)) == 0, "even by the same row"
        assert store.scan(STEPS) == store.scan(STEPS, by="id") == [OLD]

    def test_ensure_stores_a_row_where_the_key_is_free(self, store: Driven) -> None:
        assert store.apply(Ensure(STEPS, OLD)) is None
        assert store.scan(STEPS) == [OLD]

    def test_ensure_leaves_what_is_there(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        assert store.apply(Ensure(STEPS, NEW), Ensure(STEPS, step(1))) is None
        assert store.scan(STEPS) == [OLD, step(1)]

    def test_put_takes_the_place_of_what_was_there(self, store: Driven) -> None:
        assert store.apply(Put(STEPS, OLD)) is None
        assert store.apply(Put(STEPS, NEW)) is None
        assert store.scan(STEPS) == [NEW]
        line = ("tenant", "line")
        assert store.scan(STEPS, line, by="id") == store.scan(STEPS, (*line, "new"), by="id") == [NEW]
        assert store.scan(STEPS, (*line, "old"), by="id") == []

    def test_delete_removes_what_starts_so(self, store: Driven) -> None:
        rows = [
            row_of(STEPS, tenant, line, branch, seq)
            for tenant in ("tenant", "tenant2")
            for line in ("line", "lin")
            for branch in (0, 1)
            for seq in (0, 1)
        ]
        store.fill(LINES, [row_of(LINES, "tenant", "line")])
        for width in range(5):
            store.fill(STEPS, rows)
            prefix = ("tenant", "line", 1, 1)[:width]
            with case(prefix):
                assert store.apply(Delete(STEPS, prefix)) is None
                kept = [row for row in rows if row.key[:width] != prefix]
                assert sorted(store.scan(STEPS)) == sorted(kept)
                assert sorted(store.scan(STEPS, by="id")) == sorted(kept)
                assert store.apply(Delete(STEPS, prefix)) is None, "nothing there is no failure"
                assert len(store.scan(STEPS)) == len(kept)
                assert len(store.scan(LINES)) == 1

    def test_a_deleted_key_is_free(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        assert store.apply(Delete(STEPS, OLD.key)) is None
        assert store.read(Get(STEPS, [OLD.key])) == [[]]
        assert store.apply(Create(STEPS, NEW)) is None
        assert store.scan(STEPS) == [NEW]

    def test_expect(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        assert store.apply(Expect(STEPS, OLD.key, OLD.columns)) is None
        assert store.apply(Expect(STEPS, OLD.key, NEW.columns)) == 0
        assert store.apply(Expect(STEPS, OLD.key, None)) == 0
        assert store.apply(Expect(STEPS, ABSENT, None)) is None
        assert store.apply(Expect(STEPS, ABSENT, OLD.columns)) == 0
        assert store.scan(STEPS) == [OLD]

    def test_expect_compares_every_column(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        for place, value in enumerate(OLD.columns):
            other = OTHER[type(value)]
            columns = (*OLD.columns[:place], other, *OLD.columns[place + 1 :])
            assert store.apply(Expect(STEPS, OLD.key, columns)) == 0

    def test_expect_of_a_row_without_columns(self, store: Driven) -> None:
        node = row_of(NODES, "tenant", "line", 0, b"n")
        assert store.apply(Expect(NODES, node.key, ())) == 0
        store.fill(NODES, [node])
        assert store.apply(Expect(NODES, node.key, ())) is None
        assert store.apply(Expect(NODES, node.key, None)) == 0

    # Batches

    def test_an_empty_batch_is_acknowledged(self, store: Driven) -> None:
        assert store.apply() is None
        assert all(rows == [] for rows in store.everything().values())

    def test_a_batch_is_any_sequence(self, store: Driven) -> None:
        assert store.drive(store.backend.apply([Create(STEPS, step(0))])) is None
        assert store.drive(store.backend.apply((Create(STEPS, step(1)),))) is None
        assert seqs(store.scan(STEPS)) == [(0, 0), (0, 1)]

    def test_a_batch_whose_condition_fails_leaves_no_trace(self, store: Driven) -> None:
        kept = [step(seq, id=f"i{seq}", body=b"kept") for seq in range(4)]
        failing: dict[str, Change] = {
            "create": Create(STEPS, step(3, body=b"again")),
            "expect columns": Expect(STEPS, kept[3].key, NEW.columns),
            "expect absence": Expect(STEPS, kept[3].key, None),
        }
        batch: list[Change] = [
            Create(STEPS, step(10)),
            Put(STEPS, step(0, id="other", body=b"changed")),
            Ensure(STEPS, step(11)),
            Delete(STEPS, kept[1].key),
            Delete(BRANCHES, ("tenant",)),
            Create(LINES, row_of(LINES, "tenant", "line")),
            Expect(STEPS, kept[2].key, kept[2].columns),
            Ensure(STEPS, kept[2]),
        ]
        store.fill(STEPS, kept)
        store.fill(BRANCHES, [row_of(BRANCHES, "tenant", "line", 1)])
        before = store.everything()
        for (kind, change), place in itertools.product(failing.items(), (0, 1, 4, 8)):
            with case((kind, place)):
                assert store.apply(*batch[:place], change, *batch[place:]) == place
                assert store.everything() == before
                assert store.scan(STEPS, ("tenant", "line"), by="id") == kept
        assert store.apply(*batch) is None
        assert seqs(store.scan(STEPS)) == [(0, 0), (0, 2), (0, 3), (0, 10), (0, 11)]

    def test_conditions_see_the_changes_before_them(self, store: Driven) -> None:
        for name, (batch, refused) in AFTER_CHANGES.items():
            with case(name):
                assert store.apply(*batch) == refused
                assert store.scan(STEPS) == ([NEW] if refused is None else [])
                assert store.apply(Delete(STEPS, NEW.key)) is None

    def test_conditions_see_the_deletions_before_them(self, store: Driven) -> None:
        rows = [step(seq) for seq in range(5)]
        store.fill(STEPS, rows)
        again = step(2, id="again", body=b"again")
        line = ("tenant", "line")
        assert store.apply(Delete(STEPS, line), Expect(STEPS, rows[0].key, rows[0].columns)) == 1
        assert store.scan(STEPS) == rows
        assert store.apply(Delete(STEPS, line), Expect(STEPS, rows[0].key, None), Create(STEPS, again)) is None
        assert store.scan(STEPS) == store.scan(STEPS, line, by="id") == [again]

    def test_compare_and_set(self, store: Driven) -> None:
        store.fill(STEPS, [OLD])
        change = (Expect(STEPS, OLD.key, OLD.columns), Put(STEPS, NEW))
        assert store.apply(*change) is None
        assert store.apply(*change) == 0
        assert store.scan(STEPS) == [NEW]

    # Many and large

    def test_a_batch_of_thousands(self, plain: Driven) -> None:
        rows = [step(seq, id=f"{seq:06}", body=b"%d" % seq) for seq in range(MANY)]
        assert plain.apply(*put_steps(rows), Create(STEPS, rows[17])) == MANY
        assert len(plain.scan(STEPS)) == 0
        assert plain.apply(*(Create(STEPS, row) for row in rows)) is None
        assert same(plain.scan(STEPS, ("tenant", "line")), rows)
        assert plain.scan(STEPS, ("tenant", "line"), by="id", reverse=True, limit=2) == [rows[-1], rows[-2]]
        assert plain.apply(*(Delete(STEPS, row.key) for row in rows[::2])) is None
        assert same(plain.scan(STEPS, ("tenant", "line")), rows[1::2])
        assert plain.apply(Delete(STEPS, ("tenant", "line"))) is None
        assert len(plain.scan(STEPS)) == 0

    def test_a_batch_of_megabytes(self, store: Driven) -> None:
        size = min(1 << 20, store.backend.capabilities.max_body, store.backend.capabilities.max_batch // 8)
        rows = [row_of(NODES, "tenant", "line", 0, bytes([n]), body=bytes([n]) * size) for n in range(8)]
        taken = Create(NODES, rows[0])
        assert store.apply(*(Put(NODES, row) for row in rows), taken) == 8
        assert len(store.scan(NODES)) == 0
        store.fill(NODES, rows)
        found, one = store.read(Scan(NODES, ()), Get(NODES, [rows[7].key]))
        assert same(found, rows)
        assert same(one, [rows[7]])
