"""`holdfast verify`, `heads` and `repair`: detecting and repairing damage."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import CorruptError
from holdfast.interfaces.cli import exit_codes
from holdfast.interfaces.cli.base import (
    KINDS,
    CliContext,
    command,
    dry_run_option,
    kinds_option,
    parse_kinds,
    yes_option,
)
from holdfast.interfaces.cli.completion_types import THREAD
from holdfast.interfaces.cli.formatting import line_counts, plural, safe

if TYPE_CHECKING:
    from holdfast.maintenance import Finding, RepairReport, StoreHeads, VerifyReport
    from holdfast.store import Store

_LEVELS = ("structure", "hashes", "decode")
_LISTED = 20
"""How many lost checkpoints of a thread are listed."""


@command("verify")
@click.argument("threads", nargs=-1, type=THREAD)
@kinds_option("Verify only lines of this kind, all or those that are named; may be repeated.")
@click.option("--level", type=click.Choice(_LEVELS), default="hashes", show_default=True, help="How much to verify.")
@click.option("--heads", "heads_file", metavar="FILE", help="Compare with the heads in this file.")
@click.option("--write-heads", metavar="FILE", help="Export the heads to this file, if nothing is damaged.")
@click.option("--after", default="", metavar="THREAD", help="Start after this thread.")
def verify(
    session: CliContext,
    threads: tuple[str, ...],
    kinds: tuple[str, ...],
    level: str,
    heads_file: str | None,
    write_heads: str | None,
    after: str,
) -> None:
    """Verify that everything is as it was written.

    The exit code is 5 if something is damaged, 6 if there are only notices.

    \b
    holdfast verify
    holdfast verify chat --level decode
    holdfast verify --kind access --kind audit
    """
    store = session.open()
    heads = _load_heads(store, heads_file)
    done, of_kinds = after, parse_kinds(kinds)

    def progress(count: int, total: int | None, what: str) -> None:
        nonlocal done
        done = what if count > bar.done else done
        bar(count, total, what)

    def each(finding: Finding) -> None:
        if not session.json:
            bar.clear()
            _write_finding(session, finding)

    with session.progress("Verifying") as bar:
        try:
            reports = [
                store.maintenance.verify(
                    name, kinds=of_kinds, level=level, heads=heads, progress=progress, after=after, each=each
                )
                for name in threads or (None,)
            ]
        except KeyboardInterrupt:
            if done and not threads:
                bar.clear()
                session.note(
                    f"Verified up to thread {done!r}. To continue: holdfast verify --after {shlex.quote(done)}"
                )
            raise
    for report in reports:
        if session.json:
            session.emit(report.plain())
        else:
            _write_report(session, report)
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(exit_codes.INTEGRITY)
    if write_heads is not None:
        store.maintenance.heads().save(write_heads)
        session.note(f"Exported the heads to {write_heads}. Keep the file elsewhere.")
    if any(report.findings for report in reports):
        raise click.exceptions.Exit(exit_codes.FINDINGS)


@command("heads")
@click.argument("file")
def heads(session: CliContext, file: str) -> None:
    """Export the heads of threads, to detect lost ends later.

    \b
    holdfast heads heads.json && holdfast verify --heads heads.json
    """
    exported = session.open().maintenance.heads()
    exported.save(file)
    if session.json:
        session.emit({"file": file, "threads": len(exported.threads), "time": datetime.fromisoformat(exported.time)})
    else:
        session.note(f"Exported {plural(len(exported.threads), 'head')} to {file}. Keep the file elsewhere.")


def _load_heads(store: Store, file: str | None) -> StoreHeads | None:
    return None if file is None else store.maintenance.load_heads(file)


def _write_report(session: CliContext, report: VerifyReport) -> None:
    out = session.out
    verified = f"{line_counts(report)}; {plural(report.steps, 'step')}, level {report.level}"
    result = "OK" if report.ok else f"DAMAGED: {plural(len(report.damaged), 'line')}"
    out.line(out.style(f"{safe(result)} ({verified}, {report.seconds:.1f} s)", "green" if report.ok else "red"))
    if not report.ok:
        session.note("`holdfast explain CODE` explains a code; `holdfast repair` repairs the store.")


def _write_finding(session: CliContext, finding: Finding) -> None:
    out = session.out
    color = "red" if finding.severity.value == "damage" else "yellow"
    from holdfast.store import short_name

    where = f"{short_name(finding.thread)}: " if finding.thread else ""
    out.line(f"{out.style(finding.code.value, color)} {safe(where)}{safe(finding.message)}")
    if finding.affected_count:
        ids = [id for id in finding.affected if id][:3]  # those of unreadable rows are unknown
        some = ", ".join(ids) + (", …" if finding.affected_count > len(ids) else "")
        listed = f": {safe(some)}" if ids else ""
        out.line(f"    {plural(finding.affected_count, 'checkpoint')} cannot be read{listed}")


@command("repair")
@click.argument("threads", nargs=-1, type=THREAD)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="URL",
    help="A copy of the store, or backup:REPOSITORY; may be repeated.",
)
@click.option("--kind", type=KINDS, default="thread", help="The kind of the lines that are named.")
@click.option("--heads", "heads_file", metavar="FILE", help="Exported heads: what they name is restored.")
@click.option("--accept-loss", is_flag=True, help="Accept that a salvage lost rows: deleting is allowed again.")
@dry_run_option
@yes_option
def repair(
    session: CliContext,
    threads: tuple[str, ...],
    kind: Any,
    sources: tuple[str, ...],
    heads_file: str | None,
    accept_loss: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Repair damage, from a copy or by salvage.

    Damaged rows are moved to quarantine, and damaged files are renamed. The exit code is 5 if damage remains.

    \b
    holdfast repair --dry-run
    holdfast repair --from sqlite:///copy.db
    """
    from holdfast.maintenance import salvage_file

    if not dry_run:
        session.confirm("Repair the store? Rows that cannot be repaired are moved to quarantine.", yes=yes)
    try:
        store = session.open(write=not dry_run)
    except CorruptError as error:
        salvaged = salvage_file(error.where, dry_run=dry_run)
        if salvaged is None:
            raise
        verb = "could be" if dry_run else "were"
        session.note(f"The store cannot be opened: {salvaged.rows:,} rows {verb} salvaged.")
        if dry_run:
            raise click.exceptions.Exit(exit_codes.INTEGRITY) from error
        session.note(f"The damaged file is now {salvaged.damaged}")
        store = session.open(write=True)
    heads = _load_heads(store, heads_file)
    with session.progress("Repairing") as progress:
        reports = [
            store.maintenance.repair(
                list(sources),
                thread=name,
                kind=kind,
                heads=heads,
                dry_run=dry_run,
                accept_loss=accept_loss,
                progress=progress,
            )
            for name in threads or (None,)
        ]
    for report in reports:
        if session.json:
            session.emit(report.plain())
        else:
            _write_repairs(session, report)
    if not all(report.ok for report in reports):
        raise click.exceptions.Exit(exit_codes.INTEGRITY)


def _write_repairs(session: CliContext, report: RepairReport) -> None:
    out = session.out
    would = "would be " if report.dry_run else ""
    if report.files is not None:
        out.line(
            f"files of the store: {report.files.rows:,} rows {would}kept, {report.files.unreadable:,} ranges unreadable"
        )
        for lost_rows in report.files.lost:
            what = f"    lost: {lost_rows.rows:,} rows of {lost_rows.table} of {lost_rows.line}"
            out.line(out.style(safe(what), "red"))
        for path in report.files.damaged:
            out.line(f"    the damaged file is now {safe(path)}")
    for each in report.repaired:
        out.line(out.style(safe(each.thread), "yellow"))
        out.line(
            f"    {each.restored:,} rows {would}restored, {each.rebuilt:,} rebuilt, {each.quarantined:,} quarantined"
        )
        for lost in each.lost[:_LISTED]:
            name = lost.checkpoint or (f"branch {lost.branch}, step {lost.step}" if lost.step >= 0 else "a change")
            out.line(out.style(f"    lost: {safe(name)}: {safe(lost.reason)}", "red"))
        if len(each.lost) > _LISTED:
            out.line(f"    and {len(each.lost) - _LISTED:,} more")
    for name in report.rebuilt:
        out.line(f"{safe(name)}: readable rows or text index {would}rebuilt")
    for finding in report.left:
        _write_finding(session, finding)
    for problem in report.problems:
        out.line(out.style(safe(problem), "red"))
    result = f"{would}repaired".capitalize() if report.repaired else "nothing is damaged"
    result = result if report.ok else "damage remains"
    out.line(
        out.style(f"{result} ({plural(report.lines, 'line')}, {report.seconds:.1f} s)", "green" if report.ok else "red")
    )
