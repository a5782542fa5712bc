"""`holdfast copy`, `export`, `import` and `delete`: operations on whole threads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from holdfast._lazy import load, missing_extra
from holdfast._views import size
from holdfast.backends.urls import redacted_url
from holdfast.errors import CorruptError, InvalidError
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, kinds_option, parse_kinds, yes_option
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.exit_codes import INTEGRITY
from holdfast.interfaces.cli.formatting import ago, plural, safe
from holdfast.interfaces.cli.output import on_terminal

if TYPE_CHECKING:
    from holdfast.engine.copy.copy_report import CopyProgress
    from holdfast.store.maintenance import Maintenance

_THREADS = click.argument("threads", type=THREAD, nargs=-1, metavar="[THREAD]...")
_FRAMEWORKS = click.Choice(["langgraph"])
_SOURCES = click.Choice(["langgraph", "openai-sessions", "adk", "jsonl"])
_LISTED = 10
"""How many threads are listed before they are deleted."""


@command("copy")
@click.argument("target", metavar="URL")
@_THREADS
@click.option("--all-tenants", is_flag=True, help="Copy the threads of all tenants.")
def copy(session: CliContext, target: str, threads: tuple[str, ...], all_tenants: bool) -> None:
    """Copy threads to another store: all, or some.

    The other store is created if needed. Threads keep their ids and hashes. Existing checkpoints are skipped, so that
    an interrupted copy can be resumed; at the end everything is compared and verified.

    holdfast copy sqlite:///copy.db chat
    """
    store = session.open()
    other = session.open_other(target, create=True)
    with session.progress("Copying") as bar:

        def report(progress: CopyProgress) -> None:
            bar(progress.done, progress.total, f"{progress.phase} {progress.thread}")

        tenants = "all" if all_tenants else "own"
        copied = store.maintenance.copy_to(other, threads=threads or None, tenants=tenants, progress=report)
    _warn_of_changes(session, copied.changing)
    if copied.audit_left_out:
        session.note("The other store has an audit of its own: that of this store was not copied.")
    existing = f", {copied.skipped} of them existed already" if copied.skipped else ""
    what = plural(copied.threads, "thread" if threads else "line")  # a whole store has agents, scopes and more
    text = f"Copied {what}{existing}: {copied.rows:,} rows, {size(copied.bytes)}"
    session.report(text, copied)


@command("export", file=click.Path(dir_okay=False, allow_dash=True))
@_THREADS
@kinds_option("Export lines of this kind in place of threads, all or those that are named; may be repeated.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["holdfast", "jsonl", "json"]),
    default="holdfast",
    show_default=True,
    help="jsonl is the interchange format, for other programs; json has only the states.",
)
@click.option("--subject", metavar="NAME", help="Export everything of this person instead, as JSON to read.")
@click.option(
    "--to", "framework", type=_FRAMEWORKS, help="Write a database of LangGraph's SqliteSaver or PostgresSaver."
)
def export(
    session: CliContext,
    file: str,
    threads: tuple[str, ...],
    kinds: tuple[str, ...],
    form: str,
    subject: str | None,
    framework: str | None,
) -> None:
    """Write threads to a file: all, or some. The file `-` is stdout.

    A file whose name ends in .gz is compressed. Every thread is verified as it is written. `holdfast import` imports
    them to any store, with the same ids and hashes; what is in the interchange format, with --from jsonl.

    holdfast export agents.gz
    holdfast export chats.jsonl --format jsonl
    holdfast export - chat | ssh elsewhere holdfast import -
    holdfast export agents.gz --kind thread --kind agent --kind scope
    holdfast export alice.json --subject u-1842
    holdfast export checkpoints.sqlite --to langgraph
    holdfast export postgresql://db.example.com/agents --to langgraph
    """
    to_stdout = file == "-"
    if to_stdout and session.json:
        raise click.UsageError("--json needs a file: the export would mix with the record on stdout")
    store = session.open_to_record()
    if framework is not None:
        if to_stdout or kinds or form != "holdfast" or subject is not None:
            raise click.UsageError("With --to, give a file and threads alone.")
        with session.progress("Exporting") as progress:
            count = _databases("export_database")(store, file, threads, progress)
        session.report(f"Exported {plural(count, 'checkpoint')} to {redacted_url(file)}", {"checkpoints": count})
        return
    target = sys.stdout.buffer if to_stdout else file
    if subject is not None:
        if threads or kinds or form != "holdfast":
            raise click.UsageError("With --subject, give the file alone.")
        with session.progress("Exporting") as progress:
            found = store.erasure.export(subject, target, progress=progress)
        count = sum(found.records.values())
        session.tell(f"Exported {plural(count, 'record')} of {safe(subject)}: {size(found.bytes)}", found)
        return
    with session.progress("Exporting") as progress:
        exported = store.maintenance.export(
            target, threads=threads or None, kinds=parse_kinds(kinds), format=form, progress=progress
        )
    _warn_of_changes(session, exported.changing)
    records = plural(exported.records, {"holdfast": "row", "json": "state"}.get(form, "checkpoint"))
    text = f"Exported {plural(exported.threads, 'thread')}: {records}, {size(exported.bytes)}"
    (session.tell if to_stdout else session.report)(text, exported)


@command("import", file=click.Path(dir_okay=False, allow_dash=True))
@_THREADS
@kinds_option("Import lines of this kind, all or those that are named; may be repeated.")
@click.option("--as", "as_thread", metavar="NAME", help="Import the thread under this name.")
@click.option(
    "--from",
    "framework",
    type=_SOURCES,
    help="Read a file of the interchange format, or a database of another framework: a file, or a URL.",
)
@click.option("--allow", multiple=True, metavar="MODULE:CLASS", help="With --from: make objects of this class.")
@dry_run_option
def import_(
    session: CliContext,
    file: str,
    threads: tuple[str, ...],
    kinds: tuple[str, ...],
    as_thread: str | None,
    framework: str | None,
    allow: tuple[str, ...],
) -> None:
    """Read threads from a file that `holdfast export` wrote: all, or some. The file `-` is stdin.

    The file and every hash in it are verified before anything is written. Existing threads are skipped; if one has
    another history, nothing is imported.

    Without --kind, threads, agents, scopes and sessions are imported. Rights, the audit and other records of the store
    are imported only if --kind names them. With --dry-run, everything in the file is listed, these first.

    holdfast import agents.gz --dry-run
    holdfast import agents.gz --kind access
    holdfast import --from jsonl chats.jsonl
    holdfast import --from langgraph checkpoints.sqlite
    holdfast import --from openai-sessions conversations.db
    holdfast import --from adk sessions.db
    """
    if framework not in (None, "jsonl"):
        if kinds or as_thread is not None or session.dry_run:
            raise click.UsageError("With --from, give threads alone; `holdfast estimate` says what would be imported.")
        if framework == "langgraph":
            _import_peer(session, file, threads, allow)
        elif allow:
            raise click.UsageError("--allow is for databases of LangGraph's savers.")
        else:
            _import_sessions(session, str(framework), file, threads)
        return
    if allow:
        raise click.UsageError("--allow is for databases of LangGraph's savers.")
    store = session.open(write=not session.dry_run, create=not session.dry_run)
    source = sys.stdin.buffer if file == "-" else file
    with session.progress("Importing") as progress:
        imported = store.maintenance.import_(
            source,
            threads=threads or None,
            kinds=parse_kinds(kinds),
            as_thread=as_thread,
            format=framework or "holdfast",
            dry_run=session.dry_run,
            progress=progress,
        )
    verb = "Would import" if session.dry_run else "Imported"
    existing = f"; {len(imported.skipped)} existed already" if imported.skipped else ""
    written = "" if session.dry_run else f": {imported.rows:,} rows, {size(imported.bytes)}"
    text = f"{verb} {plural(len(imported.threads), 'thread')}{written}{existing}"
    session.report(text, imported, {"dry_run": session.dry_run})
    if session.json:
        return
    if session.dry_run or session.verbose:
        session.list(imported.contents, selected=lambda each: "import" if each.selected else "leave out")
    others = sorted({each.kind for each in imported.left_out} - {"thread", "agent", "scope", "session"})
    if others and not threads:
        options = " ".join(f"--kind {kind}" for kind in others)
        session.warn(f"the file also has lines of kind {', '.join(others)}, which are imported only with {options}")


def _databases(name: str) -> Callable[..., Any]:
    """Return a function of what knows the databases of LangGraph's savers, if LangGraph is installed."""
    try:
        return cast("Callable[..., Any]", load("holdfast.interfaces.langgraph.databases", name))
    except ImportError as error:
        raise missing_extra("langgraph", error) from error


def _import_peer(session: CliContext, file: str, threads: tuple[str, ...], allow: tuple[str, ...]) -> None:
    """Import threads from a database of LangGraph's savers."""
    store = session.open(write=True, create=True)
    with session.progress("Importing") as progress:
        report = _databases("import_database")(store, file, threads, allow, progress)
    existing = f"; {report.skipped:,} were there already" if report.skipped else ""
    text = f"Imported {plural(report.checkpoints, 'checkpoint')} of {plural(report.threads, 'thread')}{existing}"
    session.report(text, report)


def _import_sessions(session: CliContext, kind: str, file: str, threads: tuple[str, ...]) -> None:
    """Import sessions from a database of another framework."""
    from holdfast.interfaces.peer_sessions import import_sessions

    store = session.open(write=True, create=True)
    with session.progress("Importing") as progress:
        report = import_sessions(store, kind, file, threads, progress)
    existing = f"; {report.skipped:,} were there already" if report.skipped else ""
    text = f"Imported {plural(report.messages, 'message')} of {plural(report.threads, 'thread')}{existing}"
    session.report(text, report)


@command("estimate")
@click.option("--allow", multiple=True, metavar="MODULE:CLASS", help="Make objects of this class.")
def estimate(session: CliContext, file: str, allow: tuple[str, ...]) -> None:
    """Say what a database of another framework would take in a store. Only reads it.

    It is one of LangGraph's savers, of sessions of the OpenAI Agents SDK, or of Google ADK. Its threads are imported
    into a store in a temporary directory, which is deleted.

    holdfast estimate checkpoints.sqlite
    holdfast estimate conversations.db
    """
    from holdfast.interfaces.peer_sessions import estimate_sessions, find_kind

    kind = find_kind(file)
    if kind is not None and allow:
        raise click.UsageError("--allow is for databases of LangGraph's savers.")
    with session.progress("Reading") as progress:
        found = (
            _databases("estimate")(file, allow, progress) if kind is None else estimate_sessions(kind, file, progress)
        )
    what = plural(found.checkpoints, "checkpoint") if kind is None else plural(found.messages, "message")
    more, fewer = max(found.before, found.after), min(found.before, found.after)
    ratio, word = more / fewer, "less" if found.before > found.after else "more"
    text = (
        f"{what} of {plural(found.threads, 'thread')}: "
        f"{size(found.before)} there, {size(found.after)} here, {ratio:,.{0 if ratio >= 10 else 1}f} times {word}"
    )
    session.report(text, found)


@command("delete")
@click.argument("threads", type=THREAD, nargs=-1, metavar="[THREAD]...")
@click.option("--where", metavar="QUERY", help="Those that match a query, such as 'updated<90d'.")
@click.option("--expired", is_flag=True, help="The threads whose TTL is over.")
@click.option("--prefix", metavar="TEXT", help="Of these, only those whose names start with this.")
@kinds_option("With --where, delete agents or sessions in place of threads; may be repeated.")
@yes_option
@dry_run_option
def delete(
    session: CliContext,
    threads: tuple[str, ...],
    where: str | None,
    expired: bool,
    prefix: str | None,
    kinds: tuple[str, ...],
) -> None:
    """Delete threads permanently, with their namespaces: some, all or none of them; or those that are stale.

    A held thread is not deleted: see `holdfast hold`. With --where and --expired, what is held or pinned is skipped,
    and so are agents that are at work.

    holdfast delete chat --dry-run
    holdfast delete --where 'updated<90d' --dry-run
    holdfast delete --where 'updated<90d' --kind agent --kind session
    holdfast delete --expired --yes
    """
    if bool(threads) + (where is not None) + expired != 1:
        raise InvalidError(
            "give exactly one way to select what to delete", hint="Name threads, or give --where, or --expired"
        )
    if threads and (prefix is not None or kinds):
        raise InvalidError("--prefix and --kind apply only with --where or --expired, not with names of threads")
    maintenance = session.open(write=not session.dry_run).maintenance
    if not threads:
        _delete_stale(session, maintenance, where, prefix or "", kinds)
        return
    found = maintenance.delete(threads, dry_run=True)
    names = [each.thread for each in found]
    steps, total = sum(each.steps for each in found), sum(each.bytes for each in found)
    if not session.dry_run:
        if not session.yes:
            _list_names(session, names, steps, total)
        session.confirm(f"Delete {plural(len(names), 'thread')} permanently?")
        maintenance.delete(threads)
    verb = "Would delete" if session.dry_run else "Deleted"
    text = f"{verb} {plural(len(names), 'thread')}: {plural(steps, 'checkpoint')}, {size(total)}"
    lines = [text, *(f"  {safe(name)}" for name in names if session.dry_run)]
    session.report(lines, {"threads": names, "steps": steps, "bytes": total, "dry_run": session.dry_run})


def _list_names(session: CliContext, names: Sequence[str], steps: int, total: int) -> None:
    """Show what is about to be deleted."""
    more = [f"  and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    listed = "\n".join([*(f"  {safe(name)}" for name in names[:_LISTED]), *more])
    session.note(f"{listed}\n{plural(steps, 'checkpoint')}, {size(total)}")


def _delete_stale(
    session: CliContext,
    maintenance: Maintenance,
    where: str | None,
    prefix: str,
    kinds: tuple[str, ...],
) -> None:
    """Delete what a query or its TTL selects, and say what was skipped."""
    delete = partial(maintenance.delete_stale, where, prefix=prefix, kinds=parse_kinds(kinds))
    if not (session.dry_run or session.yes):
        if not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
            session.confirm("", yes=False)  # raises, before the long dry run
        with session.progress("Planning") as progress:
            found = delete(dry_run=True, progress=progress).deleted
        if found:
            names = [each.name if each.kind == "thread" else f"{each.kind} {each.name}" for each in found]
            _list_names(session, names, sum(each.steps for each in found), sum(each.bytes for each in found))
            session.confirm(f"Delete {'these' if len(found) > 1 else 'this'} permanently?", yes=False)
    with session.progress("Planning" if session.dry_run else "Deleting") as progress:
        report = delete(dry_run=session.dry_run, progress=progress)
    verb = "would be deleted" if session.dry_run else "deleted"
    lines = [safe(f"{each.kind} {each.name}: {verb}, last changed {ago(each.updated)}") for each in report.deleted]
    counts = Counter(each.kind for each in report.deleted) or {"thread": 0}
    total = ", ".join(plural(count, kind) for kind, count in counts.items())
    text = f"{total} {verb}, {size(sum(each.bytes for each in report.deleted))}."
    session.report([*lines, session.out.style(text, "bold")], report)
    for each in () if session.json else report.skipped:
        session.warn(f"{each.kind} {each.name}: {each.problem}")
    session.exit_if(any(each.code == CorruptError.code for each in report.skipped), INTEGRITY)


def _warn_of_changes(session: CliContext, names: Sequence[str]) -> None:
    for name in names:
        session.warn(f"thread {name!r} kept changing: its newest checkpoints may be missing")
