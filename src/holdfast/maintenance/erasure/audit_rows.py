"""Removing content from the records of the audit and of hooks that are about one person.

The rows stay, with who did what, and when; their details go, which may have values, and keys of what was the person's.
A step has a digest of its rows, so the ledger gets the digest of those that are left, in the same batch: the audit
still verifies.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from holdfast.backends.interface import Change, Delete, Put, Row
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import EVENTS, STATE_TRANSITIONS
from holdfast.engine.artifact_links import LINE as ARTIFACTS
from holdfast.engine.engine import Engine
from holdfast.engine.events import BETWEEN, digest, place_of
from holdfast.engine.model.scopes import MARK, parse_place
from holdfast.engine.namespaces import ACCESS, AUDIT, HOOKS
from holdfast.engine.projection.rows import clear_state, has_transitions
from holdfast.engine.row_format import ERASE, Line, event_body, open_body
from holdfast.engine.subject_names import subject_of_name, subjects_in
from holdfast.errors import HoldfastError
from holdfast.security.audit.erasure_ledger import ErasureLedger, LedgerEntry
from holdfast.security.audit.retain import REMOVE, STEP, WITH_KEYS
from holdfast.security.audit.verify import ACTION, ACTOR, KIND, TARGET
from holdfast.state.sessions.records import LINE as SESSIONS

_AT_ONCE = 50
"""The number of steps whose rows are changed together."""

_KEPT = frozenset({REMOVE, ERASE, "erased"})
"""Actions whose details have no content: how many steps a line had, and its last hash."""

_CHANGES = frozenset({"agent", "change", "recovery", "transition"})
_WITH_VALUES = _CHANGES | {"artifact", "hook", "session"}
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

    def includes(self, row: Row, detail: Mapping[str, Any]) -> bool:
        """Return whether a row is about the person: about something of theirs, something that they did, or a change in
        a place where they had a part, of which hooks may have noted what was there before."""
        line, target = str(row.key[1]), str(row.columns[TARGET])
        where, between, key = target.rpartition(BETWEEN)
        place, actor, time = where if between else line, str(row.columns[ACTOR]), int(row.columns[0])
        if self._until is not None and time > self._until:
            return False
        if self.is_about(place, actor, time) or (line == ACCESS and self._names(key)):
            return True
        if any(map(self._is_subject, subjects_in(detail.get("metadata"), self._entry.metadata_keys))):
            return True
        if any(self._since(name) is not None for name in _records(line, key, detail)):
            return True
        since = self._since_of(place)
        return since is not None and row.columns[KIND] in _WITH_VALUES and time >= since

    def has_key(self, row: Row) -> bool:
        """Return whether a row about the person has a key that they chose: in something of theirs, or in an attempt."""
        place, between, key = str(row.columns[TARGET]).rpartition(BETWEEN)
        if not (between and key) or row.columns[KIND] not in WITH_KEYS:
            return False
        is_theirs = self._owns_tenant or self._names(place) or self._since_of(place) == 0
        return is_theirs or (row.columns[KIND] == "denied" and self._names(str(row.columns[ACTOR])))

    def is_about(self, place: str, actor: str, time: int) -> bool:
        """Return whether something about a line, that somebody did at a time, is about the person."""
        if self._until is not None and time > self._until:
            return False
        return self._owns_tenant or self._names(place) or self._names(actor) or self._since_of(place) == 0

    def _names(self, name: str) -> bool:
        """Return whether a scope or an identity is the person's by its name."""
        user = subject_of_name(name)
        return bool(user) and self._is_subject(user)

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


Rewrite: TypeAlias = Callable[[Row, bytes], tuple[Row, bytes]]
"""Returns what is left of a row and of its packed details."""


def rewrite_about(engine: Engine, subjects: Sequence[SubjectRows]) -> Rewrite:
    """Return what removes content from the rows about some persons."""

    def rewrite(row: Row, packed: bytes) -> tuple[Row, bytes]:
        if row.columns[ACTION] in _KEPT:
            return row, packed
        detail = read_detail(engine, row)
        about = [each for each in subjects if each.includes(row, detail)]
        if not about:
            return row, packed
        kept = {key: value for key, value in detail.items() if key == STEP}
        if any(each.has_key(row) for each in about):
            columns = [*row.columns]
            columns[TARGET] = str(columns[TARGET]).rpartition(BETWEEN)[0] + BETWEEN
            row = row._replace(columns=tuple(columns))
        return row, packed if kept == detail else engine.context.codec.pack(kept) if kept else b""

    return rewrite


def read_detail(engine: Engine, row: Row) -> dict[str, Any]:
    """Return the details of a row."""
    if not row.body:
        return {}
    try:
        found = engine.context.codec.unpack(open_body(row, engine.context.max_bytes))
    except HoldfastError:
        return {"damaged": True}
    return found if isinstance(found, dict) else {"": found}


async def changed_places(engine: Engine, tenant: str, is_subject: Callable[[str], bool]) -> dict[str, int]:
    """Return where a person changed something, by the rows of all lines, also of those that were deleted since; and
    when first."""
    found: dict[str, int] = {}
    async for row in scan_rows(engine.context.backend, EVENTS, (tenant,), bodies=False):
        user = subject_of_name(str(row.columns[ACTOR]))
        if user and row.columns[KIND] in _CHANGES and is_subject(user):
            place = str(row.columns[TARGET]).rpartition(BETWEEN)[0] or str(row.key[1])
            for name in places_of(place):
                found[name] = min(int(row.columns[0]), found.get(name, int(row.columns[0])))
    return found


_RewrittenStep: TypeAlias = tuple[tuple[str, str, str, int], list[Change]]
"""The line of a step, its id, the digest of its rows, and how many change; and the changes."""


class AuditRewriter:
    """Rewrites rows, so that the audit still verifies."""

    def __init__(
        self,
        engine: Engine,
        ledger: ErasureLedger,
        rewrite: Rewrite,
        lines: Container[Line] | None = None,
    ) -> None:
        """With `lines`, only their rows are changed."""
        self._engine = engine
        self._ledger = ledger
        self._rewrite = rewrite
        self._lines = lines
        self._agents: set[Line] = set()
        """Agents whose events changed."""

    async def run(self, tenant: str, name: str) -> int:
        """Rewrite all rows of a tenant, under a name by which the ledger counts them. Returns how many changed."""
        count = 0
        waiting: list[_RewrittenStep] = []
        rows: list[Row] = []
        async for row in scan_rows(self._engine.context.backend, EVENTS, (tenant,)):
            if self._lines is not None and Line(tenant, str(row.key[1])) not in self._lines:
                continue
            if rows and rows[-1].key[:3] != row.key[:3]:
                waiting += self._step(rows)
                rows = []
            rows.append(row)
            if len(waiting) >= _AT_ONCE:
                count += await self._replace(name, waiting)
                waiting = []
        waiting += self._step(rows)
        count += await self._replace(name, waiting)
        for line in self._agents:
            await self._engine.projector.follow(line)
        return count

    def _step(self, rows: Sequence[Row]) -> list[_RewrittenStep]:
        """Return what is left of the rows of a step, if one of them changes."""
        changes, contents = list[Change](), []
        tenant, line, id = map(str, rows[0].key[:3]) if rows else ("", "", "")
        for row in rows:
            packed = _open(row, self._engine.context.max_bytes)
            new, left = self._rewrite(row, packed)
            if new.columns != row.columns or left != packed:
                changes.append(Put(EVENTS, new._replace(body=event_body(left) if left else b"")))
            contents.append((new.columns, left))
        if not changes:
            return []
        count = len(changes)
        if has_transitions(whole := Line(tenant, line)):
            # Readable rows are made again, and those under way elsewhere are refused, since the thread's own is gone.
            changes += [*clear_state(whole), Delete(STATE_TRANSITIONS, tuple(whole))]
            self._agents.add(whole)
        return [((line, id, digest(contents), count), changes)]

    async def _replace(self, name: str, steps: Sequence[_RewrittenStep]) -> int:
        changes = [change for _, changes in steps for change in changes]
        if changes:
            await self._ledger.replace_digests(name, [digests for digests, _ in steps], changes)
        return sum(digests[3] for digests, _ in steps)


def _open(row: Row, max_bytes: int) -> bytes:
    """Return the packed details of a row; as they are stored, if they are damaged."""
    try:
        return open_body(row, max_bytes) if row.body else b""
    except HoldfastError:
        return row.body
