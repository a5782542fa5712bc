"""What must hold of a saver before its speed is worth anything."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from benchmarks.langgraph_savers import Saver
from benchmarks.langgraph_work import Line


def check_messages(found: list[BaseMessage], given: list[BaseMessage]) -> None:
    """Equal messages of exactly the same types, which are new objects."""
    assert type(found) is list
    assert found == given
    assert all(type(a) is type(b) for a, b in zip(found, given, strict=True)), "not the same types"
    assert not {*map(id, found)} & {*map(id, given)}, "not fresh objects"


def check_saver(saver: Saver) -> None:
    """Fresh objects, exact types, and a message altered in place is seen by the next checkpoint, not by the last."""
    line = Line(saver, "checked")
    messages: list[BaseMessage] = [HumanMessage("what?", id="1"), AIMessage("this", id="2")]
    values: dict[str, Any] = {"messages": messages, "plan": {"done": [1, True, 1.0, b"2", None]}}
    line.put(values, *values)
    first, before = line.config, [message.model_copy(deep=True) for message in messages]
    messages[0].additional_kwargs["seen"] = True
    messages[1].content = "that"
    line.put(values, "messages")
    for config, wanted in ((first, before), (line.config, messages), (first, before)):
        found, again = saver.get_tuple(config), saver.get_tuple(config)
        assert found is not None
        assert again is not None
        check_messages(found.checkpoint["channel_values"]["messages"], wanted)
        check_messages(again.checkpoint["channel_values"]["messages"], found.checkpoint["channel_values"]["messages"])
        done = found.checkpoint["channel_values"]["plan"]["done"]
        assert [*map(type, done)] == [int, bool, float, bytes, type(None)]
        # Whatever a caller does to what it got, nobody else gets to see it.
        found.checkpoint["channel_values"]["messages"][0].content = "spoiled"
        done.append("spoiled")
