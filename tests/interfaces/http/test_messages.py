"""Messages as responses: their parts, and what the model says of them, in the forms of several providers."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from holdfast.codec import default_codec
from holdfast.engine.projection.rendering import messages
from holdfast.interfaces.http.messages import to_message
from holdfast.interfaces.http.models import MessageModel

PNG = "iVBORw0KGgo="


def made(message: Any) -> MessageModel:
    """The message as a response."""
    rendered = messages("messages", default_codec.pack_items([message]))
    assert rendered is not None
    return to_message("messages", 0, rendered[0])


@pytest.mark.parametrize(
    ("part", "kind", "name", "text"),
    [
        ({"type": "reasoning", "reasoning": "hm"}, "reasoning", "", "hm"),
        ({"type": "thinking", "thinking": "hm", "signature": "x"}, "reasoning", "", "hm"),
        ({"type": "redacted_thinking", "data": "x"}, "reasoning", "", ""),
        ({"type": "reasoning", "summary": [{"text": "a"}, {"text": "b"}]}, "reasoning", "", "a\n\nb"),
        ({"type": "reasoning_content", "reasoning_content": {"text": "hm"}}, "reasoning", "", "hm"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio", "wav", ""),
        ({"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"}, "audio", "audio/wav", ""),
        ({"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}}, "file", "a.pdf", ""),
        ({"type": "document", "title": "A report", "source": {"data": "AAAA"}}, "file", "A report", ""),
        ({"type": "file", "url": "https://a.b/c.pdf"}, "file", "https://a.b/c.pdf", ""),
        ({"type": "video", "file_id": "f-1"}, "video", "f-1", ""),
        ({"type": "server_tool_use", "id": "s", "name": "web", "input": {"q": 1}}, "tool", "web", '{"q":1}'),
        ({"type": "new_kind", "x": 1}, "other", "new_kind", '{"type":"new_kind","x":1}'),
    ],
)
def test_a_part_of_a_message_is_named(part: dict[str, Any], kind: str, name: str, text: str) -> None:
    (block,) = made(AIMessage([part])).blocks
    assert (block.kind, block.name, block.text) == (kind, name, text)
    (block,) = made({"role": "assistant", "content": [part]}).blocks
    assert block.kind == kind


def test_what_is_shown_elsewhere_is_no_further_part() -> None:
    call: Any = {"name": "f", "args": {}, "id": "c1"}
    used = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
    message = made(AIMessage([{"type": "text", "text": "a"}, used, "b"], tool_calls=[call]))
    assert (message.blocks, message.text) == ([], "a\nb")
    reasoned = made(AIMessage("a", additional_kwargs={"reasoning_content": "hm"}))
    assert [(each.kind, each.text) for each in reasoned.blocks] == [("reasoning", "hm")]


@pytest.mark.parametrize(
    ("part", "shown", "not_shown"),
    [
        ({"type": "image", "base64": PNG, "mime_type": "image/png"}, [f"data:image/png;base64,{PNG}"], []),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            [f"data:image/png;base64,{PNG}"],
            [],
        ),
        ({"type": "image", "base64": PNG, "mime_type": "image/svg+xml"}, [], ["image/svg+xml"]),
        ({"type": "image", "base64": "<b>", "mime_type": "image/png"}, [], ["image/png"]),
        ({"type": "image", "url": "https://a.b/c.png"}, [], ["https://a.b/c.png"]),
        ({"type": "image", "file_id": "f"}, [], ["in the message"]),
    ],
)
def test_small_images_are_shown_and_others_named(part: dict[str, Any], shown: list[str], not_shown: list[str]) -> None:
    message = made({"role": "user", "content": [part]})
    assert (message.images, message.not_shown, message.blocks) == (shown, not_shown, [])


@pytest.mark.parametrize(
    ("message", "usage", "model", "seconds"),
    [
        (
            AIMessage(
                "a",
                usage_metadata={
                    "input_tokens": 9,
                    "output_tokens": 4,
                    "total_tokens": 13,
                    "input_token_details": {"cache_read": 5},
                },
                response_metadata={"model_name": "m-1", "latency": 1.25},
            ),
            (9, 4, 5),
            "m-1",
            1.25,
        ),
        (
            AIMessage(
                "a", response_metadata={"token_usage": {"prompt_tokens": 9, "completion_tokens": 4}, "model": "m"}
            ),
            (9, 4, 0),
            "m",
            None,
        ),
        (AIMessage("a", response_metadata={"total_duration": 2_500_000_000}), None, "", 2.5),
        (AIMessage("a", response_metadata={"metrics": {"latencyMs": [640]}}), None, "", 0.64),
        ({"role": "assistant", "content": "a", "usage": {"input_tokens": 1}, "model": "m"}, (1, 0, 0), "m", None),
        ({"role": "assistant", "content": "a", "usage": "x", "model": 5, "response_metadata": []}, None, "5", None),
        ({"role": "assistant", "content": "a", "usage": {"input_tokens": -1, "output_tokens": True}}, None, "", None),
    ],
)
def test_usage_model_and_time_are_found(
    message: Any, usage: tuple[int, int, int] | None, model: str, seconds: float | None
) -> None:
    found = made(message)
    tokens = found.usage and (found.usage.input, found.usage.output, found.usage.cached)
    assert (tokens, found.model, found.seconds) == (usage, model, seconds)
