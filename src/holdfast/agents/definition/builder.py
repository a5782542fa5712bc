"""Agents without inheritance: a decorator for classes, and a builder for classes and factory functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar, Unpack

from holdfast.agents.definition.options import Policies
from holdfast.agents.definition.spec import SchemaSource, Spec, fields_of, registry, warn_of_shared
from holdfast.agents.definition.state_machine import Machine
from holdfast.engine.model.missing import MISSING
from holdfast.engine.validation import require_several
from holdfast.errors import InvalidError

if TYPE_CHECKING:
    from holdfast.schemas.schema import Schema
    from holdfast.schemas.schema_declaration import ValidationMode
    from holdfast.schemas.schema_set import SchemaSet

C = TypeVar("C", bound=type)


def persistent(
    *,
    name: str | None = None,
    fields: Iterable[str] | None = None,
    machine: Machine | None = None,
    schema: SchemaSource = "1",
    conversation: Schema | SchemaSet | None = None,
    validation: ValidationMode = "refuse",
    configuration: Iterable[str] | None = None,
    **policies: Unpack[Policies],
) -> Callable[[C], C]:
    """Register a class whose objects are stored as agents. The class itself is not changed::

        @persistent(name="greeter", fields=["greeted"])
        class Greeter: ...

        handle = store.agents.create(Greeter, "greeter-1", greeting="Hello")

    The default `fields` are those of a dataclass, of attrs or of pydantic, its slots, or its annotated attributes;
    `InvalidError` if there are none. A class whose objects have no fields is decorated with `fields=[]`.
    `configuration` names the attributes that are passed to the constructor when an object is restored: by default,
    those that the constructor has parameters for, except fields with a default.
    """

    def decorate(cls: C) -> C:
        if not isinstance(cls, type):
            raise InvalidError(
                "@persistent can only decorate classes", where=repr(cls)[:80], hint="Use AgentBuilder for functions"
            )
        builder = AgentBuilder(name or cls.__name__).schema(schema, validation).policies(**policies)
        builder.conversation(conversation, validation)
        if fields is not None:
            builder.fields(*require_several(fields, "field"))
        if configuration is not None:
            builder.configuration(*require_several(configuration, "name of a configuration"))
        if machine is not None:
            builder.machine(machine)
        warn_of_shared(cls, builder.build(cls).fields)
        return cls

    return decorate


_Setter: TypeAlias = "Callable[[AgentBuilder, Callable[..., Any]], AgentBuilder]"


def _function(name: str, doc: str) -> _Setter:
    """Return the method of a builder that sets a function in place of a method of the agents."""

    def set_function(self: AgentBuilder, function: Callable[..., Any]) -> AgentBuilder:
        if not callable(function):
            raise InvalidError(f"{name} must be a function, not {type(function).__name__}")
        self._spec = replace(self._spec, functions={**self._spec.functions, name: function})
        return self

    set_function.__name__, set_function.__doc__ = name, doc
    set_function.__qualname__ = f"AgentBuilder.{name}"
    return set_function


class AgentBuilder:
    """Defines a class of agents step by step::

    greeter = (
        AgentBuilder("greeter")
        .fields("greeted")
        .configuration("greeting")
        .on_start(lambda agent: agent.warm_up())
        .build(Greeter)
    )
    handle = store.agents.create(greeter, "greeter-1", greeting="Hello")
    """

    def __init__(self, name: str) -> None:
        self._spec = Spec(name, _no_factory)
        self._fields: dict[str, Any] | None = None

    def fields(self, *names: str, **defaults: Any) -> Self:
        """Store these attributes of an agent, some with a default for agents that have no saved value. Without any
        argument, no attributes are stored."""
        self._fields = {**(self._fields or {}), **dict.fromkeys(names, MISSING), **defaults}
        return self

    def configuration(self, *names: str) -> Self:
        """Pass these attributes as keyword arguments when an agent is restored."""
        self._spec = replace(self._spec, configuration=(*(self._spec.configuration or ()), *names))
        return self

    def machine(self, machine: Machine) -> Self:
        """Give agents a state machine."""
        self._spec = replace(self._spec, machine=machine)
        return self

    def schema(self, schema: SchemaSource, validation: ValidationMode = "refuse") -> Self:
        """Set the schema of the fields: a version as text, a `Schema`, or a `SchemaSet` with older versions and
        migrations. Fields that do not fit are refused, warned of, or with `off` not checked."""
        self._spec = self._spec.with_schema(schema, validation)
        return self

    def conversation(self, schema: Schema | SchemaSet | None, validation: ValidationMode = "refuse") -> Self:
        """Set the schema of the conversation: that of a list of messages, `Schema("talk", "1.0.0", list[Message])`."""
        self._spec = self._spec.with_conversation(schema, validation)
        return self

    def policies(self, **policies: Unpack[Policies]) -> Self:
        """Set the default options of agents of the class: `on_conflict`, `on_corrupt`, `on_incomplete`, `autosave`."""
        self._spec = replace(self._spec, options=self._spec.options.with_policies(policies))
        return self

    persist: ClassVar[_Setter] = _function(
        "persist", "Get the fields of an agent from a function, instead of its attributes."
    )
    restore: ClassVar[_Setter] = _function(
        "restore", "Give an agent its saved fields by a function: the counterpart of `persist`."
    )
    validate: ClassVar[_Setter] = _function(
        "validate", "Check an agent and its fields by a function that raises an error for invalid ones."
    )
    upgrade: ClassVar[_Setter] = _function(
        "upgrade", "Convert fields of an older schema by a function of the fields and that schema."
    )
    handle_recovery: ClassVar[_Setter] = _function(
        "handle_recovery", "Call a function with the agent and the `Recovery`, if the agent did not end properly."
    )
    on_attach: ClassVar[_Setter] = _function(
        "on_attach", "Call a function with the agent and its `AgentHandle`, when the agent is attached."
    )
    on_start: ClassVar[_Setter] = _function("on_start", "Call a function at each start.")
    on_pause: ClassVar[_Setter] = _function("on_pause", "Call a function at each pause.")
    on_resume: ClassVar[_Setter] = _function("on_resume", "Call a function when the agent resumes.")
    on_stop: ClassVar[_Setter] = _function("on_stop", "Call a function at each stop.")
    on_fail: ClassVar[_Setter] = _function(
        "on_fail", "Call a function with the agent and the error, when the agent has failed."
    )

    def build(self, factory: Callable[..., Any]) -> Spec:
        """Register the class: `factory` is a class, or a function that creates an agent from its configuration."""
        fields = self._fields
        if fields is None:
            fields = fields_of(factory) if isinstance(factory, type) else {}
            if not fields and "persist" not in self._spec.functions and not hasattr(factory, "persist"):
                raise InvalidError(
                    "the class declares no fields, so nothing of its agents would be stored",
                    where=f"{getattr(factory, '__qualname__', factory)}, as {self._spec.name!r}"[:200],
                    hint="Annotate the attributes in the class, as in `count: int = 0`; or name them, as in "
                    'fields=["count"], or fields=[] for none',
                )
        return registry.register(replace(self._spec, factory=factory, fields=fields))


def _no_factory() -> None:
    """Stands in for the factory until `build` is called."""
