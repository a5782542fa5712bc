"""`holdfast audit`: the audit of threads, scopes, sessions and agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import HoldfastError, InvalidError, NotFoundError
from holdfast.interfaces.cli.base import (
    CliContext,
    check_folder,
    command,
    dry_run_option,
    group,
    kinds_option,
    limit_option,
    parse_kinds,
)
from holdfast.interfaces.cli.completion_types import KEY, SCOPE, THREAD
from holdfast.interfaces.cli.exit_codes import FINDINGS, INTEGRITY
from holdfast.interfaces.cli.formatting import plural, safe

if TYPE_CHECKING:
    from holdfast.security.audit.verify import AuditFinding

_KINDS = (
    *("change", "hook", "access", "read", "denied", "session", "artifact", "thread"),
    *("agent", "lifecycle", "transition", "transfer", "recovery"),
)
_OWNER = "owner"
"""The name of the store's owner, whose actor is empty."""


@group("audit", invoke_without_command=True)
@click.option("--actor", type=SCOPE, metavar="WHO", help="Only by this identity; 'owner' is the store's owner.")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only in this scope.")
@click.option("--thread", type=THREAD, metavar="THREAD", help="Only about this thread.")
@click.option("--key", type=KEY, default="", metavar="KEY", help="Only of this key.")
@click.option("--kind", type=click.Choice(_KINDS), help="Only of this kind.")
@click.option("--action", default="", metavar="ACTION", help="Only this action: set, patch, delete, read, grant, …")
@click.option("--outcome", default="", metavar="OUTCOME", help="Only with this outcome: ok, denied, invalid, …")
@click.option("--correlation", default="", metavar="ID", help="Only with this correlation id.")
@click.option("--since", metavar="WHEN", help="Only since a time: 2h, yesterday, 2026-11-01.")
@click.option("--until", metavar="WHEN", help="Only until a time.")
@click.option("--after", metavar="CURSOR", help="Continue with those before the record of this cursor.")
@limit_option(100)
def audit(session: CliContext, limit: int, after: str | None, actor: str | None, **filters: Any) -> None:
    """Show the audit, the latest first: changes and who made them, reads of identities, hooks, rights, denials.

    With --json every record has its details, and a cursor for --after.

    holdfast audit --scope agent:a --since 2h
    holdfast audit --actor agent:b --kind denied
    holdfast audit --thread chat-1 --correlation req-1
    holdfast audit verify
    holdfast audit export audit.jsonl && holdfast audit check audit.jsonl
    holdfast audit archive audit-1.jsonl --older-than 90d
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        given = [name for name, value in (*filters.items(), ("actor", actor), ("after", after)) if value]
        if given:
            raise click.UsageError(
                f"--{given[0]} is an option of the list: {context.invoked_subcommand} uses all records"
            )
        return
    who, filters["kind"] = "" if actor == _OWNER else actor, filters["kind"] or ""
    page = session.open().audit.query(actor=who, **filters, limit=min(limit, 200), cursor=after)
    records = islice(page.all(), limit)
    session.list(records, none="There are no such records.", exact=True, actor=lambda each: each.actor or _OWNER)


@command("verify")
@click.option("--heads", "heads_file", metavar="FILE", help="Compare the ends with the heads in this file.")
def verify(session: CliContext, heads_file: str | None) -> None:
    """Verify the audit: every record, every step, and their order.

    The exit code is 5 if records were altered, added or removed. Records that were removed at the end are noticed only
    with heads, which `holdfast heads` exports.

    holdfast audit verify
    holdfast audit verify --heads heads.json
    """
    store = session.open()
    heads = None if heads_file is None else store.maintenance.load_heads(heads_file).audited()
    report = store.audit.verify(heads)
    verified = f"{plural(report.lines, 'line')}, {plural(report.steps, 'step')}, {plural(report.rows, 'row')}"
    if report.unproven:
        verified += f", {report.unproven:,} of which belong to steps that left nothing, and cannot be proven"
    session.report(_lines(session, report.findings, verified), report, {"ok": report.ok})
    if report.compared is None:
        session.note("Without --heads, it cannot be seen if records at the end are missing.")
    session.exit_if(not report.ok, INTEGRITY)


@command("export", file=click.Path(dir_okay=False))
def export(session: CliContext, file: str) -> None:
    """Write the audit to a file that can be checked without the store: JSON, a line for each step.

    It is signed: `holdfast erase key` prints the public key. That of an encrypted store is encrypted, too.

    holdfast audit export audit.jsonl
    """
    check_folder(file)
    done = session.open_to_record().audit.export(file)
    session.note(f"Exported {plural(done.rows, 'row')} of {plural(done.steps, 'step')}. Keep the digest elsewhere:")
    session.report(done.digest, done)
    if not done.public_key:
        session.note("It is not signed: the store has no key, and this user may not write it or lacks cryptography.")


@command("archive", file=click.Path(dir_okay=False))
@click.option("--older-than", required=True, metavar="AGE", help="Records of at least this age: 90d, 1y.")
@kinds_option("Records in lines of this kind, in place of all but agents; may be repeated.")
@dry_run_option
def archive(session: CliContext, file: str, older_than: str, kinds: tuple[str, ...]) -> None:
    """Move old records of the audit to a file, a segment of the archive. The audit still verifies without them.

    `holdfast audit check` checks a segment. That of an encrypted store is encrypted, too.

    holdfast audit archive audit-2031.jsonl --older-than 90d
    """
    check_folder(file)
    audit = session.open(write=not session.dry_run).audit
    done = audit.archive(file, older_than=older_than, kinds=parse_kinds(kinds), dry_run=session.dry_run)
    verb = "Would archive" if session.dry_run else "Archived"
    session.note(f"{verb} {plural(done.rows, 'row')} of {plural(done.steps, 'step')} in segment {done.segment}.")
    if done.held:
        session.note(f"Left as they are, since a legal hold protects them: {', '.join(map(safe, done.held))}")
    session.report([done.digest] if not session.dry_run and done.steps else (), done)


@command("check", file=click.Path(dir_okay=False))
@click.option("--heads", "heads_file", metavar="FILE", help="Compare with heads that `holdfast heads` exported.")
@click.option("--keys", metavar="PROVIDER", help="The master key of an encrypted store, such as environment.")
@click.option("--public-key", metavar="HEX", help="The key that it must be signed with.")
def check(session: CliContext, file: str, heads_file: str | None, keys: str | None, public_key: str | None) -> None:
    """Check an exported audit, without a store. That of an encrypted store needs the master key.

    Without --public-key, whoever altered it may have signed it again, with a key of their own.

    The exit code is 5 if the file is damaged, 6 if its content is not what was written.

    holdfast audit check audit.jsonl --public-key 5f2a…
    holdfast audit check audit.jsonl --keys file:/etc/holdfast.key
    """
    from holdfast.security.audit.export import check_audit

    try:
        checked = check_audit(file, _heads(heads_file), keys=keys, public_key=public_key)
    except HoldfastError:  # some are errors of the system, too
        raise
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except OSError as error:
        raise InvalidError(f"the file cannot be read: {error.strerror}", where=file) from None
    verified = f"{plural(checked.steps, 'step')}, {plural(checked.rows, 'row')}"
    verified += f", {checked.pruned:,} pruned" * bool(checked.pruned)
    session.report(_lines(session, checked.findings, verified), checked, {"ok": checked.ok})
    if not checked.public_key:
        session.note("It is not signed.")
    elif public_key is None:
        session.note(f"It was signed with the key {checked.public_key}: compare it with that of the store.")
    session.exit_if(not checked.ok, FINDINGS)


def _heads(file: str | None) -> dict[str, tuple[int, str]] | None:
    from holdfast.maintenance.verify.heads import StoreHeads

    return None if file is None else StoreHeads.load(file).audited()


def _lines(session: CliContext, findings: Sequence[AuditFinding], verified: str) -> Iterator[str]:
    from holdfast.engine.namespaces import short_name

    style = session.out.style
    for finding in findings:
        where = f"{short_name(finding.line)} {finding.step}".strip()
        yield f"{style(safe(where), 'red')}{': ' if where else ''}{safe(finding.what)}"
    result = "OK" if not findings else f"NOT AS WRITTEN: {plural(len(findings), 'finding')}"
    yield style(f"{result} ({verified})", "red" if findings else "green")


audit.add(verify, export, archive, check)
