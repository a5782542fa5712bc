"""Restoring lines from a backup into a store, new or in use.

Lines that the store does not have become visible all at once. Of those that it has, nothing is removed: with `in_place`
a thread gets a branch that starts where the backup ended, and HEAD is switched to it; all that in one batch. Agents and
scopes get a step with the state that they had. That starts a new generation of the store, which refuses what writers
save that do not know of it. Rights, the audit and other records of a store are never set back: what was revoked or
frozen since stays so.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import JOBS, LINES, STEPS
from holdfast.engine.append import AppendRequest
from holdfast.engine.append_batch import ChangeRefused
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.copy_report import CopyProgress
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import is_thread, line_kind, rename_line, root_of, short_name
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.types import Progress, Revision, to_datetime
from holdfast.errors import ConflictError, InvalidError, NotFoundError, UnsupportedError
from holdfast.history import branches
from holdfast.history.revisions import resolve
from holdfast.maintenance.backup.cut import at_step
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.recovery_point import RecoveryPoint
from holdfast.maintenance.backup.repository import Repository
from holdfast.maintenance.erasure.reapply import apply_ledger
from holdfast.security.handle import StoreHandle

_PAUSED = "paused"
"""The state of a job that is not run."""

RestoreAction: TypeAlias = Literal["create", "extend", "switch", "revert", "same", "newer", "left out", "erased"]
"""What a restore does with a line: create it; add what it lacks; switch HEAD to what the backup has; append a step with
that state; nothing, since it is the same; nothing, since the store has a newer state or records of its own; or nothing,
since its key was destroyed, and nobody can read it."""


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
    """The result of a restore: the backup, or the point between backups, and its time; each line; the number of jobs,
    which are paused; the rows and bytes that were written; and the seconds it took."""

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
    """Restores lines into one store, as they were at one point."""

    def __init__(self, engine: Engine, repository: Repository, point: RecoveryPoint, progress: Progress | None) -> None:
        self._engine = engine
        self._repository = repository
        self._point = point
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
        """Restore the selected lines. What is needed of the backup is verified first.

        `ConflictError` if the store has another history of one of them, or a newer one and it is not `in_place`.
        """
        start = time.monotonic()
        keys = self._point.keys
        if keys is not None and not self._engine.context.rows.hides_columns:
            raise UnsupportedError(
                "the backup is of an encrypted store, and this one is not encrypted",
                where=self._engine.context.backend.url,
                hint="Open the store to restore into with encryption=, or set HOLDFAST_ENCRYPTION",
                code="clear-refused",
            )
        if keys is not None and keys.hides_names and not self._engine.context.rows.hides_names:
            raise UnsupportedError(
                "the backup is of a store that hides names, and this one shows them",
                where=self._engine.context.backend.url,
                hint="Open the store to restore into with Encryption(…, hide_names=True)",
                code="clear-refused",
            )
        selected = [entry for entry in self._point.entries if selection.includes(entry)]
        self._check_names(selection, selected)
        entries = [entry for entry in selected if keys is None or not keys.is_erased(entry)]
        erased = [
            RestoredLine(entry.tenant, line_kind(entry.name), short_name(entry.name), "erased", 0)
            for entry in selected
            if keys is not None and keys.is_erased(entry)
        ]
        source = await self._source(entries, at)
        lines = [entry.line for entry in entries]
        if as_thread is not None:
            source, lines = await self._renamed(source, lines, selection, as_thread)
        actions = {line: await self._action(source, line, in_place=in_place) for line in lines}
        # What is created is verified line by line before it is copied, and visible when all of it is.
        await self._verify(source, [line for line, what in actions.items() if dry_run or what != "create"])
        jobs = await self._jobs(selection, dry_run=dry_run or as_thread is not None)
        steps = {} if at is not None or as_thread is not None else _steps_of(entries, self._point.cuts)
        described = [await self._describe(source, line, action, steps.get(line)) for line, action in actions.items()]
        if not dry_run:
            await self._apply(source, actions)
            for tenant in sorted({line.tenant for line in lines}):
                await apply_ledger(self._engine, tenant)  # what was erased since does not come back
        return RestoreReport(
            self._point.name,
            to_datetime(self._point.time),
            (*described, *erased),
            jobs,
            self._rows,
            self._bytes,
            time.monotonic() - start,
            dry_run,
        )

    def _check_names(self, selection: Selection, entries: Sequence[LineEntry]) -> None:
        found = {entry.name for entry in entries}
        for name in selection.names or ():
            if name not in found:
                hint = "`holdfast backup show` lists what a backup has"
                where = f"backup {self._point.name}"
                raise NotFoundError(f"the backup does not have {short_name(name)!r}", where=where, hint=hint)

    async def _source(self, entries: Sequence[LineEntry], at: Revision | None) -> Engine:
        point = self._point.only(entries)
        source = await point.engine(self._repository, self._engine)
        if at is None:
            return source
        roots = [entry.line for entry in entries if root_of(entry.line) == entry.line]
        if len(roots) != 1 or not is_thread(roots[0].name):
            raise InvalidError("a checkpoint is named where one thread is restored", hint="Name the thread")
        cut = at_step((await resolve(source, roots[0], at)).id)
        return await point.engine(self._repository, self._engine, {entry.line: cut for entry in entries})

    async def _verify(self, source: Engine, lines: Sequence[Line]) -> None:
        for number, line in enumerate(lines, 1):
            await _check(source, line)
            if self._progress is not None:
                self._progress(number, len(lines), f"verified {line.name}")

    async def _renamed(
        self, source: Engine, lines: Sequence[Line], selection: Selection, as_thread: str
    ) -> tuple[Engine, list[Line]]:
        """Return the lines of one thread under the name of another, in memory."""
        if selection.names is None or len(selection.names) != 1 or not is_thread(selection.names[0]):
            raise InvalidError("another name is given where one thread is restored", hint="Name the thread")
        if not lines:
            return source, []
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
        kind = line_kind(line.name)
        if kind not in ("thread", "agent", "scope", "session"):
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
        if kind == "thread":
            return "same" if await self._is_switched(line) else "switch"
        return "newer" if kind == "session" else "revert"

    # Changing the store -------------------------------------------------------------------------------------------

    async def _apply(self, source: Engine, actions: Mapping[Line, RestoreAction]) -> None:
        chosen = {each: [line for line, what in actions.items() if what == each] for each in actions.values()}
        created, extended = chosen.get("create", []), chosen.get("extend", [])
        switched, reverted = chosen.get("switch", []), chosen.get("revert", [])
        generations = await self._new_generations([*switched, *reverted])
        copier = StoreCopier(source, self._engine, self._report_copy)
        requests = [await self._switch_request(source, line, generations[line.tenant]) for line in switched]
        commit = partial(self._switch, requests, generations) if requests else None
        self._rows, self._bytes = await copier.copy_together(created, commit, partial(_check, source))
        if extended:
            copied = await StoreCopier(source, self._engine, self._report_copy).copy(None, extended)
            self._rows, self._bytes = self._rows + copied.rows, self._bytes + copied.bytes
        if reverted and not requests:
            await self._start(generations)
        for line in reverted:
            await self._revert(source, line, generations[line.tenant])

    async def _new_generations(self, lines: Sequence[Line]) -> dict[str, int]:
        """Return the numbers of the generations that a restore starts, by tenant."""
        tenants = {line.tenant for line in lines}
        return {tenant: await self._engine.lines.generations.current(tenant) + 1 for tenant in tenants}

    async def _start(self, generations: Mapping[str, int]) -> None:
        if await self._engine.context.backend.apply(await self._start_changes(generations)) is not None:
            raise _restored_meanwhile(self._engine)
        self._engine.lines.generations.join(generations)

    async def _start_changes(self, generations: Mapping[str, int]) -> list[Change]:
        changes: list[Change] = []
        for tenant, number in generations.items():
            changes += await self._engine.lines.generations.start(tenant, number)
        return changes

    async def _switch_request(self, source: Engine, line: Line, generation: int) -> AppendRequest:
        """Return the step that starts a branch where the backup ended, and makes it the current one."""
        head = await resolve(source, line, "HEAD")
        point = await resolve(self._engine, line, head.id)
        mark = self._engine.lines.generations.mark(line, generation)
        taken = {each.branch.name for each in await branches.describe(self._engine, line)}
        names = itertools.chain((self._branch,), (f"{self._branch}-{number}" for number in itertools.count(2)))
        request = await branches.return_request(self._engine, line, point, next(n for n in names if n not in taken))
        request.attached_changes = lambda _: [mark]
        return request

    @property
    def _branch(self) -> str:
        return f"restored-{self._point.name}"

    async def _is_switched(self, line: Line) -> bool:
        """Return whether HEAD is already where an earlier run of this restore switched it to."""
        name = re.compile(re.escape(self._branch) + r"(-\d{1,3})?")
        found = await branches.describe(self._engine, line)
        return any(name.fullmatch(each.branch.name) and each.is_current and each.ahead == 1 for each in found)

    async def _switch(
        self, requests: Sequence[AppendRequest], generations: Mapping[str, int], created: Sequence[Change]
    ) -> int | None:
        """Switch threads, and make created lines visible, in one batch."""
        marks = [
            self._engine.lines.generations.mark(Line(*map(str, each.row.key)), generations[str(each.row.key[0])])
            for each in created
            if isinstance(each, Create | Put) and each.space is LINES and each.row.key[0] in generations
        ]
        requests[0].other_changes = [*await self._start_changes(generations), *created, *marks]
        try:
            await self._engine.writer.save(*requests)
        except ChangeRefused:
            raise _restored_meanwhile(self._engine) from None
        self._engine.lines.generations.join(generations)
        for request in requests:
            # Somebody may have saved a step with a greater id just before, and nobody can any more.
            await branches.switch(self._engine, request.line, request.new_branch)
        return None

    async def _revert(self, source: Engine, line: Line, generation: int) -> None:
        """Append a step with the state that an agent or a scope had."""
        from holdfast.agents.recovery.rollback import roll_back  # slow to import
        from holdfast.agents.storage.agent_line import AgentLine
        from holdfast.state.history import rollback

        generations = self._engine.lines.generations
        point = await resolve(source, line, "HEAD")
        info = await self._engine.lines.info(line)
        changes = [*self._engine.lines.new_version(line, info), generations.mark(line, generation)]
        if await self._engine.context.backend.apply(changes) is not None:
            raise ConflictError("it keeps changing", where=f"thread {line}", hint="Stop its writers, and try again")
        self._engine.context.cache.drop(("line", line))
        handle, scope = StoreHandle(self._engine, line.tenant), Scope.of_line(line.name)
        if scope is not None:
            await rollback(handle, scope, point.seq + 1, None)
        else:
            await roll_back(AgentLine(handle, short_name(line.name)), point.id)

    def _report_copy(self, progress: CopyProgress) -> None:
        if self._progress is not None:
            self._progress(progress.done, progress.total, f"{progress.phase} {progress.thread}")

    async def _describe(self, source: Engine, line: Line, action: RestoreAction, steps: int | None) -> RestoredLine:
        if action == "create" and steps is not None:
            return RestoredLine(line.tenant, line_kind(line.name), short_name(line.name), action, steps)
        theirs, own = await _steps(source, line), await _steps(self._engine, line)
        newer = len(own.keys() - theirs.keys()) if action in ("switch", "revert", "newer", "left out") else 0
        return RestoredLine(line.tenant, line_kind(line.name), short_name(line.name), action, len(theirs), newer)

    async def _jobs(self, selection: Selection, *, dry_run: bool) -> int:
        """Restore the jobs that the store does not have, paused, where all lines are restored."""
        if selection.names is not None or "audit" not in selection.kinds:
            return 0
        keys = self._point.keys
        entries = [
            entry
            for entry in self._point.entries
            if not entry.name
            and selection.tenant in (None, entry.tenant)
            and not entry.columns
            and not (keys is not None and keys.is_erased(entry))
        ]
        source = await self._point.only(entries).engine(self._repository, self._engine)
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


async def _check(source: Engine, line: Line) -> None:
    """Verify a line of the backup."""
    raise_problems(line, await verify(source.context, line), source.context.backend.url)


def _steps_of(entries: Sequence[LineEntry], cuts: Mapping[Line, object]) -> dict[Line, int]:
    """Return the numbers of steps of lines that are not cut off."""
    return {entry.line: sum(tip.seq + 1 for tip in entry.tips) for entry in entries if entry.line not in cuts}


async def _steps(engine: Engine, line: Line) -> dict[tuple[int, int], bytes]:
    """Return the hashes of the steps of a line by position."""
    found: dict[tuple[int, int], bytes] = {}
    async for row in scan_rows(engine.context.stored, STEPS, tuple(line), bodies=False):
        step = StepRef.of(row)
        found[step.branch, step.seq] = step.hash
    return found


def _restored_meanwhile(engine: Engine) -> ConflictError:
    return ConflictError(
        "somebody else restored the store meanwhile",
        where=engine.context.backend.url,
        hint="Look at the result, and try again",
        code="store-restored",
    )
