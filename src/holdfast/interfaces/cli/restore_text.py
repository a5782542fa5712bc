"""The report of a restore as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.interfaces.cli.base import CliContext
from holdfast.interfaces.cli.formatting import plural, safe, size

if TYPE_CHECKING:
    from holdfast.maintenance import RestoreReport


def describe_restore(session: CliContext, report: RestoreReport, *, dry_run: bool) -> None:
    """Print what a restore did, or would do."""
    if dry_run or session.verbose:
        rows = [
            (each.action, each.kind, each.name, f"{each.steps:,}", f"{each.added:,}", f"{each.newer:,}")
            for each in report.lines
        ]
        heads = ("ACTION", "KIND", "NAME", "STEPS", "ADDED", "NEWER")
        session.out.table(heads, rows, right=("STEPS", "ADDED", "NEWER"), shrink="NAME", styles={"NAME": "yellow"})
        for each in report.lines:
            if each.changes and each.action != "damaged":
                session.out.line(f"\n{safe(each.name)}:")
                for line in each.changes:
                    session.out.line(f"  {safe(line)}")
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
    session.out.line(f"{verb} {plural(len(changed), 'line')} from {report.backup}{written}")
    same = sum(each.action == "same" for each in report.lines)
    if same and not changed:
        session.note(f"The store has {plural(same, 'line')} of it as in the backup.")
    if report.jobs:
        session.note(f"{plural(report.jobs, 'job')} restored, paused. See `holdfast jobs`.")
