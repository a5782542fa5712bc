"""Agents without inheritance: a decorator for classes, and a builder for classes and functions that make agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self, TypeVar, Unpack

from holdfast.agents.definition.options import Policies
from holdfast.agents.definition.spec import Spec, fields_of, registry
from holdfast.agents.definition.state_machine import Machine
from holdfast.engine import validation
from holdfast.engine.model.missing import MISSING
from holdfast.errors import InvalidError

C = TypeVar("C", bound=type)


def persistent(
    *,
    name: str | None = None,
    fields: Iterable[str] | None = None,
    machine: Machine | None = None,
    schema: str = "1",
    configuration: Iterable[str] | None = None,
    **policies: Unpack[Policies],
) -> Callable[[C], C]:
    """Have the objects of a class be kept as agents. The class is returned as it is: nothing is added to it::

        @persistent(name="greeter", fields=["greeted"])
        class Greeter: ...

        kept = store.agents.create(Greeter, "greeter-1", greeting="Hello")

    Without `fields`, they are those of a dataclass, of attrs or of pydantic, its slots, or what it declares by
    annotations. `configuration` are the attributes that an object is made with again: without it, those that its
    constructor has parameters for, and that are no fields with a default.
    """

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise InvalidError(
                "@persistent is for classes", where=repr(cls)[:80], hint="AgentBuilder takes functions, too"
            )
        builder = AgentBuilder(name or cls.__name__).schema(schema).policies(**policies)
        if fields is not None:
            builder.fields(*validation.several(fields, "field"))
        if configuration is not None:
            builder.configuration(*validation.several(configuration, "name of a configuration"))
        if machine is not None:
            builder.machine(machine)
        builder.build(cls)
        return cls

    return decorate


class AgentBuilder:
    """Declares a class of agents step by step::

    greeter = (
        AgentBuilder("greeter")
        .fields("greeted")
        .configuration("greeting")
        .on_start(lambda agent: agent.warm_up())
        .build(Greeter)
    )
    kept = store.agents.create(greeter, "greeter-1", greeting="Hello")
    """

    def __init__(self, name: str) -> None:
        self._spec = Spec(name, _nothing)
        self._fields: dict[str, Any] | None = None

    def fields(self, *names: str, **defaults: Any) -> Self:
        """What is kept of an agent: attributes by name, some with the value that they have where nothing was saved."""
        self._fields = {**(self._fields or {}), **dict.fromkeys(names, MISSING), **defaults}
        return self

    def configuration(self, *names: str) -> Self:
        """The attributes that an agent is made with again, as keyword arguments."""
        self._spec = replace(self._spec, configuration=(*(self._spec.configuration or ()), *names))
        return self

    def machine(self, machine: Machine) -> Self:
        """The machine of its states."""
        self._spec = replace(self._spec, machine=machine)
        return self

    def schema(self, schema: str) -> Self:
        """The version of the form of its fields."""
        self._spec = replace(self._spec, schema=str(schema))
        return self

    def policies(self, **policies: Unpack[Policies]) -> Self:
        """How agents of the class are kept, where nothing else is said for one: `on_conflict`, `on_corrupt`,
        `on_incomplete`, `autosave`."""
        self._spec = replace(self._spec, settings=self._spec.settings.changed(policies))
        return self

    def persist(self, function: Callable[[Any], Mapping[str, Any]]) -> Self:
        """What returns the fields of an agent, in place of its attributes."""
        return self._function("persist", function)

    def restore(self, function: Callable[[Any, Mapping[str, Any]], Any]) -> Self:
        """What has an agent take on fields: the counterpart of `persist`."""
        return self._function("restore", function)

    def validate(self, function: Callable[[Any, Mapping[str, Any]], Any]) -> Self:
        """What raises something against an agent and its fields."""
        return self._function("validate", function)

    def upgrade(self, function: Callable[[dict[str, Any], str], Mapping[str, Any]]) -> Self:
        """What brings fields of an older schema to the form of this one; it is given them, and that schema."""
        return self._function("upgrade", function)

    def handle_recovery(self, function: Callable[[Any, Any], Any]) -> Self:
        """What is told of an agent that did not end as it should."""
        return self._function("handle_recovery", function)

    def on_attach(self, function: Callable[[Any, Any], Any]) -> Self:
        """What is given an agent and the `AgentHandle` that it is worked with."""
        return self._function("on_attach", function)

    def on_start(self, function: Callable[[Any], Any]) -> Self:
        """What is called at a start."""
        return self._function("on_start", function)

    def on_pause(self, function: Callable[[Any], Any]) -> Self:
        """What is called at a pause."""
        return self._function("on_pause", function)

    def on_resume(self, function: Callable[[Any], Any]) -> Self:
        """What is called when it goes on."""
        return self._function("on_resume", function)

    def on_stop(self, function: Callable[[Any], Any]) -> Self:
        """What is called at a stop."""
        return self._function("on_stop", function)

    def on_fail(self, function: Callable[[Any, Any], Any]) -> Self:
        """What is called, with the error, when it has failed."""
        return self._function("on_fail", function)

    def build(self, make: Callable[..., Any]) -> Spec:
        """Have the class be known: `make` is a class, or a function that makes an agent of its configuration."""
        fields = self._fields
        if fields is None and not isinstance(make, type) and "persist" not in self._spec.functions:
            raise InvalidError(
                "of what a function makes, the fields are not known",
                where=f"AgentBuilder({self._spec.name!r})",
                hint="Name them with fields(…), or say how they are got with persist(…) and restore(…)",
            )
        if fields is None:
            fields = fields_of(make) if isinstance(make, type) else {}
        return registry.register(replace(self._spec, make=make, fields=fields))

    def _function(self, name: str, function: Callable[..., Any]) -> Self:
        if not callable(function):
            raise InvalidError(f"{name} is a function, not {type(function).__name__}")
        self._spec = replace(self._spec, functions={**self._spec.functions, name: function})
        return self


def _nothing() -> None:
    """Stands for what makes agents until that is said."""
