"""Removing content from the records of the audit and of hooks that are about one person.

The rows stay, with who did what, and when; their details go, which may have values. A step has a digest of its rows, so
the ledger gets the digest of those that are left, in the same batch: the audit still verifies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from holdfast.backends.interface import Change, Put, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS, STEPS
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, digest, place_of
from holdfast.engine.model.scopes import MARK, parse_place
from holdfast.engine.namespaces import AUDIT
from holdfast.engine.row_format import ERASE, Line, StepRef, event_body, open_body
from holdfast.engine.subject_names import subject_of_name, subjects_in
from holdfast.errors import HoldfastError
from holdfast.hooks.execution_log import LINE as HOOKS
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry
from holdfast.security.audit.retain import REMOVE, STEP
from holdfast.security.audit.verify import ACTION, ACTOR, KIND, TARGET
from holdfast.state.sessions.records import LINE as SESSIONS

_AT_ONCE = 50
"""The number of steps whose rows are changed together."""

_KEPT = frozenset({REMOVE, ERASE, "erased"})
"""Actions whose details have no content: how many steps a line had, and its last hash."""

_WITH_VALUES = frozenset({"agent", "artifact", "change", "hook", "recovery", "session", "transition"})
"""The kinds of rows with values: hooks record them, and note fields in the rows of changes."""

_RECORDS = {ARTIFACTS: "artifact", SESSIONS: "session"}


def places_of(line: str) -> set[str]:
    """Return the names by which rows refer to a line."""
    return {line, line.removeprefix(MARK), place_of(line)}


def record_place(line: str, id: str) -> str:
    """Return the name for the record of an artifact or a session, in the line of the records."""
    return f"{_RECORDS[line]}{BETWEEN}{id}"


class SubjectRows:
    """Recognises rows about one person, by an entry of the ledger."""

    def __init__(self, entry: LedgerEntry, until: int | None = None, *, owns_tenant: bool = False) -> None:
        """`until` leaves out later rows, in nanoseconds since 1970."""
        self._entry = entry
        self._until = until
        self._owns_tenant = owns_tenant
        self._is_subject = lru_cache(1000)(entry.is_of)
        self._since = lru_cache(1000)(entry.since)

    def includes(self, row: Row, detail: Mapping[str, Any], remaining: Collection[str] | None) -> bool:
        """Return whether a row is about the person: about something of theirs, something that they did, or a state in
        which they had a part. `remaining` are the ids of the steps of its line that were not pruned."""
        time = int(row.columns[0])
        if self._until is not None and time > self._until:
            return False
        if self._owns_tenant:
            return True
        line, target = str(row.key[1]), str(row.columns[TARGET])
        where, between, key = target.rpartition(BETWEEN)
        place = where if between else line
        if self._names_subject(place, str(row.columns[ACTOR])):
            return True
        if any(map(self._is_subject, subjects_in(detail.get("metadata"), self._entry.metadata_keys))):
            return True
        if any(self._since(name) is not None for name in _records(line, key, detail)):
            return True
        since = self._since_of(place)
        if not since:
            return since is not None
        # Of a line that others share, rows may have values with something of the person.
        pruned = bool(between) or remaining is None or str(row.key[2]) not in remaining
        return row.columns[KIND] in _WITH_VALUES and time >= since and pruned

    def is_about(self, place: str, actor: str, time: int) -> bool:
        """Return whether something about a line, that somebody did at a time, is about the person."""
        if self._until is not None and time > self._until:
            return False
        return self._owns_tenant or self._names_subject(place, actor) or self._since_of(place) == 0

    def _names_subject(self, place: str, actor: str) -> bool:
        users = (subject_of_name(actor), subject_of_name(place))
        return any(user and self._is_subject(user) for user in users)

    def _since_of(self, place: str) -> int | None:
        """Return since when a place had something of the person; 0 for one that was theirs."""
        return min((found for name in _places(place) if (found := self._since(name)) is not None), default=None)


def _places(place: str) -> set[str]:
    """Return the names that the place of a row may be that of."""
    thread = parse_place(place).thread if place.startswith("thread:") else ""
    return {place, place_of(place), thread or place}


def _records(line: str, key: str, detail: Mapping[str, Any]) -> list[str]:
    """Return the record of an artifact or a session that a row is about."""
    if line in _RECORDS:
        return [record_place(line, key)]
    point = str(detail.get("point", ""))
    if line in (HOOKS, AUDIT):
        return [f"{kind}{BETWEEN}{key}" for kind in _RECORDS.values() if point.startswith(f"{kind}.")]
    return []


class AuditEraser:
    """Removes content from the rows about some persons."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        ledger: ErasureLedger,
        subjects: Sequence[SubjectRows],
        lines: Collection[Line] | None = None,
    ) -> None:
        """With `lines`, only their rows are changed."""
        self._engine = engine
        self._tenant = tenant
        self._ledger = ledger
        self._subjects = subjects
        self._lines = lines
        self._remaining: tuple[str, frozenset[str]] = ("", frozenset())

    async def erase(self, name: str) -> bool:
        """Remove the content of all rows, under the name of the erasure, by which the ledger counts them. Returns
        whether there was any."""
        erased = False
        waiting: list[tuple[Line, str, list[Row]]] = []
        rows: list[Row] = []
        async for row in scan_rows(self._engine.context.backend, EVENTS, (self._tenant,)):
            if self._lines is not None and Line(self._tenant, str(row.key[1])) not in self._lines:
                continue
            if rows and rows[-1].key[:3] != row.key[:3]:
                waiting += await self._step(rows)
                rows = []
            rows.append(row)
            if len(waiting) >= _AT_ONCE:
                erased |= await self._replace(name, waiting)
                waiting = []
        waiting += await self._step(rows)
        return await self._replace(name, waiting) or erased

    async def _step(self, rows: Sequence[Row]) -> list[tuple[Line, str, list[Row]]]:
        """Return the rows of a step, if content is to be removed from one."""
        if not any([await self._has_content(row) for row in rows]):
            return []
        tenant, line, id = map(str, rows[0].key[:3])
        return [(Line(tenant, line), id, list(rows))]

    async def _has_content(self, row: Row) -> bool:
        if not row.body or row.columns[ACTION] in _KEPT:
            return False
        detail = self._detail(row)
        return _kept(detail) != detail and await self.is_about(row, detail)

    async def is_about(self, row: Row, detail: Mapping[str, Any] | None = None) -> bool:
        """Return whether a row is about one of the persons."""
        found = self._detail(row) if detail is None else detail
        remaining = None if BETWEEN in str(row.columns[TARGET]) else await self._steps(str(row.key[1]))
        return any(each.includes(row, found, remaining) for each in self._subjects)

    async def _steps(self, name: str) -> frozenset[str]:
        """Return the ids of the steps of a line that were not pruned."""
        if self._remaining[0] != name:
            found = scan_rows(self._engine.context.backend, STEPS, (self._tenant, name), bodies=False)
            ids = frozenset([point.id async for row in found if not (point := StepRef.of(row)).pruned])
            self._remaining = name, ids
        return self._remaining[1]

    def _detail(self, row: Row) -> dict[str, Any]:
        if not row.body:
            return {}
        try:
            found = self._engine.context.codec.unpack(open_body(row, self._engine.context.max_bytes))
        except HoldfastError:
            return {"damaged": True}
        return found if isinstance(found, dict) else {"": found}

    async def _replace(self, name: str, steps: Sequence[tuple[Line, str, list[Row]]]) -> bool:
        changes: list[Change] = []
        digests = []
        for line, id, rows in steps:
            contents, before = [], len(changes)
            for row in rows:
                packed = open_body(row, self._engine.context.max_bytes) if row.body else b""
                if await self._has_content(row):
                    kept = _kept(self._detail(row))
                    packed = self._engine.context.codec.pack(kept) if kept else b""
                    changes.append(Put(EVENTS, row._replace(body=event_body(packed) if packed else b"")))
                contents.append((row.columns, packed))
            digests.append((line.name, id, digest(contents), len(changes) - before))
        if changes:
            await self._ledger.replace_digests(name, digests, changes)
        return bool(changes)


def _kept(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in detail.items() if key == STEP}
