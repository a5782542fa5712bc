"""The options of an agent: on conflicts, on damage, on what was left incomplete, and for automatic saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict

from holdfast.agents.definition.autosave import Autosave
from holdfast.agents.definition.state_machine import POLICIES, OnIncomplete
from holdfast.errors import InvalidError

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


class Policies(TypedDict, total=False):
    """The options of an agent as keyword arguments, for a class of agents or a single one."""

    on_incomplete: OnIncomplete
    on_corrupt: OnCorrupt
    on_conflict: OnConflict
    autosave: Autosave | None


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
        return replace(self, **policies) if policies else self
