"""`holdfast agent`: the agents in a store, without their code."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast._views import plain, size
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.cli.base import (
    CliContext,
    check_folder,
    command,
    dry_run_option,
    group,
    limit_option,
    pairs,
    yes_option,
)
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import ago, plural, safe
from holdfast.interfaces.cli.scope_args import as_option, diff_record, parse_value

if TYPE_CHECKING:
    from holdfast.agents.storage.record import AgentRecord, PendingChange
    from holdfast.agents.storage.transition_log import TransitionRecord
    from holdfast.interfaces.cli.output import ProgressBar
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store


@command("save-state", id=AGENT)
@click.option("--type", "kind", metavar="NAME", help="The type of a new agent; `agent` if it is not given.")
@click.option("--state", metavar="NAME", help="The state that it is in.")
@click.option("--data", metavar="JSON", help="Its data, an object, in place of what it had.")
@as_option
def save_state(session: CliContext, id: str, kind: str | None, state: str | None, data: str | None) -> None:
    """Save an agent that has no class: its state and its data. What is not given stays.

    holdfast agent save-state crawl-7 --type crawler --state idle --data '{"url": "https://example.org"}'
    """
    fields = None if data is None else parse_value(data, "--data")
    store = session.open_as(write=True)
    saved = store.agents.save_state(id, type=kind, state=state, data=fields)
    session.tell(f"Saved {id}, version {saved.version}.", saved)


@command("record-transition", id=AGENT)
@click.argument("from_", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--trigger", default="", metavar="NAME", help="What caused it.")
@click.option("--refused", is_flag=True, help="It did not succeed: the state of the agent stays.")
@click.option("--error", default="", metavar="TEXT", help="Why it was refused.")
@click.option("--data", metavar="JSON", help="Other data of the transition.")
@as_option
def record_transition(
    session: CliContext, id: str, from_: str, to: str, trigger: str, refused: bool, error: str, data: str | None
) -> None:
    """Record a transition that an agent without a class took elsewhere, or that was refused there.

    holdfast agent record-transition crawl-7 idle busy --trigger fetch
    holdfast agent record-transition crawl-7 busy done --trigger finish --refused --error 'pages are missing'
    """
    if error and not refused:
        raise InvalidError(
            "a successful transition cannot have an error", where="--error", hint="Give --refused with it"
        )
    value = None if data is None else parse_value(data, "--data")
    store = session.open_as(write=True)
    made = store.agents.record_transition(id, from_, to, trigger=trigger, success=not refused, error=error, data=value)
    session.tell(f"Recorded {from_} → {to} of {id}{', refused' if refused else ''}.", made)


_STATUSES = ("created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed")
_ENDS = {"forward": "finished", "back": "undone", "none": "unchanged"}
_NOT_RUN = {
    "transition": "Its action was not run: make sure that its effects are done.",
    "lifecycle": "The callbacks of the agent were not run.",
    "transfer": "The callbacks of the agents were not run.",
}
_PARTS = ("configuration", "fields", "context", "workflow", "metadata")


@group("agent", default="list")
def agent(session: CliContext) -> None:
    """List and show agents and their history, resolve changes that a crash interrupted, transfer and export.

    The code of the agents is not needed.

    holdfast agent list --status running
    holdfast agent show committer
    holdfast agent transitions committer --mermaid
    holdfast agent resolve committer --back
    """


@command("list")
@click.option("--class", "kind", metavar="NAME", help="Only agents of this class.")
@click.option("--status", type=click.Choice(_STATUSES), help="Only agents with this status.")
@click.option("--state", metavar="NAME", help="Only agents in this state of their machine.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Only agents with this metadata; may be repeated.")
@click.option("--pending", is_flag=True, help="Only agents with a pending change.")
@click.option("--prefix", default="", metavar="TEXT", help="Only agents whose id starts with this.")
@click.option("--after", default="", metavar="ID", help="Start after this agent.")
@limit_option()
@as_option
def list_(session: CliContext, meta: tuple[str, ...], after: str, limit: int | None, **filters: Any) -> None:
    """List the agents, by id.

    holdfast agent list --class greeter --status running
    holdfast agent list --pending
    holdfast agent list --meta team=docs --json
    """
    filters["metadata"] = pairs(meta, "--meta")
    given = {name: each for name, each in filters.items() if each}
    session.list(
        islice(session.open_as().agents.list(**given, cursor=after).all(), limit),
        none="There are no such agents." if given else "There are no agents.",
        status=lambda agent: "damaged" if agent.damaged else agent.status,
    )


@command("show", id=AGENT)
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show this version.")
@click.option(
    "-n",
    "--messages",
    "tail",
    type=click.IntRange(0),
    default=12,
    show_default=True,
    metavar="N",
    help="Show the last N messages.",
)
@click.option("--full", is_flag=True, help="Show all messages, and long values in full.")
@as_option
def show(session: CliContext, id: str, version: int | None, tail: int, full: bool) -> None:
    """Show an agent: its status, state, fields, tools, pending change and last messages.

    holdfast agent show committer
    holdfast agent show committer --version 12 --json
    """
    from holdfast.interfaces.cli.value_view import ALL, SHORT, DisplayLimits, ValueWriter

    store = session.open_as()
    try:
        found = store.agents.load(id, version=version)
    except CorruptError:
        session.note(f"Older versions may be intact: see holdfast agent history {id}, and show one with --version.")
        raise
    start = 0 if full else max(found.messages - tail, 0)
    conversation = store.agents.messages(id, start=start, version=found.version) if tail or full else []

    def lines() -> Iterator[str]:
        yield from _header(session, found)
        values = ValueWriter(session.out, ALL if full else DisplayLimits(SHORT.characters, SHORT.items, max(tail, 1)))
        for part in _PARTS:
            if value := getattr(found, part):
                yield from ("", *values.channel(part, dict(value)))
        yield from _tools(session, found)
        if conversation:
            yield from ("", *values.items("conversation", conversation, start, found.messages))

    session.report(lines(), found, {"conversation": conversation})


def _header(session: CliContext, found: AgentRecord) -> Iterator[str]:
    pending = found.pending
    said = {"pending": "" if pending is None else f"{describe_pending(pending)}, started {ago(pending.time)}"}
    yield from session.describe(found, f"agent {found.id}", hidden=("id", "tools", *_PARTS), **said)
    if pending is not None:
        yield "If its process is gone, the agent's next start resolves it. Or manually:"
        for option in ("--forward",) if is_handed_over(pending) else ("--back", "--forward"):
            yield f"  holdfast agent resolve {shlex.quote(safe(found.id))} {option}"


def _tools(session: CliContext, found: AgentRecord) -> Iterator[str]:
    from holdfast.agents.api.tools import Tools

    tools = Tools.of(found)
    if tools:
        yield ""
        session.list(map(tools.__getitem__, tools), may=lambda tool: "yes" if tools.may(tool.name) else "no")


@command("messages", id=AGENT)
@limit_option()
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show the conversation of this version.")
@as_option
def messages(session: CliContext, id: str, limit: int | None, version: int | None) -> None:
    """Show the conversation of an agent, or its last messages.

    holdfast agent messages haiku -n 20
    holdfast agent messages haiku --json | jq .content
    """
    from holdfast.interfaces.cli.value_view import ALL, ValueWriter

    store = session.open_as()
    found = store.agents.load(id, version=version)
    start = max(found.messages - (limit or found.messages), 0)
    conversation = store.agents.messages(id, start, version=found.version)
    if not conversation:
        session.note(f"{id} has no messages.")
    elif session.json:
        session.list(conversation)
    else:
        session.report(ValueWriter(session.out, ALL).items("conversation", conversation, start, found.messages), None)


@command("resolve", id=AGENT)
@click.option("--forward", "direction", flag_value="forward", help="Finish the change.")
@click.option("--back", "direction", flag_value="back", help="Undo the change.")
@dry_run_option
@as_option
def resolve(session: CliContext, id: str, direction: Literal["forward", "back"] | None) -> None:
    """Resolve a change that a crash interrupted: a transition, a start, pause or stop, a transfer.

    Agents do this automatically when they start, by the policy of their class. This is for agents whose policy leaves
    it to a person, and for those that are not to be started. No action is run, since the code of the agent is not here:
    check its effects before you finish a change. A process that is still at it gets a conflict.

    holdfast agent resolve committer --back --dry-run
    holdfast agent resolve committer --forward
    """
    if direction is None:
        raise click.UsageError("give --forward or --back")
    store = session.open_as(write=not session.dry_run)
    pending = store.agents.load(id).pending
    if pending is None:
        record: dict[str, Any] = {"agent": id, "pending": None, "resolved": "none", "dry_run": session.dry_run}
        session.tell(f"{id} has no pending change.", record)
        return
    what = f"{describe_pending(pending)}, started {ago(pending.time)}"
    if session.dry_run:
        resolved = "forward" if is_handed_over(pending) else direction
        record = {"agent": id, "pending": pending.to_dict(), "resolved": resolved, "dry_run": True}
        session.tell(f"{what}: would be {_ENDS[resolved]}.", record)
        return
    done = store.agents.resolve(id, direction)
    not_run = f" {_NOT_RUN[pending.kind]}" if done.resolved == "forward" and not done.ran else ""
    instead = " It could not be undone." if done.resolved != direction else ""
    session.tell(f"{what}: {_ENDS[done.resolved]}.{instead}{not_run}", done, {"dry_run": False})


@command("export", id=AGENT)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show this version.")
@as_option
def export(session: CliContext, id: str, file: str, version: int | None) -> None:
    """Write an agent, with its conversation, as a readable JSON document, by default to stdout.

    holdfast agent export committer committer.json
    holdfast agent export committer | jq .state.fields
    """
    if file == "-" and session.json:
        raise click.UsageError("--json needs a file: the document would mix with the record on stdout")
    document = session.open_as().agents.export(id, version=version)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if safe(text, lines=True) != text:
        # Escaped, since a terminal would obey it, or UTF-8 cannot encode it.
        text = json.dumps(document, indent=2)
    if file == "-":
        session.report(text.split("\n"), None)
        return
    target = Path(file)
    check_folder(target)
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with new.open("x", encoding="utf-8") as out:
            out.write(text + "\n")
            out.flush()
            os.fsync(out.fileno())
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)
    session.tell(f"Wrote {file}: {size(target.stat().st_size)}.", {"id": id, "file": file, "version": version})


@command("import", file=click.Path(dir_okay=False, allow_dash=True))
@click.option("--id", metavar="ID", help="Import it under this id.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@as_option
def import_(session: CliContext, file: str, id: str | None, create: bool) -> None:
    """Import an agent that `holdfast agent export` wrote, as a new one. The file `-` is stdin.

    holdfast agent import committer.json --id committer-2
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        document = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"the file is not JSON: {error}", where=file) from None
    imported = session.open_as(write=True, create=create).agents.import_(document, id=id)
    session.tell(f"Imported {imported.id} with {plural(imported.messages, 'message')}.", imported)


@command("delete", id=AGENT)
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, id: str) -> None:
    """Delete an agent permanently, with its conversation and history.

    holdfast agent delete committer --yes
    """
    store = session.open_as(write=not session.dry_run)
    last = store.agents.history(id, limit=1)[0]  # a damaged agent can be deleted, too
    if not session.dry_run:
        session.confirm(f"Delete the agent {id} with {plural(last.messages, 'message')}?")
        store.agents.delete(id)
    verb = "Would delete" if session.dry_run else "Deleted"
    record = {"id": id, "version": last.version, "deleted": not session.dry_run, "dry_run": session.dry_run}
    session.tell(f"{verb} {id} with all of its history.", record)


def describe_pending(pending: PendingChange) -> str:
    """Describe a pending change on one line."""
    what = f"transition {pending.trigger}" if pending.kind == "transition" else pending.trigger
    return f"{what}, {pending.source} → {pending.target}{', not acknowledged' * is_handed_over(pending)}"


def is_handed_over(pending: PendingChange) -> bool:
    """Return whether it is a transfer that only lacks its acknowledgement: that cannot be undone."""
    return pending.kind == "transfer" and pending.phase == "received"


@command("transitions", id=AGENT)
@click.option("--trigger", metavar="NAME", help="Only those of this trigger.")
@click.option("--outcome", type=click.Choice(("ok", "error")), help="Only those with this outcome.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Draw the state machine for Mermaid.")
@click.option("--dot", "form", flag_value="dot", help="Draw the state machine for Graphviz.")
@click.option("--before", metavar="CURSOR", help="Continue with those before the row of this cursor.")
@limit_option(100)
@as_option
def transitions(
    session: CliContext,
    id: str,
    trigger: str | None,
    outcome: str | None,
    form: str | None,
    before: str | None,
    limit: int,
) -> None:
    """Show the transitions of an agent's state machine, the latest first; or draw the machine.

    A diagram has the states and transitions that are declared, and those that occurred, with their counts, and marks
    the current state. With --json every row has a cursor for --before.

    holdfast agent transitions committer -n 20
    holdfast agent transitions committer --outcome error --json
    holdfast agent transitions committer --mermaid
    holdfast agent transitions committer --dot | dot -Tsvg -o committer.svg
    """
    store = session.open_as()
    if form is not None:
        _draw(session, store, id, form)
        return
    filters: dict[str, Any] = {name: each for name, each in (("trigger", trigger), ("outcome", outcome)) if each}
    listed = islice(store.agents.transitions(id, cursor=before, **filters).all(), limit)
    none = "There are no such transitions." if filters else f"{id} has no transitions."
    session.list(listed, none=none, first=("time",), exact=True)


def _draw(session: CliContext, store: Store | IdentityView, id: str, form: str) -> None:
    from holdfast.agents.definition.state_machine import Machine
    from holdfast.agents.storage.transition_log import count_transitions, dot, mermaid

    record, declared = store.agents.load(id), store.agents.machine(id)
    machine = None if declared is None else Machine.of(declared)
    with session.progress("Counting") as progress:
        taken = count_transitions(_reported(store.agents.transitions(id).all(), progress))
    diagram = (mermaid if form == "mermaid" else dot)(machine, taken, current=record.state)
    transitions = [
        {**plain(each), "taken": taken.successes[each], "failed": taken.failures[each]}
        for each in dict.fromkeys((*taken.successes, *taken.failures))
    ]
    drawn = {"id": id, "state": record.state, "transitions": transitions, "format": form, "diagram": diagram}
    session.report(map(safe, diagram.splitlines()), drawn)


def _reported(transitions: Iterable[TransitionRecord], progress: ProgressBar) -> Iterator[TransitionRecord]:
    for number, each in enumerate(transitions, 1):
        progress(number, None, each.trigger)
        yield each


@command("history", id=AGENT)
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Continue with those before this version.")
@limit_option(100)
@as_option
def history(session: CliContext, id: str, before: int | None, limit: int) -> None:
    """Show the saved versions of an agent, the latest first.

    holdfast agent history committer -n 20
    """
    store = session.open_as()
    older = None if before is None else store.agents.load(id, version=before).checkpoint
    session.list(store.agents.history(id, limit=limit, cursor=older))


@command("diff", id=AGENT)
@click.argument("a", metavar="[A]", type=click.IntRange(1), required=False)
@click.argument("b", metavar="[B]", type=click.IntRange(1), required=False)
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
@as_option
def diff(session: CliContext, id: str, a: int | None, b: int | None, exit_code: bool) -> None:
    """Compare two versions of an agent: A with B, by default the last one. Without A, show what the last one changed.

    holdfast agent diff committer
    holdfast agent diff committer 3 7
    """
    changes = session.open_as().agents.diff(id, a, b)
    if not changes:
        session.note("Nothing differs.")
    session.report(map(session.out.diff_line, changes.lines()), diff_record(changes), {"id": id, "a": a, "b": b})
    session.exit_if(exit_code and changes, FINDINGS)


@command("rollback", id=AGENT)
@dry_run_option
@yes_option
@as_option
def rollback(session: CliContext, id: str, to: str) -> None:
    """Restore an older version of an agent, in a new step: its history is kept.

    TO is a version, such as 12, or a state of its machine: then it is the last version in that state. Effects outside
    of the store are not undone. A process that runs the agent gets a conflict when it saves.

    holdfast agent rollback committer 12 --dry-run
    holdfast agent rollback committer idle --yes
    """
    store = session.open_as(write=not session.dry_run)
    now = store.agents.load(id)
    target = int(to) if to.isascii() and to.isdigit() else to
    record: dict[str, Any] = {"id": id, "to": to, "before": now.version, "dry_run": session.dry_run}
    if session.dry_run:
        then = store.agents.load(id, version=target) if isinstance(target, int) else None
        what = f"its last version in state {to}" if then is None else f"version {to}: {then.status}, {then.state}"
        session.tell(f"{id}, at version {now.version}, would be rolled back to {what}.", record | {"version": None})
        return
    session.confirm(f"Roll {id} back to {to}?")
    version = store.agents.rollback(id, target).version
    session.tell(f"Rolled {id} back to {to}, as version {version}.", record | {"version": version})


@command("transfer", source=AGENT, target=AGENT)
@click.option("-m", "--reason", default="", metavar="TEXT", help="The reason.")
@click.option("--context", multiple=True, metavar="KEY=VALUE", help="Pass this on, too; may be repeated.")
@dry_run_option
@yes_option
@as_option
def transfer(session: CliContext, source: str, target: str, reason: str, context: tuple[str, ...]) -> None:
    """Transfer the conversation and the context of an agent to another, atomically.

    The code of the agents is not run, so neither can refuse. A process that runs one of them gets a conflict when it
    saves.

    holdfast agent transfer greeter haiku -m 'the greeter is gone' --yes
    """
    more = pairs(context, "--context")
    store = session.open_as(write=not session.dry_run)
    sender, receiver = store.agents.load(source), store.agents.load(target)
    what = f"{plural(sender.messages, 'message')} from {source} to {target}, which has {receiver.messages:,}"
    if session.dry_run:
        record = {"source": source, "target": target, "messages": sender.messages, "dry_run": True}
        session.tell(f"Would transfer {what}.", record)
        return
    session.confirm(f"Transfer {what}?")
    done = store.agents.transfer(source, target, context=more, reason=reason, accept=True)
    session.tell(f"Transferred {plural(done.messages, 'message')} from {source} to {target}.", done)


@command("transfers", id=AGENT)
@limit_option(100)
@as_option
def transfers(session: CliContext, id: str, limit: int) -> None:
    """Show the transfers from and to an agent, the latest first, each with its phase.

    holdfast agent transfers greeter
    """
    listed = session.open_as().agents.transfers(id, limit=limit)
    session.list(listed, none=f"{id} has no transfers.", first=("time",), exact=True)


@command("steps", id=AGENT)
@limit_option(100)
@as_option
def steps(session: CliContext, id: str, key: str | None, limit: int) -> None:
    """List the durable steps of an agent, or show one.

    A step that is running while no process runs it has an outcome that is unknown: see holdfast agent resolve-step.

    holdfast agent steps committer
    holdfast agent steps committer charge-42 --json
    """
    durable = session.open_as().agents.steps(id)
    if key is not None:
        found = durable.get(key)
        session.report(session.describe(found, f"step {key}", hidden=("key",)), found)
        return
    session.list(islice(durable.list().all(), limit))


@command("resolve-step", id=AGENT)
@click.option("--result", metavar="JSON", help="Record that the step is done, with this result.")
@click.option("--error", metavar="TEXT", help="Record that the step failed.")
@click.option("--retry", is_flag=True, help="Let the agent run the step again.")
@as_option
def resolve_step(session: CliContext, id: str, key: str, result: str | None, error: str | None, retry: bool) -> None:
    """Record what became of a durable step whose outcome is unknown, or that failed.

    holdfast agent resolve-step committer charge-42 --result '{"paid": true}'
    holdfast agent resolve-step committer charge-42 --retry
    """
    if (result is not None) + (error is not None) + retry != 1:
        raise click.UsageError("give one of --result, --error and --retry")
    durable = session.open_as(write=True).agents.steps(id)
    if result is not None:
        step = durable.resolve(key, result=parse_value(result, "--result"))
    else:
        step = durable.resolve(key, error=error, retry=retry)
    session.tell(f"The step {key} is {step.state} now.", step)


@command("timers", id=AGENT)
@as_option
def timers(session: CliContext, id: str) -> None:
    """List the timers and sleeps of an agent, the next one first.

    holdfast agent timers committer
    """
    found = session.open_as().agents.timers(id).list()
    session.list(found, exact=True, signal=lambda timer: timer.signal or "(sleep)")


@command("cancel-timer", id=AGENT)
@as_option
def cancel_timer(session: CliContext, id: str, name: str) -> None:
    """Cancel a timer of an agent, or end a sleep.

    holdfast agent cancel-timer committer reminder
    """
    done = session.open_as(write=True).agents.timers(id).cancel(name)
    text = f"Cancelled {name}." if done else f"{id} has no timer {name}."
    session.tell(text, {"agent": id, "name": name, "done": done})


@command("signal", id=AGENT)
@click.argument("value", metavar="[JSON]", required=False)
@click.option("--id", "signal_id", metavar="TEXT", help="The id of the signal: one that was sent before is not sent.")
@click.option("--create", is_flag=True, help="Keep it for an agent that does not exist yet.")
@as_option
def signal(
    session: CliContext, id: str, name: str | None, value: str | None, signal_id: str | None, create: bool
) -> None:
    """Send a signal to an agent, which gets it when it waits for it; without a NAME, list those that wait.

    holdfast agent signal committer approved '{"by": "Ada"}' --id approval-42
    holdfast agent signal committer
    """
    if name is not None:
        store = session.open_as(write=True)
        payload = None if value is None else parse_value(value, "JSON")
        sent = store.agents.signal(id, name, payload, id=signal_id, create=create)
        text = f"Sent {name} to {id}." if sent else f"The signal {signal_id} was sent before."
        session.tell(text, {"agent": id, "signal": name, "new": sent})
        return
    session.list(session.open_as().agents.steps(id).signals(), exact=True)


@command("unsaved")
@limit_option(100)
@as_option
def unsaved(session: CliContext, limit: int) -> None:
    """List the agents that have durable steps, timers or signals, and were never saved.

    holdfast agent delete deletes these.

    holdfast agent unsaved
    """
    for each in islice(session.open_as().agents.unsaved().all(), limit):
        session.report(each, {"agent": each})


@command("prune-steps", id=AGENT)
@click.option("--older-than", required=True, metavar="AGE", help="Records that ended at least this long ago: 90d, 1y.")
@dry_run_option
@as_option
def prune_steps(session: CliContext, id: str | None, older_than: str) -> None:
    """Delete old records of durable steps, sleeps, waits, signals and timers: of one agent, or of all.

    A step that is deleted is run again if it is asked for.

    holdfast agent prune-steps --older-than 90d --dry-run
    """
    store = session.open_as(write=not session.dry_run)
    done = store.agents.prune_steps(older_than, agent=id, dry_run=session.dry_run)
    counts = ", ".join(f"{count} {name}" for name, count in plain(done).items())
    text = f"{'Would delete records' if session.dry_run else 'Deleted records'}: {counts}."
    session.tell(text, done, {"dry_run": session.dry_run})


agent.add(
    *(list_, show, messages, transitions, history, diff, resolve, rollback),
    *(transfer, transfers, export, import_, delete),
    *(steps, resolve_step, timers, cancel_timer, signal, unsaved, prune_steps),
    *(save_state, record_transition),
)
