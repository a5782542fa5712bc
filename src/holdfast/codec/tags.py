"""The numbers of types and well-known classes in stored bytes. Part of the storage format: never renumber.

A value that msgpack cannot represent is an *ext*: a tag and a payload. `docs/format.md` describes each payload. A
value whose tag this release does not know is read as an `OpaqueValue`.

LangChain's messages are the most frequent values. Of a well-known class only a number and the fields are stored, not
its name. A class whose fields differ from those listed here (another release of its library) is stored by name.
"""

from __future__ import annotations

from enum import IntEnum

from holdfast._named_tuple import NamedTuple


class Tag(IntEnum):
    """The types of the format."""

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

    # classes of the application
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


class KnownClass(NamedTuple):
    """A class, the tag of its kind, and its fields in stored order."""

    ref: str
    kind: Tag
    names: tuple[str, ...]


_MESSAGE = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_AI = (*_MESSAGE, "tool_calls", "invalid_tool_calls", "usage_metadata")
_TOOL = (*_MESSAGE, "tool_call_id", "artifact", "status")


def _message(module: str, name: str, names: tuple[str, ...] = _MESSAGE) -> KnownClass:
    return KnownClass(f"langchain_core.messages.{module}:{name}", Tag.PYDANTIC, names)


KNOWN_CLASSES: dict[int, KnownClass] = {
    1: _message("human", "HumanMessage"),
    2: _message("ai", "AIMessage", _AI),
    3: _message("system", "SystemMessage"),
    4: _message("tool", "ToolMessage", _TOOL),
    5: _message("function", "FunctionMessage"),
    6: _message("chat", "ChatMessage", (*_MESSAGE, "role")),
    7: _message("modifier", "RemoveMessage"),
    8: _message("human", "HumanMessageChunk"),
    9: _message("ai", "AIMessageChunk", (*_AI, "tool_call_chunks", "chunk_position")),
    10: _message("system", "SystemMessageChunk"),
    11: _message("tool", "ToolMessageChunk", _TOOL),
    12: _message("function", "FunctionMessageChunk"),
    13: _message("chat", "ChatMessageChunk", (*_MESSAGE, "role")),
    14: KnownClass("langchain_core.documents.base:Document", Tag.PYDANTIC, ("id", "metadata", "page_content", "type")),
    15: KnownClass("langgraph.types:Send", Tag.DATACLASS, ("node", "arg")),
    16: KnownClass("langgraph.types:Send", Tag.DATACLASS, ("node", "arg", "timeout")),
    17: KnownClass("langgraph.types:Command", Tag.DATACLASS, ("graph", "update", "resume", "goto")),
    18: KnownClass("langgraph.types:Interrupt", Tag.DATACLASS, ("value", "id")),
    19: KnownClass("langgraph.types:Interrupt", Tag.DATACLASS, ("value", "id", "response_schema")),
    20: KnownClass("langgraph.checkpoint.serde.types:_DeltaSnapshot", Tag.NAMEDTUPLE, ("value",)),
}

KNOWN_CLASS_NUMBERS: dict[tuple[str, tuple[str, ...]], int] = {
    (known.ref, known.names): number for number, known in KNOWN_CLASSES.items()
}
