"""The specification of a class of agents: its name, its fields, the version of their schema, its machine."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

from holdfast.agents.definition.options import AgentOptions
from holdfast.agents.definition.state_machine import Machine, OnIncomplete
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import check_key
from holdfast.errors import HoldfastError, InvalidError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from holdfast.schemas.schema import Schema
    from holdfast.schemas.schema_declaration import Declaration, ValidationMode
    from holdfast.schemas.schema_set import SchemaSet

SchemaSource: TypeAlias = "str | Schema | SchemaSet"
"""How a class declares the schema of its fields: a version as text, the schema, or its versions with migrations."""

_SHARED = (int, float, complex, str, bytes, bool, type(None), type, FunctionType, Enum, frozenset)
"""Types of defaults that all agents can share, since they are immutable."""

_PLAIN = (list, dict, set)

_SIMPLE = (int, float, complex, str, bytes, type(None), tuple, frozenset)


@runtime_checkable
class Persistent(Protocol):
    """The interface of an object that chooses what is stored of it. Of other objects, the fields are stored."""

    def persist(self) -> Mapping[str, Any]:
        """Return the fields to save."""
        ...

    def restore(self, fields: Mapping[str, Any], /) -> None:
        """Take over saved fields."""
        ...

    def validate(self, fields: Mapping[str, Any], /) -> None:
        """Raise an error for invalid fields: called before they are saved, and before they are restored."""
        ...

    def handle_recovery(self, recovery: Any, /) -> Any:
        """Handle a recovery: called at a start, if the agent did not end properly before."""
        ...


EXTERNAL = "external"
"""The schema of the fields of agents without a class. Whichever class is declared for them later takes these over."""


@dataclass(frozen=True)
class Spec:
    """A class of agents: how they are created, and what is stored of them."""

    name: str
    factory: Callable[..., Any]
    """Creates an agent from its configuration, given as keyword arguments: usually the class."""
    schema: str = "1"
    """The version of the fields' schema; the reference to it, as in `greeter@2.0.0`, if there is a declaration."""
    machine: Machine | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The declared fields, with their defaults; `MISSING` for none."""
    configuration: tuple[str, ...] | None = None
    """The attributes that an agent is created with; None for those that its constructor has parameters for."""
    options: AgentOptions = field(default_factory=AgentOptions)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions of a builder in place of methods, by their names; each is passed the agent first."""
    declaration: Declaration | None = None
    """The schema of the fields, with older versions and migrations."""
    conversation: Declaration | None = None
    """The schema of the conversation, which is that of a list."""

    def with_schema(self, schema: SchemaSource, validation: ValidationMode = "refuse") -> Spec:
        """Return the class with a schema of its fields: a version as text, a `Schema`, or a `SchemaSet`."""
        if isinstance(schema, str | int):
            return replace(self, schema=str(schema), declaration=None)
        from holdfast.schemas.schema_declaration import Declaration

        declaration = Declaration.of(schema, None, validation)
        return replace(self, schema=declaration.schema.schema_reference, declaration=declaration)

    def with_conversation(self, schema: Schema | SchemaSet | None, validation: ValidationMode = "refuse") -> Spec:
        """Return the class with a schema of its conversation, such as `Schema("talk", "1.0.0", list[Message])`."""
        if schema is None:
            return replace(self, conversation=None)
        from holdfast.schemas.schema_declaration import Declaration

        return replace(self, conversation=Declaration.of(schema, None, validation))

    @property
    def on_incomplete(self) -> OnIncomplete:
        """How a change that was left incomplete is resolved, unless an agent has another option."""
        return self.options.on_incomplete

    def find_method(self, agent: object, name: str) -> Callable[..., Any] | None:
        """Return a method of the agent, or the builder's function in place of it; None if there is neither."""
        if name in self.functions:
            return partial(self.functions[name], agent)
        method = getattr(agent, name, None)
        if not callable(method):
            return None
        # A method of this name that pydantic gives its models means something else.
        owner = next((kind for kind in type(agent).__mro__ if name in vars(kind)), None)
        return None if owner is not None and owner.__module__.startswith("pydantic.") else method

    def persist(self, agent: object) -> dict[str, Any]:
        """Return the fields of an agent."""
        persist = self.find_method(agent, "persist")
        if persist is None:
            return {name: getattr(agent, name) for name in self.fields if hasattr(agent, name)}
        fields = persist()
        if not isinstance(fields, Mapping):
            raise InvalidError(f"persist must return a dict of fields, not {type(fields).__name__}", where=self.name)
        return dict(fields)

    def restore(self, agent: object, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Give an agent its fields. Returns the ones that the agent neither declares nor persists any more."""
        restore = self.find_method(agent, "restore")
        if restore is None:
            set_fields(agent, self.fields, fields)
        else:
            restore(fields)
        rest = {name: value for name, value in fields.items() if name not in self.fields}
        if rest:
            persistent = self.persist(agent)
            rest = {name: value for name, value in rest.items() if name not in persistent}
        return rest

    def set_field(self, agent: object, name: str, fields: Mapping[str, Any]) -> None:
        """Give an agent one of its fields, which were changed otherwise as little as possible."""
        if self.find_method(agent, "persist") is None:
            setattr(agent, name, fields[name])
        else:
            self.restore(agent, fields)

    def create(self, configuration: Mapping[str, Any], where: str) -> Any:
        """Create an agent. Raises `InvalidError` if that is impossible with this configuration."""
        try:
            return self.factory(**configuration)
        except HoldfastError:
            raise
        except (TypeError, ValueError) as error:
            name = _qualified_name(self.factory)
            raise InvalidError(
                f"{name} cannot be created from configuration {sorted(configuration)}: {error}",
                where=where,
                hint="Its constructor must accept these as keyword arguments, with defaults for parameters added since",
                code="agent-invalid",
            ) from error

    def read_configuration(self, agent: object) -> dict[str, Any]:
        """Return the configuration of an object, as far as its attributes show it."""
        names = self.configuration
        if names is None:
            names = tuple(
                name
                for name, each in _parameters(self.factory).items()
                if name not in self.fields or each.default is each.empty
            )
        return {name: getattr(agent, name) for name in names if hasattr(agent, name)}

    def upgrade_fields(self, fields: Mapping[str, Any], schema: str, where: str) -> dict[str, Any]:
        """Convert fields to the current schema of the class. Raises `UnsupportedError` if that is impossible."""
        if schema in (self.schema, EXTERNAL):
            return dict(fields)
        upgrade = self.functions.get("upgrade") or getattr(self.factory, "upgrade", None)
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
        new = upgrade(dict(fields), schema)
        if not isinstance(new, Mapping):
            raise InvalidError(f"upgrade must return a dict of fields, not {type(new).__name__}", where=self.name)
        return dict(new)


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be passed by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    try:
        return {name: each for name, each in inspect.signature(factory).parameters.items() if each.kind in kinds}
    except (TypeError, ValueError):
        return {}


def _is_newer(one: str, other: str) -> bool:
    """Whether a schema is later than another, where both are numbers, as in 2 or 1.10."""
    try:
        numbers = [tuple(map(int, each.split("."))) for each in (one, other)]
    except ValueError:
        return False
    return numbers[0] > numbers[1]


def declared_fields(cls: type, stop: type = object) -> dict[str, Any]:
    """Return the fields that a class and its bases up to `stop` declare by annotations, with their defaults."""
    fields: dict[str, Any] = {}
    for kind in reversed(cls.__mro__[: cls.__mro__.index(stop)]):
        for name, annotation in _annotations(kind).items():
            if not name.startswith("_") and "ClassVar" not in str(annotation):
                fields[name] = _default(cls, name)
    return fields


def _annotations(kind: type) -> Mapping[str, Any]:
    """Return the annotations of a class itself. Only their names are used: the types need not be importable."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(kind, format=annotationlib.Format.STRING)
    return inspect.get_annotations(kind)


class FactoryDefault(NamedTuple):
    """A default that is created for each agent, as `dataclasses.field(default_factory=list)` declares it."""

    factory: Callable[[], Any]


def _default(cls: type, name: str) -> Any:
    default: Any = getattr(cls, name, MISSING)
    if inspect.isdatadescriptor(default):
        return MISSING  # the descriptor of a slot
    if isinstance(default, dataclasses.Field):
        value, factory = default.default, default.default_factory
        return _field_default(value if factory is dataclasses.MISSING else factory, factory, dataclasses.MISSING)
    if type(default).__name__ == "_CountingAttr":  # a field of attrs, which need not be installed
        value = default._default
        return _field_default(value, getattr(value, "factory", None), sys.modules["attr"].NOTHING)
    return default


def _field_default(value: Any, factory: Any, nothing: object) -> Any:
    """Return the default of a field object. It is always set on the agent: the class attribute is the field itself."""
    if value is nothing:
        return MISSING
    return FactoryDefault(factory if callable(factory) else partial(copy.deepcopy, value))


def default_factory(default: Any) -> Callable[[], Any]:
    """Return a function that creates an agent's own value from a default."""
    if isinstance(default, FactoryDefault):
        return default.factory
    # Most are empty lists and dicts, which are faster to create than to copy.
    return type(default) if type(default) in _PLAIN and not default else partial(copy.deepcopy, default)


def fields_of(cls: type) -> dict[str, Any]:
    """Return the fields of a class without a base of Holdfast: of a dataclass, of attrs, of pydantic, its slots, or its
    annotated attributes."""
    for names in (
        getattr(cls, "model_fields", None),
        getattr(cls, "__dataclass_fields__", None),
        [each.name for each in getattr(cls, "__attrs_attrs__", ())] or None,
    ):
        if names:
            return {name: MISSING for name in names if not name.startswith("_")}
    slots = [name for kind in reversed(cls.__mro__) for name in _names(vars(kind).get("__slots__", ()))]
    return dict.fromkeys((each for each in slots if not each.startswith("_")), MISSING) or declared_fields(cls)


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


class _OwnDefault:
    """A class attribute for a default that agents must not share. An agent gets its own value on first access, so that
    many agents take memory only for the values they use."""

    def __init__(self, name: str, default: Any, factory: Callable[[], Any]) -> None:
        self._name = name
        self._default = default
        self._factory = factory

    def __get__(self, agent: object | None, kind: type) -> Any:
        return self._default if agent is None else agent.__dict__.setdefault(self._name, self._factory())


def separate_defaults(cls: type, fields: Mapping[str, Any]) -> None:
    """Give each agent of a class its own value of the defaults that agents must not share."""
    for name, default in fields.items():
        if default is not MISSING and not isinstance(default, _SHARED):
            setattr(cls, name, _OwnDefault(name, getattr(cls, name), default_factory(default)))


def warn_of_shared(cls: type, fields: Mapping[str, Any]) -> None:
    """Warn of lists, dicts and sets of a class that look like fields, but have no annotation that makes them fields."""
    declared = {*fields, *(name for kind in cls.__mro__ for name in _annotations(kind))}
    for name, value in vars(cls).items():
        inherited = any(isinstance(vars(kind).get(name), _PLAIN) for kind in cls.__mro__[1:])
        if isinstance(value, _PLAIN) and not (name.startswith("_") or name in declared or inherited):
            kind = type(value).__name__
            warnings.warn(
                f"{cls.__qualname__}.{name} is a {kind} without annotation: all agents share it, and it is not saved. "
                f"Write `{name}: {kind} = …` for a field of each agent, or `{name}: ClassVar[{kind}] = …` to share it",
                stacklevel=3,
            )


def warn_of_unsaved(agent: object, spec: Spec, configuration: Mapping[str, Any]) -> None:
    """Warn, once for each, of attributes that an agent has set and that are not saved, because the class has them
    without an annotation, as in `count = 0`. Those of the configuration are set again when the agent is restored."""
    kind, attributes = type(agent), getattr(agent, "__dict__", ())
    names = _unannotated.get(kind)
    if names is None:
        names = _unannotated[kind] = _plain_attributes(kind)
    for name in [each for each in names if each in attributes]:
        names.discard(name)
        if name not in spec.fields and name not in configuration:
            warnings.warn(
                f"{kind.__qualname__}.{name} has no annotation, so that what agents set it to is not saved. Write "
                f"`{name}: {type(getattr(kind, name)).__name__} = …` for a field, or `_{name}` for what is not saved",
                stacklevel=2,
            )


_unannotated: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()
"""The attributes without annotation that agents of a class have not set so far."""


def _plain_attributes(kind: type) -> set[str]:
    """Return the class attributes of a simple type without annotation; none, if the class chooses what is saved."""
    bases = [each for each in kind.__mro__ if not each.__module__.startswith("holdfast.")]
    if any("persist" in vars(each) for each in bases):
        return set()
    annotated = {name for each in kind.__mro__ for name in _annotations(each)}
    values = {name: value for each in reversed(bases) for name, value in vars(each).items()}
    simple = {name for name, value in values.items() if isinstance(value, _SIMPLE) and not name.startswith("_")}
    return simple - annotated


def set_fields(agent: object, declared: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Set the declared fields of an agent: to the given values, or else to their defaults."""
    for name, default in declared.items():
        if name in fields:
            setattr(agent, name, fields[name])
        elif default is not MISSING:
            setattr(agent, name, default_factory(default)())


class AgentRegistry:
    """The classes of agents that can be restored, by name. No other class is instantiated from a store's contents."""

    def __init__(self) -> None:
        self._specs: dict[str, Spec] = {}

    def register(self, spec: Spec) -> Spec:
        """Register a class under its name."""
        check_key(spec.name, "name of a class of agents")
        old = self._specs.get(spec.name)
        if old is not None and _qualified_name(old.factory) != _qualified_name(spec.factory):
            raise InvalidError(
                f"the name {spec.name!r} is already used by another agent class",
                where=f"{_qualified_name(old.factory)} and {_qualified_name(spec.factory)}",
                hint="Give one of them another name",
            )
        self._specs[spec.name] = spec
        return spec

    def forget(self, name: str) -> None:
        """Remove a class, and free its name. Live agents of it are not affected."""
        self._specs.pop(name, None)

    def get(self, name: str) -> Spec:
        """Return the class of a name. Raises `NotFoundError`."""
        if name not in self._specs:
            raise NotFoundError(
                f"no agent class is registered as {name!r}",
                hint="Import the module that declares it before agents are restored"
                + (f"; there are {', '.join(self)}" if self._specs else ""),
                code="agent-class-unknown",
            )
        return self._specs[name]

    def of(self, kind: object) -> Spec:
        """Return the class for a name, a Python class, or a `Spec`. Raises `NotFoundError`."""
        if isinstance(kind, Spec):
            return kind
        if isinstance(kind, str):
            return self.get(kind)
        own = getattr(kind, "__dict__", {}).get("spec")
        if isinstance(own, Spec):
            return own
        for spec in self._specs.values():
            if spec.factory is kind:
                return spec
        raise NotFoundError(
            f"{_qualified_name(kind)} is not registered as an agent class",
            hint="Derive it from PersistentAgent, decorate it with @persistent, or build it with AgentBuilder",
            code="agent-class-unknown",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._specs))


def _qualified_name(factory: Any) -> str:
    return f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', factory)}"


registry: AgentRegistry = AgentRegistry()
"""The classes of this process."""
