"""Values, messages and times as readable text: plain text and JSON that every database can store.

The JSON has no NUL, no number beyond 64 bits, no NaN, and limited nesting: PostgreSQL and MongoDB refuse the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.json import encode

from holdfast.codec.plain_json import to_plain
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.packed_state import Packed, flatten, packed_size
from holdfast.errors import TooDeepError

CAP = 64 << 10
"""A value of more bytes than this, packed or as JSON, is left out."""

_MAX_MESSAGES_BYTES = 8 << 20
"""Messages of more bytes than this together are left out where they would be written at once: they are in one batch
with the step, and databases limit those."""

_KEY = 256
"""How many bytes of the name of a channel or an entry are in a key: the names of tenant and thread need space, too."""

VALUE, CONVERSATION, LEFT_OUT = "value", "conversation", "left out"
"""How a channel is shown: its value, its messages one by one, or only that it exists."""

_DEPTH = 64
_MESSAGES = "messages"
"""In a channel of this name, plain strings are messages, too."""

ROLES = {
    "human": "user",
    "HumanMessageChunk": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "system": "system",
    "SystemMessageChunk": "system",
    "tool": "tool",
    "ToolMessageChunk": "tool",
    "function": "function",
    "FunctionMessageChunk": "function",
    "chat": "chat",
    "ChatMessageChunk": "chat",
    "remove": "remove",
}
"""The roles of LangChain's types of messages."""


class RenderedMessage(msgspec.Struct, frozen=True):
    """A message: its role, name, text and calls of tools, and all of it as JSON."""

    role: str
    name: str
    content: str
    tool_calls: str
    json: str


def render_value(packed: Packed) -> tuple[str, str]:
    """Return how a value is shown, and its JSON."""
    if packed_size(packed) > CAP or _has_pointer(packed):
        return LEFT_OUT, "null"
    try:
        text = to_text(to_plain(flatten(packed)))
    except TooDeepError:
        return LEFT_OUT, "null"
    return (LEFT_OUT, "null") if len(text.encode()) > CAP else (VALUE, text)


def messages(channel: str, items: Sequence[bytes]) -> list[RenderedMessage] | None:
    """Return the messages in a list; None if something else is in it."""
    if sum(map(len, items)) > _MAX_MESSAGES_BYTES:
        return None
    result = []
    for item in items:
        message = _message(channel, item)
        if message is None:
            return None
        result.append(message)
    return result


def _message(channel: str, packed: bytes) -> RenderedMessage | None:
    try:
        plain = to_plain(packed)
    except TooDeepError:
        return None
    if type(plain) is str and channel == _MESSAGES:
        return RenderedMessage("", "", clean_text(plain)[:CAP], "null", _within_cap(to_text(plain)))
    if type(plain) is not dict:
        return None
    fields = plain if "content" in plain and type(plain.get("role")) is str else in_common_form(plain)
    role, kind = fields.get("role"), fields.get("type")
    if type(role) is not str:
        role = ROLES.get(kind) if type(kind) is str else None
    if role is None or not ("content" in fields or "tool_calls" in fields):
        return None
    name = fields.get("name")
    name = clean_text(name) if type(name) is str else ""
    content = clean_text(_words(fields.get("content")))[:CAP]
    calls = fields.get("tool_calls")
    calls = _within_cap(to_text(calls)) if calls else "null"
    return RenderedMessage(clean_text(role), name, content, calls, _within_cap(to_text(plain)))


def in_common_form(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a framework as one with a role, a content and calls of tools; anything else as it is."""
    kind, parts, contents = plain.get("kind"), plain.get("parts"), plain.get("contents")
    if kind in ("request", "response") and type(parts) is list:
        return _of_pydantic_ai(kind, [part for part in parts if type(part) is dict])
    if type(plain.get("author")) is str and type(plain.get("invocation_id", plain.get("actions"))) in (str, dict):
        return _of_adk(plain)
    if type(contents) is list and type(plain.get("role")) is str:
        calls = [part for part in contents if type(part) is dict and part.get("type") == "function_call"]
        return {**plain, "content": contents, "tool_calls": calls, "name": plain.get("author_name")}
    match plain.get("type"):
        case "function_call" if "call_id" in plain:
            return {"role": "assistant", "content": "", "tool_calls": [plain]}
        case "function_call_output":
            return {"role": "tool", "content": plain.get("output")}
        case "reasoning" if type(plain.get("summary")) is list:
            return {"role": "assistant", "content": plain["summary"]}
    return plain


_PARTS = {
    "user-prompt": "user",
    "tool-return": "tool",
    "retry-prompt": "tool",
    "system-prompt": "system",
    "thinking": "thinking",
}
"""The roles of the parts of a request of Pydantic AI; that of the first kind is the message's, and they its content."""


def _of_pydantic_ai(kind: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [part.get("part_kind") for part in parts]
    role = "assistant" if kind == "response" else next((_PARTS[each] for each in _PARTS if each in kinds), "user")
    said = [part.get("content") for part in parts if _PARTS.get(str(part.get("part_kind")), "assistant") == role]
    words = [_words(each) if type(each) in (str, list) else to_text(each) for each in said if each is not None]
    return {
        "role": role,
        "content": words,
        "tool_calls": [part for part in parts if part.get("part_kind") == "tool-call"],
    }


def _of_adk(event: dict[str, Any]) -> dict[str, Any]:
    author, content = event["author"], event.get("content")
    found = content.get("parts") if type(content) is dict else None
    parts = [part for part in found if type(part) is dict] if type(found) is list else []
    answers = [to_text(part["function_response"]) for part in parts if "function_response" in part]
    role = "user" if author == "user" else "tool" if answers else "assistant"
    return {
        "role": role,
        "name": "" if author == "user" else author,
        "content": [*parts, *answers],
        "tool_calls": [part["function_call"] for part in parts if "function_call" in part],
    }


def _words(content: Any) -> str:
    """Return the text of a message, which may consist of parts."""
    if type(content) is str:
        return content
    if type(content) is not list:
        return ""
    parts = (part.get("text") if type(part) is dict else part for part in content)
    return "\n".join(part for part in parts if type(part) is str)


def _within_cap(text: str) -> str:
    return "null" if len(text) > CAP else text


def to_text(plain: Any) -> str:
    """Return a tree of JSON values as text that every store can store."""
    return encode(_clean(plain, _DEPTH)).decode()


def _clean(tree: Any, depth: int) -> Any:
    kind = type(tree)
    if kind is str:
        return clean_text(tree)
    if kind is int:
        return tree if -(1 << 63) <= tree < 1 << 63 else str(tree)
    if kind is float:
        return tree if math.isfinite(tree) else str(tree)
    if kind is dict:
        if not depth:
            return "nested too deeply"
        return {clean_text(str(key)): _clean(item, depth - 1) for key, item in tree.items()}
    if kind is list:
        return [_clean(item, depth - 1) for item in tree] if depth else "nested too deeply"
    return tree


def clean_text(text: str) -> str:
    """Return text without NUL and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def key_text(text: str) -> str:
    """Return text as part of a key: its start and a digest, where it is too long or had to be cleaned."""
    clean = clean_text(text)
    data = clean.encode()
    if clean == text and len(data) <= _KEY:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{data[: _KEY - 40].decode(errors='ignore')}…{digest}"


@lru_cache(256)  # all rows of a step have the same
def time_text(time: int) -> str:
    """Return a time in nanoseconds since 1970 as text that sorts: UTC, to the microsecond."""
    seconds, rest = divmod(time, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:06}Z"


def _has_pointer(packed: Packed) -> bool:
    """Return whether there is a pointer to a large value. Such a value alone is too large to be shown."""
    if isinstance(packed, bytes):
        return is_pointer(packed)
    return any(map(_has_pointer, packed if isinstance(packed, list) else packed.values()))


_HIDDEN = ("\0", "__", "branch:to:", "join:")
"""Prefixes of internal names: those of frameworks' own channels, and of LangGraph's for scheduling."""


def is_hidden(name: str) -> bool:
    """Return whether a channel is a framework's own, and not shown to people."""
    return name.startswith(_HIDDEN)
