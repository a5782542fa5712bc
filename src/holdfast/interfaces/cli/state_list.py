"""`holdfast state list`: scopes and keys."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command, limit_option
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import ago, in_words, safe
from holdfast.interfaces.cli.scope_args import as_option, open_as, open_state, short

if TYPE_CHECKING:
    from holdfast.state import StateItem

_HEADS = ("SCOPE", "KEYS", "VERSION", "UPDATED")
_ITEMS = ("KEY", "VERSION", "EXPIRES", "VALUE")


@command("list")
@click.argument("scope", type=SCOPE, required=False)
@click.option("--prefix", default="", metavar="TEXT", help="Only those that start with this.")
@click.option("--pattern", default="", metavar="PATTERN", help="Only those that match: plan/*, agent:*, **.")
@click.option("--values", is_flag=True, help="Also show values, versions and expiry.")
@click.option("--after", default="", metavar="NAME", help="Start after this key or scope.")
@limit_option()
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
    """List the scopes, or the keys of one.

    \b
    holdfast state list                        the scopes
    holdfast state list --prefix user:alice/   those in Alice's
    holdfast state list agent:researcher --pattern 'plan/*' --values
    """
    if scope is None:
        if values:
            raise InvalidError("--values needs a scope", hint="holdfast state list SCOPE --values")
        list_scopes(session, identity, prefix, pattern, after, limit)
        return
    state = open_state(session, scope, identity)
    empty = "There are no such keys." if prefix or pattern else "The scope is empty."
    if not values:
        keys = islice(state.list_keys(prefix, pattern=pattern, cursor=after).all(), limit)
        if session.json:
            session.emit_all({"scope": scope, "key": key} for key in keys)
        else:
            _write(session, keys, empty)
        return
    items = islice(state.list_items(prefix, pattern=pattern, cursor=after).all(), limit)
    if session.json:
        session.emit_all({"scope": scope, **item._asdict()} for item in items)
        return
    session.out.page()
    now = datetime.now(UTC)
    rows = ((item.key, str(item.version), _format_expiry(item, now), short(item.value)) for item in items)
    if not session.out.long_table(_ITEMS, rows, right=("VERSION",), shrink="VALUE", styles={"KEY": "yellow"}):
        session.note(empty)


def list_scopes(
    session: CliContext, identity: str | None, prefix: str, pattern: str, after: str, limit: int | None
) -> None:
    """Write the scopes."""
    scopes = open_as(session, identity).scopes(prefix, pattern=pattern, cursor=after)
    listed = islice(scopes.all(), limit)
    if session.json:
        session.emit_all({**each._asdict(), "scope": str(each.scope)} for each in listed)
        return
    session.out.page()
    now = datetime.now(UTC)
    rows = ((str(each.scope), f"{each.keys:,}", str(each.version), ago(each.updated, now)) for each in listed)
    if not session.out.long_table(_HEADS, rows, right=_HEADS[1:3], shrink="SCOPE", styles={"SCOPE": "yellow"}):
        session.note("There are no scopes." if not prefix and not pattern else "No scopes match.")


def _write(session: CliContext, keys: Iterator[str], empty: str) -> None:
    session.out.page()
    count = 0
    for count, key in enumerate(keys, 1):  # noqa: B007 - counted
        session.out.line(safe(key))
    if not count:
        session.note(empty)


def _format_expiry(item: StateItem, now: datetime) -> str:
    return "" if item.expires is None else in_words((item.expires - now).total_seconds())
