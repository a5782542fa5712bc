"""The options of automatic saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Autosave:
    """Save an agent automatically: `Greeter().attach(store, "greeter-1", autosave=Autosave(interval=2))`.

    The agent is saved `interval` seconds after the first unsaved change, or at once when there are as many as
    `changes`. Many changes make one save, and without a change nothing is saved. Saves run in the background; the
    agent waits at most while its state is captured. A process that is killed loses the changes of that time, and those
    that were made while the store was unavailable, if it is killed before the store is back.

    Messages, uses of tools, progress of the workflow and `with agent.change_block():` are counted automatically; report
    other changes with `agent.mark_changed()`. Changes that are not reported, such as of an attribute, are found every
    `interval` seconds while the agent runs and is referenced: before you drop the last reference to an agent, save or
    stop it. A forked process saves an agent of its parent only once it reports a change.

    With `write_through`, a change that is reported is durable when the call returns: nothing is lost. For an agent of
    an `AsyncStore` that call is awaited: `await agent.conversation.say(…)`, `async with agent.change_block():`,
    `await agent.flush()`; a change that is reported without awaiting is saved at once in the background. During a
    transition or a change of status, the step that ends it saves all changes.

    A save that fails is retried after `pause` seconds, then after twice as long each time, up to `max_pause`, with
    random jitter. After `failures` of the store in a row, of agents with the same settings, saves are suspended for
    `rest` seconds, then a single save is tried; if that fails, too, for twice as long, up to `max_rest`. If another
    process saved the agent, automatic saves of it end: its state stays as it is, and the next save by the program
    raises `ConflictError`, or resolves the conflict.
    """

    interval: float = 5.0
    changes: int = 20
    write_through: bool = False
    pause: float = 0.1
    max_pause: float = 5.0
    failures: int = 5
    rest: float = 5.0
    max_rest: float = 30.0

    def __post_init__(self) -> None:
        for name in ("interval", "pause", "max_pause", "rest", "max_rest"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ConfigError(f"{name} is a number of seconds greater than 0, not {value!r}", where="Autosave")
        for name in ("changes", "failures"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} is an integer of at least 1, not {value!r}", where="Autosave")
        if type(self.write_through) is not bool:
            raise ConfigError(f"write_through is True or False, not {self.write_through!r}", where="Autosave")
