"""How instances of an application's classes are taken apart and put together again.

One plan per class, made once and kept. A plan's payload starts with the class's name; `load` sets fields and
calls nothing of the application. Where the class of today does not fit the stored fields, `load` raises `ClassMismatch`
and the value stays inert.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, final

from holdfast.codec import class_lookup
from holdfast.codec.exception_types import ExceptionPlan
from holdfast.codec.object_plan import ClassMismatch, ObjectPlan, has_slot, stray
from holdfast.codec.tags import Tag
from holdfast.errors import UnsupportedError

_NO_DEFAULT = object()
_PLAIN_FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)
_CONTAINERS = (list, dict, set)
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


def _default(static: Any, factory: Any, missing: object) -> Callable[[], Any] | None:
    """How to fill a field that was added to a class after the value was stored; None where that is unknown.

    Nothing of the application is called: a factory counts only if it is one of Python's own, and a default that
    could be changed is copied only if there is nothing but plain values in it.
    """
    if factory is not None and factory is not missing:
        return next((plain for plain in _PLAIN_FACTORIES if plain is factory), None)
    if static is missing:
        return None
    if type(static) not in _CONTAINERS:
        return lambda: static
    parts = [*static, *(static.values() if type(static) is dict else ())]
    return static.copy if _PLAIN.issuperset(map(type, parts)) else None


_put = object.__setattr__


class _DeclaredPlan(ObjectPlan):
    """For classes that declare their fields, some with a default."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref)
        self.tag = tag
        self.names = tuple(defaults)
        self._known = frozenset(defaults)
        self._defaults = defaults
        self._strays: tuple[str, ...] = ()

    def _check_strays(self, own: dict[str, Any]) -> None:
        """Refuse an object that has attributes which are not fields, and would be lost."""
        for name in own.keys() - self._known:
            if type(class_lookup.lookup(self.cls, name)) is not functools.cached_property:
                raise stray(self.ref, name)

    def _check_slots(self, obj: Any) -> None:
        for name in self._strays:
            if has_slot(obj, name):
                raise stray(self.ref, name)

    def _fill(self, fields: dict[str, Any]) -> None:
        """Give fields that the class gained since their default; `ClassMismatch` where it lost one or has no
        default."""
        if fields.keys() - self._known:
            raise ClassMismatch
        for name, make in self._defaults.items():
            if name not in fields:
                if make is None:
                    raise ClassMismatch
                fields[name] = make()


@final
class FieldsPlan(_DeclaredPlan):
    """Dataclasses, attrs classes and plain slotted ones: a name and a value for each field."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref, tag, defaults)
        self._has_dict = class_lookup.lookup(cls, "__dict__") is not None
        self._has_slots = any(type(class_lookup.lookup(cls, name)) is MemberDescriptorType for name in defaults)
        self._strays = class_lookup.stray_slots(cls, defaults)

    def fields(self, obj: Any) -> dict[str, Any]:
        """The instance's fields, in the order the class declares them."""
        if self._has_dict:
            own: dict[str, Any] = object.__getattribute__(obj, "__dict__")
            if tuple(own) == self.names and not self._strays:
                return own
            self._check_strays(own)
        self._check_slots(obj)
        found = {}
        for name in self.names:
            try:
                found[name] = object.__getattribute__(obj, name)
            except AttributeError:
                raise _missing(self.ref, name) from None
        return found

    def dump(self, obj: Any) -> list[Any]:
        return [self.ref, self.fields(obj)]

    def load(self, parts: list[Any]) -> Any:
        fields: dict[str, Any] = parts[1]
        if fields.keys() != self._known:
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
    """Pydantic models, version 2 and version 1: fields, which of them were set, extra and private ones."""

    def __init__(self, cls: type, ref: str, tag: Tag, defaults: dict[str, Callable[[], Any] | None]) -> None:
        super().__init__(cls, ref, tag, defaults)
        self._v1 = tag is Tag.PYDANTIC_V1
        self._set_slot = "__fields_set__" if self._v1 else "__pydantic_fields_set__"
        private = class_lookup.lookup(cls, "__private_attributes__")
        self._private_names: tuple[str, ...] = tuple(private) if self._v1 and type(private) is dict else ()
        self._keeps_extra = not self._v1 and class_lookup.lookup(cls, "model_config").get("extra") == "allow"
        self.has_private = bool(private)
        # A RootModel declares that it never has extra fields or private attributes, and has no slots for them.
        self._has_slots = type(class_lookup.lookup(cls, "__pydantic_extra__")) is MemberDescriptorType
        self._strays = class_lookup.stray_slots(cls, {*defaults, *self._private_names, *_PYDANTIC_SLOTS})
        self._all = set(defaults)
        self.slots = None if self._v1 else _slots(cls)

    def state(self, obj: Any) -> tuple[dict[str, Any], set[str], dict[str, Any] | None, dict[str, Any] | None]:
        """Fields, names of the set ones, extra fields, private attributes."""
        self._check_slots(obj)
        own: dict[str, Any] = object.__getattribute__(obj, "__dict__")
        was_set: set[str] = object.__getattribute__(obj, self._set_slot)
        if self._v1:
            # Version 1 keeps extra fields among the fields, and private ones in slots.
            extra = {name: value for name, value in own.items() if name not in self._known} or None
            private = {n: object.__getattribute__(obj, n) for n in self._private_names if has_slot(obj, n)} or None
        else:
            extra = object.__getattribute__(obj, "__pydantic_extra__")
            private = object.__getattribute__(obj, "__pydantic_private__")
        if tuple(own) != self.names:
            if not self._v1:
                self._check_strays(own)
            for name in self.names:
                if name not in own:
                    raise _missing(self.ref, name)
            own = {name: own[name] for name in own if name in self._known}
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
        names = (*fields, *(_checked(extra) or ()))
        if type(mask) is not int or not 0 <= mask < 1 << len(names):
            raise ValueError("which fields were set is not known")
        was_set = {name for i, name in enumerate(names) if mask >> i & 1}
        for strangers in rest:
            if type(strangers) is not list or any(type(name) is not str for name in strangers):
                raise ValueError("which fields were set is not known")
            was_set.update(strangers)
        return self.make(fields, was_set, extra, _checked(private))

    def make(
        self, fields: dict[str, Any], was_set: set[str], extra: dict[str, Any] | None, private: dict[str, Any] | None
    ) -> Any:
        """An instance with exactly this inside."""
        if fields.keys() != self._known:
            self._fill(fields)
        obj: Any = object.__new__(self.cls)
        if self._v1:
            _put(obj, "__dict__", fields | (extra or {}))
            _put(obj, "__fields_set__", was_set)
            for name, value in (private or {}).items():
                if name not in self._private_names:
                    raise ClassMismatch
                _put(obj, name, value)
            return obj
        _put(obj, "__dict__", fields)
        _put(obj, "__pydantic_fields_set__", was_set)
        if self._has_slots:
            _put(obj, "__pydantic_extra__", extra)
            _put(obj, "__pydantic_private__", private)
        elif extra or private:
            raise ClassMismatch
        return obj

    def make_shaped(self, fields: dict[str, Any]) -> Any:
        """An instance with these fields, every one of them set, and nothing else.

        The same as `make`, spelled out for the most frequent values of all.
        """
        if type(fields) is not dict or (tuple(fields) != self.names and fields.keys() != self._all):
            raise ClassMismatch
        obj: Any = object.__new__(self.cls)
        _put(obj, "__dict__", fields)
        _put(obj, "__pydantic_fields_set__", self._all.copy())
        _put(obj, "__pydantic_extra__", {} if self._keeps_extra else None)
        _put(obj, "__pydantic_private__", None)
        return obj

    @staticmethod
    def fit(plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]) -> bool:
        """Whether `make_many` can make instances by these plans with these fields."""
        slots = plans[0].slots
        if slots is None or any(plan.slots != slots for plan in set(plans)):
            return False
        # Names that were decoded before are the same objects, which is quickly seen; once they are the right ones.
        names = {plan: tuple(found) for plan, found in dict(zip(plans, fields, strict=True)).items()}
        if any(found != plan.names for plan, found in names.items()):
            return False
        return list(map(tuple, fields)) == list(map(names.__getitem__, plans))

    @staticmethod
    def make_many(plans: Sequence[PydanticPlan], fields: Sequence[dict[str, Any]]) -> list[Any]:
        """The same as `make_shaped` for many that `fit`, each with its plan, with no Python code per instance."""
        made: list[Any] = list(map(object.__new__, [plan.cls for plan in plans]))
        set_dict, set_fields_set, set_extra, set_private = plans[0].slots or ()
        _each(map(set_dict, made, fields))
        _each(map(set_fields_set, made, [plan._all.copy() for plan in plans]))
        _each(map(set_extra, made, [{} if plan._keeps_extra else None for plan in plans]))
        _each(map(set_private, made, repeat(None)))
        return made

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        fields, _, extra, private = self.state(obj)
        for part in (fields, extra, private):
            for name, value in (part or {}).items():
                yield f".{name}", value


def _slots(cls: type) -> tuple[Callable[[Any, Any], None], ...] | None:
    """What sets the four parts of a model, if they are what pydantic's own class has; else None."""
    found = [class_lookup.lookup(cls, name) for name in ("__dict__", *_PYDANTIC_SLOTS[1:])]
    if {type(each) for each in found} - {MemberDescriptorType, GetSetDescriptorType}:
        return None
    return tuple(each.__set__ for each in found)


_each = deque[None](maxlen=0).extend
"""Goes through an iterator for what it does."""


def _checked(entries: Any) -> dict[str, Any] | None:
    """Extra fields or private attributes from stored parts: a dict by name, or None."""
    if entries is None or (type(entries) is dict and all(type(name) is str for name in entries)):
        return entries
    raise ValueError("the attributes of a model are not attributes")


def _missing(ref: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{ref} object has no value for its field {name!r}", hint="Give it one, or register the class"
    )


@final
class NamedTuplePlan(ObjectPlan):
    """Named tuples, typed or not."""

    tag = Tag.NAMEDTUPLE

    def __init__(self, cls: type, ref: str) -> None:
        super().__init__(cls, ref)
        self.names = class_lookup.lookup(cls, "_fields")

    def dump(self, obj: Any) -> list[Any]:
        if class_lookup.lookup(self.cls, "__dict__") is not None and object.__getattribute__(obj, "__dict__"):
            raise UnsupportedError(
                f"{self.ref} object has attributes besides its fields",
                hint="Register the class, so that they are kept too",
            )
        return [self.ref, dict(zip(self.names, tuple.__iter__(obj), strict=True))]

    def load(self, parts: list[Any]) -> Any:
        fields: dict[str, Any] = parts[1]
        if tuple(fields) != self.names:
            raise ClassMismatch
        return tuple.__new__(self.cls, fields.values())

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:
        return ((f".{name}", value) for name, value in zip(self.names, tuple.__iter__(obj), strict=True))


@final
class EnumPlan(ObjectPlan):
    """Enum members by name; combinations of flags by value."""

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
        if self._combines and self._is_known(obj._value_):
            return [self.ref, obj._value_]
        name: str = obj._name_
        if self._members.get(name) is not obj:
            raise UnsupportedError(f"{obj!r} is not a declared member of {self.ref}", hint="Register the class")
        return [self.ref, name]

    def _is_known(self, value: int) -> bool:
        """Whether a value combines declared flags. Python keeps every other value it is asked for, for good."""
        mask: int = class_lookup.lookup(self.cls, "_flag_mask_")
        return 0 <= value <= mask and not value & ~mask

    def load(self, parts: list[Any]) -> Any:
        if self._combines:
            if not self._is_known(parts[1]):
                raise ClassMismatch
            return self.cls(parts[1])  # the standard library's own look-up: `_missing_` was checked
        member = self._members.get(parts[1])
        if member is None:
            raise ClassMismatch
        return member

    def children(self, obj: Any) -> Iterator[tuple[str, Any]]:  # noqa: ARG002 - a member holds no other values
        return iter(())


def plan_for(cls: type) -> ObjectPlan:
    """The plan for a class, or `UnsupportedError` with the reason why it has none."""
    ref = class_lookup.reference(cls)
    reason = class_lookup.refusal(cls) if _is_data(cls) else "it is not a data class Holdfast knows how to keep"
    plan = None if reason else _make_plan(cls, ref)
    if plan is None:
        short = ref.rpartition(":")[2].rpartition(".")[2]
        raise UnsupportedError(
            f"a {ref} object can not be saved: {reason or 'its content is more than its fields'}",
            hint=f"Say how to keep it with holdfast.register({short}, dump=…, load=…), or save its data instead",
        )
    return plan


_SEND = "langgraph.types:Send"  # slots and no more, though not declared as data
_DATA_MARKS = ("__pydantic_fields_set__", "__fields_set__", "__dataclass_fields__", "__attrs_attrs__")


def _is_data(cls: type) -> bool:
    """Whether the class is of a kind that could be kept, if nothing else speaks against it."""
    # By identity: comparing or hashing a class may ask its metaclass.
    if class_lookup.reference(cls) == _SEND or any(
        base is enum.Enum or base is BaseException or base is tuple for base in class_lookup.mro(cls)
    ):
        return True
    return any(class_lookup.lookup(cls, mark) is not None for mark in _DATA_MARKS)


def _make_plan(cls: type, ref: str) -> ObjectPlan | None:
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
    name = class_lookup.intercepted(cls, tuple(defaults))
    if name:
        raise UnsupportedError(
            f"a {ref} object can not be saved: setting its field {name!r} runs a descriptor",
            hint="Say how to keep it with holdfast.register(…)",
        )
    return FieldsPlan(cls, ref, tag, defaults)


def _dataclass_defaults(cls: type) -> dict[str, Callable[[], Any] | None]:
    declared = class_lookup.lookup(cls, "__dataclass_fields__").values()
    return {
        f.name: _default(f.default, f.default_factory, dataclasses.MISSING) for f in declared if f._field_type is _FIELD
    }


_FIELD = next(iter(dataclasses.fields(dataclasses.make_dataclass("_", ["a"]))))._field_type  # type: ignore[attr-defined]


def _attrs_defaults(attributes: Any) -> dict[str, Callable[[], Any] | None]:
    attr = sys.modules["attr"]
    defaults = {}
    for attribute in attributes:
        made = type(attribute.default) is attr.Factory
        factory = attribute.default.factory if made and not attribute.default.takes_self else None
        static = attr.NOTHING if made else attribute.default
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
