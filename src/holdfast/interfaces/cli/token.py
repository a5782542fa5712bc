"""`holdfast token`: tokens by which programs use a store over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.base import CliContext, command, group
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import clock

if TYPE_CHECKING:
    from holdfast.state.access_api import Token


@group("token", default="list")
def token(session: CliContext) -> None:
    """Issue, list and revoke tokens, by which programs use a served store.

    A token acts for an identity, with the rights that it has at the time, or for the store's owner. Only a digest of it
    is stored.

    holdfast token issue user:alice --until 30d --name laptop
    holdfast token list
    holdfast token revoke ID
    """


@command("issue", identity=SCOPE)
@click.option("--owner", is_flag=True, help="For the store's owner, who may do everything.")
@click.option("--until", "end", metavar="WHEN", default="30d", show_default=True, help="When it expires, or never.")
@click.option("--read-only", is_flag=True, help="It changes nothing.")
@click.option("--name", default="", metavar="TEXT", help="What it is for.")
def issue(session: CliContext, identity: str | None, owner: bool, end: str, read_only: bool, name: str) -> None:
    """Issue a token for an identity, or for the store's owner. Prints it once.

    holdfast token issue user:alice --until 8h
    holdfast token issue --owner --read-only --name dashboard
    """
    if owner is (identity is not None):
        raise click.UsageError("give an identity, or --owner")
    until = None if end == "never" else end
    made = session.open(write=True).access.issue_token(identity, until=until, read_only=read_only, name=name)
    session.report(made.secret, made)
    ends = f"until {clock(made.until)}" if made.until else "until it is revoked"
    session.note(f"It is shown this once, and valid {ends}. Revoke it with: holdfast token revoke {made.id}")


@command("list")
@click.option("--dead", is_flag=True, help="Also those that were recently revoked or expired.")
def list_(session: CliContext, dead: bool) -> None:
    """List the tokens, the oldest first.

    holdfast token list --dead
    """
    session.list(
        session.open().access.tokens(dead=dead),
        none="There are no tokens.",
        identity=lambda token: token.identity or "(owner)",
        until=_end,
    )


def _end(token: Token) -> str:
    return "revoked" if token.revoked else clock(token.until) if token.until else "never"


@command("revoke")
@click.argument("id", metavar="ID")
def revoke(session: CliContext, id: str) -> None:
    """Revoke a token. It takes effect at once.

    holdfast token revoke 97a126752e429f35
    """
    revoked = session.open(write=True).access.revoke_token(id)
    session.tell(f"Revoked the token {revoked.id} of {revoked.identity or 'the owner'}.", revoked)


token.add(issue, list_, revoke)
