"""What `langgraph.json` names, as the guide has it: LangGraph's server enters both for as long as it runs."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import BaseStore

import holdfast

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "items.md"
NEEDED = ("aget_tuple", "aput", "aput_writes", "alist")
RECOMMENDED = ("adelete_thread", "adelete_for_runs", "acopy_thread", "aprune")
"""The methods that LangGraph's server says that it needs of a saver besides `aget`, and recommends."""


def test_the_saver_and_the_store_of_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = GUIDE.read_text(encoding="utf-8").partition("## In `langgraph.json`")[2].partition("\n## ")[0]
    code, text = (match.group(1) for match in re.finditer(r"```(?:python|json)\n(.*?)```", section, re.DOTALL))
    settings, names = json.loads(text), dict[str, Any]()
    exec(compile(code, "memory.py", "exec"), names)
    checkpointer, items = (names[settings[each]["path"].rpartition(":")[2]] for each in ("checkpointer", "store"))

    async def serve() -> None:
        async with checkpointer() as saver, items() as memory:
            assert isinstance(saver, BaseCheckpointSaver)
            assert isinstance(memory, BaseStore)
            for name in (*NEEDED, *RECOMMENDED):
                assert getattr(type(saver), name) is not getattr(BaseCheckpointSaver, name), f"{name} is its own"
            builder = StateGraph(MessagesState).add_node("say", lambda _: {"messages": [("ai", "Hi!")]})
            graph = builder.add_edge(START, "say").compile(checkpointer=saver, store=memory)
            hello: Any = {"messages": [("user", "Hello")]}
            await graph.ainvoke(hello, {"configurable": {"thread_id": "chat"}})
            await memory.aput(("memories",), "a", {"n": 1})

    asyncio.run(serve())
    with holdfast.open("agents.db") as store:
        assert [message.content for message in store.thread("chat").get().state["messages"]] == ["Hello", "Hi!"]
        assert store.state(items="memories")["a"] == {"n": 1}
