"""`holdfast agent transitions`, `history`, `diff`, `rollback`, `transfer` and `transfers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, limit_option, pairs, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import plural, safe
from holdfast.interfaces.cli.scope_args import as_option, diff_record, open_as

if TYPE_CHECKING:
    from holdfast.agents import PendingChange, TransitionRecord
    from holdfast.interfaces.cli.output import ProgressBar
    from holdfast.store import IdentityView, Store


def describe_pending(pending: PendingChange) -> str:
    """Describe a pending change on one line."""
    what = f"transition {pending.trigger}" if pending.kind == "transition" else pending.trigger
    return f"{what}, {pending.source} → {pending.target}{', not acknowledged' * is_handed_over(pending)}"


def is_handed_over(pending: PendingChange) -> bool:
    """Return whether it is a transfer that only lacks its acknowledgement: that cannot be undone."""
    return pending.kind == "transfer" and pending.phase == "received"


@command("transitions")
@click.argument("id", type=AGENT)
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
    identity: str | None,
) -> None:
    """Show the transitions of an agent's state machine, the latest first; or draw the machine.

    A diagram has the states and transitions that are declared, and those that occurred, with their counts, and marks
    the current state. With --json every row has a cursor for --before.

    \b
    holdfast agent transitions committer -n 20
    holdfast agent transitions committer --outcome error --json
    holdfast agent transitions committer --mermaid
    holdfast agent transitions committer --dot | dot -Tsvg -o committer.svg
    """
    store = open_as(session, identity)
    if form is not None:
        _draw(session, store, id, form)
        return
    filters: dict[str, Any] = {name: each for name, each in (("trigger", trigger), ("outcome", outcome)) if each}
    listed = islice(store.agents.transitions(id, cursor=before, **filters).all(), limit)
    none = "There are no such transitions." if filters else f"{id} has no transitions."
    session.list(listed, none=none, first=("time",), exact=True)


def _draw(session: CliContext, store: Store | IdentityView, id: str, form: str) -> None:
    from holdfast.agents import Machine, count_transitions, dot, mermaid

    record, declared = store.agents.load(id), store.agents.machine(id)
    machine = None if declared is None else Machine.of(declared)
    with session.progress("Counting") as progress:
        taken = count_transitions(_reported(store.agents.transitions(id).all(), progress))
    diagram = (mermaid if form == "mermaid" else dot)(machine, taken, current=record.state)
    transitions = [
        {**each._asdict(), "taken": taken.successes[each], "failed": taken.failures[each]}
        for each in dict.fromkeys((*taken.successes, *taken.failures))
    ]
    drawn = {"id": id, "state": record.state, "transitions": transitions, "format": form, "diagram": diagram}
    session.report(map(safe, diagram.splitlines()), drawn)


def _reported(transitions: Iterable[TransitionRecord], progress: ProgressBar) -> Iterator[TransitionRecord]:
    for number, each in enumerate(transitions, 1):
        progress(number, None, each.trigger)
        yield each


@command("history")
@click.argument("id", type=AGENT)
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Continue with those before this version.")
@limit_option(100)
@as_option
def history(session: CliContext, id: str, before: int | None, limit: int, identity: str | None) -> None:
    """Show the saved versions of an agent, the latest first.

    \b
    holdfast agent history committer -n 20
    """
    store = open_as(session, identity)
    older = None if before is None else store.agents.load(id, version=before).checkpoint
    session.list(store.agents.history(id, limit=limit, cursor=older))


@command("diff")
@click.argument("id", type=AGENT)
@click.argument("a", metavar="[A]", type=click.IntRange(1), required=False)
@click.argument("b", metavar="[B]", type=click.IntRange(1), required=False)
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
@as_option
def diff(session: CliContext, id: str, a: int | None, b: int | None, exit_code: bool, identity: str | None) -> None:
    """Compare two versions of an agent: A with B, by default the last one. Without A, show what the last one changed.

    \b
    holdfast agent diff committer
    holdfast agent diff committer 3 7
    """
    changes = open_as(session, identity).agents.diff(id, a, b)
    if not changes:
        session.note("Nothing differs.")
    session.report(map(session.out.diff_line, changes.lines()), diff_record(changes), {"id": id, "a": a, "b": b})
    session.exit_if(exit_code and changes, FINDINGS)


@command("rollback")
@click.argument("id", type=AGENT)
@click.argument("to")
@dry_run_option
@yes_option
@as_option
def rollback(session: CliContext, id: str, to: str, dry_run: bool, yes: bool, identity: str | None) -> None:
    """Restore an older version of an agent, in a new step: its history is kept.

    TO is a version, such as 12, or a state of its machine: then it is the last version in that state. Effects outside
    of the store are not undone. A process that runs the agent gets a conflict when it saves.

    \b
    holdfast agent rollback committer 12 --dry-run
    holdfast agent rollback committer idle --yes
    """
    store = open_as(session, identity, write=not dry_run)
    now = store.agents.load(id)
    target = int(to) if to.isascii() and to.isdigit() else to
    record: dict[str, Any] = {"id": id, "to": to, "before": now.version, "dry_run": dry_run}
    if dry_run:
        then = store.agents.load(id, version=target) if isinstance(target, int) else None
        what = f"its last version in state {to}" if then is None else f"version {to}: {then.status}, {then.state}"
        session.tell(f"{id}, at version {now.version}, would be rolled back to {what}.", record | {"version": None})
        return
    session.confirm(f"Roll {id} back to {to}?", yes=yes)
    version = store.agents.rollback(id, target).version
    session.tell(f"Rolled {id} back to {to}, as version {version}.", record | {"version": version})


@command("transfer")
@click.argument("source", type=AGENT)
@click.argument("target", type=AGENT)
@click.option("-m", "--reason", default="", metavar="TEXT", help="The reason.")
@click.option("--context", multiple=True, metavar="KEY=VALUE", help="Pass this on, too; may be repeated.")
@dry_run_option
@yes_option
@as_option
def transfer(
    session: CliContext,
    source: str,
    target: str,
    reason: str,
    context: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    identity: str | None,
) -> None:
    """Transfer the conversation and the context of an agent to another, atomically.

    The code of the agents is not run, so neither can refuse. A process that runs one of them gets a conflict when it
    saves.

    \b
    holdfast agent transfer greeter haiku -m 'the greeter is gone' --yes
    """
    more = pairs(context, "--context")
    store = open_as(session, identity, write=not dry_run)
    sender, receiver = store.agents.load(source), store.agents.load(target)
    what = f"{plural(sender.messages, 'message')} from {source} to {target}, which has {receiver.messages:,}"
    if dry_run:
        record = {"source": source, "target": target, "messages": sender.messages, "dry_run": True}
        session.tell(f"Would transfer {what}.", record)
        return
    session.confirm(f"Transfer {what}?", yes=yes)
    done = store.agents.transfer(source, target, context=more, reason=reason, accept=True)
    session.tell(f"Transferred {plural(done.messages, 'message')} from {source} to {target}.", done)


@command("transfers")
@click.argument("id", type=AGENT)
@limit_option(100)
@as_option
def transfers(session: CliContext, id: str, limit: int, identity: str | None) -> None:
    """Show the transfers from and to an agent, the latest first, each with its phase.

    \b
    holdfast agent transfers greeter
    """
    listed = open_as(session, identity).agents.transfers(id, limit=limit)
    session.list(listed, none=f"{id} has no transfers.", first=("time",), exact=True)
