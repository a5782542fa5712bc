"""`holdfast show`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from tests.interfaces.cli import kit

Hf = Callable[..., kit.Result]


def shown(url: str, state: dict[str, Any], *arguments: str) -> list[str]:
    with holdfast.open(url) as store:
        store.thread("s").put(state)
    found = kit.run("show", "s", *arguments, store=url)
    assert found.code == 0, found.err
    return found.lines


def test_the_latest(hf: Hf) -> None:
    lines = hf("show", "t1").lines
    assert lines[0] == "checkpoint c5"
    assert lines[1:4] == ["Thread:   t1", "Parent:   c4", "Step:     5 on main"]
    assert 'Metadata: {"source":"loop","n":5}' in lines
    assert lines[lines.index("messages (6 messages)") + 1 :][:2] == ["  user: message 0", "  assistant: message 1"]
    assert lines[-1] == "count: 5"


def test_another(hf: Hf) -> None:
    assert "Tags:     good" in hf("show", "t1", "good").lines
    assert "Labels:   seen" in hf("show", "t1", "c4").lines
    assert "Step:   4 on other" in hf("show", "t1", "other").lines
    assert hf("show", "t1", "#1").lines[0] == "checkpoint c1"
    assert hf("show", "t1", "c0").lines[2] == "Parent:   (none)"


def test_as_json(hf: Hf) -> None:
    (record,) = hf("show", "t1", "c1", "--json").records
    assert record["state"]["count"] == 1
    assert record["tags"] == ["good"]
    assert record["labels"] == ["seen"]
    assert len(record["hash"]) == 64
    (record,) = hf("show", "t1", "--json", "--channel", "count").records
    assert record["state"] == {"count": 5}
    (record,) = hf("show", "t1", "--json", "--no-state").records
    assert "state" not in record


def test_a_part(hf: Hf) -> None:
    assert hf("show", "t1", "--path", "messages[-1].content").out == "message 5\n"
    assert hf("show", "t2", "--path", "plan.steps").lines == ["- one", "- two"]
    assert hf("show", "t1", "--path", "messages[1:3]", "--json").records[0]["value"] == [
        {"role": "assistant", "content": "message 1"},
        {"role": "user", "content": "message 2"},
    ]
    assert hf("show", "t1", "--channel", "count").lines[-2:] == ["", "count: 5"]
    assert "count" not in hf("show", "t1", "--no-state").out


@pytest.mark.parametrize("path", ["nope", "messages[99]", "count.deep", "messages.x", "nope[1:2]"])
def test_a_part_that_is_not_there(hf: Hf, path: str) -> None:
    found = hf("show", "t1", "--path", path)
    assert (found.code, found.out) == (3, "")
    assert "the state has nothing at" in found.err


def test_wrong_names(hf: Hf) -> None:
    assert hf("show", "t1", "--channel", "nope").code == 3
    assert "There are messages, count" in hf("show", "t1", "--channel", "nope").err
    assert hf("show", "nope").code == 3
    assert hf("show", "t1", "nope").code == 3
    assert hf("show", "t1", "--path", "a..b").code == 2
    assert hf("show", "t1", "--path", "count", "--no-state").code == 2


def test_trees(url: str) -> None:
    state = {
        "plan": {"goal": "rest", "steps": ["one", {"two": [1, 2]}], "empty": [], "none": None},
        "text": "first\nsecond",
        "flag": True,
        "nothing": {},
    }
    lines = shown(url, state)
    assert lines[lines.index("plan:") :] == [
        "plan:",
        "  goal: rest",
        "  steps:",
        "    - one",
        "    - two:",
        "        - 1",
        "        - 2",
        "  empty: []",
        "  none: null",
        "",
        "text: first",
        "  second",
        "",
        "flag: true",
        "",
        "nothing: {}",
    ]


def test_long_values_are_shortened(url: str) -> None:
    state = {"text": "x" * 5000, "numbers": list(range(100)), "map": {f"k{n}": n for n in range(50)}}
    lines = shown(url, state)
    assert f"text: {'x' * 300}… (5,000 characters)" in lines
    assert "numbers: (100 items)" in lines
    assert "  - 19" in lines
    assert "  - 20" not in lines
    assert "map: (50 entries)" in lines
    assert "  … 30 more (--full shows all)" in lines
    lines = shown(url, state, "--full")
    assert f"text: {'x' * 5000}" in lines
    assert "  - 99" in lines
    assert "  k49: 49" in lines


def test_of_a_long_conversation_the_end_is_shown(url: str) -> None:
    said = [{"role": "user", "content": f"word {n}"} for n in range(500)]
    lines = shown(url, {"messages": said})
    assert "messages (500 messages)" in lines
    assert "  … 488 messages before (--full shows all)" in lines
    assert "  user: word 488" in lines
    assert "  user: word 499" in lines
    assert "  user: word 487" not in lines
    assert "  user: word 0" in shown(url, {"messages": said}, "--full")


def test_messages_of_several_kinds(url: str) -> None:
    said = [
        {"role": "system", "content": "Be kind.\nBe short."},
        {"type": "human", "content": "hello", "name": "anna"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "args": {"at": "sky"}}]},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}, 7]},
        {"role": "tool", "content": [{"type": "text", "text": "blue"}]},
        {"role": "assistant", "content": "x", "tool_calls": 5},
    ]
    lines = shown(url, {"messages": said})
    assert lines[lines.index("messages (6 messages)") + 1 :] == [
        "  system: Be kind.",
        "    Be short.",
        "  user anna: hello",
        "  assistant:",
        '    calls look({"at":"sky"})',
        "  assistant:",
        "    calls f({})",
        "  tool: blue",
        "  assistant: x",
    ]


def test_a_list_that_is_no_conversation(url: str) -> None:
    lines = shown(url, {"messages": [{"role": "user", "content": "a"}, 5]})
    assert "messages:" in lines
    assert "  - 5" in lines
    lines = shown(url, {"items": [{"a": n} for n in range(30)]})
    assert "items: (30 items)" in lines
    assert "  - a: 0" in lines


def test_values_that_json_has_no_form_for(url: str) -> None:
    with holdfast.open(url) as store:
        store.thread("s").put(
            {"big": 1 << 80, "nan": float("nan"), "set": {1}, "bytes": b"ab", "half": "\ud800", 'k"': 1}
        )
    (record,) = kit.run("show", "s", "--json", store=url).records
    assert record["state"]["big"] == str(1 << 80)
    assert record["state"]["nan"] == "nan"
    assert record["state"]["half"] == "\ufffd"
    assert kit.run("show", "s", store=url).code == 0
