"""`holdfast redaction`: credentials and personal data in a store."""

from __future__ import annotations

import click

from holdfast.interfaces.cli.base import CliContext, command, group, kinds_option, parse_kinds, yes_option
from holdfast.interfaces.cli.exit_codes import FINDINGS, INTEGRITY
from holdfast.interfaces.cli.formatting import plural, safe


@group("redaction")
def redaction(session: CliContext) -> None:
    """Find credentials and personal data in a store, and replace them.

    holdfast redaction scan
    holdfast redaction redact
    """


@command("scan")
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="Only these: credentials (the default), personal, all, or one such as email; may be repeated.",
)
@kinds_option("Scan only lines of this kind; may be repeated.")
@click.option("--history", is_flag=True, help="Scan everything that all checkpoints wrote, not only the latest states.")
def scan(session: CliContext, formats: tuple[str, ...], kinds: tuple[str, ...], history: bool) -> None:
    """Scan what is stored, and list where sensitive data is. The data itself is not shown.

    The exit code is 6 if something was found, 5 if a thread or scope is damaged.

    holdfast redaction scan
    holdfast redaction scan --format all --history --json
    """
    store = session.open()
    chosen = {} if not kinds else {"kinds": parse_kinds(kinds)}
    with session.progress("Scanning") as bar:
        report = store.redaction.scan(formats=formats or "credentials", history=history, progress=bar, **chosen)
    if session.json:
        session.emit(report)
    else:
        session.list(report.findings, checkpoint=lambda each: each.checkpoint[:8])
    for name in report.damaged:
        session.note(f"{safe(name)} is damaged, and was not scanned: holdfast verify")
    session.note(f"Scanned {plural(report.scanned, 'line')}: threads, scopes, agents.")
    session.exit_if(report.damaged, INTEGRITY)
    session.exit_if(report.findings, FINDINGS)


@command("redact")
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="FORMAT",
    help="Credentials, personal, all, or one such as email; may be repeated. By default, what the doctor reports.",
)
@kinds_option("Only in lines of this kind; may be repeated.")
@yes_option
def redact(session: CliContext, formats: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    """Replace sensitive data in what is stored, in the latest states, and prune the checkpoints that have it.

    `holdfast redaction scan --history` shows where it is. The states of those checkpoints cannot be read any more.
    Backups and other copies stay as they are.

    holdfast redaction redact
    holdfast redaction redact --format github-token --yes
    """
    store = session.open(write=True)
    session.confirm("Replace sensitive data, and prune all checkpoints that have some?")
    chosen = {} if not kinds else {"kinds": parse_kinds(kinds)}
    with session.progress("Redacting") as bar:
        report = store.redaction.redact(formats=formats or None, progress=bar, **chosen)
    records = f" and {plural(report.records, 'record')}" if report.records else ""
    session.tell(
        f"Replaced in {plural(report.lines, 'line')}{records}; {plural(report.checkpoints, 'checkpoint')} pruned.",
        report,
    )
    for each in report.remains:
        session.warn(f"copies may still be in {each}")


redaction.add(scan, redact)
