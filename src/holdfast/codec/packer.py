"""Values to bytes.

The same value gives the same bytes in every process: dicts keep their order, sets are sorted by the encoding of
their items, every number has one form. Nothing is guessed: a value whose exact type is not known is an error.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from msgspec.msgpack import Ext

from holdfast.codec import bulk_packing, class_lookup, msgpack
from holdfast.codec.bulk_packing import BATCH, NOT_NATIVE, NUMBERS, SCALARS, encode, encode_batch
from holdfast.codec.known_classes import KNOWN_CLASS_NUMBERS
from holdfast.codec.object_plan import ObjectPlan
from holdfast.codec.object_plans import PydanticPlan, plan_for
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.registry import Registration, Registry
from holdfast.codec.stdlib_types import KINDS
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import Dumper, Packing
from holdfast.errors import CircularReferenceError, HoldfastError, TooDeepError, TooLargeError, UnsupportedError

_ARRAY_LIBRARIES = ("numpy", "pandas")
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType)

MAX_VALUES = 1 << 24
"""How many values one value may hold: a bound on the time that parts used many times over can take."""

_CONTAINER = 8
"""How many values a container or typed value counts for: what it takes to look at one."""

_SPLIT = "Split it, or keep it as an artifact beside the state"


class Packer:
    """One packing: what is left of the size limit, and how deep it is."""

    __slots__ = ("_left", "_max_bytes", "_nesting", "_registry", "_room")

    def __init__(self, registry: Registry, max_bytes: int, nesting: int = 0) -> None:
        self._registry = registry
        self._max_bytes = self._room = max_bytes
        self._left = MAX_VALUES
        self._nesting = nesting

    def pack_top(self, value: Any) -> bytes:
        """The value as bytes that stand on their own. Errors do not know the path yet: `locate` finds it."""
        self._room, self._left = self._max_bytes, MAX_VALUES
        packed = msgpack.top(self.pack(value))
        if len(packed) > self._max_bytes:
            raise _too_large(len(packed), self._max_bytes)
        return packed

    def pack_batch(self, values: list[Any]) -> list[bytes]:
        """The same for many values, each of which may be as large as one value may be.

        Proving that values are plain takes longer than encoding them, so it is done for many at once, with no
        Python code per value, by asking the garbage collector what refers to what.
        """
        packed: list[bytes] = []
        for start in range(0, len(values), BATCH):
            part = values[start : start + BATCH]
            batch = encode_batch(part, self._max_bytes)
            if batch is None or max(map(len, batch)) > self._max_bytes:
                packed += map(self.pack_top, part)
            else:
                packed += batch
        return packed

    def pack(self, value: Any) -> bytes:
        """The value as bytes, as they stand inside other packed bytes."""
        kind = type(value)
        if kind is list or kind is dict:
            room, left = self._room, self._left
            try:
                return encode(self._private(value, 1, careful=False))
            except NOT_NATIVE:
                self._room, self._left = room, left
                return encode(self._private(value, 1, careful=True))
        if kind in SCALARS:
            if kind is str or kind is bytes:
                self.spend(len(value))
            try:
                return encode(value)
            except NOT_NATIVE:
                pass
        return msgpack.ext(*self._typed(value))

    def _private(self, value: Any, depth: int, *, careful: bool) -> Any:
        """The same list or dict in containers of our own, with all that msgpack has no form for replaced by an ext.

        Our own, so that what is encoded is what was looked at: another thread may change the user's in between. Being
        `careful` is looking at each string and integer too; without it the encoder raises for those it can not write.
        """
        if depth > msgpack.MAX_DEPTH:
            raise TooDeepError(f"lists and dicts are nested more than {msgpack.MAX_DEPTH} deep")
        own: Any = value.copy()
        places: Any
        if type(own) is dict:
            if not SCALARS.issuperset(map(type, own)) or (careful and not all(map(_is_native, own))):
                return self._ext(own)
            self.spend(sum(len(key) for key in own if type(key) is str or type(key) is bytes))
            places = own.items()
        else:
            places = enumerate(own)
        self._count(len(own) + _CONTAINER)
        self.spend(len(own))
        if not careful and len(own) > 16 and NUMBERS.issuperset(map(type, own.values() if type(own) is dict else own)):
            return own
        weight = 0
        for place, item in places:
            kind = type(item)
            if kind is str or kind is bytes:
                weight += len(item)
                if careful and not _is_native(item):
                    own[place] = self._ext(item)
            elif kind is dict or kind is list:
                own[place] = self._private(item, depth + 1, careful=careful) if item else kind()
            elif kind not in NUMBERS or (careful and not _is_native(item)):
                own[place] = self._ext(item)
        self.spend(weight)
        return own

    def _ext(self, value: Any) -> Ext:
        tag, payload = self._typed(value)
        return Ext(int(tag), payload)

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise TooLargeError(f"the value holds more than {MAX_VALUES} values", hint=_SPLIT)

    def spend(self, weight: int) -> None:
        """Count bytes that are about to be packed against the limit."""
        self._room -= weight
        if self._room < 0:
            raise _too_large(self._max_bytes - self._room, self._max_bytes)

    def _typed(self, value: Any) -> tuple[int, bytes]:
        """Tag and payload of a value that msgpack has no form for."""
        kind = type(value)
        dump = _BUILT_IN.get(kind)
        if dump is None:
            dump = self._dumper(kind, value)
        if self._nesting >= msgpack.MAX_NESTING:
            raise TooDeepError(f"typed values are nested more than {msgpack.MAX_NESTING} deep")
        self._count(_CONTAINER)
        self._nesting += 1
        result = dump(self, value)
        self._nesting -= 1
        return result

    def _dumper(self, kind: type, value: Any) -> Dumper:
        registration = self._registry.registration(kind)
        if registration is not None:
            return lambda packer, obj: _dump_registered(packer, registration, obj)
        if kind is OpaqueValue:
            return _dump_inert
        if issubclass(kind, _CODE):
            name = self._registry.name_of(value)
            return lambda packer, _: (Tag.REFERENCE, packer.pack(name))
        found = _LEARNED.get(kind)
        if found is None:
            found = _LEARNED[kind] = _learn(kind)
        return found


def _is_native(value: Any) -> bool:
    """Whether msgpack has a form for just this integer, string or other scalar."""
    if type(value) is int:
        return -(1 << 63) <= value < 1 << 64
    return type(value) is not str or value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _too_large(size: int, limit: int) -> TooLargeError:
    what = f"the value takes at least {size:,} bytes, and the limit is {limit:,}"
    return TooLargeError(what, hint=f"{_SPLIT}, or raise Limits.max_bytes")


def _dump_inert(_: Packing, value: OpaqueValue) -> tuple[int, bytes]:
    return value.tag, value.data


def _dump_registered(packer: Packing, registration: Registration, value: Any) -> tuple[int, bytes]:
    try:
        dumped = registration.dump(value)
    except Exception as error:
        raise UnsupportedError(
            f"the dump function registered for {registration.name} failed: {type(error).__name__}: {error}",
            hint="It must return something the codec supports",
        ) from error
    return Tag.REGISTERED, packer.pack([registration.name, dumped])


def _built_in(tag: Tag, dump: Callable[[Packing, Any], bytes]) -> Dumper:
    return lambda packer, value: (tag, dump(packer, value))


_BUILT_IN: dict[type, Dumper] = {kind.type: _built_in(kind.tag, kind.dump) for kind in KINDS}
_LEARNED: weakref.WeakKeyDictionary[type, Dumper] = weakref.WeakKeyDictionary()
_PLANS: weakref.WeakKeyDictionary[type, ObjectPlan] = weakref.WeakKeyDictionary()


def _library(kind: type) -> str:
    return class_lookup.reference(kind).partition(":")[0].partition(".")[0]


def _learn(kind: type) -> Dumper:
    """How instances of a class met for the first time are packed."""
    if _library(kind) in _ARRAY_LIBRARIES:
        from holdfast.codec import array_types

        dump = array_types.dumper(kind)
        if dump is not None:
            return dump
    plan = _PLANS[kind] = plan_for(kind)
    shape = KNOWN_CLASS_NUMBERS.get((plan.ref, plan.names))
    if shape is None:
        return lambda packer, obj: (plan.tag, packer.pack(plan.dump(obj)))
    if isinstance(plan, PydanticPlan) and not plan.has_private:
        bulk_packing.SHAPED_MODELS[kind] = shape
        bulk_packing.SHAPED_COUNTS[kind] = len(plan.names)
        bulk_packing.SHAPED_FIELDS[kind] = frozenset(plan.names)

    def dump_shaped(packer: Packing, obj: Any) -> tuple[int, bytes]:
        _, fields, *rest = payload = plan.dump(obj)
        if any(rest[1:3]):  # extra fields, private attributes; which fields were set is not kept of a shape
            return plan.tag, packer.pack(payload)
        return Tag.SHAPED, packer.pack([None, shape, fields])

    return dump_shaped


# Where in a value packing failed ------------------------------------------------------------------------------

_MAX_PATH = 1000


def locate(value: Any, error: HoldfastError, registry: Registry, max_bytes: int) -> HoldfastError:
    """The same error, with the path to the innermost value that causes it.

    Only runs once packing has failed, by packing ever smaller parts, so that packing itself need not keep a path.
    """
    path = ""
    on_the_way: set[int] = set()
    for _ in range(_MAX_PATH):
        if id(value) in on_the_way:
            hint = "Save an id instead of the object"
            return CircularReferenceError("a value contains itself", where=_tidy(path), hint=hint)
        on_the_way.add(id(value))
        if isinstance(error, TooLargeError) and path:
            break
        found = _failing_child(value, error, registry, max_bytes)
        if found is None:
            break
        segment, value, error = found
        path += segment
    return type(error)(error.what, where=_tidy(path), hint=error.hint, code=error.code)


def _failing_child(
    value: Any, error: HoldfastError, registry: Registry, max_bytes: int
) -> tuple[str, Any, HoldfastError] | None:
    # What is too large may well be so because it has too many parts to look at.
    limit = 1000 if isinstance(error, TooLargeError) else None
    children = islice(_children(value), limit)
    while True:
        try:
            segment, child = next(children)
        except (StopIteration, HoldfastError):
            return None  # no part alone fails, or taking it apart is what fails
        try:
            Packer(registry, max_bytes).pack(child)
        except HoldfastError as inner:
            return segment, child, inner


def _tidy(path: str) -> str:
    path = path.removeprefix(".") or "the value itself"
    return path if len(path) <= 300 else f"{path[:200]} … {path[-80:]}"


def _shown(key: Any) -> str:
    try:
        return repr(key)[:80]
    except Exception:  # noqa: BLE001 - it is the application's `__repr__`, and there is an error to report already
        return f"<{type(key).__name__}>"


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        for key, item in list(value.items()):
            yield f"[the key {_shown(key)}]", key
            yield f".{key}" if type(key) is str and key.isidentifier() else f"[{_shown(key)}]", item
    elif kind in (set, frozenset):
        for item in list(value):
            yield f"[the item {_shown(item)}]", item
    elif _PLANS.get(kind) is not None:
        yield from _PLANS[kind].children(value)
    elif issubclass(kind, list | tuple | deque):
        for i, item in enumerate(list(value)):
            yield f"[{i}]", item
    elif _library(kind) in _ARRAY_LIBRARIES:
        from holdfast.codec import array_types

        yield from array_types.children(value)
