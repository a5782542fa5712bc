"""How an agent is saved by itself, as its author says it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class Autosave:
    """How an agent is saved by itself: `Greeter().attach(store, "greeter-1", autosave=Autosave(interval=2))`.

    It is saved `interval` seconds after the first change that is not saved, or at once when there are as many as
    `changes`: many changes make one save, and where nothing changed nothing is saved. It is done in the background;
    the agent waits at most while its state is taken. Whoever is killed loses what was changed in that time; and what
    was changed while the store could not be used, if it is killed before the store is back.

    Messages, uses of tools, progress of the workflow and `with agent.changing():` count by themselves; for other
    changes there is `agent.changed()`. Changes that nobody tells of, such as of an attribute, are found every
    `interval` seconds while the agent runs and there is an object of it: who lets go of the last reference to an agent
    saves it before, or stops it. A forked process saves what it has from its parent only once it tells of a change.

    With `write_through` a change that is told of is durable when the call returns: nothing is lost. An agent of an
    `AsyncStore` has to await for that: `await agent.say(…)`, `async with agent.changing():`, `await agent.flush()`;
    what is told without awaiting is saved at once in the background. During a transition or a change of status, the
    step that ends it saves all.

    A save that fails is tried again after `pause` seconds, then after twice as long each time, up to `longest_pause`,
    each shortened by chance. After `failures` in a row that are the store's, of agents with the same settings, the
    store is left alone for `rest` seconds, then a single save is tried; if that fails too, for twice as long, up to
    `longest_rest`. If somebody else saved the agent, it is no longer saved by itself: its state stays as it is, and
    the next save by the program raises `ConflictError`, or has it resolved.
    """

    interval: float = 5.0
    changes: int = 20
    write_through: bool = False
    pause: float = 0.1
    longest_pause: float = 5.0
    failures: int = 5
    rest: float = 5.0
    longest_rest: float = 30.0

    def __post_init__(self) -> None:
        for name in ("interval", "pause", "longest_pause", "rest", "longest_rest"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ConfigError(f"{name} is a number of seconds over 0, not {value!r}", where="Autosave")
        for name in ("changes", "failures"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} is a number, at least 1, not {value!r}", where="Autosave")
        if type(self.write_through) is not bool:
            raise ConfigError(f"write_through is True or False, not {self.write_through!r}", where="Autosave")
