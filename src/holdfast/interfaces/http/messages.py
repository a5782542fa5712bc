"""Messages of a state as responses: their text, images, further parts, calls of tools, and what the model says of them.

Blocks are those of LangChain's messages and of the providers whose content it passes on: OpenAI, Anthropic, Google.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.engine.paths import path_text
from holdfast.engine.projection.rendering import RenderedMessage
from holdfast.history.step_summary import is_failed_tool
from holdfast.history.usage import model_of, tokens_of
from holdfast.interfaces.http import models

_LONGEST = 4000
"""How many characters of a text are sent."""

_IMAGE = 256 << 10
_IMAGES = ("data:image/png;base64,", "data:image/jpeg;base64,", "data:image/gif;base64,", "data:image/webp;base64,")
"""Images that are shown. SVG is not among them: it may contain scripts."""

_MAX_ADDRESS = 300
_MOST_BLOCKS = 50
_Kind = Literal["reasoning", "audio", "video", "file", "tool", "other"]
_KINDS: dict[str, _Kind] = {
    **dict.fromkeys(("reasoning", "thinking", "redacted_thinking", "reasoning_content"), "reasoning"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("video", "input_video"), "video"),
    **dict.fromkeys(("file", "input_file", "document", "media", "text-plain"), "file"),
    **dict.fromkeys(("tool_use", "tool_call", "function_call", "server_tool_use", "server_tool_call"), "tool"),
    **dict.fromkeys(("tool_result", "server_tool_result", "web_search_tool_result", "web_search_call"), "tool"),
}
_INSIDE = ("input", "args", "arguments", "output", "content")
"""Where a block of a tool has what it was given, or returned."""

_SHOWN = ("text", "output_text", "input_text", "image", "image_url", "input_image")
"""Types of blocks that are shown as text or as images."""


def to_message(channel: str, index: int, message: RenderedMessage) -> models.MessageModel:
    """Return a message of a channel as a response."""
    tree = msgspec.json.decode(message.json)
    tree = tree if isinstance(tree, dict) else {}
    calls = tree.get("tool_calls")
    called = [_tool_call(each) for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    said = _dict(tree.get("response_metadata"))
    shown, not_shown = _images(tree.get("content"))
    return models.MessageModel(
        index=index,
        path=path_text((channel, index)),
        role=message.role or "text",
        name=message.name,
        text=message.content[:_LONGEST],
        complete=len(message.content) <= _LONGEST and message.json != "null",
        tool_calls=called,
        tool_call_id=str(tree.get("tool_call_id") or ""),
        failed=is_failed_tool(message),
        images=shown,
        not_shown=not_shown,
        blocks=list(_blocks(tree, {each.id for each in called}))[:_MOST_BLOCKS],
        usage=tokens_of(tree),
        model=model_of(tree)[:_MAX_ADDRESS],
        seconds=_seconds(said),
    )


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _tool_call(call: Mapping[str, Any]) -> models.ToolCallModel:
    function = call.get("function")
    called = function if isinstance(function, dict) else call
    arguments = called.get("args", called.get("arguments", {}))
    return models.ToolCallModel(
        id=str(call.get("id") or ""), name=str(called.get("name") or ""), arguments=_text(arguments)
    )


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:_LONGEST]


# Images and other parts -------------------------------------------------------------------------------------------


def _images(content: Any) -> tuple[list[str], list[str]]:
    """Return the small images in a message, and what is said of the others: nothing is fetched from elsewhere."""
    shown: list[str] = []
    others: list[str] = []
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict):
            continue
        found = part.get("image_url")
        url = found.get("url") if isinstance(found, dict) else found
        if url is None and part.get("type") in ("image", "input_image"):
            url = part.get("url") or _embedded(part)
        if isinstance(url, str):
            (shown if _is_small_image(url) else others).append(url)
    return shown, [_image_text(each) for each in others]


def _embedded(part: Mapping[str, Any]) -> str:
    """Return the data of an image that is in the message, as an address."""
    source = _dict(part.get("source"))
    data = part.get("base64") or part.get("data") or source.get("data")
    media = part.get("mime_type") or source.get("media_type")
    return f"data:{media};base64,{data}" if isinstance(data, str) and isinstance(media, str) else ""


def _is_small_image(url: str) -> bool:
    if not url.startswith(_IMAGES) or len(url) > _IMAGE:
        return False
    try:
        base64.b64decode(url.partition(",")[2], validate=True)
    except binascii.Error:
        return False
    return True


def _image_text(url: str) -> str:
    """Return the address of an image; of one that is in the message, its type."""
    if url.startswith("data:"):
        return url[5:80].partition(",")[0].partition(";")[0] or "data"
    return url[:_MAX_ADDRESS] or "in the message"


def _blocks(message: Mapping[str, Any], called: set[str]) -> Iterator[models.MessageBlockModel]:
    """Yield the parts of a message that are neither text nor images nor its calls of tools."""
    reasoning = _dict(message.get("additional_kwargs")).get("reasoning_content") or message.get("reasoning_content")
    if isinstance(reasoning, str) and reasoning:
        yield models.MessageBlockModel(kind="reasoning", name="", text=reasoning[:_LONGEST])
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or (type_ := str(part.get("type") or "")) in _SHOWN or "image_url" in part:
            continue
        kind: _Kind = _KINDS.get(type_, "other")
        if kind == "reasoning":
            yield models.MessageBlockModel(kind=kind, name="", text=_reasoning(part))
        elif kind == "tool":
            ids = {str(part.get(name) or "") for name in ("id", "call_id")} - {""}
            if not ids & called:
                name = str(part.get("name") or type_)[:_MAX_ADDRESS]
                inside: Any = next((part[each] for each in _INSIDE if each in part), "")
                yield models.MessageBlockModel(kind=kind, name=name, text=_text(inside))
        elif kind == "other":
            if not (type_ == "" and "text" in part):
                yield models.MessageBlockModel(kind=kind, name=type_[:_MAX_ADDRESS] or "part", text=_text(part))
        else:
            yield models.MessageBlockModel(kind=kind, name=_file_name(part, type_), text="")


def _reasoning(part: Mapping[str, Any]) -> str:
    said = next((part[name] for name in ("reasoning", "thinking", "text", "reasoning_content") if part.get(name)), None)
    if said is None:
        summary = part.get("summary")
        said = "\n\n".join(_text(_dict(each).get("text", "")) for each in summary) if isinstance(summary, list) else ""
    return _text(_dict(said).get("text", said))


def _file_name(part: Mapping[str, Any], type_: str) -> str:
    """Return the name of a file, or where it is, or its type."""
    places = [part, *(_dict(part.get(name)) for name in (type_, "file", "source", "extras", "metadata"))]
    for name in (
        "filename",
        "file_name",
        "name",
        "title",
        "url",
        "file_id",
        "file_uri",
        "mime_type",
        "media_type",
        "format",
    ):
        for place in places:
            if isinstance(found := place.get(name), str) and found and not found.startswith("data:"):
                return found[:_MAX_ADDRESS]
    return type_


# What the model says ----------------------------------------------------------------------------------------------


def _seconds(said: Mapping[str, Any]) -> float | None:
    """Return how long a model took: providers say it in units of their own."""
    usage = _dict(said.get("token_usage"))
    for place, name, scale in (
        (said, "latency", 1.0),
        (said, "latency_ms", 1e-3),
        (_dict(said.get("metrics")), "latencyMs", 1e-3),
        (said, "total_duration", 1e-9),
        (usage, "total_time", 1.0),
    ):
        value: Any = place.get(name)
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if type(value) in (int, float) and 0 < value < 1e18:
            return round(float(value) * scale, 3)
    return None
