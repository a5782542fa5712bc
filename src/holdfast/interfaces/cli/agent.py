"""`holdfast agent`: the agents in a store, without their code."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast._views import size
from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.cli.agent_history import (
    describe_pending,
    diff,
    history,
    is_handed_over,
    rollback,
    transfer,
    transfers,
    transitions,
)
from holdfast.interfaces.cli.agent_steps import (
    cancel_timer,
    prune_steps,
    resolve_step,
    signal,
    steps,
    timers,
    unsaved,
)
from holdfast.interfaces.cli.base import (
    CliContext,
    command,
    dry_run_option,
    group,
    limit_option,
    pairs,
    yes_option,
)
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.formatting import ago, plural, safe
from holdfast.interfaces.cli.scope_args import as_option, open_as, parse_value

if TYPE_CHECKING:
    from holdfast.agents import AgentRecord


@command("save-state")
@click.argument("id", type=AGENT)
@click.option("--type", "kind", metavar="NAME", help="The type of a new agent; `agent` if it is not given.")
@click.option("--state", metavar="NAME", help="The state that it is in.")
@click.option("--data", metavar="JSON", help="Its data, an object, in place of what it had.")
@as_option
def save_state(
    session: CliContext, id: str, kind: str | None, state: str | None, data: str | None, identity: str | None
) -> None:
    """Save an agent that has no class: its state and its data. What is not given stays.

    \b
    holdfast agent save-state crawl-7 --type crawler --state idle --data '{"url": "https://example.org"}'
    """
    fields = None if data is None else parse_value(data, "--data")
    store = open_as(session, identity, write=True)
    saved = store.agents.save_state(id, type=kind, state=state, data=fields)
    session.tell(f"Saved {id}, version {saved.version}.", saved)


@command("record-transition")
@click.argument("id", type=AGENT)
@click.argument("from_", metavar="FROM")
@click.argument("to", metavar="TO")
@click.option("--trigger", default="", metavar="NAME", help="What caused it.")
@click.option("--refused", is_flag=True, help="It did not succeed: the state of the agent stays.")
@click.option("--error", default="", metavar="TEXT", help="Why it was refused.")
@click.option("--data", metavar="JSON", help="Other data of the transition.")
@as_option
def record_transition(
    session: CliContext,
    id: str,
    from_: str,
    to: str,
    trigger: str,
    refused: bool,
    error: str,
    data: str | None,
    identity: str | None,
) -> None:
    """Record a transition that an agent without a class took elsewhere, or that was refused there.

    \b
    holdfast agent record-transition crawl-7 idle busy --trigger fetch
    holdfast agent record-transition crawl-7 busy done --trigger finish --refused --error 'pages are missing'
    """
    if error and not refused:
        raise InvalidError("a transition that succeeded has no error", where="--error", hint="Give --refused with it")
    value = None if data is None else parse_value(data, "--data")
    store = open_as(session, identity, write=True)
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

    \b
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
def list_(
    session: CliContext,
    kind: str | None,
    status: str | None,
    state: str | None,
    meta: tuple[str, ...],
    pending: bool,
    prefix: str,
    after: str,
    limit: int | None,
    identity: str | None,
) -> None:
    """List the agents, by id.

    \b
    holdfast agent list --class greeter --status running
    holdfast agent list --pending
    holdfast agent list --meta team=docs --json
    """
    filters: dict[str, Any] = {"kind": kind, "status": status, "state": state, "pending": pending, "prefix": prefix}
    filters["metadata"] = pairs(meta, "--meta")
    given = {name: each for name, each in filters.items() if each}
    session.list(
        islice(open_as(session, identity).agents.list(**given, cursor=after).all(), limit),
        none="There are no such agents." if given else "There are no agents.",
        status=lambda agent: "damaged" if agent.damaged else agent.status,
    )


@command("show")
@click.argument("id", type=AGENT)
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
def show(session: CliContext, id: str, version: int | None, tail: int, full: bool, identity: str | None) -> None:
    """Show an agent: its status, state, fields, tools, pending change and last messages.

    \b
    holdfast agent show committer
    holdfast agent show committer --version 12 --json
    """
    from holdfast.interfaces.cli.value_view import ALL, SHORT, DisplayLimits, ValueWriter

    store = open_as(session, identity)
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
    from holdfast.agents import Tools

    tools = Tools.of(found)
    if tools:
        yield ""
        session.list(map(tools.__getitem__, tools), may=lambda tool: "yes" if tools.may(tool.name) else "no")


@command("messages")
@click.argument("id", type=AGENT)
@limit_option()
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show the conversation of this version.")
@as_option
def messages(session: CliContext, id: str, limit: int | None, version: int | None, identity: str | None) -> None:
    """Show the conversation of an agent, or its last messages.

    \b
    holdfast agent messages haiku -n 20
    holdfast agent messages haiku --json | jq .content
    """
    from holdfast.interfaces.cli.value_view import ALL, ValueWriter

    store = open_as(session, identity)
    found = store.agents.load(id, version=version)
    start = max(found.messages - (limit or found.messages), 0)
    conversation = store.agents.messages(id, start, version=found.version)
    if not conversation:
        session.note(f"{id} has no messages.")
    elif session.json:
        session.list(conversation)
    else:
        session.report(ValueWriter(session.out, ALL).items("conversation", conversation, start, found.messages), None)


@command("resolve")
@click.argument("id", type=AGENT)
@click.option("--forward", "direction", flag_value="forward", help="Finish the change.")
@click.option("--back", "direction", flag_value="back", help="Undo the change.")
@dry_run_option
@as_option
def resolve(
    session: CliContext, id: str, direction: Literal["forward", "back"] | None, dry_run: bool, identity: str | None
) -> None:
    """Resolve a change that a crash interrupted: a transition, a start, pause or stop, a transfer.

    Agents do this automatically when they start, by the policy of their class. This is for agents whose policy leaves
    it to a person, and for those that are not to be started. No action is run, since the code of the agent is not here:
    check its effects before you finish a change. A process that is still at it gets a conflict.

    \b
    holdfast agent resolve committer --back --dry-run
    holdfast agent resolve committer --forward
    """
    if direction is None:
        raise click.UsageError("give --forward or --back")
    store = open_as(session, identity, write=not dry_run)
    pending = store.agents.load(id).pending
    if pending is None:
        record: dict[str, Any] = {"agent": id, "pending": None, "resolved": "none", "dry_run": dry_run}
        session.tell(f"{id} has no pending change.", record)
        return
    what = f"{describe_pending(pending)}, started {ago(pending.time)}"
    if dry_run:
        resolved = "forward" if is_handed_over(pending) else direction
        record = {"agent": id, "pending": pending.to_dict(), "resolved": resolved, "dry_run": True}
        session.tell(f"{what}: would be {_ENDS[resolved]}.", record)
        return
    done = store.agents.resolve(id, direction)
    not_run = f" {_NOT_RUN[pending.kind]}" if done.resolved == "forward" and not done.ran else ""
    instead = " It could not be undone." if done.resolved != direction else ""
    session.tell(f"{what}: {_ENDS[done.resolved]}.{instead}{not_run}", done, {"dry_run": False})


@command("export")
@click.argument("id", type=AGENT)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--version", type=click.IntRange(1), metavar="N", help="Show this version.")
@as_option
def export(session: CliContext, id: str, file: str, version: int | None, identity: str | None) -> None:
    """Write an agent, with its conversation, as a readable JSON document, by default to stdout.

    \b
    holdfast agent export committer committer.json
    holdfast agent export committer | jq .state.fields
    """
    if file == "-" and session.json:
        raise click.UsageError("--json needs a file: the document would mix with the record on stdout")
    document = open_as(session, identity).agents.export(id, version=version)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if safe(text, lines=True) != text:
        # Escaped, since a terminal would obey it, or UTF-8 cannot encode it.
        text = json.dumps(document, indent=2)
    if file == "-":
        session.report(text.split("\n"), None)
        return
    target = Path(file)
    if not target.absolute().parent.is_dir():
        raise NotFoundError("there is no such directory", where=str(target.absolute().parent))
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


@command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--id", metavar="ID", help="Import it under this id.")
@click.option("--create", is_flag=True, help="Create the store if there is none.")
@as_option
def import_(session: CliContext, file: str, id: str | None, create: bool, identity: str | None) -> None:
    """Import an agent that `holdfast agent export` wrote, as a new one. The file `-` is stdin.

    \b
    holdfast agent import committer.json --id committer-2
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        document = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"the file is not JSON: {error}", where=file) from None
    imported = open_as(session, identity, write=True, create=create).agents.import_(document, id=id)
    session.tell(f"Imported {imported.id} with {plural(imported.messages, 'message')}.", imported)


@command("delete")
@click.argument("id", type=AGENT)
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, id: str, dry_run: bool, yes: bool, identity: str | None) -> None:
    """Delete an agent permanently, with its conversation and history.

    \b
    holdfast agent delete committer --yes
    """
    store = open_as(session, identity, write=not dry_run)
    last = store.agents.history(id, limit=1)[0]  # a damaged agent can be deleted, too
    if not dry_run:
        session.confirm(f"Delete the agent {id} with {plural(last.messages, 'message')}?", yes=yes)
        store.agents.delete(id)
    verb = "Would delete" if dry_run else "Deleted"
    record = {"id": id, "version": last.version, "deleted": not dry_run, "dry_run": dry_run}
    session.tell(f"{verb} {id} with all of its history.", record)


agent.add(
    *(list_, show, messages, transitions, history, diff, resolve, rollback),
    *(transfer, transfers, export, import_, delete),
    *(steps, resolve_step, timers, cancel_timer, signal, unsaved, prune_steps),
    *(save_state, record_transition),
)
