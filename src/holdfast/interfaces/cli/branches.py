"""`holdfast branch`, `switch`, `fork`, `restore`: where a thread goes on from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import ConflictError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import BRANCH, REVISION, THREAD
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.engine.types import BranchInfo

_HEADS = ("", "BRANCH", "HEAD", "OWN", "STARTS FROM")


@command("branch")
@click.argument("thread", type=THREAD)
@click.argument("names", metavar="[NAME [REVISION]]", nargs=-1, type=BRANCH)
@click.option("-m", "--rename", is_flag=True, help="Rename the branch NAME to the name that follows.")
@click.option("-d", "--delete", is_flag=True, help="Delete the branches that are named, if that loses nothing.")
@click.option("-D", "--delete-anyway", is_flag=True, help="Delete them even so; what is pinned or held stays.")
@dry_run_option
@yes_option
def branch(
    session: CliContext,
    thread: str,
    names: tuple[str, ...],
    rename: bool,
    delete: bool,
    delete_anyway: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """List, create, rename or delete branches.

    \b
    holdfast branch THREAD                  list them; * is where the thread goes on
    holdfast branch THREAD NAME [REVISION]  start one at a checkpoint, HEAD unless it is named
    holdfast branch THREAD -m OLD NEW       rename one
    holdfast branch THREAD -d NAME...       delete some, with the checkpoints that only they have
    """
    if rename + delete + delete_anyway > 1:
        raise InvalidError("branches are renamed or deleted, not both", hint="Give one of -m, -d and -D")
    if not names and not (rename or delete or delete_anyway):
        _list(session, session.open().thread(thread).branches())
    elif rename:
        if len(names) != 2:
            raise InvalidError("a branch is renamed from one name to another", hint="holdfast branch THREAD -m OLD NEW")
        session.open(write=True).thread(thread).rename_branch(*names)
        _told(session, {"thread": thread, "branch": names[0], "renamed": names[1]}, f"{names[0]} is {names[1]} now.")
    elif delete or delete_anyway:
        if not names:
            raise InvalidError("no branch is named", hint="holdfast branch THREAD -d NAME")
        _delete(session, thread, names, force=delete_anyway, dry_run=dry_run, yes=yes)
    else:
        if len(names) > 2:
            raise InvalidError("a branch starts at one checkpoint", hint="holdfast branch THREAD NAME [REVISION]")
        name, revision = names[0], names[1] if len(names) > 1 else "HEAD"
        made = session.open(write=True).thread(thread).fork(name, at=revision)
        _told(session, made, f"Branch {name} starts at {made.base}.")


def _list(session: CliContext, branches: Sequence[BranchInfo]) -> None:
    if session.json:
        session.emit_all(branches)
        return
    session.out.page()
    rows = [
        (
            "*" if each.current else "",
            each.name or f"(branch {each.branch})",
            each.head or "(pruned)",
            str(each.ahead),
            each.base or "",
        )
        for each in branches
    ]
    session.out.table(_HEADS, rows, right=("OWN",), shrink="STARTS FROM", styles={"": "green", "HEAD": "yellow"})


def _delete(session: CliContext, thread: str, names: Sequence[str], *, force: bool, dry_run: bool, yes: bool) -> None:
    store = session.open(write=not dry_run)
    try:
        going = {name: store.thread(thread).delete_branch(name, force=force, dry_run=True) for name in names}
    except ConflictError as refused:
        refused.hint = f"If you are sure: holdfast branch {thread} -D {' '.join(names)}"
        raise
    count = sum(map(len, going.values()))
    if not dry_run:
        what = f"{', '.join(names)} of {thread}, and {plural(count, 'checkpoint')} that nothing else has"
        session.confirm(f"Delete {what}?", yes=yes or not count)
        going = {name: store.thread(thread).delete_branch(name, force=force) for name in names}
    for name, ids in going.items():
        record = {"thread": thread, "branch": name, "deleted": not dry_run, "checkpoints": ids}
        verb = "Would delete" if dry_run else "Deleted"
        _told(session, record, f"{verb} branch {name} and {plural(len(ids), 'checkpoint')} of its own.")


@command("switch")
@click.argument("thread", type=THREAD)
@click.argument("branch", type=BRANCH)
@click.argument("revision", type=REVISION, required=False)
@click.option("-c", "--create", is_flag=True, help="Start the branch first: at REVISION, or at HEAD.")
def switch(session: CliContext, thread: str, branch: str, revision: str | None, create: bool) -> None:
    """Make a branch the one that the thread goes on with.

    Its last checkpoint becomes the latest of the thread: if need be, by a checkpoint on it that changes nothing.

    \b
    holdfast switch chat draft
    """
    if revision is not None and not create:
        raise InvalidError(
            "a branch that is there starts where it starts", hint="Give -c to start another one at REVISION"
        )
    store = session.open(write=True)
    if create:
        store.thread(thread).fork(branch, at=revision or "HEAD")
    made = store.thread(thread).switch(branch)
    _told(session, made, f"{thread} goes on with {branch}, at {made.id}.")


@command("fork")
@click.argument("thread", type=THREAD)
@click.argument("name", metavar="NAME")
@click.argument("revision", type=REVISION, default="HEAD")
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a place; JSON, or else text.")
@click.option("--remove", multiple=True, metavar="PATH", help="Remove what is at a place.")
def fork(
    session: CliContext, thread: str, name: str, revision: str, changes: tuple[str, ...], remove: tuple[str, ...]
) -> None:
    """Start a branch at a checkpoint, with an edited state if need be.

    \b
    holdfast fork chat what-if HEAD~3 --set plan.goal=rest --set 'limits={"steps": 5}'
    """
    from holdfast.engine.paths import parse_path

    store = session.open(write=True)
    edits: dict[str | Sequence[Any], Any] = dict(map(_change, changes))
    removed = [parse_path(path) for path in remove]
    made = store.thread(thread).fork(name, at=revision, changes=edits, remove=removed)
    edited = f" and goes on with {made.head}" if made.ahead else ""
    _told(session, made, f"Branch {name} starts at {made.base}{edited}.")


def _change(text: str) -> tuple[tuple[Any, ...], Any]:
    """The place and the value of `plan.goal=rest`."""
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


@command("restore")
@click.argument("thread", type=THREAD)
@click.argument("revision", type=REVISION)
@click.option("--branch", type=BRANCH, help="Save it on this branch, and not on top of the latest.")
def restore(session: CliContext, thread: str, revision: str, branch: str | None) -> None:
    """Go back to an older state, in a new checkpoint. Nothing is undone.

    \b
    holdfast restore chat HEAD~3
    """
    made = session.open(write=True).thread(thread).restore(at=revision, branch=branch)
    _told(session, made, f"{made.id} has the state of {made.metadata['restored']}.")


def _told(session: CliContext, record: object, text: str) -> None:
    """Say what was done: as a record, or in words."""
    if session.json:
        session.emit(record)
    else:
        session.out.line(safe(text))
