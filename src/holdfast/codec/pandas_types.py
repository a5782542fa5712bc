"""Handlers for pandas' timestamps, indexes, columns and tables.

A table is stored column by column, and every part is rebuilt through pandas' own constructors, which validate it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

from holdfast.codec.opaque import OpaqueValue
from holdfast.codec.tags import Tag
from holdfast.codec.type_handler import ClassNotLoaded, Dumper, Packing, Unpacking
from holdfast.errors import CorruptError, TooLargeError, UnsupportedError

T = TypeVar("T")

_UNITS = ("s", "ms", "us", "ns")


def _part(value: Any, kind: type) -> Any:
    """Return a part of a payload, which must be an instance of this type."""
    if isinstance(value, OpaqueValue):
        raise ClassNotLoaded  # a part is not available in this process, so the whole is not
    if not isinstance(value, kind):
        raise CorruptError(f"a part of a stored pandas value is not a {kind.__name__}")
    return value


# Frequencies and time zones ---------------------------------------------------------------------------------

_FREQUENCY = re.compile(r"-?[0-9]{0,18}[A-Za-z]{1,8}(-[A-Z0-9]{1,8}){0,4}")


def _frequency_text(text: str, frequency: Any, parse: Callable[[str], Any]) -> str:
    """Return the short form of a frequency, if it is complete."""
    if not _FREQUENCY.fullmatch(text) or parse(text) != frequency:
        raise UnsupportedError(
            f"the pandas frequency {frequency!r} cannot be saved: its name does not define it",
            hint="Set the freq of the index to None, or save the values it was built from",
        )
    return text


def _parse_frequency(text: Any, parse: Callable[[str], T]) -> T:
    if type(text) is not str or not _FREQUENCY.fullmatch(text):
        raise CorruptError("a stored frequency is invalid")
    try:
        return parse(text)
    except ValueError:
        raise ClassNotLoaded from None  # releases of pandas differ in the names of frequencies


def _period_frequency(text: str) -> Any:
    """Parse a frequency of periods, whose names differ from those of offsets."""
    return pd.PeriodDtype(text).freq


def _period_text(periods: Any) -> str:
    return _frequency_text(periods.freqstr, periods.freq, _period_frequency)


def _check_zone(p: Packing, zone: dt.tzinfo | None) -> dt.tzinfo | None:
    try:
        p.pack(zone)
    except UnsupportedError as error:
        raise UnsupportedError(
            error.what, hint="Convert it to a zone of the standard library: .tz_convert(zoneinfo.ZoneInfo('Area/City'))"
        ) from None
    return zone


# Scalars ----------------------------------------------------------------------------------------------------


def _dump_timestamp(p: Packing, value: pd.Timestamp) -> tuple[int, bytes]:
    ticks = int(value.asm8.view(np.int64))
    return Tag.TIMESTAMP, p.pack([ticks, value.unit, _check_zone(p, value.tzinfo), value.fold])


def _load_timestamp(u: Unpacking, data: bytes) -> Any:
    ticks, unit, zone, fold = u.array(data)
    if type(ticks) is not int or unit not in _UNITS or fold not in (0, 1):
        raise CorruptError("a stored timestamp lacks its ticks, unit or fold")
    value = _part(pd.Timestamp(np.datetime64(ticks, unit)), pd.Timestamp)
    if zone is not None:
        value = value.tz_localize(dt.UTC).tz_convert(_part(zone, dt.tzinfo))
    return value if value.fold == fold else value.replace(fold=fold)


def _load_timedelta(u: Unpacking, data: bytes) -> Any:
    ticks, unit = u.array(data, int, str)
    if unit not in _UNITS:
        raise CorruptError("a stored time difference lacks its unit")
    return _part(pd.Timedelta(np.timedelta64(ticks, unit)), pd.Timedelta)


def _load_period(u: Unpacking, data: bytes) -> Any:
    text, ordinal = u.array(data, str, int)
    return _part(pd.Period(ordinal=ordinal, freq=_parse_frequency(text, _period_frequency)), pd.Period)


def _load_interval(u: Unpacking, data: bytes) -> pd.Interval[Any]:
    left, right, closed = u.array(data)
    return pd.Interval(_part(left, object), _part(right, object), closed)


# Extension arrays -------------------------------------------------------------------------------------------


def _refuse(dtype: Any) -> NoReturn:
    raise UnsupportedError(
        f"the pandas dtype {dtype} cannot be saved",
        hint="Convert it with .astype(…) to a numpy, nullable, string, categorical or time dtype, or to object",
    )


def _values(holder: Any) -> Any:
    """Return the values of an index or a column as an array that the codec supports."""
    if isinstance(holder.dtype, np.dtype):
        return holder.to_numpy()
    if type(holder.dtype) not in _EXTENSIONS:
        _refuse(holder.dtype)
    return holder.array


def _dump_extension(p: Packing, array: Any) -> tuple[int, bytes]:
    if isinstance(array.dtype, np.dtype):  # times without a zone, or time differences
        parts = ["numpy", array.to_numpy()]
    elif type(array) is pd.arrays.NumpyExtensionArray:
        parts = ["wrapped", array.to_numpy()]
    elif type(array.dtype) in _EXTENSIONS:
        parts = _EXTENSIONS[type(array.dtype)](p, array)
    else:
        _refuse(array.dtype)
    return Tag.EXTENSION_ARRAY, p.pack(parts)


def _load_extension(u: Unpacking, data: bytes) -> Any:
    kind, *parts = u.array(data)
    return _EXTENSION_LOADERS[kind](*parts)


def _check_row(values: Any) -> Any:
    """Return an array of one dimension. pandas would broadcast a scalar one to any length."""
    if _part(values, np.ndarray).ndim != 1:
        raise CorruptError("a part of a stored pandas value is not one-dimensional")
    return values


def _check_integers(values: Any) -> Any:
    if _check_row(values).dtype.kind != "i":
        raise CorruptError("stored positions are not integers")
    return values


def _revive_numpy(values: Any) -> Any:
    if _check_row(values).dtype.kind not in "mM":
        raise CorruptError("a stored pandas array of times contains other values")
    return pd.array(values, dtype=values.dtype, copy=False)


def _revive_categorical(codes: Any, categories: Any, ordered: Any) -> pd.Categorical:
    dtype = pd.CategoricalDtype(_part(categories, pd.Index), _part(ordered, bool))
    return pd.Categorical.from_codes(_check_integers(codes), dtype=dtype)


def _revive_zoned(times: Any, zone: Any) -> Any:
    naive = pd.DatetimeIndex(_revive_numpy(times))
    return naive.tz_localize(dt.UTC).tz_convert(_part(zone, dt.tzinfo)).array


def _dump_masked(_: Packing, array: Any) -> list[Any]:
    """Pack values and mask, with masked values as zero: equal arrays may differ there."""
    dtype = array.dtype.numpy_dtype
    return ["masked", array.to_numpy(dtype=dtype, na_value=dtype.type(0)), array.isna()]


_MASKED: dict[str, Any] = {
    "b": pd.arrays.BooleanArray,
    "i": pd.arrays.IntegerArray,
    "u": pd.arrays.IntegerArray,
    "f": pd.arrays.FloatingArray,
}


def _revive_masked(values: Any, mask: Any) -> Any:
    if not _check_row(values).dtype.isnative:
        raise CorruptError("a stored column has an invalid dtype")
    return _MASKED[values.dtype.kind](values, _check_row(mask))


def _dump_strings(_: Packing, array: Any) -> list[Any]:
    items = [None if missing else item for item, missing in zip(array.tolist(), array.isna(), strict=True)]
    return ["strings", array.dtype.storage, array.dtype.na_value is pd.NA, items]


def _revive_strings(storage: Any, uses_na: Any, items: Any) -> Any:
    if storage not in ("python", "pyarrow") or not all(
        item is None or isinstance(item, str) for item in _part(items, list)
    ):
        raise CorruptError("a stored column of strings contains other values")
    try:
        dtype = pd.StringDtype(storage) if uses_na else pd.StringDtype(storage, na_value=np.nan)
    except (ImportError, TypeError):
        raise ClassNotLoaded from None  # pyarrow is not installed, or pandas is too old for the second form
    return pd.array(items, dtype=dtype)


def _revive_periods(text: Any, ordinals: Any) -> Any:
    frequency = _parse_frequency(text, _period_frequency)
    return pd.arrays.PeriodArray(_check_integers(ordinals), dtype=pd.PeriodDtype(frequency))


def _revive_intervals(left: Any, right: Any, closed: Any) -> Any:
    if isinstance(left, pd.RangeIndex) or isinstance(right, pd.RangeIndex):
        raise CorruptError("a stored column of intervals has a range for its ends")  # which may be huge
    return pd.arrays.IntervalArray.from_arrays(_part(left, pd.Index), _part(right, pd.Index), closed)


_EXTENSIONS: dict[type, Callable[[Packing, Any], list[Any]]] = {
    pd.CategoricalDtype: lambda _, array: ["categorical", array.codes, array.categories, array.ordered],
    pd.DatetimeTZDtype: lambda p, array: [
        "zoned",
        array.to_numpy(dtype=f"M8[{array.dtype.unit}]"),
        _check_zone(p, array.dtype.tz),
    ],
    pd.StringDtype: _dump_strings,
    pd.PeriodDtype: lambda _, array: ["periods", _period_text(array), array.asi8],
    pd.IntervalDtype: lambda _, array: ["intervals", array.left, array.right, array.closed],
    **dict.fromkeys((pd.BooleanDtype, pd.Float32Dtype, pd.Float64Dtype), _dump_masked),
    **dict.fromkeys((pd.Int8Dtype, pd.Int16Dtype, pd.Int32Dtype, pd.Int64Dtype), _dump_masked),
    **dict.fromkeys((pd.UInt8Dtype, pd.UInt16Dtype, pd.UInt32Dtype, pd.UInt64Dtype), _dump_masked),
}
_EXTENSION_LOADERS: dict[str, Callable[..., Any]] = {
    "numpy": _revive_numpy,
    "wrapped": lambda values: pd.arrays.NumpyExtensionArray(_check_row(values)),
    "categorical": _revive_categorical,
    "zoned": _revive_zoned,
    "strings": _revive_strings,
    "masked": _revive_masked,
    "periods": _revive_periods,
    "intervals": _revive_intervals,
}


# Indexes ----------------------------------------------------------------------------------------------------


def _dump_index(p: Packing, index: pd.Index[Any]) -> tuple[int, bytes]:
    frequency = index.freq if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    parts = ["values", index.name, _values(index)]
    if frequency is not None:
        parts = ["regular", *parts[1:], _frequency_text(frequency.freqstr, frequency, to_offset)]
        try:
            _revive_regular(*parts[1:])
        except ValueError:
            raise UnsupportedError(
                f"the values of a pandas index do not match its freq {frequency!r}",
                hint="Set the freq of the index to None",
            ) from None
    return Tag.INDEX, p.pack(parts)


def _revive_values(name: Any, values: Any) -> pd.Index[Any]:
    array = _array(values)
    index: pd.Index[Any] = pd.Index(array, dtype=array.dtype, name=name, copy=False, tupleize_cols=False)
    if index.dtype != array.dtype:
        raise CorruptError("a stored pandas index has an invalid dtype")
    return index


def _array(values: Any) -> Any:
    if isinstance(values, pd.api.extensions.ExtensionArray):
        return values
    return _check_row(values)


def _revive_regular(name: Any, values: Any, frequency: Any) -> pd.Index[Any]:
    index = _revive_values(name, values)
    if not isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        raise CorruptError("a stored pandas index has a frequency but no times")
    return type(index)(index, freq=_parse_frequency(frequency, to_offset), name=name)


_MAX_LEVEL = 1 << 24


def _check_level(level: Any) -> Any:
    """Return a level of a MultiIndex. Refuses huge ranges, which take no bytes but are expanded by pandas."""
    if isinstance(level, pd.RangeIndex) and len(level) > _MAX_LEVEL:
        raise TooLargeError(
            f"a level of a pandas MultiIndex is a range of {len(level)} labels",
            hint="Drop unused labels with .remove_unused_levels()",
        )
    return level


def _dump_multi(p: Packing, index: Any) -> tuple[int, bytes]:
    levels = [_check_level(level.rename(None)) for level in index.levels]
    if not all(level.is_unique for level in levels):
        raise UnsupportedError(
            "a pandas MultiIndex with a level that contains a value twice cannot be saved",
            hint="Rebuild it with MultiIndex.from_tuples(…)",
        )
    return Tag.INDEX, p.pack(["multi", list(index.names), levels, list(index.codes), index.sortorder])


_INDEX_LOADERS: dict[str, Callable[..., Any]] = {
    "values": _revive_values,
    "regular": _revive_regular,
    "range": lambda name, start, stop, step: pd.RangeIndex(
        _part(start, int), _part(stop, int), _part(step, int), name=name
    ),
    "multi": lambda names, levels, codes, sort_order: pd.MultiIndex(
        levels=[_check_level(_part(level, pd.Index)) for level in levels],
        codes=[_check_integers(row) for row in codes],
        names=names,
        sortorder=sort_order,
    ),
}


def _load_index(u: Unpacking, data: bytes) -> Any:
    kind, *parts = u.array(data)
    return _INDEX_LOADERS[kind](*parts)


# Series and tables ------------------------------------------------------------------------------------------


def _extras(holder: Any) -> list[Any]:
    return [holder.attrs, holder.flags.allows_duplicate_labels]


def _set_extras(holder: Any, attrs: Any, duplicates: Any) -> None:
    holder.attrs = _part(attrs, dict)
    if not _part(duplicates, bool):
        holder.flags.allows_duplicate_labels = False


def _load_series(u: Unpacking, data: bytes) -> pd.Series[Any]:
    name, index, values, *extras = u.array(data)
    series = _column(_part(index, pd.Index), values)
    series.name = name
    _set_extras(series, *extras)
    return series


def _column(index: pd.Index[Any], values: Any) -> pd.Series[Any]:
    array = _array(values)
    series: pd.Series[Any] = pd.Series(array, index=index, dtype=array.dtype, copy=False)
    if series.dtype != array.dtype:
        raise CorruptError("a stored pandas column has an invalid dtype")
    return series


def _dump_table(p: Packing, table: pd.DataFrame) -> tuple[int, bytes]:
    columns = [_values(column) for _, column in table.items()]
    return Tag.DATAFRAME, p.pack([table.index, table.columns, columns, *_extras(table)])


def _load_table(u: Unpacking, data: bytes) -> pd.DataFrame:
    index, labels, columns, *extras = u.array(data)
    if len(_part(labels, pd.Index)) != len(columns):
        raise CorruptError("a stored pandas table does not have as many columns as labels")
    index = _part(index, pd.Index)
    # Labels may repeat, so the columns are numbered first and labelled afterwards.
    table = pd.DataFrame({i: _column(index, values) for i, values in enumerate(columns)}, index=index)
    table.columns = labels
    _set_extras(table, *extras)
    return table


# Dispatch ---------------------------------------------------------------------------------------------------

_DUMPERS: dict[type, Dumper] = {
    pd.Timestamp: _dump_timestamp,
    pd.Timedelta: lambda p, value: (Tag.PANDAS_TIMEDELTA, p.pack([int(value.asm8.view(np.int64)), value.unit])),
    pd.Period: lambda p, value: (Tag.PERIOD, p.pack([_period_text(value), value.ordinal])),
    pd.Interval: lambda p, value: (Tag.INTERVAL, p.pack([value.left, value.right, value.closed])),
    type(pd.NaT): lambda *_: (Tag.NAT, b""),
    type(pd.NA): lambda *_: (Tag.PANDAS_NA, b""),
    pd.Series: lambda p, series: (
        Tag.SERIES,
        p.pack([series.name, series.index, _values(series), *_extras(series)]),
    ),
    pd.DataFrame: _dump_table,
    pd.RangeIndex: lambda p, index: (
        Tag.INDEX,
        p.pack(["range", index.name, index.start, index.stop, index.step]),
    ),
    pd.MultiIndex: _dump_multi,
    **dict.fromkeys((pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.CategoricalIndex), _dump_index),
    **dict.fromkeys((pd.PeriodIndex, pd.IntervalIndex), _dump_index),
}

LOADERS: dict[Tag, Callable[[Unpacking, bytes], Any]] = {
    Tag.TIMESTAMP: _load_timestamp,
    Tag.PANDAS_TIMEDELTA: _load_timedelta,
    Tag.PERIOD: _load_period,
    Tag.INTERVAL: _load_interval,
    Tag.NAT: lambda *_: pd.NaT,
    Tag.PANDAS_NA: lambda *_: pd.NA,
    Tag.EXTENSION_ARRAY: _load_extension,
    Tag.INDEX: _load_index,
    Tag.SERIES: _load_series,
    Tag.DATAFRAME: _load_table,
}


def dumper(kind: type) -> Dumper | None:
    """Return the dumper of a pandas class, or None if its instances are not values."""
    if issubclass(kind, pd.api.extensions.ExtensionArray):
        return _dump_extension
    return _DUMPERS.get(kind)


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the parts of a table, series or index, with their path segments."""
    if isinstance(value, pd.DataFrame):
        yield ".columns", value.columns
        for label, column in value.items():
            yield f"[{label!r}]", column
    if isinstance(value, pd.DataFrame | pd.Series):
        yield ".index", value.index
        yield ".attrs", value.attrs
    if isinstance(value, pd.Series | pd.Index) and value.dtype == object:
        for i, item in enumerate(value.to_numpy()):
            yield f"[{i}]", item
