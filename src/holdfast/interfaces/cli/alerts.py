"""`holdfast alerts`: what needs attention."""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.interfaces.cli.base import CliContext, command, group
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import clock


@group("alerts", default="list")
def alerts(session: CliContext) -> None:
    """List alerts, silence them, and test where they are sent.

    A job evaluates the rules; `holdfast jobs work` runs it. Alerts are sent to the webhooks and commands of the table
    [alerts] in holdfast.toml, of the process that runs the job.

    holdfast jobs add alerts alerts --schedule "every 1m" --set backup_age=1d
    holdfast alerts list
    holdfast alerts silence backup-age 2h
    """


@command("list")
def list_(session: CliContext) -> None:
    """List the rules with their states. The exit code is 6 if an alert is firing.

    holdfast alerts list
    """
    found, now = session.open().alerts.list(), datetime.now(UTC)
    session.list(
        found,
        silenced_until=lambda each: clock(each.silenced_until) if (each.silenced_until or now) > now else "",
        message=lambda each: each.message if each.state != "ok" else "",
    )
    session.exit_if(any(each.state == "firing" for each in found), FINDINGS)


@command("test")
def test(session: CliContext) -> None:
    """Send a test to all webhooks and commands. The exit code is 6 if one does not get it.

    holdfast alerts test
    """
    results = session.open().alerts.test()
    for name, error in results:
        session.report(f"{name}: {error or 'sent'}", {"sink": name, "error": error})
    session.exit_if(any(error for _, error in results), FINDINGS)


@command("silence")
def silence(session: CliContext, rule: str, duration: str) -> None:
    """Send nothing about a rule for a time, such as 2h; with 0, send again.

    holdfast alerts silence backup-age 2h
    """
    found = session.open(write=True).alerts.silence(rule, duration)
    end = found.silenced_until
    session.tell(f"{found.rule} is {'sent again' if end is None else f'silent until {clock(end)}'}.", found)


alerts.add(list_, test, silence)
