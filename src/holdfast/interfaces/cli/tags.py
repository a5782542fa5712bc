"""`holdfast tag` and `holdfast label`: names of checkpoints."""

from __future__ import annotations

from typing import Literal, TypeAlias

import click

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import LABEL, REVISION, TAG, THREAD
from holdfast.interfaces.cli.formatting import safe

Kind: TypeAlias = Literal["tag", "label"]


@command("tag")
@click.argument("thread", type=THREAD)
@click.argument("tag", type=TAG, required=False)
@click.argument("revision", type=REVISION, required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the tag.")
@click.option("-f", "--force", is_flag=True, help="Move the tag from the checkpoint that has it.")
def tag(session: CliContext, thread: str, tag: str | None, revision: str | None, delete: bool, force: bool) -> None:
    """List, add or remove tags. One checkpoint of a thread has a tag, and the tag is a revision.

    \b
    holdfast tag THREAD                 list them
    holdfast tag THREAD TAG [REVISION]  tag a checkpoint, HEAD unless one is named
    holdfast tag THREAD -d TAG          remove a tag
    """
    if tag is None:
        if delete or force:
            raise InvalidError("no tag is named", hint="holdfast tag THREAD TAG")
        _list(session, thread, "tag")
        return
    if delete:
        handle = session.open(write=True).thread(thread)
        tags = handle.tags()
        if tag not in tags:
            raise _missing(thread, "tag", tag)
        handle.untag(tag)
        _removed(session, thread, "tag", tag, [tags[tag]])
        return
    handle = session.open(write=True).thread(thread)
    checkpoint = handle.resolve(revision or "HEAD")
    try:
        handle.tag(tag, checkpoint, move=force)
    except ConflictError as taken:
        taken.hint = "Use another tag, or move this one with --force"
        raise
    _added(session, thread, "tag", tag, checkpoint.id)


@command("label")
@click.argument("thread", type=THREAD)
@click.argument("label", type=LABEL, required=False)
@click.argument("revision", type=REVISION, required=False)
@click.option("-d", "--delete", is_flag=True, help="Remove the label: from one checkpoint, or from all.")
def label(session: CliContext, thread: str, label: str | None, revision: str | None, delete: bool) -> None:
    """List, add or remove labels. Any number of checkpoints can have one label.

    \b
    holdfast label THREAD                       list them
    holdfast label THREAD LABEL [REVISION]      label a checkpoint, HEAD unless one is named
    holdfast label THREAD -d LABEL [REVISION]   remove a label
    """
    if label is None:
        if delete:
            raise InvalidError("no label is named", hint="holdfast label THREAD -d LABEL")
        _list(session, thread, "label")
        return
    handle = session.open(write=True).thread(thread)
    if delete:
        ids = handle.labels().get(label)
        if ids is None:
            raise _missing(thread, "label", label)
        if revision is not None:
            ids = [id for id in ids if id == handle.resolve(revision).id]
        handle.unlabel(label, revision)
        _removed(session, thread, "label", label, ids)
        return
    checkpoint = handle.resolve(revision or "HEAD")
    handle.label(label, checkpoint)
    _added(session, thread, "label", label, checkpoint.id)


def _list(session: CliContext, thread: str, kind: Kind) -> None:
    handle = session.open().thread(thread)
    handle.info()  # says so if there is none
    found = {name: [id] for name, id in handle.tags().items()} if kind == "tag" else handle.labels()
    if session.json:
        session.emit_all({"thread": thread, kind: name, "ids": ids} for name, ids in found.items())
        return
    session.out.page()
    rows = [(name, id) for name, ids in found.items() for id in ids]
    if rows:
        session.out.table((kind.upper(), "CHECKPOINT"), rows, styles={"CHECKPOINT": "yellow"})


def _added(session: CliContext, thread: str, kind: Kind, name: str, id: str) -> None:
    if session.json:
        session.emit({"thread": thread, "id": id, kind: name})
    else:
        session.out.line(safe(f"{id} has the {kind} {name}."))


def _removed(session: CliContext, thread: str, kind: Kind, name: str, ids: list[str]) -> None:
    if session.json:
        session.emit({"thread": thread, kind: name, "removed_from": ids})
    else:
        session.out.line(safe(f"The {kind} {name} was removed from {', '.join(ids) or 'none'}."))


def _missing(thread: str, kind: Kind, name: str) -> NotFoundError:
    return NotFoundError(
        f"no checkpoint has the {kind} {name!r}", where=f"thread {thread!r}", hint=f"See holdfast {kind} {thread}"
    )
