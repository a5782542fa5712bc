"""Signals to an agent: kept in order until it waits for them, each id once.

A signal is a key of the agent's line of steps, with a number that grows with every step of that line. Its id is a key,
too, which is deleted after some time: until then a signal that is sent again is not a second one.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Annotated, Any

import msgspec

from holdfast._fields import Hidden, Label
from holdfast.agents.steps.records import SIGNAL, StepLine
from holdfast.engine import trace_context
from holdfast.engine.types import to_datetime
from holdfast.state.reader import ScopeView
from holdfast.state.writer import KeyWrite

REMEMBERED = 30 * 86400 * 10**9
"""For how long the id of a signal is remembered, in nanoseconds."""

_SWEEP_LIMIT = 8
"""How many ids are deleted when a signal is sent."""


class Signal(msgspec.Struct, frozen=True):
    """A signal that an agent got: its `value`, who sent it and when."""

    name: Annotated[str, Label("signal")]
    value: Any
    id: str
    time: datetime
    actor: str = ""
    correlation: Hidden[str] = ""

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Signal:
        """Return the signal that was stored."""
        return cls(**{**stored, "time": to_datetime(stored["time"])})


async def send_signal(line: StepLine, name: str, value: Any, id: str | None, *, create: bool) -> bool:
    """Send a signal. Returns False if one with this id was sent before. `NotFoundError` if the agent was never saved,
    unless its line of steps is to be created."""
    await line.require("write", SIGNAL)
    if not create:
        await line.agent.require_step()
    checked = secrets.token_hex(16) if id is None else line.check_key(id, "id of a signal")
    entry = signal_entry(line, line.check_key(name, "name of a signal"), value, checked)
    is_new = True

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal is_new
        made = await signal_writes(line, view, entry)
        is_new = bool(made)
        return made

    await line.write(writes, key=SIGNAL, conditions=line.run_changes)
    return is_new


def signal_entry(line: StepLine, name: str, value: Any, id: str) -> dict[str, Any]:
    """Return a signal as it is stored."""
    handle = line.agent.handle
    trace = trace_context.current_or_new()
    return {
        "name": name,
        "value": value,
        "id": id,
        "time": handle.now(),
        "actor": handle.guard.actor,
        "correlation": trace.correlation,
    }


async def signal_writes(line: StepLine, view: ScopeView, entry: dict[str, Any]) -> list[KeyWrite]:
    """Return the changes that deliver a signal; none, if its id was seen before."""
    known = f"signal-id/{entry['id']}"
    if await view.item(known) is not None:
        return []
    number = 0 if view.point is None else view.point.seq + 1
    end = f"signal-end/{view.now + REMEMBERED:020d}/{entry['id']}"
    return [
        line.put(f"signal/{entry['name']}/{number:012d}", entry),
        line.put(known, True),
        line.put(end, True),
        *await _sweep(view),
    ]


async def _sweep(view: ScopeView) -> list[KeyWrite]:
    """Delete some ids whose time is over, so that they do not add up."""
    gone = []
    for key in await view.all_keys("signal-end/", _SWEEP_LIMIT):
        _, time, id = key.split("/")
        if int(time) > view.now:
            break
        gone += [KeyWrite(key, "delete"), KeyWrite(f"signal-id/{id}", "delete")]
    return gone


async def pending_signals(line: StepLine, name: str | None, limit: int | None = None) -> list[Signal]:
    """Return signals that nobody has waited for yet, in their order."""
    await line.require("read", SIGNAL)
    prefix = "signal/" if name is None else f"signal/{line.check_key(name, 'name of a signal')}/"
    items = await line.read(lambda view: view.items(prefix, limit=limit))
    ordered = sorted(items, key=lambda item: item.key.rpartition("/")[2])
    return [Signal.of(item.value) for item in ordered]
