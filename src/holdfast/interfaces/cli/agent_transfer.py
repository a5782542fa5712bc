"""`holdfast agent transfer` and `transfers`: one agent's conversation handed to another, and what was handed over."""

from __future__ import annotations

import click

from holdfast.interfaces.cli.base import CliContext, command, dry_run_option, pairs, yes_option
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.formatting import clock, plural
from holdfast.interfaces.cli.scope_args import acting, as_option

_HEADS = ("TIME", "FROM", "TO", "PHASE", "MESSAGES", "BY", "REASON")


@command("transfer")
@click.argument("source", type=AGENT)
@click.argument("target", type=AGENT)
@click.option("-m", "--reason", default="", metavar="TEXT", help="Why.")
@click.option("--context", multiple=True, metavar="KEY=VALUE", help="Tell the other this, too; may be repeated.")
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
    """Hand the conversation and the context of one agent to another, in one step of both.

    The code of the agents is not here, so that neither is asked whether it agrees. A process that runs one of them gets
    a conflict when it saves.

    \b
    holdfast agent transfer greeter haiku -m 'the greeter is gone' --yes
    """
    more = pairs(context, "--context")
    there = acting(session, identity, write=not dry_run)
    giver, receiver = there.agents.load(source), there.agents.load(target)
    what = f"{plural(giver.messages, 'message')} from {source} to {target}, which has {receiver.messages:,}"
    if dry_run:
        told = {"source": source, "target": target, "messages": giver.messages, "dry_run": True}
        session.tell(f"Would hand over {what}.", told)
        return
    session.confirm(f"Hand over {what}?", yes=yes)
    done = there.agents.transfer(source, target, context=more, reason=reason, accept=True)
    session.tell(f"Handed over {plural(done.messages, 'message')} from {source} to {target}.", done)


@command("transfers")
@click.argument("id", type=AGENT)
@click.option("-n", "--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="So many.")
@as_option
def transfers(session: CliContext, id: str, limit: int, identity: str | None) -> None:
    """Show what an agent handed over and took over, the latest first, each as far as it got.

    \b
    holdfast agent transfers greeter
    """
    found = acting(session, identity).agents.transfers(id, limit=limit)
    if session.json:
        session.emit_all(found)
        return
    session.out.page()
    rows = [
        (clock(each.time), each.source, each.target, each.phase, f"{each.messages:,}", each.actor, each.reason)
        for each in found
    ]
    if rows:
        session.out.table(_HEADS, rows, right=("MESSAGES",), shrink="REASON", styles={"FROM": "yellow", "TO": "yellow"})
    else:
        session.note(f"{id} handed nothing over, and took nothing over.")
