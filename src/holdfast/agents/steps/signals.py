"""Signals to an agent: kept in order until it waits for them, each id once.

A signal is a key of the agent's line of steps, with a number that grows with every step of that line. Its id is a key,
too, which is deleted after some time: until then a signal that is sent again is not a second one.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.agents.steps.records import SIGNAL, StepLine
from holdfast.engine import trace_context
from holdfast.engine.types import to_datetime
from holdfast.state.reader import ScopeView
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

REMEMBERED = 30 * 86400 * 10**9
"""For how long the id of a signal is remembered, in nanoseconds."""

_SWEEP_LIMIT = 8
"""How many ids are deleted when a signal is sent."""

_LONGEST_LOOK = 5.0
"""The longest time, in seconds, in which a waiting agent relies on the watch alone."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that an agent got: its `value`, who sent it and when."""

    name: str
    value: Any
    id: str
    time: datetime
    actor: str = ""
    correlation: str = ""

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Signal:
        """Return the signal that was stored."""
        return cls(**{**stored, "time": to_datetime(stored["time"])})


async def send_signal(line: StepLine, name: str, value: Any, id: str | None) -> bool:
    """Send a signal. Returns False if one with this id was sent before."""
    await line.require("write", SIGNAL)
    await line.agent.require_step()
    line.check_key(name, "name of a signal")
    checked = secrets.token_hex(16) if id is None else line.check_key(id, "id of a signal")
    entry = signal_entry(line, name, value, checked)
    is_new = True

    async def writes(view: ScopeView) -> list[KeyWrite]:
        nonlocal is_new
        made = await signal_writes(line, view, entry)
        is_new = bool(made)
        return made

    await line.write(writes, key=SIGNAL)
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


async def wait_for_signal(line: StepLine, name: str, timeout: Duration | None, key: str | None) -> Signal | None:
    """Take the oldest signal of a name; wait for it, at most until the timeout. With a key, the outcome is recorded:
    whoever waits under the same key again gets the same one, and the time that is left."""
    line.check_key(name, "name of a signal")
    recorded = None if key is None else f"wait/{line.check_key(key)}"
    await line.require("write")
    length = None if timeout is None else parse_nanoseconds(timeout, "timeout")
    wait = SignalWait(line, name, recorded, None if length is None else line.agent.handle.now() + length)
    end = None if length is None else time.monotonic() + length / 1e9
    watch = line.watch(f"signal/{name}/*")
    await WatchOperations.start(watch)
    while True:
        is_over = end is not None and time.monotonic() >= end
        if await wait.look(give_up=is_over):
            return wait.signal
        left = _LONGEST_LOOK if end is None else end - time.monotonic()
        if wait.deadline is not None:  # an earlier process may have begun to wait
            left = min(left, (wait.deadline - line.agent.handle.now()) / 1e9)
        if left > 0:
            await WatchOperations.poll(watch, min(left, _LONGEST_LOOK))
        elif end is None or end > time.monotonic():
            end = time.monotonic()


class SignalWait:
    """A wait for a signal."""

    def __init__(self, line: StepLine, name: str, recorded: str | None, deadline: int | None) -> None:
        self._line = line
        self._name = name
        self._recorded = recorded
        self.deadline = deadline
        self.signal: Signal | None = None
        self._begun = False

    async def look(self, *, give_up: bool) -> bool:
        """Take a signal if there is one. Returns whether the wait has ended."""
        ended = False
        if self._begun and not give_up:
            prefix = f"signal/{self._name}/"
            if not await self._line.read(lambda view: view.keys(prefix, limit=1)):
                return False

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal ended
            ended, self.signal = False, None
            made: list[KeyWrite] = []
            entry = None if self._recorded is None else await view.item(self._recorded)
            if entry is not None:
                self.deadline = entry.value["deadline"] or None
                if entry.value["ended"]:
                    ended, found = True, entry.value["signal"]
                    self.signal = None if found is None else Signal.of(found)
                    return []
            keys = await view.keys(f"signal/{self._name}/", limit=1)
            over = give_up or (self.deadline is not None and self.deadline <= view.now)
            found = None
            if keys:
                item = await view.item(keys[0])
                found = None if item is None else item.value
                made.append(KeyWrite(keys[0], "delete"))
            ended = bool(keys) or over
            self.signal = None if found is None else Signal.of(found)
            if self._recorded is not None and (ended or entry is None):
                record = {"name": self._name, "deadline": self.deadline or 0, "ended": ended, "signal": found}
                made.append(self._line.put(self._recorded, record))
            return made

        await self._line.write(writes)
        self._begun = True
        return ended
