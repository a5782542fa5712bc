"""Unpacking of bytes into values.

The bytes may be forged: nothing is imported, no constructor of the application runs, and every defect is a typed error.
A valid value whose class is not available in this process is read as an `OpaqueValue`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import MsgspecError
from msgspec.msgpack import Decoder

from holdfast._named_tuple import NamedTuple
from holdfast.byte_reader import NO_STACK
from holdfast.codec import class_lookup, msgpack
from holdfast.codec.message_cache import PAUSE_COLLECTOR, MessageParts, cache_messages, collector_paused
from holdfast.codec.object_plans import ClassMismatch, ObjectPlan, PydanticPlan, plan_for
from holdfast.codec.opaque import OpaqueValue, warn_once
from holdfast.codec.registry import Registry, import_array_types
from holdfast.codec.stdlib_types import STDLIB_TYPES
from holdfast.codec.tags import KNOWN_CLASSES, Tag
from holdfast.codec.type_handler import ClassNotLoaded, Loader, Unpacking
from holdfast.errors import CorruptError, HoldfastError, TooDeepError, TooLargeError, UnsupportedError

_SHALLOW = 64
"""Up to this many bytes cannot nest deeply enough to overflow the stack."""

_MIN_BATCH = 8
"""From this many messages on, they are built together."""

# Errors of the fast path in `unpack_batch`; the slow path then reports them.
_NEEDS_SLOW_PATH = (KeyError, TypeError, ValueError, AttributeError, RecursionError, ClassMismatch, ClassNotLoaded)


class Unpacker:
    """Unpacks one value at a time: counts how deeply typed values are nested."""

    __slots__ = (
        "_builders",
        "_decode",
        "_lenient",
        "_max_bytes",
        "_may_revive",
        "_nesting",
        "_registry",
        "_stack_is_safe",
    )

    def __init__(
        self,
        registry: Registry,
        max_bytes: int,
        may_revive: Callable[[str], bool] | None = None,
        *,
        lenient: bool = False,
    ) -> None:
        self._registry = registry
        self._lenient = lenient
        self._may_revive = may_revive
        self._max_bytes = max_bytes
        self._nesting = 0
        self._stack_is_safe = False
        self._decode = Decoder(ext_hook=self._revive).decode
        self._builders: dict[int, Callable[[Any], Any]] = {}

    def unpack(self, data: bytes) -> Any:
        """Unpack bytes that `Packer.pack_top` wrote."""
        if data[:2] == msgpack.SHAPED_MARK or len(data) > self._max_bytes:
            return self.unpack_batch([data])[0]
        self._check_stack()
        self._builders.clear()
        return self.value(data[1:] if data[:1] == msgpack.ESCAPE else data)

    def unpack_batch(self, items: list[bytes]) -> list[Any]:
        """Unpack many values, each packed on its own."""
        self._check_stack()
        self._builders.clear()  # classes may be reloaded between calls
        if len(items) >= _MIN_BATCH:
            shaped = [data for data in items if data[:2] == msgpack.SHAPED_MARK]
            parts = self._shaped_parts(shaped) if len(shaped) >= _MIN_BATCH else None
            if parts is not None:
                models = PydanticPlan.build_many(*parts)
                if len(models) == len(items):
                    return models
                others = iter(self._unpack_each([data for data in items if data[:2] != msgpack.SHAPED_MARK]))
                known = iter(models)
                return [next(known) if data[:2] == msgpack.SHAPED_MARK else next(others) for data in items]
        return self._unpack_each(items)

    def _check_stack(self) -> None:
        """Find out whether the depth has to be checked before decoding."""
        self._stack_is_safe = msgpack.stack_is_safe()

    def extend_cache(self, items: list[bytes], cached: MessageParts) -> MessageParts | None:
        """Return a cache of values that start with the cached ones; None if not all of them are messages."""
        count = len(cached.fields)
        if count == len(items):
            return cached
        self._check_stack()
        with collector_paused(len(items) - count > PAUSE_COLLECTOR):
            parts = self._shaped_parts(items[count:])
            more = None if parts is None else cache_messages(items[count:], *parts)
        return None if more is None else cached.extended(more)

    def _shaped_parts(self, items: list[bytes]) -> tuple[list[PydanticPlan], Sequence[dict[str, Any]]] | None:
        """Decode values of well-known classes into plans and fields. Returns None if the slow path must read them."""
        if max(map(len, items)) > self._max_bytes:
            return None
        try:
            if not self._stack_is_safe:
                for data in items:
                    msgpack.check_depth(data)
            marks, numbers, fields = zip(*map(self._decode, items), strict=True)
            if marks.count(None) != len(items) or {*map(type, numbers)} != {int} or {*map(type, fields)} != {dict}:
                return None
            by_number = {number: known_plan(number) for number in set(numbers)}
            plans = [by_number[number] for number in numbers]
            return (plans, fields) if PydanticPlan.can_build_many(plans, fields) else None
        except (HoldfastError, MsgspecError, *_NEEDS_SLOW_PATH):
            return None

    def _unpack_each(self, items: list[bytes]) -> list[Any]:
        values: list[Any] = []
        decode, builders = self._decode, self._builders
        for data in items:
            size = len(data)
            if size > self._max_bytes:
                raise TooLargeError(
                    f"{size} packed bytes are over the limit of {self._max_bytes}",
                    hint="Raise max_bytes of the codec if you trust where they come from",
                )
            if data[:2] != msgpack.SHAPED_MARK:
                values.append(self.value(data[1:] if data[:1] == msgpack.ESCAPE else data))
                continue
            try:
                # The fast path, inlined: `self.shaped(self.value(data))`.
                if self._stack_is_safe or size <= _SHALLOW:
                    _, number, fields = decode(data)
                    if type(number) is int:
                        values.append(builders[number](fields))
                        continue
            except _NEEDS_SLOW_PATH:
                pass
            try:
                values.append(self.shaped(self.value(data)))
            except (ClassMismatch, ClassNotLoaded):
                values.append(self._opaque(Tag.SHAPED, data))
        return values

    def value(self, data: bytes) -> Any:
        """Unpack bytes that are part of others."""
        if not self._stack_is_safe and len(data) > _SHALLOW:
            msgpack.check_depth(bytes(data))
        try:
            return self._decode(data)
        except (HoldfastError, Warning):
            raise
        except RecursionError:
            raise TooDeepError(f"packed bytes are {NO_STACK}") from None
        except Exception as error:  # noqa: BLE001 - a key's own `__hash__` may raise anything
            raise CorruptError(f"not the packed form of a value: {type(error).__name__}: {error}") from None

    def array(self, data: bytes, *types: type) -> list[Any]:
        """Unpack a payload that is a list, optionally of exactly these types."""
        parts = self.value(data)
        if type(parts) is not list or (types and tuple(map(type, parts)) != types):
            raise CorruptError("the payload of a typed value lacks its parts")
        return parts

    def _revive(self, tag: int, view: memoryview) -> Any:
        if tag < 0:
            raise CorruptError(f"an ext of type {tag}, which Holdfast never writes")
        loader = _LOADERS.get(tag)
        if loader is None:
            return OpaqueValue(tag, bytes(view))
        if self._nesting >= msgpack.MAX_NESTING:
            raise TooDeepError(f"packed bytes nest typed values more than {msgpack.MAX_NESTING} deep")
        self._nesting += 1
        try:
            # A payload that contains values is not copied: nested values would be copied again at every level.
            return loader(self, bytes(view) if tag in _LEAF_TAGS else view)
        except (ClassMismatch, ClassNotLoaded):
            return self._opaque(tag, bytes(view))
        except (HoldfastError, Warning):
            raise
        except Exception as error:  # noqa: BLE001 - forged payloads may make a loader raise anything
            name = Tag(tag).name.lower()
            raise CorruptError(f"the payload of a stored {name} is invalid: {type(error).__name__}: {error}") from None
        finally:
            self._nesting -= 1

    def _opaque(self, tag: int, data: bytes) -> OpaqueValue:
        """Return a value of a class that is not available here, with a warning for the first one of its class."""
        value = OpaqueValue(tag, data)
        if self._lenient and self._may_revive is None:
            warn_once(value)
        return value

    def shaped(self, parts: Any) -> Any:
        """Build a value of a well-known class from `[None, number, fields]`."""
        try:
            mark, number, fields = parts
            if mark is not None or type(number) is not int:
                raise ValueError
            build = self._builders.get(number)
            if build is None:
                build = self._builders[number] = _find_builder(number)
            return build(fields)
        except (TypeError, ValueError, AttributeError):
            raise CorruptError("a stored value of a well-known class lacks its parts") from None

    def plan(self, ref: str, tag: Tag) -> ObjectPlan:
        """Return the plan of a class. Raises `ClassNotLoaded` if it may not be revived."""
        if self._may_revive is not None and not self._may_revive(ref):
            raise ClassNotLoaded
        try:
            return _plan(ref, tag)
        except ClassNotLoaded:
            if not self._lenient:
                raise
            from holdfast.codec import unnamed_classes  # few need it

            plan = unnamed_classes.find_plan(ref)
            if plan is None or plan.tag != tag:
                raise
            return plan

    def registered(self, data: bytes) -> Any:
        """Load a value of a type that the application registered."""
        name, dumped = _parts(self, data, 2)
        registration = self._registry.registration_named(name)
        if registration is None:
            raise ClassNotLoaded
        try:
            return registration.load(dumped)
        except Exception as error:
            raise CorruptError(
                f"the load function registered for {name} refused stored data: {type(error).__name__}: {error}",
                hint="It must accept whatever its dump function has ever returned",
            ) from error

    def reference(self, data: bytes) -> Any:
        """Find a function or class that was allowed by its name."""
        name = self.value(data)
        target = self._registry.named(name) if type(name) is str else None
        if target is None:
            raise ClassNotLoaded
        return target


def _parts(u: Unpacking, data: bytes, count: int) -> list[Any]:
    parts = u.array(data)
    if len(parts) < count or type(parts[0]) is not str:
        raise CorruptError("a stored object lacks its class name or its parts")
    return parts


# Classes ----------------------------------------------------------------------------------------------------


class _CachedPlan(NamedTuple):
    """The plan of a class, with what shows that the class was not reloaded since."""

    module: Any
    namespace: dict[str, Any]
    plan: ObjectPlan


_PLANS: dict[str, _CachedPlan] = {}


def _plan(ref: str, tag: int) -> ObjectPlan:
    """Return the plan of a class named in data. Raises `ClassNotLoaded` if it is not loaded or may not be revived."""
    module_name, _, qualname = ref.partition(":")
    cached = _PLANS.get(ref)
    if (
        cached is None
        or sys.modules.get(module_name) is not cached.module
        or cached.namespace.get(qualname) is not cached.plan.cls
    ):
        cls = class_lookup.find_loaded(ref)
        if cls is None:
            raise ClassNotLoaded
        try:
            plan = plan_for(cls)
        except UnsupportedError:
            raise ClassNotLoaded from None
        module = sys.modules[module_name]
        cached = _PLANS[ref] = _CachedPlan(module, object.__getattribute__(module, "__dict__"), plan)
    if cached.plan.tag != tag:
        raise ClassNotLoaded
    return cached.plan


def _load_object(tag: Tag) -> Callable[[Unpacker, Any], Any]:
    fields_type = {Tag.ENUM: str, Tag.FLAG: int}.get(tag, dict)

    def load(u: Unpacker, data: bytes) -> Any:
        parts = _parts(u, data, 2)
        if type(parts[1]) is not fields_type:
            raise CorruptError("the fields of a stored object have the wrong type")
        return u.plan(parts[0], tag).load(parts)

    return load


def _find_builder(number: int) -> Callable[[Any], Any]:
    """Return the function that builds values of a well-known class from their fields."""
    known = KNOWN_CLASSES.get(number)
    if known is None:
        raise ClassNotLoaded  # written by a newer release
    plan = _plan(known.ref, known.kind)
    if isinstance(plan, PydanticPlan) and plan.names == known.names:
        return plan.build_shaped
    names = set(known.names)

    def build(fields: Any) -> Any:
        if type(fields) is not dict or fields.keys() != names:
            raise ClassNotLoaded
        return plan.load([known.ref, fields, (1 << len(fields)) - 1, None, None])

    return build


def known_plan(number: int) -> PydanticPlan:
    """Return the plan of a well-known model. Raises `ClassNotLoaded` if the loaded class has other fields."""
    known = KNOWN_CLASSES.get(number)
    plan = None if known is None else _plan(known.ref, known.kind)
    if known is None or not isinstance(plan, PydanticPlan) or plan.names != known.names:
        raise ClassNotLoaded
    return plan


def _load_array(tag: Tag, library: str) -> Loader:
    def load(u: Unpacking, data: bytes) -> Any:
        if library not in sys.modules:
            raise ClassNotLoaded
        return import_array_types(library).LOADERS[tag](u, data)

    return load


_LEAF_TAGS = frozenset(
    {
        Tag.INT,
        Tag.STR,
        Tag.BYTEARRAY,
        Tag.COMPLEX,
        Tag.DECIMAL,
        Tag.UUID,
        Tag.DATE,
        Tag.ZONEINFO,
        Tag.NAT,
        Tag.PANDAS_NA,
    }
)
_LOADERS: dict[int, Callable[[Unpacker, Any], Any]] = {handler.tag: handler.load for handler in STDLIB_TYPES}
_LOADERS |= {tag: _load_object(tag) for tag in Tag if Tag.DATACLASS <= tag <= Tag.EXCEPTION}
_LOADERS |= {tag: _load_array(tag, "numpy") for tag in Tag if Tag.NDARRAY <= tag < Tag.TIMESTAMP}
_LOADERS |= {tag: _load_array(tag, "pandas") for tag in Tag if Tag.TIMESTAMP <= tag <= Tag.INTERVAL}
_LOADERS |= {
    Tag.REGISTERED: Unpacker.registered,
    Tag.REFERENCE: Unpacker.reference,
    Tag.SHAPED: lambda u, data: u.shaped(u.array(data)),
}
