"""Deletion of whole threads, agents and sessions that have not changed for long: by a query, or by their TTL.

Each is looked at, and deleted in one batch on condition that it is still as it was seen: whatever is saved meanwhile
makes it current again, and is not lost. A pass that is interrupted is resumed by the next one, since what was deleted
is not there any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.agents.steps.records import StepLine
from holdfast.agents.steps.retention import delete_agent, find_pending
from holdfast.agents.storage.agent_line import AgentLine, agent_id
from holdfast.backends.interface import Batch, Change, Expect, Get, Scan
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.line_head import end_query
from holdfast.engine.line_ttl import read_ttls
from holdfast.engine.namespaces import LineKind, LineKinds, parse_kinds, root_of, steps_of
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.row_format import PIN, Branch, Line, LineSummary, StepRef, check_name, info_of
from holdfast.engine.types import Progress, to_datetime
from holdfast.errors import ConflictError, CorruptError, DeniedError, HoldfastError, InvalidError, NotFoundError
from holdfast.history.query import parse
from holdfast.history.search import SearchRun
from holdfast.security.audit.thread_audit import recorded
from holdfast.security.handle import StoreHandle
from holdfast.state.sessions.lifecycle import SessionLifecycle
from holdfast.state.sessions.records import SessionRecords
from holdfast.time_parser import format_duration

_PAGE = 500
_KINDS: tuple[LineKind, ...] = ("thread", "agent", "session")


class StaleLine(msgspec.Struct, frozen=True):
    """A thread, an agent or a session that has not changed for long.

    With a `problem` it was not deleted; `code` is that of the error. `name` is the id of an agent or of a session.
    """

    name: str
    kind: LineKind
    updated: datetime
    steps: int = 0
    bytes: int = 0
    problem: str = ""
    code: str = ""


class StaleReport(msgspec.Struct, frozen=True):
    """Lines that were deleted because they had not changed for long, or would be, and what was skipped and why."""

    dry_run: bool
    deleted: list[StaleLine] = []
    skipped: list[StaleLine] = []


@dataclass(frozen=True)
class StaleRule:
    """Which lines are stale: those that match a query; without one, threads whose TTL is over."""

    where: str | None = None
    prefix: str = ""
    kinds: frozenset[LineKind] = frozenset({"thread"})

    @classmethod
    def of(cls, where: str | None, prefix: str = "", kinds: LineKinds | None = None) -> StaleRule:
        """Build the rule from the arguments of a caller."""
        chosen = parse_kinds("thread" if kinds is None else kinds)
        if others := sorted(chosen - set(_KINDS)):
            raise InvalidError(
                f"only threads, agents and sessions are deleted as a whole, not lines of kind {others[0]}",
                hint="Prune others: prune(kinds=…)",
            )
        if where is None and chosen != {"thread"}:
            raise InvalidError("agents and sessions have no TTL of this kind", hint="Give a query: where='updated<90d'")
        if where is not None:
            parse(where, to_datetime(0))
        return cls(where, check_name(prefix, "start of a name"), chosen)


class _Seen(NamedTuple):
    """Lines as they were seen, and the conditions that they are still so."""

    updated: int
    steps: int
    bytes: int
    unchanged: Sequence[Change] = ()
    pins: Sequence[str] = ()


async def delete_stale(
    handle: StoreHandle, rule: StaleRule, *, dry_run: bool = False, progress: Progress | None = None
) -> StaleReport:
    """Delete what a rule finds. What is held or pinned, a hook objects to, or is at work, is skipped and reported."""
    handle.engine.context.rows.check_prefix(rule.prefix)
    stale = _StaleLines(handle, rule, progress, dry_run=dry_run)
    async for kind, name, delete in stale.candidates():
        await stale.delete(kind, name, delete)
        stale.tell(0, name)
    if stale.report.deleted and not dry_run:
        await handle.engine.context.backend.tidy()
    return stale.report


class _StaleLines:
    """One pass over the lines of a tenant."""

    def __init__(self, handle: StoreHandle, rule: StaleRule, progress: Progress | None, *, dry_run: bool) -> None:
        self._handle = handle
        self._engine = handle.engine
        self._backend = handle.engine.context.backend
        self._rule = rule
        self._now = handle.now()
        self._where = None if rule.where is None else parse(rule.where, to_datetime(self._now))
        self._records = SessionRecords(handle)
        self.report = StaleReport(dry_run)
        self._progress = progress
        self._looked = 0

    def tell(self, more: int, name: str) -> None:
        """Report that more lines were looked at, up to a name: also of those that stay, or a long pass could not be
        stopped."""
        self._looked += more
        if self._progress is not None:
            self._progress(self._looked, None, name)

    # Candidates -------------------------------------------------------------------------------------------------

    async def candidates(self) -> AsyncIterator[tuple[LineKind, str, Callable[[], Coroutine[Any, Any, None]]]]:
        """Yield what may be stale, with the function that looks at it again and deletes it."""
        if "thread" in self._rule.kinds:
            async for line in self._threads():
                yield "thread", line.name, partial(self._delete_thread, line)
        if "agent" in self._rule.kinds:
            async for line in self._agents():
                if (id := agent_id(line)) is not None:
                    yield "agent", id, partial(self._delete_agent, line, id)
        if "session" in self._rule.kinds:
            async for id in self._sessions():
                yield "session", id, partial(self._delete_session, id)

    async def _pages(self, kind: LineKind) -> AsyncIterator[list[LineSummary]]:
        after = ""
        while True:
            page = await self._engine.lines.list_lines(self._handle.tenant, kind, self._rule.prefix, after, _PAGE)
            yield page
            if page:
                self.tell(len(page), page[-1].line.name)
            if len(page) < _PAGE:
                return
            after = page[-1].line.name

    async def _threads(self) -> AsyncIterator[Line]:
        without_root: set[Line] = set()
        async for page in self._pages("thread"):
            ttls = await self._ttls([each.line for each in page])
            roots = {root for each in page if (root := root_of(each.line)) != each.line}
            (rows,) = await self._backend.read([Get(LINES, [tuple(root) for root in roots])]) if roots else ([],)
            there = {Line(*map(str, row.key)) for row in rows}
            for each in page:
                root = root_of(each.line)
                if root != each.line and (root in there or root in without_root):
                    continue  # it is deleted with its thread
                if each.damaged or await self._is_stale(each, ttls.get(root)):
                    if root != each.line:
                        without_root.add(root)
                    yield root

    async def _agents(self) -> AsyncIterator[Line]:
        async for page in self._pages("agent"):
            for each in page:
                if each.damaged or await self._is_stale(each, None):
                    yield each.line

    async def _sessions(self) -> AsyncIterator[str]:
        for status in ("active", "ended", "archived"):
            after = ""
            while rows := await self._records.system_line.linked("status", status, after, _PAGE):
                for row in rows:
                    if (after := str(row.key[4])).startswith(self._rule.prefix):
                        yield after
                self.tell(len(rows), after)

    async def _ttls(self, lines: Sequence[Line]) -> dict[Line, int]:
        return await read_ttls(self._backend, lines) if self._where is None else {}

    async def _is_stale(self, summary: LineSummary, ttl: int | None) -> bool:
        if self._where is None:
            return ttl is not None and summary.updated + ttl <= self._now
        return await SearchRun(self._engine, self._handle.tenant, self._where).matches_thread(summary)

    # Deletion ---------------------------------------------------------------------------------------------------

    async def delete(self, kind: LineKind, name: str, delete: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Delete something that may be stale, as long as it is; report what stands against it."""
        attempts = Attempts(f"deleting the {kind}", name, self._engine.context.metrics)
        while True:
            try:
                await attempts.begin()
                await delete()
            except ConcurrentChange:
                continue  # it may be current now
            except NotFoundError:
                pass  # somebody else was first
            except (ConflictError, DeniedError, CorruptError) as error:
                self._skip(kind, name, None, error.what, error.code)
            return

    async def _delete_thread(self, root: Line) -> None:
        lines = await self._engine.lines.family(root)
        seen, refusal = await self._see(lines)
        ttl = (await self._ttls([root])).get(root)
        if not await self._is_stale(await self._summary(root, seen), ttl):
            return
        if refusal is None and seen.pins:
            refusal = DeniedError(f"a checkpoint is pinned{': ' + seen.pins[0] if seen.pins[0] else ''}")
        if self._stays("thread", root.name, seen, refusal):
            return
        rule = self._rule.where if ttl is None else f"ttl {format_duration(to_datetime(ttl) - to_datetime(0))}"
        record = recorded(self._engine, root, "delete", {"lines": len(lines), "rule": rule})

        async def apply(batch: Batch) -> int | None:
            if await record([*seen.unchanged, *batch]) is not None:
                raise ConcurrentChange
            return None

        delete, hooks = partial(self._engine.lines.delete, *lines, apply=apply), self._engine.hooks
        if await (delete() if hooks is None else hooks.delete(root, delete)):
            self._add("thread", root.name, seen)

    async def _delete_agent(self, line: Line, id: str) -> None:
        seen, refusal = await self._see([line, steps_of(line)])
        if not await self._is_stale(await self._summary(line, seen), None):
            return
        if refusal is None and (pending := await find_pending(StepLine(AgentLine(self._handle, id)))):
            refusal = ConflictError(f"the agent is at work: {pending}", code="under-way")
        if not self._stays("agent", id, seen, refusal):
            await delete_agent(self._handle, id, seen.unchanged)
            self._add("agent", id, seen)

    async def _delete_session(self, id: str) -> None:
        record = await self._records.get(id)
        ((_, lines),) = await self._records.expiries([record])
        points = [each.point for each in lines if each.point is not None]
        updated = max(record.started, record.ended, *(each.active for each in lines))
        steps, size = sum(each.seq + 1 for each in points), sum(each.size for each in points)
        own = lines[0].line
        summary = LineSummary(own, record.started, updated, steps, 1, size, lines[0].point)
        if not await self._is_stale(summary, None):
            return
        seen, refusal = _Seen(updated, steps, size), await self._find_hold([each.line for each in lines])
        if not self._stays("session", id, seen, refusal):
            await SessionLifecycle(self._records).delete_unchanged(id, record, lines)
            self._add("session", id, seen)

    async def _see(self, lines: Sequence[Line]) -> tuple[_Seen, HoldfastError | None]:
        """Look at lines; and say whether one is held. First at their rows: whatever is set later changes these."""
        refusal: HoldfastError | None = None
        unchanged: list[Change] = []
        try:
            unchanged += await require_no_hold(self._backend, lines)
        except DeniedError as error:
            refusal = error
        (rows, *found) = await self._backend.read(
            [
                Get(LINES, [tuple(line) for line in lines]),
                *(query for line in lines for query in (Scan(BRANCHES, tuple(line)), Scan(REFS, (*line, PIN)))),
            ]
        )
        if not rows:
            raise NotFoundError("there is no such line", where=f"thread {lines[0]}")
        places = [
            (line, number)
            for line, branches in zip(lines, found[::2], strict=True)
            for number in (0, *(Branch.of(row).branch for row in branches))
        ]
        ends = await self._backend.read([end_query(line, number) for line, number in places])
        points = [StepRef.of(end[0]) if end else None for end in ends]
        for (line, number), point in zip(places, points, strict=True):
            unchanged.append(Expect(STEPS, (*line, number, 0 if point is None else point.seq + 1), None))
        stored = [point for point in points if point is not None]
        pins = [str(row.key[3]) for pinned in found[1::2] for row in pinned]
        infos = [info_of(row) for row in rows]
        updated = max([info.created for info in infos] + [point.time for point in stored])
        steps = sum(point.seq + 1 for point in stored) - sum(info.pruned for info in infos)
        size = sum(point.size for point in stored)
        return _Seen(updated, steps, size, unchanged, pins), refusal

    async def _find_hold(self, lines: Sequence[Line]) -> HoldfastError | None:
        try:
            await require_no_hold(self._backend, lines)
        except DeniedError as error:
            return error
        return None

    async def _summary(self, line: Line, seen: _Seen) -> LineSummary:
        try:
            summary = await self._engine.lines.summary(line)
        except NotFoundError:  # only namespaces of a thread are left
            return LineSummary(line, seen.updated, seen.updated, seen.steps, 1, seen.bytes, None)
        return summary._replace(updated=max(summary.updated, seen.updated))

    # Report -----------------------------------------------------------------------------------------------------

    def _stays(self, kind: LineKind, name: str, seen: _Seen, refusal: HoldfastError | None) -> bool:
        """Report something that is not to be deleted now, and return whether that is so."""
        if refusal is not None:
            self._skip(kind, name, seen, refusal.what, refusal.code)
        elif self.report.dry_run:
            self._add(kind, name, seen)
        return refusal is not None or self.report.dry_run

    def _add(self, kind: LineKind, name: str, seen: _Seen) -> None:
        self.report.deleted.append(StaleLine(name, kind, to_datetime(seen.updated), seen.steps, seen.bytes))

    def _skip(self, kind: LineKind, name: str, seen: _Seen | None, problem: str, code: str) -> None:
        updated, steps, size = (0, 0, 0) if seen is None else seen[:3]
        self.report.skipped.append(StaleLine(name, kind, to_datetime(updated), steps, size, problem, code))
