"""Repairs one store of a pair from the other.

A row is written back at a moment at which both stores are at the same entry of the journal: then a row that one of them
lacks, or has damaged, is as it should be in the other.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from holdfast.backends.interface import Backend, Expect, Get, Put, Row, RowCheck
from holdfast.backends.tables import JOURNAL, Key, Table
from holdfast.backends.wrappers import journal
from holdfast.backends.wrappers.replica_pair import ReplicaCursor, read_cursor
from holdfast.backends.wrappers.store_diff import RowDifference, read_row
from holdfast.errors import HoldfastError

_log = logging.getLogger("holdfast.copies")

_ATTEMPTS = 5
"""How often a row is written back while others write."""


class ReplicaHealer:
    """Repairs rows of a local store and its copy, and counts them."""

    def __init__(self, local: Backend, remote: Backend, caught_up: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        """`caught_up` waits until the copy has all that is in the local store; False if that takes too long."""
        self._local = local
        self._remote = remote
        self._caught_up = caught_up
        self.row_check: RowCheck | None = None
        self.healed = 0
        self.unhealed = 0

    def is_intact(self, space: Table, row: Row) -> bool:
        return self.row_check is None or self.row_check(space, row)

    async def heal(self, differences: Iterable[RowDifference]) -> None:
        """Repair what is damaged or missing in one store and OK in the other.

        Rows that are OK in both and still differ are left as they are, and in such a line also rows that only the copy
        has: somebody wrote to one of the stores directly, and nobody else can know which of the two is right.
        """
        found = [
            (each, self._is_ok(each.space, each.local), self._is_ok(each.space, each.remote)) for each in differences
        ]
        conflicts = {each.key[:2] for each, here, there in found if here and there}
        for each, here, there in found:
            cursor = await read_cursor(self._remote)
            if cursor is None:
                return
            is_lost = each.local is None and not each.damaged
            if there and not here and not (is_lost and each.key[:2] in conflicts):
                await self.restore([(each.space, each.key)], cursor)
            elif here and not there:
                await self._restore_copy(each.space, each.key, cursor)

    async def restore(self, rows: Iterable[tuple[Table, Key]], cursor: ReplicaCursor) -> None:
        """Write rows of the copy back, and count them."""
        healed: Counter[str] = Counter()
        for space, key in dict.fromkeys(rows):
            try:
                repaired = await self._restore_row(space, key, cursor)
            except HoldfastError as error:
                _log.warning("%s: a row of %s could not be repaired: %s", self._local.url, space.name, error)
                repaired = False
            healed[space.name] += repaired
            self.unhealed += not repaired
        self.healed += healed.total()
        for name, count in (+healed).items():
            _log.warning("%s: rows of %s were damaged or missing: %d repaired", self._local.url, name, count)

    async def _restore_row(self, space: Table, key: Key, cursor: ReplicaCursor | None) -> bool:
        """Write a row of the copy back. False if the copy does not have it, or others keep writing."""
        for _ in range(_ATTEMPTS):
            if cursor is None:
                break
            row, _ = await read_row(self._remote, space, key)
            if row is None or not self.is_intact(space, row):
                break
            unchanged = [cursor.last.condition, Expect(JOURNAL, (*journal.LINE, cursor.number + 1), None)]
            if await self._local.apply([*unchanged, Put(space, row)]) is None:
                return True
            # Something was written since.
            cursor = await read_cursor(self._remote) if await self._caught_up() else None
        return False

    async def _restore_copy(self, space: Table, key: Key, cursor: ReplicaCursor) -> None:
        """Write a row into the copy, if both stores are still at the cursor."""
        (last,), rows = await self._local.read([journal.LAST, Get(space, [key])])
        if journal.parse_row(last) != cursor.last or not rows or not self.is_intact(space, rows[0]):
            return
        if await self._remote.apply([cursor.condition, Put(space, rows[0])]) is None:
            self.healed += 1
            _log.warning("%s: a row of %s was damaged or missing, and is repaired", self._remote.url, space.name)

    def _is_ok(self, space: Table, row: Row | None) -> bool:
        return row is not None and self.is_intact(space, row)
