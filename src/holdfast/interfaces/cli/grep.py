"""`holdfast grep`: find checkpoints by what they brought, and by what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.base import CliCommand, CliContext, command
from holdfast.interfaces.cli.exit_codes import NOT_FOUND
from holdfast.interfaces.cli.formatting import ago, plural, safe

if TYPE_CHECKING:
    from holdfast.history.search import SearchHit, SearchMatch
    from holdfast.store.store import Store

_PAGE = 50


class GrepCommand(CliCommand):
    """Takes words that start with a dash for options, and says what to do if they are none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            what = f"{error.format_message()} A query that starts with a dash follows two: holdfast grep -- '-word'"
            raise click.UsageError(what, ctx) from None


@command("grep", cls=GrepCommand)
@click.argument("query", nargs=-1)
@click.option("-c", "--count", is_flag=True, help="Show how many checkpoints of each thread match.")
@click.option("-l", "--threads", "only_threads", is_flag=True, help="Show the names of threads that have one.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show so many checkpoints at most.")
@click.option("--index", is_flag=True, help="Make an index of words first, and keep it from then on.")
@click.option("--drop-index", is_flag=True, help="Remove the index of words.")
def grep(
    session: CliContext,
    query: tuple[str, ...],
    count: bool,
    only_threads: bool,
    limit: int | None,
    index: bool,
    drop_index: bool,
) -> None:
    """Find checkpoints that match a QUERY, and show where.

    \b
    refund "exact phrase" pref*       text that a checkpoint brought
    a OR b, -a, (a b)                 one of them; not this one; both
    thread:support-* branch:main      where it is
    id: tag: label: kind: step>=10     which one it is
    time>2h before:monday             when it was
    meta.user.plan:pro                its metadata
    channel:messages role:human       where the text is
    size>1mb steps>100 updated>7d     how large; of the thread

    Quote the query, so that the shell leaves it alone. Ends with code 3 if nothing matches.

    \b
    holdfast grep 'refund -role:ai time>2h'
    holdfast grep -l '"on its way" thread:support-*'
    """
    if index and drop_index:
        raise click.UsageError("--index makes what --drop-index removes: give one of them")
    if index or drop_index:
        done = _set_index(session, drop=drop_index)
        if not query:
            if session.json:
                session.emit(done)
            return
    elif not query:
        raise click.UsageError("what is to be found?")
    search = _Search(session, " ".join(query), limit)
    if count or only_threads:
        _by_thread(session, search, count=count)
    else:
        _each(session, search)
    search.tell()
    if not search.found:
        raise click.exceptions.Exit(NOT_FOUND)


def _set_index(session: CliContext, *, drop: bool) -> object:
    store = session.open(write=True)
    if drop:
        dropped = store.maintenance.drop_index()
        session.note("The index was removed." if dropped else "There was no index.")
        return {"dropped": dropped}
    with session.progress("Indexing") as tell:
        made = store.maintenance.build_index(progress=tell)
    session.note(f"The index has the words of {plural(made.threads, 'thread')}; {plural(made.steps, 'step')} were new.")
    return made


class _Search:
    """What a query finds, page by page."""

    def __init__(self, session: CliContext, query: str, limit: int | None) -> None:
        self._session = session
        self._query = query
        self._limit = limit
        self._store: Store = session.open()
        self._looked = 0
        self._unreadable = 0
        self._scanned = False
        self.found = 0

    def __iter__(self) -> Iterator[SearchMatch]:
        after = None
        while self._limit is None or self.found < self._limit:
            left = _PAGE if self._limit is None else min(_PAGE, self._limit - self.found)
            with self._session.progress("Searching") as tell:
                told = None if self._session.paging else tell
                page = self._store.search(self._query, limit=left, after=after, progress=told)
            self._looked += page.examined
            self._unreadable += page.unreadable
            self._scanned = page.how == "scan"
            self.found += len(page.matches)
            yield from page.matches
            after = page.next
            if after is None:
                return

    def tell(self) -> None:
        """Say how it was found, if that was not quick, and what could not be read."""
        from holdfast.history.query import TextTerm, parse, walk

        if self._unreadable:
            self._session.warn(
                f"{plural(self._unreadable, 'checkpoint')} could not be read and may match; see holdfast verify"
            )
        asks_text = any(isinstance(each, TextTerm) for each in walk(parse(self._query)))
        if self._scanned and asks_text and self._store._engine.context.backend.capabilities.words:
            self._session.note(
                f"Looked at {plural(self._looked, 'checkpoint')}, without an index. To have one: holdfast grep --index"
            )


def _by_thread(session: CliContext, search: _Search, *, count: bool) -> None:
    found: dict[str, int] = {}
    for match in search:
        found[match.thread] = found.get(match.thread, 0) + 1
        if not count and found[match.thread] == 1:
            _write(session, {"thread": match.thread}, safe(match.thread))
    if count:
        for thread, number in found.items():
            _write(session, {"thread": thread, "count": number}, f"{safe(thread)}:{number}")


def _write(session: CliContext, record: object, text: str) -> None:
    if session.json:
        session.emit(record)
    else:
        session.out.line(text)


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
    """For people: the checkpoint, and below it where in it."""
    out = session.out
    about = f"step {match.step}, {safe(match.kind)}, {ago(match.time)}"
    out.line(f"{out.style(safe(match.thread), 'magenta')} {out.style(safe(match.id), 'yellow')} {about}")
    for hit in match.hits:
        who = f" {safe(hit.role)}" if hit.role else ""
        out.line(f"  {out.style(safe(hit.path), 'cyan')}{who}: {_excerpt(session, hit)}")
    if match.more:
        out.line(out.style(f"  and {match.more} more", "dim"))


def _lines(session: CliContext, match: SearchMatch) -> None:
    """For programs: thread, checkpoint, place and text, with colons between."""
    out = session.out
    start = f"{out.style(safe(match.thread), 'magenta')}:{out.style(safe(match.id), 'yellow')}"
    for hit in match.hits:
        out.line(f"{start}:{out.style(safe(hit.path), 'cyan')}: {_excerpt(session, hit)}")
    if not match.hits:
        out.line(start)


def _excerpt(session: CliContext, hit: SearchHit) -> str:
    """The text around a hit, with the hit in colour."""
    parts, at = [], 0
    for low, high in hit.spans:
        parts += [safe(hit.excerpt[at:low]), session.out.style(safe(hit.excerpt[low:high]), "red", "bold")]
        at = high
    return "".join((*parts, safe(hit.excerpt[at:])))
