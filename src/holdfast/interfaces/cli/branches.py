"""`holdfast branch`, `switch`, `fork` and `restore`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ConflictError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.formatting import plural, safe
from holdfast.interfaces.cli.scope_args import read_value

if TYPE_CHECKING:
    pass


@command("branch", thread=THREAD)
@click.argument("names", metavar="[NAME [REVISION]]", nargs=-1, type=BRANCH)
@click.option("--at", type=REVISION, help="The REVISION, as an option.")
@click.option("-m", "--rename", is_flag=True, help="Rename the branch NAME to the name that follows.")
@click.option("-d", "--delete", is_flag=True, help="Delete branches, if that loses nothing.")
@click.option("-D", "--delete-anyway", is_flag=True, help="Delete branches even so, except what is pinned or held.")
@dry_run_option
@yes_option
def branch(
    session: CliContext,
    thread: str,
    names: tuple[str, ...],
    at: str | None,
    rename: bool,
    delete: bool,
    delete_anyway: bool,
) -> None:
    """List, create, rename or delete branches.

    holdfast branch THREAD                  list them; * is the current one
    holdfast branch THREAD NAME [REVISION]  start one at a checkpoint, by default HEAD
    holdfast branch THREAD -m OLD NEW       rename one
    holdfast branch THREAD -d NAME...       delete some, with the checkpoints that only they have
    """
    if rename + delete + delete_anyway > 1:
        raise InvalidError("give only one of -m, -d and -D")
    if at is not None and (not names or rename or delete or delete_anyway):
        raise InvalidError("--at says where a new branch starts", hint="holdfast branch THREAD NAME --at REVISION")
    if not names and not (rename or delete or delete_anyway):
        session.list(
            session.open().thread(thread).branches(),
            first=("current", "name", "head", "ahead"),
            current=lambda branch: "*" if branch.current else "",
            name=lambda branch: branch.name or f"(branch {branch.branch})",
            head=lambda branch: branch.head or "(pruned)",
        )
    elif rename:
        if len(names) != 2:
            raise InvalidError("-m needs the old and the new name", hint="holdfast branch THREAD -m OLD NEW")
        session.open(write=True).thread(thread).rename_branch(*names)
        record = {"thread": thread, "name": names[1], "renamed_from": names[0]}
        session.report(f"Renamed {names[0]} to {names[1]}.", record)
    elif delete or delete_anyway:
        if not names:
            raise InvalidError("a branch is missing", hint="holdfast branch THREAD -d NAME")
        _delete(session, thread, names, force=delete_anyway)
    else:
        if len(names) + (at is not None) > 2:
            raise InvalidError("too many arguments", hint="holdfast branch THREAD NAME [REVISION]")
        name, revision = names[0], names[1] if len(names) > 1 else at or "HEAD"
        info = session.open(write=True).thread(thread).fork(name, at=revision)
        session.report(f"Started branch {name} at {info.base}.", info)


def _delete(session: CliContext, thread: str, names: Sequence[str], *, force: bool) -> None:
    handle = session.open(write=not session.dry_run).thread(thread)
    try:
        deleted = {name: handle.delete_branch(name, force=force, dry_run=True) for name in names}
    except ConflictError as error:
        error.hint = f"If you are sure: holdfast branch {thread} -D {' '.join(names)}"
        raise
    count = sum(map(len, deleted.values()))
    if not session.dry_run:
        what = f"{', '.join(names)} of {thread}, and {plural(count, 'checkpoint')} that only they have"
        session.confirm(f"Delete {what}?", yes=session.yes or not count)
        deleted = {name: handle.delete_branch(name, force=force) for name in names}
    for name, ids in deleted.items():
        record = {"thread": thread, "name": name, "ids": ids, "deleted": not session.dry_run}
        verb = "Would delete" if session.dry_run else "Deleted"
        session.report(f"{verb} branch {name} and {plural(len(ids), 'checkpoint')} of its own.", record)


@command("switch", thread=THREAD, branch=BRANCH, revision=REVISION)
@click.option("-c", "--create", is_flag=True, help="Start the branch first, at REVISION or HEAD.")
def switch(session: CliContext, thread: str, branch: str, revision: str | None, create: bool) -> None:
    """Make a branch the current one: its last checkpoint becomes HEAD.

    If needed, a checkpoint that changes nothing is added to the branch.

    holdfast switch chat draft
    """
    if revision is not None and not create:
        raise InvalidError("only a new branch takes a revision", hint="Give -c to start one at REVISION")
    handle = session.open(write=True).thread(thread)
    if create:
        handle.fork(branch, at=revision or "HEAD")
    checkpoint = handle.switch(branch)
    session.report(f"Switched {thread} to {branch}, at {checkpoint.id}.", checkpoint)


@command("fork", thread=THREAD)
@click.argument("name", metavar="NAME")
@click.argument("revision", type=REVISION, default="HEAD")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a path; the value is JSON or text.")
@click.option("--remove", multiple=True, metavar="PATH", help="Remove a path.")
def fork(
    session: CliContext, thread: str, name: str, revision: str, changes: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Start a branch at a checkpoint, optionally with an edited state.

    holdfast fork chat what-if HEAD~3 --set plan.goal=rest --set 'limits={"steps": 5}'
    """
    from holdfast.engine.paths import parse_path

    handle = session.open(write=True).thread(thread)
    edits: dict[str | Sequence[Any], Any] = dict(map(_parse_change, changes))
    removed = [parse_path(path) for path in remove]
    info = handle.fork(name, at=revision, changes=edits, remove=removed)
    edited = f", with {info.head}" if info.ahead else ""
    session.report(f"Started branch {name} at {info.base}{edited}.", info)


def _parse_change(text: str) -> tuple[tuple[Any, ...], Any]:
    """Parse a path and a value, such as `plan.goal=rest`."""
    from msgspec import DecodeError
    from msgspec.json import decode

    from holdfast.engine.paths import parse_path

    path, equals, value = text.partition("=")
    if not equals:
        raise InvalidError(f"{text!r} has no value", hint="Write PATH=VALUE, as in plan.goal=rest")
    try:
        return parse_path(path), decode(value)
    except DecodeError:
        return parse_path(path), value


@command("restore", thread=THREAD)
@click.argument("revision", type=REVISION, required=False, metavar="REVISION")
@click.option("--branch", type=BRANCH, help="Save it on this branch; by default after HEAD.")
def restore(session: CliContext, thread: str, revision: str | None, branch: str | None) -> None:
    """Save the state of an older checkpoint in a new one. No checkpoint is removed.

    holdfast restore chat HEAD~3
    """
    if revision is None:
        raise InvalidError(
            "a revision is missing",
            hint=f"holdfast log {thread} --oneline lists them; HEAD~1 is the one before the last",
        )
    checkpoint = session.open(write=True).thread(thread).restore(at=revision, branch=branch)
    session.report(f"{checkpoint.id} has the state of {checkpoint.metadata['restored']}.", checkpoint)


@command("undo", thread=THREAD)
@click.argument("steps", type=click.IntRange(1), default=1, metavar="[N]")
@click.option("--branch", type=BRANCH, help="Undo on this branch; by default at HEAD.")
@dry_run_option
def undo(session: CliContext, thread: str, steps: int, branch: str | None) -> None:
    """Undo the last checkpoint of a thread, or the last N: save the state before them again. No checkpoint is removed.

    Without N it also undoes an undo: the checkpoint that this adds is the last one then.

    holdfast undo chat
    holdfast undo chat 3 --dry-run
    """
    handle = session.open(write=not session.dry_run).thread(thread)
    end = branch or "HEAD"
    before = handle.find(f"{end}~{steps}")
    changes = handle.diff(end, before.id).without_internal()
    what = ", ".join(safe(str(each)) for each in changes.summary) or "no change"
    undone = plural(steps, "checkpoint")
    if session.dry_run:
        session.report(f"Would undo {undone} ({what}).", before)
        return
    checkpoint = handle.restore(at=before.id, branch=branch)
    session.report(f"Undid {undone} ({what}): {checkpoint.id} has the state of {before.id}.", checkpoint)


@command("append", thread=THREAD)
@click.argument("items", nargs=-1, required=True, metavar="ITEM...")
@click.option("--text", is_flag=True, help="The items are text, not JSON.")
@click.option("--branch", type=BRANCH, help="Save it on this branch; by default after HEAD.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
def append(
    session: CliContext, thread: str, path: str, items: tuple[str, ...], text: bool, branch: str | None, create: bool
) -> None:
    """Append items to a list in the state of a thread, as a new checkpoint. The list starts empty.

    An ITEM is JSON, or with --text text; - is standard input.

    holdfast append chat messages '{"role": "user", "content": "Where is my parcel?"}'
    holdfast append chat plan.steps "call the carrier" --text
    """
    values = [read_value(each, f"{path} of thread {thread!r}", text=text, raw=False) for each in items]
    checkpoint = session.open(write=True, create=create).thread(thread).append(path, *values, branch=branch)
    session.report(f"{checkpoint.id} has {plural(len(values), 'item')} more at {safe(path)}.", checkpoint)
