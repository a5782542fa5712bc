"""pandas values: round trips, refusals, and forged bytes."""

import contextlib
import datetime as dt
import zoneinfo
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.extra import pandas as pdst

from holdfast.codec import Codec, OpaqueValue, pandas_types
from holdfast.codec.msgpack import ext
from holdfast.codec.tags import Tag
from holdfast.errors import CorruptError, HoldfastError, TooLargeError, UnsupportedError
from tests.codec.forgeries import check_refused_cheaply
from tests.support.cases import case

codec = Codec()

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
EAST = dt.timezone(dt.timedelta(hours=5, minutes=30), "east")


def again(value: Any) -> Any:
    """The value packed and unpacked; the result has to pack to the same bytes."""
    packed = codec.pack(value)
    back = codec.unpack(packed)
    assert type(back) is type(value)
    assert codec.pack(back) == packed
    return back


def check_index(index: Any) -> None:
    back = again(index)
    pd.testing.assert_index_equal(back, index, exact=True, check_names=True, check_exact=True)
    assert back.dtype == index.dtype
    assert getattr(back, "freq", None) == getattr(index, "freq", None)


def check_series(series: Any) -> None:
    back = again(series)
    pd.testing.assert_series_equal(
        back, series, check_exact=True, check_freq=True, check_flags=True, check_index_type=True
    )
    assert back.dtype == series.dtype
    assert back.attrs == series.attrs


def check_frame(frame: Any) -> None:
    back = again(frame)
    pd.testing.assert_frame_equal(
        back,
        frame,
        check_exact=True,
        check_freq=True,
        check_flags=True,
        check_column_type=True,
        check_index_type=True,
    )
    assert list(back.dtypes) == list(frame.dtypes)
    assert back.attrs == frame.attrs


# Scalars -----------------------------------------------------------------------------------------------------

MOMENTS: list[Any] = [
    pd.Timestamp("2026-02-03 04:05:06.123456789"),
    pd.Timestamp("2026-02-03").as_unit("s"),
    pd.Timestamp("1500-01-01").as_unit("ms"),
    pd.Timestamp("2026-02-03 04:05:06.7", tz=BERLIN),
    pd.Timestamp("2026-02-03", tz=zoneinfo.ZoneInfo("UTC")),
    pd.Timestamp("2026-02-03", tz=dt.UTC),
    pd.Timestamp("2026-02-03", tz=EAST),
    pd.Timestamp("2026-10-25 00:30", tz="UTC").tz_convert(BERLIN),
    pd.Timestamp("2026-10-25 01:30", tz="UTC").tz_convert(BERLIN),
    pd.Timestamp("2026-10-26 02:30", tz=BERLIN).replace(fold=1),
    pd.Timestamp("2026-10-26 02:30").replace(fold=1),
    pd.Timestamp.max,
    pd.Timestamp.min,
]


def test_timestamps_come_back(subtests: pytest.Subtests) -> None:
    for moment in MOMENTS:
        with case(subtests, moment):
            back = again(moment)
            assert back == moment
            assert (back.unit, back.fold, back.nanosecond) == (moment.unit, moment.fold, moment.nanosecond)
            assert back.asm8 == moment.asm8
            assert type(back.tz) is type(moment.tz)
            assert str(back.tz) == str(moment.tz)


@given(
    st.integers(-(2**62), 2**62), st.sampled_from([None, dt.UTC, BERLIN, zoneinfo.ZoneInfo("America/Sao_Paulo"), EAST])
)
def test_any_moment_comes_back(moment: int, zone: dt.tzinfo | None) -> None:
    value = pd.Timestamp(moment, unit="ns", tz=zone)
    back = again(value)
    assert (back, back.fold, back.utcoffset()) == (value, value.fold, value.utcoffset())


SCALARS: list[Any] = [
    pd.Timedelta(-1, "ns"),
    pd.Timedelta(5, "s").as_unit("s"),
    pd.Timedelta.max,
    pd.Period("2026-02", "M"),
    pd.Period("2026Q1", "2Q-NOV"),
    pd.Period("2026-02-03", "W-TUE"),
    pd.Interval(0, 1.5, closed="both"),
    pd.Interval(np.float64(0), np.float64(1), closed="neither"),
    pd.Interval(MOMENTS[3], MOMENTS[3] + pd.Timedelta("1h"), closed="left"),
    pd.Interval(pd.Timedelta(1), pd.Timedelta(2)),
]


def test_other_scalars_come_back(subtests: pytest.Subtests) -> None:
    for value in SCALARS:
        with case(subtests, value):
            back = again(value)
            assert back == value
            for name in ("unit", "freqstr", "closed"):
                assert getattr(back, name, None) == getattr(value, name, None)
            if isinstance(value, pd.Interval):
                assert [type(back.left), type(back.right)] == [type(value.left), type(value.right)]


def test_missing_values_remain_singletons() -> None:
    back = codec.unpack(codec.pack([pd.NaT, pd.NA, None]))
    assert back[0] is pd.NaT
    assert back[1] is pd.NA
    assert back[2] is None


# Arrays, indexes and columns ---------------------------------------------------------------------------------

SPARE_NAN = pd.arrays.FloatingArray(np.array([np.nan, 1.0, 2.0]), np.array([False, False, True]))  # NaN beside NA
VALUES: dict[str, Any] = {
    "categorical": pd.Categorical(["b", None, "a"], categories=["b", "a", "z"], ordered=True),
    "unordered": pd.Categorical([3, 1, 3]),
    "cut": pd.cut([1.0, 5.0, 9.0], 2),
    "no categories": pd.Categorical([None, None, None]),
    "zoned": pd.date_range("2026-10-24", periods=3, tz=BERLIN).array,
    "zoned seconds": pd.DatetimeIndex(["2026-02-03", None, "2026-02-04"], tz=EAST).as_unit("s").array,
    "naive": pd.DatetimeIndex(["2026-02-03", None, "2026-02-04"]).array,
    "differences": pd.TimedeltaIndex(["1h", None, "3ms"]).array,
    **{name: pd.array([1, None, 3], dtype=name) for name in ("Int8", "Int16", "Int32", "Int64")},
    **{name: pd.array([1, None, 3], dtype=name) for name in ("UInt8", "UInt16", "UInt32", "UInt64")},
    "Float32": pd.array([0.1, None, -0.0], dtype="Float32"),
    "Float64": pd.array([0.1, None, -0.0], dtype="Float64"),
    "NaN and NA": SPARE_NAN,
    "boolean": pd.array([True, None, False], dtype="boolean"),
    "string": pd.array(["a", None, "ü"], dtype=pd.StringDtype("python")),
    "str": pd.array(["a", None, "ü"], dtype=pd.StringDtype("python", na_value=np.nan)),
    "numpy strings": pd.array([np.str_("a"), "b", None], dtype=pd.StringDtype("python")),
    "lone surrogate": pd.array(["\ud800", "b", None], dtype=pd.StringDtype("python")),
    "periods": pd.period_range("2026", periods=3, freq="Q-NOV").array,
    "intervals": pd.arrays.IntervalArray.from_breaks([0, 1, 2, 4], closed="left"),
    "intervals of times": pd.interval_range(pd.Timestamp("2026", tz="UTC"), periods=3).array,
    "wrapped": pd.arrays.NumpyExtensionArray(np.array([1, 2, 3], "i2")),
    "objects": np.array(["text", (1, 2), None], object),
    "text objects": np.array(["a", "b", "c"], object),
    "mixed times": np.array([pd.NaT, pd.Timestamp("2026", tz="UTC"), np.nan], object),
    **{f"numpy {dtype}": np.array([1, 0, 1], dtype) for dtype in ("?", "i1", "u8", "q", "f4", "f8", "c8", "c16")},
    **{f"numpy {dtype}": np.array([1, "NaT", 3], dtype) for dtype in ("M8[s]", "M8[ns]", "m8[ms]", "m8[us]")},
}


def test_values_come_back_alone_in_an_index_and_in_a_column(subtests: pytest.Subtests) -> None:
    for name in VALUES:
        with case(subtests, name):
            values = VALUES[name]
            if isinstance(values, pd.api.extensions.ExtensionArray):
                back = again(values)
                assert back.dtype == values.dtype
                pd.testing.assert_extension_array_equal(back, values, check_exact=True)
            check_index(pd.Index(values, dtype=values.dtype, name=("a", 1), tupleize_cols=False))
            series = pd.Series(values, dtype=values.dtype, name=name)
            check_series(series)
            check_series(series[:0])
            check_frame(pd.DataFrame({"x": series, "y": 1.5}))


def test_masked_values_are_not_stored() -> None:
    mask = np.array([False, True])
    one, other = (pd.arrays.IntegerArray(np.array([1, hidden]), mask) for hidden in (5, 6))
    assert codec.pack(one) == codec.pack(other)


INDEXES: list[Any] = [
    pd.RangeIndex(5),
    pd.RangeIndex(10**12, name="n"),
    pd.RangeIndex(8, -3, -2, name=None),
    pd.Index([]),
    pd.Index(["a", None], name="a name"),
    pd.Index([(1, 2), (3, 4)], tupleize_cols=False),
    pd.date_range("2026", periods=4, freq="h", name="hours"),
    pd.date_range("2026", periods=4, freq="B"),
    pd.date_range("2026", periods=4, freq="-2D"),
    pd.date_range("2026", periods=4, freq="W-TUE"),
    pd.date_range("2026", periods=4, freq="WOM-2WED"),
    pd.date_range("2026-03-27", periods=4, freq="D", tz=BERLIN),
    pd.date_range("2026", periods=0, freq="D"),
    pd.date_range("2026", periods=2, freq="90min", unit="ms"),
    pd.timedelta_range("1h", periods=3, freq="30min"),
    pd.MultiIndex.from_product([pd.date_range("2026", periods=2), ["a", "b"]], names=["when", None]),
    pd.MultiIndex.from_tuples([(1, "a"), (None, "b"), (1, None)], names=["same", "same"]),
    pd.MultiIndex.from_arrays([pd.Categorical(["x", "y"]), [1.5, 2.5]]),
    pd.MultiIndex.from_product([[1, 2], [3, 4]])[:1],
    pd.MultiIndex(levels=[[1, 2]], codes=[[0, 1]], sortorder=1),
    pd.MultiIndex(levels=[[], []], codes=[[], []]),
]


def test_indexes_come_back(subtests: pytest.Subtests) -> None:
    for index in INDEXES:
        with case(subtests, index):
            check_index(index)
            if isinstance(index, pd.MultiIndex):
                back = again(index)
                assert back.sortorder == index.sortorder  # type: ignore[attr-defined]
                for left, right in zip(back.levels, index.levels, strict=True):
                    assert left.equals(right)
                    check_index(right)
            if len(index) < 100:
                check_series(pd.Series(range(len(index)), index=index, dtype="f8"))
                check_frame(pd.DataFrame(index=index))
                check_frame(pd.DataFrame(np.zeros((2, len(index))), columns=index))


# Series and tables -------------------------------------------------------------------------------------------


def test_a_table_of_everything_comes_back() -> None:
    frame = pd.concat([pd.Series(values, dtype=values.dtype, name=name) for name, values in VALUES.items()], axis=1)
    check_frame(frame)
    check_frame(frame.iloc[::-2])


def test_labels_may_repeat_and_be_anything() -> None:
    frame = pd.DataFrame([[1, "a", 2.5, None]], columns=pd.Index(["x", "x", 3, None], dtype=object, name="labels"))
    check_frame(frame)
    check_frame(frame.T)
    check_frame(pd.DataFrame())
    check_frame(pd.DataFrame(columns=["a", "b"]))
    check_frame(pd.DataFrame([[1, 2]], index=["same"], columns=["same", "same"]))
    check_frame(pd.DataFrame([[1.0], [2.0]], index=["same", "same"]))
    check_frame(pd.DataFrame([[1.0], [2.0]], index=[np.nan, np.nan]))


def test_attrs_and_flags_come_back() -> None:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs = {"source": ("file", dt.date(2026, 2, 3)), 1: None}
    check_frame(frame)
    check_frame(frame.set_flags(allows_duplicate_labels=False))
    series = frame["a"].copy()
    series.attrs = {"unit": "m"}
    check_series(series.set_flags(allows_duplicate_labels=False))
    assert codec.unpack(codec.pack(frame)).flags.allows_duplicate_labels is True


def test_blocks_do_not_show_in_the_bytes() -> None:
    whole = pd.DataFrame(np.arange(6).reshape(2, 3), columns=["a", "b", "c"])
    grown = pd.DataFrame(index=whole.index, columns=pd.Index([], dtype=whole.columns.dtype))
    for label in whole:
        grown[label] = whole[label].to_numpy()
    assert codec.pack(whole) == codec.pack(grown)


def test_unpacked_values_are_mutable() -> None:
    frame = codec.unpack(codec.pack(pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})))
    frame.loc[0, "a"] = 9
    frame["c"] = 1
    assert frame.to_dict("list") == {"a": [9, 2], "b": ["x", "y"], "c": [1, 1]}


element_dtypes = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.floating_dtypes(endianness="=", sizes=(32, 64)),
    npst.complex_number_dtypes(endianness="="),
    npst.datetime64_dtypes(max_period="s", min_period="ns", endianness="="),
)


@given(element_dtypes.flatmap(lambda dtype: pdst.series(dtype=dtype)))
def test_series_come_back(series: Any) -> None:
    check_series(series)


@given(
    pdst.data_frames(
        columns=[
            pdst.column("number", dtype=float),
            pdst.column("count", dtype=int),
            pdst.column("text", elements=st.text(max_size=5), dtype=object),
            pdst.column("when", elements=st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))),
        ],
        index=st.one_of(
            pdst.range_indexes(), pdst.indexes(dtype=float, unique=False), pdst.indexes(elements=st.text(max_size=3))
        ),
    )
)
def test_tables_come_back(frame: Any) -> None:
    check_frame(frame)


# What is refused ---------------------------------------------------------------------------------------------


class Zone(dt.tzinfo):
    """A time zone of an application's own."""

    def utcoffset(self, moment: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, moment: dt.datetime | None) -> None:
        return None

    def tzname(self, moment: dt.datetime | None) -> str:
        return "zone"


def wrong_frequency() -> Any:
    """An index that was told a frequency it does not have, as only pandas' inside can do."""
    index: Any = pd.DatetimeIndex(["2026-01-01", "2026-01-05", "2026-01-06"])
    holder = index if hasattr(index, "_freq") else index._data
    holder._freq = pd.offsets.Day()
    return index


REFUSED: list[tuple[Any, ...]] = [
    (pd.Series(pd.arrays.SparseArray([0, 1])), r"dtype Sparse\[int64, 0\] cannot be saved.*\.astype"),
    (pd.arrays.SparseArray([0, 1]), r"dtype Sparse\[int64, 0\]"),
    (pd.date_range("2026", periods=2, freq=pd.DateOffset(months=1, hours=2)), "frequency.*freq of the index"),
    (pd.date_range("2026", periods=2, freq=pd.offsets.CustomBusinessDay(holidays=["2026-01-02"])), "frequency"),
    (wrong_frequency(), "do not match its freq.*None"),
    (pd.Timestamp("2026", tz=Zone()), "Zone.*zoneinfo"),
    (pd.Series(pd.DatetimeIndex(["2026"], tz=Zone())), "Zone.*zoneinfo"),
    (pd.MultiIndex(levels=[[1, 1]], codes=[[0, 1]], verify_integrity=False), "twice.*from_tuples"),
    (pd.Series([print], dtype=object), "print"),
]


def test_values_that_could_not_be_rebuilt_are_refused(subtests: pytest.Subtests) -> None:
    for value, message in REFUSED:
        with case(subtests, message, value):
            with pytest.raises(UnsupportedError, match=f"(?s){message}") as caught:
                codec.pack({"deep": [value]})
            assert caught.value.where.startswith("deep[0]")


def test_other_classes_of_pandas_are_not_values() -> None:
    assert pandas_types.dumper(pd.Grouper) is None
    with pytest.raises(UnsupportedError, match="Rolling"):
        codec.pack(pd.Series([1.0]).rolling(2))


def test_children_name_the_parts() -> None:
    frame = pd.DataFrame({"good": [1], "bad": pd.Series([print], dtype=object)})
    parts = dict(pandas_types.children(frame))
    assert list(parts) == [".columns", "['good']", "['bad']", ".index", ".attrs"]
    assert dict(pandas_types.children(parts["['bad']"]))["[0]"] is print
    assert list(dict(pandas_types.children(frame["good"]))) == [".index", ".attrs"]
    assert list(pandas_types.children(pd.Index([1, "a"], dtype=object))) == [("[0]", 1), ("[1]", "a")]
    assert list(pandas_types.children(pd.NaT)) == []


# What is not available here ----------------------------------------------------------------------------------


def forged(tag: Tag, *parts: Any) -> bytes:
    return ext(tag, codec.pack(list(parts)))


UNKNOWN_ZONE = OpaqueValue(Tag.ZONEINFO, b"Nowhere/Atlantis")


NOT_AVAILABLE: list[Any] = [
    (Tag.TIMESTAMP, 0, "ns", UNKNOWN_ZONE, 0),
    (Tag.EXTENSION_ARRAY, "zoned", np.zeros(1, "M8[ns]"), UNKNOWN_ZONE),
    (Tag.EXTENSION_ARRAY, "periods", "NEWFREQ", np.zeros(1, "i8")),
    (Tag.PERIOD, "NEWFREQ", 1),
    (Tag.INDEX, "regular", None, np.zeros(1, "M8[ns]"), "NEWFREQ-DEC"),
    (Tag.INTERVAL, OpaqueValue(Tag.TIMESTAMP, codec.pack([0, "ns", UNKNOWN_ZONE, 0])), 1, "left"),
]


def test_values_that_need_a_missing_library_are_opaque(subtests: pytest.Subtests) -> None:
    for parts in NOT_AVAILABLE:
        with case(subtests, parts):
            data = forged(*parts)
            back = codec.unpack(data)
            assert type(back) is OpaqueValue
            assert codec.pack(back) == data


def test_a_table_with_a_column_that_is_not_available_stays_inert_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = codec.pack(pd.DataFrame({"a": pd.array(["x"], dtype=VALUES["string"].dtype)}))

    def missing(*args: Any, **kwargs: Any) -> None:
        raise ImportError("no pyarrow")

    monkeypatch.setattr(pd, "StringDtype", missing)
    back = codec.unpack(data)
    assert type(back) is OpaqueValue
    monkeypatch.undo()
    assert codec.pack(back) == data


# Forged bytes ------------------------------------------------------------------------------------------------

ZEROS = np.zeros(2, "i8")
RANGE = pd.RangeIndex(2)
FORGED: list[tuple[Any, ...]] = [
    (Tag.TIMESTAMP, 0, "ns", None),
    (Tag.TIMESTAMP, "0", "ns", None, 0),
    (Tag.TIMESTAMP, 0, "D", None, 0),
    (Tag.TIMESTAMP, 0, "ns", "Europe/Berlin", 0),
    (Tag.TIMESTAMP, 0, "ns", None, 2),
    (Tag.TIMESTAMP, -(2**63), "ns", None, 0),
    (Tag.TIMESTAMP, 2**80, "ns", None, 0),
    (Tag.PANDAS_TIMEDELTA, 0, "D"),
    (Tag.PANDAS_TIMEDELTA, -(2**63), "ns"),
    (Tag.PANDAS_TIMEDELTA, "1", "ns"),
    (Tag.PERIOD, "M; import os", 1),
    (Tag.PERIOD, "M", -(2**63)),
    (Tag.PERIOD, "M", 2**80),
    (Tag.INTERVAL, 1, 0, "left"),
    (Tag.INTERVAL, "a", "b", "left"),
    (Tag.INTERVAL, 0, 1, "sideways"),
    (Tag.EXTENSION_ARRAY,),
    (Tag.EXTENSION_ARRAY, "unknown", 1),
    (Tag.EXTENSION_ARRAY, ["numpy"], 1),
    (Tag.EXTENSION_ARRAY, "numpy", ZEROS),
    (Tag.EXTENSION_ARRAY, "numpy", [1]),
    (Tag.EXTENSION_ARRAY, "wrapped", [1]),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS, ["a"], False),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS + 5, pd.Index(["a"]), False),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS.astype("f8"), pd.Index(["a"]), False),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS.reshape(1, 2), pd.Index(["a"]), False),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS, pd.Index(["a", "a"]), False),
    (Tag.EXTENSION_ARRAY, "categorical", ZEROS, pd.Index(["a"]), "no"),
    (Tag.EXTENSION_ARRAY, "zoned", ZEROS, dt.UTC),
    (Tag.EXTENSION_ARRAY, "zoned", ZEROS.astype("M8[ns]"), "UTC"),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS, np.zeros(3, "?")),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS, ZEROS),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS, None),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS.astype(">i8"), np.zeros(2, "?")),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS.astype("c8"), np.zeros(2, "?")),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS.astype(object), np.zeros(2, "?")),
    (Tag.EXTENSION_ARRAY, "masked", ZEROS.reshape(1, 2), np.zeros((1, 2), "?")),
    (Tag.EXTENSION_ARRAY, "strings", "python", True, [1]),
    (Tag.EXTENSION_ARRAY, "strings", "python", True, "text"),
    (Tag.EXTENSION_ARRAY, "strings", "pickle", True, ["a"]),
    (Tag.EXTENSION_ARRAY, "periods", "M", ZEROS.astype("f8")),
    (Tag.EXTENSION_ARRAY, "periods", 5, ZEROS),
    (Tag.EXTENSION_ARRAY, "intervals", pd.Index([2]), pd.Index([1]), "left"),
    (Tag.EXTENSION_ARRAY, "intervals", [1], [2], "left"),
    (Tag.EXTENSION_ARRAY, "intervals", pd.RangeIndex(10**12), pd.RangeIndex(10**12), "left"),
    (Tag.EXTENSION_ARRAY, "intervals", pd.Index([1]), pd.RangeIndex(10**12), "left"),
    (Tag.EXTENSION_ARRAY, "numpy", np.zeros((), "M8[s]")),
    (Tag.EXTENSION_ARRAY, "wrapped", np.zeros((), "i8")),
    (Tag.INDEX,),
    (Tag.INDEX, "unknown"),
    (Tag.INDEX, "values", None, [1]),
    (Tag.INDEX, "values", [], ZEROS),
    (Tag.INDEX, "values", None, ZEROS.reshape(1, 2)),
    (Tag.INDEX, "values", None, ZEROS.astype("M8[D]")),
    (Tag.INDEX, "values", None, np.array(["a"])),
    (Tag.INDEX, "regular", None, ZEROS, "D"),
    (Tag.INDEX, "regular", None, np.array([1, 2, 5], "M8[s]"), "s"),
    (Tag.INDEX, "regular", None, ZEROS.astype("M8[s]"), "<D>"),
    (Tag.INDEX, "range", None, 0, 5, 0),
    (Tag.INDEX, "range", None, 0, 5.5, 1),
    (Tag.INDEX, "range", None, 0, 5),
    (Tag.INDEX, "multi", [None], [pd.Index([1])], [ZEROS + 1], None),
    (Tag.INDEX, "multi", [None], [pd.Index([1])], [ZEROS.astype("f8")], None),
    (Tag.INDEX, "multi", [None], [pd.Index([1, 1])], [ZEROS], None),
    (Tag.INDEX, "multi", [None], [[1]], [ZEROS], None),
    (Tag.INDEX, "multi", [None, None], [pd.Index([1])], [ZEROS], None),
    (Tag.INDEX, "multi", [None, None], [pd.Index([1])] * 2, [ZEROS, ZEROS[:1]], None),
    (Tag.SERIES, None, RANGE),
    (Tag.SERIES, None, RANGE, [1, 2], {}, True),
    (Tag.SERIES, None, [0, 1], ZEROS, {}, True),
    (Tag.SERIES, None, pd.RangeIndex(10**12), ZEROS, {}, True),
    (Tag.SERIES, [], RANGE, ZEROS, {}, True),
    (Tag.SERIES, None, RANGE, ZEROS, [], True),
    (Tag.SERIES, None, RANGE, ZEROS, {}, 1),
    (Tag.SERIES, None, RANGE, np.array(["a", "b"]), {}, True),
    (Tag.SERIES, None, RANGE, ZEROS.reshape(1, 2), {}, True),
    (Tag.SERIES, None, pd.Index([1, 1]), ZEROS, {}, False),
    (Tag.DATAFRAME, RANGE, RANGE, [ZEROS], {}, True),
    (Tag.DATAFRAME, RANGE, pd.RangeIndex(10**12), [ZEROS], {}, True),
    (Tag.DATAFRAME, pd.RangeIndex(10**12), RANGE, [ZEROS, ZEROS], {}, True),
    (Tag.DATAFRAME, pd.RangeIndex(10**12), pd.RangeIndex(1), [np.zeros((), "i8")], {}, True),
    (Tag.DATAFRAME, RANGE, RANGE, ZEROS, {}, True),
    (Tag.DATAFRAME, RANGE, RANGE, [pd.Series([1, 2])] * 2, {}, True),
    (Tag.DATAFRAME, RANGE, None, [], {}, True),
]


def test_forged_values_are_refused_without_memory(subtests: pytest.Subtests) -> None:
    for parts in FORGED:
        with case(subtests, parts):
            data = forged(*parts)
            with pytest.raises(CorruptError):  # once before, so that what pandas loads late does not count
                codec.unpack(data)
            check_refused_cheaply(codec, data)


def test_endless_levels_are_refused_on_both_sides() -> None:
    with pytest.raises(TooLargeError, match="10000000000"):
        codec.unpack(forged(Tag.INDEX, "multi", [None], [pd.RangeIndex(10**10)], [ZEROS], None))
    endless: Any = pd.RangeIndex(20_000_000)
    with pytest.raises(TooLargeError, match="remove_unused_levels"):
        codec.pack(pd.MultiIndex(levels=[endless], codes=[[0]]))


parts = st.one_of(
    st.sampled_from(
        [*("values", "range", "multi", "masked", "strings", "python", "categorical", "left"), RANGE, ZEROS]
    ),
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.lists(st.integers(-2, 2), max_size=3),
    st.dictionaries(st.text(max_size=2), st.none(), max_size=1),
)


@given(st.sampled_from([tag for tag in Tag if tag >= Tag.TIMESTAMP]), st.lists(parts, max_size=5))
def test_plausible_noise_gives_typed_errors_only(tag: Tag, noise: list[Any]) -> None:
    with contextlib.suppress(HoldfastError):
        codec.unpack(forged(tag, *noise))
