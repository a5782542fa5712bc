"""`holdfast audit`: what was done and tried in the state of scopes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import InvalidError, NotFoundError
from holdfast.interfaces.cli.base import CliContext, command, group
from holdfast.interfaces.cli.completion_types import KEY, SCOPE
from holdfast.interfaces.cli.exit_codes import FINDINGS, INTEGRITY
from holdfast.interfaces.cli.formatting import clock, plural, safe

if TYPE_CHECKING:
    from holdfast.security.audit.verify import AuditFinding

_PAGE = 200
_HEADS = ("TIME", "KIND", "ACTOR", "ACTION", "SCOPE", "KEY", "OUTCOME")
_KINDS = (
    *("change", "hook", "access", "read", "denied", "session", "artifact"),
    *("agent", "lifecycle", "transition", "transfer", "recovery"),
)
_OWNER = "owner"
"""How the store's owner is named, who has no name as an actor."""


@group("audit", invoke_without_command=True)
@click.option("--actor", type=SCOPE, metavar="WHO", help="What this identity did; 'owner' is the store's owner.")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="What was done in this scope.")
@click.option("--key", type=KEY, default="", metavar="KEY", help="What was done with this key.")
@click.option("--kind", type=click.Choice(_KINDS), help="Only rows of this kind.")
@click.option("--action", default="", metavar="ACTION", help="Only this: set, patch, delete, read, grant, …")
@click.option("--outcome", default="", metavar="OUTCOME", help="How it ended: ok, denied, invalid, …")
@click.option("--correlation", default="", metavar="ID", help="What was done under this correlation id.")
@click.option("--since", metavar="WHEN", help="From then on: 2h, yesterday, 2026-11-01.")
@click.option("--until", metavar="WHEN", help="Up to then.")
@click.option("--after", metavar="CURSOR", help="Go on with what is older than the row of this cursor.")
@click.option(
    "-n", "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="So many rows."
)
def audit(session: CliContext, limit: int, after: str | None, actor: str | None, **asked: Any) -> None:
    """Show what was done and tried in the state of scopes, the newest first.

    That is what was changed, by whom; what identities read; what hooks did; rights that were given and taken; and what
    was denied.

    With --json every row has its details, and a cursor for --after.

    \b
    holdfast audit --scope agent:a --since 2h
    holdfast audit --actor agent:b --kind denied
    holdfast audit verify
    holdfast audit export audit.jsonl && holdfast audit check audit.jsonl
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        given = [name for name, value in (*asked.items(), ("actor", actor), ("after", after)) if value]
        if given:
            raise click.UsageError(f"--{given[0]} chooses rows to be shown: {context.invoked_subcommand} takes all")
        return
    who, asked["kind"] = "" if actor == _OWNER else actor, asked["kind"] or ""
    store = session.open()
    found = islice(store.audit.query(actor=who, **asked, limit=min(limit, _PAGE), cursor=after).all(), limit)
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    widths: list[int] = []
    while page := list(islice(found, _PAGE)):
        rows = [
            (clock(row.time), row.kind, row.actor or _OWNER, row.action, row.scope, row.key, row.outcome)
            for row in page
        ]
        widths = session.out.table(_HEADS, rows, shrink="SCOPE", styles={"ACTOR": "yellow"}, widths=widths)
    if not widths:
        session.note("Nothing is recorded, or nothing that was asked for.")


@command("verify")
def verify(session: CliContext) -> None:
    """Check that the audit is as it was written: every row, every step, and their order.

    Exits with 0 if all is well, with 5 if rows were altered, added or taken away.

    \b
    holdfast audit verify
    """
    report = session.open().audit.verify()
    if session.json:
        session.emit({"ok": report.ok, **_plain(report)})
    else:
        looked = f"{plural(report.lines, 'line')}, {plural(report.steps, 'step')}, {plural(report.rows, 'row')}"
        if report.unproven:
            looked += f", {report.unproven:,} of which belong to pruned steps and cannot be proven"
        _tell(session, report.findings, looked)
    if not report.ok:
        raise click.exceptions.Exit(INTEGRITY)


@command("export")
@click.argument("file", type=click.Path(dir_okay=False))
def export(session: CliContext, file: str) -> None:
    """Write the audit to a file that anybody can check without the store: JSON, a line for each step.

    \b
    holdfast audit export audit.jsonl
    """
    if not Path(file).absolute().parent.is_dir():
        raise NotFoundError("there is no such directory", where=str(Path(file).absolute().parent))
    done = session.open().audit.export(file)
    if session.json:
        session.emit(done)
    else:
        session.note(
            f"{plural(done.rows, 'row')} of {plural(done.steps, 'step')} are in {file}. Keep its digest elsewhere:"
        )
        session.out.line(done.digest)


@command("check")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--heads", "heads_file", metavar="FILE", help="Compare with heads that `holdfast heads` exported before.")
def check(session: CliContext, file: str, heads_file: str | None) -> None:
    """Check an exported audit. Needs the file only, and no store.

    Exits with 0 if all is well, with 5 if the file is damaged, with 6 if what it tells is not what was written.

    \b
    holdfast audit check audit.jsonl
    """
    from holdfast.security.audit import export

    try:
        checked = export.check_audit(file, _heads(heads_file))
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except OSError as error:
        raise InvalidError(f"the file cannot be read: {error.strerror}", where=file) from None
    if session.json:
        session.emit({"ok": checked.ok, **_plain(checked)})
    else:
        looked = f"{plural(checked.steps, 'step')}, {plural(checked.rows, 'row')}"
        _tell(session, checked.findings, looked + f", {checked.pruned:,} pruned" * bool(checked.pruned))
    if not checked.ok:
        raise click.exceptions.Exit(FINDINGS)


def _heads(file: str | None) -> dict[str, tuple[int, str]] | None:
    from holdfast.engine.model.scopes import MARK
    from holdfast.maintenance.verify.heads import StoreHeads

    if file is None:
        return None
    threads = StoreHeads.load(file).threads
    return {
        name: (branch.length, branch.hash)
        for name, head in threads.items()
        if name.startswith(MARK)
        for branch in head.branches
        if branch.branch == 0
    }


def _plain(report: Any) -> dict[str, Any]:
    from holdfast.interfaces.cli.json_output import plain

    told: dict[str, Any] = plain(report)
    return told


def _tell(session: CliContext, findings: Sequence[AuditFinding], looked: str) -> None:
    from holdfast.engine.model.scopes import MARK

    out = session.out
    for finding in findings:
        where = finding.line.removeprefix(MARK)
        place = f"{where} {finding.step}".strip()
        out.line(f"{out.style(safe(place), 'red')}{': ' if place else ''}{safe(finding.what)}")
    told = "sound" if not findings else f"NOT AS WRITTEN: {plural(len(findings), 'finding')}"
    out.line(out.style(f"{told} ({looked})", "red" if findings else "green"))


for _each in (verify, export, check):
    audit.add_command(_each)
