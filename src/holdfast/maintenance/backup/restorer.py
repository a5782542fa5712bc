"""Restoring lines from a backup into a store, new or in use.

All changes of the store that somebody sees are made in one batch: lines that it does not have become visible; a thread
that has gone on gets a branch that starts where the backup ended, and HEAD is switched to it; agents and scopes get a
step with the state that they had; and jobs and quotas are added. So it is complete, or has not happened. In place, it
begins a new generation of the store, which refuses what writers save that do not know of it. Rights, the audit and
other records of a store are never set back: what was revoked, frozen or erased since stays so.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.agents.steps.timers import timer_rows
from holdfast.backends.interface import Change, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import FIRST_JOB, JOBS, LINES, MAX_NAME, REFS, STEPS, Table
from holdfast.engine.append import AppendRequest
from holdfast.engine.append_batch import ChangeRefused
from holdfast.engine.checked_rows import mark_key
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.copy_report import CopyProgress
from holdfast.engine.copy.line_stream import LINE_TABLES, every_line
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.integrity.check import GivenRows
from holdfast.engine.integrity.verify import look_at_rows, raise_problems, verify
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.namespaces import (
    AUDIT,
    BACKUPS_PLACE,
    CONTENT_KINDS,
    is_thread,
    line_kind,
    rename_line,
    root_of,
    short_name,
)
from holdfast.engine.quotas import quota_key
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.engine.types import Progress, Revision, to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.history import branches
from holdfast.history.branches import SWITCH
from holdfast.history.comparison import ComparedPoint, compare_packed
from holdfast.history.revisions import find_step
from holdfast.history.thread_status import refresh_status
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.reader import BackupBackend, at_step, whole
from holdfast.maintenance.backup.recovery_point import RecoveryPoint
from holdfast.maintenance.backup.repository import Repository
from holdfast.maintenance.backup.restore_report import RestoreAction, RestoredLine, RestoreReport, Selection, describe
from holdfast.maintenance.backup.store_record import pick_chain
from holdfast.maintenance.backup_status import unseen_since
from holdfast.maintenance.erasure.reapply import apply_ledger, read_ledgers, remove_erased, says_whose
from holdfast.maintenance.progress import report_each
from holdfast.security.audit.removals import arrival_detail
from holdfast.security.audit.thread_audit import record_request
from holdfast.security.handle import StoreHandle
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sessions.records import SessionRecord

_DIFF_LINES = 20
"""How many lines of a difference are shown."""


class RestorePlan:
    """Says what a restore does with lines, and builds the steps that set agents and scopes back."""

    def __init__(self, engine: Engine, source: Engine, *, in_place: bool) -> None:
        self._engine = engine
        self._source = source
        self._in_place = in_place
        self.actions: dict[Line, RestoreAction] = {}
        self.reverts: dict[Line, AppendRequest] = {}
        self.conflicts: set[Line] = set()
        """The threads of which the store has another history, and which are to be restored beside it."""
        self.besides: Mapping[Line, Line] = {}
        """The lines of these under their other names."""

    def lines(self, action: RestoreAction) -> list[Line]:
        """Return the lines with which something is done."""
        return [line for line, what in self.actions.items() if what == action]

    async def add(self, lines: Sequence[Line]) -> None:
        """Decide on some lines."""
        for line in lines:
            self.actions[line] = await self._action(line)
        for line in lines:
            if root_of(line) in self.conflicts:
                self.actions[line] = "beside"

    async def _action(self, line: Line) -> RestoreAction:
        backend = self._engine.context.backend
        (existing,) = await backend.read([Get(LINES, [tuple(line)])])
        if not existing:
            return "create"
        kind = line_kind(line.name)
        if kind not in CONTENT_KINDS:
            return "left out"
        theirs, own = await steps_of(self._source, line), await steps_of(self._engine, line)
        (wanted,) = await self._source.context.backend.read([Get(LINES, [tuple(line)])])
        shared = theirs.items() & own.items()
        if existing[0].body != wanted[0].body or (len(shared) < len(theirs) and len(shared) < len(own)):
            return await self._conflict(line)
        if len(shared) == len(theirs) == len(own):
            return "same"
        if len(shared) == len(own):
            return "extend"
        if not self._in_place:
            newer = len(own) - len(shared)
            raise ConflictError(
                f"the store has {newer} checkpoint{'s' if newer > 1 else ''} of this thread that the backup lacks",
                where=f"thread {line} in {backend.url}",
                hint="Restore in place, which keeps them on their branch; under another name; or into another store",
                code="restore-conflict",
            )
        if kind == "session":
            return "newer"
        return await (self._switch(line) if kind == "thread" else self._revert(line))

    async def _conflict(self, line: Line) -> RestoreAction:
        """Decide on a line of which the store has another history: it was deleted, and created again."""
        if not self._in_place:
            raise ConflictError(
                "the store has another history of this thread",
                where=f"thread {line} in {self._engine.context.backend.url}",
                hint="Restore it in place, under another name, or into another store",
                code="restore-conflict",
            )
        match line_kind(line.name):
            case "thread":
                self.conflicts.add(root_of(line))
                return "beside"
            case "session":
                return "newer"
        return await self._revert(line)

    async def _switch(self, line: Line) -> RestoreAction:
        """Decide on a thread that has gone on: HEAD may be at the right step already."""
        wanted = await find_step(self._source, line, "HEAD")
        try:
            await find_step(self._engine, line, wanted.id)
        except NotFoundError:  # it was pruned here
            return await self._conflict(line)
        for each in await branches.describe(self._engine, line):
            if each.is_current and each.head is not None:
                is_back = each.ahead == 1 and each.head.kind == SWITCH and each.base is not None
                if each.head.id == wanted.id or (is_back and each.base is not None and each.base.id == wanted.id):
                    return "same"
        return "switch"

    async def _revert(self, line: Line) -> RestoreAction:
        from holdfast.agents.recovery import rollback  # slow to import
        from holdfast.agents.storage.agent_line import AgentLine
        from holdfast.state import history

        point = await find_step(self._source, line, "HEAD")
        handle, scope = StoreHandle(self._engine, line.tenant), Scope.of_line(line.name)
        if scope is not None:
            request = await history.restore_request(handle, scope, self._source, point)
        else:
            agent = AgentLine(handle, short_name(line.name))
            request = await rollback.restore_request(agent, self._source, point)
        if request is None:
            return "same"
        self.reverts[line] = request
        return "revert"

    # Reports ------------------------------------------------------------------------------------------------------

    async def describe(self, line: Line, *, steps: int | None, compare: bool) -> RestoredLine:
        """Return the entry of a line in the report; with the difference of the states, if it is to be compared."""
        action = self.actions[line]
        if action == "create" and steps is not None:
            return replace(describe(line, action, steps), added=steps)
        theirs, own = await steps_of(self._source, line), await steps_of(self._engine, line)
        newer = len(own.keys() - theirs.keys()) if action in ("switch", "revert", "newer", "left out", "beside") else 0
        added = len(theirs.keys() - own.keys()) if action in ("create", "extend") else 0
        if action == "beside":
            newer, added = len(own), len(theirs)
        as_name = short_name(self.besides[line].name) if line in self.besides else ""
        found = replace(describe(line, action, len(theirs), newer), added=added, as_name=as_name)
        if compare and action in ("switch", "revert", "extend", "beside"):
            found = replace(found, changes=await self._differences(line))
        return found

    async def _differences(self, line: Line) -> tuple[str, ...]:
        """Return the difference between the state that the store has of a line and that of the backup."""
        old, old_state = await _latest(self._engine, line)
        new, new_state = await _latest(self._source, line)
        diff = await compare_packed(self._engine, old, old_state, new, new_state)
        lines = ["".join(text for _, text in each) for each in diff.without_internal().lines()]
        more = len(lines) - _DIFF_LINES
        return (*lines[:_DIFF_LINES], f"… {more} more lines") if more > 0 else tuple(lines)

    async def kept(self, selection: Selection, point: RecoveryPoint) -> list[RestoredLine]:
        """Return the lines of the store that are selected, and were created after the backup: they stay."""
        if selection.names is not None:
            return []
        known = {entry.line for entry in point.entries if entry.columns} | point.damaged.keys() | self.actions.keys()
        return [
            describe(line, "kept", newer=(await self._engine.lines.summary(line)).steps)
            async for line in every_line(self._engine.context.backend, selection.tenant)
            if line not in known and line_kind(line.name) in CONTENT_KINDS and selection.includes_line(line)
        ]


async def _latest(engine: Engine, line: Line) -> tuple[ComparedPoint, PackedMap]:
    (rows,) = await engine.context.backend.read([Scan(STEPS, tuple(line), limit=1, bodies=False)])
    if not rows:
        return ComparedPoint(line, None), {}
    point = await find_step(engine, line, "HEAD")
    return ComparedPoint(line, point), await engine.lines.read_step(line, point, partial(engine.states.packed, line))


async def steps_of(engine: Engine, line: Line) -> Mapping[tuple[int, int], bytes]:
    """Return the hashes of the steps of a line by position."""
    found: dict[tuple[int, int], bytes] = {}
    async for row in scan_rows(engine.context.stored, STEPS, tuple(line), bodies=False):
        step = StepRef.of(row)
        found[step.branch, step.seq] = step.hash
    return found


_Records: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]


class SessionPlan(NamedTuple):
    """The lines of sessions that were deleted since, which are left out; and the steps that add the records of the
    others."""

    over: frozenset[Line]
    requests: Sequence[AppendRequest]


async def plan_sessions(engine: Engine, newest: Engine, then: Engine, lines: Sequence[Line]) -> SessionPlan:
    """Plan what to do with the sessions among some lines. `newest` has the newest records that are known, and `then`
    those of the backup that is restored. What a record says is never set back."""
    over, requests = set[Line](), list[AppendRequest]()
    of_sessions = [line for line in lines if line_kind(line.name) == "session"]
    for tenant in sorted({line.tenant for line in of_sessions}):
        own, last, first = [await _records(each, tenant) for each in (engine, newest, then)]
        missing: dict[str, Mapping[str, Any]] = {}
        for line in (line for line in of_sessions if line.tenant == tenant):
            if _find(line, own) is not None:
                continue
            if (found := _find(line, last)) is not None:
                missing[found[0]] = found[1]
            elif _find(line, first) is not None:
                over.add(line)
        records = Line(tenant, SESSIONS)
        comes_whole = records in lines and await engine.lines.load_tip(records) is None
        if missing and not comes_whole:
            requests.append(_add_records(engine, records, missing))
    return SessionPlan(frozenset(over), requests)


async def _records(engine: Engine, tenant: str) -> _Records:
    """Return the records of sessions by the names of their lines, with their ids."""
    found = await SystemLine(engine, Line(tenant, SESSIONS)).read(lambda entries: entries.with_prefix(""))
    return {
        MARK + str(stored["scope"]): (id, stored)
        for id, stored in found.items()
        if isinstance(stored, Mapping) and "scope" in stored
    }


def _find(line: Line, records: _Records) -> tuple[str, Mapping[str, Any]] | None:
    """Return the id and the record of the session that a line belongs to."""
    parts = line.name.split("/")
    for length in range(len(parts), 0, -1):
        if (found := records.get("/".join(parts[:length]))) is not None:
            return found
    return None


def _add_records(engine: Engine, line: Line, missing: Mapping[str, Mapping[str, Any]]) -> AppendRequest:
    records = SystemLine(engine, line)

    async def edit(entries: SystemLineEntries) -> LineChange:
        new = {id: stored for id, stored in missing.items() if not await entries.has(id)}
        time = engine.context.clock()
        links = [link for id, stored in new.items() for link in SessionRecord.of(stored, 0).links(id)]
        events = [Event("session", "", "restore", id) for id in new]
        return LineChange(records.pack(new), events=events, rows=records.link_changes([], links, time))

    return records.request("restore", edit)


_PAUSED = "paused"
"""The state of a job that is not run."""


class RestoreRequest(NamedTuple):
    """The lines to restore; one thread `at` a revision of it, or under another name; whether threads that have gone on
    are set back `in_place`; and what to do with lines that are damaged, or that the backups do not know exactly."""

    selection: Selection
    at: Revision | None = None
    as_thread: str | None = None
    in_place: bool = False
    dry_run: bool = False
    skip_damaged: bool = False
    exact: bool = False


class Restorer:
    """Restores lines into one store, as they were at one point."""

    def __init__(
        self,
        engine: Engine,
        repository: Repository,
        point: RecoveryPoint,
        request: RestoreRequest,
        progress: Progress | None,
    ) -> None:
        self._engine = engine
        self._repository = repository
        self._point = point
        self._request = request
        self._selection = request.selection
        self._progress = progress
        self._report: list[RestoredLine] = []
        self._rows = self._bytes = 0
        self._inexact = {line: at for line, at in point.inexact.items() if self._selection.includes_line(line)}

    async def restore(self) -> RestoreReport:
        """Restore the selected lines. What is needed of the backup is verified first.

        `ConflictError` if the store has another history of one of them, or a newer one and it is not `in_place`.
        `CorruptError` if one is damaged in the backup, unless these are skipped. `NotFoundError` if it is to be `exact`
        and the backups do not know all that one of them had.
        """
        start = time.monotonic()
        home = self._selection.tenant or ""
        self._is_own = await pick_chain(self._engine, home, self._repository) == self._point.store
        self._require_encryption()
        entries = self._select()
        self._source = await self._open_source(entries)
        lines = await self._without_damaged([entry.line for entry in entries])
        lines = await self._without_erased(lines)
        lines, records = await self._without_ended(lines)
        if self._request.as_thread is not None:
            lines = await self._rename_one(lines, self._request.as_thread)
        plan = await self._plan(lines)
        jobs, settings = await self._tenant_rows()
        jobs += await self._timer_rows([plan.besides.get(line, line) for line in lines])
        await self._describe(plan, entries)
        if not self._request.dry_run:
            await self._apply(plan, records, jobs, settings)
            await self._apply_erasures({line.tenant for line in lines})
        moments = {describe(line, "same").place: to_datetime(max(at, 0)) for line, at in self._inexact.items()}
        return RestoreReport(
            self._point.name,
            to_datetime(self._point.time),
            tuple(replace(each, known_at=moments.get(each.place)) for each in self._report),
            len(jobs),
            self._rows,
            self._bytes,
            time.monotonic() - start,
            self._request.dry_run,
        )

    # Which lines --------------------------------------------------------------------------------------------------

    def _select(self) -> list[LineEntry]:
        """Return the entries of the selected lines, without those that are known to be damaged or erased."""
        selected = [entry for entry in self._point.entries if self._selection.includes(entry)]
        if self._request.exact and self._inexact:
            raise self._not_exact()
        known = {entry.line for entry in selected}
        self._check_names({line.name for line in (*known, *self._point.damaged, *self._point.inexact)})
        self._note_damaged({k: what for k, what in self._point.damaged.items() if self._selection.includes_line(k)})
        self._note("unknown", self._inexact.keys() - known)
        self._note("erased", [entry.line for entry in selected if self._point.is_erased(entry)])
        return [entry for entry in selected if not self._point.is_erased(entry)]

    def _note(self, action: RestoreAction, lines: Iterable[Line]) -> None:
        """Report lines that are not restored."""
        self._report += (describe(line, action) for line in lines)

    def _note_damaged(self, damaged: Mapping[Line, str]) -> None:
        self._report += (replace(describe(line, "damaged"), changes=(what,)) for line, what in damaged.items())

    async def _without_damaged(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Return the threads that can be restored: with a damaged line, all of its thread is skipped, if that is
        wanted."""
        if not self._request.skip_damaged:
            return lines
        damaged: dict[Line, str] = {}
        for line in report_each(lines, self._progress, _verified):
            try:
                await _check(self._source, line)
            except CorruptError as error:
                damaged[root_of(line)] = str(error)
        self._note_damaged({line: damaged[root_of(line)] for line in lines if root_of(line) in damaged})
        return [line for line in lines if root_of(line) not in damaged]

    async def _without_erased(self, lines: Sequence[Line]) -> Sequence[Line]:
        """Remove what was erased since from the lines of the backup. Returns those of which something is left."""
        self._ledgers = await read_ledgers({line.tenant for line in lines}, self._source, self._engine)
        erased = set[Line]()
        for tenant, ledger in self._ledgers.items():
            erased.update(await remove_erased(self._source, tenant, ledger))
        self._note("erased", [line for line in lines if line in erased])
        return [line for line in lines if line not in erased]

    async def _without_ended(self, lines: Sequence[Line]) -> tuple[Sequence[Line], Sequence[AppendRequest]]:
        """Leave out sessions that were deleted since. Returns the others, and the steps that add their records."""
        records = self._engine if self._is_own else self._source  # what this store does not have any more was deleted
        then = self._point.only(list(self._point.then.values()))
        sessions = await plan_sessions(
            self._engine, records, await then.engine(self._repository, self._engine, {}), lines
        )
        self._note("left out", [line for line in lines if line in sessions.over])
        return [line for line in lines if line not in sessions.over], sessions.requests

    async def _plan(self, lines: Sequence[Line]) -> RestorePlan:
        """Decide what to do with each line, and verify those that are compared with what the store has. What is created
        is verified line by line before it is copied, and visible when all of it is."""
        plan = RestorePlan(self._engine, self._source, in_place=self._request.in_place)
        await plan.add(lines)
        await self._set_beside(plan)
        copied = () if self._request.dry_run else ("create", "beside")
        compared = [line for line in lines if plan.actions[line] not in copied]
        for line in report_each(compared, self._progress, _verified):
            await _check(self._source, line)
        return plan

    async def _describe(self, plan: RestorePlan, entries: Sequence[LineEntry]) -> None:
        """Report what is done with each line, and which others stay."""
        request, steps = self._request, dict[Line, int]()
        if request.at is None and request.as_thread is None:
            steps = {each.line: each.steps for each in entries if each.line not in self._point.cuts}
        for line in plan.actions:
            self._report.append(await plan.describe(line, steps=steps.get(line), compare=request.dry_run))
        if request.as_thread is None:
            self._report += await plan.kept(self._selection, self._point)

    def _require_encryption(self) -> None:
        if self._point.keys is not None and not self._engine.context.rows.hides_columns:
            raise UnsupportedError(
                "the backup is of an encrypted store, and this one is not encrypted",
                where=self._engine.context.backend.url,
                hint="Open the store to restore into with encryption=, or set HOLDFAST_ENCRYPTION",
                code="clear-refused",
            )
        if self._point.keys is not None and self._point.keys.hides_names and not self._engine.context.rows.hides_names:
            raise UnsupportedError(
                "the backup is of a store that hides names, and this one shows them",
                where=self._engine.context.backend.url,
                hint="Open the store to restore into with Encryption(…, hide_names=True)",
                code="clear-refused",
            )

    def _not_exact(self) -> NotFoundError:
        line, time = min(self._inexact.items(), key=lambda each: each[1])
        others = f", and {len(self._inexact) - 1} more" if len(self._inexact) > 1 else ""
        return NotFoundError(
            f"the backups do not know all that {short_name(line.name)!r} had at that moment{others}",
            where=f"backup {self._point.name}",
            hint=f"It is known at {to_datetime(max(time, 0)).isoformat()}. Restore that, or what is not exact",
            code="not-exact",
        )

    def _check_names(self, known: Set[str]) -> None:
        for name in self._selection.names or ():
            if name not in known:
                hint = "`holdfast backup show` lists what a backup has"
                where = f"backup {self._point.name}"
                raise NotFoundError(f"the backup does not have {short_name(name)!r}", where=where, hint=hint)

    # What is read from the backup ---------------------------------------------------------------------------------

    async def _open_source(self, entries: Sequence[LineEntry]) -> Engine:
        """Return an engine on lines of the backup, as they were at a revision, and on what says whose they are."""
        more = [each for each in self._point.entries if says_whose(each.name) and not self._point.is_erased(each)]
        point = self._point.only(list({entry.line: entry for entry in (*more, *entries)}.values()))
        source, at = await point.engine(self._repository, self._engine), self._request.at
        if at is None:
            return source
        roots = [entry.line for entry in entries if root_of(entry.line) == entry.line]
        if len(roots) != 1 or not is_thread(roots[0].name):
            raise InvalidError("a checkpoint can only be given when one thread is restored", hint="Name the thread")
        id = (await find_step(source, roots[0], at)).id
        point = point._replace(name=f"{point.name}@{id}")
        cuts = {entry.line: at_step(id, point.cuts.get(entry.line, whole(entry))) for entry in entries}
        return await point.engine(self._repository, self._engine, cuts)

    async def _apply_erasures(self, tenants: set[str]) -> None:
        """Let the store know of the erasures that the backups know of; and remove what was erased meanwhile."""
        for tenant in sorted(tenants):
            if known := self._ledgers.get(tenant, []):
                await apply_ledger(self._engine, tenant, known)

    async def _rename_one(self, lines: Sequence[Line], as_thread: str) -> list[Line]:
        """Return the lines of one thread under another name."""
        names = self._selection.names
        if names is None or len(names) != 1 or not is_thread(names[0]):
            raise InvalidError("another name can only be given when one thread is restored", hint="Name the thread")
        if not lines:
            return []
        (root,) = {root_of(line) for line in lines}
        return list((await _rename(self._source, lines, {root: Line(root.tenant, as_thread)})).values())

    async def _set_beside(self, plan: RestorePlan) -> None:
        """Give other names to threads that are restored beside those that the store has."""
        names = {root: Line(root.tenant, self._name_beside(root.name)) for root in plan.conflicts}
        plan.besides = await _rename(self._source, plan.lines("beside"), names)
        beside = RestorePlan(self._engine, self._source, in_place=True)
        await beside.add(list(plan.besides.values()))
        for old, new in plan.besides.items():
            if beside.actions[new] == "same":
                plan.actions[old] = "same"
            elif beside.actions[new] != "create":
                raise ConflictError(
                    "the store has another history of this thread, and a thread of the name that it would get",
                    where=f"thread {new} in {self._engine.context.backend.url}",
                    hint="Restore it under another name",
                    code="restore-conflict",
                )

    def _name_beside(self, name: str) -> str:
        suffix = f" {self._branch}"
        return name.encode()[: MAX_NAME - len(suffix)].decode(errors="ignore") + suffix

    # Changing the store -------------------------------------------------------------------------------------------

    async def _apply(
        self, plan: RestorePlan, records: Sequence[AppendRequest], jobs: Sequence[Row], settings: Sequence[Row]
    ) -> None:
        """Make all changes of the store."""
        switched = plan.lines("switch")
        generations = await self._new_generations([*switched, *plan.reverts])
        requests = [await self._switch_request(line, generations[line.tenant]) for line in switched]
        for line, request in plan.reverts.items():
            self._mark(request, generations[line.tenant])
        created = [*plan.lines("create"), *(plan.besides[line] for line in plan.lines("beside"))]
        arrivals = await self._arrivals([*created, *plan.lines("extend")])
        every = [*requests, *plan.reverts.values(), *records, *arrivals]
        commit = partial(self._commit, every, generations, [*_create(JOBS, jobs), *_create(REFS, settings)])
        copier = StoreCopier(self._source, self._engine, self._report_copy)
        check = partial(_check, self._source)
        self._rows, self._bytes = await copier.copy_together(created, commit, check, plan.lines("extend"))
        for request in requests:
            # Somebody may have saved a step with a greater id just before, and nobody can any more.
            await branches.switch(self._engine, request.line, request.new_branch)
        arrived = [*created, *plan.lines("extend")] if self._point.cuts or self._request.at is not None else []
        for line in (*switched, *(each for each in arrived if is_thread(each.name))):
            await refresh_status(self._engine, line)  # that of the backup may be that of a later step
        for row in settings:
            if row.key == quota_key(tenant := str(row.key[0])):
                self._engine.context.quotas.note(tenant, row)

    async def _arrivals(self, lines: Sequence[Line]) -> list[AppendRequest]:
        """Return the records of what is added to the store, since earlier backups of it, if there are any, do not have
        that; of tenants whose audit is not restored with it."""
        if await unseen_since(self._engine, self._selection.tenant or "") is None:
            return []
        requests = []
        for tenant in sorted({line.tenant for line in lines} - {line.tenant for line in lines if line.name == AUDIT}):
            own = [line for line in lines if line.tenant == tenant]
            detail = {"backup": self._point.name, **await arrival_detail(self._source, self._engine, *own)}
            requests.append(record_request(self._engine, [Line(tenant, BACKUPS_PLACE)], "restore", detail))
        return requests

    async def _commit(
        self,
        requests: Sequence[AppendRequest],
        generations: Mapping[str, int],
        others: Sequence[Change],
        copied: Sequence[Change],
    ) -> int | None:
        """Make all changes in one batch: steps, lines that become visible, marks of the generation, and others."""
        start = await self._start_changes(generations)
        marks = [
            self._engine.lines.generations.mark(Line(*map(str, each.row.key)), generations[str(each.row.key[0])])
            for each in copied
            if isinstance(each, Create | Put) and each.space is LINES and each.row.key[0] in generations
        ]
        changes = [*start, *copied, *marks, *others]
        if not requests:
            return await self._engine.context.apply(changes) if changes else None
        requests[0].other_changes = changes
        try:
            await self._engine.writer.save(*requests)
        except ChangeRefused as refused:
            if refused.index < len(start):
                raise _restored_meanwhile(self._engine) from None
            return refused.index
        self._engine.lines.generations.join(generations)
        return None

    async def _new_generations(self, lines: Sequence[Line]) -> dict[str, int]:
        """Return the numbers of the generations that a restore starts, by tenant."""
        tenants = {line.tenant for line in lines}
        return {tenant: await self._engine.lines.generations.current(tenant) + 1 for tenant in tenants}

    async def _start_changes(self, generations: Mapping[str, int]) -> list[Change]:
        changes: list[Change] = []
        for tenant, number in generations.items():
            changes += await self._engine.lines.generations.start(tenant, number)
        return changes

    async def _switch_request(self, line: Line, generation: int) -> AppendRequest:
        """Return the step that starts a branch where the backup ended, and makes it the current one."""
        head = await find_step(self._source, line, "HEAD")
        point = await find_step(self._engine, line, head.id)
        taken = {each.branch.name for each in await branches.describe(self._engine, line)}
        names = itertools.chain((self._branch,), (f"{self._branch}-{number}" for number in itertools.count(2)))
        request = await branches.return_request(self._engine, line, point, next(n for n in names if n not in taken))
        self._mark(request, generation)
        return request

    def _mark(self, request: AppendRequest, generation: int) -> None:
        """Have a line marked as restored in a generation, together with a step."""
        mark, attached = self._engine.lines.generations.mark(request.line, generation), request.attached_changes
        request.attached_changes = lambda id: [*(attached(id) if attached is not None else ()), mark]

    @property
    def _branch(self) -> str:
        return f"restored-{self._point.name}"

    def _report_copy(self, progress: CopyProgress) -> None:
        if self._progress is not None:
            self._progress(progress.done, progress.total, f"{progress.phase} {progress.thread}")

    async def _timer_rows(self, lines: Sequence[Line]) -> list[Row]:
        """Return the rows of timers of agents that are restored, as of the moment that they are of."""
        rows = [row for line in lines for row in await timer_rows(self._source, line)]
        (existing,) = await self._engine.context.backend.read([Get(JOBS, [row.key for row in rows])])
        known = {row.key for row in existing}
        return [row for row in rows if row.key not in known]

    async def _tenant_rows(self) -> tuple[list[Row], list[Row]]:
        """Return the jobs that the store does not have, paused, and the settings that it does not have, where all lines
        are restored. What is not set in the store that the backup is of was not lost."""
        selection = self._selection
        if self._request.as_thread is not None or selection.names is not None or "audit" not in selection.kinds:
            return [], []
        entries = [
            entry
            for entry in self._point.entries
            if not entry.name
            and selection.tenant in (None, entry.tenant)
            and not entry.columns
            and not self._point.is_erased(entry)
        ]
        source = await self._point.only(entries).engine(self._repository, self._engine)
        jobs, settings = list[Row](), list[Row]()
        for entry in entries:
            wanted = Get(REFS, [quota_key(entry.tenant), mark_key(entry.tenant)])
            queries = (Scan(JOBS, tuple(entry.line), (FIRST_JOB,)), wanted)
            try:
                found, found_settings = await source.context.backend.read(queries)
            except CorruptError as error:
                if not self._request.skip_damaged:
                    raise
                self._report.append(
                    replace(describe(entry.line, "damaged"), name="settings and jobs", changes=(str(error),))
                )
                continue
            own, own_settings = await self._engine.context.backend.read(queries)
            existing = {row.key for row in (*own, *own_settings)}
            for row in found:
                if row.key not in existing:
                    kind, schedule, _, due, version = row.columns
                    jobs.append(Row(row.key, (kind, schedule, _PAUSED, due, version), row.body))
            if not self._is_own:
                settings += (row for row in found_settings if row.key not in existing)
        return jobs, settings


def _create(table: Table, rows: Sequence[Row]) -> list[Change]:
    """Return the changes that create rows, if there are none meanwhile."""
    return [change for row in rows for change in (Expect(table, row.key, None), Create(table, row))]


async def _rename(source: Engine, lines: Sequence[Line], roots: Mapping[Line, Line]) -> dict[Line, Line]:
    """Have a backup that is opened show lines of threads under other names, too. Returns these by line."""
    if not lines:
        return {}
    renamed = {line: rename_line(line, root_of(line), roots[root_of(line)]) for line in lines}
    scratch = Engine(EngineContext(MemoryBackend(), codec=source.context.codec))
    await StoreCopier(source, scratch).copy_together(lines)
    await LineCopier(scratch).copy(renamed)
    backend = source.context.stored
    assert isinstance(backend, BackupBackend)  # noqa: S101 - it is a backup
    for new in renamed.values():
        await backend.take(new, scratch.context.stored)
    return renamed


async def _check(source: Engine, line: Line) -> None:
    """Verify a line of the backup, which is in memory as a whole."""
    context, tables = source.context, (LINES, *LINE_TABLES)
    found = await context.stored.read([Scan(table, tuple(line)) for table in tables])
    given = GivenRows(dict(zip(tables, found, strict=True)))
    if (await look_at_rows(context, line, given)).findings:
        raise_problems(line, await verify(context, line), context.backend.url)


def _verified(line: Line) -> str:
    return f"verified {line.name}"


def _restored_meanwhile(engine: Engine) -> ConflictError:
    return ConflictError(
        "another process restored the store at the same time",
        where=engine.context.backend.url,
        hint="Look at the result, and try again",
        code="store-restored",
    )
