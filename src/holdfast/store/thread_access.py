"""Access to threads through the guard of a handle: operations say which rights they need, and run only if the guard
gives them; lists and searches have the threads that may be read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from holdfast.backends.config import price_settings
from holdfast.backends.runtime.drivers import Part, operation
from holdfast.engine import validation
from holdfast.engine.guard import (
    OWNER,
    Authority,
    Visible,
    acting,
    both_preconditions,
    current_authority,
    filter_visible,
)
from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import LineKind, is_thread, line_kind, parse_kind, short_name
from holdfast.engine.pages import Page, paged
from holdfast.engine.row_format import Line, LineSummary, check_name
from holdfast.engine.thread_status import IDLE, ThreadState, has_status, parse_status
from holdfast.engine.types import SCAN_LIMIT, ThreadInfo
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.time_parser import Time

if TYPE_CHECKING:
    from holdfast.agents.api.agents import Agents, AsyncAgents
    from holdfast.engine.engine import Engine
    from holdfast.engine.field_index import FieldTerm
    from holdfast.engine.thread_sizes import NumberOrder, ThreadOrder, ThreadPosition
    from holdfast.engine.types import Progress
    from holdfast.history.search import SearchPage, SearchRun
    from holdfast.history.usage import Usage, UsageKey
    from holdfast.security.access.policy import Right
    from holdfast.store.timeline.api import AsyncTimeline, Timeline

_FEW = 512
"""Up to how many threads of a filter are read and sorted, where a list is not by name."""

_WALKED = 200
"""After so many of the last updated threads, those that a filter by sizes excludes are left out before they are read.
"""

_FEWEST = 8
"""How many threads are read at a time at least, where some may not match."""

_NUMBERS = ("updated", "steps", "branches", "size")

_IsLast: TypeAlias = "Callable[[ThreadPosition, LineSummary], Awaitable[bool]]"

Operation = TypeVar("Operation", bound=Callable[..., Coroutine[Any, Any, Any]])


def needs(*rights: Right, creates: bool = False, removes: bool = False) -> Callable[[Operation], Operation]:
    """Return a decorator of operations of a thread's handle: they run if the guard gives these rights to it. Those that
    are marked create the thread if there is none, or remove it."""

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        async def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._handle.guard.actor and current_authority() is OWNER:
                return await operation(self, *args, **kwargs)
            async with thread_access(self._handle, self._line, rights, creates=creates, removes=removes):
                await _require_deletion(self._handle, self._line, kwargs, creates=creates)
                return await operation(self, *args, **kwargs)

        guarded.rights = rights  # type: ignore[attr-defined]  # for the declaration of the operation
        return cast(Operation, guarded)

    return decorate


def on_thread(
    *rights: Right, creates: bool = False, removes: bool = False, missing: Callable[[], object] | None = None
) -> Callable[[Operation], Operation]:
    """Return a decorator of operations that take the name of a thread: they run if the guard gives these rights to it.
    For an identity without them, `missing` returns what they return if there is no such thread."""

    def decorate(operation: Operation) -> Operation:
        @wraps(operation)
        async def guarded(self: Any, thread: str, *args: Any, **kwargs: Any) -> Any:
            if not self._handle.guard.actor and current_authority() is OWNER:
                return await operation(self, thread, *args, **kwargs)
            try:
                line = self._line(thread)
                async with thread_access(self._handle, line, rights, creates=creates, removes=removes):
                    await _require_deletion(self._handle, line, kwargs, creates=creates)
                    return await operation(self, thread, *args, **kwargs)
            except NotFoundError:
                if missing is None or not self._handle.guard.actor:
                    raise
                return missing()

        return cast(Operation, guarded)

    return decorate


async def _require_deletion(handle: StoreHandle, line: Line, options: Mapping[str, Any], *, creates: bool) -> None:
    """Require the right to delete a thread of a caller who sets its TTL."""
    if options.get("ttl") is not None:
        await handle.guard.allow_thread("delete", line, creates=creates)


@asynccontextmanager
async def thread_access(
    handle: StoreHandle, line: Line, rights: Iterable[Right], *, creates: bool = False, removes: bool = False
) -> AsyncIterator[None]:
    """Require rights to a thread, and act under them. What is read is checked and recorded again at the end: a right
    may be revoked meanwhile."""
    guard, required = handle.guard, tuple(rights)
    preconditions = current_authority().preconditions if current_authority().actor == guard.actor else None
    for right in required:
        permit = await guard.allow_thread(right, line, creates=creates, removes=removes)
        preconditions = both_preconditions(preconditions, permit.guards)
    authority = Authority(guard.actor, preconditions) if guard.actor else OWNER
    with acting(authority):
        yield
    if "read" in required:
        await guard.saw_thread(line)


class StoreChanges(msgspec.Struct, frozen=True):
    """Changes in a store, in any order: the names of threads, as `threads` lists them, the ids of agents, and
    scopes."""

    threads: list[str]
    agents: list[str]
    scopes: list[Scope]
    token: str
    """What to ask with the next time. It is valid in any process, also after the store was opened again."""
    complete: bool
    """Whether this is all. If not, the store does not know any more what changed since, and anything may have."""


# Lists -----------------------------------------------------------------------------------------------------------


class ThreadListing:
    """Lists and searches threads. A store and the view of an identity have these as methods."""

    _handle: StoreHandle

    agents: Part[Agents, AsyncAgents] = Part(
        "holdfast.agents.api.agents.Agents", "The agents of a store. See `holdfast.agents`."
    )
    timeline: Part[Timeline, AsyncTimeline] = Part(
        "holdfast.store.timeline.api.Timeline",
        "What happened in the store, on one axis of time, as far as it may be read.",
        lambda kind, store: kind(store._handle, store._flush_audit),
    )

    async def _flush_audit(self) -> None:
        """Write what the audit has collected, where it is collected."""

    @operation(may_lag=True)
    @paged
    async def threads(
        self,
        *,
        prefix: str = "",
        where: str | None = None,
        status: ThreadState | None = None,
        kind: LineKind | Literal["all"] = "thread",
        order: ThreadOrder = "name",
        preview: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        scan_limit: int | None = None,
    ) -> Page[ThreadInfo]:
        """List the threads of this tenant: a page of them, by name; or by another `order`, `"updated"`, `"steps"`,
        `"branches"` or `"size"`, the latest or largest first.

        Only those that start with a prefix; those that match a query, `where` (see `search`); those with a `status`,
        such as `"waiting"` (see `Thread.status`), which an index finds, except for idle ones. A filter by an entry of
        metadata, as in `where="meta.user=alice"`, finds them by an index, too; see the guide "Search". Agents, scopes,
        sessions and the store's own records are lines of steps as threads are: `kind` lists those. With `preview`, each
        has its last message and its user; not for an identity, whose reads of threads are recorded.

        A page of a query that no index answers ends after `scan_limit` threads and checkpoints were read, even if it is
        empty: its `next` goes on there.
        """
        check_name(prefix, "start of a name")
        self._handle.engine.context.rows.check_prefix(prefix)
        after = validation.cursor_text(cursor)
        count = validation.require_count(limit, "limit")
        most = _scan_limit(scan_limit)
        of_kind = _checked_kind(kind)
        engine, tenant = self._handle.engine, self._handle.tenant
        visible = await self._visible(of_kind)
        if status is not None:
            status = parse_status(status)
            if of_kind != "thread":
                raise InvalidError("only threads have a status, and no other kind of lines", hint="Leave out kind")
        if order not in ("name", *_NUMBERS):
            listed_by = ", ".join(("name", *_NUMBERS[:-1]))
            raise InvalidError(f"threads are listed by {listed_by} or {_NUMBERS[-1]}, not {ascii(order)[:80]}")
        if order != "name":
            if of_kind != "thread":
                raise InvalidError(
                    "only threads are listed in another order than by name", hint="Leave out kind or order"
                )
            page = await self._list_in_order(order, prefix, where, status, after, count, visible, most)
            return await self._previewed(page) if preview else page
        read_to = None
        if status is not None:
            listed = await self._list_by_status(status, prefix, where, after, count + 1, visible)
        elif where is None:
            listed = await self._described(await self._list(of_kind, prefix, after, count + 1, visible))
        else:
            from holdfast.history.search import prepare

            search = prepare(engine, tenant, where, of_kind, visible, most)
            matching, read_to = await search.threads(prefix, after, count + 1)
            listed = await self._described(matching)
        page = Page.cut(listed, count, lambda info: info.thread)
        page.next = page.next or read_to
        return await self._previewed(page) if preview else page

    @operation(may_lag=True)
    async def search(
        self,
        query: str,
        *,
        kind: LineKind | Literal["all"] = "thread",
        limit: int = 20,
        cursor: str | None = None,
        scan_limit: int | None = SCAN_LIMIT,
        progress: Progress | None = None,
    ) -> SearchPage:
        """Search for checkpoints that match a query, such as `refund label:release time>2h`: a page of them.

        The guide "Search" has the syntax. A text matches the checkpoint that added it, and the match shows where. A
        query with a syntax error raises `InvalidError`, which shows the position. With `kind`, agents, scopes or
        sessions are searched, which are not in the index, or all.

        With an index of words (see `maintenance.build_index`) text is found at once. Otherwise the checkpoints are
        read, from the latest on, until there are `limit` matches, or `scan_limit` checkpoints were read: then the page
        is `stopped`, and its `next` resumes there. With `scan_limit=None` all are read. `progress(done, total, thread)`
        is called meanwhile.
        """
        from holdfast.history.search import search

        count, of_kind = validation.require_count(limit, "limit"), _checked_kind(kind)
        return await search(
            self._handle.engine,
            self._handle.tenant,
            query,
            limit=count,
            after=cursor,
            scan_limit=_scan_limit(scan_limit),
            progress=progress,
            kind=of_kind,
            visible=await self._visible(of_kind),
        )

    @operation(may_lag=True)
    async def usage(
        self,
        *,
        by: UsageKey = "day",
        where: str = "",
        since: Time | None = None,
        until: Time | None = None,
        prices: Mapping[str, Any] | None = None,
        scan_limit: int | None = SCAN_LIMIT,
        progress: Progress | None = None,
    ) -> Usage:
        """Sum the tokens that models took, as the messages in threads say, and what they cost: by day, thread, user,
        agent, model or checkpoint.

        A message counts once in its thread, at the checkpoint that added it. Only checkpoints that match `where` (see
        `search`), from `since` and before `until`. `prices` are those of a million tokens by model:
        `{"gpt-5": {"input": 1.25, "cached": 0.125, "output": 10}}`; by default, those of `[prices]` in
        `holdfast.toml`. After `scan_limit` checkpoints the result is `stopped`; with None, all are read.
        """
        from holdfast.history.usage import parse_prices, sum_usage

        if prices is None:
            prices = price_settings()
        return await sum_usage(
            self._handle.engine,
            self._handle.tenant,
            by=by,
            where=where,
            since=since,
            until=until,
            prices=parse_prices(prices),
            scan_limit=_scan_limit(scan_limit),
            progress=progress,
            visible=await self._visible("thread"),
        )

    @operation
    async def changes(self, since: str | None = None) -> StoreChanges:
        """Return the threads, agents and scopes of this tenant that changed since a token, and a new token. Without a
        token, only that: take one first, then read, and then ask with it for what changed since.

        A change is anything: a save, in any process, a tag, a deletion. None is missing, but a name may come again, and
        also without a change. If the answer is not `complete`, anything may have changed: list and read all again. An
        identity gets the threads and scopes that it may read, and no agents; a deleted thread only by a role or grant.
        `DeniedError` if the identity is frozen.
        """
        handle = self._handle
        await handle.guard.require_active("read")
        found = await handle.engine.context.backend.changes(since)
        lines = [Line(*each) for each in found.lines if each[0] == handle.tenant and each[1]]
        threads = [line for line in lines if is_thread(line.name)]
        scopes = [scope for line in lines if (scope := Scope.of_line(line.name)) is not None]
        agents = [short_name(line.name) for line in lines if line_kind(line.name) == "agent"]
        if handle.guard.actor:
            threads = await filter_visible(handle.guard.visible_threads, threads, lambda line: line)
            scopes, agents = await handle.guard.visible(scopes), []
        return StoreChanges([line.name for line in threads], agents, scopes, found.token, found.complete)

    async def _visible(self, kind: LineKind | None) -> Visible | None:
        """Return the filter of lines that may be listed; None for the store's owner. An identity lists threads."""
        if not self._handle.guard.actor:
            return None
        if kind != "thread":
            raise InvalidError("an identity lists threads, and no other kind of lines", hint="Leave out kind")
        return self._handle.guard.visible_threads

    async def _list_in_order(
        self,
        order: NumberOrder,
        prefix: str,
        where: str | None,
        status: ThreadState | None,
        cursor: str,
        limit: int,
        visible: Visible | None,
        scan_limit: int | None,
    ) -> Page[ThreadInfo]:
        """List threads by their last update, or by another number: a page of them."""
        from holdfast.engine.thread_sizes import ThreadPosition, in_order
        from holdfast.history.search import prepare

        engine, tenant = self._handle.engine, self._handle.tenant
        after = ThreadPosition.parse(cursor) if cursor else None
        run = prepare(engine, tenant, where or "", "thread", visible, scan_limit)
        terms = await run.field_terms()
        found: list[tuple[ThreadPosition, ThreadInfo]] = []
        few = await self._few_candidates(terms, status, prefix)
        if few is not None:
            summaries = {ThreadPosition.of(each, order): each for each in await run.matching_candidates(few)}
            for position in in_order(summaries, after):
                info = await described(engine, summaries[position])
                if status in (None, info.status):
                    found.append((position, info))
                    if len(found) > limit:
                        break
            return self._page_in_order(found, limit)
        async for positions, is_last in self._positions(order, run, after, limit + 1):
            by_name = {each.thread: each for each in positions if each.thread.startswith(prefix)}
            names = dict.fromkeys(by_name, False)
            if terms:
                names = await engine.fields.satisfy([Line(tenant, name) for name in by_name], terms)
            left = iter(names.items())
            most = limit if scan_limit is None else min(limit, scan_limit // 4)
            while some := dict(islice(left, max(most + 1 - len(found), _FEWEST))):
                for summary in await run.matching_candidates(some):
                    position = by_name[summary.line.name]
                    if after is None or is_last is None or await is_last(position, summary):
                        info = await described(engine, summary)
                        if status in (None, info.status):
                            found.append((position, info))
                if len(found) > limit:
                    return self._page_in_order(found, limit)
                if run.is_enough():
                    page = self._page_in_order(found, limit)
                    page.next = str(by_name[next(reversed(some))])
                    return page
        return self._page_in_order(found, limit)

    async def _positions(
        self, order: NumberOrder, run: SearchRun, after: ThreadPosition | None, size: int
    ) -> AsyncIterator[tuple[list[ThreadPosition], _IsLast | None]]:
        """Yield the positions of threads that may match, some at a time; with a function that tells whether a thread
        was not changed after its position, where that must be asked."""
        from holdfast.engine.line_walk import UpdateOrder

        engine, tenant = self._handle.engine, self._handle.tenant
        if order == "updated":
            updates, walked = UpdateOrder(engine.context, engine.sizes, tenant), 0
            async for page in updates.pages(after, size):
                yield page, updates.is_last
                walked, after = walked + len(page), page[-1] if page else after
                if run.asks_of_threads and walked >= _WALKED and await engine.sizes.known(tenant) is not None:
                    break
            else:
                return
        may_match = run.may_match if run.asks_of_threads else None
        async for page in engine.sizes.pages(tenant, order, after, may_match):
            yield page, None

    async def _few_candidates(
        self, terms: Sequence[FieldTerm], status: ThreadState | None, prefix: str
    ) -> dict[str, bool] | None:
        """Return the threads that an index finds for a filter, each with whether it certainly has the entries of
        metadata; None if there are many, or no index has them."""
        engine, tenant = self._handle.engine, self._handle.tenant
        if terms:
            names, more = await engine.fields.threads(tenant, terms, prefix, _FEW)
            return None if more else {name: certain for name, certain in names.items() if name.startswith(prefix)}
        if status is None or status == IDLE:
            return None
        found: dict[str, bool] = {}
        async for page in engine.lines.list_by_status(tenant, status, prefix, "", _FEW):
            found |= {each.line.name: False for each in page}
            if len(found) >= _FEW:
                return None
        return found

    @staticmethod
    def _page_in_order(found: Sequence[tuple[ThreadPosition, ThreadInfo]], limit: int) -> Page[ThreadInfo]:
        following = str(found[limit - 1][0]) if 0 < limit < len(found) else None
        return Page([info for _, info in found[:limit]], following)

    async def _list(
        self, kind: LineKind | None, prefix: str, after: str, limit: int, visible: Visible | None
    ) -> list[LineSummary]:
        """List lines by name, those that may be listed."""
        engine, found = self._handle.engine, list[LineSummary]()
        while True:
            page = await engine.lines.list_lines(self._handle.tenant, kind, prefix, after, limit)
            if visible is None:
                return page
            found += await filter_visible(visible, page, lambda each: each.line)
            if len(page) < limit or len(found) >= limit:
                return found[:limit]
            after = page[-1].line.name

    async def _previewed(self, page: Page[ThreadInfo]) -> Page[ThreadInfo]:
        """Add to the threads of a page what their latest steps say."""
        if not self._handle.guard.actor:
            from holdfast.history.step_summary import preview_threads

            page[:] = await preview_threads(self._handle.engine, self._handle.tenant, page)
        return page

    async def _described(self, summaries: Iterable[LineSummary]) -> list[ThreadInfo]:
        return [await described(self._handle.engine, summary) for summary in summaries]

    async def _list_by_status(
        self,
        status: ThreadState,
        prefix: str,
        where: str | None,
        after: str,
        limit: int,
        visible: Visible | None,
    ) -> list[ThreadInfo]:
        """List threads with a status by name, those that may be listed and match a query."""
        from holdfast.history.search import prepare

        engine, tenant, found = self._handle.engine, self._handle.tenant, list[ThreadInfo]()
        search = None if where is None else prepare(engine, tenant, where, "thread", visible)
        if status == IDLE:  # nothing is stored of most of them
            pages = self._all_pages(prefix, after, limit)
        else:
            pages = engine.lines.list_by_status(tenant, status, prefix, after, limit)
        async for page in pages:
            if visible is not None:
                page = await filter_visible(visible, page, lambda each: each.line)
            for summary in page:
                info = await described(engine, summary)
                if info.status == status and (search is None or await search.matches_thread(summary)):
                    found.append(info)
            if len(found) >= limit:
                break
        return found[:limit]

    async def _all_pages(self, prefix: str, after: str, limit: int) -> AsyncIterator[list[LineSummary]]:
        while page := await self._handle.engine.lines.list_threads(self._handle.tenant, prefix, after, limit):
            yield page
            after = page[-1].line.name


async def described(engine: Engine, summary: LineSummary) -> ThreadInfo:
    """Describe a line as a thread. A status that no run of a graph stored is derived."""
    if summary.status is None:
        from holdfast.history.thread_status import read_status

        summary = summary._replace(status=(await read_status(engine, summary.line)).status)
    return ThreadInfo.of(summary)


async def refresh_known(engine: Engine, line: Line) -> None:
    """Store the status of a thread anew, if it is known to have one, after a save that was no run of its graph."""
    if has_status(engine.context, line):
        from holdfast.history.thread_status import refresh_status

        await refresh_status(engine, line)


def _scan_limit(limit: int | None) -> int | None:
    return None if limit is None else max(1, validation.require_count(limit, "scan_limit"))


def _checked_kind(kind: str) -> LineKind | None:
    """Return the kind of lines to list; None for all."""
    return None if kind == "all" else parse_kind(kind)
