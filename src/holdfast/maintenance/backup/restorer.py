"""Restoring lines from a backup into a store, new or in use.

Lines that the store does not have become visible all at once. Of those that it has, nothing is removed: with `in_place`
a thread gets a branch that starts where the backup ended, and HEAD is switched to it. Rights, the audit and other
records of a store are never set back: what was revoked or frozen since stays so.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Create, Expect, Get, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import JOBS, LINES, STEPS
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.copy_report import CopyProgress
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.namespaces import is_thread, line_kind, rename_line, root_of, short_name
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import Progress, Revision, to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.history import branches
from holdfast.history.revisions import resolve
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.reader import backup_engine, entries_of
from holdfast.maintenance.backup.repository import Backup, Repository

_PAUSED = "paused"
"""The state of a job that is not run."""

RestoreAction: TypeAlias = Literal["create", "extend", "switch", "same", "newer", "left out"]
"""What a restore does with a line: create it; add what it lacks; switch HEAD to what the backup has; nothing, since it
is the same; or nothing, since the store has a newer state or records of its own."""


class RestoredLine(NamedTuple):
    """A line in a restore: its tenant, its kind and name, what is done with it, its steps in the backup, and those that
    the store has and the backup does not."""

    tenant: str
    kind: str
    name: str
    action: RestoreAction
    steps: int
    newer: int = 0


class RestoreReport(NamedTuple):
    """The result of a restore: the backup and its time, each line, the number of jobs, which are paused, the rows and
    bytes that were written, and the seconds it took."""

    backup: str
    time: datetime
    lines: tuple[RestoredLine, ...]
    jobs: int
    rows: int
    bytes: int
    seconds: float
    dry_run: bool


class Selection(NamedTuple):
    """The lines to restore: of a tenant or of all; those of some kinds; and some by name."""

    tenant: str | None
    kinds: frozenset[str]
    names: Sequence[str] | None

    def includes(self, entry: LineEntry) -> bool:
        """Return whether a line is selected."""
        if self.tenant not in (None, entry.tenant) or not entry.columns or line_kind(entry.name) not in self.kinds:
            return False
        return self.names is None or entry.name in self.names or root_of(entry.line).name in self.names


class Restorer:
    """Restores lines of one backup into one store."""

    def __init__(self, engine: Engine, repository: Repository, backup: Backup, progress: Progress | None) -> None:
        self._engine = engine
        self._repository = repository
        self._backup = backup
        self._progress = progress
        self._rows = self._bytes = 0

    async def restore(
        self,
        selection: Selection,
        *,
        at: Revision | None = None,
        as_thread: str | None = None,
        in_place: bool = False,
        dry_run: bool = False,
    ) -> RestoreReport:
        """Restore the selected lines. The backup is verified first, as far as it is needed.

        `ConflictError` if the store has another history of one of them, or a newer one and it is not `in_place`.
        """
        start = time.monotonic()
        entries = [entry async for entry in entries_of(self._repository, self._backup) if selection.includes(entry)]
        self._check_names(selection, entries)
        source = await self._source(entries, at)
        lines = [entry.line for entry in entries]
        await self._verify(source, lines)
        if as_thread is not None:
            source, lines = await self._renamed(source, lines, selection, as_thread)
        actions = {line: await self._action(source, line, in_place=in_place) for line in lines}
        jobs = await self._jobs(selection, dry_run=dry_run or as_thread is not None)
        described = [await self._describe(source, line, action) for line, action in actions.items()]
        if not dry_run:
            await self._apply(source, actions)
        seconds = time.monotonic() - start
        return RestoreReport(
            self._backup.id,
            to_datetime(self._backup.manifest.time),
            tuple(described),
            jobs,
            self._rows,
            self._bytes,
            seconds,
            dry_run,
        )

    def _check_names(self, selection: Selection, entries: Sequence[LineEntry]) -> None:
        found = {entry.name for entry in entries}
        for name in selection.names or ():
            if name not in found:
                hint = "`holdfast backup show` lists what a backup has"
                where = f"backup {self._backup.id}"
                raise NotFoundError(f"the backup does not have {short_name(name)!r}", where=where, hint=hint)

    async def _source(self, entries: Sequence[LineEntry], at: Revision | None) -> Engine:
        source = backup_engine(self._repository, self._backup, entries, self._engine)
        if at is None:
            return source
        roots = [entry.line for entry in entries if root_of(entry.line) == entry.line]
        if len(roots) != 1 or not is_thread(roots[0].name):
            raise InvalidError("a checkpoint is named where one thread is restored", hint="Name the thread")
        point = await resolve(source, roots[0], at)
        last_ids = {entry.line: point.id for entry in entries}
        return backup_engine(self._repository, self._backup, entries, self._engine, last_ids)

    async def _verify(self, source: Engine, lines: Sequence[Line]) -> None:
        for number, line in enumerate(lines, 1):
            raise_problems(line, await verify(source.context, line), source.context.backend.url)
            if self._progress is not None:
                self._progress(number, len(lines), f"verified {line.name}")

    async def _renamed(
        self, source: Engine, lines: Sequence[Line], selection: Selection, as_thread: str
    ) -> tuple[Engine, list[Line]]:
        """Return the lines of one thread under the name of another, in memory."""
        if selection.names is None or len(selection.names) != 1 or not is_thread(selection.names[0]):
            raise InvalidError("another name is given where one thread is restored", hint="Name the thread")
        (root,) = {root_of(line) for line in lines}
        new = Line(root.tenant, as_thread)
        renamed = {line: rename_line(line, root, new) for line in lines}
        scratch = Engine(EngineContext(MemoryBackend(), codec=self._engine.context.codec))
        await StoreCopier(source, scratch).copy_together(lines)
        await LineCopier(scratch).copy(renamed)
        return scratch, list(renamed.values())

    async def _action(self, source: Engine, line: Line, *, in_place: bool) -> RestoreAction:
        backend = self._engine.context.backend
        (existing,) = await backend.read([Get(LINES, [tuple(line)])])
        if not existing:
            return "create"
        if line_kind(line.name) not in ("thread", "agent", "scope", "session"):
            return "left out"
        theirs, own = await _steps(source, line), await _steps(self._engine, line)
        (wanted,) = await source.context.backend.read([Get(LINES, [tuple(line)])])
        shared = theirs.items() & own.items()
        if existing[0].body != wanted[0].body or (len(shared) < len(theirs) and len(shared) < len(own)):
            raise ConflictError(
                "the store has another history of this thread",
                where=f"thread {line} in {backend.url}",
                hint="Restore it under another name, or into another store",
                code="restore-conflict",
            )
        if len(shared) == len(theirs) == len(own):
            return "same"
        if len(shared) == len(own):
            return "extend"
        if not in_place:
            raise ConflictError(
                f"the store has {len(own) - len(shared)} checkpoints of this thread that the backup does not have",
                where=f"thread {line} in {backend.url}",
                hint="Restore in place, which keeps them on their branch; under another name; or into another store",
                code="restore-conflict",
            )
        return "switch" if is_thread(line.name) else "newer"

    async def _apply(self, source: Engine, actions: Mapping[Line, RestoreAction]) -> None:
        copier = StoreCopier(source, self._engine, self._report_copy)
        self._rows, self._bytes = await copier.copy_together(
            [line for line, what in actions.items() if what == "create"]
        )
        extended = [line for line, what in actions.items() if what == "extend"]
        if extended:
            copied = await StoreCopier(source, self._engine, self._report_copy).copy(None, extended)
            self._rows, self._bytes = self._rows + copied.rows, self._bytes + copied.bytes
        for line, what in actions.items():
            if what == "switch":
                await self._switch(source, line)

    async def _switch(self, source: Engine, line: Line) -> None:
        """Start a branch where the backup ended, and make it the current one."""
        head = await resolve(source, line, "HEAD")
        name = f"restored-{self._backup.id}"
        point = await resolve(self._engine, line, head.id)
        if name not in {each.branch.name for each in await branches.describe(self._engine, line)}:
            await self._engine.lines.fork(line, point, name)
        await branches.switch(self._engine, line, name)

    def _report_copy(self, progress: CopyProgress) -> None:
        if self._progress is not None:
            self._progress(progress.done, progress.total, f"{progress.phase} {progress.thread}")

    async def _describe(self, source: Engine, line: Line, action: RestoreAction) -> RestoredLine:
        theirs, own = await _steps(source, line), await _steps(self._engine, line)
        newer = len(own.keys() - theirs.keys()) if action in ("switch", "newer", "left out") else 0
        return RestoredLine(line.tenant, line_kind(line.name), short_name(line.name), action, len(theirs), newer)

    async def _jobs(self, selection: Selection, *, dry_run: bool) -> int:
        """Restore the jobs that the store does not have, paused, where all lines are restored."""
        if selection.names is not None or "audit" not in selection.kinds:
            return 0
        entries = [
            entry
            async for entry in entries_of(self._repository, self._backup, selection.tenant)
            if not entry.name and not entry.columns
        ]
        source = backup_engine(self._repository, self._backup, entries, self._engine)
        backend, count = self._engine.context.backend, 0
        for entry in entries:
            (found,) = await source.context.backend.read([Scan(JOBS, tuple(entry.line))])
            (own,) = await backend.read([Scan(JOBS, tuple(entry.line))])
            existing = {row.key for row in own}
            for row in found:
                if row.key not in existing:
                    count += 1
                    kind, schedule, _, due, version = row.columns
                    paused = Row(row.key, (kind, schedule, _PAUSED, due, version), row.body)
                    if not dry_run:
                        await backend.apply([Expect(JOBS, row.key, None), Create(JOBS, paused)])
        return count


async def _steps(engine: Engine, line: Line) -> dict[tuple[int, int], bytes]:
    """Return the hashes of the steps of a line by position."""
    found: dict[tuple[int, int], bytes] = {}
    async for row in scan_rows(engine.context.stored, STEPS, tuple(line), bodies=False):
        step = StepRef.of(row)
        found[step.branch, step.seq] = step.hash
    return found
