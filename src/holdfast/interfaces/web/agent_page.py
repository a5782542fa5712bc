"""The data of the pages of agents: the list, and an agent with its machine, transitions and what it left half-done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from holdfast.agents.definition.state_machine import Machine
from holdfast.agents.storage.record import AgentRecord, PendingChange, Status
from holdfast.agents.storage.transition_log import count_transitions
from holdfast.codec import default_codec
from holdfast.engine.projection.rendering import messages
from holdfast.errors import HoldfastError, InvalidError
from holdfast.interfaces.http.service import Call
from holdfast.interfaces.http.values import long_text, preview_of
from holdfast.interfaces.web.agent_step_page import step_parts
from holdfast.interfaces.web.record_list import list_values
from holdfast.interfaces.web.state_diagram import draw_machine

STATUSES: tuple[str, ...] = get_args(Status)
_DRAWN = 2000
"""How many transitions are counted for the drawing."""

_ROWS = 50
_MESSAGES = 12
_LONGEST = 4000


class AgentPart(NamedTuple):
    """A part of an agent's record, as JSON."""

    title: str
    text: str


def agent_list_values(call: Call, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the list of agents shows."""
    pending = params.get("pending") == "1"
    found = list_values(call.store.agents.list, params, ("prefix", "status", "state"), pending=pending)
    return {**found["given"], **found, "pending": pending, "statuses": STATUSES}


def agent_values(call: Call, id: str, params: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of an agent shows."""
    agents = call.store.agents
    record = agents.load(id)
    taken = agents.transitions(id, limit=_DRAWN)
    page = agents.transitions(id, limit=_ROWS, cursor=params.get("cursor") or None)
    oldest_first = [each for each in reversed(taken) if each.kind == "transition"]
    declared = agents.machine(id)
    machine = None if declared is None else Machine.of(declared)
    diagram = draw_machine(count_transitions(oldest_first), record.state, machine)
    return {
        "record": record,
        "diagram": diagram if diagram.arrows else None,
        "counted": len(taken),
        "complete": taken.next is None,
        "transitions": page,
        "next": page.next,
        "durable": step_parts(call, id, params),
        "conversation": _conversation(call, record),
        "parts": list(_parts(record)),
        "pending": record.pending,
        "resolvable": record.pending is not None and call.service.may_write(call.caller),
        "outcomes": None if record.pending is None else outcomes(record.pending),
    }


def _parts(record: AgentRecord) -> list[AgentPart]:
    names = ("fields", "configuration", "context", "tools", "workflow", "metadata")
    found = [(name.capitalize(), getattr(record, name)) for name in names]
    return [AgentPart(title, long_text(dict(value), _LONGEST)[0]) for title, value in found if value]


def _conversation(call: Call, record: AgentRecord) -> list[tuple[str, str]]:
    """Return the last messages of an agent: who said what."""
    if not record.messages:
        return []
    start = max(0, record.messages - _MESSAGES)
    try:
        said = call.store.agents.messages(record.id, start, record.messages)
    except HoldfastError:
        return []
    rendered = messages("messages", default_codec.pack_items(said))
    if rendered is None:
        return [("", preview_of(each)) for each in said]
    return [(each.role or "text", each.content[:_LONGEST]) for each in rendered]


def outcomes(pending: PendingChange) -> dict[str, str]:
    """Say what is true after a half-done change is resolved: undone, or finished."""
    what = {"transition": "state", "lifecycle": "status"}.get(pending.kind, "place")
    if pending.kind == "transfer":
        return {
            "back": f"The transfer from {pending.source} to {pending.target} is undone.",
            "forward": f"The transfer from {pending.source} to {pending.target} is finished.",
        }
    return {
        "back": f"{pending.trigger} is undone: the {what} is {pending.source} again.",
        "forward": f"{pending.trigger} is finished, without calling its action again: the {what} is {pending.target}.",
    }


def resolve_agent(call: Call, id: str, how: str, typed: str) -> None:
    """Resolve what an agent left half-done. `typed` repeats its id."""
    call.require_write()
    if how not in ("back", "forward"):
        raise InvalidError("a change is undone (back) or finished (forward)")
    if typed != id:
        raise InvalidError("the typed id does not match", where=id, hint="Go back, and type the id of the agent")
    call.store.agents.resolve(id, "back" if how == "back" else "forward")
