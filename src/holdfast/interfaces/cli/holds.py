"""`holdfast pin` and `holdfast hold`: what must not go."""

from __future__ import annotations

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import REVISION, THREAD
from holdfast.interfaces.cli.formatting import ago, safe


@command("pin")
@click.argument("thread", type=THREAD)
@click.argument("revision", type=REVISION, required=False)
@click.option("-m", "--reason", metavar="TEXT", help="Why. There may be several pins, each with its reason.")
@click.option("-d", "--delete", is_flag=True, help="Take the pin away; without a reason, all that there are.")
def pin(session: CliContext, thread: str, revision: str | None, reason: str | None, delete: bool) -> None:
    """List, set or take away pins: a pinned checkpoint is not pruned.

    \b
    holdfast pin THREAD                       list them
    holdfast pin THREAD REVISION -m REASON    pin a checkpoint
    holdfast pin THREAD REVISION -d           take its pins away
    """
    if revision is None:
        if delete or reason is not None:
            raise InvalidError("no checkpoint is named", hint="holdfast pin THREAD REVISION")
        _pins(session, thread)
        return
    store = session.open(write=True)
    if delete:
        id = store.thread(thread).unpin(revision, reason=reason)
    else:
        id = store.thread(thread).pin(revision, reason=reason or "")
    if session.json:
        session.emit({"thread": thread, "id": id, "pinned": not delete, "reason": reason})
    else:
        session.out.line(safe(f"{id} is {'no longer pinned' if delete else 'pinned'}."))


def _pins(session: CliContext, thread: str) -> None:
    found = session.open().thread(thread).pins()
    if session.json:
        session.emit_all({"thread": thread, **each._asdict()} for each in found)
        return
    session.out.page()
    rows = [(each.id, ago(each.time), each.reason) for each in found]
    if rows:
        session.out.table(("CHECKPOINT", "SINCE", "REASON"), rows, styles={"CHECKPOINT": "yellow"})


@command("hold")
@click.argument("thread", type=THREAD, required=False)
@click.option("-m", "--reason", metavar="TEXT", help="Why. There may be several holds, each with its reason.")
@click.option("-d", "--release", is_flag=True, help="Take the hold away; without a reason, all that there are.")
def hold(session: CliContext, thread: str | None, reason: str | None, release: bool) -> None:
    """List, set or take away holds: a thread that is held is neither pruned nor deleted.

    \b
    holdfast hold                        list them
    holdfast hold THREAD -m REASON       hold a thread
    holdfast hold THREAD -d              release it
    """
    if thread is None:
        if release or reason is not None:
            raise InvalidError("no thread is named", hint="holdfast hold THREAD")
        _holds(session)
        return
    store = session.open(write=True)
    if release:
        store.thread(thread).release(reason=reason)
    else:
        store.thread(thread).hold(reason=reason or "")
    if session.json:
        session.emit({"thread": thread, "held": not release, "reason": reason})
    else:
        session.out.line(safe(f"{thread} is {'released' if release else 'held'}."))


def _holds(session: CliContext) -> None:
    found = session.open().maintenance.holds()
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    rows = [(each.thread, ago(each.time), each.reason) for each in found]
    if rows:
        session.out.table(("THREAD", "SINCE", "REASON"), rows, styles={"THREAD": "yellow"})
