"""`holdfast verify`, `heads` and `repair`: detecting and repairing damage."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
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
    from holdfast.engine.integrity.findings import Finding
    from holdfast.interfaces.cli.output import Output
    from holdfast.maintenance.repair.repairer import RepairReport
    from holdfast.maintenance.verify.heads import StoreHeads
    from holdfast.maintenance.verify.verifier import VerifyReport
    from holdfast.store.store import Store

_LEVELS = ("structure", "hashes", "decode")
_LISTED = 20
"""How many lost checkpoints of a thread are listed."""


@command("verify", threads=THREAD)
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
            for line in _finding_lines(session.out, finding):
                session.out.line(line)

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
        session.report((_result(session, report),), report, page=False)
        if not report.ok:
            session.note("`holdfast explain CODE` explains a code; `holdfast repair` repairs the store.")
    session.exit_if(not all(report.ok for report in reports), exit_codes.INTEGRITY)
    if write_heads is not None:
        store.maintenance.heads().save(write_heads)
        session.note(f"Exported the heads to {write_heads}. Keep the file elsewhere.")
    session.exit_if(any(report.findings for report in reports), exit_codes.FINDINGS)


@command("heads")
def heads(session: CliContext, file: str) -> None:
    """Export the heads of threads, to detect lost ends later.

    holdfast heads heads.json && holdfast verify --heads heads.json
    """
    exported = session.open().maintenance.heads()
    exported.save(file)
    count = len(exported.threads)
    record = {"file": file, "threads": count, "time": datetime.fromisoformat(exported.time)}
    session.tell(f"Exported {plural(count, 'head')} to {file}. Keep the file elsewhere.", record)


def _load_heads(store: Store, file: str | None) -> StoreHeads | None:
    return None if file is None else store.maintenance.load_heads(file)


def _result(session: CliContext, report: VerifyReport) -> str:
    verified = f"{line_counts(report)}; {plural(report.steps, 'step')}, level {report.level}"
    result = "OK" if report.ok else f"DAMAGED: {plural(len(report.damaged), 'line')}"
    return session.out.style(f"{safe(result)} ({verified}, {report.seconds:.1f} s)", "green" if report.ok else "red")


def _finding_lines(out: Output, finding: Finding) -> Iterator[str]:
    from holdfast.engine.namespaces import short_name

    color = "red" if finding.severity.value == "damage" else "yellow"
    where = f"{short_name(finding.thread)}: " if finding.thread else ""
    yield f"{out.style(finding.code.value, color)} {safe(where)}{safe(finding.message)}"
    if finding.affected_count:
        ids = [id for id in finding.affected if id][:3]  # those of unreadable rows are unknown
        some = ", ".join(ids) + (", …" if finding.affected_count > len(ids) else "")
        listed = f": {safe(some)}" if ids else ""
        yield f"    {plural(finding.affected_count, 'checkpoint')} cannot be read{listed}"


@command("repair", threads=THREAD)
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
) -> None:
    """Repair damage, from a copy or by salvage.

    Damaged rows are moved to quarantine, and damaged files are renamed. The exit code is 5 if damage remains.

    holdfast repair --dry-run
    holdfast repair --from sqlite:///copy.db
    """
    from holdfast.maintenance.repair.store_files import salvage_file

    if not session.dry_run:
        session.confirm("Repair the store? Rows that cannot be repaired are moved to quarantine.")
    try:
        store = session.open(write=not session.dry_run)
    except CorruptError as error:
        salvaged = salvage_file(error.where, dry_run=session.dry_run)
        if salvaged is None:
            raise
        verb = "could be" if session.dry_run else "were"
        session.note(f"The store cannot be opened: {salvaged.rows:,} rows {verb} salvaged.")
        if session.dry_run:
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
                dry_run=session.dry_run,
                accept_loss=accept_loss,
                progress=progress,
            )
            for name in threads or (None,)
        ]
    for report in reports:
        session.report(_repair_lines(session.out, report), report, page=False)
    session.exit_if(not all(report.ok for report in reports), exit_codes.INTEGRITY)


def _repair_lines(out: Output, report: RepairReport) -> Iterator[str]:
    would = "would be " if report.dry_run else ""
    files = report.files
    if files is not None:
        yield f"files of the store: {files.rows:,} rows {would}kept, {files.unreadable:,} ranges unreadable"
        for rows in files.lost:
            yield out.style(safe(f"    lost: {rows.rows:,} rows of {rows.table} of {rows.line}"), "red")
        yield from (f"    the damaged file is now {safe(path)}" for path in files.damaged)
    for each in report.repaired:
        yield out.style(safe(each.thread), "yellow")
        yield f"    {each.restored:,} rows {would}restored, {each.rebuilt:,} rebuilt, {each.quarantined:,} quarantined"
        for lost in each.lost[:_LISTED]:
            name = lost.checkpoint or (f"branch {lost.branch}, step {lost.step}" if lost.step >= 0 else "a change")
            yield out.style(f"    lost: {safe(name)}: {safe(lost.reason)}", "red")
        if len(each.lost) > _LISTED:
            yield f"    and {len(each.lost) - _LISTED:,} more"
    yield from (f"{safe(name)}: readable rows or text index {would}rebuilt" for name in report.rebuilt)
    for finding in report.left:
        yield from _finding_lines(out, finding)
    yield from (out.style(safe(problem), "red") for problem in report.problems)
    result = f"{would}repaired".capitalize() if report.repaired else "nothing is damaged"
    text = f"{result if report.ok else 'damage remains'} ({plural(report.lines, 'line')}, {report.seconds:.1f} s)"
    yield out.style(text, "green" if report.ok else "red")
