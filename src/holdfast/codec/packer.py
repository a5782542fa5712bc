"""Packing of values into bytes.

The same value has the same bytes in every process: dicts are stored in order, sets sorted by the encoding of their
items, and every number has one form. Nothing is guessed: a value of an unknown type is an error.
"""

from __future__ import annotations

import enum
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, cast

from msgspec.msgpack import Ext

from holdfast.codec import bulk_packing, class_lookup, msgpack
from holdfast.codec.bulk_packing import NOT_NATIVE, NUMBERS, SCALARS, encode
from holdfast.codec.object_plans import ObjectPlan, PydanticPlan, plan_for
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.registry import ARRAY_LIBRARIES, Registration, Registry, import_array_types
from holdfast.codec.stdlib_types import STDLIB_TYPES
from holdfast.codec.tags import KNOWN_CLASS_NUMBERS, Tag
from holdfast.codec.type_handler import Dumper, Packing
from holdfast.errors import CircularReferenceError, HoldfastError, TooDeepError, TooLargeError, UnsupportedError

_CODE = (type, FunctionType, BuiltinFunctionType, MethodType)

MAX_VALUES = 1 << 24
"""How many values one value may contain: bounds the time for parts that are referenced many times."""

_CONTAINER_COST = 8
"""How many values a container or typed value counts for."""

_HINT = "Split it, or save it as an artifact"


class Packer:
    """Packs one value at a time: counts against the limits, and how deeply typed values are nested.

    If `lenient`, it also packs values of which not everything can be read back; see `Codec`.
    """

    __slots__ = ("_bytes_left", "_lenient", "_max_bytes", "_nesting", "_registry", "_values_left")

    def __init__(self, registry: Registry, max_bytes: int, nesting: int = 0, *, lenient: bool = False) -> None:
        self._registry = registry
        self._lenient = lenient
        self._max_bytes = self._bytes_left = max_bytes
        self._values_left = MAX_VALUES
        self._nesting = nesting

    def pack_top(self, value: Any) -> bytes:
        """Pack a value on its own. Errors have no path yet: `locate` finds it."""
        self._bytes_left, self._values_left = self._max_bytes, MAX_VALUES
        packed = msgpack.top(self.pack(value))
        if len(packed) > self._max_bytes:
            raise _too_large(len(packed), self._max_bytes)
        return packed

    def pack(self, value: Any) -> bytes:
        """Pack a value that is part of another."""
        kind = type(value)
        if kind is list or kind is dict:
            limits = self._bytes_left, self._values_left
            try:
                return encode(self._copy(value, 1, careful=False))
            except NOT_NATIVE:
                self._bytes_left, self._values_left = limits
                return encode(self._copy(value, 1, careful=True))
        if kind in SCALARS:
            if kind is str or kind is bytes:
                self.spend(len(value))
            try:
                return encode(value)
            except NOT_NATIVE:
                pass
        elif (builtin := self._as_builtin(value)) is not None:
            return self.pack(builtin)
        return msgpack.ext(*self._typed(value))

    def _copy(self, value: Any, depth: int, *, careful: bool) -> Any:
        """Copy a list or dict, with every value that msgpack cannot represent replaced by an ext.

        It is a copy so that another thread cannot change what was checked before it is encoded. If `careful`, strings
        and integers are checked too; otherwise the encoder raises for those it cannot write.
        """
        if depth > msgpack.MAX_DEPTH:
            raise TooDeepError(f"lists and dicts are nested more than {msgpack.MAX_DEPTH} deep")
        own: Any = value.copy()
        items: Any
        if type(own) is dict:
            if not SCALARS.issuperset(map(type, own)):
                own = {self._as_key(key): item for key, item in own.items()}
            if not SCALARS.issuperset(map(type, own)) or (careful and not all(map(_is_native, own))):
                return self._ext(own)
            self.spend(sum(len(key) for key in own if type(key) is str or type(key) is bytes))
            items = own.items()
        else:
            items = enumerate(own)
        self._count(len(own) + _CONTAINER_COST)
        self.spend(len(own))
        if not careful and len(own) > 16 and NUMBERS.issuperset(map(type, own.values() if type(own) is dict else own)):
            return own
        weight = 0
        for key, item in items:
            kind = type(item)
            if kind is str or kind is bytes:
                weight += len(item)
                if careful and not _is_native(item):
                    own[key] = self._ext(item)
            elif kind is dict or kind is list:
                own[key] = self._copy(item, depth + 1, careful=careful) if item else kind()
            elif kind not in NUMBERS or (careful and not _is_native(item)):
                own[key] = self._other(item, depth, careful=careful)
        self.spend(weight)
        return own

    def _other(self, value: Any, depth: int, *, careful: bool) -> Any:
        """Return what stands for a value of none of msgpack's kinds: an ext, or the built-in value that it is."""
        builtin = self._as_builtin(value)
        if builtin is None:
            return self._ext(value)
        kind = type(builtin)
        if kind is list or kind is dict:
            return self._copy(builtin, depth + 1, careful=careful)
        if kind is str or kind is bytes:
            self.spend(len(builtin))
        return self._ext(builtin) if careful and not _is_native(builtin) else builtin

    def _as_builtin(self, value: Any) -> Any:
        """Return the built-in value that an instance of a subclass of it is; None if it must be packed otherwise."""
        kind = type(value)
        if kind in _STDLIB_DUMPERS or (convert := _conversion(kind)) is None:
            return None
        if self._registry.registration(kind) is not None or _has_attributes(value):
            return None
        if class_lookup.reference(kind) != _TEXT_ACCESSOR:
            if not self._lenient:
                return None
            base = type(builtin := convert(value)).__name__
            _warn_once(kind, f"instances are saved, and read, as {base}")
            return builtin
        return convert(value)

    def _as_key(self, key: Any) -> Any:
        builtin = None if type(key) in SCALARS else self._as_builtin(key)
        return key if builtin is None else builtin

    def _ext(self, value: Any) -> Ext:
        tag, payload = self._typed(value)
        return Ext(int(tag), payload)

    def _count(self, values: int) -> None:
        self._values_left -= values
        if self._values_left < 0:
            raise TooLargeError(f"the value holds more than {MAX_VALUES} values", hint=_HINT)

    def spend(self, weight: int) -> None:
        """Count bytes that are about to be packed against the limit."""
        self._bytes_left -= weight
        if self._bytes_left < 0:
            raise _too_large(self._max_bytes - self._bytes_left, self._max_bytes)

    def _typed(self, value: Any) -> tuple[int, bytes]:
        """Return the tag and payload of a value that msgpack cannot represent."""
        kind = type(value)
        dump = _STDLIB_DUMPERS.get(kind)
        if dump is None:
            dump = self._dumper(kind, value)
        if self._nesting >= msgpack.MAX_NESTING:
            raise TooDeepError(f"typed values are nested more than {msgpack.MAX_NESTING} deep")
        self._count(_CONTAINER_COST)
        self._nesting += 1
        result = dump(self, value)
        self._nesting -= 1
        return result

    def _dumper(self, kind: type, value: Any) -> Dumper:
        registration = self._registry.registration(kind)
        if registration is not None:
            return lambda packer, obj: _dump_registered(packer, registration, obj)
        if kind is OpaqueValue:
            return lambda _, opaque: (opaque.tag, opaque.data)
        if issubclass(kind, _CODE):
            name = self._registry.name_of(value)
            return lambda packer, _: (Tag.REFERENCE, packer.pack(name))
        dump = _DUMPERS.get(kind)
        if dump is None:
            if self._lenient and class_lookup.is_unnamed(kind) and _library(kind) not in ARRAY_LIBRARIES:
                return _dump_unnamed
            dump = _DUMPERS[kind] = _find_dumper(kind)
        return dump


def _is_native(value: Any) -> bool:
    """Whether msgpack can represent this scalar."""
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 64
    return type(value) is not str or value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _too_large(size: int, limit: int) -> TooLargeError:
    what = f"the value takes at least {size:,} bytes, and the limit is {limit:,}"
    return TooLargeError(what, hint=f"{_HINT}, or raise max_bytes of the codec")


def _dump_unnamed(packer: Packing, value: Any) -> tuple[int, bytes]:
    from holdfast.codec import unnamed_classes  # few need it

    kind = type(value)
    plan = unnamed_classes.remember(kind)
    _warn_once(
        kind,
        "the class cannot be found by its name, so that its instances can be read only by this process, and by others"
        " as OpaqueValue, with their fields; define it at the top of a module",
    )
    return plan.tag, packer.pack(plan.dump(value))


def _dump_registered(packer: Packing, registration: Registration, value: Any) -> tuple[int, bytes]:
    try:
        dumped = registration.dump(value)
    except Exception as error:
        raise UnsupportedError(
            f"the dump function registered for {registration.name} failed: {type(error).__name__}: {error}",
            hint="It must return something the codec supports",
        ) from error
    return Tag.REGISTERED, packer.pack([registration.name, dumped])


def _with_tag(tag: Tag, dump: Callable[[Packing, Any], bytes]) -> Dumper:
    return lambda packer, value: (tag, dump(packer, value))


_STDLIB_DUMPERS: dict[type | str, Dumper] = {
    handler.type: _with_tag(handler.tag, handler.dump) for handler in STDLIB_TYPES
}
_DUMPERS: weakref.WeakKeyDictionary[type, Dumper] = weakref.WeakKeyDictionary()
_PLANS: weakref.WeakKeyDictionary[type, ObjectPlan] = weakref.WeakKeyDictionary()


def _library(kind: type) -> str:
    return class_lookup.reference(kind).partition(":")[0].partition(".")[0]


def _find_dumper(kind: type) -> Dumper:
    name = class_lookup.reference(kind)
    dump = _STDLIB_DUMPERS.get(name)
    if dump is not None and class_lookup.find_loaded(name) is kind:
        _STDLIB_DUMPERS[kind] = dump
        return dump
    library = _library(kind)
    if library in ARRAY_LIBRARIES:
        dump = cast("Dumper | None", import_array_types(library).dumper(kind))
        if dump is not None:
            return dump
    plan = _PLANS[kind] = plan_for(kind)
    number = KNOWN_CLASS_NUMBERS.get((plan.ref, plan.names))
    if number is None:
        return lambda packer, obj: (plan.tag, packer.pack(plan.dump(obj)))
    if isinstance(plan, PydanticPlan) and not plan.has_private:
        bulk_packing.MODEL_NUMBERS[kind] = number
        bulk_packing.MODEL_FIELDS[kind] = frozenset(plan.names)

    def dump_known(packer: Packing, obj: Any) -> tuple[int, bytes]:
        _, fields, *rest = payload = plan.dump(obj)
        if any(rest[1:3]):  # extra fields or private attributes
            return plan.tag, packer.pack(payload)
        return Tag.SHAPED, packer.pack([None, number, fields])

    return dump_known


# The path to an error ---------------------------------------------------------------------------------------

_MAX_PATH = 1000


def locate(
    value: Any, error: HoldfastError, registry: Registry, max_bytes: int, *, lenient: bool = False
) -> HoldfastError:
    """Return the error with the path to the innermost value that causes it.

    Packs smaller and smaller parts after an error, so that packing itself need not track the path.
    """
    path = ""
    ancestors: set[int] = set()
    for _ in range(_MAX_PATH):
        if id(value) in ancestors:
            hint = "Save an id instead of the object"
            return CircularReferenceError("a value contains itself", where=_short(path), hint=hint)
        ancestors.add(id(value))
        if isinstance(error, TooLargeError) and path:
            break
        child = _failing_child(value, error, lambda: Packer(registry, max_bytes, lenient=lenient))
        if child is None:
            break
        segment, value, error = child
        path += segment
    return type(error)(error.what, where=_short(path), hint=error.hint, code=error.code)


def _failing_child(
    value: Any, error: HoldfastError, packer: Callable[[], Packer]
) -> tuple[str, Any, HoldfastError] | None:
    # A value may be too large because it has too many parts to try them all.
    limit = 1000 if isinstance(error, TooLargeError) else None
    children = islice(_children(value), limit)
    while True:
        try:
            segment, child = next(children)
        except (StopIteration, HoldfastError):
            return None  # no single part fails, or taking the value apart fails
        try:
            packer().pack(child)
        except HoldfastError as inner:
            return segment, child, inner


def _short(path: str) -> str:
    path = path.removeprefix(".") or "the value itself"
    return path if len(path) <= 300 else f"{path[:200]} … {path[-80:]}"


def _key_text(key: Any) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # noqa: BLE001 - the application's `__repr__` may raise anything
        return f"<{type(key).__name__}>"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    from holdfast.codec import unnamed_classes

    kind = type(value)
    if issubclass(kind, dict):
        for key, item in list(value.items()):
            yield f"[the key {_key_text(key)}]", key
            yield f".{key}" if type(key) is str and key.isidentifier() else f"[{_key_text(key)}]", item
    elif kind in (set, frozenset):
        for item in list(value):
            yield f"[the item {_key_text(item)}]", item
    elif (plan := _PLANS.get(kind) or unnamed_classes.plan_of(kind)) is not None:
        yield from plan.children(value)
    elif issubclass(kind, list | tuple | deque):
        for i, item in enumerate(list(value)):
            yield f"[{i}]", item
    elif (library := _library(kind)) in ARRAY_LIBRARIES:
        yield from import_array_types(library).children(value)


# Subclasses of built-in types that add nothing to them, and are saved as the built-in value --------------------

# They return the built-in value itself, whatever the subclass overrides.
_CONVERSIONS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes.__bytes__,
    list: list.copy,
    dict: dict.copy,
}
_OTHERS: tuple[object, ...] = (
    enum.Enum,
    *(handler.type for handler in STDLIB_TYPES if handler.type not in _CONVERSIONS),
)
"""Classes whose subclasses are more than a built-in value."""

_TEXT_ACCESSOR = "langchain_core.messages.base:TextAccessor"
"""The class of `message.text`: text that may also be called, as in older versions."""

_conversions: weakref.WeakKeyDictionary[type, Callable[[Any], Any] | None] = weakref.WeakKeyDictionary()
_warned: weakref.WeakSet[type] = weakref.WeakSet()


def _conversion(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that converts instances of a subclass to the built-in value; None if it is no such class."""
    try:
        return _conversions[kind]
    except KeyError:
        _conversions[kind] = found = _find_conversion(kind)
        return found


def _find_conversion(kind: type) -> Callable[[Any], Any] | None:
    kinds = class_lookup.mro(kind)
    library = class_lookup.reference(kind).partition(":")[0].partition(".")[0]
    if library in ARRAY_LIBRARIES or any(base is other for base in kinds for other in _OTHERS):
        return None
    return next((_CONVERSIONS[base] for base in kinds if base in _CONVERSIONS), None)


def _has_attributes(value: object) -> bool:
    """Whether an instance of a subclass has attributes, which the built-in value would not have."""
    kind = type(value)
    if class_lookup.lookup(kind, "__dict__") is not None and object.__getattribute__(value, "__dict__"):
        return True
    for name in class_lookup.extra_slots(kind, ()):
        try:
            object.__getattribute__(value, name)
        except AttributeError:
            continue
        return True
    return False


def _warn_once(kind: type, message: str) -> None:
    """Warn about the values of a class, once in a process."""
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(f"{class_lookup.reference(kind)}: {message}", UserWarning, stacklevel=2)
