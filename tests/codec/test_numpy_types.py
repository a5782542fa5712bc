"""numpy values: round trips, refusals, and forged bytes."""

import contextlib
import datetime as dt
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from holdfast.codec import Codec, numpy_types
from holdfast.codec.msgpack import ext
from holdfast.codec.packer import Packer
from holdfast.codec.registry import default_registry
from holdfast.codec.tags import Tag
from holdfast.errors import HoldfastError, TooDeepError, TooLargeError, UnsupportedError
from tests.codec.forgeries import check_refused_cheaply
from tests.support.cases import case

codec = Codec()

Array = npt.NDArray[Any]

GAPS = np.dtype([("a", "u1"), ("b", "<f8"), ("c", "S3")], align=True)
DTYPES: list[Any] = [
    *("?", "i1", "u1", "<i2", ">i2", "<u4", ">i8", "<u8", "q", "Q", ">q", "e", ">f4", "f8", "F", ">c16"),
    *("M8[ns]", ">M8[D]", "M8[25s]", "m8[as]", "S5", "U3", ">U3", "V7"),
    np.dtype([("x", "<i4"), ("y", ">f8"), ("flag", "?"), ("name", "U2")]),
    np.dtype([("inner", [("p", "i2"), ("q", "M8[s]")]), ("grid", "f4", (2, 3)), ("", "V2")]),
    np.dtype({"names": ["a", "b"], "formats": ["u1", "u4"], "offsets": [5, 0], "itemsize": 9}),
    np.dtype({"names": ["whole", "half"], "formats": ["u4", "u2"], "offsets": [0, 2]}),
    np.dtype((np.record, [("x", "i4"), ("y", "i4")])),
    np.dtype([]),
    np.dtype([("nothing", "U0"), ("x", "i4")]),
    GAPS,
]


def same_dtype(left: np.dtype[Any], right: np.dtype[Any]) -> bool:
    return (
        left == right
        and left.type is right.type
        and left.char == right.char
        and left.isalignedstruct == right.isalignedstruct
        and [left.fields[name][0].type for name in left.names or ()]  # type: ignore[index]
        == [right.fields[name][0].type for name in right.names or ()]  # type: ignore[index]
    )


def fields_bytes(array: Array) -> list[bytes]:
    """The bytes of an array without what lies between its fields."""
    if array.dtype.names is None:
        return [array.tobytes()]
    return [part for name in array.dtype.names for part in fields_bytes(array[name])]


def check(array: Array) -> Array:
    """Pack and unpack an array, and compare what comes back in every respect."""
    packed = codec.pack(array)
    back = codec.unpack(packed)
    assert type(back) is np.ndarray
    assert same_dtype(back.dtype, array.dtype)
    assert back.shape == array.shape
    assert fields_bytes(back) == fields_bytes(array)
    assert back.flags.writeable
    assert back.flags.owndata
    assert back.flags.c_contiguous or (back.flags.f_contiguous and array.flags.f_contiguous)
    assert codec.pack(back) == packed
    return back


def test_every_dtype_and_shape_comes_back(subtests: pytest.Subtests) -> None:
    for dtype in DTYPES:
        for shape in [(), (0,), (4,), (2, 3), (1, 1, 2), (3, 0)]:
            with case(subtests, dtype, shape):
                array = np.zeros(shape, dtype)
                if array.nbytes and array.dtype.kind != "U" and "U2" not in str(array.dtype):
                    array = np.ndarray(shape, dtype, bytes(i % 2 for i in range(array.nbytes)))
                check(array)


@given(npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_plain_dtypes_come_back(array: Array) -> None:
    check(array)
    check(np.asfortranarray(array))
    check(array[..., ::2] if array.ndim else array)


@given(npst.arrays(npst.nested_dtypes(), npst.array_shapes(max_dims=2, max_side=3)))
def test_arrays_of_nested_dtypes_come_back(array: Array) -> None:
    try:
        packed = codec.pack(array)
    except UnsupportedError as error:
        assert "title" in error.what or "object" in error.what  # noqa: PT017
    else:
        back = codec.unpack(packed)
        assert same_dtype(back.dtype, array.dtype)
        assert fields_bytes(back) == fields_bytes(array)
        assert codec.pack(back) == packed


items = st.one_of(
    st.none(), st.integers(), st.text(), st.lists(st.integers()), st.tuples(st.floats()), st.just(np.arange(3))
)


@given(st.lists(items, min_size=6, max_size=6))
def test_arrays_of_objects_come_back_item_by_item(values: list[Any]) -> None:
    array = np.fromiter(values, object, 6).reshape(2, 3)
    for variant in (array, np.asfortranarray(array), array.T[::2]):
        back = codec.unpack(codec.pack(variant))
        assert back.dtype == object
        assert back.shape == variant.shape
        assert back.flags.owndata
        assert back.flags.c_contiguous is variant.flags.c_contiguous or not variant.flags.f_contiguous
        for place, item in np.ndenumerate(variant):
            assert type(back[place]) is type(item)
            assert repr(back[place]) == repr(item)


ODD_OBJECTS: list[Any] = [np.empty((), object), np.empty((0, 2), object), np.array({"a": (1,)}, dtype=object)]


def test_arrays_of_objects_of_odd_shapes(subtests: pytest.Subtests) -> None:
    for array in ODD_OBJECTS:
        with case(subtests, array):
            back = codec.unpack(codec.pack(array))
            assert back.shape == array.shape
            assert back.tolist() == array.tolist()


def test_objects_keep_arrays_of_one_item_as_they_are() -> None:
    array = np.empty(2, object)
    array[0], array[1] = np.array(5), np.float32(2)
    back = codec.unpack(codec.pack(array))
    assert [type(item) for item in back] == [np.ndarray, np.float32]


def test_order_is_preserved_and_views_become_arrays() -> None:
    array = np.arange(24.0).reshape(4, 6)
    assert check(array).flags.c_contiguous
    assert check(np.asfortranarray(array)).flags.f_contiguous
    assert check(array.T).flags.f_contiguous
    assert check(array[::2, ::-3]).flags.c_contiguous
    assert check(np.broadcast_to(np.int8(3), (2, 2))).strides == (2, 1)
    frozen = array.copy()
    frozen.flags.writeable = False
    assert check(frozen).flags.writeable


def test_nan_and_zero_keep_their_bits() -> None:
    bits = np.array([0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_0002, 1 << 63], np.uint64)
    assert check(bits.view(np.float64)).view(np.uint64).tolist() == bits.tolist()
    for single in bits.view(np.float64):
        assert codec.unpack(codec.pack(single)).tobytes() == single.tobytes()


def test_equal_arrays_give_equal_bytes_whatever_lies_in_their_gaps() -> None:
    # Not a copy: numpy may leave the gaps out of one.
    clean, dirty = np.zeros(3, GAPS), np.frombuffer(bytearray(b"\xff" * 3 * GAPS.itemsize), GAPS)
    dirty["a"], dirty["b"], dirty["c"] = 0, 0, b""
    assert clean.tobytes() != dirty.tobytes()
    assert codec.pack(clean) == codec.pack(dirty)
    assert codec.pack(clean[0]) == codec.pack(dirty[0])


def test_arrays_of_nothing_take_no_time() -> None:
    started = time.process_time()
    back = codec.unpack(codec.pack(np.ndarray((10**12,), "V0")))
    assert back.shape == (10**12,)
    assert time.process_time() - started < 1


def test_strings_of_no_length_keep_their_dtype() -> None:
    for dtype in ("U0", "S0"):
        assert codec.unpack(codec.pack(np.ndarray((2,), dtype))).dtype == np.dtype(dtype)


# Scalars and dtypes ------------------------------------------------------------------------------------------

SCALARS: list[Any] = [
    *(np.bool(True), np.int8(-1), np.uint64(2**64 - 1), np.longlong(7), np.ulonglong(7), np.intc(3)),
    *(np.float16(0.5), np.float32(0.1), np.float64(-0.0), np.complex64(1j), np.complex128(2)),
    *(np.datetime64("2026-02-03"), np.datetime64("NaT", "ns"), np.datetime64(5, ("s", 25))),
    *(np.timedelta64(5, "ms"), np.timedelta64("NaT", "s")),
    *(np.str_("ünï\0"), np.str_(""), np.str_("\ud800"), np.bytes_(b"a\0\0"), np.bytes_(b"")),
    *(np.void(b"abc"), np.void(b""), np.zeros(1, GAPS)[0], np.ones(1, np.dtype((np.record, [("x", "i4")])))[0]),
]


def test_scalars_come_back_of_their_type(subtests: pytest.Subtests) -> None:
    for value in SCALARS:
        with case(subtests, value):
            packed = codec.pack({"k": [value]})
            (back,) = codec.unpack(packed)["k"]
            assert type(back) is type(value)
            assert same_dtype(back.dtype, value.dtype)
            assert back.tobytes() == value.tobytes()
            if isinstance(value, str | bytes):
                assert back == value
            assert codec.pack({"k": [back]}) == packed


@given(st.floats(allow_nan=False))
def test_a_numpy_float_is_not_a_float(number: float) -> None:
    back = codec.unpack(codec.pack([number, np.float64(number)]))
    assert [type(item) for item in back] == [float, np.float64]
    assert back == [number, number]


WITH_OBJECTS_AND_SUBARRAYS: list[Any] = [np.dtype(dtype) for dtype in DTYPES] + [
    np.dtype(object),
    np.dtype(("i4", (2,))),
]


def test_dtypes_come_back(subtests: pytest.Subtests) -> None:
    for dtype in WITH_OBJECTS_AND_SUBARRAYS:
        with case(subtests, dtype):
            back = codec.unpack(codec.pack(dtype))
            assert same_dtype(back, dtype)
            assert back.subdtype == dtype.subdtype


# What is refused ---------------------------------------------------------------------------------------------


class Words(np.ndarray[Any, Any]):
    """An array of an application's own."""


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_subclasses_of_arrays_are_refused_with_a_hint(tmp_path: Path) -> None:
    mapped: Array = np.memmap(tmp_path / "data", dtype="u1", mode="w+", shape=(3,))
    for value in (np.matrix([[1]]), mapped, np.rec.array([(1, 2)], dtype=[("x", "i4"), ("y", "i4")])):
        with pytest.raises(UnsupportedError, match=rf"numpy {type(value).__name__} cannot be saved.*numpy\.asarray"):
            codec.pack(value)
        check(np.asarray(value))
    for masked in (np.ma.masked_array([1, 2], [True, False]), np.ma.masked):
        with pytest.raises(UnsupportedError, match=r"Masked\w+ cannot be saved.*\.mask"):
            codec.pack(masked)
    with pytest.raises(UnsupportedError, match="Words"):
        codec.pack(np.zeros(2).view(Words))


REFUSED: list[tuple[Any, ...]] = [
    (np.zeros(1, np.longdouble), "longdouble.*machine.*float64"),
    (np.zeros(1, np.clongdouble), "clongdouble.*machine.*complex128"),
    (np.longdouble(1), "longdouble"),
    (np.array(["a"], np.dtype("T")), r"StringDType.*\.astype"),
    (np.zeros(1, [("a", object)]), r"dtype object.*\.astype"),
    (np.zeros(1, np.dtype("i4", metadata={"a": 1})), "metadata"),
    (np.zeros(1, np.dtype("O", metadata={"a": 1})), "metadata"),
    (np.dtype("O", metadata={"a": 1}), "metadata"),
    (np.zeros(1, [(("a title", "a"), "i4")]), "'a' has a title"),
    (np.array([2], "u1").view("?"), r"bool or str.*\.astype"),
    (np.array([2**31], "u4").view("U1"), r"bool or str.*\.astype"),
]


def test_values_that_could_not_be_rebuilt_are_refused(subtests: pytest.Subtests) -> None:
    for value, message in REFUSED:
        with case(subtests, message, value):
            with pytest.raises(UnsupportedError, match=f"(?s){message}") as caught:
                codec.pack({"deep": [value]})
            assert caught.value.where.startswith("deep[0]")


def test_other_classes_of_numpy_are_not_values() -> None:
    assert numpy_types.dumper(np.random.Generator) is None
    with pytest.raises(UnsupportedError, match="Generator"):
        codec.pack(np.random.default_rng(0))


def test_sizes_are_checked_before_memory_is_spent() -> None:
    small = Codec(max_bytes=1000)
    small.pack(np.zeros(900, "u1"))
    with pytest.raises(TooLargeError):
        small.pack(np.zeros(1001, "u1"))
    with pytest.raises(TooLargeError):
        codec.pack(np.broadcast_to(np.float64(1), (10**12,)))
    with pytest.raises(TooLargeError):
        codec.pack(np.broadcast_to(np.array(None, object), (10**12,)))


def test_an_array_inside_itself_is_an_error() -> None:
    array = np.empty(1, object)
    array[0] = array
    with pytest.raises(HoldfastError):
        codec.pack(array)
    with pytest.raises(TooDeepError):
        Packer(default_registry, 1 << 20).pack(array)


def test_children_name_the_items_of_objects_only() -> None:
    array = np.array([[None, print]], object)
    assert dict(numpy_types.children(array)) == {"[0, 0]": None, "[0, 1]": print}
    assert list(numpy_types.children(np.zeros(2))) == []
    assert list(numpy_types.children(np.float64(1))) == []


# Forged bytes ------------------------------------------------------------------------------------------------


def forged(tag: Tag, *parts: Any) -> bytes:
    return ext(tag, codec.pack(list(parts)))


FORGED: list[tuple[Tag, list[Any]]] = [
    (Tag.NDARRAY, []),
    (Tag.NDARRAY, ["<f8", [1], "C"]),
    (Tag.NDARRAY, ["<f8", [1], "C", b"1234567"]),
    (Tag.NDARRAY, ["<f8", [1], "C", b"123456789"]),
    (Tag.NDARRAY, ["<f8", [10**12], "C", b"123"]),
    (Tag.NDARRAY, ["<f8", [10**12], "C", b""]),
    (Tag.NDARRAY, ["<f8", [2**32, 2**32, 2**32], "C", b""]),
    (Tag.NDARRAY, ["<f8", [0, 2**63, 2**63], "C", b""]),
    (Tag.NDARRAY, ["<f8", [0] * 100, "C", b""]),
    (Tag.NDARRAY, ["<f8", [-1], "C", b""]),
    (Tag.NDARRAY, ["<f8", [-1, -8], "C", b"12345678" * 8]),
    (Tag.NDARRAY, ["<f8", [True], "C", b"12345678"]),
    (Tag.NDARRAY, ["<f8", [1.0], "C", b"12345678"]),
    (Tag.NDARRAY, ["<f8", 1, "C", b"12345678"]),
    (Tag.NDARRAY, ["<f8", (1,), "C", b"12345678"]),
    (Tag.NDARRAY, ["<f8", [1], "K", b"12345678"]),
    (Tag.NDARRAY, ["<f8", [1], ["C"], b"12345678"]),
    (Tag.NDARRAY, ["<f8", [8], "C", "12345678" * 8]),
    (Tag.NDARRAY, ["<f8", [1], "C", [1.0]]),
    (Tag.NDARRAY, ["|O", [1], "C", b"12345678"]),
    (Tag.NDARRAY, ["|O", [10**12], "C", [1]]),
    (Tag.NDARRAY, ["|O", [-1], "C", [1]]),
    (Tag.NDARRAY, ["|O8", [1], "C", b"12345678"]),
    (Tag.NDARRAY, ["O", [1], "C", b"12345678"]),
    (Tag.NDARRAY, ["|b1", [1], "C", b"\2"]),
    (Tag.NDARRAY, ["<U1", [1], "C", b"\xff\xff\xff\xff"]),
    (Tag.NDARRAY, [">U1", [1], "C", b"\xff\0\0\0"]),
    *(
        (Tag.NDARRAY, [spec, [1], "C", b"12345678"])
        for spec in [
            *("", "f8", "<f8 ", "<f8\n", "<g", "<f16", "float64", "object", "numpy.float64", "<i8,<i8", "(2,)<i4"),
            *("<M8[0s]", "<M8[x]", "<M8[99999999999s]", "<M8[s/2]", "|S99999999999", "|V9999999999", "T", "|i8"),
            *(None, 8, {"names": ["a"]}, [], ["fields"], ["subarray", "<f8"], ["what", "<f8", [1]]),
            ["subarray", "<f4", [2]],
            ["subarray", "|O", [1]],
            ["subarray", "<f4", [-2]],
            ["subarray", "<f4", [2**40, 2**40]],
            ["fields", [["a", "|O", 0]], 8, False, False],
            ["fields", [["a", "<f8", -8]], 8, False, False],
            ["fields", [["a", "<f8", 1]], 8, False, False],
            ["fields", [["a", "<f8", 2**40]], 8, False, False],
            ["fields", [["a", "<f4", 0], ["a", "<f4", 4]], 8, False, False],
            ["fields", [["a", "<f8", "0"]], 8, False, False],
            ["fields", [[1, "<f8", 0]], 8, False, False],
            ["fields", [["a", "<f8"]], 8, False, False],
            ["fields", [["a", "<f8", 0]], -8, False, False],
            ["fields", [["a", "<f8", 0]], 2**70, False, False],
            ["fields", [["a", "<f8", 0]], 8, 0, False],
            ["fields", "abc", 8, False, False],
        ]
    ),
    (Tag.NDARRAY, [["fields", [["a", "|b1", 0]], 1, False, False], [1], "C", b"\2"]),
    (Tag.NUMPY_SCALAR, ["<f8", b""]),
    (Tag.NUMPY_SCALAR, ["<f8", b"123456789"]),
    (Tag.NUMPY_SCALAR, ["|O", b"12345678"]),
    (Tag.NUMPY_SCALAR, ["|O", None]),
    (Tag.NUMPY_SCALAR, ["|S8", b"12345678"]),
    (Tag.NUMPY_SCALAR, ["U", b"a"]),
    (Tag.NUMPY_SCALAR, ["S", "a"]),
    (Tag.NUMPY_SCALAR, ["|b1", b"\2"]),
    (Tag.NUMPY_SCALAR, [["subarray", "<f4", [2]], b"12345678"]),
    (Tag.NUMPY_DTYPE, []),
    (Tag.NUMPY_DTYPE, ["O"]),
    (Tag.NUMPY_DTYPE, [["fields", [["a", "|O", 0]], 8, False, False]]),
]


def test_forged_values_are_refused_without_memory(subtests: pytest.Subtests) -> None:
    for tag, parts in FORGED:
        with case(subtests, tag.name, parts):
            data = forged(tag, *parts)
            check_refused_cheaply(codec, data)


def test_the_forgeries_differ_from_the_real_thing_in_one_point_only() -> None:
    assert codec.pack(np.frombuffer(b"12345678")) == forged(Tag.NDARRAY, "<f8", [1], "C", b"12345678")
    record = np.zeros(1, [("a", "<f8")])
    assert codec.pack(record) == forged(Tag.NDARRAY, ["fields", [["a", "<f8", 0]], 8, False, False], [1], "C", bytes(8))


@given(st.binary(max_size=60), st.sampled_from([Tag.NDARRAY, Tag.NUMPY_SCALAR, Tag.NUMPY_DTYPE]))
def test_noise_gives_typed_errors_only(noise: bytes, tag: Tag) -> None:
    with contextlib.suppress(HoldfastError):
        codec.unpack(ext(tag, noise))


plain = st.recursive(
    st.one_of(
        st.sampled_from(["|O", "<f8", "|V0", "<U1", "C", "F", "fields", "subarray", "U", "S"]),
        st.integers(-2, 2**40),
        st.booleans(),
        st.binary(max_size=9),
    ),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(plain, max_size=5), st.sampled_from([Tag.NDARRAY, Tag.NUMPY_SCALAR, Tag.NUMPY_DTYPE]))
def test_plausible_noise_gives_typed_errors_only(parts: list[Any], tag: Tag) -> None:
    with contextlib.suppress(HoldfastError):
        codec.unpack(forged(tag, *parts))


def test_a_datetime_among_objects_is_unchanged() -> None:
    moment = dt.datetime(2026, 2, 3, tzinfo=dt.UTC)
    back = codec.unpack(codec.pack(np.array([moment, np.datetime64("2026-02-03")], object)))
    assert back.tolist() == [moment, np.datetime64("2026-02-03")]
    assert type(back[1]) is np.datetime64
