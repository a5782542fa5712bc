"""`holdfast agent transitions`, `history`, `diff` and `rollback`: what an agent went through, and going back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.exit_codes import FINDINGS
from holdfast.interfaces.cli.formatting import ago, clock, safe
from holdfast.interfaces.cli.scope_args import acting, as_option

if TYPE_CHECKING:
    from holdfast.agents.storage.record import PendingChange
    from holdfast.agents.storage.transition_log import TransitionRecord
    from holdfast.interfaces.cli.progress import ProgressBar
    from holdfast.store.identity_view import IdentityView
    from holdfast.store.store import Store

_PAGE = 500
_HEADS = ("TIME", "TRIGGER", "FROM", "TO", "OUTCOME", "TOOK", "BY", "ERROR")
_STEP_HEADS = ("VERSION", "SAVED", "KIND", "STATUS", "STATE", "MESSAGES", "BY")


def in_short(pending: PendingChange) -> str:
    """What is half-done, on a line."""
    what = f"transition {pending.trigger}" if pending.kind == "transition" else pending.trigger
    return f"{what}, {pending.source} → {pending.target}{', not acknowledged' * handed_over(pending)}"


def handed_over(pending: PendingChange) -> bool:
    """Whether it is a transfer of which only the acknowledgement is left: that cannot be taken back."""
    return pending.kind == "transfer" and pending.phase == "received"


@command("transitions")
@click.argument("id", type=AGENT)
@click.option("--trigger", metavar="NAME", help="Only those of this trigger.")
@click.option("--outcome", type=click.Choice(("ok", "error")), help="Only those that ended in this way.")
@click.option("--mermaid", "form", flag_value="mermaid", help="Draw the machine, for Mermaid.")
@click.option("--dot", "form", flag_value="dot", help="Draw the machine, for Graphviz.")
@click.option("--before", metavar="CURSOR", help="Go on with what is older than the row of this cursor.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="So many at most; 100 in a table.")
@as_option
def transitions(
    session: CliContext,
    id: str,
    trigger: str | None,
    outcome: str | None,
    form: str | None,
    before: str | None,
    limit: int | None,
    identity: str | None,
) -> None:
    """Show the transitions of an agent's machine, the latest first; or draw the machine.

    A picture has the states and ways that were taken, with how often, and marks the state that the agent is in. What
    was never taken is not in it: the code of the agent, which knows that, is not here. With --json every row has a
    cursor for --before.

    \b
    holdfast agent transitions committer -n 20
    holdfast agent transitions committer --outcome error --json
    holdfast agent transitions committer --mermaid
    holdfast agent transitions committer --dot | dot -Tsvg -o committer.svg
    """
    there = acting(session, identity)
    if form is not None:
        _draw(session, there, id, form)
        return
    asked = {"trigger": trigger, "outcome": outcome}
    count = limit or 100
    wanted = {name: each for name, each in asked.items() if each}
    found = islice(_pages(there, id, before, wanted, min(count, _PAGE)), count)
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    rows = [_row(each) for each in found]
    if rows:
        session.out.table(_HEADS, rows, right=("TOOK",), shrink="ERROR", styles={"TRIGGER": "yellow"})
    else:
        session.note("There are no such transitions." if trigger or outcome else f"{id} has had no transitions.")


def _pages(
    there: Store | IdentityView, id: str, before: str | None, asked: dict[str, Any], size: int
) -> Iterator[TransitionRecord]:
    last = before
    while page := there.agents.transitions(id, before=last, limit=size, **asked):
        yield from page
        last = page[-1].cursor


def _row(each: TransitionRecord) -> tuple[str, ...]:
    took = f"{each.duration * 1000:.1f} ms"
    return clock(each.time), each.trigger, each.source, each.target, each.outcome, took, each.actor, each.error


def _draw(session: CliContext, there: Store | IdentityView, id: str, form: str) -> None:
    from holdfast.agents.storage import diagram
    from holdfast.agents.storage.transition_log import count_transitions

    record = there.agents.load(id)
    with session.progress("Counting") as tell:
        taken = count_transitions(_told(_pages(there, id, None, {}, _PAGE), tell))
    drawn = getattr(diagram, form)(None, taken, current=record.state)
    if session.json:
        ways = [
            {**way._asdict(), "taken": taken.successes[way], "failed": taken.failures[way]}
            for way in dict.fromkeys((*taken.successes, *taken.failures))
        ]
        session.emit({"agent": id, "state": record.state, "ways": ways, "form": form, "picture": drawn})
        return
    session.out.page()
    for line in drawn.splitlines():
        session.out.line(safe(line))


def _told(changes: Iterator[TransitionRecord], tell: ProgressBar) -> Iterator[TransitionRecord]:
    for number, each in enumerate(changes, 1):
        tell(number, None, each.trigger)
        yield each


@command("history")
@click.argument("id", type=AGENT)
@click.option("--before", type=click.IntRange(1), metavar="VERSION", help="Go on with what is older than this version.")
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="So many.")
@as_option
def history(session: CliContext, id: str, before: int | None, limit: int, identity: str | None) -> None:
    """Show how an agent was saved, the latest first: each step, with the version that it made.

    \b
    holdfast agent history committer -n 20
    """
    there = acting(session, identity)
    older = None if before is None else there.agents.load(id, version=before).checkpoint
    steps = there.agents.history(id, before=older, limit=limit)
    if session.json:
        session.emit_all(steps)
        return
    session.out.page()
    rows = [
        (str(each.version), ago(each.time), each.kind, each.status, each.state, str(each.messages), each.actor)
        for each in steps
    ]
    session.out.table(_STEP_HEADS, rows, right=("VERSION", "MESSAGES"), shrink="STATE", styles={"VERSION": "yellow"})


@command("diff")
@click.argument("id", type=AGENT)
@click.argument("a", metavar="[A]", type=click.IntRange(1), required=False)
@click.argument("b", metavar="[B]", type=click.IntRange(1), required=False)
@click.option("--exit-code", is_flag=True, help=f"End with exit code {FINDINGS} if anything differs.")
@as_option
def diff(session: CliContext, id: str, a: int | None, b: int | None, exit_code: bool, identity: str | None) -> None:
    """Show what differs between two versions of an agent: without B, A and the last one; without A, what the last
    changed.

    \b
    holdfast agent diff committer
    holdfast agent diff committer 3 7
    """
    from holdfast.interfaces.cli.patches import painted

    found = acting(session, identity).agents.diff(id, a, b)
    if session.json:
        told = found.to_json()
        session.emit({"agent": id, "a": a, "b": b, "summary": told["summary"], "changes": told["changes"]})
    elif found:
        session.out.page()
        for line in found.lines():
            session.out.line(painted(session.out, line))
    else:
        session.note("Nothing differs.")
    if exit_code and found:
        raise click.exceptions.Exit(FINDINGS)


@command("rollback")
@click.argument("id", type=AGENT)
@click.argument("to")
@dry_run_option
@yes_option
@as_option
def rollback(session: CliContext, id: str, to: str, dry_run: bool, yes: bool, identity: str | None) -> None:
    """Make an agent what it was, in a new step: nothing of the history goes.

    TO is a version, as in 12, or the name of a state: then it is what it was when it was last in that. Whatever the
    agent did outside of the store stays done. A process that runs it gets a conflict when it saves.

    \b
    holdfast agent rollback committer 12 --dry-run
    holdfast agent rollback committer idle --yes
    """
    there = acting(session, identity, write=not dry_run)
    now = there.agents.load(id)
    meant = int(to) if to.isascii() and to.isdigit() else to
    record: dict[str, Any] = {"agent": id, "to": to, "before": now.version, "dry_run": dry_run}
    if dry_run:
        then = there.agents.load(id, version=meant) if isinstance(meant, int) else None
        what = f"its state when it was last in {to}" if then is None else f"version {to}: {then.status}, {then.state}"
        session.tell(f"{id}, at version {now.version}, would go back to {what}.", record | {"version": None})
        return
    session.confirm(f"Make {id} what it was at {to}?", yes=yes)
    version = there.agents.rollback(id, meant).version
    session.tell(f"{id} is what it was at {to}, as its version {version}.", record | {"version": version})
