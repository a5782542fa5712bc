"""Bytes to values.

Made for bytes that somebody may have forged: nothing is imported, no constructor of an application runs, and
whatever is wrong is a typed error. What is sound and merely not available here comes back inert.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from threading import get_ident, main_thread
from typing import Any, NamedTuple

from msgspec import MsgspecError
from msgspec.msgpack import Decoder

from holdfast.codec import class_lookup, msgpack
from holdfast.codec.known_classes import KNOWN_CLASSES
from holdfast.codec.message_cache import MessageParts, take_apart
from holdfast.codec.object_plan import ClassMismatch, ObjectPlan
from holdfast.codec.object_plans import PydanticPlan, plan_for
from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.registry import Registry
from holdfast.codec.stdlib_types import KINDS
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import ClassNotLoaded, Loader, Unpacking
from holdfast.errors import CorruptError, HoldfastError, TooDeepError, TooLargeError, UnsupportedError

_SHALLOW = 64
"""So few bytes can not nest deeply enough to do harm, whatever they hold."""

_MODEST_RECURSION = 10_000
"""With a recursion limit up to this, Python itself stops the decoder before a main thread's stack is full."""

_WORTH_BATCHING = 8
"""From so many messages on, they are made together."""

# What may go wrong in the shortcut of `unpack_batch`; the long way then says what it was.
_ANY_TROUBLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError, ClassMismatch, ClassNotLoaded)


class Unpacker:
    """One unpacking, and how deep it is."""

    __slots__ = ("_decode", "_guarded", "_makers", "_max_bytes", "_may_revive", "_nesting", "_registry")

    def __init__(self, registry: Registry, max_bytes: int, may_revive: Callable[[str], bool] | None = None) -> None:
        self._registry = registry
        self._may_revive = may_revive
        self._max_bytes = max_bytes
        self._nesting = 0
        self._guarded = False
        self._decode = Decoder(ext_hook=self._revive).decode
        self._makers: dict[int, Callable[[Any], Any]] = {}

    def unpack(self, data: bytes) -> Any:
        """The value that these bytes hold."""
        if data[:2] == msgpack.SHAPED_MARK or len(data) > self._max_bytes:
            return self.unpack_batch([data])[0]
        self._look()
        self._makers.clear()
        return self.value(data[1:] if data[:1] == msgpack.ESCAPE else data)

    def unpack_batch(self, items: list[bytes]) -> list[Any]:
        """The values that these packed bytes hold, each standing on its own."""
        self._look()
        self._makers.clear()  # looked up once a call: classes may be reloaded
        if len(items) >= _WORTH_BATCHING:
            shaped = [data for data in items if data[:2] == msgpack.SHAPED_MARK]
            parts = self._shaped_parts(shaped) if len(shaped) >= _WORTH_BATCHING else None
            if parts is not None:
                made = PydanticPlan.make_many(*parts)
                if len(made) == len(items):
                    return made
                others = iter(self._unpack_each([data for data in items if data[:2] != msgpack.SHAPED_MARK]))
                each = iter(made)
                return [next(each) if data[:2] == msgpack.SHAPED_MARK else next(others) for data in items]
        return self._unpack_each(items)

    def _look(self) -> None:
        """See whether Python itself keeps the decoder from filling the stack.

        Elsewhere than in the main thread the stack may be small, and documents are looked at before decoding.
        """
        self._guarded = get_ident() == main_thread().ident and sys.getrecursionlimit() <= _MODEST_RECURSION

    def unpack_again(self, items: list[bytes], made: MessageParts) -> tuple[list[Any], MessageParts | None]:
        """The same, and what makes it quicker next time, if all of them are messages."""
        count = len(made.fields)
        if count < len(items):
            self._look()
            parts = self._shaped_parts(items[count:])
            more = None if parts is None else take_apart(items[count:], *parts)
            if more is None:
                return self.unpack_batch(items), None
            made = made.and_then(more)
        return made.fresh(), made

    def _shaped_parts(self, items: list[bytes]) -> tuple[list[PydanticPlan], Sequence[dict[str, Any]]] | None:
        """Values of well-known classes, as their plans and fields; None if one needs a closer look."""
        if max(map(len, items)) > self._max_bytes:
            return None
        try:
            if not self._guarded:
                for data in items:
                    msgpack.check_depth(data)
            marks, numbers, fields = zip(*map(self._decode, items), strict=True)
            if marks.count(None) != len(items) or {*map(type, numbers)} != {int} or {*map(type, fields)} != {dict}:
                return None
            by_number = {number: _shaped_plan(number) for number in set(numbers)}
            plans = [by_number[number] for number in numbers]
            return (plans, fields) if PydanticPlan.fit(plans, fields) else None
        except (HoldfastError, MsgspecError, *_ANY_TROUBLE):
            return None  # the long way says what it was

    def _unpack_each(self, items: list[bytes]) -> list[Any]:
        values: list[Any] = []
        decode, makers = self._decode, self._makers
        for data in items:
            size = len(data)
            if size > self._max_bytes:
                raise TooLargeError(
                    f"{size} packed bytes are over the limit of {self._max_bytes}",
                    hint="Raise Limits.max_bytes if you trust where they come from",
                )
            if data[:2] != msgpack.SHAPED_MARK:
                values.append(self.value(data[1:] if data[:1] == msgpack.ESCAPE else data))
                continue
            try:
                # Most values come this way: the same as `self.shaped(self.value(data))`, without the calls.
                if self._guarded or size <= _SHALLOW:
                    _, number, fields = decode(data)
                    if type(number) is int:
                        values.append(makers[number](fields))
                        continue
            except _ANY_TROUBLE:
                pass
            try:
                values.append(self.shaped(self.value(data)))
            except (ClassMismatch, ClassNotLoaded):
                values.append(OpaqueValue(Tag.SHAPED, data))
        return values

    def value(self, data: bytes) -> Any:
        """The value in bytes from inside others."""
        if not self._guarded and len(data) > _SHALLOW:
            msgpack.check_depth(bytes(data))
        try:
            return self._decode(data)
        except HoldfastError:
            raise
        except RecursionError:
            raise TooDeepError("packed bytes nest too deeply to be read here") from None
        except Exception as error:  # noqa: BLE001 - a key's own `__hash__` may raise anything
            raise CorruptError(f"not the packed form of a value: {type(error).__name__}: {error}") from None

    def array(self, data: bytes, *types: type) -> list[Any]:
        """A payload that is a list, optionally of exactly these types."""
        parts = self.value(data)
        if type(parts) is not list or (types and tuple(map(type, parts)) != types):
            raise CorruptError("a typed value's payload does not have its parts")
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
            # A payload with values inside is not copied, lest values in each other be copied over and over.
            return loader(self, bytes(view) if tag in _RAW else view)
        except (ClassMismatch, ClassNotLoaded):
            return OpaqueValue(tag, bytes(view))
        except HoldfastError:
            raise
        except Exception as error:  # noqa: BLE001 - loaders run on forged payloads: whatever they raise means this
            name = Tag(tag).name.lower()
            raise CorruptError(
                f"a stored {name} does not hold what a {name} holds: {type(error).__name__}: {error}"
            ) from None
        finally:
            self._nesting -= 1

    def shaped(self, parts: Any) -> Any:
        """A value of a well-known class, from `[None, shape, fields]`."""
        try:
            mark, number, fields = parts
            if mark is not None or type(number) is not int:
                raise ValueError
            make = self._makers.get(number)
            if make is None:
                make = self._makers[number] = _maker(number)
            return make(fields)
        except (TypeError, ValueError, AttributeError):
            raise CorruptError("a stored value of a well-known class lacks its parts") from None

    def plan(self, ref: str, tag: Tag) -> ObjectPlan:
        """How to put objects of a class together again, if that may be done here."""
        if self._may_revive is not None and not self._may_revive(ref):
            raise ClassNotLoaded
        return _plan(ref, tag)

    def registered(self, data: bytes) -> Any:
        """A value of a type that the application registered."""
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
        """A function or class by its name."""
        name = self.value(data)
        thing = self._registry.named(name) if type(name) is str else None
        if thing is None:
            raise ClassNotLoaded
        return thing


def _parts(u: Unpacking, data: bytes, count: int) -> list[Any]:
    parts = u.array(data)
    if len(parts) < count or type(parts[0]) is not str:
        raise CorruptError("a stored object lacks its class name or its parts")
    return parts


# Classes -----------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A class that was revived before, and how to see at a glance that it still is the one loaded."""

    module: Any
    namespace: dict[str, Any]
    plan: ObjectPlan


_FOUND: dict[str, _Found] = {}


def _plan(ref: str, tag: int) -> ObjectPlan:
    """The plan of a class named in data, if that class is loaded and may be revived."""
    module_name, _, qualname = ref.partition(":")
    found = _FOUND.get(ref)
    if (
        found is None
        or sys.modules.get(module_name) is not found.module
        or found.namespace.get(qualname) is not found.plan.cls
    ):
        cls = class_lookup.find_loaded(ref)
        if cls is None:
            raise ClassNotLoaded
        try:
            plan = plan_for(cls)
        except UnsupportedError:
            raise ClassNotLoaded from None
        module = sys.modules[module_name]
        found = _FOUND[ref] = _Found(module, object.__getattribute__(module, "__dict__"), plan)
    if found.plan.tag != tag:
        raise ClassNotLoaded
    return found.plan


def _load_object(tag: Tag) -> Callable[[Unpacker, Any], Any]:
    fields_type = {Tag.ENUM: str, Tag.FLAG: int}.get(tag, dict)

    def load(u: Unpacker, data: bytes) -> Any:
        parts = _parts(u, data, 2)
        if type(parts[1]) is not fields_type:
            raise CorruptError("a stored object's fields are not fields")
        return u.plan(parts[0], tag).load(parts)

    return load


def _maker(number: int) -> Callable[[Any], Any]:
    """What makes values of a shape from their fields, with the class that is loaded now."""
    shape = KNOWN_CLASSES.get(number)
    if shape is None:
        raise ClassNotLoaded  # written by a newer release
    plan = _plan(shape.ref, shape.kind)
    if isinstance(plan, PydanticPlan) and plan.names == shape.names:
        return plan.make_shaped
    known = set(shape.names)

    def make(fields: Any) -> Any:
        if type(fields) is not dict or fields.keys() != known:
            raise ClassNotLoaded
        return plan.load([shape.ref, fields, (1 << len(fields)) - 1, None, None])

    return make


def _shaped_plan(number: int) -> PydanticPlan:
    """The plan of a shape whose class is as it was when the shape was listed."""
    shape = KNOWN_CLASSES.get(number)
    plan = None if shape is None else _plan(shape.ref, shape.kind)
    if shape is None or not isinstance(plan, PydanticPlan) or plan.names != shape.names:
        raise ClassNotLoaded
    return plan


def _load_array(tag: Tag, library: str) -> Loader:
    def load(u: Unpacking, data: bytes) -> Any:
        if library not in sys.modules:
            raise ClassNotLoaded
        from holdfast.codec import array_types

        return array_types.LOADERS[tag](u, data)

    return load


_RAW = frozenset(
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
_LOADERS: dict[int, Callable[[Unpacker, Any], Any]] = {kind.tag: kind.load for kind in KINDS}
_LOADERS |= {tag: _load_object(tag) for tag in Tag if Tag.DATACLASS <= tag <= Tag.EXCEPTION}
_LOADERS |= {tag: _load_array(tag, "numpy") for tag in Tag if Tag.NDARRAY <= tag < Tag.TIMESTAMP}
_LOADERS |= {tag: _load_array(tag, "pandas") for tag in Tag if Tag.TIMESTAMP <= tag <= Tag.INTERVAL}
_LOADERS |= {
    Tag.REGISTERED: Unpacker.registered,
    Tag.REFERENCE: Unpacker.reference,
    Tag.SHAPED: lambda u, data: u.shaped(u.array(data)),
}
