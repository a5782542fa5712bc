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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from holdfast.agents.steps.timers import line_of_timer
from holdfast.backends.interface import Change, Create, Expect, Get, Put, Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.tables import JOBS, LINES, MAX_NAME, REFS, Table
from holdfast.engine.append import AppendRequest
from holdfast.engine.append_batch import ChangeRefused
from holdfast.engine.context import EngineContext
from holdfast.engine.copy.between_stores import StoreCopier
from holdfast.engine.copy.copy_report import CopyProgress
from holdfast.engine.copy.within_store import LineCopier
from holdfast.engine.engine import Engine
from holdfast.engine.events import Event
from holdfast.engine.integrity.verify import raise_problems, verify
from holdfast.engine.lost_rows import mark_key
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import (
    AUDIT,
    BACKUPS_PLACE,
    agent_of,
    is_thread,
    line_kind,
    rename_line,
    root_of,
    short_name,
)
from holdfast.engine.quotas import quota_key
from holdfast.engine.row_format import Line
from holdfast.engine.system_line import LineChange, SystemLine, SystemLineEntries
from holdfast.engine.types import Progress, Revision, to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError, UnsupportedError
from holdfast.history import branches
from holdfast.history.revisions import resolve
from holdfast.maintenance.backup.cut import at_step, whole
from holdfast.maintenance.backup.erased_data import read_ledgers, remove_erased, says_whose
from holdfast.maintenance.backup.format import LineEntry
from holdfast.maintenance.backup.reader import BackupBackend
from holdfast.maintenance.backup.recovery_point import RecoveryPoint
from holdfast.maintenance.backup.repository import Repository
from holdfast.maintenance.backup.restore_plan import RestorePlan
from holdfast.maintenance.backup.restore_report import RestoredLine, RestoreReport, Selection, describe
from holdfast.maintenance.backup.store_record import last_backups, pick_chain
from holdfast.maintenance.erasure.reapply import apply_ledger
from holdfast.security.audit.removals import ARRIVED, arrival_of, plain_records
from holdfast.security.audit.thread_audit import record_request
from holdfast.state.sessions.records import LINE as SESSIONS
from holdfast.state.sessions.records import SessionRecord

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
        skip_damaged: bool = False,
        exact: bool = False,
    ) -> RestoreReport:
        """Restore the selected lines. What is needed of the backup is verified first.

        `ConflictError` if the store has another history of one of them, or a newer one and it is not `in_place`.
        `CorruptError` if one is damaged in the backup, unless these are skipped. `NotFoundError` if it is to be `exact`
        and the backups do not know all that one of them had.
        """
        start = time.monotonic()
        keys = self._point.keys
        self._require_encryption()
        selected = [entry for entry in self._point.entries if selection.includes(entry)]
        report = [
            describe(line, "damaged")._replace(changes=(what,))
            for line, what in self._point.damaged.items()
            if selection.includes_line(line)
        ]
        inexact = {line: time for line, time in self._point.inexact.items() if selection.includes_line(line)}
        if exact and inexact:
            raise self._not_exact(inexact)
        report += (describe(line, "unknown") for line in inexact.keys() - {entry.line for entry in selected})
        self._check_names(selection, [entry.line for entry in selected])
        entries = [entry for entry in selected if keys is None or not keys.is_erased(entry)]
        report += (describe(each.line, "erased") for each in selected if keys is not None and keys.is_erased(each))
        source = await self._source(entries, at)
        lines = [entry.line for entry in entries]
        if skip_damaged:
            damaged = await self._find_damaged(source, lines)
            report += (describe(line, "damaged")._replace(changes=(what,)) for line, what in damaged.items())
            lines = [line for line in lines if line not in damaged]
        erased = await self._remove_erased(source, lines)
        report += (describe(line, "erased") for line in lines if line in erased)
        lines = [line for line in lines if line not in erased]
        is_own = await pick_chain(self._engine, selection.tenant or "", self._repository) == self._point.store
        records = self._engine if is_own else source  # what this store does not have any more was deleted
        sessions = await plan_sessions(self._engine, records, await self._records_then(), lines)
        report += (describe(line, "left out") for line in lines if line in sessions.over)
        lines = [line for line in lines if line not in sessions.over]
        if as_thread is not None:
            lines = await self._rename_one(source, lines, selection, as_thread)
        plan = RestorePlan(self._engine, source, in_place=in_place)
        await plan.add(lines)
        besides = await self._set_beside(source, plan)
        # What is created is verified line by line before it is copied, and visible when all of it is.
        await self._verify(
            source, [line for line in lines if dry_run or plan.actions[line] not in ("create", "beside")]
        )
        jobs, settings = (
            ([], [])
            if as_thread is not None
            else await self._tenant_rows(selection, lines, report if skip_damaged else None)
        )
        settings = [] if is_own else settings  # what is not set there was not lost
        steps = {} if at is not None or as_thread is not None else _steps_of(entries, self._point.cuts)
        for line in lines:
            name = short_name(besides[line].name) if line in besides else ""
            report.append(await plan.describe(line, steps=steps.get(line), as_name=name, compare=dry_run))
        if as_thread is None:
            report += await plan.kept(selection, self._point)
        if not dry_run:
            others = [*_create(JOBS, jobs), *_create(REFS, settings)]
            is_backed_up = bool(await last_backups(self._engine, selection.tenant or ""))
            await self._apply(source, plan, besides, sessions.requests, others, is_backed_up=is_backed_up)
            for row in settings:
                if row.key == quota_key(tenant := str(row.key[0])):
                    self._engine.context.quotas.note(tenant, row)
            await self._apply_erasures({line.tenant for line in lines})
        moments = {describe(line, "same")[:3]: time for line, time in inexact.items()}
        known = [moments.get((each.tenant, each.kind, each.name)) for each in report]
        return RestoreReport(
            self._point.name,
            to_datetime(self._point.time),
            tuple(
                each if time is None else each._replace(known_at=to_datetime(max(time, 0)))
                for each, time in zip(report, known, strict=True)
            ),
            len(jobs),
            self._rows,
            self._bytes,
            time.monotonic() - start,
            dry_run,
        )

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

    def _not_exact(self, inexact: Mapping[Line, int]) -> NotFoundError:
        line, time = min(inexact.items(), key=lambda each: each[1])
        others = f", and {len(inexact) - 1} more" if len(inexact) > 1 else ""
        return NotFoundError(
            f"the backups do not know all that {short_name(line.name)!r} had at that moment{others}",
            where=f"backup {self._point.name}",
            hint=f"It is known at {to_datetime(max(time, 0)).isoformat()}. Restore that, or what is not exact",
            code="not-exact",
        )

    def _check_names(self, selection: Selection, lines: Sequence[Line]) -> None:
        found = {line.name for line in (*lines, *self._point.damaged, *self._point.inexact)}
        for name in selection.names or ():
            if name not in found:
                hint = "`holdfast backup show` lists what a backup has"
                where = f"backup {self._point.name}"
                raise NotFoundError(f"the backup does not have {short_name(name)!r}", where=where, hint=hint)

    # What is read from the backup ---------------------------------------------------------------------------------

    async def _source(self, entries: Sequence[LineEntry], at: Revision | None) -> Engine:
        """Return an engine on lines of the backup, as they were at a revision, and on what says whose they are."""
        keys = self._point.keys
        more = [each for each in self._point.entries if says_whose(each) and (keys is None or not keys.is_erased(each))]
        point = self._point.only(list({entry.line: entry for entry in (*more, *entries)}.values()))
        source = await point.engine(self._repository, self._engine)
        if at is None:
            return source
        roots = [entry.line for entry in entries if root_of(entry.line) == entry.line]
        if len(roots) != 1 or not is_thread(roots[0].name):
            raise InvalidError("a checkpoint is named where one thread is restored", hint="Name the thread")
        id = (await resolve(source, roots[0], at)).id
        point = point._replace(name=f"{point.name}@{id}")
        cuts = {entry.line: at_step(id, point.cuts.get(entry.line, whole(entry))) for entry in entries}
        return await point.engine(self._repository, self._engine, cuts)

    async def _records_then(self) -> Engine:
        """Return an engine on the records that are never set back, as they were."""
        return await self._point.only(list(self._point.then.values())).engine(self._repository, self._engine, {})

    async def _find_damaged(self, source: Engine, lines: Sequence[Line]) -> dict[Line, str]:
        """Return the threads that cannot be restored, with their namespaces, and what is damaged."""
        damaged: dict[Line, str] = {}
        for number, line in enumerate(lines, 1):
            try:
                await _check(source, line)
            except CorruptError as error:
                damaged[root_of(line)] = str(error)
            if self._progress is not None:
                self._progress(number, len(lines), f"verified {line.name}")
        return {line: damaged[root_of(line)] for line in lines if root_of(line) in damaged}

    async def _remove_erased(self, source: Engine, lines: Sequence[Line]) -> set[Line]:
        """Remove what was erased since from the lines of the backup. Returns those of which nothing is left."""
        self._ledgers = await read_ledgers({line.tenant for line in lines}, source, self._engine)
        return {line for tenant, each in self._ledgers.items() for line in await remove_erased(source, tenant, each)}

    async def _apply_erasures(self, tenants: set[str]) -> None:
        """Let the store know of the erasures that the backups know of; and remove what was erased meanwhile."""
        for tenant in sorted(tenants):
            if known := self._ledgers.get(tenant, []):
                await apply_ledger(self._engine, tenant, known)

    async def _verify(self, source: Engine, lines: Sequence[Line]) -> None:
        for number, line in enumerate(lines, 1):
            await _check(source, line)
            if self._progress is not None:
                self._progress(number, len(lines), f"verified {line.name}")

    async def _rename_one(
        self, source: Engine, lines: Sequence[Line], selection: Selection, as_thread: str
    ) -> list[Line]:
        """Return the lines of one thread under another name."""
        if selection.names is None or len(selection.names) != 1 or not is_thread(selection.names[0]):
            raise InvalidError("another name is given where one thread is restored", hint="Name the thread")
        if not lines:
            return []
        (root,) = {root_of(line) for line in lines}
        return list((await _rename(source, lines, {root: Line(root.tenant, as_thread)})).values())

    async def _set_beside(self, source: Engine, plan: RestorePlan) -> dict[Line, Line]:
        """Give other names to threads that are restored beside those that the store has. Returns these by line."""
        names = {root: Line(root.tenant, self._name_beside(root.name)) for root in plan.conflicts}
        renamed = await _rename(source, plan.lines("beside"), names)
        beside = RestorePlan(self._engine, source, in_place=True)
        await beside.add(list(renamed.values()))
        for old, new in renamed.items():
            if beside.actions[new] == "same":
                plan.actions[old] = "same"
            elif beside.actions[new] != "create":
                raise ConflictError(
                    "the store has another history of this thread, and a thread of the name that it would get",
                    where=f"thread {new} in {self._engine.context.backend.url}",
                    hint="Restore it under another name",
                    code="restore-conflict",
                )
        return renamed

    def _name_beside(self, name: str) -> str:
        suffix = f" {self._branch}"
        return name.encode()[: MAX_NAME - len(suffix)].decode(errors="ignore") + suffix

    # Changing the store -------------------------------------------------------------------------------------------

    async def _apply(
        self,
        source: Engine,
        plan: RestorePlan,
        besides: Mapping[Line, Line],
        records: Sequence[AppendRequest],
        others: Sequence[Change],
        *,
        is_backed_up: bool,
    ) -> None:
        switched = plan.lines("switch")
        generations = await self._new_generations([*switched, *plan.reverts])
        requests = [await self._switch_request(source, line, generations[line.tenant]) for line in switched]
        for line, request in plan.reverts.items():
            self._mark(request, generations[line.tenant])
        created = [*plan.lines("create"), *(besides[line] for line in plan.lines("beside"))]
        arrivals = await self._arrivals(source, [*created, *plan.lines("extend")]) if is_backed_up else []
        every = [*requests, *plan.reverts.values(), *records, *arrivals]
        commit = partial(self._commit, every, generations, others)
        copier = StoreCopier(source, self._engine, self._report_copy)
        self._rows, self._bytes = await copier.copy_together(
            created, commit, partial(_check, source), plan.lines("extend")
        )
        for request in requests:
            # Somebody may have saved a step with a greater id just before, and nobody can any more.
            await branches.switch(self._engine, request.line, request.new_branch)

    async def _arrivals(self, source: Engine, lines: Sequence[Line]) -> list[AppendRequest]:
        """Return the records of what is added to the store, since earlier backups of it do not have that; of tenants
        whose audit is not restored with it."""
        requests = []
        for tenant in sorted({line.tenant for line in lines} - {line.tenant for line in lines if line.name == AUDIT}):
            own = [line for line in lines if line.tenant == tenant]
            arrived = {line.name: await arrival_of(source, self._engine, line) for line in own}
            detail = {"backup": self._point.name, ARRIVED: plain_records(arrived)}
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

    async def _switch_request(self, source: Engine, line: Line, generation: int) -> AppendRequest:
        """Return the step that starts a branch where the backup ended, and makes it the current one."""
        head = await resolve(source, line, "HEAD")
        point = await resolve(self._engine, line, head.id)
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

    async def _tenant_rows(
        self, selection: Selection, lines: Sequence[Line], damaged: list[RestoredLine] | None
    ) -> tuple[list[Row], list[Row]]:
        """Return the jobs that the store does not have, paused, and the settings that it does not have, where all lines
        are restored; and the rows of timers of agents that are. Damaged ones are left out and added to a list, if it is
        given."""
        restores_all = selection.names is None and "audit" in selection.kinds
        if not restores_all and not any(map(agent_of, lines)):
            return [], []
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
        jobs, settings, restored = list[Row](), list[Row](), frozenset(lines)
        for entry in entries:
            wanted = Get(REFS, [quota_key(entry.tenant), mark_key(entry.tenant)])
            queries = (Scan(JOBS, tuple(entry.line)), wanted)
            try:
                found, found_settings = await source.context.backend.read(queries)
            except CorruptError as error:
                if damaged is None:
                    raise
                damaged.append(
                    describe(entry.line, "damaged")._replace(name="settings and jobs", changes=(str(error),))
                )
                continue
            own, own_settings = await self._engine.context.backend.read(queries)
            existing = {row.key for row in (*own, *own_settings)}
            for row in found:
                if row.key in existing:
                    continue
                agent = line_of_timer(row)
                if agent in restored:
                    jobs.append(row)
                elif agent is None and restores_all:
                    kind, schedule, _, due, version = row.columns
                    jobs.append(Row(row.key, (kind, schedule, _PAUSED, due, version), row.body))
            settings += (row for row in found_settings if row.key not in existing and restores_all)
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
    """Verify a line of the backup."""
    raise_problems(line, await verify(source.context, line), source.context.backend.url)


def _steps_of(entries: Sequence[LineEntry], cuts: Mapping[Line, object]) -> dict[Line, int]:
    """Return the numbers of steps of lines that are not cut off."""
    return {entry.line: sum(tip.seq + 1 for tip in entry.tips) for entry in entries if entry.line not in cuts}


def _restored_meanwhile(engine: Engine) -> ConflictError:
    return ConflictError(
        "somebody else restored the store meanwhile",
        where=engine.context.backend.url,
        hint="Look at the result, and try again",
        code="store-restored",
    )
