"""Tests of `Backend.changes`: no line that changed is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from holdfast.backends.conformance.child import batch as stream_batch
from holdfast.backends.conformance.kit import Driven, Stores, Suite, case, needs
from holdfast.backends.conformance.processes import finish, start_child
from holdfast.backends.conformance.races import Races
from holdfast.backends.conformance.rows import row_of, step
from holdfast.backends.interface import Backend, Batch, Changes, Create, Delete, Ensure, Put
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BRANCHES, LINES, NODES, STEPS, TABLES, Scalar, Table
from holdfast.errors import InvalidError

WRITERS = 4
_PATIENCE = 60
"""For how many seconds writers wait for a reader, at most."""

MALFORMED = ("", "x", "0", "sqlite", "memory.", "elsewhere.1.2", "sqlite.-1", "redis.a.b.c", ".", "\0")


class ChangeFeed(Suite):
    """`changes`."""

    handles = Races.handles

    def test_lines_that_change_are_named(self, store: Driven) -> None:
        token = _changes(store, None).token
        assert _changes(store, token).lines == [], "nothing has changed yet"
        for name, batch, lines in _CASES:
            with case(name):
                assert store.apply(*batch) is None
                found = _changes(store, token)
                assert set(found.lines) == lines
                assert len(found.lines) == len(lines), "a line is named twice in one answer"
                again = _changes(store, found.token)
                assert again.lines == [], "nothing has changed since"
                token = again.token

    def test_an_old_token_names_all_that_changed_since(self, store: Driven) -> None:
        tokens = [_changes(store, None).token]
        for number in range(5):
            assert store.apply(Create(STEPS, step(line=f"{number}"))) is None
            tokens.append(_changes(store, tokens[-1]).token)
        for first, token in enumerate(tokens):
            assert {line for _, line in _changes(store, token).lines} >= {f"{n}" for n in range(first, 5)}

    def test_a_batch_of_many_lines_is_named_whole(self, store: Driven) -> None:
        token = _changes(store, None).token
        lines = {("many", f"line {n}") for n in range(300)}
        assert store.apply(*(Create(NODES, row_of(NODES, *line, 0, b"n")) for line in lines)) is None
        assert set(_changes(store, token).lines) == lines

    def test_deleted_tenants_are_named_or_the_answer_is_incomplete(self, store: Driven) -> None:
        for prefix in (("gone",), ()):
            with case(prefix):
                assert store.apply(*(Create(STEPS, row_of(STEPS, "gone", line, 0, 0)) for line in "abc")) is None
                token = _changes(store, None).token
                assert store.apply(Delete(STEPS, prefix)) is None
                found: Changes = store.drive(store.backend.changes(token))
                assert not found.complete or set(found.lines) >= {("gone", line) for line in "abc"}
                assert _changes(store, found.token).lines == []

    def test_odd_names_are_named_as_they_are(self, store: Driven) -> None:
        token = _changes(store, None).token
        lines = {("", ""), ("t", "a.b:c|d+e/f"), ("T", "\U0001f600 ü\t"), ("␞", "␞x:␟y"), ("x" * 500, "y" * 1000)}
        assert store.apply(*(Create(STEPS, row_of(STEPS, *line, 0, 0)) for line in lines)) is None
        assert set(_changes(store, token).lines) == lines

    def test_a_token_of_something_else_is_refused(self, store: Driven) -> None:
        assert store.apply(Create(STEPS, step())) is None
        for token in MALFORMED:
            with case(token), pytest.raises(InvalidError):
                store.drive(store.backend.changes(token))

    @needs("durable")
    def test_a_token_is_valid_when_the_store_is_opened_again(self, claimed: Stores) -> None:
        first = Driven(run(claimed.open()), run)
        old = _changes(first, None).token
        assert first.apply(Create(STEPS, step(line="first"))) is None
        token = _changes(first, old).token
        assert first.apply(Create(STEPS, step(line="last"))) is None
        first.close()
        again = Driven(run(claimed.open()), run)
        assert _changes(again, token).lines == [("tenant", "last")]
        assert again.apply(Create(STEPS, step(line="next"))) is None
        assert set(_changes(again, token).lines) == {("tenant", "last"), ("tenant", "next")}
        assert {line for _, line in _changes(again, old).lines} == {"first", "last", "next"}
        again.close()

    def test_tidying_loses_no_change(self, store: Driven) -> None:
        token = _changes(store, None).token
        assert (
            store.apply(Create(LINES, row_of(LINES, "t", "stays")), Create(LINES, row_of(LINES, "t", "goes"))) is None
        )
        assert store.apply(Delete(LINES, ("t", "goes"))) is None
        store.drive(store.backend.tidy())
        found: Changes = store.drive(store.backend.changes(token))
        assert not found.complete or set(found.lines) == {("t", "stays"), ("t", "goes")}
        assert ("t", "stays") in found.lines
        assert _changes(store, found.token).lines == []

    def test_changes_are_named_through_every_handle(self, plain: Driven, handles: list[Backend]) -> None:
        tokens = [run(handle.changes()).token for handle in handles[:4]]
        for number in range(12):
            line = f"line {number % 5}"
            assert run(handles[number % 4].apply([Put(STEPS, step(line=line, body=b"%d" % number))])) is None
            for at, handle in enumerate(handles[:4]):
                found = run(handle.changes(tokens[at]))
                assert (found.lines, found.complete) == ([("tenant", line)], True)
                tokens[at] = found.token
        assert _changes(plain, tokens[0]).lines == []

    def test_no_change_is_missed_while_many_write(self, handles: list[Backend]) -> None:
        """Whatever was acknowledged when a poll starts was named by it, or by one before."""
        acknowledged: list[tuple[str, str]] = []
        each = max(10, self.watched // 2)
        polled = Event()

        def write(worker: int) -> None:
            for number in range(each):
                if number == each // 2:
                    polled.wait(_PATIENCE)  # or they may all have written before the first poll
                line = f"{worker}-{number}"
                batch = [Create(STEPS, step(line=line)), Create(BRANCHES, row_of(BRANCHES, "tenant", line, 1))]
                assert run(handles[worker].apply(batch)) is None
                acknowledged.append(("tenant", line))

        reader = handles[-1]
        start = run(reader.changes()).token
        polls = 0
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [pool.submit(write, worker) for worker in range(WRITERS)]
            named: set[tuple[str, str]] = set()
            token, ended = start, False
            while not ended:
                ended = all(writer.done() for writer in writers)
                before = list(acknowledged)
                found = run(reader.changes(token))
                assert found.complete
                named.update(found.lines)
                assert named >= set(before), f"missed: {sorted(set(before) - named)[:5]}"
                token = found.token
                polls += 1
                polled.set()
            for writer in writers:
                writer.result()
        assert polls > 1
        assert named == {("tenant", f"{worker}-{n}") for worker in range(WRITERS) for n in range(each)}
        assert set(run(reader.changes(start)).lines) == named
        assert run(reader.changes(token)).lines == []

    @needs("shared")
    def test_no_change_of_other_processes_is_missed(self, stores: Stores, plain: Driven) -> None:
        token = _changes(plain, None).token
        named: set[tuple[str, str]] = set()
        with start_child(stores, "stream", "a", 15, 3) as a, start_child(stores, "stream", "b", 15, 3) as b:
            while a.poll() is None or b.poll() is None:
                found = _changes(plain, token)
                named.update(found.lines)
                token = found.token
            assert finish(a) == finish(b) == [str(number) for number in range(15)]
        named.update(_changes(plain, token).lines)
        batches = [stream_batch(writer, number, 1) for writer in "ab" for number in range(15)]
        assert named == {change.row.key[:2] for batch in batches for change in batch}


def _changes(store: Driven, token: str | None) -> Changes:
    found: Changes = store.drive(store.backend.changes(token))
    assert found.complete
    assert token is not None or found.lines == []
    return found


def _key(table: Table) -> tuple[Scalar, ...]:
    """Return a key of a table, in a line that has the name of the table."""
    samples: dict[type, Scalar] = {str: "x", int: 0, bytes: b"x"}
    return ("t", table.name, *(samples[kind] for kind in list(table.key.values())[2:]))


_IN_EACH: list[tuple[object, Batch, set[tuple[str, str]]]] = [
    (f"{action} {table.name}", [change], {("t", table.name)})
    for table in TABLES
    if table.in_feed
    for action, change in (
        ("create", Create(table, row_of(table, *_key(table)))),
        ("put", Put(table, row_of(table, *_key(table), body=b"other"))),
        ("delete", Delete(table, _key(table))),
    )
]
_CASES: list[tuple[object, Batch, set[tuple[str, str]]]] = [
    *_IN_EACH,
    ("append", [Create(STEPS, step(1))], {("tenant", "line")}),
    ("append again", [Create(STEPS, step(2))], {("tenant", "line")}),
    ("ensure", [Ensure(STEPS, step(3))], {("tenant", "line")}),
    ("two lines", [Create(STEPS, step(line="a")), Create(STEPS, step(line="b"))], {("tenant", "a"), ("tenant", "b")}),
    ("a line", [Delete(STEPS, ("tenant", "line"))], {("tenant", "line")}),
    ("two", [Delete(STEPS, ("tenant", "a")), Put(STEPS, step(9, line="b"))], {("tenant", "a"), ("tenant", "b")}),
]
"""Batches, one after another, and the lines that each changes."""
