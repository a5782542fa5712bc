"""`holdfast threads`: what there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import ago, size

if TYPE_CHECKING:
    from holdfast.engine.types import ThreadInfo
    from holdfast.store.store import Store

_PAGE = 500
_HEADS = ("THREAD", "STEPS", "BRANCHES", "SIZE", "UPDATED")
_ORDERS: dict[str, Callable[[ThreadInfo], Any]] = {
    "updated": lambda thread: thread.updated,
    "created": lambda thread: thread.created,
    "steps": lambda thread: thread.steps,
    "branches": lambda thread: thread.branches,
    "size": lambda thread: thread.bytes,
}


@command("threads")
@click.argument("pattern", default="", type=THREAD)
@click.option("--where", metavar="QUERY", help="Show those that a query finds, as in 'steps>100 updated>7d'.")
@click.option(
    "--sort", type=click.Choice(["name", *_ORDERS]), default="name", help="The order: the greatest first, but of names."
)
@click.option("-r", "--reverse", is_flag=True, help="The other way round.")
@click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="Show so many at most.")
@click.option("--names", is_flag=True, help="Show the names only.")
def threads(
    session: CliContext, pattern: str, where: str | None, sort: str, reverse: bool, limit: int | None, names: bool
) -> None:
    """List the threads: their steps, branches, size, and when they changed last.

    PATTERN is the start of their names, or a pattern in which * stands for anything.

    \b
    holdfast threads 'support-*' --sort size -n 10
    holdfast threads --where 'steps>100 updated>7d'
    """
    store = session.open()
    found = _found(store, pattern, where)
    if sort != "name" or reverse:
        down = (sort != "name") is not reverse
        found = iter(sorted(found, key=_ORDERS.get(sort, lambda thread: thread.thread), reverse=down))
    if limit is not None:
        found = islice(found, limit)
    out = session.out
    if session.json:
        session.emit_all(found)
        return
    out.page()
    if names:
        from holdfast.interfaces.cli.formatting import safe

        for thread in found:
            out.line(safe(thread.thread))
        return
    _table(session, found, "There are no threads." if not pattern and where is None else "No thread matches.")


def _found(store: Store, pattern: str, where: str | None) -> Iterator[ThreadInfo]:
    prefix = pattern.partition("*")[0]
    fits = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL) if "*" in pattern else None
    more: dict[str, Any] = {} if where is None else {"where": where}
    for thread in store.threads(prefix=prefix, limit=_PAGE, **more).all():
        if fits is None or fits.fullmatch(thread.thread):
            yield thread


def _table(session: CliContext, found: Iterator[ThreadInfo], none: str) -> None:
    now = datetime.now(UTC)
    widths: list[int] = []
    while True:
        page = list(islice(found, _PAGE))
        if not page:
            if not widths:
                session.note(none)
            return
        rows = [
            (each.thread, f"{each.steps:,}", str(each.branches), size(each.bytes), ago(each.updated, now))
            for each in page
        ]
        widths = session.out.table(
            _HEADS, rows, right=_HEADS[1:4], shrink="THREAD", styles={"THREAD": "yellow"}, widths=widths
        )
