"""`holdfast agent`: the agents that are kept in a store, without the code that they were made with."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.errors import CorruptError, InvalidError, NotFoundError
from holdfast.interfaces.cli.agent_history import diff, handed_over, history, in_short, rollback, transitions
from holdfast.interfaces.cli.agent_transfer import transfer, transfers
from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, group, pairs, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.formatting import ago, local, plural, safe, size
from holdfast.interfaces.cli.json_output import encode, plain
from holdfast.interfaces.cli.scope_args import acting, as_option

if TYPE_CHECKING:
    from holdfast.agents.storage.listing import AgentInfo
    from holdfast.agents.storage.record import AgentRecord
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

_PAGE = 200
_HEADS = ("AGENT", "CLASS", "STATUS", "STATE", "VERSION", "MESSAGES", "SAVED", "PENDING", "METADATA")
_TOOL_HEADS = ("TOOL", "MAY", "PERMISSIONS", "USES", "FAILURES", "DENIED", "SECONDS", "LAST ERROR")
_COLORS = {"running": "green", "failed": "red", "stopped": "dim", "paused": "yellow"}
_STATUSES = ("created", "starting", "running", "pausing", "paused", "resuming", "stopping", "stopped", "failed")
_ENDS = {"forward": "finished", "back": "taken back", "none": "left as it is"}
_LEFT = {
    "transition": "Its action was not run: see to it that what it does is done.",
    "lifecycle": "What the agent does for it was not run.",
    "transfer": "The agents were not asked, and not told.",
}
_PARTS = ("configuration", "fields", "context", "workflow", "metadata")


def agent_record(found: AgentRecord) -> dict[str, Any]:
    """An agent as a record, without its messages."""
    return {
        "id": found.id,
        "class": found.kind,
        "schema": found.schema,
        "status": found.status,
        "state": found.state,
        "version": found.version,
        "checkpoint": found.checkpoint,
        "created": found.created,
        "updated": found.updated,
        "messages": found.messages,
        "tokens": found.tokens,
        "pending": None if found.pending is None else found.pending.to_dict(),
        **{part: getattr(found, part) for part in _PARTS},
        "tools": found.tools,
    }


@group("agent", invoke_without_command=True)
def agent(session: CliContext) -> None:
    """List and look at agents, see their transitions, resolve what a crash left half-done, export.

    Nothing of this needs the code of the agents.

    \b
    holdfast agent list --status running
    holdfast agent show committer
    holdfast agent transitions committer --mermaid
    holdfast agent resolve committer --back
    """
    if click.get_current_context().invoked_subcommand is None:
        _list(session, acting(session, None), {}, "", None)


@command("list")
@click.option("--class", "kind", metavar="NAME", help="Those of this class.")
@click.option("--status", type=click.Choice(_STATUSES), help="Those of this status.")
@click.option("--state", metavar="NAME", help="Those whose machine is in this state.")
@click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Those that have this metadata; may be repeated.")
@click.option("--pending", is_flag=True, help="Those of which something is half-done.")
@click.option("--prefix", default="", metavar="TEXT", help="Those whose id begins with this.")
@click.option("--after", default="", metavar="ID", help="Go on after this agent.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Show so many at most.")
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
    """List the agents, in the order of their ids.

    \b
    holdfast agent list --class greeter --status running
    holdfast agent list --pending
    holdfast agent list --meta team=docs --json
    """
    asked: dict[str, Any] = {"kind": kind, "status": status, "state": state, "pending": pending, "prefix": prefix}
    asked["metadata"] = pairs(meta, "--meta")
    _list(session, acting(session, identity), {name: each for name, each in asked.items() if each}, after, limit)


def _list(
    session: CliContext, there: Store | IdentityView, asked: dict[str, Any], after: str, limit: int | None
) -> None:
    def pages() -> Iterator[AgentInfo]:
        last, size = after, min(limit or _PAGE, _PAGE)
        while page := there.agents.list(**asked, after=last, limit=size):
            yield from page
            last = page[-1].id

    found = islice(pages(), limit)
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    now, widths = datetime.now(UTC), list[int]()
    while page := list(islice(found, _PAGE)):
        rows = [_row(each, now) for each in page]
        widths = session.out.table(
            _HEADS, rows, right=("VERSION", "MESSAGES"), shrink="METADATA", styles={"AGENT": "yellow"}, widths=widths
        )
    if not widths:
        session.note("There are no such agents." if asked else "There are no agents.")


def _row(found: AgentInfo, now: datetime) -> tuple[str, ...]:
    counts = str(found.version), str(found.messages)
    said = encode(found.metadata) if found.metadata else ""
    status = "damaged" if found.damaged else found.status
    return found.id, found.kind, status, found.state, *counts, ago(found.updated, now), found.pending, said


@command("show")
@click.argument("id", type=AGENT)
@click.option("--version", type=click.IntRange(1), metavar="N", help="As it was at this version.")
@click.option(
    "-n",
    "--messages",
    "tail",
    type=click.IntRange(0),
    default=12,
    show_default=True,
    metavar="N",
    help="So many messages.",
)
@click.option("--full", is_flag=True, help="Show all messages, and do not shorten long values.")
@as_option
def show(session: CliContext, id: str, version: int | None, tail: int, full: bool, identity: str | None) -> None:
    """Show an agent: its status and state, what it holds, its tools, the end of its conversation, and what is pending.

    \b
    holdfast agent show committer
    holdfast agent show committer --version 12 --json
    """
    from holdfast.interfaces.cli.value_view import ALL, ROOM, DisplayLimits, ValueWriter

    there = acting(session, identity)
    try:
        found = there.agents.load(id, version=version)
    except CorruptError:
        session.note(f"Older versions may be whole: see holdfast agent history {id}, and show one with --version.")
        raise
    start = 0 if full else max(found.messages - tail, 0)
    said = there.agents.messages(id, start=start, version=found.version) if tail or full else []
    if session.json:
        session.emit(agent_record(found) | {"conversation": said})
        return
    out = session.out
    out.page()
    for line in _header(session, found):
        out.line(line)
    values = ValueWriter(out, ALL if full else DisplayLimits(ROOM.characters, ROOM.items, max(tail, 1)))
    for part in _PARTS:
        if held := getattr(found, part):
            out.line()
            _write(session, values.channel(part, dict(held)))
    _tools(session, found)
    if said:
        out.line()
        _write(session, values.stretch("conversation", said, start, found.messages))


def _header(session: CliContext, found: AgentRecord) -> Iterator[str]:
    out = session.out
    yield out.style(f"agent {safe(found.id)}", "yellow")
    yield f"Class:    {safe(found.kind)}, schema {safe(found.schema)}"
    yield f"Status:   {out.style(found.status, _COLORS.get(found.status, 'bold'))}"
    if found.state:
        yield f"State:    {out.style(safe(found.state), 'cyan')}"
    yield f"Version:  {found.version}"
    yield f"Created:  {local(found.created)} ({ago(found.created)})"
    yield f"Saved:    {local(found.updated)} ({ago(found.updated)})"
    yield f"Messages: {found.messages:,}" + (f" ({found.tokens:,} tokens)" if found.tokens else "")
    if found.pending is not None:
        pending = found.pending
        yield f"Pending:  {out.style(safe(in_short(pending)), 'red')}, begun {ago(pending.time)}"
        yield "          Where no process is at it any more, the agent's next start resolves it. Or by hand:"
        for way in ("--forward",) if handed_over(pending) else ("--back", "--forward"):
            yield f"          holdfast agent resolve {shlex.quote(safe(found.id))} {way}"


def _tools(session: CliContext, found: AgentRecord) -> None:
    from holdfast.agents import Tools

    tools = Tools.of(found)
    if not tools:
        return
    session.out.line()
    rows = []
    for tool in map(tools.__getitem__, tools):
        counts = (f"{count:,}" for count in (tool.uses, tool.failures, tool.denied))
        may = "yes" if tools.may(tool.name) else "no"
        rows.append((tool.name, may, ", ".join(tool.permissions), *counts, f"{tool.seconds:.3f}", tool.last_error))
    session.out.table(_TOOL_HEADS, rows, right=_TOOL_HEADS[3:7], shrink="LAST ERROR", styles={"TOOL": "yellow"})


def _write(session: CliContext, lines: Iterator[str]) -> None:
    for line in lines:
        session.out.line(line)


@command("messages")
@click.argument("id", type=AGENT)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="The last so many only.")
@click.option("--version", type=click.IntRange(1), metavar="N", help="As the conversation was at this version.")
@as_option
def messages(session: CliContext, id: str, limit: int | None, version: int | None, identity: str | None) -> None:
    """Show the conversation of an agent, from its first message to its last.

    \b
    holdfast agent messages haiku -n 20
    holdfast agent messages haiku --json | jq .content
    """
    from holdfast.interfaces.cli.value_view import ALL, ValueWriter

    there = acting(session, identity)
    found = there.agents.load(id, version=version)
    start = max(found.messages - (limit or found.messages), 0)
    said = there.agents.messages(id, start, version=found.version)
    if session.json:
        session.emit_all(said)
        return
    if not said:
        session.note(f"{id} has no messages.")
        return
    session.out.page()
    _write(session, ValueWriter(session.out, ALL).stretch("conversation", said, start, found.messages))


@command("resolve")
@click.argument("id", type=AGENT)
@click.option("--forward", "way", flag_value="forward", help="Take it for done: what was begun is finished.")
@click.option("--back", "way", flag_value="back", help="Take it back: all is as it was before.")
@dry_run_option
@as_option
def resolve(
    session: CliContext, id: str, way: Literal["forward", "back"] | None, dry_run: bool, identity: str | None
) -> None:
    """Resolve what a crash left half-done: a transition, a start, pause or stop, a transfer.

    Agents do this by themselves when they are started, by the policy of their class. This is for those whose policy
    leaves it to a person, and for those that are not to be started. The code of the agent is not here, so that no
    action is run: look what was done before you take it for done. A process that is still at it cannot finish it any
    more: it gets a conflict.

    \b
    holdfast agent resolve committer --back --dry-run
    holdfast agent resolve committer --forward
    """
    if way is None:
        raise click.UsageError("say how: --forward or --back")
    there = acting(session, identity, write=not dry_run)
    pending = there.agents.load(id).pending
    if pending is None:
        told = {"agent": id, "pending": None, "resolved": "none", "dry_run": dry_run}
        session.tell(f"Nothing of {id} is half-done.", told)
        return
    what = f"{in_short(pending)}, begun {ago(pending.time)}"
    if dry_run:
        ends = "forward" if handed_over(pending) else way
        planned = {"agent": id, "pending": pending.to_dict(), "resolved": ends, "dry_run": True}
        session.tell(f"{what}: would be {_ENDS[ends]}.", planned)
        return
    done = there.agents.resolve(id, way)
    left = f" {_LEFT[pending.kind]}" if done.resolved == "forward" and not done.ran else ""
    instead = " It could not be taken back." if done.resolved != way else ""
    session.tell(f"{what}: {_ENDS[done.resolved]}.{instead}{left}", plain(done) | {"dry_run": False})


@command("export")
@click.argument("id", type=AGENT)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True), default="-")
@click.option("--version", type=click.IntRange(1), metavar="N", help="As it was at this version.")
@as_option
def export(session: CliContext, id: str, file: str, version: int | None, identity: str | None) -> None:
    """Write all that is kept of an agent, with its conversation, as a JSON document that people can read.

    It goes to stdout unless a FILE is named.

    \b
    holdfast agent export committer committer.json
    holdfast agent export committer | jq .state.fields
    """
    if file == "-" and session.json:
        raise click.UsageError("with --json there is no room for the document on stdout: name a file")
    document = acting(session, identity).agents.export(id, version=version)
    text = json.dumps(document, indent=2, ensure_ascii=False)
    if safe(text, lines=True) != text:
        # What a terminal would obey, or UTF-8 has no form for, is written as JSON does that, to be read again.
        text = json.dumps(document, indent=2)
    if file == "-":
        _write(session, iter(text.split("\n")))
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
    session.tell(f"Wrote {file}: {size(target.stat().st_size)}.", {"agent": id, "file": file, "version": version})


@command("import")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--id", metavar="ID", help="Under this id, and not the one that it had.")
@click.option("--create", is_flag=True, help="Make the store, if it is not there.")
@as_option
def import_(session: CliContext, file: str, id: str | None, create: bool, identity: str | None) -> None:
    """Save an agent from what `holdfast agent export` wrote, as one that was not there before. The file `-` is stdin.

    \b
    holdfast agent import committer.json --id committer-2
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        document = json.loads(text)
    except FileNotFoundError:
        raise NotFoundError("there is no such file", where=file) from None
    except (ValueError, RecursionError) as error:
        raise InvalidError(f"the file is no JSON document: {error}", where=file) from None
    made = acting(session, identity, write=True, create=create).agents.import_(document, id=id)
    session.tell(f"{made.id} is there, with {plural(made.messages, 'message')}.", agent_record(made))


@command("delete")
@click.argument("id", type=AGENT)
@dry_run_option
@yes_option
@as_option
def delete(session: CliContext, id: str, dry_run: bool, yes: bool, identity: str | None) -> None:
    """Remove an agent for good, with its conversation and all of its history.

    \b
    holdfast agent delete committer --yes
    """
    there = acting(session, identity, write=not dry_run)
    last = there.agents.history(id, limit=1)[0]  # it can be deleted though it is damaged
    if not dry_run:
        session.confirm(f"Delete the agent {id}, with {plural(last.messages, 'message')}?", yes=yes)
        there.agents.delete(id)
    word = "would go" if dry_run else "is deleted"
    told = {"agent": id, "version": last.version, "deleted": not dry_run, "dry_run": dry_run}
    session.tell(f"{id} {word}, with all of its history.", told)


for _each in (
    *(list_, show, messages, transitions, history, diff, resolve, rollback),
    *(transfer, transfers, export, import_, delete),
):
    agent.add_command(_each)
