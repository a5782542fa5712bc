"""Values to bytes.

The same value gives the same bytes in every process: dicts keep their order, sets are sorted by the encoding of
their items, every number has one form. Nothing is guessed: a value whose exact type is not known is an error.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from gc import get_referents
from itertools import islice, repeat
from operator import attrgetter, ne
from types import BuiltinFunctionType, FunctionType, MethodType, NoneType
from typing import Any

from msgspec.msgpack import Encoder, Ext

from holdfast.codec import wire
from holdfast.codec.inert import Inert
from holdfast.codec.kinds import Dumper, Packing
from holdfast.codec.plans import Plan, PydanticPlan, plan_for
from holdfast.codec.registry import Registration, Registry
from holdfast.codec.shapes import SHAPE_OF
from holdfast.codec.stdlib import KINDS
from holdfast.codec.tags import Tag
from holdfast.errors import CircularReference, HoldfastError, TooDeep, TooLarge, Unsupported

_encode = Encoder().encode

_SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
_NUMBERS = frozenset({int, float, bool, NoneType})
_PLAIN = _SCALARS | {list, dict}
_ARRAY_LIBRARIES = ("numpy", "pandas")
_CODE = (type, FunctionType, BuiltinFunctionType, MethodType)

# What the encoder raises for an integer over 64 bits and for a string that is not valid Unicode.
_NOT_NATIVE = (OverflowError, UnicodeEncodeError)

MAX_VALUES = 1 << 24
"""How many values one value may hold: a bound on the time that parts used many times over can take."""

_SPLIT = "Split it, or keep it as an artifact beside the state"

_BATCH = 512
_MANY = 64 * _BATCH
"""How many values a batch may hold in all before its items are weighed one by one."""


class Packer:
    """One packing: what is left of the size limit, and how deep it is."""

    __slots__ = ("_left", "_nesting", "_registry", "_room")

    def __init__(self, registry: Registry, max_bytes: int, nesting: int = 0) -> None:
        self._registry = registry
        self._room = max_bytes
        self._left = MAX_VALUES
        self._nesting = nesting

    def pack_top(self, value: Any) -> bytes:
        """The value as bytes that stand on their own. Errors do not know the path yet: `locate` finds it."""
        return wire.top(self.pack(value))

    def pack_batch(self, values: list[Any]) -> list[bytes]:
        """The same for many values.

        Proving that values are plain takes longer than encoding them, so it is done for many at once, with no
        Python code per value, by asking the garbage collector what refers to what.
        """
        packed: list[bytes] = []
        for start in range(0, len(values), _BATCH):
            part = values[start : start + _BATCH]
            batch = _encode_batch(part)
            if batch is None:
                packed += map(self.pack_top, part)
            else:
                self.spend(sum(map(len, batch)))
                packed += batch
        return packed

    def pack(self, value: Any) -> bytes:
        """The value as bytes, as they stand inside other packed bytes."""
        kind = type(value)
        if kind is list or kind is dict:
            return self._pack_plain(value)
        if kind in _SCALARS:
            if kind is str or kind is bytes:
                self.spend(len(value))
            try:
                return _encode(value)
            except _NOT_NATIVE:
                pass
        return wire.ext(*self._typed(value))

    def _pack_plain(self, value: list[Any] | dict[Any, Any]) -> bytes:
        if self._is_plain(value, 1):
            try:
                return _encode(value)
            except _NOT_NATIVE:
                pass
        return _encode(self._rewrite(value))

    def _is_plain(self, value: list[Any] | dict[Any, Any], depth: int) -> bool:
        """Whether msgpack has a form for all of this. Weighs it, and looks at its depth, on the way.

        The encoder is handed plain containers only, so it never calls back into Python while it holds one: another
        thread can not change a container under its feet.
        """
        if depth > wire.MAX_DEPTH:
            raise TooDeep(f"lists and dicts are nested more than {wire.MAX_DEPTH} deep")
        plain = True
        weight = 0
        if type(value) is dict:
            items = list(value.values())
            plain = _SCALARS.issuperset(map(type, value))
            weight = sum(len(key) for key in value if type(key) is str or type(key) is bytes)
        else:
            items = value  # type: ignore[assignment]
        self._left -= len(items)
        if self._left < 0:
            raise TooLarge(f"the value holds more than {MAX_VALUES} values", hint=_SPLIT)
        self.spend(weight + len(items))
        if len(items) > 16 and _NUMBERS.issuperset(map(type, items)):
            return plain
        weight = 0
        for item in items:
            kind = type(item)
            if kind is str or kind is bytes:
                weight += len(item)
            elif kind is dict or kind is list:
                if item and not self._is_plain(item, depth + 1):
                    plain = False
            elif kind not in _NUMBERS:
                plain = False
        self.spend(weight)
        return plain

    def spend(self, weight: int) -> None:
        """Count bytes that are about to be packed against the limit."""
        self._room -= weight
        if self._room < 0:
            raise TooLarge("the value is larger than the size limit", hint=f"{_SPLIT}, or raise Limits.max_bytes")

    def _rewrite(self, value: Any) -> Any:
        """The same value in containers of our own, with everything msgpack does not know replaced by an ext."""
        kind = type(value)
        if kind is list:
            return [self._rewrite(item) for item in value]
        if kind is dict:
            pairs = list(value.items())
            if all(type(key) in _SCALARS and self._rewrite(key) is key for key, _ in pairs):
                return {key: self._rewrite(item) for key, item in pairs}
            return Ext(int(Tag.DICT), self.pack([part for pair in pairs for part in pair]))
        if kind is int:
            native = -(1 << 63) <= value < 1 << 64
        elif kind is str:
            native = value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
        else:
            native = kind in _SCALARS
        if native:
            return value
        tag, payload = self._typed(value)
        return Ext(int(tag), payload)

    def _typed(self, value: Any) -> tuple[int, bytes]:
        """Tag and payload of a value that msgpack has no form for."""
        kind = type(value)
        dump = _BUILT_IN.get(kind)
        if dump is None:
            dump = self._dumper(kind, value)
        if self._nesting >= wire.MAX_NESTING:
            raise TooDeep(f"typed values are nested more than {wire.MAX_NESTING} deep")
        self._nesting += 1
        result = dump(self, value)
        self._nesting -= 1
        return result

    def _dumper(self, kind: type, value: Any) -> Dumper:
        registration = self._registry.registration(kind)
        if registration is not None:
            return lambda packer, obj: _dump_registered(packer, registration, obj)
        if kind is Inert:
            return _dump_inert
        if issubclass(kind, _CODE):
            name = self._registry.name_of(value)
            return lambda packer, _: (Tag.REFERENCE, packer.pack(name))
        found = _LEARNED.get(kind)
        if found is None:
            found = _LEARNED[kind] = _learn(kind)
        return found


def _dump_inert(_: Packing, value: Inert) -> tuple[int, bytes]:
    return value.tag, value.data


def _dump_registered(packer: Packing, registration: Registration, value: Any) -> tuple[int, bytes]:
    try:
        dumped = registration.dump(value)
    except Exception as error:
        raise Unsupported(
            f"the dump function registered for {registration.name} failed: {type(error).__name__}: {error}",
            hint="It must return something the codec supports",
        ) from error
    return Tag.REGISTERED, packer.pack([registration.name, dumped])


def _built_in(tag: Tag, dump: Callable[[Packing, Any], bytes]) -> Dumper:
    return lambda packer, value: (tag, dump(packer, value))


_BUILT_IN: dict[type, Dumper] = {kind.type: _built_in(kind.tag, kind.dump) for kind in KINDS}
_LEARNED: weakref.WeakKeyDictionary[type, Dumper] = weakref.WeakKeyDictionary()
_PLANS: weakref.WeakKeyDictionary[type, Plan] = weakref.WeakKeyDictionary()


def _learn(kind: type) -> Dumper:
    """How instances of a class met for the first time are packed."""
    if kind.__module__.partition(".")[0] in _ARRAY_LIBRARIES:
        from holdfast.codec import arrays

        dump = arrays.dumper(kind)
        if dump is not None:
            return dump
    plan = _PLANS[kind] = plan_for(kind)
    shape = SHAPE_OF.get((plan.ref, plan.names))
    if shape is None:
        return lambda packer, obj: (plan.tag, packer.pack(plan.dump(obj)))
    if isinstance(plan, PydanticPlan) and not plan.has_private:
        _SHAPED_MODELS[kind] = shape
        _SHAPED_COUNTS[kind] = len(plan.names)

    def dump_shaped(packer: Packing, obj: Any) -> tuple[int, bytes]:
        _, fields, *rest = payload = plan.dump(obj)
        if len(fields) != len(plan.names) or any(rest[1:]):  # extra fields, private attributes
            return plan.tag, packer.pack(payload)
        return Tag.SHAPED, packer.pack([None, shape, fields])

    return dump_shaped


# Many at once -------------------------------------------------------------------------------------------------

_SHAPED_MODELS: dict[type, int] = {}  # only classes of shapes.py come in here
_SHAPED_COUNTS: dict[type, int] = {}
_fields_of = attrgetter("__dict__")
_extra_of = attrgetter("__pydantic_extra__")


def _encode_batch(values: list[Any]) -> list[bytes] | None:
    """The values as bytes that stand on their own, if all of them are plain or all are messages; else None."""
    kinds = list(map(type, values))
    distinct = set(kinds)
    try:
        if distinct <= _SHAPED_MODELS.keys():
            fields = list(map(_fields_of, values))
            if (
                any(map(ne, map(len, fields), map(_SHAPED_COUNTS.__getitem__, kinds)))
                or any(map(_extra_of, values))
                or not _all_plain(get_referents(*fields))
            ):
                return None
            return list(map(_encode, zip(repeat(None), map(_SHAPED_MODELS.__getitem__, kinds), fields, strict=False)))
        if distinct <= _PLAIN and _all_plain(values):
            encoded = map(_encode, values)
            return list(map(wire.top, encoded) if list in distinct else encoded)
    except _NOT_NATIVE:
        pass
    return None


def _all_plain(level: list[Any]) -> bool:
    """Whether there is nothing but plain values in here, at no great depth and not too many."""
    many = 0
    for _ in range(wire.MAX_DEPTH):
        if not set(map(type, level)) <= _PLAIN:
            return False
        level = get_referents(*level)
        if not level:
            return True
        many += len(level)
        if many > _MANY:
            return False
    return False


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
            return CircularReference("a value contains itself", where=_tidy(path), hint=hint)
        on_the_way.add(id(value))
        if isinstance(error, TooLarge) and path:
            break
        found = _failing_child(value, error, registry, max_bytes)
        if found is None:
            break
        segment, value, error = found
        path += segment
    return type(error)(error.what, where=_tidy(path), hint=error.hint)


def _failing_child(
    value: Any, error: HoldfastError, registry: Registry, max_bytes: int
) -> tuple[str, Any, HoldfastError] | None:
    # What is too large may well be so because it has too many parts to look at.
    limit = 1000 if isinstance(error, TooLarge) else None
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


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        for key, item in list(value.items()):
            yield f"[the key {key!r}]", key
            yield f".{key}" if type(key) is str and key.isidentifier() else f"[{key!r}]", item
    elif kind in (set, frozenset):
        for item in list(value):
            yield f"[the item {item!r}]", item
    elif _PLANS.get(kind) is not None:
        yield from _PLANS[kind].children(value)
    elif issubclass(kind, list | tuple | deque):
        for i, item in enumerate(list(value)):
            yield f"[{i}]", item
    elif kind.__module__.partition(".")[0] in _ARRAY_LIBRARIES:
        from holdfast.codec import arrays

        yield from arrays.children(value)
