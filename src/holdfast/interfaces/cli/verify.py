"""`holdfast verify`, `heads` and `repair`: seeing whether all is as it was written, and mending it."""

from __future__ import annotations

import shlex
import tempfile
from typing import TYPE_CHECKING
from urllib.parse import unquote

import click

from holdfast.errors import CorruptError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.backends.sqlite.salvage import SalvageReport
    from holdfast.engine.integrity.findings import Finding
    from holdfast.maintenance.repair.repairer import RepairReport
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport

_LEVELS = ("structure", "hashes", "decode")
_SHOWN = 20
"""How many lost checkpoints of a thread are listed."""


@command("verify")
@click.argument("threads", nargs=-1, type=THREAD)
@click.option("--level", type=click.Choice(_LEVELS), default="hashes", show_default=True, help="How deep to look.")
@click.option("--heads", "heads_file", metavar="FILE", help="Compare with heads that were exported to this file.")
@click.option("--write-heads", metavar="FILE", help="Export the heads to this file, if all is sound.")
@click.option("--after", default="", metavar="THREAD", help="Go on after this thread.")
def verify(
    session: CliContext,
    threads: tuple[str, ...],
    level: str,
    heads_file: str | None,
    write_heads: str | None,
    after: str,
) -> None:
    """Check that everything is as it was written.

    Exits with 0 if all is well, with 5 if something is damaged, with 6 if there are notices only.

    \b
    holdfast verify
    holdfast verify chat --level decode
    """
    store = session.open()
    known = _heads(heads_file)
    done = after

    def progress(count: int, total: int | None, what: str) -> None:
        nonlocal done
        done = what if count > tell.done else done
        tell(count, total, what)

    def each(finding: Finding) -> None:
        if not session.json:
            tell.clear()
            _tell_finding(session, finding)

    with session.progress("Verifying") as tell:
        try:
            reports = [
                store.maintenance.verify(name, level=level, heads=known, progress=progress, after=after, each=each)
                for name in threads or (None,)
            ]
        except KeyboardInterrupt:
            if done and not threads:
                tell.clear()
                session.note(f"Verified up to thread {done!r}. To go on: holdfast verify --after {shlex.quote(done)}")
            raise
    for report in reports:
        if session.json:
            session.emit(report.plain())
        else:
            _tell(session, report)
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(exit_codes.INTEGRITY)
    if write_heads is not None:
        store.maintenance.heads().save(write_heads)
        session.note(f"The heads are in {write_heads}. Keep the file elsewhere.")
    if any(report.findings for report in reports):
        raise click.exceptions.Exit(exit_codes.FINDINGS)


@command("heads")
@click.argument("file")
def heads(session: CliContext, file: str) -> None:
    """Export where the threads end, to detect a cut-off end later.

    \b
    holdfast heads heads.json && holdfast verify --heads heads.json
    """
    found = session.open().maintenance.heads()
    found.save(file)
    if session.json:
        session.emit({"file": file, "threads": len(found.threads), "time": found.time})
    else:
        session.note(f"The heads of {plural(len(found.threads), 'thread')} are in {file}. Keep the file elsewhere.")


def _heads(file: str | None) -> StoreHeads | None:
    from holdfast.maintenance.verify.heads import StoreHeads

    return None if file is None else StoreHeads.load(file)


def _tell(session: CliContext, report: VerifyReport) -> None:
    out = session.out
    looked = f"{plural(report.threads, 'thread')}, {plural(report.steps, 'checkpoint')}, level {report.level}"
    told = "sound" if report.ok else f"DAMAGED: {plural(len(report.damaged), 'thread')}"
    out.line(out.style(f"{told} ({looked}, {report.seconds:.1f} s)", "green" if report.ok else "red"))
    if not report.ok:
        session.note("`holdfast explain CODE` says what a code means; `holdfast repair` mends what can be mended.")


def _tell_finding(session: CliContext, finding: Finding) -> None:
    out = session.out
    color = "red" if finding.severity.value == "damage" else "yellow"
    where = f"{finding.thread}: " if finding.thread else ""
    out.line(f"{out.style(finding.code.value, color)} {safe(where)}{safe(finding.message)}")
    if finding.affected_count:
        known = [id for id in finding.affected if id][:3]  # of a row that cannot be read, not even the id is known
        some = ", ".join(known) + (", …" if finding.affected_count > len(known) else "")
        told = f": {safe(some)}" if known else ""
        out.line(f"    {plural(finding.affected_count, 'checkpoint')} cannot be read{told}")


@command("repair")
@click.argument("threads", nargs=-1, type=THREAD)
@click.option("--from", "sources", multiple=True, metavar="URL", help="A store with the same history; may be repeated.")
@click.option("--heads", "heads_file", metavar="FILE", help="Heads that were exported: what they name is brought back.")
@dry_run_option
@yes_option
def repair(
    session: CliContext,
    threads: tuple[str, ...],
    sources: tuple[str, ...],
    heads_file: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Mend what is damaged, from a copy or by salvage.

    Damaged rows go to quarantine, and damaged files are kept under another name. Exits with 5 if damage is left.

    \b
    holdfast repair --dry-run
    holdfast repair --from sqlite:///copy.db
    """
    known = _heads(heads_file)
    if not dry_run:
        session.confirm("Repair the store? What cannot be mended goes to quarantine.", yes=yes)
    try:
        store = session.open(write=not dry_run)
    except CorruptError as error:
        salvaged = _salvaged(error, dry_run)
        if salvaged is None:
            raise
        would = "could be" if dry_run else "were"
        session.note(f"The store does not open: {salvaged.rows:,} rows {would} salvaged.")
        if dry_run:
            raise click.exceptions.Exit(exit_codes.INTEGRITY) from error
        session.note(f"The old file: {salvaged.damaged}")
        store = session.open(write=True)
    with session.progress("Repairing") as tell:
        done = [
            store.maintenance.repair(list(sources), thread=name, heads=known, dry_run=dry_run, progress=tell)
            for name in threads or (None,)
        ]
    for each in done:
        if session.json:
            session.emit(each.plain())
        else:
            _tell_repaired(session, each)
    if not all(each.ok for each in done):
        raise click.exceptions.Exit(exit_codes.INTEGRITY)


def _salvaged(error: CorruptError, dry_run: bool) -> SalvageReport | None:
    """Put a new file in the place of one that is too damaged to be opened, or see what would be in it. None if the
    store is no SQLite file."""
    from holdfast.backends.sqlite.salvage import salvage
    from holdfast.engine.row_format import is_intact

    if not error.where.startswith("sqlite:///"):
        return None
    path = unquote(error.where.removeprefix("sqlite:///").partition("?")[0])
    if not dry_run:
        return salvage(path, is_intact)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        return salvage(path, is_intact, into=f"{folder}/rehearsal.db")


def _tell_repaired(session: CliContext, done: RepairReport) -> None:
    out = session.out
    would = "would be " if done.dry_run else ""
    if done.files is not None:
        out.line(
            f"the store's files: {done.files.rows:,} rows {would}kept, {done.files.unreadable:,} places not readable"
        )
        for path in done.files.damaged:
            out.line(f"    what was damaged is in {safe(path)}")
    for each in done.repaired:
        out.line(out.style(safe(each.thread), "yellow"))
        out.line(
            f"    {each.restored:,} rows {would}restored, {each.rebuilt:,} rebuilt, {each.quarantined:,} in quarantine"
        )
        for lost in each.lost[:_SHOWN]:
            name = lost.checkpoint or f"branch {lost.branch}, step {lost.step}"
            out.line(out.style(f"    lost: {safe(name)}: {safe(lost.reason)}", "red"))
        if len(each.lost) > _SHOWN:
            out.line(f"    and {len(each.lost) - _SHOWN:,} more")
    for name in done.rebuilt:
        out.line(f"{safe(name)}: readable rows or words {would}made anew")
    for finding in done.left:
        _tell_finding(session, finding)
    for problem in done.problems:
        out.line(out.style(safe(problem), "red"))
    told = (
        "damage is left"
        if not done.ok
        else "nothing is damaged"
        if not done.repaired
        else f"{would}mended".capitalize()
    )
    out.line(
        out.style(f"{told} ({plural(done.threads, 'thread')}, {done.seconds:.1f} s)", "green" if done.ok else "red")
    )
