"""`holdfast tag`: what checkpoints are called."""

from __future__ import annotations

import click

from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import REVISION, TAG, THREAD
from holdfast.interfaces.cli.formatting import safe


@command("tag")
@click.argument("thread", type=THREAD)
@click.argument("name", type=TAG, required=False)
@click.argument("revision", type=REVISION, required=False)
@click.option("-n", "--name", "unique", is_flag=True, help="A name: one checkpoint has it, and it is a revision.")
@click.option("-d", "--delete", is_flag=True, help="Take it away: from one checkpoint, or from all.")
@click.option("-f", "--force", is_flag=True, help="Move a name from the checkpoint that has it.")
def tag(
    session: CliContext, thread: str, name: str | None, revision: str | None, unique: bool, delete: bool, force: bool
) -> None:
    """List, give or take away tags and names.

    \b
    holdfast tag THREAD                    list them
    holdfast tag THREAD TAG [REVISION]     tag a checkpoint; any number can have one tag
    holdfast tag THREAD -n NAME [REVISION] name a checkpoint; get it with that name from then on
    holdfast tag THREAD -d TAG [REVISION]  take a tag, or a name, away
    """
    if name is None:
        if unique or delete or force:
            raise InvalidError("no tag is named", hint="holdfast tag THREAD TAG")
        _list(session, thread)
        return
    store = session.open(write=True)
    if delete:
        _delete(session, thread, name, revision, unique=unique)
        return
    checkpoint = store.resolve(thread, revision or "HEAD")
    if unique:
        try:
            store.name(thread, name, checkpoint.id, move=force)
        except ConflictError as taken:
            taken.hint = "Use another name, or move this one with --force"
            raise
    else:
        store.tag(thread, name, checkpoint.id)
    kind = "name" if unique else "tag"
    if session.json:
        session.emit({"thread": thread, "id": checkpoint.id, kind: name})
    else:
        session.out.line(safe(f"{checkpoint.id} has the {kind} {name}."))


def _list(session: CliContext, thread: str) -> None:
    store = session.open()
    store.thread(thread)  # says so if there is none
    found = [("name", name, [id]) for name, id in store.names(thread).items()]
    found += [("tag", tag, ids) for tag, ids in store.tags(thread).items()]
    if session.json:
        session.emit_all({"thread": thread, "kind": kind, "name": name, "ids": ids} for kind, name, ids in found)
        return
    session.out.page()
    rows = [(name, kind, id) for kind, name, ids in found for id in ids]
    if rows:
        session.out.table(("NAME", "KIND", "CHECKPOINT"), rows, styles={"CHECKPOINT": "yellow"})


def _delete(session: CliContext, thread: str, name: str, revision: str | None, *, unique: bool) -> None:
    store = session.open(write=True)
    names, tags = store.names(thread), {} if unique else store.tags(thread)
    if name not in names and name not in tags:
        raise NotFoundError(
            f"no checkpoint has the {'name' if unique else 'tag or the name'} {name!r}",
            where=f"thread {thread!r}",
            hint=f"See holdfast tag {thread}",
        )
    if name in tags:
        id = None if revision is None else store.resolve(thread, revision).id
        gone = tags[name] if id is None else [each for each in tags[name] if each == id]
        store.untag(thread, name, id)
    else:
        gone = [names[name]]
        store.unname(thread, name)
    if session.json:
        session.emit({"thread": thread, "name": name, "kind": "tag" if name in tags else "name", "taken_from": gone})
    else:
        session.out.line(safe(f"{name} was taken from {', '.join(gone) or 'none'}."))
