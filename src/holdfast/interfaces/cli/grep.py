"""`holdfast grep`: search threads, agents, scopes and sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import KINDS, CliCommand, CliContext, command
from holdfast.interfaces.cli.exit_codes import NOT_FOUND
from holdfast.interfaces.cli.formatting import ago, plural, safe

if TYPE_CHECKING:
    from holdfast.history.search import SearchHit, SearchMatch
    from holdfast.store.store import Store

_PAGE = 50


class GrepCommand(CliCommand):
    """Explains how to write a query that starts with a dash, where no option has that name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = f"{error.format_message()} A query that starts with a dash follows two: holdfast grep -- '-word'"
            raise click.UsageError(what, ctx) from None


@command("grep", cls=GrepCommand)
@click.option("-c", "--count", is_flag=True, help="Show the number of matches in each thread.")
@click.option("-l", "--threads", "only_threads", is_flag=True, help="Show only the names of threads with matches.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show at most N checkpoints.")
@click.option("--kind", type=KINDS, default="all", help="Search only threads, agents, scopes or sessions.")
@click.option("--all", "everything", is_flag=True, help="Search everything, also where there is no index.")
@click.option("--index", is_flag=True, help="Build a text index of the threads first, and keep it up to date.")
@click.option("--drop-index", is_flag=True, help="Remove the text index.")
def grep(
    session: CliContext,
    query: tuple[str, ...],
    count: bool,
    only_threads: bool,
    limit: int | None,
    kind: str,
    everything: bool,
    index: bool,
    drop_index: bool,
) -> None:
    """Find checkpoints that match a QUERY in threads, agents, scopes and sessions, and show where.

    \b
    refund "exact phrase" pref*       text that a checkpoint added
    a OR b, -a, (a b)                 either; not; both
    thread:support-* branch:main      the thread, the branch
    id: tag: label: kind: step>=10    the checkpoint
    time>2h before:monday             its time
    meta.user.plan:pro                its metadata
    channel:messages role:human       the channel and role of the text
    size>1mb steps>100 updated>7d     its size; properties of the thread

    Without an index, a search reads the checkpoints, the latest first, and stops after 10,000 of each kind, with a
    warning; --all goes on.

    Quote the query for the shell. The exit code is 3 if nothing matches.

    holdfast grep 'refund -role:ai time>2h'
    holdfast grep -l '"on its way" thread:support-*'
    """
    if index and drop_index:
        raise click.UsageError("give --index or --drop-index, not both")
    if index or drop_index:
        done = _set_index(session, drop=drop_index)
        if not query:
            if session.json:
                session.emit(done)
            return
    elif not query:
        raise click.UsageError("a query is missing")
    search = _Search(session, " ".join(query), limit, kind, everything=everything)
    if count or only_threads:
        _by_thread(session, search, count=count)
    else:
        _each(session, search)
    search.finish()
    session.exit_if(not search.count, NOT_FOUND)


def _set_index(session: CliContext, *, drop: bool) -> object:
    store = session.open(write=True)
    if drop:
        dropped = store.maintenance.drop_index()
        session.note("The index was removed." if dropped else "There was no index.")
        return {"dropped": dropped}
    with session.progress("Indexing") as progress:
        report = store.maintenance.build_index(progress=progress)
    session.note(f"Indexed {plural(report.threads, 'thread')}; {plural(report.steps, 'step')} were new.")
    return report


class _Search:
    """The matches of a query, page by page: first those in threads, which may be indexed, then in other lines."""

    def __init__(self, session: CliContext, query: str, limit: int | None, kind: str, *, everything: bool) -> None:
        self._session = session
        self._query = query
        self._limit = limit
        self._kinds = ("thread", "agent", "scope", "session") if kind == "all" else (kind,)
        self._store: Store = session.open()
        self._everything = everything
        self._scanned = 0
        self._stopped: list[str] = []
        self._unreadable = 0
        self.count = 0

    def __iter__(self) -> Iterator[SearchMatch]:
        for kind in self._kinds:
            yield from self._matches(kind)

    def _matches(self, kind: Any) -> Iterator[SearchMatch]:
        from holdfast.engine.types import SCAN_LIMIT

        after, scans = None, SCAN_LIMIT
        while self._limit is None or self.count < self._limit:
            left = _PAGE if self._limit is None else min(_PAGE, self._limit - self.count)
            with self._session.progress("Scanning") as progress:
                page = self._store.search(
                    self._query,
                    kind=kind,
                    limit=left,
                    cursor=after,
                    scan_limit=None if self._everything else scans,
                    progress=None if self._session.paging else progress,
                )
            self._unreadable += page.unreadable
            if page.how == "scan":
                scans = max(1, scans - page.examined)
                self._scanned += page.examined if kind == "thread" else 0
            self.count += len(page)
            yield from page
            after = page.next
            if page.stopped:
                self._stopped.append(kind)
            if after is None or page.stopped:
                return

    def finish(self) -> None:
        """Warn of checkpoints that were not or could not be read, and recommend an index where there is none."""
        from holdfast.engine.types import SCAN_LIMIT
        from holdfast.history.query import has_text

        if self._unreadable:
            self._session.warn(
                f"{plural(self._unreadable, 'checkpoint')} could not be read and may match; see holdfast verify"
            )
        if self._stopped:
            kinds = " and ".join(f"{kind}s" for kind in self._stopped)
            self._session.warn(
                f"stopped after {plural(SCAN_LIMIT, 'checkpoint')} without an index; more in {kinds} may match. "
                "To search everything: holdfast grep --all"
            )
        if self._scanned and has_text(self._query):
            index = " To build one: holdfast grep --index" if self._store.status().capabilities.words else ""
            self._session.note(f"Searched {plural(self._scanned, 'checkpoint')} without an index.{index}")


def _by_thread(session: CliContext, search: _Search, *, count: bool) -> None:
    counts: dict[str, int] = {}
    for match in search:
        counts[match.thread] = counts.get(match.thread, 0) + 1
        if not count and counts[match.thread] == 1:
            session.report(_title(match.thread), {"thread": match.thread})
    if count:
        for thread, number in counts.items():
            session.report(f"{_title(thread)}:{number}", {"thread": thread, "count": number})


def _title(thread: str) -> str:
    """Return the name of a thread, or the kind and the name of another line: `agent notes-1`."""
    from holdfast.engine.namespaces import line_kind, short_name

    kind = line_kind(thread)
    return thread if kind == "thread" else f"{kind} {short_name(thread)}"


def _each(session: CliContext, search: _Search) -> None:
    out, first = session.out, True
    for match in search:
        if session.json:
            session.emit(match)
            continue
        if first:
            out.page()
        if out.terminal:
            if not first:
                out.line()
            _heading(session, match)
        else:
            _lines(session, match)
        first = False


def _heading(session: CliContext, match: SearchMatch) -> None:
    """Write a match for a terminal: the checkpoint, and the hits below it."""
    out = session.out
    about = f"step {match.step}, {safe(match.kind)}, {ago(match.time)}"
    out.line(f"{out.style(safe(_title(match.thread)), 'magenta')} {out.style(safe(match.id), 'yellow')} {about}")
    for hit in match.hits:
        who = f" {safe(hit.role)}" if hit.role else ""
        out.line(f"  {out.style(safe(hit.path), 'cyan')}{who}: {_excerpt(session, hit)}")
    if match.more:
        out.line(out.style(f"  and {match.more} more", "dim"))


def _lines(session: CliContext, match: SearchMatch) -> None:
    """Write a match for a pipe: thread, checkpoint, path and text, separated by colons."""
    out = session.out
    start = f"{out.style(safe(_title(match.thread)), 'magenta')}:{out.style(safe(match.id), 'yellow')}"
    for hit in match.hits:
        out.line(f"{start}:{out.style(safe(hit.path), 'cyan')}: {_excerpt(session, hit)}")
    if not match.hits:
        out.line(start)


def _excerpt(session: CliContext, hit: SearchHit) -> str:
    """Highlight the hit in its text."""
    parts, at = [], 0
    for low, high in hit.spans:
        parts += [safe(hit.excerpt[at:low]), session.out.style(safe(hit.excerpt[low:high]), "red", "bold")]
        at = high
    return "".join((*parts, safe(hit.excerpt[at:])))
