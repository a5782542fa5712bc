"""`holdfast migrate`: bring the states of a store to another version of their schema, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, F, command, dry_run_option, group, yes_option
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.interfaces.cli.output import Output
    from holdfast.maintenance.migration.bulk import MigrationReport
    from holdfast.maintenance.migration.heads import UnfitState
    from holdfast.maintenance.migration.plan import MigrationPlan
    from holdfast.schemas.schema_set import SchemaSet

_MODULE = click.option(
    "--module", metavar="NAME", help="The module that declares the schemas, in place of that of holdfast.toml."
)


_ON_ERROR = click.option(
    "--on-error",
    type=click.Choice(("stop", "skip", "rollback")),
    default="stop",
    show_default=True,
    help="What to do if a state cannot be migrated.",
)


def load_declared(module: str | None = None) -> SchemaSet:
    """Return the schemas that the project's module declares, and older versions of the lock file."""
    from holdfast.schemas.settings import find_settings

    settings = find_settings(module)
    return settings.load().extended(settings.read_lock().schemas)


def _choose(declared: SchemaSet, name: str | None) -> str:
    names = declared.names()
    if name is not None:
        return name
    if len(names) != 1:
        raise InvalidError(f"there are {len(names)} schemas", hint=f"Name one of them: {', '.join(names)}")
    return names[0]


def _selection(function: F) -> F:
    for option in (
        click.option("--threads", metavar="PATTERN", help="Only threads whose names match, such as 'chat-*'."),
        click.option(
            "--branches",
            type=click.Choice(("all", "named", "newest")),
            default="all",
            show_default=True,
            help="The branches whose last states are migrated.",
        ),
        _MODULE,
    ):
        function = option(function)
    return function


@group("migrate")
def migrate(session: CliContext) -> None:
    """Bring the states of a store to another version of their schema, and back.

    holdfast migrate status                           versions, and how many states have each
    holdfast migrate plan chat                        check all states; nothing is written
    holdfast migrate up chat --backup backups         upgrade, with a backup first
    holdfast migrate down chat --to 1.0.0             go back
    holdfast migrate new chat                         print the migration to write
    holdfast migrate test                             run every migration on generated states
    """


@command("status")
@_MODULE
def status(session: CliContext, module: str | None) -> None:
    """List the schemas: the version that is written, and how many latest states there are of each.

    Ends with exit code 6 if a migration was edited after it was applied, or a version has another form in the store.
    """
    declared = load_declared(module)
    with session.progress("Counting") as progress:
        found = session.open().schemas.status(declared, progress=progress)
    session.list(
        found,
        current=lambda each: f"{each.current or '-'}{' (downgraded)' if each.pinned else ''}",
        newest=lambda each: each.newest or "-",
        states=lambda each: ", ".join(f"{version}: {count}" for version, count in each.states.items()) or "none",
    )
    for each in () if session.json else found:
        for text in each.edited:
            session.warn(f"the migration {text} was edited after it was applied")
        for reference in each.changed:
            session.warn(f"{reference} has another form in the store: a schema that changes gets a new version")
    session.exit_if(any(each.edited or each.changed for each in found), exit_codes.FINDINGS)


@command("plan")
@click.option("--to", metavar="VERSION", help="The version to migrate to, in place of the newest.")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True, help="How many states to show.")
@_selection
def plan(session: CliContext, name: str | None, samples: int, module: str | None, **selected: Any) -> None:
    """Check all states, and show what a migration would do to some of them. Nothing is written.

    Ends with exit code 6 if a state does not fit, or a migration was edited after it was applied.
    """
    declared = load_declared(module)
    with session.progress("Planning") as progress:
        found = session.open().schemas.plan(
            declared, _choose(declared, name), samples=samples, progress=progress, **selected
        )
    _show_plan(session, found)
    session.exit_if(not found.ok, exit_codes.FINDINGS)


def _show_plan(session: CliContext, found: MigrationPlan) -> None:
    session.report(_plan_lines(session.out, found), found)


def _plan_lines(out: Output, found: MigrationPlan) -> Iterator[str]:
    yield f"{safe(found.name)} to {found.target}: {plural(found.pending, 'state')} to migrate"
    yield from (f"  {version}: {plural(count, 'state')}" for version, count in found.states.items())
    for text in found.migrations:
        lossy = out.style(" (lossy: a downgrade may not restore everything)", "yellow") if text in found.lossy else ""
        yield f"  {safe(text)}{lossy}"
    yield from (out.style(f"  {safe(text)} was edited after it was applied", "red") for text in found.edited)
    for sample in found.samples:
        yield f"{sample.kind} {safe(sample.thread)}, checkpoint {safe(sample.checkpoint)}"
        for key in dict.fromkeys((*sample.before, *sample.after)):
            before, after = (side.get(key, _NONE) for side in (sample.before, sample.after))
            if before is not _NONE and before != after:
                yield out.style(f"- {safe(key)}: {safe(repr(before)[:200])}", "red")
            if after is not _NONE and before != after:
                yield out.style(f"+ {safe(key)}: {safe(repr(after)[:200])}", "green")
    yield from _unfit_lines(out, found.unfit)
    if found.unfit_total:
        yield f"{plural(found.unfit_total, 'state')} cannot be migrated"


def _unfit_lines(out: Output, unfit: Iterable[UnfitState]) -> Iterator[str]:
    for each in unfit:
        where = f"{each.kind} {each.thread}, step {each.step}" + (f", {each.path}" if each.path else "")
        yield out.style(f"{each.code} {safe(where)}: {safe(each.reason)}", "red")


_NONE = object()


@command("up")
@click.option("--to", metavar="VERSION", help="The version to migrate to, in place of the newest.")
@click.option(
    "--backup",
    metavar="REPOSITORY",
    envvar="HOLDFAST_BACKUPS",
    show_envvar=True,
    help="Make a backup in this repository first.",
)
@click.option("--no-backup", is_flag=True, help="Make none.")
@_ON_ERROR
@click.option("--accept-edited", is_flag=True, help="Take migrations that were edited after they were applied.")
@dry_run_option
@yes_option
@_selection
def up(
    session: CliContext,
    name: str | None,
    backup: str | None,
    no_backup: bool,
    on_error: Any,
    accept_edited: bool,
    module: str | None,
    **selected: Any,
) -> None:
    """Migrate all latest states, after all of them were checked.

    One step of kind `migrate` is appended to each; nothing that is stored changes. A run that was stopped or killed is
    continued by the same command, and several processes share one.
    """
    declared = load_declared(module)
    chosen = _choose(declared, name)
    store = session.open(write=not session.dry_run)
    with session.progress("Planning") as progress:
        found = store.schemas.plan(declared, chosen, samples=3 if session.dry_run else 0, progress=progress, **selected)
    if session.dry_run:
        _show_plan(session, found)
        return
    if on_error != "skip":
        found.require(accept_edited=accept_edited)
    if found.pending:
        if backup is None and not no_backup:
            raise InvalidError(
                "say where to make a backup first, or that no backup is wanted",
                hint="Give --backup DIRECTORY, or --no-backup",
            )
        session.confirm(f"Migrate {plural(found.pending, 'state')} of {chosen} to {found.target}?")
        if backup is not None and not no_backup:
            made = store.backups(backup).create(reason="migration")
            session.note(f"Made backup {made.number} of {plural(made.lines, 'line')} in {backup}.")
    with session.progress("Migrating") as progress:
        report = store.schemas.up(
            declared,
            chosen,
            on_error=on_error,
            check_first=False,
            accept_edited=accept_edited,
            progress=progress,
            **selected,
        )
    _show_report(session, report)


@command("down")
@click.option("--to", metavar="VERSION", required=True, help="The version to go back to.")
@_ON_ERROR
@dry_run_option
@yes_option
@_selection
def down(session: CliContext, name: str | None, on_error: Any, module: str | None, **selected: Any) -> None:
    """Take all latest states back to an older version, after all of them were checked.

    States that were not changed since are exactly what they were. Programs with a newer version cannot write until
    `holdfast migrate up` is run again.
    """
    declared = load_declared(module)
    chosen = _choose(declared, name)
    store = session.open(write=not session.dry_run)
    if session.dry_run:
        with session.progress("Planning") as progress:
            _show_plan(session, store.schemas.plan(declared, chosen, progress=progress, **selected))
        return
    session.confirm(f"Downgrade the states of {chosen} to {selected['to']}?")
    with session.progress("Migrating") as progress:
        report = store.schemas.down(declared, chosen, on_error=on_error, progress=progress, **selected)
    _show_report(session, report)


def _show_report(session: CliContext, report: MigrationReport) -> None:
    session.report(_report_lines(session.out, report), report)
    session.exit_if(report.unfit_total, exit_codes.FINDINGS)


def _report_lines(out: Output, report: MigrationReport) -> Iterator[str]:
    restored = f", {report.restored} of them as they were" if report.restored else ""
    what = f"Migrated {plural(report.migrated, 'state')} of {safe(report.name)} to {report.target}{restored}"
    yield f"{what}; {report.skipped} had that version."
    for thread in report.deferred:
        yield f"{safe(thread)} is in the middle of a step: it is upgraded when it is resumed"
    for version in report.still_written:
        yield f"Programs still write {version}: states of it may be left. Run this again when they have ended."
    yield from _unfit_lines(out, report.unfit)


@command("new")
@click.option("--from", "source", metavar="VERSION", help="The version to start from, in place of the store's.")
@click.option("--to", metavar="VERSION", help="The version to lead to, in place of the newest.")
@_MODULE
def new(session: CliContext, name: str | None, source: str | None, to: str | None, module: str | None) -> None:
    """Print a migration, ready to paste: from the version that the store has to the newest of the code."""
    from holdfast.schemas.version_graph import migration_skeleton

    declared = load_declared(module)
    chosen = _choose(declared, name)
    registered = None
    if source is None:
        registered = session.open().schemas.registered()
        record = registered.records.get(chosen)
        if record is None:
            raise InvalidError(f"the store has no states of {chosen}", hint="Give --from")
        declared = declared.extended(registered.schemas)
    older = declared.get(f"{chosen}@{source or (registered and registered.records[chosen].current)}")
    newer = declared.get(chosen if to is None else f"{chosen}@{to}")
    if older.version == newer.version:
        raise InvalidError(f"{older.schema_reference} is the newest version", hint="Give --from and --to")
    text = migration_skeleton(chosen, older.version, newer.version, older, newer, declared.compare)
    made = {"name": chosen, "source": older.version, "target": newer.version, "text": text}
    session.report((safe(text, lines=True),), made)


@command("test")
@click.option("--examples", type=click.IntRange(1), default=20, show_default=True, help="States for each way.")
@_MODULE
def test(session: CliContext, examples: int, module: str | None) -> None:
    """Run every migration, and every way between two versions, on generated states: up, down, and timed.

    Ends with exit code 6 if one fails. Needs the extra `testing`.
    """
    from holdfast._lazy import load, missing_extra

    try:  # the kit is a package of its own, and needs hypothesis
        check_round_trips, migration_edges, seconds_per_state = (
            load("holdfast.testing.migrations", name)
            for name in ("check_round_trips", "migration_edges", "seconds_per_state")
        )
    except ImportError as error:
        raise missing_extra("testing", error) from error
    declared = load_declared(module)
    found, failed = list[dict[str, Any]](), list[str]()
    for edge in migration_edges(declared):
        reason, seconds = "", 0.0
        try:
            check_round_trips(declared, edge, examples)
            seconds = seconds_per_state(declared, edge, 100)
        except (AssertionError, HoldfastError) as error:
            reason = _reason(error) if isinstance(error, HoldfastError) else str(error)
        versions = {"source": str(edge.source.version), "target": str(edge.target.version)}
        found.append({"name": edge.name, **versions, "ok": not reason, "reason": reason, "seconds": round(seconds, 9)})
        failed += [reason if reason.startswith(str(edge)) else f"{edge}: {reason}"] if reason else []
    session.list(found, hidden=("reason",), ok=lambda each: "ok" if each["ok"] else "failed")
    for text in () if session.json else failed:  # whole, below the table: it says which value is the counterexample
        session.out.line(session.out.style(safe(text), "red"))
    session.exit_if(failed, exit_codes.FINDINGS)


def _reason(error: HoldfastError) -> str:
    return f"{error.where}: {error.what}" if error.where else error.what


migrate.add(status, plan, up, down, new, test)
