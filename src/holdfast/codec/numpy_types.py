"""Handlers for numpy's arrays, scalars and dtypes.

Numbers are stored as their bytes in memory, with a description of their dtype that is validated before numpy reads it.
Objects never come from raw bytes: an array of objects is packed item by item.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.msgpack import encode

from holdfast.codec import msgpack
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import Dumper, Packing, Unpacking
from holdfast.errors import CorruptError, UnsupportedError

Array = npt.NDArray[Any]
Spec = str | list[Any]
"""A dtype as plain values: numpy's short form, or a list if it has fields or a shape."""

# i, I, q and Q are C types that may differ from int32 … uint64, depending on the machine.
_SIMPLE = re.compile(
    r"""[|]b1 | [|][iu]1 | [<>][iu][248] | [<>][iIqQ] | [<>]f[248] | [<>]c(8|16)
    | [<>][mM]8(\[([1-9][0-9]{0,9})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?
    | [|][SV][0-9]{1,10} | [<>]U[0-9]{1,10}""",
    re.VERBOSE,
)
_OBJECT = "|O"
_FIELDS = "fields"
_SUBARRAY = "subarray"


# dtypes -----------------------------------------------------------------------------------------------------


def describe(dtype: np.dtype[Any]) -> Spec:
    """Describe a dtype so that `revive_dtype` can rebuild it."""
    if dtype.metadata:
        raise UnsupportedError(
            "a numpy dtype with metadata cannot be saved",
            hint="Save the metadata beside the array, and the array without it",
        )
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_SUBARRAY, describe(base), list(shape)]
    if dtype.names is not None:
        return _describe_fields(dtype, dtype.names)
    if dtype.char in "gG":
        raise UnsupportedError(
            f"the numpy type {dtype.type.__name__} cannot be saved: it differs from machine to machine",
            hint="Convert it first: .astype(numpy.float64) or .astype(numpy.complex128)",
        )
    for spec in (dtype.str, dtype.str[0] + dtype.char):
        if _SIMPLE.fullmatch(spec):
            simple = np.dtype(spec)
            if simple == dtype and simple.type is dtype.type:
                return spec
    raise UnsupportedError(
        f"the numpy dtype {dtype} cannot be saved",
        hint="Convert it with .astype(…) to a dtype of numbers, times, bytes or str, or to object",
    )


def _describe_fields(dtype: np.dtype[Any], names: tuple[str, ...]) -> Spec:
    fields = []
    for name in names:
        inner, offset, *title = dtype.fields[name]  # type: ignore[index]
        if title:
            raise UnsupportedError(
                f"a numpy dtype whose field {name!r} has a title cannot be saved",
                hint="Use a dtype without titles",
            )
        fields.append([name, describe(inner), offset])
    return [_FIELDS, fields, dtype.itemsize, dtype.isalignedstruct, dtype.type is np.record]


def revive_dtype(spec: Any) -> np.dtype[Any]:
    """Rebuild a dtype from a description that may be forged. It never contains objects."""
    match spec:
        case str():
            if not _SIMPLE.fullmatch(spec):
                raise CorruptError("a stored numpy dtype is invalid")
            return np.dtype(spec)
        case [str(kind), base, list(shape)] if kind == _SUBARRAY:
            return np.dtype((revive_dtype(base), _dimensions(shape)))
        case [str(kind), list(fields), int(itemsize), bool(aligned), bool(record)] if kind == _FIELDS:
            parts: dict[str, Any] = {"names": [], "formats": [], "offsets": [], "itemsize": itemsize}
            for name, inner, offset in fields:
                if type(name) is not str or type(offset) is not int:
                    raise CorruptError("a field of a stored numpy dtype lacks its name or offset")
                parts["names"].append(name)
                parts["formats"].append(revive_dtype(inner))
                parts["offsets"].append(offset)
            dtype: np.dtype[Any] = np.dtype(parts, align=aligned)  # type: ignore[call-overload]
            return np.dtype((np.record, dtype)) if record else dtype
    raise CorruptError("a stored numpy dtype is invalid")


def _dimensions(shape: list[Any]) -> tuple[int, ...]:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise CorruptError("a stored shape of an array is invalid")
    return tuple(shape)


def _dump_dtype(p: Packing, dtype: np.dtype[Any]) -> tuple[int, bytes]:
    plain_object = dtype.char == "O" and not dtype.metadata
    return Tag.NUMPY_DTYPE, p.pack([_OBJECT if plain_object else describe(dtype)])


def _load_dtype(u: Unpacking, data: bytes) -> np.dtype[Any]:
    (spec,) = u.array(data)
    return np.dtype(object) if spec == _OBJECT else revive_dtype(spec)


# Raw bytes --------------------------------------------------------------------------------------------------


def _raw(packer: Packing, array: Array, order: str) -> bytes:
    """Return the bytes of an array without objects. Equal arrays have the same bytes."""
    packer.spend(array.nbytes)  # before the copy: a broadcast array may be far larger than its memory
    if not array.nbytes:
        return b""
    if array.dtype.names is not None:
        without_padding: Array = np.zeros(array.shape, array.dtype)
        _copy_fields(without_padding, array)
        array = without_padding
    if not _is_valid(array):
        raise UnsupportedError(
            "a numpy array of bool or str cannot be saved: it contains invalid bytes",
            hint="It was created with .view(…) or from a raw buffer: convert it with .astype(…) instead",
        )
    return array.tobytes("F" if order == "F" else "C")


def _copy_fields(target: Array, source: Array) -> None:
    """Copy field by field, without the padding between them."""
    if source.dtype.names is None:
        target[...] = source
    else:
        for name in source.dtype.names:
            _copy_fields(target[name], source[name])


def _is_valid(array: Array) -> bool:
    """Whether the bytes of an array are values of its dtype: numpy does not check them, and fails later."""
    if array.dtype.names is not None:
        return all(_is_valid(array[name]) for name in array.dtype.names)
    if not array.nbytes:
        return True
    if array.dtype.kind == "b":
        return bool(np.max(array.view(np.uint8)) <= 1)
    if array.dtype.kind == "U":
        points = np.ascontiguousarray(array).reshape(-1).view(array.dtype.str[0] + "u4")
        return bool(np.max(points) <= 0x10FFFF)
    return True


def _from_raw(dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, data: Any) -> Array:
    """Build an array that owns its memory. Allocates nothing before the size is checked."""
    if dtype.subdtype is not None or type(data) is not bytes or math.prod(shape) * dtype.itemsize != len(data):
        raise CorruptError("a stored numpy value does not have the size of its dtype and shape")
    if not data:
        return np.ndarray(shape, dtype, order=order)
    array: Array = np.ndarray(shape, dtype, data, order=order).copy("K")
    if not _is_valid(array):
        raise CorruptError("a stored numpy value of bool or str contains invalid bytes")
    return array


# Arrays -----------------------------------------------------------------------------------------------------


def _dump_array(p: Packing, array: Array) -> tuple[int, bytes]:
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    if array.dtype.char == "O" and not array.dtype.metadata:
        p.spend(array.size)  # the items are counted below, when the list is packed
        items = array.ravel("F" if order == "F" else "C").tolist()
        return Tag.NDARRAY, p.pack([_OBJECT, list(array.shape), order, items])
    head = [p.pack(part) for part in (describe(array.dtype), list(array.shape), order)]
    return Tag.NDARRAY, msgpack.join_array([*head, encode(_raw(p, array, order))])


def _load_array(u: Unpacking, data: bytes) -> Array:
    spec, shape, order, content = u.array(data)
    if type(shape) is not list or order not in ("C", "F"):
        raise CorruptError("a stored numpy array lacks its shape or order")
    dimensions = _dimensions(shape)
    if spec != _OBJECT:
        return _from_raw(revive_dtype(spec), dimensions, order, content)
    if type(content) is not list or math.prod(dimensions) != len(content):
        raise CorruptError("a stored numpy array does not have as many items as its shape says")
    # Assigning a list would expand items that are sequences.
    items = np.fromiter(content, object, len(content))
    return items.reshape(dimensions, order=order).copy("K")


# Scalars ----------------------------------------------------------------------------------------------------

_SCALARS: frozenset[type] = frozenset({np.dtype(char).type for char in "?bBhHiIlLqQefdgFDGMmV"} | {np.record})


def _load_scalar(u: Unpacking, data: bytes) -> Any:
    spec, content = u.array(data)
    if spec == "U" and type(content) is str:
        return np.str_(content)
    if spec == "S" and type(content) is bytes:
        return np.bytes_(content)
    dtype = revive_dtype(spec)
    if dtype.kind in "SU":
        raise CorruptError("a stored numpy scalar of str or bytes is invalid")
    return _from_raw(dtype, (), "C", content)[()]


# Dispatch ---------------------------------------------------------------------------------------------------


def dumper(kind: type) -> Dumper | None:
    """Return the dumper of a numpy class, or None if its instances are not values."""
    if kind is np.ndarray:
        return _dump_array
    # In an array, str and bytes would lose trailing zeros, so Python's types are stored.
    if kind is np.str_:
        return lambda p, value: (Tag.NUMPY_SCALAR, p.pack(["U", str.__str__(value)]))
    if kind is np.bytes_:
        return lambda p, value: (Tag.NUMPY_SCALAR, p.pack(["S", bytes(value)]))
    if kind in _SCALARS:
        return lambda p, value: (Tag.NUMPY_SCALAR, p.pack([describe(value.dtype), _raw(p, np.asarray(value), "C")]))
    if issubclass(kind, np.dtype):
        return _dump_dtype
    if issubclass(kind, np.ma.MaskedArray):
        raise UnsupportedError(
            f"a numpy {kind.__name__} cannot be saved",
            hint="Save its .data and .mask as two arrays, or .filled(…)",
        )
    if issubclass(kind, np.ndarray):
        raise UnsupportedError(
            f"a numpy {kind.__name__} cannot be saved: it is not a plain array",
            hint="Save numpy.asarray(…) of it",
        )
    return None


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the items of an array of objects, with their path segments."""
    if type(value) is np.ndarray and value.dtype.char == "O":
        for index, item in np.ndenumerate(value):
            yield f"[{', '.join(map(str, index))}]", item


LOADERS: dict[Tag, Callable[[Unpacking, bytes], Any]] = {
    Tag.NDARRAY: _load_array,
    Tag.NUMPY_SCALAR: _load_scalar,
    Tag.NUMPY_DTYPE: _load_dtype,
}
