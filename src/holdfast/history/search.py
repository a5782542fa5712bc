"""Searching a store: checkpoints, and threads, that match a query.

A query that asks for text is answered by the index of words, where the store keeps one: it names candidates, and each
is checked against what its step brought. Without an index, or without text, threads are gone through, the one that was
changed last first, and their checkpoints from the latest on. Steps are opened only where their rows leave it open
whether they match.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import LINES, STEPS, Key
from holdfast.engine.engine import Engine
from holdfast.engine.lines import MAIN, NAME, TAG, LineSummary
from holdfast.engine.model.packed_state import unpack_name
from holdfast.engine.namespaces import LineKind, line_kind
from holdfast.engine.projection.rows import is_hidden
from holdfast.engine.row_format import Line, StepRef, check_name, info_of, open_step
from holdfast.engine.text_index.extract import ExtractedText
from holdfast.engine.text_index.indexer import MANY, ON, Progress, step_words
from holdfast.engine.types import to_datetime
from holdfast.errors import ConflictError, CorruptError, InvalidError, NotFoundError
from holdfast.history.paths import path_text
from holdfast.history.query import And, Field, Not, Or, Query, every, parse, walk
from holdfast.history.query_eval import QuerySubject, Spans, StepContent, ThreadContext, hits, matches, reduced
from holdfast.history.query_plan import WordFilter, needs, one_thread, thread_prefix

INDEX, SCAN = "index", "scan"
"""How a page was found."""

_PAGE = 128
"""How many checkpoints are looked at in one read."""

_THREADS = 500
"""How many threads are looked at in one read."""

_HITS = 10
"""How many places of one checkpoint are shown."""

_EXCERPT = 160
"""About how many characters of a text are shown around a hit."""

_BEFORE = 40
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]")


class SearchHit(NamedTuple):
    """A place where text was found: which, who says it if it is in a message, some of the text there, and the parts of
    that which were asked for."""

    path: str
    role: str
    excerpt: str
    spans: tuple[tuple[int, int], ...]


class SearchMatch(NamedTuple):
    """A checkpoint that matches, and where in it; what messages say comes first. `more` hits are not shown."""

    thread: str
    id: str
    time: datetime
    step: int
    branch: int
    kind: str
    hits: tuple[SearchHit, ...] = ()
    more: int = 0


class SearchPage(NamedTuple):
    """Some of what matches.

    `next` is where the next page starts, to be given as `after`; None if this is the last. `how` it was found: `index`
    or `scan`. `looked` counts the checkpoints that were looked at, `unreadable` those that are damaged.
    """

    matches: list[SearchMatch]
    next: str | None
    how: str
    looked: int
    unreadable: int = 0


def prepare(engine: Engine, tenant: str, query: str, kind: LineKind | None = "thread") -> SearchRun:
    """Parse a query over the threads of a tenant. `InvalidError` shows where it is wrong."""
    return SearchRun(engine, tenant, parse(query), kind=kind)


async def search(
    engine: Engine,
    tenant: str,
    query: str | Query,
    *,
    limit: int = 20,
    after: str | None = None,
    progress: Progress | None = None,
    kind: LineKind | None = "thread",
) -> SearchPage:
    """Return a page of the checkpoints that match a query: of threads, of another kind of lines, or of all (None)."""
    asked = parse(query) if isinstance(query, str) else query
    return await SearchRun(engine, tenant, asked, progress, kind).page(limit, after)


class SearchRun:
    """One query, asked of one tenant's threads."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        query: Query,
        progress: Progress | None = None,
        kind: LineKind | None = "thread",
    ) -> None:
        self._engine = engine
        self._backend = engine.context.backend
        self._tenant = tenant
        self._query = query
        self._kind = kind
        self._progress = progress
        names = {each.name for each in walk(query) if isinstance(each, Field)}
        self._wants_summary = not names.isdisjoint(("steps", "branches", "created", "updated"))
        self._wants_branches = "branch" in names
        self._wants_tags = not names.isdisjoint(("tag", "label"))
        self._wants_size = "size" in names
        self._contexts: dict[Line, ThreadContext] = {}
        self.looked = 0
        self.unreadable = 0

    # Pages ----------------------------------------------------------------------------------------------------

    async def page(self, limit: int, after: str | None = None) -> SearchPage:
        """A page of what matches, from the start or after another one."""
        how, start = self._start(after)
        indexed = (
            how != SCAN
            and self._kind == "thread"
            and needs(self._query) is not None
            and await self._engine.indexer.state(self._tenant) == ON
        )
        if how == INDEX and not indexed:
            raise ConflictError(
                "the index was removed since the page before this one", hint="Search again from the start"
            )
        how = how or (INDEX if indexed else SCAN)
        found, place = await (self._by_index(limit, start) if how == INDEX else self._by_scan(limit, start))
        following = None if place is None else self._cursor(how, place)
        return SearchPage(found, following, how, self.looked, self.unreadable)

    def _cursor(self, how: str, place: Sequence[Any]) -> str:
        data = json.dumps([how, self._mark(), *place], ensure_ascii=False, separators=(",", ":"))
        return base64.urlsafe_b64encode(data.encode()).decode().rstrip("=")

    def _start(self, after: str | None) -> tuple[str, list[Any]]:
        if after is None:
            return "", []
        try:
            how, mark, *place = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
        except (ValueError, TypeError):
            raise InvalidError("that is no place to go on from", where=repr(after)[:80], hint=_NEXT) from None
        if mark != self._mark() or how not in (INDEX, SCAN) or len(place) != 3:
            raise InvalidError("that is a place in the answer to another query", where=repr(after)[:80], hint=_NEXT)
        return how, place

    def _mark(self) -> str:
        return hashlib.sha256(f"{self._tenant}\0{self._kind or 'all'}\0{self._query}".encode()).hexdigest()[:16]

    # With the index -------------------------------------------------------------------------------------------

    async def _by_index(self, limit: int, start: list[Any]) -> tuple[list[SearchMatch], list[Any] | None]:
        asked = [*(needs(self._query) or ()), WordFilter(frozenset({MANY}))]
        number, place, last = start or (0, None, None)
        found: list[SearchMatch] = []
        only = one_thread(self._query)
        while number < len(asked):
            words, prefixes = asked[number]
            page = await self._backend.match(
                self._tenant, sorted(words), prefixes=sorted(prefixes), line=only, after=place, limit=_PAGE
            )
            keys = page.keys
            if last is not None and tuple(last) in keys:
                keys = keys[keys.index(tuple(last)) + 1 :]  # new ones may have come before it
            while keys:
                # As few at first as will do, if all of them match.
                some, keys = keys[: max(limit - len(found), 8)], keys[max(limit - len(found), 8) :]
                for key, match in await self._checked(some, asked[:number]):
                    found.append(match)
                    if len(found) == limit:
                        return found, [number, place, list(key)]
            place, last = page.next, None
            if place is None:
                number += 1
        return found, None

    async def _checked(self, keys: Sequence[Key], before: Sequence[WordFilter]) -> list[tuple[Key, SearchMatch]]:
        """Those of some candidates that match, and were not found before for other words."""
        rows, lines = await self._backend.read([Get(STEPS, keys), Get(LINES, sorted({key[:2] for key in keys}))])
        by_key = {row.key: row for row in rows}
        pruned = {row.key: bool(info_of(row).pruned) for row in lines}
        self.looked += len(keys)
        found: list[tuple[Key, QuerySubject]] = []
        for key in keys:
            row = by_key.get(key)
            if row is None or StepRef.of(row).pruned or key[:2] not in pruned:
                continue
            subject = await self._tried(Line(str(key[0]), str(key[1])), row, pruned[key[:2]])
            if subject is None or subject.brought is None:
                continue
            words = step_words(subject.brought.texts) if before else set()
            if not any(need.met(words) for need in before):
                found.append((key, subject))
        return [(key, self._match(subject)) for key, subject in await self._latest(found)]

    async def _latest(self, found: list[tuple[Key, QuerySubject]]) -> list[tuple[Key, QuerySubject]]:
        """Those whose id no later revision has."""
        scans = []
        for key, subject in found:
            assert subject.point is not None  # noqa: S101 - they are checkpoints
            scans.append(Scan(STEPS, (*key[:2], subject.point.id), reverse=True, limit=1, by="id", bodies=False))
        answers = await self._backend.read(scans) if scans else []
        return [each for each, rows in zip(found, answers, strict=True) if rows and rows[0].key == each[0]]

    # Without --------------------------------------------------------------------------------------------------

    async def _by_scan(self, limit: int, start: list[Any]) -> tuple[list[SearchMatch], list[Any] | None]:
        threads = await self._threads()
        before, found = "", list[SearchMatch]()
        if start:
            updated, name, before = start
            rest = [each for each in threads if (-each.updated, each.line.name) > (-updated, name)]
            # It may have been changed since, and is gone on with all the same.
            threads = [*(each for each in threads if each.line.name == name), *rest]
        for done, summary in enumerate(threads, 1):
            line = summary.line
            resumed = bool(start) and line.name == start[1]
            at = before if resumed else ""
            while True:
                some, at = await self.some_of(line, at, summary)
                for subject in some:
                    found.append(self._match(subject))
                    if len(found) == limit:
                        assert subject.point is not None  # noqa: S101 - they are checkpoints
                        updated = start[0] if resumed else summary.updated
                        return found, [updated, line.name, subject.point.id]
                if not at:
                    break
            if self._progress is not None:
                self._progress(done, len(threads), line.name)
        return found, None

    async def _threads(self) -> list[LineSummary]:
        """The threads that may have something, the one that was changed last first."""
        lines = self._engine.lines
        only = one_thread(self._query)
        if only is not None and self._kind not in (None, line_kind(only)):
            return []
        if only is not None:
            try:
                return [await lines.summary(Line(self._tenant, check_name(only, "name of a thread")))]
            except NotFoundError:
                return []
        found: list[LineSummary] = []
        after, prefix = "", thread_prefix(self._query)
        while True:
            some = await lines.list_lines(self._tenant, self._kind, prefix, after, _THREADS)
            found += (each for each in some if self._may_have(each))
            if len(some) < _THREADS:
                break
            after = some[-1].line.name
        return sorted(found, key=lambda each: (-each.updated, each.line.name))

    def _may_have(self, summary: LineSummary) -> bool:
        """Whether a thread may have checkpoints that match. Its size is not theirs."""
        return (
            self._wants_size
            or reduced(self._query, QuerySubject(summary.line.name, ThreadContext(summary))) is not False
        )

    async def some_of(
        self, line: Line, before: str = "", summary: LineSummary | None = None
    ) -> tuple[list[QuerySubject], str]:
        """Those of the next checkpoints of a thread, from an id back, that match; and where to go on, if anywhere."""
        lines = self._engine.lines
        (points,) = await lines.pages([(line, before)], _PAGE)
        if not points:
            return [], ""
        self.looked += len(points)
        context = await self._context(line, summary)
        open_ones = []
        found: dict[str, QuerySubject] = {}
        for point in points:
            subject = QuerySubject(line.name, context, point)
            try:
                answer = matches(self._query, subject)
            except CorruptError:
                self.unreadable += 1
                continue
            if answer:
                found[point.id] = subject
            elif answer is None:
                open_ones.append(point)
        if open_ones:
            rows, infos = await self._backend.read(
                [Get(STEPS, [(*line, *point[:2]) for point in open_ones]), Get(LINES, [tuple(line)])]
            )
            pruned = bool(infos and info_of(infos[0]).pruned)
            for row in rows:
                tried = await self._tried(line, row, pruned)
                if tried is not None:
                    found[StepRef.of(row).id] = tried
        return [found[point.id] for point in points if point.id in found], points[-1].id

    # One checkpoint -------------------------------------------------------------------------------------------

    async def fitting(self, line: Line, rows: Sequence[Row]) -> list[bool]:
        """Of some checkpoints of a thread, of which these are the rows, whether each matches."""
        (infos,) = await self._backend.read([Get(LINES, [tuple(line)])])
        pruned = bool(infos and info_of(infos[0]).pruned)
        return [await self._fits(line, row, pruned) for row in rows]

    async def _fits(self, line: Line, row: Row, pruned: bool) -> bool:
        try:
            known = matches(self._query, QuerySubject(line.name, await self._context(line), StepRef.of(row)))
        except CorruptError:
            self.unreadable += 1
            return False
        return await self._tried(line, row, pruned) is not None if known is None else known

    async def _tried(self, line: Line, row: Row, pruned: bool) -> QuerySubject | None:
        """A checkpoint, with all that it brought, if it matches."""
        point = StepRef.of(row)
        if point.pruned:
            return None
        subject = QuerySubject(line.name, await self._context(line), point)
        try:
            if matches(self._query, subject) is False:
                return None
            subject.brought = await self._engine.lines.read_step(line, point, partial(self._brought, line, row, pruned))
            return subject if matches(self._query, subject) else None
        except NotFoundError:
            return None  # deleted or pruned meanwhile
        except CorruptError:
            self.unreadable += 1
            return None

    async def _brought(self, line: Line, row: Row, pruned: bool, point: StepRef) -> StepContent:
        if StepRef.of(row) != point:  # the line was rewritten since
            (rows,) = await self._backend.read([Get(STEPS, [(*line, *point[:2])])])
            row, pruned = rows[0] if rows else row, True
        step = open_step(line, row, self._engine.context.max_bytes)
        texts = await self._engine.indexer.brought(line, point, step, pruned=pruned)
        keys = (*(key for key, _ in step.edit.put), *step.edit.removed)
        channels = [name for name in map(unpack_name, keys) if not is_hidden(name)]
        return StepContent(channels, texts, await self._size(line, point) if self._wants_size else None)

    async def _size(self, line: Line, point: StepRef) -> int:
        """How many bytes a step takes: rows say how many there are up to it, along its branch."""
        if not point.seq:
            return point.size
        (rows,) = await self._backend.read([Scan(STEPS, (*line, point.branch, point.seq - 1), bodies=False)])
        return point.size - (StepRef.of(rows[0]).size if rows else 0)

    async def _context(self, line: Line, summary: LineSummary | None = None) -> ThreadContext:
        if line in self._contexts:
            return self._contexts[line]
        lines = self._engine.lines
        if self._wants_summary and summary is None:
            summary = await lines.summary(line)
        branches: dict[int, str] | None = None
        if self._wants_branches:
            others = {each.branch: each.name or str(each.branch) for each in await lines.branches(line)}
            branches = {0: "0" if MAIN.name in others.values() else MAIN.name, **others}
        tags = _by_id(await lines.refs(line, NAME)) if self._wants_tags else None
        labels = _by_id(await lines.refs(line, TAG)) if self._wants_tags else None
        self._contexts[line] = ThreadContext(summary, branches, tags, labels)
        return self._contexts[line]

    def _match(self, subject: QuerySubject) -> SearchMatch:
        point, brought = subject.point, subject.brought
        assert point is not None  # noqa: S101 - it is a checkpoint
        shown: list[SearchHit] = []
        found = hits(self._query, subject)
        if brought is not None:
            order = sorted(found, key=lambda number: (_rank(brought.texts[number]), number))
            shown = [_hit(brought.texts[each], brought.fold(each).shown, found[each]) for each in order[:_HITS]]
        time = to_datetime(point.time)
        more = len(found) - len(shown)
        return SearchMatch(subject.thread, point.id, time, point.depth, point.branch, point.kind, tuple(shown), more)

    async def points(self, line: Line, before: str = "") -> tuple[list[StepRef], str]:
        """Those of the next checkpoints of a thread, from an id back, that match; and where to go on, if anywhere."""
        some, following = await self.some_of(line, before)
        return [each.point for each in some if each.point is not None], following

    # Threads --------------------------------------------------------------------------------------------------

    async def threads(self, prefix: str, after: str, limit: int) -> list[LineSummary]:
        """The threads that match, by name: those that start with a prefix, those after a name."""
        asked = thread_prefix(self._query)
        if not (prefix.startswith(asked) or asked.startswith(prefix)):
            return []
        found: list[LineSummary] = []
        while True:
            some = await self._engine.lines.list_lines(
                self._tenant, self._kind, max(prefix, asked, key=len), after, _THREADS
            )
            for each in some:
                if len(found) < limit and await self.has(each):
                    found.append(each)
            if len(some) < _THREADS or len(found) >= limit:
                return found
            after = some[-1].line.name

    async def has(self, summary: LineSummary) -> bool:
        """Whether a thread matches: it does by what it is as a whole, and by its checkpoints.

        Side by side, conditions on checkpoints are met by one and the same; what is negated, by none.
        """
        return await self._has(summary, self._query)

    async def _has(self, summary: LineSummary, query: Query) -> bool:
        left = reduced(query, QuerySubject(summary.line.name, ThreadContext(summary)))
        if isinstance(left, bool):
            return left
        if isinstance(left, Not):
            return not await self._has(summary, left.query)
        if isinstance(left, Or):
            for each in left.queries:
                if await self._has(summary, each):
                    return True
            return False
        parts = left.queries if isinstance(left, And) else (left,)
        together = [each for each in parts if not any(isinstance(inner, Not) for inner in walk(each))]
        for each in parts:
            if each not in together and not await self._has(summary, each):
                return False
        return not together or await self._exists(summary.line, every(together))

    async def _exists(self, line: Line, query: Query) -> bool:
        here = every([Field("thread", "=", line.name), query])
        page = await SearchRun(self._engine, self._tenant, here, kind=line_kind(line.name)).page(1)
        return bool(page.matches)


_NEXT = "Give what Page.next says, with the same query"


def _by_id(refs: Sequence[tuple[str, str]]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name, id in refs:
        found.setdefault(id, []).append(name)
    return found


def _rank(text: ExtractedText) -> int:
    """What comes first: what messages say, then other text of the user's, and last what else messages are kept with,
    such as ids and what the model's provider tells."""
    if text.said or not text.role:
        return 0 if text.said else 1
    return 1 if any(part in ("tool_calls", "content", "name") for part in text.path[1:]) else 2


def _hit(text: ExtractedText, shown: str, spans: Spans) -> SearchHit:
    """A hit with some of the text around its first parts."""
    spans = sorted(set(spans))
    start = max(0, spans[0][0] - _BEFORE)
    end = max(spans[0][1], min(len(shown), start + _EXCERPT))
    before, after = "…" * (start > 0), "…" * (end < len(shown))
    excerpt = before + _BLANK.sub(" ", shown[start:end]) + after
    shift = len(before) - start
    inside = [(low + shift, min(high, end) + shift) for low, high in spans if low < end]
    return SearchHit(path_text(text.path), text.role, excerpt, tuple(_merged(inside)))


def _merged(spans: Spans) -> Spans:
    merged: Spans = []
    for low, high in spans:
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged
