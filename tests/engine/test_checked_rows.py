"""Rows of every table are checked when they are read, and a damaged one is nowhere taken for another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.backends.interface import Create, Ensure, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import BEHIND, FIELDS, JOURNAL, READABLE, TABLES, WORDS, Table
from holdfast.codec.envelope import DAMAGED, unwrap, wrap
from holdfast.engine.checked_rows import CHECKSUMS, CheckedBackend, read_despite_damage
from holdfast.errors import CorruptError

PROTECTED = [table for table in TABLES if table not in (JOURNAL, WORDS, FIELDS, BEHIND, *READABLE)]

protected = pytest.mark.parametrize("table", PROTECTED, ids=[table.name for table in PROTECTED])


@pytest.fixture
def stored() -> Iterator[MemoryBackend]:
    backend = run(MemoryBackend.open("memory://"))
    yield backend
    run(backend.close())


def row(table: Table, number: int) -> Row:
    """A row whose key has a number in every column."""
    key = tuple(kind(str(number), "ascii") if kind is bytes else kind(number) for kind in table.key.values())
    return Row(key, tuple(kind() for kind in table.columns.values()), wrap(b"content"))


def damaged(table: Table, row: Row) -> Row:
    """A stored row with a flipped bit."""
    body = CHECKSUMS.encode(table, row).body
    return row._replace(body=body[:-1] + bytes([body[-1] ^ 1]))


def fill(stored: MemoryBackend, table: Table) -> tuple[Row, Row, Row]:
    """Store three rows, and damage the second."""
    first, second, third = (row(table, number) for number in range(3))
    run(CheckedBackend(stored).apply([Create(table, each) for each in (first, second, third)]))
    assert run(CheckedBackend(stored).read([Scan(table, ())])) == [[first, second, third]]
    run(stored.apply([Put(table, damaged(table, second))]))
    return first, second, third


@protected
def test_a_damaged_row_is_returned_by_no_read(stored: MemoryBackend, table: Table) -> None:
    rows = fill(stored, table)
    first, second, third = rows
    backend = CheckedBackend(stored)
    for query in (Scan(table, ()), Get(table, [each.key for each in rows]), Get(table, [second.key])):
        with pytest.raises(CorruptError, match="its checksum differs"):
            run(backend.read([query]))
    assert run(backend.read([Get(table, [first.key, third.key])])) == [[first, third]]
    assert [each.key for each in run(backend.read([Scan(table, (), bodies=False)]))[0]] == [each.key for each in rows]


@protected
def test_a_damaged_row_in_a_list_does_not_hide_the_others(stored: MemoryBackend, table: Table) -> None:
    first, second, third = fill(stored, table)
    backend = CheckedBackend(stored)
    keys = [first.key, second.key, third.key]
    for found in run(read_despite_damage(backend, [Scan(table, ()), Get(table, keys)])):
        assert found == [first, second._replace(body=DAMAGED), third]
        with pytest.raises(CorruptError, match="its checksum differs"):
            unwrap(found[1].body)


@protected
def test_what_was_damaged_is_not_stored_as_if_it_were_not(stored: MemoryBackend, table: Table) -> None:
    _, second, third = fill(stored, table)
    backend = CheckedBackend(stored)
    before = run(stored.read([Scan(table, ())]))
    for change in (Create, Ensure, Put):
        with pytest.raises(CorruptError, match="its checksum differs"):
            run(backend.apply([Put(table, third), change(table, second._replace(body=DAMAGED))]))
    assert run(stored.read([Scan(table, ())])) == before


@protected
def test_every_flipped_bit_of_a_body_is_damage(table: Table) -> None:
    """Also in the bytes that name the version of the format and the protection: a copy repairs it."""
    whole = CHECKSUMS.encode(table, row(table, 1))
    assert CHECKSUMS.is_intact(table, whole)
    for bit in range(8 * len(whole.body)):
        body = bytearray(whole.body)
        body[bit // 8] ^= 1 << bit % 8
        assert not CHECKSUMS.is_intact(table, whole._replace(body=bytes(body)))
