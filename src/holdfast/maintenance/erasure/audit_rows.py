"""Removing content from the records of the audit and of hooks that are about one person.

The rows stay, with who did what, and when; their details go, which may have values. A step has a digest of its rows, so
the ledger gets the digest of those that are left, in the same batch: the audit still verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from holdfast.backends.interface import Change, Put, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, digest
from holdfast.engine.model.scopes import parse_place
from holdfast.engine.row_format import ERASE, Line, event_body, open_body
from holdfast.engine.subject_names import subject_of_name
from holdfast.errors import HoldfastError
from holdfast.security.audit.erasure_ledger import ErasureLedger
from holdfast.security.audit.retain import REMOVE, STEP
from holdfast.security.audit.verify import ACTION, ACTOR, TARGET

_AT_ONCE = 50
"""The number of steps whose rows are changed together."""

_KEPT = frozenset({REMOVE, ERASE, "erased"})
"""Actions whose details have no content: how many steps a line had, and its last hash."""


class AuditEraser:
    """Removes content from the rows about one person."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        ledger: ErasureLedger,
        is_subject: Callable[[str], bool],
        threads: Iterable[str],
        until: int | None = None,
        *,
        owns_tenant: bool = False,
        lines: Collection[Line] | None = None,
    ) -> None:
        """`threads` are the names of the person's threads. With `lines`, only their rows are changed."""
        self._owns_tenant = owns_tenant
        self._lines = lines
        self._engine = engine
        self._tenant = tenant
        self._ledger = ledger
        self._is_subject = is_subject
        self._threads = frozenset(threads)
        self._until = until

    async def erase(self, name: str) -> int:
        """Remove the content of all rows, under the name of the erasure. Returns the number of rows."""
        count = 0
        waiting: list[tuple[Line, str, list[Row]]] = []
        rows: list[Row] = []
        async for row in scan_rows(self._engine.context.backend, EVENTS, (self._tenant,)):
            if rows and rows[-1].key[:3] != row.key[:3]:
                waiting += self._step(rows)
                rows = []
            rows.append(row)
            if len(waiting) >= _AT_ONCE:
                count += await self._replace(name, waiting)
                waiting = []
        waiting += self._step(rows)
        return count + await self._replace(name, waiting)

    def _step(self, rows: Sequence[Row]) -> list[tuple[Line, str, list[Row]]]:
        """Return the rows of a step, if content is to be removed from one."""
        if not any(map(self._has_content, rows)):
            return []
        tenant, line, id = map(str, rows[0].key[:3])
        return [(Line(tenant, line), id, list(rows))]

    def _has_content(self, row: Row) -> bool:
        return (
            bool(row.body)
            and (self._lines is None or Line(*map(str, row.key[:2])) in self._lines)
            and row.columns[ACTION] not in _KEPT
            and (self._until is None or int(row.columns[0]) <= self._until)
            and self.is_about(row)
            and self._kept_detail(row) != self._detail(row)
        )

    def is_about(self, row: Row) -> bool:
        """Return whether a row is about the person: about something of theirs, or something that they did."""
        if self._owns_tenant:
            return True
        place, between, _ = str(row.columns[TARGET]).rpartition(BETWEEN)
        place = place if between else str(row.key[1])
        users = (subject_of_name(str(row.columns[ACTOR])), subject_of_name(place))
        if any(user and self._is_subject(user) for user in users):
            return True
        return place.startswith("thread:") and parse_place(place).thread in self._threads

    def _detail(self, row: Row) -> dict[str, Any]:
        try:
            found = self._engine.context.codec.unpack(open_body(row, self._engine.context.max_bytes))
        except HoldfastError:
            return {"damaged": True}
        return found if isinstance(found, dict) else {"": found}

    def _kept_detail(self, row: Row) -> dict[str, Any]:
        return {key: value for key, value in self._detail(row).items() if key == STEP}

    async def _replace(self, name: str, steps: Sequence[tuple[Line, str, list[Row]]]) -> int:
        changes: list[Change] = []
        digests = []
        for line, id, rows in steps:
            contents = []
            for row in rows:
                packed = open_body(row, self._engine.context.max_bytes) if row.body else b""
                if self._has_content(row):
                    kept = self._kept_detail(row)
                    packed = self._engine.context.codec.pack(kept) if kept else b""
                    changes.append(Put(EVENTS, row._replace(body=event_body(packed) if packed else b"")))
                contents.append((row.columns, packed))
            digests.append((line.name, id, digest(contents)))
        if changes:
            await self._ledger.replace_digests(name, digests, changes)
        return len(changes)
