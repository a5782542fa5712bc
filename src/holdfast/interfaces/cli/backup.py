"""`holdfast backup`: backups of a store in a repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast._views import size
from holdfast.errors import HoldfastError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import (
    CliContext,
    command,
    dry_run_option,
    group,
    kinds_option,
    parse_kinds,
    yes_option,
)
from holdfast.interfaces.cli.formatting import local, plural, safe
from holdfast.interfaces.cli.prune import SizeType

if TYPE_CHECKING:
    from holdfast.maintenance.backup.follower import FollowStatus
    from holdfast.maintenance.backup.pruner import BackupPruneReport
    from holdfast.maintenance.backup.repository import OpenLock
    from holdfast.maintenance.backup.restore_report import RestoreReport
    from holdfast.store.backups import Backups
    from holdfast.store.store import Store

# The options that name a repository of backups, and opening it -------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])

_KEYS = "holdfast.backup.keys"


def repository_option(function: F) -> F:
    """Add the options that name the repository and its key."""
    keys = click.option(
        "-k",
        "--keys",
        envvar="HOLDFAST_BACKUP_KEYS",
        show_envvar=True,
        metavar="KEYS",
        expose_value=False,
        callback=_set_keys,
        help="Where the key of an encrypted repository is: file:PATH, passphrase:PATH, environment:NAME …",
    )
    return keys(_repository(function))


def _set_keys(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_KEYS] = value


def _repository(function: F) -> F:
    return click.option(
        "-r",
        "--repository",
        envvar="HOLDFAST_BACKUPS",
        show_envvar=True,
        required=True,
        metavar="URL",
        help="The repository: a directory, or s3://bucket/prefix, gs://…, az://…",
    )(function)


def of_option(function: F) -> F:
    text = "Backups of the store whose id starts so, where a repository has those of several."
    return click.option("--of", "of", metavar="STORE", help=text)(function)


def open_backups(session: CliContext, repository: str, *, write: bool = False, create: bool = False) -> Backups[Store]:
    """Open the repository that the options name."""
    return session.open(write=write, create=create).backups(repository, keys=click.get_current_context().meta[_KEYS])


def open_to_record(session: CliContext, repository: str) -> Backups[Store]:
    """Open a repository to change it, with a store that records that, if there is one."""
    return open_any(session, repository, write=True)


def open_any(session: CliContext, repository: str, *, write: bool = False) -> Backups[Store]:
    """Open a repository, also where there is no store."""
    try:
        return open_backups(session, repository, write=write)
    except HoldfastError as error:
        if error.code not in ("no-store", "no-store-named"):
            raise
        from holdfast.store.opener import open as open_store

        return open_store("memory://").backups(repository, keys=click.get_current_context().meta[_KEYS])


# Results -----------------------------------------------------------------------------------------------------------


def restore_lines(session: CliContext, report: RestoreReport, *, dry_run: bool) -> Iterator[str]:
    """Say what a restore did, or would do: the lines of its output, and notes and warnings."""
    if dry_run or session.verbose:
        session.list(report.lines)
        for each in report.lines:
            if each.changes and each.action != "damaged":
                yield f"\n{safe(each.name)}:"
                yield from (f"  {safe(line)}" for line in each.changes)
    for each in report.lines:
        if each.action == "damaged":
            session.warn(f"{each.name} is damaged in the backup, and left out: {'; '.join(each.changes)}")
        elif each.action == "unknown":
            session.warn(f"{each.name} was there, and no backup has it")
        elif each.known_at is not None:
            session.warn(f"{each.name} is not exact: it is restored as it was at {each.known_at.isoformat()}")
        elif each.action == "beside":
            session.note(f"{safe(each.name)} is another thread here: restored as {safe(each.as_name)!r}.")
    changed = [each for each in report.lines if each.action in ("create", "extend", "switch", "revert", "beside")]
    verb = "Would restore" if dry_run else "Restored"
    written = "" if dry_run else f": {report.rows:,} rows, {size(report.bytes)}"
    yield f"{verb} {plural(len(changed), 'line')} from {report.backup}{written}"
    same = sum(each.action == "same" for each in report.lines)
    if same and not changed:
        session.note(f"The store has {plural(same, 'line')} of it as in the backup.")
    if report.jobs:
        session.note(f"{plural(report.jobs, 'job')} restored, paused. See `holdfast jobs`.")


_COUNT = click.IntRange(1)
_LISTED = 20


_BACKUP = click.argument("backup", default="latest", metavar="[BACKUP]")


@group("backup")
def backup(session: CliContext) -> None:
    """Make, verify, restore and prune backups.

    A repository has the backups of one or more stores. A backup is named by its id, by its number, as `latest`, or by a
    time, as `2h` or `2026-11-01T10:00`: that is the last one made by then.

    \b
    export HOLDFAST_BACKUPS=s3://bucket/backups
    holdfast backup create
    holdfast backup verify
    holdfast backup restore latest --store sqlite:///new.db --create
    """


@command("create")
@repository_option
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why it is made.")
@click.option("--accept-loss", is_flag=True, help="Go on although the last backup is not in the repository any more.")
def create(session: CliContext, repository: str, reason: str, accept_loss: bool) -> None:
    """Make a backup: of everything the first time, and then of what has changed.

    It has the store as of one moment, while others write. It only creates objects: it needs no right to delete or
    overwrite in the repository.

    holdfast backup create -r backups -m 'before the upgrade'
    """
    backups = open_backups(session, repository, write=True)
    with session.progress("Backing up") as progress:
        made = backups.create(reason=reason, accept_loss=accept_loss, progress=progress)
    for name in made.damaged:
        session.warn(f"{name!r} is damaged: the backup has its last readable state, if any. See `holdfast verify`")
    session.tell(
        f"Backup {made.id}: {plural(made.lines, 'line')}, {size(made.added)} added, {made.seconds:.1f} s.",
        made,
    )
    session.exit_if(made.damaged, exit_codes.FINDINGS)


@command("list")
@repository_option
@of_option
def list_(session: CliContext, repository: str, of: str | None) -> None:
    """List the backups in a repository, the oldest first.

    holdfast backup list -r backups
    """
    backups = open_any(session, repository)
    found = backups.list(store=of)
    session.list(found, exact=True)
    for store in dict.fromkeys(each.store for each in found):
        if (span := backups.covered(store=store)) is not None:
            name = f" of {store[:8]}" if found[0].store != found[-1].store else ""
            session.note(f"Every moment{name} from {local(span.first)} to {local(span.last)} can be restored.")


@command("show")
@_BACKUP
@repository_option
@of_option
def show(session: CliContext, backup: str, repository: str, of: str | None) -> None:
    """Show a backup, and what is in it.

    holdfast backup show 12 -r backups
    """
    info, lines = open_any(session, repository).show(backup, store=of)
    header = session.describe(
        info, f"backup {info.id}", hidden=("id", "store", "lines"), url=f"{info.url} ({info.store})"
    )
    session.report(header, info, {"contents": lines})
    if not session.json:
        session.list(lines)


@command("diff")
@click.argument("after", default="latest", metavar="[AFTER]")
@repository_option
@of_option
def diff(session: CliContext, before: str, after: str, repository: str, of: str | None) -> None:
    """Show which threads and other lines differ between two backups.

    holdfast backup diff 11 12 -r backups
    """
    session.list(open_any(session, repository).diff(before, after, store=of))


def _describe_lock(lock: OpenLock) -> str:
    return (
        f"Backup {lock.store[:8]}.{lock.number} is being made, or was not finished, by process "
        f"{lock.info.process} on {safe(lock.info.host)}. `holdfast backup prune --break-locks` ends it."
    )


@command("verify")
@repository_option
@of_option
@click.option(
    "--level",
    type=click.Choice(["structure", "hashes", "decode"]),
    help="Verify every thread in the backups, too, as `holdfast verify` does.",
)
def verify(session: CliContext, backup: str | None, repository: str, of: str | None, level: str | None) -> None:
    """Check that everything in a repository, or in one backup, is as it was written.

    It needs no store, unless its rows are encrypted.

    holdfast backup verify -r backups
    holdfast backup verify latest --level decode -r backups
    """
    backups = open_any(session, repository)
    with session.progress("Verifying") as progress:
        report = backups.verify(backup, store=of, level=level, progress=progress)
    lines = [
        f"{each.code}: {safe(each.what)} "
        f"({safe(', '.join(filter(None, (each.backup, each.thread, *each.steps))) or each.where)})"
        for each in report.findings
    ]
    result = plural(len(report.findings), "finding") if report.findings else "OK"
    result += f", {len(report.locks)} not finished" if report.locks else ""
    lines += [f"{plural(report.backups, 'backup')}, {plural(report.packs, 'pack')}, {size(report.bytes)}: {result}"]
    for lock in report.locks:
        session.note(_describe_lock(lock))
    for name in report.lost:
        session.note(f"{safe(name)} was lost in a backup, as a repair has said.")
    session.report(lines, report, {"locks": [each.name for each in report.locks]})
    session.exit_if(report.is_damaged, exit_codes.INTEGRITY)
    session.exit_if(report.findings or report.locks, exit_codes.FINDINGS)


@command("repair")
@repository_option
@dry_run_option
def repair(session: CliContext, repository: str) -> None:
    """Repair a repository: rebuild what is damaged, list what is lost, and make a backup of what the store has."""
    report = open_to_record(session, repository).repair(dry_run=session.dry_run)
    lost = [", ".join(filter(None, (each.backup, each.thread, each.what))) for each in report.lost]
    lines = [*(f"damaged: {safe(name)}" for name in report.rebuilt), *(f"lost: {safe(each)}" for each in lost)]
    count = f"{plural(len(report.rebuilt), 'object')}, {len(lost)} lost"
    session.tell(
        "\n".join([*lines, f"{'Would repair' if session.dry_run else 'Repaired'} {count}."]),
        report,
    )
    session.exit_if(lost, exit_codes.FINDINGS)


@command("restore")
@_BACKUP
@click.argument("threads", nargs=-1, metavar="[THREAD]...")
@repository_option
@of_option
@kinds_option("Restore lines of this kind, all or those that are named; may be repeated.")
@click.option("--at", metavar="REVISION", help="Restore one thread as it was at a checkpoint, a tag or a time.")
@click.option("--as", "as_thread", metavar="NAME", help="Restore one thread under another name.")
@click.option("--in-place", is_flag=True, help="Switch threads that have gone on to what the backup has.")
@click.option("--skip-damaged", is_flag=True, help="Leave out threads that are damaged in the backup, and name them.")
@click.option(
    "--exact", is_flag=True, help="Restore nothing if the backups do not know the state of all that was there then."
)
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@dry_run_option
def restore(
    session: CliContext,
    backup: str,
    threads: tuple[str, ...],
    repository: str,
    of: str | None,
    kinds: tuple[str, ...],
    create: bool,
    **options: Any,
) -> None:
    """Restore a backup into the store: everything, some threads, or lines of some kinds.

    All of it appears at once, or not at all. Where a thread has checkpoints that the backup does not have, nothing is
    restored, unless with --in-place: they stay on their branch. A thread of another history is restored beside. With
    --dry-run, what would change is shown, as `holdfast diff` does.

    A time restores the store as it was then, also between two backups. Where the backups do not know the state that a
    thread had, it is restored as of the last moment before that they know, and the exit code is 6; with --exact,
    nothing is.

    holdfast backup restore latest -r backups --store sqlite:///new.db --create
    holdfast backup restore 2h chat --as 'chat of before' -r backups
    """
    backups = open_backups(session, repository, write=not session.dry_run or create, create=create)
    with session.progress("Restoring") as progress:
        report = backups.restore(
            backup,
            threads=threads or None,
            kinds=parse_kinds(kinds),
            store=of,
            dry_run=session.dry_run,
            progress=progress,
            **options,
        )
    session.report(restore_lines(session, report, dry_run=session.dry_run), report, {"exact": report.exact})
    session.exit_if(not report.exact, exit_codes.FINDINGS)


@command("drill")
@_BACKUP
@repository_option
@of_option
def drill(session: CliContext, backup: str, repository: str, of: str | None) -> None:
    """Prove that a backup works: restore it aside, verify it to the last value, and compare it with the store.

    The same is done with a moment between it and the backup before it.

    `holdfast doctor` shows the result.

    holdfast backup drill -r backups
    """
    backups = open_backups(session, repository, write=True)
    with session.progress("Restoring aside") as progress:
        report = backups.drill(backup, store=of, progress=progress)
    for finding in report.findings[:_LISTED]:
        session.warn(finding)
    seconds = report.restore_seconds + report.verify_seconds
    session.tell(
        f"Backup {report.backup} {'works' if report.ok else 'does not work'}: {plural(report.lines, 'line')}, "
        f"{plural(report.steps, 'step')}, {report.compared} compared, {seconds:.1f} s."
        + ("" if report.moment is None else f" Restored the moment {local(report.moment)}, too."),
        report,
    )
    session.exit_if(not report.ok, exit_codes.INTEGRITY)


@command("prune")
@repository_option
@of_option
@click.option("--keep-last", type=_COUNT, metavar="N", help="Keep the last N backups.")
@click.option("--keep-within", metavar="AGE", help="Keep those of this age or less: 30d, 12h, 1w.")
@click.option("--keep-hourly", type=_COUNT, metavar="N", help="Keep the last of each of the last N hours with any.")
@click.option("--keep-daily", type=_COUNT, metavar="N", help="Keep the last of each of the last N days.")
@click.option("--keep-weekly", type=_COUNT, metavar="N", help="Keep the last of each of the last N weeks.")
@click.option("--keep-monthly", type=_COUNT, metavar="N", help="Keep the last of each of the last N months.")
@click.option("--keep-yearly", type=_COUNT, metavar="N", help="Keep the last of each of the last N years.")
@click.option(
    "--keep-label", "keep_labels", multiple=True, metavar="PATTERN", help="Keep those with a matching reason."
)
@click.option("--max-size", "max_bytes", type=SizeType(), metavar="SIZE", help="Drop the oldest until the rest fits.")
@click.option("--grace", default="1d", show_default=True, metavar="AGE", help="How long unused packs stay.")
@click.option(
    "--max-unused",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    metavar="PART",
    help="Repack packs of which more is not needed; 1 for none.",
)
@click.option("--break-locks", is_flag=True, help="End backups that are being made: for locks that a crash left.")
@dry_run_option
@yes_option
def prune(
    session: CliContext, repository: str, of: str | None, grace: str, max_unused: float, break_locks: bool, **rules: Any
) -> None:
    """Remove old backups by a policy, and packs that nothing needs.

    A backup is kept if any rule keeps it. The newest of each store, pinned ones, the last one before a migration, and
    the only way to what is under a legal hold are always kept. Packs are deleted by a later call, when they have been
    unused for --grace. Those that are mostly unused are repacked.

    holdfast backup prune --keep-last 24 --keep-daily 30 --keep-monthly 12 --dry-run -r backups
    """
    backups = open_any(session, repository) if session.dry_run else open_to_record(session, repository)
    given = {name: value for name, value in rules.items() if value not in (None, ())}
    planned = backups.prune(store=of, grace=grace, max_unused=max_unused, dry_run=True, **given)
    if not session.dry_run:
        session.confirm(f"Remove {plural(planned.removed, 'backup')} permanently?")
    report = planned
    if not session.dry_run:
        report = backups.prune(store=of, grace=grace, max_unused=max_unused, break_locks=break_locks, **given)
    locks = {name: [each.name for each in getattr(report, name)] for name in ("locks", "broken")}
    session.report(_prune_lines(session, report, dry_run=session.dry_run, grace=grace), report, locks)
    session.exit_if(report.excess, exit_codes.FINDINGS)


def _prune_lines(session: CliContext, report: BackupPruneReport, *, dry_run: bool, grace: str) -> Iterator[str]:
    for each in report.verdicts:
        word = "keep" if each.kept else "would remove" if dry_run else "removed"
        yield f"{word} {each.id}: {', '.join(each.reasons)}"
    packs = f"{plural(report.deleted, 'pack')} deleted, {size(report.freed)}; {report.recorded} more after {grace}"
    yield f"{packs}; {report.repacked} repacked"
    for lost in report.unreadable:
        session.warn(f"Backup {lost.id} cannot be read, so no pack was deleted: {lost.what}")
    for lock in report.locks:
        session.note(_describe_lock(lock))
    if report.excess:
        stay = "; ".join(f"{each.id} ({', '.join(each.reasons)})" for each in report.verdicts if each.kept)
        session.warn(f"What has to stay is {size(report.excess)} over --max-size: {stay}")


@command("suspend-deletion")
@repository_option
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why.")
def suspend_deletion(session: CliContext, repository: str, reason: str) -> None:
    """Suspend all deletion in a repository, at once and for everybody.

    holdfast backup suspend-deletion -m 'an incident is being investigated' -r backups
    """
    open_to_record(session, repository).suspend_deletion(reason=reason)
    session.tell("Nothing is deleted until `holdfast backup allow-deletion`.", {"changed": True})


@command("allow-deletion")
@repository_option
@yes_option
def allow_deletion(session: CliContext, repository: str) -> None:
    """Allow deletion in a repository again."""
    session.confirm("Allow deletion again?")
    changed = open_to_record(session, repository).allow_deletion()
    text = "Deletion is allowed again." if changed else "Deletion was not suspended."
    session.tell(text, {"changed": changed})


@command("pin")
@repository_option
@of_option
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why.")
@click.option("--remove", is_flag=True, help="Remove the pin.")
def pin(session: CliContext, backup: str, repository: str, of: str | None, reason: str, remove: bool) -> None:
    """Protect a backup from pruning, or no longer.

    holdfast backup pin 12 -m 'end of the year' -r backups
    """
    backups = open_to_record(session, repository)
    if remove:
        backups.unpin(backup, store=of)
    else:
        backups.pin(backup, store=of, reason=reason)
    session.tell(f"{'Unpinned' if remove else 'Pinned'} {backup}.", {"backup": backup, "pinned": not remove})


@command("follow")
@repository_option
@click.option("--interval", default="0.5s", show_default=True, metavar="SPAN", help="How often to look for changes.")
def follow(session: CliContext, repository: str, interval: str) -> None:
    """Make a backup whenever something has changed, until it is interrupted.

    holdfast backup follow -r s3://bucket/backups
    """
    count = 0

    def report(status: FollowStatus) -> None:
        nonlocal count
        if status.error:
            session.warn(status.error)
        elif status.backups > count:
            count = status.backups
            session.tell(f"Backup {status.last}, {status.lag:.2f} s behind.", status)

    open_backups(session, repository, write=True).follow(interval=interval, report=report)


@command("schedule")
@click.argument("schedule", default="every 1h", metavar="[SCHEDULE]")
@repository_option
@click.option("--name", default="backup", show_default=True, metavar="NAME", help="The name of the job.")
@click.option("--drill", default="every 4w", show_default=True, metavar="SCHEDULE", help="When to prove the backups.")
@click.option("--no-drill", is_flag=True, help="Add no job for drills.")
@click.option("--follow", is_flag=True, help="Make a backup whenever something has changed, in place of a schedule.")
def schedule(
    session: CliContext, schedule: str, repository: str, name: str, drill: str, no_drill: bool, follow: bool
) -> None:
    """Add jobs that make backups by a schedule, and prove them by drills. `holdfast jobs work` runs them.

    holdfast backup schedule 'daily at 03:00' -r s3://bucket/backups
    """
    backups = open_backups(session, repository, write=True)
    jobs = backups.schedule(schedule, drill=None if no_drill else drill, name=name, follow=follow)
    for job in jobs:
        session.tell(f"Added the job {job.name}: {job.schedule}.", {"name": job.name, "schedule": str(job.schedule)})


@command("add-key")
@click.argument("new_keys", metavar="KEYS")
@repository_option
def add_key(session: CliContext, new_keys: str, repository: str) -> None:
    """Let another master key open an encrypted repository: a recovery key, or the passphrase in a file.

    holdfast backup add-key passphrase:/media/usb/recovery -k file:backup.key -r backups
    """
    id = open_any(session, repository).add_key(new_keys)
    session.tell(f"The key {id} opens the repository, too.", {"key": id})


@command("keys")
@repository_option
@click.option("--remove", metavar="ID", help="Remove this key.")
def keys(session: CliContext, repository: str, remove: str | None) -> None:
    """List the master keys that open an encrypted repository.

    holdfast backup keys -k file:backup.key -r backups
    """
    backups = open_any(session, repository)
    if remove is not None:
        removed = backups.remove_key(remove)
        text = f"Removed the key {remove}." if removed else f"There is no key {remove}."
        session.tell(text, {"key": remove, "removed": removed})
        return
    found = backups.keys()
    session.list({"key": each.master, "created": each.created} for each in found)


backup.add(
    create,
    list_,
    show,
    diff,
    verify,
    restore,
    drill,
    prune,
    repair,
    suspend_deletion,
    allow_deletion,
    pin,
    follow,
    schedule,
    add_key,
    keys,
)
