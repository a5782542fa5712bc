"""Messages of every framework are shown as messages."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.codec import default_codec
from holdfast.engine.projection.rendering import messages

CALL = {"part_kind": "tool-call", "tool_name": "add", "args": {"a": 1}, "tool_call_id": "c1"}
OURS: dict[str, list[tuple[dict[str, Any], tuple[str, str, str, bool]]]] = {
    "plain": [
        ({"role": "user", "content": "hi"}, ("user", "", "hi", False)),
        ({"role": "assistant", "content": [{"type": "text", "text": "ho"}]}, ("assistant", "", "ho", False)),
    ],
    "openai": [
        ({"role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}, ("assistant", "", "ho", False)),
        ({"type": "function_call", "name": "add", "arguments": "{}", "call_id": "c"}, ("assistant", "", "", True)),
        ({"type": "function_call_output", "call_id": "c", "output": "3"}, ("tool", "", "3", False)),
        ({"type": "reasoning", "id": "r", "summary": [{"text": "hm"}]}, ("assistant", "", "hm", False)),
    ],
    "pydantic-ai": [
        (
            {
                "kind": "request",
                "parts": [
                    {"part_kind": "system-prompt", "content": "be"},
                    {"part_kind": "user-prompt", "content": ["hi", {"kind": "binary"}]},
                ],
            },
            ("user", "", "hi", False),
        ),
        ({"kind": "response", "parts": [{"part_kind": "text", "content": "ho"}, CALL]}, ("assistant", "", "ho", True)),
        (
            {"kind": "request", "parts": [{"part_kind": "tool-return", "content": {"n": 1}}]},
            ("tool", "", '{"n":1}', False),
        ),
    ],
    "google-adk": [
        (
            {"author": "user", "invocation_id": "", "content": {"role": "user", "parts": [{"text": "hi"}]}},
            ("user", "", "hi", False),
        ),
        (
            {"author": "bot", "invocation_id": "e", "content": {"parts": [{"function_call": {"name": "f"}}]}},
            ("assistant", "bot", "", True),
        ),
        (
            {"author": "bot", "actions": {}, "content": {"parts": [{"function_response": {"name": "f"}}]}},
            ("tool", "bot", '{"name":"f"}', False),
        ),
        ({"author": "bot", "actions": {"state_delta": {"a": 1}}}, ("assistant", "bot", "", False)),
    ],
    "agent-framework": [
        ({"type": "message", "role": "user", "contents": [{"type": "text", "text": "hi"}]}, ("user", "", "hi", False)),
        (
            {
                "type": "message",
                "role": "assistant",
                "author_name": "bot",
                "contents": [{"type": "function_call", "name": "f"}],
            },
            ("assistant", "bot", "", True),
        ),
    ],
}


@pytest.mark.parametrize("framework", OURS)
def test_messages_of_a_framework(framework: str) -> None:
    given = [message for message, _ in OURS[framework]]
    found = messages("messages", [default_codec.pack(each) for each in given])
    assert found is not None
    assert [(each.role, each.name, each.content, each.tool_calls != "null") for each in found] == [
        expected for _, expected in OURS[framework]
    ]


@pytest.mark.parametrize(
    "value",
    [{"kind": "request"}, {"author": "me", "title": "book"}, {"type": "function_call"}, {"parts": []}, {"role": 1}],
)
def test_other_dicts_are_no_messages(value: dict[str, Any]) -> None:
    assert messages("messages", [default_codec.pack(value)]) is None


def test_the_list_of_threads_shows_the_last_message() -> None:
    with holdfast.open("memory://") as store:
        for framework, samples in OURS.items():
            store.thread(framework).append("messages", samples[0][0])
        shown = {info.thread: info.message for info in store.threads(preview=True)}
    assert [text for name, text in shown.items() if "hi" not in str(text) and "ho" not in str(text)] == []


def test_the_log_says_how_much_was_appended() -> None:
    with holdfast.open("memory://") as store:
        thread = store.thread("a")
        thread.append("messages", *(each for each, _ in OURS["pydantic-ai"]))
        thread.append("messages", OURS["pydantic-ai"][1][0], {"kind": "response", "parts": [CALL]})
        assert store.threads(preview=True)[0].message == 'assistant calls add({"a":1})'
        thread.increment("tokens", 5)
        assert store.threads(preview=True)[0].message == 'assistant calls add({"a":1})'
