"""The lines of a store and the steps in them: finding, listing, naming and deleting them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TypeAlias, TypeVar

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Create, Delete, Expect, Get, Put, Query, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import BRANCHES, FIELDS, LINES, REFS, STEPS, TABLES, Key
from holdfast.engine.branch_graph import BranchGraph, Position
from holdfast.engine.checked_rows import read_filtered
from holdfast.engine.claims import held_claims
from holdfast.engine.context import Apply, EngineContext
from holdfast.engine.copy_mark import creation_conditions
from holdfast.engine.fields import removed_rows, value_of
from holdfast.engine.generations import Generations, generation_of, restored_key
from holdfast.engine.leases import is_paused, pause_key
from holdfast.engine.line_head import end_query, find_head, newest_query
from holdfast.engine.metadata_filter import MetadataFilter
from holdfast.engine.model.line_salt import NO_SALT, SALT_SIZE
from holdfast.engine.model.scopes import MARK
from holdfast.engine.namespaces import (
    AGENTS,
    LineKind,
    below,
    index_key,
    is_thread,
    line_kind,
    missing_line_error,
    pruned_error,
    root_of,
    short_name,
)
from holdfast.engine.namespaces import MARK as BETWEEN
from holdfast.engine.row_format import (
    AT_HEAD,
    Branch,
    Line,
    LineInfo,
    LineSummary,
    StepRef,
    info_of,
    info_row,
    status_key,
)
from holdfast.engine.thread_status import (
    ThreadState,
    may_have,
    note_status,
    show_status,
    status_keys,
    status_scan,
)
from holdfast.errors import ConflictError, CorruptError, NotFoundError

T = TypeVar("T")


class OnBranch(NamedTuple):
    """The last step of a branch, by the branch's name."""

    name: str


MAIN = OnBranch("main")
"""The branch that every line has from its first step on."""


class Root:
    """The empty state before a line's first step."""


ROOT = Root()

At: TypeAlias = str | Position | OnBranch | Root | None
_Summarize: TypeAlias = Callable[[Sequence[tuple[Line, LineInfo]]], Awaitable[list[LineSummary]]]
"""Names a step: None is HEAD, a string the one with that id, its position, or the head of a branch; `ROOT` is before
all of them."""

TAG, LABEL = "tag", "label"
"""Kinds of references: a tag belongs to one step of a line, a label to any number."""

_POINT_WEIGHT = 600

_PAST_STATE = chr(ord(MARK) + 1)
"""Names of threads continue here, after those of state."""

_NAMES = 1000
"""How many names of lines are read at a time."""

_FEW_NAMES = 16
"""How many names are read first, where most of them will not have the prefix."""


def new_salt() -> bytes:
    """Return the salt of a new line."""
    return os.urandom(SALT_SIZE)


class LineTip(NamedTuple):
    """The end of a line in the cache: its row, and a step that was appended last or was the latest.

    It is `sole` if the thread has no branches, and that step is its last one and the latest. A new branch changes the
    line's version; so this holds as long as the version is the same and the position after the step is free.
    """

    info: LineInfo
    point: StepRef | None
    is_only_branch: bool
    is_paused: bool = False
    """Whether nobody may append just now. Such a tip is not cached."""
    generation: int = 0
    """The generation of the store in which the line was last restored in place."""
    has_branches: bool = False  # besides the first one, as far as is known

    def is_followed_by(self, id: str, parent: At) -> bool:
        """Return whether a step with an id and this parent comes after all others, so that none of them has its id."""
        point = self.point
        return self.is_only_branch and (point is None or (point.id < id and parent in (None, point.id)))


class LineIndex:
    """Finds lines, steps and branches in a store."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._backend = context.backend
        self._can_index = context.backend.capabilities.words
        self.generations: Generations = Generations(context)
        self.indexed: frozenset[str] = frozenset()
        """The tenants that have a text index, as far as is cached."""

    # Lines ----------------------------------------------------------------------------------------------------

    async def tip(self, line: Line) -> LineTip | None:
        """Return the cached tip of a line, or else the stored one; None if there is no such line."""
        cached = self.cached_tip(line)
        return await self.load_tip(line) if cached is None else cached

    def cached_tip(self, line: Line) -> LineTip | None:
        """Return the cached tip of a line."""
        tip: LineTip | None = self._context.cache.get(("line", line))
        return tip

    async def load_tip(self, line: Line) -> LineTip | None:
        """Read the tip of a line from the store."""
        return await self._tip(line, await self._backend.read(self._tip_queries(line)))

    async def load_tips(self, lines: Sequence[Line]) -> list[LineTip | None]:
        """Read the tips of some lines from the store, in one round trip."""
        queries = [self._tip_queries(line) for line in lines]
        answers = await self._backend.read([query for several in queries for query in several])
        size = len(queries[0]) if queries else 0
        return [await self._tip(line, answers[place * size : (place + 1) * size]) for place, line in enumerate(lines)]

    def _tip_queries(self, line: Line) -> list[Query]:
        more = [index_key(line.tenant)] if self._can_index else []
        if is_thread(line.name):
            more.append(status_key(line))
        return [
            Get(LINES, [tuple(line)]),
            newest_query(line),
            end_query(line, 0),
            Scan(BRANCHES, tuple(line), limit=1),
            Get(REFS, [pause_key(line), restored_key(line), *more]),
        ]

    async def _tip(self, line: Line, answers: Sequence[list[Row]]) -> LineTip | None:
        """Return the tip of a line, given the answers to its queries."""
        lines, newest, head, branches, refs = answers
        if self._can_index:
            self.note_index(line.tenant, any(row.key == index_key(line.tenant) for row in refs))
        if is_thread(line.name):
            note_status(self._context, line, refs)
        if not lines:
            self._context.cache.drop(("line", line))
            return None
        latest = StepRef.of(await find_head(self._context.unchecked, line, newest[0])) if newest else None
        sole = not branches and [row.key for row in newest] == [row.key for row in head]
        info, paused = info_of(lines[0]), is_paused(refs, self._context.clock)
        tip = LineTip(info, latest, sole, paused, generation_of(line, refs), bool(branches))
        if tip.is_paused:
            self._context.cache.drop(("line", line))
        else:
            self.remember(line, tip)
        return tip

    async def revalidate_tip(self, line: Line) -> LineTip | None:
        """Return the tip of a line without branches: a cached one is only checked for later steps."""
        return (await self.revalidate_tip_and(line))[0]

    async def revalidate_tip_and(self, line: Line, *others: Query) -> tuple[LineTip | None, list[list[Row]]]:
        """Return the tip of a line as `revalidate_tip` does, and of the same request the answers to other queries."""
        cached = self.cached_tip(line)
        point = cached.point if cached is not None and cached.is_only_branch else None
        check: Query = Get(LINES, [tuple(line)])
        if point is not None:
            check = Scan(STEPS, (*line, point.branch), start=(point.seq,), limit=2, bodies=False)
        rows, *answers = await self._backend.read([check, *others])
        if point is not None and len(rows) == 1 and StepRef.of(rows[0]) == point:  # neither followed nor rewritten
            return cached, answers
        if cached is None and not rows:
            return None, answers  # nobody has written to it yet
        return await self.load_tip(line), answers

    def note_index(self, tenant: str, exists: bool) -> None:
        """Cache whether a tenant has a text index."""
        if exists is not (tenant in self.indexed):
            self.indexed = self.indexed | {tenant} if exists else self.indexed - {tenant}

    async def salt(self, line: Line) -> bytes:
        """Return the salt of a line, if there is such a line."""
        tip = await self.tip(line)
        return NO_SALT if tip is None else tip.info.salt

    async def info(self, line: Line) -> LineInfo:
        """Read the row of a line. `NotFoundError` if there is no such line."""
        tip = await self.load_tip(line)
        if tip is None:
            raise missing_line_error(line)
        return tip.info

    def remember(self, line: Line, tip: LineTip) -> None:
        """Cache the tip of a line. Every change of the line is made on condition that it is up to date."""
        self._context.cache.put(("line", line), tip, _POINT_WEIGHT)

    def note_append(self, line: Line, info: LineInfo, point: StepRef, parent: StepRef | None) -> None:
        """Cache that a step was just appended."""
        cached = self.cached_tip(line)
        if cached is None:
            sole = parent is None and not point.branch
        else:
            last = cached.point
            sole = (
                cached.is_only_branch
                and cached.info == info
                and last == parent
                and (last is None or last.id < point.id)
            )
        branches = not sole if cached is None else cached.has_branches or point.branch > 0
        self.remember(line, LineTip(info, point, sole, has_branches=branches))

    def new_info(self) -> LineInfo:
        """Return the row of a new line. Its version distinguishes it from earlier lines of the same name."""
        return LineInfo(self._context.clock(), int(os.urandom(8).hex(), 16) >> 2, 1, salt=new_salt())

    async def ensure_row(self, line: Line) -> None:
        """Create the row of a line that has none yet: other rows of it would be orphans, which no copy has."""
        again = False
        while not (await self._context.stored.read([Get(LINES, [tuple(line)])]))[0]:  # one that is damaged exists
            free = await creation_conditions(self._context, line, check=again)
            await self._backend.apply([*free, Create(LINES, info_row(line, self.new_info()))])
            again = True

    def line_unchanged(self, line: Line, info: LineInfo) -> Change:
        """Return the condition that a line is unchanged."""
        return Expect(LINES, tuple(line), info.columns)

    def step_exists(self, line: Line, point: StepRef) -> Change:
        """Return the condition that a step exists."""
        return Expect(STEPS, (*line, point.branch, point.seq), point[2:])

    def new_version(self, line: Line, info: LineInfo) -> list[Change]:
        """Return the condition that a line is unchanged, and a change of its version, which invalidates cached tips."""
        return [self.line_unchanged(line, info), Put(LINES, info_row(line, info._replace(version=info.version + 1)))]

    async def delete(self, *lines: Line, apply: Apply | None = None) -> bool:
        """Delete lines and all that belongs to them. False if there were none. `DeniedError` if one is on hold."""
        from holdfast.engine.hold_check import deletion_conditions
        from holdfast.engine.run_rows import place_removals, record_scan

        deletions = [Delete(space, tuple(line)) for line in lines for space in TABLES]
        rebuilt = False  # a line that was damaged has no row any more, and was there
        while True:
            conditions, was_damaged = await deletion_conditions(self._backend, lines)
            rebuilt |= was_damaged
            existed = rebuilt or any(each.columns is not None for each in conditions[: len(set(lines))])
            # Of lines that do not exist, something may be left all the same; nobody needs to know.
            commit = apply if apply is not None and existed else self._backend.apply
            values = await self._backend.read(
                [query for line in lines for query in (Scan(FIELDS, tuple(line)), record_scan(line))]
            )
            removed: list[Change] = []
            for line, own, runs in zip(lines, values[::2], values[1::2], strict=True):
                removed += [*removed_rows(line, map(value_of, own)), *place_removals(runs)]
            if await commit([*conditions, *deletions, *removed]) is None:
                break
        self._context.cache.drop_all(*lines)
        return existed

    async def names(self, tenant: str, prefix: str = "", after: str = "") -> list[Line]:
        """Return all lines whose names start with a prefix and come after another name."""
        lines: list[Line] = []
        start, page = max(prefix, after + "\0" if after else ""), _NAMES if not prefix else _FEW_NAMES
        stop = (prefix[:-1] + chr(ord(prefix[-1]) + 1),) if prefix.endswith((MARK, BETWEEN, "/", ":")) else ()
        while True:
            (rows,) = await self._backend.read([Scan(LINES, (tenant,), (start,), stop, limit=page, bodies=False)])
            lines += (Line(tenant, name) for row in rows if (name := str(row.key[1])).startswith(prefix))
            if len(rows) < page or not lines or lines[-1].name != rows[-1].key[1]:
                return lines
            start, page = lines[-1].name + "\0", _NAMES

    async def family(self, line: Line) -> list[Line]:
        """Return a thread's line, which need not exist, and those of its namespaces; of a namespace, its line only."""
        others = await self.names(line.tenant, below(line)) if root_of(line) == line else []
        return [line, *(other for other in others if other != line and root_of(other) == line)]

    async def of_threads(self, tenant: str, threads: Iterable[str]) -> list[Line]:
        """Return the lines of some threads, each followed by those of its namespaces. `NotFoundError` if one does not
        exist."""
        lines: list[Line] = []
        for line in (Line(tenant, name) for name in dict.fromkeys(threads)):
            with suppress(CorruptError):  # it is reported when the line is read
                await self.info(line)  # raises if there is none
            lines += await self.family(line)
        return list(dict.fromkeys(lines))

    async def list_lines(
        self, tenant: str, kind: LineKind | None, prefix: str, after: str, limit: int
    ) -> list[LineSummary]:
        """Return lines of a kind, or of all, by name: those whose short name starts with a prefix, after a name."""
        if kind == "thread":
            return await self.list_threads(tenant, prefix, after, limit)
        first = AGENTS + prefix if kind == "agent" else "" if kind is None else MARK
        start = max(first, after + "\0" if after else "")
        stop, matches = () if kind is None else (_PAST_STATE,), list[Row]()
        while len(matches) < limit:
            (rows,) = await self._backend.read([Scan(LINES, (tenant,), (start,), stop, limit=_NAMES, bodies=False)])
            named = ((str(row.key[1]), row) for row in rows if kind in (None, line_kind(str(row.key[1]))))
            matches += (row for name, row in named if short_name(name).startswith(prefix))
            if len(rows) < _NAMES:
                break
            start = str(rows[-1].key[1]) + "\0"
        return await self._listed([(Line(tenant, str(row.key[1])), info_of(row)) for row in matches[:limit]])

    async def list_threads(self, tenant: str, prefix: str, after: str, limit: int) -> list[LineSummary]:
        """Return threads by name: those that start with a prefix, after a name."""
        return await self._listed(await self._threads_by_name(tenant, prefix, after, limit))

    async def list_sizes(self, tenant: str, after: str, limit: int) -> list[LineSummary]:
        """Return threads by name, after a name, with their sizes and times; nothing of their latest steps."""
        return await self._listed(await self._threads_by_name(tenant, "", after, limit), self._sizes)

    async def _threads_by_name(self, tenant: str, prefix: str, after: str, limit: int) -> list[tuple[Line, LineInfo]]:
        start = max(prefix, after + "\0" if after else "")
        # Lines that are not threads are skipped, however many there are.
        scans = [Scan(LINES, (tenant,), (max(start, _PAST_STATE),), limit=limit, bodies=False)]
        if start < MARK:
            scans.insert(0, Scan(LINES, (tenant,), (start,), (MARK,), limit=limit, bodies=False))
        pages = await self._backend.read(scans)
        matches = [row for rows in pages for row in rows if str(row.key[1]).startswith(prefix)][:limit]
        return [(Line(tenant, str(row.key[1])), info_of(row)) for row in matches]

    async def list_named(self, lines: Sequence[Line]) -> list[LineSummary]:
        """Return those of some lines that exist."""
        infos = {row.key: info_of(row) for row in await self._named_rows(lines)}
        return await self._listed([(line, infos[tuple(line)]) for line in lines if tuple(line) in infos])

    async def _named_rows(self, lines: Sequence[Line]) -> list[Row]:
        """Read the rows of some lines, without their bodies. A scan reads what is left of one that is damaged, which
        ends the read of all by name."""
        try:
            found = await self._context.unchecked.read([Get(LINES, [tuple(line) for line in lines])])
        except CorruptError:
            scans = [Scan(LINES, line[:1], line[1:], (line.name + "\0",), bodies=False) for line in lines]
            found = await self._context.unchecked.read(scans)
        return [Row(row.key, row.columns) for rows in found for row in rows]

    async def list_by_status(
        self, tenant: str, status: ThreadState, prefix: str, after: str, limit: int
    ) -> AsyncIterator[list[LineSummary]]:
        """Yield pages of threads that may have a stored status, by name: those that start with a prefix, after a
        name."""
        start: Key = (max(prefix, after + "\0" if after else ""),)
        while True:
            (rows,) = await self._backend.read([status_scan(self._context, tenant, status, start, limit)])
            names = (str(row.key[1]) for row in rows if may_have(row, status))
            infos = await self._named_rows([Line(tenant, name) for name in names])
            matches = sorted(row for row in infos if str(row.key[1]).startswith(prefix))
            yield await self._listed([(Line(tenant, str(row.key[1])), info_of(row)) for row in matches])
            if len(rows) < limit or not str(rows[-1].key[1]).startswith(prefix):
                return
            start = (*rows[-1].key[1:4], str(rows[-1].key[4]) + "\0")

    async def _listed(
        self, lines: Sequence[tuple[Line, LineInfo]], summarize: _Summarize | None = None
    ) -> list[LineSummary]:
        """Summarize lines of a listing. One that is damaged is listed without steps, and does not hide the others."""
        try:
            return await (summarize or self._summaries)(lines)
        except CorruptError:
            if len(lines) > 1:
                return [summary for one in lines for summary in await self._listed([one], summarize)]
            return [LineSummary.of_damaged(line, info.created) for line, info in lines]

    async def summary(self, line: Line) -> LineSummary:
        """Return the size and times of a line."""
        (summary,) = await self._summaries([(line, await self.info(line))])
        return summary

    async def _summaries(self, lines: Sequence[tuple[Line, LineInfo]]) -> list[LineSummary]:
        """Summarize lines, in two reads however many there are."""
        first: list[Query] = []
        for line, _ in lines:
            first += [newest_query(line), end_query(line, 0), Scan(BRANCHES, tuple(line))]
        pages = await self._backend.read(first)
        branches = [[Branch.of(row).branch for row in rows] for rows in pages[2::3]]
        second = [
            end_query(line, number) for (line, _), numbers in zip(lines, branches, strict=True) for number in numbers
        ]
        asked = [key for line, _ in lines if is_thread(line.name) for key in status_keys(line)]
        refs, *others = await self._backend.read([Get(REFS, asked), *second])
        heads, summaries, held = iter(others), [], await held_claims(self._context, refs)
        statuses: dict[str, list[Row]] = {}
        for row in refs:
            statuses.setdefault(str(row.key[1]), []).append(row)
        for (line, info), latest, main, numbers in zip(lines, pages[::3], pages[1::3], branches, strict=True):
            ends = [main, *(next(heads) for _ in numbers)]
            head = StepRef.of(await find_head(self._context.unchecked, line, latest[0])) if latest else None
            status = show_status(statuses.get(line.name, ()), head, held)
            summaries.append(LineSummary.of_ends(line, info, ends)._replace(latest=head, status=status))
        return summaries

    async def _sizes(self, lines: Sequence[tuple[Line, LineInfo]]) -> list[LineSummary]:
        """Return the sizes and times of lines that follow each other by name, with a read for each."""
        if not lines:
            return []
        tenant, name = lines[0][0]
        scans = [Scan(BRANCHES, (tenant,), (name,), (lines[-1][0].name + "\0",), bodies=False)]
        if self._context.rows.hides_names:  # rows are in another order
            scans = [Scan(BRANCHES, tuple(line), bodies=False) for line, _ in lines]
        found = await self._backend.read([*scans, *(end_query(line, 0) for line, _ in lines)])
        ends = {line.name: [rows] for (line, _), rows in zip(lines, found[len(scans) :], strict=True)}
        others = [row.key for rows in found[: len(scans)] for row in rows if row.key[1] in ends]
        queries = [end_query(Line(tenant, str(key[1])), int(key[2])) for key in others]
        for key, rows in zip(others, await self._backend.read(queries) if queries else [], strict=True):
            ends[str(key[1])].append(rows)
        return [LineSummary.of_ends(line, info, ends[line.name]) for line, info in lines]

    # Steps ----------------------------------------------------------------------------------------------------

    async def find(self, line: Line, at: At) -> StepRef:
        """Return the step that is named. `NotFoundError` if there is none."""
        return (await self._find(line, at, False, ()))[1]

    async def find_and(self, line: Line, at: At, more: Sequence[Query]) -> tuple[StepRef, list[list[Row]]]:
        """Return the step that is named, and the answers to more queries, in one round trip."""
        _, point, answers = await self._find(line, at, False, more)
        return point, answers

    async def find_row(self, line: Line, at: At, *, bodies: bool = True) -> Row:
        """Return the row of the step that is named."""
        return (await self._find(line, at, bodies, ()))[0]

    async def _find(
        self, line: Line, at: At, bodies: bool, more: Sequence[Query]
    ) -> tuple[Row, StepRef, list[list[Row]]]:
        if isinstance(at, Root):
            raise NotFoundError("the start of a thread is not a checkpoint", where=f"thread {line}")
        if isinstance(at, OnBranch):
            head = await self.head(line, await self.branch(line, at.name))
            at = Position(head.branch, head.seq)
        queries = [self._query(line, at, bodies), *more]
        # The usual question: only for the columns of the latest step. They need no check: what opens the step has one.
        backend = self._backend if bodies or more else self._context.unchecked
        rows, *answers = await backend.read(queries)
        if not rows:
            # It may be queued for writing: an empty batch waits for what this process submitted before.
            await self._backend.apply([])
            rows, *answers = await self._backend.read([self._query(line, at, bodies, required=at is not None), *more])
        if not rows:
            raise await self._not_found(line, at)
        row = rows[0] if at is not None else await find_head(self._backend, line, rows[0], bodies)
        point = StepRef.of(row)
        if point.pruned:
            raise pruned_error(line)
        return row, point, answers

    async def read_step(self, line: Line, point: StepRef, read: Callable[[StepRef], Awaitable[T]]) -> T:
        """Read something of a step. `NotFoundError`, and not `CorruptError`, if it was deleted or pruned meanwhile."""
        while True:
            try:
                return await read(point)
            except CorruptError:
                now = await self.find(line, point.id)
                if now == point or now.hash != point.hash:
                    raise
                point = now  # the line was rewritten

    async def latest_step(self, line: Line) -> StepRef | None:
        """Return HEAD, if the line has steps."""
        (rows,) = await self._backend.read([newest_query(line)])
        return StepRef.of(await find_head(self._backend, line, rows[0])) if rows else None

    async def newest_step(self, line: Line) -> StepRef:
        """Return the step with the greatest id, which may have been saved beside HEAD."""
        (rows,) = await self._backend.read([newest_query(line)])
        if not rows:
            raise missing_line_error(line)
        return StepRef.of(rows[0])

    async def find_id(self, line: Line, id: str, parent: At) -> Row | None:
        """Return the row of the step with an id, if there is one.

        The store is not read where the new step follows the cached tip: if that is out of date, the position will be
        occupied.
        """
        cached = self.cached_tip(line)
        if cached is not None and cached.is_followed_by(id, parent):
            return None
        (rows,) = await self._backend.read([self._query(line, id)])
        return rows[0] if rows else None

    async def history(
        self, line: Line, *, before: str = "", limit: int | None = None, bodies: bool = True
    ) -> list[Row]:
        """Return steps by id, the latest first, each in its last revision."""
        rows: list[Row] = []
        last_id = ""
        while limit is None or len(rows) < limit:
            page = 256 if limit is None else limit - len(rows) + 1
            (more,) = await self._backend.read(
                [Scan(STEPS, tuple(line), (), (before,) if before else (), True, page, "id", bodies)]
            )
            for row in more:
                id = StepRef.of(row).id
                if id not in ("", last_id):
                    rows.append(row)
                last_id = before = id
            if len(more) < page or not last_id:
                break
        return rows if limit is None else rows[:limit]

    async def pages(
        self, starts: Sequence[tuple[Line, str]], limit: int, filters: Sequence[MetadataFilter] = ()
    ) -> list[list[StepRef]]:
        """Return the steps of some lines before an id (all, if that is empty), the latest first, up to a limit.

        Each step is in its last revision. Only an empty page means that there are no more. Steps that do not match the
        filters may have `UNMATCHED` as their metadata.
        """
        scans = [
            Scan(STEPS, tuple(line), (), (before,) if before else (), True, limit, "id", bodies=False)
            for line, before in starts
        ]
        answers = await read_filtered(self._backend, scans, filters)
        pages = []
        for rows in answers:
            latest: dict[str, StepRef] = {}
            for row in rows:
                point = StepRef.of(row)
                if not point.pruned:
                    latest.setdefault(point.id, point)
            pages.append(list(latest.values()))
        return pages

    async def run_up(self, line: Line, last: StepRef, limit: int) -> list[StepRef]:
        """Return a step and those before it on its branch, the last first, up to a limit or a pruned one."""
        start, stop = max(0, last.seq + 1 - limit), last.seq + 1
        scan = Scan(STEPS, (*line, last.branch), (start,), (stop,), True, bodies=False, required=stop - start)
        (rows,) = await self._backend.read([scan])
        return list(takewhile(lambda point: not point.pruned, map(StepRef.of, rows)))

    async def last_unpruned(self, line: Line, end: Position) -> StepRef | None:
        """Return the last step of a branch, up to a position, that was not pruned."""
        stop = end.seq + 1
        while stop > 0:
            start = max(0, stop - _NAMES)
            scan = Scan(STEPS, (*line, end.branch), (start,), (stop,), True, bodies=False, required=stop - start)
            (rows,) = await self._backend.read([scan])
            for point in map(StepRef.of, rows):
                if not point.pruned:
                    return point
            stop = start
        return None

    async def every_step(self, tenant: str) -> AsyncIterator[tuple[Line, StepRef]]:
        """Yield all steps of all lines of a tenant."""
        async for row in scan_rows(self._backend, STEPS, (tenant,), bodies=False):
            yield Line(tenant, str(row.key[1])), StepRef.of(row)

    def _query(self, line: Line, at: str | Position | None, bodies: bool = True, *, required: bool = False) -> Query:
        if at is None:
            return newest_query(line, bodies)
        if isinstance(at, str):
            return Scan(STEPS, (*line, at), (), (), True, 1, "id", bodies, int(required))
        return Scan(STEPS, (*line, at.branch, at.seq), bodies=bodies, required=int(required))

    async def _not_found(self, line: Line, at: str | Position | None) -> NotFoundError:
        if at is None or await self.load_tip(line) is None:
            return missing_line_error(line)
        what = f"id {at!r}" if isinstance(at, str) else f"number {at.seq} on branch {at.branch}"
        return NotFoundError(
            f"the thread has no checkpoint with {what}", where=f"thread {line}", hint="List them with log()"
        )

    # Branches -------------------------------------------------------------------------------------------------

    async def branches(self, line: Line) -> list[Branch]:
        """Return all branches but the first."""
        (rows,) = await self._backend.read([Scan(BRANCHES, tuple(line))])
        return [Branch.of(row) for row in rows]

    async def base(self, line: Line, branch: Branch) -> str | None:
        """Return the id of the step that a branch starts from; None at the line's start, and if it was pruned."""
        if not branch.base_length:
            return None
        (rows,) = await self._backend.read([Get(STEPS, [(*line, branch.base_branch, branch.base_length - 1)], True)])
        return StepRef.of(rows[0]).id or None if rows else None

    async def branch(self, line: Line, name: str) -> int:
        """Return the number of the branch with a name. The first one is main, unless a revision took over the name."""
        for branch in await self.branches(line):
            if branch.name == name:
                return branch.branch
        if name == MAIN.name:
            return 0
        raise NotFoundError(f"the thread has no branch {name!r}", where=f"thread {line}", hint="See branches()")

    async def branch_graph(self, line: Line) -> BranchGraph:
        """Return the graph of the branches."""
        return BranchGraph(await self.branches(line))

    async def head(self, line: Line, branch: int) -> StepRef:
        """Return the last step of a branch; while it has none of its own, the step that it starts from."""
        head, rows = await self._backend.read([end_query(line, branch), Get(BRANCHES, [(*line, branch)])])
        if head:
            return StepRef.of(head[0])
        if not rows:
            raise (
                missing_line_error(line)
                if branch == 0
                else NotFoundError(f"the thread has no branch {branch}", where=f"thread {line}")
            )
        base = Branch.of(rows[0])
        return await self.find(line, Position(base.base_branch, base.base_length - 1))

    async def free_branch(self, line: Line) -> int:
        """Return a number that no branch has yet."""
        (rows,) = await self._backend.read([Scan(BRANCHES, tuple(line), reverse=True, limit=1)])
        return Branch.of(rows[0]).branch + 1 if rows else 1

    async def check_free(self, line: Line, name: str) -> list[Branch]:
        """Return the branches but the first. `ConflictError` if one has this name."""
        others = await self.branches(line)
        if name in {MAIN.name, *(branch.name for branch in others)}:
            raise ConflictError(
                f"the thread already has a branch {name!r}", where=f"thread {line}", hint="Use another name"
            )
        return others

    async def fork(self, line: Line, at: StepRef, name: str, apply: Apply | None = None) -> Branch:
        """Create a branch that starts from a step. Copies nothing."""
        while True:
            info = await self.info(line)
            now = await self.find(line, Position(at.branch, at.seq))
            if now.hash != at.hash:
                raise missing_line_error(line)
            at = now
            others = await self.check_free(line, name)
            number = others[-1].branch + 1 if others else 1
            branch = Branch(number, at.branch, at.seq + 1, self._context.clock(), name)
            changes = [*self.new_version(line, info), self.step_exists(line, at), Create(BRANCHES, branch.row(line))]
            if await (apply or self._backend.apply)(changes) is None:
                self._context.cache.drop(("line", line))
                return branch

    # Tags and labels -----------------------------------------------------------------------------------------

    async def set_ref(
        self, line: Line, kind: str, name: str, id: str, *, move: bool = False, apply: Apply | None = None
    ) -> None:
        """Give a step a tag, which one step of a line can have, or a label, which any number can."""
        row = Row((*line, kind, name, "" if kind == TAG else id), (id, self._context.clock()))
        change = Create(REFS, row) if kind == TAG and not move else Put(REFS, row)
        while True:
            # With a new version: a prune in progress has to start over.
            info = await self.info(line)
            conditions = [*self.new_version(line, info), self.step_exists(line, await self.find(line, id))]
            failed = await (apply or self._backend.apply)([*conditions, change])
            if failed is None:
                self._context.cache.drop(("line", line))
                return
            if failed == len(conditions):
                owners = [owner for _, owner in await self.refs(line, kind, name)]
                if owners and owners != [id]:
                    raise ConflictError(
                        f"another checkpoint has the tag {name!r}",
                        where=f"checkpoint {owners[0]} of thread {line}",
                        hint="Use another tag, or move this one (move=True)",
                    )
                if owners:
                    return

    async def drop_ref(
        self, line: Line, kind: str, name: str, id: str | None = None, apply: Apply | None = None
    ) -> None:
        """Remove a tag or a label, from one step or from all."""
        key = (*line, kind, name) if id is None else (*line, kind, name, id)
        await (apply or self._backend.apply)([Delete(REFS, key)])

    async def refs(self, line: Line, kind: str, name: str | None = None) -> Sequence[tuple[str, str]]:
        """Return tags or labels, and the ids of the steps that have them."""
        prefix = (*line, kind) if name is None else (*line, kind, name)
        (rows,) = await self._backend.read([Scan(REFS, prefix)])
        return [(str(row.key[3]), str(row.columns[0])) for row in rows]


class StepTimes:
    """Finds steps by time, by bisection: times do not decrease along a branch."""

    def __init__(self, context: EngineContext, lines: LineIndex) -> None:
        self._backend = context.backend
        self._lines = lines

    async def ends(self, line: Line) -> list[StepRef]:
        """Return the last step of each branch that has steps of its own."""
        numbers = [0, *(branch.branch for branch in await self._lines.branches(line))]
        heads = await self._backend.read([end_query(line, number) for number in numbers])
        return [StepRef.of(row) for rows in heads for row in rows]

    async def last_of_line(self, line: Line, time: int, ends: Sequence[StepRef] | None = None) -> StepRef:
        """Return what was HEAD at a time (nanoseconds since 1970), given the ends of all branches.

        That is the step that was saved last by then, or the last one of the branch that it was saved beside of.
        """
        ends = await self.ends(line) if ends is None else ends
        candidates = await self.last_of_branches(line, [Position(*end[:2]) for end in ends], time)
        if not candidates:
            raise NotFoundError("the thread has no checkpoint at or before that time", where=f"thread {line}")
        last = max(candidates, key=_order)
        if last.beside != AT_HEAD:
            heads = [point for point in candidates if point.branch == last.beside]
            heads = heads or [point for point in candidates if point.beside == AT_HEAD] or [last]
            id = max(heads, key=_order).id
            last = max((point for point in candidates if point.id == id), key=_order)  # in its last revision
        if last.pruned:
            raise pruned_error(line)
        return last

    async def last_of_branches(self, line: Line, ends: Sequence[Position], time: int) -> list[StepRef]:
        """Return the last step that is not after a time, of each of some branches up to a position, where there is one.

        All branches are searched together, in as many reads as one.
        """
        best: dict[int, StepRef] = {}
        todo = {end.branch: (0, end.seq, end.seq) for end in ends}  # first, last, and the one to read next
        while todo:
            rows = await self._backend.read(
                [Scan(STEPS, (*line, branch, at), bodies=False, required=1) for branch, (_, _, at) in todo.items()]
            )
            for branch, step in zip(list(todo), rows, strict=True):
                low, high, at = todo.pop(branch)
                if not step:
                    raise missing_line_error(line)  # deleted meanwhile
                point = StepRef.of(step[0])
                if point.time <= time:
                    low, best[branch] = at + 1, point
                else:
                    high = at - 1
                if low <= high:
                    todo[branch] = (low, high, (low + high) // 2)
        return [best[end.branch] for end in ends if end.branch in best]


def _order(point: StepRef) -> tuple[int, str, int]:
    return point.time, point.id, point.revision
