"""Walks through the lines of a store, for work on many: page by page, by name, so that it takes no more memory with
more lines.

A walk goes on after any name: that is the cursor that a report returns as `next` and that a job stores. Progress is
reported after each line, with the number of all, which stores that count rows know without reading them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Backend, ColumnHint, Row, Scan
from holdfast.backends.paging import UNREADABLE, scan_rows
from holdfast.backends.tables import BRANCHES, LINES, REFS, STEPS, TIME, Table
from holdfast.engine.context import EngineContext
from holdfast.engine.line_head import newest_query
from holdfast.engine.namespaces import ALL_KINDS, LineKind, is_thread, line_kind, ranges_of, short_name
from holdfast.engine.row_format import Branch, Line, LineSummary, StepRef
from holdfast.engine.thread_sizes import ThreadPosition, ThreadSizes
from holdfast.engine.types import Progress


async def walk_lines(
    backend: Backend,
    tenant: str,
    kinds: frozenset[LineKind] = ALL_KINDS,
    *,
    prefix: str = "",
    after: str = "",
    progress: Progress | None = None,
) -> AsyncIterator[Line]:
    """Yield the lines of some kinds by name, and report each as soon as the caller is done with it."""
    total = None if progress is None else await count_lines(backend, tenant, kinds, prefix=prefix, after=after)
    done = 0
    async for line in lines_of_kinds(backend, tenant, kinds, prefix, after):
        yield line
        done += 1
        if progress is not None:
            progress(done, None if total is None else max(done, total), line.name)


async def lines_of_kinds(
    backend: Backend, tenant: str, kinds: frozenset[LineKind] = ALL_KINDS, prefix: str = "", after: str = ""
) -> AsyncIterator[Line]:
    """Yield the lines of some kinds whose short names start with a prefix, by name, after a name."""
    only_threads = kinds == {"thread"}
    for start, stop in _bounds(kinds, prefix, after):
        async for row in scan_rows(backend, LINES, (tenant,), (start,), (stop,) if stop else (), bodies=False):
            name = str(row.key[1])
            if only_threads and not name.startswith(prefix):
                break
            if short_name(name).startswith(prefix) and (kinds == ALL_KINDS or line_kind(name) in kinds):
                yield Line(tenant, name)


async def count_lines(
    backend: Backend, tenant: str, kinds: frozenset[LineKind] = ALL_KINDS, *, prefix: str = "", after: str = ""
) -> int | None:
    """Return the number of lines, from the store's own count where that tells; None if they cannot be listed."""
    try:
        if kinds in (ALL_KINDS, {"thread"}) and not prefix:
            scans = [
                Scan(LINES, (tenant,), (start,), (stop,) if stop else ()) for start, stop in _bounds(kinds, "", after)
            ]
            counts = await backend.count_rows(scans)
            if counts is not None:
                return sum(counts)
        return sum([1 async for _ in lines_of_kinds(backend, tenant, kinds, prefix, after)])
    except UNREADABLE:
        return None


def _bounds(kinds: frozenset[LineKind], prefix: str, after: str) -> list[tuple[str, str]]:
    """Return the bounds of the names of lines: the start, and the end, which is empty for the last ones."""
    least = max(prefix if kinds == {"thread"} else "", after + "\0" if after else "")
    return [(max(start, least), stop) for start, stop in ranges_of(kinds) if not stop or least < stop]


async def pages_of(lines: AsyncIterator[Line], size: int) -> AsyncIterator[list[Line]]:
    """Yield lines so many at a time."""
    page: list[Line] = []
    async for line in lines:
        page.append(line)
        if len(page) == size:
            yield page
            page = []
    if page:
        yield page


async def each_of(lines: Sequence[Line]) -> AsyncIterator[Line]:
    """Yield lines that are named, as a walk does."""
    for line in lines:
        yield line


class LineRows(NamedTuple):
    """A line's rows that say what steps it has, without their content."""

    points: Sequence[StepRef]
    branches: Sequence[Branch]
    refs: Sequence[Row]


class LineRowReader:
    """Reads the rows of one line after another, in the order of their names: for short lines, many with one request.

    Rows are as of about the time of the call, those of one line not as of one moment: what is decided by them is to be
    looked at again before something is changed.
    """

    def __init__(self, context: EngineContext, tenant: str) -> None:
        self._backend = context.backend
        self._tenant = tenant
        # Where names are hidden, rows come in another order, and where a page is damaged, the others are not to blame.
        self._alone = context.rows.hides_names
        self._streams: list[_LineStream] = []

    async def read(self, line: Line) -> LineRows:
        """Return the rows of a line, which follows those that were read before. `CorruptError` if they cannot be
        read."""
        if not self._alone:
            if not self._streams:
                self._streams = [_LineStream(self._backend, table, line) for table in (STEPS, BRANCHES, REFS)]
            try:
                steps, branches, refs = [await each.take(line.name) for each in self._streams]
            except UNREADABLE:
                self._alone = True
            else:
                return LineRows(list(map(StepRef.of, steps)), list(map(Branch.of, branches)), refs)
        return await read_line_rows(self._backend, line)


async def read_line_rows(backend: Backend, line: Line) -> LineRows:
    """Read the rows of a line."""
    points = [StepRef.of(row) async for row in scan_rows(backend, STEPS, tuple(line), bodies=False)]
    branches, refs = await backend.read([Scan(BRANCHES, tuple(line)), Scan(REFS, tuple(line))])
    return LineRows(points, list(map(Branch.of, branches)), refs)


class _LineStream:
    """The rows of a table from a line on."""

    def __init__(self, backend: Backend, table: Table, first: Line) -> None:
        self._rows = scan_rows(backend, table, (first.tenant,), (first.name,), bodies=False)
        self._next: Row | None = None
        self._ended = False

    async def take(self, name: str) -> list[Row]:
        """Return the rows of a line, and pass those of lines before it."""
        found: list[Row] = []
        while not self._ended and (self._next is None or str(self._next.key[1]) <= name):
            if self._next is not None and self._next.key[1] == name:
                found.append(self._next)
            self._next = await anext(self._rows, None)
            self._ended = self._next is None
        return found


_RECENT = 1 << 16


class LineSet:
    """A set of many lines, of each of which it only has a hash of 64 bits."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._recent: set[int] = set()

    def add(self, line: Line) -> None:
        """Add a line."""
        if line in self:
            return
        self._recent.add(hash(line))
        if len(self._recent) > _RECENT:
            self._hashes = array("q", sorted([*self._hashes, *self._recent]))
            self._recent.clear()

    def __contains__(self, line: object) -> bool:
        value = hash(line)
        if value in self._recent:
            return True
        place = bisect_left(self._hashes, value)
        return place < len(self._hashes) and self._hashes[place] == value

    def __len__(self) -> int:
        return len(self._hashes) + len(self._recent)


_MAX_EXCLUDED = 500
"""How many threads a scan is told to leave out."""

_PAGE = 500


class UpdateOrder:
    """Lists the threads of a tenant by their last update."""

    def __init__(self, context: EngineContext, sizes: ThreadSizes, tenant: str) -> None:
        self._context = context
        self._sizes = sizes
        self._tenant = tenant

    async def pages(self, after: ThreadPosition | None, size: int) -> AsyncIterator[list[ThreadPosition]]:
        """Yield the positions of threads after another one, some at a time. A thread that was changed after that comes
        again: see `is_last`."""
        if not self._context.backend.capabilities.times or self._context.rows.hides_names:
            async for page in self._sizes.pages(self._tenant, "updated", after):
                yield page
            return
        if after is None or after.number >= 0:
            async for page in self._by_time(after, size):
                yield page
            after = None
        async for page in self._without_steps("" if after is None else after.thread):
            yield page

    async def is_last(self, position: ThreadPosition, summary: LineSummary) -> bool:
        """Return whether a thread was not changed after a position of it."""
        if position.number < 0 or summary.updated <= position.number:
            return True
        if summary.latest is not None and summary.latest.time > position.number:
            return False
        # Its last step was pruned, or it is damaged.
        rows = scan_rows(self._context.stored, STEPS, tuple(summary.line), bodies=False)
        return max([point.time async for row in rows if (point := StepRef.of(row)).id], default=0) <= position.number

    async def _by_time(self, after: ThreadPosition | None, size: int) -> AsyncIterator[list[ThreadPosition]]:
        seen: dict[str, None] = {}
        stop: tuple[int | str, ...] = () if after is None else tuple(after)
        page = min(4 * size, 1000)
        while True:
            excluded = (ColumnHint("line", tuple(seen)[:_MAX_EXCLUDED], excluded=True),) if seen else ()
            scan = Scan(STEPS, (self._tenant,), (), stop, True, page, TIME, bodies=False, hints=excluded)
            (rows,) = await self._context.stored.read([scan])  # names and times are as they are, also when encrypted
            found: dict[str, ThreadPosition] = {}
            for row in rows:
                name = str(row.key[1])
                if name not in seen and name not in found and is_thread(name):
                    found[name] = ThreadPosition(StepRef.of(row).time, name)
            seen |= dict.fromkeys(found)
            yield list(found.values())
            if len(rows) < page:
                return
            last = StepRef.of(rows[-1])
            stop = (last.time, str(rows[-1].key[1]), last.branch, last.seq)

    async def _without_steps(self, after: str) -> AsyncIterator[list[ThreadPosition]]:
        lines = lines_of_kinds(self._context.backend, self._tenant, frozenset({"thread"}), after=after)
        async for some in pages_of(lines, _PAGE):
            newest = await self._context.stored.read([newest_query(line) for line in some])
            yield [ThreadPosition(-1, line.name) for line, rows in zip(some, newest, strict=True) if not rows]
