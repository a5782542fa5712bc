"""`holdfast session`: sessions, and the state that ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, pairs, yes_option
from holdfast.interfaces.cli.completion_types import SESSION
from holdfast.interfaces.cli.formatting import ago, local, plural, safe
from holdfast.interfaces.cli.scope_args import SPAN, acting, as_option

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.state.sessions.api import Session as Kept
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

_PAGE = 200
_HEADS = ("SESSION", "STATUS", "USER", "STARTED", "METADATA")
_COLORS = {"active": "green", "expired": "yellow"}
_STATUSES = ("active", "expired", "ended", "archived")


def session_record(kept: Kept) -> dict[str, Any]:
    """A session as a record, without its state."""
    return {
        "id": kept.id,
        "status": kept.status,
        "scope": str(kept.scope),
        "user": kept.user,
        "metadata": kept.metadata,
        "started": kept.started,
        "ended": kept.ended,
        "reason": kept.reason,
        "on_end": kept.on_end,
        "by": kept.by,
    }


@group("session", invoke_without_command=True)
def session(session: CliContext) -> None:
    """Start, list, look at, end and resume sessions: state that lives as long as a conversation, a visit or a run.

    \b
    holdfast session start chat-1 --user alice --idle 30m --on-end archive
    holdfast session list --user alice --status active
    holdfast session end chat-1
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(session, acting(session, None), None, None, {}, "", None)


@command("start")
@click.argument("id", required=False)
@click.option("--user", metavar="NAME", help="Whose it is: its scope lies in that user's.")
@click.option("--agent", metavar="NAME", help="The agent whose state it works with.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Say something about it; may be repeated.")
@click.option("--ttl", type=SPAN, metavar="SPAN", help="How long it lasts at most: 8h, 1d.")
@click.option("--idle", type=SPAN, metavar="SPAN", help="How long it lasts without a sign of life: 30m.")
@click.option(
    "--on-end",
    type=click.Choice(("delete", "archive", "keep")),
    default="delete",
    show_default=True,
    help="What becomes of its state.",
)
@click.option("--retention", type=SPAN, metavar="SPAN", help="How long its record, or archive, is kept: 30d.")
@click.option("--create", is_flag=True, help="Make the store, if it is not there.")
@as_option
def start(
    session: CliContext,
    id: str | None,
    user: str | None,
    agent: str | None,
    meta: tuple[str, ...],
    ttl: timedelta | None,
    idle: timedelta | None,
    on_end: Literal["delete", "archive", "keep"],
    retention: timedelta | None,
    create: bool,
    identity: str | None,
) -> None:
    """Start a session, and write its id; one is made up unless it is given.

    \b
    holdfast session start
    holdfast session start chat-1 --user alice --meta channel=web --idle 30m
    """
    from holdfast.state.sessions.api import RETENTION

    there = acting(session, identity, write=True, create=create)
    made = there.sessions.start(
        id,
        user=user,
        agent=agent,
        metadata=pairs(meta, "--meta"),
        ttl=ttl,
        idle=idle,
        on_end=on_end,
        retention=retention or RETENTION,
    )
    if session.json:
        session.emit(session_record(made))
        return
    session.out.line(safe(made.id))
    session.note(f"Its state is that of {made.scope}.")


@command("list")
@click.option("--user", metavar="NAME", help="Those of this user.")
@click.option("--status", type=click.Choice(_STATUSES), help="Those of this status.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Those of which this was said; may be repeated.")
@click.option("--after", default="", metavar="ID", help="Go on after this session.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show so many at most.")
@as_option
def list_(
    session: CliContext,
    user: str | None,
    status: Literal["active", "expired", "ended", "archived"] | None,
    meta: tuple[str, ...],
    after: str,
    limit: int | None,
    identity: str | None,
) -> None:
    """List the sessions, in the order of their ids.

    \b
    holdfast session list --user alice
    holdfast session list --status expired --json
    """
    _list(session, acting(session, identity), user, status, pairs(meta, "--meta"), after, limit)


def _list(
    session: CliContext,
    there: Store | IdentityView,
    user: str | None,
    status: Literal["active", "expired", "ended", "archived"] | None,
    metadata: dict[str, Any],
    after: str,
    limit: int | None,
) -> None:
    def pages() -> Iterator[Kept]:
        last, size = after, min(limit or _PAGE, _PAGE)
        while page := there.sessions.list(user=user, status=status, metadata=metadata, after=last, limit=size):
            yield from page
            last = page[-1].id

    found = islice(pages(), limit)
    if session.json:
        session.emit_all(map(session_record, found))
        return
    session.out.page()
    now, widths = datetime.now(UTC), list[int]()
    while page := list(islice(found, _PAGE)):
        rows = [(each.id, each.status, each.user or "", ago(each.started, now), _said(each)) for each in page]
        widths = session.out.table(_HEADS, rows, shrink="METADATA", styles={"SESSION": "yellow"}, widths=widths)
    if not widths:
        session.note("There are no such sessions." if user or status or metadata else "There are no sessions.")


def _said(kept: Kept) -> str:
    from holdfast.interfaces.cli.json_output import encode

    return encode(kept.metadata) if kept.metadata else ""


@command("show")
@click.argument("id", type=SESSION)
@click.option("--full", is_flag=True, help="Do not shorten long values.")
@as_option
def show(session: CliContext, id: str, full: bool, identity: str | None) -> None:
    """Show a session and its state; of one that is archived, the state it had when it ended.

    \b
    holdfast session show chat-1
    """
    from holdfast.interfaces.cli.value_view import ALL, ROOM, ValueWriter

    there = acting(session, identity)
    found = there.sessions.get(id)
    state = there.sessions.archived(id) if found.status == "archived" else dict(found.state)
    if session.json:
        session.emit(session_record(found) | {"state": state})
        return
    out = session.out
    out.page()
    out.line(out.style(f"session {safe(found.id)}", "yellow"))
    out.line(f"Status:   {out.style(found.status, _COLORS.get(found.status, 'bold'))}")
    out.line(f"Scope:    {safe(str(found.scope))}")
    out.line(f"Started:  {local(found.started)} ({ago(found.started)})")
    if found.ended is not None:
        out.line(f"Ended:    {local(found.ended)} ({ago(found.ended)}){f': {safe(found.reason)}' * bool(found.reason)}")
    out.line(f"At end:   {found.on_end}")
    if found.by:
        out.line(f"By:       {safe(found.by)}")
    if found.metadata:
        out.line(f"Metadata: {safe(_said(found))}")
    values = ValueWriter(out, ALL if full else ROOM)
    for key, value in state.items():
        out.line()
        for line in values.channel(key, value):
            out.line(line)


@command("end")
@click.argument("id", type=SESSION)
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why.")
@as_option
def end(session: CliContext, id: str, reason: str, identity: str | None) -> None:
    """End a session: its state is deleted, archived or kept, as was agreed when it was started.

    \b
    holdfast session end chat-1 -m 'user left'
    """
    done = acting(session, identity, write=True).sessions.end(id, reason)
    became = {"delete": "deleted", "archive": "archived", "keep": "kept"}[done.on_end]
    session.tell(f"{id} has ended; its state is {became}.", session_record(done))


@command("resume")
@click.argument("id", type=SESSION)
@as_option
def resume(session: CliContext, id: str, identity: str | None) -> None:
    """Have a session go on, also one that has ended, if its state was archived or kept.

    \b
    holdfast session resume chat-1
    """
    done = acting(session, identity, write=True).sessions.resume(id)
    session.tell(f"{id} is active.", session_record(done))


@command("touch")
@click.argument("id", type=SESSION)
@as_option
def touch(session: CliContext, id: str, identity: str | None) -> None:
    """Show a sign of life for a session, so that it does not expire for being idle.

    \b
    holdfast session touch chat-1
    """
    acting(session, identity, write=True).sessions.touch(id)
    session.tell(f"{id} was touched.", {"id": id, "touched": True})


@command("update")
@click.argument("id", type=SESSION)
@click.argument("metadata", nargs=-1, required=True, metavar="KEY=VALUE...")
@as_option
def update(session: CliContext, id: str, metadata: tuple[str, ...], identity: str | None) -> None:
    """Say something more about a session, or something else than was said.

    \b
    holdfast session update chat-1 rating=5 channel=mail
    """
    done = acting(session, identity, write=True).sessions.update(id, pairs(metadata, "metadata"))
    session.tell(f"{id} has metadata {_said(done)}.", session_record(done))


@command("collect")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=1000, show_default=True, metavar="N", help="Look at so many."
)
@dry_run_option
def collect(session: CliContext, limit: int, dry_run: bool) -> None:
    """End the sessions whose time is up, and forget those that ended longer ago than they are kept for.

    A job of the kind `expire` does this by itself: holdfast jobs add sweep expire --every 1h

    \b
    holdfast session collect
    """
    if dry_run:
        _list(session, session.open(), None, "expired", {}, "", limit)
        return
    done = session.open(write=True).sessions.collect(limit)
    told = f"{plural(done.ended, 'session')} ended, {done.forgotten:,} forgotten"
    told += f", {done.spared:,} back to life" * bool(done.spared) + f", {done.held:,} held" * bool(done.held)
    session.tell(f"{told}.", done._asdict())


@command("delete")
@click.argument("id", type=SESSION)
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, id: str, dry_run: bool, yes: bool, identity: str | None) -> None:
    """Remove a session for good: its state with its history, its archive, and the record that there was one.

    \b
    holdfast session delete chat-1 --yes
    """
    there = acting(session, identity, write=not dry_run)
    found = there.sessions.get(id)
    if not dry_run:
        session.confirm(f"Delete the session {id}, and all of its state?", yes=yes)
        there.sessions.delete(id)
    word = "would go, with all of its state" if dry_run else "is deleted, with all of its state"
    session.tell(f"{id} {word}.", {"id": id, "scope": str(found.scope), "deleted": not dry_run, "dry_run": dry_run})


for _each in (start, list_, show, end, resume, touch, update, collect, delete):
    session.add_command(_each)
