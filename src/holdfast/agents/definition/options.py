"""How an agent is kept: what is done about conflicts, about damage, about what was left incomplete, and by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict

from holdfast.agents.definition.autosave import Autosave
from holdfast.agents.definition.state_machine import POLICIES, OnIncomplete
from holdfast.errors import InvalidError

OnCorrupt: TypeAlias = Literal["raise", "last-good"]

Merge: TypeAlias = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Mapping[str, Any]]
"""Given what both sides started from, one's own side and the other's, each as a dict of `configuration`, `fields`,
`context`, `tools`, `workflow` and `metadata`, returns such a dict that has what both changed."""

OnConflict: TypeAlias = Literal["refuse", "last-write", "merge"] | Merge

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "on_incomplete": POLICIES,
    "on_corrupt": ("raise", "last-good"),
    "on_conflict": ("refuse", "last-write", "merge"),
}


class Policies(TypedDict, total=False):
    """The same, as it is said for a class of agents, or for one of them."""

    on_incomplete: OnIncomplete
    on_corrupt: OnCorrupt
    on_conflict: OnConflict
    autosave: Autosave | None


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent is kept."""

    on_incomplete: OnIncomplete = "back"
    """What becomes of what was under way when the agent ended without a stop: it is undone, done again, or left."""
    on_corrupt: OnCorrupt = "raise"
    """What becomes of an agent whose newest state is damaged: an error, or the last state that reads well."""
    on_conflict: OnConflict = "refuse"
    """What becomes of a save that another one came before: `ConflictError`, the last one stands, or both are merged."""
    autosave: Autosave | None = None
    """When it is saved by itself."""

    def changed(self, policies: Mapping[str, Any]) -> AgentOptions:
        """The same, but for what is said here. `InvalidError` for what there is not."""
        unknown = policies.keys() - {each.name for each in fields(self)}
        if unknown:
            raise InvalidError(
                f"there is nothing to say about an agent as {min(unknown)!r}",
                hint=f"There are {', '.join(each.name for each in fields(self))}",
            )
        for name, choices in _CHOICES.items():
            value = policies.get(name, choices[0])
            if value not in choices and not (name == "on_conflict" and callable(value)):
                raise InvalidError(f"{name} is one of {', '.join(choices)}, not {value!r}"[:200])
        if not isinstance(policies.get("autosave"), Autosave | None):
            raise InvalidError(f"autosave is an Autosave, or None, not {policies['autosave']!r}"[:200])
        return replace(self, **policies) if policies else self
