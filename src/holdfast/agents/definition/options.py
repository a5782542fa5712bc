"""The options of an agent: for conflicts, damage, incomplete changes and automatic saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict

from holdfast.agents.definition.state_machine import POLICIES, OnIncomplete
from holdfast.errors import ConfigError, InvalidError
from holdfast.recording.journal import MODES, RecordMode

OnCorrupt: TypeAlias = Literal["raise", "last-good"]

Merge: TypeAlias = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Mapping[str, Any]]
"""A function that merges the common base, the agent's own side and the other side, each a dict of `configuration`,
`fields`, `context`, `tools`, `workflow` and `metadata`, and returns such a dict with the changes of both."""

OnConflict: TypeAlias = Literal["raise", "overwrite", "merge"] | Merge

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "on_incomplete": POLICIES,
    "on_corrupt": ("raise", "last-good"),
    "on_conflict": ("raise", "overwrite", "merge"),
}


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
                raise ConfigError(f"{name} must be a number of seconds greater than 0, not {value!r}", where="Autosave")
        for name in ("changes", "failures"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be an integer of at least 1, not {value!r}", where="Autosave")
        if type(self.write_through) is not bool:
            raise ConfigError(f"write_through must be True or False, not {self.write_through!r}", where="Autosave")


class Policies(TypedDict, total=False):
    """The options of an agent as keyword arguments, for a class of agents or a single one."""

    on_incomplete: OnIncomplete
    on_corrupt: OnCorrupt
    on_conflict: OnConflict
    autosave: Autosave | None
    record: bool
    strict: bool
    recover: bool


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """The options of an agent."""

    on_incomplete: OnIncomplete = "back"
    """How a change is resolved that was under way when the agent ended without a stop: it is undone (`back`), run again
    and finished (`forward`), or left to the program (`manual`)."""
    on_corrupt: OnCorrupt = "raise"
    """How an agent with a damaged newest state is loaded: an error, or the last readable state."""
    on_conflict: OnConflict = "raise"
    """How a save is resolved that another one preceded: `ConflictError`, the last one wins, or both are merged."""
    autosave: Autosave | None = None
    """When the agent is saved automatically; None for never."""
    record: bool | RecordMode = False
    """Whether the calls of its actions are recorded, for `holdfast.replay`: in `full` (or True), `redacted`, without
    what looks like a credential or personal data, or as a `digest`."""
    strict: bool = False
    """Whether a new durable step is refused while there are recorded ones that a resumed agent has not come to."""

    recover: bool = False
    """Whether a worker goes on with the agent if the process dies that runs it: it calls the method `run`."""

    def with_policies(self, policies: Mapping[str, Any]) -> AgentOptions:
        """Return a copy with other values for some options. Raises `InvalidError` for an unknown name or value."""
        unknown = policies.keys() - {each.name for each in fields(self)}
        if unknown:
            raise InvalidError(
                f"an agent has no option {min(unknown)!r}",
                hint=f"The options are {', '.join(each.name for each in fields(self))}",
            )
        for name, choices in _CHOICES.items():
            value = policies.get(name, choices[0])
            if value not in choices and not (name == "on_conflict" and callable(value)):
                raise InvalidError(f"{name} is one of {', '.join(choices)}, not {value!r}"[:200])
        if not isinstance(policies.get("autosave"), Autosave | None):
            raise InvalidError(f"autosave is an Autosave, or None, not {policies['autosave']!r}"[:200])
        if policies.get("record", False) not in (True, False, *MODES):
            raise InvalidError(f"record is True, False or one of {', '.join(MODES)}, not {policies['record']!r}"[:200])
        for name in ("strict", "recover"):
            if type(given := policies.get(name, False)) is not bool:
                raise InvalidError(f"{name} is True or False, not {given!r}"[:200])
        return replace(self, **policies) if policies else self
