"""`holdfast alerts`: what needs attention."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from holdfast.interfaces.cli.base import CliContext, command, group
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import ago, clock, safe

_HEADS = ("RULE", "STATE", "SINCE", "SILENCED UNTIL", "")
_COLORS = {"ok": "green", "pending": "yellow", "firing": "red", "resolved": "cyan"}


@group("alerts", invoke_without_command=True)
def alerts(session: CliContext) -> None:
    """List alerts, silence them, and test where they are sent.

    A job evaluates the rules; `holdfast jobs work` runs it. Alerts are sent to the webhooks and commands of the table
    [alerts] in holdfast.toml, of the process that runs the job.

    \b
    holdfast jobs add alerts alerts --schedule "every 1m" --set backup_age=1d
    holdfast alerts list
    holdfast alerts silence backup-age 2h
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(session)


@command("list")
def list_(session: CliContext) -> None:
    """List the rules with their states. The exit code is 6 if an alert is firing.

    \b
    holdfast alerts list
    """
    _list(session)


def _list(session: CliContext) -> None:
    found = session.open().alerts.list()
    now = datetime.now(UTC)
    if session.json:
        session.emit_all(found)
    else:
        rows = [
            (
                each.rule,
                session.out.style(each.state, _COLORS[each.state]),
                ago(each.since, now) if each.since else "",
                clock(each.silenced_until) if each.silenced_until and each.silenced_until > now else "",
                safe(each.message if each.state != "ok" else ""),
            )
            for each in found
        ]
        session.out.table(_HEADS, rows)
    if any(each.state == "firing" for each in found):
        raise click.exceptions.Exit(FINDINGS)


@command("test")
def test(session: CliContext) -> None:
    """Send a test to all webhooks and commands. The exit code is 6 if one does not get it.

    \b
    holdfast alerts test
    """
    results = session.open().alerts.test()
    for name, error in results:
        if session.json:
            session.emit({"sink": name, "error": error})
        else:
            session.out.line(safe(f"{name}: {error or 'sent'}"))
    if any(error for _, error in results):
        raise click.exceptions.Exit(FINDINGS)


@command("silence")
@click.argument("rule")
@click.argument("duration")
def silence(session: CliContext, rule: str, duration: str) -> None:
    """Send nothing about a rule for a time, such as 2h; with 0, send again.

    \b
    holdfast alerts silence backup-age 2h
    """
    found = session.open(write=True).alerts.silence(rule, duration)
    if session.json:
        session.emit(found)
    elif found.silenced_until is None:
        session.note(f"{found.rule} is sent again.")
    else:
        session.note(f"{found.rule} is silent until {clock(found.silenced_until)}.")


for _each in (list_, test, silence):
    alerts.add_command(_each)
