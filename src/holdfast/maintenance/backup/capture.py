"""Reading the lines of a store as of one moment, while others write.

A line is a log, so a moment is given by its *outline*: its row, its small rows, and where its branches end. All else
that belongs to it can be read later. `Backend.read` answers several queries as of one moment, so the outlines of some
lines can be read at once, and the feed names the lines that changed meanwhile. If all of these are among the lines that
were read at once, then these, and the others as they were read before, are the store as of the moment of that read.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.backends.interface import Changes, Get, Query, Row, Scan
from holdfast.backends.paging import scan_rows
from holdfast.backends.tables import (
    BRANCHES,
    EVENTS,
    FIRST_JOB,
    FOLDS,
    JOBS,
    KEYS,
    LINES,
    LINKS,
    NODES,
    OBJECTS,
    REFS,
    SIGNING,
    STEPS,
    WRITES,
    Key,
    Scalar,
    Table,
)
from holdfast.codec.envelope import sealed_key_id
from holdfast.engine.copy.line_stream import RemovedKey, every_line, stream_changes
from holdfast.engine.engine import Engine
from holdfast.engine.generations import GENERATION
from holdfast.engine.line_head import end_query
from holdfast.engine.optimistic import ConcurrentChange
from holdfast.engine.row_format import LEASE, Line, StepRef
from holdfast.errors import CorruptError, HoldfastError, InvalidError
from holdfast.maintenance.backup.format import Tip
from holdfast.maintenance.backup_status import LAST_BACKUP, SETTING
from holdfast.security.encryption.hidden_names import find_named
from holdfast.security.encryption.key_rows import LIST

SMALL = (BRANCHES, REFS, WRITES, LINKS, JOBS)
"""Tables of which all rows of a line are read at once. Not those of timers, of which there may be many: the lines of
agents say which there are."""

LARGE = (STEPS, FOLDS, EVENTS, NODES, OBJECTS)
"""Tables of which rows are only added, unless the line's own row changes."""

BACKED_UP = (*SMALL, *LARGE)

_LOCAL = frozenset((LEASE, "ledger", "orphan", "credentials"))
"""Kinds of refs about work in progress, or derived ones."""

AT_ONCE = 200
"""How many lines are read at once while it does not matter."""

_PATIENCE = 3
"""After how many attempts to find a moment the names of all lines are read, too."""

_ATTEMPTS = 6
"""After how many attempts the outlines of all lines are read at once, which always succeeds."""

Known = Callable[[], Awaitable[dict[str, dict[Key, tuple[Scalar, ...]]]]]
"""Returns the keys, without tenant and line, and columns of the rows that the last backup has of a line, by table."""


class Outline(NamedTuple):
    """A line at a moment. Without a row, it has settings only; without anything, it does not exist."""

    row: Row | None
    small: tuple[tuple[Table, tuple[Row, ...]], ...]
    tips: tuple[Tip, ...]
    last_event: str
    keys: tuple[Row, ...] = ()
    """The keys of the line, in an encrypted store."""
    large: tuple[tuple[Table, tuple[Row, ...]], ...] | None = None
    """All other rows, if they were read with it."""

    @property
    def exists(self) -> bool:
        """Whether there is anything to back up."""
        return self.row is not None or any(rows for _, rows in self.small) or bool(self.keys)

    def digest(self) -> bytes:
        """Return a digest of the small rows."""
        digest = hashlib.sha256()
        for table, rows in (*self.small, (KEYS, self.keys)):
            for row in rows:
                digest.update(repr((table.name, row)).encode(errors="surrogatepass"))
        return digest.digest()


_NOTHING = Outline(None, (), (), "")
"""The outline of a line that does not exist."""


class Moment(NamedTuple):
    """A moment: between two times in nanoseconds since 1970, and after a token was issued."""

    time: int
    until: int
    token: str
    outlines: dict[Line, Outline | CorruptError]
    is_complete: bool = False
    """Whether there are the outlines of all lines: others did not exist."""


class LineReader:
    """Reads outlines and rows of lines, as they are stored: under the stored names, where names are hidden."""

    def __init__(self, engine: Engine) -> None:
        self._named = find_named(engine.context.stored)
        self.stored = engine.context.stored if self._named is None else self._named.inner
        self._codec = engine.context.rows
        self.has_keys: bool = engine.context.rows.hides_columns
        """Whether lines have keys."""
        self._branches: dict[Line, tuple[int, ...] | None] = {}
        """The numbers of the branches of lines when they were last read; None where they keep changing."""
        self.reads_whole: Callable[[Line], Awaitable[bool]] | None = None
        """Says of which lines all rows are read with the outline, since they would be gone later."""

    async def changes(self, token: str | None) -> Changes:
        """Return the lines that changed since a token was issued."""
        return await self.stored.changes(token)

    async def name(self, line: Line) -> str:
        """Return the name of a line for people."""
        name = (line.tenant, line.name)
        return line.name if self._named is None else (await self._named.names([name]))[name]

    async def lines(self, tenant: str | None) -> list[Line]:
        """List the lines of a tenant or of all, and for each tenant the empty name, which has its settings."""
        lines = [line async for line in every_line(self.stored, tenant)]
        tenants = {"" if tenant is None else tenant, *(line.tenant for line in lines)}
        return sorted({*lines, *(Line(each, "") for each in tenants)})

    async def outlines(self, lines: Sequence[Line]) -> dict[Line, Outline | CorruptError]:
        """Read the outlines of lines, all as of one moment. The error, where a line is damaged."""
        try:
            return (await self._read_outlines(lines, ()))[0]
        except CorruptError as error:
            if len(lines) > 1:
                raise
            return {lines[0]: error}

    async def outlines_and_names(
        self, lines: Sequence[Line], tenant: str | None
    ) -> tuple[dict[Line, Outline | CorruptError], set[Line]]:
        """Read the outlines of lines, and the names of all that there are, as of one moment."""
        names = Scan(LINES, () if tenant is None else (tenant,), bodies=False)
        outlines, (listed,) = await self._read_outlines(lines, (names,))
        return outlines, {Line(str(row.key[0]), str(row.key[1])) for row in listed}

    async def all_outlines(self, tenant: str | None) -> dict[Line, Outline | CorruptError]:
        """Read the outlines of all lines as of one moment, in one read: it reads the keys of all steps."""
        return (await self.outlines_between(tenant))[0]

    async def outlines_between(
        self, tenant: str | None, first: Line | None = None, last: Line | None = None, most: int | None = None
    ) -> tuple[dict[Line, Outline | CorruptError], Line | None]:
        """Read the outlines of all lines, or from one to another, as of one moment, by scans over lines. With at most
        so many rows of a table, the second value is the first line of which there may be more."""
        prefix: Key = () if tenant is None else (tenant,)
        skipped = len(prefix)
        start = () if first is None else tuple(first)[skipped:]
        stop = () if last is None else (*last[skipped:-1], last.name + "\0")
        tables = (LINES, *SMALL, *((KEYS,) if self.has_keys else ()))
        queries = [Scan(table, prefix, start, stop, limit=most) for table in tables]
        queries += [Scan(table, prefix, start, stop, limit=most, bodies=False) for table in (EVENTS, STEPS)]
        found = await self.stored.read(queries)
        cuts = [line_of(rows[-1]) for rows in found if len(rows) == most]
        cut = min(cuts, default=None)
        answers: dict[Line, list[list[Row]]] = {}
        for place, rows in enumerate(found):
            for row in rows:
                own = answers.setdefault(line_of(row), [[] for _ in found])
                own[place].append(row)
        outlines: dict[Line, Outline | CorruptError] = {}
        for line, (*small, events, steps) in answers.items():
            if cut is None or line < cut:
                outlines[line] = await self._try_outline([*small, events[-1:], steps])
        return outlines, cut

    async def names(self, tenant: str | None) -> AsyncIterator[Line]:
        """Yield the lines of a tenant or of all, in order, and before those of each tenant the empty name."""
        last = "" if tenant is None else tenant
        yield Line(last, "")
        prefix = () if tenant is None else (tenant,)
        async for row in scan_rows(self.stored, LINES, prefix, bodies=False):
            line = line_of(row)
            if line.tenant != last:
                last = line.tenant
                yield Line(last, "")
            yield line

    async def tenants_with_keys(self, tenant: str | None) -> set[str]:
        """Return the tenants that have keys: that one, or all."""
        found, start = set[str](), ""
        while tenant is None:
            (rows,) = await self.stored.read([Scan(KEYS, (), (start,), limit=1, bodies=False)])
            if not rows:
                return found
            last = str(rows[0].key[0])
            found.add(last)
            start = last + "\0"
        return {tenant}

    async def _read_outlines(
        self, lines: Sequence[Line], more: Sequence[Query]
    ) -> tuple[dict[Line, Outline | CorruptError], Sequence[Sequence[Row]]]:
        """Read outlines together with the answers to other queries."""
        while True:
            queries: list[Query] = []
            slices: list[tuple[int, int, tuple[int, ...] | None, bool]] = []
            for line in lines:
                is_whole = self.reads_whole is not None and await self.reads_whole(line)
                numbers = None if is_whole else self._branches.get(line, ())
                own = _outline_queries(line, numbers, keys=self.has_keys, whole=is_whole)
                slices.append((len(queries), len(queries) + len(own), numbers, is_whole))
                queries += own
            try:
                found = await self.stored.read([*queries, *more])
            except CorruptError:
                if len(lines) > 1 and not more:
                    return await self._outlines_one_by_one(lines), ()
                raise
            settled = True
            outlines: dict[Line, Outline | CorruptError] = {}
            for line, (start, stop, numbers, is_whole) in zip(lines, slices, strict=True):
                answers = found[start:stop]
                there = tuple(int(row.key[2]) for row in answers[1])
                if numbers is not None:
                    # What was created between two reads is read with all steps of its line, so that this ends.
                    self._branches[line] = there if there == numbers or line not in self._branches else None
                    settled = settled and there == numbers
                outlines[line] = await self._try_outline(answers, whole=is_whole)
            if settled:
                return outlines, found[len(queries) :]

    async def _outlines_one_by_one(self, lines: Sequence[Line]) -> dict[Line, Outline | CorruptError]:
        """Read lines of which at least one is damaged. The others are then read at once."""
        damaged: dict[Line, Outline | CorruptError] = {}
        for line in lines:
            found = (await self.outlines([line]))[line]
            if isinstance(found, CorruptError):
                damaged[line] = found
        rest = [line for line in lines if line not in damaged]
        return {**damaged, **(await self.outlines(rest) if rest else {})}

    async def _try_outline(self, answers: Sequence[Sequence[Row]], *, whole: bool = False) -> Outline | CorruptError:
        try:
            return await self._outline(answers, whole=whole)
        except CorruptError as error:
            return error

    async def _outline(self, answers: Sequence[Sequence[Row]], *, whole: bool) -> Outline:
        lines, branches, refs, writes, links, jobs, *rest = answers
        # Certificates are signed by the store that makes them: the key for that is not restored.
        keys = [row for row in rest.pop(0) if row.key[2] not in (SIGNING, LIST)] if self.has_keys else []
        large = tuple(zip(LARGE, map(tuple, rest), strict=True)) if whole else None
        events, *ends = (rest[LARGE.index(EVENTS)][-1:], rest[LARGE.index(STEPS)]) if whole else rest
        refs = [row for row in refs if not await self._is_local(row)]
        jobs = [row for row in jobs if str(row.key[2]) >= FIRST_JOB]
        small = tuple(zip(SMALL, map(tuple, (branches, refs, writes, links, jobs)), strict=True))
        for table, rows in ((LINES, lines), *small, (KEYS, keys), *(large or ())):
            await self.check(table, rows)
        last = {step.branch: step for end in ends for step in map(StepRef.of, end)}
        tips = tuple(Tip(step.branch, step.seq, step.id, step.hash) for step in last.values())
        last_event = str(events[0].key[2]) if events else ""
        return Outline(lines[0] if lines else None, small, tips, last_event, tuple(keys), large)

    async def rows(
        self, line: Line, outline: Outline, before: tuple[Sequence[Tip], str] | None, known: Known
    ) -> AsyncIterator[tuple[Table, Row | RemovedKey]]:
        """Yield the rows of large tables that a line has at the moment of its outline and that are not known, and the
        keys of those that are known and no longer there.

        `before` are the tips and the last event of what is known, if only appends happened since. `ConcurrentChange` if
        the line is not any more what it was at that moment.
        """
        if outline.row is None:
            return
        if outline.large is not None:
            for table, rows in outline.large:
                existing = (await known()).get(table.name, {})
                for key in existing.keys() - {row.key[2:] for row in rows}:
                    yield table, RemovedKey((*line, *key))
                for row in rows:
                    if existing.get(row.key[2:]) != row.columns:
                        yield table, row
            return
        if before is not None and not await self._continues(line, before[0], outline.tips):
            before = None
        folded = False
        for table in LARGE:
            if before is not None and table in (STEPS, FOLDS, EVENTS):
                async for row in self._appended(table, line, outline, before):
                    folded = folded or table is FOLDS
                    await self.check(table, [row])
                    yield table, row
            elif before is None or table is not NODES or folded:
                async for found in self._missing(table, line, outline, known, appended=before is not None):
                    if isinstance(found, Row):
                        await self.check(table, [found])
                    yield table, found
        (now,) = await self.stored.read([Get(LINES, [tuple(line)])])
        if not now or now[0].columns != outline.row.columns:
            raise ConcurrentChange

    async def _continues(self, line: Line, before: Sequence[Tip], tips: Sequence[Tip]) -> bool:
        """Return whether branches that ended somewhere have the same step there."""
        lengths = {tip.branch: tip.seq for tip in tips}
        if any(lengths.get(tip.branch, -1) < tip.seq for tip in before):
            return False
        keys: list[Key] = [(*line, tip.branch, tip.seq) for tip in before]
        (found,) = await self.stored.read([Get(STEPS, keys)])
        hashes = {row.key[2]: row.columns[3] for row in found}
        return all(hashes.get(tip.branch) == tip.hash for tip in before)

    async def _appended(
        self, table: Table, line: Line, outline: Outline, before: tuple[Sequence[Tip], str]
    ) -> AsyncIterator[Row]:
        if table is EVENTS:
            if outline.last_event > before[1]:
                stop = (outline.last_event + "\0",)
                async for row in scan_rows(self.stored, table, tuple(line), (before[1],), stop):
                    if row.key[2] != before[1]:
                        yield row
            return
        starts = {tip.branch: tip.seq + 1 for tip in before[0]}
        for tip in outline.tips:
            start = starts.get(tip.branch, 0)
            if start <= tip.seq:
                async for row in scan_rows(self.stored, table, (*line, tip.branch), (start,), (tip.seq + 1,)):
                    yield row

    async def _missing(
        self, table: Table, line: Line, outline: Outline, known: Known, *, appended: bool
    ) -> AsyncIterator[Row | RemovedKey]:
        (first,) = await self.stored.read([Scan(table, tuple(line), limit=1, bodies=False)])
        if not first and appended:
            return
        existing = (await known()).get(table.name, {})
        includes = filter_of(table, outline)
        if not existing:
            async for row in scan_rows(self.stored, table, tuple(line)):
                if includes(row.key):
                    yield row
            return
        listed = scan_rows(self.stored, table, tuple(line), bodies=False)
        wanted = {row.key: row.columns async for row in listed if includes(row.key)}
        stored = {(*line, *key): columns for key, columns in existing.items()}
        async for changed in stream_changes(self.stored, table, wanted, stored):
            yield changed

    async def check(self, table: Table, rows: Sequence[Row]) -> None:
        for row in rows:
            if not self._codec.is_intact(table, row if self._named is None else await self._with_name(row)):
                raise CorruptError("a row is damaged", where=f"{table.name} {row.key}")

    async def _with_name(self, row: Row) -> Row:
        """Return a row under the name of its line, whose key is in memory: the seal covers the name."""
        if self._named is None:
            return row
        (named,) = await self._named.with_names([row])
        id = sealed_key_id(row.body)
        if id and self._named.keys is not None:
            await self._named.keys.load_ids({id: (str(named.key[0]), str(named.key[1]))})
        return named

    async def _is_local(self, ref: Row) -> bool:
        """Return whether a ref is about this store only."""
        kind = ref.key[2]
        if kind != SETTING or self._named is None:
            return is_local(kind, str(ref.key[3]))
        try:
            opened = self._codec.decode(REFS, await self._with_name(ref))
        except HoldfastError:
            return False  # which is found when it is checked
        return is_local(kind, str(opened.key[3]))


def line_of(row: Row) -> Line:
    """Return the line of a row."""
    return Line(str(row.key[0]), str(row.key[1]))


class MomentFinder:
    """Finds a moment, and which lines have changed until then."""

    def __init__(self, engine: Engine, reader: LineReader, tenant: str | None) -> None:
        self._url = engine.context.stored.url
        self._clock = engine.context.clock
        self._reader = reader
        self._tenant = tenant

    async def start(self, token: str) -> tuple[str, set[Line] | None]:
        """Return a token, and the lines that changed since an earlier one; None if any may have."""
        found = await self._changes(token or None)
        return found[0], found[1] if token else None

    async def _changes(self, token: str | None) -> tuple[str, set[Line] | None]:
        try:
            found = await self._reader.changes(token)
        except InvalidError:  # the token of another kind of store
            found = (await self._reader.changes(None))._replace(complete=False)
        lines = {Line(*each) for each in found.lines if self._tenant in (None, each[0])}
        return found.token, lines if found.complete else None

    async def changed(self, token: str) -> tuple[str, set[Line]]:
        """Return a token, and the lines that may have changed since an earlier one."""
        token, lines = await self._changes(token)
        return token, {*await self._reader.lines(self._tenant)} if lines is None else lines

    async def find(self, token: str, pending: Iterable[Line]) -> Moment:
        """Return a moment, with the outlines of all lines that changed after a token was issued. `pending` are lines
        that changed already."""
        lines = {*pending}
        for attempt in range(_ATTEMPTS):
            before, time, names = token, self._clock(), set[Line]()
            if attempt < _PATIENCE:
                outlines = await self._reader.outlines(sorted(lines))
            else:
                outlines, names = await self._reader.outlines_and_names(sorted(lines), self._tenant)
            until = max(time, self._clock())
            token, changed = await self._changes(before)
            others = None if changed is None else changed - lines
            # Threads that were created since do not matter, if that is known.
            if others is not None and (not others or (names and not any(_may_exist(each, names) for each in others))):
                return Moment(time, until, before, outlines | dict.fromkeys(others, _NOTHING))
            lines |= {*await self._reader.lines(self._tenant)} if changed is None else changed
        # Others change in every single read.
        time = self._clock()
        outlines = await self._reader.all_outlines(self._tenant)
        return Moment(time, max(time, self._clock()), token, outlines, is_complete=True)


def _may_exist(line: Line, names: set[Line]) -> bool:
    """Return whether a line was there, given all names. The settings of a tenant have none."""
    return not line.name or line in names


def _outline_queries(line: Line, branches: Sequence[int] | None, *, keys: bool, whole: bool) -> list[Query]:
    """Return the queries for an outline, given the numbers of the branches, if they are known; or for all rows."""
    key = tuple(line)
    queries: list[Query] = [
        Get(LINES, [key]),
        *(Scan(table, key, (FIRST_JOB,) if table is JOBS else ()) for table in SMALL),
        *([Scan(KEYS, key)] if keys else []),
    ]
    if whole:
        return [*queries, *(Scan(table, key) for table in LARGE)]
    queries.append(Scan(EVENTS, key, reverse=True, limit=1, bodies=False))
    if branches is None:
        return [*queries, Scan(STEPS, key, bodies=False)]
    return [
        *queries,
        *(end_query(line, number) for number in (0, *branches)),
    ]


def is_local(kind: Scalar, name: str) -> bool:
    """Return whether a ref of this kind and name is about this store only."""
    return kind in _LOCAL or (kind == SETTING and (name.startswith(LAST_BACKUP) or name == GENERATION))


def filter_of(table: Table, outline: Outline) -> Callable[[Key], bool]:
    """Return which rows belong to the moment of an outline."""
    if table in (STEPS, FOLDS):
        lengths = {tip.branch: tip.seq for tip in outline.tips}
        return lambda key: int(key[3]) <= lengths.get(int(key[2]), -1)
    if table is EVENTS:
        return lambda key: str(key[2]) <= outline.last_event
    return lambda _: True  # what no step needs does no harm
