"""`holdfast tag`, `label`, `pin`, `hold` and `expire`: names, protection and end of checkpoints and threads."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import click

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.cli.base import KINDS, CliContext, command
from holdfast.interfaces.cli.completion_types import LABEL, REVISION, TAG, THREAD
from holdfast.interfaces.cli.formatting import local
from holdfast.interfaces.cli.scope_args import SPAN

Kind: TypeAlias = Literal["tag", "label"]


@command("tag", thread=THREAD, tag=TAG, revision=REVISION)
@click.option("-d", "--delete", is_flag=True, help="Remove the tag.")
@click.option("-f", "--force", is_flag=True, help="Move the tag from another checkpoint.")
def tag(session: CliContext, thread: str, tag: str | None, revision: str | None, delete: bool, force: bool) -> None:
    """List, add or remove tags. A tag is on one checkpoint of a thread, and is a revision.

    holdfast tag THREAD                 list them
    holdfast tag THREAD TAG [REVISION]  tag a checkpoint, by default HEAD
    holdfast tag THREAD -d TAG          remove a tag
    """
    if tag is None:
        if delete or force:
            raise InvalidError("a tag is missing", hint="holdfast tag THREAD TAG")
        _list(session, thread, "tag")
        return
    handle = session.open(write=True).thread(thread)
    if delete:
        tags = handle.tags()
        if tag not in tags:
            raise _missing(thread, "tag", tag)
        handle.untag(tag)
        _removed(session, thread, "tag", tag, [tags[tag]])
        return
    checkpoint = handle.find(revision or "HEAD")
    try:
        handle.tag(tag, checkpoint, move=force)
    except ConflictError as error:
        error.hint = "Use another tag, or move this one with --force"
        raise
    _added(session, thread, "tag", tag, checkpoint.id)


@command("label", thread=THREAD, label=LABEL, revision=REVISION)
@click.option("-d", "--delete", is_flag=True, help="Remove the label: from one checkpoint, or from all.")
def label(session: CliContext, thread: str, label: str | None, revision: str | None, delete: bool) -> None:
    """List, add or remove labels. A label may be on any number of checkpoints.

    holdfast label THREAD                       list them
    holdfast label THREAD LABEL [REVISION]      label a checkpoint, by default HEAD
    holdfast label THREAD -d LABEL [REVISION]   remove a label
    """
    if label is None:
        if delete:
            raise InvalidError("a label is missing", hint="holdfast label THREAD -d LABEL")
        _list(session, thread, "label")
        return
    handle = session.open(write=True).thread(thread)
    if delete:
        ids = handle.labels().get(label)
        if ids is None:
            raise _missing(thread, "label", label)
        if revision is not None:
            ids = [id for id in ids if id == handle.find(revision).id]
        handle.unlabel(label, revision)
        _removed(session, thread, "label", label, ids)
        return
    checkpoint = handle.find(revision or "HEAD")
    handle.label(label, checkpoint)
    _added(session, thread, "label", label, checkpoint.id)


def _list(session: CliContext, thread: str, kind: Kind) -> None:
    handle = session.open().thread(thread)
    handle.info()  # raises if there is no such thread
    refs = {name: [id] for name, id in handle.tags().items()} if kind == "tag" else handle.labels()
    listed = ({"thread": thread, kind: name, **_ids(kind, ids)} for name, ids in refs.items())
    session.list(listed, hidden=("thread",))


def _added(session: CliContext, thread: str, kind: Kind, name: str, id: str) -> None:
    session.report(f"{id} has the {kind} {name}.", {"thread": thread, "id": id, kind: name})


def _removed(session: CliContext, thread: str, kind: Kind, name: str, ids: list[str]) -> None:
    record = {"thread": thread, kind: name, **_ids(kind, ids), "removed": True}
    session.report(f"Removed the {kind} {name} from {', '.join(ids) or 'none'}.", record)


def _ids(kind: Kind, ids: list[str]) -> dict[str, object]:
    """Return the checkpoint of a tag, or those of a label, as fields."""
    return {"id": ids[0]} if kind == "tag" else {"ids": ids}


def _missing(thread: str, kind: Kind, name: str) -> NotFoundError:
    return NotFoundError(
        f"no checkpoint has the {kind} {name!r}", where=f"thread {thread!r}", hint=f"See holdfast {kind} {thread}"
    )


@command("pin", thread=THREAD, revision=REVISION)
@click.option("-m", "--reason", metavar="TEXT", help="The reason. There may be several pins, each with its reason.")
@click.option("-d", "--delete", is_flag=True, help="Remove the pin with the reason, or all pins.")
def pin(session: CliContext, thread: str, revision: str | None, reason: str | None, delete: bool) -> None:
    """List, add or remove pins: a pinned checkpoint is not pruned.

    holdfast pin THREAD                       list them
    holdfast pin THREAD REVISION -m REASON    pin a checkpoint
    holdfast pin THREAD REVISION -d           remove its pins
    """
    if revision is None:
        if delete or reason is not None:
            raise InvalidError("a revision is missing", hint="holdfast pin THREAD REVISION")
        session.list(session.open().thread(thread).pins(), of={"thread": thread})
        return
    store = session.open(write=True)
    if delete:
        id = store.thread(thread).unpin(revision, reason=reason)
    else:
        id = store.thread(thread).pin(revision, reason=reason or "")
    record = {"thread": thread, "id": id, "pinned": not delete, "reason": reason}
    session.report(f"{id} is {'no longer pinned' if delete else 'pinned'}.", record)


@command("hold", thread=THREAD)
@click.option("-m", "--reason", metavar="TEXT", help="The reason. There may be several holds, each with its reason.")
@click.option("-d", "--release", is_flag=True, help="Remove the hold with the reason, or all holds.")
@click.option("--kind", type=KINDS, default="thread", help="The kind of the line, if it is not a thread.")
def hold(session: CliContext, thread: str | None, reason: str | None, release: bool, kind: Any) -> None:
    """List, add or release holds: a held thread is neither pruned nor deleted.

    holdfast hold                        list them
    holdfast hold THREAD -m REASON       hold a thread
    holdfast hold THREAD -d              release it
    holdfast hold AGENT --kind agent     hold an agent
    """
    if thread is None:
        if release or reason is not None:
            raise InvalidError("a thread is missing", hint="holdfast hold THREAD")
        session.list(session.open().maintenance.holds())
        return
    store = session.open(write=True)
    if kind == "thread" and release:
        store.thread(thread).release(reason=reason)
    elif kind == "thread":
        store.thread(thread).hold(reason=reason or "")
    elif release:
        store.maintenance.release(thread, kind=kind, reason=reason)
    else:
        store.maintenance.hold(thread, kind=kind, reason=reason or "")
    record = {"thread": thread, "held": not release, "reason": reason}
    session.report(f"{thread} is {'released' if release else 'held'}.", record)


@command("expire", thread=THREAD)
@click.argument("ttl", required=False, metavar="[SPAN|never]")
def expire(session: CliContext, thread: str, ttl: str | None) -> None:
    """Show or set when a thread expires: how long after its last change `delete --expired` deletes it.

    holdfast expire THREAD            show it
    holdfast expire THREAD 30d        set it
    holdfast expire THREAD never      remove it
    """
    handle = session.open(write=ttl is not None).thread(thread)
    if ttl is not None:
        handle.expire(None if ttl == "never" else SPAN.convert(ttl, None, click.get_current_context()))
    expires = handle.expires()
    when = "never expires" if expires is None else f"expires {local(expires)}, unless it changes"
    session.report(f"{thread} {when}.", {"thread": thread, "expires": expires})
