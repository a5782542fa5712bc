"""Which number stands for which type in stored bytes. Part of the storage format: never renumber.

A value that msgpack has no form for is an *ext*: one of these tags and a payload. `docs/format.md` lists what
each payload holds. A reader that meets a tag it does not know keeps the value inert.
"""

from __future__ import annotations

from enum import IntEnum


class Tag(IntEnum):
    """The types of format version 1."""

    # Python's own
    TUPLE = 1
    SET = 2
    FROZENSET = 3
    DICT = 4
    INT = 5
    STR = 6
    BYTEARRAY = 7
    COMPLEX = 8
    RANGE = 9
    DECIMAL = 10
    UUID = 11
    DATETIME = 12
    DATE = 13
    TIME = 14
    TIMEDELTA = 15
    TIMEZONE = 16
    ZONEINFO = 17
    PATH = 18
    REGEX = 19
    DEQUE = 20
    DEFAULTDICT = 21
    ORDEREDDICT = 22
    COUNTER = 23
    IPADDRESS = 24
    FRACTION = 25

    # an application's classes
    DATACLASS = 32
    ATTRS = 33
    PYDANTIC = 34
    PYDANTIC_V1 = 35
    NAMEDTUPLE = 36
    ENUM = 37
    FLAG = 38
    EXCEPTION = 39
    REFERENCE = 40
    REGISTERED = 41

    # well-known classes, written without their field names
    SHAPED = 48

    # numpy and pandas
    NDARRAY = 64
    NUMPY_SCALAR = 65
    NUMPY_DTYPE = 66
    TIMESTAMP = 72
    PANDAS_TIMEDELTA = 73
    NAT = 74
    PANDAS_NA = 75
    SERIES = 76
    DATAFRAME = 77
    INDEX = 78
    EXTENSION_ARRAY = 79
    PERIOD = 80
    INTERVAL = 81
