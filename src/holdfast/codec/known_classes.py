"""Well-known classes whose field names are not written with every value.

A message of LangChain's is the most frequent value there is. Its class and its field names are replaced by the
number of a *shape*; only the field values are stored. Part of the storage format: a shape, once listed, never
changes. A class that has other fields than its shape (a newer or older release) is written by name instead, and
a stored shape that the class of today does not match is filled or kept inert by the same rules as any class.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.codec.tags import Tag


class KnownClass(NamedTuple):
    """A class, how it is taken apart, and its fields in stored order."""

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
    21: KnownClass("holdfast.interfaces.langgraph.contents:SerializedValue", Tag.DATACLASS, ("type", "data")),
}

KNOWN_CLASS_NUMBERS: dict[tuple[str, tuple[str, ...]], int] = {
    (shape.ref, shape.names): number for number, shape in KNOWN_CLASSES.items()
}
