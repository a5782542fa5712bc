"""`holdfast state list`: the scopes that there are, and their keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import ago, in_words, safe
from holdfast.interfaces.cli.scope_args import acting, as_option, short, state_of

if TYPE_CHECKING:
    from holdfast.state.reader import StateItem
    from holdfast.state.scope_state import State
    from holdfast.state.scopes import ScopeInfo

_PAGE = 200
_HEADS = ("SCOPE", "KEYS", "VERSION", "UPDATED")
_ITEMS = ("KEY", "VERSION", "EXPIRES", "VALUE")
_LIMIT = click.IntRange(1)


@command("list")
@click.argument("scope", type=SCOPE, required=False)
@click.option("--prefix", default="", metavar="TEXT", help="Those that start so.")
@click.option("--pattern", default="", metavar="PATTERN", help="Those that match: plan/*, agent:*, ** for anything.")
@click.option("--values", is_flag=True, help="Show values, versions and when keys expire, too.")
@click.option("--after", default="", metavar="NAME", help="Go on after this key, or scope.")
@click.option("-n", "--limit", type=_LIMIT, metavar="N", help="Show so many at most.")
@as_option
def list_(
    session: CliContext,
    scope: str | None,
    prefix: str,
    pattern: str,
    values: bool,
    after: str,
    limit: int | None,
    identity: str | None,
) -> None:
    """List the scopes that have state; or the keys of one.

    \b
    holdfast state list                        the scopes
    holdfast state list --prefix user:alice/   those inside Alice's
    holdfast state list agent:researcher --pattern 'plan/*' --values
    """
    if scope is None:
        if values:
            raise InvalidError(
                "values are those of keys, and no scope is named", hint="holdfast state list SCOPE --values"
            )
        list_scopes(session, identity, prefix, pattern, after, limit)
        return
    found = state_of(session, scope, identity)
    if not values:
        keys = islice(_keys(found, prefix, pattern, after, limit or _PAGE), limit)
        if session.json:
            session.emit_all({"scope": scope, "key": key} for key in keys)
            return
        session.out.page()
        _told(session, (safe(key) for key in keys), "There are no such keys." if prefix or pattern else "It is empty.")
        return
    items = islice(_items(found, prefix, pattern, after, limit or _PAGE), limit)
    if session.json:
        session.emit_all({"scope": scope, **item._asdict()} for item in items)
        return
    session.out.page()
    now, widths = datetime.now(UTC), list[int]()
    while page := list(islice(items, _PAGE)):
        rows = [(item.key, str(item.version), _expires(item, now), short(item.value)) for item in page]
        widths = session.out.table(
            _ITEMS, rows, right=("VERSION",), shrink="VALUE", styles={"KEY": "yellow"}, widths=widths
        )
    if not widths:
        session.note("There are no such keys." if prefix or pattern else "It is empty.")


def list_scopes(
    session: CliContext, identity: str | None, prefix: str, pattern: str, after: str, limit: int | None
) -> None:
    """Write the scopes that there are."""
    store = acting(session, identity)

    def pages() -> Iterator[ScopeInfo]:
        last = after
        while page := store.scopes(prefix, pattern=pattern, after=last, limit=min(limit or _PAGE, _PAGE)):
            yield from page
            last = str(page[-1].scope)

    found = islice(pages(), limit)
    if session.json:
        session.emit_all({**each._asdict(), "scope": str(each.scope)} for each in found)
        return
    session.out.page()
    now, widths = datetime.now(UTC), list[int]()
    while page := list(islice(found, _PAGE)):
        rows = [(str(each.scope), f"{each.keys:,}", str(each.version), ago(each.updated, now)) for each in page]
        widths = session.out.table(
            _HEADS, rows, right=_HEADS[1:3], shrink="SCOPE", styles={"SCOPE": "yellow"}, widths=widths
        )
    if not widths:
        session.note("No scope has any state." if not prefix and not pattern else "No scope matches.")


def _told(session: CliContext, lines: Iterator[str], none: str) -> None:
    count = 0
    for count, line in enumerate(lines, 1):  # noqa: B007 - counted
        session.out.line(line)
    if not count:
        session.note(none)


def _keys(found: State, prefix: str, pattern: str, after: str, size: int) -> Iterator[str]:
    while page := found.list_keys(prefix, pattern=pattern, after=after, limit=min(size, _PAGE)):
        yield from page
        after = page[-1]


def _items(found: State, prefix: str, pattern: str, after: str, size: int) -> Iterator[StateItem]:
    while page := found.list_items(prefix, pattern=pattern, after=after, limit=min(size, _PAGE)):
        yield from page
        after = page[-1].key


def _expires(item: StateItem, now: datetime) -> str:
    return "" if item.expires is None else in_words((item.expires - now).total_seconds())
