"""`holdfast session`: sessions and their state."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from holdfast._views import encode
from holdfast.interfaces.cli.base import (
    CliContext,
    command,
    dry_run_option,
    group,
    limit_option,
    pairs,
    yes_option,
)
from holdfast.interfaces.cli.completion_types import SESSION
from holdfast.interfaces.cli.formatting import plural
from holdfast.interfaces.cli.scope_args import SPAN, as_option

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.engine.pages import Page
    from holdfast.state.sessions.api import Session

_STATUSES = ("active", "expired", "ended", "archived")
_Status: TypeAlias = Literal["active", "expired", "ended", "archived"]


@group("session", default="list")
def session(session: CliContext) -> None:
    """Start, list, show, end and resume sessions: state that lasts as long as a conversation, a visit or a run.

    holdfast session start chat-1 --user alice --idle 30m --on-end archive
    holdfast session list --user alice --status active
    holdfast session end chat-1
    """


@command("start")
@click.option("--user", metavar="NAME", help="The user: the scope of the session is in the user's.")
@click.option("--agent", metavar="NAME", help="The agent of the session.")
@click.option(
    "--owner", metavar="IDENTITY", help="The identity that may manage it and use its state: agent:researcher."
)
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated.")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="The longest duration: 8h, 1d.")
@click.option("--idle", type=SPAN, metavar="SPAN", help="The longest duration without activity: 30m.")
@click.option(
    "--on-end",
    type=click.Choice(("delete", "archive", "keep")),
    default="delete",
    show_default=True,
    help="What happens to its state at the end.",
)
@click.option("--retention", type=SPAN, metavar="SPAN", help="How long its record or archive is kept: 30d.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@as_option
def start(
    session: CliContext,
    id: str | None,
    meta: tuple[str, ...],
    retention: timedelta | None,
    create: bool,
    **options: Any,
) -> None:
    """Start a session, and print its id, which is random unless it is given.

    holdfast session start
    holdfast session start chat-1 --user alice --meta channel=web --idle 30m
    """
    from holdfast.state.sessions.api import RETENTION

    started = session.open_as(write=True, create=create).sessions.start(
        id, metadata=pairs(meta, "--meta"), retention=retention or RETENTION, **options
    )
    session.report(started.id, started)
    session.note(f"Its scope is {started.scope}.")


@command("list")
@click.option("--user", metavar="NAME", help="Only sessions of this user.")
@click.option("--owner", metavar="IDENTITY", help="Only sessions that this identity owns.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only sessions with this status.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only sessions with this metadata; may be repeated.")
@click.option("--after", default="", metavar="ID", help="Start after this session.")
@limit_option()
@as_option
def list_(session: CliContext, meta: tuple[str, ...], after: str, limit: int | None, **filters: Any) -> None:
    """List the sessions, by id.

    holdfast session list --user alice
    holdfast session list --status expired --json
    """
    sessions = session.open_as().sessions.list(metadata=pairs(meta, "--meta"), cursor=after, **filters)
    _show(session, sessions, limit, filtered=bool(meta or any(filters.values())))


def _show(session: CliContext, sessions: Page[Session], limit: int | None, *, filtered: bool) -> None:
    none = "There are no such sessions." if filtered else "There are no sessions."
    session.list(islice(sessions.all(), limit), none=none)


def _format(metadata: Mapping[str, Any]) -> str:
    return encode(dict(metadata)) if metadata else ""


@command("show", id=SESSION)
@click.option("--full", is_flag=True, help="Do not shorten long values.")
@as_option
def show(session: CliContext, id: str, full: bool) -> None:
    """Show a session and its state; if it is archived, the state at its end.

    holdfast session show chat-1
    """
    from holdfast.interfaces.cli.value_view import ALL, SHORT, ValueWriter

    store = session.open_as()
    found = store.sessions.get(id)
    state = store.sessions.archived(id) if found.status == "archived" else dict(found.state)
    values = ValueWriter(session.out, ALL if full else SHORT)
    header = session.describe(found, f"session {found.id}", hidden=("id",))
    channels = (line for key, value in state.items() for line in ("", *values.channel(key, value)))
    session.report(chain(header, channels), found, {"state": state})


@command("end", id=SESSION)
@click.option("-m", "--reason", default="", metavar="TEXT", help="The reason.")
@as_option
def end(session: CliContext, id: str, reason: str) -> None:
    """End a session: its state is deleted, archived or kept, as its start said.

    holdfast session end chat-1 -m 'user left'
    """
    done = session.open_as(write=True).sessions.end(id, reason)
    result = {"delete": "deleted", "archive": "archived", "keep": "kept"}[done.on_end]
    session.tell(f"Ended {id}; its state is {result}.", done)


@command("resume", id=SESSION)
@as_option
def resume(session: CliContext, id: str) -> None:
    """Resume a session, also one that has ended, if its state was archived or kept.

    holdfast session resume chat-1
    """
    done = session.open_as(write=True).sessions.resume(id)
    session.tell(f"{id} is active.", done)


@command("touch", id=SESSION)
@as_option
def touch(session: CliContext, id: str) -> None:
    """Renew a session, so that it does not expire for being idle.

    holdfast session touch chat-1
    """
    session.open_as(write=True).sessions.touch(id)
    session.tell(f"Renewed {id}.", {"id": id, "touched": True})


@command("update", id=SESSION)
@click.argument("metadata", nargs=-1, required=True, metavar="KEY=VALUE...")
@as_option
def update(session: CliContext, id: str, metadata: tuple[str, ...]) -> None:
    """Add to the metadata of a session, or change it.

    holdfast session update chat-1 rating=5 channel=mail
    """
    done = session.open_as(write=True).sessions.update(id, pairs(metadata, "metadata"))
    session.tell(f"{id} has metadata {_format(done.metadata)}.", done)


@command("collect")
@limit_option(1000)
@dry_run_option
def collect(session: CliContext, limit: int) -> None:
    """End the sessions that have expired, and delete those that ended before their retention.

    A job of the kind `expire` does this automatically: holdfast jobs add sweep expire --every 1h

    holdfast session collect
    """
    if session.dry_run:
        _show(session, session.open().sessions.list(status="expired"), limit, filtered=True)
        return
    done = session.open(write=True).sessions.collect(limit)
    text = f"Ended {plural(done.ended, 'session')}, deleted {done.forgotten:,}"
    text += f", {done.spared:,} renewed meanwhile" * bool(done.spared) + f", {done.held:,} held" * bool(done.held)
    session.tell(f"{text}.", done)


@command("delete", id=SESSION)
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, id: str) -> None:
    """Delete a session permanently: its state with its history, its archive and its record.

    holdfast session delete chat-1 --yes
    """
    store = session.open_as(write=not session.dry_run)
    found = store.sessions.get(id)
    if not session.dry_run:
        session.confirm(f"Delete the session {id} with all of its state?")
        store.sessions.delete(id)
    verb = "Would delete" if session.dry_run else "Deleted"
    session.tell(
        f"{verb} {id} with all of its state.",
        {"id": id, "scope": str(found.scope), "deleted": not session.dry_run, "dry_run": session.dry_run},
    )


session.add(start, list_, show, end, resume, touch, update, collect, delete)
