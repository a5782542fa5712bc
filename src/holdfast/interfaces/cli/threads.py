"""`holdfast threads` and `holdfast status`: the contents of a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, cast

import click

from holdfast._views import size
from holdfast.engine.model.scopes import readable_place
from holdfast.errors import CorruptError
from holdfast.interfaces.cli.base import KINDS, STATUSES, CliContext, command, kinds_option, parse_kinds
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import ago, line_counts, plural, safe, when

if TYPE_CHECKING:
    from holdfast.engine.thread_sizes import ThreadOrder
    from holdfast.engine.thread_status import ThreadState
    from holdfast.engine.types import StoreStatus, ThreadInfo
    from holdfast.store.store import Store

_PAGE = 500
_NAMED = 5
_ORDERS: dict[str, Callable[[ThreadInfo], Any]] = {
    "name": lambda thread: thread.thread,
    "updated": lambda thread: thread.updated,
    "created": lambda thread: thread.created,
    "steps": lambda thread: thread.steps,
    "branches": lambda thread: thread.branches,
    "size": lambda thread: thread.bytes,
}


@command("threads")
@click.argument("pattern", default="", type=THREAD)
@click.option("--kind", type=KINDS, default="thread", help="List agents, scopes, sessions or all instead of threads.")
@click.option("--where", metavar="QUERY", help="Those that match a query, such as 'steps>100 updated>7d'.")
@click.option("--status", type=STATUSES, help="Those with a status: 'waiting' for an answer, for example.")
@click.option("--sort", type=click.Choice([*_ORDERS]), default="name", help="The order: by name, or the largest first.")
@click.option("-r", "--reverse", is_flag=True, help="Reverse the order.")
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="Show at most N.")
@click.option("--names", is_flag=True, help="Show only the names.")
def threads(
    session: CliContext,
    pattern: str,
    kind: str,
    where: str | None,
    status: ThreadState | None,
    sort: str,
    reverse: bool,
    limit: int | None,
    names: bool,
) -> None:
    """List the threads: their status, steps, branches, size and last change.

    PATTERN is the start of a name, or a pattern in which * stands for any text.

    holdfast threads 'support-*' --sort size -n 10
    holdfast threads --where 'steps>100 updated>7d'
    holdfast threads --where 'meta.user=alice' --sort updated -n 20
    holdfast threads --status waiting
    holdfast threads --kind all
    """
    damaged: list[str] = []
    of_store = kind == "thread" and not reverse and sort != "created"
    order = cast("ThreadOrder", sort if of_store else "name")
    listed = _noting_damage(_list(session.open(), pattern, where, status, kind, order, limit), damaged)
    if order != sort or reverse:
        listed = iter(sorted(listed, key=_ORDERS[sort], reverse=(sort != "name") is not reverse))
    if limit is not None:
        listed = islice(listed, limit)
    if names and not session.json:
        session.report((safe(each.name) for each in listed), None)
    else:
        what = f"{kind}s" if kind in ("thread", "agent", "scope", "session") else "lines"
        everything = not pattern and where is None and status is None
        none = f"There are no {what}." if everything else f"No {what} match."
        hidden = ("damaged",) if kind == "all" else ("damaged", "kind", *(["status"] if kind != "thread" else []))
        listed = iter(listed)
        page = [] if session.json else list(islice(listed, _PAGE))
        if not any(each.framework for each in page):
            hidden = (*hidden, "framework")
        session.list(
            chain(page, listed),
            none=none,
            first=("name", "status", "framework", "steps", "branches", "bytes"),
            hidden=hidden,
            name=lambda line: readable_place(line.name) if line.kind == "scope" else line.name,
            updated=_updated,
        )
    if damaged:
        raise _damage_error(f"damaged: {', '.join(damaged[:_NAMED])}{', …' if len(damaged) > _NAMED else ''}")


def _list(
    store: Store,
    pattern: str,
    where: str | None,
    status: ThreadState | None,
    kind: str,
    order: ThreadOrder = "name",
    limit: int | None = None,
) -> Iterator[ThreadInfo]:
    prefix = pattern.partition("*")[0]
    regex = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL) if "*" in pattern else None
    size = _PAGE if limit is None else min(max(limit, 1), _PAGE)
    of_kind: Any = kind  # one of KINDS
    page = store.threads(prefix=prefix, limit=size, where=where, status=status, kind=of_kind, order=order)
    yield from (each for each in page.all() if regex is None or regex.fullmatch(each.name))


def _noting_damage(listed: Iterator[ThreadInfo], damaged: list[str]) -> Iterator[ThreadInfo]:
    """Yield lines, and add the names of damaged ones to a list."""
    for each in listed:
        if each.damaged:
            damaged.append(each.name)
        yield each


def _updated(thread: ThreadInfo) -> str:
    return "damaged" if thread.damaged else when(thread.updated)


def _damage_error(what: str) -> CorruptError:
    return CorruptError(what, hint="holdfast verify shows what is wrong, and holdfast repair repairs it")


@command("status")
@click.option("--all", "everything", is_flag=True, help="Read all threads, and count their steps and branches too.")
@kinds_option("Count only lines of this kind, and with --all read those in place of threads; may be repeated.")
def status(session: CliContext, everything: bool, kinds: tuple[str, ...]) -> None:
    """Show the status of the store: its size, how many threads, agents and scopes it has, and how its backend is.

    With --all, all threads are read, which takes a while if they are many: their steps, branches and sizes, the largest
    one, and when the first was created and the last updated. With --kind, those of other kinds.

    holdfast status --json | jq .bytes
    holdfast status --all
    holdfast status --all --kind scope --kind session
    """
    store, of_kinds = session.open(), parse_kinds(kinds)
    found = store.status(kinds=of_kinds or "all", exact=everything)
    numbers = {name: getattr(found, name) for name in ("threads", "agents", "scopes", "system")}
    read = ("all",) if of_kinds == "all" else of_kinds or ("thread",)
    totals, largest = _totals(session, store, read, sum(numbers.values())) if everything else ({}, None)
    more = {"tenant": session.tenant, **numbers, **totals}
    session.report(_status_lines(session, found, more, largest), found, more)
    damaged = max(found.damaged, totals.get("damaged", 0))
    if damaged:
        raise _damage_error(f"{plural(damaged, 'line')} of the store {'is' if damaged == 1 else 'are'} damaged")


def _status_lines(
    session: CliContext, status: StoreStatus, more: dict[str, Any], largest: ThreadInfo | None
) -> Iterator[str]:
    rows = [
        ("Store", status.url),
        ("Tenant", session.tenant),
        ("Size", f"{size(status.bytes)} ({status.bytes:,} bytes)"),
        ("Contents", line_counts(status) + ("" if status.complete else " or more; --all counts them")),
    ]
    if "steps" in more:
        branches = plural(more["branches"], "branch")
        rows.append(("Steps", f"{more['steps']:,} in {branches}, {size(more['line_bytes'])}"))
    if largest is not None:
        rows.append(("Largest", f"{largest.kind} {largest.name} ({size(largest.bytes)})"))
        rows += [("Created", ago(more["created"])), ("Updated", ago(more["updated"]))]
    rows += [
        ("Durable", "yes" if status.capabilities.durable else "no: a crash of the machine may lose the last saves"),
        *((name.replace("_", " ").capitalize(), str(value)) for name, value in status.details.items()),
    ]
    widest = max(len(title) for title, _ in rows)
    for title, text in rows:
        if text:
            yield f"{session.out.style(f'{title}:'.ljust(widest + 1), 'bold')} {safe(text)}"


def _totals(
    session: CliContext, store: Store, kinds: Sequence[str], total: int
) -> tuple[dict[str, Any], ThreadInfo | None]:
    """Read all lines of some kinds, and return the totals and the largest one."""
    totals: dict[str, Any] = {
        "steps": 0,
        "branches": 0,
        "line_bytes": 0,
        "damaged": 0,
        "created": None,
        "updated": None,
        "largest": None,
    }
    largest: ThreadInfo | None = None
    with session.progress("Counting") as progress:
        for number, each in enumerate(chain.from_iterable(_list(store, "", None, None, kind) for kind in kinds), 1):
            totals["steps"] += each.steps
            totals["branches"] += each.branches
            totals["line_bytes"] += each.bytes
            totals["damaged"] += each.damaged
            if each.damaged:
                continue
            totals["created"] = min(filter(None, (totals["created"], each.created)))
            totals["updated"] = max(filter(None, (totals["updated"], each.updated)))
            if largest is None or each.bytes > largest.bytes:
                largest, totals["largest"] = each, each.name
            progress(number, total, each.name)
    return totals, largest
