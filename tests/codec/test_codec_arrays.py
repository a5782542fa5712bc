"""numpy and pandas are used only if they are loaded, with the same bytes in every process."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from holdfast.codec import Codec, numpy_types, pandas_types
from holdfast.codec.tags import Tag

codec = Codec()

SAMPLES = """
import numpy as np, pandas as pd, zoneinfo
frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"], "c": pd.Categorical(["u", "v"])})
frame.index = pd.date_range("2026", periods=2, tz=zoneinfo.ZoneInfo("Europe/Berlin"))
frame["d"] = pd.Series([{"set", "of", "words"}, frozenset("abc")], index=frame.index, dtype=object)
frame.attrs = {"k": {"x", "y", "z"}}
samples = [
    np.arange(6, dtype="i2").reshape(2, 3).T, np.float32(0.5), np.array([{"p", "q"}, "r"], object),
    np.zeros(2, [("a", "u1"), ("b", "f8")]), frame, frame["c"], frame.index, pd.Timestamp("2026"), pd.NaT, pd.NA,
]
"""


def run(code: str, *, hash_seed: str = "0", data: bytes = b"") -> str:
    """What a new Python prints when it runs this code; what it reads is the data."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=data,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.nightly
def test_the_bytes_are_the_same_in_every_process() -> None:
    code = SAMPLES + "from holdfast.codec import default_codec\nprint(default_codec.pack(samples).hex())"
    there = run(code, hash_seed="2" if os.environ.get("PYTHONHASHSEED") == "1" else "1")
    here: dict[str, Any] = {}
    exec(SAMPLES, here)
    assert codec.pack(here["samples"]).hex() == there
    assert codec.pack(codec.unpack(bytes.fromhex(there))).hex() == there


READ = """
import sys
from holdfast.codec import OpaqueValue, default_codec
data = sys.stdin.buffer.read()
value = default_codec.unpack(data)
assert type(value) is list and all(type(item) is OpaqueValue for item in value), value
assert default_codec.pack(value) == data
assert not {"numpy", "pandas", "holdfast.codec.numpy_types"} & set(sys.modules)
print(*(item.type_name for item in value))
"""


def test_where_numpy_is_not_loaded_values_stay_inert_and_nothing_is_imported() -> None:
    values = [np.arange(3), np.float64(1), np.dtype("f8"), np.array([{"a"}], object), pd.DataFrame({"a": [1]}), pd.NaT]
    names = run(READ, data=codec.pack(values))
    assert names == "ndarray numpy_scalar numpy_dtype ndarray dataframe nat"


NUMPY_ONLY = """
import sys
import numpy
from holdfast.codec import OpaqueValue, default_codec
array, table = default_codec.unpack(sys.stdin.buffer.read())
assert type(array) is numpy.ndarray and type(table) is OpaqueValue
default_codec.pack([array, table])
assert not {"pandas", "holdfast.codec.pandas_types"} & set(sys.modules)
"""


def test_where_only_numpy_is_loaded_pandas_is_not_touched() -> None:
    run(NUMPY_ONLY, data=codec.pack([np.arange(3), pd.DataFrame({"a": [1]})]))


def test_every_tag_has_a_loader() -> None:
    assert {*numpy_types.LOADERS, *pandas_types.LOADERS} == {tag for tag in Tag if tag >= Tag.NDARRAY}
