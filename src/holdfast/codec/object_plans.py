"""Plans: how instances of the application's classes are taken apart and put together again.

There is one cached plan per class. A payload starts with the class's name. `load` sets fields and calls no code of the
application; if the class has changed so that the stored fields no longer fit, it raises `ClassMismatch`, and the value
is read as an `OpaqueValue`.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, final

from holdfast.codec import class_lookup
from holdfast.codec.tags import Tag
from holdfast.errors import UnsupportedError


class ClassMismatch(Exception):
    """The loaded class does not accept the stored fields."""


class ObjectPlan(ABC):
    """Takes instances of one class apart, and puts them together again."""

    tag: Tag
    names: tuple[str, ...] = ()

    def __init__(self, cls: type, ref: str) -> None:
        self.cls = cls
        self.ref = ref
        self._extra_slots: tuple[str, ...] = ()

    @abstractmethod
    def dump(self, obj: Any) -> list[Any]:
        """Return the payload: the class's name, then its parts."""

    @abstractmethod
    def load(self, parts: list[Any]) -> Any:
        """Build an instance from the payload."""

    @abstractmethod
    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        """Iterate over the values inside, each with its path segment (`.name`, `[3]`), to locate an error."""

    def _check_slots(self, obj: Any) -> None:
        """Refuse an object with a value in a slot that is not a field."""
        for name in self._extra_slots:
            if _has_value(obj, name):
                raise _unknown_attribute(self.ref, name)


def _unknown_attribute(ref: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{ref} object has an attribute {name!r} that is not one of its fields",
        hint="Declare it as a field, delete it before saving, or register the class",
    )


def _has_value(obj: Any, name: str) -> bool:
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True


_NO_DEFAULT = object()
_PLAIN_FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)
_CONTAINERS = (list, dict, set)
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def _default(static: Any, factory: Any, missing: object) -> Callable[[], Any] | None:
    """Return a function that fills a field added to the class after the value was stored, or None.

    No code of the application is called: a factory must be a built-in type, and a mutable default may contain only
    plain values.
    """
    if factory is not None and factory is not missing:
        return next((plain for plain in _PLAIN_FACTORIES if plain is factory), None)
    if static is missing:
        return None
    if type(static) not in _CONTAINERS:
        return lambda: static
    parts = [*static, *(static.values() if type(static) is dict else ())]
    return static.copy if _PLAIN.issuperset(map(type, parts)) else None


_set = object.__setattr__


class _DeclaredPlan(ObjectPlan):
    """Base of plans for classes that declare their fields, some with a default."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref)
        self.tag = tag
        self.names: tuple[str, ...] = tuple(defaults)
        self._field_names = frozenset(defaults)
        self._defaults = defaults

    def _check_attributes(self, own: dict[str, Any]) -> None:
        """Refuse an object with attributes that are not fields: they would be lost."""
        for name in own.keys() - self._field_names:
            if type(class_lookup.lookup(self.cls, name)) is not functools.cached_property:
                raise _unknown_attribute(self.ref, name)

    def _fill(self, fields: dict[str, Any]) -> None:
        """Set added fields to their default; `ClassMismatch` if a field was removed or has no default."""
        if fields.keys() - self._field_names:
            raise ClassMismatch
        for name, default in self._defaults.items():
            if name not in fields:
                if default is None:
                    raise ClassMismatch
                fields[name] = default()


@final
class FieldsPlan(_DeclaredPlan):
    """Stores dataclasses, attrs classes and LangGraph's `Send` as names and values of fields."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref, tag, defaults)
        self._has_dict = class_lookup.lookup(cls, "__dict__") is not None
        self._has_slots = any(type(class_lookup.lookup(cls, name)) is MemberDescriptorType for name in defaults)
        self._extra_slots = class_lookup.extra_slots(cls, defaults)

    def fields(self, obj: Any) -> dict[str, Any]:
        """Return the instance's fields in declared order."""
        if self._has_dict:
            own: dict[str, Any] = object.__getattribute__(obj, "__dict__")
            if tuple(own) == self.names and not self._extra_slots:
                return own
            self._check_attributes(own)
        self._check_slots(obj)
        fields = {}
        for name in self.names:
            try:
                fields[name] = object.__getattribute__(obj, name)
            except AttributeError:
                raise _missing(self.ref, name) from None
        return fields

    def dump(self, obj: Any) -> list[Any]:
        return [self.ref, self.fields(obj)]

    def load(self, parts: list[Any]) -> Any:
        fields: dict[str, Any] = parts[1]
        if fields.keys() != self._field_names:
            self._fill(fields)
        obj: Any = object.__new__(self.cls)
        if self._has_dict and not self._has_slots:
            object.__getattribute__(obj, "__dict__").update(fields)
        else:
            for name, value in fields.items():
                object.__setattr__(obj, name, value)
        return obj

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", value) for name, value in self.fields(obj).items())


_PYDANTIC_SLOTS = ("__fields_set__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


@final
class PydanticPlan(_DeclaredPlan):
    """Stores pydantic models, versions 2 and 1: fields, which of them were set, extra and private attributes."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref, tag, defaults)
        self._v1 = tag is Tag.PYDANTIC_V1
        self._set_slot = "__fields_set__" if self._v1 else "__pydantic_fields_set__"
        private = class_lookup.lookup(cls, "__private_attributes__")
        self._private_names: tuple[str, ...] = tuple(private) if self._v1 and type(private) is dict else ()
        self._keeps_extra = not self._v1 and class_lookup.lookup(cls, "model_config").get("extra") == "allow"
        self.has_private: bool = bool(private)
        # A RootModel has no slots for extra fields and private attributes.
        self._has_slots = type(class_lookup.lookup(cls, "__pydantic_extra__")) is MemberDescriptorType
        self._extra_slots = class_lookup.extra_slots(cls, {*defaults, *self._private_names, *_PYDANTIC_SLOTS})
        self.all_names: set[str] = set(defaults)
        members = None if self._v1 else _slot_members(cls)
        self.setters = members and tuple([member.__set__ for member in members])
        offset = class_lookup.weak_offset(cls)
        self.parts = members and (cls, self.names, self.all_names, members, self._keeps_extra, offset)
        """What the native core builds instances by; None if it cannot."""

    def state(self, obj: Any) -> tuple[dict[str, Any], set[str], dict[str, Any] | None, dict[str, Any] | None]:
        """Return the fields, the names of those that were set, the extra fields and the private attributes."""
        self._check_slots(obj)
        own: dict[str, Any] = object.__getattribute__(obj, "__dict__")
        was_set: set[str] = object.__getattribute__(obj, self._set_slot)
        if self._v1:
            # Version 1 has extra fields among the fields, and private attributes in slots.
            extra = {name: value for name, value in own.items() if name not in self._field_names} or None
            private = {n: object.__getattribute__(obj, n) for n in self._private_names if _has_value(obj, n)} or None
        else:
            extra = object.__getattribute__(obj, "__pydantic_extra__")
            private = object.__getattribute__(obj, "__pydantic_private__")
        if tuple(own) != self.names:
            if not self._v1:
                self._check_attributes(own)
            for name in self.names:
                if name not in own:
                    raise _missing(self.ref, name)
            own = {name: own[name] for name in own if name in self._field_names}
        return own, was_set, extra, private

    def dump(self, obj: Any) -> list[Any]:
        fields, was_set, extra, private = self.state(obj)
        names = (*fields, *(extra or ()))
        mask = sum(1 << i for i, name in enumerate(names) if name in was_set)
        payload = [self.ref, fields, mask, extra, private]
        strangers = was_set.difference(names)
        if strangers:
            payload.append(sorted(strangers))
        return payload

    def load(self, parts: list[Any]) -> Any:
        _, fields, mask, extra, private, *rest = parts
        names = (*fields, *(_check_names(extra) or ()))
        if type(mask) is not int or not 0 <= mask < 1 << len(names):
            raise ValueError("the stored set of assigned fields is invalid")
        was_set = {name for i, name in enumerate(names) if mask >> i & 1}
        for strangers in rest:
            if type(strangers) is not list or any(type(name) is not str for name in strangers):
                raise ValueError("the stored set of assigned fields is invalid")
            was_set.update(strangers)
        return self.build(fields, was_set, extra, _check_names(private))

    def build(
        self, fields: dict[str, Any], was_set: set[str], extra: dict[str, Any] | None, private: dict[str, Any] | None
    ) -> Any:
        """Build an instance from its parts."""
        if fields.keys() != self._field_names:
            self._fill(fields)
        obj: Any = object.__new__(self.cls)
        if self._v1:
            _set(obj, "__dict__", fields | (extra or {}))
            _set(obj, "__fields_set__", was_set)
            for name, value in (private or {}).items():
                if name not in self._private_names:
                    raise ClassMismatch
                _set(obj, name, value)
            return obj
        _set(obj, "__dict__", fields)
        _set(obj, "__pydantic_fields_set__", was_set)
        if self._has_slots:
            _set(obj, "__pydantic_extra__", extra)
            _set(obj, "__pydantic_private__", private)
        elif extra or private:
            raise ClassMismatch
        return obj

    def build_shaped(self, fields: dict[str, Any]) -> Any:
        """Build an instance of which exactly these fields are set: `build`, faster, for the most frequent values."""
        if type(fields) is not dict or (tuple(fields) != self.names and fields.keys() != self.all_names):
            raise ClassMismatch
        obj: Any = object.__new__(self.cls)
        _set(obj, "__dict__", fields)
        _set(obj, "__pydantic_fields_set__", self.all_names.copy())
        _set(obj, "__pydantic_extra__", {} if self._keeps_extra else None)
        _set(obj, "__pydantic_private__", None)
        return obj

    @staticmethod
    def can_build_many(plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]) -> bool:
        """Whether `build_many` can build instances by these plans from these fields."""
        setters = plans[0].setters
        if setters is None or any(plan.setters != setters for plan in set(plans)):
            return False
        # The decoder caches field names, so comparing them mostly compares identical objects.
        names = {plan: tuple(values) for plan, values in dict(zip(plans, fields, strict=True)).items()}
        if any(stored != plan.names for plan, stored in names.items()):
            return False
        return list(map(tuple, fields)) == list(map(names.__getitem__, plans))

    @staticmethod
    def build_many(plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]) -> list[Any]:
        """Build many instances as `build_shaped` does, each by its plan, with no Python code per instance."""
        objects: list[Any] = list(map(object.__new__, [plan.cls for plan in plans]))
        set_dict, set_fields_set, set_extra, set_private = plans[0].setters or ()
        _exhaust(map(set_dict, objects, fields))
        _exhaust(map(set_fields_set, objects, map(set.copy, [plan.all_names for plan in plans])))
        _exhaust(map(set_extra, objects, [{} if plan._keeps_extra else None for plan in plans]))
        _exhaust(map(set_private, objects, repeat(None)))
        return objects

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        fields, _, extra, private = self.state(obj)
        for part in (fields, extra, private):
            for name, value in (part or {}).items():
                yield f".{name}", value


def _slot_members(cls: type) -> tuple[Any, ...] | None:
    """Return the descriptors of a model's four parts, or None if they are not those of pydantic's base class."""
    members = tuple([class_lookup.lookup(cls, name) for name in ("__dict__", *_PYDANTIC_SLOTS[1:])])
    return None if {*map(type, members)} - {MemberDescriptorType, GetSetDescriptorType} else members


_exhaust = deque[None](maxlen=0).extend


def _check_names(entries: Any) -> dict[str, Any] | None:
    if entries is None or (type(entries) is dict and all(type(name) is str for name in entries)):
        return entries
    raise ValueError("a stored model has attributes whose names are not strings")


def _missing(ref: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{ref} object has no value for its field {name!r}", hint="Set the field, or register the class"
    )


@final
class NamedTuplePlan(ObjectPlan):
    """Stores named tuples as names and values of fields."""

    tag = Tag.NAMEDTUPLE

    def __init__(self, cls: type, ref: str) -> None:
        super().__init__(cls, ref)
        self.names: tuple[str, ...] = class_lookup.lookup(cls, "_fields")

    def dump(self, obj: Any) -> list[Any]:
        if class_lookup.lookup(self.cls, "__dict__") is not None and object.__getattribute__(obj, "__dict__"):
            raise UnsupportedError(
                f"{self.ref} object has attributes besides its fields",
                hint="Register the class",
            )
        return [self.ref, dict(zip(self.names, tuple.__iter__(obj), strict=True))]

    def load(self, parts: list[Any]) -> Any:
        fields: dict[str, Any] = parts[1]
        if fields.keys() != set(self.names):
            raise ClassMismatch
        return tuple.__new__(self.cls, [fields[name] for name in self.names])

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", value) for name, value in zip(self.names, tuple.__iter__(obj), strict=True))


@final
class EnumPlan(ObjectPlan):
    """Stores enum members by name, and combinations of flags by value."""

    def __init__(self, cls: type, ref: str) -> None:
        super().__init__(cls, ref)
        self._members: dict[str, Any] = class_lookup.lookup(cls, "_member_map_")
        self._combines = (
            enum.Flag in class_lookup.mro(cls)
            and type(cls) is enum.EnumType
            and class_lookup.lookup(cls, "_missing_") is class_lookup.class_dict(enum.Flag)["_missing_"]
            and class_lookup.lookup(cls, "_member_type_") in (object, int)
        )
        self.tag = Tag.FLAG if self._combines else Tag.ENUM

    def dump(self, obj: Any) -> list[Any]:
        if self._combines and self._is_declared(obj._value_):
            return [self.ref, obj._value_]
        name: str = obj._name_
        if self._members.get(name) is not obj:
            raise UnsupportedError(f"{obj!r} is not a declared member of {self.ref}", hint="Register the class")
        return [self.ref, name]

    def _is_declared(self, value: int) -> bool:
        """Whether a value combines declared flags. Python caches a member for any other value, forever."""
        mask: int = class_lookup.lookup(self.cls, "_flag_mask_")
        return 0 <= value <= mask and not value & ~mask

    def load(self, parts: list[Any]) -> Any:
        if self._combines:
            if not self._is_declared(parts[1]):
                raise ClassMismatch
            return self.cls(parts[1])  # the standard library's own lookup: `_missing_` is not overridden
        member = self._members.get(parts[1])
        if member is None:
            raise ClassMismatch
        return member

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:  # noqa: ARG002 - a member holds no other values
        return iter(())


# Attributes that are stored separately or not at all, and those that a group derives from its arguments.
_COMMON_ATTRIBUTES = frozenset(vars(BaseException)) | {"message", "exceptions"}


@final
class ExceptionPlan(ObjectPlan):
    """Stores an exception's arguments, attributes, notes, cause and context, but not its traceback."""

    tag = Tag.EXCEPTION

    def __init__(self, cls: type, ref: str) -> None:
        super().__init__(cls, ref)
        # Only this built-in base is constructed: no `__init__` of the application is called.
        self._native: Any = next(base for base in class_lookup.mro(cls) if base in _BUILT_IN_EXCEPTIONS)
        # Attributes of built-in exceptions outside `args` and `__dict__`, such as OSError's `errno`.
        self._members = {
            name: member
            for base in reversed(class_lookup.mro(self._native))
            for name, member in class_lookup.class_dict(base).items()
            if type(member) in (MemberDescriptorType, GetSetDescriptorType) and name not in _COMMON_ATTRIBUTES
        }
        self._extra_slots = class_lookup.extra_slots(cls, {*self._members, *_COMMON_ATTRIBUTES})

    def _build(self, args: list[Any]) -> Any:
        try:
            obj = self._native.__new__(self.cls, *args)
            self._native.__init__(obj, *args)
        except (TypeError, ValueError):
            raise ClassMismatch from None
        return obj

    def _parts(self, obj: Any) -> dict[str, Any]:
        args = list(_ARGS(obj))
        attributes = object.__getattribute__(obj, "__dict__")
        parts: dict[str, Any] = {"args": args, "attributes": attributes}
        try:
            rebuilt = self._build(args)
        except ClassMismatch:
            raise UnsupportedError(
                f"a {self.ref} cannot be rebuilt from its arguments",
                hint="Save its text, or register the class",
            ) from None
        native = {}
        for name, member in self._members.items():
            value = _read(member, obj)
            if value is not _read(member, rebuilt):
                native[name] = value
        if native:
            parts["native"] = native
        self._check_slots(obj)
        for name, member in _LINKS.items():
            link = member.__get__(obj)
            if link is not None:
                parts[name] = link
        if _SUPPRESS.__get__(obj):
            parts["suppress"] = True
        return parts

    def dump(self, obj: Any) -> list[Any]:
        return [self.ref, self._parts(obj)]

    def load(self, parts: list[Any]) -> Any:
        fields: dict[str, Any] = parts[1]
        args, attributes, native = fields["args"], fields["attributes"], fields.get("native", {})
        if type(args) is not list or type(attributes) is not dict or type(native) is not dict:
            raise ValueError("the parts of a stored exception have wrong types")
        obj = self._build(args)
        object.__getattribute__(obj, "__dict__").update(attributes)
        for name, value in native.items():
            if name not in self._members:
                raise ClassMismatch
            self._members[name].__set__(obj, value)
        for name, member in _LINKS.items():
            link = fields.get(name)
            if link is not None:
                if not class_lookup.is_a(link, BaseException):
                    raise ClassMismatch
                member.__set__(obj, link)
        _SUPPRESS.__set__(obj, fields.get("suppress") is True)
        return obj

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        parts = self._parts(obj)
        for i, value in enumerate(parts["args"]):
            yield f".args[{i}]", value
        for name, value in (*parts["attributes"].items(), *parts.get("native", {}).items()):
            yield f".{name}", value
        for name in _LINKS:
            if name in parts:
                yield f".__{name}__", parts[name]


_BUILT_IN_EXCEPTIONS = frozenset(
    cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)
)
_ARGS = vars(BaseException)["args"].__get__
_LINKS = {"cause": vars(BaseException)["__cause__"], "context": vars(BaseException)["__context__"]}
_SUPPRESS = vars(BaseException)["__suppress_context__"]


def _read(member: Any, obj: Any) -> Any:
    try:
        return member.__get__(obj)
    except AttributeError:
        return None


def plan_for(cls: type, *, unnamed: bool = False) -> ObjectPlan:
    """Return the plan for a class. Raises `UnsupportedError` with the reason if it has none.

    With `unnamed`, the class need not be found by its name: the plan only takes instances apart.
    """
    ref = class_lookup.reference(cls)
    reason = (
        class_lookup.refusal(cls, unnamed=unnamed) if _is_data(cls) else "it is not a data class that Holdfast supports"
    )
    plan = None if reason else _build_plan(cls, ref)
    if plan is None:
        from holdfast._hints import instead_of_saving  # for mistakes alone

        short = ref.rpartition(":")[2].rpartition(".")[2]
        raise UnsupportedError(
            f"a {ref} object cannot be saved: {reason or 'it holds more than its fields'}",
            hint=instead_of_saving(ref)
            or f"Register it with holdfast.register({short}, dump=…, load=…), or save its data instead",
        )
    return plan


_SEND = "langgraph.types:Send"  # has only slots, but does not declare them as data
_DATA_MARKS = ("__pydantic_fields_set__", "__fields_set__", "__dataclass_fields__", "__attrs_attrs__")


def _is_data(cls: type) -> bool:
    # By identity: comparing or hashing a class may call its metaclass.
    if class_lookup.reference(cls) == _SEND or any(
        base is enum.Enum or base is BaseException or base is tuple for base in class_lookup.mro(cls)
    ):
        return True
    return any(class_lookup.lookup(cls, mark) is not None for mark in _DATA_MARKS)


def _build_plan(cls: type, ref: str) -> ObjectPlan | None:
    kinds = class_lookup.mro(cls)
    if enum.Enum in kinds:
        return EnumPlan(cls, ref)
    if BaseException in kinds:
        return ExceptionPlan(cls, ref)
    if tuple in kinds:
        return NamedTuplePlan(cls, ref) if type(class_lookup.lookup(cls, "_fields")) is tuple else None
    if not class_lookup.is_plain_object(cls):
        return None
    if class_lookup.lookup(cls, "__pydantic_fields_set__") is not None:
        return PydanticPlan(cls, ref, Tag.PYDANTIC, _pydantic_defaults(class_lookup.lookup(cls, "__pydantic_fields__")))
    if class_lookup.lookup(cls, "__fields_set__") is not None and type(class_lookup.lookup(cls, "__fields__")) is dict:
        return PydanticPlan(cls, ref, Tag.PYDANTIC_V1, _pydantic_v1_defaults(class_lookup.lookup(cls, "__fields__")))
    if class_lookup.lookup(cls, "__dataclass_fields__") is not None:
        tag, defaults = Tag.DATACLASS, _dataclass_defaults(cls)
    elif class_lookup.lookup(cls, "__attrs_attrs__") is not None:
        tag, defaults = Tag.ATTRS, _attrs_defaults(class_lookup.lookup(cls, "__attrs_attrs__"))
    elif ref == _SEND:
        tag, defaults = Tag.DATACLASS, dict.fromkeys(class_lookup.lookup(cls, "__slots__"), lambda: None)
    else:
        return None
    name = class_lookup.find_descriptor(cls, tuple(defaults))
    if name:
        raise UnsupportedError(
            f"a {ref} object cannot be saved: setting its field {name!r} runs a descriptor",
            hint="Register it with holdfast.register(…)",
        )
    return FieldsPlan(cls, ref, tag, defaults)


def _dataclass_defaults(cls: type) -> dict[str, Callable[[], Any] | None]:
    declared = class_lookup.lookup(cls, "__dataclass_fields__").values()
    field = _field_type()
    return {
        f.name: _default(f.default, f.default_factory, dataclasses.MISSING) for f in declared if f._field_type is field
    }


@functools.cache
def _field_type() -> object:
    """Return what distinguishes a field from a `ClassVar` and an `InitVar`."""
    (field,) = dataclasses.fields(dataclasses.make_dataclass("_", ["a"]))
    return field._field_type  # type: ignore[attr-defined]


def _attrs_defaults(attributes: Any) -> dict[str, Callable[[], Any] | None]:
    attr = sys.modules["attr"]
    defaults = {}
    for attribute in attributes:
        has_factory = type(attribute.default) is attr.Factory
        factory = attribute.default.factory if has_factory and not attribute.default.takes_self else None
        static = attr.NOTHING if has_factory else attribute.default
        defaults[attribute.name] = _default(static, factory, attr.NOTHING)
    return defaults


def _pydantic_defaults(fields: dict[str, Any]) -> dict[str, Callable[[], Any] | None]:
    undefined = sys.modules["pydantic_core"].PydanticUndefined
    return {name: _default(f.default, f.default_factory, undefined) for name, f in fields.items()}


def _pydantic_v1_defaults(fields: dict[str, Any]) -> dict[str, Callable[[], Any] | None]:
    return {
        name: None if f.required and f.default is None else _default(f.default, f.default_factory, _NO_DEFAULT)
        for name, f in fields.items()
    }
