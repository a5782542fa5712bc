"""Exceptions as values, made again from the built-in part of their class: no `__init__` of their own is called."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, final

from holdfast.codec import class_lookup
from holdfast.codec.object_plan import ClassMismatch, ObjectPlan, has_slot, stray
from holdfast.codec.tags import Tag
from holdfast.errors import UnsupportedError

# What every exception has, kept in other ways or not at all; and what a group of them makes of its arguments.
_OF_ALL_EXCEPTIONS = frozenset(vars(BaseException)) | {"message", "exceptions"}


@final
class ExceptionPlan(ObjectPlan):
    """Exceptions: arguments, attributes, notes, cause and context. The traceback is not state and is left out."""

    tag = Tag.EXCEPTION

    def __init__(self, cls: type, ref: str) -> None:
        super().__init__(cls, ref)
        # Only the built-in part of the class is constructed; an `__init__` of the application is not called.
        self._native: Any = next(base for base in class_lookup.mro(cls) if base in _BUILT_IN_EXCEPTIONS)
        # Attributes that built-in exceptions keep outside of `args` and `__dict__`, such as OSError's `errno`.
        self._members = {
            name: member
            for base in reversed(class_lookup.mro(self._native))
            for name, member in class_lookup.class_dict(base).items()
            if type(member) in (MemberDescriptorType, GetSetDescriptorType) and name not in _OF_ALL_EXCEPTIONS
        }
        self._strays = class_lookup.stray_slots(cls, {*self._members, *_OF_ALL_EXCEPTIONS})

    def _make(self, args: list[Any]) -> Any:
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
            again = self._make(args)
        except ClassMismatch:
            raise UnsupportedError(
                f"a {self.ref} can not be made again from its arguments",
                hint="Save its text, or register the class",
            ) from None
        native = {}
        for name, member in self._members.items():
            value = _read(member, obj)
            if value is not _read(member, again):
                native[name] = value
        if native:
            parts["native"] = native
        for name in self._strays:
            if has_slot(obj, name):
                raise stray(self.ref, name)
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
            raise ValueError("an exception's parts are not what they should be")
        obj = self._make(args)
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
    thing for thing in vars(builtins).values() if isinstance(thing, type) and issubclass(thing, BaseException)
)
_ARGS = vars(BaseException)["args"].__get__
_LINKS = {"cause": vars(BaseException)["__cause__"], "context": vars(BaseException)["__context__"]}
_SUPPRESS = vars(BaseException)["__suppress_context__"]


def _read(member: Any, obj: Any) -> Any:
    try:
        return member.__get__(obj)
    except AttributeError:
        return None
