"""`holdfast agent save-state` and `record-transition`, for agents whose state machine is elsewhere."""

from __future__ import annotations

import click

from holdfast.errors import InvalidError
from holdfast.interfaces.cli.base import CliContext, command
from holdfast.interfaces.cli.completion_types import AGENT
from holdfast.interfaces.cli.scope_args import as_option, open_as, parse_value


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
    record = {"id": id, "kind": saved.kind, "state": saved.state, "version": saved.version}
    session.tell(f"Saved {id}, version {saved.version}.", record)


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
