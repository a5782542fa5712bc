"""`holdfast agent steps`, `resolve-step`, `timers`, `cancel-timer`, `signal`, `unsaved` and `prune-steps`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, limit_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.scope_args import as_option, open_as, parse_value

if TYPE_CHECKING:
    pass


@command("steps")
@click.argument("id", type=AGENT)
@click.argument("key", required=False)
@limit_option(100)
@as_option
def steps(session: CliContext, id: str, key: str | None, limit: int, identity: str | None) -> None:
    """List the durable steps of an agent, or show one.

    A step that is running while no process runs it has an outcome that is unknown: see holdfast agent resolve-step.

    \b
    holdfast agent steps committer
    holdfast agent steps committer charge-42 --json
    """
    durable = open_as(session, identity).agents.steps(id)
    if key is not None:
        found = durable.get(key)
        session.report(session.describe(found, f"step {key}", hidden=("key",)), found)
        return
    session.list(islice(durable.list().all(), limit))


@command("resolve-step")
@click.argument("id", type=AGENT)
@click.argument("key")
@click.option("--result", metavar="JSON", help="Record that the step is done, with this result.")
@click.option("--error", metavar="TEXT", help="Record that the step failed.")
@click.option("--retry", is_flag=True, help="Let the agent run the step again.")
@as_option
def resolve_step(
    session: CliContext, id: str, key: str, result: str | None, error: str | None, retry: bool, identity: str | None
) -> None:
    """Record what became of a durable step whose outcome is unknown, or that failed.

    \b
    holdfast agent resolve-step committer charge-42 --result '{"paid": true}'
    holdfast agent resolve-step committer charge-42 --retry
    """
    if (result is not None) + (error is not None) + retry != 1:
        raise click.UsageError("give one of --result, --error and --retry")
    durable = open_as(session, identity, write=True).agents.steps(id)
    if result is not None:
        step = durable.resolve(key, result=parse_value(result, "--result"))
    else:
        step = durable.resolve(key, error=error, retry=retry)
    session.tell(f"The step {key} is {step.state} now.", step)


@command("timers")
@click.argument("id", type=AGENT)
@as_option
def timers(session: CliContext, id: str, identity: str | None) -> None:
    """List the timers and sleeps of an agent, the next one first.

    \b
    holdfast agent timers committer
    """
    found = open_as(session, identity).agents.timers(id).list()
    session.list(found, exact=True, signal=lambda timer: timer.signal or "(sleep)")


@command("cancel-timer")
@click.argument("id", type=AGENT)
@click.argument("name")
@as_option
def cancel_timer(session: CliContext, id: str, name: str, identity: str | None) -> None:
    """Cancel a timer of an agent, or end a sleep.

    \b
    holdfast agent cancel-timer committer reminder
    """
    done = open_as(session, identity, write=True).agents.timers(id).cancel(name)
    text = f"Cancelled {name}." if done else f"{id} has no timer {name}."
    session.tell(text, {"agent": id, "name": name, "done": done})


@command("signal")
@click.argument("id", type=AGENT)
@click.argument("name", required=False)
@click.argument("value", metavar="[JSON]", required=False)
@click.option("--id", "signal_id", metavar="TEXT", help="The id of the signal: one that was sent before is not sent.")
@click.option("--create", is_flag=True, help="Keep it for an agent that does not exist yet.")
@as_option
def signal(
    session: CliContext,
    id: str,
    name: str | None,
    value: str | None,
    signal_id: str | None,
    create: bool,
    identity: str | None,
) -> None:
    """Send a signal to an agent, which gets it when it waits for it; without a NAME, list those that wait.

    \b
    holdfast agent signal committer approved '{"by": "Ada"}' --id approval-42
    holdfast agent signal committer
    """
    if name is not None:
        store = open_as(session, identity, write=True)
        payload = None if value is None else parse_value(value, "JSON")
        sent = store.agents.signal(id, name, payload, id=signal_id, create=create)
        text = f"Sent {name} to {id}." if sent else f"The signal {signal_id} was sent before."
        session.tell(text, {"agent": id, "signal": name, "new": sent})
        return
    session.list(open_as(session, identity).agents.steps(id).signals(), exact=True)


@command("unsaved")
@limit_option(100)
@as_option
def unsaved(session: CliContext, limit: int, identity: str | None) -> None:
    """List the agents that have durable steps, timers or signals, and were never saved.

    holdfast agent delete deletes these.

    \b
    holdfast agent unsaved
    """
    for each in islice(open_as(session, identity).agents.unsaved().all(), limit):
        session.report(each, {"agent": each})


@command("prune-steps")
@click.argument("id", type=AGENT, required=False)
@click.option("--older-than", required=True, metavar="AGE", help="Records that ended at least this long ago: 90d, 1y.")
@dry_run_option
@as_option
def prune_steps(session: CliContext, id: str | None, older_than: str, dry_run: bool, identity: str | None) -> None:
    """Delete old records of durable steps, sleeps, waits, signals and timers: of one agent, or of all.

    A step that is deleted is run again if it is asked for.

    \b
    holdfast agent prune-steps --older-than 90d --dry-run
    """
    store = open_as(session, identity, write=not dry_run)
    done = store.agents.prune_steps(older_than, agent=id, dry_run=dry_run)
    counts = ", ".join(f"{count} {name}" for name, count in asdict(done).items())
    text = f"{'Would delete records' if dry_run else 'Deleted records'}: {counts}."
    session.tell(text, done, {"dry_run": dry_run})
