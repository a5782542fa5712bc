"""A plugin of mypy: stored bytes are read by `holdfast.byte_reader`, and packed values by `holdfast.codec.msgpack`.

In any other module of the package, but for `holdfast.testing`, which damages bytes, it is an error to index bytes, to
make a number of bytes, to unpack fields of a `struct`, and to decode msgpack: each raises another error for forged
bytes, or none for bytes that are cut off. A slice raises nothing, and is allowed. Where bytes are no stored ones,
`# type: ignore[stored-bytes]` says so, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mypy.errorcodes import ErrorCode
from mypy.nodes import MypyFile
from mypy.plugin import AttributeContext, FunctionContext, MethodContext, Plugin
from mypy.types import Instance, Type, get_proper_type

STORED_BYTES = ErrorCode("stored-bytes", "Bytes are taken apart without the reader", "Holdfast")

READERS = frozenset({"holdfast.byte_reader", "holdfast.codec.msgpack"})
VALUE_DECODERS = READERS | {"holdfast.codec", "holdfast.codec.unpacker"}
"""The modules that decode msgpack: also the decoder of values, whose errors depend on the classes of the values."""

_INDEX = {f"builtins.{kind}.__getitem__" for kind in ("bytes", "bytearray", "memoryview")}
_STRUCT = {f"_struct.{kind}{name}" for kind in ("", "Struct.") for name in ("unpack", "unpack_from", "iter_unpack")}
_DECODE = {f"msgspec.msgpack.{name}" for name in ("decode", "Decoder", "Decoder.decode")}

Context = TypeVar("Context", FunctionContext, MethodContext, AttributeContext)


class StoredBytesPlugin(Plugin):
    """Reports bytes that are taken apart without the reader."""

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        if fullname in _INDEX:
            return _index
        return _call if fullname in _STRUCT else _decode if fullname in _DECODE else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return _call if fullname in _STRUCT else _decode if fullname in _DECODE else None

    def get_class_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        return _from_bytes if fullname == "builtins.int.from_bytes" else None


def _index(context: MethodContext) -> Type:
    kind = get_proper_type(context.arg_types[0][0])
    if not (isinstance(kind, Instance) and kind.type.fullname == "builtins.slice"):
        _report(context, READERS, "an index of bytes may be out of range: read them with ByteReader")
    return context.default_return_type


def _call(context: Any) -> Type:
    _report(context, READERS, "these bytes may be too few: read them with ByteReader.fields")
    return context.default_return_type  # type: ignore[no-any-return]


def _decode(context: Any) -> Type:
    _report(context, VALUE_DECODERS, "these bytes may be forged: read them with ByteReader.packed or msgpack.parse")
    return context.default_return_type  # type: ignore[no-any-return]


def _from_bytes(context: AttributeContext) -> Type:
    _report(context, READERS, "these bytes may be too few: read them with ByteReader.number")
    return context.default_attr_type


def _report(context: Context, readers: frozenset[str], message: str) -> None:
    tree: MypyFile = context.api.tree  # type: ignore[attr-defined]
    package, _, rest = tree.fullname.partition(".")
    if package == "holdfast" and tree.fullname not in readers and not rest.startswith("testing"):
        context.api.fail(message, context.context, code=STORED_BYTES)


def plugin(_version: str) -> type[Plugin]:
    """Return the plugin: called by mypy."""
    return StoredBytesPlugin
