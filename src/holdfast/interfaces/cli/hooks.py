"""`holdfast hooks`: what hooks did."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, check_folder, command, dry_run_option, group, limit_option
from holdfast.interfaces.cli.completion_types import SCOPE
from holdfast.interfaces.cli.formatting import plural

_ORDERS = {"slowest": "slowest", "failing": "failing", "most-called": "most_called"}


@group("hooks")
def hooks(session: CliContext) -> None:
    """Show what hooks did: their calls, statistics, and an archive; and the calls that durable hooks still have to get.

    Hooks are registered by programs; the store has the record of their calls.

    holdfast hooks history --since 1h
    holdfast hooks stats --by slowest
    holdfast hooks undelivered --state failed
    """


@command("history")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only in this scope.")
@click.option("--key", metavar="KEY", help="Only of this key.")
@click.option("--point", metavar="POINT", help="Only for this point: state.set.")
@click.option("--failed", is_flag=True, help="Only those that failed.")
@click.option("--slower-than", metavar="DURATION", help="Only those that took at least so long: 100ms.")
@click.option("--since", metavar="WHEN", help="Only since a time: 2h, yesterday, 2026-11-01.")
@limit_option(100)
def history(session: CliContext, hook: str | None, limit: int, **filters: Any) -> None:
    """List the calls of a HOOK, or of all, the latest first. With --json, each with its details.

    holdfast hooks history notify --since 1d
    holdfast hooks history --failed --slower-than 100ms
    """
    page = session.open().hooks.history(hook, **filters, limit=min(limit, 500))
    session.list(
        islice(page.all(), limit),
        none="There are no such calls.",
        first=("time",),
        exact=True,
        error=lambda call: str(call.detail.get("error", "")),
    )


@command("stats")
@click.option("--scope", type=SCOPE, metavar="SCOPE", help="Only in this scope.")
@click.option("--since", metavar="WHEN", help="Only since a time: 2h, yesterday, 2026-11-01.")
@click.option("--by", type=click.Choice([*_ORDERS]), default="most-called", show_default=True, help="Which come first.")
def stats(session: CliContext, hook: str | None, scope: str | None, since: str | None, by: str) -> None:
    """Summarize the recorded calls of each hook: how many, how many failed, and how long they took.

    holdfast hooks stats --by slowest --since 7d
    """
    found = session.open().hooks.statistics(hook, scope=scope, since=since)
    session.list(getattr(found, _ORDERS[by])(len(found)), none="There are no such calls.")


@command("archive", file=click.Path(dir_okay=False))
@click.option("--keep-within", metavar="AGE", help="Keep records up to this age: 30d.")
@click.option("--keep-last", type=click.IntRange(1), metavar="N", help="Keep at least the last N records.")
@click.option("--max-bytes", type=click.IntRange(1), metavar="N", help="Keep at most this many bytes of records.")
@dry_run_option
def archive(session: CliContext, file: str, **kept: Any) -> None:
    """Move old records of after-hooks and vetoes to a FILE, a segment of the archive of the audit.

    A record stays if it is young enough or among the last, as far as all fit into --max-bytes. `holdfast audit check`
    checks the file.

    holdfast hooks archive hooks-1.jsonl --keep-within 30d --keep-last 100000
    """
    check_folder(file)
    done = session.open(write=not session.dry_run).maintenance.archive_hooks(file, dry_run=session.dry_run, **kept)
    verb = "Would move" if session.dry_run else "Moved"
    session.tell(f"{verb} {plural(done.rows, 'record')} to {file}.", done)


@command("undelivered")
@click.option("--state", type=click.Choice(["pending", "failed"]), help="Only those to be made, or those given up.")
@limit_option(100)
def undelivered(session: CliContext, hook: str | None, state: str | None, limit: int) -> None:
    """List the calls of a durable HOOK, or of all, that were not delivered: those given up, then those to be made.

    holdfast hooks undelivered deliver --state failed
    """
    page = session.open().hooks.undelivered(hook, state=state, limit=min(limit, 500))
    session.list(
        islice(page.all(), limit),
        none="There are no such calls.",
        first=("state",),
        exact=True,
        hidden=("reference",),
        reference=lambda call: call.reference,  # last, since it is long
    )


@command("retry")
@click.argument("references", nargs=-1, metavar="[REFERENCE]...")
@click.option("--failed", is_flag=True, help="All that were given up.")
@click.option("--hook", metavar="HOOK", help="With --failed, only those of this hook.")
def retry(session: CliContext, references: tuple[str, ...], failed: bool, hook: str | None) -> None:
    """Have undelivered calls made soon, by their REFERENCEs. A process that has the hook makes them.

    holdfast hooks retry --failed --hook deliver
    """
    if failed == bool(references) or (hook and not failed):
        raise InvalidError("name the calls, or give --failed", hint="holdfast hooks undelivered lists them")
    hooks = session.open(write=True).hooks
    for reference in references:
        hooks.retry(reference)
    count = hooks.retry_failed(hook) if failed else len(references)
    session.tell(f"{plural(count, 'call')} will be made soon, where the hook is registered.", {"calls": count})


@command("discard")
@click.argument("references", nargs=-1, required=True, metavar="REFERENCE...")
def discard(session: CliContext, references: tuple[str, ...]) -> None:
    """Remove undelivered calls that are not to be made, by their REFERENCEs.

    holdfast hooks undelivered --state failed
    """
    hooks = session.open(write=True).hooks
    for reference in references:
        hooks.discard(reference)
    session.tell(f"Removed {plural(len(references), 'call')}.", {"calls": len(references)})


hooks.add(history, stats, archive, undelivered, retry, discard)
