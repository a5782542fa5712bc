"""Every bit of the row of a step, in turn: a copy of the store restores it, and without one no other step is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

import holdfast
from holdfast.errors import HoldfastError
from holdfast.store.store import Store
from tests.support.nightly import by_night

DAMAGED = "id-3"
TYPES = 24
"""So many bytes of an entry have its sizes and the types of its columns."""
History = list[tuple[str, object]]


class Entry(NamedTuple):
    """The entry of a step in the table of a SQLite file: where it starts, its body starts, and it ends."""

    start: int
    body: int
    end: int

    def bits(self) -> range | list[int]:
        """Every bit of it; by day, those of the header of the record, the types of the last columns, and some more."""
        every = range(8 * self.start, 8 * self.end)
        if by_night():
            return every
        header = [8 * (self.body + byte) + bit for byte in (2, 3, 4, 5, 8) for bit in (0, 4, 7)]
        types = [8 * place for place in range(self.start, self.start + TYPES)]
        return [*types, *header, *every[::199]]


def history(store: Store) -> History:
    return [(each.id, each.state) for each in store.thread("t").log().all()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, History, Entry]:
    """A small store in one file, its history, and the entry of a step."""
    file = tmp_path_factory.mktemp("whole") / "a.db"
    with holdfast.open(file) as store:
        for number in range(6):
            texts = [f"{number}{place}" * 5 for place in range(number)]
            store.thread("t").put({"n": number, "texts": texts}, id=f"id-{number}")
        truth = history(store)
    connection = apsw.Connection(str(file))
    connection.pragma("wal_checkpoint", "truncate")
    size = connection.pragma("page_size")
    body = connection.execute("SELECT body FROM steps WHERE id = ?", (DAMAGED,)).get
    connection.close()
    data = file.read_bytes()
    at = data.index(body)
    page = at // size * size
    count = int.from_bytes(data[page + 3 : page + 5], "big")
    places = [page + 8 + 2 * number for number in range(count)]
    starts = [page + int.from_bytes(data[place : place + 2], "big") for place in places]
    return file, truth, Entry(max(start for start in starts if start < at), at, at + len(body))


@pytest.mark.time_limit(600)
@pytest.mark.nightly  # by day, without a copy
def test_a_copy_restores_a_step_whatever_bit_of_its_row_is_flipped(
    whole: tuple[Path, History, Entry], tmp_path: Path
) -> None:
    file, truth, entry = whole
    data, damaged, found = file.read_bytes(), tmp_path / "a.db", 0
    for bit in entry.bits():
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        damaged.write_bytes(changed)
        where = f"bit {bit % 8} of byte {bit // 8 - entry.start}; the body starts at {entry.body - entry.start}"
        with holdfast.open(damaged) as store, holdfast.open(file) as copy:
            found += not store.maintenance.verify().ok
            store.maintenance.repair(copy)
            assert not store.maintenance.verify().damage, where
            assert history(store) == truth, where
    assert found > 40, "hardly any of these bits is noticed"


def test_a_body_that_turned_into_text_does_not_stop_a_repair_without_a_copy(
    whole: tuple[Path, History, Entry], tmp_path: Path
) -> None:
    file, truth, entry = whole
    data, stopped = file.read_bytes(), 0
    for place in range(entry.start, entry.start + TYPES):
        changed = bytearray(data)
        changed[place] ^= 1
        damaged = tmp_path / f"{place}.db"
        damaged.write_bytes(changed)
        with holdfast.open(damaged) as store:
            try:
                store.thread("t").get(at=DAMAGED)
            except HoldfastError:
                stopped += 1
            store.maintenance.repair()
            left = dict(history(store))
            assert left.items() <= dict(truth).items()
            assert len(left) >= 3, "those before it are there"
    assert stopped
