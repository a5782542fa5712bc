"""`holdfast state list`: scopes and keys."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command, limit_option
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.scope_args import as_option, open_as, open_state, short

if TYPE_CHECKING:
    pass


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
        scopes = open_as(session, identity).scopes(prefix, pattern=pattern, cursor=after)
        none = "There are no scopes." if not prefix and not pattern else "No scopes match."
        session.list(islice(scopes.all(), limit), none=none)
        return
    state = open_state(session, scope, identity)
    empty = "There are no such keys." if prefix or pattern else "The scope is empty."
    if not values:
        session.out.page()
        key = None
        for key in islice(state.list_keys(prefix, pattern=pattern, cursor=after).all(), limit):
            session.report(key, {"scope": scope, "key": key})
        if key is None:
            session.note(empty)
        return
    items = islice(state.list_items(prefix, pattern=pattern, cursor=after).all(), limit)
    session.list(items, none=empty, of={"scope": scope}, value=lambda item: short(item.value))
