"""Search for checkpoints and threads that match a query.

A query for text uses the word index, if the store has one: it returns candidates, and each is checked against what its
step added. Otherwise the threads are scanned, the last changed first, and their checkpoints, the latest first. Steps
are opened only if their rows do not suffice. A scan reads the threads in blocks, by name: to order all of them by their
last change, it would have to read all of them first. It stops at a limit, and its cursor resumes there.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import LINES, STEPS, Key
from holdfast.engine.checked_rows import read_despite_damage
from holdfast.engine.engine import Engine
from holdfast.engine.field_index import FieldTerm
from holdfast.engine.guard import Visible, filter_visible
from holdfast.engine.lines import LABEL, MAIN, TAG
from holdfast.engine.metadata_filter import UNMATCHED
from holdfast.engine.model.packed_state import unpack_name
from holdfast.engine.namespaces import LineKind, line_kind
from holdfast.engine.pages import Page
from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import is_hidden
from holdfast.engine.row_format import Line, LineSummary, StepRef, check_name, info_of, open_step
from holdfast.engine.text_index.extract import ExtractedText
from holdfast.engine.text_index.indexer import MANY, ON, step_words
from holdfast.engine.types import SCAN_LIMIT, Progress, to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.history.query import (
    And,
    Field,
    Not,
    Or,
    Query,
    QuerySubject,
    Spans,
    StepContent,
    ThreadContext,
    WordFilter,
    every,
    field_filters,
    hits,
    join_spans,
    matches,
    metadata_filters,
    one_thread,
    parse,
    simplify,
    thread_prefix,
    walk,
    word_filters,
)

_log = logging.getLogger("holdfast.search")

INDEX, SCAN = "index", "scan"
"""How a page was searched."""

_CURSORS = {INDEX: 3, SCAN: 4}
"""The lengths of positions in cursors."""

_PAGE = 128
"""How many checkpoints are read at a time."""

_THREAD_PAGE = 500
"""How many threads are read at a time."""

_BLOCK = 10_000
"""How many threads are ordered by their last change."""

_OF_THREADS = ("thread", "steps", "branches", "created", "updated", "size", "time", "after")
"""The fields of queries that may exclude a thread by its name, times and sizes."""

_MAX_HITS = 10
"""How many hits of one checkpoint are returned."""

_EXCERPT = 160
"""The length of an excerpt around a hit, in characters."""

_BEFORE = 40
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class SearchHit(msgspec.Struct, frozen=True):
    """A text that matches: its path, its role if it is in a message, an excerpt, and the matching spans of that."""

    path: str
    role: str
    excerpt: str
    spans: tuple[tuple[int, int], ...]


class SearchMatch(msgspec.Struct, frozen=True):
    """A checkpoint that matches, with its hits, those in messages first. `more` is the number of hits left out."""

    thread: str
    id: str
    time: datetime
    step: int
    branch: int
    kind: str
    hits: tuple[SearchHit, ...] = ()
    more: int = 0


class SearchPage(Page[SearchMatch]):
    """A page of matches.

    `how` it was searched: `index` or `scan`. `examined` counts the checkpoints that were read, `unreadable` those that
    are damaged. A scan that reached its limit is `stopped`: the checkpoints that follow were not searched.
    """

    def __init__(
        self,
        matches: list[SearchMatch],
        run: SearchRun,
        how: str,
        limit: int,
        cursor: str | None,
        stopped: bool = False,
    ) -> None:
        super().__init__(matches, cursor, lambda after: run.page(limit, after))
        self.how = how
        self.examined: int = run.examined
        self.unreadable: int = run.unreadable
        self.stopped = stopped

    def __repr__(self) -> str:
        scanned = f", {self.examined:,} checkpoints scanned without an index" if self.how == SCAN else ""
        rest = ", the rest was not searched" if self.stopped else ", more follow" if self.next is not None else ""
        return f"<{type(self).__name__} of {len(self)}{scanned}{rest}>"


class _ScanPosition(NamedTuple):
    """Where a scan resumes: the block of threads after a name; the thread in it, by its last change and its name; and
    the checkpoint that it continues before, None if the thread is finished. Without a thread, the block is yet to be
    searched."""

    block: str = ""
    updated: int | None = None
    name: str = ""
    before: str | None = None

    def order(self, threads: Sequence[LineSummary]) -> list[LineSummary]:
        """Return the threads of the block that are left, in the order in which they are searched."""
        ordered = sorted(threads, key=lambda thread: (-thread.updated, thread.line.name))
        if self.updated is None:
            return ordered
        # This thread is resumed even if it was changed since.
        own = [thread for thread in ordered if thread.line.name == self.name and self.before is not None]
        return [
            *own,
            *(each for each in ordered if (-each.updated, each.line.name) > (-self.updated, self.name)),
        ]


def prepare(
    engine: Engine,
    tenant: str,
    query: str,
    kind: LineKind | None = "thread",
    visible: Visible | None = None,
    scan_limit: int | None = None,
) -> SearchRun:
    """Parse a query over the lines of a tenant. Raises `InvalidError` with the column of the error."""
    return SearchRun(engine, tenant, parse(query), kind=kind, visible=visible, scan_limit=scan_limit)


async def search(
    engine: Engine,
    tenant: str,
    query: str | Query,
    *,
    limit: int = 20,
    after: str | None = None,
    scan_limit: int | None = SCAN_LIMIT,
    progress: Progress | None = None,
    kind: LineKind | None = "thread",
    visible: Visible | None = None,
) -> SearchPage:
    """Return a page of the checkpoints that match a query: of threads, of another kind of lines, or of all (None)."""
    asked = parse(query) if isinstance(query, str) else query
    return await SearchRun(engine, tenant, asked, progress, kind, scan_limit, visible).page(limit, after)


class SearchRun:
    """One query over one tenant's threads."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        query: Query,
        progress: Progress | None = None,
        kind: LineKind | None = "thread",
        scan_limit: int | None = None,
        visible: Visible | None = None,
    ) -> None:
        self._scan_limit = scan_limit
        self._visible = visible
        self._engine = engine
        self._backend = engine.context.backend
        self._tenant = tenant
        self._query = query
        self._filters = metadata_filters(query)
        self._kind = kind
        self._progress = progress
        names = {each.name for each in walk(query) if isinstance(each, Field)}
        self._needs_summary = not names.isdisjoint(("steps", "branches", "created", "updated"))
        self.asks_of_threads: bool = not names.isdisjoint(_OF_THREADS)
        """Whether names, times or sizes of threads may exclude some."""
        self._needs_branches = "branch" in names
        self._needs_refs = not names.isdisjoint(("tag", "label"))
        self._needs_size = "size" in names
        self._contexts: dict[Line, ThreadContext] = {}
        self.examined: int = 0
        self.unreadable: int = 0

    # Pages ----------------------------------------------------------------------------------------------------

    async def page(self, limit: int, after: str | None = None) -> SearchPage:
        """Return the first page, or the one after a cursor."""
        how, start = self._parse_cursor(after)
        self.examined = self.unreadable = 0
        indexed = how != SCAN and await self.has_index()
        if how == INDEX and not indexed:
            raise ConflictError("the index was removed since the previous page", hint="Search again from the start")
        how = how or (INDEX if indexed else SCAN)
        if not limit:
            return SearchPage([], self, how, limit, None)
        stopped = False
        position: Sequence[Any] | None
        if how == INDEX:
            results, position = await self._by_index(limit, start)
        else:
            results, position, stopped = await self._by_scan(limit, _ScanPosition(*start))
        cursor = None if position is None else self._cursor(how, position)
        if stopped:
            _log.warning(
                "a search without an index stopped after %d checkpoints: build an index, or pass scan_limit=None",
                self.examined,
            )
        return SearchPage(results, self, how, limit, cursor, stopped)

    async def has_index(self) -> bool:
        """Return whether the index of words answers the query."""
        known = self._kind == "thread" and word_filters(self._query) is not None
        return known and await self._engine.indexer.state(self._tenant) == ON

    def _cursor(self, how: str, position: Sequence[Any]) -> str:
        data = json.dumps([how, self._digest(), *position], ensure_ascii=False, separators=(",", ":"))
        return base64.urlsafe_b64encode(data.encode()).decode().rstrip("=")

    def _parse_cursor(self, after: str | None) -> tuple[str, list[Any]]:
        if after is None:
            return "", []
        try:
            how, digest, *position = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
        except (ValueError, TypeError):
            raise InvalidError("the cursor is invalid", where=repr(after)[:80], hint=_HINT) from None
        if digest != self._digest() or len(position) != _CURSORS.get(how):
            raise InvalidError("the cursor belongs to another query", where=repr(after)[:80], hint=_HINT)
        return how, position

    def _digest(self) -> str:
        return hashlib.sha256(f"{self._tenant}\0{self._kind or 'all'}\0{self._query}".encode()).hexdigest()[:16]

    # By index -------------------------------------------------------------------------------------------------

    async def _by_index(self, limit: int, start: list[Any]) -> tuple[list[SearchMatch], list[Any] | None]:
        filters = [*(word_filters(self._query) or ()), WordFilter(frozenset({MANY}))]
        number, cursor, last = start or (0, None, None)
        results: list[SearchMatch] = []
        only = one_thread(self._query)
        while number < len(filters):
            words, prefixes = filters[number]
            page = await self._backend.match(
                self._tenant, sorted(words), prefixes=sorted(prefixes), line=only, after=cursor, limit=_PAGE
            )
            keys = await filter_visible(self._visible, page.keys, lambda key: Line(str(key[0]), str(key[1])))
            if last is not None and tuple(last) in keys:
                keys = keys[keys.index(tuple(last)) + 1 :]  # new ones may have been added before it
            while keys:
                # No more than necessary if all of them match.
                count = max(limit - len(results), 8)
                candidates, keys = keys[:count], keys[count:]
                for key, match in await self._check_candidates(candidates, filters[:number]):
                    results.append(match)
                    if len(results) == limit:
                        return results, [number, cursor, list(key)]
            cursor, last = page.next, None
            if cursor is None:
                number += 1
        return results, None

    async def _check_candidates(self, keys: Sequence[Key], done: Sequence[WordFilter]) -> list[tuple[Key, SearchMatch]]:
        """Return the candidates that match, and that no filter before has returned."""
        rows, lines = await read_despite_damage(
            self._backend, [Get(STEPS, keys), Get(LINES, sorted({key[:2] for key in keys}))]
        )
        by_key = {row.key: row for row in rows}
        pruned = {row.key: bool(info_of(row).pruned) for row in lines}
        self.examined += len(keys)
        results: list[tuple[Key, QuerySubject]] = []
        for key in keys:
            row = by_key.get(key)
            if row is None or StepRef.of(row).pruned or key[:2] not in pruned:
                continue
            subject = await self._read_match(Line(str(key[0]), str(key[1])), row, pruned[key[:2]])
            if subject is None or subject.content is None:
                continue
            words = step_words(subject.content.texts) if done else set()
            if not any(word_filter.matches(words) for word_filter in done):
                results.append((key, subject))
        return [(key, self._match(subject)) for key, subject in await self._latest(results)]

    async def _latest(self, results: list[tuple[Key, QuerySubject]]) -> list[tuple[Key, QuerySubject]]:
        """Return those that no later revision replaced."""
        scans = []
        for key, subject in results:
            assert subject.point is not None  # noqa: S101 - they are checkpoints
            scans.append(Scan(STEPS, (*key[:2], subject.point.id), reverse=True, limit=1, by="id", bodies=False))
        answers = await self._backend.read(scans) if scans else []
        return [pair for pair, rows in zip(results, answers, strict=True) if rows and rows[0].key == pair[0]]

    # By scan --------------------------------------------------------------------------------------------------

    async def _visible_lines(self, summaries: list[LineSummary]) -> list[LineSummary]:
        return await filter_visible(self._visible, summaries, lambda each: each.line)

    async def _by_scan(self, limit: int, start: _ScanPosition) -> tuple[list[SearchMatch], _ScanPosition | None, bool]:
        """Return matches, where to resume, and whether the scan stopped at its limit."""
        results: list[SearchMatch] = []
        skipped = 0
        while True:
            block, following = await self._block(start.block)
            candidates = [thread for thread in block if self._may_match(thread)] if self.asks_of_threads else block
            threads = start.order(candidates)
            if start.updated is None:
                skipped += len(block) - len(candidates)
            for done, summary in enumerate(threads, 1):
                name = summary.line.name
                resumed = start.updated is not None and name == start.name
                at = _ScanPosition(start.block, start.updated if resumed else summary.updated, name)
                before = (start.before or "") if resumed else ""
                while True:
                    examined = self.examined
                    try:
                        subjects, before = await self.match_page(summary.line, before, summary)
                    except CorruptError:
                        self.unreadable += 1
                        break
                    for subject in subjects:
                        results.append(self._match(subject))
                        if len(results) == limit:
                            assert subject.point is not None  # noqa: S101 - they are checkpoints
                            return results, at._replace(before=subject.point.id), False
                    if not before:
                        break
                    if self._progress is not None and self.examined - examined >= _PAGE:
                        self._progress(done - 1, len(threads) if following is None else None, name)
                    if self.is_enough(skipped):
                        (more,) = await self._engine.lines.pages([(summary.line, before)], 1)
                        if not more:
                            break
                        return results, at._replace(before=before), True
                if self._progress is not None:
                    self._progress(done, len(threads) if following is None else None, name)
                if self.is_enough(skipped) and (done < len(threads) or following is not None):
                    return results, at, True
            if following is None:
                return results, None, False
            start = _ScanPosition(following)
            if self.is_enough(skipped):
                return results, start, True

    def is_enough(self, skipped: int = 0) -> bool:
        """Whether a scan is at its limit. A thread that its own properties exclude counts as a checkpoint."""
        return self._scan_limit is not None and self.examined + skipped >= self._scan_limit

    async def candidates(self) -> AsyncIterator[LineSummary]:
        """Yield the lines that may have checkpoints that match, by name."""
        following: str | None = ""
        while following is not None:
            block, following = await self._block(following)
            for each in filter(self._may_match, block):
                yield each

    async def _block(self, after: str) -> tuple[list[LineSummary], str | None]:
        """Return some threads after a name, and the name that the next block follows; None if this is the last."""
        lines = self._engine.lines
        only = one_thread(self._query)
        if only is not None and self._kind not in (None, line_kind(only)):
            return [], None
        if only is not None:
            try:
                summary = await lines.summary(Line(self._tenant, check_name(only, "name of a thread")))
                return await self._visible_lines([summary]), None
            except NotFoundError:
                return [], None
        results: list[LineSummary] = []
        prefix = thread_prefix(self._query)
        if (sizes := await self._known_sizes()) is not None:
            names = sorted(name for name in sizes if name > after and name.startswith(prefix))
            results = await self._visible_lines([sizes[name] for name in names[:_BLOCK]])
            return results, names[_BLOCK - 1] if len(names) > _BLOCK else None
        while len(results) < _BLOCK:
            page = await lines.list_lines(self._tenant, self._kind, prefix, after, _THREAD_PAGE)
            results += await self._visible_lines(page)
            if len(page) < _THREAD_PAGE:
                return results, None
            after = page[-1].line.name
            if self._progress is not None and self._visible is None:
                self._progress(0, None, after)
        return results, after

    def _may_match(self, summary: LineSummary) -> bool:
        """Whether a thread may have checkpoints that match. `size` is not decided by that of the thread."""
        return self._needs_size or self.may_match(summary)

    async def match_page(
        self, line: Line, before: str = "", summary: LineSummary | None = None
    ) -> tuple[list[QuerySubject], str]:
        """Match the next checkpoints of a thread before an id. Returns the matches, and where the next page starts."""
        (points,) = await self._engine.lines.pages([(line, before)], _PAGE, self._filters)
        if not points:
            return [], ""
        self.examined += len(points)
        context = await self._context(line, summary)
        undecided = []
        results: dict[str, QuerySubject] = {}
        for point in [each for each in points if each.metadata != UNMATCHED]:
            subject = QuerySubject(line.name, context, point)
            try:
                answer = matches(self._query, subject)
            except CorruptError:
                self.unreadable += 1
                continue
            if answer:
                results[point.id] = subject
            elif answer is None:
                undecided.append(point)
        if undecided:
            rows, infos = await read_despite_damage(
                self._backend, [Get(STEPS, [(*line, *point[:2]) for point in undecided]), Get(LINES, [tuple(line)])]
            )
            pruned = bool(infos and info_of(infos[0]).pruned)
            for row in rows:
                match = await self._read_match(line, row, pruned)
                if match is not None:
                    results[StepRef.of(row).id] = match
        return [results[point.id] for point in points if point.id in results], points[-1].id

    # One checkpoint -------------------------------------------------------------------------------------------

    async def match_rows(self, line: Line, rows: Sequence[Row]) -> list[bool]:
        """Return for each row of a thread's checkpoints whether it matches."""
        (infos,) = await self._backend.read([Get(LINES, [tuple(line)])])
        pruned = bool(infos and info_of(infos[0]).pruned)
        return [await self._matches(line, row, pruned) for row in rows]

    async def _matches(self, line: Line, row: Row, pruned: bool) -> bool:
        try:
            answer = matches(self._query, QuerySubject(line.name, await self._context(line), StepRef.of(row)))
        except CorruptError:
            self.unreadable += 1
            return False
        return await self._read_match(line, row, pruned) is not None if answer is None else answer

    async def _read_match(self, line: Line, row: Row, pruned: bool) -> QuerySubject | None:
        """Read a checkpoint with its content, and return it if it matches."""
        point = StepRef.of(row)
        if point.pruned:
            return None
        subject = QuerySubject(line.name, await self._context(line), point)
        try:
            if matches(self._query, subject) is False:
                return None
            subject.content = await self._engine.lines.read_step(
                line, point, partial(self._read_content, line, row, pruned)
            )
            return subject if matches(self._query, subject) else None
        except NotFoundError:
            return None  # deleted or pruned meanwhile
        except CorruptError:
            self.unreadable += 1
            return None

    async def _read_content(self, line: Line, row: Row, pruned: bool, point: StepRef) -> StepContent:
        if StepRef.of(row) != point:  # the line was rewritten since
            (rows,) = await self._backend.read([Get(STEPS, [(*line, *point[:2])])])
            row, pruned = rows[0] if rows else row, True
        step = open_step(line, row, self._engine.context.max_bytes)
        texts = await self._engine.indexer.brought(line, point, step, pruned=pruned)
        keys = (*(key for key, _ in step.edit.put), *step.edit.removed)
        channels = [name for name in map(unpack_name, keys) if not is_hidden(name)]
        return StepContent(channels, texts, await self._size(line, point) if self._needs_size else None)

    async def _size(self, line: Line, point: StepRef) -> int:
        """Return the size of a step. Rows have the total up to them along their branch."""
        if not point.seq:
            return point.size
        (rows,) = await self._backend.read([Scan(STEPS, (*line, point.branch, point.seq - 1), bodies=False)])
        return point.size - (StepRef.of(rows[0]).size if rows else 0)

    async def _context(self, line: Line, summary: LineSummary | None = None) -> ThreadContext:
        if line in self._contexts:
            return self._contexts[line]
        lines = self._engine.lines
        if self._needs_summary and summary is None:
            summary = await lines.summary(line)
        branches: dict[int, str] | None = None
        if self._needs_branches:
            others = {branch.branch: branch.name or str(branch.branch) for branch in await lines.branches(line)}
            branches = {0: "0" if MAIN.name in others.values() else MAIN.name, **others}
        tags = _by_id(await lines.refs(line, TAG)) if self._needs_refs else None
        labels = _by_id(await lines.refs(line, LABEL)) if self._needs_refs else None
        self._contexts[line] = ThreadContext(summary, branches, tags, labels)
        return self._contexts[line]

    def _match(self, subject: QuerySubject) -> SearchMatch:
        point, content = subject.point, subject.content
        assert point is not None  # noqa: S101 - it is a checkpoint
        listed: list[SearchHit] = []
        spans = hits(self._query, subject)
        if content is not None:
            order = sorted(spans, key=lambda number: (_rank(content.texts[number]), number))
            listed = [_hit(content.texts[i], content.fold(i).shown, spans[i]) for i in order[:_MAX_HITS]]
        time = to_datetime(point.time)
        more = len(spans) - len(listed)
        return SearchMatch(subject.thread, point.id, time, point.depth, point.branch, point.kind, tuple(listed), more)

    async def points(self, line: Line, before: str = "") -> tuple[list[StepRef], str]:
        """Match the next checkpoints of a thread before an id. Returns the matches, and where the next page starts."""
        subjects, following = await self.match_page(line, before)
        return [subject.point for subject in subjects if subject.point is not None], following

    # Threads --------------------------------------------------------------------------------------------------

    async def threads(self, prefix: str, after: str, limit: int) -> tuple[list[LineSummary], str | None]:
        """Return the threads that match, ordered by name, with a prefix and after a name; and where to go on, if
        the limit of what is read was reached."""
        own_prefix = thread_prefix(self._query)
        if not (prefix.startswith(own_prefix) or own_prefix.startswith(prefix)):
            return [], None
        longest = max(prefix, own_prefix, key=len)
        terms = await self.field_terms()
        if terms:
            return await self._indexed_threads(terms, longest, after, limit), None
        results: list[LineSummary] = []
        while True:
            page = await self._engine.lines.list_lines(self._tenant, self._kind, longest, after, _THREAD_PAGE)
            for thread in await self._visible_lines(page):
                if await self.matches_thread(thread):
                    results.append(thread)
                self.examined += 1
                if len(results) >= limit:
                    return results, None
                if self.is_enough():
                    return results, thread.line.name
            if len(page) < _THREAD_PAGE:
                return results, None
            after = page[-1].line.name
            sizes = await self._known_sizes() if self.asks_of_threads else None
            if sizes is not None:
                more, read_to = await self._of_sizes(sizes, longest, after, limit - len(results))
                return results + more, read_to

    async def _known_sizes(self) -> Mapping[str, LineSummary] | None:
        """Return the sizes of threads by name; None if they are too many to know, or it is not threads that are asked
        for."""
        return await self._engine.sizes.known(self._tenant) if self._kind == "thread" else None

    async def _of_sizes(
        self, sizes: Mapping[str, LineSummary], prefix: str, after: str, limit: int
    ) -> tuple[list[LineSummary], str | None]:
        """Return matching threads by name, after a name, of those that their sizes do not exclude; and where to go
        on."""
        names = sorted(name for name in sizes if name > after and name.startswith(prefix))
        left = (name for name in names if self.may_match(sizes[name]))
        results: list[LineSummary] = []
        while len(results) < limit and (some := dict.fromkeys(islice(left, _THREAD_PAGE), False)):
            results += await self.matching_candidates(some)
            if len(results) < limit and self.is_enough():
                return results, next(reversed(some))
        return results[:limit], None

    def may_match(self, summary: LineSummary) -> bool:
        """Return whether a thread may match, as far as its name, times and sizes tell."""
        return simplify(self._query, QuerySubject(summary.line.name, ThreadContext(summary))) is not False

    async def field_terms(self) -> list[FieldTerm]:
        """Return terms for the index of fields that every matching thread satisfies; none if it cannot help."""
        return (
            await self._engine.fields.terms(self._tenant, field_filters(self._query)) if self._kind == "thread" else []
        )

    async def _indexed_threads(
        self, terms: Sequence[FieldTerm], prefix: str, after: str, limit: int
    ) -> list[LineSummary]:
        """Return matching threads by name, from the index of fields."""
        results: list[LineSummary] = []
        start = max(prefix, after + "\0" if after else "")
        while True:
            names, more = await self._engine.fields.threads(self._tenant, terms, start, max(limit - len(results), 8))
            own = {name: certain for name, certain in names.items() if name.startswith(prefix)}
            results += await self.matching_candidates(own)
            if not more or len(results) >= limit or len(own) < len(names):
                return results[:limit]
            start = next(reversed(names)) + "\0"

    async def matching_candidates(self, names: Mapping[str, bool]) -> list[LineSummary]:
        """Return the threads that match of those that the index names, given which certainly have what it was asked
        for."""
        lines = [Line(self._tenant, name) for name in names]
        found = await self._engine.lines.list_named(await filter_visible(self._visible, lines, lambda line: line))
        self.examined += len(names)
        return [each for each in found if await self._matches_candidate(each, names[each.line.name])]

    async def _matches_candidate(self, summary: LineSummary, certain: bool) -> bool:
        """Return whether a thread matches, by its latest checkpoint if that suffices."""
        name, context = summary.line.name, ThreadContext(summary)
        left = simplify(self._query, QuerySubject(name, context))
        if isinstance(left, bool):
            return left
        if certain and summary.branches == 1 and not isinstance(left, And) and field_filters(left):
            return True
        if summary.latest is not None and not any(isinstance(each, Not) for each in walk(left)):
            try:
                if matches(left, QuerySubject(name, context, summary.latest)):
                    return True
            except CorruptError:
                pass
        return await self.matches_thread(summary)

    async def matches_thread(self, summary: LineSummary, query: Query | None = None) -> bool:
        """Whether a thread matches, by itself or by its checkpoints.

        Conditions on checkpoints that are combined with AND must match the same one; negated ones, none.
        """
        query = self._query if query is None else query
        left = simplify(query, QuerySubject(summary.line.name, ThreadContext(summary)))
        if isinstance(left, bool):
            return left
        if isinstance(left, Not):
            return not await self.matches_thread(summary, left.query)
        if isinstance(left, Or):
            for part in left.queries:
                if await self.matches_thread(summary, part):
                    return True
            return False
        parts = left.queries if isinstance(left, And) else (left,)
        together = [part for part in parts if not any(isinstance(inner, Not) for inner in walk(part))]
        for part in parts:
            if part not in together and not await self.matches_thread(summary, part):
                return False
        return not together or await self._exists(summary, every(together))

    async def _exists(self, summary: LineSummary, query: Query) -> bool:
        """Return whether a checkpoint of a thread matches."""
        here = every([Field("thread", "=", summary.line.name), query])
        run = SearchRun(self._engine, self._tenant, here, kind=line_kind(summary.line.name))
        try:
            if await run.has_index():
                return bool(await run.page(1))
            subjects, before = await run.match_page(summary.line, "", summary)
            while before and not subjects:
                subjects, before = await run.match_page(summary.line, before, summary)
            return bool(subjects)
        except CorruptError:
            return False
        finally:
            self.examined += run.examined


_HINT = "Pass SearchPage.next with the same query"


def _by_id(refs: Sequence[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    results: dict[str, list[str]] = {}
    for name, id in refs:
        results.setdefault(id, []).append(name)
    return results


def _rank(text: ExtractedText) -> int:
    """Order hits: text of messages first, then other text, and last other fields of messages, such as ids."""
    if text.said or not text.role:
        return 0 if text.said else 1
    return 1 if any(part in ("tool_calls", "content", "name") for part in text.path[1:]) else 2


def _hit(text: ExtractedText, normalized: str, spans: Spans) -> SearchHit:
    """Build a hit with an excerpt around its first span."""
    spans = sorted(set(spans))
    start = max(0, spans[0][0] - _BEFORE)
    end = max(spans[0][1], min(len(normalized), start + _EXCERPT))
    before, after = "…" * (start > 0), "…" * (end < len(normalized))
    excerpt = before + _BLANK.sub(" ", normalized[start:end]) + after
    shift = len(before) - start
    inside = [(low + shift, min(high, end) + shift) for low, high in spans if low < end]
    return SearchHit(path_text(text.path), text.role, excerpt, tuple(join_spans(inside)))
