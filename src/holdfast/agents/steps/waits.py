"""Waiting for a signal.

An agent that waits delivers its own timers that are due, too: it need not rely on a runner of jobs meanwhile.
"""

from __future__ import annotations

import math
import time

from holdfast.agents.steps.records import SIGNAL, StepLine
from holdfast.agents.steps.signals import Signal
from holdfast.agents.steps.timers import deliver_due
from holdfast.errors import ConflictError
from holdfast.state.reader import ScopeView
from holdfast.state.watcher import WatchOperations
from holdfast.state.writer import KeyWrite
from holdfast.time_parser import Duration, parse_nanoseconds

_LONGEST_LOOK, _SHORTEST_LOOK = 5.0, 0.002
"""The longest time, in seconds, in which a waiting agent relies on the watch alone, and the shortest."""


async def wait_for_signal(line: StepLine, name: str, timeout: Duration | None, key: str | None) -> Signal | None:
    """Take the oldest signal of a name; wait for it, at most until the timeout. With a key, the outcome is recorded:
    whoever waits under the same key again gets the same one, and the time that is left."""
    name = line.check_key(name, "name of a signal")
    recorded = None if key is None else f"wait/{line.check_key(key)}"
    await line.require("write")
    await line.require("read", SIGNAL)
    length = None if timeout is None else parse_nanoseconds(timeout, "timeout")
    wait = SignalWait(line, name, recorded, None if length is None else line.agent.handle.now() + length)
    end = None if length is None else time.monotonic() + length / 1e9
    watch = line.watch(f"signal/{name}/*")
    await WatchOperations.start(watch)
    while True:
        await line.require_agent()
        is_over = end is not None and time.monotonic() >= end
        timer = await deliver_due(line, end)
        if await wait.look(give_up=is_over):
            return wait.signal
        if recorded is not None:
            next_timer = [] if timer == math.inf else [line.agent.handle.now() + int(timer * 1e9)]
            ends = [*next_timer, *([] if wait.deadline is None else [wait.deadline])]
            await line.hand_over(min(ends, default=None), wait.has_news)
        left = _LONGEST_LOOK if end is None else end - time.monotonic()
        if wait.deadline is not None:  # an earlier process may have begun to wait
            left = min(left, (wait.deadline - line.agent.handle.now()) / 1e9)
        if left > 0:
            await WatchOperations.poll(watch, min(left, _LONGEST_LOOK, max(timer, _SHORTEST_LOOK)))
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
        if self._begun and not give_up and not await self._line.read(self.has_news):
            return False

        async def writes(view: ScopeView) -> list[KeyWrite]:
            nonlocal ended
            ended, self.signal = False, None
            made: list[KeyWrite] = []
            entry = None if self._recorded is None else await view.item(self._recorded)
            if entry is not None:
                if entry.value["name"] != self._name:
                    raise ConflictError(
                        f"a wait under this key is for the signal {entry.value['name']!r}",
                        where=f"signal {self._name!r} of {self._line.where}",
                        hint="Use another key for another wait",
                        code="step-arguments",
                    )
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

    async def has_news(self, view: ScopeView) -> bool:
        """Return whether there is a signal, or another process has ended the wait."""
        entry = None if self._recorded is None else await view.item(self._recorded)
        return bool(await view.keys(f"signal/{self._name}/", limit=1)) or (entry is not None and entry.value["ended"])
