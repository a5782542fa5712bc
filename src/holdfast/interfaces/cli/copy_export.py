"""`holdfast copy`, `export`, `import` and `delete`: whole threads, out of a store, into it, and away."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import plural, safe, size

if TYPE_CHECKING:
    from holdfast.engine.copy.between_stores import CopyProgress
    from holdfast.store.store import Store

_THREADS = click.argument("threads", type=THREAD, nargs=-1, metavar="[THREAD]...")
_SOME = 10
"""How many threads are named before something is deleted."""


@command("copy")
@click.argument("target", metavar="URL")
@_THREADS
@click.option("--all-tenants", is_flag=True, help="Copy the threads of all tenants, and not only of --tenant.")
def copy(session: CliContext, target: str, threads: tuple[str, ...], all_tenants: bool) -> None:
    """Copy threads to another store: all, or those that are named.

    The other store is made if it is not there. Threads keep their ids and hashes. What is there already is skipped, so
    that a copy that was interrupted goes on when it is begun again; at the end everything is compared and verified.

    \b
    holdfast copy sqlite:///copy.db chat
    """
    store = session.open()
    other = session.open_other(target, create=True)
    with session.progress("Copying") as tell:

        def told(progress: CopyProgress) -> None:
            tell(progress.done, progress.total, f"{progress.phase} {progress.thread}")

        chosen = threads or None
        copied = store.copy_to(other, threads=chosen, tenants="all" if all_tenants else "own", progress=told)
    _warn_of_changing(session, copied.changing)
    if session.json:
        session.emit(copied)
        return
    there = f", {copied.skipped} of them there already" if copied.skipped else ""
    session.out.line(f"Copied {plural(copied.threads, 'thread')}{there}: {copied.rows:,} rows, {size(copied.bytes)}")


@command("export")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@_THREADS
@click.option(
    "--format",
    "form",
    type=click.Choice(["holdfast", "json"]),
    default="holdfast",
    show_default=True,
    help="holdfast can be imported again; json has the states alone, for other tools.",
)
def export(session: CliContext, file: str, threads: tuple[str, ...], form: str) -> None:
    """Write threads to a file: all, or those that are named. The file `-` is stdout.

    A file whose name ends in .gz is compressed. Every thread is verified as it is written. `holdfast import` brings
    them back, in any store, with the same ids and hashes.

    \b
    holdfast export agents.gz
    holdfast export - chat | ssh elsewhere holdfast import -
    """
    to_stdout = file == "-"
    if to_stdout and session.json:
        raise click.UsageError("with --json there is no room for the export on stdout: name a file")
    store = session.open()
    place = sys.stdout.buffer if to_stdout else file
    with session.progress("Exporting") as tell:
        exported = store.export(place, threads=threads or None, format=form, progress=tell)
    _warn_of_changing(session, exported.changing)
    if session.json:
        session.emit(exported)
        return
    records = plural(exported.records, "row" if form == "holdfast" else "state")
    said = f"Exported {plural(exported.threads, 'thread')}: {records}, {size(exported.bytes)}"
    if to_stdout:
        session.note(said)
    else:
        session.out.line(said)


@command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@_THREADS
@click.option("--as", "as_thread", metavar="NAME", help="Bring the one thread under another name.")
@dry_run_option
def import_(session: CliContext, file: str, threads: tuple[str, ...], as_thread: str | None, dry_run: bool) -> None:
    """Read threads from a file that `holdfast export` wrote: all, or those that are named. The file `-` is stdin.

    Nothing is written before the file was seen to be whole and every hash in it right. Threads that are there already
    are left as they are; if one has another history, nothing is imported at all.

    \b
    holdfast import agents.gz --dry-run
    """
    store = session.open(write=not dry_run, create=not dry_run)
    place = sys.stdin.buffer if file == "-" else file
    with session.progress("Importing") as tell:
        imported = store.import_(place, threads=threads or None, as_thread=as_thread, dry_run=dry_run, progress=tell)
    if session.json:
        session.emit({**imported._asdict(), "dry_run": dry_run})
        return
    verb = "Would import" if dry_run else "Imported"
    there = f"; {len(imported.skipped)} there already" if imported.skipped else ""
    wrote = "" if dry_run else f": {imported.rows:,} rows, {size(imported.bytes)}"
    session.out.line(f"{verb} {plural(len(imported.threads), 'thread')}{wrote}{there}")
    if dry_run or session.verbose:
        for name in imported.threads:
            session.out.line(f"  {safe(name)}")


@command("delete")
@click.argument("threads", type=THREAD, nargs=-1, required=True, metavar="THREAD...")
@yes_option
@dry_run_option
def delete(session: CliContext, threads: tuple[str, ...], yes: bool, dry_run: bool) -> None:
    """Delete threads, with their namespaces and all that belongs to them. There is no way back.

    All that are named are deleted, or none. A thread that is held is not deleted: see `holdfast hold`.

    \b
    holdfast delete chat --dry-run
    """
    from holdfast.backends.runtime.drivers import run
    from holdfast.engine.hold_check import require_no_hold

    store = session.open(write=not dry_run)
    lines = run(store._engine.lines.of_threads(store.tenant, threads))
    run(require_no_hold(store._engine.context.backend, lines))
    names = [line.name for line in lines]
    steps, taken = _measured(store, names)
    if not dry_run:
        if not yes:
            more = [f"  and {len(names) - _SOME} more"] if len(names) > _SOME else []
            listed = "\n".join([*(f"  {safe(name)}" for name in names[:_SOME]), *more])
            session.note(f"{listed}\n{plural(steps, 'checkpoint')}, {size(taken)}")
        session.confirm(f"Delete {plural(len(names), 'thread')} for good?", yes=yes)
        run(store._engine.lines.delete(*lines))
    if session.json:
        session.emit({"threads": names, "checkpoints": steps, "bytes": taken, "dry_run": dry_run})
        return
    verb = "Would delete" if dry_run else "Deleted"
    session.out.line(f"{verb} {plural(len(names), 'thread')}: {plural(steps, 'checkpoint')}, {size(taken)}")
    if dry_run:
        for name in names:
            session.out.line(f"  {safe(name)}")


def _measured(store: Store, names: Sequence[str]) -> tuple[int, int]:
    """How many checkpoints threads have, and how many bytes they take."""
    found = [store.thread(name) for name in names]
    return sum(each.info().steps for each in found), sum(each.info().bytes for each in found)


def _warn_of_changing(session: CliContext, names: Sequence[str]) -> None:
    for name in names:
        session.warn(f"thread {name!r} kept changing: its newest checkpoints may be missing")
