"""Encrypting everything anew: with the newest keys; or for the first time, or no more.

A line is done in four steps, each of which can be interrupted and done again: it gets a new key; the old ones are
retired, so that nobody seals with them any more; its rows are sealed with the new one; the old ones are deleted. A row
is replaced only if it is still the one that was read. Readers and writers continue meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from holdfast._fields import count, fill
from holdfast.backends.interface import Change, Delete, Expect, Get, Put, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import (
    BEHIND,
    KEYS,
    LINES,
    QUARANTINE,
    READABLE,
    SIGNING,
    STEPS,
    TABLES,
    WORDS,
    Key,
    Table,
)
from holdfast.codec.envelope import sealed_key_id
from holdfast.engine.checked_rows import StoredDelete, StoredExpect
from holdfast.engine.engine import Engine
from holdfast.engine.line_walk import count_lines
from holdfast.engine.namespaces import KEYS_PLACE, is_thread, root_of
from holdfast.engine.optimistic import Attempts
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.sealed_rows import UNSEALED
from holdfast.engine.subject_names import MIXED, subject_of_line, subjects_of_step
from holdfast.engine.types import Progress
from holdfast.maintenance.erasure.finder import read_subjects
from holdfast.maintenance.keys.rotation import encrypted_rows
from holdfast.security.audit.thread_audit import record
from holdfast.security.encryption.hidden_names import SUBJECT_LINE
from holdfast.security.encryption.key_rows import ACTIVE, DATA, RETIRED, SUBJECT, KeyRow
from holdfast.security.encryption.store_keys import StoreKeys

_BATCH_ROWS, _BATCH_BYTES = 100, 1 << 20
_PAGE = 500


class ReencryptReport(msgspec.Struct, frozen=True):
    """The report of encrypting everything anew."""

    lines: int = 0
    """How many threads and other lines had rows to replace, or old keys."""
    rows: int = 0
    remains: tuple[str, ...] = ()
    """Where copies of old rows may still be, that Holdfast cannot reach."""


class Reencryption:
    """Brings all rows of a tenant to the keys and the mode with which the store is open."""

    def __init__(self, engine: Engine, tenant: str, progress: Progress | None = None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._progress = progress
        self._rows = encrypted_rows(engine)
        self._keys: StoreKeys = self._rows.store_keys
        self._report = ReencryptReport()

    async def run(self, after: str = "") -> ReencryptReport:
        """Do all lines, in the order of their names, after one of them."""
        await record(self._engine, [Line(self._tenant, KEYS_PLACE)], "reencrypt", {"mode": self._rows.mode})
        await self._keys.load_tenant(self._tenant)
        total = None if self._progress is None else await count_lines(self._engine.context.backend, self._tenant)
        done = 0
        async for name in self._names(after):
            await self._do_line(name)
            done += 1
            if self._progress is not None:
                self._progress(done, None if total is None else max(done, total), name)
        if self._rows.mode != "on":
            await self._engine.fields.rebuild(self._tenant)
            await self._finish_change()
        else:
            await self._delete_old_subject_keys()
        return self._report

    async def _delete_old_subject_keys(self) -> None:
        """Delete keys of persons that encrypt no key of a line any more."""
        newest = await self._current()
        used = {(row.subject, row.number) async for row in self._older(DATA, newest) if row.subject}
        async for row in self._older(SUBJECT, newest):
            digest = row.line.removeprefix(SUBJECT_LINE)
            if (digest, row.number) not in used:
                await self._keys.backend.apply([row.unchanged(), Delete(KEYS, row.key)])

    async def _older(self, kind: str, newest: int) -> AsyncIterator[KeyRow]:
        """Yield the keys of a kind that are older than the newest of the tenant."""
        async for found in scan_rows(self._keys.backend, KEYS, (self._tenant,)):
            row = KeyRow.of(found)
            if row.kind == kind and row.number < newest:
                yield row

    async def _names(self, after: str) -> AsyncIterator[str]:
        """Yield the names of all lines that have rows, in order, after one of them."""
        if not after:
            yield ""
        start: Key = (after + "\0",)
        while True:
            tables = (LINES, KEYS, QUARANTINE)
            scans = [Scan(table, (self._tenant,), start, limit=_PAGE, bodies=False) for table in tables]
            found = await self._keys.backend.read(scans)
            last = min((str(rows[-1].key[1]) for rows in found if len(rows) == _PAGE), default=None)
            names = {str(row.key[1]) for rows in found for row in rows}
            for name in sorted(names if last is None else (each for each in names if each <= last)):
                if not name.startswith(SUBJECT_LINE):
                    yield name
            if last is None:
                return
            start = (last + "\0",)

    # One line -------------------------------------------------------------------------------------------------

    async def _do_line(self, name: str) -> None:
        line = (self._tenant, name)
        keys, newest = await self._own_keys(line), await self._current()
        if self._rows.mode == "on" and not any(row.number < newest for row in keys):
            return  # its rows cannot be sealed with any other
        current = await self._renew_key(line)
        replaced = 0
        for table in TABLES:
            if table.name not in UNSEALED:
                replaced += await self._do_table(table, line, current)
        await self._delete_retired(line)
        count(self._report, rows=replaced, lines=bool(replaced or len(keys) > 1))

    async def _own_keys(self, line: tuple[str, str]) -> list[KeyRow]:
        (rows,) = await self._keys.backend.read([Scan(KEYS, (*line, DATA))])
        return [KeyRow.of(row) for row in rows]

    async def _current(self) -> int:
        return (await self._keys.require_tenant(self._tenant)).current

    async def _renew_key(self, line: tuple[str, str]) -> bytes:
        """Retire the old keys of a line, and return the id of the one that its rows are to have; none without."""
        off = self._rows.mode == "turning-off"
        attempts = Attempts("renewing the key of a line", f"line {line[1]!r}", self._engine.context.metrics)
        while True:
            await attempts.begin()
            rows, number = await self._own_keys(line), await self._current()
            newest = next((row for row in rows if row.number == number and row.state == ACTIVE), None)
            old = [row for row in rows if row.state == ACTIVE and (off or row is not newest)]
            changes: list[Change] = []
            if newest is None and not off:
                created = await self._keys.new_line_key(line, await self._subject_of(Line(*line)))
                newest = created.row
                changes += created.conditions
            for row in old:
                retired = await self._keys.with_state(row, RETIRED)
                changes += [row.unchanged(), Put(KEYS, retired.stored())]
            if not changes or await self._keys.backend.apply(changes) is None:
                await self._keys.load([line], again=True)
                return b"" if newest is None or off else newest.id
            await self._keys.load_tenant(self._tenant)

    async def _subject_of(self, line: Line) -> str:
        """Return the person whose data a line is as a whole, by an assignment, by its name or by the metadata of a
        thread; empty for none. An old key need not be of that person's key: so it is for all lines of a store that was
        not encrypted."""
        assigned = (await read_subjects(self._engine, [line])).get(line, "")
        if assigned:
            return "" if assigned == MIXED else assigned
        subjects, users = set[str](), set[str]()
        for each in await self._engine.lines.family(root_of(line)) if is_thread(line.name) else ():
            async for row in scan_rows(self._engine.context.backend, STEPS, tuple(each), bodies=False):
                named, made = subjects_of_step(StepRef.of(row))
                subjects.update(named)
                users.update([made] if made and not named else [])
        return subject_of_line(line) or (next(iter(subjects)) if len(subjects) == 1 and users <= subjects else "")

    async def _do_table(self, table: Table, line: tuple[str, str], current: bytes) -> int:
        """Replace the rows of a line that have another key."""
        batch: list[Row] = []
        size = count = 0
        async for row in scan_rows(self._engine.context.stored, table, line):
            if sealed_key_id(row.body) != current:
                batch.append(row)
                size += len(row.body)
            if len(batch) >= _BATCH_ROWS or size > _BATCH_BYTES:
                count += await self._replace(table, batch, current)
                batch, size = [], 0
        return count + await self._replace(table, batch, current)

    async def _replace(self, table: Table, batch: list[Row], current: bytes) -> int:
        """Replace rows, each on condition that nobody did before."""
        context, rows = self._engine.context, list(batch)
        if not rows:
            return 0
        changes: list[Change] = []
        for row in rows:
            opened = context.rows.decode(table, row)
            changes.append(StoredExpect(table, row.key, row.columns))
            if context.rows.hide_key(table, opened.key) != row.key:
                changes.append(StoredDelete(table, row.key))
            changes.append(Put(table, opened))
        if await context.backend.apply(changes) is None:
            return len(rows)
        if len(rows) == 1:
            return 0  # it was replaced with the new key, or deleted: nobody has the old one
        return sum([await self._replace(table, [row], current) for row in rows])

    async def _delete_retired(self, line: tuple[str, str]) -> None:
        for row in await self._own_keys(line):
            if row.state != ACTIVE:
                await self._keys.backend.apply([row.unchanged(), Delete(KEYS, row.key)])

    # The end of a change of mode ------------------------------------------------------------------------------

    async def _finish_change(self) -> None:
        backend, tenant = self._engine.context.backend, self._tenant
        if self._rows.mode == "turning-off":
            await self._decrypt_signing_key()
            return
        await self._encrypt_signing_key()
        if not self._rows.may_be_clear("words"):
            await self._engine.indexer.drop(tenant)
            await backend.apply([Delete(WORDS, (tenant,))])
        if not self._rows.may_be_clear("readable"):
            await backend.apply([Delete(table, (tenant,)) for table in (BEHIND, *READABLE)])
        fill(self._report, remains=tuple(await backend.purge()))

    async def _encrypt_signing_key(self) -> None:
        """Encrypt the key for certificates, which stays the same."""
        while (row := await self._signing_row()) is not None and not row.wrapped_by:
            new = await self._keys.new_row(self._tenant, SIGNING, row.number, row.wrapped)
            changes: list[Change] = [row.unchanged(), Put(KEYS, new._replace(time=row.time).stored())]
            await self._keys.backend.apply(changes)

    async def _decrypt_signing_key(self) -> None:
        """Delete all keys, except that for certificates."""
        while True:
            row = await self._signing_row()
            changes: list[Change] = [Delete(KEYS, (self._tenant,))]
            if row is None:
                changes.insert(0, Expect(KEYS, (self._tenant, "", SIGNING, 0), None))
            else:
                clear = await self._keys.unwrap(row) if row.wrapped_by else row.wrapped
                changes = [row.unchanged(), *changes, Put(KEYS, row._replace(wrapped_by="", wrapped=clear).stored())]
            if await self._keys.backend.apply(changes) is None:
                return

    async def _signing_row(self) -> KeyRow | None:
        (found,) = await self._keys.backend.read([Get(KEYS, [(self._tenant, "", SIGNING, 0)])])
        return KeyRow.of(found[0]) if found else None
