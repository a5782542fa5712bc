"""What is declared of a class of agents: its name, its fields, the version of their form, its machine."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from holdfast.agents.machine import Machine
from holdfast.errors import Invalid, NotFound
from holdfast.model.scopes import check_key

MISSING = object()


@runtime_checkable
class Persistent(Protocol):
    """What an object must have to be kept as an agent."""

    def persist(self) -> Mapping[str, Any]:
        """The fields to save."""
        ...

    def restore(self, fields: Mapping[str, Any]) -> None:
        """Take on fields that were saved."""
        ...

    def validate(self, fields: Mapping[str, Any]) -> None:
        """Raise what there is to say against fields: asked before they are saved, and before they are taken on."""
        ...

    def handle_recovery(self, recovery: Any) -> Any:
        """Told at a start what had happened since the last one, if that did not end as it should."""
        ...


@dataclass(frozen=True)
class Spec:
    """A class of agents."""

    name: str
    make: Callable[..., Any]
    """Makes a new agent, given its configuration as keyword arguments: the class, as a rule."""
    schema: str = "1"
    machine: Machine | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The declared fields, with their defaults; `MISSING` for none."""


def declared(cls: type, stop: type) -> dict[str, Any]:
    """The fields that a class and its bases below another declare by annotations, with their defaults."""
    found: dict[str, Any] = {}
    for kind in reversed(cls.__mro__[: cls.__mro__.index(stop)]):
        for name, annotation in vars(kind).get("__annotations__", {}).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                found[name] = getattr(cls, name, MISSING)
    return found


def fill(agent: Any, fields: Mapping[str, Any]) -> None:
    """Give an agent defaults of its own."""
    for name, default in fields.items():
        if isinstance(default, list | dict | set | bytearray):
            setattr(agent, name, copy.deepcopy(default))


class AgentRegistry:
    """The classes of agents that can be brought back to life, by name. No other class is made of what is in a store."""

    def __init__(self) -> None:
        self._specs: dict[str, Spec] = {}

    def register(self, spec: Spec) -> Spec:
        """Have a class be known by its name."""
        check_key(spec.name, "name of a class of agents")
        old = self._specs.get(spec.name)
        if old is not None and _where(old.make) != _where(spec.make):
            raise Invalid(
                f"another class of agents has the name {spec.name!r}",
                where=f"{_where(old.make)} and {_where(spec.make)}",
                hint="Give one of them another name",
            )
        self._specs[spec.name] = spec
        return spec

    def get(self, name: str) -> Spec:
        """The class of a name. Raises `NotFound`."""
        if name not in self._specs:
            raise NotFound(
                f"no class of agents is registered as {name!r}",
                hint="Import the module that declares it before agents are restored"
                + (f"; there are {', '.join(sorted(self._specs))}" if self._specs else ""),
                code="agent-class-unknown",
            )
        return self._specs[name]

    def of(self, agent: object) -> Spec:
        """The class of a live agent. Raises `NotFound`."""
        for spec in self._specs.values():
            if spec.make is type(agent):
                return spec
        return self.get(type(agent).__name__)

    def __iter__(self) -> Any:
        return iter(sorted(self._specs))


def _where(make: Any) -> str:
    return f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', make)}"


registry = AgentRegistry()
"""The classes of this process."""
