"""What is declared of a class of agents: its name, its fields, the version of their form, its machine."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.state_machine import Machine, OnIncomplete
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import check_key
from holdfast.errors import HoldfastError, InvalidError, NotFoundError, UnsupportedError

_SHARED = (int, float, complex, str, bytes, bool, type(None), type, FunctionType, Enum, frozenset)
"""Kinds of defaults that all agents can share: nobody changes them."""


_PLAIN = (list, dict, set)


@runtime_checkable
class Persistent(Protocol):
    """What an object has that says itself what is kept of it. An agent of another class is kept by its fields."""

    def persist(self) -> Mapping[str, Any]:
        """The fields to save."""
        ...

    def restore(self, fields: Mapping[str, Any], /) -> None:
        """Take on fields that were saved."""
        ...

    def validate(self, fields: Mapping[str, Any], /) -> None:
        """Raise what there is to say against fields: asked before they are saved, and before they are taken on."""
        ...

    def handle_recovery(self, recovery: Any, /) -> Any:
        """Told at a start what had happened since the last one, if that did not end as it should."""
        ...


@dataclass(frozen=True)
class Spec:
    """A class of agents: how they are made, and what is kept of them."""

    name: str
    make: Callable[..., Any]
    """Makes a new agent, given its configuration as keyword arguments: the class, as a rule."""
    schema: str = "1"
    machine: Machine | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The declared fields, with their defaults; `MISSING` for none."""
    configuration: tuple[str, ...] | None = None
    """The attributes that an agent is made with; None for those that its constructor has parameters for."""
    settings: AgentOptions = field(default_factory=AgentOptions)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """What a builder was given in place of methods, by their names; each is given the agent first."""

    @property
    def on_incomplete(self) -> OnIncomplete:
        """What becomes of what was left incomplete, unless something else is said for an agent."""
        return self.settings.on_incomplete

    def method(self, agent: object, name: str) -> Callable[..., Any] | None:
        """What the author wrote for an agent under a name: a function of the builder's, or a method."""
        if name in self.functions:
            return partial(self.functions[name], agent)
        found = getattr(agent, name, None)
        if not callable(found):
            return None
        # What pydantic gives its models under such a name means something else.
        owner = next((kind for kind in type(agent).__mro__ if name in vars(kind)), None)
        return None if owner is not None and owner.__module__.startswith("pydantic.") else found

    def persist(self, agent: object) -> dict[str, Any]:
        """The fields of an agent."""
        own = self.method(agent, "persist")
        if own is None:
            return {name: getattr(agent, name) for name in self.fields if hasattr(agent, name)}
        found = own()
        if not isinstance(found, Mapping):
            raise InvalidError(f"persist returns a dict of fields, not {type(found).__name__}", where=self.name)
        return dict(found)

    def restore(self, agent: object, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Have an agent take on fields. Returns those that it has no place for any more, and does not declare."""
        own = self.method(agent, "restore")
        if own is None:
            take_on(agent, self.fields, fields)
        else:
            own(fields)
        left = {name: value for name, value in fields.items() if name not in self.fields}
        if left:
            kept = self.persist(agent)
            left = {name: value for name, value in left.items() if name not in kept}
        return left

    def made(self, configuration: Mapping[str, Any], where: str) -> Any:
        """A new agent. `InvalidError` if it cannot be made of that configuration."""
        try:
            return self.make(**configuration)
        except HoldfastError:
            raise
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"{_where(self.make)} cannot be made of the configuration {sorted(configuration)}: {error}",
                where=where,
                hint="Have its constructor take these as keyword arguments, with defaults for what was added since",
                code="agent-invalid",
            ) from error

    def configured(self, agent: object) -> dict[str, Any]:
        """What an object was made with, as far as it can be told by its attributes."""
        names = self.configuration
        if names is None:
            names = tuple(
                name
                for name, each in _parameters(self.make).items()
                if name not in self.fields or each.default is each.empty
            )
        return {name: getattr(agent, name) for name in names if hasattr(agent, name)}

    def upgraded(self, fields: Mapping[str, Any], schema: str, where: str) -> dict[str, Any]:
        """Fields in the form that the class has now. `UnsupportedError` if they cannot be brought to it."""
        if schema == self.schema:
            return dict(fields)
        upgrade = self.functions.get("upgrade") or getattr(self.make, "upgrade", None)
        if _is_newer(schema, self.schema) or upgrade is None:
            newer = _is_newer(schema, self.schema)
            raise UnsupportedError(
                f"the agent was saved with fields of schema {schema!r}, and {self.name!r} has {self.schema!r} here",
                where=where,
                hint="Run the release of the application that saved it, or a later one"
                if newer
                else "Give the class an upgrade(fields, from_schema) that returns them in the new form",
                code="agent-schema",
            )
        found = upgrade(dict(fields), schema)
        if not isinstance(found, Mapping):
            raise InvalidError(f"upgrade returns a dict of fields, not {type(found).__name__}", where=self.name)
        return dict(found)


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters by which something is made that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        return {name: each for name, each in inspect.signature(make).parameters.items() if each.kind in kinds}
    except (TypeError, ValueError):
        return {}


def _is_newer(one: str, other: str) -> bool:
    """Whether a schema is known to come after another: where both are numbers, as in 2 or 1.10."""
    try:
        numbers = [tuple(map(int, each.split("."))) for each in (one, other)]
    except ValueError:
        return False
    return numbers[0] > numbers[1]


def declared(cls: type, stop: type = object) -> dict[str, Any]:
    """The fields that a class and its bases below another declare by annotations, with their defaults."""
    found: dict[str, Any] = {}
    for kind in reversed(cls.__mro__[: cls.__mro__.index(stop)]):
        for name, annotation in _annotations(kind).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                found[name] = _default(cls, name)
    return found


def _annotations(kind: type) -> Mapping[str, Any]:
    """The annotations of a class itself, of which only the names count: those of types need not be there."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
    return inspect.get_annotations(kind)


class FactoryDefault(NamedTuple):
    """A default that is made for each agent: as `dataclasses.field(default_factory=list)` says it."""

    make: Callable[[], Any]


def _default(cls: type, name: str) -> Any:
    default: Any = getattr(cls, name, MISSING)
    if inspect.isdatadescriptor(default):
        return MISSING  # it stands for a slot
    if isinstance(default, dataclasses.Field):
        value, factory = default.default, default.default_factory
        return _made(value if factory is dataclasses.MISSING else factory, factory, dataclasses.MISSING)
    if type(default).__name__ == "_CountingAttr":  # what attrs has in place of a field, which it need not be here
        value = default._default
        return _made(value, getattr(value, "factory", None), sys.modules["attr"].NOTHING)
    return default


def _made(value: Any, factory: Any, nothing: object) -> Any:
    """The default that a field says of itself. It is set in any case: what stands in the class is the field."""
    if value is nothing:
        return MISSING
    return FactoryDefault(factory if callable(factory) else partial(copy.deepcopy, value))


def fresh(default: Any) -> Callable[[], Any]:
    """What makes a value of an agent's own, of a default."""
    if isinstance(default, FactoryDefault):
        return default.make
    # Most are empty lists and dicts, which are made sooner than copied.
    return type(default) if type(default) in _PLAIN and not default else partial(copy.deepcopy, default)


def fields_of(cls: type) -> dict[str, Any]:
    """The fields of a class that inherits nothing of ours: of a dataclass, of attrs, of pydantic, its slots, or what it
    declares by annotations."""
    for names in (
        getattr(cls, "model_fields", None),
        getattr(cls, "__dataclass_fields__", None),
        [each.name for each in getattr(cls, "__attrs_attrs__", ())] or None,
    ):
        if names:
            return {name: MISSING for name in names if not name.startswith("_")}
    slots = [name for kind in reversed(cls.__mro__) for name in _names(vars(kind).get("__slots__", ()))]
    return dict.fromkeys((each for each in slots if not each.startswith("_")), MISSING) or declared(cls)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


class _Own:
    """Stands in a class for a default that its agents must not share. An agent has its own when it is first asked for,
    and is made without one: who has many agents pays for what they use."""

    def __init__(self, name: str, default: Any, make: Callable[[], Any]) -> None:
        self._name = name
        self._default = default
        self._make = make

    def __get__(self, agent: object | None, kind: type) -> Any:
        return self._default if agent is None else agent.__dict__.setdefault(self._name, self._make())


def part(cls: type, fields: Mapping[str, Any]) -> None:
    """Have each agent of a class have its own of those defaults that agents must not share."""
    for name, default in fields.items():
        if default is not MISSING and not isinstance(default, _SHARED):
            setattr(cls, name, _Own(name, getattr(cls, name), fresh(default)))


def take_on(agent: object, declared: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Give an agent those of some fields that it declares, and the defaults of the others."""
    for name, default in declared.items():
        if name in fields:
            setattr(agent, name, fields[name])
        elif default is not MISSING:
            setattr(agent, name, fresh(default)())


class AgentRegistry:
    """The classes of agents that can be brought back to life, by name. No other class is made of what is in a store."""

    def __init__(self) -> None:
        self._specs: dict[str, Spec] = {}

    def register(self, spec: Spec) -> Spec:
        """Have a class be known by its name."""
        check_key(spec.name, "name of a class of agents")
        old = self._specs.get(spec.name)
        if old is not None and _where(old.make) != _where(spec.make):
            raise InvalidError(
                f"another class of agents has the name {spec.name!r}",
                where=f"{_where(old.make)} and {_where(spec.make)}",
                hint="Give one of them another name",
            )
        self._specs[spec.name] = spec
        return spec

    def forget(self, name: str) -> None:
        """Have a class be known no longer: its name is free. Agents that live go on."""
        self._specs.pop(name, None)

    def get(self, name: str) -> Spec:
        """The class of a name. Raises `NotFoundError`."""
        if name not in self._specs:
            raise NotFoundError(
                f"no class of agents is registered as {name!r}",
                hint="Import the module that declares it before agents are restored"
                + (f"; there are {', '.join(self)}" if self._specs else ""),
                code="agent-class-unknown",
            )
        return self._specs[name]

    def of(self, kind: object) -> Spec:
        """The class that is meant by a name, a class, or a `Spec`. Raises `NotFoundError`."""
        if isinstance(kind, Spec):
            return kind
        if isinstance(kind, str):
            return self.get(kind)
        own = getattr(kind, "__dict__", {}).get("spec")
        if isinstance(own, Spec):
            return own
        for spec in self._specs.values():
            if spec.make is kind:
                return spec
        raise NotFoundError(
            f"{_where(kind)} is not registered as a class of agents",
            hint="Derive it from PersistentAgent, decorate it with @persistent, or build it with AgentBuilder",
            code="agent-class-unknown",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._specs))


def _where(make: Any) -> str:
    return f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', make)}"


registry = AgentRegistry()
"""The classes of this process."""
